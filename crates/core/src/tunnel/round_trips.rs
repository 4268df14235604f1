//! Round trips of young flows, kept alike.
//!
//! *Problem.* A flow begins on the quickest path. When it grows it spreads to later ones, or moves there, and its round
//! trip grows at once; where delays jitter it grows by chance. Senders that look out for that (HyStart, RFC 9406; CUBIC
//! in Linux) take it for a full queue and end their slow start, far below what the paths carry. So they do if
//! acknowledgements, none more than 2 ms behind the one before, go on for half of a round trip.
//!
//! *Algorithm.* While a TCP flow is young, an acknowledgement is handed to its sender not before what it acknowledges
//! has been under way for as long as on the latest path that the flow would take if it grew, jitter included
//! ([`crate::sched::Scheduler::round_trip`]): the round trip is the same from the first packet on. They are handed on in
//! groups ([`APART`]), so their train has gaps, and not faster than twice what the paths carry, so what they release
//! comes in no larger bursts than from a link of its own. No data are delayed, either way. What comes with data goes on at
//! once, and all that was held before it: a sender that learns from it that the way is shorter is no longer held up, for longer
//! round trips would now end its slow start. At the end of its youth a flow's round trip shrinks little by little
//! ([`FADING`]). Own rule.
//!
//! Bounded: the flow that is young for the shortest time gives way, and its acknowledgements go on at once.

use core::time::Duration;
use std::collections::VecDeque;

use super::{Shared, Tunnel};
use crate::{
    packet::{PacketBuf, is_before},
    sched::Scheduler as _,
    time::Instant,
    units::{Bitrate, Bytes},
};

/// The young flows whose data this end sends.
#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    flows: Vec<Young>,
}

#[derive(Debug)]
struct Young {
    conversation: u64,
    /// When its youth has faded.
    until: Instant,
    /// How long its round trips are at least.
    least: Duration,
    /// Where what was sent ended, and when; at most one each [`NOTED_EACH`].
    sent: VecDeque<(u32, Instant)>,
    /// Where all that was sent ends.
    end: Option<u32>,
    /// What has been acknowledged, and when more may be.
    acked: Option<u32>,
    free_at: Instant,
    /// Acknowledgements, and when they are due: never decreases.
    held: VecDeque<(Instant, PacketBuf)>,
}

/// When an acknowledgement is to be handed on.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: Instant,
    /// Whether at once would be much too early.
    is_early: bool,
}

impl Young {
    fn on_sent(&mut self, now: Instant, end: u32) {
        if self.end.is_some_and(|last| !is_before(last, end)) {
            return;
        }
        self.end = Some(end);
        let is_due = |(_, at): &(u32, Instant)| now.since(*at) >= NOTED_EACH;
        if self.sent.back().is_none_or(is_due) {
            if self.sent.len() == MOST_NOTED {
                self.sent.pop_front();
            }
            self.sent.push_back((end, now));
        }
    }

    /// How long round trips are at least by now.
    fn least(&self, now: Instant) -> Duration {
        let left = self.until.since(now).min(FADING).as_millis();
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        self.least * left / u32::try_from(FADING.as_millis()).unwrap_or(u32::MAX)
    }

    /// When an acknowledgement of what is before `ack` is to be handed on, if all paths carry `rate`; `None` if nothing like
    /// that was sent.
    fn due(&mut self, now: Instant, ack: u32, rate: Option<Bitrate>) -> Option<Due> {
        self.end.filter(|end| !is_before(*end, ack))?;
        let is_covered = |(end, _): &(u32, Instant)| !is_before(ack, *end);
        while self.sent.get(1).is_some_and(is_covered) {
            self.sent.pop_front();
        }
        let least = self.least(now);
        let newest = self.sent.front().filter(|sent| is_covered(sent));
        let early = newest.map_or(now, |(_, at)| *at + least);
        let due = early.max(self.free_at).max(now).min(now + self.least * 2);
        let acked = self.acked.unwrap_or(ack);
        if !is_before(ack, acked) {
            let bytes = Bytes::new(u64::from(ack.wrapping_sub(acked)));
            self.acked = Some(ack);
            self.free_at = match rate {
                Some(rate) => due + bytes / rate.scale(FASTER, 1),
                None => now,
            };
        }
        let last = self.held.back().map(|(last, _)| *last);
        Some(Due {
            at: next_group(due).max(last.unwrap_or(due)),
            is_early: early > now + APART,
        })
    }

