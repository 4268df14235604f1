//! One download through `adaptive` beside the same download over each link alone.

use core::fmt::{self, Write as _};

use pleach_sim::{
    bonds::{Case, Flow, Load},
    run::{EngineOnly, Options, run},
    scenario::Scenario,
};
use rayon::prelude::*;

/// The promise: the bond reaches this share of what the better link carries alone.
pub(crate) const NO_REGRET: f64 = 0.95;

/// The senders of the downloads.
pub(crate) const FLOWS: [Flow; 2] = [Flow::Cubic, Flow::Bbr];

/// What one flow reached over one set of links, in Mbit/s.
pub(crate) struct Share {
    pub(crate) case: Case,
    pub(crate) flow: Flow,
    /// Over each link alone, without tunnel.
    pub(crate) singles_mbps: Vec<f64>,
    /// Over all of them, through the tunnel.
    pub(crate) bonded_mbps: f64,
}

impl Share {
    /// The bond over the better link.
    pub(crate) fn of_best(&self) -> f64 {
        let best = self.singles_mbps.iter().copied().fold(0.0, f64::max);
        self.bonded_mbps / best
    }
}

/// Two lines: the figures, and the links with what each carries alone.
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

/// What the sender of `flow` is called.
pub(crate) fn flow_name(flow: Flow) -> &'static str {
    match flow {
        Flow::Bbr => "bbr",
        Flow::Cubic => "cubic",
        Flow::Cubic8 => "cubic8",
        Flow::CubicTls => "cubic-tls",
        Flow::Quic => "quic",
    }
}

/// Every flow over every case, by case, then flow. Runs are independent, on all cores.
///
/// # Panics
/// If a scenario cannot be simulated, which its text then says.
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
    // One by one: their lengths differ by a factor of a hundred.
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

/// The table of `shares` and how each is measured again.
pub(crate) fn table<'a>(shares: impl IntoIterator<Item = &'a Share>) -> String {
    let mut text = String::from("pair           flow   share   bonded\n");
    for share in shares {
        let flow = flow_name(share.flow);
        let name = &share.case.name;
        let seed = name.split('-').nth(1).unwrap_or_default();
        // Writing to a string does not fail.
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
