//! The tables `[dashboard]` and `[metrics]` in a build that supports neither.

use super::{source::ConfigError, table::Table};

/// Settings of dashboard and metrics; always empty in this build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewConfig {}

/// Refuses both tables.
///
/// # Errors
/// If either table is present.
pub(super) fn read(root: &Table<'_>) -> Result<ViewConfig, ConfigError> {
    let mut found = ["dashboard", "metrics"].into_iter();
    match found.find_map(|key| root.optional(key)) {
        Some(value) => Err(value.wrong(
            "this pleach was built without dashboard and metrics",
            "remove the table, or build pleach with the feature `dashboard`",
        )),
        None => Ok(ViewConfig {}),
    }
}
