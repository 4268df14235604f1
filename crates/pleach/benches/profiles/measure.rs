//! Runs the cases: first single links whose goodput is not stored, then the tunnel, and other programs in its place.
//!
//! Simulated runs are independent of each other and use all cores. Runs in the lab take place one after the other.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use pleach_sim::{
    bonds::Case,
    results::{self, Results},
};
use rayon::prelude::*;

use crate::{
    cache::Cache,
    figures::{self, Figures, Outcome},
    options::{Flow, Options, Peer, World},
    simulate,
};

/// Measures `cases`, and returns the results in their order. Stores reusable figures in `out`.
///
/// # Errors
/// If a single link cannot be measured, or if no case runs through the tunnel. Failures of some cases only, such as a
/// tunnel that does not come up or a run that the lab rejects, become remarks.
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
        // Runs in the lab take half an hour and more. Print each figure, so that nothing is lost if the user stops the
        // bench.
        if let (World::Lab, Ok(bonded)) = (options.place, &result) {
            let mbps = bonded.figures.goodput_mbps.unwrap_or(f64::NAN);
            println!("{}: run {}: {mbps:.2} Mbit/s", case.name, run + 1);
        }
        Ok(result.map_err(|error| format!("run {}: {error:#}", run + 1)))
    })?;
    if options.place == World::Lab {
        bench.measure_peers(&jobs)?;
    }
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

/// The tunnel of a run.
#[derive(Clone, Copy)]
enum Program<'a> {
    Pleach,
    /// The tunnel, and after it the scenario's baselines.
    PleachAndBaselines,
    Other(&'a Peer),
}

/// The result of a run through the tunnel, or the reason why it failed.
type Attempt = Result<Bonded, String>;

/// Result of one run through the tunnel.
struct Bonded {
    figures: Figures,
    /// Reason why the result must not be trusted.
    remark: Option<String>,
}

struct Bench<'a> {
    options: &'a Options,
    out: &'a Path,
    cache: Mutex<Cache>,
}

