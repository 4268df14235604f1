//! Rates and sizes as types, so that the type of a quotient or product shows its unit.
//!
//! [`Bytes`] divided by [`Bitrate`] is the [`Duration`] that the bytes take at that rate; [`Bitrate::bytes_in`] gives
//! the number of [`Bytes`] in a [`Duration`]. The text forms are those of configuration files: rates are bits per
//! second with a decimal prefix (`"64Mbit"`, `"1.5Gbit"`, `"800kbit"`), sizes are bytes with a decimal or binary prefix
//! (`"1500B"`, `"130kB"`, `"128KiB"`, `"4MiB"`).

use core::{
    fmt,
    ops::{Add, AddAssign, Div, Sub},
    str::FromStr,
    time::Duration,
};

/// A rate in bits per second.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bitrate(u64);

impl Bitrate {
    /// The difference of two rates; zero if `rhs` is larger.
    #[must_use]
    pub const fn saturating_sub(self, rhs: Self) -> Self {
        Self(self.0.saturating_sub(rhs.0))
    }

    /// A rate of zero.
    pub const ZERO: Self = Self(0);

    /// A rate of `bps` bits per second.
    #[must_use]
    pub const fn from_bps(bps: u64) -> Self {
        Self(bps)
    }

    /// A rate of `mbps` times 10^6 bits per second.
    #[must_use]
    pub const fn from_mbps(mbps: u64) -> Self {
        Self(mbps.saturating_mul(1_000_000))
    }

    /// The rate that carries `bytes` in `time`; `None` if `time` is zero.
    #[must_use]
    pub fn from_transfer(bytes: Bytes, time: Duration) -> Option<Self> {
        let nanos = time.as_nanos();
        if nanos == 0 {
            return None;
        }
        let bps = u128::from(bytes.0) * 8 * 1_000_000_000 / nanos;
        Some(Self(u64::try_from(bps).unwrap_or(u64::MAX)))
    }

    /// Bits per second.
    #[must_use]
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Rate in 10^6 bits per second, for display.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "display only")]
    pub fn as_mbps(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The number of bytes that this rate carries in `time`, rounded down.
    #[must_use]
    pub fn bytes_in(self, time: Duration) -> Bytes {
        let bytes = u128::from(self.0) * time.as_nanos() / 8_000_000_000;
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// This rate multiplied by `numerator / denominator`; a `denominator` of 0 counts as 1.
    #[must_use]
    pub fn scale(self, numerator: u64, denominator: u64) -> Self {
        let scaled = u128::from(self.0) * u128::from(numerator) / u128::from(denominator.max(1));
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Bitrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Bitrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bps if bps >= 1_000_000_000 && bps % 10_000_000 == 0 => {
                write!(f, "{}Gbit", Decimal(bps, 1_000_000_000))
            }
            bps if bps >= 1_000_000 => write!(f, "{}Mbit", Decimal(bps, 1_000_000)),
            bps if bps >= 1_000 => write!(f, "{}kbit", Decimal(bps, 1_000)),
            bps => write!(f, "{bps}bit"),
        }
    }
}

impl FromStr for Bitrate {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let units = [
            ("Gbit", 1_000_000_000),
            ("Mbit", 1_000_000),
            ("kbit", 1_000),
            ("Kbit", 1_000),
            ("bit", 1),
        ];
        parse(text, &units).map(Self).ok_or(ParseUnitError {
            expected: "a rate such as \"64Mbit\" (bit, kbit, Mbit, Gbit)",
        })
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(u64);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);

    /// A number of `bytes` bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The length of a buffer, in bytes.
    #[must_use]
    pub const fn of_len(len: usize) -> Self {
        Self(len as u64)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The difference, or zero if `rhs` is larger.
    #[must_use]
    pub const fn saturating_sub(self, rhs: Self) -> Self {
        Self(self.0.saturating_sub(rhs.0))
    }
}

impl Add for Bytes {
    type Output = Self;

    fn add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, rhs: Self) {
        *self = *self + rhs;
    }
}

impl Sub for Bytes {
    type Output = Self;

    fn sub(self, rhs: Self) -> Self {
        self.saturating_sub(rhs)
    }
}

impl Div<Bitrate> for Bytes {
    type Output = Duration;

