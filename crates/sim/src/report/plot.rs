//! Common parts of all plots: scales, ticks, axes, legends, and the figure around the drawing.
//!
//! Each plot is drawn twice, for wide and for narrow screens, and the style sheet shows one of them: text stays
//! readable on a phone without a script. Colours are classes `c0`..`c6`, the Okabe-Ito set (Okabe and Ito, 2008), which
//! people with any common colour blindness can distinguish. Lines also differ in their dashes (`d0`..`d3`).

mod across;
mod bars;
mod events;
mod idle;
mod time;
mod timeline;

pub(crate) use across::svg as across;
pub(crate) use bars::{comparison, label_of, lateness};
pub(crate) use events::describe;
pub(crate) use idle::idle;
pub(crate) use time::{flow_goodput, ping, queue_delay, throughput};
pub(crate) use timeline::{Join, Timeline};

use super::svg::{Anchor, Svg, escape};

/// A plot, or a note that there is no data.
pub(crate) struct Figure {
    pub(crate) title: &'static str,
    /// Description of the plot, in a sentence or two.
    pub(crate) caption: String,
    /// Class of the mark, and text, of each legend entry.
    pub(crate) legend: Vec<(String, String)>,
    /// The drawing for wide and for narrow screens; `None`: no data.
    pub(crate) drawings: Option<[String; 2]>,
}

impl Figure {
    /// Creates a figure that says that there is no data.
    pub(crate) fn empty(title: &'static str) -> Self {
        Self {
            title,
            caption: String::new(),
            legend: Vec::new(),
            drawings: None,
        }
    }

    /// Returns the `<figure>` element.
    pub(crate) fn html(&self) -> String {
        let mut out = format!("<figure>\n<figcaption><h2>{}</h2>", escape(self.title));
        let Some([wide, narrow]) = &self.drawings else {
            return out + "<p class=\"nodata\">no data</p></figcaption>\n</figure>\n";
        };
        out += &format!("<p>{}</p></figcaption>\n", escape(&self.caption));
        out += &legend(&self.legend);
        out + &format!(
            "<div class=\"wide\">{wide}</div>\n<div class=\"narrow\">{narrow}</div>\n</figure>\n"
        )
    }
}

/// Returns the legend for classes and names. Empty if there are no entries.
#[must_use]
pub fn legend(entries: &[(String, String)]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let mut out = "<p class=\"legend\">".to_owned();
    for (class, text) in entries {
        out += &format!(
            "<span><svg viewBox=\"0 0 22 12\" width=\"22\" height=\"12\" aria-hidden=\"true\">{}</svg> {}</span> ",
            legend_mark(class),
            escape(text)
        );
    }
    out + "</p>\n"
}

/// Widths of the two drawings in pixels.
pub(super) const WIDTHS: [f64; 2] = [860.0, 380.0];

/// Highest number of lines in a plot. The tables contain all of them.
pub(super) const LINES_MAX: usize = 8;

/// Returns the colour class of the `i`th link or flow.
pub(super) fn color(i: usize) -> String {
    format!("c{}", i % 7)
}

/// Returns the class of the `i`th line in a plot of lines.
pub(crate) fn line_class(i: usize) -> String {
    format!("line c{} d{}", i % 7, i % 4)
}

fn legend_mark(class: &str) -> String {
    if class.starts_with("area")
        || class.starts_with("bar")
        || class.starts_with("outage")
        || class == "freeze"
    {
        format!("<rect class=\"{class}\" x=\"1\" y=\"1\" width=\"20\" height=\"10\"/>")
    } else if class.starts_with("dot") {
        format!("<circle class=\"{class}\" cx=\"11\" cy=\"6\" r=\"3\"/>")
    } else {
        format!("<path class=\"{class}\" d=\"M0 6h22\"/>")
    }
}

