//! Parser of the keys of a `[scheduler]` section, without the program's configuration reader.

use pleach_core::{
    profile::{Mechanism, Part, ProfileChange},
    sched::{Policy, SchedulerSettings},
};
use serde::Deserialize as _;

/// Parses `table`: keys of the profile, and all other keys as keys of the policy.
///
/// # Errors
/// Returns a description of the error in one line.
pub(super) fn read(table: &toml::Table) -> Result<SchedulerSettings<String>, String> {
    let (change, policy) = split(table)?;
    let policy = Policy::deserialize(policy).map_err(|error| error.message().to_owned())?;
    Ok(SchedulerSettings {
        change,
        ..policy.into()
    })
}

/// Splits `table` into the keys of the profile and all other keys.
///
/// # Errors
/// Returns a description of the error in the keys of the profile, in one line.
pub(super) fn split(table: &toml::Table) -> Result<(ProfileChange, toml::Table), String> {
    let mut change = ProfileChange::default();
    let mut rest = toml::Table::new();
    for (key, value) in table {
        if let Some(part) = Part::from_key(key) {
            let is_on = value.as_bool();
            change.set(
                part,
                is_on.ok_or_else(|| format!("{key}: expected true or false"))?,
            );
        } else if key == ProfileChange::WITHOUT {
            let names = value.as_array();
            for name in names.ok_or_else(|| format!("{key}: expected a list of rules"))? {
                let mechanism = name.as_str().and_then(Mechanism::from_name);
                let mechanism = mechanism.ok_or_else(|| format!("{key}: unknown {name}"))?;
                change.remove(mechanism);
            }
        } else {
            rest.insert(key.clone(), value.clone());
        }
    }
    Ok((change, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_is_not_in_a_list_is_refused_and_not_ignored() {
        let settings = |without: &str| {
            let text = format!("policy = \"adaptive\"\nwithout = {without}");
            read(&text.parse().expect("TOML"))
        };
        let rule = Mechanism::LatePaths.name();
        assert!(settings(&format!("\"{rule}\"")).is_err());
        assert!(settings("[\"no such rule\"]").is_err());
        let mut change = ProfileChange::default();
        change.remove(Mechanism::LatePaths);
        let found = settings(&format!("[\"{rule}\"]")).expect("a list");
        assert_eq!(found.change, change);
    }
}
