//! Forward erasure correction: repair symbols from which lost packets are recovered without a retransmission.
//!
//! *Problem.* The sender learns of a loss after one RTT at the earliest. If that is too late, it sends redundancy in
//! advance, and the receiver computes the missing packets from the packets and symbols that arrived.
//!
//! *Algorithm.* A random linear code over GF(2^8) with a sliding window (RLC, RFC 8681). Packets are sent unchanged and
//! are numbered. A *repair symbol* is a linear combination of the newest n packets ([`Encoder`]). k repair symbols over
//! k missing packets are k equations in k unknowns ([`Decoder`]). Their random coefficients make them independent
//! except in about one case in 250; with one missing packet the equation always has a solution. So the code recovers
//! nearly as much as an MDS code with the same redundancy. In addition, windows may overlap, and the window length can
//! be chosen for each repair symbol, as can the number of repair symbols.
//!
//! *Symbols.* A packet's symbol is its length (2 bytes, big-endian) and its bytes, padded with zeros to the longest
//! packet in the window. So the length of a recovered packet is known.
//!
//! *Bounds.* Packets of up to [`MAX_PACKET_BYTES`]; windows of up to [`MAX_WINDOW_PKTS`]. The decoder stores
//! [`HISTORY_PKTS`] packets and [`MAX_PENDING`] repair symbols, and solves for up to [`MAX_UNKNOWNS`] packets at once.
//! Memory: about 200 KB for an encoder and 1.8 MB for a decoder, allocated at construction (the operating system
//! provides pages when they are first used); no allocation afterwards.
//!
//! *Source.* RFC 8681 sections 3.5 (coefficients) and 3.6 (encoding), FEC encoding ID 10 (GF(2^8), polynomial 0x11d),
//! density threshold 15; RFC 8682 (generator). *Differences:* one packet is one symbol of the packet's own length, so
//! there is no fixed symbol size, no flow identifier and no padding on the wire. Windows are at most 128 packets, and
//! the density is fixed. The caller encodes the description of a repair symbol ([`Repair`]) and decides on signalling,
//! rates and times of repairs: `tunnel/egress.rs`, `tunnel/fec.rs`.
//!
//! *Not detected.* Repair symbols that contradict received packets are detected only if an equation is redundant or a
//! recovered packet has an impossible length or padding. Datagrams are authenticated, and the symbols of an honest peer
//! do not contradict its packets.

mod coefficients;
mod decoder;
mod encoder;
mod gf256;
mod symbols;

use crate::ids::Seq;

pub use decoder::{Decoder, Stats};
pub use encoder::Encoder;

/// Maximum length of a packet, in bytes.
pub const MAX_PACKET_BYTES: usize = 1500;
/// Maximum length of a symbol, which consists of a packet and its length, in bytes.
pub const MAX_SYMBOL_BYTES: usize = LENGTH_BYTES + MAX_PACKET_BYTES;
/// Maximum number of packets that one repair symbol covers.
pub const MAX_WINDOW_PKTS: usize = 128;
/// Number of packet numbers, up to the newest known number, that a decoder stores: 60 ms at 200 Mbit/s. A power of two.
pub const HISTORY_PKTS: usize = 1024;
/// Maximum number of repair symbols that a decoder stores for later.
pub const MAX_PENDING: usize = 128;
/// Maximum number of stored repair symbols that are used as equations at once.
pub const MAX_EQUATIONS: usize = 32;
/// Maximum number of missing packets for which a decoder solves at once. With more unknowns than equations, not all of
/// them can be determined.
pub const MAX_UNKNOWNS: usize = MAX_EQUATIONS;

/// Number of bytes of the length that precedes a packet in its symbol.
const LENGTH_BYTES: usize = 2;

/// Description of a repair symbol, which is sent with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Number of the oldest packet that the symbol covers.
    pub first: Seq,
    /// Number of packets that the symbol covers, consecutive from `first`: 1 to [`MAX_WINDOW_PKTS`].
    pub count: u8,
    /// Seed of the coefficients. Two symbols over the same packets need different keys to recover two packets.
    pub key: u16,
    /// Length of the symbol in bytes: 2 to [`MAX_SYMBOL_BYTES`].
    pub len: usize,
}

impl Repair {
    /// Returns the number of the newest packet that the symbol covers.
    #[must_use]
    pub fn last(&self) -> Seq {
        self.first.plus(u32::from(self.count)).minus(1)
    }

    /// Returns the numbers of the packets that the symbol covers, oldest first.
    fn ids(self) -> impl Iterator<Item = Seq> {
        (0..u32::from(self.count)).map(move |i| self.first.plus(i))
    }

    /// Whether the symbol covers packet `id`.
    #[must_use]
    pub fn covers(&self, id: Seq) -> bool {
        id.0.wrapping_sub(self.first.0) < u32::from(self.count)
    }
}

#[cfg(test)]
mod tests;
