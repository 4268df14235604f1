//! One path: the estimates of its sending direction, the pacing rate derived from them, and the state of its link.
//!
//! A path is a link of the client and the route over it to the other end. [`Path`] owns its parts and passes each
//! event to them in a fixed order. The owner of a path reports events, one method for each kind, and reads the parts:
//!
//! | event | method | file |
//! | --- | --- | --- |
//! | a report, an answer, a train result arrives | [`Path::on_report`], [`Path::on_pong`], [`Path::on_train_result`] | `path/pipeline.rs` |
//! | the path MTU fell, the path became slow, or its network was used before | [`Path::take_narrowed`], [`Path::collapse`], [`Path::recall`] | `path/pipeline.rs` |
//! | a datagram leaves | [`Path::on_sent`], [`Path::on_data_sent`], [`Path::write_control`] | `path/outgoing.rs` |
//! | a datagram arrives | [`Path::on_authentic`], [`Path::on_data`], [`Path::on_control`] | `path/incoming.rs` |
//! | the user, the peer or the host changes the link | [`Path::configure`], [`Path::describe`], [`Path::set_route`] | `path/setup.rs` |
//!
//! Every method that changes an estimate or a limit also recomputes the pacing rate, as the role and the profile of
//! this end require.

use core::{net::IpAddr, time::Duration};

use crate::{
    ids::PathId,
    profile::{Mechanism, Profile},
    role::Role,
    time::Instant,
    trace::ControlState,
    transmit::Route,
    units::{Bitrate, Bytes},
};

pub mod address;
pub mod control;
pub mod delay;
pub mod estimators;
pub mod health;
pub mod holes;
mod incoming;
#[cfg(test)]
mod line;
pub mod link;
pub mod loss;
pub mod memory;
pub mod model;
pub mod mtu;
pub mod on_wire;
mod outgoing;
pub mod pacer;
mod pipeline;
pub mod probes;
pub mod radio;
pub mod rate;
pub mod receiver;
pub mod report_age;
pub mod rtt;
pub mod sender;
mod setup;
pub mod tail;
pub mod train;
pub(crate) mod window;

pub(crate) use outgoing::ANNOUNCE_AGAIN;
pub use pipeline::{Pong, ReportOutcome};
pub(crate) use setup::Former;

/// One path: a link of the client, and the route over it to the other end.
#[derive(Debug)]
pub struct Path {
    id: PathId,
    /// The role of this end.
    role: Role,
    /// Mechanisms that this end uses for its packets besides path selection.
    profile: Profile,
    link: link::Link,
    announced: link::Announced,
    route: Option<Route>,
    /// Whether the remote address is proven to be the peer's.
    address: address::Address,
    /// Whether the send buffer of the local socket is full.
    is_blocked: bool,
    health: health::Health,
    rtt: rtt::Rtt,
    model: model::Model,
    control: control::Controller,
    train_sender: train::TrainSender,
    train_receiver: train::TrainReceiver,
    tail: tail::Tail,
    /// When a packet last waited for the pacer.
    limited_at: Option<Instant>,
    pacer: pacer::Pacer,
    report_age: report_age::ReportAge,
    sender: sender::Sender,
    receiver: receiver::Receiver,
    probes: probes::Probes,
    /// Version of the link description to acknowledge.
    link_ack: Option<u32>,
    /// The health state last reported to the host.
    told: health::State,
    /// The last message of the other end that its interface under this path went down.
    peer_down: Option<PeerDown>,
    /// Highest data and control counters received. The source address of the newest datagram becomes the remote
    /// address.
    newest: [Option<u64>; 2],
    /// The remote address last reported to the host, and when.
    found: Option<(IpAddr, Instant)>,
    /// Number of the first data datagram that was sent after the path last woke up ([`radio`]).
    awake_from: u64,
    /// Loss floor remembered from an earlier use of the network, in parts per million.
    remembered_loss_ppm: u32,
    mtu: mtu::PathMtu,
    /// The path MTU last reported to the host.
    told_mtu: Option<usize>,
}

/// The message of the other end that its interface went down. Answers to earlier datagrams are no evidence that the path
/// works.
#[derive(Clone, Copy, Debug)]
struct PeerDown {
    /// When the message arrived.
    at: Instant,
    /// Counter of the first data datagram sent after the message.
    next_data: u64,
}

