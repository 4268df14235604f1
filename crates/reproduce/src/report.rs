//! Shows the records as an HTML page and as a table for a terminal.

use pleach_sim::{
    report::{Table, escape, legend, page, short},
    results::World,
};

use crate::{
    evaluate::{Measured, Record, Spread, Verdict, name},
    experiment::{Experiment, Figure, Role},
    run::again,
    runs::Worlds,
};

pub(crate) mod markdown;

/// Returns the table for a terminal, with one line for each check.
#[must_use]
pub fn table(records: &[Record]) -> String {
    let mut rows = Vec::new();
    for record in records {
        // Values without a calibration are shown in the HTML page and in `docs/reproduce.md`.
        let lines = lines(record).into_iter();
        let lines = lines.filter(|(_, _, _, role)| !matches!(role, Role::Without(_)));
        for (index, (what, measured, ok, role)) in lines.enumerate() {
            let id = if index == 0 { record.id.as_str() } else { "" };
            let mut row = vec![id.to_owned(), what.to_owned()];
            row.extend(numbers(measured));
            row.push(word(ok.into(), role).to_owned());
            rows.push(row);
        }
    }
    let table = Table {
        title: "Targets",
        left: 2,
        head: HEAD.to_vec(),
        rows,
    };
    let mut out = table.text();
    let missed = records.iter().filter(|record| record.ok == Some(false));
    for record in missed {
        for note in &record.notes {
            out += &format!("missed {}: {note}\n", record.id);
        }
    }
    out + &format!("{}\n", summary(records))
}

/// Returns the page: the table, then the figures of every experiment with a record.
#[must_use]
pub fn html(records: &[Record], experiments: &[Experiment], worlds: &Worlds) -> String {
    let mut out = String::from("<header>\n<p class=\"subject\">pleach reproduce</p>\n");
    out += "<h1>Published figures, measured again</h1>\n";
    let is_missed = records.iter().any(|record| record.ok == Some(false));
    let class = if is_missed {
        "verdict refused"
    } else {
        "verdict"
    };
    out += &format!(
        "<p class=\"{class}\">{}</p>\n</header>\n",
        escape(&summary(records))
    );
    out += &target_table(records);
    for experiment in experiments {
        let has_record = records
            .iter()
            .any(|record| record.experiment == experiment.name);
        if !has_record {
            continue;
        }
        out += &format!(
            "<section id=\"{}\">\n<h2>{}: {}</h2>\n",
            experiment.name,
            escape(experiment.paper),
            escape(experiment.about)
        );
        out += "<p class=\"subject\">Each part again: ";
        for cell in experiment.cells.iter().filter(|cell| {
            worlds.sim.get(&cell.name).is_some() || worlds.lab.get(&cell.name).is_some()
        }) {
            let command = escape(&again(World::Sim, cell));
            if !out.contains(&command) {
                out += &format!("<code>{command}</code> ");
            }
        }
        let mut cells = experiment.cells.iter();
        let in_lab = cells.any(|cell| cell.runs_in(World::Lab));
        if in_lab {
            out += "(or <code>lab run</code>)";
        }
        out += ".</p>\n</section>\n";
        for figure in &experiment.figures {
            out += &drawn(figure, worlds, in_lab);
        }
    }
    page("Published figures, measured again", STYLE, &out)
}

fn target_table(records: &[Record]) -> String {
    let mut out = String::from(
        "<section>\n<div class=\"scroll\"><table class=\"targets\">\n<thead><tr><th>target</th><th>what</th>",
    );
    for name in &HEAD[2..HEAD.len() - 1] {
        out += &format!("<th class=\"n\">{name}</th>");
    }
    out += "<th>verdict</th></tr></thead>\n<tbody>\n";
    for record in records {
        for (index, (what, measured, ok, role)) in lines(record).into_iter().enumerate() {
            let verdict = Verdict::from(ok);
            let class = match verdict {
                _ if role != Role::Judged => "open",
                Verdict::Missed => "missed",
                Verdict::Incomplete => "open",
                Verdict::Reproduced => "met",
            };
            let id = if index == 0 { record.id.as_str() } else { "" };
            out += &format!(
                "<tr class=\"{class}\" title=\"{}\"><td>{}</td><td>{}</td>",
                escape(&measured.reason),
                escape(id),
                escape(what)
            );
            for number in numbers(measured) {
                out += &format!("<td class=\"n\">{}</td>", escape(&number));
            }
            out += &format!("<td class=\"{class}\">{}</td></tr>\n", word(verdict, role));
        }
        for note in &record.notes {
            out += &format!(
                "<tr class=\"note\"><td></td><td colspan=\"6\">{}</td></tr>\n",
                escape(note)
            );
        }
    }
    out += "</tbody></table></div>\n";
    out +=
        "<p class=\"subject\">A row's tooltip says why its range is what it is.</p>\n</section>\n";
    out
}

