//! The line, which follows the bottleneck: propagation delay, and a uniform extra delay drawn for each packet.
//!
//! In order (the default), a packet arrives no earlier than the packet before it, as on a radio link that retransmits
//! below IP. With `reorder`, each packet has its own delay and may overtake others.
//!
//! Known limit: in order and at high packet rates the extra delay is often near its upper end, since one late packet
//! delays all packets that follow it.

use std::collections::VecDeque;

use core::time::Duration;

use pleach_core::{
    rng::Rng,
    time::{Instant, saturating_nanos},
    units::Bytes,
};

/// Highest number of packets on one line at a time: 300 ms at 2.6 Gbit/s.
pub const MAX_IN_FLIGHT: usize = 1 << 16;

/// Packets in flight, sorted by arrival time.
#[derive(Clone, Debug)]
pub struct Line<P> {
    delay: Duration,
    jitter: Duration,
    reorder: bool,
    in_flight: VecDeque<(Instant, Bytes, P)>,
    last_arrival: Instant,
}

impl<P> Line<P> {
    /// Creates an empty line.
    #[must_use]
    pub fn new(delay: Duration, jitter: Duration, reorder: bool) -> Self {
        Self {
            delay,
            jitter,
            reorder,
            in_flight: VecDeque::new(),
            last_arrival: Instant::ZERO,
        }
    }

    /// Changes the delays of packets that enter the line from now on.
    pub fn set(&mut self, delay: Duration, jitter: Duration, reorder: bool) {
        (self.delay, self.jitter, self.reorder) = (delay, jitter, reorder);
    }

    /// Puts a packet on the line at `at`. Returns false if the line is full and the packet is lost.
    pub fn push(&mut self, at: Instant, len: Bytes, packet: P, rng: &mut Rng) -> bool {
        if self.in_flight.len() >= MAX_IN_FLIGHT {
            return false;
        }
        let mut arrival = at + self.delay;
        if !self.jitter.is_zero() {
            let extra = rng.below(saturating_nanos(self.jitter).saturating_add(1));
            arrival += Duration::from_nanos(extra);
        }
        if !self.reorder {
            arrival = arrival.max(self.last_arrival);
        }
        self.last_arrival = self.last_arrival.max(arrival);
        let position = match self.in_flight.back() {
            Some(&(last, ..)) if last > arrival => self
                .in_flight
                .partition_point(|&(other, ..)| other <= arrival),
            _ => self.in_flight.len(),
        };
        self.in_flight.insert(position, (arrival, len, packet));
        true
    }

    /// Returns the next packet that has arrived by `now`, with its time of arrival.
    pub fn poll(&mut self, now: Instant) -> Option<(Instant, Bytes, P)> {
        self.next_arrival().filter(|&at| at <= now)?;
        self.in_flight.pop_front()
    }

    /// Returns the arrival time of the next packet.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.front().map(|&(at, ..)| at)
    }

    /// Drops packets that have not arrived by `now` and returns their number.
    pub fn clear(&mut self, now: Instant) -> usize {
        let arrived = self.in_flight.partition_point(|&(at, ..)| at <= now);
        let lost = self.in_flight.len() - arrived;
        self.in_flight.truncate(arrived);
        self.last_arrival = now;
        lost
    }
}
