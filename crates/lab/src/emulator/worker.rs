//! The thread of one direction of all links.
//!
//! The loop applies changes and records samples that are due, delivers packets that are due, waits for the next of
//! these times or for a packet, and reads incoming packets. Buffers are pooled. The kernel copies a packet once on
//! either side.
//!
//! Fast links are served in batches, similar to the interrupt coalescing of network cards: a thread that wakes again
//! within [`BUSY`] rests for [`REST`], so that the programs under test are not interrupted for each packet. Single
//! packets are served at once.

use core::time::Duration;
use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, mpsc},
};

use hdrhistogram::Histogram as Lateness;
use pleach_core::time::{Instant, saturating_nanos};
use pleach_linux::clock;
use pleach_sim::{
    link::{LinkState, recorded::Recorded},
    measure::DirectionReport,
    scenario::Event,
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::{
    emulator::tun::{Kind, set_carrier},
    wait::{self, timespec},
};

/// Length in bytes of the largest packet that a device delivers: the largest IP packet in a frame.
const BUFFER_BYTES: usize = 65_536 + Kind::Tap.header_bytes();
/// Number of packets read from one device before the other devices are served.
const READ_BATCH: usize = 32;
/// Longest time for which the thread rests to collect packets.
const REST: Duration = Duration::from_micros(100);
/// Time between two wake-ups below which the thread is considered to serve fast links.
const BUSY: Duration = Duration::from_micros(300);
/// Number of free buffers stored for reuse.
const POOL_LEN: usize = 4_096;

/// Commands to the thread.
pub(super) enum Command {
    /// Begins the run at `at`, with `events` in order of time.
    Begin { at: Instant, events: Vec<Event> },
    /// Requests a report since the start of the run.
    Report(mpsc::SyncSender<DirectionReport>),
    /// Ends the thread.
    Stop,
}

pub(super) struct Worker {
    links: Recorded<Vec<u8>>,
    from: Vec<OwnedFd>,
    to: Vec<OwnedFd>,
    /// Length in bytes of the header before the IP packet on each link, which the model does not count.
    headers: Vec<usize>,
    commands: mpsc::Receiver<Command>,
    wake: Arc<OwnedFd>,
    pool: Vec<Vec<u8>>,
    scratch: Box<[u8]>,
    lateness_ns: Lateness<u64>,
    /// Time of the last wake-up.
    woken_at: Instant,
}

impl Worker {
    pub(super) fn new(
        links: Recorded<Vec<u8>>,
        from: Vec<OwnedFd>,
        to: Vec<OwnedFd>,
        headers: Vec<usize>,
        commands: mpsc::Receiver<Command>,
        wake: Arc<OwnedFd>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            links,
            from,
            to,
            headers,
            commands,
            wake,
            pool: Vec::new(),
            scratch: vec![0; BUFFER_BYTES].into_boxed_slice(),
            lateness_ns: new_lateness()?,
            woken_at: Instant::ZERO,
        })
    }

    pub(super) fn run(mut self) {
        ask_for_precision();
        loop {
            if !self.obey() {
                return;
            }
            let now = clock::now();
            self.change(now);
            self.deliver(now);
            self.rest(now);
            let deadline = self.links.poll_timeout();
            let ready = self.wait(deadline);
            for (link, is_ready) in ready.into_iter().enumerate() {
                if is_ready {
                    self.read(link);
                }
            }
        }
    }

    /// Executes the pending commands. Returns false if the thread must end.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Begin { at, events }) => self.links.begin(at, &events),
                Ok(Command::Report(reply)) => {
                    // Samples that have ended by now are part of the report.
                    self.change(clock::now());
                    let _ = reply.try_send(self.report());
                }
                Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return false,
                Err(mpsc::TryRecvError::Empty) => return true,
            }
        }
    }

    /// Performs the actions that are due: starts the run, records samples and applies changes.
    fn change(&mut self, now: Instant) {
        if self.links.handle_timeout(now) {
            self.lateness_ns.reset();
        }
        while let Some((link, state)) = self.links.poll_state() {
            let Some(device) = self.from.get(link) else {
                continue;
            };
            if let Err(error) = set_carrier(device.as_fd(), state != LinkState::Down) {
                tracing::warn!(link, %error, "cannot switch the carrier");
            }
        }
    }

    fn deliver(&mut self, now: Instant) {
        while let Some(delivery) = self.links.poll_output(now) {
            // A device that is down refuses the packet. The packet is then lost, as on a cable that is unplugged.
            let _ = rustix::io::write(&self.to[delivery.link], &delivery.packet);
            let late = clock::now().since(delivery.at);
            self.lateness_ns.saturating_record(saturating_nanos(late));
            if self.pool.len() < POOL_LEN {
                self.pool.push(delivery.packet);
            }
        }
    }

    /// Sleeps until [`REST`] after `now`, the time of this wake-up, if the previous wake-up was shortly before.
    fn rest(&mut self, now: Instant) {
        let is_busy = now.since(self.woken_at) < BUSY;
        self.woken_at = now;
        if is_busy {
            wait::until(now + REST);
        }
    }

    /// Waits for packets, commands or `deadline`. Returns which devices have packets.
    fn wait(&self, deadline: Option<Instant>) -> Vec<bool> {
        let mut fds: Vec<PollFd<'_>> = self
            .from
            .iter()
            .chain([&*self.wake])
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let timeout = deadline.map(|at| timespec(at.since(clock::now())));
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let is_ready = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::IN);
        if fds.last().is_some_and(is_ready) {
            let _ = rustix::io::read(&*self.wake, &mut [0_u8; 8]);
        }
        fds.iter().take(self.from.len()).map(is_ready).collect()
    }

    fn read(&mut self, link: usize) {
        for _ in 0..READ_BATCH {
            let Ok(len) = rustix::io::read(&self.from[link], &mut *self.scratch) else {
                return;
            };
            let mut packet = self.pool.pop().unwrap_or_default();
            packet.clear();
            packet.extend_from_slice(&self.scratch[..len]);
            let len = len.saturating_sub(self.headers[link]);
            self.links.handle_packet(clock::now(), link, len, packet);
        }
    }

    fn report(&self) -> DirectionReport {
        DirectionReport {
            links: self.links.report(),
            lateness_ns: Some(self.lateness_ns.clone()),
        }
    }
}

/// Creates a histogram from 1 µs to 10 s with three significant digits.
fn new_lateness() -> anyhow::Result<Lateness<u64>> {
    let longest = saturating_nanos(Duration::from_secs(10));
    Ok(Lateness::new_with_bounds(1_000, longest, 3)?)
}

/// Requests exact timers, and priority over the programs under test if the system permits it.
fn ask_for_precision() {
    let priority = libc::sched_param { sched_priority: 10 };
    // SAFETY: both calls only read their arguments; `priority` lives here; 0 means the calling thread.
    let is_real_time = unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0
    };
    if !is_real_time {
        tracing::info!(
            "the link emulator has no real-time priority; the results contain its measured lateness"
        );
    }
}
