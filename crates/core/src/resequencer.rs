//! The resequencer: releases packets in the order of their flow. A flow waits only for its own packets, so there is no
//! head-of-line blocking between flows. A packet that has to wait is *held*, that is, buffered.
//!
//! Packets of one association carry a global sequence number G and the distance to the previous packet *of the same
//! flow* (the flow step). A packet is released as soon as its flow's predecessor has been released. The state consists
//! of one table entry per G; there is no table of flows.
//!
//! A packet whose predecessor is missing is held until one of these events:
//!
//! 1. The predecessor arrives and is released.
//! 2. The predecessor is *known lost*, and the sender does not retransmit it or its retransmission has not arrived in
//!    time (`repairs`). Each packet also names the G sent before it on its own path. Paths keep order, so if the packet
//!    with that G is missing, the path has lost it. If a path has lost several packets in a row, only the last of them
//!    is named. The others are known lost once the number of missing Gs between their neighbours equals the number of
//!    skipped path sequence numbers. Datagrams without packets name no G, but show that a datagram was lost; the
//!    resequencer waits for its retransmission as well. Each path has a small reordering window of packets or time,
//!    which widens if the path reorders. The flow step of a lost packet is lost with the packet, so its successor also
//!    waits until every older packet has arrived or counts as lost.
//! 3. Its *deadline* passes: the time by which all packets sent before it should have arrived over the slowest path, as
//!    far as delays are known. If a path has not yet delivered the missing packet or a later one, and packets keep
//!    arriving on the path, its queue has grown. The deadline is then extended, up to [`LONGEST_HOLD`]. If the sender
//!    retransmits, a packet waits for its flow's own predecessor for up to [`LONGEST_LATE_HOLD`] unless the predecessor
//!    is known lost. This also applies if the predecessor's path has been silent for less than that time. After the
//!    deadline, all older missing packets count as lost. Only the deadline of the oldest held packet is checked, so the
//!    waiting times of many gaps do not add up (`docs/algorithms.md` section 6, trap 2).
//!
//! A packet that arrives after it was counted as lost is released at once and counted as late. TCP and QUIC reorder it
//! themselves, so no packet is wasted.
//!
//! Bounds: the table covers at most [`MAX_SPAN`] numbers, and at most [`MAX_HELD`] packets are held. Beyond either
//! bound the oldest packets are released early. Cost per packet: O(1) amortised.
//!
//! This is the default. A sender may require one order over all flows instead ([`InOrder`]). [`AnyResequencer`]
//! contains either of the two.
//!
//! Compare MP-DCCP's active reordering (draft-amend-iccrg-multipath-reordering), which waits per association instead.

use core::time::Duration;
use std::collections::VecDeque;

use crate::{
    ids::{PathId, Seq},
    packet::PacketBuf,
    time::Instant,
};

mod any;
mod gaps;
mod holds;
mod in_order;
mod repairs;
mod ring;

pub use any::AnyResequencer;
pub use in_order::InOrder;

use gaps::{Gap, PathOrder};
use holds::HoldTimes;
use repairs::Repairs;
use ring::Ring;

/// Maximum span of global sequence numbers that the table covers.
pub const MAX_SPAN: u32 = 1 << 16;
/// Maximum number of packets held at once: the full packets that arrive in [`LONGEST_LATE_HOLD`] at 460 Mbit/s.
pub const MAX_HELD: usize = 16_384;
/// Maximum hold time by a computed deadline, and maximum wait for packets in flight if the sender does not retransmit.
/// It is shorter than TCP's minimum retransmission timeout (200 ms in Linux).
pub const LONGEST_HOLD: Duration = Duration::from_millis(150);
/// Maximum hold time of a packet whose predecessor is late but not known lost, if the sender retransmits. Packets on a
/// path that has become slow are retransmitted on other paths, as far as the repair budget permits, so most of them
/// arrive. Releasing the successors early signals a loss to QUIC, which then reduces its window by 30 %. A TCP sender
/// whose timer expires in the meantime detects that the timeout was spurious (RFC 4015, RFC 5682).
pub const LONGEST_LATE_HOLD: Duration = Duration::from_millis(400);

