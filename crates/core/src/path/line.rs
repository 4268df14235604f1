//! A line for tests: a path that sends over a bottleneck, and the receiver at its other end, which sends reports as in
//! a tunnel.
//!
//! Packets of 1000 bytes (with headers) pass a tail-drop queue, which cross traffic may share, and then take half of
//! the RTT. The receiver's reports and NACKs and the answers to probes take the other half. Only the public methods of
//! [`Path`] and [`Receiver`] are used, in the order in which a tunnel uses them.

use core::time::Duration;
use std::collections::VecDeque;

use super::{
    Path, Pong,
    control::aim::Aim,
    link::Link,
    receiver::{DataArrival, Receiver},
};
use crate::{
    ids::{PathId, Seq},
    packet::Pool,
    profile::Profile,
    rng::Rng,
    role::Role,
    time::Instant,
    units::{Bitrate, Bytes},
    wire::control::{Frame, FrameWriter, Frames, MissingWriter, PathReport},
};

/// Interval of checks of the pacer and the deadlines.
const TICK: Duration = Duration::from_micros(250);
/// The usual round-trip time without a queue.
pub(super) const RTT: Duration = Duration::from_millis(40);
/// Bytes of a packet on the wire.
const PACKET: u64 = 1_000;
/// Bytes of UDP payload of a packet.
const PAYLOAD: usize = 1_000 - 28;
/// Maximum backlog of the sender, in bytes.
const BACKLOG: f64 = 64_000.0;
/// Interval of changes of jitter.
const STEP: Duration = Duration::from_millis(10);
/// Interval at which a tunnel with traffic samples the RTT.
const SAMPLED_EVERY: Duration = Duration::from_millis(50);

/// A packet to the receiver.
#[derive(Clone, Copy, Debug)]
enum Item {
    Data {
        seq: Seq,
        sent_us: u32,
    },
    Ping {
        token: u32,
    },
    Tail {
        path_seq: Seq,
    },
    /// Cross traffic.
    Cross,
}

/// A message from the receiver.
#[derive(Debug)]
enum Answer {
    Report(PathReport, Vec<(Seq, u16)>),
    Pong { token: u32, answered_us: u32 },
}

/// A path over a line.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) path: Path,
    receiver: Receiver,
    pool: Pool,
    pub(super) now: Instant,
    /// Capacity of the bottleneck.
    pub(super) rate: Bitrate,
    /// Size of the bottleneck's buffer.
    pub(super) limit: Bytes,
    /// Random loss behind the bottleneck, in parts per million.
    pub(super) loss_ppm: u32,
    pub(super) rtt: Duration,
    /// Maximum of the extra delay, which is uniformly distributed, changes every [`STEP`] and keeps order.
    pub(super) jitter: Duration,
    /// Rate of the sender's traffic.
    pub(super) demand: Bitrate,
    /// Rate of the cross traffic.
    pub(super) cross: Bitrate,
    backlog: f64,
    cross_backlog: f64,
    queue: VecDeque<(u64, Item)>,
    queued_bytes: u64,
    /// Since when the bottleneck is idle or transmits the first packet of the queue.
    served_until: Instant,
    /// Packets on the way to the receiver, by time of arrival.
    arriving: VecDeque<(Instant, Item)>,
    answers: VecDeque<(Instant, Answer)>,
    stepped_at: Instant,
    step_delay: Duration,
    sent_pkts: u64,
    received_pkts: u64,
    lost_pkts: u64,
    rng: Rng,
}

impl Line {
    /// A line of `mbps` with a buffer of `limit` bytes, whose round-trip time is known.
    pub(super) fn new(mbps: u64, limit: u64) -> Self {
        Self::with(mbps, limit, RTT, true)
    }

