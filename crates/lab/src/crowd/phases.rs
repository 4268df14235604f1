//! The phases of a run, and how they are measured.

use core::time::Duration;

use indicatif::ProgressBar;
use pleach_core::time::Instant;
use pleach_linux::clock;

use super::{
    Options,
    gateway::{Gateway, Usage, World},
    packets::FarEnd,
    report::{Connect, Idle, Load, Memory, Storm, jain},
    swarm::{self, Swarm},
};

/// A run in progress.
pub(super) struct Phases<'a> {
    pub(super) world: &'a World,
    pub(super) options: &'a Options,
    pub(super) gateway: Gateway,
    pub(super) swarm: Swarm,
    pub(super) progress: ProgressBar,
}

/// Processor times of gateway and crowd at the start of a phase.
struct Started {
    at: Instant,
    gateway: Usage,
    crowd: Usage,
    losses: u64,
    completed: u64,
}

impl Phases<'_> {
    /// Waits until all clients are connected.
    pub(super) fn connect(&mut self) -> anyhow::Result<Connect> {
        self.gather("connecting", clock::now(), None)
    }

    /// Measures the gateway while all clients are idle. `before`: memory of an empty gateway, and of this one before
    /// the clients connected.
    pub(super) fn idle(&mut self, before: (u64, u64)) -> anyhow::Result<(Memory, Idle)> {
        // Connections are followed by packet trains, searches for the MTU, and reports.
        self.wait("settling", SETTLE)?;
        let started = self.start()?;
        self.swarm.lateness = Duration::ZERO;
        self.wait("idle", self.options.idle)?;
        let (elapsed, gateway_cpu, crowd_cpu) = self.used_since(&started)?;
        let usage = self.gateway.usage()?;
        let clients = f64::from(self.options.clients);
        let (empty_bytes, configured_bytes) = before;
        let memory = Memory {
            empty_bytes,
            configured_bytes,
            idle_bytes: usage.anonymous,
            resident_bytes: usage.resident,
            per_client_bytes: usage.anonymous.saturating_sub(empty_bytes) as f64 / clients,
        };
        let idle = Idle {
            seconds: elapsed,
            gateway_cpu_percent: gateway_cpu,
            per_client_cpu_percent: gateway_cpu / clients,
            crowd_cpu_percent: crowd_cpu,
            crowd_lateness_ms: self.swarm.lateness.as_secs_f64() * 1e3,
            key_changes: self.completed() - started.completed,
            lost: self.losses() - started.losses,
        };
        Ok((memory, idle))
    }

    /// Measures the gateway while some clients send, move or restart.
    pub(super) fn load(&mut self) -> anyhow::Result<Option<Load>> {
        let options = self.options;
        if options.busy + options.roaming + options.restarting == 0 {
            return Ok(None);
        }
        let _far_end = FarEnd::start(&self.world.gateway)?;
        self.swarm.set_load(swarm::Load {
            clients: options.busy,
            bytes_per_second: options.rate.as_bps() / 8,
        });
        let losses = self.losses();
        let mut changes = Changes::default();
        self.disturb("load", WARM_UP, &mut changes)?;
        let received = |swarm: &Swarm| -> Vec<u64> {
            let busy = swarm.members.iter().take(options.busy as usize);
            busy.map(|member| member.received).collect()
        };
        let before = received(&self.swarm);
        let started = self.start()?;
        self.disturb("load", options.load, &mut changes)?;
        let (elapsed, gateway_cpu, crowd_cpu) = self.used_since(&started)?;
        let after = received(&self.swarm);
        let memory_bytes = self.gateway.usage()?.anonymous;
        self.swarm.set_load(swarm::Load::default());
        // Clients that have just restarted or moved need a moment.
        let deadline = clock::now() + RECOVER;
        let all = self.swarm.members.len();
        self.swarm.run(deadline, |swarm| swarm.up() == all)?;
        let transferred = after
            .iter()
            .zip(&before)
            .map(|(after, before)| after - before);
        let rates: Vec<f64> = transferred
            .map(|bytes| bytes as f64 * 8e-6 / elapsed)
            .collect();
        Ok(Some(Load {
            seconds: elapsed,
            busy: options.busy,
            offered_mbps: f64::from(options.busy) * options.rate.as_mbps(),
            returned_mbps: rates.iter().sum(),
            jain: jain(&rates),
            lowest_mbps: rates.iter().copied().reduce(f64::min).unwrap_or(0.0),
            highest_mbps: rates.iter().copied().reduce(f64::max).unwrap_or(0.0),
            gateway_cpu_percent: gateway_cpu,
            crowd_cpu_percent: crowd_cpu,
            moves: changes.moves,
            restarts: changes.restarts,
            up: u32::try_from(self.swarm.up())?,
            lost: self.losses() - losses,
            memory_bytes,
        }))
    }

    /// Kills the gateway, starts it again, and waits until all clients are connected again.
    pub(super) fn storm(&mut self) -> anyhow::Result<Option<Storm>> {
        if !self.options.storm {
            return Ok(None);
        }
        self.swarm.begin_gathering();
        let began_at = clock::now();
        self.gateway.restart(&self.world.gateway)?;
        let mut gateway_ready_s = None;
        let back = self.gather("storm", began_at, Some(&mut gateway_ready_s))?;
        Ok(Some(Storm {
            gateway_ready_s,
            back,
        }))
    }

    /// Ends the gateway.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        self.progress.finish_and_clear();
        self.gateway.stop()
    }

    /// Drives the clients until all have connected, or the patience is over. `ready_s` is set to the time at which the
    /// gateway accepts connections on its control socket.
    fn gather(
        &mut self,
        phase: &str,
        began_at: Instant,
        mut ready_s: Option<&mut Option<f64>>,
    ) -> anyhow::Result<Connect> {
        let deadline = began_at + self.options.patience;
        let clients = self.options.clients;
        let (half, most) = (clients.div_ceil(2), clients - clients / 100);
        let (crowd, gateway) = (Usage::own()?, self.gateway.usage()?);
        let mut connect = Connect::default();
        loop {
            let step = clock::now() + STEP;
            self.swarm.run(step.min(deadline), |swarm| {
                let elapsed = || Some(clock::now().since(began_at).as_secs_f64());
                for (count, reached) in [
                    (half, &mut connect.half_s),
                    (most, &mut connect.p99_s),
                    (clients, &mut connect.all_s),
                ] {
                    if reached.is_none() && swarm.gathered >= count {
                        *reached = elapsed();
                    }
                }
                connect.all_s.is_some()
            })?;
            self.gateway.check()?;
            if let Some(ready_s) = &mut ready_s
                && ready_s.is_none()
                && self.gateway.is_answering()
            {
                **ready_s = Some(clock::now().since(began_at).as_secs_f64());
            }
            let gathered = self.swarm.gathered;
            self.progress
                .set_message(format!("{phase}: {gathered} of {clients} clients"));
            if connect.all_s.is_some() || clock::now() >= deadline {
                break;
            }
        }
        connect.up = u32::try_from(self.swarm.up())?;
        let elapsed = clock::now().since(began_at);
        connect.gateway_cpu_s = (self.gateway.usage()?.cpu - gateway.cpu).as_secs_f64();
        connect.crowd_cpu_percent = percent(Usage::own()?.cpu - crowd.cpu, elapsed);
        Ok(connect)
    }

    fn wait(&mut self, phase: &str, duration: Duration) -> anyhow::Result<()> {
        self.disturb(phase, duration, &mut Changes::none())
    }

    /// Drives the clients for `duration`, while some of them move or restart.
    fn disturb(
        &mut self,
        phase: &str,
        duration: Duration,
        changes: &mut Changes,
    ) -> anyhow::Result<()> {
        let end = clock::now() + duration;
        loop {
            let now = clock::now();
            if now >= end {
                return Ok(());
            }
            let left = end.since(now).as_secs();
            self.progress.set_message(format!("{phase}: {left} s left"));
            self.swarm.run((now + STEP).min(end), |_| false)?;
            self.gateway.check()?;
            changes.apply(clock::now().since(now), self.options, &mut self.swarm)?;
        }
    }

    fn start(&self) -> anyhow::Result<Started> {
        Ok(Started {
            gateway: self.gateway.usage()?,
            crowd: Usage::own()?,
            losses: self.losses(),
            completed: self.completed(),
            at: clock::now(),
        })
    }

    /// Returns the time since `started` in seconds, and the processor times of gateway and crowd in percent of a core.
    fn used_since(&self, started: &Started) -> anyhow::Result<(f64, f64, f64)> {
        let elapsed = clock::now().since(started.at);
        let gateway = self.gateway.usage()?.cpu - started.gateway.cpu;
        let crowd = Usage::own()?.cpu - started.crowd.cpu;
        Ok((
            elapsed.as_secs_f64(),
            percent(gateway, elapsed),
            percent(crowd, elapsed),
        ))
    }

    fn losses(&self) -> u64 {
        let members = self.swarm.members.iter();
        members.map(|member| u64::from(member.losses)).sum()
    }

    fn completed(&self) -> u64 {
        self.swarm
            .members
            .iter()
            .map(|member| member.completed())
            .sum()
    }
}

