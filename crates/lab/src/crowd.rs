//! Many clients on one gateway: what each costs, how fast they connect, and how they share.
//!
//! [`run()`] starts a real gateway in a network namespace of its own, and the engines of many real clients in another:
//!
//! ```text
//!  crowd: clients 10.0.0.0/8 ── eth0 203.0.113.6 ──── 203.0.113.5 eth0 ── gateway daemon ── TUN ── far end
//! ```
//!
//! The clients are engines of `pleach-core` with keys, handshakes, probes and encrypted datagrams, all on one thread
//! and without TUN devices (`swarm`). Each client has outer addresses of its own (`numbering`). A run has these phases:
//!
//! 1. A gateway with one configured client is started and ended: its memory is the baseline.
//! 2. *Connect*: all clients connect at once.
//! 3. *Idle*: nothing is sent through the tunnels. Memory and processor time of the gateway are measured.
//! 4. *Load*: busy clients send packets to the far end, which returns them; other clients change their addresses, or
//!    restart.
//! 5. *Storm*: the gateway is killed and started again, and all clients reconnect.
//!
//! The crowd shares the machine with the gateway. If its own thread is busy for most of a phase, times of this phase
//! are those of the crowd; [`Report`] contains its processor time and the lateness of its timers.

use core::time::Duration;
use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use indicatif::ProgressBar;
use pleach_core::units::Bitrate;
use pleach_linux::clock;

pub(crate) mod gateway;
pub(crate) mod honest;
pub(crate) mod member;
pub(crate) mod numbering;
pub(crate) mod packets;
mod phases;
mod report;
pub(crate) mod swarm;

pub use numbering::{MOST_CLIENTS, MOST_LINKS};
pub use report::{Connect, Idle, Load, Memory, Report, Storm};

use gateway::{Gateway, Keys, Manner, World};
use member::{Member, Shared};
use phases::Phases;
use swarm::Swarm;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The gateway's binary. `None`: `$PLEACH_BIN`, otherwise this program.
    pub binary: Option<PathBuf>,
    /// Number of clients, at most [`MOST_CLIENTS`].
    pub clients: u32,
    /// Number of links of each client, at most [`MOST_LINKS`].
    pub links: u8,
    /// Number of data threads of the gateway; `None` lets it choose.
    pub workers: Option<u8>,
    /// Duration of the idle phase.
    pub idle: Duration,
    /// Duration of the load phase, which is left out without busy, roaming and restarting clients.
    pub load: Duration,
    /// Number of clients that send packets.
    pub busy: u32,
    /// Rate that each busy client offers.
    pub rate: Bitrate,
    /// Number of clients whose source addresses change every 10 s.
    pub roaming: u32,
    /// Number of clients that restart every 10 s.
    pub restarting: u32,
    /// Whether the gateway is killed and started again.
    pub storm: bool,
    /// Longest time to wait until all clients are connected.
    pub patience: Duration,
    /// Whether to hide the progress.
    pub quiet: bool,
}

/// Runs a crowd, as described in the module's head. Takes the durations of its phases, and at most twice the patience.
///
/// Call [`netns::prepare`](crate::netns::prepare) before.
///
/// # Errors
/// Fails if the options contradict each other, if the machine does not permit the namespaces, or if the gateway ends.
/// Clients that do not connect in time are not an error: see [`Connect::up`].
pub fn run(options: &Options) -> anyhow::Result<Report> {
    check(options)?;
    let world = World::build()?;
    // Everything runs on one thread inside the crowd's namespace. Daemons that it has started end with it.
    world.crowd.run(|| in_namespace(&world, options))
}

fn in_namespace(world: &World, options: &Options) -> anyhow::Result<Report> {
    let binary = binary(options.binary.as_deref())?;
    let dir = tempfile::tempdir().context("cannot make a directory for the gateway")?;
    let progress = progress(options.quiet);
    let keys = Keys::draw()?;
    let empty = baseline(world, &binary, dir.path(), &keys, options.workers)?;
    progress.set_message(format!("keys and engines of {} clients", options.clients));
    let shared = Shared {
        gateway_key: keys.public,
        links: options.links,
        rekey_after: None,
    };
    let members = members(options.clients, &shared)?;
    progress.set_message(format!(
        "starting a gateway for {} clients",
        options.clients
    ));
    let public_keys = members.iter().map(Member::public_key);
    let mut gateway = Gateway::start(
        &world.gateway,
        &binary,
        dir.path(),
        &keys,
        public_keys,
        Manner::Plain,
        options.workers,
    )?;
    gateway.wait()?;
    let configured = gateway.usage()?.anonymous;
    let swarm = Swarm::new(members, shared)?;
    let mut phases = Phases {
        world,
        options,
        gateway,
        swarm,
        progress,
    };
    let connect = phases.connect()?;
    let (memory, idle) = phases.idle((empty, configured))?;
    let load = phases.load()?;
    let storm = phases.storm()?;
    phases.finish()?;
    Ok(Report {
        clients: options.clients,
        links: options.links,
        cores: std::thread::available_parallelism().map_or(1, core::num::NonZeroUsize::get),
        connect,
        memory,
        idle,
        load,
        storm,
    })
}

fn check(options: &Options) -> anyhow::Result<()> {
    ensure!(
        (1..=MOST_CLIENTS).contains(&options.clients),
        "--clients {}: a number from 1 to {MOST_CLIENTS}",
        options.clients
    );
    ensure!(
        (1..=MOST_LINKS).contains(&options.links),
        "--links {}: a number from 1 to {MOST_LINKS}",
        options.links
    );
    let special =
        u64::from(options.busy) + u64::from(options.roaming) + u64::from(options.restarting);
    ensure!(
        special <= u64::from(options.clients),
        "--busy, --roaming and --restarting are {special} clients in all, more than --clients {}",
        options.clients
    );
    Ok(())
}

/// Returns the memory of a gateway with one configured client, which does not connect.
fn baseline(
    world: &World,
    binary: &Path,
    dir: &Path,
    keys: &Keys,
    workers: Option<u8>,
) -> anyhow::Result<u64> {
    let client = Keys::draw()?.public;
    let clients = [&client].into_iter();
    let mut gateway = Gateway::start(
        &world.gateway,
        binary,
        dir,
        keys,
        clients,
        Manner::Plain,
        workers,
    )?;
    gateway.wait()?;
    let memory = gateway.usage()?.anonymous;
    gateway.stop()?;
    Ok(memory)
}

/// Returns `count` clients with fresh keys.
pub(crate) fn members(count: u32, shared: &Shared) -> anyhow::Result<Vec<Member>> {
    let now = clock::now();
    (0..count)
        .map(|number| Member::new(now, number, shared))
        .collect()
}

/// Returns the gateway's binary: `given`, `$PLEACH_BIN`, otherwise this program.
pub(crate) fn binary(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    Ok(match (given, env::var_os("PLEACH_BIN")) {
        (Some(binary), _) => binary.to_owned(),
        (None, Some(binary)) => binary.into(),
        (None, None) => env::current_exe()?,
    })
}

/// Returns a line that shows what a run does.
pub(crate) fn progress(is_quiet: bool) -> ProgressBar {
    if is_quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
