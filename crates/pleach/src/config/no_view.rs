//! The tables `[dashboard]`, `[metrics]` and `[notices]` in a build that supports none of them.

use super::{source::ConfigError, table::Table};

/// Settings of dashboard, metrics and notices; always empty in this build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewConfig {}

/// Refuses the tables.
///
/// # Errors
/// If a table is present.
pub(super) fn read(root: &Table<'_>) -> Result<ViewConfig, ConfigError> {
    let mut found = ["dashboard", "metrics", "notices"].into_iter();
    match found.find_map(|key| root.optional(key)) {
        Some(value) => Err(value.wrong(
            "this pleach was built without dashboard, metrics and notices",
            "remove the table, or build pleach with the feature `dashboard`",
        )),
        None => Ok(ViewConfig {}),
    }
}
