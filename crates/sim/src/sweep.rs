//! Sweeps: many cases of one scenario, which differ in some parameters.
//!
//! A sweep file names a base scenario and says which parameters vary:
//!
//! ```toml
//! name = "pairs"
//! base = "pair.toml"             # scenario file, relative to this file
//! warm_up = "2s"                 # start of the run that the rates leave out; default: nothing
//! draws = 100                    # number of draws, if parameters are drawn
//! seed = 1                       # seed of the draws, not of the scenarios
//!
//! [vary]
//! link.dsl.rate = { draw = "log", from = "1Mbit", to = "300Mbit" }
//! link.dsl.queue = { draw = "log", from = "0.25bdp", to = "4bdp" }     # bandwidth-delay products
//! link.dsl.loss = { draw = "log", from = 0.0001, to = 0.05, chance = 0.5 }  # otherwise: as in the base scenario
//! link.lte.delay = { from = "10ms", to = "100ms", count = 5, scale = "log" }
//! link.lte.rate = { from = "10Mbit", to = "50Mbit", step = "10Mbit" }
//! traffic.download.cc = { draw = "choice", of = ["cubic", "bbr"] }
//! tunnel.policy = ["adaptive", "min-rtt"]
//! seed = [1, 2, 3]               # of the scenarios
//! ```
//!
//! **Cases** are numbered from 0. For each draw there is one case for each combination of the listed values: the draw
//! changes last, and the last parameter in alphabetical order changes first. A drawn value depends on the seed, the name
//! of the parameter and the number of the draw only, so the parameters of a case are the same on every machine and for
//! every division of the cases.
//!
//! **A case** is simulated over all links as the base scenario says, and over each link alone without the tunnel
//! ([`measure`](Sweep::measure)). Its figures are a [`Row`]. A case whose simulation fails has a row with an error.
//!
//! **Shards** ([`shard`]) are parts of the cases that different processes or machines compute. [`merge`] joins their
//! rows again. Nothing here does I/O: the caller reads and writes files.

mod apply;
mod axis;
pub mod csv;
mod measure;
pub mod merge;
mod quantity;
mod row;
pub mod shard;
pub mod summary;

use core::time::Duration;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use self::{
    axis::{Axis, Mistake},
    measure::Singles,
};
pub use self::{
    measure::SweepError,
    row::{NotARow, Row},
};
use crate::{
    run::{self, Options, Program, RunError},
    scenario::{
        Files, Scenario, ScenarioError, Span,
        locate::{self, Section, TOP},
    },
    world::stream,
};

/// Highest number of cases of a sweep.
pub const MAX_CASES: u64 = 1_000_000;

/// A sweep, checked except for the combinations of values.
#[derive(Debug)]
pub struct Sweep {
    /// Name of the sweep.
    pub name: String,
    /// Path of the sweep file, for messages.
    file: PathBuf,
    /// Text of the sweep file, for line numbers in messages.
    text: String,
    /// Path of the base scenario.
    base_file: PathBuf,
    base_text: String,
    base: toml::Table,
    /// Directory in which `"traces:NAME"` is looked up.
    traces_dir: Option<PathBuf>,
    /// Trace files that cases can read: path and content, by the name in the scenario.
    traces: BTreeMap<String, (PathBuf, String)>,
    seed: u64,
    draws: u64,
    warm_up: Duration,
    /// The parameters in alphabetical order. All parameters of the tunnel are at the end, because no section of a
    /// scenario that can vary comes after `tunnel`.
    axes: BTreeMap<String, Axis>,
    singles: Singles,
}

/// One case of a sweep.
#[derive(Debug)]
pub struct Case {
    /// Number of the case, from 0.
    pub number: u64,
    /// Value of each parameter. `None`: the value in the base scenario applies.
    pub parameters: BTreeMap<String, Option<toml::Value>>,
    /// The scenario with these parameters.
    pub scenario: Scenario,
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    base: String,
    #[serde(default = "default_seed")]
    seed: u64,
    draws: Option<u64>,
    warm_up: Option<Span>,
    vary: toml::Table,
}

