//! Header compression: only the bytes of the inner packets' headers that change from packet to packet are sent.
//!
//! *Problem.* Every packet carries the tunnel's headers in addition to its own headers. Of the 40 to 72 bytes of a
//! packet's IP and transport headers, only about a dozen change within a flow.
//!
//! *Algorithm.* The sender learns for each flow which header bytes change ([`Compressor`]). Once the set has been small
//! and stable for a while, it sends a numbered *template*: all header bytes of a packet, and which of them will be sent
//! with each packet. After the other end has acknowledged the template, a packet whose other bytes equal the template
//! is sent without these other bytes. If one of the omitted bytes changes, a new template is created. The set converges
//! after a few templates: for a TCP download, 12 to 14 of 52 bytes are sent. Bytes that can be derived are never sent:
//! lengths, and the IPv4 header checksum. Packets that match no template are sent uncompressed.
//!
//! *Wire.* A template is sent in a control frame, which is repeated until it is acknowledged. So a template in use is
//! always known, even if packets and frames are reordered, and an end without header compression never gets a
//! compressed packet. A compressed packet is the template's number with the two highest bits set (2 bytes), the
//! changing header bytes, and the payload. An IP packet has 4 or 6 in its four highest bits, so the two kinds can be
//! distinguished.
//!
//! *Bounds.* The sender tracks 256 flows at a time; the receiver stores the newest [`TEMPLATES`] templates. A template
//! is defined at most every [`DEFINE_EVERY`], so each template is stored for at least 5 s. Therefore the template of a
//! packet that waits for retransmission is still known.
//!
//! *Source.* Acknowledged contexts are those of RFC 1144 and RFC 5795 (ROHC, reliable mode). In contrast to these, the
//! bytes to send are learned instead of defined by the protocol, so there are no profiles. There is no state except the
//! template, so any packet may be lost, reordered or retransmitted.

mod compressor;
mod expander;
mod template;
#[cfg(test)]
mod tests;

pub use compressor::{Compressor, Definition};
pub use expander::{ExpandError, Expander};
pub use template::{MAX_HEADERS_BYTES, Template};

/// Number of templates that the receiver stores.
pub const TEMPLATES: u16 = 512;
/// Number of template numbers; valid numbers are smaller.
pub const NUMBERS: u16 = 1 << 14;
/// Minimum time between two definitions.
pub const DEFINE_EVERY: core::time::Duration = core::time::Duration::from_millis(10);

/// Bits of the first byte that mark a compressed packet.
const MARK: u8 = 0b1100_0000;

/// Returns the distance from `earlier` to `next`.
fn distance(next: u16, earlier: u16) -> u16 {
    (next % NUMBERS + NUMBERS - earlier % NUMBERS) % NUMBERS
}

/// Whether `bytes` are a compressed packet.
#[must_use]
pub fn is_compressed(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| first & MARK == MARK)
}
