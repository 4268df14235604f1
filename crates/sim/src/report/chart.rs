//! A plot of named lines over time or another quantity, for pages with several runs.

use super::plot::{Join, Timeline, across, largest, line_class};
use crate::results::{Results, Series};

/// A plot of several lines on common axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// Description of the plot for readers who cannot see it.
    pub label: String,
    /// Unit of the vertical axis, for example `Mbit/s`.
    pub unit: String,
    /// Length of a sample in seconds.
    pub interval_s: f64,
    /// Name of the horizontal axis if it is not time, and the label of each sample on it.
    pub across: Option<(String, Vec<String>)>,
    /// The lines, drawn in order. At most 7 lines have different colours.
    pub lines: Vec<ChartLine>,
    /// Smallest upper end of the vertical axis. Higher values of the lines extend it.
    pub at_least: f64,
}

/// One line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChartLine {
    /// Name of the line.
    pub name: String,
    /// One value for each sample. NaN interrupts the line.
    pub values: Vec<f64>,
    /// Whether the line shows the ideal instead of a measurement. Then it is dashed and red.
    pub is_ideal: bool,
}

impl Chart {
    /// Returns the drawing, `width` by about `height` pixels. `None` if there is nothing to draw.
    #[must_use]
    pub fn svg(&self, width: f64, height: f64) -> Option<String> {
        if let Some((label, names)) = &self.across {
            return across(self, label, names, width, height);
        }
        let axis = Results {
            series: Series {
                interval_ms: self.interval_s * 1e3,
                ..Series::default()
            },
            ..Results::default()
        };
        let values = self.lines.iter().map(|line| line.values.clone()).collect();
        let time = Timeline::new(&axis, values, Join::Mean)?;
        let max = largest(time.values.iter().flatten().copied().chain([self.at_least]));
        let (mut svg, frame) = time.begin(width, height, max, &self.unit, &self.label, &axis);
        for ((class, line), values) in self.classes().zip(&self.lines).zip(&time.values) {
            let points = if line.is_ideal {
                time.steps_of(values, &frame)
            } else {
                time.points_of(values, &frame)
            };
            svg.polyline(&points, &class, "");
        }
        let named = self.lines.iter().zip(&time.values);
        let named: Vec<(&str, &[f64])> = named
            .map(|(line, values)| (line.name.as_str(), values.as_slice()))
            .collect();
        time.tooltips(&mut svg, &frame, &named, &self.unit);
        Some(svg.finish())
    }

    /// Returns class and name of each line, for a legend.
    #[must_use]
    pub fn legend(&self) -> Vec<(String, String)> {
        let names = self.lines.iter().map(|line| line.name.clone());
        self.classes().zip(names).collect()
    }

    pub(super) fn classes(&self) -> impl Iterator<Item = String> {
        self.lines.iter().enumerate().map(|(index, line)| {
            if line.is_ideal {
                "reference sum ideal".to_owned()
            } else {
                line_class(index)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_lines_and_names_them() {
        let line = |name: &str, values: &[f64], is_ideal| ChartLine {
            name: name.to_owned(),
            values: values.to_vec(),
            is_ideal,
        };
        let chart = Chart {
            label: "a <b>".to_owned(),
            unit: "Mbit/s".to_owned(),
            interval_s: 0.1,
            across: None,
            lines: vec![
                line("dsl", &[1.0, f64::NAN, 3.0], false),
                line("ideal", &[2.0, 2.0], true),
            ],
            at_least: 10.0,
        };
        let svg = chart.svg(400.0, 200.0).expect("there are samples");
        assert!(svg.contains("a &lt;b&gt;") && svg.contains("ideal"));
        assert_eq!(
            chart.legend()[0],
            ("line c0 d0".to_owned(), "dsl".to_owned())
        );
        assert_eq!(Chart::default().svg(400.0, 200.0), None);
        let places = ["one", "two", "three"].map(str::to_owned).to_vec();
        let across = Some(("number of lines".to_owned(), places));
        let svg = Chart { across, ..chart }.svg(400.0, 200.0);
        let svg = svg.expect("there are values");
        assert!(svg.contains("number of lines") && svg.contains("three: dsl 3"));
        let across = Some((String::new(), Vec::new()));
        let nothing = Chart {
            across,
            ..Chart::default()
        };
        assert_eq!(nothing.svg(400.0, 200.0), None);
    }
}
