//! The tunnel queue: the one place where packets wait and where congestion is signalled.
//!
//! Where paths are paced at what they carry, which needs the user's rates today, the standing queue of a busy tunnel is
//! here and not in a modem. Four parts:
//!
//! - Flow queueing with deficit round robin (RFC 8290), by place ([`crate::flows`]): each round a flow may send one
//!   quantum (1514 bytes). A flow that comes with nothing queued goes to the list of new flows, which is served
//!   first for one quantum, so sparse flows (DNS, voice, games, handshakes) pass by the bulk.
//! - CoDel on every flow (RFC 8289, in `codel`): what has waited longer than 5 ms for 100 ms is marked (ECN,
//!   RFC 3168) or, if its sender cannot be told that way, dropped. A flow that does not heed that loses what has waited
//!   longer than a limit.
//! - Where acknowledgements have to wait, of those that come one behind the other only the newest is kept (RFC 3449 section
//!   5.2.1): a slow line the one way does not hold up what comes the other way.
//! - A cap in bytes and packets. Above it the flow with the most bytes loses packets from its head. Finding it costs
//!   a pass over the active flows, so one pass drops a packet per 16 active flows: 16 visits per packet dropped.
//!
//! Every packet that goes in comes out once: from [`Queue::dequeue`], [`Queue::next_turn`] or [`Queue::dequeue_of`], or
//! through the `dropped` callback with the reason.
//!
//! Bounds: packets and bytes by the cap; memory 96 bytes per packet slot plus a flow table of 64 KiB, both made when
//! first needed and freed by [`Queue::release_memory`]. No allocation once the slots have grown to the load. O(1) per
//! packet but for CoDel's drops and the cap.
//!
//! Source: RFC 8290 section 4; we differ in finding the flow outside (the caller brings its place), in the cap by bytes,
//! and in how many packets an overflow drops: Linux takes half of the flow, up to 64 packets, which is harsh when the
//! cap is small.

use core::time::Duration;

use self::{
    codel::{Codel, Head},
    slab::{Fifo, Slab},
};
use crate::{
    flows::{FlowId, PLACES},
    packet::PacketBuf,
    time::Instant,
    units::Bytes,
};

mod codel;
mod slab;
#[cfg(test)]
mod tests;

/// Settings of a [`Queue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Waiting time that is fine to last.
    pub target: Duration,
    /// Bytes that are fine to stand here, all flows together, as long as no packet has waited for more than `allowed`.
    pub allowance: Bytes,
    /// Bytes of a flow that may wait, beyond which of its acknowledgements only the newest is kept.
    pub ack_room: Bytes,
    /// See [`allowance`](Self::allowance).
    pub allowed: Duration,
    /// How long it may be exceeded before the queue marks or drops: about the longest usual round trip.
    pub interval: Duration,
    /// What has waited longer is dropped, if its flow's waiting time has been too long for `patience`.
    pub limit: Duration,
    /// For how long the waiting time of a flow may be above `target` before its sender counts as one that does not listen.
    pub patience: Duration,
    /// Most bytes held; at most 4 GiB.
    pub max_bytes: Bytes,
    /// Most packets held.
    pub max_packets: usize,
}

impl Default for QueueConfig {
    /// RFC 8290 section 5.2, with 16 MiB: a second at 128 Mbit/s; limit and patience for round trips of 100 ms.
    fn default() -> Self {
        Self {
            target: Duration::from_millis(5),
            allowance: Bytes::ZERO,
            ack_room: Bytes::new(u64::MAX),
            allowed: Duration::ZERO,
            interval: Duration::from_millis(100),
            limit: Duration::from_millis(100),
            patience: Duration::from_secs(1),
            max_bytes: Bytes::new(16 << 20),
            max_packets: 10_240,
        }
    }
}

/// A packet as it waits.
#[derive(Debug)]
pub struct Queued {
    /// The packet.
    pub packet: PacketBuf,
    /// Its flow.
    pub flow: FlowId,
    /// When it came.
    pub enqueued_at: Instant,
}