/// One packet that arrived.
#[derive(Debug)]
pub struct Arrival {
    /// Global sequence number of the packet.
    pub seq: Seq,
    /// Distance to the previous packet of the flow; 0 if the flow has no previous packet.
    pub flow_step: u16,
    /// Path on which the packet arrived, and its place there; `None` if the packet was recovered by FEC.
    pub way: Option<Way>,
    /// Time by which all packets sent before this packet should have arrived.
    pub deadline: Instant,
    /// Maximum duration of a retransmission after the loss is known; `None` if the sender does not retransmit.
    pub repair: Option<Duration>,
    /// The packet.
    pub packet: PacketBuf,
}

/// The path on which a packet arrived, and the packet's place there.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The path on which the packet arrived.
    pub path: PathId,
    /// Path sequence number of the packet.
    pub path_seq: Seq,
    /// Global sequence number of the packet sent before this packet on the path, if it is known.
    pub path_previous: Option<Seq>,
    /// Whether packets with lower global numbers were still to be sent when this packet was sent. If so, the packet
    /// does not show that the path has delivered all lower numbers.
    pub is_out_of_turn: bool,
}

/// Result of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Released in order, at once.
    Released,
    /// Held until its flow's predecessor is released or counted as lost.
    Held,
    /// Released although it was already counted as lost, so perhaps out of order.
    Late,
    /// A duplicate: dropped.
    Duplicate,
    /// Older than the table: dropped.
    TooOld,
}

/// Counters of a [`Resequencer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of packets released in their flow's order without waiting.
    pub released_at_once: u64,
    /// Number of packets released in their flow's order after waiting.
    pub released_after_hold: u64,
    /// Number of packets released after they had been counted as lost.
    pub released_late: u64,
    /// Number of missing packets counted as lost because of path sequence numbers.
    pub lost_known: u64,
    /// Number of missing packets counted as lost because a deadline passed.
    pub lost_expired: u64,
    /// Number of missing packets counted as lost because a bound was reached.
    pub lost_overflow: u64,
    /// Number of duplicates dropped.
    pub duplicates: u64,
    /// Number of packets dropped as too old.
    pub too_old: u64,
}

/// The reorder buffer of one association.
#[derive(Debug)]
pub struct Resequencer {
    /// The states of the numbers `next - len .. next`.
    ring: Ring,
    /// Oldest number that is neither received nor counted as lost.
    frontier: Seq,
    /// Number after the highest received number.
    next: Seq,
    /// Slots with the held packets, to which the entries refer.
    held: Vec<Option<HeldPacket>>,
    free_slots: Vec<u32>,
    held_len: usize,
    /// Lower bound of the numbers of held packets.
    oldest_held: Option<Seq>,
    /// The paths by id, up to the highest id in use.
    paths: Vec<PathOrder>,
    holds: HoldTimes,
    repairs: Repairs,
    stats: Stats,
    /// Number of entries and gaps visited since [`Self::take_steps`].
    steps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// Slot of the held packet that waits for this number; `NO_SLOT` if no packet waits.
    successor: u32,
    /// Slot of the packet with this number while it is held.
    own: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Missing,
    Held,
    Released,
    Lost,
}

#[derive(Debug)]
struct HeldPacket {
    seq: Seq,
    /// Global number of the predecessor for which the packet waits.
    previous: Seq,
    deadline: Instant,
    since: Instant,
    packet: PacketBuf,
}

const NO_SLOT: u32 = u32::MAX;
const EMPTY: Entry = Entry {
    state: State::Missing,
    successor: NO_SLOT,
    own: NO_SLOT,
};
/// Entry for numbers before the table. They count as released, so a packet with such a number is considered a
/// duplicate.
const UNKNOWN: Entry = Entry {
    state: State::Released,
    ..EMPTY
};

impl Default for Resequencer {
    fn default() -> Self {
        Self::new()
    }
}

impl Resequencer {
    /// Returns an empty buffer that expects global sequence number 0 first.
    #[must_use]
    pub fn new() -> Self {
        Self {
            ring: Ring::default(),
            frontier: Seq(0),
            next: Seq(0),
            held: Vec::new(),
            free_slots: Vec::new(),
            held_len: 0,
            oldest_held: None,
            paths: Vec::new(),
            holds: HoldTimes::default(),
            repairs: Repairs::default(),
            stats: Stats::default(),
            steps: 0,
        }
    }

    /// Returns the number of table entries and gaps visited since the last call. This is the work that the sender has
    /// caused at this end.
    pub fn take_steps(&mut self) -> u64 {
        core::mem::take(&mut self.steps)
    }

