//! Congestion controllers: growth of the window, and its reduction after a loss.
//!
//! Windows are in segments, as in Linux. Code common to all controllers (slow start, the arithmetic of `1/w` per
//! segment) is in [`Window`]. Recovery itself ([`super::prr`]) is a task of the sender. Only [`Bbr`] uses neither the
//! common code nor this recovery: it sets window and pacing rate itself, from the deliveries that each
//! acknowledgement reports ([`Delivery`]).

mod bbr;
mod cubic;
mod hystart;
mod new_reno;
mod westwood;

use core::{str::FromStr, time::Duration};

use pleach_core::time::Instant;

pub(crate) use self::cubic::cube_root;
use self::{bbr::Bbr, cubic::Cubic, westwood::Westwood};
use super::{pacer::Pacing, rate::RateSample};

/// A congestion controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// BBR version 1 (Cardwell et al. 2016), paced.
    Bbr,
    /// CUBIC, RFC 9438, with `HyStart`: Linux's default.
    #[default]
    Cubic,
    /// Reno's window (RFC 5681). The sender does the recovery.
    NewReno,
    /// Westwood+ (Grieco and Mascolo 2004).
    Westwood,
}

impl CongestionControl {
    /// Names that [`from_str`](Self::from_str) accepts: the kernel's names, and `newreno`.
    pub const NAMES: [&str; 5] = ["bbr", "cubic", "newreno", "reno", "westwood"];

    /// Returns the kernel's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
            Self::NewReno => "reno",
            Self::Westwood => "westwood",
        }
    }
}

/// Error: no congestion controller has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown congestion control {0:?}; known: bbr, cubic, newreno, reno, westwood")]
pub struct UnknownCongestionControl(String);

impl FromStr for CongestionControl {
    type Err = UnknownCongestionControl;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "bbr" => Ok(Self::Bbr),
            "cubic" => Ok(Self::Cubic),
            "newreno" | "reno" => Ok(Self::NewReno),
            "westwood" => Ok(Self::Westwood),
            _ => Err(UnknownCongestionControl(name.to_owned())),
        }
    }
}

/// Smallest window after a loss in segments, RFC 5681 equation 4.
const MIN_SSTHRESH: u32 = 2;

/// Congestion window and slow-start threshold, in segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Number of segments that may be in flight.
    pub(super) cwnd: u32,
    /// Slow start continues while the window is below this threshold.
    pub(super) ssthresh: u32,
    /// Number of segments acknowledged towards the next increase.
    pub(super) credit: u32,
}

impl Window {
    pub(super) const fn new(cwnd: u32) -> Self {
        Self {
            cwnd,
            ssthresh: u32::MAX,
            credit: 0,
        }
    }

    pub(super) const fn is_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Increases the window by one segment for each acknowledged segment, up to the threshold. Returns the number of
    /// acknowledged segments that were not used for the increase.
    fn slow_start(&mut self, acked_pkts: u32) -> u32 {
        if !self.is_slow_start() {
            return acked_pkts;
        }
        let grown = self.cwnd.saturating_add(acked_pkts).min(self.ssthresh);
        let left = acked_pkts - (grown - self.cwnd);
        self.cwnd = grown;
        left
    }

    /// Grows by one segment for every `per_increase` acknowledged segments.
    fn additive_increase(&mut self, per_increase: u32, acked_pkts: u32) {
        let per_increase = per_increase.max(1);
        if self.credit >= per_increase {
            self.credit = 0;
            self.cwnd = self.cwnd.saturating_add(1);
        }
        self.credit = self.credit.saturating_add(acked_pkts);
        self.cwnd = self.cwnd.saturating_add(self.credit / per_increase);
        self.credit %= per_increase;
    }
}

/// Information that an acknowledgement gives a controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack {
    pub(super) now: Instant,
    /// Number of newly delivered segments.
    pub(super) acked_pkts: u32,
    /// Next position expected by the receiver.
    pub(super) una: u64,
    /// Next position to be sent.
    pub(super) nxt: u64,
}

