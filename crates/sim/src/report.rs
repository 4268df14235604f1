//! The report of one run: a page with plots, and a table for the terminal.
//!
//! [`render`] returns one HTML file without external resources: no script, no font, no picture from elsewhere. It is
//! readable on a phone, on paper, in light and dark, and by a screen reader. It contains, from top to bottom: the
//! verdict in one sentence, the most important figures with their goals, plots, tables, and the command that repeats
//! the run. [`table`] contains the same information in aligned columns.
//!
//! Both are pure functions of [`Results`]: the same results give the same text. No content of the results can break the
//! page: text is escaped, values that are not finite are shown as a dash, and plots and tables have a bounded size.

mod beside;
mod chart;
mod facts;
mod format;
mod media;
mod page;
mod plot;
mod svg;
mod tables;
#[cfg(test)]
mod tests;
mod why;

use crate::results::{Results, World};

pub use beside::{beside, beside_table};
pub use chart::{Chart, ChartLine};
pub use format::short;
pub use page::page;
pub use plot::legend;
pub use svg::{Anchor, Svg, escape};
pub use tables::Table;

use facts::Facts;

/// Returns the whole HTML page.
#[must_use]
pub fn render(results: &Results) -> String {
    page::render(results, &Facts::new(results))
}

/// Returns the report for a terminal: verdict and tables. Lines end with `\n`; there are no escape sequences.
#[must_use]
pub fn table(results: &Results) -> String {
    let mut out = format!("{}\n{}\n", subject(results), Facts::new(results).verdict());
    out = tables::plain(&out);
    for table in tables::all(results) {
        out.push('\n');
        out += &table.text();
    }
    for note in &results.notes {
        out += &tables::plain(&format!("\nnote: {note}\n"));
    }
    out += &tables::plain(&format!("\nagain: {}\n", command(results)));
    out
}

/// Returns the verdict in one sentence (two if the run was refused).
#[must_use]
pub fn verdict(results: &Results) -> String {
    Facts::new(results).verdict()
}

/// Returns a description of the run in one line.
fn subject(results: &Results) -> String {
    let mut parts = vec![match results.world {
        World::Lab => "lab: real programs over emulated lines".to_owned(),
        World::Sim => "simulated".to_owned(),
    }];
    if results.duration_s > 0.0 && results.duration_s.is_finite() {
        parts.push(format!("{} s", format::number(results.duration_s)));
    }
    parts.push(format!("seed {}", results.seed));
    for (name, value) in [("policy", &results.policy), ("pleach", &results.version)] {
        if !value.is_empty() {
            parts.push(format!("{name} {value}"));
        }
    }
    format!("{} ({})", scenario(results), parts.join(", "))
}

fn scenario(results: &Results) -> &str {
    if results.scenario.is_empty() {
        "unnamed scenario"
    } else {
        &results.scenario
    }
}

/// Returns the command that repeats the run.
fn command(results: &Results) -> String {
    if !results.command.is_empty() {
        return results.command.clone();
    }
    let scenario = scenario(results);
    match results.world {
        World::Lab => format!("pleach lab run {scenario}.toml --out out"),
        World::Sim => format!(
            "pleach sim run {scenario}.toml --seed {} --out out",
            results.seed
        ),
    }
}
