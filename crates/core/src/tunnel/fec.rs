//! Forward erasure correction: recovers randomly lost packets from other packets, a few packets later instead of a
//! round trip later.
//!
//! *Out.* Where paths lose packets, packets are added to an encoder ([`crate::fec`]) by their global number. At
//! intervals, or behind each frame of video, a repair symbol over the newest packets is sent ([`sending`]). It is a
//! data datagram without a packet: numbered, paced and reported on its path like any other, but never retransmitted.
//! Symbols are sent only to an end that supports them ([`REPAIR_SYMBOLS`]).
//!
//! *In.* From the first repair symbol on, every received packet is passed to a decoder ([`receiving`]). Recovered
//! packets go to the resequencer as if they had been received. The sender is told which packets were recovered
//! ([`Frame::Recovered`]) and which its paths lost ([`Frame::Missing`]): so all losses count, and recovered packets
//! are not retransmitted.
//!
//! [`REPAIR_SYMBOLS`]: crate::wire::handshake::REPAIR_SYMBOLS
//! [`Frame::Recovered`]: crate::wire::control::Frame::Recovered
//! [`Frame::Missing`]: crate::wire::control::Frame::Missing

use core::time::Duration;

mod frames;
mod losses;
mod receiving;
mod sending;

pub(super) use receiving::Receiving;
pub(super) use sending::Sending;

#[cfg(test)]
mod tests;

/// A loss is mostly told after so long.
pub(super) const TOLD_WITHIN: Duration = Duration::from_millis(5);
/// A loss is told after so long, and its repair has its turn.
pub(super) const REPORTED_WITHIN: Duration = Duration::from_millis(30);
/// Bytes of a repair symbol that stand in the header, in place of the steps.
pub(super) const IN_HEADER: usize = 4;