/// Why the queue dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDrop {
    /// CoDel: its flow has had a standing queue for too long.
    Aqm,
    /// The cap was reached, and its flow held the most bytes.
    Overflow,
    /// An acknowledgement: a later one of its flow says all that it said, and has its place.
    Superseded,
}

/// Whose turn it is.
#[derive(Debug)]
pub enum Turn {
    /// The packet's.
    Queued(Queued),
    /// That of the flow whose packets were [taken out of turn](Queue::dequeue_of).
    Taken,
}

/// A flow queue with CoDel.
#[derive(Debug)]
pub struct Queue {
    config: QueueConfig,
    /// Empty until the first packet, then [`PLACES`].
    flows: Vec<Flow>,
    slab: Slab,
    new_flows: FlowList,
    old_flows: FlowList,
    active_flows: usize,
    bytes: u64,
    packets: usize,
    ce_marked: u64,
}

impl Queue {
    /// An empty queue; takes no memory yet.
    #[must_use]
    pub const fn new(config: QueueConfig) -> Self {
        Self {
            config,
            flows: Vec::new(),
            slab: Slab::new(),
            new_flows: FlowList::EMPTY,
            old_flows: FlowList::EMPTY,
            active_flows: 0,
            bytes: 0,
            packets: 0,
            ce_marked: 0,
        }
    }

    /// Changes the waiting time that is fine to last.
    pub fn set_target(&mut self, target: Duration) {
        self.config.target = target;
    }

    /// Changes what is fine to stand here: [`QueueConfig::allowance`], [`QueueConfig::allowed`].
    pub fn set_allowance(&mut self, allowance: Bytes, allowed: Duration) {
        self.config.allowance = allowance;
        self.config.allowed = allowed;
    }

    /// Changes how much of a flow may wait with all its acknowledgements: [`QueueConfig::ack_room`].
    pub fn set_ack_room(&mut self, ack_room: Bytes) {
        self.config.ack_room = ack_room;
    }

    /// Changes what becomes of flows whose senders do not listen: [`QueueConfig::limit`], [`QueueConfig::patience`].
    pub fn set_limit(&mut self, limit: Duration, patience: Duration) {
        self.config.limit = limit;
        self.config.patience = patience;
    }

    /// Changes the cap in bytes; takes effect with the next packet that comes.
    pub fn set_max_bytes(&mut self, max_bytes: Bytes) {
        self.config.max_bytes = max_bytes;
    }

    /// Bytes waiting.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }

    /// Bytes waiting of a flow, and of those that share its place.
    #[must_use]
    pub fn flow_bytes(&self, flow: FlowId) -> Bytes {
        let flow = self.flows.get(flow.index());
        flow.map_or(Bytes::ZERO, |flow| Bytes::new(flow.fifo.bytes().into()))
    }

    /// Bytes that leave until the last of a flow does, or of those that share its place, of which `taken` were taken out of turn;
    /// none if none wait.
    #[must_use]
    pub fn bytes_to_last(&self, flow: FlowId, taken: Bytes) -> Bytes {
        let own = self.flow_bytes(flow) + taken;
        let flows = u64::try_from(self.active_flows).unwrap_or(u64::MAX);
        let in_turn = own.get().saturating_mul(flows);
        Bytes::new((self.bytes + taken.get()).min(in_turn))
    }

