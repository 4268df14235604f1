//! Tracks the state of the lines over time and makes a new plan when that state has changed.

use core::time::Duration;

use super::{
    buckets::Buckets,
    plan::{Plan, Vessel},
    settings::{Faucets, OsiaSettings},
};
use crate::{
    ids::PathId,
    rng::Rng,
    time::{Instant, saturating_nanos},
    units::{Bitrate, Bytes},
};

/// The present state of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The line's id.
    pub id: PathId,
    /// The line's rate.
    pub rate: Bitrate,
    /// Time that data take to arrive over the line while it is empty. Only differences between lines matter.
    pub delay: Duration,
    /// The data that were assigned to the line and are not yet sent.
    pub waiting: Bytes,
    /// Whether the line can send at this moment.
    pub is_free: bool,
}

/// Chooses the line for each piece of data, in the order of the data. The caller sends the pieces.
///
/// Each line sends its pieces in the given order, whenever it can. A piece on a slow line is therefore sent long
/// before the pieces that precede it in the data and take a fast line, and all pieces arrive in order.
///
/// The pieces may be packets in a tunnel, chunks of a stream over several connections, or any other data with a length.
#[derive(Clone, Debug)]
pub struct Planner {
    settings: OsiaSettings,
    buckets: Option<Buckets>,
    planned_at: Instant,
    /// Number of reordering events since `planned_at`.
    events: u32,
    /// The assumptions about each line in the present period, by the line's id.
    known: [Known; PathId::MAX],
    /// Random numbers for [`Faucets::Random`].
    rng: Rng,
}

/// The assumptions of the present plan about a line.
#[derive(Clone, Copy, Debug)]
struct Known {
    is_used: bool,
    rate: Bitrate,
    /// Delay as given to [`Planner::update`].
    delay: Duration,
    /// Delay after merging: the mean over all lines with about the same delay.
    merged: Duration,
    /// Predicted time at which all data assigned to the line will have been sent.
    passed_at: Instant,
}

impl Planner {
    /// Returns a planner without lines.
    #[must_use]
    pub fn new(settings: OsiaSettings) -> Self {
        Self {
            settings,
            buckets: None,
            planned_at: Instant::ZERO,
            events: 0,
            known: [Known {
                is_used: false,
                rate: MIN_RATE,
                delay: Duration::ZERO,
                merged: Duration::ZERO,
                passed_at: Instant::ZERO,
            }; PathId::MAX],
            rng: Rng::new(0),
        }
    }

    /// Sets the lines that may be used from now on. An id of at least [`PathId::MAX`] is reduced modulo this number.
    ///
    /// Makes a new plan, in O(n log n), in these cases:
    ///
    /// - The period is over, or more than ten reordering events have happened in it.
    /// - A line was added or removed.
    /// - A rate changed by more than an eighth, or a delay by more than the merge threshold.
    /// - The backlog of a line differs from the prediction, for example because data arrived from the source more
    ///   slowly than the lines can carry them.
    pub fn update(&mut self, now: Instant, lines: impl Iterator<Item = Line> + Clone) {
        let mut is_old = self.buckets.is_none()
            || now >= self.planned_at + self.settings.period
            || self.events > EVENTS_MAX;
        let mut used = [false; PathId::MAX];
        for line in lines.clone() {
            let known = &self.known[index(line.id)];
            used[index(line.id)] = true;
            is_old |= !known.is_used
                || differs(known.rate, line.rate)
                || known.delay.abs_diff(line.delay) > self.settings.merge;
        }
        is_old |= self
            .known
            .iter()
            .zip(used)
            .any(|(known, used)| known.is_used && !used);
        if is_old {
            self.learn(now, lines.clone(), used);
        }
        for line in lines.clone() {
            let slack = self.settings.merge;
            is_old |= self.known[index(line.id)].correct(now, &line, slack);
        }
        if is_old {
            self.plan(now, lines);
        }
    }

    /// Returns the line for the next `len` bytes of the data. `None` if [`Self::update`] has not set any line yet.
    pub fn assign(&mut self, now: Instant, len: Bytes) -> Option<PathId> {
        let drawn = match self.settings.faucets {
            Faucets::Smooth => None,
            Faucets::Random => Some(&mut self.rng),
        };
        let id = self.buckets.as_mut()?.pour(len, drawn);
        self.note(now, id, len);
        Some(id)
    }

    /// Records `len` bytes that were assigned to a line without [`Self::assign`].
    pub fn note(&mut self, now: Instant, id: PathId, len: Bytes) {
        let known = &mut self.known[index(id)];
        known.passed_at = known.passed_at.max(now) + len / known.rate;
    }