impl Sweep {
    /// Parses the sweep file `files.scenario` with the content `text`, and reads its base scenario.
    ///
    /// # Errors
    /// Returns the first error in the sweep or in the base scenario.
    pub fn parse(text: &str, files: &mut Files<'_>) -> Result<Self, ScenarioError> {
        let file = files.scenario;
        let written: Written =
            toml::from_str(text).map_err(|error| locate::syntax(text, file, &error))?;
        let place = Place { file, text };
        let base_file = file.parent().unwrap_or(Path::new("")).join(&written.base);
        let base_text = (files.read)(&base_file).map_err(|error| {
            let problem = format!("cannot read {}: {error}", base_file.display());
            place.error(
                TOP,
                "base",
                (problem, "the path is relative to the sweep file".to_owned()),
            )
        })?;
        let mut base_files = Files {
            scenario: &base_file,
            traces: files.traces.clone(),
            read: &mut *files.read,
        };
        Scenario::parse(&base_text, &mut base_files)?;
        let base: toml::Table = toml::from_str(&base_text)
            .map_err(|error| locate::syntax(&base_text, &base_file, &error))?;

        let mut axes = BTreeMap::new();
        collect_axes(&written.vary, "", &mut axes)
            .map_err(|(key, mistake)| place.error(VARY, &key, mistake))?;
        if axes.is_empty() {
            let mistake = (
                "nothing varies".to_owned(),
                "write at least one parameter, such as seed = [1, 2, 3]".to_owned(),
            );
            return Err(place.error(VARY, "vary", mistake));
        }
        let traces = read_traces(&base, &axes, &mut base_files)
            .map_err(|(key, mistake)| place.error(VARY, &key, mistake))?;
        let sweep = Self {
            name: written.name,
            seed: written.seed,
            draws: written.draws.unwrap_or(1),
            warm_up: written.warm_up.map_or(Duration::ZERO, |span| span.0),
            file: file.to_owned(),
            text: text.to_owned(),
            traces_dir: files.traces.clone(),
            base_file,
            base_text,
            base,
            traces,
            axes,
            singles: Singles::default(),
        };
        sweep.check(written.draws)?;
        Ok(sweep)
    }

    /// Checks the number of cases, and the first case.
    fn check(&self, draws: Option<u64>) -> Result<(), ScenarioError> {
        let mistake = |problem: &str, remedy: &str| {
            let mistake = (problem.to_owned(), remedy.to_owned());
            Err(self.place().error(TOP, "draws", mistake))
        };
        let has_drawn = self
            .axes
            .values()
            .any(|axis| matches!(axis, Axis::Drawn(_)));
        match draws {
            Some(0) => return mistake("there is no draw", "use 1 or more"),
            Some(2..) if !has_drawn => {
                return mistake(
                    "no parameter is drawn, so all draws are alike",
                    "remove `draws`, or draw a parameter, such as { draw = \"log\", from = \"1Mbit\", to = \"300Mbit\" }",
                );
            }
            None if has_drawn => {
                return mistake("the number of draws is missing", "add draws = 100");
            }
            Some(_) | None => {}
        }
        let count = self
            .axes
            .values()
            .try_fold(self.draws, |count, axis| count.checked_mul(axis.len()));
        if count.is_none_or(|count| count > MAX_CASES) {
            return mistake(
                &format!("the sweep has more than {MAX_CASES} cases"),
                "use fewer draws or fewer values, or several sweep files",
            );
        }
        Ok(())
    }

    /// Returns the number of cases, 1 to [`MAX_CASES`].
    #[must_use]
    pub fn cases(&self) -> u64 {
        self.axes.values().map(Axis::len).product::<u64>() * self.draws
    }