    /// Hands on all that is held.
    fn release(&mut self, delivered: &mut VecDeque<PacketBuf>) {
        delivered.extend(self.held.drain(..).map(|(_, packet)| packet));
    }
}

impl RoundTrips {
    /// Watches a flow that opens, whose round trips are to be `least`.
    fn watch(
        &mut self,
        now: Instant,
        conversation: u64,
        least: Duration,
        delivered: &mut VecDeque<PacketBuf>,
    ) {
        self.end(|flow| flow.conversation == conversation, delivered);
        if least < LEAST {
            return;
        }
        if self.flows.len() == MOST {
            let first = self.flows.iter().map(|flow| flow.until).min();
            self.end(|flow| Some(flow.until) == first, delivered);
        }
        let least = least.min(LONGEST);
        self.flows.push(Young {
            conversation,
            until: now + YOUNG.max(least * YOUNG_ROUNDS) + FADING,
            least,
            sent: VecDeque::new(),
            end: None,
            acked: None,
            free_at: now,
            held: VecDeque::new(),
        });
    }

    /// The paths are others: what was to be the round trip fades.
    pub(super) fn fade(&mut self, now: Instant) {
        for flow in &mut self.flows {
            flow.until = flow.until.min(now + FADING);
        }
    }

    fn position(&self, conversation: u64) -> Option<usize> {
        let mut flows = self.flows.iter();
        flows.position(|flow| flow.conversation == conversation)
    }

    /// Hands a packet on to the host, at once or in time.
    fn deliver(
        &mut self,
        now: Instant,
        packet: PacketBuf,
        rate: Option<Bitrate>,
        delivered: &mut VecDeque<PacketBuf>,
    ) {
        let view = packet.view().ok();
        let known = view.and_then(|view| Some((view, view.segment()?)));
        let Some((view, segment)) = known else {
            delivered.push_back(packet);
            return;
        };
        let is_pure = view.is_pure_ack();
        let Some(index) = self.position(view.conversation_hash()) else {
            delivered.push_back(packet);
            return;
        };
        let is_room = self.held() < MOST_HELD;
        let flow = &mut self.flows[index];
        let due = segment.ack.and_then(|ack| flow.due(now, ack, rate));
        match due {
            Some(due) if is_pure && is_room => flow.held.push_back((due.at, packet)),
            // What acknowledges what was never sent is not of this flow.
            None if is_pure => delivered.push_back(packet),
            _ => {
                flow.release(delivered);
                delivered.push_back(packet);
                let is_found_out = due.is_some_and(|due| due.is_early) && !segment.is_opening;
                if is_found_out || segment.is_closing {
                    self.flows.remove(index);
                }
            }
        }
    }

    /// How many acknowledgements are held.
    fn held(&self) -> usize {
        self.flows.iter().map(|flow| flow.held.len()).sum()
    }

    /// Forgets flows.
    fn end(&mut self, is_it: impl Fn(&Young) -> bool, delivered: &mut VecDeque<PacketBuf>) {
        for mut flow in self.flows.extract_if(.., |flow| is_it(flow)) {
            flow.release(delivered);
        }
    }

    /// Forgets all flows.
    pub(super) fn clear(&mut self, delivered: &mut VecDeque<PacketBuf>) {
        self.end(|_| true, delivered);
    }

    /// When an acknowledgement is due, or a flow no longer young.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let due = |flow: &Young| {
            let first = flow.held.front().map(|(due, _)| *due);
            first.map_or(flow.until, |due| due.min(flow.until))
        };
        self.flows.iter().map(due).min()
    }

    pub(super) fn on_timeout(&mut self, now: Instant, delivered: &mut VecDeque<PacketBuf>) {
        if self.flows.is_empty() {
            return;
        }
        self.end(|flow| flow.until <= now, delivered);
        for flow in &mut self.flows {
            while let Some((_, packet)) = flow.held.pop_front_if(|(due, _)| *due <= now) {
                delivered.push_back(packet);
            }
        }
    }
}

