//! Retransmissions, and the repair symbols that make some retransmissions unnecessary. A packet is retransmitted if it
//! is lost. It is *requeued*, that is, queued to be sent on another path, if it is in flight on a path that is silent
//! or has become slow.
//!
//! Retransmissions of lost packets, and of packets requeued from a slow path, are paid from one [`Budget`]; packets
//! requeued from a silent path are free. Packets that could not be sent on their path wait here as well. All packets
//! that wait here are sent before new packets, oldest first. [`super::egress`] creates and sends the repair symbols.

use core::{mem, time::Duration};
use std::collections::VecDeque;

use super::{budget::Budget, fec::Sending, path_set::PathSet, shared::Shared};
use crate::{
    counters::DropReason,
    ids::Seq,
    packet::Pool,
    path::{
        Path,
        sender::{Numbered, Origin},
    },
    profile::{Mechanism, Profile},
    time::Instant,
    wire::control::MissingRanges,
};

/// The packets to retransmit, and the budget for them.
#[derive(Debug)]
pub(super) struct Repair {
    packets: VecDeque<Numbered>,
    /// Index of the packet that is examined after the oldest, because the packets between them waited for their paths.
    examined: usize,
    pub(super) budget: Budget,
    pub(super) fec: Sending,
    /// Number of packets requeued from paths that were silent or had become slow.
    reinjected: u64,
    /// Number of repair symbols sent.
    pub(super) symbols_out: u64,
}

impl Repair {
    /// Returns the state without any packets.
    pub(super) fn new(profile: &Profile) -> Self {
        Self {
            packets: VecDeque::new(),
            examined: 0,
            budget: Budget::default(),
            fec: Sending::new(profile.has(Mechanism::FecFrames)),
            reinjected: 0,
            symbols_out: 0,
        }
    }

    /// Returns the number of packets that wait to be retransmitted.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Drops the oldest packets beyond `most`.
    pub(super) fn trim(&mut self, most: usize, shared: &mut Shared<'_>) {
        while self.packets.len() > most
            && let Some(oldest) = self.packets.pop_front()
        {
            shared.drop(oldest.packet, DropReason::Expired);
        }
    }

    /// Whether no packet waits to be retransmitted.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the number of packets requeued from paths that were silent or had become slow.
    pub(super) const fn reinjected(&self) -> u64 {
        self.reinjected
    }

    /// Frees the memory that a tunnel without packets does not need.
    pub(super) fn release_memory(&mut self) {
        self.packets.shrink_to_fit();
        self.fec.release_memory();
    }

    /// Removes and returns a packet for which `is_next` returns true: one of the [`MOST_EXAMINED`] oldest, or else one of
    /// as many others. If it is none of these, the following call examines the oldest again and the packets behind the
    /// others, so that packets which wait for their path do not keep later ones back.
    pub(super) fn take(&mut self, mut is_next: impl FnMut(&Numbered) -> bool) -> Option<Numbered> {
        let waiting = self.packets.len();
        let oldest = waiting.min(MOST_EXAMINED);
        if let Some(next) = self.packets.range(..oldest).position(&mut is_next) {
            return self.packets.remove(next);
        }
        let is_within = (oldest..waiting).contains(&self.examined);
        let from = if is_within { self.examined } else { oldest };
        let to = waiting.min(from + MOST_EXAMINED);
        let Some(next) = self.packets.range(from..to).position(is_next) else {
            self.examined = to;
            return None;
        };
        self.packets.remove(from + next)
    }

    /// Puts back a packet that could not be sent. It is sent first.
    pub(super) fn put_back(&mut self, numbered: Numbered) {
        self.packets.push_front(numbered);
    }

    /// Adds packets that have sequence numbers but no longer have a path. `base` is the number of the next new packet.
    pub(super) fn extend(&mut self, packets: impl IntoIterator<Item = Numbered>, base: Seq) {
        let before = self.packets.len();
        self.packets.extend(packets);
        if self.packets.len() > before {
            self.sort(base);
        }
    }

