//! Plots over time: throughput, queue delay, goodput of each flow, ping, with the run's events marked.
//!
//! This file selects the quantities of each plot, its caption and its legend. The common drawing code is in `timeline`.

use super::{
    Figure, LINES_MAX, WIDTHS, clean, color,
    events::{freeze_legend, outage_legend},
    largest, line_class,
    timeline::{Join, Timeline},
};
use crate::{
    report::{
        facts::Facts,
        format::{duration, number},
    },
    results::{Direction, LinkSeries, Results},
};

/// Draws plot (a): the stacked rates of all links, and the goodput of all bulk flows in the headline's direction.
pub(crate) fn throughput(results: &Results, facts: &Facts<'_>) -> Figure {
    const TITLE: &str = "Throughput of each line";
    let down = facts.direction == Direction::Down;
    let delivered = |l: &LinkSeries| {
        if down {
            l.down_mbps.clone()
        } else {
            l.up_mbps.clone()
        }
    };
    let offered = |l: &LinkSeries| {
        if down {
            l.capacity_down_mbps.clone()
        } else {
            l.capacity_up_mbps.clone()
        }
    };
    let links = links_shown(results);
    let samples: Vec<_> = links.iter().map(delivered).collect();
    let goodput = total_goodput(results, facts);
    let capacities: Vec<_> = results.series.links.iter().map(offered).collect();
    let capacity = sum_of(&capacities);
    let mut all = samples.clone();
    all.extend([goodput, capacity]);
    let Some(mut time) = Timeline::new(results, all, Join::Mean) else {
        return Figure::empty(TITLE);
    };
    let capacity = time.values.pop().unwrap_or_default();
    let goodput = time.values.pop().unwrap_or_default();
    let stacked = stack(&time.values);
    let sum = facts.sum_mbps().filter(|_| facts.alone.len() > 1);
    let best = facts.best();
    let max = largest(
        [sum, best.map(|b| b.1)].into_iter().flatten().chain(
            stacked
                .iter()
                .chain([&goodput, &capacity])
                .flatten()
                .copied(),
        ),
    );
    let draw = |width: f64| {
        let label = format!("Throughput over time by link. {}", facts.verdict());
        let (mut svg, frame) = time.begin(width, 290.0, max, "Mbit/s", &label, results);
        let floor = vec![0.0; time.points];
        for (i, upper) in stacked.iter().enumerate() {
            let lower = if i == 0 { &floor } else { &stacked[i - 1] };
            let mut corners = time.points_of(upper, &frame);
            corners.extend(time.points_of(lower, &frame).into_iter().rev());
            svg.polygon(&corners, &format!("area {}", color(i)), "");
        }
        if !capacity.is_empty() {
            svg.polyline(&time.steps_of(&capacity, &frame), "reference sum", "");
        } else if let Some(sum) = sum {
            svg.line(
                (frame.left, frame.y.at(sum)),
                (frame.right, frame.y.at(sum)),
                "reference sum",
            );
        }
        if let Some((_, rate)) = best {
            svg.line(
                (frame.left, frame.y.at(rate)),
                (frame.right, frame.y.at(rate)),
                "reference best",
            );
        }
        svg.polyline(&time.points_of(&goodput, &frame), "total", "");
        let mut named: Vec<(&str, &[f64])> = links
            .iter()
            .zip(&time.values)
            .map(|(l, v)| (l.name.as_str(), v.as_slice()))
            .collect();
        named.push(("goodput", &goodput));
        time.tooltips(&mut svg, &frame, &named, "Mbit/s");
        svg.finish()
    };
    let mut legend: Vec<_> = links
        .iter()
        .enumerate()
        .map(|(i, l)| (format!("area {}", color(i)), l.name.clone()))
        .collect();
    if !goodput.is_empty() {
        legend.push(("total".to_owned(), "goodput of all flows".to_owned()));
    }
    if let Some((name, rate)) = best {
        legend.push((
            "reference best".to_owned(),
            format!("best line alone: {name}, {} Mbit/s", number(rate)),
        ));
    }
    if !capacity.is_empty() {
        legend.push((
            "reference sum".to_owned(),
            "total capacity of the lines".to_owned(),
        ));
    } else if let Some(sum) = sum {
        legend.push((
            "reference sum".to_owned(),
            format!("sum of the lines: {} Mbit/s", number(sum)),
        ));
    }
    legend.extend(outage_legend(results));
    legend.extend(freeze_legend(results));
    Figure {
        title: TITLE,
        caption: format!(
            "All bytes that the links delivered {}, including headers and repairs, one colour per link. The bold line \
             is the payload that the applications received.",
            if down {
                "to the client"
            } else {
                "to the server"
            }
        ),
        legend,
        drawings: Some(WIDTHS.map(draw)),
    }
}