    /// Returns the files that determine the cases: the sweep file, the base scenario, and every trace file that a case
    /// can read. Each has its path and its content.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &str)> {
        let first = [
            (self.file.as_path(), self.text.as_str()),
            (self.base_file.as_path(), self.base_text.as_str()),
        ];
        let traces = self.traces.values();
        let traces = traces.map(|(path, content)| (path.as_path(), content.as_str()));
        first.into_iter().chain(traces)
    }

    /// Returns case `number`, which is below [`Self::cases`].
    ///
    /// # Errors
    /// Returns an error if the scenario with the case's parameters is invalid.
    pub fn case(&self, number: u64) -> Result<Case, ScenarioError> {
        let parameters = self.parameters(number);
        let mut table = self.base.clone();
        for (key, value) in &parameters {
            if let Some(value) = value {
                apply::set(&mut table, key, value.clone())
                    .map_err(|mistake| self.place().error(VARY, key, mistake))?;
            }
        }
        apply::queues(&mut table)
            .map_err(|mistake| self.in_case(number, &parameters, "queue", mistake))?;
        // These sections do not influence the figures of a row.
        for section in ["baselines", "repeat", "expect"] {
            table.remove(section);
        }
        let text = toml::to_string(&table).map_err(|error| {
            let mistake = (error.to_string(), "change the parameters".to_owned());
            self.in_case(number, &parameters, "vary", mistake)
        })?;
        let mut read = |path: &Path| -> io::Result<String> {
            let mut traces = self.traces.values();
            let found = traces.find(|(trace, _)| trace == path);
            found
                .map(|(_, content)| content.clone())
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        let mut files = Files {
            scenario: &self.base_file,
            traces: self.traces_dir.clone(),
            read: &mut read,
        };
        let scenario = Scenario::parse(&text, &mut files).map_err(|error| {
            self.in_case(
                number,
                &parameters,
                &error.key,
                (error.problem, error.remedy),
            )
        })?;
        if self.warm_up >= scenario.duration {
            let mistake = (
                format!(
                    "it leaves out the whole run of {:?} in case {number}",
                    scenario.duration
                ),
                "use a shorter time".to_owned(),
            );
            return Err(self.place().error(TOP, "warm_up", mistake));
        }
        Ok(Case {
            number,
            parameters,
            scenario,
        })
    }

    /// Checks that `case` can be simulated: its policy, classes and congestion controls exist.
    ///
    /// # Errors
    /// Returns an error that names the case and its parameters.
    pub fn check_case(&self, case: &Case, program: &dyn Program) -> Result<(), ScenarioError> {
        let options = Options {
            program,
            skip_baselines: true,
            progress: &|_| {},
        };
        run::check(&case.scenario, &options).map_err(|error| {
            let key = match error {
                RunError::CongestionControl { .. } => "cc",
                RunError::Policy(_) => "policy",
                RunError::LabOnly { .. }
                | RunError::TooLong { .. }
                | RunError::TunnelDown { .. }
                | RunError::World { .. } => "vary",
            };
            let mistake = (
                error.to_string(),
                "correct the parameter or the base scenario".to_owned(),
            );
            self.in_case(case.number, &case.parameters, key, mistake)
        })
    }

    /// Returns the parameters of case `number`.
    #[must_use]
    pub fn parameters(&self, number: u64) -> BTreeMap<String, Option<toml::Value>> {
        let mut rest = number;
        let mut indices = BTreeMap::new();
        for (key, axis) in self.axes.iter().rev() {
            indices.insert(key, rest % axis.len());
            rest /= axis.len();
        }
        let draw = rest;
        let value = |(key, axis): (&String, &Axis)| {
            let rng = || stream(self.seed, &format!("{key} {draw}"));
            let index = indices.get(key).copied().unwrap_or_default();
            (key.clone(), axis.value(index, rng))
        };
        self.axes.iter().map(value).collect()
    }

    /// Returns a number that cases share if they differ only in parameters of the tunnel, so that their links alone
    /// give the same figures.
    fn group(&self, number: u64) -> u64 {
        let of_tunnel = self
            .axes
            .iter()
            .filter(|(key, _)| key.starts_with("tunnel."));
        number / of_tunnel.map(|(_, axis)| axis.len()).product::<u64>()
    }

    fn place(&self) -> Place<'_> {
        Place {
            file: &self.file,
            text: &self.text,
        }
    }

    /// Returns an error about the parameters of a case. The parameter whose last word is `key` is named if there is exactly
    /// one, otherwise the case.
    fn in_case(
        &self,
        number: u64,
        parameters: &BTreeMap<String, Option<toml::Value>>,
        key: &str,
        (problem, remedy): Mistake,
    ) -> ScenarioError {
        let values: Vec<String> = parameters
            .iter()
            .filter_map(|(key, value)| Some(format!("{key} = {}", value.as_ref()?)))
            .collect();
        let problem = format!("case {number} ({}): {problem}", values.join(", "));
        let mut named = parameters.keys().filter(|name| last_word(name) == key);
        let key = match (named.next(), named.next()) {
            (Some(only), None) => only,
            _ => "vary",
        };
        self.place().error(VARY, key, (problem, remedy))
    }
}

