//! Simulates a run of a scenario given as text.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use pleach_core::{
    class::{Class, Match, Service},
    endpoint::Endpoint,
    sched::SchedulerSettings,
};
use pleach_sim::{
    results::Results,
    run::{self, EngineOnly, Program},
    scenario::{End, Files, Scenario},
};
use serde_json::json;

/// Parses the scenario `text`. Recorded links are read from the directory in `PLEACH_TRACES`.
///
/// # Errors
/// If `text` is not a valid scenario.
pub(crate) fn scenario(text: &str) -> anyhow::Result<Scenario> {
    let mut files = Files {
        scenario: Path::new("profiles"),
        traces: env::var_os("PLEACH_TRACES").map(PathBuf::from),
        read: &mut |path: &Path| fs::read_to_string(path),
    };
    Ok(Scenario::parse(text, &mut files)?)
}

/// Simulates `scenario` without its baselines.
///
/// # Errors
/// If the scenario cannot be simulated.
pub(crate) fn simulate(scenario: &Scenario) -> anyhow::Result<Results> {
    let options = run::Options {
        program: &Engine,
        skip_baselines: true,
        progress: &|_| {},
    };
    Ok(run::run(scenario, &options)?)
}

/// The engine with the part of the daemon's status that this bench reads.
struct Engine;

impl Program for Engine {
    fn scheduler(&self, table: &toml::Table) -> Result<SchedulerSettings<String>, String> {
        EngineOnly.scheduler(table)
    }

    /// Reads the keys `name`, `protocol` and `deadline`.
    fn classes(&self, classes: &[toml::Table]) -> Result<Vec<Class>, String> {
        let class = |table: &toml::Table| {
            let text = |key: &str| table.get(key).and_then(toml::Value::as_str);
            let protocol = table.get("protocol").and_then(toml::Value::as_integer);
            let deadline = text("deadline").map(humantime::parse_duration);
            Ok(Class {
                name: text("name").unwrap_or_default().to_owned(),
                matches: Match {
                    protocol: protocol.and_then(|number| u8::try_from(number).ok()),
                    ..Match::default()
                },
                service: Service {
                    deadline: deadline.transpose().map_err(|error| error.to_string())?,
                    ..Service::default()
                },
            })
        };
        classes.iter().map(class).collect()
    }

    fn status(
        &self,
        _: End,
        _: &SchedulerSettings<String>,
        endpoint: &Endpoint,
    ) -> serde_json::Value {
        let hold = endpoint.status().map(|(_, status)| status.hold_p95).max();
        let hold_p95_ms = hold.unwrap_or_default().as_secs_f64() * 1e3;
        json!({ "resequencer": { "hold_p95_ms": hold_p95_ms } })
    }
}
