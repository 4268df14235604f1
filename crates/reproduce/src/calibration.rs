//! Parameters that were fitted or inferred because the papers do not state them, and the targets that depend on them.
//!
//! If a scenario can be run without the calibrated value, each scenario of those targets also runs in the simulator
//! with each of the other values, as a *variant*: a [`Cell`] in which the lines with the value are replaced. The report
//! shows the value of each judged check over the variants next to the check ([`Role::Without`]).

use std::{collections::BTreeMap, sync::Arc};

use crate::experiment::{Cell, Check, Experiment, Kind, Measure, Role, Target};

/// A parameter that is not published.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// Short name, unique.
    pub id: &'static str,
    /// The parameter and its value.
    pub parameter: &'static str,
    /// The observation or reason by which the value was chosen.
    pub chosen_by: &'static str,
    /// Ids of the targets that depend on the parameter.
    pub decides: &'static [&'static str],
    /// Replacements of the value in variants. Empty if no scenario can run without the value.
    pub without: &'static [Without],
}

/// Replacement of a calibrated value in scenarios.
#[derive(Clone, Copy, Debug)]
pub struct Without {
    /// Short name, unique among all replacements: that of the calibration, or this name with the value behind it.
    pub id: &'static str,
    /// The value used instead, in words.
    pub instead: &'static str,
    /// Pairs of a text in the scenarios and its replacement.
    pub lines: &'static [(&'static str, &'static str)],
}

