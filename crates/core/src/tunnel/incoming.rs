//! How a datagram was received.

use crate::transmit::Route;

/// How a datagram was received.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Receiving socket, and address of the sender.
    pub route: Route,
    /// Whether the datagram has the ECN mark CE (congestion experienced).
    pub is_congested: bool,
}