    /// Processes one packet. Appends the packets that may leave now to `out`, in order.
    ///
    /// A dropped packet (see [`Verdict`]) is appended to `dropped`, so that its buffer is not lost.
    pub fn on_packet(
        &mut self,
        now: Instant,
        arrival: Arrival,
        out: &mut VecDeque<PacketBuf>,
        dropped: &mut Vec<PacketBuf>,
    ) -> Verdict {
        let Arrival {
            seq,
            flow_step,
            way,
            deadline,
            repair,
            packet,
        } = arrival;
        self.repairs.set_time(repair);
        if !self.make_room(now, seq, out) {
            self.stats.too_old += 1;
            dropped.push(packet);
            return Verdict::TooOld;
        }
        let state = self.entry(seq).state;
        if let (State::Lost, Some(way)) = (state, way) {
            self.path_mut(way.path).on_late(now, way.path_seq);
        }
        let verdict = match state {
            State::Held | State::Released => {
                self.stats.duplicates += 1;
                dropped.push(packet);
                Verdict::Duplicate
            }
            State::Lost if self.frontier.is_after(seq) => {
                self.stats.released_late += 1;
                self.release(now, seq, packet, out);
                Verdict::Late
            }
            State::Lost | State::Missing if self.may_leave(seq, flow_step) => {
                self.stats.released_at_once += 1;
                self.holds.record(Duration::ZERO);
                self.release(now, seq, packet, out);
                Verdict::Released
            }
            State::Lost | State::Missing if self.is_claimed(seq, flow_step) => {
                self.stats.released_late += 1;
                self.release(now, seq, packet, out);
                Verdict::Late
            }
            State::Lost | State::Missing => {
                self.hold(now, seq, flow_step, deadline, packet);
                Verdict::Held
            }
        };
        if let Some(way) = way {
            let order = self.path_mut(way.path);
            order.on_arrival(now, seq, way);
        } else {
            self.paths.iter_mut().for_each(PathOrder::on_computed);
        }
        self.advance(now, out);
        if verdict != Verdict::Duplicate && verdict != Verdict::Late {
            self.paths.iter_mut().for_each(|path| path.on_found(seq));
        }
        self.settle_gaps(now, out);
        if self.held_len > MAX_HELD {
            self.give_up_oldest(now, Loss::Overflow, out);
        }
        verdict
    }

    /// Records that the datagram `path_seq` on `path` carried no packet.
    pub fn on_empty(&mut self, now: Instant, path: PathId, path_seq: Seq) {
        self.path_mut(path).on_empty(now, path_seq);
    }

    /// Records that no datagram follows the datagram `path_seq` on `path` for now. The datagram `path_seq` carried the
    /// packet `seq`.
    pub fn on_tail(
        &mut self,
        now: Instant,
        path: PathId,
        (path_seq, seq): (Seq, Seq),
        out: &mut VecDeque<PacketBuf>,
    ) {
        if self.covers(seq) || seq.distance_from(self.next).unsigned_abs() < MAX_SPAN {
            self.path_mut(path).on_tail(now, seq, path_seq);
            self.settle_gaps(now, out);
        }
    }

    /// Releases packets whose deadline has passed.
    pub fn on_timeout(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) {
        self.settle_gaps(now, out);
        while let Some((slot, held)) = self.oldest() {
            if held.deadline > now {
                break;
            }
            let frontier = self.frontier;
            // The global numbers of datagrams lost before a datagram without a packet are unknown. Most likely they are
            // the missing numbers. Each held packet waits at most once for the retransmission of such datagrams, even
            // if more datagrams are skipped later.
            let unnamed = || {
                let paths = self.paths.iter();
                let at = paths
                    .filter_map(|path| path.unnamed_before(held.seq))
                    .max()?;
                self.repairs.due_since(now, at.min(held.since))
            };
            let repair = self.repairs.due(now, frontier, held.seq);
            let repair = repair.or_else(unnamed);
            let repair = repair.map(|at| (at, held.since + self.repairs.longest_hold()));
            let repairs = self.repairs.are_made();
            let may_come = |seq: Seq, longest: Duration, silence: Duration| {
                let may_come = |path: &PathOrder| {
                    path.may_bring(now, seq, silence) || repairs && path.may_miss(seq)
                };
                let limit = held.since + longest;
                let is_coming = limit > now && self.paths.iter().any(may_come);
                is_coming.then_some((now + RECHECK, limit))
            };
            // The next deadline and its upper limit.
            let wait = repair.filter(|(_, limit)| *limit > now);
            let wait = wait.or_else(|| {
                let is_late = repairs && self.is_late(held.previous);
                let late = || may_come(held.previous, LONGEST_LATE_HOLD, LONGEST_LATE_HOLD);
                is_late.then(late).flatten()
            });
            let wait = wait.or_else(|| may_come(frontier, LONGEST_HOLD, FLOWING));
            if let Some((at, limit)) = wait {
                if let Some(held) = &mut self.held[slot] {
                    held.deadline = limit.min(at);
                }
                break;
            }
            self.give_up_oldest(now, Loss::Expired, out);
        }
    }

