//! The records as a page of documentation: `docs/reproduce.md`.
//!
//! Everything in it comes from the targets, from what is kept ([`Kept`]), and from the explanations, each of which has the id
//! of a paper, an experiment or a target as its heading.

use std::{collections::BTreeMap, fmt::Write as _};

use pleach_sim::{report::short, results::World};

use crate::{
    calibration::CALIBRATIONS,
    evaluate::{Measured, Record, Spread, Verdict, evaluate, name},
    experiment::{Experiment, Role, Source},
    kept::{Kept, Origin},
};

/// What is explained, by the id it is tied to; `head` and `tail` stand around all.
const EXPLANATIONS: &str = include_str!("explanations.md");

/// The page of what is `kept` of `experiments`.
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
    out += "\n## What was fitted\n\n";
    out +=
        "Values that the papers do not give, what they were chosen by, and what they decide.\n\n";
    out += "| parameter | chosen by | decides |\n| --- | --- | --- |\n";
    for calibration in CALIBRATIONS {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {} | {} | {} |",
            calibration.parameter,
            calibration.chosen_by,
            calibration.decides.join(", ")
        );
    }
    out += &block(text("tail"));
    out
}

/// The explanations by key.
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
    for part in &record.parts {
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
        Role::Beside => format!("*beside:* {text}"),
        Role::Judged => text,
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn numbers(measured: &Measured) -> String {
    let [low, high] = measured.accepted;
    let side = |value: Option<f64>| value.map_or_else(|| "…".to_owned(), short);
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
    let unit = if measured.unit.is_empty() {
        String::new()
    } else {
        format!(" {}", measured.unit)
    };
    format!(
        "{published} | {} | {} | {} to {}{unit}",
        value(measured.sim, measured.sim_spread),
        value(measured.lab, measured.lab_spread),
        side(low),
        side(high)
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::registry;

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

    /// `pleach reproduce --report docs/reproduced > docs/reproduce.md` writes it anew.
    #[test]
    fn the_page_in_the_repository_is_what_is_written() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let kept = Kept::read(&docs.join("reproduced")).expect("kept results");
        let page = markdown(&registry::all(), &kept);
        let path = docs.join("reproduce.md");
        if std::env::var_os("PLEACH_BLESS").is_some() {
            std::fs::write(&path, &page).expect("writable");
        }
        let written = std::fs::read_to_string(&path).expect("the page");
        assert!(
            page == written,
            "docs/reproduce.md is not what the kept results say; remedy: PLEACH_BLESS=1 cargo test -p pleach-reproduce --lib"
        );
    }
}
