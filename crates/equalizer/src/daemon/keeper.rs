//! The thread that delays packets of links with a short delay, and sends the probes that measure the links' delays.
//!
//! [`DelayEqualizer`] computes how long packets wait. [`HoldQueue`] determines which packets are sent when. This file
//! connects both with the device from which delayed packets are read and to which they are written afterwards. Echo
//! requests are sent over every link from the source address of spread packets. So all replies return over the same
//! path, and the RTTs differ only by the delays of the outgoing paths.
//!
//! The main thread sometimes waits for the kernel for milliseconds, hence this separate thread. The threads communicate
//! through a plan, which describes the links, and a board, which contains the hold times and counters.

use core::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use std::{
    io,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};
use pleach_linux::{
    clock,
    equalize::{self, Alive, HeldPacket, HoldingDevice},
    ping::Pinger,
    poll::{Poller, Token, Waker, set_precise_timers},
};

use crate::{MAX_LINKS, delay_equalizer::DelayEqualizer, hold_queue::HoldQueue};

/// A link that is up and has weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) device: String,
    /// Whether the link has a next hop for IPv4, and for IPv6.
    pub(super) families: [bool; 2],
    /// Rate of the link, if known.
    pub(super) rate: Option<Bitrate>,
}

/// Instructions for the thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// One entry for each link.
    pub(super) ways: Vec<Option<Way>>,
    /// Host to probe, and source address.
    pub(super) probe: Option<(IpAddr, IpAddr)>,
    /// Whether occasional probes are sufficient.
    pub(super) is_idle: bool,
}

impl Plan {
    fn is_used(&self, link: usize) -> bool {
        self.ways.get(link).is_some_and(Option::is_some)
    }

    fn carries(&self, link: usize, is_v6: bool) -> bool {
        let way = self.ways.get(link).and_then(Option::as_ref);
        way.is_some_and(|way| way.families[usize::from(is_v6)])
    }

    /// Returns the link over which to send a packet that waited for `link`. This is `link` itself, or another link if
    /// `link` went down meanwhile. If no link is usable, the result is `link`.
    fn way_out(&self, link: usize, is_v6: bool) -> usize {
        if self.carries(link, is_v6) {
            return link;
        }
        let other = (0..MAX_LINKS).find(|other| self.carries(*other, is_v6));
        other.unwrap_or(link)
    }
}

/// Handle of the thread. When this value is dropped, the thread sends its delayed packets and ends.
#[derive(Debug)]
pub(super) struct Keeper {
    plan: Plan,
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// State of the delays of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Time for which the link's packets wait.
    pub hold: Duration,
    /// Shortest RTT of the last 5 to 10 s. Zero if unknown.
    pub round_trip: Duration,
    /// Number of waiting bytes.
    pub waiting: Bytes,
}

