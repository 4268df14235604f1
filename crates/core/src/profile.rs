//! The functions of a tunnel besides path selection.
//!
//! A scheduling policy decides which path a packet takes. Everything else that one end of a tunnel may do for its
//! traffic (repair losses, search for the capacity of paths, pace acknowledgements …) is a part of the [`Profile`].
//! Each policy states its default in its own file ([`Scheduler::profile`](crate::sched::Scheduler::profile)).
//! `[scheduler]` of a configuration and `[tunnel]` of a scenario override single parts ([`ProfileChange`]). So any
//! policy runs with any part, and each part can be measured by itself.
//!
//! [`Mechanism`]s are finer than the parts of a profile: each is a rule inside the engine that an experiment can
//! switch off (`without = ["late-paths"]`). All mechanisms are on by default.

use core::time::Duration;

use crate::wire::control::Reception;

mod change;
mod mechanism;

pub use self::{
    change::{Part, ProfileChange},
    mechanism::{Mechanism, Mechanisms},
};

/// The functions that one end of a tunnel applies to the packets it sends, besides path selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Lost packets are retransmitted: the receiver NACKs missing packets, and packets on a silent or overdue path
    /// are sent on another path.
    pub repair: bool,
    /// Repair symbols are sent where paths lose packets (`docs/algorithms.md`, forward erasure correction).
    pub fec: bool,
    /// The tunnel searches for the capacity of a path from the start: the path is paced at a multiple of its delivery
    /// rate. Requires [`pacing`](Self::pacing).
    pub search: bool,
    /// Packet trains give a first estimate of a path's capacity.
    pub trains: bool,
    /// ACKs of flows in their first RTTs are paced, so that the RTT of a flow stays the same when it spreads to later
    /// paths.
    pub ack_pacing: bool,
    /// Flows that look like voice get a class with a deadline.
    pub voice: bool,
    /// Paths are paced at their estimated capacity. Without this part only the user's limits apply, for a policy that
    /// finds capacities by loss.
    pub pacing: bool,
    /// The policy places packets on paths that are not ready, so that later packets are sent before them.
    pub look_ahead: bool,
    /// Ranks of cost are filled in order: a path is usable only while no path of a lower rank is ready. Without this
    /// part the policy sees all paths and handles ranks itself.
    pub ranks: bool,
    /// The other end delivers each flow in order.
    pub in_order: bool,
    /// How the other end treats the packets of this end, and which loss reports it returns.
    pub reception: Reception,
    /// How RTTs are sampled while there is traffic, in addition to the probes of path health.
    pub rtt_sampling: Option<RttSampling>,
    /// The rules of the engine that are in force.
    pub mechanisms: Mechanisms,
}

/// How paths are paced. The user's own limits apply in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Only by the user's limits: the policy finds the capacity of a path by losses, and must be able to overflow the
    /// path.
    Limits,
    /// At the estimated capacity, once the path has been saturated.
    Full,
    /// At the estimated capacity, with a search for the capacity from the start.
    Search,
}

/// Sampling of the RTTs of all paths while there is traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttSampling {
    /// Time between two samples of one path.
    pub interval: Duration,
    /// The weight of a new sample in the smoothed RTT in thousandths; `None` for 1/8 (RFC 6298).
    pub gain_thousandths: Option<u16>,
}

impl Default for Profile {
    /// Returns the profile of a policy without requirements: paths paced at their estimated capacity once
    /// they have been saturated, flows in order, no repair.
    fn default() -> Self {
        Self {
            repair: false,
            fec: false,
            search: false,
            trains: false,
            ack_pacing: false,
            voice: false,
            pacing: true,
            look_ahead: false,
            ranks: true,
            in_order: true,
            reception: Reception::default(),
            rtt_sampling: None,
            mechanisms: Mechanisms::ALL,
        }
    }
}

impl Profile {
    /// Whether a rule of the engine is in force.
    #[must_use]
    pub const fn has(&self, mechanism: Mechanism) -> bool {
        self.mechanisms.has(mechanism)
    }

    /// Whether the receiver detects and NACKs missing packets. Retransmission and FEC both require this.
    #[must_use]
    pub const fn detects_losses(&self) -> bool {
        self.repair || self.fec
    }

    /// Returns how paths are paced.
    #[must_use]
    pub const fn path_pacing(&self) -> Pacing {
        match (self.pacing, self.search) {
            (false, _) => Pacing::Limits,
            (true, false) => Pacing::Full,
            (true, true) => Pacing::Search,
        }
    }
}
