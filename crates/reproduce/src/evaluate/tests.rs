use pleach_sim::results::{FlowResult, Results};

use super::*;
use crate::{
    experiment::{Cell, Check, Kind, Range},
    registry,
};

/// Returns a target whose headline is the loss of the first flow in cell `id`. `order` is [`Target::order`].
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
            role: Role::Judged,
            measure: Box::new(move |runs| Some(runs.get(id)?.flows.first()?.loss * 100.0)),
        }],
        cells: vec![id.to_owned()],
        order,
        source: Source::Published,
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
        .map(|record| (record.id, record.sim_verdict.and_then(Verdict::ok)))
        .collect()
}

#[test]
fn in_range_and_in_order_is_reproduced() {
    let sim = runs(&[("a", 1.9), ("b", 1.0), ("c", 0.6)]);
    let worlds = Worlds {
        sim,
        ..Worlds::default()
    };
    let all = ["a", "b", "c"].map(|id| (id.to_owned(), Some(true)));
    assert_eq!(oks(&worlds), all);
}

#[test]
fn one_world_out_of_range_is_missed() {
    let worlds = Worlds {
        sim: runs(&[("a", 1.9), ("b", 1.0), ("c", 0.6)]),
        lab: runs(&[("a", 2.1), ("b", 1.0), ("c", 0.6)]),
        ..Worlds::default()
    };
    let records = evaluate(&[experiment()], &worlds);
    assert_eq!(records[0].ok, Some(false));
    assert_eq!(records[1].ok, Some(true));
    assert_eq!(records[0].sim_verdict, Some(Verdict::Reproduced));
    assert_eq!(records[0].lab_verdict, Some(Verdict::Missed));
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
        ..Worlds::default()
    };
    let oks_of = |worlds: &Worlds| oks(worlds).into_iter().map(|r| r.1).collect::<Vec<_>>();
    assert_eq!(oks_of(&worlds), [Some(false), Some(false), Some(true)]);
    let worlds = Worlds {
        sim: runs(&[("a", 1.0), ("b", 0.9)]),
        ..Worlds::default()
    };
    assert_eq!(oks_of(&worlds), [None, None], "the third did not run");
    let same = Worlds {
        sim: runs(&[("a", 1.0), ("b", 1.0), ("c", 0.9)]),
        ..Worlds::default()
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
        ..Worlds::default()
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
fn a_world_that_did_not_run_or_was_refused_leaves_a_target_incomplete() {
    let all = [("a", 1.9), ("b", 1.0), ("c", 0.6)];
    let mut worlds = Worlds {
        sim: runs(&all),
        ..Worlds::default()
    };
    let verdicts = |worlds: &Worlds| -> Vec<Verdict> {
        let records = evaluate(&[experiment()], worlds);
        records.into_iter().map(|record| record.verdict).collect()
    };
    assert_eq!(verdicts(&worlds), [Verdict::Incomplete; 3]);
    worlds.lab = runs(&all);
    assert_eq!(verdicts(&worlds), [Verdict::Reproduced; 3]);
    let late = Results {
        refused: Some("late".to_owned()),
        ..lost(1.0)
    };
    worlds.lab.insert("c", late);
    assert_eq!(verdicts(&worlds)[2], Verdict::Incomplete);
    // A value out of range in the simulator means missed, even if the lab has no value.
    worlds.sim.insert("c", lost(3.0));
    assert_eq!(verdicts(&worlds)[2], Verdict::Missed);
}

#[test]
fn the_mean_of_the_seeds_is_judged_and_their_spread_shown() {
    let worlds = Worlds {
        sim: runs(&[("a", 2.2), ("b", 1.0), ("c", 0.6)]),
        more_sim: vec![runs(&[("a", 1.8)]), runs(&[("a", 1.4)])],
        ..Worlds::default()
    };
    let a = evaluate(&[experiment()], &worlds).remove(0);
    let spread = a.headline.sim_spread.expect("three seeds");
    assert_eq!((spread.seeds, spread.least, spread.most), (3, 1.4, 2.2));
    assert!(a.headline.sim.is_some_and(|mean| (mean - 1.8).abs() < 1e-9));
    assert_eq!(a.sim_verdict, Some(Verdict::Reproduced));
}

#[test]
fn what_stands_beside_decides_nothing() {
    let mut experiment = experiment();
    let beside = target("a", &[]).checks.remove(0).beside();
    experiment.targets[0].checks.push(Check {
        accepted: Range::above(9.0),
        ..beside
    });
    let worlds = Worlds {
        sim: runs(&[("a", 1.9), ("b", 1.0), ("c", 0.6)]),
        ..Worlds::default()
    };
    let a = evaluate(&[experiment], &worlds).remove(0);
    assert_eq!(a.sim_verdict, Some(Verdict::Reproduced));
    assert_eq!(
        (a.parts[0].role, a.parts[0].ok),
        (Role::Beside, Some(false))
    );
    assert!(
        a.notes.iter().all(|note| !note.contains("1.900")),
        "{:?}",
        a.notes
    );
}

#[test]
fn json_keeps_the_contract() {
    let worlds = Worlds {
        sim: runs(&[("a", 1.9)]),
        ..Worlds::default()
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
