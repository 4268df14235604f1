//! A connection to be placed, and the answer.

use core::fmt;
use std::net::IpAddr;

use pleach_core::units::Bytes;

use crate::{
    sched::{LinkId, Policy},
    target::Target,
};

/// A connection to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Who asks.
    pub client: IpAddr,
    /// The program, if known.
    pub app: Option<&'a str>,
    /// DSCP of the client's packets, if known.
    pub dscp: Option<u8>,
    /// Where to.
    pub target: &'a Target,
    /// Its addresses.
    pub addresses: &'a [IpAddr],
    /// Connections to it that wait for use.
    pub warm: &'a [Warm],
}

/// A connection to a server that waits for use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warm {
    /// Over which link.
    pub link: LinkId,
    /// What has come over it lately: so far its server's window has grown.
    pub received: Bytes,
}

/// Why a connection is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The user assigned it there while the proxy runs.
    Assigned,
    /// The destination is directly on this link.
    Neighbour,
    /// No other link was there.
    OnlyLink,
    /// The link had room, and brings a part of what another connection began to bring.
    Part,
    /// Its application is real-time, and the link the quickest.
    RealTime,
    /// Another link was chosen first and did not work.
    Retry,
    /// The rule of this number, counted from 1.
    Rule(usize),
    /// The scheduler chose it.
    Scheduler(Policy),
    /// Its site was there before.
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

/// Where a connection should go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The connection is known by it from now on.
    pub id: ConnectionId,
    /// Links to try, best first; at least one.
    pub links: Vec<LinkId>,
    /// Why the first is first.
    pub why: Why,
}

/// A connection that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub(super) u64);

/// No link leads there; the text says why for each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoLink(pub(super) String);
