//! What the class of a packet asks for: a deadline, links, an order, copies.

use core::time::Duration;

use super::{
    path_set::{PathSet, bit},
    shared::Shared,
};
use crate::{
    class::{Class, ClassCounts, Classifier, Duplicate, Service},
    counters::DropReason,
    flows::FlowId,
    mark::{Found, Mark},
    packet::PacketBuf,
    path::sender::Numbered,
    profile::Profile,
    sched::Urgency,
    time::Instant,
};

/// The classes of traffic of one end.
#[derive(Debug)]
pub(super) struct Services {
    classifier: Classifier,
    /// Whether packets of a flow are delivered in their order, if their class says nothing else.
    in_order: bool,
}

impl Services {
    /// The user's `classes`, and whatever `profile` recognises by itself.
    pub(super) fn new(classes: Vec<Class>, profile: &Profile) -> Self {
        Self {
            classifier: Classifier::new(classes, profile.voice),
            in_order: profile.in_order,
        }
    }

    /// What the class of a packet from the host asks for; `None` if it is of none. `least_delay`: what the quickest path takes one
    /// way.
    pub(super) fn mark(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        flow: FlowId,
        least_delay: Duration,
    ) -> Option<Mark> {
        let view = packet.parse().ok()?;
        let found = self.classifier.find(now, &view, flow)?;
        Some(self.mark_of(now, found, view.ends_frame(), least_delay))
    }

    /// Until when a packet of a class is of use. A deadline no path could meet is none.
    fn mark_of(&self, now: Instant, found: Found, ends_frame: bool, least_delay: Duration) -> Mark {
        let service = self.classifier.service(found.id);
        let deadline = service.and_then(|service| service.deadline);
        let due = deadline.filter(|deadline| *deadline > least_delay);
        let patience = due.map(|deadline| (deadline - least_delay) * PATIENCE_PERCENT / 100);
        Mark {
            found,
            due: due.map(|deadline| now + deadline),
            give_up_at: patience.map(|patience| now + patience),
            ends_frame,
        }
    }

    fn service(&self, packet: &PacketBuf) -> Option<&Service> {
        self.classifier.service(packet.mark()?.found.id)
    }

    /// Whether packets of a mark are to take certain links.
    pub(super) fn is_pinned(&self, mark: Mark) -> bool {
        self.classifier.is_pinned(mark.found.id)
    }

    /// Whether the other end is to let a packet go in the order of its flow.
    pub(super) fn is_ordered(&self, packet: &PacketBuf) -> bool {
        let service = self.service(packet);
        self.in_order && service.is_none_or(|service| service.is_ordered)
    }

    /// That a packet has to be in time; `None` if it has no deadline.
    pub(super) fn urgency(
        &self,
        now: Instant,
        packet: &PacketBuf,
        least_delay: Duration,
    ) -> Option<Urgency> {
        let mark = packet.mark()?;
        let is_paid = self.classifier.may_copy(mark.found.id, packet.len());
        let duplicate = self.classifier.service(mark.found.id)?.duplicate;
        Some(Urgency {
            left: mark.due?.since(now + least_delay),
            duplicate: if is_paid { duplicate } else { Duplicate::Never },
            is_small: mark.found.is_small,
        })
    }

    /// Bit *i*: path *i* is one that the packet's class wants, and works, whatever its rank; `None` if any will do.
    pub(super) fn wanted_links(&self, packet: &PacketBuf, paths: &PathSet) -> Option<u16> {
        let links = &self.service(packet)?.links;
        if links.is_empty() {
            return None;
        }
        let wanted = paths
            .carrying()
            .filter(|path| links.contains(&path.link().name));
        let wanted = wanted.fold(0, |set, path| set | bit(path.id()));
        (wanted != 0).then_some(wanted)
    }

    /// Copies of a packet were sent.
    pub(super) fn charge_copies(&mut self, copies: u32, numbered: &Numbered) {
        let Some(mark) = numbered.packet.mark().filter(|mark| mark.due.is_some()) else {
            return;
        };
        for _ in 0..copies {
            self.classifier
                .on_copied(mark.found.id, numbered.packet.len());
        }
    }

    /// Drops a packet that is too late.
    pub(super) fn give_up(&mut self, packet: PacketBuf, shared: &mut Shared<'_>) {
        if let Some(mark) = packet.mark() {
            self.classifier.on_expired(mark.found.id);
        }
        shared.drop(packet, DropReason::Expired);
    }

    /// Classes by name, with what was sent of each.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&str, ClassCounts)> {
        self.classifier.counts()
    }
}

/// What part of the time a packet has, beyond what the quickest path takes, it may wait; the rest is for queues and jitter
/// there. While more comes than paths carry, something has to be dropped, and what is dropped earlier makes what is sent the
/// surer to be in time.
const PATIENCE_PERCENT: u32 = 75;
