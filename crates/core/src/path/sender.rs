//! The sending side of one path: bytes in flight, and the packets themselves. A packet is stored until the other end
//! has reported it as received or missing, so that it can be retransmitted if it is lost, and *reinjected*, that is,
//! sent again on another path, if this path falls silent or becomes slow.
//!
//! Bounds: at most [`MAX_OUTSTANDING`] datagrams are stored; older datagrams are forgotten and cannot be retransmitted.

use core::time::Duration;
use std::collections::VecDeque;

use crate::{
    flows::FlowId,
    ids::{PathId, Seq},
    packet::{PacketBuf, Pool},
    time::Instant,
    units::Bytes,
};

/// A packet with its global sequence number, which is assigned once and stays the same in retransmissions.
#[derive(Debug)]
pub struct Numbered {
    /// The global sequence number.
    pub global_seq: Seq,
    /// Distance from the global sequence number of the flow's previous packet; 0 if the flow has no previous packet.
    pub flow_step: u16,
    /// The flow.
    pub flow: FlowId,
    /// Whether the packet is expendable: its loss does no harm, and it is not retransmitted.
    pub is_expendable: bool,
    /// The RTT to which the flow's round trips are extended by delaying ACKs; zero if its ACKs are not delayed.
    pub round_trip: Duration,
    /// The earlier transmission, if the packet was lost or is reinjected.
    pub origin: Option<Origin>,
    /// The packet.
    pub packet: PacketBuf,
}

/// An earlier transmission of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The path of that transmission.
    pub path: PathId,
    /// The datagram's number on that path.
    pub counter: u64,
    /// When the packet was first sent on any path.
    pub sent_at: Instant,
    /// Whether that transmission is known to be lost.
    pub is_lost: bool,
    /// Whether the retransmission is already charged to the repair budget.
    pub is_paid: bool,
}

/// The sending side of one path.
#[derive(Debug, Default)]
pub struct Sender {
    /// Number of the next data datagram; the wire carries its low 32 bits.
    next_data: u64,
    next_control: u64,
    /// Global sequence number of the last data datagram.
    last_global: Option<Seq>,
    /// One more than the highest number reported as received.
    reported: u64,
    sent_bytes: u64,
    /// Number of NACKed datagrams, and the arrival time of the last NACK.
    lost_pkts: u64,
    lost_at: Option<Instant>,
    /// Number of datagrams *written off*: their packets were reinjected because the path was silent. They are excluded
    /// from the path's loss.
    written_off: u64,
    /// One more than the highest number written off.
    written_off_before: u64,
    /// One more than the highest number whose packet was reinjected because the path had become slow.
    overdue_before: u64,
    in_flight: Bytes,
    /// Data datagrams from the first unsettled one on, oldest first; the last is `next_data - 1`.
    outstanding: VecDeque<Outstanding>,
}

#[derive(Debug)]
struct Outstanding {
    /// Length in bytes; 0 once the datagram is no longer in flight.
    len: u32,
    sent_at: Instant,
    /// Whether the datagram was NACKed or written off.
    is_told: bool,
    /// The packet; `None` if it was taken for a retransmission, or if a copy was sent on another path.
    numbered: Option<Numbered>,
}

/// Why a packet is retransmitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Lost,
    Silent,
    Overdue,
}

impl Outstanding {
    /// Removes and returns the packet, for a retransmission. `path` and `counter`: the path and the datagram number of
    /// the earlier transmission.
    fn take(&mut self, path: PathId, counter: u64, why: Why) -> Option<Numbered> {
        let mut numbered = self.numbered.take()?;
        numbered.origin = Some(Origin {
            path,
            counter,
            sent_at: numbered
                .origin
                .map_or(self.sent_at, |origin| origin.sent_at),
            is_lost: why == Why::Lost,
            is_paid: why == Why::Overdue,
        });
        Some(numbered)
    }
}

impl Sender {
    /// Frees the memory of packets, if none is stored.
    pub(crate) fn release_memory(&mut self) {
        self.outstanding.shrink_to_fit();
    }

    /// Number of the next data datagram.
    #[must_use]
    pub fn next_data(&self) -> u64 {
        self.next_data
    }

