//! Emulated links: the link model of `pleach-sim` driven by real packets and the real clock.
//!
//! A link is a TUN device in the client's namespace and one in the gateway's. If daemons need link-layer addresses,
//! the link is a pair of TAP devices instead. The model processes IP packets in both cases. Each direction of all
//! links has a thread that reads packets from the sending ends, passes them through a [`Recorded`] bundle and writes
//! them to the receiving ends at the times that the model determines. The devices have no virtual header, so the
//! kernel completes checksums and packets have their real size.
//!
//! The threads request real-time priority and a timer slack of 1 ns. They record how late each packet is written
//! compared with the model's time. The caller should refuse a run in which packets were written too late. Known
//! limit: a packet enters the model when it is read. If a thread is delayed, or rests between two packets of a fast
//! link, packets that were due meanwhile are recorded as late, but the delay of incoming packets until they are read
//! is not recorded.
//!
//! One thread moves about 290 000 packets per second. It reads the packets of 100 µs together, as network cards do,
//! because a thread that is woken for each packet would take CPU time from the programs under test.

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
    /// The device in the client's namespace.
    pub client: OwnedFd,
    /// The device in the gateway's namespace.
    pub gateway: OwnedFd,
    /// Kind of both devices.
    pub kind: tun::Kind,
}

/// The threads of all links. Dropping this value stops the threads and thereby removes the devices.
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
    /// Starts the links of `scenario`. `ends` has one entry per link, in the scenario's order, followed by one for
    /// each delay in `far`, the delays between the gateway and the far servers. In these entries, `client` is the
    /// gateway's end and `gateway` the server's end.
    ///
    /// # Errors
    /// Fails if descriptors or threads cannot be created.
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

    /// Schedules the start of the run at `at`, which should be in the future: traces, counters and series restart at
    /// that time. The times of `events` count from `at`.
    pub fn begin(&self, at: Instant, events: &[Event]) {
        for direction in [&self.down, &self.up] {
            let events = events.to_vec();
            direction.send(Command::Begin { at, events });
        }
    }

    /// Returns the measurements since [`begin`](Self::begin), first of the down direction, then of the up direction.
    ///
    /// # Errors
    /// Fails if a thread of the emulator has ended.
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
        // If a worker has ended, its report is missing later, which shows the failure.
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
