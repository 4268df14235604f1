//! Which path a packet takes.
//!
//! A policy is one file under `sched/` with a type that implements [`Scheduler`], and one line of the table `policies!` below, from
//! which everything else follows: [`AnyScheduler`], which dispatches by enum; [`Policy`], which the configuration says and which builds
//! a scheduler; names, keys and lists; the contract suite (`sched/tests.rs`), which runs every policy against the same rules.
//! Policies see paths only through [`PathView`] and keep no packets: the tunnel asks for one decision per packet and acts
//! on it.
//!
//! Another crate implements [`Scheduler`] and runs it in the same engine and simulator without a change here: [`OwnPolicy`],
//! `docs/own-scheduler.md`.

use core::{fmt, time::Duration};

use serde::Deserialize;

use crate::{
    class::Duplicate,
    flows::FlowId,
    ids::PathId,
    profile::Profile,
    time::Instant,
    trace::{Candidate, IdleReason},
    units::{Bitrate, Bytes},
};

use self::registry::policies;

pub use self::{
    adaptive::AdaptiveSettings,
    auto_weight::AutoWeightSettings,
    awi::{AwiSettings, Count, Dwd, Gain, LossSource, Wrr},
    consn::{ConsnSettings, Placement, Variant},
    osia::OsiaSettings,
    own::OwnPolicy,
    settings::SchedulerSettings,
    single::SingleSettings,
    srtt_weighted::{Alpha, SrttWeightedSettings, Weights},
};

mod line;
mod own;
mod pdc;
mod registry;
mod settings;
#[cfg(test)]
mod tests;

policies! {
    "adaptive" => adaptive::Adaptive(AdaptiveSettings<L>),
    "auto-weight" => auto_weight::AutoWeight(AutoWeightSettings),
    "awi" => awi::Awi(AwiSettings<L>),
    "consn" => consn::Consn(ConsnSettings),
    "earliest-arrival" => earliest_arrival::EarliestArrival {},
    "flow" => flow::Flow {},
    "min-rtt" => min_rtt::MinRtt {},
    "osia" => osia::Osia(OsiaSettings),
    "redundant" => redundant::Redundant {},
    "round-robin" => round_robin::RoundRobin {},
    "single" => single::Single(SingleSettings<L>),
    "srtt-weighted" => srtt_weighted::SrttWeighted(SrttWeightedSettings),
    "weighted" => weighted::Weighted {},
}

/// What a policy may know of one path, as of now.
#[derive(Clone, Debug)]
pub struct PathView {
    /// Which path.
    pub id: PathId,
    /// Whether a packet may be sent on it now: healthy, allowed by the user's cost rules, pacer and socket have room.
    /// Implies [`usable`](Self::usable).
    pub ready: bool,
    /// Whether it is healthy and allowed, though perhaps not [`ready`](Self::ready) at this moment.
    pub usable: bool,
    /// The user's rank: lower is filled first. See [`Profile::ranks`].
    pub cost: u8,
    /// The user's weight for proportional policies; at least 1.
    pub weight: u32,
    /// Smoothed round-trip time (RFC 9002 section 5.3); `None` before the first sample.
    pub smoothed_rtt: Option<Duration>,
    /// One-way delay in this direction beyond that of the quickest path; zero before the first sample.
    pub extra_delay: Duration,
    /// Estimated capacity in this direction; `None` before the first sample.
    pub rate: Option<Bitrate>,
    /// How long what is sent now waits in the path's own queue ([`Path::queue_delay`](crate::path::Path::queue_delay)).
    pub queue_delay: Duration,
    /// How much longer than the path's least of late what is sent now takes, by the newest that is known of it: a queue, or a path
    /// that has become longer.
    pub lateness: Duration,
    /// The shortest round trip of late; `None` before the first sample.
    pub least_rtt: Option<Duration>,
    /// How much longer round trips are, with few exceptions.
    pub rtt_spread: Duration,
    /// How much the delay varies from report to report.
    pub jitter: Duration,
    /// Whether what the path carries is still being found out; then [`rate`](Self::rate) is what it has carried so far.
    pub is_searching: bool,
    /// What the path loses by itself, in parts per million.
    pub loss_ppm: u32,
    /// Whether nothing has come back for half as long as makes the path suspect.
    pub is_silent: bool,
    /// Bytes sent and not yet reported received or lost.
    pub in_flight: Bytes,
    /// Bytes that wait at this end for this path: see [`Pick::One`].
    pub staged: Bytes,
}

impl PathView {
    /// A path that is neither [`ready`](Self::ready) nor [`usable`](Self::usable) and of which nothing is known, to build other views of.
    #[must_use]
    pub const fn unmeasured(id: PathId) -> Self {
        Self {
            id,
            ready: false,
            usable: false,
            cost: 0,
            weight: 1,
            smoothed_rtt: None,
            extra_delay: Duration::ZERO,
            rate: None,
            queue_delay: Duration::ZERO,
            lateness: Duration::ZERO,
            least_rtt: None,
            rtt_spread: Duration::ZERO,
            jitter: Duration::ZERO,
            is_searching: false,
            loss_ppm: 0,
            is_silent: false,
            in_flight: Bytes::ZERO,
            staged: Bytes::ZERO,
        }
    }
}

