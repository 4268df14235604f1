//! Acknowledgements of large flows, gathered now and then.
//!
//! *Problem.* BBR has at most two windows of its shortest round trip in flight. Over paths whose round trips are unlike that is
//! the quickest path's, as of its handshake or when it last looked (every 10 s, with four packets, which the quickest carries).
//! So it never fills paths that are much farther away. But to those windows it adds what acknowledgements have lately
//! told of beyond its rate, up to 100 ms of it, for links that gather them, such as Wi-Fi (`bbr_extra_acked` in Linux; the
//! most of 5 to 10 round trips).
//!
//! *Algorithm.* Once in five round trips of a flow that takes the latest path ([`Plan::every`]) the acknowledgements of large
//! flows wait for half of what the longest is longer than the shortest ([`Plan::span`]), and go on together. Only while a fifth of
//! what paths carry is left. Only those of a flow that fills the near paths ([`FULL_PERCENT`]) and brings half of what all flows
//! do: others are not short of window. A far path that carries much ([`MUCH`]) and is not too far ([`FARTHEST`]) need not be used yet,
//! but that is tried ever less often ([`Attempts`]); over others that are used, only of what brings more than the near ones carry, and half of what
//! all paths do. And only while its rate is steady, for one that grows takes what comes late for a queue (HyStart, RFC 9406). What
//! tells of something lost or of congestion goes on at once, behind what waits. Own rule.
//!
//! *It costs* a sender whose window is small for another reason up to a tenth of its rate: 100 ms in which it hears nothing, in
//! five of its round trips. One in slow start that is limited by its application may end it.
//!
//! Bounded: [`MOST_FLOWS`], [`MOST_HELD`]; nothing waits here for longer than [`LONGEST`].

use core::time::Duration;
use std::collections::VecDeque;

use crate::{
    flows::FlowKey,
    packet::{PacketBuf, is_before},
    time::Instant,
    units::Bitrate,
};

/// The acknowledgements that are gathered.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Of the hashes by which flows are known ([`crate::flows`]).
    key: FlowKey,
    /// When acknowledgements are to be gathered next, if they are.
    next_at: Instant,
    /// Since when they are counted, if they are.
    counted_since: Option<Instant>,
    flows: Vec<Counted>,
    /// The longest round trip of the last plan.
    longest: Duration,
    /// Gatherings for the sake of paths that are not used yet.
    attempts: Attempts,
    /// How many wait, of all flows, and until when.
    held: usize,
    held_until: Option<Instant>,
}

/// How acknowledgements are to be gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// For how long they wait.
    pub(super) span: Duration,
    /// How often.
    pub(super) every: Duration,
    /// The round trip over the latest path, and back on the quickest.
    pub(super) longest: Duration,
    /// Whether a far path is used, not merely to be.
    pub(super) is_used: bool,
    /// What a flow brings at least, and all flows at most.
    pub(super) least: Bitrate,
    pub(super) most: Bitrate,
}

/// A path as it matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// There and back on the path itself.
    pub(super) rtt: Duration,
    /// What it carries; zero if that is not known.
    pub(super) rate: Bitrate,
    /// Whether it has its part in what was sent of late.
    pub(super) is_used: bool,
    /// Whether what it carries is being searched.
    pub(super) is_searching: bool,
}

