//! One order over all flows: the receiver of "Multipath bonding at Layer 3" (ANRW 2016), section 4.3.
//!
//! Packets are released in the order of their global sequence numbers:
//!
//! - The next number, one above the last released number, is released at once. All held packets that follow without a
//!   gap are released with it.
//! - A packet with a higher number is held, with its arrival time.
//! - A packet with a lower number is dropped, because it already counts as lost.
//! - When the first held packet has waited for the timeout, it is released although packets before it are missing. All
//!   packets that follow it without a gap are released with it.
//!
//! The paper accepts "the first one of a new flow" whatever its number is. Here the first number of an association is
//! known to be 0, so no packet is dropped if the slower path carries number 0. Arrivals within [`WINDOW`] numbers of
//! the last released number are remembered only to distinguish duplicates from packets that arrived too late.
//!
//! Bounds: at most [`MAX_HELD`] packets are held; beyond that the first packet is released early. Memory: 16 KiB from
//! the first packet on, and the packets held. Cost per packet: O(1) on paths that keep order; on other paths, held
//! entries are moved to insert a packet.

use core::time::Duration;
use std::collections::VecDeque;

use super::{Arrival, Entry, HoldTimes, MAX_HELD, Resequencer, Ring, State, Stats, Verdict};
use crate::{ids::Seq, packet::PacketBuf, time::Instant};

/// Distance before and after the last released number within which arrivals are remembered.
const WINDOW: u32 = 1 << 16;

/// The resequencer of one association whose sender requires one order over all flows.
#[derive(Debug)]
pub struct InOrder {
    timeout: Duration,
    /// Last number that was released or counted as lost.
    last: Seq,
    /// Held packets sorted by number; all numbers are above `last + 1`.
    held: VecDeque<Held>,
    /// One bit for each number in the window, which says whether its packet has arrived. Bits of held packets are not
    /// set yet. Empty until the first packet, then [`WORDS`] words.
    come: Vec<u64>,
    holds: HoldTimes,
    stats: Stats,
    steps: u64,
}

#[derive(Debug)]
struct Held {
    seq: Seq,
    since: Instant,
    packet: PacketBuf,
}

