//! A gateway with honest clients, which the scenarios attack.

use core::time::Duration;
use std::path::Path;

use anyhow::{Context as _, ensure};
use indicatif::ProgressBar;
use pleach_core::time::Instant;
use pleach_linux::clock;
use tempfile::TempDir;

use crate::crowd::{
    self,
    gateway::{Gateway, Keys, Manner, Usage, World},
    member::{Member, Shared},
    packets::FarEnd,
    swarm::Swarm,
};

/// The gateway with its clients.
pub(crate) struct Stage<'a> {
    pub(crate) world: &'a World,
    pub(crate) gateway: Gateway,
    pub(crate) gateway_key: [u8; 32],
    pub(crate) swarm: Swarm,
    progress: &'a ProgressBar,
    _far_end: FarEnd,
    _dir: TempDir,
}

/// What a stage needs.
pub(crate) struct Cast<'a> {
    pub(crate) binary: &'a Path,
    /// Number of honest clients.
    pub(crate) clients: u32,
    /// Number of links of each.
    pub(crate) links: u8,
    /// Public keys of further clients, whose numbers follow.
    pub(crate) others: &'a [[u8; 32]],
    /// Age at which the honest clients change keys, if it is not the engine's.
    pub(crate) rekey_after: Option<Duration>,
    pub(crate) manner: Manner,
    pub(crate) progress: &'a ProgressBar,
}

impl<'a> Stage<'a> {
    /// Starts the gateway and waits until all honest clients are connected. Call this function on a thread in the
    /// namespace of the crowd.
    ///
    /// # Errors
    /// Fails if the gateway does not start, or clients do not connect in time.
    pub(crate) fn build(world: &'a World, cast: &Cast<'a>) -> anyhow::Result<Self> {
        cast.progress
            .set_message(format!("a gateway with {} clients", cast.clients));
        let dir = tempfile::tempdir().context("cannot make a directory for the gateway")?;
        let keys = Keys::draw()?;
        let shared = Shared {
            gateway_key: keys.public,
            links: cast.links,
            rekey_after: cast.rekey_after,
        };
        let members = crowd::members(cast.clients, &shared)?;
        let public = members.iter().map(Member::public_key).chain(cast.others);
        let mut gateway = Gateway::start(
            &world.gateway,
            cast.binary,
            dir.path(),
            &keys,
            public,
            cast.manner,
            Some(1),
        )?;
        gateway.wait()?;
        let far_end = FarEnd::start(&world.gateway)?;
        let mut this = Self {
            world,
            gateway,
            gateway_key: keys.public,
            swarm: Swarm::new(members, shared)?,
            progress: cast.progress,
            _far_end: far_end,
            _dir: dir,
        };
        let all = this.swarm.members.len();
        let deadline = clock::now() + PATIENCE;
        this.swarm.run(deadline, |swarm| swarm.up() == all)?;
        this.gateway.check()?;
        ensure!(
            this.swarm.up() == all,
            "only {} of {all} clients connected within {PATIENCE:?}",
            this.swarm.up()
        );
        Ok(this)
    }

    /// Drives the clients for `time`. `what` is shown as the progress.
    ///
    /// # Errors
    /// Fails if the gateway ends.
    pub(crate) fn run(&mut self, what: &str, time: Duration) -> anyhow::Result<()> {
        let end = clock::now() + time;
        loop {
            let now = clock::now();
            if now >= end {
                return Ok(());
            }
            let left = end.since(now).as_secs();
            self.progress.set_message(format!("{what}: {left} s left"));
            self.swarm.run((now + STEP).min(end), |_| false)?;
            self.gateway.check()?;
        }
    }

    /// Begins to measure the gateway's processor time.
    ///
    /// # Errors
    /// Fails if procfs does not show it.
    pub(crate) fn clock(&self) -> anyhow::Result<CpuClock> {
        Ok(CpuClock {
            at: clock::now(),
            usage: self.gateway.usage()?,
        })
    }

    /// Returns the number of datagrams that the gateway has dropped so far.
    ///
    /// # Errors
    /// Fails if the gateway does not answer.
    pub(crate) fn drops(&self) -> anyhow::Result<u64> {
        let status = self.gateway.status().context("status of the gateway")?;
        let drops = status.get("drops").and_then(serde_json::Value::as_object);
        let counts = drops.into_iter().flatten();
        Ok(counts.filter_map(|(_, count)| count.as_u64()).sum())
    }

    /// Returns the number of associations that honest clients have lost so far.
    pub(crate) fn losses(&self) -> u64 {
        let members = self.swarm.members.iter();
        members.map(|member| u64::from(member.losses)).sum()
    }

    /// Returns the number of handshakes that each honest client has completed so far.
    pub(crate) fn completed(&self) -> Vec<u64> {
        self.swarm.members.iter().map(Member::completed).collect()
    }

    /// Returns the bytes that have returned to honest clients so far.
    pub(crate) fn received(&self) -> u64 {
        self.swarm
            .members
            .iter()
            .map(|member| member.received)
            .sum()
    }

    /// Ends the gateway.
    ///
    /// # Errors
    /// Fails if the gateway has ended before, or does not end.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.gateway.stop()
    }
}

/// A measurement of the gateway's processor time.
pub(crate) struct CpuClock {
    at: Instant,
    usage: Usage,
}

impl CpuClock {
    /// Returns the time since the start of the measurement, and the processor time of the gateway, in seconds.
    ///
    /// # Errors
    /// Fails if the gateway has ended.
    pub(crate) fn read(&self, gateway: &Gateway) -> anyhow::Result<(f64, f64)> {
        let cpu = gateway.usage()?.cpu.saturating_sub(self.usage.cpu);
        let elapsed = clock::now().since(self.at);
        Ok((elapsed.as_secs_f64(), cpu.as_secs_f64()))
    }
}

/// Longest time to wait until the clients are connected.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which the gateway is checked.
const STEP: Duration = Duration::from_millis(100);