/// What a policy may know of the packet it places.
#[derive(Clone, Copy, Debug)]
pub struct PacketInfo {
    /// Length on the wire in bytes.
    pub len: Bytes,
    /// The flow, and its place in tables of flows.
    pub flow: FlowId,
    /// Whether its loss does no harm, as of a pure acknowledgement.
    pub is_expendable: bool,
    /// Bytes that wait in the tunnel queue behind this packet.
    pub backlog: Bytes,
    /// The bytes of packets among them that are of its flow, or of one that shares its place in the queue; none where it
    /// waits apart from that ([`crate::class::Class`]).
    pub own_backlog: Bytes,
    /// Bytes that leave until the last of those does; none for what is sent again, which leaves first; all that waits where it
    /// is pinned.
    pub to_last: Bytes,
    /// How long the round trips of its flow are made, if they are; else zero.
    pub round_trip: Duration,
    /// Whether the answer may be [`Pick::Behind`].
    pub has_behind: bool,
    /// That it has to be in time; `None` if it has no deadline.
    pub urgency: Option<Urgency>,
}

impl PacketInfo {
    /// A packet of `len` on the wire without deadline, of no flow in particular, with nothing behind it, to build others of.
    #[must_use]
    pub fn of_len(len: Bytes) -> Self {
        Self {
            len,
            flow: FlowId::of_hash(0),
            is_expendable: false,
            backlog: Bytes::ZERO,
            own_backlog: Bytes::ZERO,
            to_last: Bytes::ZERO,
            round_trip: Duration::ZERO,
            has_behind: false,
            urgency: None,
        }
    }
}

/// What a policy may know of the deadline of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Urgency {
    /// In how much time it must have come, beyond what the quickest path takes.
    pub left: Duration,
    /// When to send it twice, as far as that may be paid now.
    pub duplicate: Duplicate,
    /// Whether its flow sends little.
    pub is_small: bool,
}

/// A policy's decision for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Send nothing now: a better path will soon have room. Ask again after the next input or pacer release.
    Wait,
    /// Send on `paths[index]`. If that is usable and not ready, which only a policy names that [looks
    /// ahead](Profile::look_ahead): keep for it, to be sent once it is, after what is kept for it already and before
    /// anything new; the next packet is asked for at once.
    One(usize),
    /// Send a copy on every `paths[i]` whose bit `i` is set; at least one is.
    Copies(u16),
    /// Send on `paths[index]`, and before that a copy on every `paths[i]` whose bit `i` is set.
    Shadowed {
        /// The packet's path.
        index: usize,
        /// The copies' paths, not the packet's.
        copies: u16,
    },
    /// Send on `paths[index]` what comes so much later of the flow, or its last: it arrives in order. The packet itself waits.
    Behind {
        /// The later packet's path.
        index: usize,
        /// Bytes of the flow before it.
        ahead: Bytes,
    },
}

/// What one report says of one path's losses, since the last report that was not older.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCounts {
    /// How many report intervals it covers: more than one if reports were lost; at least 1.
    pub intervals: u32,
    /// Packets the receiver gave up in that time.
    pub lost_pkts: u64,
    /// Bytes of them, each as long as the mean of the two around its gap.
    pub lost_bytes: u64,
    /// Packets this end has sent on the path between the two reports' arrivals.
    pub sent_pkts: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
}

