//! Parts of a policy's profile that the user switches on or off, and rules of the engine that an experiment switches
//! off.

use pleach_core::profile::{Mechanism, Part, ProfileChange};

use crate::config::{source::ConfigError, table::Table};

/// Returns all keys, in the order in which they are listed to the user.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    Part::KEYS.into_iter().chain([ProfileChange::WITHOUT])
}

/// Reads the changes to the profile from `table`.
///
/// # Errors
/// If a value has the wrong type, or if the engine has no rule of the given name.
pub(super) fn read(table: &Table<'_>) -> Result<ProfileChange, ConfigError> {
    let mut change = ProfileChange::default();
    for part in Part::ALL {
        if let Some(value) = table.optional(part.key()) {
            let is_on = value.as_bool();
            change.set(
                part,
                is_on.ok_or_else(|| value.expected("true or false", "write true or false"))?,
            );
        }
    }
    if let Some(value) = table.optional(ProfileChange::WITHOUT) {
        let names: Vec<&str> = Mechanism::ALL.iter().map(|rule| rule.name()).collect();
        let remedy = format!("write a list of: {}", names.join(", "));
        for value in value.list(Mechanism::ALL.len(), &remedy)? {
            let name = value.text("the name of a rule", &remedy)?;
            let rule = Mechanism::from_name(name);
            change.remove(rule.ok_or_else(|| value.expected("a known rule", &remedy))?);
        }
    }
    Ok(change)
}
