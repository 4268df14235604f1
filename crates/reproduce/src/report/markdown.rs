//! Writes the records as a page of documentation, `docs/reproduce.md`.
//!
//! The page is made from the targets, the stored results ([`Kept`]), and the explanations in `explanations.md`. The
//! heading of each explanation is the id of a paper, an experiment or a target.

use std::{collections::BTreeMap, fmt::Write as _};

use pleach_sim::{report::short, results::World};

use crate::{
    calibration::{CALIBRATIONS, Calibration, Without},
    evaluate::{Measured, Record, Spread, Verdict, evaluate, name},
    experiment::{Experiment, Range, Role, Source},
    kept::{Kept, Origin},
};

/// The explanations. Each heading is the id of a paper, an experiment or a target; `head` and `tail` are the beginning
/// and the end of the page.
const EXPLANATIONS: &str = include_str!("explanations.md");

/// Returns the page with the stored results `kept` of `experiments`.
#[must_use]
pub fn markdown(experiments: &[Experiment], kept: &Kept) -> String {
    let records = evaluate(experiments, kept);
    let explained = explanations();
    let text = |key: &str| explained.get(key).copied().unwrap_or_default();
    let mut out = String::from("# Published figures, measured again\n\n");
    out += "<!-- Written by `pleach reproduce --report`; explanations: crates/reproduce/src/report/explanations.md -->\n";
    out += &block(text("head"));
    out += "\n## In all\n\n";
    out += &summary(experiments, &records);
    out += &origins(experiments, kept);
    let mut paper = "";
    for experiment in experiments {
        if experiment.paper != paper {
            paper = experiment.paper;
            let own = experiments.iter().filter(|other| other.paper == paper);
            let own: Vec<&Experiment> = own.collect();
            out += &section(&own, &records, &text);
        }
    }
    out += &fitted(&records);
    out += &block(text("tail"));
    out
}

/// Returns the explanations by heading.
pub(crate) fn explanations() -> BTreeMap<&'static str, &'static str> {
    let parts = EXPLANATIONS.split("\n## ").skip(1);
    let parts = parts.filter_map(|part| part.split_once('\n'));
    parts.map(|(key, text)| (key.trim(), text.trim())).collect()
}

fn block(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!("\n{text}\n")
}

fn summary(experiments: &[Experiment], records: &[Record]) -> String {
    let mut out = String::from(
        "| targets | in all | reproduced | missed | incomplete | reproduced, simulated alone | reproduced, lab alone |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for source in [
        Source::Published,
        Source::Derived,
        Source::Ours,
        Source::Input,
    ] {
        let targets = experiments.iter().flat_map(|e| &e.targets);
        let all = targets.filter(|target| target.source == source).count();
        let of = |is: &dyn Fn(&Record) -> bool| {
            let mut mine = 0;
            for record in records.iter().filter(|record| record.source == source) {
                mine += usize::from(is(record));
            }
            mine
        };
        let reproduced = of(&|record| record.verdict == Verdict::Reproduced);
        let missed = of(&|record| record.verdict == Verdict::Missed);
        let alone = |verdict: Option<Verdict>| verdict == Some(Verdict::Reproduced);
        let _ = writeln!(
            out,
            "| {} | {all} | {reproduced} | {missed} | {} | {} | {} |",
            source.name(),
            all - reproduced - missed,
            of(&|record| alone(record.sim_verdict)),
            of(&|record| alone(record.lab_verdict)),
        );
    }
    out
}

fn origins(experiments: &[Experiment], kept: &Kept) -> String {
    let mut out = String::from(
        "\n| world | commit | date | machine | targets |\n| --- | --- | --- | --- | ---: |\n",
    );
    for world in [World::Sim, World::Lab] {
        let mut counts: BTreeMap<&Origin, usize> = BTreeMap::new();
        for target in experiments.iter().flat_map(|e| &e.targets) {
            if let Some(kept) = kept.target(target.id, world) {
                *counts.entry(&kept.origin).or_default() += 1;
            }
        }
        if counts.is_empty() {
            let _ = writeln!(out, "| {} | – | – | nothing is kept | 0 |", name(world));
        }
        for (origin, count) in counts {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {count} |",
                name(world),
                origin.commit,
                origin.date,
                origin.machine
            );
        }
    }
    out
}

