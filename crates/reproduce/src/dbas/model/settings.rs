//! File format of a workload.

use pleach_core::units::{Bitrate, Bytes};
use pleach_sim::transfer::ModelFileError;
use serde::Deserialize;

use super::{App, Choice};

/// Random connections over several sets of links.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name of the workload.
    pub name: String,
    /// Seed of all random numbers.
    #[serde(default = "one")]
    pub seed: u64,
    /// Number of runs of each case, with consecutive seeds. The results are means over these runs.
    pub repeat: u32,
    /// Time in seconds during which connections are opened.
    pub seconds: f64,
    /// Scheduler that chooses the links.
    pub choice: Choice,
    /// Whether the proxy's estimators have to measure rates and demands. Otherwise the proxy is told them.
    #[serde(default)]
    pub learns: bool,
    /// Whether the estimators begin with the right rates and demands, as if they had measured before. Only the model
    /// uses this setting.
    #[serde(default)]
    pub warm: bool,
    /// Distribution of sizes.
    pub sizes: Sizes,
    /// RTT in ms. It determines the rate of a connection on a link that loses packets.
    pub rtt_ms: u32,
    /// Mean size of a small connection.
    pub small: Bytes,
    /// Mean size of a large connection.
    pub large: Bytes,
    /// Settings in namespaces, which run in real time.
    pub lab: Lab,
    /// Cases, each with its own links.
    pub case: Vec<Case>,
}

/// Settings that differ in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lab {
    /// Number of runs of each case.
    pub repeat: u32,
    /// Time in seconds during which connections are opened.
    pub seconds: f64,
}

/// One point of a sweep.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name of the case, unique in the file.
    pub name: String,
    /// Mean number of small connections per second.
    pub small_per_s: f64,
    /// Mean number of large connections per second.
    pub large_per_s: f64,
    /// Whether there is a connection from the beginning that has more bytes than can arrive during the run.
    #[serde(default)]
    pub long: bool,
    /// The links.
    pub link: Vec<LinkSettings>,
}

/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    /// Rate of the link.
    pub rate: Bitrate,
    /// Share of packets that the link loses.
    #[serde(default)]
    pub loss: f64,
}

/// Distribution of sizes around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sizes {
    /// All sizes are equal.
    Fixed,
    /// Exponential distribution.
    Exponential,
    /// Pareto distribution of shape 1.2, truncated at a thousand times the minimum.
    Pareto,
}

impl Workload {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Fails with a description of the error in the file.
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

    /// Returns the workload as it runs in namespaces.
    #[must_use]
    pub fn in_lab(&self) -> Self {
        Self {
            repeat: self.lab.repeat,
            seconds: self.lab.seconds,
            ..self.clone()
        }
    }

    /// Returns the seeds of a case's runs.
    pub fn seeds(&self) -> impl Iterator<Item = u64> {
        (0..self.repeat).map(|run| self.seed.wrapping_add(u64::from(run)))
    }

    /// Returns the mean number of bytes per connection, by application.
    #[must_use]
    pub fn demands(&self, case: &Case) -> [(App, u64); 3] {
        [
            (App::Small, self.small.get()),
            (App::Large, self.large.get()),
            (App::Long, whole(self.long_bytes(case))),
        ]
    }

    /// Returns the bytes of the long connection of `case`: twice as many as the links carry in the time of the run.
    pub(super) fn long_bytes(&self, case: &Case) -> f64 {
        let bits: f64 = case.link.iter().map(|link| link.bps()).sum();
        bits * self.seconds * 2.0 / 8.0
    }
}

impl LinkSettings {
    /// Returns the rate in bit/s.
    #[expect(clippy::cast_precision_loss, reason = "at most 10^11")]
    pub(super) fn bps(&self) -> f64 {
        self.rate.as_bps() as f64
    }

    /// Returns the capacity, lost packets deducted, in bit/s.
    pub(super) fn carries_bps(&self) -> f64 {
        self.bps() * (1.0 - self.loss)
    }

    /// Returns the capacity, lost packets deducted.
    #[must_use]
    pub fn carries(&self) -> Bitrate {
        Bitrate::from_bps(whole(self.carries_bps()))
    }
}

impl Case {
    /// Returns the links among which `choice` chooses. The optimum has a single link with the capacity of all links.
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

    /// Returns a single lossless link with the capacity of all links of the case.
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
