//! The requirements of a packet: deadline, links, order, copies and drops by its class, and the path that the other end
//! wants for it.
//!
//! A packet of a strict class without a deadline waits while none of its links carries data but one of them may do so
//! again soon: it is up or suspect, has a route, and the user's rules allow it. Otherwise the packet is dropped
//! ([`Services::refusal`]). Under a policy that works in blocks, no packet is restricted to links.
//!
//! The repair symbols and the parity of a packet may use any path.

use core::time::Duration;

use super::{
    answers::Answers,
    egress::Egress,
    path_set::{PathSet, bit},
    pinned::Pin,
    shared::Shared,
};
use crate::{
    class::{Class, ClassCounts, Classifier, Duplicate, FlowQuestion, Service},
    counters::DropReason,
    flows::FlowId,
    ids::PathId,
    mark::{ClassId, Found, Mark},
    packet::PacketBuf,
    path::{Path, health::State, sender::Numbered},
    profile::Profile,
    sched::Urgency,
    time::Instant,
};

/// The traffic classes of one end, and the paths that the other end wants.
#[derive(Debug)]
pub(super) struct Services {
    classifier: Classifier,
    pub(super) answers: Answers,
    /// Whether packets of a flow are delivered in order unless their class specifies otherwise.
    in_order: bool,
}

impl Services {
    /// Returns the state for the user's `classes` and the classes that `profile` recognises automatically.
    pub(super) fn new(classes: Vec<Class>, profile: &Profile) -> Self {
        Self {
            classifier: Classifier::new(classes, profile.voice),
            answers: Answers::default(),
            in_order: profile.in_order,
        }
    }

    /// Replaces the classes. Waiting packets then belong to the class of the same name, or to no class.
    pub(super) fn replace(&mut self, classes: Vec<Class>, profile: &Profile) {
        let classifier = Classifier::new(classes, profile.voice).succeeding(&self.classifier);
        self.classifier = classifier;
        self.in_order = profile.in_order;
    }

    /// Returns the present id of a class; `None` if the class no longer exists.
    pub(super) fn present(&self, id: ClassId) -> Option<ClassId> {
        self.classifier.present(id)
    }

    /// Frees the tables of flows.
    pub(super) fn release_memory(&mut self) {
        self.classifier.release_memory();
        self.answers.release_memory();
    }

    /// Returns the next question which program has opened a flow.
    pub(super) fn poll_question(&mut self) -> Option<FlowQuestion> {
        self.classifier.poll_question()
    }

    /// Takes the answer to a question.
    pub(super) fn answer(&mut self, question: &FlowQuestion, program: Option<&str>) {
        self.classifier.answer(question, program);
    }

    /// Takes the answer that the program cannot be known yet.
    pub(super) fn delay(&mut self, question: &FlowQuestion) {
        self.classifier.delay(question);
    }

    /// Returns the requirements of a packet from the host; `None` if it has none. The path that the other end wants
    /// precedes the built-in class for voice, but not a class of the user with links or a deadline. `least_delay` is the
    /// one-way delay of the path with the shortest delay.
    pub(super) fn mark(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        flow: FlowId,
        least_delay: Duration,
    ) -> Option<Mark> {
        let view = packet.parse().ok()?;
        let found = self.classifier.find(now, &view, flow);
        let service = found.and_then(|found| self.classifier.service(found.id));
        let is_of_user = found.is_some_and(|found| !self.classifier.is_voice(found.id));
        let has_way = |service: &Service| service.deadline.is_some() || !service.links.is_empty();
        let answer_on = if is_of_user && service.is_some_and(has_way) {
            None
        } else {
            self.answers.path_of(now, flow)
        };
        if found.is_none() && answer_on.is_none() {
            return None;
        }
        let mark = self.mark_of(now, found, view.ends_frame(), least_delay);
        let has_deadline = answer_on.is_none();
        Some(Mark {
            answer_on,
            due: mark.due.filter(|_| has_deadline),
            give_up_at: mark.give_up_at.filter(|_| has_deadline),
            ..mark
        })
    }

