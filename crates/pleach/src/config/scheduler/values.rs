//! Readers of values that more than one policy has.

use core::{ops::RangeInclusive, time::Duration};

use crate::config::{
    source::ConfigError,
    table::{Table, Value},
};

/// Reads one of two words into `field`, if the key is present.
///
/// # Errors
/// If the value is neither of the words.
pub(super) fn word<T: Copy>(
    table: &Table<'_>,
    key: &str,
    field: &mut T,
    words: [(&str, T); 2],
) -> Result<(), ConfigError> {
    let Some(value) = table.optional(key) else {
        return Ok(());
    };
    let chosen = words
        .iter()
        .find(|(word, _)| value.as_text() == Some(*word));
    let [(usual, _), (other, _)] = words;
    let Some((_, chosen)) = chosen else {
        let what = format!("\"{usual}\" or \"{other}\"");
        return Err(value.expected(&what, &format!("write \"{usual}\", or remove it")));
    };
    *field = *chosen;
    Ok(())
}

/// Reads a duration within `range`.
///
/// # Errors
/// If the value is not a duration within `range`.
pub(super) fn time(
    value: &Value<'_>,
    range: &RangeInclusive<Duration>,
    example: &str,
) -> Result<Duration, ConfigError> {
    let show = |time: &Duration| humantime::format_duration(*time);
    let (least, most) = (show(range.start()), show(range.end()));
    let what = format!("a duration from \"{least}\" to \"{most}\"");
    let remedy = format!("write for example \"{example}\"");
    humantime::parse_duration(value.text(&what, &remedy)?)
        .ok()
        .filter(|time| range.contains(time))
        .ok_or_else(|| value.expected(&what, &remedy))
}
