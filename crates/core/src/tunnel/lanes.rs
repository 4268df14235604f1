//! The queues ("lanes") in which packets wait for a path, and the order in which packets leave them.
//!
//! | lane | contains | order |
//! | --- | --- | --- |
//! | urgent | packets with a deadline ([`crate::class`]); dropped when too late | first; small flows before others |
//! | pinned | packets that must use certain paths and have no deadline | alternating with bulk packets |
//! | bulk | the tunnel queue | after urgent packets |
//!
//! There is a pinned lane for each class with links and for each path that the other end wants ([`super::pinned`]). The
//! pinned lanes and the bulk lane take turns.
//!
//! Packets of a blocked class get into no lane, and a packet whose class becomes blocked is dropped when it would leave
//! its lane. Packets of a strict class are dropped while none of its links can carry them now or soon
//! ([`Services::refusal`]).
//!
//! While the first urgent packet waits for a path with a short delay, the newest urgent packet may use a slow path,
//! because it has more time left. This applies only to packets that need no order ([`Lanes::take_newest`]). Taking
//! packets from both ends of a block is the method of the media paper (ConSN, PDC, 2013).
//!
//! A packet gets its sequence numbers, in the association and in its flow, when it leaves its lane. So a packet dropped
//! in a lane does not look like a loss on a path. Flows that share a place in the table ([`crate::flows`]) share one
//! sequence. They are then delivered in a common order, which is harmless.
//!
//! If the policy lets a packet wait for a path, only the packet's own lane is blocked, so a download that waits for its
//! path does not delay a call, and a packet that is restricted to a slow link does not delay packets for other links.

use core::{iter, time::Duration};

use super::{
    ahead::{self, Ahead},
    egress::Egress,
    pinned::{self, Pinned},
    services::Services,
    shared::Shared,
    templates::Templates,
    urgent::Urgent,
};
use crate::{
    class::Class,
    counters::DropReason,
    flows::{FlowId, PLACES},
    ids::Seq,
    mark::Mark,
    meter::Meter,
    packet::PacketBuf,
    path::{on_wire::in_datagrams, sender::Numbered},
    profile::Profile,
    queue::{Queue, QueueConfig, Queued, Turn},
    time::Instant,
    units::Bytes,
};

/// The packets of one end that have not been assigned to a path.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) services: Services,
    urgent: Urgent,
    pinned: Pinned,
    /// The tunnel queue.
    pub(super) bulk: Queue,
    /// Packets of one flow that wait while later packets of the flow are in flight.
    pub(super) ahead: Ahead,
    /// The lane whose turn it is after the urgent lane: 0 is the bulk lane, *i* + 1 the pinned lane *i*.
    turn: usize,
    /// Packets of the urgent and the bulk lane that have their sequence numbers and wait for a path.
    urgent_next: Option<Numbered>,
    bulk_next: Option<Numbered>,
    /// Time at which a packet was last dropped because it had waited for too long.
    expired_at: Option<Instant>,
    /// Counts the packets that leave the lanes, and limits their rate.
    pub(super) meter: Meter,
}

/// The numbers assigned so far.
#[derive(Debug)]
pub(super) struct Numbering {
    next: Seq,
    /// For each place in the flow table, the number of the flow's last packet plus one, or 0 before the first packet.
    /// Empty until the first packet of the association.
    flows: Vec<u64>,
}

impl Default for Numbering {
    fn default() -> Self {
        Self {
            next: Seq(0),
            flows: Vec::new(),
        }
    }
}

impl Numbering {
    /// Returns the number of the next packet.
    pub(super) const fn next(&self) -> Seq {
        self.next
    }

    /// Frees the memory of flows whose last packets were delivered or lost long ago.
    pub(super) fn release_memory(&mut self) {
        self.flows = Vec::new();
    }

