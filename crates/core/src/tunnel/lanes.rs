//! Where packets wait before a path is chosen for them, and in which order.
//!
//! | lane | what is in it | comes out |
//! | --- | --- | --- |
//! | urgent | what has a deadline ([`crate::class`]) | first, fair between flows; dropped once it could not come in time |
//! | sparse | of the tunnel queue, the flows that had nothing in it | then, one quantum each |
//! | pinned | what is to take certain links and has no deadline | in turn with the last |
//! | bulk | the rest of the tunnel queue | last |
//!
//! A packet that the policy lets wait for a path holds up its own lane only: a download that waits for its line must not
//! hold up a voice, or a name look-up.

use super::{Shared, Tunnel};
use crate::{
    class::{Classifier, Found},
    counters::DropReason,
    packet::{Mark, PacketBuf},
    path::sender::Numbered,
    queue::{Queue, QueueConfig, Queued},
    time::Instant,
    units::Bytes,
};

/// The packets of one end that have no path yet, but for the tunnel queue itself.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) classifier: Classifier,
    urgent: Queue,
    pinned: Queue,
    /// Whose turn it is: the pinned packets', not the bulk's.
    is_pinned_next: bool,
    /// Packets that have their numbers and wait, by lane.
    waiting: [Option<Numbered>; Lane::ALL.len()],
}

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Urgent,
    Sparse,
    Pinned,
    Bulk,
}

impl Lane {
    pub(super) const ALL: [Self; 4] = [Self::Urgent, Self::Sparse, Self::Pinned, Self::Bulk];
}

impl Lanes {
    /// Nothing waits; packets are told apart by `classifier`, and what is pinned waits as `config` says.
    pub(super) fn new(classifier: Classifier, config: QueueConfig) -> Self {
        // What waits for too long is dropped by its deadline.
        let patient = QueueConfig {
            target: core::time::Duration::MAX,
            ..QueueConfig::default()
        };
        Self {
            classifier,
            urgent: Queue::new(patient),
            pinned: Queue::new(config),
            is_pinned_next: false,
            waiting: [const { None }; Lane::ALL.len()],
        }
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
        let found = found.and_then(|view| classifier.find(now, &view, flow_hash));
        let mark = found.map(|found| self.mark_of(now, found));
        packet.set_mark(mark);
        let queue = match mark {
            Some(Mark { due: Some(_), .. }) => &mut self.lanes.urgent,
            Some(mark) if self.lanes.classifier.is_pinned(mark.found.id) => &mut self.lanes.pinned,
            Some(_) | None => &mut self.queue,
        };
        queue.enqueue(now, packet, flow_hash, |packet, reason| {
            shared.drops.add(DropReason::from(reason), 1);
            shared.pool.recycle(packet);
        });
    }

    /// Until when a packet of a class is of use. A deadline no path could meet is none.
    fn mark_of(&self, now: Instant, found: Found) -> Mark {
        let service = self.lanes.classifier.service(found.id);
        let deadline = service.and_then(|service| service.deadline);
        let due = deadline.filter(|deadline| *deadline > self.least_delay);
        Mark {
            found,
            due: due.map(|deadline| now + deadline),
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
            if blocked[lane as usize] {
                return None;
            }
            if let Some(numbered) = self.lanes.waiting[lane as usize].take() {
                if !self.is_too_late(now, numbered.packet.mark()) {
                    return Some((lane, numbered));
                }
                self.give_up(numbered.packet, shared);
            }
            let queued = self.dequeue(now, lane, shared)?;
            self.lanes.is_pinned_next = lane == Lane::Bulk;
            let numbered = self.number(now, queued);
            self.protect(&numbered);
            Some((lane, numbered))
        })
    }

    fn dequeue(&mut self, now: Instant, lane: Lane, shared: &mut Shared<'_>) -> Option<Queued> {
        loop {
            let dropped = |packet, reason| {
                shared.drops.add(DropReason::from(reason), 1);
                shared.pool.recycle(packet);
            };
            let queued = match lane {
                Lane::Urgent => self.lanes.urgent.dequeue(now, dropped),
                Lane::Sparse => self.queue.dequeue_sparse(now, dropped),
                Lane::Pinned => self.lanes.pinned.dequeue(now, dropped),
                Lane::Bulk => self.queue.dequeue(now, dropped),
            }?;
            if !self.is_too_late(now, queued.packet.mark()) {
                return Some(queued);
            }
            self.give_up(queued.packet, shared);
        }
    }

    /// Whether a packet sent now would be of no use when it comes.
    pub(super) fn is_too_late(&self, now: Instant, mark: Option<Mark>) -> bool {
        let due = mark.and_then(|mark| mark.due);
        due.is_some_and(|due| now + self.soonest.unwrap_or_default() > due)
    }

    /// Drops a packet that is too late.
    pub(super) fn give_up(&mut self, packet: PacketBuf, shared: &mut Shared<'_>) {
        if let Some(mark) = packet.mark() {
            self.lanes.classifier.on_expired(mark.found.id);
        }
        shared.drops.add(DropReason::Expired, 1);
        shared.pool.recycle(packet);
    }

    /// Bytes that wait behind a packet of a lane.
    pub(super) fn backlog(&self, lane: Lane) -> Bytes {
        match lane {
            Lane::Urgent => self.lanes.urgent.bytes(),
            Lane::Pinned => self.lanes.pinned.bytes() + self.lanes.urgent.bytes(),
            Lane::Sparse | Lane::Bulk => self.queue.bytes() + self.lanes.urgent.bytes(),
        }
    }
}
