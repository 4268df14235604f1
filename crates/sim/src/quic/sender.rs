//! The sending endpoint: decides what to send and when, and which packets are lost. RFC 9002 sections 6 and 7,
//! appendices A and B.

use core::time::Duration;
use std::collections::VecDeque;

use pleach_core::time::Instant;

use super::{
    MAX_ACK_DELAY, QuicStats, STREAM_WINDOW,
    cubic::Cubic,
    pacer::Pacer,
    rtt::RttEstimator,
    wire::{Ack, OVERHEAD, Packet},
};

/// Number of later packets whose delivery makes a packet lost: section 6.1.1. This number never adapts.
const PACKET_THRESHOLD: u64 = 3;

/// Number of probes per timeout, section 6.2.4.
const PROBES: u32 = 2;

/// Number of probe timeouts between two losses that makes congestion persistent, section 7.6.1.
const PERSISTENT_TIMEOUTS: u32 = 3;

/// Highest number of doublings of the probe timeout.
const MAX_BACKOFF: u32 = 16;

/// Highest packet number.
const MAX_NUMBER: u64 = 0xffff_ffff;

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    sent_at: Instant,
    bytes: u64,
    /// Range of the stream that the packet contains.
    start: u64,
    end: u64,
}

/// Sender of the stream, which has no end.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    /// Length of a full datagram in bytes.
    packet: u64,
    is_started: bool,
    /// Packets by number, starting at `first_number`. `None`: acknowledged or lost. The receiver's window bounds
    /// their number.
    sent: VecDeque<Option<Sent>>,
    first_number: u64,
    next_offset: u64,
    /// Ranges of the stream to retransmit.
    lost: VecDeque<(u64, u64)>,
    limit: u64,
    in_flight: u64,
    in_flight_pkts: u64,
    /// Highest acknowledged number.
    largest_acked: Option<u64>,
    /// First packet number sent after the first RTT sample.
    first_measured: u64,
    rtt: RttEstimator,
    cubic: Cubic,
    pacer: Pacer,
    is_app_limited: bool,
    last_sent_at: Instant,
    loss_at: Option<Instant>,
    departure_at: Option<Instant>,
    timeouts: u32,
    probes: u32,
    stats: QuicStats,
}

impl Sender {
    /// Creates a sender of datagrams of `payload` bytes, which sends once it is [started](Self::start).
    pub(super) fn new(payload: u16) -> Self {
        let packet = u64::from(payload);
        Self {
            packet,
            is_started: false,
            sent: VecDeque::new(),
            first_number: 0,
            next_offset: 0,
            lost: VecDeque::new(),
            limit: STREAM_WINDOW,
            in_flight: 0,
            in_flight_pkts: 0,
            largest_acked: None,
            first_measured: 0,
            rtt: RttEstimator::default(),
            cubic: Cubic::new(packet),
            pacer: Pacer::default(),
            is_app_limited: false,
            last_sent_at: Instant::ZERO,
            loss_at: None,
            departure_at: None,
            timeouts: 0,
            probes: 0,
            stats: QuicStats::default(),
        }
    }

    /// Starts sending after the handshake. `rtt` contains the RTT of the handshake.
    pub(super) fn start(&mut self, now: Instant, rtt: RttEstimator) {
        self.is_started = true;
        self.rtt = rtt;
        self.pacer = Pacer::new(now, rtt.mean(), self.cubic.window(), self.packet);
    }

