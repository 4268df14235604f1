//! When a repair symbol is sent, and which packets it covers.
//!
//! *Losses.* The losses are those that the other end has recently reported on the paths in use, including recovered
//! packets ([`super::losses`]). Only packets whose loss matters count: not the copies that search for the capacity of
//! a path, and not packets in flight on a path that fell silent. A new association starts with an assumed loss,
//! because a loss in the first round trips ends a flow's slow start.
//!
//! *Rate.* One symbol is sent after so many packets (`interval`): few packets if the loss is high; no symbols while
//! there is hardly any loss. There are three to four symbols per loss while an association is new, when one
//! unrecovered loss ends a flow's slow start, and where the next symbol would be long in coming; otherwise two or
//! three, and fewer at high loss. A symbol covers several intervals, so that the next one makes up for a symbol that
//! is lost or insufficient, and several losses need not wait for each other. Where packets are sent so slowly that the
//! symbol would arrive later than the retransmission, no symbol is sent.
//!
//! Losses on paths with short RTTs ([`QUICK`]) count only if the lost packets have a deadline, or if such a path has a
//! high loss by itself: a retransmission arrives about as soon as a symbol, and symbols would load a short queue that
//! overflows.
//!
//! *Stalls.* Where RTTs are long, even few losses stop a fast flow for much of the time, because the packets behind a
//! lost one are held until its retransmission arrives. So symbols are also sent if retransmissions have been pending
//! for an eighth of the recent time, however few the losses are.
//!
//! *Tail.* When no packet has followed for [`TAIL_AFTER`], a symbol covers the last packets, if they were a burst.
//!
//! *Frames.* Video that could not be retransmitted in time has its symbols behind each frame instead
//! ([`super::frames`]).
//!
//! Packets whose loss does no harm, or that can be retransmitted in time, have a number and are therefore covered, but
//! no symbol is sent for their sake.
//!
//! Bounds: an encoder's memory, from the first packet of an association whose paths may lose packets; [`REMEMBERED`]
//! numbers.

use core::time::Duration;

use super::{
    frames::{Frames, PAUSE},
    losses::{LONGEST_GAP, Losses},
    receiving::FORGET,
};
use crate::{
    fec::{Encoder, MAX_WINDOW_PKTS, Repair},
    ids::{PathId, Seq},
    mark::Mark,
    path::sender::Numbered,
    time::Instant,
    wire::header::{self, COVERED},
};

/// The sender's side.
#[derive(Debug, Default)]
pub(in super::super) struct Sending {
    /// Created at the first packet that needs it.
    encoder: Option<Box<Encoder>>,
    /// The losses of packets whose loss matters.
    losses: Losses,
    /// How long a retransmission takes, and for which share of the time retransmissions were pending.
    repaired_after: Duration,
    stalls: Stalls,
    /// When the last packet was sent, and the mean interval between packets.
    pushed_at: Option<Instant>,
    gap: Duration,
    /// The number of packets worth a repair since the last symbol.
    uncovered: u32,
    /// The number of packets in the current burst, and when the burst ends.
    burst: u32,
    rest_at: Option<Instant>,
    /// When the tail of the burst is due.
    tail_at: Option<Instant>,
    /// The number of the next packet at the first of an unbroken series of symbols, from which the other end stores
    /// received packets; and the time of the latest symbol.
    remembered: Option<(Seq, Instant)>,
    /// The packets recovered by the other end, by number.
    recovered: Vec<Option<Seq>>,
    /// The frames of packets worth a repair that have a deadline.
    frames: Frames,
    /// Whether symbols follow the ends of frames.
    has_frames: bool,
    /// The number after the newest packet's.
    next: Seq,
}

impl Sending {
    /// The state before any packet. `has_frames`: symbols follow the ends of frames.
    pub(in super::super) fn new(has_frames: bool) -> Self {
        Self {
            has_frames,
            ..Self::default()
        }
    }

    /// Adds the packet that will be sent next, and whether it is worth a symbol.
    ///
    /// `repaired_after`: the time that a retransmission takes.
    pub(in super::super) fn push(
        &mut self,
        now: Instant,
        numbered: &Numbered,
        is_worth: bool,
        repaired_after: Duration,
    ) {
        let gap = self.pushed_at.map_or(Duration::ZERO, |at| now.since(at));
        self.pushed_at = Some(now);
        self.gap = self.gap * 15 / 16 + gap.min(LONGEST_GAP) / 16;
        self.repaired_after = repaired_after;
        self.stalls.look(now);
        let is_worth = is_worth && !numbered.is_expendable;
        if is_worth {
            self.losses.on_worth(now, repaired_after);
        }
        let timed = numbered
            .packet
            .mark()
            .filter(|_| is_worth && self.has_frames);
        if let Some(Mark {
            due: Some(due),
            ends_frame,
            ..
        }) = timed
        {
            self.frames.on_packet(numbered.global_seq, due, ends_frame);
        }
        let is_of_frame = timed.is_some_and(|mark| mark.due.is_some()) && self.frames.are_there();
        // On average the loss occurs half an interval before the symbol.
        let is_quick = |pkts: &u32| is_of_frame || self.gap * *pkts / 2 < repaired_after;
        if self.interval().filter(is_quick).is_none() {
            self.uncovered = 0;
            return;
        }
        let new = || Box::new(Encoder::new(MAX_WINDOW_PKTS));
        let encoder = self.encoder.get_or_insert_with(new);
        let head = numbered.flow_step.to_be_bytes();
        encoder.push_parts(numbered.global_seq, &head, numbered.packet.as_slice());
        self.next = numbered.global_seq.plus(1);
        self.uncovered += u32::from(is_worth && !is_of_frame);
    }

