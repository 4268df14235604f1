//! Plots without a time axis: the comparison of transports, and the emulator's lateness.

use super::{Figure, Frame, Scale, WIDTHS, clean, color, largest, ticks};
use crate::{
    report::{
        facts::Facts,
        format::{micros, number, percent, ratio},
        svg::{Anchor, Svg, fit},
    },
    results::{Results, Transport},
};

/// Draws plot (d): the goodput of the run beside the goodput of the same traffic over other transports. `None` if the
/// run has nothing to compare.
pub(crate) fn comparison(results: &Results, facts: &Facts<'_>) -> Option<Figure> {
    const TITLE: &str = "Compared with other transports";
    let bars = bars_of(results, facts);
    if bars.len() < 2 {
        return None;
    }
    let sum = facts.sum_mbps().filter(|_| facts.alone.len() > 1);
    let max = largest(bars.iter().map(|b| b.mbps).chain(sum));
    let draw = |width: f64| {
        let wide = width > 500.0;
        let left = if wide { 190.0 } else { 122.0 };
        let top = 26.0;
        let bottom = top + ROW * bars.len() as f64 + 4.0;
        let x_ticks = ticks(max, if wide { 8.0 } else { 4.0 });
        let end = x_ticks.last().copied().unwrap_or(1.0);
        let right = width - 52.0;
        let frame = Frame {
            left,
            right,
            top,
            bottom,
            x: Scale::linear(0.0, end, left, right),
            y: Scale::linear(0.0, 1.0, bottom, top),
        };
        let label: Vec<String> = bars
            .iter()
            .map(|b| format!("{} {} Mbit/s", b.label, number(b.mbps)))
            .collect();
        let mut svg = Svg::new(
            width,
            bottom + 42.0,
            &format!("Goodput: {}.", label.join(", ")),
        );
        let x_ticks: Vec<_> = x_ticks.iter().map(|t| (*t, number(*t))).collect();
        frame.axes(&mut svg, &x_ticks, &[], "Mbit/s", "");
        for (i, bar) in bars.iter().enumerate() {
            let y = top + ROW * i as f64;
            let end = frame.x.at(bar.mbps);
            let title = format!("{}: {} Mbit/s{}", bar.label, number(bar.mbps), bar.note);
            svg.rect((left, y + 4.0), (end - left, ROW - 8.0), &bar.class, &title);
            let name = fit(&bar.label, left - 10.0);
            svg.text(
                (left - 8.0, y + ROW / 2.0 + 4.0),
                Anchor::End,
                "label",
                &name,
            );
            // The numbers have their own column, so that the line that marks the sum does not cross them.
            svg.text(
                (width - 4.0, y + ROW / 2.0 + 4.0),
                Anchor::End,
                "value",
                &number(bar.mbps),
            );
        }
        if let Some(sum) = sum {
            let at = frame.x.at(sum);
            svg.line((at, top - 4.0), (at, bottom), "reference sum");
            let text = format!("sum of the lines: {}", number(sum));
            let on_right = at > f64::midpoint(left, right);
            let anchor = if on_right { Anchor::End } else { Anchor::Start };
            svg.text((at, top - 9.0), anchor, "event", &text);
        }
        svg.finish()
    };
    Some(Figure {
        title: TITLE,
        caption: "The same traffic on the same lines: pleach, the kernel's Multipath TCP, each line alone, and plain routing."
            .to_owned(),
        legend: Vec::new(),
        drawings: Some(WIDTHS.map(draw)),
    })
}

struct Bar {
    label: String,
    mbps: f64,
    class: String,
    note: String,
}

fn bars_of(results: &Results, facts: &Facts<'_>) -> Vec<Bar> {
    let link_color = |link: &str| {
        let i = results.links.iter().position(|l| l.name == link);
        i.map_or_else(|| "bar other".to_owned(), |i| format!("bar {}", color(i)))
    };
    let class = |transport: &Transport| match transport {
        Transport::Tunnel => "bar ours".to_owned(),
        Transport::Single(link) => link_color(link),
        Transport::Mptcp | Transport::Raw => "bar other".to_owned(),
    };
    let headline = facts.goodput_mbps.map(|mbps| Bar {
        label: label_of(&facts.transport),
        mbps: clean(mbps),
        class: class(&facts.transport),
        note: String::new(),
    });
    let others = results
        .baselines
        .iter()
        .filter(|b| b.goodput_mbps.is_finite())
        .take(BARS_MAX)
        .map(|b| Bar {
            label: if b.label.is_empty() {
                label_of(&b.transport)
            } else {
                b.label.clone()
            },
            mbps: clean(b.goodput_mbps),
            class: class(&b.transport),
            note: b
                .ratio
                .filter(|r| r.is_finite())
                .map_or_else(String::new, |r| {
                    format!("; pleach is {} times that", ratio(r))
                }),
        });
    headline.into_iter().chain(others).collect()
}

