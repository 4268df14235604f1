//! Policies that choose the path of each packet.
//!
//! A policy is one file under `sched/` with a type that implements [`Scheduler`], and one line of the table
//! `policies!` below. The table generates everything else: [`AnyScheduler`], which dispatches by enum; [`Policy`],
//! which is read from the configuration and builds a scheduler; the names, keys and lists; and an entry in the
//! contract suite (`sched/tests.rs`), which checks every policy against the same rules. Policies see paths only
//! through [`PathView`] and store no packets: the tunnel asks for one decision per packet and carries it out.
//!
//! Another crate can implement [`Scheduler`] and use it in the same engine and simulator without a change here: see
//! [`OwnPolicy`] and `docs/own-scheduler.md`.

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
    pdc::BLOCK,
    settings::SchedulerSettings,
    single::SingleSettings,
    srtt::{Alpha, Weights},
    srtt_weighted::SrttWeightedSettings,
};

mod line;
mod own;
mod pdc;
mod registry;
mod runs;
mod settings;
mod srtt;
#[cfg(test)]
mod tests;

policies! {
    "adaptive" => adaptive::Adaptive(AdaptiveSettings<L>),
    "auto-weight" => auto_weight::AutoWeight(AutoWeightSettings),
    "awi" => awi::Awi(AwiSettings<L>),
    "consn" => consn::Consn(ConsnSettings),
    "cwnd-aware" => cwnd_aware::CwndAware {},
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

/// The state of one path at the time of a decision, as a policy sees it.
#[derive(Clone, Debug)]
pub struct PathView {
    /// The path's id.
    pub id: PathId,
    /// Whether a packet may be sent on the path now: the path is healthy and allowed by the user's cost rules, and
    /// its pacer and socket have room. Implies [`usable`](Self::usable).
    pub ready: bool,
    /// Whether the path is healthy and allowed, even if it is not [`ready`](Self::ready) at this moment.
    pub usable: bool,
    /// The user's rank of the path: paths of a lower rank are filled first. See [`Profile::ranks`].
    pub cost: u8,
    /// The user's weight for proportional policies; at least 1.
    pub weight: u32,
    /// Smoothed round-trip time (RFC 9002 section 5.3); `None` before the first sample.
    pub smoothed_rtt: Option<Duration>,
    /// One-way delay in this direction minus the one-way delay of the *quickest* path, which is the path with the
    /// shortest one-way delay; zero before the first sample.
    pub extra_delay: Duration,
    /// Estimated capacity in this direction; `None` before the first sample.
    pub rate: Option<Bitrate>,
    /// How long a packet sent now waits in the path's queue ([`Path::queue_delay`](crate::path::Path::queue_delay)).
    pub queue_delay: Duration,
    /// The latest known one-way delay minus the path's recent minimum: a queue, or a longer route.
    pub lateness: Duration,
    /// The recent min RTT; `None` before the first sample.
    pub least_rtt: Option<Duration>,
    /// Upper estimate of the excess of RTTs over the min RTT; almost no RTT exceeds it.
    pub rtt_spread: Duration,
    /// Mean change of the one-way delay from one report to the next.
    pub jitter: Duration,
    /// Whether the search for the capacity is still in progress; then [`rate`](Self::rate) is the highest rate reached
    /// so far.
    pub is_searching: bool,
    /// Random loss of the path, in parts per million.
    pub loss_ppm: u32,
    /// Whether a datagram is unacknowledged and nothing has been acknowledged for more than half of the path's suspect
    /// timeout (`path/health.rs`).
    pub is_silent: bool,
    /// Bytes in flight: sent and not yet reported as received or lost.
    pub in_flight: Bytes,
    /// Bytes staged at this end for this path: see [`Pick::One`].
    pub staged: Bytes,
}

impl PathView {
    /// A view of an unmeasured path that is neither [`ready`](Self::ready) nor [`usable`](Self::usable), as a base for
    /// other views.
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

/// The packet to place, as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct PacketInfo {
    /// Length on the wire in bytes.
    pub len: Bytes,
    /// The flow, and its index in the tables of flows.
    pub flow: FlowId,
    /// Whether the packet's loss does no harm, as for a pure ACK.
    pub is_expendable: bool,
    /// Bytes that wait in the tunnel queue behind this packet.
    pub backlog: Bytes,
    /// The part of [`backlog`](Self::backlog) that belongs to the packet's flow, or to a flow with the same index;
    /// zero if the flow's packets wait outside the tunnel queue ([`crate::class::Class`]).
    pub own_backlog: Bytes,
    /// Bytes that leave the queue until the last packet of the packet's flow leaves it. For a retransmission, which is
    /// sent first, this is zero. For a packet that is pinned to certain links, it is the total of the packet's lane, a
    /// queue separate from the tunnel queue.
    pub to_last: Bytes,
    /// The RTT to which ACK pacing extends the RTTs of the packet's flow; zero if it does not extend them.
    pub round_trip: Duration,
    /// Whether the policy may return [`Pick::Behind`] for this packet.
    pub has_behind: bool,
    /// The packet's deadline; `None` if it has none.
    pub urgency: Option<Urgency>,
}

impl PacketInfo {
    /// A packet of `len` bytes on the wire, without deadline, flow or backlog, as a base for other descriptions.
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

/// The deadline of a packet, as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Urgency {
    /// The time left until the deadline minus the one-way delay of the quickest path.
    pub left: Duration,
    /// Whether to send the packet twice, within the present budget.
    pub duplicate: Duplicate,
    /// Whether the packet's flow sends less than 2 Mbit/s.
    pub is_small: bool,
}

/// A policy's decision for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Send nothing now: a better path will soon have room. Ask again after the next input or pacer release.
    Wait,
    /// Send on `paths[index]`. A policy that [looks ahead](Profile::look_ahead) may name a path that is usable and not
    /// ready. The packet is then staged until the path is ready, and is sent after the packets already staged there
    /// and before any new packet. The policy is asked for the next packet at once.
    One(usize),
    /// Send a copy on every `paths[i]` whose bit `i` is set; at least one bit is set.
    Copies(u16),
    /// Send a copy on every `paths[i]` whose bit `i` is set, then the packet itself on `paths[index]`.
    Shadowed {
        /// The packet's path.
        index: usize,
        /// The paths of the copies, without the packet's path.
        copies: u16,
    },
    /// Send on `paths[index]` a later packet of the same flow, so that it arrives in order: the packet that is
    /// `ahead` bytes behind this one, or the last packet of the flow. This packet itself waits.
    Behind {
        /// The later packet's path.
        index: usize,
        /// Bytes of the flow before the later packet.
        ahead: Bytes,
    },
}

