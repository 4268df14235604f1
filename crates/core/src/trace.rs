//! Decisions of the engine as typed events, for logs and tests.
//!
//! An [`Observer`] gets each event as it happens: why a packet took its path, how a path's health and rate controller
//! change, which losses count as congestion, and which packets are retransmitted. Without an observer an event costs
//! one comparison with a null pointer, and the policy stores no candidates.
//!
//! The engine also knows at any time why a path is idle ([`IdleReason`]); `status` shows it.

use core::fmt;

use crate::{
    ids::PathId,
    path::health::State,
    time::Instant,
    units::{Bitrate, Bytes},
};

mod idle;

pub use idle::IdleReason;

/// Receives the events of one tunnel.
pub trait Observer: fmt::Debug + Send {
    /// Handles an event that happened at `now`; `now` never decreases. Called on the packet path: it must not block.
    fn on_event(&mut self, now: Instant, event: &Event<'_>);
}

/// Creates observers for the tunnels of a program.
pub trait Observers: fmt::Debug + Send + Sync {
    /// Creates an observer for the tunnel to the peer called `peer`.
    fn observer(&self, peer: &str) -> Box<dyn Observer>;
}

/// An event of the engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// The health of a path changed.
    Health {
        /// The path.
        path: PathId,
        /// The path's health before the change.
        from: State,
        /// The path's health after the change.
        to: State,
    },
    /// The policy has decided on a packet.
    Pick(PickEvent<'a>),
    /// The rate controller of a path changed its state.
    RateControl {
        /// The path.
        path: PathId,
        /// The state before the change.
        from: &'static str,
        /// The state after the change.
        to: &'static str,
        /// The pacing rate after the change; `None` if the path is not paced.
        pace: Option<Bitrate>,
    },
    /// The rate controller of a path took losses for congestion and limits the pacing rate, or it ended this limit.
    Congestion {
        /// The path.
        path: PathId,
        /// Whether the pacing rate is limited from now on.
        is_limited: bool,
        /// The pacing rate after the change; `None` if the path is not paced.
        pace: Option<Bitrate>,
    },
    /// Packets are to be retransmitted.
    Repair {
        /// The path on which they were sent before.
        path: PathId,
        /// The reason for the retransmission.
        cause: RepairCause,
        /// The number of packets.
        packets: usize,
    },
}

/// One decision of the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PickEvent<'a> {
    /// Keyed hash of the flow.
    pub flow: u64,
    /// Length of the packet on the wire.
    pub len: Bytes,
    /// Bytes that wait behind the packet.
    pub backlog: Bytes,
    /// The paths with the policy's verdicts; empty if the policy does not record them.
    pub candidates: &'a [Candidate],
    /// The decision.
    pub choice: Choice,
}

/// A path with the policy's verdict on it for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The path.
    pub path: PathId,
    /// When the packet is predicted to arrive on the path, minus the one-way delay of the quickest path. `None` if the
    /// path was not considered.
    pub arrival: Option<Instant>,
    /// The policy's verdict.
    pub verdict: Verdict,
}

/// A policy's verdict on a path for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The path has no room now, but waiting for room could pay.
    Awaited,
    /// The path has no room now, and the wait for room would be too long.
    Busy,
    /// The path is not suitable for this packet.
    Excluded(IdleReason),
    /// The path may take the packet now.
    Ready,
    /// The path may now take only a later packet of the flow.
    ReadyBehind,
}

/// The decision of a policy about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A later packet of the flow is sent on the path.
    Behind(PathId),
    /// Copies are sent on all paths whose bits are set.
    Copies(u16),
    /// The packet is sent on the path.
    One(PathId),
    /// The packet waits for a better path.
    Wait,
}

/// Why packets are retransmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairCause {
    /// The receiver NACKed the packets.
    Nacked,
    /// The packets have been in flight for much longer than usual.
    Overdue,
    /// The path of the packets is silent.
    Silent,
}

/// What the observer is told of a path's rate controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlState {
    /// The name of the state.
    pub name: &'static str,
    /// Whether congestion detected by loss limits the pacing rate.
    pub is_limited: bool,
    /// The pacing rate; `None` if the path is not paced.
    pub pace: Option<Bitrate>,
}

/// The observer of a tunnel, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    observer: Option<Box<dyn Observer>>,
    /// For each path, the state of the rate controller that the observer was last informed of; empty without an
    /// observer.
    told: Vec<Option<ControlState>>,
}

impl Tracer {
    pub(crate) fn set(&mut self, observer: Box<dyn Observer>) {
        self.observer = Some(observer);
        self.told.resize(PathId::MAX, None);
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.observer.is_some()
    }

    /// Passes the result of `event` to the observer, if there is one.
    pub(crate) fn tell<'a>(&mut self, now: Instant, event: impl FnOnce() -> Event<'a>) {
        if let Some(observer) = &mut self.observer {
            observer.on_event(now, &event());
        }
    }

    /// Informs the observer if the state of the rate controller of `path` differs from the last call.
    pub(crate) fn on_rate_control(&mut self, now: Instant, path: PathId, is: ControlState) {
        let Some(was) = self
            .told
            .get_mut(path.index())
            .and_then(|told| told.replace(is))
        else {
            return;
        };
        let pace = is.pace;
        if was.name != is.name {
            let (from, to) = (was.name, is.name);
            self.tell(now, || Event::RateControl {
                path,
                from,
                to,
                pace,
            });
        }
        if was.is_limited != is.is_limited {
            let is_limited = is.is_limited;
            self.tell(now, || Event::Congestion {
                path,
                is_limited,
                pace,
            });
        }
    }
}
