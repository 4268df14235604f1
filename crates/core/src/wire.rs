//! What travels in a datagram.