/// Returns the common name of a transport.
pub(crate) fn label_of(transport: &Transport) -> String {
    match transport {
        Transport::Mptcp => "Multipath TCP".to_owned(),
        Transport::Raw => "plain routing".to_owned(),
        Transport::Single(link) => format!("{link} alone"),
        Transport::Tunnel => "pleach".to_owned(),
    }
}

/// Draws plot (e): the lateness of the emulator, and whether the run is valid.
pub(crate) fn lateness(results: &Results) -> Figure {
    const TITLE: &str = "Emulator: lateness of deliveries";
    let Some(summary) = results.lateness_us else {
        return Figure::empty(TITLE);
    };
    let mut bins: Vec<(f64, u64)> = results
        .series
        .lateness
        .iter()
        .filter(|b| b.up_to_us.is_finite() && b.up_to_us > 0.0)
        .map(|b| (b.up_to_us.min(1e12), b.count))
        .collect();
    bins.sort_by(|a, b| a.0.total_cmp(&b.0));
    bins.dedup_by(|later, first| {
        let same = later.0 <= first.0;
        if same {
            first.1 = first.1.saturating_add(later.1);
        }
        same
    });
    bins.truncate(BINS_MAX);
    let total: f64 = bins.iter().map(|b| b.1 as f64).sum();
    if total <= 0.0 {
        return Figure::empty(TITLE);
    }
    let limit = summary.limit();
    let accepted = summary.p99 <= limit;
    let caption = format!(
        "Half of the packets left the emulated lines within {} of the exact time, 99 of 100 within {}. The limit is {}: {}.",
        micros(summary.p50),
        micros(summary.p99),
        micros(limit),
        if accepted { "accepted" } else { "refused" }
    );
    let first = bins[0].0;
    let low = if bins.len() > 1 {
        first * first / bins[1].0
    } else {
        first / 2.0
    };
    let high = largest(
        bins.iter()
            .map(|b| b.0)
            .chain([summary.p99, limit].into_iter().filter(|v| *v <= 1e12)),
    );
    let tallest = largest(bins.iter().map(|b| b.1 as f64 / total));
    let draw = |width: f64| {
        let (left, right, top) = (46.0, width - 12.0, 26.0 + 15.0 * 3.0);
        let bottom = top + 120.0;
        let y_ticks = ticks(tallest * 100.0, 4.0);
        let frame = Frame {
            left,
            right,
            top,
            bottom,
            x: Scale::log(low, high * 1.2, left, right),
            y: Scale::linear(0.0, y_ticks.last().copied().unwrap_or(1.0), bottom, top),
        };
        let mut svg = Svg::new(
            width,
            bottom + 42.0,
            &format!("Histogram of lateness. {caption}"),
        );
        let y_ticks: Vec<_> = y_ticks.iter().map(|t| (*t, number(*t))).collect();
        let x_ticks: Vec<_> = (-3..=12)
            .map(|power| 10_f64.powi(power))
            .filter(|t| *t >= low && *t <= high * 1.2)
            .map(|t| (t, micros(t)))
            .collect();
        frame.axes(&mut svg, &x_ticks, &y_ticks, "late by", "% of packets");
        let mut from = low;
        for (to, count) in &bins {
            let share = *count as f64 / total;
            let (x0, x1, y) = (frame.x.at(from), frame.x.at(*to), frame.y.at(share * 100.0));
            let title = format!("up to {}: {count} packets, {}", micros(*to), percent(share));
            svg.rect(
                (x0, y),
                ((x1 - x0 - 1.0).max(0.5), bottom - y),
                "bar c0",
                &title,
            );
            from = *to;
        }
        let marks = [
            ("p50", summary.p50, "mark"),
            ("p99", summary.p99, "mark"),
            ("limit", limit, "limit"),
        ];
        for (lane, (name, value, class)) in marks
            .into_iter()
            .enumerate()
            .filter(|(_, m)| m.1.is_finite())
        {
            let at = frame.x.at(value);
            let y = 21.0 + 15.0 * lane as f64;
            let text = format!("{name} {}", micros(value));
            svg.rect((at - 0.5, y - 8.0), (1.5, bottom - y + 8.0), class, &text);
            let (x, anchor) = if at > f64::midpoint(left, right) {
                (at - 4.0, Anchor::End)
            } else {
                (at + 4.0, Anchor::Start)
            };
            svg.text((x, y), anchor, "event", &text);
        }
        svg.finish()
    };
    Figure {
        title: TITLE,
        drawings: Some(WIDTHS.map(draw)),
        caption,
        legend: Vec::new(),
    }
}

const ROW: f64 = 30.0;
const BARS_MAX: usize = 24;
const BINS_MAX: usize = 200;
