//! The keys of policy `adaptive`.

use core::{ops::RangeInclusive, time::Duration};

use pleach_core::sched::AdaptiveSettings;

use super::values::time;
use crate::config::{classes::one_or_more, network, source::ConfigError, table::Table};

/// Reads the policy's keys from `table`.
///
/// # Errors
/// If a value has the wrong type or is out of its range, if a link is in both `yield` and `hold`, or if `share` is
/// given without `hold`.
pub(super) fn read(table: &Table<'_>) -> Result<AdaptiveSettings<String>, ConfigError> {
    let mut settings = AdaptiveSettings::default();
    if let Some(value) = table.optional("target_delay") {
        settings.target_delay = Some(time(&value, &TARGET_DELAY, "20ms")?);
    }
    settings.yields = one_or_more(table, "yield", network::name)?;
    settings.holds = one_or_more(table, "hold", network::name)?;
    let both = settings
        .holds
        .iter()
        .find(|link| settings.yields.contains(link));
    if let Some(link) = both {
        let what = format!("\"{link}\" is also named in \"yield\"");
        return Err(table.wrong("hold", what, "remove it from one of the two keys"));
    }
    if let Some(value) = table.optional("share") {
        if settings.holds.is_empty() {
            let what = "has no effect without \"hold\"";
            return Err(table.wrong("share", what, "add hold = \"NAME\", or remove it"));
        }
        let remedy = "write a share of the link's capacity in percent, for example 50";
        let percent = value.integer(1..=100, remedy)?;
        settings.share = u8::try_from(percent).unwrap_or(settings.share);
    }
    Ok(settings)
}

const TARGET_DELAY: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(10);