impl Tunnel {
    /// Takes note of a packet from the host.
    pub(super) fn watch_round_trip(
        &mut self,
        now: Instant,
        packet: &PacketBuf,
        shared: &mut Shared<'_>,
    ) {
        if !self.scheduler.repairs() {
            return;
        }
        let view = packet.view().ok();
        let Some((view, segment)) = view.and_then(|view| Some((view, view.segment()?))) else {
            return;
        };
        if segment.is_opening {
            self.view_paths(now);
            let least = self.scheduler.round_trip(&self.views);
            let conversation = view.conversation_hash();
            self.round_trips
                .watch(now, conversation, least, shared.delivered);
        }
        if segment.has_numbers
            && !self.round_trips.flows.is_empty()
            && let Some(index) = self.round_trips.position(view.conversation_hash())
        {
            self.round_trips.flows[index].on_sent(now, segment.end);
        }
    }

    /// Keeps back what is too early of what is delivered beyond the first `before` packets.
    pub(super) fn keep_round_trips(
        &mut self,
        now: Instant,
        before: usize,
        shared: &mut Shared<'_>,
    ) {
        if self.round_trips.flows.is_empty() {
            return;
        }
        let rate = self.known_rate();
        let count = shared.delivered.len() - before;
        // What is looked at goes behind the rest, so in the end all are in order again.
        shared.delivered.rotate_left(before);
        for _ in 0..count {
            if let Some(packet) = shared.delivered.pop_front() {
                self.round_trips
                    .deliver(now, packet, rate, shared.delivered);
            }
        }
    }

    /// What all paths that may be used carry, if that is known: as when last something was sent.
    fn known_rate(&self) -> Option<Bitrate> {
        let usable = self.views.iter().filter(|view| view.usable);
        let rates = usable.map(|view| view.rate.filter(|_| !view.is_searching));
        let all: Option<u64> = rates.map(|rate| rate.map(Bitrate::as_bps)).sum();
        all.map(Bitrate::from_bps)
            .filter(|all| *all > Bitrate::ZERO)
    }
}

/// When the group that goes on at `due` or next does.
fn next_group(due: Instant) -> Instant {
    let apart = u64::try_from(APART.as_nanos()).unwrap_or(u64::MAX);
    Instant::from_nanos(due.as_nanos().next_multiple_of(apart))
}

