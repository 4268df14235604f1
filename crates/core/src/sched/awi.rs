//! `awi`: fills the fixed line, and moves load to the other lines when the fixed line loses packets. A *line* is the
//! access line behind a path. The algorithm is that of Bednarek, Kühlewind, Barrenetxea and Trammell, "Multipath
//! bonding at Layer 3" (ANRW 2016), section 3.
//!
//! The policy is weighted round robin over a fixed line of constant weight `w_fixed` and other (mobile) lines, whose
//! weights start at 0. Every `T_report` the receiver reports how many packets are missing per line (section 3;
//! [`crate::loss_report`]). Loss is the sign that a line is saturated, so no line is paced. `lost` and `sent` are
//! packets of the fixed line:
//!
//! - IWI (3.2): on loss, if `w_mobile` is 0: `w_mobile += lost`.
//! - AWI (3.1, equation 1): on loss, if `w_mobile` is above 0: `w_mobile += k · lost / sent · w_fixed`, rounded half up
//!   to a whole number.
//! - DWD (3.3): after each `T_dwd` without loss: `w_mobile -= 1`.
//! - Always: `0 <= w_mobile <= w_mobile_max`.
//!
//! So AWI stops once `k · p · w_fixed < 1/2`: a loss of p = 1 / (2 k `w_fixed`) remains (2 % for the defaults).
//!
//! `docs/algorithms.md` section 2.8 lists the choices made where the paper leaves the choice open. Beyond the paper:
//! any number of lines, which are filled in the order of cost and then id; a line that does not work is skipped, and
//! the next line in order replaces a fixed line that does not work; weights may count bytes; smooth round robin; losses
//! of all lines.
//!
//! Never waits: if the line whose turn it is has no room at this moment (socket full, the user's own limit), the next
//! line takes the packet. Ranks do not restrict the choice: every path is visible.

use self::{
    blocks::{Blocks, Turn},
    control::Control,
};
use super::{LossCounts, PacketInfo, PathView, Pick, Scheduler, slot, weighted::Credit};
use crate::{
    ids::PathId,
    profile::Profile,
    time::Instant,
    wire::control::{Order, Reception},
};

pub use settings::{AwiSettings, Count, Dwd, Gain, LossSource, Wrr};

mod blocks;
mod control;
mod settings;
#[cfg(test)]
mod tests;

/// Weighted round robin with weights from losses. Never waits while a path is ready.
#[derive(Clone, Debug)]
pub struct Awi {
    settings: AwiSettings<PathId>,
    control: Control,
    blocks: Blocks,
    credit: Credit,
    /// The lines of the last call of `pick`, in the order in which they are filled: usable lines first, and among
    /// these the fixed line first.
    lines: Vec<Line>,
    /// Weight and readiness of each line, for the round robin.
    turns: Vec<Turn>,
    /// Number of usable lines.
    usable: usize,
}

/// The state of a path at the last packet.
#[derive(Clone, Copy, Debug)]
struct Line {
    id: PathId,
    cost: u8,
    usable: bool,
    /// Index of the path in the caller's list.
    index: usize,
}

impl Awi {
    /// Creates a scheduler with all weight on the fixed line.
    #[must_use]
    pub fn new(settings: AwiSettings<PathId>) -> Self {
        Self {
            control: Control::new(&settings),
            settings,
            blocks: Blocks::new(),
            credit: Credit::new(),
            lines: Vec::new(),
            turns: Vec::new(),
            usable: 0,
        }
    }

    /// Updates the lines; in the steady state only their readiness.
    fn see(&mut self, paths: &[PathView]) {
        let is_same = self.lines.len() == paths.len()
            && self.lines.iter().all(|line| {
                paths.get(line.index).is_some_and(|path| {
                    (path.id, path.cost, path.usable) == (line.id, line.cost, line.usable)
                })
            });
        if !is_same {
            self.lines.clear();
            self.lines
                .extend(paths.iter().enumerate().map(|(index, path)| Line {
                    id: path.id,
                    cost: path.cost,
                    usable: path.usable,
                    index,
                }));
            let fixed = self.settings.fixed;
            self.lines.sort_unstable_by_key(|line| {
                (!line.usable, Some(line.id) != fixed, line.cost, line.id)
            });
            self.usable = self.lines.partition_point(|line| line.usable);
            self.turns.clear();
            self.turns.extend(self.lines.iter().map(|line| Turn {
                slot: slot(&paths[line.index]),
                weight: 0,
                ready: false,
            }));
            self.control.share(&mut self.turns[..self.usable]);
        }
        for (turn, line) in self.turns.iter_mut().zip(&self.lines) {
            turn.ready = paths[line.index].ready;
        }
    }
}

impl Scheduler for Awi {
    fn pick(&mut self, _now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        self.see(paths);
        let len = u32::try_from(packet.len.get()).unwrap_or(u32::MAX);
        let (cost, quantum) = match self.settings.count {
            Count::Bytes => (len, BYTES_PER_WEIGHT),
            Count::Packets => (1, 1),
        };
        let chosen = match self.settings.wrr {
            Wrr::Block => self.blocks.next(&self.turns, cost, quantum),
            Wrr::Smooth => {
                let weight = |turn: &Turn| if turn.ready { turn.weight } else { 0 };
                let lines = self.turns.iter().map(|turn| (turn.slot, weight(turn)));
                self.credit.next(lines, cost)
            }
        };
        // Lines without weight are used only if no other line is ready.
        let chosen = chosen.or_else(|| self.turns.iter().position(|turn| turn.ready));
        chosen.map_or(Pick::Wait, |at| Pick::One(self.lines[at].index))
    }

    /// No line is paced: the policy finds the capacity of a line by its losses. The other end reports losses, and
    /// restores the order of packets as in section 4.3.
    fn profile(&self) -> Profile {
        Profile {
            pacing: false,
            ranks: false,
            reception: Reception {
                order: Order::Global,
                loss_timeout: self.settings.t_lto,
                report_interval: Some(self.settings.t_report),
            },
            ..Profile::default()
        }
    }

    fn on_loss_report(&mut self, _now: Instant, path: PathId, counts: &LossCounts) {
        let at = self.lines[..self.usable]
            .iter()
            .position(|line| line.id == path);
        let turns = &mut self.turns[..self.usable];
        match at {
            Some(0) => self.control.on_fixed(counts, &turns[1..]),
            Some(at) => self.control.on_other(turns[at], counts, &turns[1..]),
            None => return,
        }
        self.control.share(turns);
    }

    fn on_paths(&mut self, paths: &[PathView]) {
        self.see(paths);
    }

    fn weight(&self, id: PathId) -> Option<u32> {
        let at = self.lines.iter().position(|line| line.id == id)?;
        Some(self.turns[at].weight)
    }
}

/// Bytes per unit of weight: a full packet.
const BYTES_PER_WEIGHT: u32 = 1500;