impl Bench<'_> {
    /// Measures each single link of `cases` whose goodput is not stored.
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
            let results = self.run(case, text, Program::Pleach)?;
            if let Some(why) = &results.refused {
                println!("{}: a link alone: {why}", case.name);
            }
            self.keep(key, case.goodput(&results), &results)
        })?;
        Ok(())
    }

    /// Returns the runs over single links that `case` needs: the key of each figure, and the scenario.
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

    /// Returns the key under which the figure of a run is stored.
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

    /// Stores the figure `mbps` of `results`. If the lab has rejected the results, remembers it for this process only.
    fn keep(&self, key: &str, mbps: Option<f64>, results: &Results) -> anyhow::Result<()> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        match (mbps, &results.refused) {
            (Some(mbps), None) => cache.keep(key.to_owned(), mbps)?,
            (Some(mbps), Some(_)) => cache.remember(key.to_owned(), mbps),
            (None, _) => {}
        }
        Ok(())
    }

    /// Does run `run` of `case` through the tunnel, and over MPTCP if that can be measured and is not stored.
    fn bonded(&self, case: &Case, run: u32) -> anyhow::Result<Bonded> {
        let key = self.mptcp_key(case, run);
        let is_wanted = |key: &String| self.options.fresh || self.known(key).is_none();
        let wanted = key.filter(is_wanted);
        let (load, policy) = (self.options.load(), &self.options.policy);
        let mut text = case.bonded(&load, policy, &self.options.keys, run);
        if wanted.is_some() {
            // Keys of the scenario itself must precede its sections.
            text.insert_str(0, "baselines = [\"mptcp\"]\n");
        }
        let program = match wanted {
            Some(_) => Program::PleachAndBaselines,
            None => Program::Pleach,
        };
        let results = self.run(case, &text, program)?;
        if let Some(key) = wanted {
            self.keep(&key, figures::mptcp(case, &results), &results)?;
        }
        Ok(Bonded {
            figures: Figures::of(case, &results, self.options.upload),
            remark: results.refused,
        })
    }

    /// Returns the key of MPTCP's figure; `None` in the simulator and for QUIC, where MPTCP is not measured.
    fn mptcp_key(&self, case: &Case, run: u32) -> Option<String> {
        let is_measured = self.options.place == World::Lab && self.options.flow != Flow::Quic;
        let links = case.links.iter();
        let texts = links.map(|link| case.single(&self.options.load(), link, run));
        is_measured.then(|| self.key("mptcp", case, &texts.collect::<Vec<_>>().join("+ ")))
    }

    /// Measures the other programs whose goodput is not stored. A program that fails is reported and left out.
    fn measure_peers(&self, jobs: &[(&Case, u32)]) -> anyhow::Result<()> {
        for peer in &self.options.peers {
            self.for_each("peers", jobs, |&(case, run)| {
                let case = self.best_first(case);
                let (key, text) = self.peer(peer, &case, run);
                if !self.options.fresh && self.known(&key).is_some() {
                    return Ok(());
                }
                match self.run(&case, &text, Program::Other(peer)) {
                    Ok(results) => self.keep(&key, case.goodput(&results), &results)?,
                    Err(error) => println!("{}: {}: {error:#}", case.name, peer.name),
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns `case` with its links in the order of their goodput alone, because a program with one path uses the first.
    fn best_first(&self, case: &Case) -> Case {
        let keys = self.singles(case);
        let known = keys.iter().map(|(key, _)| self.known(key).unwrap_or(0.0));
        let mut links: Vec<_> = case.links.iter().cloned().zip(known).collect();
        links.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        Case {
            links: links.into_iter().map(|(link, _)| link).collect(),
            ..case.clone()
        }
    }

    /// Returns the key of another program's figure, and the scenario.
    fn peer(&self, peer: &Peer, case: &Case, run: u32) -> (String, String) {
        let (load, options) = (self.options.load(), self.options);
        let text = case.bonded(&load, &options.policy, &[], run);
        let named = format!("peer {}, {:016x}", peer.name, peer.content);
        (self.key(&named, case, &text), text)
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
        // Runs that the lab has rejected are used only if there are no others.
        let honest = runs.clone().filter(|run| run.remark.is_none());
        let mut counted: Vec<Figures> = honest.map(|run| run.figures.clone()).collect();
        if counted.is_empty() {
            counted = runs.clone().map(|run| run.figures.clone()).collect();
        }
        Ok(Outcome {
            case: case.clone(),
            singles_mbps: singles_mbps.collect::<anyhow::Result<_>>()?,
            peers_mbps: self.peers_of(case),
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

    /// Returns the median goodput of the other programs, by name.
    fn peers_of(&self, case: &Case) -> BTreeMap<String, Option<f64>> {
        let case = self.best_first(case);
        let median = |peer: &Peer| {
            let keys = (0..self.options.runs()).map(|run| self.peer(peer, &case, run).0);
            let values: Vec<f64> = keys.filter_map(|key| self.known(&key)).collect();
            results::median(&values)
        };
        let peers = self.options.peers.iter();
        peers
            .map(|peer| (peer.name.clone(), median(peer)))
            .collect()
    }

    /// Runs the scenario `text` of `case` with `program` as the tunnel.
    fn run(&self, case: &Case, text: &str, program: Program<'_>) -> anyhow::Result<Results> {
        let scenario = simulate::scenario(text)?;
        match self.options.place {
            World::Lab => {
                let binary = match program {
                    Program::Pleach | Program::PleachAndBaselines => {
                        env!("CARGO_BIN_EXE_pleach").into()
                    }
                    Program::Other(peer) => peer.program.clone(),
                };
                let options = pleach_lab::Options {
                    binary: Some(binary),
                    skip_baselines: !matches!(program, Program::PleachAndBaselines),
                    quiet: true,
                    trace: false,
                };
                let logs = self.out.join("lab").join(&case.name);
                pleach_lab::run(&scenario, &logs, &options)
            }
            World::Sim => simulate::simulate(&scenario),
        }
    }

    /// Runs `work` on all `jobs`, in parallel in the simulator. Returns the results in the order of `jobs`.
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
            // One job at a time per core: the durations of jobs differ by a factor of a hundred.
            World::Sim => jobs.par_iter().with_max_len(1).map(work).collect(),
        };
        bar.finish_and_clear();
        results
    }
}
