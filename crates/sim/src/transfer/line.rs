//! A line, which is one path of the transfer: the packets that the sender assigned to it, its window, and the
//! bottleneck.

use std::collections::VecDeque;

use core::time::Duration;

use pleach_core::{
    rng::Rng,
    time::Instant,
    units::{Bitrate, Bytes},
};

use super::settings::{LineSettings, Transfer};

/// Position of a packet: stream, and number in the stream.
pub(super) type Place = (usize, usize);

#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) settings: LineSettings,
    /// Average rate that cross traffic leaves for the transfer.
    pub(super) told_rate: Bitrate,
    packet: Bytes,
    round_trip: Duration,
    /// Packets assigned to the line and not yet sent.
    pub(super) waiting: VecDeque<Place>,
    /// Time at which the next packet may be sent. The sender does not exceed the rate.
    pub(super) next_at: Instant,
    /// Number of packets that are in flight or lost, as far as the sender knows.
    pub(super) in_flight: u32,
    window: f64,
    window_max: f64,
    /// Time of the last reduction. Events of packets sent before it do not halve the window again.
    cut_at: Option<Instant>,
    /// Time at which all packets in the bottleneck's queue will have passed.
    free_at: Instant,
    /// Whether cross traffic is on.
    pub(super) crossing: bool,
    pub(super) rng: Rng,
}

impl Line {
    pub(super) fn new(
        settings: LineSettings,
        way_back: Duration,
        transfer: &Transfer,
        rng: Rng,
    ) -> Self {
        let packet = transfer.packet;
        let share = 1.0 - transfer.cross / 2.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a rate"
        )]
        let told = (settings.rate.as_mbps() * 1e6 * share) as u64;
        let told_rate = Bitrate::from_bps(told);
        let one = packet / told_rate;
        let round_trip = one + settings.delay() + way_back;
        let holds = round_trip.as_secs_f64() / one.as_secs_f64();
        let window_max = holds.ceil() + SPARE;
        Self {
            settings,
            told_rate,
            packet,
            round_trip,
            waiting: VecDeque::new(),
            next_at: Instant::ZERO,
            in_flight: 0,
            window: window_max,
            window_max,
            cut_at: None,
            free_at: Instant::ZERO,
            crossing: false,
            rng,
        }
    }

    pub(super) const fn window(&self) -> f64 {
        self.window
    }

    /// Returns the rate that the window permits, at most the remaining rate.
    pub(super) fn rate(&self) -> Bitrate {
        let window = Bytes::new(self.packet.get() * self.whole_window());
        Bitrate::from_transfer(window, self.round_trip)
            .map_or(self.told_rate, |rate| rate.min(self.told_rate))
    }

    pub(super) fn has_room(&self, reacts: bool) -> bool {
        !reacts || u64::from(self.in_flight) < self.whole_window()
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at least 1, and no more than a line holds"
    )]
    fn whole_window(&self) -> u64 {
        self.window.max(1.0) as u64
    }

    /// Sends a packet of the file. Returns its arrival time unless it is lost.
    pub(super) fn send(&mut self, now: Instant, loss: f64) -> Option<Instant> {
        self.next_at = now + self.packet / self.told_rate;
        self.in_flight += 1;
        let arrival = self.pass(now);
        let is_lost = loss > 0.0 && self.rng.chance(loss);
        arrival.filter(|_| !is_lost)
    }

    /// Puts a packet of the file or of the cross traffic into the bottleneck's queue. Returns its arrival time unless
    /// the queue is full.
    pub(super) fn pass(&mut self, now: Instant) -> Option<Instant> {
        let one = self.packet / self.settings.rate;
        if self.free_at.since(now) > one * QUEUE {
            return None;
        }
        self.free_at = self.free_at.max(now) + one;
        Some(self.free_at + self.settings.delay())
    }

    /// Returns the gap between two packets of cross traffic.
    pub(super) fn cross_gap(&self, cross: f64) -> Duration {
        (self.packet / self.settings.rate).div_f64(cross)
    }

    pub(super) fn on_acknowledged(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.window = (self.window + 1.0 / self.window.max(1.0)).min(self.window_max);
    }

    /// Called when a packet sent at `sent_at` is considered lost.
    pub(super) fn on_event(&mut self, now: Instant, sent_at: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.cut_at.is_none_or(|cut_at| sent_at > cut_at) {
            self.window = (self.window / 2.0).max(LEAST);
            self.cut_at = Some(now);
        }
    }

    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.window = 1.0;
        self.cut_at = Some(now);
    }
}

/// Number of packets by which a window may exceed the capacity of the line.
const SPARE: f64 = 3.0;
/// Smallest window after an event: RFC 4960, section 7.2.3, permits four packets of this length.
const LEAST: f64 = 4.0;
/// Capacity of the bottleneck's queue in packets.
const QUEUE: u32 = 50;