impl Plan {
    /// Of flows over `ways`; `None` if two windows of the shortest round trip are enough.
    pub(super) fn new(ways: &[Way]) -> Option<Self> {
        let shortest = ways.iter().map(|way| way.rtt).min()?;
        // What goes there on one path is acknowledged on the quickest.
        let round_trip = |way: &Way| (shortest + way.rtt) / 2;
        let is_near = |way: &&Way| round_trip(way) <= shortest * 2;
        let sum = |rates: u64, way: &Way| rates.saturating_add(way.rate.as_bps());
        let near = ways.iter().filter(is_near).fold(0, sum);
        let all = ways.iter().fold(0, sum);
        let is_known = near > 0 && !ways.iter().any(|way| way.is_searching && is_near(&way));
        let far = ways.iter().filter(|way| !is_near(way) && !way.is_searching);
        // One that carries much would be used if there were more windows.
        let helping = far.clone().filter(|way| {
            is_known && way.rate.as_bps() >= near / MUCH && round_trip(way) <= shortest + FARTHEST
        });
        let used = far.filter(|way| way.is_used);
        let (longest, least, is_used) = match helping.clone().map(round_trip).max() {
            Some(longest) => {
                let is_used = helping.clone().any(|way| way.is_used);
                (longest, near / 100 * FULL_PERCENT, is_used)
            }
            None => (used.map(round_trip).max()?, near.max(all / 2), true),
        };
        Some(Self {
            span: (longest - shortest).min(LONGEST),
            every: (longest * ROUNDS).max(LEAST_EVERY),
            longest,
            is_used,
            least: Bitrate::from_bps(least),
            most: Bitrate::from_bps(all).scale(MOST_PERCENT, 100),
        })
    }
}

/// Gatherings for the sake of paths that are not used yet: made ever less often if they stay so.
#[derive(Debug, Default)]
struct Attempts {
    /// How many were made, one after the other.
    count: u32,
    pause: Duration,
    next_at: Instant,
}

impl Attempts {
    /// Whether to gather, for paths of which a far one `is_used`.
    fn may_go_on(&mut self, now: Instant, is_used: bool) -> bool {
        if is_used {
            *self = Self::default();
            return true;
        }
        if self.count == MOST_ATTEMPTS {
            self.count = 0;
            self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            self.next_at = now + self.pause;
        }
        let may = now >= self.next_at;
        self.count += u32::from(may);
        may
    }
}

/// What has been acknowledged of a flow.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) conversation: u64,
    pub(super) acked: u32,
    /// Since the last gathering, and between the two before.
    bytes: u64,
    before: u64,
    /// Whether it brought much in the last period.
    is_large: bool,
    /// Whether about as much as in the one before.
    pub(super) is_steady: bool,
    is_gathered: bool,
    /// What waits.
    held: Vec<PacketBuf>,
}

impl Gathering {
    /// Nothing is gathered.
    pub(super) fn new(key: FlowKey) -> Self {
        Self {
            key,
            ..Self::default()
        }
    }