/// All calibrated parameters.
pub const CALIBRATIONS: &[Calibration] = &[
    Calibration {
        id: "dsl",
        parameter: "rate of the DSL at IP level, 62.5 Mbit/s, and its queue, 256 packets",
        chosen_by: "the nine loss rates of section 5.2, which it fits best",
        decides: &[
            "R-L3-1", "R-L3-2", "R-L3-3", "R-L3-4", "R-L3-5", "R-L3-6", "R-L3-7", "R-L3-8",
            "R-L3-9", "R-L3-15", "R-L3-16",
        ],
        without: &[Without {
            id: "dsl",
            instead: "64 Mbit/s, as shaped, and a queue of 100 ms, like the LTE's",
            lines: &[
                ("rate = \"62.5Mbit\"", "rate = \"64Mbit\""),
                ("queue = \"381952B\"", "queue = \"800kB\""),
            ],
        }],
    },
    Calibration {
        id: "jitter",
        parameter: "UDP senders up to 1 ms late",
        chosen_by: "the rate of one TCP flow in section 5.4, after a first run without it",
        decides: &["R-L3-1", "R-L3-4", "R-L3-13", "R-L3-14"],
        without: &[Without {
            id: "jitter",
            instead: "even gaps",
            lines: &[("jitter = \"1ms\"\n", "")],
        }],
    },
    Calibration {
        id: "dwd",
        parameter: "DWD re-arms after each step; weights are whole numbers, rounded",
        chosen_by: "the nine loss rates, of all readings of the text",
        decides: &[
            "R-L3-1", "R-L3-4", "R-L3-7", "R-L3-10", "R-L3-11", "R-L3-14",
        ],
        without: &[Without {
            id: "dwd",
            instead: "one step for each report once `T_dwd` has passed (`dwd = \"literal\"`)",
            lines: &[(
                "policy = \"awi\"\n",
                "policy = \"awi\"\ndwd = \"literal\"\n",
            )],
        }],
    },
    Calibration {
        id: "demand",
        parameter: "demand of figure 4",
        chosen_by: "the two numbers in the text of section 5.3",
        decides: &["R-L3-11"],
        without: &[],
    },
    Calibration {
        id: "3g-queue",
        parameter: "the 3G's queue, 22 kB",
        chosen_by: "round robin's 10 to 20 % at 160 ms",
        decides: &["R-CSN-2", "R-CSN-5", "R-CSN-6"],
        without: &[Without {
            id: "3g-queue",
            instead: "50 kB, 100 ms",
            lines: &[("queue = \"22kB\"", "queue = \"50kB\"")],
        }],
    },
    Calibration {
        id: "3g-jitter",
        parameter: "no jitter of the 3G (table I has 150 ms)",
        chosen_by: "ConSN \"similar to the single-path performance\", which jitter would exclude",
        decides: &["R-CSN-3", "R-CSN-5", "R-CSN-7"],
        without: &[
            Without {
                id: "3g-jitter-20ms",
                instead: "a uniform delay of ± 20 ms, packets may overtake",
                lines: &[
                    (
                        "delay = \"160ms\"\nqueue",
                        "delay = \"140ms\"\njitter = \"40ms\"\nreorder = true\nqueue",
                    ),
                    ("delay = \"280ms\"", "delay = \"260ms\""),
                    ("delay = \"160ms\"", "delay = \"140ms\""),
                ],
            },
            Without {
                id: "3g-jitter-40ms",
                instead: "a uniform delay of ± 40 ms, packets may overtake",
                lines: &[
                    (
                        "delay = \"160ms\"\nqueue",
                        "delay = \"120ms\"\njitter = \"80ms\"\nreorder = true\nqueue",
                    ),
                    ("delay = \"280ms\"", "delay = \"240ms\""),
                    ("delay = \"160ms\"", "delay = \"120ms\""),
                ],
            },
            Without {
                id: "3g-jitter-75ms",
                instead: "a uniform delay of ± 75 ms, packets may overtake",
                lines: &[
                    (
                        "delay = \"160ms\"\nqueue",
                        "delay = \"85ms\"\njitter = \"150ms\"\nreorder = true\nqueue",
                    ),
                    ("delay = \"280ms\"", "delay = \"205ms\""),
                    ("delay = \"160ms\"", "delay = \"85ms\""),
                ],
            },
            Without {
                id: "3g-jitter",
                instead: "a uniform delay of ± 150 ms, packets may overtake",
                lines: &[
                    (
                        "delay = \"160ms\"\nqueue",
                        "delay = \"10ms\"\njitter = \"300ms\"\nreorder = true\nqueue",
                    ),
                    ("delay = \"280ms\"", "delay = \"130ms\""),
                    ("delay = \"160ms\"", "delay = \"10ms\""),
                ],
            },
        ],
    },
    Calibration {
        id: "pdc",
        parameter: "PDC moves at most two packets of a block off a path without exchange",
        chosen_by: "figure 7: more than 30 % in the jump without ConSN, nothing with it",
        decides: &["R-CSN-6", "R-CSN-7"],
        without: &[],
    },
    Calibration {
        id: "cross",
        parameter: "rates of cross traffic, 30 % of the line's while it is on; flow-level as eight flows",
        chosen_by: "nothing published; chosen once, before any run",
        decides: &["R-OS-1", "R-OS-2", "R-OS-3"],
        without: &[Without {
            id: "cross",
            instead: "no cross traffic",
            lines: &[("cross = 0.3\n", "")],
        }],
    },
    Calibration {
        id: "packet",
        parameter: "packets of 1000 bytes, the MTU",
        chosen_by: "\"The path Maximum Transmission Unit … is 1 Kbytes, and the packet size is 1 kb\"",
        decides: &["R-OS-1", "R-OS-2", "R-OS-3"],
        without: &[Without {
            id: "packet",
            instead: "packets of 125 bytes, 1 kbit, as many of them",
            lines: &[("packet = \"1000B\"", "packet = \"125B\"")],
        }],
    },
    Calibration {
        id: "cold",
        parameter: "estimators that begin without knowledge, in the condition *learned*",
        chosen_by: "nothing published; a proxy that starts for the first time",
        decides: &["R-DB-1", "R-DB-2", "R-DB-5", "R-DB-8"],
        without: &[Without {
            id: "cold",
            instead: "estimators that begin with the right rates and demands, as from an earlier run (`warm`)",
            lines: &[("learns = true\n", "learns = true\nwarm = true\n")],
        }],
    },
    Calibration {
        id: "delay",
        parameter: "one-way delay of the loss experiments, 10 ms",
        chosen_by: "nothing published; that of the delay experiments",
        decides: &["R-NAT-5", "R-NAT-6", "R-NAT-7", "R-NAT-8", "R-NAT-9"],
        without: &[
            Without {
                id: "delay-0ms",
                instead: "0 ms",
                lines: &[("delay = \"10ms\"", "delay = \"0ms\"")],
            },
            Without {
                id: "delay",
                instead: "1 ms",
                lines: &[("delay = \"10ms\"", "delay = \"1ms\"")],
            },
            Without {
                id: "delay-2ms",
                instead: "2 ms",
                lines: &[("delay = \"10ms\"", "delay = \"2ms\"")],
            },
            Without {
                id: "delay-3ms",
                instead: "3 ms",
                lines: &[("delay = \"10ms\"", "delay = \"3ms\"")],
            },
            Without {
                id: "delay-5ms",
                instead: "5 ms",
                lines: &[("delay = \"10ms\"", "delay = \"5ms\"")],
            },
        ],
    },
    Calibration {
        id: "reordering",
        parameter: "bound of disorder of the kernel's TCP, 127 segments",
        chosen_by: "the source of Linux 2.6.11",
        decides: &["R-NAT-2", "R-NAT-3"],
        without: &[Without {
            id: "reordering",
            instead: "3 segments, never more",
            lines: &[("max_reordering = 127", "max_reordering = 3")],
        }],
    },
    Calibration {
        id: "background",
        parameter: "background traffic of figure 7",
        chosen_by: "nothing published beyond a plot; ours",
        decides: &["R-NAT-10"],
        without: &[],
    },
];

