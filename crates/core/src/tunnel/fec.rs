//! Forward erasure correction: what random losses take is computed from what came, a few packets later instead of a round
//! trip.
//!
//! *Out.* Where paths lose, packets are put into an encoder ([`crate::fec`]) by their global number, and after every so
//! many, or behind each frame of video, a repair symbol over the newest of them goes out ([`sending`]). It is a data datagram without a packet: numbered,
//! paced and reported on its path as any, and never sent again. Only to an end that knows it ([`REPAIR_SYMBOLS`]).
//!
//! *In.* From the first repair symbol on, every packet that comes is given to a decoder ([`receiving`]). What it computes
//! goes to the resequencer as if it had come. The sender is told which those were ([`Frame::Recovered`]) besides what its
//! paths lost ([`Frame::Missing`]): so all losses count, and what was computed by then is not sent again.
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