    /// Whether it is time to say how acknowledgements are to be gathered ([`begin`](Self::begin)).
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next_at && self.held_until.is_none()
    }

    /// Whether acknowledgements are of interest.
    pub(super) fn is_active(&self) -> bool {
        self.counted_since.is_some()
    }

    /// The longest round trip there was when acknowledgements were last looked at.
    pub(super) const fn longest(&self) -> Duration {
        self.longest
    }

    /// Forgets a flow, another of the same addresses and ports takes its place.
    pub(super) fn forget(&mut self, conversation: u64, delivered: &mut VecDeque<PacketBuf>) {
        let mut flows = self.flows.iter();
        if let Some(index) = flows.position(|flow| flow.conversation == conversation) {
            self.held -= self.flows.swap_remove(index).let_go(delivered);
        }
    }

    /// Begins to gather as `plan` says, or rests if there is none. Nothing waits. `aggregates`: acknowledgements are held;
    /// without it flows are only counted.
    pub(super) fn begin(&mut self, now: Instant, plan: Option<Plan>, aggregates: bool) {
        self.next_at = now + plan.map_or(LEAST_EVERY, |plan| plan.every);
        self.longest = plan.map_or(Duration::ZERO, |plan| plan.longest);
        let since = self.counted_since.take();
        let (Some(plan), Some(since)) = (plan, since) else {
            self.flows.clear();
            self.counted_since = plan.map(|_| now);
            return;
        };
        self.counted_since = Some(now);
        let in_period = |rate: Bitrate| rate.bytes_in(now.since(since)).get();
        let all: u64 = self.flows.iter().map(|flow| flow.bytes).sum();
        let least = in_period(plan.least).max(all / 2).max(LARGE_BYTES);
        let has_room = all <= in_period(plan.most);
        self.flows.retain(|flow| flow.bytes >= LARGE_BYTES);
        for flow in &mut self.flows {
            flow.is_steady = flow.before >= flow.bytes / 4 * 3 && flow.bytes >= flow.before / 4 * 3;
            flow.is_large = flow.bytes >= least;
            flow.is_gathered = has_room && flow.is_steady && flow.is_large;
            flow.before = core::mem::take(&mut flow.bytes);
        }
        let is_any = self.flows.iter().any(|flow| flow.is_gathered);
        let may_wait = aggregates && is_any && self.attempts.may_go_on(now, plan.is_used);
        self.held_until = may_wait.then(|| now + plan.span);
    }

    /// The flows that filled the near paths in the last period, and brought half of what all did.
    pub(super) fn large(&self) -> impl Iterator<Item = &Counted> {
        self.flows.iter().filter(|flow| flow.is_large)
    }

    /// Hands on what is delivered beyond the first `before` packets, at once or in time.
    pub(super) fn take_over(&mut self, before: usize, delivered: &mut VecDeque<PacketBuf>) {
        let count = delivered.len() - before;
        if count == 0 || !self.is_active() {
            return;
        }
        delivered.rotate_left(before);
        for _ in 0..count {
            if let Some(packet) = delivered.pop_front() {
                self.deliver(packet, delivered);
            }
        }
    }

    /// Hands on a packet for the host, at once or in time.
    pub(super) fn deliver(&mut self, packet: PacketBuf, delivered: &mut VecDeque<PacketBuf>) {
        if !self.is_active() {
            delivered.push_back(packet);
            return;
        }
        let view = packet.view().ok();
        let view = view.filter(|view| self.held > 0 || view.is_pure_ack());
        let known = view.and_then(|view| Some((view, view.segment()?)));
        let Some((view, segment)) = known else {
            delivered.push_back(packet);
            return;
        };
        let conversation = self.key.hash(&view);
        let is_room = self.flows.len() < MOST_FLOWS;
        let mut flows = self.flows.iter_mut();
        let flow = flows.find(|flow| flow.conversation == conversation);
        let pure_ack = segment.ack.filter(|_| view.is_pure_ack());
        match (flow, pure_ack) {
            (Some(flow), Some(ack)) => {
                let is_plain = view.acked_to(ack) == ack && !view.tells_of_congestion();
                let is_old = is_before(ack, flow.acked);
                let is_news = is_before(flow.acked, ack);
                if is_news {
                    flow.bytes += u64::from(ack.wrapping_sub(flow.acked));
                    flow.acked = ack;
                }
                let may_wait = is_plain && is_news && flow.is_gathered;
                if may_wait && self.held_until.is_some() && self.held < MOST_HELD {
                    flow.held.push(packet);
                    self.held += 1;
                    return;
                }
                // One that others have overtaken changes nothing.
                if !(is_plain && is_old) {
                    self.held -= flow.let_go(delivered);
                }
            }
            (Some(flow), None) => self.held -= flow.let_go(delivered),
            (None, Some(acked)) if is_room => self.flows.push(Counted {
                conversation,
                acked,
                bytes: 0,
                before: 0,
                is_large: false,
                is_steady: false,
                is_gathered: false,
                held: Vec::new(),
            }),
            (None, _) => {}
        }
        delivered.push_back(packet);
    }

    /// Hands on all that waits.
    fn release(&mut self, delivered: &mut VecDeque<PacketBuf>) {
        for flow in &mut self.flows {
            self.held -= flow.let_go(delivered);
        }
        self.held_until = None;
    }

    /// When what waits goes on.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.held_until
    }

    /// Hands on what waits if it is time.
    pub(super) fn on_timeout(&mut self, now: Instant, delivered: &mut VecDeque<PacketBuf>) {
        if self.held_until.is_some_and(|until| until <= now) {
            self.release(delivered);
        }
    }

    /// Forgets all flows.
    pub(super) fn clear(&mut self, delivered: &mut VecDeque<PacketBuf>) {
        self.release(delivered);
        *self = Self::new(self.key);
    }
}

impl Counted {
    /// Hands on what waits, and lets no more wait until the next gathering; how many these were.
    fn let_go(&mut self, delivered: &mut VecDeque<PacketBuf>) -> usize {
        let count = self.held.len();
        if count > 0 {
            self.is_gathered = false;
            delivered.extend(core::mem::take(&mut self.held));
        }
        count
    }
}

