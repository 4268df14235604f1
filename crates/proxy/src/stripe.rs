//! Connections over several links at once, if the other end runs pleach too: DBAS's packet-oriented mode, with OSIA
//! among its schedulers. This module has only state machines; the sockets are in `relay::stripe` and `daemon::peers`.
//!
//! ```text
//!  client ──► chunks ─┐               ┌─► lane wifi ══ TCP ═╗ ┌─► in order ──► server
//!  client ──► chunks ─┴► scheduler ───┴─► lane lte  ══ TCP ═╩─┴─► in order ──► server
//!             8 KiB     per chunk   kept until counted  ◄── counts on every lane, credit per connection
//! ```
//!
//! A *lane* is an encrypted TCP connection to the peer over one link ([`channel`]). An *association* consists of the
//! lanes that one end has dialled to a peer, and of all its connections to this peer ([`mux`]). The lanes are dialled
//! once, stay open while they are used, and are shared by the connections. Both ends of an association work alike,
//! except that one end requests connections and the other end answers.
//!
//! | module | content |
//! | --- | --- |
//! | [`frame`] | messages between the ends |
//! | [`channel`] | greeting, handshake, encrypted frames on a lane |
//! | [`mux`] | one end of an association: combines the other modules; acknowledgements |
//! | [`connections`] | states of connections, and the order in which they send |
//! | [`outgoing`], [`receiver`] | a connection's two directions: cutting into chunks; resequencing, granting credit |
//! | [`datagrams`] | UDP flows: their datagrams wait for a lane, and are spread over the lanes one by one |
//! | [`dispatch`] | assigns chunks to lanes, buffers them until acknowledged, retransmits them |
//! | [`sched`] | which lane a chunk takes: a scheduler per file |
//! | [`rate`] | rate and delay of a lane |
//! | [`peers`] | addresses at which a peer answered |
//!
//! The constants below bound all tables and buffers. `docs/stripe.md` specifies the protocol.

pub mod channel;
pub mod connections;
pub mod datagrams;
pub mod dispatch;
pub mod frame;
mod item;
pub mod mux;
mod opened;
pub mod outgoing;
pub mod peers;
pub mod rate;
pub mod receiver;
pub mod sched;
#[cfg(test)]
mod tests;

use std::sync::Arc;

/// A piece of a connection's stream, or the end of the stream, which counts as one byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Position of the first byte in the stream. It identifies the chunk.
    pub offset: u64,
    /// Data of the chunk, at most [`CHUNK`] bytes; empty for the end of the stream.
    pub data: Arc<Vec<u8>>,
}

impl Chunk {
    /// Whether the chunk is the end of the stream.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the position after the chunk.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add((self.data.len() as u64).max(1))
    }
}

/// A violation of the protocol by the other end. It ends the connection or the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The peer acknowledged more than was sent.
    #[error("acknowledges what was not sent")]
    Acknowledged,
    /// The peer sent more bytes than its credit, or more chunks than allowed.
    #[error("sends more than it may")]
    Credit,
    /// The peer sent more requests than are answered, or does not read the answers.
    #[error("asks for more than it takes")]
    Flood,
    /// The peer sent a frame that is not allowed in this state.
    #[error("says what does not belong here")]
    Misplaced,
    /// The peer sent chunks that overlap, or that lie beyond the end of the stream.
    #[error("sends chunks that do not fit together")]
    Overlap,
}

impl Violation {
    /// Returns the violation's name among the drop counters.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Acknowledged => "peer-false-acknowledgement",
            Self::Credit => "peer-beyond-credit",
            Self::Flood => "peer-flood",
            Self::Misplaced => "peer-misplaced-frame",
            Self::Overlap => "peer-overlap",
        }
    }
}

/// Maximum number of data bytes per chunk: 3 ms at 20 Mbit/s. Larger chunks would hardly reduce the cost of
/// encryption.
pub const CHUNK: usize = 8 << 10;
/// Initial credit of a connection in bytes: 17 Mbit/s at an RTT of 60 ms. The credit doubles if the receiving
/// application reads quickly.
pub const FIRST_WINDOW: u64 = 128 << 10;
/// Maximum credit of a connection beyond the bytes delivered, in bytes: 320 Mbit/s at an RTT of 100 ms.
pub const WINDOW: u64 = 4 << 20;
/// Maximum credit, in bytes, of all connections of an association together, beyond their initial credit.
pub const GROWTH: u64 = 64 << 20;
/// Maximum number of bytes that a connection buffers beyond the peer's credit.
pub const MAX_PENDING: usize = 256 << 10;
/// Maximum number of bytes that all connections of an association buffer beyond the peer's credit. Each connection
/// may have one chunk nevertheless.
pub const MAX_PENDING_ALL: usize = 16 << 20;
/// Maximum number of undelivered chunks of a connection. A stream of small writes must not cost much more memory than
/// one of large writes.
pub const MAX_CHUNKS: usize = 1024;
/// Maximum number of lanes of an association.
pub const MAX_LANES: usize = 8;
/// Maximum number of connections of an association.
pub const MAX_CONNECTIONS: usize = 1024;
/// Maximum number of items of a lane that were sent and not acknowledged.
pub const MAX_SENT: usize = 4096;
/// Maximum number of bytes of a lane that were sent and not acknowledged: 670 Mbit/s at an RTT of 100 ms.
pub const MAX_SENT_BYTES: u64 = 8 << 20;
/// Maximum number of requests, answers and resets that wait to be sent. If a peer sends requests and does not read
/// the answers, its lanes end. In addition, each connection may have one window update waiting.
pub const MAX_URGENT: usize = 4096;
/// Maximum distance of the number of a new connection from the lowest number that has not been seen.
pub const MAX_AHEAD: u32 = 4096;
