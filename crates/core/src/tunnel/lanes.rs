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
//! needed (`send_newest`): the media paper's two ends of a block (ConSN, PDC, 2013).
//!
//! A packet that the policy lets wait for a path holds up its own lane only: a download that waits for its line must not
//! hold up a voice, or a name look-up.

use core::time::Duration;
use std::collections::VecDeque;

use super::{Shared, Tunnel, urgent::FlowInfo};
use crate::{
    class::{Classifier, Found},
    counters::DropReason,
    packet::{Mark, PacketBuf},
    path::{on_wire::in_datagrams, sender::Numbered},
    profile::Mechanism,
    queue::{Queue, QueueConfig, Queued, Turn},
    sched::Pick,
    time::Instant,
    transmit::TxQueue,
    units::Bytes,
};

/// The packets of one end that have no path yet, but for the tunnel queue itself.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) classifier: Classifier,
    urgent: Urgent,
    pinned: Queue,
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
    pub(super) const ALL: [Self; 4] = [Self::Urgent, Self::Pinned, Self::Bulk, Self::Sparse];
}

impl Lanes {
    /// Nothing waits; packets are told apart by `classifier`, and what is pinned waits as `config` says.
    pub(super) fn new(classifier: Classifier, config: QueueConfig) -> Self {
        Self {
            classifier,
            urgent: Urgent::default(),
            pinned: Queue::new(config),
            is_pinned_next: false,
            waiting: [const { None }; Lane::ALL.len()],
            expired_at: None,
        }
    }

    /// Changes how long pinned packets may wait before they are marked ([`Queue::set_target`]).
    pub(super) fn set_target(&mut self, target: Duration) {
        self.pinned.set_target(target);
    }

    /// Changes what becomes of pinned flows whose senders do not listen ([`Queue::set_limit`]).
    pub(super) fn set_limit(&mut self, limit: Duration, patience: Duration) {
        self.pinned.set_limit(limit, patience);
    }

    /// Whether of late more had to be in time than the paths could bring: all that is sent then takes another's place.
    pub(super) fn is_short_of_room(&self, now: Instant) -> bool {
        self.expired_at.is_some_and(|at| now.since(at) < SHORT_FOR)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.pinned.is_empty() && self.waiting.iter().all(Option::is_none)
    }

    /// Packets that wait, those with numbers not among them.
    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.pinned.len()
    }

    /// Takes out what has its number.
    pub(super) fn drain_waiting(&mut self) -> impl Iterator<Item = Numbered> {
        self.waiting.iter_mut().filter_map(Option::take)
    }

    /// Puts a packet back that has to wait.
    pub(super) fn put_back(&mut self, lane: Lane, numbered: Numbered) {
        self.waiting[lane as usize] = Some(numbered);
    }
}

impl Tunnel {
    /// Puts a packet from the host into its lane.
    pub(super) fn enqueue(
        &mut self,
        now: Instant,
        mut packet: PacketBuf,
        flow_hash: u64,
        shared: &mut Shared<'_>,
    ) {
        let classifier = &mut self.lanes.classifier;
        let found = packet.parse().ok();
        let found = found.and_then(|view| {
            let found = classifier.find(now, &view, flow_hash)?;
            Some((found, view.ends_frame()))
        });
        let mark = found.map(|(found, ends_frame)| self.mark_of(now, found, ends_frame));
        packet.set_mark(mark);
        let queue = match mark {
            Some(mark) if mark.due.is_some() => {
                let queued = Queued {
                    packet,
                    flow_hash,
                    enqueued_at: now,
                };
                let is_ordered = self.is_ordered(&queued.packet);
                let urgent = &mut self.lanes.urgent;
                if let Some(oldest) = urgent.push(mark.found.is_small, is_ordered, queued) {
                    shared.drops.add(DropReason::QueueFull, 1);
                    shared.pool.recycle(oldest.packet);
                }
                return;
            }
            Some(mark) if self.lanes.classifier.is_pinned(mark.found.id) => &mut self.lanes.pinned,
            Some(_) | None => &mut self.queue,
        };
        queue.enqueue(now, packet, flow_hash, shared.on_queue_drop());
    }

    /// Until when a packet of a class is of use. A deadline no path could meet is none.
    fn mark_of(&self, now: Instant, found: Found, ends_frame: bool) -> Mark {
        let service = self.lanes.classifier.service(found.id);
        let deadline = service.and_then(|service| service.deadline);
        let due = deadline.filter(|deadline| *deadline > self.least_delay);
        let patience = due.map(|deadline| (deadline - self.least_delay) * PATIENCE_PERCENT / 100);
        Mark {
            found,
            due: due.map(|deadline| now + deadline),
            give_up_at: patience.map(|patience| now + patience),
            ends_frame,
        }
    }