/// State of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Episode {
    None,
    /// Recovery after losses detected by acknowledgements.
    Recovery,
    /// Recovery after a timeout.
    Loss,
}

/// Information that an acknowledgement gives a controller that sets the window itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) now: Instant,
    pub(super) sample: Option<RateSample>,
    /// Number of segments that the acknowledgement delivers, and number of segments that it shows to be lost.
    pub(super) newly_delivered_pkts: u32,
    pub(super) newly_lost_pkts: u32,
    /// Total number of delivered segments, and the time of the last delivery.
    pub(super) delivered_pkts: u64,
    pub(super) delivered_at: Instant,
    /// Segments in flight before and after the acknowledgement.
    pub(super) prior_in_flight_pkts: u32,
    pub(super) in_flight_pkts: u32,
    /// RTT of the newest segment that the acknowledgement delivers.
    pub(super) rtt: Option<Duration>,
    pub(super) smoothed_rtt: Option<Duration>,
    pub(super) episode: Episode,
    /// Time at which the pacer permits the next segment.
    pub(super) next_departure_at: Instant,
}

/// A congestion controller with its state.
#[derive(Clone, Debug)]
pub(super) enum Controller {
    Bbr(Box<Bbr>),
    Cubic(Cubic),
    NewReno,
    Westwood(Westwood),
}

impl Controller {
    /// Creates the controller of a connection that begins with a window of `cwnd`. `smoothed_rtt` is the RTT of the
    /// handshake.
    pub(super) fn new(
        kind: CongestionControl,
        cwnd: u32,
        mss: u32,
        smoothed_rtt: Option<Duration>,
    ) -> Self {
        match kind {
            CongestionControl::Bbr => Self::Bbr(Box::new(Bbr::new(cwnd, mss, smoothed_rtt))),
            CongestionControl::Cubic => Self::Cubic(Cubic::default()),
            CongestionControl::NewReno => Self::NewReno,
            CongestionControl::Westwood => Self::Westwood(Westwood::default()),
        }
    }

    /// Processes an RTT sample of the newest segment that an acknowledgement delivered. Called before
    /// [`on_ack`](Self::on_ack).
    pub(super) fn on_rtt_sample(&mut self, window: &mut Window, ack: &Ack, rtt: Duration) {
        match self {
            Self::Cubic(cubic) => cubic.on_rtt_sample(window, ack, rtt),
            Self::Bbr(_) | Self::NewReno => {}
            Self::Westwood(westwood) => westwood.on_rtt_sample(rtt),
        }
    }

    /// Counts delivered bytes, in any state of the sender.
    pub(super) fn on_delivered(&mut self, now: Instant, delivered_bytes: u64) {
        match self {
            Self::Bbr(_) | Self::Cubic(_) | Self::NewReno => {}
            Self::Westwood(westwood) => westwood.on_delivered(now, delivered_bytes),
        }
    }

    /// Sets the window from the delivery, in any state of the sender, if the controller is
    /// [autonomous](Self::is_autonomous).
    pub(super) fn on_delivery(&mut self, window: &mut Window, delivery: &Delivery) {
        match self {
            Self::Bbr(bbr) => bbr.on_delivery(window, delivery),
            Self::Cubic(_) | Self::NewReno | Self::Westwood(_) => {}
        }
    }

    /// Whether the controller alone sets the window. Then the sender neither increases nor reduces it.
    pub(super) fn is_autonomous(&self) -> bool {
        matches!(self, Self::Bbr(_))
    }

    /// Returns the pacing rate. `None`: segments are sent as soon as the window permits.
    pub(super) fn pacing(&self) -> Option<Pacing> {
        match self {
            Self::Bbr(bbr) => Some(bbr.pacing()),
            Self::Cubic(_) | Self::NewReno | Self::Westwood(_) => None,
        }
    }

