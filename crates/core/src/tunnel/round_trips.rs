//! Round trips of young flows, kept alike.
//!
//! *Problem.* A flow begins on the quickest path. When it grows it spreads to later ones, or moves there,
//! and its round trip grows at once; where delays jitter it grows by chance. Senders that look out for that (HyStart,
//! RFC 9406; CUBIC in Linux) take it for a full queue and end their slow start, far below what the paths carry. So they do if
//! acknowledgements, none more than 2 ms behind the one before, go on for half of a round trip.
//!
//! *Algorithm.* While a TCP flow is young, an acknowledgement is handed to its sender not before what it acknowledges
//! has been under way for as long as on the latest path that the flow would take if it grew, jitter included
//! ([`crate::sched::Scheduler::round_trip`]), decided when the first of its data are acknowledged: the round trip is the same
//! from then on. What came out of order is acknowledged as well (RFC 2018). They are handed on in
//! groups ([`APART`]), so their train has gaps, and not faster than twice what the paths carry, so what they release
//! comes in no larger bursts than from a link of its own. No data are delayed, either way: what the receiver says goes ahead
//! of what it acknowledges ([`KeptFlow::let_ahead`]), changed so that its sender learns nothing from it that would end its slow
//! start; where that cannot be, all that is held goes on, and nothing is held any more. At the end of its youth a flow's
//! round trip shrinks little by little ([`FADING`]). Own rule.
//!
//! Bounded: the flow that is kept for the shortest time gives way, and its acknowledgements go on at once.

use core::time::Duration;
use std::collections::VecDeque;

use super::{path_set::PathSet, placement::Placement, shared::Shared, staged::Staged};
use crate::{
    flows::{FlowId, FlowKey},
    packet::{PacketBuf, Pool},
    time::Instant,
    units::Bitrate,
};

mod kept_flow;

use kept_flow::{KeptFlow, Said};

/// The young flows whose data this end sends.
#[derive(Debug)]
pub(super) struct RoundTrips {
    /// Of the hashes by which flows are known ([`crate::flows`]).
    key: FlowKey,
    flows: Vec<KeptFlow>,
}

/// What is known of the paths.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// What all of them carry.
    rate: Option<Bitrate>,
    /// How long the round trips of a flow are to be whose first data are acknowledged.
    least: Option<Duration>,
}

/// The paths, as they may be looked at.
#[derive(Debug)]
pub(super) struct Look<'a> {
    pub(super) paths: &'a mut PathSet,
    pub(super) placement: &'a mut Placement,
    pub(super) staged: &'a Staged,
}

impl Look<'_> {
    /// How long the round trips of a flow that opens now are to be.
    fn round_trip(&mut self, now: Instant) -> Duration {
        self.placement.refresh(now, self.paths, self.staged);
        self.placement.round_trip()
    }
}

impl RoundTrips {
    /// No flow is watched.
    pub(super) fn new(key: FlowKey) -> Self {
        Self {
            key,
            flows: Vec::new(),
        }
    }

    /// Watches a flow that opens by a segment that ends at `end`, and whose round trips are to be `least`.
    fn watch(
        &mut self,
        now: Instant,
        conversation: u64,
        end: u32,
        least: Duration,
        delivered: &mut VecDeque<PacketBuf>,
    ) {
        self.end(now, |flow| flow.conversation == conversation, delivered);
        if least < LEAST {
            return;
        }
        if self.flows.len() == MOST {
            let first = self.flows.iter().min_by_key(|flow| flow.until);
            let first = first.map(|flow| flow.conversation);
            self.end(now, |flow| Some(flow.conversation) == first, delivered);
        }
        let least = least.min(LONGEST);
        let until = now + YOUNG.max(least * YOUNG_ROUNDS) + FADING;
        self.flows
            .push(KeptFlow::new(now, conversation, end, least, until));
    }

    /// How long those of a flow are made; zero if they are not.
    pub(super) fn of(&self, flow: FlowId) -> Duration {
        let index = self.position(flow.hash());
        index.map_or(Duration::ZERO, |index| self.flows[index].kept())
    }

