//! The tunnel queue: the one place where packets wait and where congestion is signalled.
//!
//! If paths are paced at their capacity, the standing queue of a busy tunnel is here and not in a modem. The queue
//! has four parts:
//!
//! - Flow queueing with deficit round robin (RFC 8290). A flow is looked up by its *place*, the index of its state
//!   ([`crate::flows`]). In each round a flow may send one quantum (1514 bytes). A flow whose packet arrives while
//!   none of its packets is queued joins the list of new flows. This list is served first, for one quantum per flow,
//!   so sparse flows (DNS, voice, games, handshakes) overtake bulk flows.
//! - CoDel on every flow (RFC 8289, in `codel`): if waiting times stay above 5 ms for 100 ms, packets are marked
//!   (ECN, RFC 3168) or, if the flow is not ECN-capable, dropped. If a flow does not respond, all of its packets that
//!   have waited longer than a limit are dropped.
//! - ACK filtering (RFC 3449 section 5.2.1): if TCP ACKs have to wait, only the newest of successive ACKs is kept, so
//!   that a slow link in one direction does not slow down the other direction.
//! - A cap in bytes and packets. Above the cap, packets are dropped from the head of the flow with the most bytes.
//!   Finding this flow costs a pass over the active flows, so one pass drops one packet per 16 active flows: 16
//!   visits per packet dropped.
//!
//! Every packet leaves exactly once: through [`Queue::dequeue`], [`Queue::next_turn`] or [`Queue::dequeue_of`], or
//! through the `dropped` callback with the reason.
//!
//! Bounds: packets and bytes by the cap; memory 96 bytes per packet slot plus a flow table of 64 KiB, both allocated
//! when first needed and freed by [`Queue::release_memory`]. Once the number of slots has grown to the load, nothing
//! is allocated. O(1) per packet except for CoDel's drops and the cap.
//!
//! Source: RFC 8290 section 4. Differences: the caller looks up the flow; the cap is also in bytes; and an overflow
//! drops fewer packets. Linux drops half of the flow, up to 64 packets, which is harsh if the cap is small.

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
    /// Acceptable standing waiting time (CoDel's `TARGET`).
    pub target: Duration,
    /// Bytes of all flows together that may stay in the queue as long as no packet has waited longer than `allowed`.
    pub allowance: Bytes,
    /// Number of waiting bytes of a flow above which only the newest of its ACKs is kept.
    pub ack_room: Bytes,
    /// Maximum waiting time for which [`allowance`](Self::allowance) applies.
    pub allowed: Duration,
    /// How long waiting times may exceed `target` before CoDel marks or drops: about the longest usual RTT.
    pub interval: Duration,
    /// Waiting time above which packets are dropped if the flow's waiting time has been above `target` for
    /// `patience`.
    pub limit: Duration,
    /// How long a flow's waiting time may stay above `target` before its sender is considered unresponsive.
    pub patience: Duration,
    /// Maximum bytes in the queue; at most 4 GiB.
    pub max_bytes: Bytes,
    /// Maximum number of packets in the queue.
    pub max_packets: usize,
}

impl Default for QueueConfig {
    /// Returns the values of RFC 8290 section 5.2, with a cap of 16 MiB (one second at 128 Mbit/s), and limit and
    /// patience for RTTs of 100 ms.
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

/// A packet in the queue.
#[derive(Debug)]
pub struct Queued {
    /// The packet.
    pub packet: PacketBuf,
    /// The packet's flow.
    pub flow: FlowId,
    /// When the packet was enqueued.
    pub enqueued_at: Instant,
}

/// Why the queue dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDrop {
    /// By CoDel: the packet's flow has had a standing queue for too long.
    Aqm,
    /// The cap was reached, and the packet's flow had the most bytes.
    Overflow,
    /// The packet is an ACK that a later ACK of its flow supersedes. The later ACK has taken its place in the queue.
    Superseded,
}

/// The packet or flow whose turn it is to send.
#[derive(Debug)]
pub enum Turn {
    /// It is the turn of this packet.
    Queued(Queued),
    /// It is the turn of the flow whose packets were [taken out of turn](Queue::dequeue_of).
    Taken,
}

/// A flow queue with CoDel.
#[derive(Debug)]
pub struct Queue {
    config: QueueConfig,
    /// The state of each flow. Empty until the first packet, then [`PLACES`] entries.
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
    /// Creates an empty queue, which takes no memory yet.
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

    /// Sets [`QueueConfig::target`].
    pub fn set_target(&mut self, target: Duration) {
        self.config.target = target;
    }

    /// Sets [`QueueConfig::allowance`] and [`QueueConfig::allowed`].
    pub fn set_allowance(&mut self, allowance: Bytes, allowed: Duration) {
        self.config.allowance = allowance;
        self.config.allowed = allowed;
    }

    /// Sets [`QueueConfig::ack_room`].
    pub fn set_ack_room(&mut self, ack_room: Bytes) {
        self.config.ack_room = ack_room;
    }

