//! UDP flows over the lanes of an association (TCP connections to a peer). A *flow* is the datagrams between one client
//! and one destination. Dropping a [`Flow`] ends it, and informs the peer.

use std::rc::Rc;

use pleach_linux::clock;

use super::{association::Association, flow_table::FlowEvent};
use crate::stripe::frame::{FlowId, Wanted};

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
