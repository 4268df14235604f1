//! Acknowledgements that take the long way round.
//!
//! *Problem.* A flow begins on the quickest path. When it grows it spreads to later ones, or moves there, and its round
//! trip grows at once. Senders that look out for that (HyStart, RFC 9406; CUBIC in Linux) take it for a full queue and end
//! their slow start, far below what the paths carry.
//!
//! *Algorithm.* While a flow is young, what is sent of it on a quick path asks for its acknowledgement on the latest path
//! that the flow would take if it grew ([`crate::sched::Scheduler::detour`]). What goes quickly one way comes late the
//! other, so the round trip is the same from the first packet on: the sum of one way of each. Data are not delayed. Own
//! rule.
//!
//! Here: what the other end has asked for, by conversation. Bounded: the oldest gives way.

use super::{Shared, Tunnel};
use crate::{
    ids::PathId,
    packet::PacketBuf,
    path::{Path, sender::Numbered},
    time::Instant,
};

/// Where acknowledgements are wanted.
#[derive(Debug, Default)]
pub(super) struct Detours {
    wanted: Vec<Wanted>,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    conversation: u64,
    /// When last asked for.
    at: Instant,
    /// What the newest packet that was delivered asks for.
    path: Option<PathId>,
}

impl Detours {
    /// Whether none is wanted.
    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Takes note of a packet that is delivered.
    fn on_delivered(&mut self, now: Instant, packet: &PacketBuf) {
        let path = packet.detour();
        if path.is_none() && self.wanted.is_empty() {
            return;
        }
        let Ok(view) = packet.view() else {
            return;
        };
        if view.protocol() != Some(TCP) || view.is_pure_ack() {
            return;
        }
        self.wanted
            .retain(|wanted| now.since(wanted.at) < FORGOTTEN_AFTER);
        let conversation = view.conversation_hash();
        let mut known = self.wanted.iter_mut();
        let known = known.find(|known| known.conversation == conversation);
        match (known, path) {
            (Some(known), Some(_)) => (known.at, known.path) = (now, path),
            (Some(known), None) => known.path = None,
            (None, Some(_)) => {
                if self.wanted.len() == MOST {
                    self.wanted.remove(0);
                }
                self.wanted.push(Wanted {
                    conversation,
                    at: now,
                    path,
                });
            }
            (None, None) => {}
        }
    }

    /// Where the acknowledgements of a conversation are wanted.
    pub(super) fn of(&self, now: Instant, conversation: u64) -> Option<PathId> {
        let mut wanted = self.wanted.iter();
        let wanted = wanted.find(|wanted| wanted.conversation == conversation)?;
        wanted
            .path
            .filter(|_| now.since(wanted.at) < FORGOTTEN_AFTER)
    }
}

impl Detours {
    /// The same of the conversation of `packet`.
    pub(super) fn of_packet(&self, now: Instant, packet: &PacketBuf) -> Option<PathId> {
        if self.wanted.is_empty() {
            return None;
        }
        let view = packet.view().ok()?;
        self.of(now, view.conversation_hash())
    }
}

impl Tunnel {
    /// Takes note of what is delivered beyond the first `before` packets.
    pub(super) fn on_delivered(&mut self, now: Instant, before: usize, shared: &Shared<'_>) {
        for packet in shared.delivered.range(before.min(shared.delivered.len())..) {
            self.detours.on_delivered(now, packet);
        }
    }

    /// The place among the views of the path a packet is wanted on, if that works. Its pace is hardly an obstacle: what
    /// goes this way is short, and one that does not would show the shorter round trip.
    pub(super) fn detour_of(&self, now: Instant, numbered: &Numbered) -> Option<usize> {
        let wanted = numbered.detour?;
        let works = |path: &Path| {
            !path.is_blocked && path.route.is_some() && path.pacer.debt(now) < MOST_DEBT
        };
        self.path(wanted).filter(|path| works(path))?;
        let is_it = |view: &crate::sched::PathView| view.id == wanted && view.usable;
        self.views.iter().position(is_it)
    }
}

/// Nothing came of a conversation for so long: acknowledgements go anywhere.
const FORGOTTEN_AFTER: core::time::Duration = core::time::Duration::from_secs(2);
const TCP: u8 = 6;
/// How far beyond its pace a path may be used.
const MOST_DEBT: core::time::Duration = core::time::Duration::from_millis(50);
/// Most conversations.
const MOST: usize = 64;