    /// Assigns numbers to a packet and compresses its headers. ACKs, and packets that are not `is_ordered`, get no
    /// number in their flow. `round_trip` is the target RTT of the flow ([`super::round_trips`]).
    #[inline]
    pub(super) fn number(
        &mut self,
        now: Instant,
        mut queued: Queued,
        is_ordered: bool,
        round_trip: Duration,
        templates: &mut Templates,
    ) -> Numbered {
        let global_seq = self.next;
        self.next = global_seq.plus(1);
        let view = queued.packet.view();
        let is_pure_ack = view.is_ok_and(|view| view.is_pure_ack());
        templates.compress(now, queued.flow, &mut queued.packet);
        Numbered {
            global_seq,
            flow_step: if is_ordered && !is_pure_ack {
                self.flow_step(queued.flow, global_seq)
            } else {
                0
            },
            flow: queued.flow,
            is_expendable: is_pure_ack,
            round_trip,
            origin: None,
            packet: queued.packet,
        }
    }

    /// Returns the distance from `global_seq` back to the flow's last packet; 0 if the distance is too large or the
    /// flow had no packet.
    fn flow_step(&mut self, flow: FlowId, global_seq: Seq) -> u16 {
        if self.flows.is_empty() {
            self.flows.resize(PLACES, 0);
        }
        let last = &mut self.flows[flow.index()];
        let previous = core::mem::replace(last, u64::from(global_seq.0) + 1);
        let previous = previous.checked_sub(1);
        match previous.and_then(|seq| u32::try_from(seq).ok()) {
            Some(previous) => u16::try_from(global_seq.distance_from(Seq(previous))).unwrap_or(0),
            None => 0,
        }
    }
}

/// A lane: see the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Urgent,
    /// The pinned queue with this index.
    Pinned(usize),
    Bulk,
}

impl Lane {
    /// Returns the lane that is `step` turns after the turn `turn`, of `count` lanes without the urgent lane. `turn`
    /// and `step` are below `count`.
    const fn of_turn(turn: usize, step: usize, count: usize) -> Self {
        let place = turn + step;
        let place = if place < count { place } else { place - count };
        match place.checked_sub(1) {
            None => Self::Bulk,
            Some(index) => Self::Pinned(index),
        }
    }
}

/// The lanes whose next packet waits for a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Blocked {
    is_urgent: bool,
    is_bulk: bool,
    /// Whether retransmissions wait that have no lane ([`Lanes::lane_again`]).
    is_without_lane: bool,
    /// Bit *i* stands for the pinned lane *i*.
    pinned: u128,
}

const _: () = assert!(pinned::MOST <= u128::BITS as usize);

impl Blocked {
    pub(super) const fn insert(&mut self, lane: Lane) {
        match lane {
            Lane::Urgent => self.is_urgent = true,
            Lane::Pinned(index) => self.pinned |= 1_u128 << index,
            Lane::Bulk => self.is_bulk = true,
        }
    }

    pub(super) const fn has(self, lane: Lane) -> bool {
        match lane {
            Lane::Urgent => self.is_urgent,
            Lane::Pinned(index) => self.pinned & 1_u128 << index != 0,
            Lane::Bulk => self.is_bulk,
        }
    }

    /// Records that a retransmission with this lane waits.
    pub(super) const fn insert_again(&mut self, lane: Option<Lane>) {
        match lane {
            Some(lane) => self.insert(lane),
            None => self.is_without_lane = true,
        }
    }

    /// Whether a retransmission with this lane waits.
    pub(super) const fn has_again(self, lane: Option<Lane>) -> bool {
        match lane {
            Some(lane) => self.has(lane),
            None => self.is_without_lane,
        }
    }

    /// Whether a lane is blocked.
    pub(super) const fn is_any(self) -> bool {
        self.is_urgent || self.is_bulk || self.is_without_lane || self.pinned != 0
    }
}

impl Lanes {
    /// Returns empty lanes. `config` is the configuration of the bulk and pinned queues.
    pub(super) fn new(services: Services, config: QueueConfig) -> Self {
        Self {
            services,
            urgent: Urgent::default(),
            pinned: Pinned::new(config),
            bulk: Queue::new(config),
            ahead: Ahead::default(),
            turn: 0,
            urgent_next: None,
            bulk_next: None,
            expired_at: None,
            meter: Meter::default(),
        }
    }

