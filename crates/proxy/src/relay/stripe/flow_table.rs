//! The UDP flows of an association, at one end: the handlers that receive their datagrams, and the flows that wait for a
//! handler.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use tokio::sync::Notify;

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
pub(super) type Handler = Rc<dyn Fn(FlowEvent<'_>)>;

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
    pub(super) handlers: RefCell<BTreeMap<FlowId, Handler>>,
    /// Flows that the peer requested and that no handler serves yet.
    pub(super) asked: RefCell<VecDeque<Asked>>,
    /// Whether the peer understands frames of flows.
    pub(super) is_served: Cell<bool>,
    pub(super) is_over: Cell<bool>,
    /// Notified when the first lane joins, and when the association ends.
    pub(super) met: Notify,
}

impl std::fmt::Debug for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flows").finish_non_exhaustive()
    }
}

/// Maximum number of datagrams of flows that are not served yet.
pub(super) const MAX_ASKED: usize = 64;