    /// Sets the treatment of unresponsive flows: [`QueueConfig::limit`] and [`QueueConfig::patience`].
    pub fn set_limit(&mut self, limit: Duration, patience: Duration) {
        self.config.limit = limit;
        self.config.patience = patience;
    }

    /// Sets the cap in bytes, which takes effect when the next packet is enqueued.
    pub fn set_max_bytes(&mut self, max_bytes: Bytes) {
        self.config.max_bytes = max_bytes;
    }

    /// Number of bytes waiting.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }

    /// Number of bytes waiting that belong to the flow or to flows that share its [place](FlowId::place).
    #[must_use]
    pub fn flow_bytes(&self, flow: FlowId) -> Bytes {
        let flow = self.flows.get(flow.index());
        flow.map_or(Bytes::ZERO, |flow| Bytes::new(flow.fifo.bytes().into()))
    }

    /// Number of bytes that will leave the queue until the last packet of the flow, or of the flows that share its
    /// [place](FlowId::place), has left. `taken`: bytes of the flow that were taken out of turn. Zero if no packet of
    /// the flow waits.
    #[must_use]
    pub fn bytes_to_last(&self, flow: FlowId, taken: Bytes) -> Bytes {
        let own = self.flow_bytes(flow) + taken;
        let flows = u64::try_from(self.active_flows).unwrap_or(u64::MAX);
        let in_turn = own.get().saturating_mul(flows);
        Bytes::new((self.bytes + taken.get()).min(in_turn))
    }

    /// Number of packets waiting.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.packets
    }

    /// Whether no packet waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Number of packets that CoDel has marked instead of dropped since the start.
    #[must_use]
    pub const fn ce_marked(&self) -> u64 {
        self.ce_marked
    }

    /// Frees all memory, including CoDel's state, if no packet waits. Meant for tunnels that have long been idle.
    pub fn release_memory(&mut self) {
        if self.is_empty() {
            let ce_marked = self.ce_marked;
            *self = Self::new(self.config);
            self.ce_marked = ce_marked;
        }
    }

    /// Enqueues a packet. Above the cap, packets are passed to `dropped` until the queue is within the cap; the new
    /// packet may be among them.
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

    /// Returns the next packet to send; `None` if no packet is left. Packets that CoDel drops are passed to `dropped`.
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

    /// Returns the next turn. `taken`: the flow whose packets were taken out of turn and have not been sent yet. That
    /// flow keeps its turns even if none of its packets wait; packets sent in these turns must be
    /// [charged](Self::charge) to it.
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
                // RFC 8290 section 4.2: an emptied new flow joins the old flows for one round. Otherwise it could
                // return as new at once and starve the old flows.
                self.old_flows.push_back(&mut self.flows, index);
            } else {
                self.flows[usize::from(index)].is_listed = false;
                self.active_flows -= 1;
            }
        }
    }

    /// Takes the next packet of the flow, or of a flow that shares its [place](FlowId::place), out of turn.
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

    /// Charges the flow for a packet of `len` bytes that was sent in its turn.
    pub fn charge(&mut self, flow: FlowId, len: usize) {
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        if let Some(flow) = self.flows.get_mut(flow.index()) {
            flow.deficit = flow.deficit.saturating_sub(len);
        }
    }

    /// Runs CoDel on the flow at place `index`. Returns the packet to send.
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

    /// Drops one packet per 16 active flows from the head of the flow with the most bytes. Such a flow always exists
    /// when the cap is exceeded: an empty packet counts as one byte, so that flows of empty packets are found as
    /// well.
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

/// The queue of one flow.
#[derive(Debug, Default)]
struct Flow {
    codel: Codel,
    fifo: Fifo,
    /// Bytes that the flow may still send in this round; negative if its last packet overdrew.
    deficit: i32,
    /// The next flow in the list that contains this flow.
    next: u16,
    /// Whether the flow is in one of the lists.
    is_listed: bool,
}

/// A list of flows, linked by [`Flow::next`].
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

/// Whether `packet` is an ACK that supersedes `earlier`, an ACK of the same flow.
fn supersedes(packet: &PacketBuf, earlier: &PacketBuf) -> bool {
    let is_short = |packet: &PacketBuf| packet.len() <= MOST_OF_ACK;
    if !is_short(packet) || !is_short(earlier) {
        return false;
    }
    let views = packet.view().ok().zip(earlier.view().ok());
    views.is_some_and(|(packet, earlier)| packet.supersedes(&earlier))
}

/// Bytes that a flow may send per round: a full Ethernet frame (RFC 8290 section 5.2).
const QUANTUM: i32 = 1514;

/// Maximum length of a pure ACK: an IPv6 header, and a TCP header with all options.
const MOST_OF_ACK: usize = 100;

/// Number of flows that may be visited per packet dropped by an overflow.
const VISITS_PER_DROP: usize = 16;

// The flow table must fit in 64 KiB.
const _: () = assert!(PLACES * size_of::<Flow>() <= 64 << 10);
