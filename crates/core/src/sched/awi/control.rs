//! The weights of the lines that are not fixed, controlled by loss reports: AWI, IWI and DWD.
//!
//! The *mobile weight* is the total weight of the other lines, for the part of the load that exceeds the capacity of
//! the fixed line. It is distributed over these lines in order, each up to its cap, so the second line gets weight only
//! when the first is at its cap. In the paper's mode every cap is `w_mobile_max`, and with two lines the mobile weight
//! is the paper's `w_mobile`.

use super::{
    blocks::Turn,
    settings::{AwiSettings, Count, Dwd, LossSource},
};
use crate::{ids::PathId, sched::LossCounts, time::saturating_nanos};

/// The state of the control loop.
#[derive(Clone, Debug)]
pub(super) struct Control {
    gain_ppm: u128,
    w_fixed: u32,
    w_max: u32,
    /// `T_dwd` in intervals of reports; at least 1.
    dwd_intervals: u64,
    dwd: Dwd,
    loss: LossSource,
    count: Count,
    /// The mobile weight.
    total: u32,
    /// Intervals without loss on the fixed line; with [`Dwd::Rearm`] only those since the last step.
    calm: u64,
    /// Maximum weight of each line. Only [`LossSource::Both`] changes it.
    caps: [u32; PathId::MAX],
    /// Intervals without loss on each line, counted with [`LossSource::Both`] only.
    cap_calm: [u64; PathId::MAX],
}

impl Control {
    pub(super) fn new(settings: &AwiSettings<PathId>) -> Self {
        let report_nanos = saturating_nanos(settings.t_report).max(1);
        Self {
            gain_ppm: u128::from(settings.k.as_ppm()),
            w_fixed: settings.w_fixed.max(1),
            w_max: settings.w_mobile_max,
            dwd_intervals: saturating_nanos(settings.t_dwd)
                .div_ceil(report_nanos)
                .max(1),
            dwd: settings.dwd,
            loss: settings.loss,
            count: settings.count,
            total: 0,
            calm: 0,
            caps: [settings.w_mobile_max; PathId::MAX],
            cap_calm: [0; PathId::MAX],
        }
    }

    /// Gives each of `turns` its weight: the fixed line first, the others in the order in which they are filled.
    pub(super) fn share(&self, turns: &mut [Turn]) {
        let Some((fixed, others)) = turns.split_first_mut() else {
            return;
        };
        fixed.weight = self.w_fixed;
        let mut left = self.total;
        for turn in others {
            turn.weight = left.min(self.caps[turn.slot]);
            left -= turn.weight;
        }
    }

    /// Handles a report of the fixed line's losses. `others`: the lines that may take load now.
    ///
    /// If there are no other lines, the mobile weight stays as it is until they return.
    pub(super) fn on_fixed(&mut self, counts: &LossCounts, others: &[Turn]) {
        if others.is_empty() {
            return;
        }
        if counts.lost_pkts == 0 {
            return self.decrement(counts.intervals);
        }
        self.calm = 0;
        let step = if self.total == 0 {
            // IWI, section 3.2.
            u32::try_from(counts.lost_pkts).unwrap_or(u32::MAX)
        } else {
            self.step(counts, self.w_fixed)
        };
        self.total = self
            .total
            .saturating_add(step)
            .min(self.room(others).max(self.total));
    }

    /// Handles a report of the losses of another line, which is one of `others`, the lines that may take load now.
    pub(super) fn on_other(&mut self, line: Turn, counts: &LossCounts, others: &[Turn]) {
        if self.loss == LossSource::Fixed {
            return;
        }
        let slot = line.slot;
        if counts.lost_pkts > 0 {
            self.cap_calm[slot] = 0;
            let step = self.step(counts, line.weight);
            if step > 0 {
                self.caps[slot] = line.weight.saturating_sub(step);
                self.total = self.total.min(self.room(others));
            }
            return;
        }
        let calm = self.cap_calm[slot] + u64::from(counts.intervals);
        self.cap_calm[slot] = calm % self.dwd_intervals;
        let steps = u32::try_from(calm / self.dwd_intervals).unwrap_or(u32::MAX);
        self.caps[slot] = self.caps[slot].saturating_add(steps).min(self.w_max);
    }

    /// Maximum total weight of `others`.
    fn room(&self, others: &[Turn]) -> u32 {
        let caps = others.iter().map(|turn| self.caps[turn.slot]);
        caps.fold(0, u32::saturating_add)
    }

    /// Step of AWI, equation 1: k · lost / sent · `weight`, rounded half up. `sent` was counted between the arrivals
    /// of two reports, so it may be less than the number of packets lost before. The share of losses is therefore
    /// limited to 1.
    fn step(&self, counts: &LossCounts, weight: u32) -> u32 {
        let (lost, sent) = match self.count {
            Count::Bytes => (counts.lost_bytes, counts.sent_bytes),
            Count::Packets => (counts.lost_pkts, counts.sent_pkts),
        };
        let lost = u128::from(lost.min(u64::from(u32::MAX)));
        let sent = u128::from(sent).max(lost).max(1) * 1_000_000;
        let doubled = 2 * self.gain_ppm * lost * u128::from(weight) + sent;
        u32::try_from(doubled / (2 * sent)).unwrap_or(u32::MAX)
    }

    /// Applies DWD (section 3.3) after `intervals` report intervals without loss.
    fn decrement(&mut self, intervals: u32) {
        let before = self.calm;
        self.calm = before.saturating_add(u64::from(intervals));
        let steps = match self.dwd {
            Dwd::Literal => {
                // Every interval counts from the one that completes T_dwd.
                let first = self.dwd_intervals.max(before + 1);
                (self.calm + 1).saturating_sub(first)
            }
            Dwd::Rearm => {
                let steps = self.calm / self.dwd_intervals;
                self.calm %= self.dwd_intervals;
                steps
            }
        };
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.total = self.total.saturating_sub(steps);
    }
}
