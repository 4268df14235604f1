//! Several runs of one scenario on one page, each under another policy, to judge a new scheduler.
//!
//! The page shows goodput over time with a line for each run, then a table with a row for each run and flow. The runs
//! are compared without adjustment: with the same scenario and seed, runs in the simulator differ by the policy only.

use super::{
    chart::{Chart, ChartLine},
    format::{NOTHING, maybe, number, percent},
    page::page,
    plot::{Figure, WIDTHS},
    scenario,
    svg::escape,
    tables::Table,
};
use crate::results::{FlowKind, Results};

/// Returns the whole HTML page for `runs` of one scenario, in this order. At most 7 runs have different colours.
#[must_use]
pub fn beside(runs: &[Results]) -> String {
    let first = runs.first().map_or("no run", scenario);
    let names: Vec<&str> = runs.iter().map(|run| run.policy.as_str()).collect();
    let title = format!("{first}: {}", names.join(" beside "));
    let mut out = format!("<header>\n<h1>{}</h1>\n", escape(&title));
    let description = runs.first().and_then(|run| run.description.as_deref());
    if let Some(description) = description {
        out += &format!("<p class=\"subject\">{}</p>\n", escape(description));
    }
    out += "</header>\n";
    let chart = goodput(runs);
    let [wide, narrow] = WIDTHS;
    let drawings = chart.svg(wide, HEIGHT).zip(chart.svg(narrow, HEIGHT));
    out += &Figure {
        title: "Goodput of all flows",
        caption: chart.label.clone(),
        legend: chart.legend(),
        drawings: drawings.map(Into::into),
    }
    .html();
    out += &table(runs).html();
    page(&title, "", &out)
}

/// Returns the table of [`beside`] for a terminal.
#[must_use]
pub fn beside_table(runs: &[Results]) -> String {
    table(runs).text()
}

/// Height of the plot in pixels.
const HEIGHT: f64 = 300.0;

fn goodput(runs: &[Results]) -> Chart {
    let line = |run: &Results| ChartLine {
        name: run.policy.clone(),
        values: total(run),
        is_ideal: false,
    };
    Chart {
        label: "Payload that all flows together delivered, one line per policy.".to_owned(),
        unit: "Mbit/s".to_owned(),
        interval_s: runs.first().map_or(0.0, |run| run.series.interval_ms / 1e3),
        across: None,
        lines: runs.iter().map(line).collect(),
        at_least: 1.0,
    }
}

/// Returns the sum of the goodputs of all flows per sample. A flow without a sample at that time counts as zero.
fn total(run: &Results) -> Vec<f64> {
    let flows = || run.series.flows.iter().map(|flow| &flow.goodput_mbps);
    let samples = flows().map(Vec::len).max().unwrap_or(0);
    let at = |index| flows().filter_map(move |flow| flow.get(index).copied());
    let sum = |index| at(index).filter(|value: &f64| value.is_finite()).sum();
    (0..samples).map(sum).collect()
}

fn table(runs: &[Results]) -> Table {
    let rows = runs.iter().flat_map(|run| {
        let flows = run.flows.iter().filter(|flow| flow.kind != FlowKind::Ping);
        flows.map(|flow| {
            let ping = run.pings.as_ref().map(|pings| pings.loaded.rtt_ms);
            vec![
                run.policy.clone(),
                flow.name.clone(),
                number(flow.goodput_mbps),
                percent(flow.loss),
                maybe(flow.delay_ms.p50),
                maybe(flow.delay_ms.p99),
                flow.reorder_depth_max.to_string(),
                ping.map_or_else(|| NOTHING.to_owned(), |rtt| maybe(rtt.p50)),
                ping.map_or_else(|| NOTHING.to_owned(), |rtt| maybe(rtt.p99)),
            ]
        })
    });
    Table {
        title: "Flows",
        left: 2,
        head: vec![
            "policy",
            "flow",
            "Mbit/s",
            "loss",
            "delay p50 ms",
            "p99 ms",
            "reordering depth",
            "ping p50 ms",
            "p99 ms",
        ],
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{FlowResult, FlowSeries, Series};

    fn run(policy: &str, goodput_mbps: &[f64]) -> Results {
        let flow = |name: &str| FlowSeries {
            name: name.to_owned(),
            goodput_mbps: goodput_mbps.to_vec(),
            ..FlowSeries::default()
        };
        Results {
            scenario: "pair".to_owned(),
            policy: policy.to_owned(),
            flows: vec![FlowResult {
                name: "download".to_owned(),
                goodput_mbps: 42.5,
                ..FlowResult::default()
            }],
            series: Series {
                interval_ms: 100.0,
                flows: vec![flow("download"), flow("upload")],
                ..Series::default()
            },
            ..Results::default()
        }
    }

    #[test]
    fn each_run_has_a_line_and_a_row() {
        let runs = [
            run("mine <1>", &[1.0, f64::NAN, 3.0]),
            run("adaptive", &[2.0]),
        ];
        assert_eq!(total(&runs[0]), [2.0, 0.0, 6.0]);
        let page = beside(&runs);
        assert!(page.contains("mine &lt;1&gt;") && page.contains("adaptive"));
        assert!(page.contains("<svg viewBox") && !page.contains("no data"));
        let table = beside_table(&runs);
        assert!(
            table
                .lines()
                .nth(1)
                .is_some_and(|row| row.starts_with("mine <1>  download"))
        );
        assert_eq!(table.matches("42.5").count(), 2, "{table}");
    }

    #[test]
    fn without_runs_there_is_a_page_that_says_so() {
        let page = beside(&[]);
        assert!(page.contains("no data") && page.contains("no run"));
    }
}
