//! When a repair symbol is sent, and which packets it covers.
//!
//! *Losses.* The rate of symbols depends on the losses that the other end has recently reported on the paths in use,
//! including the losses of packets that were recovered ([`super::losses`]). Only packets whose loss matters count.
//! Copies that search for the capacity of a path do not count, nor do packets in flight on a path that fell silent. A
//! new association starts with assumed losses, because a loss in the first RTTs ends a flow's slow start.
//!
//! *Rate.* One symbol is sent for every `interval` packets. The interval is short if the loss is high; no symbols are
//! sent while there is hardly any loss. Three to four symbols are sent per loss in two cases: while an association is
//! new, when one unrecovered loss ends a flow's slow start; and where the next symbol would take long to follow.
//! Otherwise two or three symbols are sent per loss, and fewer at high loss. A symbol covers several intervals, so that
//! the next symbol makes up for a symbol that is lost or insufficient, and one loss need not wait for the recovery of
//! another. Where packets are sent so slowly that the symbol would arrive later than the retransmission, no symbol is
//! sent.
//!
//! Losses on paths with short RTTs ([`QUICK`]) count only if the lost packets have a deadline, or if such a path has a
//! high loss at any load. On these paths a retransmission arrives about as soon as a symbol, and symbols would load a
//! short queue that overflows.
//!
//! *Stalls.* Where RTTs are long, even few losses stop a fast flow for much of the time, because the packets after a
//! lost one are buffered until its retransmission arrives. So symbols are also sent if retransmissions have been
//! pending for an eighth of the recent time, however few the losses are.
//!
//! *Tail.* When no packet has followed for [`TAIL_AFTER`], a symbol covers the last packets if they were a burst.
//!
//! *Frames.* For video that could not be retransmitted in time, symbols follow each frame instead ([`super::frames`]).
//!
//! Packets whose loss does no harm, and packets that can be retransmitted in time, are numbered like all others, so
//! symbols cover them as well. But no symbol is sent for them alone.
//!
//! Bounds: an encoder's memory from the first packet of an association whose paths may lose packets, and [`REMEMBERED`]
//! numbers.

use core::{mem, time::Duration};

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

/// The sender's part of forward erasure correction.
#[derive(Debug, Default)]
pub(in super::super) struct Sending {
    /// Encoder, created when the first packet needs protection.
    encoder: Option<Box<Encoder>>,
    /// The losses of packets whose loss matters.
    losses: Losses,
    /// Time that a retransmission takes (`repaired_after`), and share of the time in which retransmissions were pending
    /// (`stalls`).
    repaired_after: Duration,
    stalls: Stalls,
    /// Time at which the last packet was added (`pushed_at`), and mean interval between packets (`gap`).
    pushed_at: Option<Instant>,
    gap: Duration,
    /// Number of packets worth a symbol since the last symbol.
    uncovered: u32,
    /// Number of packets in the current burst, and time at which the burst ends.
    burst: u32,
    rest_at: Option<Instant>,
    /// Time at which the symbol for the tail of the burst is due.
    tail_at: Option<Instant>,
    /// Start and end of the present series of symbols, in which pauses are shorter than [`FORGET`]. The start is the
    /// number of the first packet after the first symbol: from that packet on, the other end stores received packets.
    /// The end is the time of the latest symbol.
    remembered: Option<(Seq, Instant)>,
    /// Sequence numbers of the packets that the other end has recovered, indexed by number.
    recovered: Vec<Option<Seq>>,
    /// Frames of the packets that are worth a symbol and have a deadline.
    frames: Frames,
    /// Whether symbols follow the ends of frames (a setting).
    has_frames: bool,
    /// Sequence number after the number of the newest packet.
    next: Seq,
}

impl Sending {
    /// Returns the state before any packet. `has_frames` says whether symbols follow the ends of frames.
    pub(in super::super) fn new(has_frames: bool) -> Self {
        Self {
            has_frames,
            ..Self::default()
        }
    }

