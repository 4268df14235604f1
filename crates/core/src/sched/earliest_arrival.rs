//! `earliest-arrival`: the path on which this packet is predicted to arrive first.
//!
//! Earliest delivery path first (EDPF; Chebrolu and Rao 2006). For each path i with rate b and delay d, the policy
//! stores A, the time until which the path's bottleneck is busy with earlier packets. A packet of length L sent now
//! arrives at max(now, A) + L/b + d. The packet takes the path with the earliest arrival, and the A of that path
//! becomes max(now, A) + L/b. If b and d are right and constant, packets arrive in the order of sending, without any
//! reorder buffer.
//!
//! Differences from EDPF: A is stored as work, so that a change of the estimated rate also applies to packets in
//! flight. A path of unknown rate counts as 10 Mbit/s. Delays are taken relative to the quickest path, because only
//! differences matter.
//!
//! If the best path is not ready, the policy waits for it only if that path is predicted to send the whole backlog
//! before the best ready path sends one packet, and within 5 ms. A longer wait would build a standing queue, which the
//! tunnel's queue management mistakes for congestion, and the other paths would idle. The time until a path is ready is
//! unknown; it is assumed to be as long as the path has already been unready.

use core::time::Duration;

use super::{PacketInfo, PathView, Pick, Scheduler, UNKNOWN_RATE, line::Line, slot};
use crate::{ids::PathId, time::Instant};

/// Uses the path with the earliest predicted arrival; ignores weight.
///
/// Waits for a path that is not ready if the packet is predicted to arrive there before it would arrive on the best
/// ready path.
#[derive(Clone, Debug)]
pub struct EarliestArrival {
    lines: [Line; PathId::MAX],
}

impl Default for EarliestArrival {
    fn default() -> Self {
        Self::new()
    }
}

impl EarliestArrival {
    /// Creates a scheduler that assumes no packets in flight on any path.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lines: [const { Line::empty() }; PathId::MAX],
        }
    }
}

impl Scheduler for EarliestArrival {
    fn pick(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        let mut ready: Option<(Instant, usize)> = None;
        let mut awaited: Option<Instant> = None;
        for (index, path) in paths.iter().enumerate() {
            let line = &mut self.lines[slot(path)];
            line.update(now, path, path.rate.unwrap_or(UNKNOWN_RATE));
            if path.ready {
                let arrival = line.sent_until(now, packet.len) + path.extra_delay;
                if ready.is_none_or(|(earliest, _)| arrival < earliest) {
                    ready = Some((arrival, index));
                }
            } else if path.usable {
                let drained = line.drained_at(now, packet.len + packet.backlog);
                if drained <= now + MAX_WAIT {
                    let arrival = drained + path.extra_delay;
                    awaited = Some(awaited.map_or(arrival, |earliest| earliest.min(arrival)));
                }
            }
        }
        let Some((arrival, index)) = ready else {
            return Pick::Wait;
        };
        if awaited.is_some_and(|awaited| awaited < arrival) {
            return Pick::Wait;
        }
        let line = &mut self.lines[slot(&paths[index])];
        line.on_sent(now, packet.len);
        Pick::One(index)
    }
}

