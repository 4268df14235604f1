//! Which end of an association this is.

/// The two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Owns the links, starts handshakes, describes its links.
    Client,
    /// Learns paths from what arrives.
    Gateway,
}