    /// Adds the packet that will be sent next. `is_worth` says whether it is worth a symbol.
    ///
    /// `repaired_after` is the time that a retransmission takes.
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
        // On average, a loss occurs half an interval before the next symbol.
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

    /// Records a data datagram on `id`. `is_awaited` says that the loss of its packet matters, and that no other
    /// datagram carries the packet.
    pub(in super::super) fn on_sent(&mut self, id: PathId, is_awaited: bool) {
        if is_awaited {
            self.losses.on_sent(id);
        }
    }

    /// Records a retransmission that stalls its flow.
    pub(in super::super) fn on_repair(&mut self, now: Instant) {
        if self.repaired_after > SHORT_STALL {
            self.stalls.on_loss(now, self.repaired_after);
        }
    }

    /// Records a loss on the path `id` of a packet whose loss matters. The path has the min RTT `round_trip` and loses
    /// `floor_ppm` parts per million at any load.
    pub(in super::super) fn on_lost(&mut self, id: PathId, round_trip: Duration, floor_ppm: u32) {
        let is_quick = |(below, ppm): &(Duration, u32)| round_trip < *below && floor_ppm < *ppm;
        if !QUICK.iter().any(is_quick) {
            self.losses.on_lost(id);
        }
    }

    /// Resets the counts of `id`, because another path gets this id.
    pub(in super::super) fn forget(&mut self, id: PathId) {
        self.losses.forget(id);
    }

    /// Sets the time at which the tail is due, after each packet. Packets at a low rate have no tail, because they
    /// would need one symbol for three packets.
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

    /// Omits the symbol for the tail if it is due, because no path was ready for it.
    pub(in super::super) fn give_up_tail(&mut self, now: Instant) {
        self.tail_at = self.tail_at.filter(|at| *at > now);
    }

    /// Returns the time at which a symbol is due if no packet is sent before.
    pub(in super::super) fn tail_due(&self) -> Option<Instant> {
        self.tail_at
            .filter(|_| self.uncovered >= LEAST_TAIL || self.frames.are_under_way())
    }

    /// Whether a symbol is due. `is_idle` says that no packet waits.
    pub(in super::super) fn is_due(&self, now: Instant, is_idle: bool) -> bool {
        // Most packets end here: nothing is uncovered while there is hardly any loss.
        let is_full =
            self.uncovered > 0 && self.interval().is_some_and(|pkts| self.uncovered >= pkts);
        self.is_owed() || is_full || (is_idle && self.tail_due().is_some_and(|at| at <= now))
    }

    /// Whether a symbol of a frame waits for a path.
    pub(in super::super) fn is_owed(&self) -> bool {
        self.frames.is_owed() && self.interval().is_some()
    }

    /// Ends the current frame if the pause has been long enough. To be called while no packet waits.
    pub(in super::super) fn pause(&mut self, now: Instant) {
        if self.tail_due().is_some_and(|at| at <= now) {
            self.frames.pause();
        }
    }

    /// Forgets all packets, and frees their memory. The estimates are retained. Later symbols cover later packets only.
    pub(in super::super) fn release_memory(&mut self) {
        let Self {
            losses,
            repaired_after,
            stalls,
            pushed_at,
            gap,
            has_frames,
            next,
            ..
        } = mem::take(self);
        *self = Self {
            losses,
            repaired_after,
            stalls,
            pushed_at,
            gap,
            has_frames,
            next,
            ..Self::default()
        };
    }

    /// Writes the symbol that is due to `out`. `least_delay` is the one-way delay of the path with the shortest delay.
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

    /// Records a symbol. Returns the number of latest packets that the other end has stored, unless they were lost.
    /// Before the first symbol the other end stores no packets, so the result is unlimited and the symbol covers all
    /// packets available.
    fn known(&mut self, now: Instant) -> usize {
        let from = self
            .remembered
            .filter(|(_, at)| now.since(*at) < FORGET)
            .map(|(from, _)| from);
        self.remembered = Some((from.unwrap_or(self.next), now));
        let pkts = from.and_then(|from| usize::try_from(self.next.distance_from(from)).ok());
        pkts.map_or(usize::MAX, |pkts| pkts.max(COVERED[0].into()))
    }

