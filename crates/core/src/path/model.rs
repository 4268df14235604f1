//! The network model of one path: all estimates of its sending direction.
//!
//! | estimate | from | file |
//! | --- | --- | --- |
//! | one-way delay: minimum, mean, deviation | reports, answers to pings | `delay.rs` |
//! | base delay, standing queue, jitter | reports | `model/queue.rs` |
//! | delivery rate: maximum, latest, smoothed | reports; packet trains before the first sample | `rate.rs`, `train.rs` |
//! | loss: floor, mean, and windows that show congestion | reports and NACKs | `loss.rs`, `model/loss_window.rs` |
//! | cross traffic | queues and losses that persist during a drain | `model/cross.rs` |
//! | bytes sent and delivered in each round | bytes on the wire | `model/round.rs` |
//!
//! The controller ([`super::control`]) reads the model; the model does not know the controller's state.
//!
//! **Noise.** Jitter looks like a queue, and so does a single packet on a slow path. A queue is significant only if
//! it is longer than a [`Level`]: the maximum of a delay, a number of bytes at the path's capacity, and a multiple of
//! the jitter.

use core::time::Duration;

use self::{
    cross::CrossTraffic, estimate::Estimate, loss_window::LossWindow, queue::Queue, round::Rounds,
};
use super::{
    delay::{OneWayDelay, RelativeDelay},
    estimators::Estimators,
    loss::Loss,
    on_wire::OnWire,
    rate::DeliveryRate,
};
use crate::{
    profile::{Mechanism, Mechanisms},
    time::Instant,
    units::{Bitrate, Bytes},
};

pub(super) mod cross;
pub mod estimate;
pub(super) mod loss_window;
pub(super) mod queue;
pub(super) mod round;
mod standing;

/// All estimates of one path's sending direction.
#[derive(Debug)]
pub struct Model {
    mechanisms: Mechanisms,
    pub(super) delay: OneWayDelay,
    pub(super) on_wire: OnWire,
    estimators: Estimators,
    pub(super) rate: DeliveryRate,
    pub(super) loss: Loss,
    pub(super) queue: Queue,
    pub(super) losses: LossWindow,
    pub(super) cross: CrossTraffic,
    pub(super) rounds: Rounds,
    /// When the path, not the application, last limited the rate.
    saturated_at: Option<Instant>,
}

/// The measurements of one report.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// Minimum one-way delay of the packets that the report covers.
    pub delay: RelativeDelay,
    /// RTT under load.
    pub rtt: Duration,
    /// Number of datagrams received since the previous report.
    pub received: u64,
    /// Number of datagrams lost since the previous report.
    pub lost: u64,
    /// The loss floor in parts per million, if known.
    pub floor_ppm: Option<u32>,
    /// Whether packets waited for the pacer recently.
    pub is_limited: bool,
    /// All bytes sent, with IP and UDP headers.
    pub sent_bytes: u64,
    /// All bytes that arrived by the report, with IP and UDP headers.
    pub received_bytes: u64,
    /// The pacing rate before this report.
    pub pace: Option<Bitrate>,
}

/// The length from which a queue is significant: the maximum of the three fields.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// The minimum length as a delay.
    pub delay: Duration,
    /// The minimum length in bytes, for slow paths.
    pub bytes: Bytes,
    /// The minimum length as a multiple of the jitter.
    pub jitters: u32,
}

/// Level below which a queue is noise, and the path may carry more. 3 ms: two full packets at 8 Mbit/s. 2250 bytes, one
/// and a half full packets: the mean length of a queue that packets enter one at a time.
pub const LOW: Level = Level {
    delay: Duration::from_millis(3),
    bytes: Bytes::new(2_250),
    jitters: 3,
};

/// Level above which a queue is drained. 7 ms and four full packets: the queue that one round at 110 % of the
/// capacity adds to [`LOW`] at an RTT of 40 ms.
pub const HIGH: Level = Level {
    delay: Duration::from_millis(7),
    bytes: Bytes::new(6_000),
    jitters: 5,
};

impl Model {
    /// Creates a model without samples.
    #[must_use]
    pub(super) fn new(mechanisms: Mechanisms) -> Self {
        Self {
            mechanisms,
            delay: OneWayDelay::new(),
            on_wire: OnWire::default(),
            rate: Estimators::default().rate(),
            estimators: Estimators::default(),
            loss: Loss::new(),
            queue: Queue::default(),
            losses: LossWindow::default(),
            cross: CrossTraffic::default(),
            rounds: Rounds::default(),
            saturated_at: None,
        }
    }

    /// Sets the mechanisms of the profile.
    pub(super) fn set_mechanisms(&mut self, mechanisms: Mechanisms) {
        self.mechanisms = mechanisms;
    }

