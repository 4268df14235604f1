//! Settings of `awi`: the paper's parameters and the choices it leaves open.

use core::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};

use super::Awi;
use crate::ids::PathId;

/// Settings of [`Awi`], with the keys of a configuration file. Absent keys have the paper's values.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AwiSettings<L> {
    /// The line to fill first. If it is absent or unknown, the line of lowest cost, then lowest id.
    pub fixed: Option<L>,
    /// Gain k of AWI (equation 1).
    pub k: Gain,
    /// `T_dwd`: time without loss after which DWD takes one from the mobile weight. Time is counted in reports, so it
    /// is rounded up to a multiple of `t_report`; the paper requires a multiple.
    #[serde(with = "humantime_serde")]
    pub t_dwd: Duration,
    /// Weight of the fixed line; at least 1.
    pub w_fixed: u32,
    /// Maximum weight of any other line.
    pub w_mobile_max: u32,
    /// `T_report`: interval at which the receiver reports losses.
    #[serde(with = "humantime_serde")]
    pub t_report: Duration,
    /// `T_lto`: time after which a missing packet counts as lost, in the loss count and in the receiver's reorder
    /// buffer.
    #[serde(with = "humantime_serde")]
    pub t_lto: Duration,
    /// When DWD takes a step.
    pub dwd: Dwd,
    /// Lines whose losses change the weights.
    pub loss: LossSource,
    /// Unit of the loss ratio and of the round robin.
    pub count: Count,
    /// How packets of one round are mixed.
    pub wrr: Wrr,
}

impl<L> Default for AwiSettings<L> {
    /// Returns the values of section 5 of the paper: of 5.2 for the maximum weight, of 5.3 for `T_lto`.
    fn default() -> Self {
        Self {
            fixed: None,
            k: Gain::DEFAULT,
            t_dwd: Duration::from_millis(250),
            w_fixed: 50,
            w_mobile_max: 45,
            t_report: Duration::from_millis(50),
            t_lto: Duration::from_millis(50),
            dwd: Dwd::Rearm,
            loss: LossSource::Fixed,
            count: Count::Packets,
            wrr: Wrr::Block,
        }
    }
}

impl<L> AwiSettings<L> {
    /// The keys, in the order they are listed to users.
    pub const KEYS: &[&str] = &[
        "fixed",
        "k",
        "t_dwd",
        "w_fixed",
        "w_mobile_max",
        "t_report",
        "t_lto",
        "dwd",
        "loss",
        "count",
        "wrr",
    ];

    /// The links that the settings name, each with its key.
    pub fn links(&self) -> Vec<(&'static str, &L)> {
        self.fixed.iter().map(|link| ("fixed", link)).collect()
    }

    /// Returns these settings with the fixed line replaced by the result of `map`.
    pub fn map_links<M>(self, map: impl FnOnce(L) -> Option<M>) -> AwiSettings<M> {
        let Self {
            fixed,
            k,
            t_dwd,
            w_fixed,
            w_mobile_max,
            t_report,
            t_lto,
            dwd,
            loss,
            count,
            wrr,
        } = self;
        AwiSettings {
            fixed: fixed.and_then(map),
            k,
            t_dwd,
            w_fixed,
            w_mobile_max,
            t_report,
            t_lto,
            dwd,
            loss,
            count,
            wrr,
        }
    }
}

impl AwiSettings<PathId> {
    /// Creates a scheduler with these settings.
    #[must_use]
    pub fn scheduler(&self) -> Awi {
        Awi::new(self.clone())
    }
}

/// The gain k, in millionths: whole numbers make the rounding of weights exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gain(u32);

impl Gain {
    /// The gain 0.5, which section 5.2 of the paper chooses.
    pub const DEFAULT: Self = Self(500_000);

    /// Creates the gain `k`, rounded to a millionth; `None` unless it is from 0.000001 to 1000.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked"
    )]
    pub fn new(k: f64) -> Option<Self> {
        let ppm = (k * 1e6).round();
        (1.0..=1e9).contains(&ppm).then_some(Self(ppm as u32))
    }

    /// The gain in millionths.
    #[must_use]
    pub const fn as_ppm(self) -> u32 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Gain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let k = f64::deserialize(deserializer)?;
        Self::new(k).ok_or_else(|| D::Error::custom("k must be from 0.000001 to 1000"))
    }
}

/// When DWD takes a step, which the paper leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dwd {
    /// One step with every report, once `T_dwd` has passed without loss, as section 3.3 says.
    Literal,
    /// One step for every `T_dwd` without loss, as the figures require.
    Rearm,
}

/// Lines whose losses change the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LossSource {
    /// All lines: the generalisation that section 3 suggests. Losses of another line lower the maximum weight of that
    /// line.
    Both,
    /// The fixed line only: the paper's algorithm.
    Fixed,
}

/// Unit of the loss ratio and of the round robin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Count {
    /// Bytes: the shares are right for packets of any length.
    Bytes,
    /// Packets: the paper's algorithm, for packets of one length.
    Packets,
}

/// How packets of one round are mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wrr {
    /// All packets of a line in a row: the paper's algorithm. Requires modem queues of about twenty packets.
    Block,
    /// Evenly spread, as `weighted` does.
    Smooth,
}