    /// The next packet of the first lane that is not `blocked`, with its number.
    pub(super) fn next_of_lanes(
        &mut self,
        now: Instant,
        blocked: [bool; Lane::ALL.len()],
        shared: &mut Shared<'_>,
    ) -> Option<(Lane, Numbered)> {
        let mut lanes = Lane::ALL;
        if !self.lanes.is_pinned_next {
            lanes.swap(Lane::Pinned as usize, Lane::Bulk as usize);
        }
        lanes.into_iter().find_map(|lane| {
            let has_sparse = self.profile.has(Mechanism::SparseLane);
            let is_open = lane != Lane::Sparse || has_sparse && blocked[Lane::Bulk as usize];
            if blocked[lane as usize] || !is_open {
                return None;
            }
            if let Some(numbered) = self.take_waiting(lane) {
                if !is_too_late(now, numbered.packet.mark()) {
                    return Some((lane, numbered));
                }
                self.lanes.expired_at = Some(now);
                self.give_up(numbered.packet, shared);
            }
            if lane == Lane::Sparse && self.lanes.waiting[Lane::Sparse as usize].is_some() {
                return None;
            }
            let numbered = self.next_numbered(now, lane, shared)?;
            match lane {
                Lane::Bulk => self.lanes.is_pinned_next = true,
                Lane::Pinned => self.lanes.is_pinned_next = false,
                Lane::Urgent | Lane::Sparse => {}
            }
            if lane == Lane::Sparse && self.is_behind(&numbered) {
                self.lanes.put_back(lane, numbered);
                return None;
            }
            Some((lane, numbered))
        })
    }

    fn next_numbered(
        &mut self,
        now: Instant,
        lane: Lane,
        shared: &mut Shared<'_>,
    ) -> Option<Numbered> {
        match self.dequeue(now, lane, shared)? {
            Turn::Queued(queued) => {
                let numbered = self.number(now, queued);
                self.protect(now, &numbered);
                Some(numbered)
            }
            Turn::Taken => {
                let numbered = self.ahead.pop(now)?;
                self.queue.charge(numbered.flow_hash, numbered.packet.len());
                Some(numbered)
            }
        }
    }

    /// The packet of a lane that has its number and waits.
    fn take_waiting(&mut self, lane: Lane) -> Option<Numbered> {
        let sparse = Lane::Sparse as usize;
        if lane == Lane::Sparse {
            let is_behind = self.lanes.waiting[sparse]
                .as_ref()
                .is_some_and(|next| self.is_behind(next));
            return self.lanes.waiting[sparse].take_if(|_| !is_behind);
        }
        let waiting = self.lanes.waiting[lane as usize].take();
        // What overtook the first is older than what is still in the queue.
        waiting.or_else(|| self.lanes.waiting[sparse].take_if(|_| lane == Lane::Bulk))
    }

    /// Whether a packet of the same flow waits, which has to go before.
    fn is_behind(&self, numbered: &Numbered) -> bool {
        let first = self.lanes.waiting[Lane::Bulk as usize].as_ref();
        first.is_some_and(|first| first.flow_hash == numbered.flow_hash)
    }

    fn dequeue(&mut self, now: Instant, lane: Lane, shared: &mut Shared<'_>) -> Option<Turn> {
        let taken = self.ahead.flow_hash();
        loop {
            let turn = match lane {
                Lane::Urgent => self.lanes.urgent.oldest().map(Turn::Queued),
                Lane::Pinned => self
                    .lanes
                    .pinned
                    .dequeue(now, shared.on_queue_drop())
                    .map(Turn::Queued),
                Lane::Bulk => self
                    .queue
                    .next_turn(now, false, taken, shared.on_queue_drop()),
                Lane::Sparse => self
                    .queue
                    .next_turn(now, true, taken, shared.on_queue_drop()),
            }?;
            let queued = match turn {
                Turn::Queued(queued) if is_too_late(now, queued.packet.mark()) => queued,
                turn @ (Turn::Queued(_) | Turn::Taken) => return Some(turn),
            };
            self.lanes.expired_at = Some(now);
            self.give_up(queued.packet, shared);
        }
    }

    /// Whether a packet would be of no use if it were sent again now.
    pub(super) fn is_past_help(&self, now: Instant, mark: Option<Mark>) -> bool {
        let due = mark.and_then(|mark| mark.due);
        due.is_some_and(|due| now + self.least_delay > due)
    }

    /// Drops a packet that is too late.
    pub(super) fn give_up(&mut self, packet: PacketBuf, shared: &mut Shared<'_>) {
        if let Some(mark) = packet.mark() {
            self.lanes.classifier.on_expired(mark.found.id);
        }
        shared.drops.add(DropReason::Expired, 1);
        shared.pool.recycle(packet);
    }

