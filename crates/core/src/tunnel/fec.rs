//! Forward erasure correction: recovers randomly lost packets from other packets, a few packets later instead of an RTT
//! later.
//!
//! *Sender.* Where paths lose packets, packets are added to an encoder ([`crate::fec`]) by their global number. At
//! intervals, or after each video frame, a repair symbol over the newest packets is sent ([`sending`]). It is a data
//! datagram without a packet: it is numbered, paced and reported on its path like any other datagram, but never
//! retransmitted. Symbols are sent only to an end that supports them ([`REPAIR_SYMBOLS`]).
//!
//! *Receiver.* After the first repair symbol, every received packet is passed to a decoder ([`receiving`]). Recovered
//! packets go to the resequencer as if they had been received. The receiver reports which packets were recovered
//! ([`Frame::Recovered`]) and which packets its paths lost ([`Frame::Missing`]). So the sender counts all losses, and
//! does not retransmit recovered packets.
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

/// Time within which most losses are reported, in addition to the one-way delays.
pub(super) const TOLD_WITHIN: Duration = Duration::from_millis(5);
/// Time within which a loss is reported and its retransmission is scheduled, in addition to the one-way delays.
pub(super) const REPORTED_WITHIN: Duration = Duration::from_millis(30);
/// Number of bytes of a repair symbol that are sent in the header, in place of the path step and the flow step.
pub(super) const IN_HEADER: usize = 4;
