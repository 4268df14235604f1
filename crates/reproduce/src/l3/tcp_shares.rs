//! Section 5.4, statements of the text: how UDP through the tunnel and TCP on the DSL outside the tunnel share the
//! links, and that the shares do not depend on k.
//!
//! UDP runs at 62 Mbit/s from 0 s, one or two TCP flows from 10 s. `T_dwd` is 500 ms, a run takes 88 s, and k is 1 in
//! the main cells.

use super::testbed::{self, Parameters};
use crate::{
    experiment::{
        Cell, Check, Experiment, Figure, Kind, Measure, Panel, Range, Role, Source, Target,
    },
    runs::Runs,
    series,
};

const DURATION_S: f64 = 88.0;
const TCP_START_S: f64 = 10.0;
/// k and the number of TCP flows of each cell.
const CELLS: [(f64, u32); 4] = [(1.0, 1), (1.0, 2), (0.5, 1), (0.1, 1)];
const ONE_MBPS: f64 = 7.79;
const TWO_MBPS: f64 = 14.30;

/// Returns the experiment: four cells, one target.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "l3-tcp-shares",
        paper: "L3",
        about: "UDP of nearly the DSL's rate, then one or two TCP flows on the DSL (5.4)",
        cells: CELLS.map(|(k, flows)| cell(k, flows)).to_vec(),
        targets: vec![target()],
        figures: vec![Figure {
            id: "tcp-shares",
            title: "TCP beside 62 Mbit/s of UDP (not drawn in the paper)",
            caption: "T_dwd = 500 ms.",
            panels: CELLS.map(|(k, flows)| panel(k, flows)).into(),
        }],
    }
}

fn cell_name(k: f64, flows: u32) -> String {
    format!("l3-tcp-shares-k{}-tcp{flows}", testbed::k_in_name(k))
}

fn cell(k: f64, flows: u32) -> Cell {
    let name = cell_name(k, flows);
    let about = format!("UDP at 62 Mbit/s and {flows} TCP on the DSL: k {k}");
    let parameters = Parameters {
        k,
        t_dwd_ms: 500,
        w_mobile_max: 50,
    };
    let toml = testbed::scenario(&name, &about, DURATION_S, parameters)
        + &testbed::udp("udp", 62.0, 0.0, DURATION_S)
        + &testbed::tcp(flows, TCP_START_S, DURATION_S);
    Cell {
        name,
        toml,
        kind: Kind::Scenario,
    }
}

fn target() -> Target {
    let check = |what: &str, unit, published, accepted, reason, measure: Measure| Check {
        what: what.to_owned(),
        unit,
        published,
        accepted,
        reason,
        role: Role::Judged,
        measure,
    };
    const RATE: &str = "a factor of 1.5, as for the loss rates: one run, whose outcome \"is also influenced by the \
                        aggressiveness of the congestion control\" of the time's kernel";
    Target {
        id: "R-L3-14",
        what: "two TCP flows get almost twice of what one gets, whatever k",
        checks: vec![
            check(
                "sum of two TCP flows over one",
                "times",
                Some(TWO_MBPS / ONE_MBPS),
                Range::within_factor(TWO_MBPS / ONE_MBPS, 1.2),
                "a factor of 1.2: the quotient of two single runs, whose common conditions cancel",
                Box::new(|runs| Some(goodput(runs, 1.0, 2)? / goodput(runs, 1.0, 1)?)),
            ),
            check(
                "one TCP flow",
                "Mbit/s",
                Some(ONE_MBPS),
                Range::within_factor(ONE_MBPS, 1.5),
                RATE,
                Box::new(|runs| goodput(runs, 1.0, 1)),
            ),
            check(
                "two TCP flows, sum",
                "Mbit/s",
                Some(TWO_MBPS),
                Range::within_factor(TWO_MBPS, 1.5),
                RATE,
                Box::new(|runs| goodput(runs, 1.0, 2)),
            ),
            check(
                "one TCP flow with k 0.1, 0.5 and 1: the most over the least",
                "times",
                None,
                Range::at_most(1.5),
                "\"no significant influence\": no more than single runs are trusted to agree",
                Box::new(|runs| {
                    let rates = [0.1, 0.5, 1.0].map(|k| goodput(runs, k, 1));
                    let rates: Vec<f64> = rates.into_iter().collect::<Option<_>>()?;
                    let most = rates.iter().copied().reduce(f64::max)?;
                    Some(most / rates.iter().copied().reduce(f64::min)?)
                }),
            ),
        ],
        cells: CELLS.map(|(k, flows)| cell_name(k, flows)).to_vec(),
        order: &[],
        source: Source::Published,
        known: "TCP gets what the UDP flow leaves of the DSL before its losses move the weight, so a larger k gives it more: over \
                five seeds 4.5 to 5.2, 5.8 to 6.6 and 8.5 to 10.1 Mbit/s with k 0.1, 0.5 and 1; the paper saw no significant \
                influence. The rates also follow how even the UDP sender is, which was not published: 1 ms of jitter \
                was chosen for them",
    }
}

fn goodput(runs: &Runs, k: f64, flows: u32) -> Option<f64> {
    let flow = series::flow(runs.get(&cell_name(k, flows))?, "tcp")?;
    Some(flow.goodput_mbps).filter(|rate| *rate > 0.0)
}

fn panel(k: f64, flows: u32) -> Panel {
    Panel {
        title: format!("k = {k}, {flows} TCP"),
        draw: Box::new(move |runs| {
            let name = cell_name(k, flows);
            let tcp = &series::flow_series(runs.get(&name)?, "tcp")?.goodput_mbps;
            testbed::throughput(runs, &name, vec![testbed::line("TCP on the DSL", tcp)])
        }),
    }
}
