//! Classes of traffic: what a packet is, and what it needs.
//!
//! For voice, video and remote control a late packet is a lost one; for a download it is not. A [`Class`] says which
//! packets it is of ([`Match`]) and how they are served ([`Service`]): until when they are of use, whether their order
//! matters, whether copies are worth their price. The [`Classifier`] finds the first class a packet fits, from its headers
//! and from how much its flow has sent of late.
//!
//! Without any class configured, voice is recognised: by its code point (EF of RFC 3246, VOICE-ADMIT of RFC 5865), or by
//! its shape, which is 20 to 100 short packets a second of one flow, and of UDP in both cases (`docs/algorithms.md` section 3.10).
//!
//! What each is for: `tunnel/lanes.rs` (queue, deadline), `tunnel/services.rs` (links, copies), `sched/adaptive/urgent.rs` (which path).

use core::{ops::RangeInclusive, time::Duration};

use ipnet::IpNet;

pub use classifier::{ClassCounts, Classifier};

use crate::units::Bitrate;

mod classifier;
mod flows;
#[cfg(test)]
mod tests;

/// A class as the user describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name, in reports.
    pub name: String,
    /// Which packets are of it.
    pub matches: Match,
    /// What is done for them.
    pub service: Service,
}

/// What a packet must be to be of a class: everything that is given.
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
    /// At most so many bytes long, IP header included.
    pub max_size: Option<usize>,
    /// Of a flow that sends at most so much, over half a second.
    pub max_rate: Option<Bitrate>,
}

/// What is done for the packets of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// They are of use for so long after they came to this end. They go before what has no deadline, by whichever path
    /// brings them in time, and what could not come in time any more is dropped here.
    pub deadline: Option<Duration>,
    /// Whether the other end lets them go in the order of their flow. If not, it holds none for another.
    pub is_ordered: bool,
    /// Which are sent twice.
    pub duplicate: Duplicate,
    /// What copies may cost at most, in percent of the bytes of the class.
    pub share_percent: u16,
    /// The links that carry them while one of these works; empty: any.
    pub links: Vec<String>,
}

impl Default for Service {
    /// As packets of no class are served.
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

/// Which packets of a class are sent on a second path too. Classes with a deadline only, and policies that send copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicate {
    /// None.
    #[default]
    Never,
    /// Those of flows below 2 Mbit/s; of others, those whose path has been silent for half as long as makes it suspect,
    /// or loses more than 0.3 % and could not repair a loss in time.
    Auto,
    /// All.
    Always,
}

/// Most classes.
pub const MAX_CLASSES: usize = 32;
