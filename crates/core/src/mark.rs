//! Properties of a packet that are not in its bytes: its class, its deadline, and the path that the other end wants.

use crate::{ids::PathId, time::Instant};

/// Properties of a packet that only the sending end knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The packet's class; `None` if it has no class.
    pub found: Option<Found>,
    /// The path on which the other end wants the packets of the flow, if no class of the user gives the packet links or a
    /// deadline.
    pub answer_on: Option<PathId>,
    /// The deadline for its arrival at the other end.
    pub due: Option<Instant>,
    /// When the packet is dropped if it has not been sent.
    pub give_up_at: Option<Instant>,
    /// Whether the packet is marked as the last packet of a frame ([`crate::packet::PacketView::ends_frame`]).
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

/// The number of a class. After a change of the classes, classes get new numbers, so that packets marked before the
/// change keep their class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassId(pub u8);
