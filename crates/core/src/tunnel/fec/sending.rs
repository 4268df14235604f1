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
    /// From the first packet that needs it on.
    encoder: Option<Box<Encoder>>,
    /// Of packets somebody waits for.
    losses: Losses,
    /// What it takes to send a lost packet again, and for how much of the time that was done.
    repaired_after: Duration,
    stalls: Stalls,
    /// When the last packet went out, and the mean time between two.
    pushed_at: Option<Instant>,
    gap: Duration,
    /// Packets worth a repair since the last symbol.
    uncovered: u32,
    /// Packets in close succession up to now, and when that ends.
    burst: u32,
    rest_at: Option<Instant>,
    /// When nothing has followed them for long enough.
    tail_at: Option<Instant>,
    /// What was next at the first symbol of those that followed each other, from which on the other end remembers what comes, and when
    /// the latest was.
    remembered: Option<(Seq, Instant)>,
    /// What the other end has computed, by number.
    recovered: Vec<Option<Seq>>,
    /// Of packets worth a repair that have a deadline.
    frames: Frames,
    /// Whether symbols follow the ends of frames.
    has_frames: bool,
    /// The number after the newest packet's.
    next: Seq,
}

impl Sending {
    /// Nothing was sent yet. `has_frames`: symbols follow the ends of frames.
    pub(in super::super) fn new(has_frames: bool) -> Self {
        Self {
            has_frames,
            ..Self::default()
        }
    }

    /// Takes the packet that will be sent next, and whether it is worth a symbol.
    ///
    /// `repaired_after`: what it takes to send a lost packet again.
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
        // On average the loss is half an interval before the symbol.
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

    /// Notes a data datagram on `id`; `is_awaited`: somebody waits for its packet, and no other brings it.
    pub(in super::super) fn on_sent(&mut self, id: PathId, is_awaited: bool) {
        if is_awaited {
            self.losses.on_sent(id);
        }
    }

    /// Notes that something lost is sent again, for which its flow waits.
    pub(in super::super) fn on_repair(&mut self, now: Instant) {
        if self.repaired_after > SHORT_STALL {
            self.stalls.on_loss(now, self.repaired_after);
        }
    }

    /// Notes the loss of a packet somebody waits for on `id`, a path of least `round_trip` that loses `floor_ppm` whatever one
    /// sends.
    pub(in super::super) fn on_lost(&mut self, id: PathId, round_trip: Duration, floor_ppm: u32) {
        let is_quick = |(below, ppm): &(Duration, u32)| round_trip < *below && floor_ppm < *ppm;
        if !QUICK.iter().any(is_quick) {
            self.losses.on_lost(id);
        }
    }

    /// Forgets the path that had `id`: another takes its place.
    pub(in super::super) fn forget(&mut self, id: PathId) {
        self.losses.forget(id);
    }

    /// Sets when the tail is due, for a packet was sent. A trickle has no tail: it would be one symbol for three packets.
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

    /// No path was ready for the tail.
    pub(in super::super) fn give_up_tail(&mut self, now: Instant) {
        self.tail_at = self.tail_at.filter(|at| *at > now);
    }

    /// When a symbol is due if nothing is sent before.
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

    /// No packet waits: a frame ends here, if nothing has followed for long enough.
    pub(in super::super) fn pause(&mut self, now: Instant) {
        if self.tail_due().is_some_and(|at| at <= now) {
            self.frames.pause();
        }
    }

    /// Writes the symbol that is due. `least_delay`: how long it takes at least until it is there.
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

    /// Takes note of a symbol; how many packets before it the other end remembers, if they came. None need be before the first
    /// symbol, which covers what there is.
    fn known(&mut self, now: Instant) -> usize {
        let from = self
            .remembered
            .filter(|(_, at)| now.since(*at) < FORGET)
            .map(|(from, _)| from);
        self.remembered = Some((from.unwrap_or(self.next), now));
        let pkts = from.and_then(|from| usize::try_from(self.next.distance_from(from)).ok());
        pkts.map_or(usize::MAX, |pkts| pkts.max(COVERED[0].into()))
    }

    /// The packet `seq`, which was kept, is told missing.
    pub(in super::super) fn on_missing(&mut self, seq: Seq) {
        self.frames.on_lost(seq);
    }

    /// The other end has computed the packets of these ranges.
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

    /// Whether the other end has said that it has computed `seq`.
    pub(in super::super) fn has_recovered(&self, seq: Seq) -> bool {
        self.recovered.get(seq.0 as usize % REMEMBERED) == Some(&Some(seq))
    }

    /// Packets for one symbol; `None` while there is hardly a loss.
    fn interval(&self) -> Option<u32> {
        self.rate().map(|rate| rate.interval)
    }

    /// How many symbols there are; `None` while there is hardly a loss.
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

/// Of repair symbols.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Packets for one.
    interval: u32,
    /// Packets it covers.
    covered: u32,
}

impl Rate {
    const fn new(interval: u32, covered: u32) -> Self {
        Self { interval, covered }
    }
}

/// For how much of the time something lost was being sent again.
#[derive(Debug, Default)]
struct Stalls {
    /// When the present [`STALLS_OVER`] began, and how much of it that was; the same of the one before.
    since: Instant,
    present: Duration,
    before: Duration,
    /// When the last is over.
    until: Instant,
    are_many: bool,
}

impl Stalls {
    /// A packet was lost, and sending it again takes `repaired_after`.
    fn on_loss(&mut self, now: Instant, repaired_after: Duration) {
        let until = now + repaired_after;
        self.present += until.since(self.until.max(now));
        self.until = self.until.max(until);
    }

    /// Finds out whether there are many.
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

/// Over how long stalls are counted, and which share of the time is much: a symbol costs a part in 27, or in 41.
const STALLS_OVER: Duration = Duration::from_secs(4);
const MANY_STALLS: u32 = 8;
/// A shorter one is bridged by what stands in the queues; and where round trips are short, few losses are mostly of a short queue
/// that overflows, which symbols would feed.
const SHORT_STALL: Duration = Duration::from_millis(100);
/// What is lost on a path of a shorter round trip is left to being sent again: it is there about as soon, and most of it is of a
/// short queue that overflows; unless the path loses that much (ppm) by itself: below both of a row.
const QUICK: [(Duration, u32); 2] = [
    (Duration::from_millis(20), 40_000),
    (Duration::from_millis(45), 15_000),
];
/// Losses below this are left to being sent again.
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
/// Fewer packets are no tail worth a symbol.
const LEAST_TAIL: u32 = 3;
pub(super) const TAIL_AFTER: Duration = PAUSE;
/// Numbers of computed packets remembered. A power of two.
const REMEMBERED: usize = 1024;
/// Most of one range.
const MOST_RECOVERED: u16 = 64;
