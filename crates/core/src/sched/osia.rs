//! `osia`: sends data out of order so that they arrive in order.
//!
//! Wang, Liao, Li, "OSIA: Out-of-order Scheduling for In-order Arriving in concurrent multi-path transfer" (2012).
//! *Progressive water-filling* ([`plan`]) decides which data are sent over which line; a *line* is a path of the
//! tunnel, or one connection of a striped stream. *Cascaded leaky buckets with faucets* (`buckets`) execute the plan. A
//! new plan is made when a period is over or the lines change ([`Planner`]). The algorithm has three users: this
//! policy, for packets; the striping of a connection, for its chunks; and the simulator's sender, for the paper's
//! evaluation.
//!
//! In the tunnel, packets are assigned to paths in the order of the data, as under every policy, but the chosen path
//! need not be ready. If it is not ready, the packet is staged for that path ([`Pick::One`]), and the policy chooses
//! the paths of the next packets until it chooses a ready path. So at any moment a slow path sends later data than a
//! quick path, and both arrive in order in spite of the different delays. This requires a tunnel queue with a length of
//! `sum(rate_i * (d_max - d_i))`. While the queue is shorter, the paths are filled in the order of their delays: a slow
//! path gets no data until the quicker paths are filled up to its delay.
//!
//! Pure ACKs may arrive in any order: they take the quickest ready path at once.

use super::{PacketInfo, PathView, Pick, Scheduler, UNKNOWN_RATE};
use crate::{profile::Profile, time::Instant};

mod buckets;
pub mod plan;
mod planner;
mod settings;
#[cfg(test)]
mod tests;

pub use self::{
    planner::{Line, Planner},
    settings::{Faucets, OsiaSettings},
};

/// Fills the paths of the lowest rank in the order of the data; paths of a higher rank are spare. Ignores weight.
///
/// Waits while no path of the lowest rank is ready. May choose a path that is not ready.
#[derive(Clone, Debug)]
pub struct Osia {
    planner: Planner,
}

impl Osia {
    /// Creates a scheduler that assumes no packets in flight on any path.
    #[must_use]
    pub fn new(settings: OsiaSettings) -> Self {
        Self {
            planner: Planner::new(settings),
        }
    }
}

impl Scheduler for Osia {
    fn pick(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        let usable = paths.iter().filter(|path| path.usable);
        let rank = usable.map(|path| path.cost).min();
        let is_mine = |path: &&PathView| path.usable && Some(path.cost) == rank;
        let ready = paths.iter().enumerate();
        let Some((quickest, _)) = ready
            .filter(|(_, path)| path.ready && is_mine(path))
            .min_by_key(|(_, path)| (delay(path), path.id))
        else {
            return Pick::Wait;
        };
        self.planner.update(
            now,
            paths.iter().filter(is_mine).map(|path| {
                let rate = path.rate.unwrap_or(UNKNOWN_RATE);
                Line {
                    id: path.id,
                    rate,
                    delay: path.extra_delay,
                    // Data in the path's own queue wait as well.
                    waiting: path.staged + rate.bytes_in(path.queue_delay),
                    is_free: path.ready,
                }
            }),
        );
        if packet.is_expendable {
            self.planner.note(now, paths[quickest].id, packet.len);
            return Pick::One(quickest);
        }
        let id = self.planner.assign(now, packet.len);
        let mine = paths.iter().position(|path| Some(path.id) == id);
        Pick::One(mine.unwrap_or(quickest))
    }

    fn profile(&self) -> Profile {
        Profile {
            look_ahead: true,
            ranks: false,
            ..Profile::default()
        }
    }
}

fn delay(path: &PathView) -> core::time::Duration {
    path.extra_delay.saturating_add(path.queue_delay)
}
