//! What a tunnel does beside choosing paths.
//!
//! A scheduling policy decides which path a packet takes. Everything else that one end of a tunnel may do for its traffic
//! (repair losses, search capacities, pace acknowledgements …) is a part of the [`Profile`]. Each policy states its default
//! in its own file ([`Scheduler::profile`](crate::sched::Scheduler::profile)); `[scheduler]` of a configuration and `[tunnel]`
//! of a scenario override single parts ([`ProfileChange`]). So any policy runs with any part, and each part can be measured
//! by itself.
//!
//! Finer than the parts of a profile are [`Mechanism`]s: rules inside the engine that an experiment can switch off
//! (`without = ["late-paths"]`). They are on unless an experiment says otherwise.

use core::time::Duration;

use crate::wire::control::Reception;

mod change;
mod mechanism;

pub use self::{
    change::{Part, ProfileChange},
    mechanism::{Mechanism, Mechanisms},
};

/// What one end of a tunnel does for the packets it sends, beside choosing their paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Lost packets are sent again: the receiver NACKs them, packets on a silent or overdue path go over another.
    pub repair: bool,
    /// Repair symbols are sent where paths lose (`docs/algorithms.md`, forward erasure correction).
    pub fec: bool,
    /// The capacity of a path is searched from the start: the path is paced at a multiple of what it has delivered. Needs
    /// [`pacing`](Self::pacing).
    pub search: bool,
    /// Packet trains give a first estimate of a path's capacity.
    pub trains: bool,
    /// ACKs of young flows are paced, so that the round-trip time of a flow stays the same when it spreads to later paths.
    pub ack_pacing: bool,
    /// Flows that look like voice get a class of their own with a deadline.
    pub voice: bool,
    /// Paths are paced at what they carry. Without it only the user's limits hold, for a policy that finds capacities by loss.
    pub pacing: bool,
    /// The policy places packets on paths that are not ready, so that later packets leave before them.
    pub look_ahead: bool,
    /// Ranks of cost are filled in order: a path is usable only while no path of a lower rank is ready. Without it the policy
    /// sees all paths and minds ranks itself.
    pub ranks: bool,
    /// The other end delivers each flow in order.
    pub in_order: bool,
    /// How the other end treats what this end sends, and which loss reports it returns.
    pub reception: Reception,
    /// How round-trip times are sampled while there is traffic, beyond what the health of paths needs.
    pub rtt_sampling: Option<RttSampling>,
    /// Rules of the engine that are in force.
    pub mechanisms: Mechanisms,
}

/// How paths are paced; the user's own limits hold in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// By those limits only: the policy finds a path's capacity by its losses, and must be let to overflow it.
    Limits,
    /// At what a path carries, once it has been full.
    Full,
    /// At what a path carries, which is searched from the start.
    Search,
}

/// Sampling of round-trip times on all paths while there is traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttSampling {
    /// Time between two samples of one path.
    pub interval: Duration,
    /// Weight of a new sample in the smoothed round-trip time in thousandths; `None`: RFC 6298's 1/8.
    pub gain_thousandths: Option<u16>,
}

impl Default for Profile {
    /// What a policy without wishes gets: paths paced at what they carry, flows in order, nothing repaired.
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

    /// Whether the receiver is to look for missing packets and to NACK them: repair and FEC need to know the losses.
    #[must_use]
    pub const fn detects_losses(&self) -> bool {
        self.repair || self.fec
    }

    /// How paths are paced.
    #[must_use]
    pub const fn path_pacing(&self) -> Pacing {
        match (self.pacing, self.search) {
            (false, _) => Pacing::Limits,
            (true, false) => Pacing::Full,
            (true, true) => Pacing::Search,
        }
    }
}
