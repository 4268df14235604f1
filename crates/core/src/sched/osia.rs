//! `osia`: sends data out of order so that they arrive in order.
//!
//! Wang, Liao, Li, "OSIA: Out-of-order Scheduling for In-order Arriving in concurrent multi-path transfer" (2012).
//! *Progressive water-filling* ([`plan`]) decides which data go over which line. *Cascaded leaky buckets with faucets*
//! (`buckets`) carry the plan out. A new plan is made when a period is over or the lines change ([`Planner`]). There
//! are three users: this policy, for packets; the striping of a connection, for its chunks; and the simulator's
//! sender, for the paper's evaluation.
//!
//! In the tunnel packets are assigned to paths in the order of the data, as under every policy, but the path may not
//! be ready. Then the packet is staged for that path ([`Pick::One`]), and the policy is asked for the next packets
//! until one goes to a ready path. So a slow path carries data that are ahead of a quick path's by the difference of
//! the delays. That needs a queue of `sum(rate_i * (d_max - d_i))`. While the queue is shorter, the lines are filled
//! from the quickest on, and a slow line gets no data before the quick ones are filled up to its delay.
//!
//! Pure ACKs may arrive in any order: they take the quickest ready path at once.

use super::{PacketInfo, PathView, Pick, Scheduler};
use crate::{profile::Profile, time::Instant, units::Bitrate};

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
    /// Creates a scheduler for which all paths are empty.
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

/// Capacity assumed of an unmeasured path.
const UNKNOWN_RATE: Bitrate = Bitrate::from_mbps(10);
