//! One simulation run of a transfer: processes events in the order of time.

use core::{cmp::Reverse, time::Duration};
use std::collections::BinaryHeap;

use pleach_core::{rng::Rng, time::Instant};

use super::{
    crossing,
    line::{Line, Place},
    order::Scheduling,
    settings::{Case, Transfer},
    stream::Stream,
};

/// Result of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) seconds: f64,
    pub(super) goodput_mbps: f64,
    /// Number of times that a third acknowledgement in a row reported the same packet as missing.
    pub(super) events: u32,
    pub(super) timeouts: u32,
    pub(super) sent_again: u64,
    /// Maximum number of packets that the receiver buffered because an earlier packet was missing.
    pub(super) held_max: u64,
}

pub(super) fn run(transfer: &Transfer, case: &Case, seed: u64) -> Outcome {
    let mut race = Race::new(transfer, case, seed);
    race.begin();
    while let Some(Reverse((at, _, happening))) = race.agenda.pop() {
        race.now = at;
        race.happen(happening);
        if race.streams.iter().all(Stream::is_complete) || at >= GIVE_UP {
            break;
        }
    }
    race.finish()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A line may send its next packet.
    Send(usize),
    Arrive {
        line: usize,
        place: Place,
    },
    Acknowledge {
        line: usize,
        place: Place,
        missing: usize,
    },
    /// The retransmission timer of a packet expires that was started when the packet was sent for the `times`th time.
    Expire {
        place: Place,
        times: u32,
    },
    /// Cross traffic begins or ends on a line.
    Turn(usize),
    /// A packet of cross traffic enters a line. This burst of cross traffic ends at `until`.
    Cross {
        line: usize,
        until: Instant,
    },
}

/// The sender's state of a packet.
#[derive(Clone, Copy, Debug)]
struct Packet {
    line: usize,
    sent_at: Instant,
    times: u32,
    is_acknowledged: bool,
    /// Whether the packet has been considered lost since it was last sent, so that it waits for retransmission.
    is_again: bool,
}

struct Race<'a> {
    transfer: &'a Transfer,
    now: Instant,
    agenda: BinaryHeap<Reverse<(Instant, u64, Happening)>>,
    ties: u64,
    /// One-way delay of acknowledgements.
    way_back: Duration,
    lines: Vec<Line>,
    streams: Vec<Stream>,
    packets: Vec<Vec<Packet>>,
    scheduling: Scheduling,
    /// Position of the next packet that is not yet assigned to a line.
    next: Place,
    rng: Rng,
    outcome: Outcome,
}

impl<'a> Race<'a> {
    fn new(transfer: &'a Transfer, case: &Case, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let delays = case.line.iter().map(|line| line.delay());
        let way_back = delays.min().unwrap_or(Duration::ZERO);
        let lines = case.line.iter().map(|line| {
            let own = Rng::new(rng.next_u64());
            Line::new(*line, way_back, transfer, own)
        });
        let lines: Vec<Line> = lines.collect();
        let packets = usize::try_from(transfer.packets).unwrap_or(usize::MAX);
        let flows = transfer.order.flows(packets, &mut rng);
        let none = Packet {
            line: 0,
            sent_at: Instant::ZERO,
            times: 0,
            is_acknowledged: false,
            is_again: false,
        };
        Self {
            transfer,
            now: Instant::ZERO,
            agenda: BinaryHeap::new(),
            ties: 0,
            way_back,
            scheduling: Scheduling::new(transfer.order, &lines, &flows, transfer.packet),
            lines,
            streams: flows.iter().map(|length| Stream::new(*length)).collect(),
            packets: flows.iter().map(|length| vec![none; *length]).collect(),
            next: (0, 0),
            rng,
            outcome: Outcome::default(),
        }
    }

    fn begin(&mut self) {
        for line in 0..self.lines.len() {
            if self.transfer.cross > 0.0 {
                // The initial state is random, so that cross traffic does not begin on all lines at once.
                self.lines[line].crossing = self.lines[line].rng.chance(0.5);
                self.plan(self.now, Happening::Turn(line));
            }
            self.plan(self.now, Happening::Send(line));
        }
    }

