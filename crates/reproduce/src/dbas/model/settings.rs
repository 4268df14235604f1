//! The file that describes a workload.

use pleach_core::units::{Bitrate, Bytes};
use pleach_sim::transfer::ModelFileError;
use serde::Deserialize;

use super::{App, Choice};

/// Connections, over several sets of links.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Of all randomness.
    #[serde(default = "one")]
    pub seed: u64,
    /// Runs of each case, with seeds that follow one another; what is reported is their mean.
    pub repeat: u32,
    /// How long connections arrive, in seconds.
    pub seconds: f64,
    /// What chooses the link.
    pub choice: Choice,
    /// Whether the proxy's own estimators find rates and demands out, which it is told otherwise.
    #[serde(default)]
    pub learns: bool,
    /// How sizes are distributed.
    pub sizes: Sizes,
    /// Round trip, for what a connection gets out of a link that loses packets.
    pub rtt_ms: u32,
    /// Mean size of a small connection.
    pub small: Bytes,
    /// Mean size of a large one.
    pub large: Bytes,
    /// In namespaces, where a second takes one.
    pub lab: Lab,
    /// The sets of links.
    pub case: Vec<Case>,
}

/// What differs in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lab {
    /// Runs of each case.
    pub repeat: u32,
    /// How long connections arrive, in seconds.
    pub seconds: f64,
}

/// What differs from point to point.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Its name, unique in the file.
    pub name: String,
    /// Small connections a second.
    pub small_per_s: f64,
    /// Large ones.
    pub large_per_s: f64,
    /// Whether one connection is there from the beginning and has more to move than comes in all the time.
    #[serde(default)]
    pub long: bool,
    /// The links.
    pub link: Vec<LinkSettings>,
}

/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    /// What it carries.
    pub rate: Bitrate,
    /// Share of packets it loses.
    #[serde(default)]
    pub loss: f64,
}

/// How sizes are distributed about their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sizes {
    /// Not at all.
    Fixed,
    /// Exponentially.
    Exponential,
    /// By a Pareto law of shape 1.2, cut off at a thousand times the least.
    Pareto,
}

impl Workload {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, ModelFileError> {
        let this: Self =
            toml::from_str(text).map_err(|error| ModelFileError::Form(error.to_string()))?;
        let check = |holds: bool, key, expected| match holds {
            true => Ok(()),
            false => Err(ModelFileError::Range { key, expected }),
        };
        for (repeat, seconds) in [
            (this.repeat, this.seconds),
            (this.lab.repeat, this.lab.seconds),
        ] {
            check((1..=1_000).contains(&repeat), "repeat", "1 to 1000")?;
            check((0.1..=3_600.0).contains(&seconds), "seconds", "0.1 to 3600")?;
        }
        check((1..=10_000).contains(&this.rtt_ms), "rtt_ms", "1 to 10000")?;
        for (key, size) in [("small", this.small), ("large", this.large)] {
            let holds = (1_000..=1_000_000_000).contains(&size.get());
            check(holds, key, "1kB to 1GB")?;
        }
        for case in &this.case {
            for (key, rate) in [
                ("small_per_s", case.small_per_s),
                ("large_per_s", case.large_per_s),
            ] {
                check((0.0..=1_000.0).contains(&rate), key, "0 to 1000")?;
            }
            let comes = case.long || case.small_per_s + case.large_per_s > 0.0;
            check(comes, "case", "at least one connection")?;
            let count = case.link.len();
            check((1..=16).contains(&count), "link", "1 to 16 links a case")?;
            for link in &case.link {
                let rate = link.rate.as_bps();
                let holds = (10_000..=100_000_000_000).contains(&rate);
                check(holds, "rate", "10 kbit to 100 gbit")?;
                check((0.0..=0.5).contains(&link.loss), "loss", "0 to 0.5")?;
            }
        }
        Ok(this)
    }

    /// The same as it runs in namespaces.
    #[must_use]
    pub fn in_lab(&self) -> Self {
        Self {
            repeat: self.lab.repeat,
            seconds: self.lab.seconds,
            ..self.clone()
        }
    }

    /// Of a case's runs.
    pub fn seeds(&self) -> impl Iterator<Item = u64> {
        (0..self.repeat).map(|run| self.seed.wrapping_add(u64::from(run)))
    }

    /// Bytes that a connection moves in the mean, by application.
    #[must_use]
    pub fn demands(&self, case: &Case) -> [(App, u64); 3] {
        [
            (App::Small, self.small.get()),
            (App::Large, self.large.get()),
            (App::Long, whole(self.long_bytes(case))),
        ]
    }

    /// Bits of the long connection of `case`: what its links carry in twice the time.
    pub(super) fn long_bytes(&self, case: &Case) -> f64 {
        let bits: f64 = case.link.iter().map(|link| link.bps()).sum();
        bits * self.seconds * 2.0 / 8.0
    }
}

impl LinkSettings {
    /// What it carries, in bit/s.
    #[expect(clippy::cast_precision_loss, reason = "at most 10^11")]
    pub(super) fn bps(&self) -> f64 {
        self.rate.as_bps() as f64
    }

    /// What it carries, lost packets deducted, in bit/s.
    pub(super) fn carries_bps(&self) -> f64 {
        self.bps() * (1.0 - self.loss)
    }

    /// What it carries, lost packets deducted.
    #[must_use]
    pub fn carries(&self) -> Bitrate {
        Bitrate::from_bps(whole(self.carries_bps()))
    }
}

impl Case {
    /// What connections that are placed by `choice` are spread over: the optimum has all links as one.
    #[must_use]
    pub fn links(&self, choice: Choice) -> Vec<LinkSettings> {
        match choice {
            Choice::Optimal => vec![self.pooled()],
            Choice::OnlyFirst
            | Choice::OnlyLast
            | Choice::RoundRobin
            | Choice::WeightedRoundRobin
            | Choice::MaxThroughput
            | Choice::ChunksRoundRobin
            | Choice::ChunksWeightedRoundRobin => self.link.clone(),
        }
    }

    /// All its links as one that loses nothing more.
    fn pooled(&self) -> LinkSettings {
        let bps: f64 = self.link.iter().map(LinkSettings::carries_bps).sum();
        LinkSettings {
            rate: Bitrate::from_bps(whole(bps)),
            loss: 0.0,
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and far below 2^63"
)]
pub(super) fn whole(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

const fn one() -> u64 {
    1
}
