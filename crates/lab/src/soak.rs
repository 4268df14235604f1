//! A gateway under trouble for a long time: does it leak, does it pause, does it leave anything behind?
//!
//! A real gateway serves clients of the [`crowd`] and a client's daemon on a host with two links
//! (`host`). Meanwhile
//!
//! - links of clients go down and up, clients change their addresses, restart, and set their clocks by up to a day;
//! - the host's links go down and up, and its daemon is killed or ended, and started again;
//! - nobody reads the gateway's log, which is detailed;
//! - in the middle third of the run, the file system of the state files is full (`state`);
//! - at the start, the gateway is killed and started again.
//!
//! After the first sixth of the run, memory and descriptors of the gateway must stay within 3 %. Clocks of the machine
//! and system calls are left alone: other programs of the machine would suffer.

use core::time::Duration;
use std::path::PathBuf;

use anyhow::Context as _;
use pleach_core::{rng::Rng, time::Instant};
use pleach_linux::clock;

mod host;
mod state;

use crate::{
    crowd::{
        self,
        gateway::{Keys, Manner, World},
        swarm::Load,
    },
    hostile::{
        Report, Scenario,
        sampler::{Sample, Sampler},
        stage::{Cast, Stage},
    },
    netns,
};
use host::Host;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemons' binary. `None`: `$PLEACH_BIN`, otherwise this program.
    pub binary: Option<PathBuf>,
    /// Duration, at least 12 s.
    pub time: Duration,
    /// Number of clients of the crowd.
    pub clients: u32,
    /// Whether to hide the progress.
    pub quiet: bool,
}

/// Prepares this process: namespaces, and a small `/run` of its own. Call this function before it starts threads.
///
/// # Errors
/// Returns a remedy if namespaces are not permitted.
pub fn prepare() -> anyhow::Result<()> {
    netns::prepare()?;
    state::mount_small()
}

/// Runs the soak. Call [`prepare`] before.
///
/// # Errors
/// Fails if the machine does not permit the namespaces, or if a daemon ends. Figures beyond their limits are not an
/// error: see [`Report::holds`].
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let world = World::build()?;
    let scenario = world.crowd.run(|| in_namespace(&world, options))?;
    Ok(Report {
        cores: std::thread::available_parallelism().map_or(1, core::num::NonZeroUsize::get),
        scenarios: vec![scenario],
    })
}

fn in_namespace(world: &World, options: &Options) -> anyhow::Result<Scenario> {
    let binary = crowd::binary(options.binary.as_deref())?;
    let progress = crowd::progress(options.quiet);
    let dir = tempfile::tempdir().context("cannot make a directory for the client")?;
    let keys = Keys::draw()?;
    let mut host = Host::build(world, &binary, dir.path(), options.time)?;
    let before = host::picture(&world.gateway)?;
    let cast = Cast {
        clients: options.clients,
        links: LINKS,
        others: &[keys.public],
        rekey_after: None,
        manner: Manner::Soak,
        binary: &binary,
        progress: &progress,
    };
    let mut stage = Stage::build(world, &cast)?;
    host.start(&keys, &stage.gateway_key, options.clients)?;
    stage.swarm.set_load(Load {
        clients: options.clients / 10,
        bytes_per_second: BYTES_PER_SECOND,
    });
    let mut soak = Soak {
        stage,
        host,
        trouble: Trouble::new(options.clients),
        began_at: clock::now(),
        time: options.time,
        is_full: false,
        asked: 0,
        up: 0,
    };
    // The daemon that is killed here leaves its state to the next one, which is measured.
    soak.run(options.time / 24)?;
    soak.stage.gateway.restart(&world.gateway)?;
    soak.stage.gateway.wait()?;
    let sampler = Sampler::start(
        soak.stage.gateway.process()?,
        soak.stage.gateway.control().to_owned(),
        SAMPLES.min(options.time / 60),
    )?;
    soak.run(options.time)?;
    let samples = sampler.finish()?;
    let mut scenario = Scenario::new("a gateway under trouble");
    soak.finish(&mut scenario, &before)?;
    judge(&mut scenario, &samples, options.time);
    progress.finish_and_clear();
    Ok(scenario)
}

/// A run in progress.
struct Soak<'a> {
    stage: Stage<'a>,
    host: Host,
    trouble: Trouble,
    began_at: Instant,
    time: Duration,
    is_full: bool,
    /// How often the host's daemon was asked, and how often the tunnel was up.
    asked: u32,
    up: u32,
}

