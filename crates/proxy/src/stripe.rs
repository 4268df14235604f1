//! One TCP connection over several links, when the other end runs pleach too: DBAS's packet-oriented mode, with OSIA
//! among its schedulers. State machines only; sockets are in `relay::stripe` and `daemon::peers`.
//!
//! ```text
//!  client ──► chunks ──► scheduler ──► lane wifi ══ TCP ══► in order ──► server
//!             8 KiB      per chunk ──► lane lte  ══ TCP ══►  receiver
//!                ▲ kept until acknowledged   ◄── acks, credit on every lane
//! ```
//!
//! A *lane* is a TCP connection to the peer over one link, encrypted ([`channel`]). A *bundle* is what the lanes of one
//! striped connection have in common at one end ([`bundle`]): a [`sender`] and a [`receiver`], the same at both ends.
//!
//! | module | what |
//! | --- | --- |
//! | [`frame`] | what travels |
//! | [`channel`] | greeting, handshake, sealed frames on a lane |
//! | [`sender`] | cuts, assigns, keeps, sends again |
//! | [`receiver`] | puts in order, grants credit |
//! | [`bundle`] | joins the two; acknowledgements, lanes |
//! | [`sched`] | which lane a chunk takes: a scheduler per file |
//! | [`rate`] | what a lane carries and how far it is |
//! | [`peers`] | where a peer answered |
//!
//! Bounds, for each striped connection: [`MAX_PENDING`] read and not assigned, [`WINDOW`] sent and not delivered, as much
//! received and not delivered, [`MAX_CHUNKS`] chunks of either, [`MAX_LANES`] lanes. The protocol: `docs/stripe.md`.

pub mod bundle;
pub mod channel;
pub mod frame;
pub mod peers;
pub mod rate;
pub mod receiver;
pub mod sched;
pub mod sender;
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

/// What the other end may not do; the bundle ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More was acknowledged than sent.
    #[error("acknowledges what was not sent")]
    Acknowledged,
    /// More than the credit, or more chunks than allowed.
    #[error("sends more than it may")]
    Credit,
    /// A frame that does not belong here.
    #[error("says what does not belong here")]
    Misplaced,
    /// Chunks that overlap, or lie beyond the end.
    #[error("sends chunks that do not fit together")]
    Overlap,
}

/// Most bytes of a chunk: 3 ms on 20 Mbit/s, and sealing costs little more than for larger ones.
pub const CHUNK: usize = 8 << 10;
/// Credit of a receiver beyond what was delivered: 320 Mbit/s over 100 ms.
pub const WINDOW: u64 = 4 << 20;
/// What a sender takes beyond what its peer has credit for.
pub const MAX_PENDING: usize = 1 << 20;
/// Most chunks not delivered: a stream of small writes must not cost more memory than one of large ones.
pub const MAX_CHUNKS: usize = 4096;
/// Most lanes of a bundle at a time.
pub const MAX_LANES: usize = 8;
