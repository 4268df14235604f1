use std::collections::BTreeSet;

use super::*;

#[test]
fn every_target_is_there_once() {
    let experiments = all();
    let ids = experiments
        .iter()
        .flat_map(|e| e.targets.iter().map(|t| t.id));
    let ids: Vec<&str> = ids.collect();
    let l3 = (1..=16).map(|n| format!("R-L3-{n}"));
    let os = (1..=6).map(|n| format!("R-OS-{n}"));
    let csn = (1..=9).map(|n| format!("R-CSN-{n}"));
    let db = (1..=8).map(|n| format!("R-DB-{n}"));
    let nat = (1..=10).map(|n| format!("R-NAT-{n}"));
    let wanted: BTreeSet<String> = l3.chain(csn).chain(os).chain(db).chain(nat).collect();
    assert_eq!(ids.len(), wanted.len(), "once each: {ids:?}");
    let ids: BTreeSet<String> = ids.into_iter().map(str::to_owned).collect();
    assert_eq!(ids, wanted);
}

#[test]
fn names_differ_and_everything_is_explained() {
    let experiments = all();
    let mut names = BTreeSet::new();
    for experiment in &experiments {
        assert!(
            names.insert(experiment.name.to_owned()),
            "{}",
            experiment.name
        );
        assert!(!experiment.about.is_empty() && !experiment.targets.is_empty());
        for cell in &experiment.cells {
            // A scenario for the lab has the same name as the simulated scenario that it replaces.
            let mine = if cell.kind == Kind::Played {
                format!("{} in the lab", cell.name)
            } else {
                cell.name.clone()
            };
            // The only cell of an experiment may have the experiment's name.
            let is_alone = cell.name == experiment.name;
            assert!(names.insert(mine) || is_alone, "{}", cell.name);
        }
        for figure in &experiment.figures {
            assert!(!figure.panels.is_empty(), "{}", figure.id);
        }
        for target in &experiment.targets {
            assert!(
                !target.checks.is_empty() && !target.cells.is_empty(),
                "{}",
                target.id
            );
            for cell in &target.cells {
                let mut cells = experiment.cells.iter();
                let known = cells.any(|known| known.name == *cell && known.kind != Kind::Played);
                assert!(known, "{}: no cell {cell}", target.id);
            }
            if !target.order.is_empty() {
                assert!(target.order.contains(&target.id), "{}", target.id);
            }
            for check in &target.checks {
                assert!(check.reason.len() > 20, "{}: {}", target.id, check.what);
                let Range { low, high } = check.accepted;
                assert!(low.is_some() || high.is_some(), "{}", target.id);
                assert!(
                    low.unwrap_or(f64::MIN) < high.unwrap_or(f64::MAX),
                    "{}",
                    target.id
                );
            }
        }
    }
}

use crate::experiment::{Kind, Range};

#[test]
fn published_values_are_accepted_where_they_ought_to_be() {
    for target in all().iter().flat_map(|experiment| &experiment.targets) {
        for check in &target.checks {
            let Some(published) = check.published else {
                continue;
            };
            assert!(
                check.accepted.accepts(published),
                "{}: {}",
                target.id,
                check.what
            );
        }
    }
}

#[test]
fn orders_are_those_of_the_published_values() {
    let experiments = all();
    let published = |id: &str| {
        let mut targets = experiments
            .iter()
            .flat_map(|experiment| &experiment.targets);
        let target = targets.find(|target| target.id == id).expect(id);
        target.checks[0].published.expect("ordered by it")
    };
    for target in experiments
        .iter()
        .flat_map(|experiment| &experiment.targets)
    {
        for pair in target.order.windows(2) {
            assert!(published(pair[0]) > published(pair[1]), "{pair:?}");
        }
    }
}

#[test]
fn scenarios_are_valid() {
    for cell in all().iter().flat_map(|experiment| &experiment.cells) {
        if let Kind::Transfer(experiment) = cell.kind {
            let transfer = cell.transfer().unwrap_or_else(|error| panic!("{error:#}"));
            assert_eq!(transfer.name, cell.name);
            assert!(transfer.name.starts_with(experiment) && !transfer.case.is_empty());
            continue;
        }
        if let Kind::Correction(experiment) = cell.kind {
            let correction = cell
                .correction()
                .unwrap_or_else(|error| panic!("{error:#}"));
            assert!(correction.name == cell.name && cell.name.starts_with(experiment));
            continue;
        }
        if let Kind::Modelled(experiment) | Kind::Workload(experiment) = cell.kind {
            let workload = cell.workload().unwrap_or_else(|error| panic!("{error:#}"));
            assert_eq!(workload.name, cell.name);
            assert!(workload.name.starts_with(experiment) && !workload.case.is_empty());
            continue;
        }
        let scenario = cell.scenario().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(scenario.name, cell.name);
        assert!(!scenario.traffic.is_empty());
        if cell.is_variant() {
            assert_eq!(cell.kind, Kind::Simulated, "{}", cell.name);
            continue;
        }
        let is_simulated = matches!(cell.kind, Kind::Played | Kind::Simulated);
        let has_equalizers = scenario.equalizers.len() == 2;
        assert_eq!(is_simulated, has_equalizers, "{}", cell.name);
        assert_eq!(scenario.tunnel.is_none(), has_equalizers);
    }
}

fn chosen(asked: &[&str]) -> Vec<(String, usize, usize)> {
    let asked: Vec<String> = asked.iter().map(|&text| text.to_owned()).collect();
    let chosen = select(all(), &asked).expect("known");
    chosen
        .iter()
        .map(|e| {
            let cells = e.cells.iter().filter(|cell| !cell.is_variant());
            (e.name.to_owned(), e.targets.len(), cells.count())
        })
        .collect()
}

#[test]
fn selects_by_id_paper_and_experiment() {
    let flow = "l3-single-flow".to_owned();
    assert_eq!(chosen(&["R-L3-5"]), [(flow.clone(), 1, 1)]);
    assert_eq!(chosen(&["r-l3-16", "R-L3-5"]), [(flow.clone(), 2, 9)]);
    assert_eq!(chosen(&["l3-single-flow"]), [(flow, 12, 9)]);
    assert_eq!(chosen(&["L3"]).len(), 4);
    assert_eq!(chosen(&["os"]).len(), 3);
    assert_eq!(chosen(&["R-OS-4"]), [("os-in-order".to_owned(), 1, 1)]);
    assert_eq!(chosen(&["DB"]).len(), 3);
    assert_eq!(chosen(&["csn"]).len(), 2);
    assert_eq!(chosen(&["nat"]).len(), 4);
    assert_eq!(chosen(&[]).len(), 4 + 2 + 3 + 3 + 4);
}

#[test]
fn unknown_names_are_told_with_near_ones() {
    let unknown = |asked: &str| {
        let Err(unknown) = select(all(), &[asked.to_owned()]) else {
            panic!("{asked} is known")
        };
        unknown
    };
    let near = unknown("R-L3-55").near;
    assert!(near.contains(&"R-L3-5".to_owned()), "{near:?}");
    assert!(
        unknown("l3-single")
            .near
            .contains(&"l3-single-flow".to_owned())
    );
    assert_eq!(unknown("xyz").near, [] as [&str; 0]);
    assert!(unknown("xyz").to_string().contains("--list"));
}

#[test]
fn the_list_names_all() {
    let list = list(&all());
    assert!(
        list.contains("R-L3-16") && list.contains("l3-tcp-shares"),
        "{list}"
    );
    assert_eq!(
        list.lines().count(),
        4 + 16 + 2 + 9 + 3 + 6 + 3 + 8 + 4 + 10
    );
}
