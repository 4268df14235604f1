//! Emulated links: the link model of `pleach-sim` driven by real packets and the real clock.
//!
//! A link is a TUN device in the client's namespace and one in the gateway's. Each direction of all links has a thread
//! that reads packets from the sending ends, passes them through a [`Bundle`] and writes them to the receiving ends
//! when the model says so. The devices have no virtual header, so the kernel completes checksums and packets have
//! their real size.
//!
//! The threads ask for real-time priority and a timer slack of 1 ns, and record how late each packet is written
//! against the model's time; a run that is late is to be refused. Known limit: the time at which a packet enters the
//! model is when it is read, so a thread that was held up shows in the lateness of what was due meanwhile, not of what
//! came in.
//!
//! One thread moves about 290 000 packets per second: several links up to 300 Mbit/s each are safe.

pub mod tun;
mod worker;

use core::time::Duration;
use std::{
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use anyhow::Context as _;
use pleach_core::time::Instant;
use pleach_linux::clock;
use pleach_sim::{
    link::{
        LinkChange, LinkConfig,
        bundle::{Bundle, SharedConfig},
    },
    measure::DirectionReport,
    scenario::{Action, Directions, Event, Scenario},
};
use rustix::event::{EventfdFlags, eventfd};

use crate::emulator::worker::{Command, Worker};

/// The two ends of a link.
#[derive(Debug)]
pub struct Ends {
    /// The TUN device in the client.
    pub client: OwnedFd,
    /// The TUN device in the gateway.
    pub gateway: OwnedFd,
}

/// A change at an instant, for the thread of one direction.
#[derive(Clone, Debug)]
pub(crate) struct TimedChange {
    pub(crate) at: Instant,
    pub(crate) target: Target,
    pub(crate) change: LinkChange,
}

/// What a change concerns: the index of a link, or of a shared bottleneck.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Link(usize),
    Shared(usize),
}

/// The threads of all links. Dropping it stops them and thereby removes the devices.
#[derive(Debug)]
pub struct Emulator {
    /// Links of the scenario; those to far servers follow.
    links: usize,
    down: Direction,
    up: Direction,
}

#[derive(Debug)]
struct Direction {
    commands: mpsc::Sender<Command>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    /// Starts the links of `scenario`. `ends`: one per link, in the scenario's order, then one for each of `far`, the
    /// delays between the gateway and servers behind it; of these, `client` is the gateway's end and `gateway` the
    /// server's.
    ///
    /// # Errors
    /// If descriptors or threads cannot be made.
    pub fn start(
        scenario: &Scenario,
        far: &[Duration],
        ends: Vec<Ends>,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let now = clock::now();
        let shared = |pick: fn(&pleach_sim::scenario::SharedSpec) -> &SharedConfig| {
            scenario.shared.iter().map(pick).cloned().collect()
        };
        let links = scenario.links.iter();
        let far = far.iter().map(|&delay| {
            let line = LinkConfig {
                delay,
                ..LinkConfig::default()
            };
            (line, None)
        });
        let down = links.clone().map(|l| (l.down.clone(), l.shared));
        let down = down.chain(far.clone()).collect();
        let up = links.map(|link| (link.up.clone(), link.shared));
        let up = up.chain(far).collect();
        // Different streams of random numbers for the directions.
        let down = Bundle::new(down, shared(|s| &s.down), seed, now);
        let up = Bundle::new(up, shared(|s| &s.up), seed ^ 0x5555_5555_5555_5555, now);

        let (mut clients, mut gateways) = (Vec::new(), Vec::new());
        let (mut to_clients, mut to_gateways) = (Vec::new(), Vec::new());
        for end in ends {
            to_clients.push(end.client.try_clone()?);
            to_gateways.push(end.gateway.try_clone()?);
            clients.push(end.client);
            gateways.push(end.gateway);
        }
        Ok(Self {
            links: scenario.links.len(),
            down: Direction::start("emulator-down", down, gateways, to_clients)?,
            up: Direction::start("emulator-up", up, clients, to_gateways)?,
        })
    }

    /// Sets traces, counters and series to zero at `at`, which should lie ahead, and plays `events` from there on.
    pub fn begin(&self, at: Instant, events: &[Event]) {
        for (direction, includes) in [
            (&self.down, Directions::has_down as fn(Directions) -> bool),
            (&self.up, Directions::has_up),
        ] {
            let changes = events
                .iter()
                .filter_map(|event| timed_change(event, at, includes))
                .collect();
            direction.send(Command::Begin { at, changes });
        }
    }

    /// What the links did since [`begin`](Self::begin): down, up.
    ///
    /// # Errors
    /// If a thread of the emulator has ended.
    pub fn report(&self) -> anyhow::Result<(DirectionReport, DirectionReport)> {
        let (mut down, mut up) = (self.down.report()?, self.up.report()?);
        down.links.truncate(self.links);
        up.links.truncate(self.links);
        Ok((down, up))
    }
}

impl Direction {
    fn start(
        name: &str,
        bundle: Bundle<Vec<u8>>,
        from: Vec<OwnedFd>,
        to: Vec<OwnedFd>,
    ) -> anyhow::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, receiver) = mpsc::channel();
        let worker = Worker::new(bundle, from, to, receiver, Arc::clone(&wake))?;
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || worker.run())?;
        Ok(Self {
            commands,
            wake,
            thread: Some(thread),
        })
    }

    fn send(&self, command: Command) {
        // A worker that has ended shows when its report is missing.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    fn report(&self) -> anyhow::Result<DirectionReport> {
        let (reply, report) = mpsc::sync_channel(1);
        self.send(Command::Report(reply));
        report
            .recv_timeout(Duration::from_secs(5))
            .context("the link emulator does not answer")
    }
}

impl Drop for Direction {
    fn drop(&mut self) {
        self.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn timed_change(
    event: &Event,
    begin: Instant,
    includes: fn(Directions) -> bool,
) -> Option<TimedChange> {
    let (target, directions, change) = match &event.action {
        Action::Link {
            link,
            directions,
            change,
        } => (Target::Link(*link), directions, change),
        Action::Shared {
            shared,
            directions,
            change,
        } => (Target::Shared(*shared), directions, change),
        Action::Daemon { .. } => return None,
    };
    includes(*directions).then(|| TimedChange {
        at: begin + event.at,
        target,
        change: change.clone(),
    })
}
