//! The traffic of a run, its cases, and its figure.

use core::fmt::Write as _;

use pleach_sim::{
    bonds::{Case, Flow, Load, Sweep},
    results::{FlowResult, Results},
};

use crate::{rule::Rule, sets};

/// Traffic through the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// One download with BBR.
    Bbr,
    /// Downloads of 30 kB, each on a new connection, in parallel with a large download.
    Busy,
    /// One download with CUBIC.
    Cubic,
    /// Eight downloads with CUBIC.
    Cubic8,
    /// A UDP stream of 4 Mbit/s whose datagrams must arrive within 200 ms, in parallel with a download.
    Deadline,
    /// One download while the first link is silent for two seconds, twice.
    Failing,
    /// One QUIC download.
    Quic,
    /// Downloads of 100 kB, each on a new connection, one after the other.
    Requests,
    /// One upload with CUBIC.
    Upload,
}

impl Workload {
    /// The traffic of the screening.
    pub(crate) const SCREEN: [Self; 2] = [Self::Cubic, Self::Bbr];
    /// The traffic of the second stage.
    pub(crate) const BEARING: [Self; 7] = [
        Self::Cubic8,
        Self::Quic,
        Self::Upload,
        Self::Requests,
        Self::Busy,
        Self::Deadline,
        Self::Failing,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bbr => "BBR",
            Self::Busy => "requests, busy",
            Self::Cubic => "CUBIC",
            Self::Cubic8 => "8 CUBIC",
            Self::Deadline => "UDP, deadline",
            Self::Failing => "failing link",
            Self::Quic => "QUIC",
            Self::Requests => "requests",
            Self::Upload => "upload",
        }
    }

    /// Returns the maximum number of cases: eight connections take eight times as long to simulate.
    pub(crate) const fn most_cases(self) -> usize {
        match self {
            Self::Cubic8 => 30,
            Self::Bbr
            | Self::Busy
            | Self::Cubic
            | Self::Deadline
            | Self::Failing
            | Self::Quic
            | Self::Requests
            | Self::Upload => usize::MAX,
        }
    }

    /// Whether the figure is a goodput, which can be compared with that of a link alone.
    pub(crate) const fn has_share(self) -> bool {
        match self {
            Self::Bbr | Self::Cubic | Self::Cubic8 | Self::Quic | Self::Upload => true,
            Self::Busy | Self::Deadline | Self::Failing | Self::Requests => false,
        }
    }

    /// Returns the load without the tables that [`Self::bonded`] adds.
    fn load(self) -> Load {
        let flow = match self {
            Self::Bbr => Flow::Bbr,
            Self::Cubic8 => Flow::Cubic8,
            Self::Quic => Flow::Quic,
            Self::Busy
            | Self::Cubic
            | Self::Deadline
            | Self::Failing
            | Self::Requests
            | Self::Upload => Flow::Cubic,
        };
        Load {
            is_upload: self == Self::Upload,
            ..Load::download(flow)
        }
    }

    /// Returns the scenario of run `run` of `case` through the tunnel, without `rule`.
    pub(crate) fn bonded(self, case: &Case, rule: Option<&Rule>, run: u32) -> String {
        let keys = rule.map(Rule::lines).unwrap_or_default();
        let mut text = case.bonded(&self.load(), "adaptive", &keys, run);
        // Writing to a string cannot fail.
        let _ = match self {
            Self::Deadline => text.write_str(
                "[[traffic]]\nkind = \"udp\"\nname = \"stream\"\nrate = \"4Mbit\"\nsize = \"1200B\"\ndeadline = \"200ms\"\n\
                 [[tunnel.class]]\nname = \"stream\"\nprotocol = 17\ndeadline = \"200ms\"\n",
            ),
            Self::Busy => {
                text.write_str("[[traffic]]\nkind = \"requests\"\nname = \"requests\"\nsize = \"30kB\"\n")
            }
            Self::Failing => {
                let link = &case.links[0].name;
                SILENCES_S.into_iter().try_for_each(|(begin, end)| {
                    write!(
                        text,
                        "[[event]]\nat = \"{begin}s\"\nlink = {link:?}\nstate = \"blackhole\"\n\
                         [[event]]\nat = \"{end}s\"\nlink = {link:?}\nstate = \"up\"\n"
                    )
                })
            }
            Self::Requests => {
                let download = "[[traffic]]\nname = \"download\"\nkind = \"tcp\"\ncc = \"cubic\"\n";
                text = text.replace(download, "");
                text.write_str("[[traffic]]\nkind = \"requests\"\nname = \"requests\"\nsize = \"100kB\"\n")
            }
            Self::Bbr | Self::Cubic | Self::Cubic8 | Self::Quic | Self::Upload => Ok(()),
        };
        text
    }

    /// Returns the scenarios of run `run` over each link of `case` alone.
    pub(crate) fn singles(self, case: &Case, run: u32) -> impl Iterator<Item = String> {
        let load = self.load();
        let links = case.links.iter();
        links.map(move |link| case.single(&load, link, run))
    }

    /// Returns the figure of a run: the goodput in Mbit/s, or the inverse of the delay of requests or datagrams in 1/s.
    /// More is better.
    pub(crate) fn figure(self, case: &Case, results: &Results) -> Option<f64> {
        let per_second = |name: &str, delay_ms: fn(&FlowResult) -> Option<f64>| {
            let mut flows = results.flows.iter();
            let flow = flows.find(|flow| flow.name == name)?;
            Some(1e3 / delay_ms(flow)?.max(0.001))
        };
        match self {
            Self::Bbr | Self::Cubic | Self::Cubic8 | Self::Failing | Self::Quic | Self::Upload => {
                case.goodput(results)
            }
            Self::Busy | Self::Requests => per_second("requests", |flow| flow.delay_ms.p50),
            Self::Deadline => per_second("stream", |flow| flow.delay_ms.p99),
        }
    }
}

/// Times at which the first link is silent, in seconds from the beginning of the run.
const SILENCES_S: [(u32, u32); 2] = [(4, 6), (8, 10)];

/// Returns `count` cases: the deep profiles and all pairs, alternating with random pairs of `seed`.
pub(crate) fn cases(count: usize, seed: u64) -> Vec<Case> {
    let is_deep = |case: &Case| case.name.contains("deep");
    let profiles = sets::profiles().into_iter().filter(is_deep);
    let pairs = sets::pairs().into_iter();
    let sweep = Sweep {
        seed,
        count: u32::try_from(count).unwrap_or(u32::MAX),
        links: 2,
        asymmetric: false,
    };
    let mut random = sweep.cases().into_iter();
    // Alternating, so that any number of cases contains both kinds.
    let mut cases = Vec::with_capacity(count);
    for fixed in profiles.chain(pairs) {
        cases.push(fixed);
        cases.extend(random.next());
    }
    cases.extend(random);
    cases.truncate(count);
    cases
}
