//! The role of this end in an association.

/// The two ends of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Owns the links, starts handshakes, describes its links.
    Client,
    /// Learns paths from the datagrams that arrive.
    Gateway,
}
