//! Which path a packet takes.
//!
//! A policy is one file under `sched/` that implements [`Scheduler`]; [`AnyScheduler`] dispatches by enum, so that the
//! packet path has no virtual call. Policies see paths only through [`PathView`] and keep no packets: the tunnel asks
//! for one decision per packet and acts on it.

use core::time::Duration;

use crate::{
    ids::PathId,
    time::Instant,
    units::{Bitrate, Bytes},
};

/// What a policy may know of one path, as of now.
#[derive(Clone, Debug)]
pub struct PathView {
    /// Which path.
    pub id: PathId,
    /// Whether a packet may be sent on it now: healthy, allowed by the user's cost rules, pacer and socket have room.
    pub ready: bool,
    /// Whether it is healthy and allowed, though perhaps not [`ready`](Self::ready) at this moment.
    pub usable: bool,
    /// The user's rank: lower is filled first.
    pub cost: u8,
    /// The user's weight for proportional policies; at least 1.
    pub weight: u32,
    /// Smoothed round-trip time (RFC 9002 section 5.3); `None` before the first sample.
    pub smoothed_rtt: Option<Duration>,
    /// One-way delay in this direction beyond that of the quickest path; zero before the first sample.
    pub extra_delay: Duration,
    /// Estimated capacity in this direction; `None` before the first sample.
    pub rate: Option<Bitrate>,
    /// Bytes sent and not yet reported received or lost.
    pub in_flight: Bytes,
}

/// What a policy may know of the packet it places.
#[derive(Clone, Copy, Debug)]
pub struct PacketInfo {
    /// Length on the wire in bytes.
    pub len: Bytes,
    /// Keyed hash of the flow.
    pub flow_hash: u64,
}

/// A policy's decision for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Send nothing now: a better path will soon have room. Ask again after the next input or pacer release.
    Wait,
    /// Send on `paths[index]`.
    One(usize),
    /// Send a copy on every `paths[i]` whose bit `i` is set; at least one is.
    Copies(u16),
}

/// A scheduling policy.
pub trait Scheduler {
    /// Chooses for one packet.
    ///
    /// `paths`: one view per known path, sorted by id, at most [`PathId::MAX`], at least one
    /// [`ready`](PathView::ready). The answer names ready paths only. Ties break towards the lower id unless the
    /// policy's doc says otherwise. Cost: O(paths), no allocation.
    fn pick(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick;
}
