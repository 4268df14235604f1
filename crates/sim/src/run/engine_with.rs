//! The engine with schedulers and estimators of another crate.

use pleach_core::{endpoint::Endpoint, profile::ProfileChange, sched::SchedulerSettings};

use super::{EngineOnly, Program, scheduler};
use crate::scenario::End;

/// [`EngineOnly`], and settings of the caller's under the names of their policies: a scenario with `policy = "NAME"` runs them at
/// both ends. Keys of the profile may stand beside the name, and replace the caller's changes of it; keys of the
/// policy are the caller's to set in Rust.
///
/// A name of a policy of the engine stands for the caller's settings as well, so that an estimator of another crate runs
/// under each of these policies.
#[derive(Clone, Debug, Default)]
pub struct EngineWith {
    settings: Vec<SchedulerSettings<String>>,
}

impl EngineWith {
    /// The engine with `settings`, of which each has another name.
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
            return Err(format!("{key}: \"{name}\" is set in Rust, and has no keys"));
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