    /// Returns the time at which [`Self::on_timeout`] must be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.oldest()?.1.deadline;
        // Gaps only matter while a packet is held.
        let gap = self.paths.iter().filter_map(PathOrder::next_verdict).min();
        Some(gap.map_or(deadline, |gap| gap.min(deadline)))
    }

    /// Releases packets, oldest first, until at most `most` are held.
    pub fn trim(&mut self, now: Instant, most: usize, out: &mut VecDeque<PacketBuf>) {
        while self.held_len > most && self.oldest_held.is_some() {
            self.give_up_oldest(now, Loss::Overflow, out);
        }
    }

    /// Returns the number of packets held now.
    #[must_use]
    pub fn held_len(&self) -> usize {
        self.held_len
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the 95th percentile of recent hold times; packets that were not held count as zero.
    #[must_use]
    pub fn hold_p95(&self) -> Duration {
        self.holds.p95()
    }

    /// Appends every held packet to `out`, for a shutdown or a reset.
    pub fn drain(&mut self, out: &mut Vec<PacketBuf>) {
        out.extend(self.held.drain(..).flatten().map(|held| held.packet));
        *self = Self {
            stats: self.stats,
            ..Self::new()
        };
    }

    /// Releases all held packets, and frees the memory that an association without traffic does not need. Missing
    /// packets count as lost, and as duplicates if they arrive afterwards.
    pub fn release_memory(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) {
        self.give_up_before(now, self.next, Loss::Expired, out);
        if self.held_len == 0 {
            self.ring.release();
            self.held = Vec::new();
            self.free_slots = Vec::new();
        }
    }

    fn entry(&self, seq: Seq) -> Entry {
        self.ring.get(seq)
    }

    fn entry_mut(&mut self, seq: Seq) -> &mut Entry {
        self.ring.get_mut(seq)
    }

    /// Returns the order of a path, which begins at its first use.
    fn path_mut(&mut self, id: PathId) -> &mut PathOrder {
        let index = id.index().min(PathId::MAX - 1);
        if index >= self.paths.len() {
            self.paths.resize_with(index + 1, PathOrder::default);
        }
        &mut self.paths[index]
    }

    /// Whether the table covers `seq`.
    fn covers(&self, seq: Seq) -> bool {
        let back = self.next.distance_from(seq);
        back > 0 && usize::try_from(back).is_ok_and(|back| back <= self.ring.len())
    }

    /// Extends the table to `seq`. Returns `false` if `seq` is too old.
    fn make_room(&mut self, now: Instant, seq: Seq, out: &mut VecDeque<PacketBuf>) -> bool {
        let ahead = seq.distance_from(self.next);
        if ahead < 0 {
            return self.covers(seq);
        }
        if ahead.unsigned_abs() >= MAX_SPAN {
            // The peer skipped more numbers than can be in flight, so do not wait for older packets.
            self.give_up_before(now, self.next, Loss::Overflow, out);
            self.steps += self.ring.len() as u64;
            self.ring.clear();
            self.frontier = seq;
            self.next = seq;
        }
        let end = seq.plus(1);
        while end.distance_from(self.frontier).unsigned_abs() as usize > self.ring.len() {
            if self.ring.len() < MAX_SPAN as usize {
                self.grow();
            } else {
                let limit = end.minus(MAX_SPAN);
                self.give_up_before(now, limit, Loss::Overflow, out);
            }
        }
        self.steps += u64::from(end.distance_from(self.next).unsigned_abs());
        while self.next != end {
            let next = self.next;
            *self.entry_mut(next) = EMPTY;
            self.next = next.plus(1);
        }
        true
    }

    fn grow(&mut self) {
        self.steps += 2 * self.ring.len() as u64;
        self.ring.grow(self.next);
    }

    /// Whether a packet with this flow step can be released without waiting.
    fn may_leave(&self, seq: Seq, flow_step: u16) -> bool {
        let previous = seq.minus(u32::from(flow_step));
        if flow_step == 0 || !self.covers(previous) {
            return true;
        }
        match self.entry(previous).state {
            State::Released => true,
            State::Lost => self.frontier.is_after(previous),
            State::Held | State::Missing => false,
        }
    }

    /// Whether another held packet names the same predecessor. No honest sender sends such packets, and an entry stores
    /// only one successor.
    fn is_claimed(&self, seq: Seq, flow_step: u16) -> bool {
        self.entry(seq.minus(u32::from(flow_step))).successor != NO_SLOT
    }

    fn hold(
        &mut self,
        now: Instant,
        seq: Seq,
        flow_step: u16,
        deadline: Instant,
        packet: PacketBuf,
    ) {
        let previous = seq.minus(u32::from(flow_step));
        let held = Some(HeldPacket {
            seq,
            previous,
            deadline,
            since: now,
            packet,
        });
        let slot = if let Some(slot) = self.free_slots.pop() {
            self.held[slot as usize] = held;
            slot
        } else {
            self.held.push(held);
            u32::try_from(self.held.len() - 1).unwrap_or(NO_SLOT)
        };
        self.held_len += 1;
        let entry = self.entry_mut(seq);
        entry.state = State::Held;
        entry.own = slot;
        self.entry_mut(previous).successor = slot;
        if self.oldest_held.is_none_or(|oldest| oldest.is_after(seq)) {
            self.oldest_held = Some(seq);
        }
    }

    /// Releases `packet` and then every held packet that waited for it, in order.
    fn release(
        &mut self,
        now: Instant,
        seq: Seq,
        packet: PacketBuf,
        out: &mut VecDeque<PacketBuf>,
    ) {
        out.push_back(packet);
        let entry = self.entry_mut(seq);
        entry.state = State::Released;
        entry.own = NO_SLOT;
        self.release_successors(now, seq, out);
    }

    fn release_successors(&mut self, now: Instant, seq: Seq, out: &mut VecDeque<PacketBuf>) {
        let mut seq = seq;
        loop {
            let slot = core::mem::replace(&mut self.entry_mut(seq).successor, NO_SLOT);
            if slot == NO_SLOT {
                return;
            }
            let Some(held) = self.held[slot as usize].take() else {
                return;
            };
            self.free_slots.push(slot);
            self.held_len -= 1;
            self.stats.released_after_hold += 1;
            self.holds.record(now.since(held.since));
            out.push_back(held.packet);
            seq = held.seq;
            let entry = self.entry_mut(seq);
            entry.state = State::Released;
            entry.own = NO_SLOT;
        }
    }

    /// Whether `seq` is missing and not known to be lost.
    fn is_late(&self, seq: Seq) -> bool {
        self.entry(seq).state == State::Missing && !self.repairs.has_lost(seq)
    }

    /// Moves the frontier past all numbers received or counted as lost, and releases packets that waited for a number
    /// counted as lost.
    fn advance(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) {
        while self.frontier != self.next {
            self.steps += 1;
            let seq = self.frontier;
            match self.entry(seq).state {
                State::Missing => break,
                State::Lost => {
                    self.frontier = seq.plus(1);
                    self.release_successors(now, seq, out);
                }
                State::Held | State::Released => self.frontier = seq.plus(1),
            }
        }
        if let Some(oldest) = self.oldest_held {
            self.oldest_held = self.first_held_from(oldest);
        }
    }

    fn first_held_from(&mut self, seq: Seq) -> Option<Seq> {
        if self.held_len == 0 {
            return None;
        }
        // No packet before the frontier is held, because its chain of predecessors would have been released.
        let mut seq = if self.frontier.is_after(seq) {
            self.frontier
        } else {
            seq
        };
        while seq != self.next {
            self.steps += 1;
            if self.entry(seq).state == State::Held {
                return Some(seq);
            }
            seq = seq.plus(1);
        }
        None
    }

    /// Returns the oldest held packet and its slot.
    fn oldest(&self) -> Option<(usize, &HeldPacket)> {
        let slot = self.entry(self.oldest_held?).own as usize;
        Some((slot, self.held.get(slot)?.as_ref()?))
    }

    /// Counts the numbers as lost that are known lost from path sequence numbers.
    fn settle_gaps(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) {
        for index in 0..self.paths.len() {
            if !self.paths[index].has_gaps() {
                continue;
            }
            let limits = self.paths[index].limits(now);
            let mut gaps = self.paths[index].take_gaps();
            self.steps += gaps.len() as u64;
            gaps.retain_mut(|gap| {
                if !gap.is_due(&limits) {
                    return true;
                }
                // The packet may have arrived already, for example if the lost datagram was a copy.
                let is_found = gap.count == 1
                    && self.covers(gap.last)
                    && self.entry(gap.last).state != State::Missing;
                let span = (gap.after, gap.last);
                if is_found || self.repairs.expect(now, span, gap.count, self.frontier) {
                    return false;
                }
                if !gap.is_last_settled {
                    gap.is_last_settled = true;
                    self.lose(gap.last, Loss::Known);
                }
                !self.settle_burst(gap)
            });
            self.paths[index].put_back(gaps);
        }
        self.advance(now, out);
        self.repairs.forget_before(self.frontier);
    }

    /// Counts the members of a burst as lost once they can be identified. Returns whether the burst is settled.
    fn settle_burst(&mut self, gap: &mut Gap) -> bool {
        let others = gap.count - 1;
        if others == 0 || gap.is_beginning() || !gap.last.is_after(self.frontier) {
            return true;
        }
        let mut seq = gap.after.plus(1);
        if self.frontier.is_after(seq) {
            seq = self.frontier;
        }
        if gap.last.distance_from(seq) > LONGEST_BURST_SPAN {
            return true;
        }
        let span = u64::from(gap.last.distance_from(seq).unsigned_abs());
        self.steps += if gap.missing.is_none() { span } else { 1 };
        let missing = *gap.missing.get_or_insert_with(|| {
            let mut missing = 0;
            let mut seq = seq;
            while gap.last.is_after(seq) {
                missing += u32::from(self.entry(seq).state == State::Missing);
                seq = seq.plus(1);
            }
            missing
        });
        // More numbers are missing than the path has lost, so packets on other paths are still in flight.
        if missing > others {
            return false;
        }
        self.steps += span;
        while gap.last.is_after(seq) {
            self.lose(seq, Loss::Known);
            seq = seq.plus(1);
        }
        true
    }

    /// Counts `seq` as lost if it is missing.
    fn lose(&mut self, seq: Seq, loss: Loss) {
        if !self.covers(seq)
            || self.frontier.is_after(seq)
            || self.entry(seq).state != State::Missing
        {
            return;
        }
        self.entry_mut(seq).state = State::Lost;
        *match loss {
            Loss::Expired => &mut self.stats.lost_expired,
            Loss::Known => &mut self.stats.lost_known,
            Loss::Overflow => &mut self.stats.lost_overflow,
        } += 1;
    }

    /// Counts all missing numbers before the oldest held packet as lost, which releases that packet.
    fn give_up_oldest(&mut self, now: Instant, loss: Loss, out: &mut VecDeque<PacketBuf>) {
        if let Some(oldest) = self.oldest_held {
            self.give_up_before(now, oldest, loss, out);
        }
    }

    fn give_up_before(
        &mut self,
        now: Instant,
        end: Seq,
        loss: Loss,
        out: &mut VecDeque<PacketBuf>,
    ) {
        let mut seq = self.frontier;
        self.steps += u64::from(end.distance_from(seq).max(0).unsigned_abs());
        while end.is_after(seq) {
            self.lose(seq, loss);
            seq = seq.plus(1);
        }
        self.advance(now, out);
    }
}

/// Reason for which a missing packet counts as lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Expired,
    Known,
    Overflow,
}

/// Duration without packets on a path after which a held packet no longer waits for that path. It applies to hold times
/// of up to [`LONGEST_HOLD`].
const FLOWING: Duration = Duration::from_millis(20);
/// Interval at which a passed deadline is checked again while the missing packet may still arrive.
const RECHECK: Duration = Duration::from_millis(2);
/// Maximum span in global numbers of a series of lost packets that is settled by counting. Longer series are left to
/// the deadline, because scanning them costs too much.
const LONGEST_BURST_SPAN: i32 = 4096;

#[cfg(test)]
mod tests;
