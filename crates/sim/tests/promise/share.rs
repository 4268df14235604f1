//! One download through `adaptive` beside the same download over each link alone.

use core::fmt::{self, Write as _};

use pleach_sim::{
    bonds::{Case, Flow, Load},
    run::{EngineOnly, Options, run},
    scenario::Scenario,
};
use rayon::prelude::*;

/// Share of the better link's goodput that the bond must reach.
pub(crate) const NO_REGRET: f64 = 0.95;

/// Senders of the downloads.
pub(crate) const FLOWS: [Flow; 2] = [Flow::Cubic, Flow::Bbr];

/// Goodput of one flow over one set of links, in Mbit/s.
pub(crate) struct Share {
    pub(crate) case: Case,
    pub(crate) flow: Flow,
    /// Goodput over each link alone, without a tunnel.
    pub(crate) singles_mbps: Vec<f64>,
    /// Goodput over all links, through the tunnel.
    pub(crate) bonded_mbps: f64,
}

impl Share {
    /// Returns the goodput of the bond divided by that of the better link.
    pub(crate) fn of_best(&self) -> f64 {
        let best = self.singles_mbps.iter().copied().fold(0.0, f64::max);
        self.bonded_mbps / best
    }
}

/// Prints two lines: the figures, and the links with their goodput alone.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, flow) = (&self.case.name, flow_name(self.flow));
        write!(
            f,
            "{name:14} {flow:6} {:>5.3} {:>8.2} Mbit/s",
            self.of_best(),
            self.bonded_mbps
        )?;
        for (link, mbps) in self.case.links.iter().zip(&self.singles_mbps) {
            write!(f, "\n    {}: alone {mbps:.2}; {link}", link.name)?;
        }
        Ok(())
    }
}

/// Returns the name of the sender of `flow`.
pub(crate) fn flow_name(flow: Flow) -> &'static str {
    match flow {
        Flow::Bbr => "bbr",
        Flow::Cubic => "cubic",
        Flow::Cubic8 => "cubic8",
        Flow::CubicTls => "cubic-tls",
        Flow::Quic => "quic",
    }
}

/// Measures every flow over every case, ordered by case and flow. Runs are independent, on all cores.
///
/// # Panics
/// Panics with the text of the scenario if it cannot be simulated.
pub(crate) fn measure(cases: &[Case], flows: &[Flow]) -> Vec<Share> {
    let mut jobs = Vec::new();
    for case in cases {
        for flow in flows {
            let load = Load::download(*flow);
            let links = case.links.iter();
            jobs.extend(links.map(|link| (case, case.single(&load, link, 0))));
            jobs.push((case, case.bonded(&load, "adaptive", &[], 0)));
        }
    }
    // Jobs are distributed one by one, because their durations differ by a factor of a hundred.
    let runs = jobs.par_iter().with_max_len(1);
    let mut mbps = runs
        .map(|(case, text)| goodput(case, text))
        .collect::<Vec<f64>>()
        .into_iter();
    let mut shares = Vec::new();
    for case in cases {
        for flow in flows {
            let links = case.links.len();
            shares.push(Share {
                case: case.clone(),
                flow: *flow,
                singles_mbps: mbps.by_ref().take(links).collect(),
                bonded_mbps: mbps.next().expect("one figure a job"),
            });
        }
    }
    shares
}

/// Returns the table of `shares` with the command that repeats each measurement.
pub(crate) fn table<'a>(shares: impl IntoIterator<Item = &'a Share>) -> String {
    let mut text = String::from("pair           flow   share   bonded\n");
    for share in shares {
        let flow = flow_name(share.flow);
        let name = &share.case.name;
        let seed = name.split('-').nth(1).unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{share}\n    replay: ./dev bench profiles -- --set sweep --seed {seed} --case {name} --flow {flow} --fresh"
        );
    }
    text
}

fn goodput(case: &Case, text: &str) -> f64 {
    let scenario = Scenario::parse_alone("promise.toml", text)
        .unwrap_or_else(|error| panic!("{error}:\n{text}"));
    let options = Options {
        program: &EngineOnly,
        skip_baselines: true,
        progress: &|_| {},
    };
    let results = run(&scenario, &options).unwrap_or_else(|error| panic!("{error}:\n{text}"));
    case.goodput(&results).expect("the scenario has a flow")
}
