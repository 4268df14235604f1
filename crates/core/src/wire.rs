//! What travels in a datagram.

pub mod handshake;
