//! The requirements of a packet's class: deadline, links, order, copies.

use core::time::Duration;

use super::{
    path_set::{PathSet, bit},
    shared::Shared,
};
use crate::{
    class::{Class, ClassCounts, Classifier, Duplicate, FlowQuestion, Service},
    counters::DropReason,
    flows::FlowId,
    mark::{Found, Mark},
    packet::PacketBuf,
    path::sender::Numbered,
    profile::Profile,
    sched::Urgency,
    time::Instant,
};

/// The traffic classes of one end.
#[derive(Debug)]
pub(super) struct Services {
    classifier: Classifier,
    /// Whether packets of a flow are delivered in order unless their class specifies otherwise.
    in_order: bool,
}

impl Services {
    /// Returns the state for the user's `classes` and the classes that `profile` recognises automatically.
    pub(super) fn new(classes: Vec<Class>, profile: &Profile) -> Self {
        Self {
            classifier: Classifier::new(classes, profile.voice),
            in_order: profile.in_order,
        }
    }

    /// Replaces the classes. Waiting packets then belong to the class of the same name, or to no class.
    pub(super) fn replace(&mut self, classes: Vec<Class>, profile: &Profile) {
        let classifier = Classifier::new(classes, profile.voice).succeeding(&self.classifier);
        *self = Self {
            classifier,
            in_order: profile.in_order,
        };
    }

    /// Frees the table of flows.
    pub(super) fn release_memory(&mut self) {
        self.classifier.release_memory();
    }

    /// Returns the next question which program has opened a flow.
    pub(super) fn poll_question(&mut self) -> Option<FlowQuestion> {
        self.classifier.poll_question()
    }

    /// Takes the answer to a question.
    pub(super) fn answer(&mut self, question: &FlowQuestion, program: Option<&str>) {
        self.classifier.answer(question, program);
    }

    /// Returns the requirements of the class of a packet from the host; `None` if the packet has no class.
    /// `least_delay` is the one-way delay of the path with the shortest delay.
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

    /// Returns the mark of a packet of a class, with its deadline. A deadline that no path could meet is ignored.
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

    /// Whether packets with this mark must use certain links.
    pub(super) fn is_pinned(&self, mark: Mark) -> bool {
        self.classifier.is_pinned(mark.found.id)
    }

    /// Whether the other end must deliver a packet in the order of its flow.
    pub(super) fn is_ordered(&self, packet: &PacketBuf) -> bool {
        let service = self.service(packet);
        self.in_order && service.is_none_or(|service| service.is_ordered)
    }

    /// Returns the urgency of a packet; `None` if it has no deadline.
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

    /// Returns the working links that the packet's class requires, regardless of their rank, as a set with bit *i* for
    /// path *i*. Returns `None` if the class permits any link or none of its links works.
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

    /// Records that copies of a packet were sent.
    pub(super) fn charge_copies(&mut self, copies: u32, numbered: &Numbered) {
        let Some(mark) = numbered.packet.mark().filter(|mark| mark.due.is_some()) else {
            return;
        };
        for _ in 0..copies {
            self.classifier
                .on_copied(mark.found.id, numbered.packet.len());
        }
    }

    /// Drops a packet that would miss its deadline.
    pub(super) fn give_up(&mut self, packet: PacketBuf, shared: &mut Shared<'_>) {
        if let Some(mark) = packet.mark() {
            self.classifier.on_expired(mark.found.id);
        }
        shared.drop(packet, DropReason::Expired);
    }

    /// Returns the classes by name, with their counters.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&str, ClassCounts)> {
        self.classifier.counts()
    }
}

/// Maximum wait of a packet, in percent of its deadline minus the minimum one-way delay. The rest is reserved for
/// queues and jitter on the path. Under overload some packets must be dropped, and an earlier drop makes it more likely
/// that the other packets meet their deadlines.
const PATIENCE_PERCENT: u32 = 75;