    fn plan(&mut self, at: Instant, happening: Happening) {
        self.ties += 1;
        self.agenda.push(Reverse((at, self.ties, happening)));
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Send(line) => self.send(line),
            Happening::Arrive { line, place } => {
                if let Some(missing) = self.streams[place.0].arrive(place.1) {
                    let at = self.now + self.way_back;
                    let happening = Happening::Acknowledge {
                        line,
                        place,
                        missing,
                    };
                    self.plan(at, happening);
                }
            }
            Happening::Acknowledge {
                line,
                place,
                missing,
            } => self.acknowledge(line, place, missing),
            Happening::Expire { place, times } => self.expire(place, times),
            Happening::Turn(line) => self.turn(line),
            Happening::Cross { line, until } => self.cross(line, until),
        }
    }

    /// Sends the next packet on a line if the line's rate and window permit it and a packet is left.
    fn send(&mut self, line: usize) {
        let reacts = self.transfer.reacts;
        if self.now < self.lines[line].next_at || !self.lines[line].has_room(reacts) {
            return;
        }
        let Some(place) = self.take_for(line) else {
            return;
        };
        let arrival = self.lines[line].send(self.now, self.transfer.loss);
        let packet = &mut self.packets[place.0][place.1];
        self.outcome.sent_again += u64::from(packet.times > 0);
        packet.times += 1;
        (packet.line, packet.sent_at, packet.is_again) = (line, self.now, false);
        let times = packet.times;
        if let Some(at) = arrival {
            self.plan(at, Happening::Arrive { line, place });
        }
        if reacts || arrival.is_none() {
            self.plan(self.now + TIMEOUT, Happening::Expire { place, times });
        }
        self.plan(self.lines[line].next_at, Happening::Send(line));
    }

    /// Removes the next packet to send on `line` from the line's queue and returns its position.
    fn take_for(&mut self, line: usize) -> Option<Place> {
        loop {
            self.assign_for(line);
            let place = self.lines[line].waiting.pop_front()?;
            // A packet that was considered lost may have been acknowledged meanwhile.
            if !self.packets[place.0][place.1].is_acknowledged {
                return Some(place);
            }
        }
    }

    /// Assigns packets to lines, in the order of the file, until a packet waits for `line`.
    fn assign_for(&mut self, line: usize) {
        while self.lines[line].waiting.is_empty() {
            while self.next.1 >= self.packets[self.next.0].len() {
                if self.next.0 + 1 == self.packets.len() {
                    return;
                }
                self.next = (self.next.0 + 1, 0);
            }
            let chosen = self.scheduling.next(
                self.now,
                &self.lines,
                self.next.0,
                self.transfer.packet,
                self.transfer.reacts,
                &mut self.rng,
            );
            self.lines[chosen].waiting.push_back(self.next);
            self.next.1 += 1;
            if chosen != line {
                // The chosen line may have been idle because no packet waited for it.
                self.plan(self.now, Happening::Send(chosen));
            }
        }
    }

    fn acknowledge(&mut self, line: usize, place: Place, missing: usize) {
        let packet = &mut self.packets[place.0][place.1];
        let was_under_way = !packet.is_acknowledged && !packet.is_again;
        packet.is_acknowledged = true;
        if was_under_way {
            self.lines[line].on_acknowledged();
        }
        if let Some(lost) = self.streams[place.0].acknowledge(missing) {
            self.outcome.events += 1;
            self.scheduling.on_event();
            let place = (place.0, lost);
            let packet = &mut self.packets[place.0][place.1];
            // Nothing is to be done for a packet that has not been sent yet, already waits for its retransmission, or
            // has been acknowledged.
            if self.transfer.reacts
                && packet.times > 0
                && !packet.is_again
                && !packet.is_acknowledged
            {
                packet.is_again = true;
                let (line, sent_at) = (packet.line, packet.sent_at);
                self.lines[line].on_event(self.now, sent_at);
                self.lines[line].waiting.push_front(place);
                self.plan(self.now, Happening::Send(line));
            }
        }
        self.plan(self.now, Happening::Send(line));
    }

    fn expire(&mut self, place: Place, times: u32) {
        let packet = &mut self.packets[place.0][place.1];
        if packet.is_acknowledged || packet.is_again || packet.times != times {
            return;
        }
        packet.is_again = true;
        self.outcome.timeouts += 1;
        let line = packet.line;
        self.lines[line].on_timeout(self.now);
        self.lines[line].waiting.push_front(place);
        self.plan(self.now, Happening::Send(line));
    }

    fn turn(&mut self, line: usize) {
        let state = &mut self.lines[line];
        let until = self.now + crossing::period(&mut state.rng);
        state.crossing = !state.crossing;
        let is_on = state.crossing;
        self.plan(until, Happening::Turn(line));
        if is_on {
            self.plan(self.now, Happening::Cross { line, until });
        }
    }

    fn cross(&mut self, line: usize, until: Instant) {
        let state = &mut self.lines[line];
        state.pass(self.now);
        let next = self.now + state.cross_gap(self.transfer.cross);
        if next < until {
            self.plan(next, Happening::Cross { line, until });
        }
    }

    fn finish(mut self) -> Outcome {
        let seconds = self.now.since(Instant::ZERO).as_secs_f64();
        let bits = u64::from(self.transfer.packets) * self.transfer.packet.get() * 8;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let goodput = bits as f64 / seconds / 1e6;
        self.outcome.seconds = seconds;
        self.outcome.goodput_mbps = goodput;
        let held = self.streams.iter().map(Stream::held_max);
        self.outcome.held_max = held.max().unwrap_or(0);
        self.outcome
    }
}

/// Time at which a run ends even if the transfer is incomplete.
const GIVE_UP: Instant = Instant::from_millis(3_600_000);
/// Retransmission timeout: the minimum that RFC 4960, section 15, recommends.
const TIMEOUT: Duration = Duration::from_secs(1);