/// The sweep file, for messages.
struct Place<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    fn error(&self, section: Section, key: &str, (problem, remedy): Mistake) -> ScenarioError {
        ScenarioError {
            file: self.file.display().to_string(),
            line: locate::line_of(self.text, section, key),
            key: key.to_owned(),
            problem,
            remedy,
        }
    }
}

/// Adds the parameters of `table`, whose keys follow `prefix`, to `axes`.
fn collect_axes(
    table: &toml::Table,
    prefix: &str,
    axes: &mut BTreeMap<String, Axis>,
) -> Result<(), (String, Mistake)> {
    for (word, value) in table {
        let key = if prefix.is_empty() {
            word.clone()
        } else {
            format!("{prefix}.{word}")
        };
        match value {
            toml::Value::Table(group) if !Axis::is_written_in(group) => {
                collect_axes(group, &key, axes)?;
            }
            toml::Value::Array(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Float(_)
            | toml::Value::Integer(_)
            | toml::Value::String(_)
            | toml::Value::Table(_) => {
                let axis = Axis::read(value).map_err(|mistake| (key.clone(), mistake))?;
                axes.insert(key, axis);
            }
        }
    }
    Ok(())
}

/// Reads every trace file that `base` or a value of `axes` names.
fn read_traces(
    base: &toml::Table,
    axes: &BTreeMap<String, Axis>,
    files: &mut Files<'_>,
) -> Result<BTreeMap<String, (PathBuf, String)>, (String, Mistake)> {
    let mut names = BTreeSet::new();
    trace_names(base, &mut names);
    let mut keys: BTreeMap<&str, &str> = names.iter().map(|name| (*name, "vary")).collect();
    for (key, axis) in axes {
        if TRACE_KEYS.contains(&last_word(key)) {
            keys.extend(axis.texts().map(|name| (name, key.as_str())));
        }
    }
    let mut traces = BTreeMap::new();
    for (name, key) in keys {
        let mistake = |problem: String| {
            let remedy = "paths are relative to the base scenario; \"traces:NAME\" means NAME in PLEACH_TRACES";
            (key.to_owned(), (problem, remedy.to_owned()))
        };
        let path = files
            .path_of(name)
            .ok_or_else(|| mistake(format!("{name:?} needs PLEACH_TRACES, which is not set")))?;
        let content = (files.read)(&path)
            .map_err(|error| mistake(format!("cannot read {}: {error}", path.display())))?;
        traces.insert(name.to_owned(), (path, content));
    }
    Ok(traces)
}

/// Adds the names of trace files anywhere in `table` to `names`.
fn trace_names<'a>(table: &'a toml::Table, names: &mut BTreeSet<&'a str>) {
    for (key, value) in table {
        let inner: &[toml::Value] = match value {
            toml::Value::Array(values) => values,
            toml::Value::String(name) => {
                if TRACE_KEYS.contains(&key.as_str()) {
                    names.insert(name);
                }
                &[]
            }
            toml::Value::Table(_) => std::slice::from_ref(value),
            toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Float(_)
            | toml::Value::Integer(_) => &[],
        };
        for table in inner.iter().filter_map(toml::Value::as_table) {
            trace_names(table, names);
        }
    }
}

fn last_word(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

fn default_seed() -> u64 {
    1
}

/// The section of the parameters.
const VARY: Section = Section("vary", 0);
/// Keys that name a trace file.
const TRACE_KEYS: [&str; 2] = ["trace", "csv"];

#[cfg(test)]
mod tests;