    /// Records a reordering event: a third acknowledgement in a row that reports the same data as missing.
    ///
    /// According to section 3.3, the last chunk of a plan continues until several reordering events show that the lines
    /// have changed.
    pub fn note_reordering(&mut self) {
        self.events = self.events.saturating_add(1);
    }

    /// Returns the present plan. `None` if there is no line.
    #[must_use]
    pub fn plan_in_force(&self) -> Option<&Plan> {
        self.buckets.as_ref().map(Buckets::plan)
    }

    /// Begins a new period with the present state of the lines.
    fn learn(
        &mut self,
        now: Instant,
        lines: impl Iterator<Item = Line>,
        used: [bool; PathId::MAX],
    ) {
        self.planned_at = now;
        self.events = 0;
        for line in lines {
            let known = &mut self.known[index(line.id)];
            let rate = line.rate.max(MIN_RATE);
            if known.is_used {
                let left = u128::from(saturating_nanos(known.passed_at.since(now)));
                let left = left * u128::from(known.rate.as_bps()) / u128::from(rate.as_bps());
                known.passed_at = now + Duration::from_nanos(left.try_into().unwrap_or(u64::MAX));
            } else {
                known.passed_at = now;
            }
            known.rate = rate;
            known.delay = line.delay.min(MAX_LEVEL);
        }
        for (known, used) in self.known.iter_mut().zip(used) {
            known.is_used = used;
        }
        self.merge();
    }

    /// Groups lines whose delays differ by less than `merge`, and gives all lines of a group the same delay: the mean
    /// weighted by the rates. This preserves the total amount of data in flight.
    fn merge(&mut self) {
        let mut order = [0_usize; PathId::MAX];
        let mut count = 0;
        for (slot, _) in self.known.iter().enumerate().filter(|(_, k)| k.is_used) {
            order[count] = slot;
            count += 1;
        }
        let order = &mut order[..count];
        order.sort_unstable_by_key(|&slot| (self.known[slot].delay, slot));
        let mut first = 0;
        while first < order.len() {
            let least = self.known[order[first]].delay;
            let is_near = |slot: &&usize| {
                let delay = self.known[**slot].delay;
                delay == least || delay - least < self.settings.merge
            };
            let end = first + order[first..].iter().take_while(is_near).count();
            let group = &order[first..end];
            let (mut weight, mut rate) = (0_u128, 0_u128);
            for known in group.iter().map(|&slot| &self.known[slot]) {
                weight += u128::from(known.rate.as_bps()) * known.delay.as_nanos();
                rate += u128::from(known.rate.as_bps());
            }
            let mean = u64::try_from(weight / rate.max(1)).unwrap_or(u64::MAX);
            for &slot in group {
                self.known[slot].merged = Duration::from_nanos(mean);
            }
            first = end;
        }
    }

    fn plan(&mut self, now: Instant, lines: impl Iterator<Item = Line>) {
        let vessels = lines.map(|line| {
            let known = &self.known[index(line.id)];
            let held = known.passed_at.since(now);
            Vessel {
                id: line.id,
                rate: known.rate,
                level: held.saturating_add(known.merged).min(MAX_LEVEL),
            }
        });
        self.buckets = Plan::new(vessels).map(Buckets::new);
    }
}

impl Known {
    /// Corrects the predicted backlog of `line` according to the observed backlog. Returns whether the prediction
    /// changed.
    fn correct(&mut self, now: Instant, line: &Line, slack: Duration) -> bool {
        let held = self.passed_at;
        let waiting = (line.waiting / self.rate).min(MAX_LEVEL);
        self.passed_at = self.passed_at.max(now + waiting);
        if line.is_free && line.waiting == Bytes::ZERO {
            // The line has sent its backlog earlier than predicted.
            self.passed_at = self.passed_at.min(now + slack);
        }
        held != self.passed_at
    }
}

fn index(id: PathId) -> usize {
    id.index() % PathId::MAX
}

/// Whether a rate differs from the known rate by more than an eighth, which exceeds the error of a measurement.
fn differs(known: Bitrate, rate: Bitrate) -> bool {
    let (known, rate) = (known.as_bps(), rate.max(MIN_RATE).as_bps());
    known.abs_diff(rate) > known.max(rate) / 8
}

/// Maximum number of reordering events in a period; the next event ends the period (section 3.3: "the number of 3
/// dupACKs beyonds 10").
const EVENTS_MAX: u32 = 10;

/// Minimum rate that predictions use, so that they stay finite.
const MIN_RATE: Bitrate = Bitrate::from_bps(1_000);

/// Maximum level that plans use.
const MAX_LEVEL: Duration = Duration::from_secs(60);