    /// Returns the next packet to send at `now`. Callers repeat the call until the result is `None`.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        self.departure_at = None;
        let has_data = !self.lost.is_empty() || self.next_offset < self.limit;
        let is_probe = self.probes > 0;
        if !self.is_started || self.next_number() > MAX_NUMBER {
            return None;
        }
        if !is_probe {
            self.is_app_limited = !has_data;
            let window = self.cubic.window();
            if !has_data || self.in_flight + self.packet >= window {
                return None;
            }
            let rtt = self.rtt.mean();
            self.departure_at = self.pacer.delay(now, rtt, window, self.packet);
            if self.departure_at.is_some() {
                return None;
            }
        }
        self.probes = self.probes.saturating_sub(1);
        let (start, end) = self.next_piece();
        let number = self.next_number();
        let bytes = end - start + OVERHEAD;
        self.sent.push_back(Some(Sent {
            sent_at: now,
            bytes,
            start,
            end,
        }));
        self.in_flight += bytes;
        self.in_flight_pkts += 1;
        self.pacer.on_sent(bytes);
        self.last_sent_at = now;
        Some(Packet::Data {
            number,
            offset: start,
            len: end - start,
        })
    }

    /// Processes an acknowledgement. An acknowledgement of packets that were never sent is ignored.
    pub(super) fn on_ack(&mut self, now: Instant, ack: &Ack) {
        let Some(&(_, largest)) = ack.ranges().first() else {
            return;
        };
        if largest >= self.next_number() {
            return;
        }
        self.limit = self.limit.max(ack.limit);
        let is_newest = self.largest_acked.is_none_or(|before| largest > before);
        let largest_sent_at = self.get(largest).map(|sent| sent.sent_at);
        let mut is_delivery = false;
        for &(first, last) in ack.ranges().iter().rev() {
            for number in first.max(self.first_number)..=last {
                if let Some(sent) = self.take(number) {
                    is_delivery = true;
                    if !self.is_app_limited {
                        let rtt = self.rtt.mean();
                        self.cubic.on_ack(now, sent.sent_at, sent.bytes, rtt);
                    }
                }
            }
        }
        if !is_delivery {
            return;
        }
        if is_newest {
            self.largest_acked = Some(largest);
            if let Some(sent_at) = largest_sent_at {
                if self.rtt.smoothed().is_none() {
                    self.first_measured = self.next_number();
                }
                let delay = Duration::from_micros(ack.delay_us).min(MAX_ACK_DELAY);
                self.rtt.on_sample(now.since(sent_at), delay);
            }
        }
        self.find_losses(now, true);
        self.timeouts = 0;
        self.forget();
    }

    /// Runs the timers that are due at `now`.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Some(at) = self.loss_at {
            if at <= now {
                self.find_losses(now, false);
                self.forget();
            }
        } else if self.probe_at().is_some_and(|at| at <= now) {
            self.probes += PROBES;
            self.timeouts += 1;
            self.stats.timeouts += 1;
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.loss_at.or_else(|| self.probe_at());
        crate::link::earliest(timer, self.departure_at)
    }

    pub(super) fn smoothed_rtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    pub(super) fn stats(&self) -> QuicStats {
        QuicStats {
            cwnd_bytes: self.cubic.window(),
            ..self.stats
        }
    }

    fn next_number(&self) -> u64 {
        self.first_number + u64::try_from(self.sent.len()).unwrap_or(u64::MAX)
    }

    /// Returns the next range of the stream: first lost data, then new data. The range is empty if there are no data
    /// to send; a probe then carries no data.
    fn next_piece(&mut self) -> (u64, u64) {
        let room = self.packet.saturating_sub(OVERHEAD).max(1);
        if let Some((start, end)) = self.lost.pop_front() {
            let cut = end.min(start + room);
            if cut < end {
                self.lost.push_front((cut, end));
            }
            return (start, cut);
        }
        let start = self.next_offset;
        let end = (start + room).min(self.limit).max(start);
        self.next_offset = end;
        (start, end)
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first_number)?).ok()
    }

    fn get(&self, number: u64) -> Option<&Sent> {
        self.sent.get(self.index(number)?)?.as_ref()
    }

    /// Removes a packet from the packets in flight.
    fn take(&mut self, number: u64) -> Option<Sent> {
        let index = self.index(number)?;
        let sent = self.sent.get_mut(index)?.take()?;
        self.in_flight = self.in_flight.saturating_sub(sent.bytes);
        self.in_flight_pkts = self.in_flight_pkts.saturating_sub(1);
        Some(sent)
    }

    fn forget(&mut self) {
        while self.sent.front().is_some_and(Option::is_none) {
            self.sent.pop_front();
            self.first_number += 1;
        }
    }

    /// Detects losses: section 6.1, and section 7.6 if an acknowledgement caused the call.
    fn find_losses(&mut self, now: Instant, is_due_to_ack: bool) {
        self.loss_at = None;
        let Some(largest) = self.largest_acked else {
            return;
        };
        let delay = self.rtt.loss_delay();
        let persistent = (self.rtt.probe_timeout() + MAX_ACK_DELAY) * PERSISTENT_TIMEOUTS;
        let mut last_lost_at = None;
        let mut run_began_at: Option<Instant> = None;
        let mut is_persistent = false;
        for number in self.first_number..largest {
            let Some(sent) = self.get(number).copied() else {
                run_began_at = None;
                continue;
            };
            let lost_at = sent.sent_at + delay;
            if lost_at > now && largest < number + PACKET_THRESHOLD {
                self.loss_at = crate::link::earliest(self.loss_at, Some(lost_at));
                run_began_at = None;
                continue;
            }
            self.take(number);
            self.stats.lost_pkts += 1;
            last_lost_at = Some(sent.sent_at);
            if sent.end > sent.start {
                self.lost.push_back((sent.start, sent.end));
            }
            if is_due_to_ack && number >= self.first_measured {
                let began_at = *run_began_at.get_or_insert(sent.sent_at);
                is_persistent |= sent.sent_at.since(began_at) > persistent;
            }
        }
        if let Some(sent_at) = last_lost_at
            && self.cubic.on_loss(now, sent_at, is_persistent)
        {
            self.stats.congestion_events += 1;
        }
    }

    /// Returns the time at which a probe is due: section 6.2.1.
    fn probe_at(&self) -> Option<Instant> {
        let backoff = 1 << self.timeouts.min(MAX_BACKOFF);
        let wait = (self.rtt.probe_timeout() + MAX_ACK_DELAY).saturating_mul(backoff);
        (self.in_flight_pkts > 0).then(|| self.last_sent_at + wait)
    }
}