impl Path {
    /// Creates a path without samples. `role`: the role of this end.
    ///
    /// A client paces the path from the start. A gateway paces it once it has an RTT sample or a description of the
    /// link.
    #[must_use]
    pub fn new(now: Instant, id: PathId, link: link::Link, role: Role, profile: Profile) -> Self {
        let mut path = Self {
            id,
            role,
            profile,
            link,
            announced: link::Announced::new(now),
            route: None,
            address: match role {
                Role::Client => address::Address::trusted(),
                Role::Gateway => address::Address::unknown(),
            },
            is_blocked: false,
            health: health::Health::new(now),
            rtt: rtt::Rtt::new(),
            model: model::Model::new(profile.mechanisms),
            control: control::Controller::new(profile.mechanisms),
            train_sender: train::TrainSender::default(),
            train_receiver: train::TrainReceiver::default(),
            tail: tail::Tail::default(),
            limited_at: None,
            pacer: pacer::Pacer::new(Bytes::new(1500)),
            report_age: report_age::ReportAge::default(),
            sender: sender::Sender::default(),
            receiver: receiver::Receiver::default(),
            probes: probes::Probes::default(),
            link_ack: None,
            peer_down: None,
            told: health::State::Probing,
            newest: [None; 2],
            found: None,
            awake_from: 0,
            remembered_loss_ppm: 0,
            mtu: mtu::PathMtu::new(),
            told_mtu: None,
        };
        if role == Role::Client {
            path.pace(now);
        }
        path
    }

    /// The path's number.
    #[must_use]
    pub const fn id(&self) -> PathId {
        self.id
    }

    #[cfg(test)]
    pub(crate) const fn announced_version(&self) -> u32 {
        self.announced.version
    }

    #[cfg(test)]
    pub(crate) const fn owed_link_ack(&self) -> Option<u32> {
        self.link_ack
    }

    /// The user's settings of the link.
    #[must_use]
    pub const fn link(&self) -> &link::Link {
        &self.link
    }

    /// Route of the path's datagrams; `None` while the link has no route.
    #[must_use]
    pub const fn route(&self) -> Option<Route> {
        self.route
    }

    /// Health of the path, which says whether the path works.
    #[must_use]
    pub const fn health(&self) -> &health::Health {
        &self.health
    }

    /// Whether the path works and has a route whose remote address is proven to be the peer's.
    #[must_use]
    pub fn is_working(&self) -> bool {
        self.health.is_usable() && self.route.is_some() && self.address.is_proven()
    }

    /// Validation state of the path's remote address: whether the address is proven to be the peer's own.
    #[must_use]
    pub const fn address(&self) -> &address::Address {
        &self.address
    }

    /// See [`address`](Self::address).
    pub const fn address_mut(&mut self) -> &mut address::Address {
        &mut self.address
    }

    /// Whether the send buffer of the local socket is full.
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether the socket has free buffer space and the pacer allows a datagram now.
    #[must_use]
    pub fn can_send(&self, now: Instant) -> bool {
        !self.is_blocked && self.pacer.can_send(now)
    }

    /// Round-trip time, measured with probes that go and return on the path.
    #[must_use]
    pub const fn rtt(&self) -> &rtt::Rtt {
        &self.rtt
    }

    /// The RTT under bulk load: the smoothed RTT, but at least the min RTT and at most twice the min RTT plus 20 ms.
    #[must_use]
    pub fn loaded_rtt(&self) -> Option<Duration> {
        let min = self.rtt.min()?;
        let most = min * 2 + Duration::from_millis(20);
        Some(self.rtt.smoothed().unwrap_or(min).clamp(min, most))
    }

    /// One-way delay in the sending direction, from reports and answers to pings.
    #[must_use]
    pub const fn delay(&self) -> &delay::OneWayDelay {
        &self.model.delay
    }

    /// Delivery rate in the sending direction.
    #[must_use]
    pub const fn rate(&self) -> &rate::DeliveryRate {
        &self.model.rate
    }

    /// Loss in the sending direction.
    #[must_use]
    pub const fn loss(&self) -> &loss::Loss {
        &self.model.loss
    }

    /// The path's own loss in parts per million: the loss floor, or the remembered loss before the floor has been
    /// measured.
    #[must_use]
    pub fn loss_floor_ppm(&self) -> u32 {
        self.model
            .loss
            .floor_ppm()
            .unwrap_or(self.remembered_loss_ppm)
    }

    /// Mean difference of the minimum one-way delays of successive reports.
    #[must_use]
    pub fn jitter(&self) -> Duration {
        self.model.jitter()
    }

    /// Whether the controller is in startup, searching for the path's capacity.
    #[must_use]
    pub fn is_searching(&self) -> bool {
        self.control.is_searching()
    }

    /// The state of the rate controller, for observers.
    #[must_use]
    pub fn control_state(&self) -> ControlState {
        ControlState {
            name: self.control.state_name(),
            is_limited: self.control.is_limited(),
            pace: self.pacer.rate(),
        }
    }

    /// The estimates of the sending direction.
    #[must_use]
    pub const fn model(&self) -> &model::Model {
        &self.model
    }

    /// The rate controller.
    #[must_use]
    pub const fn control(&self) -> &control::Controller {
        &self.control
    }

    /// The pacer, which decides when the next datagram may leave.
    #[must_use]
    pub const fn pacer(&self) -> &pacer::Pacer {
        &self.pacer
    }

    /// The sending side of the path: datagrams in flight.
    #[must_use]
    pub const fn sender(&self) -> &sender::Sender {
        &self.sender
    }

    /// See [`sender`](Self::sender).
    pub const fn sender_mut(&mut self) -> &mut sender::Sender {
        &mut self.sender
    }

