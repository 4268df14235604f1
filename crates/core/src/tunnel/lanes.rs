//! Where packets wait before a path is chosen for them, and in which order.
//!
//! | lane | what is in it | comes out |
//! | --- | --- | --- |
//! | urgent | what has a deadline ([`crate::class`]) | first, small flows before the others; dropped once it could not come in time |
//! | pinned | what is to take certain links and has no deadline | in turn with the next |
//! | bulk | the tunnel queue | then |
//! | sparse | of the tunnel queue, the flows that had nothing in it | while a packet of another flow waits for its path |
//!
//! While the first urgent packet waits for a quick path, the last, which has more time, may take a slow one if no order is
//! needed ([`Lanes::take_newest`]): the media paper's two ends of a block (ConSN, PDC, 2013).
//!
//! A packet that the policy lets wait for a path holds up its own lane only: a download that waits for its line must not
//! hold up a voice, or a name look-up.

use core::time::Duration;

use super::{
    ahead::{self, Ahead},
    egress::Egress,
    numbering::Numbering,
    services::Services,
    shared::Shared,
    urgent::Urgent,
};
use crate::{
    counters::DropReason,
    flows::FlowId,
    ids::Seq,
    mark::Mark,
    packet::PacketBuf,
    path::{on_wire::in_datagrams, sender::Numbered},
    profile::Mechanism,
    queue::{Queue, QueueConfig, Queued, Turn},
    time::Instant,
    units::Bytes,
};

/// The packets of one end that have no path yet.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) services: Services,
    urgent: Urgent,
    pinned: Queue,
    /// The tunnel queue.
    pub(super) bulk: Queue,
    /// Packets of a flow that wait while later ones are under way.
    pub(super) ahead: Ahead,
    /// Whose turn it is: the pinned packets', not the bulk's.
    is_pinned_next: bool,
    /// Packets that have their numbers and wait, by lane.
    waiting: [Option<Numbered>; Lane::ALL.len()],
    /// When a packet last waited for too long.
    expired_at: Option<Instant>,
}

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Urgent,
    Pinned,
    Bulk,
    Sparse,
}

impl Lane {
    const ALL: [Self; 4] = [Self::Urgent, Self::Pinned, Self::Bulk, Self::Sparse];
}

/// The lanes whose next packet waits for a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Blocked([bool; Lane::ALL.len()]);

impl Blocked {
    pub(super) fn insert(&mut self, lane: Lane) {
        self.0[lane as usize] = true;
    }

    const fn has(self, lane: Lane) -> bool {
        self.0[lane as usize]
    }
}

impl Lanes {
    /// Nothing waits; bulk and pinned packets wait as `config` says.
    pub(super) fn new(services: Services, config: QueueConfig) -> Self {
        Self {
            services,
            urgent: Urgent::default(),
            pinned: Queue::new(config),
            bulk: Queue::new(config),
            ahead: Ahead::default(),
            is_pinned_next: false,
            waiting: [const { None }; Lane::ALL.len()],
            expired_at: None,
        }
    }

    /// Changes how long bulk and pinned packets may wait before they are marked ([`Queue::set_target`]).
    pub(super) fn set_targets(&mut self, bulk: Duration, pinned: Duration) {
        self.bulk.set_target(bulk);
        self.pinned.set_target(pinned);
    }

    /// Changes what becomes of bulk and pinned flows whose senders do not listen ([`Queue::set_limit`]).
    pub(super) fn set_limits(&mut self, bulk: Duration, pinned: Duration, patience: Duration) {
        self.bulk.set_limit(bulk, patience);
        self.pinned.set_limit(pinned, patience);
    }

    /// Whether of late more had to be in time than the paths could bring: all that is sent then takes another's place.
    fn is_short_of_room(&self, now: Instant) -> bool {
        self.expired_at.is_some_and(|at| now.since(at) < SHORT_FOR)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.bulk.is_empty() && self.ahead.is_empty() && !self.has_others()
    }

    /// Whether packets wait beside the tunnel queue.
    pub(super) fn has_others(&self) -> bool {
        let mut waiting = self.waiting.iter();
        !self.urgent.is_empty() || !self.pinned.is_empty() || waiting.any(Option::is_some)
    }

    /// Packets that wait, those that are next in their lane not among them.
    pub(super) fn len(&self) -> usize {
        self.bulk.len() + self.ahead.len() + self.urgent.len() + self.pinned.len()
    }

