//! The engine with schedulers and estimators of another crate.

use pleach_core::{endpoint::Endpoint, profile::ProfileChange, sched::SchedulerSettings};

use super::{EngineOnly, Program, scheduler};
use crate::scenario::End;

/// Extends [`EngineOnly`] by scheduler settings of the caller, each under the name of its policy. A scenario with
/// `policy = "NAME"` runs the settings of that name at both ends. Keys of the profile may be given beside the name;
/// they override the caller's changes of the profile. Keys of the policy itself can only be set by the caller in
/// Rust.
///
/// The caller may also give settings the name of one of the engine's policies. An estimator of another crate can thus
/// run under each of these policies.
#[derive(Clone, Debug, Default)]
pub struct EngineWith {
    settings: Vec<SchedulerSettings<String>>,
}

impl EngineWith {
    /// Creates the engine with `settings`, whose names must be unique.
    #[must_use]
    pub fn new(settings: impl IntoIterator<Item = SchedulerSettings<String>>) -> Self {
        Self {
            settings: settings.into_iter().collect(),
        }
    }
}

impl Program for EngineWith {
    fn scheduler(&self, table: &toml::Table) -> Result<SchedulerSettings<String>, String> {
        let name = table.get("policy").and_then(toml::Value::as_str);
        let mut own = self.settings.iter();
        let Some(own) = own.find(|own| Some(own.policy.name()) == name) else {
            return EngineOnly.scheduler(table);
        };
        let (change, rest) = scheduler::split(table)?;
        if let Some(key) = rest.keys().find(|key| *key != "policy") {
            let name = own.policy.name();
            return Err(format!(
                "{key}: \"{name}\" is configured in Rust and has no keys"
            ));
        }
        let mut settings = own.clone();
        if change != ProfileChange::default() {
            settings.change = change;
        }
        Ok(settings)
    }

    fn status(
        &self,
        end: End,
        scheduler: &SchedulerSettings<String>,
        endpoint: &Endpoint,
    ) -> serde_json::Value {
        EngineOnly.status(end, scheduler, endpoint)
    }
}