    /// Forgets capacity and queue, because the path now leads over another network. Loss totals and byte totals
    /// continue.
    pub(super) fn forget_network(&mut self) {
        self.forget_rate();
        self.queue = Queue::default();
        self.losses = LossWindow::default();
        self.cross = CrossTraffic::default();
        self.rounds = Rounds::default();
        self.saturated_at = None;
    }

    /// Forgets the delivery rate.
    pub(super) fn forget_rate(&mut self) {
        self.rate = self.estimators.rate();
    }

    /// Sets the factory of estimators. If it differs from the present factory, the delivery rate is forgotten.
    pub(super) fn set_estimators(&mut self, estimators: &Estimators) {
        if self.estimators != *estimators {
            self.estimators = estimators.clone();
            self.forget_rate();
        }
    }

    /// Updates base delay and standing queue by a report.
    pub(super) fn on_queue(&mut self, now: Instant, signals: &Signals) {
        self.queue.on_report(now, signals);
    }

    /// The maximum delivery rate of the last 2 s; zero before the first sample.
    pub(super) fn max_rate(&self) -> Bitrate {
        self.rate.max().unwrap_or(Bitrate::ZERO)
    }

    /// The latest delivery rate; the maximum before the first sample.
    pub(super) fn latest_rate(&self) -> Bitrate {
        let latest = self.rate.latest().map(|sample| sample.rate);
        latest.unwrap_or_else(|| self.max_rate())
    }

    /// The capacity estimate, whether or not the path was saturated. The likely value is the maximum delivery rate,
    /// the lower bound the latest sample. While samples are application-limited, the upper bound is a quarter above
    /// the likely value.
    #[must_use]
    pub fn capacity(&self) -> Option<Estimate<Bitrate>> {
        let likely = self.rate.max()?;
        let latest = self.rate.latest();
        let is_lower_bound = latest.is_some_and(|sample| sample.app_limited);
        Some(Estimate {
            low: latest.map_or(likely, |sample| sample.rate.min(likely)),
            likely,
            high: if is_lower_bound {
                likely.scale(5, 4)
            } else {
                likely
            },
        })
    }

    /// Mean difference of the minimum one-way delays of successive reports.
    #[must_use]
    pub const fn jitter(&self) -> Duration {
        self.queue.jitter()
    }

    /// The jitter by which thresholds are raised.
    fn allowed_jitter(&self) -> Duration {
        if self.mechanisms.has(Mechanism::JitterThresholds) {
            self.queue.jitter()
        } else {
            Duration::ZERO
        }
    }

    /// The length from which a queue is not noise.
    pub(super) fn noise(&self, level: Level) -> Duration {
        self.level(level, level.delay)
    }

    /// The threshold for a standing queue of `wanted`, raised to the noise level of `level` if that is longer.
    pub(super) fn level(&self, level: Level, wanted: Duration) -> Duration {
        let packets = level.bytes / self.max_rate().max(LEAST_RATE);
        let noise = packets.max(self.allowed_jitter() * level.jitters);
        noise.max(wanted)
    }

    /// The sending rate at which `rate` is delivered in spite of the loss floor.
    pub(super) fn gross(&self, rate: Bitrate) -> Bitrate {
        let floor_ppm = self.loss.floor_ppm().unwrap_or(0);
        let kept = 1_000_000 - u64::from(floor_ppm.min(MOST_FLOOR_PPM));
        rate.scale(1_000_000, kept)
    }

    /// Records that the path is saturated now.
    pub(super) fn on_saturated(&mut self, now: Instant) {
        self.saturated_at = Some(now);
    }

    /// Marks the capacity as unknown, because the path is not known to be saturated.
    pub(super) fn forget_saturation(&mut self) {
        self.saturated_at = None;
    }

    /// When the path was last saturated; `None` if it was not saturated in the last 60 s.
    #[must_use]
    pub fn saturated_at(&self, now: Instant) -> Option<Instant> {
        self.saturated_at.filter(|at| now.since(*at) < MEMORY)
    }

    /// Whether the path was saturated in the last 60 s, so that its capacity is known.
    #[must_use]
    pub fn is_capacity_known(&self, now: Instant) -> bool {
        self.saturated_at(now).is_some()
    }

    /// Whether the path was saturated once, but more than 60 s ago.
    pub(super) fn is_outdated(&self, now: Instant) -> bool {
        self.saturated_at.is_some() && !self.is_capacity_known(now)
    }
}

/// Time for which a saturation counts: longer than a pause between two videos.
const MEMORY: Duration = Duration::from_secs(60);
/// Minimum capacity assumed of any path: reports and probes need this rate.
pub(super) const LEAST_RATE: Bitrate = Bitrate::from_bps(200_000);
/// Maximum loss floor that the sending rate compensates, in parts per million; more loss is not the path's own.
const MOST_FLOOR_PPM: u32 = 200_000;
