//! Traffic of one client that suffers if the gateway serves the client badly: a transfer whose window follows losses,
//! as in TCP Reno (RFC 5681), up to a rate; and a ping every 10 ms.
//!
//! The far end returns each packet, so the transfer takes both directions. A packet is lost when three later packets
//! have returned, or after one second without an answer. A ping that is not answered within a second counts as one
//! second.

use core::time::Duration;
use std::collections::VecDeque;

use hdrhistogram::Histogram;
use pleach_core::{endpoint::Endpoint, time::Instant};

use super::packets::{self, HEADERS, LEN};

/// A client's traffic.
#[derive(Debug)]
pub(crate) struct Honest {
    /// Window in packets.
    window: f64,
    threshold: f64,
    next: u64,
    /// Packets of the transfer that have not returned, oldest first, with the time at which they were sent.
    in_flight: VecDeque<(u64, Instant)>,
    /// First packet whose loss halves the window again.
    recover: u64,
    /// Bytes that the rate permits to send.
    credit: u64,
    next_ping: Instant,
    ping: u64,
    /// Pings without an answer.
    pings: VecDeque<(u64, Instant)>,
    measured: Measured,
}

/// What the client got.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// Bytes of the transfer that returned.
    pub(crate) bytes: u64,
    /// Packets of the transfer that were lost.
    pub(crate) lost: u64,
    /// Round-trip times of pings in microseconds.
    pub(crate) pings: Histogram<u64>,
}

impl Measured {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            bytes: 0,
            lost: 0,
            pings: Histogram::new_with_bounds(1, 60_000_000, 3)?,
        })
    }

    /// Returns the rate of the transfer in Mbit/s over `seconds`.
    pub(crate) fn mbps(&self, seconds: f64) -> f64 {
        self.bytes as f64 * 8e-6 / seconds
    }

    /// Returns the delay in milliseconds that a part `quantile` of the pings did not exceed.
    pub(crate) fn ping_ms(&self, quantile: f64) -> f64 {
        self.pings.value_at_quantile(quantile) as f64 / 1e3
    }
}

impl Honest {
    /// Returns traffic that begins at `now`.
    ///
    /// # Errors
    /// None that can occur: the bounds of the histogram are constants.
    pub(crate) fn new(now: Instant) -> anyhow::Result<Self> {
        Ok(Self {
            window: FIRST_WINDOW,
            threshold: f64::MAX,
            next: 0,
            in_flight: VecDeque::new(),
            recover: 0,
            credit: 0,
            next_ping: now,
            ping: 0,
            pings: VecDeque::new(),
            measured: Measured::new()?,
        })
    }

    /// Returns what the client got since the last call.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn take(&mut self) -> anyhow::Result<Measured> {
        Ok(core::mem::replace(&mut self.measured, Measured::new()?))
    }

    /// Sends what window and rate permit, when the rate permits `bytes` more.
    pub(crate) fn offer(&mut self, now: Instant, bytes: u64, client: u32, endpoint: &mut Endpoint) {
        self.give_up(now);
        if now >= self.next_ping {
            self.next_ping = (self.next_ping + PING_INTERVAL).max(now);
            self.pings.push_back((self.ping, now));
            send(now, endpoint, client, PING_PORT, PING_LEN, self.ping);
            self.ping += 1;
        }
        self.credit = (self.credit + bytes).min(bytes.max(LEN as u64) * 2);
        while self.credit >= LEN as u64 && (self.in_flight.len() as f64) < self.window {
            self.credit -= LEN as u64;
            self.in_flight.push_back((self.next, now));
            send(now, endpoint, client, packets::PORT, LEN, self.next);
            self.next += 1;
        }
    }

    /// Handles a packet that has returned.
    pub(crate) fn on_packet(&mut self, now: Instant, packet: &[u8]) {
        let Some(number) = packet.get(HEADERS..HEADERS + 8) else {
            return;
        };
        let number = u64::from_be_bytes(number.try_into().unwrap_or_default());
        if packet.len() == PING_LEN {
            if let Some(at) = self.pings.iter().position(|(sent, _)| *sent == number)
                && let Some((_, sent_at)) = self.pings.remove(at)
            {
                self.record_ping(now.since(sent_at));
            }
        } else if let Some(at) = self.in_flight.iter().position(|(sent, _)| *sent == number) {
            self.in_flight.remove(at);
            self.measured.bytes += packet.len() as u64;
            self.grow();
            while let Some(&(oldest, _)) = self.in_flight.front()
                && oldest + REORDERING <= number
            {
                self.in_flight.pop_front();
                self.on_lost(oldest);
            }
        }
    }

    fn grow(&mut self) {
        // A window that the rate leaves empty says nothing (RFC 7661).
        if (self.in_flight.len() as f64) < self.window / 2.0 {
            return;
        }
        self.window += if self.window < self.threshold {
            1.0
        } else {
            1.0 / self.window
        };
        self.window = self.window.min(MOST_WINDOW);
    }

    fn on_lost(&mut self, number: u64) {
        self.measured.lost += 1;
        if number >= self.recover {
            self.recover = self.next;
            self.window = (self.window / 2.0).max(2.0);
            self.threshold = self.window;
        }
    }

    /// Counts packets and pings without an answer as lost.
    fn give_up(&mut self, now: Instant) {
        let is_over = |sent_at: Instant| now.since(sent_at) >= PATIENCE;
        if self.in_flight.front().is_some_and(|(_, at)| is_over(*at)) {
            self.measured.lost += self.in_flight.len() as u64;
            self.in_flight.clear();
            self.recover = self.next;
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = 2.0;
        }
        while self.pings.pop_front_if(|(_, at)| is_over(*at)).is_some() {
            self.record_ping(PATIENCE);
        }
    }

    fn record_ping(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.measured.pings.saturating_record(micros);
    }
}

