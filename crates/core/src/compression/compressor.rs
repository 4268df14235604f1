//! The sender's part: the headers learned for each flow, and the templates sent to the other end.

use core::time::Duration;

use super::{
    DEFINE_EVERY, MARK, MAX_HEADERS_BYTES, NUMBERS, TEMPLATES, distance,
    template::{Headers, Template},
};
use crate::{flows::FlowId, packet::PacketBuf, time::Instant};

/// Learns headers and compresses packets. Allocated with the first packet.
#[derive(Debug, Default)]
pub struct Compressor {
    flows: Vec<Option<Box<Flow>>>,
    /// Templates sent and not yet acknowledged, oldest first; at most [`MAX_PENDING`].
    pending: Vec<Pending>,
    next_number: u16,
    next_definition_at: Instant,
    /// Whether the other end has ever acknowledged a template.
    is_understood: bool,
}

/// A template to send.
#[derive(Clone, Copy, Debug)]
pub struct Definition<'a> {
    /// Number of the template, below [`NUMBERS`].
    pub number: u16,
    /// The template.
    pub template: &'a Template,
}

#[derive(Debug)]
struct Flow {
    id: FlowId,
    last_at: Instant,
    /// Headers of the newest packet.
    seen: Headers,
    /// Set of the bytes that have changed, and number of packets with headers of the same length.
    changed: u128,
    count: u32,
    known: Option<(u16, Template)>,
    is_pending: bool,
}

#[derive(Debug)]
struct Pending {
    id: FlowId,
    number: u16,
    template: Template,
    due: Instant,
    tries: u32,
}

impl Compressor {
    /// Returns a compressor whose first template has this number.
    #[cfg(test)]
    pub(super) fn starting_at(number: u16) -> Self {
        Self {
            next_number: number,
            ..Self::default()
        }
    }

    /// Compresses `packet`, which belongs to the flow `id`, if the other end knows a template for it.
    pub fn compress(&mut self, now: Instant, id: FlowId, packet: &mut PacketBuf) {
        let Some(headers) = Headers::of(packet) else {
            return;
        };
        if self.flows.is_empty() {
            self.flows.resize_with(FLOWS, || None);
        }
        let next = self.next_number;
        let slot = &mut self.flows[slot(id)];
        let is_taken = |flow: &Flow| flow.id != id && now.since(flow.last_at) < IN_USE;
        if slot.as_deref().is_some_and(is_taken) {
            return;
        }
        let flow = match slot {
            Some(flow) if flow.id == id => flow,
            slot => slot.insert(Box::new(Flow::new(id, headers.clone()))),
        };
        flow.last_at = now;
        let is_current = |number: u16| distance(next, number) < TEMPLATES / 2;
        flow.known.take_if(|(number, _)| !is_current(*number));
        if let Some((number, template)) = &flow.known
            && template.agrees_with(&headers)
        {
            let mut front = [0; 2 + MAX_HEADERS_BYTES];
            front[..2].copy_from_slice(&number.to_be_bytes());
            front[0] |= MARK;
            let len = 2 + template.pick(&headers, &mut front[2..]);
            if len < headers.as_slice().len() {
                packet.replace_front(headers.as_slice().len(), &front[..len]);
            }
            flow.count = flow.count.max(SETTLED);
            return;
        }
        if flow.learn(&headers) {
            self.define(now, id);
        }
    }

    /// Defines a template of a flow's headers, if one may be defined now.
    fn define(&mut self, now: Instant, id: FlowId) {
        if now < self.next_definition_at || self.pending.len() >= MAX_PENDING {
            return;
        }
        let number = self.next_number;
        let Some(flow) = self.flow_mut(id) else {
            return;
        };
        let travelling = flow.changed;
        let template = Template::new(flow.seen.clone(), travelling);
        let is_small = template.travelling_len() + 2 + LEAST_GAIN_BYTES > template.bytes().len();
        if is_small || travelling & 1 != 0 {
            flow.count = 0;
            return;
        }
        flow.is_pending = true;
        self.pending.push(Pending {
            id,
            number,
            template,
            due: now,
            tries: 0,
        });
        self.next_number = (number + 1) % NUMBERS;
        self.next_definition_at = now + DEFINE_EVERY;
    }

