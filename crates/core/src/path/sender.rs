//! What was sent on one path: bytes in flight, and the packets themselves. They are kept until the other end has settled
//! them (they came, or were told missing), so that they can be sent again when one is lost or the path falls silent.
//!
//! Bounds: at most [`MAX_OUTSTANDING`] datagrams are remembered; older ones are forgotten and cannot be re-injected.

use core::time::Duration;
use std::collections::VecDeque;

use crate::{
    flows::FlowId,
    ids::{PathId, Seq},
    packet::{PacketBuf, Pool},
    time::Instant,
    units::Bytes,
};

/// A packet with its place in the association's order, given once and kept over re-injections.
#[derive(Debug)]
pub struct Numbered {
    /// The place.
    pub global_seq: Seq,
    /// Distance to the flow's previous packet; 0 if there is none.
    pub flow_step: u16,
    /// The flow.
    pub flow: FlowId,
    /// Whether its loss does no harm.
    pub is_expendable: bool,
    /// How long the round trips of its flow are made; zero if they are not.
    pub round_trip: Duration,
    /// Where it was sent before, if it was taken back or lost.
    pub origin: Option<Origin>,
    /// The packet.
    pub packet: PacketBuf,
}

/// An earlier sending of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The path.
    pub path: PathId,
    /// The datagram's number on it.
    pub counter: u64,
    /// When it was first sent on any path.
    pub sent_at: Instant,
    /// Whether it is known to be lost there.
    pub is_lost: bool,
    /// Whether sending it again is paid for already, out of what repairs may cost.
    pub is_paid: bool,
}

/// The sending side of one path.
#[derive(Debug, Default)]
pub struct Sender {
    /// Number of the next data datagram; its low 32 bits travel.
    next_data: u64,
    next_control: u64,
    /// Global number of the last data datagram.
    last_global: Option<Seq>,
    /// One more than the highest number reported received.
    reported: u64,
    sent_bytes: u64,
    /// Datagrams told missing, and when last.
    lost_pkts: u64,
    /// One more than the highest of them.
    told_before: u64,
    lost_at: Option<Instant>,
    /// Datagrams taken back because the path was silent: no sign of how much it loses.
    written_off: u64,
    /// One more than the highest of them.
    written_off_before: u64,
    /// One more than the highest of what was taken back because the path had become slow.
    overdue_before: u64,
    in_flight: Bytes,
    /// Data datagrams since the first that is not settled, oldest first; the last is `next_data - 1`.
    outstanding: VecDeque<Outstanding>,
}

#[derive(Debug)]
struct Outstanding {
    /// 0 once it does not count as in flight.
    len: u32,
    sent_at: Instant,
    /// Whether it was told missing.
    is_told: bool,
    /// `None` if it was taken, or a copy travels elsewhere anyway.
    numbered: Option<Numbered>,
}

/// Why a packet is to be sent elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Lost,
    Silent,
    Overdue,
}

impl Outstanding {
    /// The packet, to be sent elsewhere; it travelled on `path` as `counter`.
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
    /// The number the next data datagram will carry.
    #[must_use]
    pub fn next_data(&self) -> u64 {
        self.next_data
    }

    /// Data datagrams of which nothing is known yet.
    #[must_use]
    pub fn unreported_pkts(&self) -> u64 {
        self.next_data.saturating_sub(self.reported)
    }

    /// Number and place in the association's order of the last data datagram.
    #[must_use]
    pub fn last(&self) -> Option<(u64, Seq)> {
        Some((self.next_data.checked_sub(1)?, self.last_global?))
    }

    /// Takes a number for a control datagram.
    pub fn take_control(&mut self) -> u64 {
        let number = self.next_control;
        self.next_control += 1;
        number
    }

    /// How far `global_seq` is ahead of the last data datagram's; 0 if that does not fit the wire or there is none.
    #[must_use]
    pub fn path_step(&self, global_seq: Seq) -> i16 {
        let step = self.last_global.map(|last| global_seq.distance_from(last));
        step.and_then(|step| i16::try_from(step).ok()).unwrap_or(0)
    }

    /// Notes that a data datagram of `len` bytes went out with [`Self::next_data`]'s number; without `global_seq`, if it
    /// carried no packet.
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

    /// Takes note that the other end has received `highest`, so that nothing up to it is in flight, and forgets what is
    /// before `settled`, or all of that if nothing is said. Returns whether that was news; a number never sent is none.
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

