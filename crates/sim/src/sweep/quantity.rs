//! Numbers with units, as scenario files write them: `"64Mbit"`, `"6.5ms"`, `"130kB"`, `"1.5bdp"`, `0.01`, `3`.
//!
//! Ranges and draws compute with these numbers as floating-point values. Computed values are rounded to four significant
//! digits, so that rows are short, and so that the last bit of a logarithm does not change a parameter.

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};

use crate::scenario::parse_span;

/// Suffix of a queue length in multiples of the link's bandwidth-delay product.
pub(super) const BDP: &str = "bdp";

/// Unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Multiples of a bandwidth-delay product.
    Bdp,
    /// An integer without unit.
    Count,
    /// A number without unit.
    Number,
    /// Bits per second.
    Rate,
    /// Bytes.
    Size,
    /// Seconds.
    Time,
}

/// A number with its unit. The value is finite and at least 0, except for counts and plain numbers, which can be
/// negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quantity {
    /// The unit.
    pub(super) unit: Unit,
    /// The number, in the base unit named at [`Unit`].
    pub(super) value: f64,
}

impl Quantity {
    /// Reads a value of a TOML file. `None` if it is not a number with a known unit.
    #[expect(
        clippy::cast_precision_loss,
        reason = "rates, sizes and counts of scenarios are below 2^53"
    )]
    pub(super) fn read(value: &toml::Value) -> Option<Self> {
        let (unit, value) = match value {
            toml::Value::Integer(count) => (Unit::Count, *count as f64),
            toml::Value::Float(number) => (Unit::Number, *number),
            toml::Value::String(text) => {
                if let Some(bdps) = bdps(text) {
                    (Unit::Bdp, bdps)
                } else if let Some(span) = parse_span(text) {
                    (Unit::Time, span.as_secs_f64())
                } else if let Ok(rate) = text.parse::<Bitrate>() {
                    (Unit::Rate, rate.as_bps() as f64)
                } else if let Ok(size) = text.parse::<Bytes>() {
                    (Unit::Size, size.get() as f64)
                } else {
                    return None;
                }
            }
            toml::Value::Array(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Table(_) => return None,
        };
        value.is_finite().then_some(Self { unit, value })
    }

    /// Returns the value as a scenario file writes it, rounded to four significant digits. Counts are rounded to
    /// integers.
    pub(super) fn write(self) -> toml::Value {
        let rounded = round(self.value);
        let text = match self.unit {
            Unit::Bdp => format!("{rounded}{BDP}"),
            Unit::Count => return toml::Value::Integer(integer(self.value)),
            Unit::Number => return toml::Value::Float(rounded),
            Unit::Rate => Bitrate::from_bps(natural(rounded)).to_string(),
            Unit::Size => Bytes::new(natural(rounded)).to_string(),
            Unit::Time => {
                let (unit, in_unit) = match rounded {
                    seconds if seconds >= 1.0 => ("s", seconds),
                    seconds if seconds >= 1e-3 => ("ms", seconds * 1e3),
                    seconds => ("us", seconds * 1e6),
                };
                format!("{}{unit}", round(in_unit))
            }
        };
        toml::Value::String(text)
    }
}

/// Reads a length in bandwidth-delay products, such as `1.5bdp`.
pub(super) fn bdps(text: &str) -> Option<f64> {
    let number = text.trim().strip_suffix(BDP)?.trim_end();
    if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    number.parse().ok()
}

/// Rounds `value` to [`DIGITS`] significant digits.
pub(super) fn round(value: f64) -> f64 {
    significant(value, DIGITS)
}

/// Rounds `value` to `digits` significant digits. Values that are not finite are returned unchanged.
pub(super) fn significant(value: f64, digits: u8) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    // Formatting in decimal is exact, unlike scaling by a power of ten.
    let decimals = usize::from(digits.max(1) - 1);
    format!("{value:.decimals$e}").parse().unwrap_or(value)
}

#[expect(clippy::cast_possible_truncation, reason = "a float casts saturating")]
fn integer(value: f64) -> i64 {
    value.round() as i64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float casts saturating, and rates and sizes are not negative"
)]
pub(super) fn natural(value: f64) -> u64 {
    value.round() as u64
}

/// Reads a duration such as `"6.5ms"`. Zero if `value` is missing.
pub(super) fn span(value: Option<&toml::Value>) -> Option<Duration> {
    match value {
        None => Some(Duration::ZERO),
        Some(value) => parse_span(value.as_str()?),
    }
}

/// Number of significant digits of computed values.
const DIGITS: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn through(text: &str) -> String {
        let value = toml::Value::String(text.to_owned());
        let read = Quantity::read(&value).expect(text);
        read.write().as_str().expect("a text").to_owned()
    }

    #[test]
    fn values_survive_reading_and_writing() {
        for text in ["64Mbit", "6.5ms", "130us", "2.5s", "1.5bdp", "999.9kbit"] {
            assert_eq!(through(text), text);
        }
        assert_eq!(through("130kB"), "130000B");
        assert_eq!(through("128KiB"), "131100B", "four digits");
        assert_eq!(through("0ms"), "0us");
        let count = Quantity::read(&toml::Value::Integer(-3)).expect("a number");
        assert_eq!(count.write(), toml::Value::Integer(-3));
    }

    #[test]
    fn words_are_not_numbers() {
        for text in ["adaptive", "", "bdp1", "-1bdp", "10", "1e3ms"] {
            assert_eq!(Quantity::read(&toml::Value::String(text.to_owned())), None);
        }
        assert_eq!(Quantity::read(&toml::Value::Float(f64::NAN)), None);
    }

    #[test]
    fn numbers_are_rounded_to_significant_digits() {
        assert_eq!(round(123_456.0), 123_500.0);
        assert_eq!(round(0.012_345_6), 0.012_35);
        assert_eq!(significant(94.872_134, 6), 94.8721);
        assert_eq!(round(0.0), 0.0);
        assert!(round(f64::NAN).is_nan());
    }
}