impl Soak<'_> {
    /// Makes trouble until `until` after the start.
    fn run(&mut self, until: Duration) -> anyhow::Result<()> {
        loop {
            let now = clock::now();
            let elapsed = now.since(self.began_at);
            if elapsed >= until {
                return Ok(());
            }
            let third = self.time / 3;
            let is_full = (third..third * 2).contains(&elapsed);
            if is_full != self.is_full {
                self.is_full = is_full;
                if is_full {
                    state::fill().context("filling /run")?;
                } else {
                    state::free().context("freeing /run")?;
                }
            }
            self.trouble.make(now, &mut self.stage)?;
            self.host.trouble(now, !is_full)?;
            if let Some(is_up) = self.host.is_up() {
                self.asked += 1;
                self.up += u32::from(is_up);
            }
            self.stage.run("soak", STEP)?;
        }
    }

    /// Ends all trouble and all daemons, and adds what was seen.
    fn finish(mut self, scenario: &mut Scenario, before: &[String]) -> anyhow::Result<()> {
        self.trouble.end(&mut self.stage);
        let all = self.stage.swarm.members.len();
        let deadline = clock::now() + RECOVER;
        self.stage.swarm.run(deadline, |swarm| swarm.up() == all)?;
        let status = self.stage.gateway.status().unwrap_or_default();
        let dropped = status.pointer("/data_thread/log_lines_dropped");
        let dropped = dropped.and_then(serde_json::Value::as_u64).unwrap_or(0);
        let up = self.stage.swarm.up();
        let world = self.stage.world;
        let host = &self.host;
        scenario.fact(
            "links of the client's daemon that went down",
            host.flaps.into(),
            "",
        );
        scenario.fact("times that it was killed", host.kills.into(), "");
        scenario.fact("times that it was ended", host.stops.into(), "");
        let left = self.host.finish()?;
        let up_percent = f64::from(self.up) / f64::from(self.asked.max(1)) * 100.0;
        scenario.fact(
            "time for which its tunnel was up, when it answered",
            up_percent,
            "%",
        );
        self.trouble.tell(scenario);
        scenario.fact(
            "lines of the unread log that were dropped",
            dropped as f64,
            "",
        );
        self.stage.finish()?;
        let mut of_gateway = host::differences(before, &host::picture(&world.gateway)?);
        of_gateway.extend(left);
        let shown = of_gateway.iter().take(NOTES);
        scenario
            .notes
            .extend(shown.map(|line| format!("left behind: {line}")));
        scenario.limit(
            "clients that are not connected at the end",
            (all - up) as f64,
            0.0,
            "",
        );
        scenario.limit(
            "lines left in rules, routes, nftables and sysctls",
            of_gateway.len() as f64,
            0.0,
            "",
        );
        Ok(())
    }
}

/// Trouble of the crowd's clients.
struct Trouble {
    rng: Rng,
    clients: u64,
    next: Instant,
    /// Links that are down, with the time at which they come back.
    down: Vec<(usize, u8, Instant)>,
    flaps: u32,
    moves: u32,
    restarts: u32,
    clocks: u32,
}

impl Trouble {
    fn new(clients: u32) -> Self {
        Self {
            rng: Rng::new(53),
            clients: clients.into(),
            next: Instant::ZERO,
            down: Vec::new(),
            flaps: 0,
            moves: 0,
            restarts: 0,
            clocks: 0,
        }
    }

