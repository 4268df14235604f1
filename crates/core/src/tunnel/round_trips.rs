//! Keeps the RTT of a TCP flow constant during its start-up phase by delaying ACKs.
//!
//! *Problem.* A flow begins on the path with the shortest delay. When it grows, it also uses paths with longer delays
//! or moves to them, and its RTT rises at once. Where delays jitter, the RTT rises by chance. Senders that watch the
//! RTT during slow start (HyStart, RFC 9406; CUBIC in Linux) mistake the rise for a full queue and leave slow start far
//! below the capacity of the paths. They also leave slow start if an ACK train, with gaps of at most 2 ms, lasts for
//! half an RTT.
//!
//! *Algorithm.* Each TCP flow gets a *target RTT* for its start-up phase: the RTT of the slowest path that the flow
//! would use if it grew, jitter included ([`crate::sched::Scheduler::round_trip`]). The target RTT is chosen when the
//! first data of the flow are acknowledged, and then stays the same. Each ACK is delayed until the acknowledged data
//! have been in flight for the target RTT. This also applies to data that arrived out of order and are acknowledged by
//! SACK (RFC 2018).
//!
//! ACKs are delivered in groups ([`APART`]), so that the ACK train has gaps. They are delivered at no more than twice
//! the rate of the paths, so that they release no larger bursts than a single link would. Data are not delayed in
//! either direction. Data from the receiver are delivered before the ACK that they carry ([`KeptFlow::let_ahead`]):
//! they are changed so that they do not contain anything that would end the sender's slow start. Where that is
//! impossible, all delayed ACKs are delivered and no further ACK of the flow is delayed. At the end of the start-up
//! phase the target RTT shrinks gradually ([`FADING`]). This rule is pleach's own.
//!
//! Bounds: [`MOST`] flows and [`MOST_HELD`] delayed ACKs. When the table of flows is full, the flow whose start-up
//! phase ends first is removed and its ACKs are delivered at once.

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

/// The flows in their start-up phase whose data this end sends.
#[derive(Debug)]
pub(super) struct RoundTrips {
    /// Key of the flow hashes ([`crate::flows`]).
    key: FlowKey,
    flows: Vec<KeptFlow>,
}

/// Properties of the paths on which the delay of ACKs depends.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Total rate of all paths, if it is known.
    rate: Option<Bitrate>,
    /// Target RTT of a flow whose first data are acknowledged now.
    least: Option<Duration>,
}

/// The parts of the tunnel from which the target RTT is computed.
#[derive(Debug)]
pub(super) struct Look<'a> {
    pub(super) paths: &'a mut PathSet,
    pub(super) placement: &'a mut Placement,
    pub(super) staged: &'a Staged,
}

impl Look<'_> {
    /// Returns the target RTT of a flow that opens now.
    fn round_trip(&mut self, now: Instant) -> Duration {
        self.placement.refresh(now, self.paths, self.staged);
        self.placement.round_trip()
    }
}

impl RoundTrips {
    /// Returns the state without any flow.
    pub(super) fn new(key: FlowKey) -> Self {
        Self {
            key,
            flows: Vec::new(),
        }
    }

    /// Adds a flow whose first segment ends at `end` and whose target RTT is `least`.
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

    /// Returns the target RTT of a flow; zero if the flow has no target RTT.
    pub(super) fn of(&self, flow: FlowId) -> Duration {
        let index = self.position(flow.hash());
        index.map_or(Duration::ZERO, |index| self.flows[index].kept())
    }

    /// Returns the longest target RTT of all flows.
    pub(super) fn longest(&self) -> Duration {
        let kept = self.flows.iter().map(KeptFlow::kept);
        kept.max().unwrap_or_default()
    }

    /// Starts to shrink all target RTTs gradually, because the paths have changed.
    pub(super) fn fade(&mut self, now: Instant) {
        for flow in &mut self.flows {
            flow.until = flow.until.min(now + FADING);
        }
    }

    /// Frees the memory of flows that have ended.
    pub(super) fn release_memory(&mut self) {
        self.flows.shrink_to_fit();
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
            // An ACK of data that were never sent does not belong to this flow, but a segment that closes the flow may
            // belong to it.
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

    /// Delays ACKs that would arrive too early. Considers the delivered packets after the first `before`.
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
        // Each packet is moved from the front to the back, so the order is the original one at the end.
        shared.delivered.rotate_left(before);
        for _ in 0..count {
            if let Some(packet) = shared.delivered.pop_front() {
                self.deliver(now, packet, known, shared.pool, shared.delivered);
            }
        }
    }

    /// Returns the number of delayed ACKs.
    fn held(&self) -> usize {
        self.flows.iter().map(KeptFlow::held).sum()
    }

    /// Removes the flows for which `is_it` returns true, and delivers their ACKs.
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

    /// Returns the earliest time at which a delayed ACK is due or the start-up phase of a flow ends.
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

/// Returns the time at which an ACK due at `due` is delivered together with its group.
fn next_group(due: Instant) -> Instant {
    let apart = u64::try_from(APART.as_nanos()).unwrap_or(u64::MAX);
    Instant::from_nanos(due.as_nanos().next_multiple_of(apart))
}

/// Minimum duration of the start-up phase as a time and as a number of target RTTs.
const YOUNG: Duration = Duration::from_secs(3);
const YOUNG_ROUNDS: u32 = 12;
/// Duration in which the target RTT of a flow shrinks to zero at the end of the start-up phase.
const FADING: Duration = Duration::from_secs(1);
/// Minimum target RTT; ACKs are not delayed for a shorter RTT, because no sender reacts to a rise of less than 4 ms.
const LEAST: Duration = Duration::from_millis(10);
/// Maximum target RTT; a sender would mistake longer delays for losses.
const LONGEST: Duration = Duration::from_millis(700);
/// Interval between groups of ACKs. It is longer than the 2 ms up to which Linux counts ACKs as one ACK train
/// (`hystart_ack_delta_us`).
const APART: Duration = Duration::from_millis(3);
/// Maximum rate of acknowledged data as a multiple of the rate of the paths. Even at a lower rate, slow start fills
/// queues.
const FASTER: u64 = 2;
/// Minimum interval between two records of sent data.
const NOTED_EACH: Duration = Duration::from_micros(500);
const MOST_NOTED: usize = 2048;
/// Maximum excess of the target RTT over the first RTT that the sender measured. It is less than the excess of the
/// sender's retransmission timeout over the first RTT (RFC 6298, with a minimum of 200 ms as in Linux).
const LATER: Duration = Duration::from_millis(150);
/// Maximum ratio of the target RTT to the first RTT that the sender measured. It is below 2.9, because BBR has up to
/// 2.9 times the product of rate and min RTT in flight.
const TIMES: u32 = 2;
/// Maximum distance in bytes between successive data of a receiver that are delivered before delayed ACKs, and maximum
/// distance of their timestamps. A timestamp tick lasts at least a microsecond (RFC 7323 section 5.4 specifies a
/// millisecond).
const MOST_AHEAD: u32 = 1 << 20;
const MOST_TICKS: u32 = 1 << 24;
/// Maximum number of segments that may be delivered before delayed ACKs: a handshake and a request. In a longer
/// dialogue, the sender may wait for an ACK before it sends more (Nagle, RFC 9293 section 3.7.4).
const MOST_TALK: u32 = 6;
/// Maximum number of delayed ACKs of all flows.
const MOST_HELD: usize = 8192;
/// Maximum number of flows.
const MOST: usize = 64;

#[cfg(test)]
pub(super) mod tests;