    /// Returns the mark of a packet of a class, with its deadline. A deadline that no path could meet is ignored.
    fn mark_of(
        &self,
        now: Instant,
        found: Option<Found>,
        ends_frame: bool,
        least_delay: Duration,
    ) -> Mark {
        let service = found.and_then(|found| self.classifier.service(found.id));
        let deadline = service.and_then(|service| service.deadline);
        let due = deadline.filter(|deadline| *deadline > least_delay);
        let patience = due.map(|deadline| (deadline - least_delay) * PATIENCE_PERCENT / 100);
        Mark {
            found,
            answer_on: None,
            due: due.map(|deadline| now + deadline),
            give_up_at: patience.map(|patience| now + patience),
            ends_frame,
        }
    }

    fn service(&self, packet: &PacketBuf) -> Option<&Service> {
        self.classifier.service(packet.mark()?.found?.id)
    }

    /// Returns what restricts packets with this mark to certain paths; `None` if they may use any path.
    pub(super) fn pin(&self, mark: Mark) -> Option<Pin> {
        if let Some(path) = mark.answer_on {
            return Some(Pin::Path(path));
        }
        let id = self.present(mark.found?.id)?;
        self.classifier.is_pinned(id).then_some(Pin::Class(id))
    }

    /// Whether the user has blocked the packets with this mark.
    pub(super) fn is_blocked(&self, mark: Option<Mark>) -> bool {
        let found = mark.and_then(|mark| mark.found);
        let service = found.and_then(|found| self.classifier.service(found.id));
        service.is_some_and(|service| service.is_blocked)
    }

    /// Returns why a packet that waits is to be dropped because of its class; `None` if it may be sent or has to wait.
    pub(super) fn refusal(
        &self,
        packet: &PacketBuf,
        egress: &Egress<'_, '_>,
    ) -> Option<DropReason> {
        let mark = packet.mark()?;
        if self.is_blocked(Some(mark)) {
            return Some(DropReason::Blocked);
        }
        let works_in_blocks = egress.placement.scheduler.works_in_blocks();
        let is_stranded = !works_in_blocks && self.is_stranded(packet, egress);
        is_stranded.then_some(DropReason::NoLink)
    }

    /// Whether a packet may use none of the paths that may carry data now or soon, because its class is strict.
    fn is_stranded(&self, packet: &PacketBuf, egress: &Egress<'_, '_>) -> bool {
        let paths = &*egress.sealer.paths;
        if self.strict(packet).is_none() || self.must_wait(packet, paths) {
            return false;
        }
        let wanted = self.wanted_paths(packet, paths).unwrap_or(0);
        let (_, narrow) = egress.lengths.wide_and_narrow(packet.len(), paths);
        wanted & !narrow == 0
    }

    /// Whether a packet may use none of the paths that may carry data now, because its class is strict, but one of its
    /// paths may carry data again soon.
    pub(super) fn must_wait(&self, packet: &PacketBuf, paths: &PathSet) -> bool {
        let Some(service) = self.strict(packet) else {
            return false;
        };
        let may_return = |path: &Path| {
            matches!(path.health().state(), State::Up | State::Suspect)
                && path.route().is_some()
                && paths.is_allowed(path)
        };
        let named = || named(&service.links, paths);
        named().any(may_return) && !named().any(|path| paths.may_carry(path))
    }

    /// Returns the service of a packet that is dropped rather than sent on another link than those of its class.
    fn strict(&self, packet: &PacketBuf) -> Option<&Service> {
        packet.mark().filter(|mark| mark.due.is_none())?;
        let service = self.service(packet)?;
        (service.is_strict && !service.links.is_empty()).then_some(service)
    }