    /// Records that the packet `seq` is reported missing. Its path had retained the buffer of the packet.
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

    /// Returns the number of packets per symbol; `None` while there is hardly any loss.
    fn interval(&self) -> Option<u32> {
        self.rate().map(|rate| rate.interval)
    }

    /// Returns the rate of symbols; `None` while there is hardly any loss.
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
    /// Number of packets per symbol.
    interval: u32,
    /// Number of packets that a symbol covers.
    covered: u32,
}

impl Rate {
    const fn new(interval: u32, covered: u32) -> Self {
        Self { interval, covered }
    }
}

/// Share of the time in which retransmissions were pending.
#[derive(Debug, Default)]
struct Stalls {
    /// Start of the present span of [`STALLS_OVER`], its stalled time, and the stalled time of the span before it.
    since: Instant,
    present: Duration,
    before: Duration,
    /// End of the last stall.
    until: Instant,
    are_many: bool,
}

impl Stalls {
    /// Records the loss of a packet whose retransmission takes `repaired_after`.
    fn on_loss(&mut self, now: Instant, repaired_after: Duration) {
        let until = now + repaired_after;
        self.present += until.since(self.until.max(now));
        self.until = self.until.max(until);
    }

    /// Determines whether there are many stalls at `now`.
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

/// Span over which stalls are measured, and reciprocal of the stalled share of the time above which symbols are sent.
/// Symbols cost one datagram in 27 or in 41.
const STALLS_OVER: Duration = Duration::from_secs(4);
const MANY_STALLS: u32 = 8;
/// Duration of a stall that does no harm, because queues bridge it. Where RTTs are short, a few losses mostly come from
/// a short queue that overflows, and symbols would load it further.
const SHORT_STALL: Duration = Duration::from_millis(100);
/// Pairs of RTT and loss in ppm. Losses on a path below both values of a pair are left to retransmission, which arrives
/// about as soon as a symbol; most of these losses come from a short queue that overflows.
const QUICK: [(Duration, u32); 2] = [
    (Duration::from_millis(20), 40_000),
    (Duration::from_millis(45), 15_000),
];
/// Minimum loss in ppm for symbols. Smaller losses are left to retransmission.
const LEAST_PPM: u64 = 1_500;
/// Rates of symbols for a loss of up to the given ppm. The first rate applies while an association is new or the next
/// symbol would not follow soon, the second rate otherwise. A symbol covers 2.5 to 4 intervals at the first rate, and 3
/// to 6 intervals at the second.
const RATES: [(u64, [Rate; 2]); 5] = [
    (7_000, [Rate::new(26, 64), Rate::new(40, 128)]),
    (12_000, [Rate::new(18, 64), Rate::new(26, 128)]),
    (25_000, [Rate::new(13, 48), Rate::new(20, 112)]),
    (40_000, [Rate::new(13, 48), Rate::new(16, 80)]),
    (u64::MAX, [Rate::new(10, 40), Rate::new(10, 48)]),
];
/// Limits for the second rate of a row of [`RATES`]. The second rate applies only if the next symbol follows within the
/// time that a retransmission takes, divided by [`SOON`], and within [`LONGEST_SOON`].
const SOON: u32 = 4;
const LONGEST_SOON: Duration = Duration::from_millis(12);
/// Minimum number of packets in a tail that is worth a symbol.
const LEAST_TAIL: u32 = 3;
pub(super) const TAIL_AFTER: Duration = PAUSE;
/// Number of recovered packets remembered; a power of two.
const REMEMBERED: usize = 1024;
/// Maximum length of a range of recovered packets; the rest of a longer range is ignored.
const MOST_RECOVERED: u16 = 64;