    /// Packets waiting.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.packets
    }

    /// Whether nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// How many packets CoDel has marked instead of dropping since the beginning.
    #[must_use]
    pub const fn ce_marked(&self) -> u64 {
        self.ce_marked
    }

    /// Frees all memory if nothing waits, and with it what CoDel remembers. For tunnels that have long been idle.
    pub fn release_memory(&mut self) {
        if self.is_empty() {
            let ce_marked = self.ce_marked;
            *self = Self::new(self.config);
            self.ce_marked = ce_marked;
        }
    }

    /// Takes a packet. If that exceeds the cap, `dropped` gets packets until it does not; the new one may be among
    /// them.
    pub fn enqueue(
        &mut self,
        now: Instant,
        packet: PacketBuf,
        id: FlowId,
        mut dropped: impl FnMut(PacketBuf, QueueDrop),
    ) {
        if self.flows.is_empty() {
            self.flows.resize_with(PLACES, Flow::default);
        }
        let index = id.place();
        let flow = &mut self.flows[usize::from(index)];
        let len = packet.len() as u64;
        let is_long = u64::from(flow.fifo.bytes()) + len > self.config.ack_room.get();
        let is_superseded = |last: &Queued, packet: &PacketBuf| {
            is_long && last.flow == id && supersedes(packet, &last.packet)
        };
        let replaced = flow
            .fifo
            .replace_last(&mut self.slab, packet, is_superseded);
        let packet = match replaced {
            Ok(old) => {
                self.bytes = self.bytes - old.len() as u64 + len;
                dropped(old, QueueDrop::Superseded);
                return;
            }
            Err(packet) => packet,
        };
        self.bytes += len;
        self.packets += 1;
        flow.fifo.push(
            &mut self.slab,
            Queued {
                packet,
                flow: id,
                enqueued_at: now,
            },
        );
        if !flow.is_listed {
            flow.is_listed = true;
            flow.deficit = QUANTUM;
            self.active_flows += 1;
            self.new_flows.push_back(&mut self.flows, index);
        }
        while self.is_over_cap() {
            self.drop_from_fattest(&mut dropped);
        }
    }

    /// The next packet to send; `None` if nothing waits. `dropped` gets what CoDel drops on the way.
    pub fn dequeue(
        &mut self,
        now: Instant,
        dropped: impl FnMut(PacketBuf, QueueDrop),
    ) -> Option<Queued> {
        match self.next_turn(now, None, dropped)? {
            Turn::Queued(queued) => Some(queued),
            Turn::Taken => None,
        }
    }

    /// Whose turn it is, if of the flow `taken` packets were taken out of turn and have not left: it has its turns though
    /// none of it may wait, and what leaves in those is to be [charged](Self::charge) to it.
    pub fn next_turn(
        &mut self,
        now: Instant,
        taken: Option<FlowId>,
        mut dropped: impl FnMut(PacketBuf, QueueDrop),
    ) -> Option<Turn> {
        let taken = taken.map(|flow| flow.place());
        loop {
            let from_new = self.new_flows.first();
            let index = from_new.or(self.old_flows.first())?;
            let flow = &mut self.flows[usize::from(index)];
            let is_taken = taken == Some(index);
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                self.unlist_first(from_new.is_some());
                self.old_flows.push_back(&mut self.flows, index);
                continue;
            }
            if is_taken {
                return Some(Turn::Taken);
            }
            if let Some(queued) = self.dequeue_from(now, index, &mut dropped) {
                self.charge(queued.flow, queued.packet.len());
                return Some(Turn::Queued(queued));
            }
            self.unlist_first(from_new.is_some());
            if from_new.is_some() && self.old_flows.first().is_some() {
                // RFC 8290 section 4.2: a new flow goes the round once more, lest it returns as new at once and
                // starves the old.
                self.old_flows.push_back(&mut self.flows, index);
            } else {
                self.flows[usize::from(index)].is_listed = false;
                self.active_flows -= 1;
            }
        }
    }

    /// The next packet of a flow, or of one that shares its place, whoever's turn it is.
    pub fn dequeue_of(
        &mut self,
        now: Instant,
        flow: FlowId,
        mut dropped: impl FnMut(PacketBuf, QueueDrop),
    ) -> Option<Queued> {
        if self.flows.is_empty() {
            return None;
        }
        self.dequeue_from(now, flow.place(), &mut dropped)
    }

    /// Takes note that a packet of `len` bytes left in the turn of its flow.
    pub fn charge(&mut self, flow: FlowId, len: usize) {
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        if let Some(flow) = self.flows.get_mut(flow.index()) {
            flow.deficit = flow.deficit.saturating_sub(len);
        }
    }

    /// Runs CoDel on one flow.
    fn dequeue_from(
        &mut self,
        now: Instant,
        index: u16,
        dropped: &mut impl FnMut(PacketBuf, QueueDrop),
    ) -> Option<Queued> {
        let Flow { codel, fifo, .. } = &mut self.flows[usize::from(index)];
        let pop = || {
            let queued = fifo.pop(&mut self.slab)?;
            self.bytes -= queued.packet.len() as u64;
            self.packets -= 1;
            Some(Head {
                queued,
                backlog_bytes: fifo.bytes(),
                is_allowed: self.bytes <= self.config.allowance.get(),
            })
        };
        let drop = |packet| dropped(packet, QueueDrop::Aqm);
        let (queued, marked) = codel.dequeue(now, &self.config, pop, drop)?;
        self.ce_marked += u64::from(marked);
        Some(queued)
    }

    fn unlist_first(&mut self, from_new: bool) {
        if from_new {
            self.new_flows.pop_front(&self.flows);
        } else {
            self.old_flows.pop_front(&self.flows);
        }
    }

    fn is_over_cap(&self) -> bool {
        let max_bytes = self.config.max_bytes.get().min(u64::from(u32::MAX));
        self.packets > self.config.max_packets || self.bytes > max_bytes
    }

    /// Drops one packet per 16 active flows from the head of the flow with the most bytes. There is one if the cap is
    /// exceeded; a packet of no bytes counts as one, so that flows of such are found as well.
    fn drop_from_fattest(&mut self, dropped: &mut impl FnMut(PacketBuf, QueueDrop)) {
        let mut fattest: Option<(u64, u16)> = None;
        for list in [&self.new_flows, &self.old_flows] {
            let mut next = list.first();
            while let Some(index) = next {
                let flow = &self.flows[usize::from(index)];
                let size = u64::from(flow.fifo.bytes()) + u64::from(!flow.fifo.is_empty());
                if fattest.is_none_or(|(most, _)| size > most) {
                    fattest = Some((size, index));
                }
                next = (index != list.last).then_some(flow.next);
            }
        }
        let Some((_, index)) = fattest else {
            return;
        };
        let fifo = &mut self.flows[usize::from(index)].fifo;
        for _ in 0..self.active_flows.div_ceil(VISITS_PER_DROP) {
            let Some(queued) = fifo.pop(&mut self.slab) else {
                return;
            };
            self.bytes -= queued.packet.len() as u64;
            self.packets -= 1;
            dropped(queued.packet, QueueDrop::Overflow);
        }
    }
}

