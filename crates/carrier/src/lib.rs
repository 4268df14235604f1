//! Carries datagrams over TCP, for links on which UDP does not work.
//!
//! One link is carried by a *set* of a few TLS 1.3 connections, which end at the gateway or at a web server in front of
//! it. Each begins with a WebSocket upgrade (RFC 6455), because proxies and web servers support WebSockets. Then each
//! datagram is one binary message. There are several connections, because a lost segment delays only the data behind it
//! on its own connection.
//!
//! | module | what |
//! | --- | --- |
//! | [`choice`] | when a link changes from UDP to TCP and back: a state machine without I/O |
//! | [`meter`] | whether UDP is throttled on a link |
//! | [`client`] | the connections of a client's links |
//! | [`server`] | the listener of a gateway, with its limits |
//! | [`limits`] | bounds for connections, in total and per source |
//! | [`proof`] | how client and gateway authenticate each other without certificates of an authority |
//! | [`http_proxy`] | connections through an HTTP proxy (`CONNECT`) |
//!
//! Confidentiality does not depend on TLS: the datagrams are sealed by the tunnel's session. TLS hides the purpose of
//! the connection.
//!
//! Client and server have one thread each, with its own runtime. The server has a second thread for handshakes, so that
//! connections of unknown hosts do not delay the datagrams of clients. Datagrams are exchanged with the data path over
//! bounded channels. If the outgoing channel is full, datagrams are dropped, as by a full queue of a router. If the
//! incoming channel is full, the connection is not read, so that TCP slows the other end down.

pub mod choice;
pub mod client;
mod connection;
pub mod error;
pub mod http_proxy;
pub mod limits;
pub mod meter;
pub mod proof;
mod request;
pub mod server;
mod socket;
mod strangers;
pub mod tls;

/// Datagrams to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The datagrams, one after the other.
    pub bytes: Vec<u8>,
    /// Length of each datagram except the last, which may be shorter. At least 1.
    pub segment_len: usize,
}

impl Piece {
    /// Cuts `bytes`, datagrams of `segment_len` bytes each, into pieces. Each piece is sent on one connection. It has
    /// only a few datagrams, so that a slow connection delays few.
    pub fn cut(bytes: &[u8], segment_len: usize) -> impl Iterator<Item = Self> {
        let segment_len = segment_len.max(1);
        let datagrams = (PIECE_BYTES / segment_len).max(1);
        bytes
            .chunks(datagrams * segment_len)
            .map(move |bytes| Self {
                bytes: bytes.to_vec(),
                segment_len,
            })
    }
}

/// Datagrams received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The datagrams, one after the other.
    pub bytes: Vec<u8>,
    /// Length of each datagram.
    pub lengths: Vec<usize>,
}

impl Received {
    /// Passes each datagram to `handle`.
    pub fn for_each(&mut self, mut handle: impl FnMut(&mut [u8])) {
        let mut rest = self.bytes.as_mut_slice();
        for len in &self.lengths {
            let Some((datagram, behind)) = rest.split_at_mut_checked(*len) else {
                return;
            };
            handle(datagram);
            rest = behind;
        }
    }
}

/// Size of a piece in bytes: 16 ms at 2 Mbit/s. During this time a TLS record is incomplete.
const PIECE_BYTES: usize = 4096;
/// Highest number of pieces that wait for a connection: 256 KiB of long datagrams.
const QUEUED_PIECES: usize = 64;
/// Length in bytes of the longest message that is read: no datagram is longer.
const MAX_MESSAGE: usize = 65_535;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_whole_datagrams() {
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let pieces: Vec<Piece> = Piece::cut(&bytes, 1400).collect();
        let lengths: Vec<usize> = pieces.iter().map(|piece| piece.bytes.len()).collect();
        assert_eq!(lengths, [2800, 2800, 2800, 1600]);
        assert_eq!(
            pieces
                .iter()
                .flat_map(|piece| piece.bytes.clone())
                .collect::<Vec<_>>(),
            bytes
        );
        assert_eq!(Piece::cut(&bytes, 10_000).count(), 1);
    }

    #[test]
    fn received_datagrams_come_out_as_they_went_in() {
        let mut received = Received {
            bytes: vec![1, 2, 2, 3, 3, 3],
            lengths: vec![1, 2, 3],
        };
        let mut seen = Vec::new();
        received.for_each(|datagram| seen.push(datagram.to_vec()));
        assert_eq!(seen, [vec![1], vec![2, 2], vec![3, 3, 3]]);
    }
}
