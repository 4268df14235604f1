//! The HTML page: style sheet, head, the cards with the headline figures, plots and tables in order.

use super::{
    command,
    facts::{Facts, NO_REGRET},
    format::{duration, micros, number, ratio},
    media, plot, scenario, subject,
    svg::escape,
    tables, why,
};
use crate::results::{Results, Transport};

/// Returns the whole page.
pub(crate) fn render(results: &Results, facts: &Facts<'_>) -> String {
    let mut out = String::from("<header>\n");
    out += &format!("<p class=\"subject\">{}</p>\n", escape(&subject(results)));
    let title = results.description.as_deref().filter(|d| !d.is_empty());
    out += &format!(
        "<h1>{}</h1>\n",
        escape(title.unwrap_or_else(|| scenario(results)))
    );
    let class = if results.refused.is_some() {
        "verdict refused"
    } else {
        "verdict"
    };
    out += &format!("<p class=\"{class}\">{}</p>\n", escape(&facts.verdict()));
    out += "</header>\n";
    out += &cards(results, facts);
    let several = results.series.flows.len() > 1;
    let figures = [
        Some(plot::throughput(results, facts)),
        plot::idle(results, facts),
        several.then(|| plot::flow_goodput(results)),
        plot::comparison(results, facts),
        Some(plot::queue_delay(results, facts)),
        Some(plot::ping(results)),
        results.lateness_us.map(|_| plot::lateness(results)),
    ];
    for figure in figures.iter().flatten() {
        out += &figure.html();
    }
    out += &media::pictures(results);
    for table in tables::all(results) {
        out += &table.html();
    }
    for note in &results.notes {
        out += &format!("<p>{}.</p>\n", escape(note.trim_end_matches('.')));
    }
    out += &format!(
        "<section>\n<h2>Repeat this run</h2>\n<p>Scenario {}, seed {}.</p>\n<pre>{}</pre>\n</section>\n",
        escape(scenario(results)),
        results.seed,
        escape(&command(results))
    );
    page(&format!("{} - pleach report", scenario(results)), "", &out)
}

/// Returns a whole page around `body`, which is HTML. Its head has `title`, the style sheet of the reports, and
/// `more_style`.
#[must_use]
pub fn page(title: &str, more_style: &str, body: &str) -> String {
    let mut out =
        String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n");
    out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
    out += "<meta name=\"color-scheme\" content=\"light dark\"/>\n";
    out += &format!("<title>{}</title>\n", escape(title));
    out += &format!("<style>{STYLE}{more_style}</style>\n</head>\n<body>\n<main>\n");
    out + body + "</main>\n</body>\n</html>\n"
}

/// One headline figure.
struct Card {
    value: String,
    unit: &'static str,
    what: String,
    /// The goal in words, and whether it is reached.
    goal: Option<(String, bool)>,
    /// Why the goal is missed, if the measurements tell.
    why: Option<String>,
}

fn cards(results: &Results, facts: &Facts<'_>) -> String {
    let mut out = String::from("<ul class=\"cards\">\n");
    for card in cards_of(results, facts) {
        let (number, unit) = (escape(&card.value), card.unit);
        out += &format!(
            "<li><b>{number}<small>{unit}</small></b><span>{}</span>",
            escape(&card.what)
        );
        if let Some((goal, met)) = card.goal {
            let why = card.why.filter(|_| !met);
            let (class, word) = if met {
                ("met", "✓ goal met")
            } else {
                ("missed", "✗ goal missed")
            };
            out += &format!("<em class=\"{class}\">{word}: {}</em>", escape(&goal));
            if let Some(why) = why {
                out += &format!("<small>{}</small>", escape(&why));
            }
        }
        out += "</li>\n";
    }
    out + "</ul>\n"
}

fn cards_of(results: &Results, facts: &Facts<'_>) -> Vec<Card> {
    let ours = facts.transport == Transport::Tunnel;
    let goal = |text: &str, met: bool| ours.then(|| (text.to_owned(), met));
    let mut cards = Vec::new();
    if let Some(goodput) = facts.goodput_mbps {
        cards.push(Card {
            value: number(goodput),
            unit: " Mbit/s",
            what: "received by the applications".to_owned(),
            goal: None,
            why: None,
        });
    }
    if let (Some(share), true) = (facts.share_of_sum(), facts.alone.len() > 1) {
        let basis = if facts.alone_measured {
            "of the sum of the lines' measured goodputs"
        } else {
            "of the lines' rates together"
        };
        cards.push(Card {
            value: number((share * 1e3).round() / 10.0),
            unit: " %",
            what: basis.to_owned(),
            goal: goal("at least 92 %", share >= SUM_GOAL),
            why: why::share(results, facts),
        });
    }
    if let (Some(goodput), Some((name, best)), true) = (
        facts.goodput_mbps,
        facts.best(),
        facts.alone.len() > 1 && !facts.has_film(),
    ) {
        cards.push(Card {
            value: ratio(goodput / best),
            unit: " times",
            what: format!("the best line alone ({name}, {} Mbit/s)", number(best)),
            goal: goal("never below 0.95", goodput >= NO_REGRET * best),
            why: None,
        });
    }
    if let Some(event) = facts.worst_failure {
        let gap = event.gap_ms.unwrap_or(f64::NAN);
        cards.push(Card {
            value: duration(gap),
            unit: "",
            what: format!(
                "without data after the worst failure ({})",
                plot::describe(event)
            ),
            goal: goal("at most 100 ms", gap <= STALL_GOAL_MS),
            why: why::gap(results, facts, event),
        });
    } else if let Some(gap) = facts.stall_ms {
        cards.push(Card {
            value: duration(gap),
            unit: "",
            what: "longest time without data".to_owned(),
            goal: None,
            why: None,
        });
    }
    if let Some((idle, loaded)) = facts.ping_ms {
        cards.push(Card {
            value: format!("+{}", duration((loaded - idle).max(0.0))),
            unit: "",
            what: format!("added to a ping by the traffic (idle {})", duration(idle)),
            goal: goal("at most 20 ms", loaded - idle <= PING_GOAL_MS),
            why: None,
        });
    }
    for (value, unit, what) in media::cards(results) {
        cards.push(Card {
            value,
            unit,
            what,
            goal: None,
            why: None,
        });
    }
    if let (Some(lateness), true) = (results.lateness_us, cards.len() < 5) {
        cards.push(Card {
            value: micros(lateness.p99),
            unit: "",
            what: "lateness of the emulator (99th percentile)".to_owned(),
            goal: None,
            why: None,
        });
    }
    cards
}

/// The project's goals: share of the sum, longest pause after a failure, ping under load.
const SUM_GOAL: f64 = 0.92;
const STALL_GOAL_MS: f64 = 100.0;
const PING_GOAL_MS: f64 = 20.0;

const STYLE: &str = include_str!("report.css");
