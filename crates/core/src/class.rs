//! Traffic classes: how packets are recognised, and how they are served.
//!
//! For voice, video and remote control a late packet is a lost packet; for a download it is not. A [`Class`] defines its
//! packets ([`Match`]) and their service ([`Service`]): their deadline, whether they are kept in order, whether copies are
//! sent. The [`Classifier`] finds the first class that a packet matches, by the packet's headers and by the recent rate of its
//! flow.
//!
//! Voice is recognised without any configured class: by its code point (EF of RFC 3246, VOICE-ADMIT of RFC 5865), or by its
//! traffic pattern of 20 to 100 short packets per second in one flow; in both cases only UDP (`docs/algorithms.md` section
//! 3.10).
//!
//! The services are implemented in `tunnel/lanes.rs` (queue, deadline), `tunnel/services.rs` (links, copies) and
//! `sched/adaptive/urgent.rs` (choice of path).

use core::{ops::RangeInclusive, time::Duration};

use ipnet::IpNet;

pub use classifier::{ClassCounts, Classifier};

use crate::units::Bitrate;

mod classifier;
mod flows;
#[cfg(test)]
mod tests;

/// A class as configured by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Name, used in reports.
    pub name: String,
    /// Conditions that a packet must meet.
    pub matches: Match,
    /// Service for these packets.
    pub service: Service,
}

/// Conditions of a class. A packet must meet all conditions that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// One of these code points, 0 to 63 (RFC 2474); empty: any.
    pub dscp: Vec<u8>,
    /// This IP protocol number.
    pub protocol: Option<u8>,
    /// One of its TCP or UDP ports, its own or the other end's, in one of these ranges; empty: any.
    pub ports: Vec<RangeInclusive<u16>>,
    /// From one of these networks; empty: any.
    pub from: Vec<IpNet>,
    /// To one of these; empty: any.
    pub to: Vec<IpNet>,
    /// Maximum packet length in bytes, IP header included.
    pub max_size: Option<usize>,
    /// Maximum rate of the packet's flow, over half a second.
    pub max_rate: Option<Bitrate>,
}

/// Service for the packets of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Deadline after the packet's arrival at this end. Packets with a deadline are sent before packets without one, on any
    /// path that delivers them in time; packets that can no longer arrive in time are dropped here.
    pub deadline: Option<Duration>,
    /// Whether the other end releases the packets in the order of their flow. If not, it does not hold any of them.
    pub is_ordered: bool,
    /// Which packets are sent twice.
    pub duplicate: Duplicate,
    /// Maximum bytes of copies, in percent of the bytes of the class.
    pub share_percent: u16,
    /// The links that carry the class while one of them works; empty: any.
    pub links: Vec<String>,
}

impl Default for Service {
    /// The service of packets without a class.
    fn default() -> Self {
        Self {
            deadline: None,
            is_ordered: true,
            duplicate: Duplicate::Never,
            share_percent: 0,
            links: Vec::new(),
        }
    }
}

/// Which packets of a class are also sent on a second path. Only for classes with a deadline, and under scheduling policies
/// that send copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicate {
    /// None.
    #[default]
    Never,
    /// Packets of flows below 2 Mbit/s. Of faster flows, packets on a path that has been silent for half of its suspect
    /// timeout, or that loses more than 0.3 % and could not retransmit in time.
    Auto,
    /// All.
    Always,
}

/// Maximum number of classes.
pub const MAX_CLASSES: usize = 32;
