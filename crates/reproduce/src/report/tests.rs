use pleach_sim::results::{LinkSeries, Results, Series};

use super::*;
use crate::{evaluate::evaluate, registry, runs::Runs};

/// Returns the results of a run with two links.
fn ran() -> Results {
    let series = |name: &str| LinkSeries {
        name: name.to_owned(),
        down_mbps: vec![1.0; 400],
        lost_down_pkts: vec![1.0; 400],
        weight: vec![33.0; 400],
        ..LinkSeries::default()
    };
    Results {
        series: Series {
            interval_ms: 100.0,
            links: vec![series("dsl"), series("lte")],
            ..Series::default()
        },
        ..Results::default()
    }
}

fn worlds() -> Worlds {
    let mut sim = Runs::default();
    for cell in registry::all()
        .iter()
        .flat_map(|experiment| &experiment.cells)
    {
        sim.insert(&cell.name, ran());
    }
    Worlds {
        sim,
        ..Worlds::default()
    }
}

#[test]
fn a_missing_world_is_said_not_drawn() {
    let all = registry::all();
    let worlds = worlds();
    let records = evaluate(&all, &worlds);
    assert!(!records.is_empty());
    let page = html(&records, &all, &worlds);
    let panels: usize = all
        .iter()
        .filter(|e| e.cells.iter().any(|cell| cell.runs_in(World::Lab)))
        .filter(|e| records.iter().any(|record| record.experiment == e.name))
        .flat_map(|e| &e.figures)
        .map(|f| f.panels.len())
        .sum();
    assert!(
        page.matches("not run").count() >= panels,
        "the lab's halves"
    );
    assert!(page.contains("<svg viewBox=\"0 0 460"));
    assert!(page.contains("figure-3") && page.contains("id=\"l3-single-flow\""));
    assert!(page.contains("R-L3-15") && page.contains("class=\"missed\""));
}

#[test]
fn nothing_ran_gives_a_page_too() {
    let page = html(&[], &registry::all(), &Worlds::default());
    assert!(page.contains("0 of 0 targets") && page.ends_with("</html>\n"));
    assert!(table(&[]).contains("0 of 0"));
}

#[test]
fn the_table_says_what_is_missed_and_why() {
    let records = evaluate(&registry::all(), &worlds());
    let text = table(&records);
    assert!(
        text.contains("R-L3-15") && text.contains("missed R-L3-16: sim: "),
        "{text}"
    );
    assert!(text.lines().all(|line| !line.ends_with(' ')));
}
