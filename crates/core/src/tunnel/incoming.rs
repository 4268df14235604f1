//! How a datagram came.

use crate::transmit::Route;

/// How a datagram came.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// By which socket and from whom.
    pub route: Route,
    /// Whether the network marked it: congestion experienced.
    pub is_congested: bool,
}