    /// Sorts the packets by age, because several paths may lose packets or become silent at once.
    fn sort(&mut self, base: Seq) {
        self.packets
            .make_contiguous()
            .sort_by_key(|numbered| numbered.global_seq.distance_from(base));
    }

    /// Requeues the packets that the other end has not reported as received on a silent path, so that they are sent on
    /// other paths. Returns their number.
    pub(super) fn take_back(&mut self, path: &mut Path, base: Seq) -> usize {
        let before = self.packets.len();
        let id = path.id();
        path.sender_mut().take_unreported(id, &mut self.packets);
        self.on_taken(before, base)
    }

    /// Requeues the packets in flight on a path that has become slow, so that they are sent on other paths as well, as
    /// far as the budget permits and unless `is_bound` says that no other path may carry them. Returns their number.
    /// Restarts the search for the path's rate, because the old estimate would persist for seconds and delay the path's
    /// flows.
    pub(super) fn take_overdue(
        &mut self,
        now: Instant,
        path: &mut Path,
        base: Seq,
        is_bound: impl Fn(&Numbered) -> bool,
    ) -> usize {
        let before = self.packets.len();
        let id = path.id();
        path.collapse(now);
        let may_take = |numbered: &Numbered| {
            !is_bound(numbered) && self.budget.try_spend(numbered.packet.len())
        };
        path.sender_mut()
            .take_overdue(id, &mut self.packets, may_take);
        self.on_taken(before, base)
    }

    fn on_taken(&mut self, before: usize, base: Seq) -> usize {
        let taken = self.packets.len() - before;
        self.reinjected += taken as u64;
        self.sort(base);
        taken
    }

    /// Moves requeued packets back to `path`, on which they were sent before, to wait for its reports again. A packet
    /// is moved if it still waits here, is not known as lost, and has a number on the path below `reported`, because it
    /// may have arrived.
    pub(super) fn give_back(&mut self, path: &mut Path, reported: u64, pool: &mut Pool) {
        if self.packets.is_empty() {
            return;
        }
        let id = path.id();
        let is_it =
            |origin: Origin| origin.path == id && !origin.is_lost && origin.counter < reported;
        for numbered in mem::take(&mut self.packets) {
            if !numbered.origin.is_some_and(is_it) {
                self.packets.push_back(numbered);
                continue;
            }
            self.budget.refund(&numbered);
            if let Some(numbered) = path.sender_mut().give_back(numbered) {
                pool.recycle(numbered.packet);
            }
        }
    }

