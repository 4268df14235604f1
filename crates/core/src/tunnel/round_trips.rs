//! Keeps the RTT of young TCP flows constant by delaying ACKs.
//!
//! *Problem.* A flow begins on the quickest path. When it grows, it spreads or moves to paths with a longer delay, and
//! its RTT rises at once. Where delays jitter, the RTT rises by chance. Senders that watch the RTT during slow start
//! (HyStart, RFC 9406; CUBIC in Linux) take the rise for a full queue and leave slow start far below the capacity of
//! the paths. They also leave slow start if an ACK train, with gaps of at most 2 ms, lasts for half an RTT.
//!
//! *Algorithm.* While a TCP flow is young, each ACK is delayed until the acknowledged data have been under way for the
//! RTT of the slowest path that the flow would use if it grew, jitter included
//! ([`crate::sched::Scheduler::round_trip`]). That RTT is chosen when the first data of the flow are acknowledged and
//! stays the same from then on. It also applies to data that arrived out of order and are acknowledged by SACK (RFC
//! 2018). ACKs are delivered in groups ([`APART`]), so that the ACK train has gaps, and at no more than twice the rate
//! of the paths, so that they release no larger bursts than a single link would. Data are not delayed in either
//! direction. Data from the receiver go ahead of the ACK that they carry ([`KeptFlow::let_ahead`]): they are changed
//! so that they tell the sender nothing that would end its slow start. Where that is impossible, all delayed ACKs are
//! delivered and no ACK of the flow is delayed any more. At the end of its youth the RTT of a flow shrinks gradually
//! ([`FADING`]). Own rule.
//!
//! Bounds: [`MOST`] flows and [`MOST_HELD`] delayed ACKs. When the table of flows is full, the flow whose youth ends
//! first is removed and its ACKs are delivered at once.

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
    /// The key of the flow hashes ([`crate::flows`]).
    key: FlowKey,
    flows: Vec<KeptFlow>,
}

/// What is known of the paths.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The rate of all paths together.
    rate: Option<Bitrate>,
    /// The RTT to keep for a flow whose first data are acknowledged now.
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
    /// The RTT to keep for a flow that opens now.
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

    /// Starts to watch a flow. Its first segment ends at `end`, and its RTT is to be `least`.
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

    /// The RTT that is kept for a flow; zero if none is.
    pub(super) fn of(&self, flow: FlowId) -> Duration {
        let index = self.position(flow.hash());
        index.map_or(Duration::ZERO, |index| self.flows[index].kept())
    }

    /// The longest RTT that is kept for any flow.
    pub(super) fn longest(&self) -> Duration {
        let kept = self.flows.iter().map(KeptFlow::kept);
        kept.max().unwrap_or_default()
    }

    /// The paths have changed: the kept RTTs shrink gradually from now on.
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

    /// Delivers a packet to the host, at once or after a delay.
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
            // An ACK of data that were never sent is not of this flow, but a segment that closes the flow may be.
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

    /// Records a packet from the host.
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

    /// Delays ACKs that arrive too early, among the delivered packets after the first `before`.
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
        // Packets that have been examined go to the back of the queue, so the order is the old one at the end.
        shared.delivered.rotate_left(before);
        for _ in 0..count {
            if let Some(packet) = shared.delivered.pop_front() {
                self.deliver(now, packet, known, shared.pool, shared.delivered);
            }
        }
    }

    /// The number of delayed ACKs.
    fn held(&self) -> usize {
        self.flows.iter().map(KeptFlow::held).sum()
    }

    /// Removes flows.
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

    /// Removes all flows.
    pub(super) fn clear(&mut self, now: Instant, delivered: &mut VecDeque<PacketBuf>) {
        self.end(now, |_| true, delivered);
    }

    /// The earliest time at which a delayed ACK is due or a flow is no longer young.
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

/// When the group is delivered that contains an ACK due at `due`.
fn next_group(due: Instant) -> Instant {
    let apart = u64::try_from(APART.as_nanos()).unwrap_or(u64::MAX);
    Instant::from_nanos(due.as_nanos().next_multiple_of(apart))
}

/// A flow is young for this time and for this number of round trips.
const YOUNG: Duration = Duration::from_secs(3);
const YOUNG_ROUNDS: u32 = 12;
/// The time over which the kept RTT of a flow shrinks at the end of its youth.
const FADING: Duration = Duration::from_secs(1);
/// Shorter RTTs are not kept: no sender reacts to a rise of less than 4 ms.
const LEAST: Duration = Duration::from_millis(10);
/// The longest RTT that is kept: a sender would take longer delays for losses.
const LONGEST: Duration = Duration::from_millis(700);
/// The interval between groups of ACKs: more than 2 ms (`hystart_ack_delta_us` in Linux).
const APART: Duration = Duration::from_millis(3);
/// The highest rate of acknowledged data, as a multiple of the rate of the paths: slow start fills queues with less.
const FASTER: u64 = 2;
/// The interval between two records of sent data.
const NOTED_EACH: Duration = Duration::from_micros(500);
const MOST_NOTED: usize = 2048;
/// How much longer than its first RTT a sender's next RTT may be made: the timeout of RFC 6298 (with a minimum of 200
/// ms, as in Linux) is no shorter.
const LATER: Duration = Duration::from_millis(150);
/// How many times its first RTT a sender's next RTT may be: BBR sends up to 2.9 windows of its min RTT.
const TIMES: u32 = 2;
/// The largest distance between data of a receiver that go ahead, and between their timestamps in ticks of at least a
/// microsecond (RFC 7323 section 5.4 says a millisecond).
const MOST_AHEAD: u32 = 1 << 20;
const MOST_TICKS: u32 = 1 << 24;
/// How many segments may go ahead: a handshake and a request. A dialogue continues in both directions, and its sender
/// may wait for an ACK before it sends more (Nagle, RFC 9293 section 3.7.4).
const MOST_TALK: u32 = 6;
/// The largest number of delayed ACKs of all flows.
const MOST_HELD: usize = 8192;
/// The largest number of flows.
const MOST: usize = 64;

#[cfg(test)]
pub(super) mod tests;