    /// Sends the newest urgent packet that needs no order, if a path is ready on which it would be in time; whether it did.
    pub(super) fn send_newest(
        &mut self,
        now: Instant,
        out: &mut TxQueue,
        shared: &mut Shared<'_>,
    ) -> bool {
        if out.is_full() || !self.views.iter().any(|view| view.ready) {
            return false;
        }
        let ahead = self.lanes.urgent.on_wire();
        let Some(queued) = self.lanes.urgent.newest() else {
            return false;
        };
        let waits = (ahead, Bytes::ZERO);
        let flow = FlowInfo {
            hash: queued.flow_hash,
            is_expendable: false,
            round_trip: Duration::ZERO,
            has_behind: false,
        };
        let pick = self.pick(now, &queued.packet, flow, waits, None);
        if pick == Pick::Wait {
            self.lanes.urgent.put_back(queued);
            return false;
        }
        let numbered = self.number(now, queued);
        self.protect(now, &numbered);
        self.act(now, pick, numbered, false, out, shared);
        true
    }

    /// Bytes that have to go as soon as a packet of a lane, or before it, as lines count them.
    pub(super) fn backlog(&self, lane: Lane, packet: &PacketBuf) -> Bytes {
        let urgent = self.lanes.urgent.on_wire();
        match lane {
            // The newest look after themselves.
            Lane::Urgent if !self.is_ordered(packet) => Bytes::ZERO,
            Lane::Urgent => urgent,
            Lane::Pinned => waiting(&self.lanes.pinned) + urgent,
            Lane::Bulk | Lane::Sparse => waiting(&self.queue) + self.ahead.on_wire() + urgent,
        }
    }
}

/// What has a deadline, in the order it came; at most [`MOST_URGENT`] packets each.
#[derive(Debug, Default)]
struct Urgent {
    /// Of flows that send little.
    small: VecDeque<Queued>,
    ordered: VecDeque<Queued>,
    unordered: VecDeque<Queued>,
    bytes: Bytes,
}

/// What waits in `queue`, as lines count it.
pub(super) fn waiting(queue: &Queue) -> Bytes {
    in_datagrams(queue.bytes(), queue.len())
}

impl Urgent {
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.small.len() + self.ordered.len() + self.unordered.len()
    }

    fn on_wire(&self) -> Bytes {
        in_datagrams(self.bytes, self.len())
    }

    /// Takes a packet; the oldest of its kind comes out if there are too many.
    fn push(&mut self, is_small: bool, is_ordered: bool, queued: Queued) -> Option<Queued> {
        self.bytes += Bytes::of_len(queued.packet.len());
        // What has an order does not overtake what came before it.
        let is_behind = |before: &Queued| before.flow_hash == queued.flow_hash;
        let is_first = is_small && !(is_ordered && self.ordered.iter().any(is_behind));
        let kind = match (is_first, is_ordered) {
            (true, _) => &mut self.small,
            (false, true) => &mut self.ordered,
            (false, false) => &mut self.unordered,
        };
        kind.push_back(queued);
        let too_many = kind.len() > MOST_URGENT;
        let oldest = if too_many { kind.pop_front() } else { None };
        self.counted(oldest)
    }

    fn oldest(&mut self) -> Option<Queued> {
        let at = |kind: &VecDeque<Queued>| kind.front().map(|queued| queued.enqueued_at);
        let is_ordered_first = match (at(&self.ordered), at(&self.unordered)) {
            (Some(ordered), Some(unordered)) => ordered <= unordered,
            (ordered, _) => ordered.is_some(),
        };
        let next = match self.small.pop_front() {
            None if is_ordered_first => self.ordered.pop_front(),
            None => self.unordered.pop_front(),
            small => small,
        };
        self.counted(next)
    }

    fn newest(&mut self) -> Option<Queued> {
        let newest = self.unordered.pop_back();
        self.counted(newest)
    }

    /// Puts the newest back.
    fn put_back(&mut self, queued: Queued) {
        self.bytes += Bytes::of_len(queued.packet.len());
        self.unordered.push_back(queued);
    }

    /// `queued`, which is no longer here.
    fn counted(&mut self, queued: Option<Queued>) -> Option<Queued> {
        let len = queued.as_ref().map_or(0, |queued| queued.packet.len());
        self.bytes = self.bytes - Bytes::of_len(len);
        queued
    }
}

/// Whether a packet that was not sent yet has waited for too long to be in time with some certainty. One that has just come
/// never has, whatever is thought of the paths: else nothing would be sent any more that shows it wrong.
fn is_too_late(now: Instant, mark: Option<Mark>) -> bool {
    let give_up_at = mark.and_then(|mark| mark.give_up_at);
    give_up_at.is_some_and(|at| now > at)
}

/// What part of the time a packet has, beyond what the quickest path takes, it may wait; the rest is for queues and jitter
/// there. While more comes than paths carry, something has to be dropped, and what is dropped earlier makes what is sent the
/// surer to be in time.
const PATIENCE_PERCENT: u32 = 75;
/// What was given up shows for so long that there is too little room.
const SHORT_FOR: Duration = Duration::from_secs(1);
/// A second of 30 Mbit/s.
const MOST_URGENT: usize = 2_560;
