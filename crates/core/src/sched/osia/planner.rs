//! When a plan is made, and from what: the state of the lines over time.

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

/// A line, as far as is known now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Which one.
    pub id: PathId,
    /// What it carries.
    pub rate: Bitrate,
    /// How long something put on it while it is empty takes to arrive. Only differences matter.
    pub delay: Duration,
    /// What was put on it and waits at this end.
    pub waiting: Bytes,
    /// Whether it could send at this moment.
    pub is_free: bool,
}

/// Says over which line the next piece of data goes, in the order of the data: OSIA without the sending.
///
/// Each line sends what it was given, in that order, whenever it can. The pieces of a slow line thereby leave long before
/// the pieces of a quick one that come before them in the data, and all arrive in order.
///
/// For packets in a tunnel, chunks of a stream over several connections, or anything else that is cut up and has a length.
#[derive(Clone, Debug)]
pub struct Planner {
    settings: OsiaSettings,
    buckets: Option<Buckets>,
    planned_at: Instant,
    /// What the present period goes by, by id.
    known: [Known; PathId::MAX],
    /// For [`Faucets::Random`].
    rng: Rng,
}

/// A line as the present plan takes it.
#[derive(Clone, Copy, Debug)]
struct Known {
    is_used: bool,
    rate: Bitrate,
    /// As told, and as merged with those of about the same.
    delay: Duration,
    merged: Duration,
    /// When all that was put on the line will have left it.
    passed_at: Instant,
}

impl Planner {
    /// A planner that has seen no line.
    #[must_use]
    pub fn new(settings: OsiaSettings) -> Self {
        Self {
            settings,
            buckets: None,
            planned_at: Instant::ZERO,
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

    /// Takes note of the lines that may be used from now on; of ids of at least [`PathId::MAX`] the remainder counts.
    ///
    /// Makes a new plan if a period is over, a line came or went, a rate changed by an eighth or a delay by what is merged,
    /// or a line holds less than the plan poured in: then the data came slower than the lines carry. O(n log n) then.
    pub fn update(&mut self, now: Instant, lines: impl Iterator<Item = Line> + Clone) {
        let mut is_old = self.buckets.is_none() || now >= self.planned_at + self.settings.period;
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

    /// The line for the next `len` bytes of the data; `None` before [`Self::update`] has told of one.
    pub fn assign(&mut self, now: Instant, len: Bytes) -> Option<PathId> {
        let drawn = match self.settings.faucets {
            Faucets::Smooth => None,
            Faucets::Random => Some(&mut self.rng),
        };
        let id = self.buckets.as_mut()?.pour(len, drawn);
        self.note(now, id, len);
        Some(id)
    }

    /// Takes note of `len` bytes that were put on a line without asking.
    pub fn note(&mut self, now: Instant, id: PathId, len: Bytes) {
        let known = &mut self.known[index(id)];
        known.passed_at = known.passed_at.max(now) + len / known.rate;
    }

    /// The plan in force.
    #[must_use]
    pub fn plan_in_force(&self) -> Option<&Plan> {
        self.buckets.as_ref().map(Buckets::plan)
    }

    /// A new period: the lines are taken as they are now.
    fn learn(
        &mut self,
        now: Instant,
        lines: impl Iterator<Item = Line>,
        used: [bool; PathId::MAX],
    ) {
        self.planned_at = now;
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

    /// Lines whose delays are equal but for less than `merge` count as one with the mean delay, by rates, so that what
    /// the lines hold in all stays the same.
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
    /// Brings what is thought to be on the line in agreement with what is seen; whether that took more than time.
    fn correct(&mut self, now: Instant, line: &Line, slack: Duration) -> bool {
        let held = self.passed_at;
        let waiting = (line.waiting / self.rate).min(MAX_LEVEL);
        self.passed_at = self.passed_at.max(now + waiting);
        if line.is_free && line.waiting == Bytes::ZERO {
            // It is quicker than thought.
            self.passed_at = self.passed_at.min(now + slack);
        }
        held != self.passed_at
    }
}

fn index(id: PathId) -> usize {
    id.index() % PathId::MAX
}

/// Whether a rate is another one, and not the same measured again.
fn differs(known: Bitrate, rate: Bitrate) -> bool {
    let (known, rate) = (known.as_bps(), rate.max(MIN_RATE).as_bps());
    known.abs_diff(rate) > known.max(rate) / 8
}

/// Below this a rate counts as this, so that a prediction stays a number.
const MIN_RATE: Bitrate = Bitrate::from_bps(1_000);

/// No level counts for more.
const MAX_LEVEL: Duration = Duration::from_secs(60);
