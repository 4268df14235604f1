//! Handshake, keys, replay protection.
