//! The command line.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    path::PathBuf,
    str::FromStr,
};

use clap::{Parser, ValueEnum};
use pleach_sim::bonds::{self, Load, Sweep};

/// Compares the tunnel over several links with the same links alone.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// In the simulator, or in namespaces with real daemons and kernels.
    #[arg(long = "in", value_enum, default_value_t = World::Sim)]
    pub(crate) place: World,
    /// Sets of links [default: profiles and pairs].
    #[arg(long = "set", value_enum)]
    set: Vec<Set>,
    /// Only cases whose name contains this text; may be given several times, for alternatives.
    #[arg(long)]
    pub(crate) case: Vec<String>,
    /// Policy of the tunnel.
    #[arg(long, default_value = "adaptive")]
    pub(crate) policy: String,
    /// A line of `[tunnel]`, such as `redundancy=0.1`.
    #[arg(long = "key")]
    pub(crate) keys: Vec<String>,
    /// Traffic of the download.
    #[arg(long, value_enum, default_value_t = Flow::Cubic)]
    pub(crate) flow: Flow,
    /// Number of simultaneous TCP connections [default: 1, or 8 for cubic8].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    flows: Option<u32>,
    /// Upload instead of downloading.
    #[arg(long)]
    pub(crate) upload: bool,
    /// Ping through the tunnel during the download.
    #[arg(long)]
    pub(crate) ping: bool,
    /// Runs of a case, of which the median is used [default: 1 simulated, 3 in the lab].
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
    /// Number of links in each case of the sweep.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=8))]
    links: u32,
    /// Let the upload rate of the sweep's links range from the download rate down to a twentieth of it.
    #[arg(long)]
    asymmetric: bool,
    /// File for all figures, in bench-results/profiles unless it is absolute.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// Also measure another program over the same links (lab only), as NAME=PROGRAM; may be given several times. The
    /// program is called like pleach: genkey, pubkey, and up FILE, with a configuration of pleach. It finds the best link
    /// first in FILE, and the client's traffic must leave from one of the addresses in FILE.
    #[arg(long = "peer", value_name = "NAME=PROGRAM")]
    pub(crate) peers: Vec<Peer>,
    /// Measure the single links again.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Option that cargo adds.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Another program that takes pleach's place in the lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    /// Hash of the program, so that figures of another version are not used.
    pub(crate) content: u64,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=');
        let (name, path) =
            parts.ok_or("expected NAME=PROGRAM, such as mine=/usr/local/bin/mine")?;
        let wrong = |error: io::Error| format!("{path}: {error}");
        let program = fs::canonicalize(path).map_err(wrong)?;
        let mut hasher = DefaultHasher::new();
        fs::read(&program).map_err(wrong)?.hash(&mut hasher);
        Ok(Self {
            name: name.to_owned(),
            program,
            content: hasher.finish(),
        })
    }
}

/// World in which the cases run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum World {
    Lab,
    Sim,
}

/// A set of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Set {
    /// Nine pairs for which measurements of other systems exist.
    Pairs,
    /// Sixteen profiles, each with deep and shallow queues, and with jitter with and without reordering.
    Profiles,
    /// Four and seven links, each with deep and shallow queues.
    Many,
    /// Two to four recorded links, from the directory PLEACH_TRACES.
    Recordings,
    /// Random links (simulator only).
    Sweep,
}

/// Traffic of the download.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Flow {
    /// One TCP connection with BBR.
    Bbr,
    /// One TCP connection with CUBIC.
    Cubic,
    /// Eight TCP connections with CUBIC.
    Cubic8,
    /// One TCP connection with CUBIC, after a handshake like that of TLS.
    CubicTls,
    /// One QUIC connection.
    Quic,
}

impl Options {
    /// Returns the selected sets, each once.
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

    /// Returns the load to send over the links.
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

    /// Returns the random sets of links.
    pub(crate) fn sweep(&self) -> Sweep {
        Sweep {
            seed: self.seed,
            count: self.count,
            links: self.links,
            asymmetric: self.asymmetric,
        }
    }

    /// Returns the number of runs of each case.
    pub(crate) fn runs(&self) -> u32 {
        self.runs.unwrap_or(match self.place {
            World::Lab => 3,
            World::Sim => 1,
        })
    }
}
