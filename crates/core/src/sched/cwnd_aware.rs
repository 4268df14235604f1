//! `cwnd-aware`: by chance, in proportion to the congestion windows.
//!
//! The baseline of Wang, Liao, Li, "OSIA" (2012), section 5.1, after Saadawi and Lee (2004): "in each point of the time,
//! the possibility of the path i serving the packet is CWND_i / sum(CWND_i)", "based on bandwidth-delay product". A path
//! of the tunnel has a rate instead of a window, so its window is rate * sRTT, at least one packet. Lots are drawn from a
//! fixed seed among the paths that are ready.
//!
//! It knows nothing of order: a path with a long delay has a large window, and gets many packets that arrive late.

use super::{PacketInfo, PathView, Pick, Scheduler};
use crate::{
    path::rtt::INITIAL_RTT,
    rng::Rng,
    time::Instant,
    units::{Bitrate, Bytes},
};

/// Draws lots among the ready paths. Never waits. Ignores weight.
#[derive(Clone, Debug)]
pub struct CwndAware {
    rng: Rng,
}

impl Default for CwndAware {
    fn default() -> Self {
        Self { rng: Rng::new(0) }
    }
}

impl Scheduler for CwndAware {
    fn pick(&mut self, _now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        let ready = || paths.iter().enumerate().filter(|(_, path)| path.ready);
        let window = |path: &PathView| window(path).max(packet.len).max(LEAST).get();
        let total = ready().fold(0_u64, |sum, (_, path)| sum.saturating_add(window(path)));
        if total == 0 {
            return Pick::Wait;
        }
        let mut left = self.rng.below(total);
        let drawn = ready().find(|(_, path)| match left.checked_sub(window(path)) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        let last = || ready().next_back();
        drawn
            .or_else(last)
            .map_or(Pick::Wait, |(index, _)| Pick::One(index))
    }
}

/// What a path holds: its rate times its round trip.
fn window(path: &PathView) -> Bytes {
    let round_trip = path.smoothed_rtt.unwrap_or(INITIAL_RTT);
    path.rate.unwrap_or(UNKNOWN_RATE).bytes_in(round_trip)
}

/// What a path carries before that is known.
const UNKNOWN_RATE: Bitrate = Bitrate::from_mbps(10);
/// Windows are not smaller.
const LEAST: Bytes = Bytes::new(1);

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::super::tests::{packet, ready_paths};
    use super::*;

    #[test]
    fn lots_fall_in_proportion_to_rate_times_round_trip() {
        let mut paths = ready_paths(3);
        for (path, (mbps, ms)) in paths.iter_mut().zip([(10, 20), (10, 60), (5, 40)]) {
            path.rate = Some(Bitrate::from_mbps(mbps));
            path.smoothed_rtt = Some(Duration::from_millis(ms));
        }
        let mut policy = CwndAware::default();
        let mut counts = [0_u32; 3];
        for _ in 0..10_000 {
            if let Pick::One(index) = policy.pick(Instant::ZERO, &paths, &packet()) {
                counts[index] += 1;
            }
        }
        // 1, 3 and 1 of 5; a standard deviation is 50.
        for (count, expected) in counts.into_iter().zip([2_000_u32, 6_000, 2_000]) {
            assert!(count.abs_diff(expected) < 200, "{counts:?}");
        }
        paths[1].ready = false;
        assert!((0..100).all(|_| policy.pick(Instant::ZERO, &paths, &packet()) != Pick::One(1)));
    }
}