/// Draws plot (b): delays in the links' queues.
pub(crate) fn queue_delay(results: &Results, facts: &Facts<'_>) -> Figure {
    let down = facts.direction == Direction::Down;
    let queue = |l: &LinkSeries| {
        if down {
            l.queue_down_ms.clone()
        } else {
            l.queue_up_ms.clone()
        }
    };
    let links = links_shown(results);
    let named: Vec<_> = links.iter().map(|l| (l.name.clone(), queue(l))).collect();
    lines(
        results,
        named,
        Join::Max,
        ("Queues: waiting time of packets at each line", "ms"),
        "A lower value means less delay for calls and games. Each point is the longest wait in its interval.",
    )
}

/// Draws the goodput of every flow, which is of interest only for several flows.
pub(crate) fn flow_goodput(results: &Results) -> Figure {
    let flows = results.series.flows.iter().take(LINES_MAX);
    let named: Vec<_> = flows
        .map(|f| (f.name.clone(), f.goodput_mbps.clone()))
        .collect();
    lines(
        results,
        named,
        Join::Mean,
        ("Goodput of each flow", "Mbit/s"),
        "Payload delivered to each application.",
    )
}

/// Draws plot (c): the RTTs of the ping that ran beside the traffic.
pub(crate) fn ping(results: &Results) -> Figure {
    const TITLE: &str = "Ping beside the traffic";
    let points: Vec<(f64, f64)> = results
        .series
        .ping
        .iter()
        .filter(|p| p.time_s.is_finite())
        .map(|p| (p.time_s, clean(p.rtt_ms.unwrap_or(f64::NAN))))
        .collect();
    let last = largest(points.iter().map(|p| p.0));
    let Some(time) = Timeline::until(results, last) else {
        return Figure::empty(TITLE);
    };
    if points.is_empty() {
        return Figure::empty(TITLE);
    }
    let shown = thin(&points);
    let summary = results.pings.clone().unwrap_or_default();
    let idle = summary.idle.rtt_ms.p50.map(clean).filter(|v| v.is_finite());
    let max = largest(shown.iter().map(|p| p.1).chain(idle));
    let lost = points.iter().filter(|p| p.1.is_nan()).count();
    let loaded = summary.loaded.rtt_ms;
    let mut caption =
        "Each dot is one echo request through the same connection as the traffic.".to_owned();
    if let (Some(p50), Some(p99)) = (loaded.p50, loaded.p99) {
        caption += &format!(
            " Half took at most {}, 99 of 100 at most {}.",
            duration(p50),
            duration(p99)
        );
    }
    if let Some(idle) = idle {
        caption += &format!(" Without traffic the median is {}.", duration(idle));
    }
    let draw = |width: f64| {
        let (mut svg, frame) = time.begin(
            width,
            230.0,
            max * 1.05,
            "ms",
            &format!("Ping over time. {caption}"),
            results,
        );
        if let Some(idle) = idle {
            svg.line(
                (frame.left, frame.y.at(idle)),
                (frame.right, frame.y.at(idle)),
                "reference sum",
            );
        }
        let path: Vec<_> = shown
            .iter()
            .map(|p| (frame.x.at(p.0), frame.y.at(p.1)))
            .collect();
        svg.polyline(&path, "line thin c0", "");
        for (point, at) in shown.iter().zip(&path) {
            if point.1.is_nan() {
                let title = format!("{} s: no reply", number(point.0));
                svg.circle((at.0, frame.top + 4.0), 3.5, "dot lost", &title);
            } else {
                let title = format!("{} s: {}", number(point.0), duration(point.1));
                svg.circle(*at, 2.2, "dot c0", &title);
            }
        }
        svg.finish()
    };
    let mut legend = vec![("dot c0".to_owned(), "round trip".to_owned())];
    if lost > 0 {
        legend.push(("dot lost".to_owned(), format!("no reply ({lost})")));
    }
    if let Some(idle) = idle {
        legend.push((
            "reference sum".to_owned(),
            format!("idle median: {}", duration(idle)),
        ));
    }
    legend.extend(outage_legend(results));
    legend.extend(freeze_legend(results));
    Figure {
        title: TITLE,
        drawings: Some(WIDTHS.map(draw)),
        caption,
        legend,
    }
}