/// Adds the variants of the scenarios to `experiments`, and adds the checks over these variants to the targets.
pub(crate) fn add_variants(experiments: &mut [Experiment]) {
    for calibration in CALIBRATIONS {
        for without in calibration.without {
            for experiment in &mut *experiments {
                let Experiment { cells, targets, .. } = experiment;
                let mut variants: BTreeMap<String, Cell> = BTreeMap::new();
                for target in targets {
                    if calibration.decides.contains(&target.id) {
                        let mine = variants_of(*without, target, cells);
                        add_checks(without.id, target, &mine);
                        variants.extend(mine);
                    }
                }
                cells.extend(variants.into_values());
            }
        }
    }
}

/// Returns the variants of the cells that `target` needs, by the names of the original cells.
fn variants_of(without: Without, target: &Target, cells: &[Cell]) -> BTreeMap<String, Cell> {
    let id = without.id;
    let mut variants = BTreeMap::new();
    for cell in cells {
        let kind = match cell.kind {
            Kind::Scenario | Kind::Simulated => Kind::Simulated,
            Kind::Transfer(experiment) => Kind::Transfer(experiment),
            Kind::Workload(experiment) => Kind::Modelled(experiment),
            Kind::Correction(_) | Kind::Modelled(_) | Kind::Played => continue,
        };
        if cell.is_variant() || !target.cells.contains(&cell.name) {
            continue;
        }
        let lines = without.lines.iter();
        let toml = lines.fold(cell.toml.clone(), |text, (from, to)| text.replace(from, to));
        if toml == cell.toml {
            continue;
        }
        let name = format!("{}{VARIANT}{id}", cell.name);
        let own = |name: &str| format!("name = \"{name}\"\n");
        let toml = toml.replacen(&own(&cell.name), &own(&name), 1);
        variants.insert(cell.name.clone(), Cell { name, toml, kind });
    }
    variants
}

