//! UDP flows over the lanes of an association (TCP connections to a peer). A *flow* is the datagrams between one client
//! and one destination. Dropping a [`Flow`] ends it, and informs the peer.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use pleach_linux::clock;
use tokio::sync::Notify;

use super::association::Association;
use crate::stripe::frame::{FlowId, Refusal, Wanted};

/// What happens to a flow at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowEvent<'a> {
    /// A datagram arrived.
    Datagram(&'a [u8]),
    /// The peer has ended the flow, or the association has ended. `Some`: the peer does not serve the flow.
    Ended(Option<Refusal>),
}

/// Handles the events of a flow. It must not block.
type Handler = Rc<dyn Fn(FlowEvent<'_>)>;

/// A flow that the peer has requested, and its first datagram.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) flow: FlowId,
    pub(crate) wanted: Wanted,
    pub(crate) data: Vec<u8>,
}

/// The flows of an association.
#[derive(Default)]
pub(super) struct Flows {
    handlers: RefCell<BTreeMap<FlowId, Handler>>,
    /// Flows that the peer requested and that no handler serves yet.
    asked: RefCell<VecDeque<Asked>>,
    /// Whether the peer understands frames of flows.
    is_served: Cell<bool>,
    is_over: Cell<bool>,
    /// Notified when the first lane joins, and when the association ends.
    met: Notify,
}

impl std::fmt::Debug for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flows").finish_non_exhaustive()
    }
}

/// A flow over the lanes of an association.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) association: Rc<Association>,
    id: FlowId,
    /// Destination at the asking end. `None` at the answering end.
    wanted: Option<Wanted>,
}

impl Flow {
    /// Opens a flow to `wanted`. `None` if there are too many flows.
    pub(crate) fn open(
        association: &Rc<Association>,
        wanted: Wanted,
        handler: impl Fn(FlowEvent<'_>) + 'static,
    ) -> Option<Self> {
        let id = association.mux.borrow_mut().open_flow()?;
        Some(Self::new(association, id, Some(wanted), handler))
    }

    /// Serves the flow `id`, which the peer requested.
    pub(crate) fn serve(
        association: &Rc<Association>,
        id: FlowId,
        handler: impl Fn(FlowEvent<'_>) + 'static,
    ) -> Self {
        Self::new(association, id, None, handler)
    }

    fn new(
        association: &Rc<Association>,
        id: FlowId,
        wanted: Option<Wanted>,
        handler: impl Fn(FlowEvent<'_>) + 'static,
    ) -> Self {
        let mut handlers = association.flows.handlers.borrow_mut();
        handlers.insert(id, Rc::new(handler));
        Self {
            association: Rc::clone(association),
            id,
            wanted,
        }
    }

    /// Sends a datagram to the peer. Returns whether it was queued; a dropped datagram is counted.
    pub(crate) fn send(&self, data: &[u8]) -> bool {
        let association = &self.association;
        let mut mux = association.mux.borrow_mut();
        let sent = mux.send_datagram(clock::now(), self.id, self.wanted, data);
        drop(mux);
        if let Err(dropped) = sent {
            association.drops.count(dropped.reason());
            return false;
        }
        association.wake();
        true
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.association
            .flows
            .handlers
            .borrow_mut()
            .remove(&self.id);
        self.association.close_flow(self.id, None);
    }
}

impl Association {
    /// Notes whether the peer serves flows, when a lane has joined.
    pub(super) fn meet(&self, serves_flows: bool) {
        self.flows.is_served.set(serves_flows);
        self.flows.met.notify_waiters();
    }

    /// Waits until the association has a lane. Returns whether the peer serves flows.
    pub(crate) async fn serves_flows(&self) -> bool {
        loop {
            let met = self.flows.met.notified();
            if self.flows.is_over.get() {
                return false;
            }
            if self.is_met() {
                return self.flows.is_served.get();
            }
            met.await;
        }
    }

    /// Returns whether the peer serves flows, without waiting. `None` before the first lane.
    pub(crate) fn is_serving_flows(&self) -> Option<bool> {
        self.is_met().then(|| self.flows.is_served.get())
    }

    /// Returns the number of flows.
    pub(crate) fn flow_count(&self) -> usize {
        self.mux.borrow().flow_count()
    }

    /// Returns the next flow that the peer requests, with its first datagram.
    pub(crate) fn next_asked(&self) -> Option<Asked> {
        self.flows.asked.borrow_mut().pop_front()
    }

    /// Ends a flow, and informs the peer if it serves flows.
    pub(crate) fn close_flow(&self, id: FlowId, refusal: Option<Refusal>) {
        let mut mux = self.mux.borrow_mut();
        if self.flows.is_served.get() {
            mux.close_flow(clock::now(), id, refusal);
        } else {
            // The peer would not understand the notification.
            mux.forget_flow(id);
        }
        drop(mux);
        self.touch();
        self.wake();
        self.changed.notify_one();
    }

    /// Passes a datagram from the peer to the flow's handler. `wanted` is the destination at the answering end, where
    /// the datagram may be the first of its flow.
    pub(super) fn handle_datagram(&self, flow: FlowId, wanted: Option<Wanted>, data: Vec<u8>) {
        let handler = self.flows.handlers.borrow().get(&flow).cloned();
        match (handler, wanted) {
            (Some(handler), _) => handler(FlowEvent::Datagram(&data)),
            (None, None) => {}
            (None, Some(wanted)) => {
                let mut asked = self.flows.asked.borrow_mut();
                if asked.len() >= MAX_ASKED {
                    if asked.iter().all(|other| other.flow != flow) {
                        // The next datagram of the flow requests it again.
                        self.mux.borrow_mut().forget_flow(flow);
                    }
                    return self.drops.count("too-many-peer-flows");
                }
                asked.push_back(Asked { flow, wanted, data });
                self.changed.notify_one();
            }
        }
    }

    /// Passes a datagram that waited while its flow was not served yet to the flow's handler. Returns whether the flow
    /// has a handler.
    pub(crate) fn redeliver(&self, asked: &Asked) -> bool {
        let handler = self.flows.handlers.borrow().get(&asked.flow).cloned();
        let Some(handler) = handler else { return false };
        handler(FlowEvent::Datagram(&asked.data));
        true
    }

    pub(super) fn handle_flow_end(&self, flow: FlowId, refusal: Option<Refusal>) {
        // A flow that ends before it is served must not be served.
        let is_other = |asked: &Asked| asked.flow != flow;
        self.flows.asked.borrow_mut().retain(is_other);
        let handler = self.flows.handlers.borrow_mut().remove(&flow);
        if let Some(handler) = handler {
            handler(FlowEvent::Ended(refusal));
        }
    }

    /// Ends all flows, because the association has ended.
    pub(super) fn end_flows(&self) {
        self.flows.is_over.set(true);
        self.flows.met.notify_waiters();
        for handler in self.flows.handlers.take().into_values() {
            handler(FlowEvent::Ended(None));
        }
    }
}

/// Maximum number of datagrams of flows that are not served yet.
const MAX_ASKED: usize = 64;
