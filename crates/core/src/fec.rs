//! Forward erasure correction: repair symbols from which lost packets are recovered without a retransmission.
//!
//! *Problem.* The sender learns of a loss after one RTT at best. If that is too late, it sends redundancy in advance, and the
//! receiver computes the missing packets from the packets and symbols that arrived.
//!
//! *Algorithm.* A random linear code over GF(2^8) with a window that slides (RLC, RFC 8681). Packets travel unchanged
//! and are numbered. A *repair symbol* is a linear combination of the newest n packets ([`Encoder`]); any k repair
//! symbols over k missing packets are k equations in k unknowns ([`Decoder`]). Random coefficients make them independent
//! but for about one case in 250 (one missing packet: always), nearly what an MDS code of the same redundancy recovers,
//! while windows may overlap, have any length and any number of repair symbols, chosen per symbol.
//!
//! *Symbols.* A packet's symbol is its length (2 bytes, big endian) and its bytes, zero-padded to the longest in the
//! window; so a recovered packet has its own length back.
//!
//! *Bounds.* Packets of up to [`MAX_PACKET_BYTES`]; windows of up to [`MAX_WINDOW_PKTS`]; the decoder remembers
//! [`HISTORY_PKTS`] packets and [`MAX_PENDING`] repair symbols and solves for up to [`MAX_UNKNOWNS`] packets at once.
//! Memory: about 200 KB an encoder, 1.8 MB a decoder, taken at construction (the operating system gives pages as they are
//! first used); no allocation afterwards.
//!
//! *Source.* RFC 8681 sections 3.5 (coefficients) and 3.6 (encoding), FEC encoding ID 10 (GF(2^8), polynomial 0x11d),
//! density threshold 15; RFC 8682 (generator). *Differences:* one packet is one symbol, of its own length, so there is no
//! fixed symbol size, no flow identifier and no padding on the wire; windows are at most 128 packets; the density is
//! fixed; what a repair packet says of itself ([`Repair`]) is the caller's to encode, and so are signalling, rates and when to
//! repair: `tunnel/egress.rs`, `tunnel/fec.rs`.
//!
//! *Not detected.* Repair symbols that contradict received packets are detected only if an equation is redundant or a recovered
//! packet has an impossible length or padding. Datagrams are authenticated; an honest peer's symbols do not contradict.

mod coefficients;
mod decoder;
mod encoder;
mod gf256;
mod symbols;

use crate::ids::Seq;

pub use decoder::{Decoder, Stats};
pub use encoder::Encoder;

/// Longest packet, in bytes.
pub const MAX_PACKET_BYTES: usize = 1500;
/// Longest symbol: a packet and its length.
pub const MAX_SYMBOL_BYTES: usize = LENGTH_BYTES + MAX_PACKET_BYTES;
/// Maximum number of packets that one repair symbol covers.
pub const MAX_WINDOW_PKTS: usize = 128;
/// Number of packet numbers, up to the newest known, that a decoder keeps: 60 ms at 200 Mbit/s. A power of two.
pub const HISTORY_PKTS: usize = 1024;
/// Maximum number of repair symbols that a decoder keeps for later.
pub const MAX_PENDING: usize = 128;
/// Maximum number of them used as equations at once.
pub const MAX_EQUATIONS: usize = 32;
/// Maximum number of missing packets that a decoder solves for at once: with more unknowns than equations it could not succeed.
pub const MAX_UNKNOWNS: usize = MAX_EQUATIONS;

/// Bytes of the length in front of a packet in its symbol.
const LENGTH_BYTES: usize = 2;

/// Description of a repair symbol; sent with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The oldest packet it covers.
    pub first: Seq,
    /// How many packets it covers, consecutive from `first`: 1 to [`MAX_WINDOW_PKTS`].
    pub count: u8,
    /// Seeds its coefficients. Two symbols over the same packets need different keys to be of any use together.
    pub key: u16,
    /// Length of the symbol in bytes: 2 to [`MAX_SYMBOL_BYTES`].
    pub len: usize,
}

impl Repair {
    /// The newest packet it covers.
    #[must_use]
    pub fn last(&self) -> Seq {
        self.first.plus(u32::from(self.count)).minus(1)
    }

    /// The packets it covers, oldest first.
    fn ids(self) -> impl Iterator<Item = Seq> {
        (0..u32::from(self.count)).map(move |i| self.first.plus(i))
    }

    /// Whether it covers `id`.
    #[must_use]
    pub fn covers(&self, id: Seq) -> bool {
        id.0.wrapping_sub(self.first.0) < u32::from(self.count)
    }
}

#[cfg(test)]
mod tests;