    /// Number of data datagrams above the highest reported number.
    #[must_use]
    pub fn unreported_pkts(&self) -> u64 {
        self.next_data.saturating_sub(self.reported)
    }

    /// Number and global sequence number of the last data datagram.
    #[must_use]
    pub fn last(&self) -> Option<(u64, Seq)> {
        Some((self.next_data.checked_sub(1)?, self.last_global?))
    }

    /// Returns the counter of the next control datagram.
    #[must_use]
    pub const fn next_control(&self) -> u64 {
        self.next_control
    }

    /// Takes a number for a control datagram.
    pub fn take_control(&mut self) -> u64 {
        let number = self.next_control;
        self.next_control += 1;
        number
    }

    /// Distance of `global_seq` from the global sequence number of the last data datagram; 0 if it does not fit the
    /// wire field, or if there is no last datagram.
    #[must_use]
    pub fn path_step(&self, global_seq: Seq) -> i16 {
        let step = self.last_global.map(|last| global_seq.distance_from(last));
        step.and_then(|step| i16::try_from(step).ok()).unwrap_or(0)
    }

    /// Records a data datagram of `len` bytes sent as [`Self::next_data`]. `global_seq` is `None` if it carried no
    /// packet.
    pub fn on_sent(
        &mut self,
        now: Instant,
        len: usize,
        global_seq: Option<Seq>,
        numbered: Option<Numbered>,
        pool: &mut Pool,
    ) {
        if self.outstanding.len() >= MAX_OUTSTANDING {
            self.pop_oldest(pool);
        }
        self.next_data += 1;
        self.last_global = global_seq.or(self.last_global);
        self.sent_bytes += len as u64;
        self.in_flight += Bytes::of_len(len);
        self.outstanding.push_back(Outstanding {
            len: u32::try_from(len).unwrap_or(u32::MAX),
            sent_at: now,
            is_told: false,
            numbered,
        });
    }

    /// Processes a report of the highest number received: datagrams up to this number are no longer in flight.
    /// Forgets the datagrams before `settled`, or all datagrams up to `highest` if `settled` is `None`. Returns
    /// whether the report raised the highest number; a report of a number that was never sent is ignored.
    pub fn on_reported(&mut self, highest: Seq, settled: Option<Seq>, pool: &mut Pool) -> bool {
        let Some(reported) = self.counter_of(highest).map(|counter| counter + 1) else {
            return false;
        };
        if reported <= self.reported {
            return false;
        }
        let from = self.reported;
        self.reported = reported;
        for at in self.place(from)..self.place(reported) {
            self.in_flight =
                self.in_flight - Bytes::new(core::mem::take(&mut self.outstanding[at].len).into());
        }
        let unsettled = settled.map_or(0, |settled| highest.plus(1).distance_from(settled).max(0));
        let settled = reported.saturating_sub(u64::from(unsettled.unsigned_abs()));
        for _ in 0..self.place(settled) {
            self.pop_oldest(pool);
        }
        true
    }

    /// Counts the datagram `seq` as lost. Returns its packet if the packet is still stored and not expendable, and
    /// whether its retransmission is free of charge. It is free if the packet had already been taken from this
    /// transmission because the path was silent, and was then [given back](Self::give_back).
    pub fn take_lost(&mut self, now: Instant, path: PathId, seq: Seq) -> Option<(Numbered, bool)> {
        let counter = self.counter_of(seq)?;
        let at = counter.checked_sub(self.first_kept())?;
        let outstanding = self.outstanding.get_mut(usize::try_from(at).ok()?)?;
        if !core::mem::replace(&mut outstanding.is_told, true) {
            self.lost_pkts += 1;
            self.lost_at = Some(now);
        }
        let is_expendable = |numbered: &Numbered| numbered.is_expendable;
        if outstanding.numbered.as_ref().is_some_and(is_expendable) {
            return None;
        }
        let is_silent =
            |origin: Origin| (origin.path, origin.counter) == (path, counter) && !origin.is_paid;
        let origin = outstanding
            .numbered
            .as_ref()
            .and_then(|numbered| numbered.origin);
        let is_free = origin.is_some_and(is_silent);
        Some((outstanding.take(path, counter, Why::Lost)?, is_free))
    }

