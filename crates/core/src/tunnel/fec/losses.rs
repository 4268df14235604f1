//! Estimates the share of the packets being sent now that will be lost.
//!
//! *Problem.* Some of the recent packets may have been sent on a path that is no longer used. Suppose a flow has tried
//! a path with a longer delay, lost packets there and returned. If the overall loss determined the rate of symbols,
//! symbols would be sent for this flow until thousands of further packets have reduced that loss.
//!
//! *Algorithm.* Sent and lost packets are counted by path. The loss of each path is weighted with the path's share of
//! the latest packets ([`LATE`]). While the shares are constant, the result is the overall loss. After a return to
//! loss-free paths, symbols end about twice as soon as with the overall loss. This rule is pleach's own.
//!
//! Only packets whose loss matters are counted. A new association starts with assumed losses: [`ASSUMED`].

use core::time::Duration;

use crate::{ids::PathId, time::Instant};

/// The counts of one association.
#[derive(Debug, Default)]
pub(super) struct Losses {
    paths: [OfPath; PathId::MAX],
    /// Number of packets on all paths, halved at [`MEMORY`] (`sent`) and at [`LATE`] (`late`).
    sent: u32,
    late: u32,
    /// Time at which the last packet worth a symbol was sent (`worth_at`), and total time of sending such packets
    /// without pauses (`busy`).
    worth_at: Option<Instant>,
    busy: Duration,
    /// Whether the assumed losses no longer count, because enough packets were sent or packets were sent for long
    /// enough.
    is_settled: bool,
}

/// Counts of one path. Lost packets are counted in [`PARTS`], so that halving does not round a few losses to zero.
#[derive(Clone, Copy, Debug, Default)]
struct OfPath {
    sent: u32,
    lost: u32,
    late: u32,
}

impl Losses {
    /// Records that a packet worth a symbol is sent. `repaired_after` is the time that a retransmission of it takes.
    pub(super) fn on_worth(&mut self, now: Instant, repaired_after: Duration) {
        if self.is_settled {
            return;
        }
        let gap = self.worth_at.replace(now).map(|at| now.since(at));
        self.busy += gap.filter(|gap| *gap < LONGEST_GAP).unwrap_or_default();
        self.is_settled = self.busy >= (repaired_after * SETTLED_ROUNDS).max(SETTLED_AFTER);
    }

    /// Counts a packet sent on `id`.
    pub(super) fn on_sent(&mut self, id: PathId) {
        let path = &mut self.paths[id.index()];
        path.sent += 1;
        path.late += 1;
        self.sent += 1;
        self.late += 1;
        self.is_settled |= self.sent >= SETTLED;
        if self.sent >= MEMORY {
            self.sent = 0;
            for path in &mut self.paths {
                path.sent /= 2;
                path.lost /= 2;
                self.sent += path.sent;
            }
        }
        if self.late >= LATE {
            self.late = 0;
            for path in &mut self.paths {
                path.late /= 2;
                self.late += path.late;
            }
        }
    }

    /// Counts the loss of a packet on `id`.
    pub(super) fn on_lost(&mut self, id: PathId) {
        let lost = &mut self.paths[id.index()].lost;
        *lost = (*lost + PARTS).min(MEMORY * PARTS);
    }

    /// Resets the counts of the path `id`.
    pub(super) fn forget(&mut self, id: PathId) {
        let path = core::mem::take(&mut self.paths[id.index()]);
        self.sent -= path.sent;
        self.late -= path.late;
    }

    /// Whether the assumed losses no longer count.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Returns the expected loss of the packets being sent, in parts per million.
    pub(super) fn ppm(&self) -> u64 {
        let assumed = u64::from(!self.is_settled) * u64::from(ASSUMED);
        let assumed_ppm = assumed * MILLION / u64::from(self.sent.max(LEAST_SENT));
        let late = u64::from(self.late.max(1));
        let lossy = self.paths.iter().filter(|path| path.lost > 0);
        let of_path = |path: &OfPath| {
            let weight = u64::from(path.late);
            let least_sent = u64::from(LEAST_SENT) * weight / late;
            let sent = u64::from(path.sent).max(least_sent).max(1);
            u64::from(path.lost) * MILLION / u64::from(PARTS) / sent * weight / late
        };
        assumed_ppm + lossy.map(of_path).sum::<u64>()
    }
}

