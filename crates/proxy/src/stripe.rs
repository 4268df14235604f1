//! Connections over several links at once, when the other end runs pleach too: DBAS's packet-oriented mode, with OSIA
//! among its schedulers. State machines only; sockets are in `relay::stripe` and `daemon::peers`.
//!
//! ```text
//!  client ──► chunks ─┐               ┌─► lane wifi ══ TCP ═╗ ┌─► in order ──► server
//!  client ──► chunks ─┴► scheduler ───┴─► lane lte  ══ TCP ═╩─┴─► in order ──► server
//!             8 KiB     per chunk   kept until counted  ◄── counts on every lane, credit per connection
//! ```
//!
//! A *lane* is a TCP connection to the peer over one link, encrypted ([`channel`]). The lanes of an asking end to a peer
//! carry all its connections there ([`mux`]): lanes are dialled once, kept while they are used, and shared. Both ends of a
//! association are alike, but that one asks for connections and the other answers.
//!
//! | module | what |
//! | --- | --- |
//! | [`frame`] | what travels |
//! | [`channel`] | greeting, handshake, sealed frames on a lane |
//! | [`mux`] | one end of an association: joins the others; acknowledgements |
//! | [`connections`] | states of connections, and their turns to send |
//! | [`outgoing`], [`receiver`] | a connection's two halves: cutting into chunks; putting in order, granting credit |
//! | [`dispatch`] | lanes: assigns, keeps, sends again |
//! | [`sched`] | which lane a chunk takes: a scheduler per file |
//! | [`rate`] | what a lane carries and how far it is |
//! | [`peers`] | where a peer answered |
//!
//! Bounds: the constants below. The protocol: `docs/stripe.md`.

pub mod channel;
pub mod connections;
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

/// A piece of the stream, or its end, which counts as one byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where in the stream it begins: its name.
    pub offset: u64,
    /// Its bytes, at most [`CHUNK`]; none for the end.
    pub data: Arc<Vec<u8>>,
}

impl Chunk {
    /// Whether it is the end of the stream.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.data.is_empty()
    }

    /// The offset after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add((self.data.len() as u64).max(1))
    }
}

/// What the other end may not do; the connection ends with it, or the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More was acknowledged than sent.
    #[error("acknowledges what was not sent")]
    Acknowledged,
    /// More than the credit, or more chunks than allowed.
    #[error("sends more than it may")]
    Credit,
    /// More requests than are answered, or answers that are not read.
    #[error("asks for more than it takes")]
    Flood,
    /// A frame that does not belong here.
    #[error("says what does not belong here")]
    Misplaced,
    /// Chunks that overlap, or lie beyond the end.
    #[error("sends chunks that do not fit together")]
    Overlap,
}

impl Violation {
    /// Its name among the counters of what was refused.
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

/// Most bytes of a chunk: 3 ms on 20 Mbit/s, and sealing costs little more than for larger ones.
pub const CHUNK: usize = 8 << 10;
/// Credit of a connection when it begins, in bytes: 17 Mbit/s over 60 ms; it doubles for who reads quickly.
pub const FIRST_WINDOW: u64 = 128 << 10;
/// Most credit of a connection beyond what was delivered, in bytes: 320 Mbit/s over 100 ms.
pub const WINDOW: u64 = 4 << 20;
/// Most credit of all connections of an association beyond their first, in bytes.
pub const GROWTH: u64 = 64 << 20;
/// What a connection takes beyond what its peer has credit for, in bytes.
pub const MAX_PENDING: usize = 256 << 10;
/// The same for all connections of an association, but that each may have a chunk.
pub const MAX_PENDING_ALL: usize = 16 << 20;
/// Most chunks of a connection not delivered: a stream of small writes must not cost much more memory than one of large ones.
pub const MAX_CHUNKS: usize = 1024;
/// Most lanes of an association at a time.
pub const MAX_LANES: usize = 8;
/// Most connections of an association at a time.
pub const MAX_CONNECTIONS: usize = 1024;
/// Most items of a lane that were sent and not counted.
pub const MAX_SENT: usize = 4096;
/// Most bytes of a lane that were sent and not counted: 670 Mbit/s over 100 ms.
pub const MAX_SENT_BYTES: u64 = 8 << 20;
/// Most requests, answers and resets that wait to be sent: the lanes of a peer that asks and does not read end. Each
/// connection may have a window to tell beside.
pub const MAX_URGENT: usize = 4096;
/// How far the number of a new connection may be beyond the first that has not come.
pub const MAX_AHEAD: u32 = 4096;