    /// Returns which of the `count` numbers from `first` on are stored, as a range relative to `first`. Numbers
    /// before the range are forgotten, numbers after it were never sent.
    #[must_use]
    pub fn kept_of(&self, first: Seq, count: u16) -> core::ops::Range<u32> {
        let offset = |counter| {
            let offset = Seq::of_counter(counter).distance_from(first);
            offset.clamp(0, count.into()).unsigned_abs()
        };
        offset(self.first_kept())..offset(self.next_data)
    }

    /// Number of datagrams stored, with or without their packets.
    #[must_use]
    pub fn kept_pkts(&self) -> usize {
        self.outstanding.len()
    }

    /// Forgets the oldest datagrams until at most `most` are stored.
    pub fn trim(&mut self, most: usize, pool: &mut Pool) {
        while self.outstanding.len() > most {
            self.pop_oldest(pool);
        }
    }

    /// Returns a taken packet to the entry of its datagram. Returns the packet to the caller if that entry was
    /// forgotten.
    pub fn give_back(&mut self, numbered: Numbered) -> Option<Numbered> {
        let place = numbered
            .origin
            .and_then(|origin| origin.counter.checked_sub(self.first_kept()))
            .and_then(|at| self.outstanding.get_mut(usize::try_from(at).ok()?));
        match place {
            Some(outstanding) => outstanding.numbered.replace(numbered),
            None => Some(numbered),
        }
    }