/// One of the flows packets hash to.
#[derive(Debug, Default)]
struct Flow {
    codel: Codel,
    fifo: Fifo,
    /// Bytes it may still send this round; negative if the last packet overdrew.
    deficit: i32,
    /// The flow behind this one in its list.
    next: u16,
    is_listed: bool,
}

/// A list of flows through [`Flow::next`].
#[derive(Debug)]
struct FlowList {
    first: u16,
    last: u16,
    is_empty: bool,
}

impl FlowList {
    const EMPTY: Self = Self {
        first: 0,
        last: 0,
        is_empty: true,
    };

    fn first(&self) -> Option<u16> {
        (!self.is_empty).then_some(self.first)
    }

    fn push_back(&mut self, flows: &mut [Flow], index: u16) {
        if self.is_empty {
            self.first = index;
        } else {
            flows[usize::from(self.last)].next = index;
        }
        self.last = index;
        self.is_empty = false;
    }

    fn pop_front(&mut self, flows: &[Flow]) {
        self.is_empty = self.first == self.last;
        self.first = flows[usize::from(self.first)].next;
    }
}

/// Whether all that `earlier` says, of the same flow, `packet` says as well.
fn supersedes(packet: &PacketBuf, earlier: &PacketBuf) -> bool {
    let is_short = |packet: &PacketBuf| packet.len() <= MOST_OF_ACK;
    if !is_short(packet) || !is_short(earlier) {
        return false;
    }
    let views = packet.view().ok().zip(earlier.view().ok());
    views.is_some_and(|(packet, earlier)| packet.supersedes(&earlier))
}

/// RFC 8290 section 5.2: a full Ethernet frame.
const QUANTUM: i32 = 1514;

/// Most bytes of an acknowledgement alone: an IPv6 header, and one of TCP with all options.
const MOST_OF_ACK: usize = 100;

/// How many flows may be looked at per packet that an overflow drops.
const VISITS_PER_DROP: usize = 16;

// The table of a client that carries something.
const _: () = assert!(PLACES * size_of::<Flow>() <= 64 << 10);
