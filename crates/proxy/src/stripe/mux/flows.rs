//! UDP flows of an association.

use pleach_core::time::Instant;

use super::{Event, Mux, Side};
use crate::stripe::{
    Violation,
    datagrams::{Arrived, Dropped},
    frame::{FlowId, LaneId, Refusal, Wanted},
    sched::LaneView,
};

impl Mux {
    /// Opens a UDP flow. `None` at the answering end, and if there are too many flows.
    pub fn open_flow(&mut self) -> Option<FlowId> {
        (self.side == Side::Asks).then(|| self.datagrams.open())?
    }

    /// Queues a datagram of a flow. `wanted` is the destination at the asking end, and `None` at the answering end.
    ///
    /// # Errors
    /// The datagram is dropped because it is too long or the queue is full.
    pub fn send_datagram(
        &mut self,
        now: Instant,
        flow: FlowId,
        wanted: Option<Wanted>,
        data: &[u8],
    ) -> Result<(), Dropped> {
        self.datagrams.push(now, flow, wanted, data)
    }

    /// Ends a flow, and informs the peer. `refusal` is the reason why the answering end does not serve the flow.
    pub fn close_flow(&mut self, now: Instant, flow: FlowId, refusal: Option<Refusal>) {
        let existed = if refusal.is_some() {
            // Later datagrams of the flow must not begin it again.
            self.datagrams.end(flow)
        } else {
            self.datagrams.close(flow)
        };
        if existed {
            self.datagrams.push_end(now, flow, refusal);
        }
    }

    /// Ends a flow without informing the peer, which does not serve flows.
    pub fn forget_flow(&mut self, flow: FlowId) {
        self.datagrams.close(flow);
    }

    /// Returns the number of UDP flows.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.datagrams.flow_count()
    }

    /// Appends the next datagram for lane `id` to `out`. Returns `false` if there is none, or if `is_leading` and it is
    /// the turn of an item.
    pub(super) fn poll_datagram(
        &mut self,
        now: Instant,
        id: LaneId,
        out: &mut Vec<u8>,
        is_leading: bool,
    ) -> bool {
        if self.datagrams.is_empty() {
            return false;
        }
        for _ in 0..self.datagrams.drop_late(now) {
            self.events
                .push_back(Event::Refused(Dropped::Late.reason()));
        }
        let Some(slot) = self.dispatch.ready_slot(id) else {
            return false;
        };
        if is_leading && !self.datagrams.is_first(slot) {
            return false;
        }
        let mut lanes: Vec<LaneView> = self.dispatch.datagram_views().collect();
        let Some(frame) = self.datagrams.poll(slot, &mut lanes) else {
            return false;
        };
        self.dispatch.on_datagram(now, slot);
        out.extend_from_slice(&frame);
        true
    }

    /// Handles a datagram. Only the asking end names destinations. A datagram in the wrong direction, of a flow that
    /// was never opened, or of one flow too many is dropped and counted.
    pub(super) fn handle_datagram(
        &mut self,
        now: Instant,
        flow: FlowId,
        wanted: Option<Wanted>,
        data: &[u8],
    ) {
        let arrived = match (self.side, wanted) {
            (Side::Answers, Some(_)) => self.datagrams.on_asked(flow),
            (Side::Asks, None) => self.datagrams.on_answered(flow),
            (Side::Answers, None) | (Side::Asks, Some(_)) => Arrived::Unknown,
        };
        match arrived {
            Arrived::Known => {
                let data = data.to_vec();
                self.events
                    .push_back(Event::Datagram { flow, wanted, data });
            }
            // The notification that the flow has ended may have been lost.
            Arrived::Past if self.side == Side::Answers => {
                let refusal = Some(Refusal::Unreachable);
                self.datagrams.push_end(now, flow, refusal);
            }
            Arrived::Past => {}
            Arrived::TooMany => {
                self.events.push_back(Event::Refused("too-many-peer-flows"));
                self.datagrams.push_end(now, flow, Some(Refusal::Busy));
            }
            Arrived::Unknown => {
                let reason = Violation::Misplaced.reason();
                self.events.push_back(Event::Refused(reason));
            }
        }
    }

    pub(super) fn handle_flow_end(&mut self, flow: FlowId, refusal: Option<Refusal>) {
        let existed = match self.side {
            Side::Answers => self.datagrams.end(flow),
            Side::Asks => {
                if self.datagrams.on_answered(flow) == Arrived::Unknown {
                    let reason = Violation::Misplaced.reason();
                    self.events.push_back(Event::Refused(reason));
                }
                self.datagrams.close(flow)
            }
        };
        if existed {
            self.events.push_back(Event::FlowEnd { flow, refusal });
        }
    }
}
