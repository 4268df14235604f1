//! A small SVG writer: shapes by class, text escaped, numbers always finite.
//!
//! Colours and line styles are classes, so that the style sheet of the page determines them for light and dark. A shape
//! may have a `<title>`, which browsers show as a tooltip. Coordinates are pixels of the view box, with one decimal.

use std::fmt::Write as _;

/// One drawing. Later shapes cover earlier ones.
#[derive(Debug)]
pub struct Svg {
    out: String,
}

/// Part of a text that is placed at the given x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The start of the text.
    Start,
    /// The middle of the text.
    Middle,
    /// The end of the text.
    End,
}

impl Svg {
    /// Creates a drawing of `width` by `height`. `label` describes it for readers who cannot see it.
    #[must_use]
    pub fn new(width: f64, height: f64, label: &str) -> Self {
        let mut out = String::new();
        put(
            &mut out,
            format_args!(
                "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                px(width),
                px(height),
                escape(label)
            ),
        );
        Self { out }
    }

    /// Adds a straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        put(
            &mut self.out,
            format_args!(
                "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n",
                px(from.0),
                px(from.1),
                px(to.0),
                px(to.1)
            ),
        );
    }

    /// Adds a rectangle. A negative width or height counts as 0. An empty `title` is omitted.
    pub fn rect(&mut self, at: (f64, f64), size: (f64, f64), class: &str, title: &str) {
        let head = format!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            px(at.0),
            px(at.1),
            px(size.0.max(0.0)),
            px(size.1.max(0.0))
        );
        self.close(&head, "rect", title);
    }

    /// Adds a circle. An empty `title` is omitted.
    pub fn circle(&mut self, at: (f64, f64), radius: f64, class: &str, title: &str) {
        let head = format!(
            "<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"{}\"",
            px(at.0),
            px(at.1),
            px(radius)
        );
        self.close(&head, "circle", title);
    }

    /// Adds a polyline through `points`, interrupted at points that are not finite. A single point becomes a short
    /// dash.
    pub fn polyline(&mut self, points: &[(f64, f64)], class: &str, title: &str) {
        let mut data = String::new();
        for run in points.split(|p| !(p.0.is_finite() && p.1.is_finite())) {
            match run {
                [] => {}
                [(x, y)] => put(&mut data, format_args!("M{} {}h1", px(*x - 0.5), px(*y))),
                _ => data.push_str(&path_through(run)),
            }
        }
        if !data.is_empty() {
            self.close(
                &format!("<path class=\"{class}\" d=\"{data}\""),
                "path",
                title,
            );
        }
    }

    /// Adds the closed shape with the corners `points`.
    pub fn polygon(&mut self, points: &[(f64, f64)], class: &str, title: &str) {
        if points.len() > 2 {
            let data = path_through(points);
            self.close(
                &format!("<path class=\"{class}\" d=\"{data}Z\""),
                "path",
                title,
            );
        }
    }

    /// Adds `text`, escaped. `anchor` is the part of the text that is placed at `at`.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        put(
            &mut self.out,
            format_args!(
                "<text class=\"{class}\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>\n",
                px(at.0),
                px(at.1),
                escape(text)
            ),
        );
    }

    /// Returns the drawing as text.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }

    fn close(&mut self, head: &str, name: &str, title: &str) {
        if title.is_empty() {
            put(&mut self.out, format_args!("{head}/>\n"));
        } else {
            put(
                &mut self.out,
                format_args!("{head}><title>{}</title></{name}>\n", escape(title)),
            );
        }
    }
}

/// Escapes all characters of `text` that have a meaning in markup, for content and for attributes in quotes. Control
/// characters, which XML forbids, become U+FFFD.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => out.push(char::REPLACEMENT_CHARACTER),
            c if c.is_control() => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
    }
    out
}

/// Returns an upper estimate of the width in pixels of `text` in the font of the plots.
pub(crate) fn text_width(text: &str) -> f64 {
    text.chars()
        .map(|c| if c.is_ascii() { 6.7 } else { 12.0 })
        .sum()
}

/// Shortens `text` with an ellipsis so that it fits `width` pixels. Empty if not even three letters fit.
pub(crate) fn fit(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut used = text_width("…");
    let mut out = String::new();
    for c in text.chars() {
        used += text_width(c.encode_utf8(&mut [0; 4]));
        if used > width {
            break;
        }
        out.push(c);
    }
    if out.chars().count() < 3 {
        return String::new();
    }
    out.push('…');
    out
}

fn path_through(points: &[(f64, f64)]) -> String {
    let mut data = String::new();
    for (i, (x, y)) in points.iter().enumerate() {
        let command = if i == 0 { 'M' } else { 'L' };
        put(&mut data, format_args!("{command}{} {}", px(*x), px(*y)));
    }
    data
}

/// Formats a coordinate with at most one decimal. A value that is not finite becomes 0.
fn px(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{:.1}", value.clamp(-1e6, 1e6));
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text)
        .expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_escaped() {
        assert_eq!(
            escape("<a b='c'>&\"\u{1b}"),
            "&lt;a b=&#39;c&#39;&gt;&amp;&quot;\u{fffd}"
        );
    }

    #[test]
    fn numbers_are_finite_and_short() {
        assert_eq!(px(1.0), "1");
        assert_eq!(px(-0.01), "0");
        assert_eq!(px(1.26), "1.3");
        assert_eq!(px(f64::NAN), "0");
        assert_eq!(px(f64::INFINITY), "0");
    }

    #[test]
    fn line_breaks_where_a_value_is_missing() {
        let mut svg = Svg::new(10.0, 10.0, "");
        svg.polyline(
            &[(0.0, 0.0), (1.0, 1.0), (2.0, f64::NAN), (3.0, 3.0)],
            "line",
            "",
        );
        assert!(svg.finish().contains("M0 0L1 1M2.5 3h1"));
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(fit("short", 100.0), "short");
        assert!(fit("a rather long label", 60.0).ends_with('…'));
        assert_eq!(fit("abcdef", 20.0), "");
    }
}