/// The most that BBR adds (`bbr_extra_acked_max_us`).
const LONGEST: Duration = Duration::from_millis(100);
/// How often: BBR looks back 5 round trips at least.
const ROUNDS: u32 = 5;
const LEAST_EVERY: Duration = Duration::from_millis(300);
/// What flows bring of what paths carry, in percent, if the paths are as good as full: headers are a few.
const MOST_PERCENT: u64 = 80;
/// What a flow brings of what near paths carry, in percent, if it fills them.
const FULL_PERCENT: u64 = 85;
/// A path of this part of what near ones carry, and of a round trip so much longer at most, is of use to a flow that fills those, also
/// if it is not used yet.
const MUCH: u64 = 2;
const FARTHEST: Duration = Duration::from_millis(150);
/// So often for one that is not used yet; how long until that is tried again, at first and at most.
const MOST_ATTEMPTS: u32 = 16;
const FIRST_PAUSE: Duration = Duration::from_secs(6);
const LONGEST_PAUSE: Duration = Duration::from_secs(48);
/// What is large brings so much in that time at least.
const LARGE_BYTES: u64 = 64_000;
/// Of more flows none brings more than near paths carry; small ones are told from such by the end of a period.
const MOST_FLOWS: usize = 64;
/// 100 ms at 1 Gbit/s, one acknowledgement for two packets.
const MOST_HELD: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::round_trips::tests::{CONVERSATION, ms, segment, selective_ack_of};

    /// 100 kB in a period.
    const PLAN: Plan = Plan {
        span: Duration::from_millis(50),
        every: Duration::from_millis(800),
        longest: Duration::from_millis(140),
        is_used: true,
        least: Bitrate::from_mbps(1),
        most: Bitrate::from_mbps(3),
    };

    /// An acknowledgement of so much by the receiver of flow `flow`.
    fn ack(flow: u16, number: u32) -> PacketBuf {
        let [from, to] = CONVERSATION;
        segment([to + flow, from], 1, number, 0)
    }

    /// What the host has by now, by the number it acknowledges.
    fn numbers(delivered: &mut VecDeque<PacketBuf>) -> Vec<u32> {
        let acks = delivered.drain(..).map(|packet| {
            let view = packet.view().expect("parsed");
            view.segment().expect("of TCP").ack.expect("says")
        });
        acks.collect()
    }

    /// Two periods in which flows that begin at `first` bring so much in each, and the beginning of the third.
    fn gathering(first: u32, bytes: &[[u32; 2]]) -> (Gathering, VecDeque<PacketBuf>) {
        let (mut gathering, mut delivered) = (Gathering::default(), VecDeque::new());
        let mut at = vec![first; bytes.len()];
        for period in 0..3 {
            assert!(gathering.is_due(ms(period * 800)));
            gathering.begin(ms(period * 800), Some(PLAN), true);
            for (flow, bytes) in (0..).zip(bytes) {
                let at = &mut at[usize::from(flow)];
                gathering.deliver(ack(flow, *at), &mut delivered);
                let index = usize::try_from(period).expect("few");
                if let Some(bytes) = bytes.get(index) {
                    *at = at.wrapping_add(*bytes);
                    gathering.deliver(ack(flow, *at), &mut delivered);
                }
            }
            assert!(!gathering.is_due(ms(period * 800 + 799)));
        }
        delivered.clear();
        (gathering, delivered)
    }

    #[test]
    fn acknowledgements_of_a_large_steady_flow_wait_and_go_on_together() {
        // Sequence numbers begin anew on the way.
        for first in [1, u32::MAX - 150_000, u32::MAX - 240_001] {
            let (mut gathering, mut delivered) = gathering(first, &[[120_000, 120_000]]);
            let number = |more: u32| first.wrapping_add(240_000 + more);
            for more in 1..4 {
                gathering.deliver(ack(0, number(more)), &mut delivered);
            }
            // Others have overtaken it.
            gathering.deliver(ack(0, number(2)), &mut delivered);
            assert_eq!(numbers(&mut delivered), [number(2)]);
            assert_eq!(gathering.poll_timeout(), Some(ms(1_650)));
            gathering.on_timeout(ms(1_649), &mut delivered);
            assert!(delivered.is_empty());
            gathering.on_timeout(ms(1_650), &mut delivered);
            assert_eq!(numbers(&mut delivered), [number(1), number(2), number(3)]);
            gathering.deliver(ack(0, number(9)), &mut delivered);
            assert_eq!(numbers(&mut delivered), [number(9)]);
            assert_eq!(gathering.poll_timeout(), None);
        }
    }

    #[test]
    fn what_is_small_grows_or_shrinks_is_left_alone() {
        for (bytes, waits) in [
            ([120_000, 120_000], true),
            ([100_000, 120_000], true),
            ([120_000, 100_000], true),
            ([90_000, 90_000], false),
            ([80_000, 120_000], false),
            ([150_000, 100_000], false),
        ] {
            let (mut gathering, mut delivered) = gathering(1, &[bytes]);
            gathering.deliver(ack(0, 300_000), &mut delivered);
            assert_eq!(delivered.is_empty(), waits, "{bytes:?}");
        }
        // And so is all if paths are full.
        let (mut gathering, mut delivered) = gathering(1, &[[120_000; 2], [200_000; 2]]);
        gathering.deliver(ack(0, 300_000), &mut delivered);
        assert_eq!(delivered.len(), 1);
    }

    #[test]
    fn what_cannot_wait_goes_on_behind_what_waits() {
        let [from, to] = CONVERSATION;
        let mut marked = ack(0, 240_300);
        marked.as_mut_slice()[33] |= 0x40;
        marked.parse().expect("a packet");
        let urgent: [(PacketBuf, u32); 4] = [
            (segment([to, from], 1, 240_300, 10), 240_300),
            (
                selective_ack_of([to, from], 240_300, 240_400, 240_500),
                240_300,
            ),
            (ack(0, 240_200), 240_200),
            (marked, 240_300),
        ];
        for (packet, number) in urgent {
            let (mut gathering, mut delivered) = gathering(1, &[[120_000; 2], [120_000; 2]]);
            gathering.deliver(ack(0, 240_200), &mut delivered);
            gathering.deliver(ack(1, 240_100), &mut delivered);
            gathering.deliver(ack(2, 7), &mut delivered);
            assert_eq!(numbers(&mut delivered), [7], "of another flow");
            gathering.deliver(packet, &mut delivered);
            assert_eq!(numbers(&mut delivered), [240_200, number]);
            gathering.deliver(ack(0, 240_400), &mut delivered);
            assert_eq!(numbers(&mut delivered), [240_400], "no more waits");
            gathering.clear(&mut delivered);
            assert_eq!(numbers(&mut delivered), [240_100]);
        }
    }

    #[test]
    fn without_a_plan_nothing_waits() {
        let (mut gathering, mut delivered) = gathering(1, &[[120_000, 120_000]]);
        gathering.deliver(ack(0, 240_200), &mut delivered);
        assert!(!gathering.is_due(ms(9_000)), "not while something waits");
        gathering.on_timeout(ms(9_000), &mut delivered);
        assert_eq!(numbers(&mut delivered), [240_200]);
        gathering.begin(ms(9_000), None, true);
        assert!(!gathering.is_active());
        gathering.begin(ms(9_500), Some(PLAN), true);
        gathering.deliver(ack(0, 240_300), &mut delivered);
        assert_eq!(numbers(&mut delivered), [240_300], "it is forgotten");
    }

    #[test]
    fn flows_and_what_waits_are_bounded() {
        let (mut gathering, mut delivered) = gathering(1, &[[120_000, 120_000]]);
        let most = u32::try_from(MOST_HELD).expect("few");
        for number in 1..=most + 1 {
            gathering.deliver(ack(0, 240_001 + number), &mut delivered);
        }
        assert_eq!(delivered.len(), MOST_HELD + 1);
        for flow in 0..200 {
            gathering.deliver(ack(flow, 1), &mut delivered);
        }
        assert_eq!(gathering.flows.len(), MOST_FLOWS);
    }

    #[test]
    fn what_is_less_than_half_of_all_is_not_gathered() {
        // 100 kB are much, but not beside 130.
        for (other, waits) in [(95_000, true), (130_000, false)] {
            let plan = Plan {
                most: Bitrate::from_mbps(10),
                ..PLAN
            };
            let (mut gathering, mut delivered) = gathering(1, &[[110_000; 2], [other; 2]]);
            gathering.on_timeout(ms(1_650), &mut delivered);
            for (flow, bytes) in [(0, 110_000), (1, other)] {
                gathering.deliver(ack(flow, 1 + bytes * 3), &mut delivered);
            }
            gathering.begin(ms(2_400), Some(plan), true);
            let is_gathered = gathering.flows[0].is_gathered;
            assert_eq!(is_gathered, waits, "{other}");
        }
    }

    #[test]
    fn for_paths_that_stay_unused_it_is_done_ever_less_often() {
        let mut attempts = Attempts::default();
        let mut count = |from_s: u64, to_s: u64, is_used| {
            let made = (from_s * 2..to_s * 2).map(|half| ms(half * 500));
            made.filter(|now| attempts.may_go_on(*now, is_used)).count()
        };
        // Eight seconds, then six of rest; the next rests are of 12, 24, 48 and 48 s.
        assert_eq!(count(0, 14, false), 16);
        assert_eq!(count(14, 34, false), 16);
        assert_eq!(count(34, 66, false), 16);
        assert_eq!(count(66, 122, false), 16);
        assert_eq!(count(122, 178, false), 16);
        assert_eq!(count(178, 180, true), 4);
        assert_eq!(count(180, 194, false), 16, "it was used");
    }

    #[test]
    fn far_paths_call_for_it() {
        let way = |rtt, mbps, is_used| Way {
            rtt: Duration::from_millis(rtt),
            rate: Bitrate::from_mbps(mbps),
            is_used,
            is_searching: false,
        };
        let near = way(40, 60, true);
        let plan = |far: Way| Plan::new(&[near, far]);
        let some = |longest, span, least, most, is_used| {
            Some(Plan {
                span: Duration::from_millis(span),
                every: Duration::from_millis(longest) * 5,
                longest: Duration::from_millis(longest),
                is_used,
                least: Bitrate::from_mbps(least),
                most: Bitrate::from_mbps(most),
            })
        };
        // Two windows of 40 ms fill 80 ms: 120 there, and back on the other.
        assert_eq!(plan(way(120, 40, true)), None);
        assert_eq!(plan(way(140, 40, true)), some(90, 50, 51, 80, true));
        assert_eq!(plan(way(140, 100, true)), some(90, 50, 51, 128, true));
        // What carries little or is too far is of less use.
        assert_eq!(plan(way(140, 20, true)), some(90, 50, 60, 64, true));
        assert_eq!(plan(way(600, 40, true)), some(320, 100, 60, 80, true));
        assert_eq!(plan(way(600, 100, true)), some(320, 100, 80, 128, true));
        // Nobody uses it, but would with more windows; else not.
        assert_eq!(plan(way(140, 30, false)), some(90, 50, 51, 72, false));
        assert_eq!(plan(way(140, 29, false)), None);
        assert_eq!(plan(way(342, 40, false)), None);
        // It is not known what it carries, or what is near does.
        let searched = |way| Way {
            is_searching: true,
            ..way
        };
        let far = way(140, 40, true);
        assert_eq!(plan(searched(far)), None);
        let plan = Plan::new(&[searched(near), far]);
        assert_eq!(plan, some(90, 50, 60, 80, true));
        let unused = way(140, 40, false);
        assert_eq!(Plan::new(&[searched(near), unused]), None);
        assert_eq!(Plan::new(&[way(40, 0, true), unused]), None);
        // One that is farther does not keep it from others.
        let all = [near, way(140, 40, false), way(600, 5, true)];
        assert_eq!(Plan::new(&all), some(90, 50, 51, 84, false));
        assert_eq!(Plan::new(&[near]), None);
        assert_eq!(Plan::new(&[]), None);
    }
}