/// A linear or logarithmic map from values to pixels.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    lo: f64,
    hi: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// Creates a scale that maps `lo..=hi` to `from..=to`, with `lo < hi`.
    pub(super) fn linear(lo: f64, hi: f64, from: f64, to: f64) -> Self {
        Self {
            lo,
            hi,
            from,
            to,
            log: false,
        }
    }

    /// Creates a logarithmic scale that maps `lo..=hi` to `from..=to`, with `0 < lo < hi`.
    pub(super) fn log(lo: f64, hi: f64, from: f64, to: f64) -> Self {
        Self {
            lo: lo.log10(),
            hi: hi.log10(),
            from,
            to,
            log: true,
        }
    }

    /// Returns the pixel of `value`, limited to the axis. NaN stays NaN.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = if self.log {
            value.max(f64::MIN_POSITIVE).log10()
        } else {
            value
        };
        let share = ((value - self.lo) / (self.hi - self.lo)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }
}

/// Returns about `count` multiples of 1, 2 or 5 times a power of ten, from 0 to the first multiple at or above `max`.
pub(super) fn ticks(max: f64, count: f64) -> Vec<f64> {
    let max = if max.is_finite() && max > 0.0 {
        max
    } else {
        1.0
    };
    let rough = max / count;
    let unit = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * unit)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * unit);
    let mut ticks = vec![0.0];
    // There are at most 3 * count steps, because step is at least rough.
    for i in 1..64 {
        let tick = f64::from(i) * step;
        ticks.push(tick);
        if tick >= max * 0.999 {
            break;
        }
    }
    ticks
}

/// The rectangle inside the axes, and its scales.
pub(crate) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    pub(super) x: Scale,
    pub(super) y: Scale,
}

impl Frame {
    /// Draws grid, ticks and labels. `x_label` and `y_label` name quantity and unit.
    pub(super) fn axes(
        &self,
        svg: &mut Svg,
        x: &[(f64, String)],
        y: &[(f64, String)],
        x_label: &str,
        y_label: &str,
    ) {
        for (value, text) in y {
            let at = self.y.at(*value);
            svg.line((self.left, at), (self.right, at), "grid");
            svg.text((self.left - 6.0, at + 4.0), Anchor::End, "tick", text);
        }
        for (value, text) in x {
            let at = self.x.at(*value);
            svg.line((at, self.bottom), (at, self.bottom + 4.0), "axis");
            svg.text((at, self.bottom + 17.0), Anchor::Middle, "tick", text);
        }
        svg.line((self.left, self.bottom), (self.right, self.bottom), "axis");
        let middle = f64::midpoint(self.left, self.right);
        svg.text(
            (middle, self.bottom + 34.0),
            Anchor::Middle,
            "label",
            x_label,
        );
        svg.text((2.0, self.top - 10.0), Anchor::Start, "label", y_label);
    }
}

/// Returns the value limited to 0..=10^12. NaN if it is not finite.
pub(super) fn clean(value: f64) -> f64 {
    if value.is_finite() {
        value.clamp(0.0, 1e12)
    } else {
        f64::NAN
    }
}

/// Returns the largest finite number of `values`. 0 if there is none.
pub(crate) fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values
        .into_iter()
        .filter(|v| v.is_finite())
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover() {
        assert_eq!(ticks(124.0, 5.0), [0.0, 50.0, 100.0, 150.0]);
        assert_eq!(ticks(30.0, 6.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]);
        for max in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9, 1e12] {
            let ticks = ticks(max, 5.0);
            assert!(ticks.len() >= 2 && ticks.len() < 64, "{max}: {ticks:?}");
            assert!(ticks.iter().all(|t| t.is_finite()));
        }
    }

    #[test]
    fn scales_stay_inside() {
        let log = Scale::log(1.0, 100.0, 0.0, 50.0);
        assert!((log.at(10.0) - 25.0).abs() < 1e-9);
        assert!((log.at(0.0)).abs() < 1e-9);
        assert!((Scale::linear(0.0, 1.0, 10.0, 0.0).at(7.0)).abs() < 1e-9);
    }
}