/// Adds to `target` a copy of each judged check that is measured over `variants`.
fn add_checks(id: &'static str, target: &mut Target, variants: &BTreeMap<String, Cell>) {
    if variants.is_empty() {
        return;
    }
    // Each cell with the cell whose runs replace its own: the variant, or itself if it has none.
    let plain = target.cells.iter().filter(|name| !name.contains(VARIANT));
    let stand_in = plain.map(|name| {
        let variant = variants.get(name);
        let from = variant.map_or(name, |variant| &variant.name);
        (name.clone(), from.clone())
    });
    let stand_ins: Arc<[(String, String)]> = stand_in.collect();
    let mut more = Vec::new();
    for check in &mut target.checks {
        if check.role != Role::Judged {
            continue;
        }
        let nothing: Measure = Box::new(|_| None);
        let measure = Arc::new(core::mem::replace(&mut check.measure, nothing));
        let (same, stand_ins) = (Arc::clone(&measure), Arc::clone(&stand_ins));
        check.measure = Box::new(move |runs| measure(runs));
        more.push(Check {
            what: format!("without {id}: {}", check.what),
            unit: check.unit,
            published: check.published,
            accepted: check.accepted,
            reason: check.reason,
            role: Role::Without(id),
            measure: Box::new(move |runs| same(&runs.standing_in(&stand_ins))),
        });
    }
    target.checks.extend(more);
    target
        .cells
        .extend(variants.values().map(|cell| cell.name.clone()));
}

/// Infix in the names of variants, between the name of the original cell and the id of the calibration.
pub(crate) const VARIANT: &str = "-without-";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pleach_sim::results::Results;

    use super::*;
    use crate::{registry, runs::Runs};

    #[test]
    fn what_is_decided_is_a_target_and_what_is_taken_back_changes_its_scenarios() {
        let experiments = registry::all();
        let targets = experiments.iter().flat_map(|e| &e.targets);
        let targets: BTreeMap<&str, &Target> = targets.map(|target| (target.id, target)).collect();
        let mut ids = BTreeSet::new();
        for Calibration {
            id,
            decides,
            without,
            ..
        } in CALIBRATIONS
        {
            assert!(ids.insert(*id), "{id} is there twice");
            for target in *decides {
                let target = targets
                    .get(target)
                    .unwrap_or_else(|| panic!("{id}: {target}"));
                let count = |role| {
                    target
                        .checks
                        .iter()
                        .filter(|check| check.role == role)
                        .count()
                };
                for Without { id, .. } in *without {
                    let (with, without_it) = (count(Role::Judged), count(Role::Without(id)));
                    assert_eq!(without_it, with, "{id}: {}", target.id);
                }
            }
        }
    }

    #[test]
    fn each_replaced_line_is_in_force() {
        let experiments = registry::all();
        let cells = || experiments.iter().flat_map(|experiment| &experiment.cells);
        let mut ids = BTreeSet::new();
        for Without { id, lines, .. } in CALIBRATIONS.iter().flat_map(|one| one.without) {
            assert!(ids.insert(*id), "{id} is there twice");
            for (_, to) in *lines {
                let ending = format!("{VARIANT}{id}");
                let mut mine = cells().filter(|cell| cell.name.ends_with(&ending));
                assert!(mine.any(|cell| cell.toml.contains(to)), "{id}: {to}");
            }
        }
        let mut rearmed = cells().filter(|cell| cell.name.ends_with("-without-dwd"));
        assert!(rearmed.all(|cell| cell.toml.contains("dwd = \"literal\"")));
    }

    #[test]
    fn a_variant_is_measured_in_place_of_what_it_varies_and_decides_nothing() {
        let experiments = registry::all();
        let mut targets = experiments.iter().flat_map(|e| &e.targets);
        let target = targets.find(|target| target.id == "R-L3-5").expect("there");
        let lost = |percent: f64| Results {
            flows: vec![pleach_sim::results::FlowResult {
                name: "udp".to_owned(),
                loss: percent / 100.0,
                sent_pkts: Some(1),
                ..Default::default()
            }],
            ..Results::default()
        };
        let mut runs = Runs::default();
        let cell = "l3-single-flow-k05-dwd250";
        runs.insert(cell, lost(0.5));
        let of = |runs: &Runs, role| {
            let mut checks = target.checks.iter();
            let check = checks.find(|check| check.role == role).expect("one");
            (check.measure)(runs)
        };
        assert_eq!(of(&runs, Role::Without("dsl")), None, "it did not run");
        runs.insert(&format!("{cell}-without-dsl"), lost(2.0));
        assert_eq!(of(&runs, Role::Judged), Some(0.5));
        assert_eq!(of(&runs, Role::Without("dsl")), Some(2.0));
    }
}
