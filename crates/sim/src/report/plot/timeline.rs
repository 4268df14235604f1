//! Drawing code common to all plots over time: samples combined to points, axes with the run's events, tooltips.
//!
//! Samples are combined to at most [`POINTS_MAX`] points (means of rates, maxima of delays), so that a page stays small
//! for runs of any length. At most [`COLUMNS_MAX`] invisible columns contain the values as tooltips.

use super::{
    Frame, Scale, clean,
    events::{LANE, freezes, outages, place_events},
    largest, ticks,
};
use crate::{
    report::{
        format::number,
        svg::{Anchor, Svg},
    },
    results::Results,
};

/// Function that combines samples to one point.
#[derive(Clone, Copy)]
pub(crate) enum Join {
    Max,
    Mean,
}

/// Arrays over time, reduced to a few points of equal duration.
pub(crate) struct Timeline {
    /// Length of the time axis in seconds, above 0.
    end_s: f64,
    /// Length of one point in seconds.
    step_s: f64,
    pub(crate) points: usize,
    /// The arrays. An empty array stays empty. A short array is extended with NaN.
    pub(crate) values: Vec<Vec<f64>>,
}

impl Timeline {
    /// Creates a timeline. `None` if there is no sample or the duration is zero.
    pub(crate) fn new(results: &Results, arrays: Vec<Vec<f64>>, join: Join) -> Option<Self> {
        let interval_s = results.series.interval_ms / 1e3;
        let samples = arrays.iter().map(Vec::len).max().filter(|n| *n > 0)?;
        if !(interval_s.is_finite() && interval_s > 0.0) {
            return None;
        }
        let per_point = samples.div_ceil(POINTS_MAX);
        let points = samples.div_ceil(per_point);
        let values = arrays
            .into_iter()
            .map(|array| {
                let mut joined: Vec<f64> = array
                    .chunks(per_point)
                    .map(|c| join_samples(c, join))
                    .collect();
                if !joined.is_empty() {
                    joined.resize(points, f64::NAN);
                }
                joined
            })
            .collect();
        let end = clean(samples as f64 * interval_s);
        Some(Self {
            end_s: end,
            step_s: interval_s * per_point as f64,
            points,
            values,
        })
    }

    /// Creates a time axis without arrays, up to `last_s` or the end of the run.
    pub(crate) fn until(results: &Results, last_s: f64) -> Option<Self> {
        let end_s = largest([clean(results.duration_s), clean(last_s)]);
        (end_s > 0.0).then_some(Self {
            end_s,
            step_s: end_s,
            points: 0,
            values: Vec::new(),
        })
    }

    /// Starts a drawing with the events and with axes, from 0 to the end of the run and from 0 to `max`.
    pub(crate) fn begin(
        &self,
        width: f64,
        height: f64,
        max: f64,
        unit: &str,
        label: &str,
        results: &Results,
    ) -> (Svg, Frame) {
        let y_ticks = ticks(max, 5.0);
        let y_top = y_ticks.last().copied().unwrap_or(1.0);
        let y_ticks: Vec<_> = y_ticks.iter().map(|tick| (*tick, number(*tick))).collect();
        self.begin_with(width, height, (y_top, &y_ticks, unit), label, results)
    }

