//! How a datagram was received.

use crate::transmit::Route;

/// How a datagram was received.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// The receiving socket and the sender's address.
    pub route: Route,
    /// Whether the datagram has the ECN mark CE (congestion experienced).
    pub is_congested: bool,
}
