//! What the engine knows about a packet in addition to its bytes: its class and its deadline.

use crate::time::Instant;

/// What the sending end knows about a packet in addition to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The packet's class.
    pub found: Found,
    /// The deadline for its arrival at the other end.
    pub due: Option<Instant>,
    /// When it is dropped if it has not been sent.
    pub give_up_at: Option<Instant>,
    /// Whether it is marked as the last packet of a frame ([`crate::packet::PacketView::ends_frame`]).
    pub ends_frame: bool,
}

/// A packet's class, and whether its flow is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The class.
    pub id: ClassId,
    /// Whether the flow sends less than 2 Mbit/s.
    pub is_small: bool,
}

/// A class. A change of the classes gives them new numbers, so that packets marked before keep their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassId(pub u8);
