//! Plot of the times in which links were idle: a strip for each link, with the reason that the daemons reported.

use super::{Figure, WIDTHS, color, timeline::Timeline};
use crate::{
    report::{facts::Facts, svg::fit},
    results::{Direction, Results, StatusSample},
};

/// A time in which a link was idle for one reason.
#[derive(Debug, PartialEq)]
struct Span {
    from_s: f64,
    to_s: f64,
    word: String,
    why: String,
}

/// Draws, for each link in the headline's direction, when it carried no packets and why.
pub(crate) fn idle(results: &Results, facts: &Facts<'_>) -> Option<Figure> {
    let sender = match facts.direction {
        Direction::Down => "gateway",
        Direction::Up => "client",
    };
    let spans: Vec<(String, Vec<Span>)> = results
        .links
        .iter()
        .map(|link| (link.name.clone(), spans(results, sender, &link.name)))
        .collect();
    let mut words: Vec<String> = Vec::new();
    for span in spans.iter().flat_map(|(_, spans)| spans) {
        if !words.contains(&span.word) {
            words.push(span.word.clone());
        }
    }
    let class = |word: &str| {
        let index = words.iter().position(|known| known == word).unwrap_or(0);
        format!("area {}", color(index))
    };
    let time = Timeline::until(results, 0.0).filter(|_| !words.is_empty())?;
    let drawings = WIDTHS.map(|width| draw(&time, width, &spans, results, class));
    let legend = words.iter().map(|word| (class(word), word.clone()));
    Some(Figure {
        title: "Idle: why a line carried no packets",
        caption: "Seconds in which a line carried no packet, apart from copies, with the sender's reason. Blank: it carried packets."
            .to_owned(),
        legend: legend.collect(),
        drawings: Some(drawings),
    })
}

fn draw(
    time: &Timeline,
    width: f64,
    spans: &[(String, Vec<Span>)],
    results: &Results,
    class: impl Fn(&str) -> String,
) -> String {
    let rows = spans.len() as f64;
    // One row for each link, with the first on top.
    let names = (0..).zip(spans).map(|(row, (name, _))| {
        let row: f64 = f64::from(row);
        (rows - row - 0.5, fit(name, NAME))
    });
    let axis = (rows, &*names.collect::<Vec<_>>(), "");
    let (mut svg, frame) = time.begin_with(width, 70.0 + rows * ROW, axis, LABEL, results);
    for (row, (_, spans)) in (0..).zip(spans) {
        let top = frame.top + f64::from(row) * ROW + GAP / 2.0;
        for span in spans {
            let (left, right) = (frame.x.at(span.from_s), frame.x.at(span.to_s));
            let size = ((right - left).max(1.0), ROW - GAP);
            let title = format!("{:.1} to {:.1} s: {}", span.from_s, span.to_s, span.why);
            svg.rect((left, top), size, &class(&span.word), &title);
        }
    }
    svg.finish()
}

/// Returns the times in which `link` was idle in the direction of `sender`, with reasons.
fn spans(results: &Results, sender: &str, link: &str) -> Vec<Span> {
    let samples: Vec<&StatusSample> = results
        .status
        .iter()
        .filter(|sample| sample.node == sender)
        .collect();
    let mut spans: Vec<Span> = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        let reason = reason(sample, link);
        let next = samples.get(index + 1);
        let to_s = next.map_or(results.duration_s, |next| next.time_s);
        let Some((word, why)) = reason else { continue };
        match spans.last_mut() {
            Some(last) if last.word == word && last.to_s >= sample.time_s => last.to_s = to_s,
            _ => spans.push(Span {
                from_s: sample.time_s,
                to_s,
                word,
                why,
            }),
        }
    }
    spans
}

/// Returns the reason why `link` is idle according to a sample of `status --json`: the reason of the client itself, or
/// the reason for the only client of a gateway.
fn reason(sample: &StatusSample, link: &str) -> Option<(String, String)> {
    let own = sample.status.get("links")?.as_array()?;
    let clients = sample.status.pointer("/clients/0/links");
    let clients = clients.and_then(serde_json::Value::as_array);
    let mut links = own.iter().chain(clients.into_iter().flatten());
    let link = links.find(|known| known.get("name").is_some_and(|name| name == link))?;
    let text = |key: &str| Some(link.get(key)?.as_str()?.to_owned());
    let word = text("idle_reason")?;
    let why = text("why").unwrap_or_else(|| word.clone());
    Some((word, why))
}

/// Height of a link's row in pixels.
const ROW: f64 = 26.0;
/// Space between two rows in pixels.
const GAP: f64 = 8.0;
/// Space for a link's name left of the strips, in pixels.
const NAME: f64 = 36.0;
const LABEL: &str = "Times in which a line carried no packets, with the reason";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_reason_of_a_client_s_link_is_found_at_a_gateway() {
        let sample = StatusSample {
            time_s: 1.0,
            node: "gateway".to_owned(),
            status: json!({ "links": [], "clients": [{ "links": [
                { "name": "dsl", "idle_reason": null, "why": "dsl carries packets" },
                { "name": "sat", "idle_reason": "too-late-for-its-flows", "why": "sat is too slow" },
            ] }] }),
        };
        assert_eq!(reason(&sample, "dsl"), None);
        let expected = (
            "too-late-for-its-flows".to_owned(),
            "sat is too slow".to_owned(),
        );
        assert_eq!(reason(&sample, "sat"), Some(expected));
    }
}