/// The losses of one path since the previous report, according to one loss report. Reports that arrive out of order
/// are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCounts {
    /// The number of report intervals covered: at least 1, and more if reports were lost.
    pub intervals: u32,
    /// Packets that the receiver considered lost in these intervals.
    pub lost_pkts: u64,
    /// Bytes of the lost packets; each is counted with the mean length of the two packets around its gap.
    pub lost_bytes: u64,
    /// Packets that this end sent on the path between the arrivals of the two reports.
    pub sent_pkts: u64,
    /// Bytes of the sent packets.
    pub sent_bytes: u64,
}

/// A scheduling policy.
///
/// Only [`pick`](Self::pick) is required. The following policy alternates between two paths every 50 ms, and uses the
/// other path while the current one has no room:
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
/// [`SchedulerSettings::own`] passes such a policy to an endpoint or the simulator.
pub trait Scheduler: fmt::Debug + Send {
    /// Chooses the path of one packet, and counts the packet as sent unless the answer is [`Pick::Wait`].
    ///
    /// `now`: never decreases. `paths`: one view per known path, sorted by id, at most [`PathId::MAX`] views, whose ids
    /// are below [`PathId::MAX`]. At least one path is [`ready`](PathView::ready). The set may change from call to
    /// call.
    ///
    /// The answer names ready paths only (but see [`Pick::One`]). It is [`Pick::Wait`] only if the policy's
    /// documentation says so, or if no path is ready although the contract requires one. If paths are equal, the
    /// lower id wins unless the policy's documentation says otherwise. The same calls give the same answers. Cost:
    /// O(paths), no allocation.
    fn pick(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick;

    /// Returns the functions that this end applies to the policy's packets besides path selection, unless the user's
    /// settings differ.
    fn profile(&self) -> Profile {
        Profile::default()
    }

    /// Announces the profile in force: the policy's own [`profile`](Self::profile) with the user's changes. Called
    /// once, before any other method.
    fn on_profile(&mut self, profile: &Profile) {
        let _ = profile;
    }

    /// Asks the policy to record the candidates of each decision from now on.
    fn observe(&mut self) {}

    /// The candidates of the last decision, if the policy records them ([`observe`](Self::observe)).
    fn candidates(&self) -> &[Candidate] {
        &[]
    }

    /// Returns why the policy would not use `path`, a usable path among `paths`, for a large flow now; `None` if it
    /// would use the path.
    fn exclusion(&self, paths: &[PathView], path: &PathView) -> Option<IdleReason> {
        let _ = (paths, path);
        None
    }

    /// The RTT to which ACK pacing shall extend the RTTs of a flow that begins now. It is the RTT over all paths that
    /// the flow would use once it has grown, jitter included, or less where such a long RTT would cost the flow much.
    /// Zero if the RTT is unknown or irrelevant.
    fn round_trip(&self, paths: &[PathView]) -> Duration {
        let _ = paths;
        Duration::ZERO
    }

    /// How long packets of a flow must wait in the queue before the flow uses the slowest path that it may use; zero
    /// if no path requires a wait.
    fn longest_wait(&self, paths: &[PathView]) -> Duration {
        let _ = paths;
        Duration::ZERO
    }

    /// Handles a report of the losses on `path`. Called only if the policy's [`Profile::reception`] asks for reports.
    fn on_loss_report(&mut self, now: Instant, path: PathId, counts: &LossCounts) {
        let _ = (now, path, counts);
    }

    /// Shows the paths to the policy without a packet, from time to time, so that [`weight`](Self::weight) stays
    /// current while nothing is sent. `paths` is as in [`pick`](Self::pick), except that no path may be ready.
    fn on_paths(&mut self, paths: &[PathView]) {
        let _ = paths;
    }

    /// Frees memory of flows, because the tunnel has carried no packets for a minute.
    fn release_memory(&mut self) {}

    /// The weight that the policy gives a path at this moment; `None` if the policy has no weights of its own or has
    /// not seen the path.
    fn weight(&self, id: PathId) -> Option<u32> {
        let _ = id;
        None
    }
}

impl AnyScheduler {
    /// Returns the policy if it works in blocks of packets.
    pub fn blocks(&mut self) -> Option<&mut Consn> {
        if let Self::Consn(policy) = self {
            return Some(policy);
        }
        None
    }

    /// Whether the policy works in blocks of packets.
    pub(crate) const fn works_in_blocks(&self) -> bool {
        matches!(self, Self::Consn(_))
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

    fn release_memory(&mut self) {
        self.inner_mut().release_memory();
    }

    fn weight(&self, id: PathId) -> Option<u32> {
        self.inner().weight(id)
    }
}

/// The index of `path` in a policy's own table. Ids are below [`PathId::MAX`] by contract; the remainder turns a
/// violation of the contract into a wrong choice instead of a panic.
fn slot(path: &PathView) -> usize {
    path.id.index() % PathId::MAX
}

/// Returns `paths[index]` if that path is ready, and [`Pick::Wait`] if it is not ready or `index` is `None`.
fn only(paths: &[PathView], index: Option<usize>) -> Pick {
    match index {
        Some(index) if paths[index].ready => Pick::One(index),
        Some(_) | None => Pick::Wait,
    }
}

/// Capacity assumed of an unmeasured path by policies that do not search for it.
const UNKNOWN_RATE: Bitrate = Bitrate::from_mbps(10);