    /// Schedules packets that the other end reports as missing on a path for retransmission before any new packet. This
    /// requires that their buffers are still stored and that the budget covers them. Returns their number.
    ///
    /// `left` is the number of further packets that the datagram may report. `base` is the number of the next new
    /// packet.
    pub(super) fn on_missing(
        &mut self,
        now: Instant,
        path: &mut Path,
        (ranges, left): (MissingRanges<'_>, &mut usize),
        (profile, base): (&Profile, Seq),
        shared: &mut Shared<'_>,
    ) -> usize {
        let before = self.packets.len();
        let id = path.id();
        let round_trip = path.rtt().min().unwrap_or(Duration::MAX);
        let floor_ppm = path.loss_floor_ppm();
        for (first, count) in ranges {
            for offset in path.sender().kept_of(first, count) {
                if *left == 0 {
                    break;
                }
                *left -= 1;
                // The loss of a datagram that need not arrive is not counted: a copy that probes for capacity, an ACK,
                // a repair symbol.
                let lost = path.sender_mut().take_lost(now, id, first.plus(offset));
                let Some((numbered, is_free)) = lost else {
                    continue;
                };
                // These losses count for repair symbols even on a path with a short RTT: a packet with a deadline may
                // be too late even if it is retransmitted at once, and without `repair` no packet is retransmitted.
                let mark = numbered.packet.mark();
                let has_deadline = mark.is_some_and(|mark| mark.due.is_some());
                let round_trip = if has_deadline || !profile.repair {
                    Duration::MAX
                } else {
                    round_trip
                };
                // Losses on a silent path are not counted, because they say nothing about the path's loss at other
                // times.
                if !is_free {
                    path.on_nacked(now);
                    self.fec.on_lost(id, round_trip, floor_ppm);
                }
                self.fec.on_repair(now);
                self.fec.on_missing(numbered.global_seq);
                if !profile.repair || self.fec.has_recovered(numbered.global_seq) {
                    shared.pool.recycle(numbered.packet);
                } else if is_free || self.budget.try_spend(numbered.packet.len()) {
                    self.packets.push_back(numbered);
                } else {
                    shared.drop(numbered.packet, DropReason::Expired);
                }
            }
        }
        let repaired = self.packets.len() - before;
        if repaired > 0 {
            self.sort(base);
        }
        repaired
    }

    /// Resets the state. Returns the packets that waited.
    pub(super) fn reset(&mut self, profile: &Profile) -> impl Iterator<Item = Numbered> + use<> {
        self.fec = Sending::new(profile.has(Mechanism::FecFrames));
        mem::take(&mut self.packets).into_iter()
    }
}

/// Returns the time at which the packets in flight on a path that wakes up are to be sent on other paths, because these
/// have answered ([`PathSet::asleep_at`]). Returns `None` if there are no such packets.
pub(super) fn asleep_at(path: &Path, paths: &PathSet) -> Option<Instant> {
    path.sender().oldest_under_way()?;
    paths.asleep_at(path)
}

/// Returns the time at which the packets in flight on a path are so late that it is worth sending them on another path
/// as well. Returns `None` if no other path may carry data, or if the path wakes up, for which [`asleep_at`] counts.
pub(super) fn overdue_at(path: &Path, paths: &PathSet, profile: &Profile) -> Option<Instant> {
    let overdue_at = path.overdue_at()?;
    let is_wanted = profile.repair && profile.has(Mechanism::Overdue);
    let mut others = paths.carrying().filter(|other| other.id() != path.id());
    let is_usable = path.health().is_usable() && path.health().waking().is_none();
    (is_wanted && is_usable && others.next().is_some()).then_some(overdue_at)
}

/// Maximum number of the oldest packets, and of the others, examined to find the next one to retransmit. Thousands of packets may wait for a path to
/// which they are restricted.
const MOST_EXAMINED: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{flows::FlowId, packet::PacketBuf};

    fn numbered(number: u32) -> Numbered {
        Numbered {
            global_seq: Seq(number),
            flow_step: 0,
            flow: FlowId::of_hash(1),
            is_expendable: false,
            round_trip: Duration::ZERO,
            origin: None,
            packet: PacketBuf::from(vec![0; 20]),
        }
    }

    #[test]
    fn few_packets_are_examined_for_each_retransmission_and_none_is_passed_over_for_ever() {
        let mut repair = Repair::new(&Profile::default());
        let base = Seq(1_000);
        repair.extend((0..200).map(numbered), base);
        let mut examined = 0;
        let mut take = |repair: &mut Repair, first: u32| {
            let before = examined;
            let taken = repair.take(|next| {
                examined += 1;
                next.global_seq.0 >= first
            });
            assert!(examined - before <= 2 * MOST_EXAMINED);
            taken.map(|numbered| numbered.global_seq.0)
        };
        assert_eq!(take(&mut repair, 30), Some(30));
        let late: Vec<u32> = (0..5).filter_map(|_| take(&mut repair, 150)).collect();
        assert_eq!(late, [150, 151], "after three calls without a packet");
        assert_eq!(repair.len(), 197);
        assert_eq!(
            take(&mut repair, 0),
            Some(0),
            "the oldest packets are always examined"
        );
    }

    #[test]
    fn packets_that_wait_for_their_path_do_not_keep_later_losses_back() {
        let mut repair = Repair::new(&Profile::default());
        let base = Seq(10_000);
        let waiting = 2_000;
        repair.extend((0..waiting).map(numbered), base);
        let mut sent = 0;
        for loss in 0..40 {
            repair.extend([numbered(5_000 + loss)], base);
            for _ in 0..10 {
                sent += u32::from(repair.take(|next| next.global_seq.0 >= waiting).is_some());
            }
        }
        assert!(
            sent >= 30,
            "{sent} of 40 within ten calls after each loss, or with the next"
        );
    }
}