/// A scheduling policy.
///
/// Only [`pick`](Self::pick) is required. This one sends on each of two paths for 50 ms in turn, and on the other while the turn's
/// path has no room:
///
/// ```
/// use pleach_core::{
///     ids::PathId,
///     sched::{PacketInfo, PathView, Pick, Scheduler},
///     time::Instant,
///     units::Bytes,
/// };
///
/// #[derive(Debug)]
/// struct Alternate;
///
/// impl Scheduler for Alternate {
///     fn pick(&mut self, now: Instant, paths: &[PathView], _packet: &PacketInfo) -> Pick {
///         let turn = (now.since(Instant::ZERO).as_millis() / 50 % 2) as usize;
///         let is_ready = |index: &usize| paths.get(*index).is_some_and(|path| path.ready);
///         let index = [turn, 1 - turn].into_iter().find(is_ready);
///         index.map_or(Pick::Wait, Pick::One)
///     }
/// }
///
/// let mut paths = [0, 1].map(|id| PathView {
///     ready: true,
///     usable: true,
///     ..PathView::unmeasured(PathId(id))
/// });
/// let packet = PacketInfo::of_len(Bytes::new(1_400));
/// let mut pick = |millis, paths: &_| Alternate.pick(Instant::from_millis(millis), paths, &packet);
/// assert_eq!([0, 49, 50, 100].map(|at| pick(at, &paths)), [0, 0, 1, 0].map(Pick::One));
/// paths[0].ready = false;
/// assert_eq!(pick(0, &paths), Pick::One(1));
/// ```
///
/// [`SchedulerSettings::own`] takes it into an endpoint or the simulator.
pub trait Scheduler: fmt::Debug + Send {
    /// Chooses for one packet, and counts it as sent unless the answer is [`Pick::Wait`].
    ///
    /// `now`: never decreases. `paths`: one view per known path, sorted by id, at most [`PathId::MAX`], ids below
    /// that, at least one [`ready`](PathView::ready). The set may change from call to call. The answer names ready
    /// paths only (but see [`Pick::One`]), and is [`Pick::Wait`] only where the policy's doc says so, or when against the rule no path is
    /// ready. Ties break towards the lower id unless the policy's doc says otherwise. The same calls give the same
    /// answers. Cost: O(paths), no allocation.
    fn pick(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick;

    /// What this end does for the policy's packets beside choosing their paths, unless the user says otherwise.
    fn profile(&self) -> Profile {
        Profile::default()
    }

    /// Says what is in force: the policy's own [`profile`](Self::profile) with the user's changes. Comes once, before anything
    /// else.
    fn on_profile(&mut self, profile: &Profile) {
        let _ = profile;
    }

    /// Asks the policy to keep the candidates of each decision from now on.
    fn observe(&mut self) {}

    /// The paths as the policy judged them for its last decision, if it keeps that ([`observe`](Self::observe)).
    fn candidates(&self) -> &[Candidate] {
        &[]
    }

    /// Why the policy would not use `path`, one of `paths` that is usable, for a large flow now; `None` if it would.
    fn exclusion(&self, paths: &[PathView], path: &PathView) -> Option<IdleReason> {
        let _ = (paths, path);
        None
    }

    /// How long the round trips of a flow that begins now are to be made: as over all paths it would take once it has grown, jitter
    /// included, or less where that would cost it much; zero: not known, or no matter.
    fn round_trip(&self, paths: &[PathView]) -> Duration {
        let _ = paths;
        Duration::ZERO
    }

    /// How long the packets of a flow have to wait before it takes the latest of the paths it may; zero if for none.
    fn longest_wait(&self, paths: &[PathView]) -> Duration {
        let _ = paths;
        Duration::ZERO
    }

    /// Takes a report of the losses on `path`. Comes only if its [`Profile::reception`] asks for reports.
    fn on_loss_report(&mut self, now: Instant, path: PathId, counts: &LossCounts) {
        let _ = (now, path, counts);
    }

    /// Takes note of the paths, though there is no packet: now and then, so that [`weight`](Self::weight) is true while
    /// nothing is sent. `paths` as in [`pick`](Self::pick), but perhaps none is ready.
    fn on_paths(&mut self, paths: &[PathView]) {
        let _ = paths;
    }

    /// The weight the policy gives a path at this moment; `None` if it has none of its own, or has not seen the path.
    fn weight(&self, id: PathId) -> Option<u32> {
        let _ = id;
        None
    }
}

impl AnyScheduler {
    /// The policy that wants blocks of packets instead of one after the other.
    pub fn blocks(&mut self) -> Option<&mut Consn> {
        if let Self::Consn(policy) = self {
            return Some(policy);
        }
        None
    }
}

impl Scheduler for AnyScheduler {
    fn pick(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        self.pick_by_policy(now, paths, packet)
    }

    fn profile(&self) -> Profile {
        self.inner().profile()
    }

    fn on_profile(&mut self, profile: &Profile) {
        self.inner_mut().on_profile(profile);
    }

    fn observe(&mut self) {
        self.inner_mut().observe();
    }

    fn candidates(&self) -> &[Candidate] {
        self.inner().candidates()
    }

    fn exclusion(&self, paths: &[PathView], path: &PathView) -> Option<IdleReason> {
        self.inner().exclusion(paths, path)
    }

    fn round_trip(&self, paths: &[PathView]) -> Duration {
        self.inner().round_trip(paths)
    }

    fn longest_wait(&self, paths: &[PathView]) -> Duration {
        self.inner().longest_wait(paths)
    }

    fn on_loss_report(&mut self, now: Instant, path: PathId, counts: &LossCounts) {
        self.inner_mut().on_loss_report(now, path, counts);
    }

    fn on_paths(&mut self, paths: &[PathView]) {
        self.inner_mut().on_paths(paths);
    }

    fn weight(&self, id: PathId) -> Option<u32> {
        self.inner().weight(id)
    }
}

/// The place of `path` in a policy's own table. Ids are below [`PathId::MAX`] by contract; the remainder makes a
/// broken contract a wrong choice instead of a panic.
fn slot(path: &PathView) -> usize {
    path.id.index() % PathId::MAX
}

/// Sends on `paths[index]` if that is ready, waits if it is not or if there is none.
fn only(paths: &[PathView], index: Option<usize>) -> Pick {
    match index {
        Some(index) if paths[index].ready => Pick::One(index),
        Some(_) | None => Pick::Wait,
    }
}
