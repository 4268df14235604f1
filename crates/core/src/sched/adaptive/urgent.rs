//! Packets with a deadline: delivered in time, not as early as possible.
//!
//! *Algorithm.* The candidates are the paths that deliver the packet in time even in a bad case (twice the jitter,
//! plus a retransmission if the path loses packets). The packet takes the candidate on which it arrives earliest. If
//! the quickest paths are not ready, the packet waits for them as long as its backlog does not use up a quarter of
//! the time left. After that it takes a later path: a packet that is in time gains nothing by being earlier, and the
//! next packet needs the quick path. If no ready path is certain to deliver the packet in time, the packet takes a path
//! that probably does, unless a path that is not ready yet is certain to deliver it in time.
//!
//! A second path gets a copy if the packet's class asks for one ([`crate::class::Duplicate`]) and the copy would be in
//! time.
//!
//! `docs/algorithms.md` section 3.10. Source of the idea that later packets take the slower paths: PDC (2013).

use core::time::Duration;

use super::{Adaptive, MAX_WAIT, paths::arrival};
use crate::{
    class::Duplicate,
    ids::PathId,
    sched::{PacketInfo, PathView, Pick, Urgency, slot},
    time::Instant,
};

/// A ready path that may take the packet.
#[derive(Clone, Copy)]
struct Candidate {
    index: usize,
    /// The probable arrival of the packet.
    probably: Instant,
    /// The arrival of the packet in a bad case.
    surely: Instant,
}

impl Adaptive {
    /// Chooses the path of a packet with a deadline. The predictions in `self.lines` must be up to date.
    pub(super) fn pick_urgent(
        &mut self,
        now: Instant,
        paths: &[PathView],
        packet: &PacketInfo,
        urgency: Urgency,
    ) -> Pick {
        let limit = now + urgency.left;
        let usable = |path: &&PathView| path.usable;
        let quickest = paths.iter().filter(usable);
        let quickest = quickest
            .min_by_key(|path| path.extra_delay)
            .map(|path| path.id);
        let mut best: Option<Candidate> = None;
        let mut awaited: Option<Instant> = None;
        let mut has_room = false;
        for (index, path) in paths.iter().enumerate() {
            if !path.usable || !is_open(path, quickest) {
                continue;
            }
            let line = &self.lines[slot(path)];
            let risk = penalty(path) + path.jitter * 2;
            if path.ready {
                let probably = arrival(line, now, path, wait(path), packet.len);
                let candidate = Candidate {
                    index,
                    probably,
                    surely: probably + risk,
                };
                if best.is_none_or(|best| candidate.rank(limit) < best.rank(limit)) {
                    best = Some(candidate);
                }
                continue;
            }
            let drained = line.drained_at(now, packet.len).max(now + path.lateness);
            let surely = drained + path.extra_delay + risk;
            if surely > limit {
                continue;
            }
            // The wait must leave time for the rest of the backlog.
            let patience = MAX_WAIT.max(urgency.left / 4);
            if line.drained_at(now, packet.len + packet.backlog) <= now + patience {
                awaited = Some(awaited.map_or(surely, |earliest: Instant| earliest.min(surely)));
            }
            has_room |= line.drained_at(now, packet.len + packet.backlog) <= now + urgency.left / 2;
        }
        let Some(best) = best else {
            return Pick::Wait;
        };
        let is_better_awaited = awaited.is_some_and(|awaited| awaited < best.surely);
        // If the packet would probably be late on the best ready path, nothing is lost by waiting. If it would be late
        // there only in a bad case, it waits if another path can send it and the backlog within half of the time left.
        let may_be_late = best.surely > limit && has_room;
        if is_better_awaited || best.probably > limit || may_be_late {
            return Pick::Wait;
        }
        self.lines[slot(&paths[best.index])].on_sent(now, packet.len);
        match self.copy_of(now, paths, packet, urgency, best.index) {
            Some(second) => Pick::Shadowed {
                index: best.index,
                copies: 1 << second,
            },
            None => Pick::One(best.index),
        }
    }

    /// Returns the path for a copy of a packet that is sent on `paths[index]`, if a copy is to be sent.
    fn copy_of(
        &mut self,
        now: Instant,
        paths: &[PathView],
        packet: &PacketInfo,
        urgency: Urgency,
        index: usize,
    ) -> Option<usize> {
        let first = &paths[index];
        let repaired = first.smoothed_rtt.unwrap_or_default() * 3 / 2 + REPORTED_WITHIN;
        let is_wanted = match urgency.duplicate {
            Duplicate::Never => false,
            Duplicate::Always => true,
            Duplicate::Auto => {
                let is_lossy = first.loss_ppm > LOSSY_PPM && repaired > urgency.left;
                urgency.is_small || first.is_silent || is_lossy
            }
        };
        if !is_wanted {
            return None;
        }
        let limit = now + urgency.left;
        let others = paths.iter().enumerate().take(16);
        let others = others.filter(|(other, path)| *other != index && path.ready);
        let when = |path: &PathView| {
            let line = &self.lines[slot(path)];
            arrival(line, now, path, wait(path), packet.len)
        };
        let others = others.map(|(other, path)| (when(path), other));
        let (_, second) = others.filter(|(at, _)| *at <= limit).min()?;
        self.lines[slot(&paths[second])].on_sent(now, packet.len);
        Some(second)
    }
}

impl Candidate {
    /// Sort key; a lower one is better: certainly in time, probably in time, earlier.
    fn rank(&self, limit: Instant) -> (bool, bool, Instant) {
        (self.surely > limit, self.probably > limit, self.surely)
    }
}

