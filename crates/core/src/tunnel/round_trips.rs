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
//! comes in no larger bursts than from a link of its own. Data are not delayed. Own rule.
//!
//! Bounded: the oldest flow gives way, and its acknowledgements go on at once.

use core::time::Duration;
use std::collections::VecDeque;

use super::{Shared, Tunnel};
use crate::{
    packet::PacketBuf,
    path::Path,
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

    /// Until when an acknowledgement of what is before `ack` waits, if all paths carry `rate`.
    fn due(&mut self, now: Instant, ack: u32, rate: Option<Bitrate>) -> Instant {
        let is_covered = |(end, _): &(u32, Instant)| !is_before(ack, *end);
        while self.sent.get(1).is_some_and(is_covered) {
            self.sent.pop_front();
        }
        let newest = self.sent.front().filter(|sent| is_covered(sent));
        let early = newest.map_or(now, |(_, at)| *at + self.least);
        let due = early.max(self.free_at).max(now);
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
        next_group(due).max(last.unwrap_or(due))
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
            until: now + YOUNG.max(least * YOUNG_ROUNDS),
            least,
            sent: VecDeque::new(),
            end: None,
            acked: None,
            free_at: now,
            held: VecDeque::new(),
        });
    }

    fn flow(&mut self, conversation: u64) -> Option<&mut Young> {
        let mut flows = self.flows.iter_mut();
        flows.find(|flow| flow.conversation == conversation)
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
        let held: usize = self.flows.iter().map(|flow| flow.held.len()).sum();
        let Some(flow) = self.flow(view.conversation_hash()) else {
            delivered.push_back(packet);
            return;
        };
        if view.is_pure_ack() && held < MOST_HELD {
            let due = flow.due(now, segment.ack, rate);
            if due > now {
                flow.held.push_back((due, packet));
                return;
            }
        }
        flow.release(delivered);
        delivered.push_back(packet);
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
            && let Some(flow) = self.round_trips.flow(view.conversation_hash())
        {
            flow.on_sent(now, segment.end);
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
        for _ in before..shared.delivered.len() {
            // What stays goes behind the rest, so in the end all are in order again.
            if let Some(packet) = shared.delivered.remove(before) {
                self.round_trips
                    .deliver(now, packet, rate, shared.delivered);
            }
        }
    }

    /// What all paths carry, if that is known.
    fn known_rate(&self) -> Option<Bitrate> {
        let in_use = |path: &&Path| path.health.is_usable() && path.route.is_some();
        let rate = |path: &Path| {
            let is_open = path.rate_control.is_searching();
            path.rate.max().filter(|_| !is_open)
        };
        let rates = self.paths().filter(in_use).map(rate);
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

/// Whether a sequence number is before another (RFC 9293 section 3.4).
const fn is_before(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) > u32::MAX / 2
}

/// For so long, and so many round trips, a flow is young.
const YOUNG: Duration = Duration::from_secs(3);
const YOUNG_ROUNDS: u32 = 12;
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
                let acks = delivered
                    .iter()
                    .filter_map(|packet| packet.view().ok()?.segment());
                got.extend(acks.map(|segment| (at, segment.ack)));
            }
            got
        }
    }

    #[test]
    fn an_acknowledgement_waits_until_its_round_trip_is_as_long_as_the_longest() {
        let mut trips = watching(60);
        trips.sends(9, 1_000);
        trips.sends(12, 2_000);
        trips.sends(15, u32::MAX);
        trips.sends(90, 1_000);
        // The first covers what was sent at 9, the next what was then sent at 12; what is late is late.
        let packets = [(19, ack(1_000)), (25, ack(2_999)), (150, ack(u32::MAX))];
        let got = trips.delivers(&packets, None);
        assert_eq!(got, [(69, 1_000), (72, 2_999), (150, u32::MAX)]);
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
    fn what_else_comes_waits_for_nothing_and_keeps_the_order() {
        let mut trips = watching(60);
        trips.sends(0, 9_000);
        let [from, to] = CONVERSATION;
        let data = segment([to, from], 1, 9_001, 10);
        let stranger = segment([to, from + 1], 1, 77, 0);
        let packets = [
            (20, ack(9_000)),
            (21, stranger),
            (22, data),
            (23, ack(9_002)),
        ];
        let got = trips.delivers(&packets, None);
        assert_eq!(got, [(21, 77), (22, 9_000), (22, 9_001), (60, 9_002)]);
    }

    #[test]
    fn a_flow_is_young_for_a_while_and_flows_are_few() {
        let mut trips = watching(60);
        trips.sends(2_990, 1_000);
        assert_eq!(
            trips.delivers(&[(2_995, ack(1_000))], None),
            [(3_000, 1_000)]
        );
        assert_eq!(trips.poll_timeout(), None);
        // What claims to cover gigabytes makes the next one wait no longer than that.
        let mut trips = watching(60);
        let packets = [(20, ack(0)), (20, ack(1 << 30)), (30, ack((1 << 30) + 1))];
        let got = trips.delivers(&packets, Some(1));
        assert_eq!(got[2], (3_000, (1 << 30) + 1));
        let mut delivered = VecDeque::new();
        let mut trips = watching(60);
        trips.deliver(ms(20), ack(0), Some(Bitrate::from_mbps(1)), &mut delivered);
        for number in [1 << 30, (1 << 30) + 1] {
            trips.deliver(
                ms(20),
                ack(number),
                Some(Bitrate::from_mbps(1)),
                &mut delivered,
            );
        }
        trips.on_timeout(ms(30), &mut delivered);
        assert_eq!(trips.poll_timeout(), Some(ms(3_000)));
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
