//! What is known of a packet beside its bytes: its class, and until when it is of use.

use crate::time::Instant;

/// What the sending end knows of a packet beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its class.
    pub found: Found,
    /// Until when it is of use at the other end.
    pub due: Option<Instant>,
    /// When it is given up if it has not been sent.
    pub give_up_at: Option<Instant>,
    /// Whether it says that it is the last of a frame ([`crate::packet::PacketView::ends_frame`]).
    pub ends_frame: bool,
}

/// What a packet's class is, and whether its flow is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which class.
    pub id: ClassId,
    /// Whether its flow sends less than 2 Mbit/s.
    pub is_small: bool,
}

/// Which class: its place among those configured, then those built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassId(pub u8);
