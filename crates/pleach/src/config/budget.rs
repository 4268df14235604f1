//! `budget`, `billing_day` and `at_limit` of a link, of a tunnel and of a proxy.

use pleach_core::units::{Bitrate, Bytes};
use pleach_proxy::budget::Budget;

use super::{
    source::ConfigError,
    table::{Table, Value},
};

/// What becomes of a tunnel's link that has carried its budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AtLimit {
    /// It carries nothing.
    Off,
    /// It carries no more than this in either direction.
    Slower(Bitrate),
    /// It is used only while no other link is up.
    #[default]
    Standby,
}

/// `budget` and `billing_day`.
///
/// # Errors
/// They are no size above zero and no day of a month.
pub(super) fn budget(table: &Table<'_>) -> Result<Option<Budget>, ConfigError> {
    let day = table.optional("billing_day");
    let Some(value) = table.optional("budget") else {
        return match day {
            None => Ok(None),
            Some(day) => Err(without_budget(&day)),
        };
    };
    let what = "a size above zero such as \"20GB\" (kB, MB, GB, KiB, MiB, GiB)";
    let remedy = "write what the link may carry in a month, both directions together";
    let bytes: Bytes = value.parse(what, remedy)?;
    if bytes == Bytes::ZERO {
        return Err(value.expected(what, remedy));
    }
    let day = day.map(|day| day.integer(1..=31, "write the day on which a month begins"));
    let day = day.transpose()?.and_then(|day| u8::try_from(day).ok());
    Ok(Some(Budget {
        bytes,
        billing_day: day.unwrap_or(1),
    }))
}

/// `at_limit` of a tunnel's link.
///
/// # Errors
/// It is none of the words and no rate, or there is no `budget`.
pub(super) fn at_limit(table: &Table<'_>) -> Result<AtLimit, ConfigError> {
    let Some(value) = table.optional("at_limit") else {
        return Ok(AtLimit::default());
    };
    if table.optional("budget").is_none() {
        return Err(without_budget(&value));
    }
    let what = "\"standby\", \"slower\", \"off\" or a rate such as \"512kbit\"";
    let remedy = "write what becomes of the link when its budget is spent";
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
        "it is of use with a budget only",
        "add budget = \"20GB\", or remove it",
    )
}

/// Enough for mail and voice.
const SLOWER: Bitrate = Bitrate::from_mbps(1);