#[derive(Debug, Default)]
struct Shared {
    plan: Mutex<Option<Plan>>,
    board: [Board; MAX_LINKS],
    not_held: AtomicU64,
    lost: AtomicU64,
    /// Whether all links' delays are known.
    knows_all: AtomicBool,
    /// Host that did not answer the first [`MOST_UNANSWERED`] probes, if there is one.
    silent: Mutex<Option<IpAddr>>,
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct Board {
    hold_ns: AtomicU64,
    round_trip_ns: AtomicU64,
    waiting_bytes: AtomicU64,
}

impl Keeper {
    /// Starts the thread.
    pub(super) fn start(device: HoldingDevice, alive: Alive) -> io::Result<Self> {
        let waker = Waker::new()?;
        let shared = Arc::new(Shared::default());
        let poller = Poller::new()?;
        let pinger = Pinger::open()
            .inspect_err(|error| tracing::warn!(%error, "cannot ask how long the links' ways are: no packet will wait"))
            .ok();
        poller.add(&waker, WAKE)?;
        poller.add(&device, PACKETS)?;
        for socket in pinger.iter().flat_map(Pinger::sockets) {
            poller.add(socket, ANSWERS)?;
        }
        let work = Work {
            shared: shared.clone(),
            waker: waker.clone(),
            poller,
            device,
            alive,
            pinger,
            plan: Plan::default(),
            delays: DelayEqualizer::default(),
            holds: [Duration::ZERO; MAX_LINKS],
            queues: core::array::from_fn(|_| HoldQueue::default()),
            asked: [None; ASKED],
            number: 0,
            ask_at: clock::now(),
            trust_at: clock::now(),
            unanswered: 0,
        };
        let run = move || {
            let shared = work.shared.clone();
            if let Err(error) = work.run() {
                tracing::error!(%error, "packets wait no longer");
            }
            for board in &shared.board {
                board.hold_ns.store(0, Relaxed);
                board.waiting_bytes.store(0, Relaxed);
            }
            shared.knows_all.store(false, Relaxed);
        };
        Ok(Self {
            plan: Plan::default(),
            shared,
            waker,
            thread: Some(thread::Builder::new().name("hold".to_owned()).spawn(run)?),
        })
    }

    /// Passes the new plan `plan` to the thread.
    pub(super) fn set(&mut self, plan: Plan) {
        if plan != self.plan {
            self.plan = plan.clone();
            *lock(&self.shared.plan) = Some(plan);
            self.waker.wake();
        }
    }

    /// Returns the state of link `index`.
    pub(super) fn holding(&self, index: usize) -> Holding {
        self.shared
            .board
            .get(index)
            .map_or(Holding::default(), |board| Holding {
                hold: Duration::from_nanos(board.hold_ns.load(Relaxed)),
                round_trip: Duration::from_nanos(board.round_trip_ns.load(Relaxed)),
                waiting: Bytes::new(board.waiting_bytes.load(Relaxed)),
            })
    }

    /// Whether the hold times of packets are known on all links.
    pub(super) fn knows_all(&self) -> bool {
        self.shared.knows_all.load(Relaxed)
    }

    /// Returns a host that was probed for some time and never answered.
    pub(super) fn silent(&self) -> Option<IpAddr> {
        *lock(&self.shared.silent)
    }