    /// Takes out what has its number.
    pub(super) fn drain_numbered(&mut self) -> impl Iterator<Item = Numbered> {
        let waiting = self.waiting.iter_mut().filter_map(Option::take);
        waiting.chain(self.ahead.drain())
    }

    /// Puts a packet back that has to wait.
    pub(super) fn put_back(&mut self, lane: Lane, numbered: Numbered) {
        self.waiting[lane as usize] = Some(numbered);
    }

    /// Puts a packet from the host into its lane. `least_delay`: what the quickest path takes one way.
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
        let queue = match mark {
            Some(mark) if mark.due.is_some() => {
                let is_ordered = self.services.is_ordered(&packet);
                let queued = Queued {
                    packet,
                    flow,
                    enqueued_at: now,
                };
                if let Some(oldest) = self.urgent.push(mark.found.is_small, is_ordered, queued) {
                    shared.drop(oldest.packet, DropReason::QueueFull);
                }
                return;
            }
            Some(mark) if self.services.is_pinned(mark) => &mut self.pinned,
            Some(_) | None => &mut self.bulk,
        };
        queue.enqueue(now, packet, flow, shared.on_queue_drop());
    }

    /// The next packet of the first lane that is not `blocked`, with its number.
    pub(super) fn next(
        &mut self,
        blocked: Blocked,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Option<(Lane, Numbered)> {
        let now = egress.now();
        let has_sparse = egress.profile().has(Mechanism::SparseLane);
        let mut lanes = Lane::ALL;
        if !self.is_pinned_next {
            lanes.swap(Lane::Pinned as usize, Lane::Bulk as usize);
        }
        lanes.into_iter().find_map(|lane| {
            let is_open = lane != Lane::Sparse || has_sparse && blocked.has(Lane::Bulk);
            if blocked.has(lane) || !is_open {
                return None;
            }
            if let Some(numbered) = self.take_waiting(lane) {
                if !is_too_late(now, numbered.packet.mark()) {
                    return Some((lane, numbered));
                }
                self.expired_at = Some(now);
                self.services.give_up(numbered.packet, egress.shared);
            }
            if lane == Lane::Sparse && self.waiting[Lane::Sparse as usize].is_some() {
                return None;
            }
            let numbered = self.next_numbered(lane, numbering, egress)?;
            match lane {
                Lane::Bulk => self.is_pinned_next = true,
                Lane::Pinned => self.is_pinned_next = false,
                Lane::Urgent | Lane::Sparse => {}
            }
            if lane == Lane::Sparse && self.is_behind(&numbered) {
                self.put_back(lane, numbered);
                return None;
            }
            Some((lane, numbered))
        })
    }

    #[inline]
    fn next_numbered(
        &mut self,
        lane: Lane,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Option<Numbered> {
        let now = egress.now();
        match self.dequeue(now, lane, egress.shared)? {
            Turn::Queued(queued) => Some(self.number_next(queued, numbering, egress)),
            Turn::Taken => {
                let numbered = self.ahead.pop(now)?;
                self.bulk.charge(numbered.flow, numbered.packet.len());
                Some(numbered)
            }
        }
    }

    /// Gives a packet that goes next its numbers, and protects it.
    #[inline]
    fn number_next(
        &self,
        queued: Queued,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Numbered {
        let numbered = self.number(queued, numbering, egress);
        egress.protect(&numbered, self.is_short_of_room(egress.now()));
        numbered
    }

    /// Gives a packet its numbers.
    #[inline]
    fn number(
        &self,
        queued: Queued,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Numbered {
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

    /// The packet of a lane that has its number and waits.
    fn take_waiting(&mut self, lane: Lane) -> Option<Numbered> {
        let sparse = Lane::Sparse as usize;
        if lane == Lane::Sparse {
            let is_behind = self.waiting[sparse]
                .as_ref()
                .is_some_and(|next| self.is_behind(next));
            return self.waiting[sparse].take_if(|_| !is_behind);
        }
        let waiting = self.waiting[lane as usize].take();
        // What overtook the first is older than what is still in the queue.
        waiting.or_else(|| self.waiting[sparse].take_if(|_| lane == Lane::Bulk))
    }

    /// Whether a packet of the same flow waits, which has to go before.
    fn is_behind(&self, numbered: &Numbered) -> bool {
        let first = self.waiting[Lane::Bulk as usize].as_ref();
        first.is_some_and(|first| first.flow == numbered.flow)
    }

    #[inline]
    fn dequeue(&mut self, now: Instant, lane: Lane, shared: &mut Shared<'_>) -> Option<Turn> {
        loop {
            let queued = match self.turn(now, lane, shared)? {
                Turn::Queued(queued) if is_too_late(now, queued.packet.mark()) => queued,
                turn @ (Turn::Queued(_) | Turn::Taken) => return Some(turn),
            };
            self.expired_at = Some(now);
            self.services.give_up(queued.packet, shared);
        }
    }

    #[inline]
    fn turn(&mut self, now: Instant, lane: Lane, shared: &mut Shared<'_>) -> Option<Turn> {
        let taken = self.ahead.flow();
        let dropped = shared.on_queue_drop();
        match lane {
            Lane::Urgent => self.urgent.oldest().map(Turn::Queued),
            Lane::Pinned => self.pinned.dequeue(now, dropped).map(Turn::Queued),
            Lane::Bulk => self.bulk.next_turn(now, false, taken, dropped),
            Lane::Sparse => self.bulk.next_turn(now, true, taken, dropped),
        }
    }

    /// Takes the newest urgent packet that needs no order, and the bytes that wait before it.
    pub(super) fn take_newest(&mut self) -> Option<(Queued, Bytes)> {
        let before = self.urgent.on_wire();
        Some((self.urgent.newest()?, before))
    }

    /// Puts it back.
    pub(super) fn put_back_newest(&mut self, queued: Queued) {
        self.urgent.put_back(queued);
    }

    /// Gives it its numbers: it goes next.
    pub(super) fn number_newest(
        &self,
        queued: Queued,
        numbering: &mut Numbering,
        egress: &mut Egress<'_, '_>,
    ) -> Numbered {
        self.number_next(queued, numbering, egress)
    }

    /// Bytes that have to go as soon as a packet of a lane, or before it, as lines count them.
    pub(super) fn backlog(&self, lane: Lane, packet: &PacketBuf) -> Bytes {
        let urgent = self.urgent.on_wire();
        match lane {
            // The newest look after themselves.
            Lane::Urgent if !self.services.is_ordered(packet) => Bytes::ZERO,
            Lane::Urgent => urgent,
            Lane::Pinned => waiting(&self.pinned) + urgent,
            Lane::Bulk | Lane::Sparse => waiting(&self.bulk) + self.ahead.on_wire() + urgent,
        }
    }

    /// Bytes of the flow of this hash that wait in the tunnel queue.
    pub(super) fn flow_bytes(&self, flow: FlowId) -> Bytes {
        self.bulk.flow_bytes(flow) + self.ahead.bytes_of(flow)
    }

    /// Bytes that leave the tunnel queue until the last of the flow of this hash does.
    pub(super) fn bytes_to_last(&self, flow: FlowId) -> Bytes {
        self.bulk.bytes_to_last(flow, self.ahead.bytes_of(flow))
    }

    /// Whether something comes behind a packet of the flow of this hash that a late path could take.
    pub(super) fn has_behind(&self, flow: FlowId) -> bool {
        let is_open = self.ahead.is_empty() || self.ahead.is_of(flow);
        is_open && self.bulk.flow_bytes(flow) > Bytes::ZERO
    }

    /// The packet that comes `ahead` bytes behind one of the flow of this hash, or later, or the last of it.
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
        // One at least: late paths carry numbers in their order. Symbols over what is sent that much later are of no use.
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

    /// Whether packets of lower numbers than `seq` wait for their turn.
    pub(super) fn is_out_of_turn(&self, seq: Seq) -> bool {
        self.ahead.is_older(seq)
    }
}

/// What waits in `queue`, as lines count it.
pub(super) fn waiting(queue: &Queue) -> Bytes {
    in_datagrams(queue.bytes(), queue.len())
}

/// Whether a packet that was not sent yet has waited for too long to be in time with some certainty. One that has just come
/// never has, whatever is thought of the paths: else nothing would be sent any more that shows it wrong.
fn is_too_late(now: Instant, mark: Option<Mark>) -> bool {
    let give_up_at = mark.and_then(|mark| mark.give_up_at);
    give_up_at.is_some_and(|at| now > at)
}

/// What was given up shows for so long that there is too little room.
const SHORT_FOR: Duration = Duration::from_secs(1);
