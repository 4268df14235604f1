//! Plots of lines over a quantity other than time, such as a ratio or a number of paths.

use super::{Frame, Scale, largest, ticks};
use crate::report::{chart::Chart, format::number, svg::Svg};

/// Returns the drawing of `chart` over its labels, `width` by about `height`. `None` if there is nothing to draw.
pub(crate) fn svg(
    chart: &Chart,
    label: &str,
    names: &[String],
    width: f64,
    height: f64,
) -> Option<String> {
    let values = chart.lines.iter().flat_map(|line| &line.values);
    if names.is_empty() || !values.clone().any(|value| value.is_finite()) {
        return None;
    }
    let max = largest(values.copied().chain([chart.at_least]));
    let y_ticks = ticks(max, 5.0);
    let y_top = y_ticks.last().copied().unwrap_or(1.0);
    let (left, right, top) = (46.0, width - 12.0, 26.0);
    let bottom = top + height - 70.0;
    let places: Vec<f64> = (0_u32..).take(names.len()).map(f64::from).collect();
    let end = places.last().copied().unwrap_or(0.0);
    let frame = Frame {
        left,
        right,
        top,
        bottom,
        x: Scale::linear(-0.5, end + 0.5, left, right),
        y: Scale::linear(0.0, y_top, bottom, top),
    };
    let mut svg = Svg::new(width, bottom + 42.0, &chart.label);
    let x_ticks: Vec<_> = places.iter().copied().zip(names.iter().cloned()).collect();
    let y_ticks: Vec<_> = y_ticks.iter().map(|tick| (*tick, number(*tick))).collect();
    frame.axes(&mut svg, &x_ticks, &y_ticks, label, &chart.unit);
    for (line, class) in chart.lines.iter().zip(chart.classes()) {
        let points = places.iter().zip(&line.values);
        let points = points.filter(|(_, value)| value.is_finite());
        let points: Vec<_> = points
            .map(|(place, value)| (frame.x.at(*place), frame.y.at(*value)))
            .collect();
        svg.polyline(&points, &class, "");
    }
    for (index, (place, name)) in x_ticks.iter().enumerate() {
        let mut title = format!("{name}:");
        for line in &chart.lines {
            let value = line.values.get(index).copied().unwrap_or(f64::NAN);
            title += &format!(" {} {},", line.name, number(value));
        }
        title.pop();
        let (from, to) = (frame.x.at(place - 0.5), frame.x.at(place + 0.5));
        svg.rect(
            (from, top),
            (to - from, bottom - top),
            "hover",
            &format!("{title} {}", chart.unit),
        );
    }
    Some(svg.finish())
}
