//! Runs the cases: single links unless they are known, then the bonds.
//!
//! Simulated runs are independent of each other and go on all cores. Those in the lab go one after the other.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use pleach_core::{endpoint::Endpoint, sched::Policy};
use pleach_sim::{
    bonds::Case,
    results::{self, Results},
    run::{self, EngineOnly, Program},
    scenario::{End, Files, Scenario},
};
use rayon::prelude::*;
use serde_json::json;

use crate::{
    cache::Cache,
    figures::{self, Figures, Outcome},
    options::{Flow, Options, World},
};

/// Everything measured of `cases`, in their order. Leaves what is worth keeping in `out`.
///
/// # Errors
/// If a link alone cannot be measured, or no case at all runs through the tunnel. What concerns some cases only, a tunnel
/// that does not come up or a run that the lab refuses, is remarked.
pub(crate) fn measure(
    cases: &[Case],
    options: &Options,
    out: &Path,
) -> anyhow::Result<Vec<Outcome>> {
    let bench = Bench {
        options,
        out,
        cache: Mutex::new(Cache::open(out.join("singles.json"))?),
    };
    bench.measure_singles(cases)?;
    let runs = (0..options.runs()).collect::<Vec<_>>();
    let jobs: Vec<(&Case, u32)> = cases
        .iter()
        .flat_map(|case| runs.iter().map(move |&run| (case, run)))
        .collect();
    let bonded = bench.for_each("bonded", &jobs, |&(case, run)| {
        let result = bench.bonded(case, run);
        // These take half an hour and more, and who ends them early keeps what there is.
        if let (World::Lab, Ok(bonded)) = (options.place, &result) {
            let mbps = bonded.figures.goodput_mbps.unwrap_or(f64::NAN);
            println!("{}: run {}: {mbps:.2} Mbit/s", case.name, run + 1);
        }
        Ok(result.map_err(|error| format!("run {}: {error:#}", run + 1)))
    })?;
    if let Some(Err(error)) = bonded.first().filter(|_| bonded.iter().all(Result::is_err)) {
        bail!("nothing ran through the tunnel; the first case: {error}");
    }
    let by_case = bonded.chunks(runs.len().max(1));
    cases
        .iter()
        .zip(by_case)
        .map(|(case, attempts)| bench.outcome(case, attempts))
        .collect()
}

/// A run through the tunnel, or why there is none.
type Attempt = Result<Bonded, String>;

/// One run through the tunnel.
struct Bonded {
    figures: Figures,
    /// Why it is not to be trusted.
    remark: Option<String>,
}

struct Bench<'a> {
    options: &'a Options,
    out: &'a Path,
    cache: Mutex<Cache>,
}

