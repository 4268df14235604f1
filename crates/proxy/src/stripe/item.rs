//! Reliable messages: frames that are buffered until the other end has acknowledged them.

use std::sync::Arc;

use super::{
    Chunk,
    frame::{Broken, ConnId, Frame, Refusal, Wanted},
};

/// A frame that must arrive. Cloning is cheap because the data are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A piece of a connection's stream, or the end of the stream.
    Chunk(ConnId, Chunk),
    /// A request for a connection, with the first bytes of its stream.
    Open(ConnId, Wanted, Arc<Vec<u8>>),
    /// The requested connection is open.
    Opened(ConnId),
    /// The requested connection is refused.
    Refused(ConnId, Refusal),
    /// The connection is broken.
    Reset(ConnId, Broken),
    /// Window update: bytes delivered, and the new limit.
    Window(ConnId, u64, u64),
}

/// Key of an item. Items are retransmitted in the order of their keys: first items that open and end connections,
/// then chunks, by connection and position.
pub(super) type Key = (u8, ConnId, u64);

impl Item {
    pub(super) fn key(&self) -> Key {
        match self {
            Self::Open(conn, ..) => (OPEN, *conn, 0),
            Self::Opened(conn) => (1, *conn, 0),
            Self::Refused(conn, _) => (2, *conn, 0),
            Self::Reset(conn, _) => (3, *conn, 0),
            Self::Window(conn, delivered, limit) => (4, *conn, delivered.wrapping_add(*limit)),
            Self::Chunk(conn, chunk) => (CHUNKS, *conn, chunk.offset),
        }
    }

    pub(super) fn conn(&self) -> ConnId {
        self.key().1
    }

    /// Returns the number of data bytes.
    pub(super) fn data_bytes(&self) -> u64 {
        match self {
            Self::Chunk(_, chunk) => chunk.data.len() as u64,
            Self::Open(_, _, data) => data.len() as u64,
            Self::Opened(_) | Self::Refused(..) | Self::Reset(..) | Self::Window(..) => 0,
        }
    }

    /// Returns the item's length as schedulers count it: at least one byte.
    pub(super) fn cost(&self) -> u64 {
        self.data_bytes().max(1)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let frame = match self {
            Self::Chunk(conn, chunk) if chunk.is_end() => Frame::End {
                conn: *conn,
                offset: chunk.offset,
            },
            Self::Chunk(conn, chunk) => Frame::Chunk {
                conn: *conn,
                offset: chunk.offset,
                data: &chunk.data,
            },
            Self::Open(conn, wanted, data) => Frame::Open {
                conn: *conn,
                wanted: *wanted,
                data,
            },
            Self::Opened(conn) => Frame::Opened { conn: *conn },
            Self::Refused(conn, refusal) => Frame::Refused {
                conn: *conn,
                refusal: *refusal,
            },
            Self::Reset(conn, why) => Frame::Reset {
                conn: *conn,
                why: *why,
            },
            Self::Window(conn, delivered, limit) => Frame::Window {
                conn: *conn,
                delivered: *delivered,
                limit: *limit,
            },
        };
        frame.encode(out);
    }
}

/// First part of the keys of requests.
pub(super) const OPEN: u8 = 0;
/// First part of the keys of chunks.
pub(super) const CHUNKS: u8 = 5;
