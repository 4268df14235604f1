//! `auto-weight`: bytes in proportion to the rates of the paths, updated at intervals (NATALIE's weights, in the
//! tunnel).
//!
//! Every `interval` each path's weight moves towards its estimated rate by 30 % of the difference (`GAIN`). It is at
//! least a hundredth of the largest weight (`FLOOR`). If the rate differs from the weight by more than a tenth
//! (`JUMP`), in the same direction twice in a row, the weight becomes the rate at once. Between updates packets are
//! distributed by these weights as under `weighted`, including its rule for small packets. A path of unknown rate gets
//! the mean of the known rates. Delay, queue and loss of a path have no influence.
//!
//! Source: He and Brassil, "NATALIE: An Adaptive, Network-Aware Traffic Equalizer", 2007, section V. The paper
//! measures the other traffic on a link of known rate and subtracts it. A tunnel needs no subtraction, because its
//! other end reports the delivery rate of each path. Interval, gain, floor and jump are those of `pleach equalize`.

use core::time::Duration;

use serde::Deserialize;

use super::{
    PacketInfo, PathView, Pick, Scheduler, slot,
    weighted::{Credit, pick_by},
};
use crate::{ids::PathId, time::Instant, units::Bitrate};

/// Settings of [`AutoWeight`], with the keys of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutoWeightSettings {
    /// The interval between two updates of the weights.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
}

impl Default for AutoWeightSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(200),
        }
    }
}

impl AutoWeightSettings {
    /// The keys, in the order they are listed to users.
    pub const KEYS: &[&str] = &["interval"];

    /// Creates a scheduler with these settings.
    #[must_use]
    pub fn scheduler(&self) -> AutoWeight {
        AutoWeight::new(*self)
    }
}

/// Shares bytes among the ready paths by their rates. Never waits.
#[derive(Clone, Debug)]
pub struct AutoWeight {
    settings: AutoWeightSettings,
    credit: Credit,
    lines: [Line; PathId::MAX],
    next_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// The smoothed rate in kbit/s; `None` before the first rate.
    kbps: Option<u64>,
    /// Whether the last rate was far above (`true`) or far below (`false`) the smoothed rate; `None` if it was
    /// neither.
    far: Option<bool>,
    /// The weight in force; zero before the first update.
    weight: u32,
}

impl AutoWeight {
    /// Creates a scheduler that knows no rates: all paths have the same weight.
    #[must_use]
    pub fn new(settings: AutoWeightSettings) -> Self {
        Self {
            settings,
            credit: Credit::new(),
            lines: [Line::default(); PathId::MAX],
            next_at: None,
        }
    }

    fn look(&mut self, paths: &[PathView]) {
        for path in paths {
            if let Some(rate) = path.rate {
                self.lines[slot(path)].on_rate(rate);
            }
        }
        let known = paths.iter().filter_map(|path| self.lines[slot(path)].kbps);
        let (sum, count, most) =
            known.fold((0, 0, 0), |(sum, count, most): (u64, u64, u64), kbps| {
                (sum.saturating_add(kbps), count + 1, most.max(kbps))
            });
        let mean = sum / count.max(1);
        for path in paths {
            let line = &mut self.lines[slot(path)];
            let kbps = line.kbps.unwrap_or(mean).max(most / FLOOR).max(1);
            line.weight = u32::try_from(kbps).unwrap_or(u32::MAX);
        }
    }
}

impl Scheduler for AutoWeight {
    fn pick(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        let is_new = paths.iter().any(|path| self.lines[slot(path)].weight == 0);
        let is_due = self.next_at.is_none_or(|at| at <= now);
        if is_due {
            self.next_at = Some(now + self.settings.interval);
        }
        if is_due || is_new {
            self.look(paths);
        }
        let lines = self.lines;
        pick_by(&mut self.credit, paths, packet, |path| {
            lines[slot(path)].weight
        })
    }

    fn weight(&self, id: PathId) -> Option<u32> {
        let line = self.lines.get(id.index())?;
        Some(line.weight).filter(|weight| *weight > 0)
    }
}

impl Line {
    fn on_rate(&mut self, rate: Bitrate) {
        let sample = rate.as_bps() / 1000;
        let Some(kbps) = &mut self.kbps else {
            self.kbps = Some(sample);
            return;
        };
        let difference = sample.abs_diff(*kbps);
        let far = (difference > *kbps / JUMP).then_some(sample > *kbps);
        if far.is_some() && far == self.far {
            *kbps = sample;
            self.far = None;
            return;
        }
        let step = difference * GAIN.0 / GAIN.1;
        *kbps = if sample > *kbps {
            *kbps + step
        } else {
            *kbps - step
        };
        self.far = far;
    }
}

/// Weight of a new rate in the filter, as numerator and denominator.
const GAIN: (u64, u64) = (3, 10);
/// Divisor of the largest weight that gives the smallest, so that a path is never excluded.
const FLOOR: u64 = 100;
/// Divisor of the rate: a larger difference than this fraction is far.
const JUMP: u64 = 10;

#[cfg(test)]
mod tests {
    use super::super::tests::{packet, ready_paths};
    use super::*;

    /// Number of packets, out of a hundred from `now` on, that take the first of two paths.
    fn share(policy: &mut AutoWeight, now: Instant, mbps: [Option<u64>; 2]) -> usize {
        let mut paths = ready_paths(2);
        for (path, mbps) in paths.iter_mut().zip(mbps) {
            path.rate = mbps.map(Bitrate::from_mbps);
        }
        let picks = (0..100).map(|_| policy.pick(now, &paths, &packet()));
        picks.filter(|pick| *pick == Pick::One(0)).count()
    }

    #[test]
    fn weights_follow_rates_within_two_intervals_of_a_change() {
        let mut policy = AutoWeight::new(AutoWeightSettings::default());
        let at = Instant::from_millis;
        assert_eq!(share(&mut policy, at(0), [None, None]), 50);
        assert_eq!(
            share(&mut policy, at(100), [Some(90), Some(10)]),
            50,
            "not yet"
        );
        assert_eq!(share(&mut policy, at(200), [Some(90), Some(10)]), 90);
        assert_eq!(
            share(&mut policy, at(400), [Some(10), Some(10)]),
            87,
            "by three tenths"
        );
        assert_eq!(
            share(&mut policy, at(600), [Some(10), Some(10)]),
            50,
            "twice: believed"
        );
        assert_eq!(policy.weight(PathId(0)), Some(10_000));
        assert_eq!(policy.weight(PathId(7)), None);
    }

    #[test]
    fn no_path_is_forgotten_and_unknown_ones_count_as_the_mean() {
        let mut policy = AutoWeight::new(AutoWeightSettings::default());
        assert_eq!(
            share(&mut policy, Instant::ZERO, [Some(1_000), Some(0)]),
            99
        );
        let mut policy = AutoWeight::new(AutoWeightSettings::default());
        assert_eq!(share(&mut policy, Instant::ZERO, [Some(40), None]), 50);
    }
}