    /// A line of `mbps` with a buffer of `limit` bytes and a known round-trip time `rtt`, with or without search.
    pub(super) fn with(mbps: u64, limit: u64, rtt: Duration, is_searched: bool) -> Self {
        let now = Instant::from_millis(1_000);
        let profile = Profile {
            search: is_searched,
            repair: true,
            ..Profile::default()
        };
        let mut line = Self {
            path: Path::new(now, PathId(0), Link::named("line"), Role::Client, profile),
            receiver: Receiver::default(),
            pool: Pool::new(1, 1),
            now,
            rate: Bitrate::from_mbps(mbps),
            limit: Bytes::new(limit),
            loss_ppm: 0,
            rtt,
            jitter: Duration::ZERO,
            demand: Bitrate::ZERO,
            cross: Bitrate::ZERO,
            backlog: 0.0,
            cross_backlog: 0.0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            served_until: now,
            arriving: VecDeque::new(),
            answers: VecDeque::new(),
            stepped_at: now,
            step_delay: Duration::ZERO,
            sent_pkts: 0,
            received_pkts: 0,
            lost_pkts: 0,
            rng: Rng::new(5),
        };
        line.run(u64::try_from(rtt.as_millis()).unwrap_or(0) + 5);
        line.demand = Bitrate::from_mbps(1_000);
        line
    }

    /// Sets the seed of the line's random numbers.
    pub(super) fn seeded(mut self, seed: u64) -> Self {
        self.rng = Rng::new(seed);
        self
    }

    /// The queueing delay of the bottleneck in milliseconds.
    pub(super) fn queue_ms(&self) -> f64 {
        self.queued_bytes as f64 * 8e3 / self.rate.as_bps() as f64
    }

    /// Sets the user's target for the path's standing queue.
    pub(super) fn set_aim(&mut self, aim: Aim) {
        let profile = Profile {
            search: true,
            repair: true,
            ..Profile::default()
        };
        self.path.set_profile(profile, aim);
    }

    /// The pacing rate.
    pub(super) fn pace(&self) -> Option<Bitrate> {
        self.path.pacer().rate()
    }

    /// Runs for `millis`. Returns the rate that arrived in Mbit/s, and the share of sent packets that was lost.
    pub(super) fn run(&mut self, millis: u64) -> (f64, f64) {
        let (sent, received, lost) = (self.sent_pkts, self.received_pkts, self.lost_pkts);
        let end = self.now + Duration::from_millis(millis);
        while self.now < end {
            self.now += TICK;
            self.tick();
        }
        let mbps = (self.received_pkts - received) as f64 * PACKET as f64 * 8e-3 / millis as f64;
        let sent = (self.sent_pkts - sent).max(1) as f64;
        (mbps, (self.lost_pkts - lost) as f64 / sent)
    }

    fn tick(&mut self) {
        if self.now.since(self.stepped_at) >= STEP {
            self.step();
        }
        self.serve();
        self.arrive();
        self.answer();
        while let Some((_, answer)) = self.answers.pop_front_if(|(at, _)| *at <= self.now) {
            self.hear(answer);
        }
        let _ = self.path.on_timeout(self.now, false);
        self.send();
    }

    fn step(&mut self) {
        let jitter_us = u64::try_from(self.jitter.as_micros()).unwrap_or(0);
        self.step_delay = Duration::from_micros(self.rng.below(jitter_us + 1));
        self.stepped_at = self.now;
    }

    fn send(&mut self) {
        let now = self.now;
        if self.demand > Bitrate::ZERO {
            self.path.sample_rtt(SAMPLED_EVERY, now + SAMPLED_EVERY * 2);
        }
        let mut body = [0; 1_100];
        let mut writer = FrameWriter::new(&mut body);
        self.path.write_control(now, &mut writer);
        let len = writer.len();
        for frame in Frames::new(&body[..len]) {
            if let Frame::Ping { token, .. } = frame {
                self.enqueue(70, Item::Ping { token });
            } else if let Frame::Tail { path_seq, .. } = frame {
                self.enqueue(70, Item::Tail { path_seq });
            } else if let Frame::Link { version, .. } = frame {
                self.path.on_description_acked(version);
            } else {
                panic!("unexpected {frame:?}");
            }
        }
        let in_tick = |rate: Bitrate| rate.as_bps() as f64 / 8.0 * TICK.as_secs_f64();
        if self.cross > Bitrate::ZERO {
            // Irregular, because otherwise all packets of a slow sender might meet a full queue.
            self.cross_backlog += in_tick(self.cross) * self.rng.below(2_001) as f64 / 1e3;
        }
        while self.cross_backlog >= PACKET as f64 {
            self.cross_backlog -= PACKET as f64;
            self.enqueue(PACKET, Item::Cross);
        }
        self.backlog = (self.backlog + in_tick(self.demand)).min(BACKLOG);
        while self.backlog >= PACKET as f64 {
            if !self.path.can_send(now) {
                self.path.on_limited(now);
                return;
            }
            self.backlog -= PACKET as f64;
            let seq = Seq::of_counter(self.path.sender().next_data());
            let global_seq = seq;
            self.path
                .on_data_sent(now, PAYLOAD, global_seq, None, &mut self.pool);
            self.path.on_sent(now, Bytes::of_len(PAYLOAD));
            self.sent_pkts += 1;
            let sent_us = now.wire_micros();
            self.enqueue(PACKET, Item::Data { seq, sent_us });
        }
    }