    /// Replaces the classes. Waiting packets then belong to the class of the same name, or to no class.
    pub(super) fn set_classes(&mut self, classes: Vec<Class>, profile: &Profile) {
        self.services.replace(classes, profile);
        self.pinned.on_classes(|id| self.services.present(id));
    }

    /// Sets how many bytes of a flow may wait if all its packets are ACKs ([`Queue::set_ack_room`]).
    pub(super) fn set_ack_room(&mut self, ack_room: Bytes) {
        self.bulk.set_ack_room(ack_room);
        self.pinned.set_ack_room(ack_room);
    }

    /// Sets how many bytes of a flow may wait while paths are slow, and for how long ([`Queue::set_allowance`]).
    pub(super) fn set_allowance(&mut self, allowance: Bytes, allowed: Duration) {
        self.bulk.set_allowance(allowance, allowed);
        self.pinned.set_allowance(allowance, allowed);
    }

    /// Sets how long bulk and pinned packets may wait before they are marked ([`Queue::set_target`]).
    pub(super) fn set_targets(&mut self, bulk: Duration, pinned: Duration) {
        self.bulk.set_target(bulk);
        self.pinned.set_target(pinned);
    }

    /// Sets the limits for bulk and pinned flows whose senders do not respond to congestion signals
    /// ([`Queue::set_limit`]).
    pub(super) fn set_limits(&mut self, bulk: Duration, pinned: Duration, patience: Duration) {
        self.bulk.set_limit(bulk, patience);
        self.pinned.set_limit(pinned, patience);
    }

    /// Whether the paths could recently not carry all packets with deadlines. Each additional packet then displaces
    /// another packet.
    fn is_short_of_room(&self, now: Instant) -> bool {
        self.expired_at.is_some_and(|at| now.since(at) < SHORT_FOR)
    }

    /// Drops all packets, and frees the memory of the queues and of the flows of classes.
    pub(super) fn release_memory(&mut self, now: Instant, shared: &mut Shared<'_>) {
        for numbered in self.drain_numbered() {
            shared.drop(numbered.packet, DropReason::Expired);
        }
        while let Some(queued) = self.urgent.oldest() {
            self.services.give_up(queued.packet, shared);
        }
        for queue in self.pinned.queues_mut().chain([&mut self.bulk]) {
            while let Some(queued) = queue.dequeue(now, shared.on_queue_drop()) {
                shared.drop(queued.packet, DropReason::Expired);
            }
            queue.release_memory();
        }
        self.pinned.release_memory();
        self.ahead = Ahead::default();
        self.urgent = Urgent::default();
        self.services.release_memory();
    }

    /// Whether no packet waits.
    pub(super) fn is_empty(&self) -> bool {
        self.bulk.is_empty() && self.ahead.is_empty() && !self.has_others()
    }

    /// Whether packets wait outside the tunnel queue.
    pub(super) fn has_others(&self) -> bool {
        let has_next = self.urgent_next.is_some() || self.bulk_next.is_some();
        has_next || !self.urgent.is_empty() || !self.pinned.is_empty()
    }

    /// Returns the number of waiting packets, without the packets that are next in their lanes.
    pub(super) fn len(&self) -> usize {
        self.bulk.len() + self.ahead.len() + self.urgent.len() + self.pinned.len()
    }

    /// Removes and returns all packets that have sequence numbers. They are not counted, because they are never sent.
    pub(super) fn drain_numbered(&mut self) -> impl Iterator<Item = Numbered> {
        let nexts = [&mut self.urgent_next, &mut self.bulk_next];
        let nexts = nexts.into_iter().chain(self.pinned.nexts_mut());
        let meter = &mut self.meter;
        nexts
            .filter_map(Option::take)
            .chain(self.ahead.drain())
            .inspect(|numbered| meter.take_back(Bytes::of_len(numbered.packet.original_len())))
    }