/// For so long, and so many round trips, a flow is young.
const YOUNG: Duration = Duration::from_secs(3);
const YOUNG_ROUNDS: u32 = 12;
/// In so long it becomes old.
const FADING: Duration = Duration::from_secs(1);
/// Shorter round trips are left alone: no sender looks at less than 4 ms.
const LEAST: Duration = Duration::from_millis(10);
/// The longest that are made: what is longer looks lost.
const LONGEST: Duration = Duration::from_millis(700);
/// Time between groups of acknowledgements: more than 2 ms (`hystart_ack_delta_us` in Linux).
const APART: Duration = Duration::from_millis(3);
/// How many times what the paths carry acknowledgements may cover: slow start fills queues with less.
const FASTER: u64 = 2;
/// Time between two notes of what was sent.
const NOTED_EACH: Duration = Duration::from_micros(500);
const MOST_NOTED: usize = 2048;
/// Most acknowledgements held of all flows.
const MOST_HELD: usize = 8192;
/// Most flows.
const MOST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const CONVERSATION: [u16; 2] = [443, 5_000];

    /// A segment of IPv4 without options, of `len` bytes of data from `seq` on.
    fn segment(ports: [u16; 2], seq: u32, ack: u32, len: u16) -> PacketBuf {
        let mut bytes = vec![0; 40 + usize::from(len)];
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&(40 + len).to_be_bytes());
        bytes[9] = 6;
        bytes[20..22].copy_from_slice(&ports[0].to_be_bytes());
        bytes[22..24].copy_from_slice(&ports[1].to_be_bytes());
        bytes[24..28].copy_from_slice(&seq.to_be_bytes());
        bytes[28..32].copy_from_slice(&ack.to_be_bytes());
        (bytes[32], bytes[33]) = (0x50, 0x10);
        let mut packet = PacketBuf::from(bytes);
        packet.parse().expect("a packet");
        packet
    }

    fn ack(number: u32) -> PacketBuf {
        let [from, to] = CONVERSATION;
        segment([to, from], 1, number, 0)
    }

    const fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// Watches a flow from 0 on, whose round trips are to be so many milliseconds.
    fn watching(least_ms: u64) -> RoundTrips {
        let mut trips = RoundTrips::default();
        let view = ack(0);
        let conversation = view.view().expect("parsed").conversation_hash();
        let least = Duration::from_millis(least_ms);
        trips.watch(ms(0), conversation, least, &mut VecDeque::new());
        trips
    }

    impl RoundTrips {
        fn sends(&mut self, at: u64, end: u32) {
            self.flows[0].on_sent(ms(at), end);
        }

        /// When the host gets the packets that come at these milliseconds, by the number they acknowledge.
        fn delivers(&mut self, packets: &[(u64, PacketBuf)], rate: Option<u64>) -> Vec<(u64, u32)> {
            let rate = rate.map(Bitrate::from_mbps);
            let mut got = Vec::new();
            for at in 0..5_000 {
                let mut delivered = VecDeque::new();
                for (_, packet) in packets.iter().filter(|(when, _)| *when == at) {
                    let mut copy = PacketBuf::from(packet.as_slice().to_vec());
                    copy.parse().expect("a packet");
                    self.deliver(ms(at), copy, rate, &mut delivered);
                }
                self.on_timeout(ms(at), &mut delivered);
                let segments = delivered
                    .iter()
                    .filter_map(|packet| packet.view().ok()?.segment());
                got.extend(segments.filter_map(|segment| Some((at, segment.ack?))));
            }
            got
        }
    }

    #[test]
    fn an_acknowledgement_waits_until_its_round_trip_is_as_long_as_the_longest() {
        let mut trips = watching(60);
        trips.sends(9, 1_000);
        trips.sends(12, 2_000);
        trips.sends(15, 3_000);
        trips.sends(90, 1_000);
        // The first covers what was sent at 9, the next what was then sent at 12; what is late is late, but for its group.
        let packets = [(19, ack(1_000)), (25, ack(2_999)), (151, ack(3_000))];
        let got = trips.delivers(&packets, None);
        assert_eq!(got, [(69, 1_000), (72, 2_999), (153, 3_000)]);
    }

    #[test]
    fn sequence_numbers_begin_anew() {
        let mut trips = watching(60);
        trips.sends(9, u32::MAX - 10);
        trips.sends(30, 500);
        let got = trips.delivers(&[(20, ack(u32::MAX - 10)), (40, ack(500))], None);
        assert_eq!(got, [(69, u32::MAX - 10), (90, 500)]);
    }

    #[test]
    fn acknowledgements_come_in_groups_and_in_order() {
        let mut trips = watching(60);
        let mut packets = Vec::new();
        for number in 0..40 {
            trips.sends(u64::from(number), 1_000 * (number + 1));
            packets.push((u64::from(number) + 20, ack(1_000 * (number + 1))));
        }
        let got = trips.delivers(&packets, None);
        assert_eq!(got.len(), packets.len());
        assert!(got.iter().map(|(_, ack)| ack).is_sorted());
        for (at, ack) in got {
            let sent = u64::from(ack / 1_000) - 1;
            assert!(
                at.is_multiple_of(3) && (60..63).contains(&(at - sent)),
                "{at} {ack}"
            );
        }
    }

    #[test]
    fn they_come_at_most_twice_as_fast_as_paths_carry() {
        let packets: Vec<_> = (1..=100).map(|number| (20, ack(number * 1_000))).collect();
        for (rate, last) in [(None, 60), (Some(8), 60 + 51), (Some(80), 60 + 6)] {
            let mut trips = watching(60);
            trips.sends(0, 100_000);
            trips.flows[0].sent[0].0 = 1_000;
            let got = trips.delivers(&packets, rate);
            // 99 kB beyond the first, at 2 or 20 kB each millisecond.
            assert_eq!((got.len(), got[99].0), (100, last), "{rate:?}");
        }
    }

    #[test]
    fn what_else_comes_waits_for_nothing_and_if_that_is_early_nothing_does_any_more() {
        let [from, to] = CONVERSATION;
        let stranger = || segment([to, from + 1], 1, 77, 0);
        let data = |ack| segment([to, from], 1, ack, 10);
        let mut closing = ack(9_000);
        closing.as_mut_slice()[33] |= 1;
        closing.parse().expect("a packet");
        for (at, last, held_at) in [
            (22, data(9_000), 24),
            (70, data(9_000), 99),
            (70, closing, 72),
        ] {
            let mut trips = watching(60);
            trips.sends(0, 9_000);
            trips.sends(20, 20_000);
            let first = (20, ack(9_000));
            let packets = [first, (21, stranger()), (at, last), (at + 2, ack(20_000))];
            let got = trips.delivers(&packets, None);
            let expected = match held_at {
                24 => [(21, 77), (22, 9_000), (22, 9_000), (24, 20_000)],
                // In time, it tells nothing.
                99 => [(21, 77), (60, 9_000), (70, 9_000), (81, 20_000)],
                _ => [(21, 77), (60, 9_000), (70, 9_000), (72, 20_000)],
            };
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn what_opens_a_connection_acknowledges_nothing_that_counts() {
        let mut trips = watching(60);
        let [from, to] = CONVERSATION;
        let mut open = segment([to, from], 1, 0, 0);
        open.as_mut_slice()[33] = 2;
        open.parse().expect("a packet");
        trips.sends(0, 1_000_000_000);
        trips.sends(40, 1_000_001_000);
        let packets = [
            (10, open),
            (20, ack(1_000_000_000)),
            (60, ack(1_000_001_000)),
        ];
        let got = trips.delivers(&packets, Some(1));
        assert_eq!(got, [(60, 1_000_000_000), (102, 1_000_001_000)]);
    }

    #[test]
    fn acknowledgements_of_what_was_never_sent_change_nothing() {
        let mut trips = watching(60);
        let packets = [
            (90, ack(1_000)),
            (150, ack((1 << 31) - 1)),
            (190, ack(2_000)),
            (290, ack(3_000)),
        ];
        for number in 0..3 {
            trips.sends(100 * u64::from(number), 1_000 * (number + 1));
        }
        let got = trips.delivers(&packets, Some(50));
        assert_eq!(got[1], (150, (1 << 31) - 1));
        assert_eq!(
            [got[0], got[2], got[3]],
            [(90, 1_000), (192, 2_000), (291, 3_000)]
        );
    }

    #[test]
    fn round_trips_shrink_little_by_little_when_a_youth_ends() {
        let mut trips = watching(60);
        let mut packets = Vec::new();
        for number in 0..120 {
            let at = 2_500 + 15 * u64::from(number);
            trips.sends(at, 1_000 * (number + 1));
            packets.push((at + 5, ack(1_000 * (number + 1))));
        }
        let got = trips.delivers(&packets, None);
        let waits: Vec<_> = got
            .iter()
            .zip(&packets)
            .map(|((at, _), (came, _))| at - came)
            .collect();
        assert!(
            waits[..30].iter().all(|wait| (55..58).contains(wait)),
            "{waits:?}"
        );
        assert!(
            waits[30..].windows(2).all(|two| two[1] <= two[0] + 2),
            "{waits:?}"
        );
        assert!((25..35).contains(&waits[66]), "{waits:?}");
        assert!(waits[105..].iter().all(|wait| *wait == 0), "{waits:?}");
        let mut trips = watching(60);
        trips.fade(ms(100));
        trips.sends(600, 1_000);
        assert_eq!(trips.delivers(&[(605, ack(1_000))], None), [(630, 1_000)]);
        assert!(trips.flows.is_empty());
    }

    #[test]
    fn a_flow_is_young_for_a_while_and_flows_are_few() {
        let mut trips = watching(60);
        assert_eq!(trips.poll_timeout(), Some(ms(4_000)));
        // What covers much makes the next one wait no longer than two round trips.
        trips.sends(20, 1 << 30);
        trips.sends(21, (1 << 30) + 1);
        let packets = [(20, ack(1)), (20, ack(1 << 30)), (30, ack((1 << 30) + 1))];
        let got = trips.delivers(&packets, Some(1));
        assert_eq!(got[2], (150, (1 << 30) + 1));
        assert_eq!(trips.poll_timeout(), None);
        let mut trips = watching(60);
        trips.sends(0, 1_000);
        let mut delivered = VecDeque::new();
        trips.deliver(ms(1), ack(1_000), None, &mut delivered);
        for conversation in 0..64 {
            assert!(delivered.is_empty());
            let (at, least) = (ms(2 + conversation), Duration::from_millis(60));
            trips.watch(at, conversation, least, &mut delivered);
        }
        assert_eq!((trips.flows.len(), delivered.len()), (MOST, 1));
        let mut trips = watching(60);
        trips.sends(0, 1_000);
        for _ in 0..=MOST_HELD {
            assert_eq!(delivered.len(), 1);
            trips.deliver(ms(1), ack(1_000), None, &mut delivered);
        }
        assert_eq!(delivered.len(), MOST_HELD + 2, "none is kept beyond that");
        trips.clear(&mut delivered);
        trips.watch(ms(90), 1, Duration::from_millis(9), &mut delivered);
        assert!(trips.flows.is_empty(), "too short to matter");
    }
}
