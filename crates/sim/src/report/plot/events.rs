//! Events in plots over time: marks with their texts, and shading during outages.

use super::{Frame, Scale};
use crate::{
    report::{
        format::{duration, number},
        media,
        svg::{Svg, fit, text_width},
    },
    results::{Event, EventKind, Results},
};

/// A vertical mark. `lane` (0 on top) is the row of its text. `None` if there is no space for the text.
pub(super) struct Mark {
    pub(super) x: f64,
    pub(super) lane: Option<usize>,
    pub(super) text: String,
    pub(super) title: String,
}

/// Places the events' texts to the right of their marks in at most [`LANES_MAX`] lanes above the plot.
///
/// A text is placed below all texts that its mark would otherwise cross, so neither texts nor marks overlap a text.
pub(super) fn place_events(events: &[Event], end_s: f64, x: Scale, right: f64) -> Vec<Mark> {
    let mut shown: Vec<&Event> = events
        .iter()
        .filter(|e| (0.0..=end_s).contains(&e.time_s))
        .collect();
    shown.sort_by(|a, b| a.time_s.total_cmp(&b.time_s));
    shown.truncate(MARKS_MAX);
    let mut lane_ends = [f64::NEG_INFINITY; LANES_MAX];
    let mut marks = Vec::with_capacity(shown.len());
    for event in shown {
        let at = x.at(event.time_s);
        let lane = lane_ends
            .iter()
            .rposition(|end| *end > at - 2.0)
            .map_or(0, |busy| busy + 1);
        let text = fit(&describe(event), (right - at - 4.0).clamp(0.0, 200.0));
        let placed = lane < LANES_MAX && !text.is_empty();
        if placed {
            lane_ends[lane] = at + 4.0 + text_width(&text);
        }
        marks.push(Mark {
            x: at,
            lane: placed.then_some(lane),
            title: format!("{} s: {}", number(event.time_s), describe(event)),
            text,
        });
    }
    marks
}

/// Returns the event's text, or a text derived from its kind.
pub(crate) fn describe(event: &Event) -> String {
    if !event.text.is_empty() {
        return event.text.clone();
    }
    let link = event.link.as_deref().unwrap_or("link");
    match event.kind {
        EventKind::Change => format!("{link} changes"),
        EventKind::Down => format!("{link} down"),
        EventKind::Note => "event".to_owned(),
        EventKind::Silent => format!("{link} silent"),
        EventKind::Up => format!("{link} back"),
    }
}

/// Shades the times in which at least one link did not work.
pub(super) fn outages(svg: &mut Svg, frame: &Frame, events: &[Event], end_s: f64) {
    let mut away: Vec<&Event> = events
        .iter()
        .filter(|e| is_outage(e) && (0.0..end_s).contains(&e.time_s))
        .collect();
    away.sort_by(|a, b| a.time_s.total_cmp(&b.time_s));
    let mut shaded_to = frame.left;
    for event in away.into_iter().take(MARKS_MAX) {
        let back = events
            .iter()
            .filter(|e| e.kind == EventKind::Up && e.link == event.link && e.time_s > event.time_s)
            .map(|e| e.time_s)
            .fold(end_s, f64::min);
        let (from, to) = (frame.x.at(event.time_s).max(shaded_to), frame.x.at(back));
        if to > from {
            let size = (to - from, frame.bottom - frame.top);
            svg.rect((from, frame.top), size, "outage", "");
            shaded_to = to;
        }
    }
}

/// Draws bars on the time axis while a picture stood still or a call was silent.
pub(super) fn freezes(svg: &mut Svg, frame: &Frame, results: &Results, end_s: f64) {
    let shown = media::all_freezes(results).filter(|(_, f)| (0.0..end_s).contains(&f.start_s));
    for (flow, freeze) in shown.take(FREEZES_MAX) {
        let from = frame.x.at(freeze.start_s);
        let to = frame.x.at((freeze.start_s + freeze.length_s).min(end_s));
        let size = ((to - from).max(1.5), 5.0);
        let title = format!(
            "{} s: {flow} froze for {}",
            number(freeze.start_s),
            duration(freeze.length_s * 1e3)
        );
        svg.rect((from, frame.bottom - 5.0), size, "freeze", &title);
    }
}

pub(super) fn freeze_legend(results: &Results) -> Option<(String, String)> {
    media::all_freezes(results).next()?;
    let text = "a video is frozen, or a call is silent";
    Some(("freeze".to_owned(), text.to_owned()))
}

fn is_outage(event: &Event) -> bool {
    matches!(event.kind, EventKind::Down | EventKind::Silent) && event.link.is_some()
}

pub(super) fn outage_legend(results: &Results) -> Option<(String, String)> {
    let any = results.events.iter().any(is_outage);
    any.then(|| ("outage".to_owned(), "a line is down or silent".to_owned()))
}

/// Height in pixels of one line of event texts.
pub(super) const LANE: f64 = 15.0;
/// Highest number of lanes. Further events at about the same time have no text; the table contains all of them.
const LANES_MAX: usize = 4;
const MARKS_MAX: usize = 64;
const FREEZES_MAX: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_events_do_not_overlap() {
        let event = |time_s: f64| Event {
            time_s,
            text: "something".to_owned(),
            ..Event::default()
        };
        let times = [0.0, 0.5, 0.6, 0.7, 0.8, 5.0, 9.0, 9.9];
        let events: Vec<Event> = times.into_iter().rev().map(event).collect();
        let marks = place_events(&events, 10.0, Scale::linear(0.0, 10.0, 0.0, 800.0), 800.0);
        assert_eq!(marks.len(), times.len());
        for (i, mark) in marks.iter().enumerate() {
            let Some(lane) = mark.lane else { continue };
            let end = mark.x + 4.0 + text_width(&mark.text);
            assert!(end <= 800.0, "{}", mark.title);
            for later in marks[i + 1..].iter().filter(|m| m.x < end) {
                assert!(
                    later.lane.is_none_or(|l| l > lane),
                    "{} cuts {}",
                    later.title,
                    mark.title
                );
            }
        }
        assert_eq!(marks.iter().filter(|m| m.lane.is_none()).count(), 2);
    }
}