impl Bench<'_> {
    /// Measures each single link of `cases` that is not known yet.
    fn measure_singles(&self, cases: &[Case]) -> anyhow::Result<()> {
        let mut jobs: BTreeMap<String, (&Case, String)> = BTreeMap::new();
        for case in cases {
            for (key, text) in self.singles(case) {
                if self.options.fresh || self.known(&key).is_none() {
                    jobs.insert(key, (case, text));
                }
            }
        }
        let jobs: Vec<_> = jobs.into_iter().collect();
        self.for_each("single links", &jobs, |(key, (case, text))| {
            let results = self.run(case, text, false)?;
            if let Some(why) = &results.refused {
                println!("{}: a link alone: {why}", case.name);
            }
            self.keep(key, case.goodput(&results), &results)
        })?;
        Ok(())
    }

    /// The runs over single links that `case` needs: what they are remembered by, and their scenarios.
    fn singles(&self, case: &Case) -> Vec<(String, String)> {
        let runs = 0..self.options.runs();
        let texts = runs.flat_map(|run| {
            let links = case.links.iter();
            links.map(move |link| case.single(&self.options.load(), link, run))
        });
        texts
            .map(|text| (self.key("raw", case, &text), text))
            .collect()
    }

    /// What the figure of a run is remembered by.
    fn key(&self, transport: &str, case: &Case, text: &str) -> String {
        let place = match self.options.place {
            World::Lab => "lab",
            World::Sim => "sim",
        };
        let text = text.trim_end().replace('\n', "; ");
        format!("{place} {transport}, from {} s: {text}", case.warm_up_s)
    }

    fn known(&self, key: &str) -> Option<f64> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.find(key)
    }

    /// Keeps the figure `mbps` of `results`, for this time only if the lab says that they prove nothing.
    fn keep(&self, key: &str, mbps: Option<f64>, results: &Results) -> anyhow::Result<()> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        match (mbps, &results.refused) {
            (Some(mbps), None) => cache.keep(key.to_owned(), mbps)?,
            (Some(mbps), Some(_)) => cache.remember(key.to_owned(), mbps),
            (None, _) => {}
        }
        Ok(())
    }

    /// Run `run` of `case` through the tunnel, and over MPTCP if that can be measured and is not known.
    fn bonded(&self, case: &Case, run: u32) -> anyhow::Result<Bonded> {
        let key = self.mptcp_key(case, run);
        let is_wanted = |key: &String| self.options.fresh || self.known(key).is_none();
        let wanted = key.filter(is_wanted);
        let (load, policy) = (self.options.load(), &self.options.policy);
        let mut text = case.bonded(&load, policy, &self.options.keys, run);
        if wanted.is_some() {
            // Keys of the scenario itself stand above its sections.
            text.insert_str(0, "baselines = [\"mptcp\"]\n");
        }
        let results = self.run(case, &text, wanted.is_some())?;
        if let Some(key) = wanted {
            self.keep(&key, figures::mptcp(case, &results), &results)?;
        }
        Ok(Bonded {
            figures: Figures::of(case, &results, self.options.upload),
            remark: results.refused,
        })
    }

    /// What the figure of MPTCP is remembered by; `None` if there is none: in the simulator, for QUIC.
    fn mptcp_key(&self, case: &Case, run: u32) -> Option<String> {
        let is_measured = self.options.place == World::Lab && self.options.flow != Flow::Quic;
        let links = case.links.iter();
        let texts = links.map(|link| case.single(&self.options.load(), link, run));
        is_measured.then(|| self.key("mptcp", case, &texts.collect::<Vec<_>>().join("+ ")))
    }

    fn outcome(&self, case: &Case, attempts: &[Attempt]) -> anyhow::Result<Outcome> {
        let keys = self.singles(case);
        let median = |keys: Vec<&str>| {
            let values: Vec<f64> = keys.into_iter().filter_map(|key| self.known(key)).collect();
            results::median(&values)
        };
        let links = case.links.len();
        let singles_mbps = (0..links).map(|link| {
            let keys = keys.iter().skip(link).step_by(links);
            let keys = keys.map(|(key, _)| key.as_str()).collect();
            median(keys).with_context(|| format!("{}: a link alone was not measured", case.name))
        });
        let mptcp: Vec<String> = (0..self.options.runs())
            .filter_map(|run| self.mptcp_key(case, run))
            .collect();
        let runs = attempts.iter().flatten();
        // Runs of which the lab says that they prove nothing count only if there are no others.
        let honest = runs.clone().filter(|run| run.remark.is_none());
        let mut counted: Vec<Figures> = honest.map(|run| run.figures.clone()).collect();
        if counted.is_empty() {
            counted = runs.clone().map(|run| run.figures.clone()).collect();
        }
        Ok(Outcome {
            case: case.clone(),
            singles_mbps: singles_mbps.collect::<anyhow::Result<_>>()?,
            mptcp_mbps: median(mptcp.iter().map(String::as_str).collect()),
            bonded: Figures::median(&counted),
            runs_mbps: runs.filter_map(|run| run.figures.goodput_mbps).collect(),
            remarks: attempts
                .iter()
                .filter_map(|attempt| match attempt {
                    Ok(run) => run.remark.clone(),
                    Err(why) => Some(why.clone()),
                })
                .collect(),
        })
    }

    /// Runs the scenario `text` of `case`.
    fn run(&self, case: &Case, text: &str, with_baselines: bool) -> anyhow::Result<Results> {
        let mut files = Files {
            scenario: Path::new("profiles"),
            traces: env::var_os("PLEACH_TRACES").map(PathBuf::from),
            read: &mut |path: &Path| fs::read_to_string(path),
        };
        let scenario = Scenario::parse(text, &mut files)?;
        match self.options.place {
            World::Lab => {
                let options = pleach_lab::Options {
                    binary: Some(env!("CARGO_BIN_EXE_pleach").into()),
                    skip_baselines: !with_baselines,
                    quiet: true,
                };
                let logs = self.out.join("lab").join(&case.name);
                pleach_lab::run(&scenario, &logs, &options)
            }
            World::Sim => {
                let options = run::Options {
                    program: &Engine,
                    skip_baselines: true,
                    progress: &|_| {},
                };
                Ok(run::run(&scenario, &options)?)
            }
        }
    }

    /// Does all `jobs`, in the simulator side by side; what they gave, in their order.
    fn for_each<J: Sync, T: Send>(
        &self,
        what: &'static str,
        jobs: &[J],
        work: impl Fn(&J) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Vec<T>> {
        let bar = ProgressBar::new(u64::try_from(jobs.len()).unwrap_or(u64::MAX));
        bar.set_message(what);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {elapsed}") {
            bar.set_style(style);
        }
        let work = |job: &J| {
            let result = work(job);
            bar.inc(1);
            result
        };
        let results = match self.options.place {
            World::Lab => jobs.iter().map(work).collect(),
            // One by one: their lengths differ by a factor of a hundred.
            World::Sim => jobs.par_iter().with_max_len(1).map(work).collect(),
        };
        bar.finish_and_clear();
        results
    }
}

/// The engine, with what is read here of the daemon's status.
struct Engine;

impl Program for Engine {
    fn policy(&self, scheduler: &toml::Table) -> Result<Policy<String>, String> {
        EngineOnly.policy(scheduler)
    }

    fn status(&self, _: End, _: &Policy<String>, endpoint: &Endpoint) -> serde_json::Value {
        let hold = endpoint.status().map(|(_, status)| status.hold_p95).max();
        let hold_p95_ms = hold.unwrap_or_default().as_secs_f64() * 1e3;
        json!({ "resequencer": { "hold_p95_ms": hold_p95_ms } })
    }
}