    /// The full number whose low 32 bits are `seq`; `None` if it was never sent.
    fn counter_of(&self, seq: Seq) -> Option<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the wire carries the low 32 bits"
        )]
        let back = Seq(self.next_data as u32).distance_from(seq);
        let back = u64::try_from(back).ok().filter(|back| *back > 0)?;
        self.next_data.checked_sub(back)
    }

    /// Number of the oldest datagram stored, or the next number to be sent if no datagram is stored.
    fn first_kept(&self) -> u64 {
        self.next_data - self.outstanding.len() as u64
    }

    /// Index of the datagram `counter` in `outstanding`, limited to the valid range.
    fn place(&self, counter: u64) -> usize {
        let at = counter.saturating_sub(self.first_kept());
        usize::try_from(at).map_or(self.outstanding.len(), |at| at.min(self.outstanding.len()))
    }

    /// The packet with this global sequence number, if it is stored and no report covers its datagram or a later one
    /// of this path. O(packets in flight).
    #[must_use]
    pub fn unreported(&self, global_seq: Seq) -> Option<&Numbered> {
        let unreported = self.outstanding.range(self.place(self.reported)..);
        let mut kept = unreported.filter_map(|outstanding| outstanding.numbered.as_ref());
        kept.find(|numbered| numbered.global_seq == global_seq)
    }

    /// Number of data datagrams up to the highest reported number.
    #[must_use]
    pub fn reported(&self) -> u64 {
        self.reported
    }

    /// Moves every unreported packet to `taken`, oldest first, and resets the bytes in flight. Called when the path
    /// falls silent; the packets are then reinjected.
    ///
    /// `path`: id of this path, recorded in each packet's [`Origin`].
    pub fn take_unreported(&mut self, path: PathId, taken: &mut VecDeque<Numbered>) {
        let first = self.first_kept();
        let from = self.place(self.reported);
        for (counter, outstanding) in (first..).zip(&mut self.outstanding).skip(from) {
            outstanding.len = 0;
            self.written_off += u64::from(!core::mem::replace(&mut outstanding.is_told, true));
            taken.extend(outstanding.take(path, counter, Why::Silent));
        }
        self.in_flight = Bytes::ZERO;
        self.written_off_before = self.next_data;
    }

    /// Number and sending time of the oldest datagram that was neither reported nor reinjected.
    #[must_use]
    pub fn oldest_under_way(&self) -> Option<(u64, Instant)> {
        let counter = self.first_under_way().max(self.first_kept());
        let oldest = self.outstanding.get(self.place(counter))?;
        Some((counter, oldest.sent_at))
    }

    /// Moves packets in flight to `taken`, oldest first, if they have not been retransmitted before, are not expendable
    /// and `may_take` accepts them. Called when the path has become slow; the packets are then reinjected.
    /// Their datagrams stay in flight, because the path still delivers.
    pub fn take_overdue(
        &mut self,
        path: PathId,
        taken: &mut VecDeque<Numbered>,
        mut may_take: impl FnMut(&Numbered) -> bool,
    ) {
        let first = self.first_kept();
        let from = self.place(self.first_under_way());
        for (counter, outstanding) in (first..).zip(&mut self.outstanding).skip(from) {
            let is_first = |numbered: &Numbered| {
                numbered.origin.is_none() && !numbered.is_expendable && may_take(numbered)
            };
            if outstanding.numbered.as_ref().is_some_and(is_first) {
                taken.extend(outstanding.take(path, counter, Why::Overdue));
            }
        }
        self.overdue_before = self.next_data;
    }

    fn first_under_way(&self) -> u64 {
        let taken = self.written_off_before.max(self.overdue_before);
        self.reported.max(taken)
    }

    /// Returns all buffers and resets the bytes in flight, after a change of address or a restart of the other end.
    pub fn forget(&mut self, pool: &mut Pool) {
        while !self.outstanding.is_empty() {
            self.pop_oldest(pool);
        }
    }

    /// Number of data datagrams in flight: sent, and neither reported, written off nor forgotten.
    #[must_use]
    pub fn outstanding_pkts(&self) -> usize {
        let unreported = self.outstanding.range(self.place(self.reported)..);
        unreported.filter(|outstanding| outstanding.len > 0).count()
    }

    /// Bytes sent and not reported.
    #[must_use]
    pub fn in_flight(&self) -> Bytes {
        self.in_flight
    }

    /// Bytes that may still arrive over the path; `None` while unknown, because written-off datagrams of the silent
    /// path are no longer counted but may still arrive.
    #[must_use]
    pub fn under_way(&self) -> Option<Bytes> {
        (self.reported >= self.written_off_before).then_some(self.in_flight)
    }

    /// Number of datagrams to count as sent for the loss estimate, if `received` arrived and the receiver sends no
    /// NACKs. Excludes written-off datagrams, which say nothing about the path's loss.
    pub fn sent_for_loss(&mut self, received: u64) -> u64 {
        if self.reported < self.written_off_before {
            return received;
        }
        let missing = self.reported.saturating_sub(received);
        self.written_off = self.written_off.min(missing);
        self.reported - self.written_off
    }

    /// When a datagram was last NACKed.
    #[must_use]
    pub fn lost_at(&self) -> Option<Instant> {
        self.lost_at
    }

    /// Number of datagrams NACKed, each counted once, without written-off datagrams.
    #[must_use]
    pub fn lost_pkts(&self) -> u64 {
        self.lost_pkts
    }

    /// Bytes of data datagrams sent, counted as UDP payload.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    fn pop_oldest(&mut self, pool: &mut Pool) {
        if let Some(outstanding) = self.outstanding.pop_front() {
            self.in_flight = self.in_flight - Bytes::new(u64::from(outstanding.len));
            if let Some(numbered) = outstanding.numbered {
                pool.recycle(numbered.packet);
            }
        }
        // Release memory that only a saturated path needed. Its cost is amortised over the entries removed before.
        let (len, capacity) = (self.outstanding.len(), self.outstanding.capacity());
        if capacity > SMALL && len < capacity / 8 {
            self.outstanding.shrink_to(capacity / 4);
        }
    }
}