const MILLION: u64 = 1_000_000;
/// Number of packets at which the counts are halved.
const MEMORY: u32 = 4_096;
/// Number of packets at which the counts for the share of each path are halved.
const LATE: u32 = 2_048;
/// Number of units in which one lost packet is counted.
const PARTS: u32 = 16;
/// Minimum number of packets by which losses are divided to compute the share of lost packets.
const LEAST_SENT: u32 = 512;
/// Number of losses assumed for a new association. They count until [`SETTLED`] packets were sent, or until packets
/// were sent without pauses for [`SETTLED_AFTER`] and for [`SETTLED_ROUNDS`] retransmission times. Slow start is over
/// by then. On a slow link it would take seconds to send [`SETTLED`] packets.
const ASSUMED: u32 = 12;
const SETTLED: u32 = 1_024;
const SETTLED_AFTER: Duration = Duration::from_secs(1);
const SETTLED_ROUNDS: u32 = 8;
/// Minimum time between two packets that counts as a pause. For mean intervals, longer times are reduced to this value.
pub(super) const LONGEST_GAP: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: PathId = PathId(0);
    const FAR: PathId = PathId(3);

    fn send(losses: &mut Losses, id: PathId, pkts: u32, lost: u32) {
        (0..pkts).for_each(|_| losses.on_sent(id));
        (0..lost).for_each(|_| losses.on_lost(id));
    }

    #[test]
    fn a_new_association_is_taken_to_lose_until_enough_is_sent() {
        let mut losses = Losses::default();
        assert_eq!(losses.ppm(), 23_437);
        send(&mut losses, NEAR, SETTLED - 1, 0);
        assert_eq!(losses.ppm(), 11_730);
        send(&mut losses, NEAR, 1, 0);
        assert_eq!(losses.ppm(), 0);
    }

    #[test]
    fn and_until_it_has_sent_for_long_enough() {
        for (repaired_after_ms, ms) in [(20, 1_000), (125, 1_000), (250, 2_000)] {
            let mut losses = Losses::default();
            let repaired_after = Duration::from_millis(repaired_after_ms);
            let mut worth_at = |ms| losses.on_worth(Instant::from_millis(ms), repaired_after);
            // One packet every 10 ms, and then a pause.
            (0..ms / 10).for_each(|number| worth_at(number * 10));
            worth_at(ms * 2);
            assert!(losses.ppm() > 0);
            losses.on_worth(Instant::from_millis(ms * 2 + 10), repaired_after);
            assert_eq!(losses.ppm(), 0);
            losses.on_lost(NEAR);
            send(&mut losses, NEAR, 1, 0);
            assert!(losses.ppm() > 0, "what is known counts");
        }
    }

    #[test]
    fn all_losses_count_among_all_packets_while_paths_carry_what_they_have_carried() {
        let mut losses = Losses::default();
        for _ in 0..1_000 {
            send(&mut losses, NEAR, 3, 0);
            send(&mut losses, FAR, 1, 0);
        }
        (0..40).for_each(|_| losses.on_lost(FAR));
        assert!((9_500..10_500).contains(&losses.ppm()), "{}", losses.ppm());
        (0..40).for_each(|_| losses.on_lost(NEAR));
        assert!((19_000..21_000).contains(&losses.ppm()), "{}", losses.ppm());
    }

    #[test]
    fn few_losses_count_alike_over_however_many_paths() {
        for paths in [1, 2, 4, 8] {
            let mut losses = Losses::default();
            let mut sum = 0;
            for round in 0..16_000_u32 {
                let id = PathId(u8::try_from(round % paths).expect("few"));
                losses.on_sent(id);
                // Each path loses one packet in 400, and the losses of different paths do not coincide.
                if (round / paths + round % paths * 97) % 400 == 0 {
                    losses.on_lost(id);
                }
                sum += losses.ppm() * u64::from(round >= 4_000);
            }
            let mean = sum / 12_000;
            assert!((2_200..2_700).contains(&mean), "{paths} paths: {mean}");
        }
    }

    #[test]
    fn losses_of_a_path_that_is_left_count_no_more() {
        let mut losses = Losses::default();
        send(&mut losses, FAR, 3_000, 90);
        assert_eq!(losses.ppm(), 30_000);
        send(&mut losses, NEAR, 1_000, 0);
        assert!(losses.ppm() < 20_000, "{}", losses.ppm());
        send(&mut losses, NEAR, 3_900, 0);
        assert!(losses.ppm() < 1_500, "{}", losses.ppm());
        // If the flow returns to the lossy path, that path's losses count again.
        send(&mut losses, FAR, 1_000, 30);
        assert!((10_000..40_000).contains(&losses.ppm()), "{}", losses.ppm());
        losses.forget(FAR);
        assert_eq!(losses.ppm(), 0);
        send(&mut losses, FAR, 10_000, 0);
        assert_eq!(losses.ppm(), 0);
    }

    #[test]
    fn few_packets_say_little() {
        let mut losses = Losses::default();
        send(&mut losses, NEAR, 4_000, 0);
        send(&mut losses, FAR, 4, 2);
        assert!(losses.ppm() < 4_000, "{}", losses.ppm());
    }

    #[test]
    fn any_counts_stay_in_bounds() {
        let mut losses = Losses::default();
        (0..100_000).for_each(|_| losses.on_lost(NEAR));
        assert_eq!(losses.ppm(), 23_437);
        send(&mut losses, NEAR, 1, 0);
        assert!(losses.ppm() <= 9_000_000, "{}", losses.ppm());
        send(&mut losses, FAR, 100_000, 0);
        assert_eq!(losses.ppm(), 0);
    }
}
