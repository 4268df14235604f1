//! `adaptive`: every path that helps, and none that hurts.
//!
//! A packet takes the path on which it is predicted to arrive first, as under `earliest-arrival` (EDPF; Chebrolu and Rao
//! 2006). Paths are paced at what they carry, so while more waits than the quickest path carries, the next best has its
//! turn, and so on: the sum of all, in the order of arrival. Three things are different:
//!
//! - A path is left alone while what takes it would arrive more than [`GATE`] after what takes the best: waiting for it
//!   at the other end would cost a flow more than it brings.
//! - A packet that fits the quickest path without waiting never takes another, so a flow that is not held up by the
//!   paths keeps its order by itself.
//! - Lost packets are sent again ([`super::AnyScheduler::repairs`]), on the path they arrive first.

use super::{PacketInfo, PathView, Pick, Scheduler};
use crate::{ids::PathId, sched::slot, time::Instant, units::{Bitrate, Bytes}};

use core::time::Duration;

/// The default policy. Waits if only paths that would hurt are ready.
#[derive(Clone, Debug)]
pub struct Adaptive {
    lines: [Line; PathId::MAX],
}

/// What is predicted of one path.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// When all that was sent will have passed the bottleneck at `rate`.
    busy_until: Instant,
    rate: Bitrate,
    blocked_since: Option<Instant>,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self::new()
    }
}

impl Adaptive {
    /// Begins with all paths empty.
    #[must_use]
    pub const fn new() -> Self {
        const EMPTY: Line = Line {
            busy_until: Instant::ZERO,
            rate: UNKNOWN_RATE,
            blocked_since: None,
        };
        Self {
            lines: [EMPTY; PathId::MAX],
        }
    }
}

impl Scheduler for Adaptive {
    fn pick(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        let mut ready: Option<(Instant, Instant, usize)> = None;
        let mut awaited: Option<Instant> = None;
        let mut best: Option<Instant> = None;
        for (index, path) in paths.iter().enumerate() {
            let line = &mut self.lines[slot(path)];
            line.update(now, path);
            if !path.usable {
                continue;
            }
            let arrival = line.sent_until(now, packet.len).max(now + path.queue_delay) + path.extra_delay;
            best = Some(best.map_or(arrival, |earliest| earliest.min(arrival)));
            if path.ready {
                let worth = arrival + penalty(path);
                if ready.is_none_or(|(least, ..)| worth < least) {
                    ready = Some((worth, arrival, index));
                }
            } else {
                let release = now + now.since(line.blocked_since.unwrap_or(now));
                let drained = line.sent_until(release, packet.len + packet.backlog);
                if drained <= now + MAX_WAIT {
                    let arrival = drained + path.extra_delay;
                    awaited = Some(awaited.map_or(arrival, |earliest| earliest.min(arrival)));
                }
            }
        }
        let Some((_, arrival, index)) = ready else {
            return Pick::Wait;
        };
        let is_gated = best.is_some_and(|best| arrival.since(best) > GATE);
        if is_gated || awaited.is_some_and(|awaited| awaited < arrival) {
            return Pick::Wait;
        }
        let line = &mut self.lines[slot(&paths[index])];
        line.busy_until = line.sent_until(now, packet.len);
        Pick::One(index)
    }
}

impl Line {
    fn update(&mut self, now: Instant, path: &PathView) {
        let rate = match path.rate {
            Some(rate) if path.is_rate_known => rate.max(MIN_RATE),
            Some(rate) => rate.scale(2, 1).max(UNKNOWN_RATE),
            None => UNKNOWN_RATE,
        };
        if !path.usable {
            self.busy_until = now;
        } else if rate != self.rate {
            let left = u128::from(crate::time::saturating_nanos(self.busy_until.since(now)));
            let left = left * u128::from(self.rate.as_bps()) / u128::from(rate.as_bps());
            self.busy_until = now + Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX));
        }
        self.rate = rate;
        self.blocked_since = if path.ready || !path.usable {
            None
        } else {
            self.blocked_since.or(Some(now))
        };
    }

    fn sent_until(&self, start: Instant, len: Bytes) -> Instant {
        self.busy_until.max(start) + len / self.rate
    }
}

/// What the losses of a path cost, as delay: a loss holds its flow up for a repair, and one in thirty is as good as always.
fn penalty(path: &PathView) -> Duration {
    let repair = path.smoothed_rtt.unwrap_or_default() + Duration::from_millis(20);
    repair * path.loss_ppm.min(33_333) / 33_333
}

/// What a path carries before that is known.
const UNKNOWN_RATE: Bitrate = Bitrate::from_mbps(20);
/// Below this a rate counts as this, so that a prediction stays a number.
const MIN_RATE: Bitrate = Bitrate::from_bps(1_000);
/// Longest predicted time to get the backlog through the awaited path.
const MAX_WAIT: Duration = Duration::from_millis(5);
/// How much later than on the best path a packet may arrive.
const GATE: Duration = Duration::from_millis(110);