    /// Whether the controller keeps the data in flight so low that samples do not show the capacity of the path.
    pub(super) fn is_holding_back(&self) -> bool {
        match self {
            Self::Bbr(bbr) => bbr.is_probing_rtt(),
            Self::Cubic(_) | Self::NewReno | Self::Westwood(_) => false,
        }
    }

    /// Called when sending resumes after the application had nothing to send.
    pub(super) fn on_restart(&mut self, now: Instant, window: &mut Window) {
        match self {
            Self::Bbr(bbr) => bbr.on_restart(now, window),
            Self::Cubic(_) | Self::NewReno | Self::Westwood(_) => {}
        }
    }

    /// Called when the last reduction proves unnecessary.
    pub(super) fn on_undo(&mut self) {
        match self {
            Self::Bbr(bbr) => bbr.on_undo(),
            Self::Cubic(_) | Self::NewReno | Self::Westwood(_) => {}
        }
    }

    /// Grows the window. Called only when the window may grow.
    pub(super) fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        match self {
            Self::Bbr(_) => {}
            Self::Cubic(cubic) => cubic.on_ack(window, ack),
            Self::NewReno | Self::Westwood(_) => new_reno::on_ack(window, ack.acked_pkts),
        }
    }

    /// Returns the slow-start threshold after a congestion event at `window`.
    pub(super) fn ssthresh(&mut self, window: &Window) -> u32 {
        match self {
            Self::Bbr(bbr) => {
                bbr.save_cwnd(window);
                window.ssthresh
            }
            Self::Cubic(cubic) => cubic.ssthresh(window),
            Self::NewReno | Self::Westwood(_) => new_reno::ssthresh(window),
        }
    }

    /// Called when a recovery or reduction has ended and left `window`.
    pub(super) fn on_recovered(&mut self, window: &mut Window, mss: u32) {
        match self {
            Self::Bbr(_) | Self::Cubic(_) | Self::NewReno => {}
            Self::Westwood(westwood) => {
                if let Some(pkts) = westwood.bandwidth_window(mss) {
                    window.ssthresh = pkts;
                    window.cwnd = pkts;
                }
            }
        }
    }

    /// Called when the retransmission timer has expired and `window.ssthresh` is already set.
    pub(super) fn on_timeout(&mut self, now: Instant, nxt: u64, window: &mut Window, mss: u32) {
        match self {
            Self::Bbr(bbr) => bbr.on_timeout(),
            Self::Cubic(cubic) => cubic.on_timeout(now, nxt),
            Self::NewReno => {}
            Self::Westwood(westwood) => {
                if let Some(pkts) = westwood.bandwidth_window(mss) {
                    window.ssthresh = pkts;
                }
                westwood.on_timeout();
            }
        }
    }

    /// Called when sending resumes after `idle` with no data in flight.
    pub(super) fn on_idle(&mut self, now: Instant, idle: Duration) {
        match self {
            Self::Cubic(cubic) => cubic.on_idle(now, idle),
            Self::Bbr(_) | Self::NewReno | Self::Westwood(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known() {
        for name in CongestionControl::NAMES {
            let kind: CongestionControl = name.parse().expect("listed");
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("vegas".parse::<CongestionControl>().is_err());
    }

    #[test]
    fn slow_start_ends_at_the_threshold_and_leaves_the_rest() {
        let mut window = Window::new(10);
        window.ssthresh = 15;
        assert_eq!(window.slow_start(3), 0);
        assert_eq!(window.slow_start(5), 3);
        assert_eq!((window.cwnd, window.is_slow_start()), (15, false));
    }

    #[test]
    fn additive_increase_is_one_in_so_many() {
        let mut window = Window::new(10);
        (0..100).for_each(|_| window.additive_increase(20, 1));
        assert_eq!(window.cwnd, 15);
        window.additive_increase(7, 28);
        assert_eq!(window.cwnd, 19);
    }
}