impl InOrder {
    /// Returns an empty buffer that expects global sequence number 0 first. `timeout` is how long to wait for missing
    /// packets.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            last: Seq(0).minus(1),
            held: VecDeque::new(),
            come: Vec::new(),
            holds: HoldTimes::default(),
            stats: Stats::default(),
            steps: 0,
        }
    }

    /// Returns the number of held packets moved and of words of bits processed; see [`Resequencer::take_steps`].
    pub fn take_steps(&mut self) -> u64 {
        core::mem::take(&mut self.steps)
    }

    /// Returns a buffer that continues from the state of `from`, with its held packets.
    pub(super) fn take_over(from: &mut Resequencer, timeout: Duration) -> Self {
        let mut order = Self {
            last: from.frontier.minus(1),
            holds: core::mem::take(&mut from.holds),
            stats: from.stats,
            ..Self::new(timeout)
        };
        let span = u32::try_from(from.ring.len()).unwrap_or(WINDOW).min(WINDOW);
        for seq in (1..=span).rev().map(|back| from.next.minus(back)) {
            let Entry { state, own, .. } = from.entry(seq);
            match state {
                State::Released => order.mark(seq),
                State::Held => {
                    let held = from.held.get_mut(own as usize).and_then(Option::take);
                    order.held.extend(held.map(|held| Held {
                        seq,
                        since: held.since,
                        packet: held.packet,
                    }));
                }
                State::Lost | State::Missing => {}
            }
        }
        order
    }

    /// Releases all held packets and returns a per-flow buffer that continues from the present state. Packets that are
    /// still missing are released when they arrive.
    pub(super) fn hand_over(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> Resequencer {
        let first = self.last;
        while self.release_first(now, out).is_some() {}
        let mut to = Resequencer {
            holds: core::mem::take(&mut self.holds),
            stats: self.stats,
            ..Resequencer::new()
        };
        let span = self.last.distance_from(first).unsigned_abs() as usize + to.ring.len();
        let span = span.next_power_of_two().min(WINDOW as usize);
        to.ring = Ring::of_len(span);
        to.next = self.last.plus(1);
        to.frontier = to.next;
        let mut seq = to.next;
        for _ in 0..span {
            seq = seq.minus(1);
            if !self.has_come(seq) {
                to.entry_mut(seq).state = State::Lost;
            }
        }
        to
    }

    /// Sets how long to wait for missing packets.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Processes one packet; see [`Resequencer::on_packet`].
    ///
    /// [`Verdict::TooOld`] corresponds to "discarded" in the paper; [`Verdict::Late`] does not occur.
    pub fn on_packet(
        &mut self,
        now: Instant,
        arrival: Arrival,
        out: &mut VecDeque<PacketBuf>,
        dropped: &mut Vec<PacketBuf>,
    ) -> Verdict {
        let Arrival { seq, packet, .. } = arrival;
        let ahead = seq.distance_from(self.last);
        let is_known = ahead.unsigned_abs() < WINDOW;
        if is_known && self.has_come(seq) {
            self.stats.duplicates += 1;
            dropped.push(packet);
            return Verdict::Duplicate;
        }
        if ahead <= 0 {
            if is_known {
                self.mark(seq);
            }
            self.stats.too_old += 1;
            dropped.push(packet);
            return Verdict::TooOld;
        }
        if ahead == 1 {
            self.stats.released_at_once += 1;
            self.holds.record(Duration::ZERO);
            out.push_back(packet);
            self.move_to(seq);
            self.drain_contiguous(now, out);
            return Verdict::Released;
        }
        let last = self.last;
        let at = self
            .held
            .partition_point(|held| held.seq.distance_from(last) < ahead);
        if self.held.get(at).is_some_and(|held| held.seq == seq) {
            self.stats.duplicates += 1;
            dropped.push(packet);
            return Verdict::Duplicate;
        }
        let since = now;
        self.steps += at.min(self.held.len() - at) as u64;
        self.held.insert(at, Held { seq, since, packet });
        if self.held.len() > MAX_HELD {
            self.stats.lost_overflow += self.release_first(now, out).unwrap_or(0);
        }
        Verdict::Held
    }

    /// Releases packets that have waited for the timeout.
    pub fn on_timeout(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) {
        while self.poll_timeout().is_some_and(|at| at <= now) {
            self.stats.lost_expired += self.release_first(now, out).unwrap_or(0);
        }
    }

    /// Returns the time at which [`Self::on_timeout`] must be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.held.front().map(|first| first.since + self.timeout)
    }

    /// See [`Resequencer::trim`].
    pub fn trim(&mut self, now: Instant, most: usize, out: &mut VecDeque<PacketBuf>) {
        while self.held.len() > most {
            self.stats.lost_overflow += self.release_first(now, out).unwrap_or(0);
        }
    }

    /// Releases all held packets, and frees the memory that an association without traffic does not need. Packets that
    /// arrive again afterwards count as too old.
    pub fn release_memory(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) {
        while let Some(lost) = self.release_first(now, out) {
            self.stats.lost_expired += lost;
        }
        self.held = VecDeque::new();
        self.come = Vec::new();
    }

    /// Returns the number of packets held now.
    #[must_use]
    pub fn held_len(&self) -> usize {
        self.held.len()
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// See [`Resequencer::hold_p95`].
    #[must_use]
    pub fn hold_p95(&self) -> Duration {
        self.holds.p95()
    }

    /// Appends every held packet to `out`.
    pub fn drain(&mut self, out: &mut Vec<PacketBuf>) {
        out.extend(self.held.drain(..).map(|held| held.packet));
    }

    /// Releases the first held packet and all packets that follow without a gap. Returns how many missing numbers
    /// before it were counted as lost.
    fn release_first(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> Option<u64> {
        let first = self.held.pop_front()?;
        let lost = self.move_to(first.seq);
        self.let_go(now, first, out);
        self.drain_contiguous(now, out);
        Some(lost)
    }

    fn drain_contiguous(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) {
        loop {
            let next = self.last.plus(1);
            if let Some(held) = self.held.pop_front_if(|held| held.seq == next) {
                self.let_go(now, held, out);
            } else if !self.has_come(next) {
                return;
            }
            self.move_to(next);
        }
    }

    fn let_go(&mut self, now: Instant, held: Held, out: &mut VecDeque<PacketBuf>) {
        self.stats.released_after_hold += 1;
        self.holds.record(now.since(held.since));
        out.push_back(held.packet);
    }

    /// Makes `seq` the last released number. Returns how many numbers between the former last number and `seq` have not
    /// arrived. A jump is processed in words of 64 numbers.
    fn move_to(&mut self, seq: Seq) -> u64 {
        self.come.resize(WORDS, 0);
        let steps = seq.distance_from(self.last).unsigned_abs();
        let skipped = steps.saturating_sub(1);
        let mut missing = u64::from(skipped);
        if steps >= 2 * WINDOW {
            self.come.fill(0);
            self.steps += WORDS as u64;
        } else {
            // Numbers further ahead are outside the window.
            for (word, bits) in words(self.last.plus(1), skipped.min(WINDOW)) {
                missing -= u64::from((self.come[word] & bits).count_ones());
            }
            for (word, bits) in words(self.last.plus(WINDOW + 1), steps) {
                self.come[word] &= !bits;
                self.steps += 1;
            }
        }
        self.last = seq;
        self.mark(seq);
        missing
    }

    fn has_come(&self, seq: Seq) -> bool {
        let (word, bit) = place(seq);
        self.come.get(word).is_some_and(|bits| bits & bit != 0)
    }

    fn mark(&mut self, seq: Seq) {
        self.come.resize(WORDS, 0);
        let (word, bit) = place(seq);
        self.come[word] |= bit;
    }
}

/// Returns the words that contain the bits of `count` numbers from `first` on, with a mask of these bits in each word.
/// `count` is at most the window.
fn words(first: Seq, count: u32) -> impl Iterator<Item = (usize, u64)> {
    let (mut next, mut left) = (first, count);
    core::iter::from_fn(move || {
        let (word, _) = place(next);
        let from = next.0 % u64::BITS;
        let taken = left.min(u64::BITS - from);
        let bits = (u64::MAX >> (u64::BITS - taken.max(1))) << from;
        (next, left) = (next.plus(taken), left - taken);
        (taken > 0).then_some((word, bits))
    })
}

/// Returns the word index of a number and the mask of its bit.
fn place(seq: Seq) -> (usize, u64) {
    let bit = seq.0 as usize % (WORDS * 64);
    (bit / 64, 1 << (bit % 64))
}

const WORDS: usize = 2 * WINDOW as usize / 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const T: Duration = Duration::from_millis(50);

    /// A buffer and its output.
    struct Bench {
        order: InOrder,
        out: VecDeque<PacketBuf>,
        dropped: Vec<PacketBuf>,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                order: InOrder::new(T),
                out: VecDeque::new(),
                dropped: Vec::new(),
            }
        }

        fn starting_at(seq: u32) -> Self {
            let mut bench = Self::new();
            bench.order.last = Seq(seq).minus(1);
            bench
        }

        fn arrive(&mut self, at: u64, seq: u32) -> Verdict {
            let now = Instant::from_millis(at);
            let arrival = arrival(now, seq, 0);
            self.order
                .on_packet(now, arrival, &mut self.out, &mut self.dropped)
        }

        /// Returns the number of steps that a jump to `seq` takes.
        fn steps_to(&mut self, at: u64, seq: u32) -> u64 {
            self.arrive(at, seq);
            self.pass(at + 1_000);
            assert_eq!(self.order.last, Seq(seq));
            self.order.take_steps()
        }

        fn pass(&mut self, at: u64) {
            self.order
                .on_timeout(Instant::from_millis(at), &mut self.out);
        }

        fn left(&mut self) -> Vec<u32> {
            numbers(self.out.drain(..))
        }
    }

    #[test]
    fn a_jump_takes_a_step_for_64_numbers_and_no_more() {
        let mut bench = Bench::new();
        let mut seq = 0;
        bench.arrive(0, 0);
        for (at, jump) in [1, 63, 64, 131_071, 131_072, 1 << 30]
            .into_iter()
            .enumerate()
        {
            seq += jump;
            let steps = bench.steps_to(10_000 * at as u64, seq);
            assert!(
                steps <= 2 + u64::from(jump / 64).min(2048),
                "{jump}: {steps}"
            );
        }
    }

    #[test]
    fn a_jump_in_words_leaves_what_single_steps_leave() {
        let mut rng = Rng::new(7);
        for _ in 0..300 {
            let mut order = InOrder::new(T);
            order.last = Seq(u32::try_from(rng.below(1 << 32)).expect("32 bits"));
            order.come = (0..WORDS).map(|_| rng.next_u64()).collect();
            let base = order.last;
            let jump = 1 + u32::try_from(rng.below(2 * u64::from(WINDOW) - 1)).expect("small");
            let to = base.plus(jump);
            let mut come = order.come.clone();
            let mut missing = u64::from(jump) - 1;
            for seq in (1..=jump).map(|step| base.plus(step)) {
                let (word, bit) = place(seq);
                missing -= u64::from(seq != to && come[word] & bit != 0);
                let (word, bit) = place(seq.plus(WINDOW));
                come[word] &= !bit;
            }
            let (word, bit) = place(to);
            come[word] |= bit;
            assert_eq!(order.move_to(to), missing, "{jump}");
            assert!(order.come == come, "{jump}");
        }
    }

    fn arrival(now: Instant, seq: u32, flow_step: u16) -> Arrival {
        Arrival {
            seq: Seq(seq),
            flow_step,
            way: None,
            deadline: now + T,
            repair: None,
            packet: PacketBuf::from(seq.to_be_bytes().to_vec()),
        }
    }

    fn numbers(packets: impl Iterator<Item = PacketBuf>) -> Vec<u32> {
        let number = |packet: PacketBuf| {
            let bytes = packet.as_slice().try_into().expect("four bytes");
            u32::from_be_bytes(bytes)
        };
        packets.map(number).collect()
    }

    #[test]
    fn the_next_leaves_at_once_and_takes_what_waited_with_it() {
        let mut bench = Bench::new();
        assert_eq!(bench.arrive(0, 0), Verdict::Released);
        for seq in [2, 3, 5] {
            assert_eq!(bench.arrive(0, seq), Verdict::Held);
        }
        assert_eq!(bench.left(), [0]);
        assert_eq!(bench.arrive(0, 1), Verdict::Released);
        assert_eq!((bench.left(), bench.order.held_len()), (vec![1, 2, 3], 1));
        let stats = bench.order.stats();
        assert_eq!((stats.released_at_once, stats.released_after_hold), (2, 2));
    }

    #[test]
    fn after_the_timeout_of_the_first_it_leaves_and_what_comes_later_is_dropped() {
        let mut bench = Bench::new();
        bench.arrive(0, 3);
        bench.arrive(20, 4);
        bench.arrive(30, 7);
        bench.arrive(40, 6);
        assert_eq!(bench.order.poll_timeout(), Some(Instant::from_millis(50)));
        bench.pass(49);
        assert!(bench.left().is_empty());
        bench.pass(50);
        assert_eq!(bench.left(), [3, 4]);
        assert_eq!(bench.order.stats().lost_expired, 3);
        assert_eq!(bench.arrive(51, 1), Verdict::TooOld);
        assert_eq!(bench.arrive(51, 1), Verdict::Duplicate);
        assert_eq!(bench.arrive(51, 4), Verdict::Duplicate);
        // Number 6 arrived after 7, and its own arrival time counts.
        assert_eq!(bench.order.poll_timeout(), Some(Instant::from_millis(90)));
        bench.pass(90);
        assert_eq!(bench.left(), [6, 7]);
        assert_eq!((bench.order.stats().too_old, bench.dropped.len()), (1, 3));
    }

    #[test]
    fn after_a_release_of_memory_the_order_continues() {
        let mut bench = Bench::new();
        bench.arrive(0, 0);
        bench.arrive(1, 2);
        let now = Instant::from_millis(100);
        bench.order.release_memory(now, &mut bench.out);
        assert_eq!((bench.left(), bench.order.held_len()), (vec![0, 2], 0));
        assert_eq!(
            (bench.order.come.capacity(), bench.order.held.capacity()),
            (0, 0)
        );
        for old in [0, 1, 2] {
            assert_eq!(bench.arrive(200, old), Verdict::TooOld, "{old}");
        }
        assert_eq!(bench.arrive(200, 4), Verdict::Held);
        assert_eq!(bench.arrive(200, 3), Verdict::Released);
        assert_eq!(bench.left(), [3, 4]);
        assert_eq!(bench.arrive(200, 4), Verdict::Duplicate);
    }

    #[test]
    fn copies_of_held_packets_are_dropped() {
        let mut bench = Bench::new();
        bench.arrive(0, 5);
        assert_eq!(bench.arrive(1, 5), Verdict::Duplicate);
        assert_eq!(bench.order.held_len(), 1);
    }

    #[test]
    fn numbers_wrap() {
        let mut bench = Bench::starting_at(u32::MAX - 1);
        for seq in [1, u32::MAX, 0, u32::MAX - 1, 2] {
            bench.arrive(0, seq);
        }
        assert_eq!(bench.left(), [u32::MAX - 1, u32::MAX, 0, 1, 2]);
        assert_eq!(bench.arrive(0, u32::MAX), Verdict::Duplicate);
    }

    #[test]
    fn what_is_held_is_bounded_and_far_jumps_do_no_harm() {
        let mut bench = Bench::new();
        for seq in 0..30_000 {
            bench.arrive(0, seq * 2 + 1);
        }
        assert_eq!(bench.order.held_len(), MAX_HELD);
        assert_eq!(bench.order.stats().lost_overflow, 30_000 - MAX_HELD as u64);
        bench.arrive(0, 1 << 30);
        bench.pass(50);
        assert!(bench.left().is_sorted());
        assert_eq!(bench.arrive(60, (1 << 30) + 1), Verdict::Released);
        assert_eq!(bench.arrive(60, 3), Verdict::TooOld);
    }

    #[test]
    fn a_slow_twin_agrees() {
        let mut rng = Rng::new(3);
        for _ in 0..50 {
            let mut bench = Bench::new();
            // The reference implementation is a list of held packets that is searched from the front.
            let (mut last, mut held, mut expected) = (-1_i64, Vec::new(), Vec::new());
            let (mut now, mut next) = (0, 0_u64);
            for _ in 0..2_000 {
                now += rng.below(5);
                next += 1;
                let back = if rng.chance(0.3) { rng.below(30) } else { 0 };
                let seq = next.saturating_sub(back);
                held.sort_unstable();
                while held.iter().min().is_some_and(|(_, at)| now - at >= 50)
                    && held[0].1 + 50 <= now
                {
                    last = held.remove(0).0;
                    expected.push(last);
                    while held.first().is_some_and(|(seq, _)| *seq == last + 1) {
                        last = held.remove(0).0;
                        expected.push(last);
                    }
                }
                bench.pass(now);
                bench.arrive(now, u32::try_from(seq).expect("small"));
                let seq = i64::try_from(seq).expect("small");
                if seq > last && !held.iter().any(|(held, _)| *held == seq) {
                    held.push((seq, now));
                    held.sort_unstable();
                    while held.first().is_some_and(|(seq, _)| *seq == last + 1) {
                        last = held.remove(0).0;
                        expected.push(last);
                    }
                }
                assert_eq!(bench.order.held_len(), held.len());
            }
            let left: Vec<i64> = bench.left().into_iter().map(i64::from).collect();
            assert_eq!(left, expected);
        }
    }

    #[test]
    fn taking_over_loses_and_repeats_nothing() {
        let now = Instant::ZERO;
        let mut per_flow = Resequencer::new();
        let (mut out, mut dropped) = (VecDeque::new(), Vec::new());
        // Flow A is 0, 1, 4; B is 3; C is 2, 5. Numbers 1 and 2 are missing, so 4 and 5 are held, and 3 was released.
        for (seq, flow_step) in [(0, 0), (3, 0), (4, 3), (5, 3)] {
            let arrival = arrival(now, seq, flow_step);
            per_flow.on_packet(now, arrival, &mut out, &mut dropped);
        }
        assert_eq!(numbers(out.drain(..)), [0, 3]);
        let mut bench = Bench::new();
        bench.order = InOrder::take_over(&mut per_flow, T);
        assert_eq!(bench.order.held_len(), 2);
        assert_eq!(bench.arrive(1, 3), Verdict::Duplicate);
        assert_eq!(bench.arrive(1, 0), Verdict::Duplicate);
        bench.arrive(1, 2);
        assert!(bench.left().is_empty());
        bench.arrive(2, 1);
        assert_eq!(bench.left(), [1, 2, 4, 5]);
        assert_eq!(bench.arrive(2, 6), Verdict::Released);
    }

    #[test]
    fn handing_over_loses_and_repeats_nothing() {
        let now = Instant::ZERO;
        let mut bench = Bench::new();
        for seq in [0, 2, 5] {
            bench.arrive(0, seq);
        }
        let mut per_flow = bench.order.hand_over(now, &mut bench.out);
        assert_eq!(bench.left(), [0, 2, 5]);
        let mut arrive = |seq, flow_step| {
            let arrival = arrival(now, seq, flow_step);
            per_flow.on_packet(now, arrival, &mut bench.out, &mut bench.dropped)
        };
        assert_eq!(arrive(1, 1), Verdict::Late);
        assert_eq!(arrive(2, 1), Verdict::Duplicate);
        assert_eq!(arrive(6, 1), Verdict::Released);
        assert_eq!(arrive(4, 0), Verdict::Late);
        assert_eq!(numbers(bench.out.drain(..)), [1, 6, 4]);
    }
}
