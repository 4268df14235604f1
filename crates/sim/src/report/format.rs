//! Formatting of numbers.

/// Formats with three significant digits: `108`, `58.3`, `4.02`, `0.031`. A dash if the value was not measured.
pub(crate) fn number(value: f64) -> String {
    trim(&short(value))
}

/// Formats with three significant digits and trailing zeros, so that columns align. A dash if the value is not finite.
#[must_use]
pub fn short(value: f64) -> String {
    let size = value.abs();
    match value {
        v if !v.is_finite() => NOTHING.to_owned(),
        v if size >= 1e6 => format!("{v:.2e}"),
        v if size >= 99.95 || size == 0.0 => format!("{v:.0}"),
        v if size >= 9.995 => format!("{v:.1}"),
        v if size >= 0.9995 => format!("{v:.2}"),
        v if size >= 0.0005 => format!("{v:.3}"),
        v => format!("{v:.1e}"),
    }
}

/// Formats a number that may be missing with [`short`].
pub(crate) fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), short)
}

/// Formats milliseconds as `0.8 ms`, `180 ms` or `1.2 s`.
pub(crate) fn duration(ms: f64) -> String {
    match ms {
        v if !v.is_finite() => NOTHING.to_owned(),
        v if v.abs() >= 999.5 => format!("{} s", trim(&format!("{:.1}", v / 1e3))),
        v if v.abs() >= 9.95 => format!("{v:.0} ms"),
        v => format!("{} ms", trim(&format!("{v:.1}"))),
    }
}

/// Formats microseconds as `25 µs` or in the units of [`duration`].
pub(crate) fn micros(us: f64) -> String {
    if us.is_finite() && us.abs() < 999.5 {
        format!("{us:.0} µs")
    } else {
        duration(us / 1e3)
    }
}

/// Formats a share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    if share.is_finite() {
        format!("{} %", number(share * 100.0))
    } else {
        NOTHING.to_owned()
    }
}

/// Formats a quotient with two decimals if it is of moderate size.
pub(crate) fn ratio(value: f64) -> String {
    if value.abs() < 999.5 {
        format!("{value:.2}")
    } else {
        short(value)
    }
}

/// Formats bytes with a decimal prefix.
#[expect(clippy::cast_precision_loss, reason = "display only")]
pub(crate) fn bytes(count: u64) -> String {
    let value = count as f64;
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{} kB", short(value / 1e3)),
        1_000_000..1_000_000_000 => format!("{} MB", short(value / 1e6)),
        _ => format!("{} GB", short(value / 1e9)),
    }
}

/// Formats small counts as a word.
pub(crate) fn words(count: usize) -> String {
    const WORDS: [&str; 7] = ["no", "one", "two", "three", "four", "five", "six"];
    WORDS
        .get(count)
        .map_or_else(|| count.to_string(), |w| (*w).to_owned())
}

/// Text in place of a missing number.
pub(crate) const NOTHING: &str = "–";

fn trim(text: &str) -> String {
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        for (value, text) in [
            (108.4, "108"),
            (58.26, "58.3"),
            (64.0, "64"),
            (99.96, "100"),
            (0.0, "0"),
            (0.031, "0.031"),
            (1e9, "1.00e9"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn durations_choose_their_unit() {
        assert_eq!(duration(180.2), "180 ms");
        assert_eq!(duration(0.84), "0.8 ms");
        assert_eq!(duration(6_000.0), "6 s");
        assert_eq!(micros(24.6), "25 µs");
        assert_eq!(micros(2_100.0), "2.1 ms");
        assert_eq!(percent(0.012), "1.2 %");
        assert_eq!(bytes(12_345_678), "12.3 MB");
    }
}