    fn enqueue(&mut self, len: u64, item: Item) {
        if self.queue.is_empty() {
            self.served_until = self.now;
        }
        if self.queued_bytes + len > self.limit.get() {
            self.lost_pkts += u64::from(matches!(item, Item::Data { .. }));
            return;
        }
        self.queued_bytes += len;
        self.queue.push_back((len, item));
    }

    /// Runs the bottleneck until now.
    fn serve(&mut self) {
        while let Some((len, item)) = self.queue.front().copied() {
            let departure = self.served_until + Bytes::new(len) / self.rate;
            if departure > self.now {
                return;
            }
            self.served_until = departure;
            self.queue.pop_front();
            self.queued_bytes -= len;
            let is_data = matches!(item, Item::Data { .. });
            if is_data && self.rng.below(1_000_000) < u64::from(self.loss_ppm) {
                self.lost_pkts += 1;
                continue;
            }
            let at = departure + self.rtt / 2 + self.step_delay;
            let last = self.arriving.back().map_or(at, |(at, _)| *at);
            let at = at.max(last);
            match item {
                Item::Cross => {}
                Item::Data { .. } | Item::Ping { .. } | Item::Tail { .. } => {
                    self.arriving.push_back((at, item));
                }
            }
        }
    }

    fn arrive(&mut self) {
        loop {
            let Some((at, item)) = self.arriving.pop_front_if(|(at, _)| *at <= self.now) else {
                return;
            };
            match item {
                Item::Data { seq, sent_us } => {
                    self.received_pkts += 1;
                    let arrival = DataArrival {
                        path_seq: seq,
                        sent_us,
                        len: PAYLOAD,
                        is_congested: false,
                        is_kept: true,
                        grace: Duration::ZERO,
                    };
                    let interval = self.path.feedback_interval();
                    let _ = self.receiver.on_data(at, &arrival, interval);
                }
                Item::Ping { token } => {
                    let back = at + self.rtt / 2;
                    let answered_us = at.wire_micros();
                    self.answers
                        .push_back((back, Answer::Pong { token, answered_us }));
                }
                Item::Tail { path_seq } => self.receiver.on_tail(at, path_seq),
                Item::Cross => {}
            }
        }
    }

    fn answer(&mut self) {
        while self
            .receiver
            .report_due()
            .is_some_and(|due| due <= self.now)
        {
            let mut missing = MissingWriter::default();
            let Some(report) = self.receiver.take_report(self.now, &mut missing) else {
                return;
            };
            let ranges = missing.ranges().into_iter().flatten().collect();
            let back = self.now + self.rtt / 2;
            self.answers
                .push_back((back, Answer::Report(report, ranges)));
        }
    }

    fn hear(&mut self, answer: Answer) {
        match answer {
            Answer::Report(report, missing) => {
                for (first, count) in missing {
                    for offset in 0..u32::from(count) {
                        let seq = first.plus(offset);
                        let lost = self.path.sender_mut().take_lost(self.now, PathId(0), seq);
                        assert!(lost.is_none(), "no packet is kept here");
                    }
                }
                let _ = self.path.on_report(self.now, &report, &mut self.pool);
            }
            Answer::Pong { token, answered_us } => {
                let pong = self.path.on_pong(self.now, token, answered_us, None);
                assert_ne!(pong, Pong::Mtu);
            }
        }
    }
}