    /// Returns the number of packets that were sent early for lack of buffer space, and of packets lost because the
    /// kernel had no buffer space.
    pub(super) fn failures(&self) -> (u64, u64) {
        (
            self.shared.not_held.load(Relaxed),
            self.shared.lost.load(Relaxed),
        )
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

struct Work {
    shared: Arc<Shared>,
    waker: Waker,
    poller: Poller,
    device: HoldingDevice,
    alive: Alive,
    pinger: Option<Pinger>,
    plan: Plan,
    delays: DelayEqualizer,
    holds: [Duration; MAX_LINKS],
    queues: [HoldQueue<HeldPacket>; MAX_LINKS],
    /// Number, link and time of the last probes, by number.
    asked: [Option<(u16, usize, Instant)>; ASKED],
    number: u16,
    ask_at: Instant,
    /// Time from which hold times follow the measured delays even if some links' delays are unknown.
    trust_at: Instant,
    /// Number of probes sent to the host without an answer. [`u32::MAX`] once it has answered.
    unanswered: u32,
}

impl Work {
    fn run(mut self) -> io::Result<()> {
        set_precise_timers()?;
        let mut events = Vec::new();
        let mut tell_at = clock::now();
        loop {
            let now = clock::now();
            self.waker.clear();
            if self.shared.is_over.load(Relaxed) {
                self.take_packets(now)?;
                return self.release(Instant::from_nanos(u64::MAX));
            }
            self.take_plan(now);
            self.release(now)?;
            self.take_packets(now)?;
            self.take_answers();
            if now >= self.ask_at {
                self.ask_at = now
                    + if self.plan.is_idle {
                        IDLE_INTERVAL
                    } else {
                        ASK_INTERVAL
                    };
                self.ask(now);
                self.measure(now);
            }
            if now >= tell_at {
                tell_at = now + TELL_INTERVAL;
                self.alive.tell()?;
            }
            self.publish(now);
            let due = self.queues.iter().filter_map(HoldQueue::poll_timeout);
            let deadline = due.fold(self.ask_at.min(tell_at), Instant::min);
            self.poller.wait(Some(deadline), &mut events)?;
        }
    }

    fn take_plan(&mut self, now: Instant) {
        let plan = lock(&self.shared.plan).take();
        let Some(plan) = plan else { return };
        if plan.probe != self.plan.probe {
            // Delays to another host are different.
            self.delays = DelayEqualizer::default();
            self.asked = [None; ASKED];
            self.trust_at = now + PATIENCE;
            self.unanswered = 0;
        }
        let is_other = |(old, new): (&Option<Way>, &Option<Way>)| {
            old.as_ref().map(|way| &way.device) != new.as_ref().map(|way| &way.device)
        };
        if plan.probe != self.plan.probe
            || plan.is_idle != self.plan.is_idle
            || plan.ways.len() != self.plan.ways.len()
            || self.plan.ways.iter().zip(&plan.ways).any(is_other)
        {
            self.ask_at = now;
        }
        self.plan = plan;
    }

    /// Sends all packets that are due.
    fn release(&mut self, now: Instant) -> io::Result<()> {
        for link in 0..MAX_LINKS {
            while let Some(packet) = self.queues[link].pop(now) {
                self.write(packet)?;
            }
        }
        Ok(())
    }

    fn write(&self, mut packet: HeldPacket) -> io::Result<()> {
        let link = self.plan.way_out(packet.link, packet.is_v6());
        if link != packet.link {
            packet.move_to(link);
        }
        if !self.device.write(&packet)? {
            self.shared.lost.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn take_packets(&mut self, now: Instant) -> io::Result<()> {
        for _ in 0..MOST_READS {
            let packet = match self.device.read() {
                Ok(Some(packet)) => packet,
                Ok(None) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            let link = packet.link;
            let len = Bytes::of_len(packet.len_bytes());
            if let Err(packet) = self.queues[link].push(now, self.holds[link], len, packet) {
                if !self.holds[link].is_zero() {
                    self.shared.not_held.fetch_add(1, Relaxed);
                }
                self.write(packet)?;
            }
        }
        Ok(())
    }

    fn take_answers(&mut self) {
        let Some(pinger) = &self.pinger else { return };
        let mut is_news = false;
        while let Some((host, number)) = pinger.answer() {
            let now = clock::now();
            let slot = &mut self.asked[usize::from(number) % ASKED];
            let is_asked = |slot: &&mut Option<(u16, usize, Instant)>| {
                slot.is_some_and(|(asked, ..)| asked == number)
                    && self.plan.probe.is_some_and(|(probed, _)| probed == host)
            };
            if let Some((_, link, asked_at)) = Some(slot).filter(is_asked).and_then(Option::take) {
                self.delays.on_round_trip(now, link, now.since(asked_at));
                self.unanswered = u32::MAX;
                is_news = true;
            }
        }
        if is_news {
            self.measure(clock::now());
        }
    }

    fn ask(&mut self, now: Instant) {
        let (Some(pinger), Some((host, source))) = (&mut self.pinger, self.plan.probe) else {
            return;
        };
        let mut is_asked = false;
        for (link, way) in self.plan.ways.iter().enumerate() {
            let Some(way) = way else { continue };
            let device = &way.device;
            self.number = self.number.wrapping_add(1);
            let asked = pinger.ask(host, source, device, equalize::PROBE_MARK, self.number);
            match asked {
                Ok(()) => {
                    self.asked[usize::from(self.number) % ASKED] = Some((self.number, link, now));
                    is_asked = true;
                }
                // The device has just disappeared, or has no route to the host.
                Err(error) => tracing::trace!(%error, device, "cannot ask"),
            }
        }
        if is_asked && self.unanswered < MOST_UNANSWERED {
            self.unanswered += 1;
        }
        let is_silent = self.unanswered == MOST_UNANSWERED;
        *lock(&self.shared.silent) = is_silent.then_some(host);
    }

    /// Whether the RTT of each link that can be probed is known. Delays to a previous host count while hold times
    /// based on them are in force.
    fn knows_all(&self, now: Instant) -> bool {
        let Some((host, _)) = self.plan.probe else {
            return false;
        };
        let is_known = |link| {
            !self.plan.carries(link, host.is_ipv6()) || self.delays.round_trip(now, link).is_some()
        };
        let did_know = self.shared.knows_all.load(Relaxed);
        (did_know && now < self.trust_at) || (0..MAX_LINKS).all(is_known)
    }

    /// Sets the hold times according to the measured delays.
    fn measure(&mut self, now: Instant) {
        let is_used = |link: usize| self.plan.is_used(link);
        let is_known = |link: usize| self.delays.round_trip(now, link).is_some();
        if now < self.trust_at && !(0..MAX_LINKS).filter(|link| is_used(*link)).all(is_known) {
            return;
        }
        self.holds = core::array::from_fn(|link| self.delays.hold(now, link, is_used));
        for (link, queue) in self.queues.iter_mut().enumerate() {
            let way = self.plan.ways.get(link).and_then(Option::as_ref);
            queue.set_room(way.and_then(|way| way.rate), self.holds[link]);
        }
    }

    fn publish(&self, now: Instant) {
        self.shared.knows_all.store(self.knows_all(now), Relaxed);
        for (link, board) in self.shared.board.iter().enumerate() {
            let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            board.hold_ns.store(nanos(self.holds[link]), Relaxed);
            let round_trip = self.delays.round_trip(now, link).unwrap_or_default();
            board.round_trip_ns.store(nanos(round_trip), Relaxed);
            board
                .waiting_bytes
                .store(self.queues[link].bytes().get(), Relaxed);
        }
    }
}

/// Locks `mutex` even if it is poisoned: the data is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const WAKE: Token = Token(0);
const PACKETS: Token = Token(1);
const ANSWERS: Token = Token(2);
/// Time between two probes over each link. The delay equalizer uses the probes of 5 to 10 s, of which some find an
/// empty queue.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two probes while no application sends, short enough that the last answers are still valid.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of outstanding probes: enough for the longest wait over the largest number of links.
const ASKED: usize = 256;
/// Time between two messages to the kernel that the thread is alive.
const TELL_INTERVAL: Duration = Duration::from_millis(50);
const _: () = assert!(TELL_INTERVAL.as_nanos() * 3 < equalize::ALIVE_FOR.as_nanos());
/// Time for which hold times do not change after a change of the probed host.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of unanswered probes after which a host that has never answered is considered silent: three seconds.
const MOST_UNANSWERED: u32 = 30;
/// Number of packets read before packets that are due are sent.
const MOST_READS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_whose_link_went_down_leaves_by_one_that_has_its_family() {
        let way = |families| {
            Some(Way {
                device: "eth".to_owned(),
                families,
                rate: None,
            })
        };
        let ways = vec![
            way([true, false]),
            None,
            way([false, true]),
            way([true, true]),
        ];
        let plan = Plan {
            ways,
            ..Plan::default()
        };
        let out = |link, is_v6| plan.way_out(link, is_v6);
        assert_eq!([out(0, false), out(2, true), out(3, true)], [0, 2, 3], "up");
        assert_eq!([out(1, false), out(1, true)], [0, 2], "down");
        assert_eq!(
            [out(0, true), out(2, false)],
            [2, 0],
            "no next hop of the family"
        );
        assert_eq!(Plan::default().way_out(5, true), 5, "nothing is up");
    }
}
