//! Congestion controllers: how the window grows, and what is left of it after a loss.
//!
//! Windows are in segments, as in Linux. What all share (slow start, the arithmetic of `1/w` per segment) is in
//! [`Window`]; recovery itself ([`super::prr`]) is the sender's. [`Bbr`] alone needs neither: it sets window and pace
//! itself, from what every acknowledgement delivers ([`Delivery`]).

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
    /// Reno's window (RFC 5681); recovery is the sender's.
    NewReno,
    /// Westwood+ (Grieco and Mascolo 2004).
    Westwood,
}

impl CongestionControl {
    /// The names [`from_str`](Self::from_str) takes: the kernel's, and `newreno`.
    pub const NAMES: [&str; 5] = ["bbr", "cubic", "newreno", "reno", "westwood"];

    /// The kernel's name.
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

/// No congestion controller has this name.
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

/// Smallest window after a loss, RFC 5681 equation 4.
const MIN_SSTHRESH: u32 = 2;

/// Congestion window and slow-start threshold, in segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Segments that may be in flight.
    pub(super) cwnd: u32,
    /// Slow start goes on below this.
    pub(super) ssthresh: u32,
    /// Segments acknowledged towards the next increase.
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

    /// Grows by a segment for each acknowledged, up to the threshold; the segments left over.
    fn slow_start(&mut self, acked_pkts: u32) -> u32 {
        if !self.is_slow_start() {
            return acked_pkts;
        }
        let grown = self.cwnd.saturating_add(acked_pkts).min(self.ssthresh);
        let left = acked_pkts - (grown - self.cwnd);
        self.cwnd = grown;
        left
    }

    /// Grows by a segment for every `per_increase` acknowledged.
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

/// What an acknowledgement tells a controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack {
    pub(super) now: Instant,
    /// Segments newly delivered.
    pub(super) acked_pkts: u32,
    /// The next position expected by the receiver.
    pub(super) una: u64,
    /// The next position to be sent.
    pub(super) nxt: u64,
}

/// Whether losses are being repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Episode {
    None,
    /// Found by acknowledgements.
    Recovery,
    /// After a timeout.
    Loss,
}

/// What an acknowledgement tells a controller that sets the window itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) now: Instant,
    pub(super) sample: Option<RateSample>,
    /// Segments it delivers, and those it shows to be lost.
    pub(super) newly_delivered_pkts: u32,
    pub(super) newly_lost_pkts: u32,
    /// Segments ever delivered, and when the last was.
    pub(super) delivered_pkts: u64,
    pub(super) delivered_at: Instant,
    /// In flight before and after it.
    pub(super) prior_in_flight_pkts: u32,
    pub(super) in_flight_pkts: u32,
    /// Round trip of the newest segment it delivers.
    pub(super) rtt: Option<Duration>,
    pub(super) smoothed_rtt: Option<Duration>,
    pub(super) episode: Episode,
    /// When the pacer lets the next segment go.
    pub(super) next_departure_at: Instant,
}

/// A running controller.
#[derive(Clone, Debug)]
pub(super) enum Controller {
    Bbr(Box<Bbr>),
    Cubic(Cubic),
    NewReno,
    Westwood(Westwood),
}

impl Controller {
    /// For a connection that begins with a window of `cwnd`. `smoothed_rtt`: of the handshake.
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

    /// Takes a round trip measured on the newest segment an acknowledgement delivered. Comes before
    /// [`on_ack`](Self::on_ack).
    pub(super) fn on_rtt_sample(&mut self, window: &mut Window, ack: &Ack, rtt: Duration) {
        match self {
            Self::Cubic(cubic) => cubic.on_rtt_sample(window, ack, rtt),
            Self::Bbr(_) | Self::NewReno => {}
            Self::Westwood(westwood) => westwood.on_rtt_sample(rtt),
        }
    }

    /// Counts bytes delivered, in whatever state the sender is.
    pub(super) fn on_delivered(&mut self, now: Instant, delivered_bytes: u64) {
        match self {
            Self::Bbr(_) | Self::Cubic(_) | Self::NewReno => {}
            Self::Westwood(westwood) => westwood.on_delivered(now, delivered_bytes),
        }
    }

    /// Sets the window by what was delivered, in whatever state the sender is, if the controller is
    /// [autonomous](Self::is_autonomous).
    pub(super) fn on_delivery(&mut self, window: &mut Window, delivery: &Delivery) {
        match self {
            Self::Bbr(bbr) => bbr.on_delivery(window, delivery),
            Self::Cubic(_) | Self::NewReno | Self::Westwood(_) => {}
        }
    }

    /// Whether the controller alone sets the window: neither growth nor reduction is the sender's.
    pub(super) fn is_autonomous(&self) -> bool {
        matches!(self, Self::Bbr(_))
    }

    /// The pace to send at; `None`: as the window opens.
    pub(super) fn pacing(&self) -> Option<Pacing> {
        match self {
            Self::Bbr(bbr) => Some(bbr.pacing()),
            Self::Cubic(_) | Self::NewReno | Self::Westwood(_) => None,
        }
    }

    /// Whether the controller keeps what is in flight so low that it says nothing of the path.
    pub(super) fn is_holding_back(&self) -> bool {
        match self {
            Self::Bbr(bbr) => bbr.is_probing_rtt(),
            Self::Cubic(_) | Self::NewReno | Self::Westwood(_) => false,
        }
    }

    /// Sending resumes after the application had nothing to send.
    pub(super) fn on_restart(&mut self, now: Instant, window: &mut Window) {
        match self {
            Self::Bbr(bbr) => bbr.on_restart(now, window),
            Self::Cubic(_) | Self::NewReno | Self::Westwood(_) => {}
        }
    }

    /// The last reduction was needless.
    pub(super) fn on_undo(&mut self) {
        match self {
            Self::Bbr(bbr) => bbr.on_undo(),
            Self::Cubic(_) | Self::NewReno | Self::Westwood(_) => {}
        }
    }

    /// Grows the window; called when it may grow.
    pub(super) fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        match self {
            Self::Bbr(_) => {}
            Self::Cubic(cubic) => cubic.on_ack(window, ack),
            Self::NewReno | Self::Westwood(_) => new_reno::on_ack(window, ack.acked_pkts),
        }
    }

    /// The threshold after a congestion event that finds `window`.
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

    /// Recovery or reduction is over and left `window`.
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

    /// The retransmission timer expired; `window.ssthresh` is set already.
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

    /// Sending resumes after `idle` without anything under way.
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