fn send(now: Instant, endpoint: &mut Endpoint, client: u32, port: u16, len: usize, number: u64) {
    let mut packet = endpoint.pool().take();
    packets::write_from(&mut packet, client, port, len);
    packet.as_mut_slice()[HEADERS..HEADERS + 8].copy_from_slice(&number.to_be_bytes());
    endpoint.handle_packet(now, packet);
}

/// Initial window in packets (RFC 6928).
const FIRST_WINDOW: f64 = 10.0;
/// Maximum window in packets: more than the fastest rate needs at the delays of a lab.
const MOST_WINDOW: f64 = 4_000.0;
/// Number of later packets after whose return a packet is lost.
const REORDERING: u64 = 3;
/// Time without an answer after which packets are lost.
const PATIENCE: Duration = Duration::from_secs(1);
const PING_INTERVAL: Duration = Duration::from_millis(10);
/// Length of a ping in bytes, by which it is recognised.
const PING_LEN: usize = 100;
/// Source port of pings, which makes them a flow of their own.
const PING_PORT: u16 = packets::PORT + 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(number: u64, len: usize) -> Vec<u8> {
        let mut packet = vec![0; len];
        packet[HEADERS..HEADERS + 8].copy_from_slice(&number.to_be_bytes());
        packet
    }

    #[test]
    fn the_window_grows_with_returns_and_halves_once_for_losses_of_one_window() {
        let now = Instant::from_millis(1);
        let mut honest = Honest::new(now).expect("constant bounds");
        honest.in_flight = (0..20).map(|number| (number, now)).collect();
        honest.next = 20;
        honest.window = 20.0;
        honest.on_packet(now, &returned(0, LEN));
        assert!((honest.window - 21.0).abs() < 1e-9);
        honest.on_packet(now, &returned(8, LEN));
        assert_eq!(honest.measured.lost, 5);
        assert!((honest.window - 11.0).abs() < 1e-9, "{}", honest.window);
        let measured = honest.take().expect("constant bounds");
        assert_eq!(measured.bytes, 2 * LEN as u64);
        assert_eq!(honest.measured.bytes, 0);
    }

    #[test]
    fn a_ping_without_an_answer_counts_as_one_second() {
        let now = Instant::from_millis(1);
        let mut honest = Honest::new(now).expect("constant bounds");
        honest.pings = [(0, now), (1, now)].into();
        honest.on_packet(now + Duration::from_millis(3), &returned(1, PING_LEN));
        honest.give_up(now + Duration::from_secs(1));
        assert!(honest.pings.is_empty());
        assert!((honest.measured.ping_ms(0.5) - 3.0).abs() < 0.1);
        assert!((honest.measured.ping_ms(1.0) - 1_000.0).abs() < 1.0);
    }
}
