//! Header compression: of the headers of inner packets, only what changes from packet to packet travels.
//!
//! *Problem.* Every packet carries the tunnel's own headers beside its own. Of the 40 to 72 bytes of a packet's IP and
//! transport headers, a dozen change within a flow.
//!
//! *Algorithm.* The sender learns, flow by flow, which bytes of the headers change ([`Compressor`]). Once they have been
//! the same few for a while, it sends a *template* with a number: all header bytes of a packet, and which of them travel.
//! When the other end has acknowledged it, packets that agree with it in all other bytes go without those. A byte that
//! changes after all makes a new template, so after a few the set is right: for a TCP download, 12 to 14 of 52 bytes. What
//! follows from the rest never travels: lengths, and the IPv4 header's checksum. What fits no template travels as it is.
//!
//! *Wire.* A template goes in a control frame, repeated until acknowledged; so one that is used is known, however packets
//! and frames overtake each other, and an end that knows none of this is never sent any. A compressed packet is the
//! template's number with the two highest bits set (2 bytes), the bytes that travel, and what follows the headers. An IP
//! packet begins with 4 or 6 in its highest four bits, so either tells itself.
//!
//! *Bounds.* The sender knows 256 flows at a time, the receiver the newest [`TEMPLATES`] templates; one is defined
//! at most every [`DEFINE_EVERY`], so a packet that waits to be sent again still finds its own.
//!
//! *Source.* The idea of acknowledged contexts is that of RFC 1144 and RFC 5795 (ROHC, reliable mode). Own: which bytes
//! travel is learnt instead of given by the protocol, so there are no profiles, and no state beside the template: any
//! packet can be lost, overtaken or repaired.

mod compressor;
mod expander;
mod template;
#[cfg(test)]
mod tests;

pub use compressor::{Compressor, Definition};
pub use expander::{ExpandError, Expander};
pub use template::{MAX_HEADERS_BYTES, Template};

/// Templates the receiver keeps: the newest.
pub const TEMPLATES: u16 = 512;
/// Numbers of templates are below this.
pub const NUMBERS: u16 = 1 << 14;
/// Least time between two definitions.
pub const DEFINE_EVERY: core::time::Duration = core::time::Duration::from_millis(10);

/// What marks a compressed packet in the first byte.
const MARK: u8 = 0b1100_0000;

/// How many numbers `earlier` was before `next`.
fn distance(next: u16, earlier: u16) -> u16 {
    (next % NUMBERS + NUMBERS - earlier % NUMBERS) % NUMBERS
}

/// Whether these are the bytes of a compressed packet.
#[must_use]
pub fn is_compressed(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| first & MARK == MARK)
}
