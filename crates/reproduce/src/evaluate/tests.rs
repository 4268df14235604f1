use pleach_sim::results::{FlowResult, Results};

use super::*;
use crate::{
    experiment::{Cell, Kind, Range},
    registry,
};

/// A target whose headline is the loss of flow `f` in cell `id`, in order with the others.
fn target(id: &'static str, order: &'static [&'static str]) -> Target {
    Target {
        id,
        what: "loss",
        checks: vec![Check {
            what: "loss".to_owned(),
            unit: "%",
            published: Some(1.0),
            accepted: Range::within_factor(1.0, 2.0),
            reason: "a test",
            measure: Box::new(move |runs| Some(runs.get(id)?.flows.first()?.loss * 100.0)),
        }],
        cells: vec![id.to_owned()],
        order,
        known: "as it is known to be",
    }
}

fn experiment() -> Experiment {
    const ORDER: &[&str] = &["a", "b", "c"];
    Experiment {
        name: "test-loss",
        paper: "T",
        about: "a test",
        cells: ["a", "b", "c"]
            .map(|name| Cell {
                name: name.to_owned(),
                toml: String::new(),
                kind: Kind::Scenario,
            })
            .to_vec(),
        targets: ORDER.iter().map(|id| target(id, ORDER)).collect(),
        figures: Vec::new(),
    }
}

fn lost(percent: f64) -> Results {
    Results {
        flows: vec![FlowResult {
            loss: percent / 100.0,
            ..FlowResult::default()
        }],
        ..Results::default()
    }
}

fn runs(values: &[(&str, f64)]) -> Runs {
    let mut runs = Runs::default();
    for (cell, percent) in values {
        runs.insert(cell, lost(*percent));
    }
    runs
}

fn oks(worlds: &Worlds) -> Vec<(String, Option<bool>)> {
    evaluate(&[experiment()], worlds)
        .into_iter()
        .map(|record| (record.id, record.ok))
        .collect()
}

#[test]
fn in_range_and_in_order_is_reproduced() {
    let sim = runs(&[("a", 1.9), ("b", 1.0), ("c", 0.6)]);
    let worlds = Worlds {
        sim,
        lab: Runs::default(),
    };
    let all = ["a", "b", "c"].map(|id| (id.to_owned(), Some(true)));
    assert_eq!(oks(&worlds), all);
}

#[test]
fn one_world_out_of_range_is_missed() {
    let worlds = Worlds {
        sim: runs(&[("a", 1.9), ("b", 1.0), ("c", 0.6)]),
        lab: runs(&[("a", 2.1), ("b", 1.0), ("c", 0.6)]),
    };
    let records = evaluate(&[experiment()], &worlds);
    assert_eq!(records[0].ok, Some(false));
    assert_eq!(records[1].ok, Some(true));
    assert_eq!(
        records[0].notes,
        ["lab: loss is 2.100 %", "as it is known to be"]
    );
    assert_eq!(
        (records[0].headline.sim, records[0].headline.lab),
        (Some(1.9), Some(2.1))
    );
}

#[test]
fn out_of_order_is_missed_and_incomplete_is_open() {
    let worlds = Worlds {
        sim: runs(&[("a", 0.9), ("b", 1.0), ("c", 0.6)]),
        lab: Runs::default(),
    };
    let oks_of = |worlds: &Worlds| oks(worlds).into_iter().map(|r| r.1).collect::<Vec<_>>();
    assert_eq!(oks_of(&worlds), [Some(false), Some(false), Some(true)]);
    let worlds = Worlds {
        sim: runs(&[("a", 1.0), ("b", 0.9)]),
        lab: Runs::default(),
    };
    assert_eq!(oks_of(&worlds), [None, None], "the third did not run");
    let same = Worlds {
        sim: runs(&[("a", 1.0), ("b", 1.0), ("c", 0.9)]),
        lab: Runs::default(),
    };
    assert_eq!(
        oks_of(&same)[..2],
        [Some(false), Some(false)],
        "a tie is no order"
    );
}

#[test]
fn refused_runs_do_not_count() {
    let mut lab = runs(&[("a", 1.0)]);
    let late = Results {
        refused: Some("late".to_owned()),
        ..lost(1.0)
    };
    lab.insert("b", late);
    let worlds = Worlds {
        sim: runs(&[("b", 0.9)]),
        lab,
    };
    let records = evaluate(&[experiment()], &worlds);
    let b = records
        .iter()
        .find(|record| record.id == "b")
        .expect("in sim");
    assert_eq!(b.headline.lab, None);
    assert!(
        b.notes
            .iter()
            .any(|note| note.contains("lab: b does not count: late"))
    );
}

#[test]
fn json_keeps_the_contract() {
    let worlds = Worlds {
        sim: runs(&[("a", 1.9)]),
        lab: Runs::default(),
    };
    let json = serde_json::to_value(evaluate(&[experiment()], &worlds)).expect("plain data");
    let record = &json[0];
    for key in [
        "id",
        "what",
        "published",
        "sim",
        "lab",
        "accepted",
        "ok",
        "reason",
        "unit",
        "figures",
    ] {
        assert!(record.get(key).is_some(), "{key}: {record}");
    }
    assert_eq!(record["accepted"], serde_json::json!([0.5, 2.0]));
    assert_eq!(record["sim"].as_f64(), Some(1.9));
    assert!(record["lab"].is_null() && record["ok"].is_null());
}

#[test]
fn nothing_ran_nothing_is_said() {
    assert!(evaluate(&registry::all(), &Worlds::default()).is_empty());
}