    /// The time that these bytes take at `rate`, rounded up to the nanosecond; [`Duration::MAX`] if the rate is zero.
    fn div(self, rate: Bitrate) -> Duration {
        if rate.0 == 0 {
            return Duration::MAX;
        }
        let nanos = (u128::from(self.0) * 8_000_000_000).div_ceil(u128::from(rate.0));
        u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => write!(f, "{}MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => write!(f, "{}KiB", bytes >> 10),
            bytes => write!(f, "{bytes}B"),
        }
    }
}

impl FromStr for Bytes {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let units = [
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
            ("GB", 1_000_000_000),
            ("MB", 1_000_000),
            ("kB", 1_000),
            ("KB", 1_000),
            ("B", 1),
        ];
        parse(text, &units).map(Self).ok_or(ParseUnitError {
            expected: "a size such as \"128KiB\" (B, kB, MB, GB, KiB, MiB, GiB)",
        })
    }
}

/// Error for a text that is not a valid rate or size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}")]
pub struct ParseUnitError {
    expected: &'static str,
}

macro_rules! serde_as_text {
    ($unit:ty) => {
        impl<'de> serde::Deserialize<'de> for $unit {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl serde::Serialize for $unit {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

serde_as_text!(Bitrate);
serde_as_text!(Bytes);

/// Parses `<decimal number><unit>`, at most nine fractional digits, into `number * multiplier`.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let (number, multiplier) = units
        .iter()
        .find_map(|(unit, multiplier)| Some((text.strip_suffix(unit)?.trim_end(), *multiplier)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let all_digits = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction: u128 = if fraction.is_empty() {
        0
    } else {
        fraction.parse().ok()?
    };
    let whole: u128 = whole.parse().ok()?;
    let value = whole
        .checked_mul(scale)?
        .checked_add(fraction)?
        .checked_mul(u128::from(multiplier))?
        / scale;
    u64::try_from(value).ok()
}

/// `value / unit` with as many decimals as are needed so that parsing the text gives `value` again.
struct Decimal(u64, u64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value, unit) = *self;
        let (whole, mut rest) = (value / unit, value % unit);
        write!(f, "{whole}")?;
        if rest > 0 {
            write!(f, ".")?;
            let mut digit_unit = unit / 10;
            while rest > 0 {
                write!(f, "{}", rest / digit_unit)?;
                rest %= digit_unit;
                digit_unit /= 10;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_rates() {
        for (text, bps) in [
            ("64Mbit", 64_000_000),
            ("1.5Gbit", 1_500_000_000),
            ("800kbit", 800_000),
            ("7 bit", 7),
        ] {
            let rate: Bitrate = text.parse().expect(text);
            assert_eq!(rate.as_bps(), bps);
            assert_eq!(
                rate.to_string()
                    .parse::<Bitrate>()
                    .expect("printed form parses"),
                rate
            );
        }
        for text in [
            "",
            "Mbit",
            "64",
            "-1Mbit",
            "1.Mbits",
            "64 MB",
            "99999999999999999999Gbit",
        ] {
            assert!(text.parse::<Bitrate>().is_err(), "{text}");
        }
    }

    #[test]
    fn parses_and_prints_sizes() {
        for (text, bytes) in [
            ("130kB", 130_000),
            ("128KiB", 131_072),
            ("4MiB", 4 << 20),
            ("1500B", 1500),
        ] {
            let size: Bytes = text.parse().expect(text);
            assert_eq!(size.get(), bytes);
            assert_eq!(
                size.to_string()
                    .parse::<Bytes>()
                    .expect("printed form parses"),
                size
            );
        }
    }

    #[test]
    fn bytes_over_rate_is_time() {
        assert_eq!(
            Bytes::new(1500) / Bitrate::from_mbps(12),
            Duration::from_millis(1)
        );
        assert_eq!(Bytes::new(1) / Bitrate::ZERO, Duration::MAX);
        assert_eq!(
            Bitrate::from_mbps(8).bytes_in(Duration::from_millis(2)),
            Bytes::new(2000)
        );
        assert_eq!(
            Bitrate::from_transfer(Bytes::new(1000), Duration::from_millis(1)),
            Some(Bitrate::from_mbps(8))
        );
        assert_eq!(Bitrate::from_transfer(Bytes::new(1), Duration::ZERO), None);
    }
}