    /// Returns the bytes of all packets that have left the lanes, each counted once. A packet that has its sequence
    /// number and waits for a path does not count yet.
    pub(super) fn sent_bytes(&self) -> u64 {
        let nexts = [&self.urgent_next, &self.bulk_next];
        let nexts = nexts.into_iter().chain(self.pinned.nexts()).flatten();
        let waiting = nexts.map(|numbered| numbered.packet.original_len() as u64);
        let unsent = waiting.sum::<u64>() + self.ahead.original_bytes();
        self.meter.bytes().saturating_sub(unsent)
    }

    /// Puts back a packet that has to wait.
    pub(super) fn put_back(&mut self, lane: Lane, numbered: Numbered) {
        *self.next_mut(lane) = Some(numbered);
    }

    /// Returns the place of the next packet of a lane.
    fn next_mut(&mut self, lane: Lane) -> &mut Option<Numbered> {
        match lane {
            Lane::Urgent => &mut self.urgent_next,
            Lane::Pinned(index) => self.pinned.next_mut(index),
            Lane::Bulk => &mut self.bulk_next,
        }
    }

    /// Adds a packet from the host to its lane. `least_delay` is the one-way delay of the path with the shortest delay.
    pub(super) fn enqueue(
        &mut self,
        now: Instant,
        mut packet: PacketBuf,
        flow: FlowId,
        least_delay: Duration,
        shared: &mut Shared<'_>,
    ) {
        let mark = self.services.mark(now, &mut packet, flow, least_delay);
        packet.set_mark(mark);
        if self.services.is_blocked(mark) {
            return self.services.refuse(packet, DropReason::Blocked, shared);
        }
        if let Some(mark) = mark.filter(|mark| mark.due.is_some()) {
            let is_small = mark.found.is_some_and(|found| found.is_small);
            let is_ordered = self.services.is_ordered(&packet);
            let queued = Queued {
                packet,
                flow,
                enqueued_at: now,
            };
            if let Some(oldest) = self.urgent.push(is_small, is_ordered, queued) {
                shared.drop(oldest.packet, DropReason::QueueFull);
            }
            return;
        }
        let pin = mark.and_then(|mark| self.services.pin(mark));
        let pinned = pin.and_then(|pin| self.pinned.queue_of(pin));
        let queue = pinned.unwrap_or(&mut self.bulk);
        queue.enqueue(now, packet, flow, shared.on_queue_drop());
    }

    /// Returns the lane in which a packet without a deadline that is retransmitted has waited; `None` if the packet is
    /// restricted and its queue has been freed. Packets with a deadline count as bulk packets.
    pub(super) fn lane_again(&self, packet: &PacketBuf) -> Option<Lane> {
        let mark = packet.mark().filter(|mark| mark.due.is_none());
        match mark.and_then(|mark| self.services.pin(mark)) {
            Some(pin) => self.pinned.index_of(pin).map(Lane::Pinned),
            None => Some(Lane::Bulk),
        }
    }