    /// Records a data datagram on `id`. `is_awaited`: the loss of its packet matters, and no other datagram carries
    /// the packet.
    pub(in super::super) fn on_sent(&mut self, id: PathId, is_awaited: bool) {
        if is_awaited {
            self.losses.on_sent(id);
        }
    }

    /// Records a retransmission for which its flow waits.
    pub(in super::super) fn on_repair(&mut self, now: Instant) {
        if self.repaired_after > SHORT_STALL {
            self.stalls.on_loss(now, self.repaired_after);
        }
    }

    /// Records the loss of a packet whose loss matters on `id`, a path with a min RTT of `round_trip` and a loss of
    /// `floor_ppm` at any load.
    pub(in super::super) fn on_lost(&mut self, id: PathId, round_trip: Duration, floor_ppm: u32) {
        let is_quick = |(below, ppm): &(Duration, u32)| round_trip < *below && floor_ppm < *ppm;
        if !QUICK.iter().any(is_quick) {
            self.losses.on_lost(id);
        }
    }

    /// Resets the counts of `id`, because another path takes its place.
    pub(in super::super) fn forget(&mut self, id: PathId) {
        self.losses.forget(id);
    }

    /// Sets when the tail is due after a packet. Packets at a low rate have no tail: it would cost one symbol for
    /// three packets.
    pub(in super::super) fn rest(&mut self, now: Instant) {
        if self.rest_at.is_none_or(|at| at <= now) {
            self.burst = 0;
        }
        self.burst = self.burst.saturating_add(1);
        self.rest_at = Some(now + TAIL_AFTER);
        let is_tail = self.burst.min(self.uncovered) >= LEAST_TAIL;
        self.tail_at = self
            .rest_at
            .filter(|_| is_tail || self.frames.are_under_way());
    }

    /// Gives up the tail, because no path was ready for it.
    pub(in super::super) fn give_up_tail(&mut self, now: Instant) {
        self.tail_at = self.tail_at.filter(|at| *at > now);
    }

    /// When a symbol is due if no packet is sent before.
    pub(in super::super) fn tail_due(&self) -> Option<Instant> {
        self.tail_at
            .filter(|_| self.uncovered >= LEAST_TAIL || self.frames.are_under_way())
    }

    /// Whether a symbol is due. `is_idle`: no packet waits.
    pub(in super::super) fn is_due(&self, now: Instant, is_idle: bool) -> bool {
        let is_full = self.interval().is_some_and(|pkts| self.uncovered >= pkts);
        self.is_owed() || is_full || (is_idle && self.tail_due().is_some_and(|at| at <= now))
    }

    /// Whether a symbol of a frame waits for a path.
    pub(in super::super) fn is_owed(&self) -> bool {
        self.frames.is_owed() && self.interval().is_some()
    }

    /// No packet waits: the frame ends, if the pause has been long enough.
    pub(in super::super) fn pause(&mut self, now: Instant) {
        if self.tail_due().is_some_and(|at| at <= now) {
            self.frames.pause();
        }
    }

    /// Writes the symbol that is due. `least_delay`: the one-way delay of the quickest path.
    pub(in super::super) fn take(
        &mut self,
        now: Instant,
        least_delay: Duration,
        key: u16,
        out: &mut [u8],
    ) -> Option<Repair> {
        let Rate { covered, .. } = self.rate()?;
        let known = self.known(now);
        let (window, of) = if self.frames.is_owed() {
            (self.frames.cover(now, least_delay, self.next), usize::MAX)
        } else {
            self.uncovered = 0;
            self.tail_at = None;
            (covered, known)
        };
        let encoder = self.encoder.as_mut()?;
        let pkts = header::covered(window, encoder.held().min(of))?;
        encoder.repair(pkts.into(), key, out)
    }

    /// Records a symbol. Returns how many packets before it the other end stores, if it received them. There may be
    /// none before the first symbol, which covers all packets available.
    fn known(&mut self, now: Instant) -> usize {
        let from = self
            .remembered
            .filter(|(_, at)| now.since(*at) < FORGET)
            .map(|(from, _)| from);
        self.remembered = Some((from.unwrap_or(self.next), now));
        let pkts = from.and_then(|from| usize::try_from(self.next.distance_from(from)).ok());
        pkts.map_or(usize::MAX, |pkts| pkts.max(COVERED[0].into()))
    }

    /// Records that the packet `seq`, which was kept, is reported missing.
    pub(in super::super) fn on_missing(&mut self, seq: Seq) {
        self.frames.on_lost(seq);
    }

