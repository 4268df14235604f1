//! A connection whose link is to be chosen, and the result of the choice.

use core::fmt;
use std::net::IpAddr;

use pleach_core::units::Bytes;

use crate::{
    sched::{LinkId, Policy},
    target::Target,
};

/// Description of a connection whose link is to be chosen.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Address of the client.
    pub client: IpAddr,
    /// Name of the client's program, if known.
    pub app: Option<&'a str>,
    /// DSCP of the client's packets, if known.
    pub dscp: Option<u8>,
    /// Destination of the connection.
    pub target: &'a Target,
    /// Addresses of the destination.
    pub addresses: &'a [IpAddr],
    /// Idle connections to the destination that can be reused.
    pub warm: &'a [Warm],
}

/// An idle connection to a server that can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warm {
    /// Link of the idle connection.
    pub link: LinkId,
    /// Number of bytes that have recently arrived over the connection. The server's congestion window has grown by
    /// about as much.
    pub received: Bytes,
}

/// Reason for the choice of a connection's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A rule that the user set at run time names the link.
    Assigned,
    /// The destination is directly on this link.
    Neighbour,
    /// No other link was available.
    OnlyLink,
    /// The link had free capacity, so this connection downloads a part of another connection's data.
    Part,
    /// The application is real-time, and the link has the shortest RTT.
    RealTime,
    /// Connecting over the link that was chosen first failed.
    Retry,
    /// The configuration's rule with this number, counted from 1, names the link.
    Rule(usize),
    /// The scheduler chose the link.
    Scheduler(Policy),
    /// An earlier connection to the same site used the link.
    Site,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assigned => f.write_str("assigned"),
            Self::Neighbour => f.write_str("neighbour"),
            Self::OnlyLink => f.write_str("only link"),
            Self::Part => f.write_str("part"),
            Self::RealTime => f.write_str("real-time"),
            Self::Retry => f.write_str("retry"),
            Self::Rule(number) => write!(f, "rule {number}"),
            Self::Scheduler(policy) => f.write_str(policy.name()),
            Self::Site => f.write_str("site"),
        }
    }
}

/// Links that a connection should try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Identifier of the connection from now on.
    pub id: ConnectionId,
    /// At least one link to try, best first.
    pub links: Vec<LinkId>,
    /// Reason for the choice of the first link.
    pub why: Why,
}

/// Identifier of a registered connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub(super) u64);

/// No link leads to the destination. The text gives the reason for each link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoLink(pub(super) String);