    /// Whether a packet in flight on the path `id` of the link `link` is restricted to this path, so that none of the
    /// paths `others` may carry it.
    pub(super) fn is_bound_to(
        &self,
        (id, link): (PathId, &str),
        packet: &PacketBuf,
        others: &PathSet,
    ) -> bool {
        let wanted = packet.mark().and_then(|mark| mark.answer_on);
        if let Some(wanted) = wanted {
            return wanted == id;
        }
        let service = self.service(packet);
        service.is_some_and(|service| service.links.iter().any(|name| name == link))
            && self.wanted_paths(packet, others).is_none()
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
        let found = mark.found?;
        let is_paid = self.classifier.may_copy(found.id, packet.len());
        let duplicate = self.classifier.service(found.id)?.duplicate;
        Some(Urgency {
            left: mark.due?.since(now + least_delay),
            duplicate: if is_paid { duplicate } else { Duplicate::Never },
            is_small: found.is_small,
        })
    }

    /// Returns the paths to which a packet is restricted and which may carry data, regardless of their rank, as a set
    /// with bit *i* for path *i*. Returns `None` if the packet may use any path: it is not restricted, or none of these
    /// paths may carry data.
    pub(super) fn wanted_paths(&self, packet: &PacketBuf, paths: &PathSet) -> Option<u16> {
        let mark = packet.mark()?;
        let wanted = match mark.answer_on {
            Some(id) => set_of(paths.get(id).filter(|path| paths.may_carry(path))),
            None => {
                let links = &self.service(packet)?.links;
                if links.is_empty() {
                    return None;
                }
                set_of(named(links, paths).filter(|path| paths.may_carry(path)))
            }
        };
        (wanted != 0).then_some(wanted)
    }

    /// Returns the paths on which the answers to a packet are wanted, as a set with bit *i* for path *i*: the link of
    /// its class, unless it has a deadline. If the class has several links, the other end chooses the path: it would
    /// otherwise follow the link of each packet.
    pub(super) fn answer_paths(&self, packet: &PacketBuf, paths: &PathSet) -> u16 {
        let service = self.service(packet);
        let service = service.filter(|service| service.deadline.is_none());
        match service.map(|service| service.links.as_slice()) {
            Some(links @ [_]) => set_of(named(links, paths)),
            Some(_) | None => 0,
        }
    }

    /// Records that copies of a packet were sent.
    pub(super) fn charge_copies(&mut self, copies: u32, numbered: &Numbered) {
        let Some(mark) = numbered.packet.mark().filter(|mark| mark.due.is_some()) else {
            return;
        };
        let Some(found) = mark.found else {
            return;
        };
        for _ in 0..copies {
            self.classifier.on_copied(found.id, numbered.packet.len());
        }
    }

    /// Drops a packet that would miss its deadline.
    pub(super) fn give_up(&mut self, packet: PacketBuf, shared: &mut Shared<'_>) {
        if let Some(found) = packet.mark().and_then(|mark| mark.found) {
            self.classifier.on_expired(found.id);
        }
        shared.drop(packet, DropReason::Expired);
    }

    /// Drops a packet because of its class: the class is blocked, or none of its links can carry the packet.
    pub(super) fn refuse(
        &mut self,
        packet: PacketBuf,
        reason: DropReason,
        shared: &mut Shared<'_>,
    ) {
        if let Some(found) = packet.mark().and_then(|mark| mark.found) {
            self.classifier.on_dropped(found.id);
        }
        shared.drop(packet, reason);
    }

    /// Returns the classes by name, with their counters.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&str, ClassCounts)> {
        self.classifier.counts()
    }
}

/// Returns the paths of links.
fn named<'a>(links: &'a [String], paths: &'a PathSet) -> impl Iterator<Item = &'a Path> {
    paths
        .iter()
        .filter(|path| links.contains(&path.link().name))
}

/// Returns a set of paths with bit *i* for path *i*.
fn set_of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> u16 {
    let paths = paths.into_iter();
    paths.fold(0, |set, path| set | bit(path.id()))
}

/// Maximum wait of a packet, in percent of its deadline minus the minimum one-way delay. The rest is reserved for
/// queues and jitter on the path. Under overload some packets must be dropped, and an earlier drop makes it more likely
/// that the other packets meet their deadlines.
const PATIENCE_PERCENT: u32 = 75;