    /// Records that the other end has recovered the packets of these ranges.
    pub(in super::super) fn on_recovered(&mut self, ranges: impl Iterator<Item = (Seq, u16)>) {
        if self.recovered.is_empty() {
            self.recovered.resize(REMEMBERED, None);
        }
        for (first, count) in ranges {
            for offset in 0..u32::from(count.min(MOST_RECOVERED)) {
                let seq = first.plus(offset);
                self.recovered[seq.0 as usize % REMEMBERED] = Some(seq);
            }
        }
    }

    /// Whether the other end has reported `seq` as recovered.
    pub(in super::super) fn has_recovered(&self, seq: Seq) -> bool {
        self.recovered.get(seq.0 as usize % REMEMBERED) == Some(&Some(seq))
    }

    /// The number of packets per symbol; `None` while there is hardly any loss.
    fn interval(&self) -> Option<u32> {
        self.rate().map(|rate| rate.interval)
    }

    /// The rate of symbols; `None` while there is hardly any loss.
    fn rate(&self) -> Option<Rate> {
        let ppm = self.losses.ppm();
        if ppm < LEAST_PPM && !self.stalls.are_many {
            return None;
        }
        let [first, then] = RATES
            .iter()
            .find_map(|(most, rates)| (ppm <= *most).then_some(*rates))?;
        let soon = (self.repaired_after / SOON).min(LONGEST_SOON);
        let is_soon = self.gap * then.interval < soon;
        Some(if self.losses.is_settled() && is_soon {
            then
        } else {
            first
        })
    }
}

/// A rate of repair symbols.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// The number of packets per symbol.
    interval: u32,
    /// The number of packets that a symbol covers.
    covered: u32,
}

impl Rate {
    const fn new(interval: u32, covered: u32) -> Self {
        Self { interval, covered }
    }
}

/// For which share of the time retransmissions were pending.
#[derive(Debug, Default)]
struct Stalls {
    /// When the present span of [`STALLS_OVER`] began, and how much of it was stalled; the same for the span before.
    since: Instant,
    present: Duration,
    before: Duration,
    /// When the last stall ends.
    until: Instant,
    are_many: bool,
}

impl Stalls {
    /// Records the loss of a packet, whose retransmission takes `repaired_after`.
    fn on_loss(&mut self, now: Instant, repaired_after: Duration) {
        let until = now + repaired_after;
        self.present += until.since(self.until.max(now));
        self.until = self.until.max(until);
    }

    /// Determines whether there are many stalls.
    fn look(&mut self, now: Instant) {
        let elapsed = now.since(self.since);
        if elapsed >= STALLS_OVER {
            let is_next = elapsed < STALLS_OVER * 2;
            self.before = if is_next {
                self.present
            } else {
                Duration::ZERO
            };
            self.present = Duration::ZERO;
            self.since = now;
        }
        let time = STALLS_OVER + now.since(self.since);
        self.are_many = (self.before + self.present) * MANY_STALLS > time;
    }
}

/// The span over which stalls are counted, and the share of the time that counts as much: a symbol costs a part in 27,
/// or in 41.
const STALLS_OVER: Duration = Duration::from_secs(4);
const MANY_STALLS: u32 = 8;
/// Queues bridge shorter stalls. And where RTTs are short, few losses mostly come from a short queue that overflows,
/// which symbols would load further.
const SHORT_STALL: Duration = Duration::from_millis(100);
/// Losses on a path with a shorter RTT are left to retransmission, which arrives about as soon; most of them come from
/// a short queue that overflows. The exception is a path with at least this loss (ppm) by itself. A row applies below
/// both of its values.
const QUICK: [(Duration, u32); 2] = [
    (Duration::from_millis(20), 40_000),
    (Duration::from_millis(45), 15_000),
];
/// Loss below this value is left to retransmission.
const LEAST_PPM: u64 = 1_500;
/// Up to so many losses of a million packets: while an association is new or the next symbol is not soon, and then. The first cover
/// four intervals, the others about five.
const RATES: [(u64, [Rate; 2]); 5] = [
    (7_000, [Rate::new(26, 64), Rate::new(40, 128)]),
    (12_000, [Rate::new(18, 64), Rate::new(26, 128)]),
    (25_000, [Rate::new(13, 48), Rate::new(20, 112)]),
    (40_000, [Rate::new(13, 48), Rate::new(16, 80)]),
    (u64::MAX, [Rate::new(10, 40), Rate::new(10, 48)]),
];
/// The second of them only if the next symbol comes within such a part of what it takes to send a packet again, and within
/// [`LONGEST_SOON`].
const SOON: u32 = 4;
const LONGEST_SOON: Duration = Duration::from_millis(12);
/// A tail of fewer packets is not worth a symbol.
const LEAST_TAIL: u32 = 3;
pub(super) const TAIL_AFTER: Duration = PAUSE;
/// The number of recovered packets remembered. A power of two.
const REMEMBERED: usize = 1024;
/// The longest range accepted.
const MOST_RECOVERED: u16 = 64;