/// Maximum predicted time to send the backlog on the awaited path: the target of the tunnel queue's CoDel.
const MAX_WAIT: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::super::tests::{packet, ready_paths};
    use super::*;
    use crate::{
        flows::FlowId,
        rng::Rng,
        units::{Bitrate, Bytes},
    };

    /// Paths with the given rates in kbit/s and delays in milliseconds.
    fn paths_of(lines: &[(u64, u64)]) -> Vec<PathView> {
        let quickest = lines.iter().map(|(_, ms)| *ms).min().unwrap_or(0);
        let mut paths = ready_paths(lines.len());
        for (path, (kbps, ms)) in paths.iter_mut().zip(lines) {
            path.rate = Some(Bitrate::from_bps(kbps * 1_000));
            path.extra_delay = Duration::from_millis(ms - quickest);
        }
        paths
    }

    /// Sends 2000 packets of 1000 bytes, one per `every`, over FIFO lines with the properties in `paths`. Returns the
    /// number of packets that arrive before a packet sent earlier, and the number of packets per path.
    fn inversions(paths: &[PathView], every: Duration) -> (usize, Vec<usize>) {
        let mut policy = EarliestArrival::new();
        let packet = PacketInfo {
            len: Bytes::new(1_000),
            ..packet()
        };
        let mut free_at = vec![Instant::ZERO; paths.len()];
        let mut counts = vec![0; paths.len()];
        let (mut now, mut latest, mut inversions) = (Instant::ZERO, Instant::ZERO, 0);
        for _ in 0..2_000 {
            let Pick::One(index) = policy.pick(now, paths, &packet) else {
                panic!("all paths are ready");
            };
            let rate = paths[index].rate.expect("known");
            free_at[index] = free_at[index].max(now) + packet.len / rate;
            let arrival = free_at[index] + paths[index].extra_delay;
            inversions += usize::from(arrival < latest);
            latest = latest.max(arrival);
            counts[index] += 1;
            now += every;
        }
        (inversions, counts)
    }

    #[test]
    fn arrivals_are_in_order_on_the_paths_of_the_osia_paper() {
        for lines in [
            &[(3_000, 40), (1_000, 80)][..],
            &[(2_000, 40), (1_250, 80), (750, 60)],
            &[(1_250, 40), (1_000, 20), (1_000, 100), (750, 80)],
        ] {
            let paths = paths_of(lines);
            // All packets at once, at the sum of the rates (4 Mbit/s), and at three quarters of it.
            for every_us in [0, 2_000, 2_667] {
                let (inversions, counts) = inversions(&paths, Duration::from_micros(every_us));
                assert_eq!(inversions, 0, "{lines:?} {every_us}");
                if every_us < 2_667 {
                    for (count, (kbps, _)) in counts.iter().zip(lines) {
                        let expected = usize::try_from(kbps / 2).expect("small");
                        assert!(count.abs_diff(expected) < 40, "{counts:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn sparse_packets_all_take_the_quickest_path() {
        let paths = paths_of(&[(50_000, 30), (1_000, 10)]);
        let (_, counts) = inversions(&paths, Duration::from_millis(50));
        assert_eq!(counts, [0, 2_000]);
    }

    #[test]
    fn unknown_paths_share_evenly() {
        let paths = ready_paths(2);
        let mut policy = EarliestArrival::new();
        let mut next = || policy.pick(Instant::ZERO, &paths, &packet());
        let picks: Vec<Pick> = (0..4).map(|_| next()).collect();
        assert_eq!(
            picks,
            [Pick::One(0), Pick::One(1), Pick::One(0), Pick::One(1)]
        );
    }

    #[test]
    fn waits_for_the_quick_path_when_that_wins_but_not_with_a_backlog_nor_forever() {
        let mut paths = paths_of(&[(10_000, 10), (10_000, 50)]);
        paths[0].ready = false;
        let mut policy = EarliestArrival::new();
        let mut now = Instant::from_millis(1);
        assert_eq!(policy.pick(now, &paths, &packet()), Pick::Wait);
        let backlog = PacketInfo {
            backlog: Bytes::new(20_000),
            ..packet()
        };
        assert_eq!(policy.pick(now, &paths, &backlog), Pick::One(1));
        now += Duration::from_millis(5);
        assert_eq!(policy.pick(now, &paths, &packet()), Pick::One(1));
    }

    #[test]
    fn does_not_wait_where_the_ready_path_is_about_as_quick() {
        let mut paths = paths_of(&[(10_000, 10), (20_000, 10)]);
        paths[0].ready = false;
        let mut policy = EarliestArrival::new();
        assert_eq!(policy.pick(Instant::ZERO, &paths, &packet()), Pick::One(1));
    }

    #[test]
    fn a_rate_that_was_underestimated_does_not_shun_the_path_for_long() {
        let mut paths = paths_of(&[(10, 10), (1_000, 10)]);
        paths[1].usable = false;
        paths[1].ready = false;
        let mut policy = EarliestArrival::new();
        policy.pick(Instant::ZERO, &paths, &packet()); // a second of work at 10 kbit/s
        for path in &mut paths {
            path.rate = Some(Bitrate::from_mbps(10));
            (path.usable, path.ready) = (true, true);
        }
        let now = Instant::from_millis(10);
        let picks: Vec<Pick> = (0..4)
            .map(|_| policy.pick(now, &paths, &packet()))
            .collect();
        assert!(picks.contains(&Pick::One(0)), "{picks:?}");
    }

    #[test]
    fn what_a_lost_path_still_had_to_send_is_forgotten() {
        let mut paths = ready_paths(2);
        let mut policy = EarliestArrival::new();
        (paths[1].usable, paths[1].ready) = (false, false);
        let mut pick = |paths: &[PathView]| policy.pick(Instant::ZERO, paths, &packet());
        for _ in 0..100 {
            assert_eq!(pick(&paths), Pick::One(0));
        }
        paths.swap_with_slice(&mut ready_paths(2));
        (paths[0].usable, paths[0].ready) = (false, false);
        assert_eq!(pick(&paths), Pick::One(1));
        (paths[0].usable, paths[0].ready) = (true, true);
        assert_eq!(pick(&paths), Pick::One(0));
    }

    #[test]
    fn extreme_views_never_panic() {
        let mut rng = Rng::new(9);
        let mut policy = EarliestArrival::new();
        let mut paths = ready_paths(3);
        let mut now = Instant::ZERO;
        for _ in 0..20_000 {
            for path in &mut paths {
                path.rate = Some(Bitrate::from_bps(rng.next_u64() >> rng.below(64)));
                path.extra_delay = Duration::from_nanos(rng.next_u64() >> rng.below(64));
                path.ready = rng.chance(0.7);
            }
            now += Duration::from_nanos(rng.next_u64() >> (30 + rng.below(34)));
            let packet = PacketInfo {
                len: Bytes::new(rng.next_u64() >> rng.below(64)),
                flow: FlowId::of_hash(0),
                is_expendable: false,
                backlog: Bytes::new(rng.next_u64() >> rng.below(64)),
                own_backlog: Bytes::ZERO,
                to_last: Bytes::ZERO,
                round_trip: Duration::ZERO,
                has_behind: false,
                urgency: None,
            };
            policy.pick(now, &paths, &packet);
        }
    }
}