    fn make(&mut self, now: Instant, stage: &mut Stage<'_>) -> anyhow::Result<()> {
        for (index, link, _) in self.down.extract_if(.., |(_, _, at)| *at <= now) {
            stage.swarm.set_link(index, link, true);
        }
        if now < self.next {
            return Ok(());
        }
        self.next = now + TROUBLE;
        for _ in 0..=self.clients / 20 {
            let index = usize::try_from(self.rng.below(self.clients))?;
            match self.rng.below(8) {
                0..=3 => {
                    let link = u8::try_from(self.rng.below(LINKS.into()))?;
                    stage.swarm.set_link(index, link, false);
                    let back_at = now + Duration::from_millis(500 + self.rng.below(4_000));
                    self.down.push((index, link, back_at));
                    self.flaps += 1;
                }
                4 | 5 => {
                    stage.swarm.roam(index);
                    self.moves += 1;
                }
                6 => {
                    stage.swarm.restart(index)?;
                    self.restarts += 1;
                }
                _ => {
                    let day = 86_400_000_000_000;
                    let unix_nanos = clock::unix_nanos() + self.rng.below(2 * day);
                    stage.swarm.set_clock(index, unix_nanos.saturating_sub(day));
                    self.clocks += 1;
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, stage: &mut Stage<'_>) {
        for (index, link, _) in self.down.drain(..) {
            stage.swarm.set_link(index, link, true);
        }
        stage.swarm.set_load(Load::default());
    }

    fn tell(&self, scenario: &mut Scenario) {
        scenario.fact("links of clients that went down", self.flaps.into(), "");
        scenario.fact("moves of clients", self.moves.into(), "");
        scenario.fact("restarts of clients", self.restarts.into(), "");
        scenario.fact("steps of clients' clocks", self.clocks.into(), "");
    }
}

/// Adds what the samples of the gateway say.
fn judge(scenario: &mut Scenario, samples: &[Sample], time: Duration) {
    let memory = |sample: &Sample| sample.anonymous_bytes as f64 / f64::from(1 << 20);
    let descriptors = |sample: &Sample| sample.descriptors as f64;
    let time = time.as_secs_f64();
    scenario.fact("samples of the gateway", samples.len() as f64, "");
    let first = medians(samples, time, memory);
    scenario.fact(
        "memory of the gateway after a sixth",
        first.first().copied().unwrap_or(f64::NAN),
        "MiB",
    );
    scenario.limit("change of its memory after that", change(&first), 3.0, "%");
    let first = medians(samples, time, descriptors);
    scenario.fact(
        "descriptors of the gateway after a sixth",
        first.first().copied().unwrap_or(f64::NAN),
        "",
    );
    scenario.limit(
        "change of their number after that",
        change(&first),
        3.0,
        "%",
    );
    let last = samples.last().cloned().unwrap_or_default();
    scenario.limit(
        "longest pause of the data thread",
        last.longest_pause_ms,
        20.0,
        "ms",
    );
    scenario.limit("pauses above 20 ms", last.pauses as f64, 0.0, "");
}

/// Returns the medians of the second to the sixth sixth of a run of `time` seconds.
fn medians(samples: &[Sample], time: f64, value: impl Fn(&Sample) -> f64) -> Vec<f64> {
    let median = |part: u32| {
        let range = time * f64::from(part) / 6.0..time * f64::from(part + 1) / 6.0;
        let within = samples.iter().filter(|sample| range.contains(&sample.at_s));
        let mut values: Vec<f64> = within.map(&value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    (1..6).filter_map(median).collect()
}

/// Returns the largest difference to the first value in percent. Not a number without at least two values.
fn change(values: &[f64]) -> f64 {
    let [first, rest @ ..] = values else {
        return f64::NAN;
    };
    let differences = rest.iter().map(|value| (value / first - 1.0).abs() * 100.0);
    differences.fold(f64::NAN, f64::max)
}

/// Number of links of each client of the crowd.
const LINKS: u8 = 2;
/// Bytes that each busy client offers per second.
const BYTES_PER_SECOND: u64 = 50_000;
/// Interval of the trouble of clients: one of twenty each time.
const TROUBLE: Duration = Duration::from_secs(1);
/// Interval at which the state of the run is checked.
const STEP: Duration = Duration::from_millis(250);
/// Longest interval of samples.
const SAMPLES: Duration = Duration::from_secs(1);
/// Maximum number of lines that are shown.
const NOTES: usize = 20;
/// Longest time after the trouble in which all clients must connect again.
const RECOVER: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_after_the_first_sixth_is_a_change_and_growth_before_is_none() {
        let run = |bytes: &dyn Fn(u64) -> u64| {
            let sample = |second: u64| Sample {
                at_s: second as f64,
                anonymous_bytes: bytes(second),
                ..Sample::default()
            };
            let samples: Vec<_> = (0..600).map(sample).collect();
            let memory = |sample: &Sample| sample.anonymous_bytes as f64;
            change(&medians(&samples, 600.0, memory))
        };
        assert!(run(&|second| 1_000_000 + second.min(90) * 10_000) < 1e-9);
        assert!(run(&|second| 1_000_000 + second * 100) > 3.0);
        assert!(change(&[1.0]).is_nan() && change(&[]).is_nan());
        assert!((change(&[100.0, 101.0, 95.0]) - 5.0).abs() < 1e-9);
    }
}
