//! The keys `budget`, `billing_day` and `at_limit` of a link of a tunnel or a proxy.

use pleach_core::units::{Bitrate, Bytes};
use pleach_proxy::budget::Budget;

use super::{
    source::ConfigError,
    table::{Table, Value},
};

/// How a tunnel's link is used once its budget is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AtLimit {
    /// The link carries nothing.
    Off,
    /// The link carries at most this rate in either direction.
    Slower(Bitrate),
    /// The link is used only while no other link is up.
    #[default]
    Standby,
}

/// Reads `budget` and `billing_day`.
///
/// # Errors
/// If `budget` is not a size above zero, if `billing_day` is not a day of a month, or if it is given without `budget`.
pub(super) fn budget(table: &Table<'_>) -> Result<Option<Budget>, ConfigError> {
    let day = table.optional("billing_day");
    let Some(value) = table.optional("budget") else {
        return match day {
            None => Ok(None),
            Some(day) => Err(without_budget(&day)),
        };
    };
    let what = "a size above zero such as \"20GB\" (kB, MB, GB, KiB, MiB, GiB)";
    let remedy =
        "write the data volume that the link may carry in a month, both directions together";
    let bytes: Bytes = value.parse(what, remedy)?;
    if bytes == Bytes::ZERO {
        return Err(value.expected(what, remedy));
    }
    let day = day.map(|day| day.integer(1..=31, "write the day on which the month begins"));
    let day = day.transpose()?.and_then(|day| u8::try_from(day).ok());
    Ok(Some(Budget {
        bytes,
        billing_day: day.unwrap_or(1),
    }))
}

/// Reads `at_limit` of a tunnel's link.
///
/// # Errors
/// If the value is neither one of the words nor a rate, or if `budget` is missing.
pub(super) fn at_limit(table: &Table<'_>) -> Result<AtLimit, ConfigError> {
    let Some(value) = table.optional("at_limit") else {
        return Ok(AtLimit::default());
    };
    if table.optional("budget").is_none() {
        return Err(without_budget(&value));
    }
    let what = "\"standby\", \"slower\", \"off\" or a rate such as \"512kbit\"";
    let remedy = "write how to use the link after its budget is spent";
    match value.text(what, remedy)? {
        "off" => Ok(AtLimit::Off),
        "slower" => Ok(AtLimit::Slower(SLOWER)),
        "standby" => Ok(AtLimit::Standby),
        _ => {
            let rate: Bitrate = value.parse(what, remedy)?;
            if rate.as_bps() == 0 {
                return Err(value.expected(what, remedy));
            }
            Ok(AtLimit::Slower(rate))
        }
    }
}

fn without_budget(value: &Value<'_>) -> ConfigError {
    value.wrong(
        "it has no effect without a budget",
        "add budget = \"20GB\", or remove it",
    )
}

/// Rate of `at_limit = "slower"`: enough for mail and voice.
const SLOWER: Bitrate = Bitrate::from_mbps(1);
