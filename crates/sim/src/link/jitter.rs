//! The line behind the bottleneck: propagation delay, and a uniform extra delay drawn for each packet.
//!
//! In order (the default), a packet arrives no earlier than the one before it, as on a radio link that retransmits
//! below IP. With `reorder`, each packet keeps its own delay and may overtake.
//!
//! Known limit: in order and at high packet rates the extra delay gathers near its upper end, since one late packet
//! holds back all behind it.

use std::collections::VecDeque;

use core::time::Duration;

use pleach_core::{
    rng::Rng,
    time::{Instant, saturating_nanos},
    units::Bytes,
};

/// Most packets on one line at a time: 300 ms at 2.6 Gbit/s.
pub const MAX_IN_FLIGHT: usize = 1 << 16;

/// Packets under way, sorted by arrival.
#[derive(Clone, Debug)]
pub struct Line<P> {
    delay: Duration,
    jitter: Duration,
    reorder: bool,
    in_flight: VecDeque<(Instant, Bytes, P)>,
    last_arrival: Instant,
}

impl<P> Line<P> {
    /// An empty line.
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

    /// Sets other delays for packets that come from now on.
    pub fn set(&mut self, delay: Duration, jitter: Duration, reorder: bool) {
        (self.delay, self.jitter, self.reorder) = (delay, jitter, reorder);
    }

    /// Sends a packet on its way at `at`; false if the line is full and the packet lost.
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

    /// The next packet that has arrived by `now`, with the time it did.
    pub fn poll(&mut self, now: Instant) -> Option<(Instant, Bytes, P)> {
        self.next_arrival().filter(|&at| at <= now)?;
        self.in_flight.pop_front()
    }

    /// When the next packet arrives.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.front().map(|&(at, ..)| at)
    }

    /// Loses what has not arrived by `now`; returns how many packets that were.
    pub fn clear(&mut self, now: Instant) -> usize {
        let arrived = self.in_flight.partition_point(|&(at, ..)| at <= now);
        let lost = self.in_flight.len() - arrived;
        self.in_flight.truncate(arrived);
        self.last_arrival = now;
        lost
    }
}
