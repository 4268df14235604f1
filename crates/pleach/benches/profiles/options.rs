//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use pleach_sim::bonds::{self, Load, Sweep};

/// Bonded links beside the same links alone.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// In the simulator, or in namespaces with real daemons and kernels.
    #[arg(long = "in", value_enum, default_value_t = World::Sim)]
    pub(crate) place: World,
    /// Which links [default: profiles and pairs].
    #[arg(long = "set", value_enum)]
    set: Vec<Set>,
    /// Only cases whose name contains this; several are alternatives.
    #[arg(long)]
    pub(crate) case: Vec<String>,
    /// Policy of the tunnel.
    #[arg(long, default_value = "adaptive")]
    pub(crate) policy: String,
    /// A line of `[tunnel]`, such as `redundancy=0.1`.
    #[arg(long = "key")]
    pub(crate) keys: Vec<String>,
    /// What is downloaded.
    #[arg(long, value_enum, default_value_t = Flow::Cubic)]
    pub(crate) flow: Flow,
    /// So many at once, over TCP [default: 1; 8 of cubic8].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    flows: Option<u32>,
    /// It is uploaded instead.
    #[arg(long)]
    pub(crate) upload: bool,
    /// A ping through the tunnel beside the download.
    #[arg(long)]
    pub(crate) ping: bool,
    /// Runs of a case, of which the median counts [default: 1 simulated, 3 in the lab].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Length of a run, in seconds [default: the case's own, 12 to 60].
    #[arg(long, value_parser = clap::value_parser!(u32).range(6..=3_600))]
    pub(crate) seconds: Option<u32>,
    /// Number of cases of the sweep.
    #[arg(long, default_value_t = 200)]
    count: u32,
    /// Seed of the sweep's links.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Links of each of its cases.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=6))]
    links: u32,
    /// The links of the sweep upload from all down to a twentieth of what they download.
    #[arg(long)]
    asymmetric: bool,
    /// File for all figures, in bench-results/profiles unless it is absolute.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// Measures the single links again.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// What cargo adds.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum World {
    Lab,
    Sim,
}

/// A set of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Set {
    /// Nine pairs that other systems were measured with.
    Pairs,
    /// Sixteen profiles, each with deep and shallow queues, and jitter with and without overtaking.
    Profiles,
    /// Pairs of recorded links, from the directory PLEACH_TRACES.
    Recordings,
    /// Random links (simulator only).
    Sweep,
}

/// What is downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Flow {
    /// One TCP connection with BBR.
    Bbr,
    /// One TCP connection with CUBIC.
    Cubic,
    /// Eight of them.
    Cubic8,
    /// One with CUBIC behind a handshake as of TLS.
    CubicTls,
    /// One QUIC connection.
    Quic,
}

impl Options {
    /// The sets asked for, each once.
    pub(crate) fn sets(&self) -> Vec<Set> {
        let mut sets = self.set.clone();
        if sets.is_empty() {
            sets = vec![Set::Profiles, Set::Pairs];
        }
        let mut seen = Vec::new();
        sets.retain(|set| {
            !seen.contains(set) && {
                seen.push(*set);
                true
            }
        });
        sets
    }

    /// What is sent over the links.
    pub(crate) fn load(&self) -> Load {
        Load {
            flow: match self.flow {
                Flow::Bbr => bonds::Flow::Bbr,
                Flow::Cubic => bonds::Flow::Cubic,
                Flow::Cubic8 => bonds::Flow::Cubic8,
                Flow::CubicTls => bonds::Flow::CubicTls,
                Flow::Quic => bonds::Flow::Quic,
            },
            flows: self.flows,
            is_upload: self.upload,
            has_ping: self.ping,
        }
    }

    /// The random sets of links.
    pub(crate) fn sweep(&self) -> Sweep {
        Sweep {
            seed: self.seed,
            count: self.count,
            links: self.links,
            asymmetric: self.asymmetric,
        }
    }

    /// Runs of each case.
    pub(crate) fn runs(&self) -> u32 {
        self.runs.unwrap_or(match self.place {
            World::Lab => 3,
            World::Sim => 1,
        })
    }
}