/// The moves and restarts of clients in the load phase.
#[derive(Debug, Default)]
struct Changes {
    moves: u64,
    restarts: u64,
    /// Time for which clients have moved and restarted.
    elapsed: Duration,
    is_off: bool,
}

impl Changes {
    /// Returns a value without any moves and restarts.
    fn none() -> Self {
        Self {
            is_off: true,
            ..Self::default()
        }
    }

    /// Moves and restarts the clients whose turn came within the last `elapsed`. The restarting clients are the last
    /// ones, and the roaming clients those before them.
    fn apply(
        &mut self,
        elapsed: Duration,
        options: &Options,
        swarm: &mut Swarm,
    ) -> anyhow::Result<()> {
        if self.is_off {
            return Ok(());
        }
        self.elapsed += elapsed;
        let all = swarm.members.len() as u64;
        let due = |count: u32| {
            let changes = u128::from(count) * self.elapsed.as_nanos() / CHANGE_INTERVAL.as_nanos();
            u64::try_from(changes).unwrap_or(u64::MAX)
        };
        let (moves, restarts) = (due(options.roaming), due(options.restarting));
        let restarting = u64::from(options.restarting);
        while self.moves < moves {
            let turn = self.moves % u64::from(options.roaming);
            swarm.roam(usize::try_from(all - 1 - restarting - turn)?);
            self.moves += 1;
        }
        while self.restarts < restarts {
            let turn = self.restarts % restarting;
            swarm.restart(usize::try_from(all - 1 - turn)?)?;
            self.restarts += 1;
        }
        Ok(())
    }
}

/// Returns the part of `elapsed` that `used` is, in percent.
fn percent(used: Duration, elapsed: Duration) -> f64 {
    used.as_secs_f64() / elapsed.as_secs_f64().max(1e-9) * 100.0
}

/// Duration after the last connection before the idle phase is measured.
const SETTLE: Duration = Duration::from_secs(15);
/// Duration of load before the measurement.
const WARM_UP: Duration = Duration::from_secs(3);
/// Longest time for which clients may recover after the load.
const RECOVER: Duration = Duration::from_secs(10);
/// Interval at which the gateway is checked and the progress is shown.
const STEP: Duration = Duration::from_millis(100);
/// Interval at which a client moves or restarts.
const CHANGE_INTERVAL: Duration = Duration::from_secs(10);