    /// The receiving side of the path: arrivals, and the reports on them.
    #[must_use]
    pub const fn receiver(&self) -> &receiver::Receiver {
        &self.receiver
    }

    /// See [`receiver`](Self::receiver).
    pub const fn receiver_mut(&mut self) -> &mut receiver::Receiver {
        &mut self.receiver
    }

    /// The path MTU.
    #[must_use]
    pub const fn mtu(&self) -> &mtu::PathMtu {
        &self.mtu
    }

    /// Returns the conditions of an MTU probe: how long after the answer to the short ping the answer to the padded
    /// ping may arrive, and the path's loss.
    #[must_use]
    pub fn mtu_conditions(&self) -> mtu::Conditions {
        let known = self
            .model
            .loss
            .floor_ppm()
            .max(self.model.loss.smoothed_ppm());
        mtu::Conditions {
            later: PROBE_LATENESS + self.jitter() * 4 + self.rtt.spread(),
            loss_ppm: known.unwrap_or(self.remembered_loss_ppm),
        }
    }

    /// Returns the estimates to remember about the network of this path. `None` if the path was not saturated in the
    /// last 60 s, or if the last saturation was in the first 3 s after a change of network.
    #[must_use]
    pub fn memory(&self, now: Instant) -> Option<memory::PathMemory> {
        let (_, since) = self.found?;
        let filled_at = self.model.saturated_at(now)?;
        Some(memory::PathMemory {
            rate: self
                .model
                .rate
                .max()
                .filter(|_| filled_at >= since + SETTLED)?,
            min_rtt: self.rtt.min()?,
            loss_ppm: self.model.loss.floor_ppm().unwrap_or(0),
        })
    }

    /// The rate remembered from an earlier use of the network; `None` if there is no such rate, or once startup has
    /// contradicted it.
    #[must_use]
    pub fn remembered_rate(&self) -> Option<Bitrate> {
        self.control.remembered(self.rtt.smoothed()?)
    }

    /// The interval of reports about this path: clamp(min RTT / 4, 5 ms, 25 ms), `docs/algorithms.md` section 3.1.
    #[must_use]
    pub fn feedback_interval(&self) -> Duration {
        let quarter = self.rtt.min().map_or(Duration::ZERO, |rtt| rtt / 4);
        quarter.clamp(Duration::from_millis(5), Duration::from_millis(25))
    }

    /// Amount by which the newest one-way delay exceeds its minimum.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.model.delay.queue_delay()
    }

    /// Queueing delay of a datagram sent now: the standing queue of the last report minus the time since that report.
    #[must_use]
    pub fn queue_delay(&self, now: Instant) -> Duration {
        self.model.queue.remaining(now)
    }

    /// The likely capacity: the maximum delivery rate, multiplied by 1.25 while samples are application-limited, so
    /// that a path that is never saturated is not considered slow.
    #[must_use]
    pub fn likely_rate(&self) -> Option<Bitrate> {
        Some(self.model.capacity()?.high)
    }

    /// When the oldest datagram in flight becomes overdue; at that time the path is considered to have become slow.
    /// This time is the sum of the sending time, the usual report age, and the transmission time of ten full packets
    /// (at least 50 ms, at most 200 ms).
    #[must_use]
    pub fn overdue_at(&self) -> Option<Instant> {
        let (_, oldest_at) = self.sender.oldest_under_way()?;
        let least = self.rtt.min()? + self.feedback_interval() * 3 + self.jitter() * 4;
        let usual = if self.profile.has(Mechanism::ReportAge) {
            self.report_age.usual().clamp(least, least + MOST_JITTER)
        } else {
            least
        };
        let rate = self.model.rate.max().unwrap_or_default();
        let queue = OVERDUE.max((OVERDUE_BYTES / rate).min(OVERDUE * 4));
        Some(oldest_at + usual + queue)
    }

    /// The path's next deadline: a health transition, a probe, a report, a tail frame, a packet train, an address
    /// challenge, or a link description.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let announce = self.announced.due.filter(|_| self.role == Role::Client);
        [
            self.health.next_deadline(),
            self.receiver.report_due(),
            self.tail.due(),
            self.train_sender
                .due()
                .filter(|_| self.profile.trains && self.address.is_proven()),
            self.address.challenge_due(),
            self.train_receiver.due(),
            announce,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// Time after a change of network for which the maximum delivery rate may still be that of the previous network.
const SETTLED: Duration = Duration::from_secs(3);
/// Time after the answer to the short ping within which the answer to the padded ping must arrive, on a path without
/// jitter.
const PROBE_LATENESS: Duration = Duration::from_millis(25);
/// Excess over the usual report age from which a datagram counts as delayed by congestion. Longer than the longest
/// standing queue that a user may request.
const OVERDUE: Duration = Duration::from_millis(50);
/// Length of ten full packets.
const OVERDUE_BYTES: Bytes = Bytes::new(15_000);
/// Maximum by which the learned report age may exceed the sum of the min RTT, three feedback intervals and four times
/// the jitter.
const MOST_JITTER: Duration = Duration::from_millis(40);