fn section<'a>(
    experiments: &[&Experiment],
    records: &[Record],
    text: &dyn Fn(&str) -> &'a str,
) -> String {
    let Some(first) = experiments.first() else {
        return String::new();
    };
    let mut out = format!("\n## {}\n", first.paper);
    out += &block(text(first.paper));
    for experiment in experiments {
        let _ = write!(out, "\n### `{}`: {}\n", experiment.name, experiment.about);
        out += &block(text(experiment.name));
        out += "\n| target | from | what | published | simulated | lab | accepted | sim | lab |\n";
        out += "| --- | --- | --- | ---: | ---: | ---: | ---: | --- | --- |\n";
        for target in &experiment.targets {
            let Some(record) = records.iter().find(|record| record.id == target.id) else {
                let _ = writeln!(
                    out,
                    "| {} | {} | {} | | | | | incomplete | |",
                    target.id,
                    target.source.name(),
                    cell(target.what)
                );
                continue;
            };
            out += &rows(record);
        }
        for target in &experiment.targets {
            let record = records.iter().find(|record| record.id == target.id);
            let notes = record.map_or(&[][..], |record| &record.notes);
            let explained = text(target.id);
            if notes.is_empty() && explained.is_empty() {
                continue;
            }
            let _ = write!(out, "\n**{}.**", target.id);
            for note in notes {
                let _ = write!(out, " {};", note.trim_end_matches('.'));
            }
            if out.ends_with(';') {
                out.pop();
                out.push('.');
            }
            out.push('\n');
            out += &block(explained);
        }
    }
    out
}

/// Returns the section on calibrated parameters, with the values measured without each calibration.
fn fitted(records: &[Record]) -> String {
    let mut out = String::from(
        "\n## What was fitted\n\nValues that the papers do not give, what they were chosen by, and what they decide.\n\n\
         | parameter | chosen by | decides | without it |\n| --- | --- | --- | --- |\n",
    );
    let mut compared = String::new();
    for Calibration {
        id: _,
        parameter,
        chosen_by,
        decides,
        without,
    } in CALIBRATIONS
    {
        let values: Vec<&str> = without.iter().map(|without| without.instead).collect();
        let instead = if values.is_empty() {
            "cannot be taken back".to_owned()
        } else {
            values.join("; ")
        };
        let decides = decides.join(", ");
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {parameter} | {chosen_by} | {decides} | {instead} |");
        for record in records {
            for Without { id, instead, .. } in *without {
                compared += &without_it(id, &format!("{parameter}: {instead}"), record);
            }
        }
    }
    if !compared.is_empty() {
        out += "\nThe same targets without these values, simulated: means over the seeds, and whether they are in the accepted range.\n\n\
                | target | in place of the calibrated value | what | with | without | accepted | without it |\n\
                | --- | --- | --- | ---: | ---: | ---: | --- |\n";
        out += &compared;
    }
    out
}

/// Returns the table rows of `record` with the values measured without the calibration `id`.
fn without_it(id: &str, instead: &str, record: &Record) -> String {
    let mut out = String::new();
    let headline = ("", &record.headline, record.role);
    let parts = record.parts.iter();
    let parts = parts.map(|part| (part.what.as_str(), &part.measured, part.role));
    let checks: Vec<(&str, &Measured, Role)> = [headline].into_iter().chain(parts).collect();
    let mut with = checks.iter().filter(|check| check.2 == Role::Judged);
    for (_, measured, role) in &checks {
        if !matches!(role, Role::Without(of) if *of == id) {
            continue;
        }
        // The checks without the calibration are in the order of the judged checks.
        let Some((what, judged, _)) = with.next() else {
            break;
        };
        let Some(value) = measured.sim else { continue };
        let [low, high] = measured.accepted;
        let is_inside = Range { low, high }.accepts(value);
        let what = if what.is_empty() { &record.what } else { *what };
        let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), short);
        let _ = writeln!(
            out,
            "| {} | {instead} | {} | {} | {} | {} | {} |",
            record.id,
            cell(what),
            number(judged.sim),
            short(value),
            accepted(measured),
            if is_inside {
                "in range"
            } else {
                "out of range"
            }
        );
    }
    out
}

fn rows(record: &Record) -> String {
    let verdict = |verdict: Option<Verdict>| verdict.map_or("", Verdict::name);
    let mut out = format!(
        "| {} | {} | {} | {} | {} | {} |\n",
        record.id,
        record.source.name(),
        what(&record.what, record.role),
        numbers(&record.headline),
        verdict(record.sim_verdict),
        verdict(record.lab_verdict),
    );
    let parts = record.parts.iter();
    for part in parts.filter(|part| !matches!(part.role, Role::Without(_))) {
        let _ = writeln!(
            out,
            "| | | {} | {} | | |",
            what(&part.what, part.role),
            numbers(&part.measured)
        );
    }
    out
}