    /// Starts a drawing whose vertical axis is given by the caller: its upper end, its ticks with labels, and its unit.
    pub(crate) fn begin_with(
        &self,
        width: f64,
        height: f64,
        (y_top, y_ticks, unit): (f64, &[(f64, String)], &str),
        label: &str,
        results: &Results,
    ) -> (Svg, Frame) {
        let (left, right) = (46.0, width - 12.0);
        let x = Scale::linear(0.0, self.end_s, left, right);
        let marks = place_events(&results.events, self.end_s, x, right);
        let lanes = marks
            .iter()
            .filter_map(|m| m.lane)
            .map(|lane| lane + 1)
            .max()
            .unwrap_or(0);
        let top = 26.0 + LANE * lanes as f64;
        let bottom = top + height - 70.0;
        let frame = Frame {
            left,
            right,
            top,
            bottom,
            x,
            y: Scale::linear(0.0, y_top, bottom, top),
        };
        let mut svg = Svg::new(width, bottom + 42.0, label);
        outages(&mut svg, &frame, &results.events, self.end_s);
        freezes(&mut svg, &frame, results, self.end_s);
        let x_ticks = ticks(self.end_s, if width > 500.0 { 10.0 } else { 5.0 });
        let x_ticks: Vec<_> = x_ticks
            .iter()
            .filter(|t| **t <= self.end_s * 1.001)
            .map(|tick| (*tick, number(*tick)))
            .collect();
        frame.axes(&mut svg, &x_ticks, y_ticks, "seconds", unit);
        for mark in &marks {
            let from = mark.lane.map_or(top, |lane| 6.0 + LANE * lane as f64);
            svg.rect(
                (mark.x - 0.5, from),
                (1.0, bottom - from),
                "mark",
                &mark.title,
            );
            if mark.lane.is_some() {
                svg.text(
                    (mark.x + 4.0, from + 10.0),
                    Anchor::Start,
                    "event",
                    &mark.text,
                );
            }
        }
        (svg, frame)
    }

    /// Returns one point in the middle of each step. The ends are extended to the axes.
    pub(crate) fn points_of(&self, values: &[f64], frame: &Frame) -> Vec<(f64, f64)> {
        let middle = |i: usize| (i as f64 + 0.5) * self.step_s;
        let mut points: Vec<_> = values
            .iter()
            .enumerate()
            .map(|(i, v)| (frame.x.at(middle(i)), frame.y.at(*v)))
            .collect();
        if let (Some(first), Some(last)) = (values.first(), values.last()) {
            points.insert(0, (frame.left, frame.y.at(*first)));
            points.push((frame.x.at(self.end_s), frame.y.at(*last)));
        }
        points
    }

    /// Returns a staircase, for quantities that change abruptly.
    pub(crate) fn steps_of(&self, values: &[f64], frame: &Frame) -> Vec<(f64, f64)> {
        let mut points = Vec::with_capacity(2 * values.len());
        let mut before = None;
        for (i, value) in values.iter().enumerate() {
            if before != Some(*value) || i + 1 == values.len() {
                let x = frame.x.at(i as f64 * self.step_s);
                points.extend(before.map(|b| (x, frame.y.at(b))));
                points.push((x, frame.y.at(*value)));
            }
            before = Some(*value);
        }
        points.extend(before.map(|b| (frame.x.at(self.end_s), frame.y.at(b))));
        points
    }

    /// Draws at most [`COLUMNS_MAX`] invisible columns whose tooltips show the values under the pointer.
    pub(crate) fn tooltips(
        &self,
        svg: &mut Svg,
        frame: &Frame,
        named: &[(&str, &[f64])],
        unit: &str,
    ) {
        let per_column = self.points.div_ceil(COLUMNS_MAX).max(1);
        for first in (0..self.points).step_by(per_column) {
            let after = (first + per_column).min(self.points);
            let (from_s, to_s) = (first as f64 * self.step_s, after as f64 * self.step_s);
            let mut title = format!("{} to {} s:", number(from_s), number(to_s.min(self.end_s)));
            for (name, values) in named.iter().filter(|(_, v)| !v.is_empty()) {
                let mean = join_samples(values.get(first..after).unwrap_or_default(), Join::Mean);
                title += &format!(" {name} {},", number(mean));
            }
            title.pop();
            let (left, right) = (frame.x.at(from_s), frame.x.at(to_s));
            let title = format!("{title} {unit}");
            svg.rect(
                (left, frame.top),
                (right - left, frame.bottom - frame.top),
                "hover",
                &title,
            );
        }
    }
}

/// Combines `samples` to one number. NaN if all are unknown.
fn join_samples(samples: &[f64], join: Join) -> f64 {
    let known: Vec<f64> = samples
        .iter()
        .copied()
        .map(clean)
        .filter(|v| v.is_finite())
        .collect();
    if known.is_empty() {
        return f64::NAN;
    }
    match join {
        Join::Max => largest(known),
        Join::Mean => known.iter().sum::<f64>() / known.len() as f64,
    }
}

const POINTS_MAX: usize = 400;
const COLUMNS_MAX: usize = 60;