/// Draws a plot of named lines.
fn lines(
    results: &Results,
    named: Vec<(String, Vec<f64>)>,
    join: Join,
    (title, unit): (&'static str, &str),
    caption: &str,
) -> Figure {
    let (names, values): (Vec<_>, Vec<_>) =
        named.into_iter().filter(|(_, v)| !v.is_empty()).unzip();
    let Some(time) = Timeline::new(results, values, join) else {
        return Figure::empty(title);
    };
    let max = largest(time.values.iter().flatten().copied());
    let draw = |width: f64| {
        let (mut svg, frame) = time.begin(
            width,
            230.0,
            max,
            unit,
            &format!("{title}, over time."),
            results,
        );
        for (i, values) in time.values.iter().enumerate() {
            svg.polyline(&time.points_of(values, &frame), &line_class(i), "");
        }
        let named: Vec<(&str, &[f64])> = names
            .iter()
            .zip(&time.values)
            .map(|(n, v)| (n.as_str(), v.as_slice()))
            .collect();
        time.tooltips(&mut svg, &frame, &named, unit);
        svg.finish()
    };
    let legend = names
        .iter()
        .enumerate()
        .map(|(i, name)| (line_class(i), name.clone()));
    Figure {
        title,
        caption: caption.to_owned(),
        legend: legend
            .chain(outage_legend(results))
            .chain(freeze_legend(results))
            .collect(),
        drawings: Some(WIDTHS.map(draw)),
    }
}

fn links_shown(results: &Results) -> &[LinkSeries] {
    let links = &results.series.links;
    &links[..links.len().min(LINES_MAX)]
}

fn total_goodput(results: &Results, facts: &Facts<'_>) -> Vec<f64> {
    let counts = |name: &str| results.flows.is_empty() || facts.bulk.iter().any(|f| f.name == name);
    let flows = results.series.flows.iter().filter(|f| counts(&f.name));
    sum_of(&flows.map(|f| f.goodput_mbps.clone()).collect::<Vec<_>>())
}

/// Returns the element-wise sum. A missing number counts as 0. Empty if all arrays are empty.
fn sum_of(arrays: &[Vec<f64>]) -> Vec<f64> {
    let length = arrays.iter().map(Vec::len).max().unwrap_or(0);
    let value =
        |array: &Vec<f64>, i: usize| array.get(i).copied().map(clean).filter(|v| v.is_finite());
    (0..length)
        .map(|i| arrays.iter().filter_map(|a| value(a, i)).sum())
        .collect()
}

/// Returns the upper edge of each layer.
fn stack(layers: &[Vec<f64>]) -> Vec<Vec<f64>> {
    (1..=layers.len())
        .map(|n| sum_of(&layers[..n]))
        .map(|mut layer| {
            layer.resize(layers.iter().map(Vec::len).max().unwrap_or(0), 0.0);
            layer
        })
        .collect()
}

/// Reduces `points` to at most [`PINGS_MAX`]. Of neighbouring points the slowest stays, and a missing reply takes
/// precedence.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let slowness = |p: &(f64, f64)| if p.1.is_nan() { f64::INFINITY } else { p.1 };
    points
        .chunks(points.len().div_ceil(PINGS_MAX).max(1))
        .filter_map(|c| {
            c.iter()
                .copied()
                .max_by(|a, b| slowness(a).total_cmp(&slowness(b)))
        })
        .collect()
}

const PINGS_MAX: usize = 400;