/// How long a packet sent now waits in the path itself: the larger of the standing queue and the excess of the latest
/// delay. Packets without a deadline count only the standing queue, which is too low if a queue was mistaken for the
/// path's own delay. For a packet with a deadline, being late is worse than taking another path.
fn wait(path: &PathView) -> Duration {
    path.queue_delay.max(path.lateness)
}

/// Whether a path may carry packets with a deadline. During the search for its capacity a path may carry them at the
/// rate reached so far, while it has no queue.
fn is_open(path: &PathView, quickest: Option<PathId>) -> bool {
    // Jitter can look like a queue.
    let short = SHORT_QUEUE.max(path.jitter * 3);
    let is_shown = path.rate.is_some() && path.queue_delay < short;
    !path.is_searching || is_shown || quickest == Some(path.id)
}

/// The cost of a path's losses, as a delay. Each lost packet delays its flow by a retransmission. From a loss of one
/// packet in thirty on, the cost is a full retransmission delay.
fn penalty(path: &PathView) -> Duration {
    let repair = path.smoothed_rtt.unwrap_or_default() + REPORTED_WITHIN;
    repair * path.loss_ppm.min(33_333) / 33_333
}

/// Maximum queue with which a path may carry packets with a deadline during the search for its capacity. If three times
/// the path's jitter is more, that limit applies.
const SHORT_QUEUE: Duration = Duration::from_millis(3);
/// Loss in parts per million above which copies of a path's packets are worth their cost.
const LOSSY_PPM: u32 = 3_000;
/// Time within which a loss is reported.
const REPORTED_WITHIN: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::{super::tests::paths_of, *};
    use crate::{
        sched::{Scheduler as _, tests::packet},
        units::Bytes,
    };

    /// A packet with `left_ms` until its deadline and `backlog` bytes behind it.
    fn urgent(left_ms: u64, backlog: u64, duplicate: Duplicate) -> PacketInfo {
        PacketInfo {
            backlog: Bytes::new(backlog),
            urgency: Some(Urgency {
                left: Duration::from_millis(left_ms),
                duplicate,
                is_small: false,
            }),
            ..packet()
        }
    }

    fn pick(paths: &[PathView], packet: &PacketInfo) -> Pick {
        Adaptive::new().pick(Instant::from_millis(1), paths, packet)
    }

    #[test]
    fn what_waits_little_waits_for_the_quick_path_and_the_rest_takes_the_late_one() {
        let mut paths = paths_of(&[(6, 0), (4, 130)]);
        paths[0].ready = false;
        assert_eq!(
            pick(&paths, &urgent(180, 5_000, Duplicate::Never)),
            Pick::Wait
        );
        assert_eq!(
            pick(&paths, &urgent(180, 60_000, Duplicate::Never)),
            Pick::One(1)
        );
    }

    #[test]
    fn a_path_that_is_too_late_is_waited_past() {
        let mut paths = paths_of(&[(6, 0), (4, 250)]);
        paths[0].ready = false;
        assert_eq!(
            pick(&paths, &urgent(180, 60_000, Duplicate::Never)),
            Pick::Wait
        );
    }

    #[test]
    fn a_path_that_has_become_longer_is_late() {
        let mut paths = paths_of(&[(6, 0), (4, 130)]);
        paths[0].ready = false;
        paths[1].lateness = Duration::from_millis(120);
        assert_eq!(
            pick(&paths, &urgent(180, 60_000, Duplicate::Never)),
            Pick::Wait
        );
    }

    #[test]
    fn jitter_counts_as_delay() {
        let mut paths = paths_of(&[(20, 0), (20, 10)]);
        paths[0].jitter = Duration::from_millis(60);
        assert_eq!(
            pick(&paths, &urgent(100, 0, Duplicate::Never)),
            Pick::One(1)
        );
    }

    #[test]
    fn copies_go_where_they_are_in_time() {
        let twice = |second: u32| Pick::Shadowed {
            index: 0,
            copies: 1_u16 << second,
        };
        let paths = paths_of(&[(20, 0), (20, 250), (20, 40)]);
        assert_eq!(pick(&paths, &urgent(180, 0, Duplicate::Always)), twice(2));
        assert_eq!(
            pick(&paths[..2], &urgent(180, 0, Duplicate::Always)),
            Pick::One(0)
        );
        assert_eq!(pick(&paths, &urgent(180, 0, Duplicate::Auto)), Pick::One(0));
    }

    #[test]
    fn a_silent_path_or_one_that_cannot_repair_in_time_is_doubled() {
        let twice = Pick::Shadowed {
            index: 0,
            copies: 2,
        };
        let mut paths = paths_of(&[(20, 0), (20, 30)]);
        paths[0].is_silent = true;
        assert_eq!(pick(&paths, &urgent(180, 0, Duplicate::Auto)), twice);
        paths[0].is_silent = false;
        paths[0].loss_ppm = 10_000;
        assert_eq!(pick(&paths, &urgent(180, 0, Duplicate::Auto)), Pick::One(0));
        paths[0].smoothed_rtt = Some(Duration::from_millis(25));
        paths[0].loss_ppm = 4_000;
        assert_eq!(pick(&paths, &urgent(40, 0, Duplicate::Auto)), twice);
    }

    #[test]
    fn a_path_that_is_searched_carries_packets_while_it_has_no_queue_and_jitter_is_none() {
        for (queue_ms, jitter_ms, expected) in
            [(2, 0, true), (5, 0, false), (5, 2, true), (7, 2, false)]
        {
            let mut paths = paths_of(&[(60, 0), (60, 0)]);
            paths[1].is_searching = true;
            paths[1].queue_delay = Duration::from_millis(queue_ms);
            paths[1].jitter = Duration::from_millis(jitter_ms);
            assert_eq!(is_open(&paths[1], Some(paths[0].id)), expected);
        }
    }
}
