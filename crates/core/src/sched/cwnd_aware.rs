//! `cwnd-aware`: paths drawn at random, in proportion to their congestion windows.
//!
//! The baseline of Wang, Liao, Li, "OSIA" (2012), section 5.1, after Saadawi and Lee (2004): "in each point of the time,
//! the possibility of the path i serving the packet is CWND_i / sum(CWND_i)", "based on bandwidth-delay product". A path
//! of the tunnel has a rate instead of a window, so its window is rate * sRTT, at least one packet. The path is drawn
//! among the paths that are ready; the random generator has a fixed seed.
//!
//! The policy ignores the order of packets: a path with a long delay has a large window, and gets many packets that
//! arrive late.

use super::{PacketInfo, PathView, Pick, Scheduler, UNKNOWN_RATE};
use crate::{path::rtt::INITIAL_RTT, rng::Rng, time::Instant, units::Bytes};

/// Draws one of the ready paths at random. Never waits. Ignores weight.
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
        let weight = |path: &PathView| {
            if path.ready {
                window(path).max(packet.len).get().max(1)
            } else {
                0
            }
        };
        let drawn = self.rng.weighted(paths.iter().map(weight));
        drawn.map_or(Pick::Wait, Pick::One)
    }
}

/// Returns the bandwidth-delay product of a path.
fn window(path: &PathView) -> Bytes {
    let round_trip = path.smoothed_rtt.unwrap_or(INITIAL_RTT);
    path.rate.unwrap_or(UNKNOWN_RATE).bytes_in(round_trip)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::super::tests::{packet, ready_paths};
    use super::*;
    use crate::units::Bitrate;

    #[test]
    fn paths_are_drawn_in_proportion_to_rate_times_rtt() {
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
        // The expected shares are 1/5, 3/5 and 1/5; a standard deviation is at most 50.
        for (count, expected) in counts.into_iter().zip([2_000_u32, 6_000, 2_000]) {
            assert!(count.abs_diff(expected) < 200, "{counts:?}");
        }
        paths[1].ready = false;
        assert!((0..100).all(|_| policy.pick(Instant::ZERO, &paths, &packet()) != Pick::One(1)));
    }
}
