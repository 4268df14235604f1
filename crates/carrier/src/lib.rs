//! Carries datagrams over TCP, for links where UDP does not get through.
//!
//! One link is carried by a *set* of a few TLS 1.3 connections, which end at the gateway or at a web server in front of it.
//! Each begins with a WebSocket upgrade (RFC 6455), because proxies and web servers pass that, and then has one binary message
//! for each datagram. Several connections, because a lost segment delays what is behind it on its own connection only.
//!
//! | module | what |
//! | --- | --- |
//! | [`choice`] | when a link changes from UDP to TCP and back: a state machine without I/O |
//! | [`meter`] | whether UDP is throttled on a link |
//! | [`client`] | the connections of a client's links |
//! | [`server`] | the listener of a gateway, with its limits |
//! | [`proof`] | how client and gateway recognise each other without certificates of an authority |
//! | [`http_proxy`] | the way through an HTTP proxy (`CONNECT`) |
//!
//! Confidentiality does not depend on any of this: what is carried is sealed by the tunnel's session. TLS hides what the
//! connection is for.
//!
//! Threads: client and server have one each, with a runtime of its own. Datagrams go to and from the data path over bounded
//! channels; what finds no room on the way out is dropped, as by a full queue of a router. On the way in, the connection is
//! read no further, so that TCP slows the other end down.

pub mod choice;
pub mod client;
mod connection;
pub mod error;
pub mod http_proxy;
mod limits;
pub mod meter;
pub mod proof;
mod request;
pub mod server;
mod socket;
pub mod tls;

/// Datagrams to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// All datagrams, one after the other.
    pub bytes: Vec<u8>,
    /// Length of each but the last, which may be shorter; at least 1.
    pub segment_len: usize,
}

impl Piece {
    /// Cuts `bytes`, datagrams of `segment_len` bytes each, into pieces that leave on one connection: few datagrams each,
    /// so that a slow connection delays few.
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
    /// All datagrams, one after the other.
    pub bytes: Vec<u8>,
    /// Length of each.
    pub lengths: Vec<usize>,
}

impl Received {
    /// Gives each datagram to `handle`.
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

/// Bytes of a piece: 16 ms at 2 Mbit/s, for which a TLS record is not complete.
const PIECE_BYTES: usize = 4096;
/// Pieces that wait for a connection: 256 KiB of long datagrams.
const QUEUED_PIECES: usize = 64;
/// Longest message that is read: no datagram is longer.
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
