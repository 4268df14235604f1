//! Traffic classes: how packets are recognised, and how they are served.
//!
//! For voice, video and remote control a late packet is a lost packet; for a download it is not. A [`Class`] defines
//! its packets ([`Match`]) and their service ([`Service`]): the deadline, whether packets are delivered in order, and
//! whether copies are sent. The [`Classifier`] finds the first class that a packet matches, by the packet's headers and
//! by the recent rate of its flow. A class may name the program that has opened the flow; the host is asked for it
//! ([`FlowQuestion`]).
//!
//! Voice is recognised without any configured class: by its code point (EF of RFC 3246, VOICE-ADMIT of RFC 5865), or by
//! its traffic pattern of 20 to 100 short packets per second in one flow. In both cases only UDP packets are recognised
//! (`docs/algorithms.md` section 3.10).
//!
//! The services are implemented in `tunnel/lanes.rs` (queue, deadline), `tunnel/services.rs` (links, copies) and
//! `sched/adaptive/urgent.rs` (choice of path).

use core::{ops::RangeInclusive, time::Duration};

use ipnet::IpNet;

pub use apps::FlowQuestion;
pub use classifier::{ClassCounts, Classifier};

use crate::units::Bitrate;

mod apps;
mod classifier;
mod flows;
#[cfg(test)]
mod tests;

/// A class as configured by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Name of the class, used in reports.
    pub name: String,
    /// Conditions that a packet must meet.
    pub matches: Match,
    /// Service for these packets.
    pub service: Service,
}

/// Conditions of a class. A packet must meet all conditions that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Name of the program that must have opened the packet's flow, compared exactly; `None` for any. Only flows of
    /// this host have a program. A flow whose program is unknown does not match.
    pub app: Option<String>,
    /// Code points, 0 to 63 (RFC 2474), of which the packet must have one; empty for any.
    pub dscp: Vec<u8>,
    /// IP protocol number that the packet must have; `None` for any.
    pub protocol: Option<u8>,
    /// Ranges of TCP or UDP ports, of which one must contain the source or destination port; empty for any.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Networks of which one must contain the source address; empty for any.
    pub from: Vec<IpNet>,
    /// Networks of which one must contain the destination address; empty for any.
    pub to: Vec<IpNet>,
    /// Maximum packet length in bytes, including the IP header.
    pub max_size: Option<usize>,
    /// Maximum rate of the packet's flow, over half a second.
    pub max_rate: Option<Bitrate>,
}

/// Service for the packets of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Time after the packet's arrival at this end by which the other end must have received it. Packets with a
    /// deadline are sent before packets without a deadline, on any path that delivers them in time. Packets that can no
    /// longer arrive in time are dropped at this end.
    pub deadline: Option<Duration>,
    /// Whether the other end releases the packets in the order of their flow. If not, it releases each packet at once.
    pub is_ordered: bool,
    /// Selection of the packets that are sent twice.
    pub duplicate: Duplicate,
    /// Maximum bytes of copies, in percent of the bytes of the class.
    pub share_percent: u16,
    /// Links that carry the class while one of them may carry data; empty for any link.
    pub links: Vec<String>,
    /// Whether packets are dropped and counted while none of `links` can carry them, instead of using another link. They
    /// wait while a link is only silent for a moment. It has no effect without `links`, on packets with a deadline, and
    /// under policies that work in blocks.
    pub is_strict: bool,
    /// Whether all packets are dropped and counted.
    pub is_blocked: bool,
}

impl Default for Service {
    /// Returns the service of packets without a class.
    fn default() -> Self {
        Self {
            deadline: None,
            is_ordered: true,
            duplicate: Duplicate::Never,
            share_percent: 0,
            links: Vec::new(),
            is_strict: false,
            is_blocked: false,
        }
    }
}

/// Selection of the packets of a class that are also sent on a second path. It applies only to classes with a deadline,
/// and under scheduling policies that send copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicate {
    /// No packets.
    #[default]
    Never,
    /// Packets of flows below 2 Mbit/s. In faster flows, packets on two kinds of paths: paths that have been silent for
    /// half of the time after which they count as suspect, and paths with a loss of more than 0.3 % on which a
    /// retransmission would miss the deadline.
    Auto,
    /// All packets.
    Always,
}

/// Maximum number of classes, including the classes that are made from the user's rules.
pub const MAX_CLASSES: usize = 64;
