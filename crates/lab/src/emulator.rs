//! Emulated links: the link model of `pleach-sim` driven by real packets and the real clock.
//!
//! A link is a TUN device in the client's namespace and one in the gateway's, or a TAP device where daemons need link-layer
//! addresses; the model sees IP packets in either case. Each direction of all links has a thread
//! that reads packets from the sending ends, passes them through a [`Recorded`] bundle and writes them to the receiving
//! ends when the model says so. The devices have no virtual header, so the kernel completes checksums and packets have
//! their real size.
//!
//! The threads ask for real-time priority and a timer slack of 1 ns, and record how late each packet is written
//! against the model's time; a run that is late is to be refused. Known limit: the time at which a packet enters the
//! model is when it is read, so a thread that was held up, or rests between two packets of a fast link, shows in the lateness of
//! what was due meanwhile, not of what came in.
//!
//! One thread moves about 290 000 packets per second. It takes what comes in 100 us together, as network cards do, for
//! what a thread costs that is woken for each packet the programs under test lack.

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
    link::recorded::Recorded,
    measure::DirectionReport,
    scenario::{Direction as Way, Event, Scenario},
};
use rustix::event::{EventfdFlags, eventfd};

use crate::emulator::worker::{Command, Worker};

/// The two ends of a link.
#[derive(Debug)]
pub struct Ends {
    /// The device in the client.
    pub client: OwnedFd,
    /// The device in the gateway.
    pub gateway: OwnedFd,
    /// What both are.
    pub kind: tun::Kind,
}

/// The threads of all links. Dropping it stops them and thereby removes the devices.
#[derive(Debug)]
pub struct Emulator {
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
        let down = Recorded::new(scenario, Way::Down, far, seed, now);
        let up = Recorded::new(scenario, Way::Up, far, seed, now);
        let (mut clients, mut gateways) = (Vec::new(), Vec::new());
        let (mut to_clients, mut to_gateways) = (Vec::new(), Vec::new());
        let headers: Vec<usize> = ends.iter().map(|end| end.kind.header_bytes()).collect();
        for end in ends {
            to_clients.push(end.client.try_clone()?);
            to_gateways.push(end.gateway.try_clone()?);
            clients.push(end.client);
            gateways.push(end.gateway);
        }
        Ok(Self {
            down: Direction::start("emulator-down", down, gateways, to_clients, headers.clone())?,
            up: Direction::start("emulator-up", up, clients, to_gateways, headers)?,
        })
    }

    /// Sets traces, counters and series to zero at `at`, which should lie ahead, and plays `events` from there on.
    pub fn begin(&self, at: Instant, events: &[Event]) {
        for direction in [&self.down, &self.up] {
            let events = events.to_vec();
            direction.send(Command::Begin { at, events });
        }
    }

    /// What the links did since [`begin`](Self::begin): down, up.
    ///
    /// # Errors
    /// If a thread of the emulator has ended.
    pub fn report(&self) -> anyhow::Result<(DirectionReport, DirectionReport)> {
        Ok((self.down.report()?, self.up.report()?))
    }
}

impl Direction {
    fn start(
        name: &str,
        links: Recorded<Vec<u8>>,
        from: Vec<OwnedFd>,
        to: Vec<OwnedFd>,
        headers: Vec<usize>,
    ) -> anyhow::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, receiver) = mpsc::channel();
        let worker = Worker::new(links, from, to, headers, receiver, Arc::clone(&wake))?;
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