    /// Counts `seq` as lost; the packet that travelled as it, if it is still kept and worth sending again, and whether that costs
    /// nothing: it had been taken from here when the path was silent.
    pub fn take_lost(&mut self, now: Instant, path: PathId, seq: Seq) -> Option<(Numbered, bool)> {
        let counter = self.counter_of(seq)?;
        let at = counter.checked_sub(self.first_kept())?;
        let outstanding = self.outstanding.get_mut(usize::try_from(at).ok()?)?;
        if !core::mem::replace(&mut outstanding.is_told, true) {
            self.lost_pkts += 1;
            self.told_before = self.told_before.max(counter + 1);
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

    /// Which of `count` numbers from `first` on are kept, counted from `first`: those before are forgotten, those behind were
    /// never sent.
    #[must_use]
    pub fn kept_of(&self, first: Seq, count: u16) -> core::ops::Range<u32> {
        let offset = |counter| {
            let offset = Seq::of_counter(counter).distance_from(first);
            offset.clamp(0, count.into()).unsigned_abs()
        };
        offset(self.first_kept())..offset(self.next_data)
    }

    /// How many datagrams are remembered, with their packets or without.
    #[must_use]
    pub fn kept_pkts(&self) -> usize {
        self.outstanding.len()
    }

    /// Forgets the oldest datagrams beyond `most`.
    pub fn trim(&mut self, most: usize, pool: &mut Pool) {
        while self.outstanding.len() > most {
            self.pop_oldest(pool);
        }
    }

    /// Keeps a packet again that was taken from here; hands it back if its place is gone.
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

    /// The number of which `seq` is the low half; `None` if it was never sent.
    fn counter_of(&self, seq: Seq) -> Option<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the wire carries the low 32 bits"
        )]
        let back = Seq(self.next_data as u32).distance_from(seq);
        let back = u64::try_from(back).ok().filter(|back| *back > 0)?;
        self.next_data.checked_sub(back)
    }

    /// Number of the oldest datagram kept, or of the next.
    fn first_kept(&self) -> u64 {
        self.next_data - self.outstanding.len() as u64
    }

    /// Where the datagram `counter` is kept, or would be if it still were.
    fn place(&self, counter: u64) -> usize {
        let at = counter.saturating_sub(self.first_kept());
        usize::try_from(at).map_or(self.outstanding.len(), |at| at.min(self.outstanding.len()))
    }

    /// The packet of this number, if it is kept and nothing after it on this path was reported. O(packets in flight).
    #[must_use]
    pub fn unreported(&self, global_seq: Seq) -> Option<&Numbered> {
        let unreported = self.outstanding.range(self.place(self.reported)..);
        let mut kept = unreported.filter_map(|outstanding| outstanding.numbered.as_ref());
        kept.find(|numbered| numbered.global_seq == global_seq)
    }

    /// How many data datagrams lie at or before the highest reported.
    #[must_use]
    pub fn reported(&self) -> u64 {
        self.reported
    }

    /// How many data datagrams lie at or before the highest that was reported or told missing.
    #[must_use]
    pub fn accounted(&self) -> u64 {
        self.reported.max(self.told_before)
    }

    /// Hands every packet not yet reported to `taken`, oldest first, and forgets what is in flight: the path is silent.
    ///
    /// `path`: its id, noted in each packet's [`Origin`].
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

    /// Number of the oldest datagram that is under way, neither reported nor taken back with those before it, and when it was
    /// sent.
    #[must_use]
    pub fn oldest_under_way(&self) -> Option<(u64, Instant)> {
        let counter = self.first_under_way().max(self.first_kept());
        let oldest = self.outstanding.get(self.place(counter))?;
        Some((counter, oldest.sent_at))
    }

    /// Hands packets under way to `taken`, oldest first, that have not been sent before and that `may_take` by their length:
    /// the path delivers, but slowly. They count as under way, for they are.
    pub fn take_overdue(
        &mut self,
        path: PathId,
        taken: &mut VecDeque<Numbered>,
        mut may_take: impl FnMut(usize) -> bool,
    ) {
        let first = self.first_kept();
        let from = self.place(self.first_under_way());
        for (counter, outstanding) in (first..).zip(&mut self.outstanding).skip(from) {
            let is_first = |numbered: &Numbered| {
                numbered.origin.is_none()
                    && !numbered.is_expendable
                    && may_take(numbered.packet.len())
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

    /// Returns all buffers and forgets what is in flight, as after a change of address or a restart of the other end.
    pub fn forget(&mut self, pool: &mut Pool) {
        while !self.outstanding.is_empty() {
            self.pop_oldest(pool);
        }
    }

    /// Data datagrams sent and not reported, nor taken back or forgotten.
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

    /// Bytes that may still come over the path; `None` while that is not known, for what was taken back while it was silent is no
    /// longer counted and may come as well.
    #[must_use]
    pub fn under_way(&self) -> Option<Bytes> {
        (self.reported >= self.written_off_before).then_some(self.in_flight)
    }

    /// How many of the datagrams up to the highest reported count as sent when `received` of them came and nothing is told
    /// missing: what was taken back from a silent path is no sign of how much it loses.
    pub fn sent_for_loss(&mut self, received: u64) -> u64 {
        if self.reported < self.written_off_before {
            return received;
        }
        let missing = self.reported.saturating_sub(received);
        self.written_off = self.written_off.min(missing);
        self.reported - self.written_off
    }

    /// When a datagram was last told missing.
    #[must_use]
    pub fn lost_at(&self) -> Option<Instant> {
        self.lost_at
    }

    /// Datagrams told missing, each counted once, without those taken back.
    #[must_use]
    pub fn lost_pkts(&self) -> u64 {
        self.lost_pkts
    }

    /// Bytes of data datagrams sent, UDP payload.
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
        // What a full path once needed is not kept for ever; each entry is moved once for several that were removed.
        let (len, capacity) = (self.outstanding.len(), self.outstanding.capacity());
        if capacity > SMALL && len < capacity / 8 {
            self.outstanding.shrink_to(capacity / 4);
        }
    }
}

/// 16 384 packets are 200 ms at 1 Gbit/s, and 24 MB of buffers.
pub const MAX_OUTSTANDING: usize = 16_384;
/// Room for so many is kept in any case.
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
    fn what_is_told_ahead_of_the_report_is_accounted_for() {
        let mut pool = Pool::new(100, 1);
        let mut sender = Sender::default();
        for global in 0..10 {
            send(&mut sender, &mut pool, global);
        }
        assert!(sender.on_reported(Seq(5), Some(Seq(0)), &mut pool));
        for (told, accounted) in [(2, 6), (8, 9), (7, 9)] {
            assert!(
                sender
                    .take_lost(Instant::ZERO, PathId(1), Seq(told))
                    .is_some()
            );
            assert_eq!((sender.reported(), sender.accounted()), (6, accounted));
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
        sender.take_overdue(PathId(0), &mut taken, |len| {
            let rest = left.checked_sub(len);
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
        // `OVERHEAD` of `tunnel/kept.rs`.
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
