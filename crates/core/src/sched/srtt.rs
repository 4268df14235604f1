//! Weights of paths derived from their smoothed RTTs, for [`srtt_weighted`](super::srtt_weighted) and
//! [`consn`](super::consn).
//!
//! Becke et al. 2013, section IV: the weight of path P is w'_P = 1 - sRTT_P / sum(sRTT_i).

use core::time::Duration;

use serde::{Deserialize, Deserializer, de::Error as _};

use super::PathView;
use crate::{path::rtt::INITIAL_RTT, units::Bytes};

/// The weight of a new sample in the smoothed RTT, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alpha(u16);

impl Alpha {
    /// The weight 0.125, as published and in TCP.
    pub const DEFAULT: Self = Self(125);

    /// Creates the weight `alpha`, rounded to a thousandth; `None` unless it is from 0.001 to 1.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked"
    )]
    pub fn new(alpha: f64) -> Option<Self> {
        let thousandths = (alpha * 1e3).round();
        (1.0..=1e3)
            .contains(&thousandths)
            .then_some(Self(thousandths as u16))
    }

    /// The weight in thousandths.
    #[must_use]
    pub const fn thousandths(self) -> u16 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Alpha {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let alpha = f64::deserialize(deserializer)?;
        Self::new(alpha).ok_or_else(|| D::Error::custom("alpha must be from 0.001 to 1"))
    }
}

/// The source of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// All weights are equal.
    Equal,
    /// Weights are derived from the smoothed RTTs.
    Srtt,
}

/// The smoothed RTT of a path plus the delay of the packets that wait for it at this end.
pub(super) fn round_trip(path: &PathView) -> Duration {
    let srtt = path.smoothed_rtt.unwrap_or(INITIAL_RTT);
    let waiting = match path.rate {
        Some(rate) if path.staged > Bytes::ZERO => path.staged / rate,
        Some(_) | None => Duration::ZERO,
    };
    srtt.saturating_add(waiting)
}

/// Basis of the weights: the sum of the RTTs of the paths in microseconds; `None` if all weights are equal.
pub(super) type Shares = Option<u64>;

/// Returns the [`Shares`] of the paths for which `take_part` is true.
pub(super) fn shares(
    weights: Weights,
    paths: &[PathView],
    take_part: impl Fn(&PathView) -> bool,
) -> Shares {
    if weights == Weights::Equal {
        return None;
    }
    let taking = paths.iter().filter(|path| take_part(path));
    Some(taking.fold(0, |sum, path| {
        sum + micros(round_trip(path)).min(MAX_MICROS)
    }))
}

/// The weight of `path`: the sum of the RTTs minus the path's RTT, in microseconds, at least 1. This is (n - 1) w_P
/// multiplied by the sum.
pub(super) fn weight(shares: Shares, path: &PathView) -> u32 {
    let Some(sum) = shares else {
        return 1;
    };
    u32::try_from(sum.saturating_sub(micros(round_trip(path))))
        .map_or(u32::MAX, |weight| weight.max(1))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(MAX_MICROS)
}

/// Maximum RTT that the weights take into account, in microseconds: one minute, so that the sum of sixteen RTTs fits
/// a weight.
const MAX_MICROS: u64 = 60_000_000;

/// Interval at which the RTT of each path is sampled while there is traffic: the weights follow within about 0.4 s.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(50);
/// Default deadline (section V-A): packets that arrive later are useless.
pub(super) const DEADLINE: Duration = Duration::from_millis(200);
