//! What a class asks for beside a place in the queue: its links, its order, its copies.

use core::time::Duration;

use super::Tunnel;
use crate::{
    class::{Duplicate, Service},
    ids::PathId,
    packet::PacketBuf,
    path::{on_wire::in_datagrams, sender::Numbered},
    sched::{PacketInfo, PathView, Pick, Scheduler, Urgency},
    time::Instant,
    trace::{Choice, Event, PickEvent},
    units::Bytes,
};

/// What the policy is told of the flow of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowInfo {
    pub(super) hash: u64,
    /// Whether the packet's loss does no harm.
    pub(super) is_expendable: bool,
    /// How long its round trips are made; zero if they are not.
    pub(super) round_trip: Duration,
    /// Whether later ones of it may go before the packet.
    pub(super) has_behind: bool,
}

impl Tunnel {
    /// Asks the policy for the path of a packet: of its flow, and what has to go as soon or before it, and until the last of
    /// its flow does. `avoided`: taken only if no other works.
    pub(super) fn pick(
        &mut self,
        now: Instant,
        packet: &PacketBuf,
        flow: FlowInfo,
        (backlog, to_last): (Bytes, Bytes),
        avoided: Option<PathId>,
    ) -> Pick {
        let urgency = self.urgency(now, packet);
        let info = PacketInfo {
            len: in_datagrams(Bytes::of_len(packet.len()), 1),
            flow_hash: flow.hash,
            is_expendable: flow.is_expendable,
            backlog,
            own_backlog: self.queue.flow_bytes(flow.hash) + self.ahead.bytes_of(flow.hash),
            to_last,
            round_trip: flow.round_trip,
            has_behind: flow.has_behind,
            urgency,
        };
        let wanted = self.wanted_links(packet);
        let is_small = info.urgency.is_some_and(|urgency| urgency.is_small);
        let serves = |view: &PathView| view.usable && Some(view.id) != avoided;
        let avoided = avoided.filter(|_| self.views.iter().any(serves));
        let (wide, narrow) = self.wide_and_narrow(packet.len());
        if wanted.is_none() && !is_small && avoided.is_none() && narrow == 0 {
            let pick = self.scheduler.pick(now, &self.views, &info);
            self.tell_pick(now, &info, pick);
            return pick;
        }
        let mut views = core::mem::take(&mut self.views);
        let (mut ready, mut usable) = (0, 0);
        for view in &mut views {
            let bit = bit(view.id);
            ready |= if view.ready { bit } else { 0 };
            usable |= if view.usable { bit } else { 0 };
            if let Some(wanted) = wanted {
                view.usable = wanted & bit != 0;
                view.ready = view.usable && self.has_room(now, view.id);
            }
            view.ready |= view.usable && is_small && self.may_overdraw(now, view.id);
            if avoided == Some(view.id) || narrow & bit != 0 {
                (view.ready, view.usable) = (false, false);
            }
        }
        if narrow != 0 && !views.iter().any(|view| view.usable) {
            // Better on a link of another rank or class than never.
            for view in views.iter_mut().filter(|view| wide & bit(view.id) != 0) {
                view.usable = true;
                view.ready = self.has_room(now, view.id);
            }
        }
        let pick = if views.iter().any(|view| view.ready) {
            self.scheduler.pick(now, &views, &info)
        } else {
            Pick::Wait
        };
        for view in &mut views {
            view.ready = ready & bit(view.id) != 0;
            view.usable = usable & bit(view.id) != 0;
        }
        self.views = views;
        self.tell_pick(now, &info, pick);
        pick
    }

    /// Shows a decision to the observer.
    fn tell_pick(&mut self, now: Instant, info: &PacketInfo, pick: Pick) {
        let (views, scheduler) = (&self.views, &self.scheduler);
        self.tracer.tell(now, || {
            let id = |index: usize| views[index].id;
            Event::Pick(PickEvent {
                flow: info.flow_hash,
                len: info.len,
                backlog: info.backlog,
                candidates: scheduler.candidates(),
                choice: match pick {
                    Pick::Wait => Choice::Wait,
                    Pick::One(index) | Pick::Shadowed { index, .. } => Choice::One(id(index)),
                    Pick::Copies(set) => {
                        let sent = views.iter().enumerate().filter(|(i, _)| set & 1 << i != 0);
                        Choice::Copies(sent.fold(0, |set, (_, view)| set | bit(view.id)))
                    }
                    Pick::Behind { index, .. } => Choice::Behind(id(index)),
                },
            })
        });
    }

    /// Whether a path that works may send now.
    fn has_room(&self, now: Instant, id: PathId) -> bool {
        let path = self.path(id);
        path.is_some_and(|path| path.can_send(now))
    }

    /// Whether a short packet may go on a path before its turn: its pace is hardly an obstacle, for what goes this way is
    /// little.
    fn may_overdraw(&self, now: Instant, id: PathId) -> bool {
        let path = self.path(id);
        path.is_some_and(|path| !path.is_blocked() && path.pacer().debt(now) < MOST_DEBT)
    }

    fn urgency(&self, now: Instant, packet: &PacketBuf) -> Option<Urgency> {
        let mark = packet.mark()?;
        let classifier = &self.lanes.classifier;
        let is_paid = classifier.may_copy(mark.found.id, packet.len());
        let duplicate = classifier.service(mark.found.id)?.duplicate;
        Some(Urgency {
            left: mark.due?.since(now + self.least_delay),
            duplicate: if is_paid { duplicate } else { Duplicate::Never },
            is_small: mark.found.is_small,
        })
    }

    /// Bit *i*: path *i* is one that the packet's class wants, and works, whatever its rank; `None` if any will do.
    fn wanted_links(&self, packet: &PacketBuf) -> Option<u16> {
        let links = &self.service_of(packet)?.links;
        if links.is_empty() {
            return None;
        }
        let wanted = self
            .paths()
            .filter(|path| self.may_carry(path) && links.contains(&path.link().name));
        let wanted = wanted.fold(0, |set, path| set | bit(path.id()));
        (wanted != 0).then_some(wanted)
    }

    /// Whether the other end is to let a packet go in the order of its flow.
    pub(super) fn is_ordered(&self, packet: &PacketBuf) -> bool {
        let service = self.service_of(packet);
        self.profile.in_order && service.is_none_or(|service| service.is_ordered)
    }

    fn service_of(&self, packet: &PacketBuf) -> Option<&Service> {
        self.lanes.classifier.service(packet.mark()?.found.id)
    }

    /// Copies of a packet were sent.
    pub(super) fn charge_copies(&mut self, copies: u32, numbered: &Numbered) {
        let Some(mark) = numbered.packet.mark().filter(|mark| mark.due.is_some()) else {
            return;
        };
        for _ in 0..copies {
            self.lanes
                .classifier
                .on_copied(mark.found.id, numbered.packet.len());
        }
    }
}

/// A path in a set; ids are below [`PathId::MAX`].
pub(super) fn bit(id: PathId) -> u16 {
    1_u16.checked_shl(id.0.into()).unwrap_or(0)
}

/// How far beyond its pace a path may be used.
const MOST_DEBT: Duration = Duration::from_millis(5);