    /// The longest that is made.
    pub(super) fn longest(&self) -> Duration {
        let kept = self.flows.iter().map(KeptFlow::kept);
        kept.max().unwrap_or_default()
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

    /// Whether a packet acknowledges the first data of a flow.
    fn is_first(&self, packet: &PacketBuf) -> bool {
        if !self.flows.iter().any(KeptFlow::is_opening) {
            return false;
        }
        let view = packet.view().ok();
        let known = view.and_then(|view| Some((view, view.segment()?.ack?)));
        known.is_some_and(|(view, ack)| {
            let flow = self.position(self.key.hash(&view));
            flow.is_some_and(|index| self.flows[index].is_first(ack))
        })
    }

    /// Hands a packet on to the host, at once or in time.
    fn deliver(
        &mut self,
        now: Instant,
        mut packet: PacketBuf,
        paths: Known,
        pool: &mut Pool,
        delivered: &mut VecDeque<PacketBuf>,
    ) {
        let view = packet.view().ok();
        let known = view.and_then(|view| Some((self.key.hash(&view), view, view.segment()?)));
        let Some((conversation, view, segment)) = known else {
            delivered.push_back(packet);
            return;
        };
        let Some(index) = self.position(conversation) else {
            delivered.push_back(packet);
            return;
        };
        let is_room = self.held() < MOST_HELD;
        let flow = &mut self.flows[index];
        let said = Said::of(&segment);
        let first = said.filter(|said| flow.is_first(said.ack)).zip(paths.least);
        if first.is_some_and(|(_, least)| !flow.renew(now, least)) {
            flow.release(now, delivered);
            delivered.push_back(packet);
            self.flows.remove(index);
            return;
        }
        let due = |said: Said| {
            let acked_to = view.acked_to(said.ack);
            Some((said, flow.due(now, said.ack, acked_to, paths.rate)?))
        };
        let known = said.and_then(due);
        let is_pure = said.is_some() && !segment.has_numbers && !segment.is_closing;
        let Some((said, due)) = known else {
            // What acknowledges what was never sent is not of this flow, but what closes it may be.
            if !is_pure {
                flow.release(now, delivered);
            }
            delivered.push_back(packet);
            if segment.is_closing {
                self.flows.remove(index);
            }
            return;
        };
        if is_pure && is_room {
            flow.hold(due, said, packet);
            return;
        }
        let is_early = due.is_early || flow.has_heard_more(said);
        let is_talk = is_early && !segment.is_opening && !segment.is_closing;
        if is_talk && is_room && flow.let_ahead(due, &segment, said, &mut packet, pool) {
            delivered.push_back(packet);
            return;
        }
        let ends = segment.is_closing || is_talk && !flow.begin(now, said);
        flow.release(now, delivered);
        flow.tell(now, said);
        delivered.push_back(packet);
        if ends {
            self.flows.remove(index);
        }
    }

    /// Takes note of a packet from the host.
    pub(super) fn on_packet_out(
        &mut self,
        now: Instant,
        flow: FlowId,
        packet: &PacketBuf,
        look: &mut Look<'_>,
        delivered: &mut VecDeque<PacketBuf>,
    ) {
        if !look.placement.profile().ack_pacing {
            return;
        }
        let view = packet.view().ok();
        let Some(segment) = view.and_then(|view| view.segment()) else {
            return;
        };
        if segment.is_opening {
            let least = look.round_trip(now);
            self.watch(now, flow.hash(), segment.end, least, delivered);
        } else if segment.has_numbers
            && !self.flows.is_empty()
            && let Some(index) = self.position(flow.hash())
        {
            self.flows[index].on_sent(now, segment.end);
        }
    }

    /// Keeps back what is too early of what is delivered beyond the first `before` packets.
    pub(super) fn on_delivered(
        &mut self,
        now: Instant,
        before: usize,
        look: &mut Look<'_>,
        shared: &mut Shared<'_>,
    ) {
        if self.flows.is_empty() {
            return;
        }
        let count = shared.delivered.len() - before;
        let mut new = shared.delivered.iter().skip(before);
        let is_first = new.any(|packet| self.is_first(packet));
        let least = is_first.then(|| look.round_trip(now));
        let known = Known {
            rate: look.placement.known_rate(),
            least,
        };
        // What is looked at goes behind the rest, so in the end all are in order again.
        shared.delivered.rotate_left(before);
        for _ in 0..count {
            if let Some(packet) = shared.delivered.pop_front() {
                self.deliver(now, packet, known, shared.pool, shared.delivered);
            }
        }
    }

    /// How many acknowledgements are held.
    fn held(&self) -> usize {
        self.flows.iter().map(KeptFlow::held).sum()
    }

    /// Forgets flows.
    fn end(
        &mut self,
        now: Instant,
        is_it: impl Fn(&KeptFlow) -> bool,
        delivered: &mut VecDeque<PacketBuf>,
    ) {
        for mut flow in self.flows.extract_if(.., |flow| is_it(flow)) {
            flow.release(now, delivered);
        }
    }

    /// Forgets all flows.
    pub(super) fn clear(&mut self, now: Instant, delivered: &mut VecDeque<PacketBuf>) {
        self.end(now, |_| true, delivered);
    }

    /// When an acknowledgement is due, or a flow no longer young.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.flows.iter().map(KeptFlow::poll_timeout).min()
    }

    pub(super) fn on_timeout(&mut self, now: Instant, delivered: &mut VecDeque<PacketBuf>) {
        self.end(now, |flow| flow.until <= now, delivered);
        for flow in &mut self.flows {
            flow.hand_on(now, delivered);
        }
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
/// How much longer than the first round trip of a sender its next may be made: RFC 6298 (with 200 ms, as in Linux) waits no
/// shorter.
const LATER: Duration = Duration::from_millis(150);
/// How many times the first round trip of a sender the next may be: BBR sends up to 2.9 windows of its shortest.
const TIMES: u32 = 2;
/// How far from each other data of a receiver that go ahead may be, and their times in ticks, of a microsecond at least
/// (RFC 7323 section 5.4 has a millisecond).
const MOST_AHEAD: u32 = 1 << 20;
const MOST_TICKS: u32 = 1 << 24;
/// How many segments may go ahead: a handshake and a request. A conversation goes on to and fro, and its sender may wait for
/// what it said to be acknowledged before it says more (Nagle, RFC 9293 section 3.7.4).
const MOST_TALK: u32 = 6;
/// Most acknowledgements held of all flows.
const MOST_HELD: usize = 8192;
/// Most flows.
const MOST: usize = 64;

#[cfg(test)]
pub(super) mod tests;
