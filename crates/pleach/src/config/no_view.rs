//! `[dashboard]` and `[metrics]` in a build that has neither.

use super::{source::ConfigError, table::Table};

/// Nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewConfig {}

/// Refuses both tables.
///
/// # Errors
/// Either is there.
pub(super) fn read(root: &Table<'_>) -> Result<ViewConfig, ConfigError> {
    let mut found = ["dashboard", "metrics"].into_iter();
    match found.find_map(|key| root.optional(key)) {
        Some(value) => Err(value.wrong(
            "this pleach was built without dashboard and metrics",
            "remove the table, or use a pleach with the feature `dashboard`",
        )),
        None => Ok(ViewConfig {}),
    }
}