    /// Returns the next packet of the first lane that is not `blocked`, with its sequence numbers. The urgent lane
    /// comes first, the other lanes in turn. While the rate is above the limit, returns only packets that have their
    /// numbers already.
    pub(super) fn next(
        &mut self,
        blocked: Blocked,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Option<(Lane, Numbered)> {
        let now = egress.now();
        let count = self.pinned.count() + 1;
        let turn = if self.turn < count { self.turn } else { 0 };
        let in_turn = (0..count).map(|step| Lane::of_turn(turn, step, count));
        let mut lanes = iter::once(Lane::Urgent).chain(in_turn);
        lanes.find_map(|lane| {
            if blocked.has(lane) {
                return None;
            }
            if let Some(numbered) = self.take_next(lane, egress) {
                return Some((lane, numbered));
            }
            if !self.meter.can_pass(now) {
                return None;
            }
            let numbered = self.next_numbered(lane, numbering, egress)?;
            match lane {
                Lane::Bulk => self.turn = 1,
                Lane::Pinned(index) => self.turn = index + 2,
                Lane::Urgent => {}
            }
            Some((lane, numbered))
        })
    }

    /// Removes and returns the packet of a lane that already has its sequence numbers. Drops the packet if it is too
    /// late or its class refuses it.
    #[inline]
    fn take_next(&mut self, lane: Lane, egress: &mut Egress<'_, '_>) -> Option<Numbered> {
        let now = egress.now();
        let numbered = self.next_mut(lane).take()?;
        let is_late = is_too_late(now, numbered.packet.mark());
        let refusal = self.services.refusal(&numbered.packet, egress);
        if !is_late && refusal.is_none() {
            return Some(numbered);
        }
        self.meter
            .take_back(Bytes::of_len(numbered.packet.original_len()));
        if let Some(reason) = refusal {
            self.services.refuse(numbered.packet, reason, egress.shared);
        } else {
            self.expired_at = Some(now);
            self.services.give_up(numbered.packet, egress.shared);
        }
        None
    }

    #[inline]
    fn next_numbered(
        &mut self,
        lane: Lane,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Option<Numbered> {
        let now = egress.now();
        match self.dequeue(lane, egress)? {
            Turn::Queued(queued) => Some(self.number_next(queued, numbering, egress)),
            Turn::Taken => {
                let numbered = self.ahead.pop(now)?;
                self.bulk.charge(numbered.flow, numbered.packet.len());
                Some(numbered)
            }
        }
    }

    /// Assigns sequence numbers to the next packet and adds it to the FEC encoder.
    #[inline]
    fn number_next(
        &mut self,
        queued: Queued,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Numbered {
        let numbered = self.number(queued, numbering, egress);
        egress.protect(&numbered, self.is_short_of_room(egress.now()));
        numbered
    }

    /// Assigns sequence numbers to a packet, and counts it.
    #[inline]
    fn number(
        &mut self,
        queued: Queued,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Numbered {
        let len = Bytes::of_len(queued.packet.len());
        self.meter.on_passed(egress.now(), len);
        let is_ordered = self.services.is_ordered(&queued.packet);
        let round_trip = egress.round_trips.of(queued.flow);
        numbering.number(
            egress.now(),
            queued,
            is_ordered,
            round_trip,
            egress.templates,
        )
    }

    #[inline]
    fn dequeue(&mut self, lane: Lane, egress: &mut Egress<'_, '_>) -> Option<Turn> {
        let now = egress.now();
        loop {
            let queued = match self.next_turn(now, lane, egress.shared)? {
                Turn::Queued(queued) => queued,
                Turn::Taken => return Some(Turn::Taken),
            };
            if is_too_late(now, queued.packet.mark()) {
                self.expired_at = Some(now);
                self.services.give_up(queued.packet, egress.shared);
            } else if let Some(reason) = self.services.refusal(&queued.packet, egress) {
                self.services.refuse(queued.packet, reason, egress.shared);
            } else {
                return Some(Turn::Queued(queued));
            }
        }
    }

    #[inline]
    fn next_turn(&mut self, now: Instant, lane: Lane, shared: &mut Shared<'_>) -> Option<Turn> {
        let taken = self.ahead.flow();
        let dropped = shared.on_queue_drop();
        match lane {
            Lane::Urgent => self.urgent.oldest().map(Turn::Queued),
            Lane::Pinned(index) => {
                let queue = self.pinned.queue_mut(index);
                queue.dequeue(now, dropped).map(Turn::Queued)
            }
            Lane::Bulk => self.bulk.next_turn(now, taken, dropped),
        }
    }

    /// Removes the newest urgent packet that needs no order. Returns it with the number of bytes that wait before it.
    pub(super) fn take_newest(&mut self) -> Option<(Queued, Bytes)> {
        let before = self.urgent.on_wire();
        Some((self.urgent.newest()?, before))
    }

    /// Puts back the packet that [`Self::take_newest`] returned.
    pub(super) fn put_back_newest(&mut self, queued: Queued) {
        self.urgent.put_back(queued);
    }

    /// Assigns sequence numbers to the packet that [`Self::take_newest`] returned. It must be sent next.
    pub(super) fn number_newest(
        &mut self,
        queued: Queued,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Numbered {
        self.number_next(queued, numbering, egress)
    }

    /// Returns the number of waiting bytes that are sent before a packet of a lane or compete with it, including
    /// overhead on the wire.
    pub(super) fn backlog(&self, lane: Lane, packet: &PacketBuf) -> Bytes {
        let urgent = self.urgent.on_wire();
        match lane {
            // Packets that need no order may be sent newest first on slow paths ([`Self::take_newest`]).
            Lane::Urgent if !self.services.is_ordered(packet) => Bytes::ZERO,
            Lane::Urgent => urgent,
            Lane::Pinned(index) => waiting(self.pinned.queue(index)) + urgent,
            Lane::Bulk => waiting(&self.bulk) + self.ahead.on_wire() + urgent,
        }
    }

    /// Returns the number of bytes of a flow that wait in the tunnel queue.
    pub(super) fn flow_bytes(&self, flow: FlowId) -> Bytes {
        self.bulk.flow_bytes(flow) + self.ahead.bytes_of(flow)
    }

    /// Returns the number of bytes that leave the tunnel queue until the last packet of a flow has left it.
    pub(super) fn bytes_to_last(&self, flow: FlowId) -> Bytes {
        self.bulk.bytes_to_last(flow, self.ahead.bytes_of(flow))
    }

    /// Whether a later packet of the flow waits that could be sent on a path with a longer delay.
    pub(super) fn has_behind(&self, flow: FlowId) -> bool {
        let is_open = self.ahead.is_empty() || self.ahead.is_of(flow);
        is_open && self.bulk.flow_bytes(flow) > Bytes::ZERO
    }

    /// Returns the packet of the flow that is at least `ahead` bytes after the first packet, or the last packet of the
    /// flow.
    pub(super) fn next_behind(
        &mut self,
        flow: FlowId,
        ahead: Bytes,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Option<Numbered> {
        if !self.has_behind(flow) {
            return None;
        }
        let now = egress.now();
        // Take at least one packet, because sequence numbers on the path with the longer delay must increase. These
        // packets are not added to the FEC encoder: some are sent so much later that repair symbols for them would be
        // useless.
        let mut newest = None;
        while newest.is_none() || self.ahead.bytes() < ahead && self.ahead.len() < ahead::MOST {
            let dropped = egress.shared.on_queue_drop();
            let Some(queued) = self.bulk.dequeue_of(now, flow, dropped) else {
                break;
            };
            let numbered = self.number(queued, numbering, egress);
            if let Some(before) = newest.replace(numbered) {
                self.ahead.push(now, before);
            }
        }
        newest
    }

    /// Whether packets with lower sequence numbers than `seq` still wait to be sent.
    pub(super) fn is_out_of_turn(&self, seq: Seq) -> bool {
        self.ahead.is_older(seq)
    }
}

/// Returns the number of bytes waiting in `queue`, including overhead on the wire.
pub(super) fn waiting(queue: &Queue) -> Bytes {
    in_datagrams(queue.bytes(), queue.len())
}

/// Whether an unsent packet has waited so long that it would probably miss its deadline. A packet that has just arrived
/// is never too late, whatever the estimates of the paths are. Otherwise no packet would be sent, and the estimates
/// could not be corrected.
fn is_too_late(now: Instant, mark: Option<Mark>) -> bool {
    let give_up_at = mark.and_then(|mark| mark.give_up_at);
    give_up_at.is_some_and(|at| now > at)
}

/// Duration after dropping a late packet in which capacity is considered insufficient.
const SHORT_FOR: Duration = Duration::from_secs(1);