/// Maximum number of datagrams stored for one path. 16 384 packets are 200 ms at 1 Gbit/s, and 24 MB of buffers.
pub const MAX_OUTSTANDING: usize = 16_384;
/// Number of entries for which memory is always retained.
const SMALL: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    fn send(sender: &mut Sender, pool: &mut Pool, global: u32) {
        let numbered = Numbered {
            global_seq: Seq(global),
            flow_step: 0,
            flow: FlowId::of_hash(0),
            is_expendable: false,
            round_trip: Duration::ZERO,
            origin: None,
            packet: pool.copy_of(&[1]),
        };
        sender.on_sent(Instant::ZERO, 100, Some(Seq(global)), Some(numbered), pool);
    }

    #[test]
    fn reports_free_what_they_cover() {
        let mut pool = Pool::new(100, 1);
        let mut sender = Sender::default();
        for global in 0..5 {
            send(&mut sender, &mut pool, global);
        }
        assert!(sender.on_reported(Seq(1), None, &mut pool));
        assert!(!sender.on_reported(Seq(1), None, &mut pool));
        assert!(!sender.on_reported(Seq(77), None, &mut pool), "never sent");
        assert_eq!(
            (sender.outstanding_pkts(), sender.in_flight()),
            (3, Bytes::new(300))
        );
        assert_eq!(pool.free_len(), 2);
        let mut taken = VecDeque::new();
        sender.take_unreported(PathId(0), &mut taken);
        assert_eq!(
            taken.iter().map(|n| n.global_seq.0).collect::<Vec<_>>(),
            [2, 3, 4]
        );
        assert_eq!(
            (sender.in_flight(), sender.under_way()),
            (Bytes::ZERO, None)
        );
        assert!(
            sender.on_reported(Seq(3), None, &mut pool),
            "the path was not silent after all"
        );
        assert_eq!(sender.under_way(), None, "one may come");
        assert!(sender.on_reported(Seq(4), None, &mut pool));
        assert_eq!(sender.under_way(), Some(Bytes::ZERO));
        assert!(!sender.on_reported(Seq(5), None, &mut pool), "never sent");
    }

    #[test]
    fn a_nack_ahead_of_the_report_changes_nothing_of_what_was_reported() {
        let mut pool = Pool::new(100, 1);
        let mut sender = Sender::default();
        for global in 0..10 {
            send(&mut sender, &mut pool, global);
        }
        assert!(sender.on_reported(Seq(5), Some(Seq(0)), &mut pool));
        for told in [2, 8, 7] {
            assert!(
                sender
                    .take_lost(Instant::ZERO, PathId(1), Seq(told))
                    .is_some()
            );
            assert_eq!(sender.reported(), 6);
        }
    }

    #[test]
    fn what_is_not_settled_is_kept_for_repair() {
        let mut pool = Pool::new(100, 1);
        let mut sender = Sender::default();
        for global in 0..10 {
            send(&mut sender, &mut pool, global);
        }
        assert!(sender.on_reported(Seq(7), Some(Seq(3)), &mut pool));
        assert_eq!((pool.free_len(), sender.outstanding_pkts()), (3, 2));
        assert_eq!(sender.in_flight(), Bytes::new(200));
        let (lost, is_free) = sender
            .take_lost(Instant::ZERO, PathId(1), Seq(4))
            .expect("kept");
        assert!(!is_free);
        let origin = lost.origin.expect("was sent");
        assert_eq!((lost.global_seq, origin.is_lost), (Seq(4), true));
        assert!(
            sender.take_lost(Instant::ZERO, PathId(1), Seq(4)).is_none(),
            "told again"
        );
        assert!(
            sender.take_lost(Instant::ZERO, PathId(1), Seq(1)).is_none(),
            "settled"
        );
        assert!(
            sender
                .take_lost(Instant::ZERO, PathId(1), Seq(99))
                .is_none(),
            "never sent"
        );
        assert_eq!(sender.lost_pkts(), 1);
        assert!(sender.give_back(lost).is_none(), "there is room");
        assert!(sender.take_lost(Instant::ZERO, PathId(1), Seq(4)).is_some());
        let mut taken = VecDeque::new();
        sender.take_unreported(PathId(1), &mut taken);
        let taken: Vec<_> = taken.iter().map(|numbered| numbered.global_seq.0).collect();
        assert_eq!(taken, [8, 9]);
        assert_eq!(
            (sender.in_flight(), sender.outstanding_pkts()),
            (Bytes::ZERO, 0)
        );
        assert!(sender.on_reported(Seq(9), Some(Seq(10)), &mut pool));
        assert_eq!(sender.first_kept(), 10);
    }

    #[test]
    fn what_is_overdue_is_taken_once_and_stays_under_way() {
        let mut pool = Pool::new(100, 1);
        let mut sender = Sender::default();
        for global in 0..6 {
            send(&mut sender, &mut pool, global);
        }
        sender.on_reported(Seq(1), None, &mut pool);
        let oldest = sender.oldest_under_way();
        assert_eq!(oldest.map(|(_, sent_at)| sent_at), Some(Instant::ZERO));
        let mut taken = VecDeque::new();
        let mut left = 2_usize;
        sender.take_overdue(PathId(0), &mut taken, |numbered| {
            let rest = left.checked_sub(numbered.packet.len());
            left = rest.unwrap_or(left);
            rest.is_some()
        });
        let numbers: Vec<_> = taken.iter().map(|numbered| numbered.global_seq.0).collect();
        assert_eq!(numbers, [2, 3], "as far as it can be paid");
        assert_eq!(
            (sender.in_flight(), sender.lost_pkts()),
            (Bytes::new(400), 0)
        );
        assert_eq!(sender.oldest_under_way(), None);
        for numbered in taken {
            assert!(sender.give_back(numbered).is_none());
        }
        send(&mut sender, &mut pool, 6);
        let mut taken = VecDeque::new();
        sender.take_overdue(PathId(0), &mut taken, |_| true);
        assert_eq!(taken.len(), 1, "what was sent since");
    }

    #[test]
    fn what_does_no_harm_when_lost_is_not_sent_again() {
        let mut pool = Pool::new(100, 1);
        let mut sender = Sender::default();
        let numbered = Numbered {
            global_seq: Seq(0),
            flow_step: 0,
            flow: FlowId::of_hash(0),
            is_expendable: true,
            round_trip: Duration::ZERO,
            origin: None,
            packet: pool.copy_of(&[1]),
        };
        sender.on_sent(Instant::ZERO, 100, Some(Seq(0)), Some(numbered), &mut pool);
        assert!(sender.take_lost(Instant::ZERO, PathId(0), Seq(0)).is_none());
        assert_eq!(sender.lost_pkts(), 1);
    }

    #[test]
    fn steps_that_do_not_fit_are_unknown() {
        let mut pool = Pool::new(1, 1);
        let mut sender = Sender::default();
        assert_eq!(sender.path_step(Seq(5)), 0);
        send(&mut sender, &mut pool, 5);
        assert_eq!(
            (sender.path_step(Seq(9)), sender.path_step(Seq(2))),
            (4, -3)
        );
        assert_eq!(sender.path_step(Seq(50_000)), 0);
    }

    #[test]
    fn what_is_noted_of_a_datagram_is_no_more_than_is_counted() {
        // The bound is `OVERHEAD` in `tunnel/kept.rs`.
        assert!(size_of::<Outstanding>() <= 256);
    }

    #[test]
    fn a_path_that_was_full_once_does_not_keep_the_room() {
        let mut pool = Pool::new(MAX_OUTSTANDING * 2, 1);
        let mut sender = Sender::default();
        for global in 0..16_000 {
            send(&mut sender, &mut pool, global);
        }
        assert!(sender.on_reported(Seq(15_999), None, &mut pool));
        assert!(sender.outstanding.capacity() <= 2 * SMALL);
        assert_eq!(sender.kept_of(Seq(15_000), 2_000), 1_000..1_000);
        send(&mut sender, &mut pool, 16_000);
        assert_eq!(sender.kept_of(Seq(15_000), 2_000), 1_000..1_001);
        assert_eq!(sender.kept_of(Seq(20_000), 2_000), 0..0);
        assert_eq!(sender.kept_of(Seq(u32::MAX), u16::MAX), 16_001..16_002);
    }

    #[test]
    fn memory_is_bounded() {
        let mut pool = Pool::new(MAX_OUTSTANDING * 2, 1);
        let mut sender = Sender::default();
        for global in 0..20_000 {
            send(&mut sender, &mut pool, global);
        }
        assert_eq!(sender.outstanding_pkts(), MAX_OUTSTANDING);
        assert!(
            sender.on_reported(Seq(100), None, &mut pool),
            "news, though its packet is forgotten"
        );
        assert_eq!(sender.outstanding_pkts(), MAX_OUTSTANDING);
    }
}