fn drawn(figure: &Figure, worlds: &Worlds, in_lab: bool) -> String {
    let drawn_in: &[World] = match in_lab {
        true => &[World::Sim, World::Lab],
        false => &[World::Sim],
    };
    let mut out = format!(
        "<figure id=\"{}\">\n<figcaption><h2>{}</h2><p>{}</p></figcaption>\n",
        escape(figure.id),
        escape(figure.title),
        escape(figure.caption)
    );
    let mut explained = Vec::new();
    for panel in &figure.panels {
        out += &format!("<h3>{}</h3>\n", escape(&panel.title));
        let charts = drawn_in.iter().map(|world| (panel.draw)(worlds.of(*world)));
        let charts: Vec<_> = charts.collect();
        let entries = charts.iter().flatten().next().map(|chart| chart.legend());
        if let Some(entries) = entries.filter(|entries| *entries != explained) {
            out += &legend(&entries);
            explained = entries;
        }
        out += "<div class=\"pair\">\n";
        for (world, chart) in drawn_in.iter().zip(charts) {
            let svg = chart.and_then(|chart| chart.svg(WIDTH, HEIGHT));
            let drawing = svg.unwrap_or_else(|| "<p class=\"nodata\">not run</p>\n".to_owned());
            out += &format!(
                "<div><p class=\"world\">{}</p>{drawing}</div>\n",
                name(*world)
            );
        }
        out += "</div>\n";
    }
    out + "</figure>\n"
}

/// Returns the lines of a record in the table: first the headline with the verdict on the target, then the parts.
fn lines(record: &Record) -> Vec<(&str, &Measured, Option<bool>, Role)> {
    // The first line has the verdict on the target, so it counts as judged even if the headline is not.
    let mut lines = vec![(
        record.what.as_str(),
        &record.headline,
        record.ok,
        Role::Judged,
    )];
    for part in &record.parts {
        lines.push((part.what.as_str(), &part.measured, part.ok, part.role));
    }
    lines
}

/// Returns the cells of a table row: published, simulated and lab value, accepted range, unit.
fn numbers(measured: &Measured) -> Vec<String> {
    let [low, high] = measured.accepted;
    let side = |value: Option<f64>| value.map_or_else(|| "…".to_owned(), short);
    let accepted = match (low, high) {
        (None, None) => String::new(),
        (low, high) => format!("{} to {}", side(low), side(high)),
    };
    let value = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), short);
    let spread = |mean: Option<f64>, spread: Option<Spread>| match spread {
        Some(Spread { seeds, least, most }) if seeds > 1 => {
            format!("{} ({} to {})", value(mean), short(least), short(most))
        }
        Some(_) | None => value(mean),
    };
    vec![
        value(measured.published),
        spread(measured.sim, measured.sim_spread),
        spread(measured.lab, measured.lab_spread),
        accepted,
        measured.unit.clone(),
    ]
}

/// Returns the word for the verdict column.
const fn word(verdict: Verdict, role: Role) -> &'static str {
    match role {
        Role::Beside | Role::Without(_) => "beside",
        Role::Judged => verdict.name(),
    }
}

fn summary(records: &[Record]) -> String {
    let count = |ok| records.iter().filter(|record| record.ok == ok).count();
    let mut text = format!(
        "{} of {} targets reproduced",
        count(Some(true)),
        records.len()
    );
    for (number, word) in [(count(Some(false)), "missed"), (count(None), "incomplete")] {
        if number > 0 {
            text += &format!(", {number} {word}");
        }
    }
    text + "."
}

const HEAD: [&str; 8] = [
    "target",
    "what",
    "published",
    "simulated",
    "lab",
    "accepted",
    "unit",
    "verdict",
];
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 230.0;
const STYLE: &str = "main { max-width: 1020px; } \
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 4px 18px; } \
.pair .world { margin: 0; color: var(--soft); font-size: .82rem; } \
h3 { font-size: .95rem; margin: 12px 0 2px; } \
.targets td { white-space: normal; vertical-align: top; } \
.targets td.n { white-space: nowrap; } \
tr.missed td { color: var(--bad); } td.missed { font-weight: 650; } td.open { color: var(--soft); } \
tr.note td { border-bottom: none; color: var(--soft); font-size: .82rem; } \
code { font-size: .85em; }";

#[cfg(test)]
mod tests;