    /// Returns the time at which a definition is to be sent or repeated.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.due).min()
    }

    /// Returns the next definition to send now. It is repeated after `again` unless it is acknowledged.
    pub fn poll_definition(&mut self, now: Instant, again: Duration) -> Option<Definition<'_>> {
        loop {
            let index = self.pending.iter().position(|pending| pending.due <= now)?;
            let pending = &mut self.pending[index];
            let is_current = distance(self.next_number, pending.number) < TEMPLATES / 2;
            if pending.tries < TRIES && is_current {
                pending.tries += 1;
                pending.due = now + again * pending.tries;
                let Pending {
                    number, template, ..
                } = &self.pending[index];
                let number = *number;
                return Some(Definition { number, template });
            }
            let pending = self.pending.remove(index);
            if !self.is_understood {
                self.next_definition_at = now + ASK_AGAIN;
            }
            if let Some(flow) = self.flow_mut(pending.id) {
                flow.is_pending = false;
                flow.count = 0;
            }
        }
    }

    /// Records that the other end has acknowledged the template `number`.
    pub fn on_acknowledged(&mut self, number: u16) {
        let Some(index) = self
            .pending
            .iter()
            .position(|pending| pending.number == number)
        else {
            return;
        };
        let pending = self.pending.remove(index);
        self.is_understood = true;
        if let Some(flow) = self.flow_mut(pending.id) {
            flow.is_pending = false;
            flow.known = Some((number, pending.template));
        }
    }

    /// Records that the other end no longer knows the template `number`.
    pub fn on_unknown(&mut self, number: u16) {
        for flow in self.flows.iter_mut().flatten() {
            flow.known.take_if(|(known, _)| *known == number);
        }
    }

    /// Forgets all templates and acknowledgements.
    pub fn clear(&mut self) {
        *self = Self {
            next_number: self.next_number,
            next_definition_at: self.next_definition_at,
            ..Self::default()
        };
    }

    fn flow_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        let flow = self.flows.get_mut(slot(id))?.as_deref_mut()?;
        (flow.id == id).then_some(flow)
    }
}

impl Flow {
    fn new(id: FlowId, seen: Headers) -> Self {
        Self {
            id,
            last_at: Instant::ZERO,
            seen,
            changed: 0,
            count: 0,
            known: None,
            is_pending: false,
        }
    }

    /// Learns from headers that match no acknowledged template. Returns whether a template should be defined.
    fn learn(&mut self, headers: &Headers) -> bool {
        if headers.as_slice().len() != self.seen.as_slice().len() {
            // A few packets with an additional option do not restart the learning.
            if self.count > 0 {
                self.count -= 1;
                return false;
            }
            self.known = None;
            self.changed = 0;
            self.count = 0;
            self.seen = headers.clone();
            return false;
        }
        self.changed |= self.seen.differences(headers);
        self.seen = headers.clone();
        self.count = self.count.saturating_add(1);
        self.count >= SETTLED && !self.is_pending
    }
}

/// Returns the slot of a flow. Flows at several places of the flow table ([`crate::flows`]) share a slot, so that there
/// are no more templates than the other end stores.
fn slot(id: FlowId) -> usize {
    id.index() % FLOWS
}

/// Duration for which a flow keeps its slot after its last packet.
const IN_USE: Duration = Duration::from_secs(1);
/// Number of flows tracked at a time.
const FLOWS: usize = 256;
/// Number of packets with the same layout before a template is created.
const SETTLED: u32 = 16;
/// Minimum saving of a template per packet, in bytes.
const LEAST_GAIN_BYTES: usize = 6;
/// Maximum number of unacknowledged definitions.
const MAX_PENDING: usize = 16;
/// Number of times that a definition is sent.
const TRIES: u32 = 5;
/// Interval of further definitions to an end that has never acknowledged a template.
const ASK_AGAIN: Duration = Duration::from_secs(60);