fn what(text: &str, role: Role) -> String {
    let text = cell(text);
    match role {
        Role::Beside | Role::Without(_) => format!("*beside:* {text}"),
        Role::Judged => text,
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn numbers(measured: &Measured) -> String {
    let value = |value: Option<f64>, spread: Option<Spread>| match (value, spread) {
        (None, _) => "–".to_owned(),
        (Some(value), Some(spread)) if spread.seeds > 1 => format!(
            "{} ({} to {}, n = {})",
            short(value),
            short(spread.least),
            short(spread.most),
            spread.seeds
        ),
        (Some(value), _) => short(value),
    };
    let published = measured.published.map_or_else(String::new, short);
    format!(
        "{published} | {} | {} | {}",
        value(measured.sim, measured.sim_spread),
        value(measured.lab, measured.lab_spread),
        accepted(measured)
    )
}

/// Returns the accepted range with its unit.
fn accepted(measured: &Measured) -> String {
    let [low, high] = measured.accepted;
    let side = |value: Option<f64>| value.map_or_else(|| "…".to_owned(), short);
    let range = format!("{} to {} {}", side(low), side(high), measured.unit);
    range.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pleach_sim::results::{FlowResult, Results};

    use super::*;
    use crate::{
        kept::keep,
        registry,
        runs::{Runs, Worlds},
    };

    #[test]
    fn explanations_are_tied_to_something_that_is_there() {
        let experiments = registry::all();
        let explained = explanations();
        assert!(explained.contains_key("head") && explained.contains_key("tail"));
        for key in explained.keys() {
            let is_known = |experiment: &Experiment| {
                let mut targets = experiment.targets.iter();
                experiment.paper == *key
                    || experiment.name == *key
                    || targets.any(|target| target.id == *key)
            };
            let around = ["head", "tail"].contains(key);
            assert!(around || experiments.iter().any(is_known), "{key}");
        }
    }

    #[test]
    fn the_page_has_origin_spread_and_what_is_without_the_calibration() {
        let lost = |percent: f64| Results {
            flows: vec![FlowResult {
                name: "udp".to_owned(),
                loss: percent / 100.0,
                sent_pkts: Some(1),
                ..FlowResult::default()
            }],
            ..Results::default()
        };
        let seed = |percent| {
            let mut runs = Runs::default();
            runs.insert("l3-single-flow-k05-dwd250", lost(percent));
            runs.insert("l3-single-flow-k05-dwd250-without-dsl", lost(9.0));
            runs
        };
        let worlds = Worlds {
            sim: seed(0.5),
            more_sim: vec![seed(0.6)],
            ..Worlds::default()
        };
        let origin = Origin {
            commit: "0123456789ab".to_owned(),
            date: "2026-11-29".to_owned(),
            machine: "a machine, 2 cores".to_owned(),
            version: "0.1.0 (build 1)".to_owned(),
        };
        let dir = tempfile::tempdir().expect("a directory");
        let all = registry::all();
        keep(dir.path(), &all, &worlds, World::Sim, &origin).expect("written");
        let page = markdown(&all, &Kept::read(dir.path()).expect("kept"));
        for line in [
            "| sim | 0123456789ab | 2026-11-29 | a machine, 2 cores | 1 |",
            "| lab | – | – | nothing is kept | 0 |",
            "| R-L3-5 | published | loss with k 0.5, T_dwd 250 ms | 0.530 | 0.550 (0.500 to 0.600, n = 2) | – | 0.353 to 0.795 % | incomplete | incomplete |",
            "| R-L3-5 | rate of the DSL at IP level, 62.5 Mbit/s, and its queue, 256 packets: 64 Mbit/s, as shaped, and a queue of 100 ms, like the LTE's | loss with k 0.5, T_dwd 250 ms | 0.550 | 9.00 | 0.353 to 0.795 % | out of range |",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
        assert!(!page.contains("without dsl:"), "in its own table only");
    }

    /// The page is updated by `pleach reproduce --report docs/reproduced > docs/reproduce.md`. If `docs/reproduced`
    /// contains no results, the page is not compared.
    #[test]
    fn the_page_in_the_repository_is_what_is_written() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let kept = Kept::read(&docs.join("reproduced")).expect("kept results");
        if kept == Kept::default() {
            eprintln!("nothing is kept in docs/reproduced: the page is not compared");
            return;
        }
        let page = markdown(&registry::all(), &kept);
        let path = docs.join("reproduce.md");
        if std::env::var_os("PLEACH_BLESS").is_some() {
            std::fs::write(&path, &page).expect("writable");
        }
        let written = std::fs::read_to_string(&path).expect("the page");
        assert!(
            page == written,
            "docs/reproduce.md is not what the kept results say; remedy: PLEACH_BLESS=1 cargo test --workspace --lib -- the_page_in_the_repository"
        );
    }
}
