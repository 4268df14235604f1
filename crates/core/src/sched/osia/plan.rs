//! Progressive water-filling (section 3.3): how much data goes over which lines, in the order of the data.
//!
//! A line is a vessel as wide as its rate, filled beforehand up to its *level*: how long something put into it now takes to
//! arrive. Data poured in, in order, go where the level is lowest. So they first raise the lowest vessel alone up to the
//! next level, then those two together, and so on: each step is a *chunk*, and the last has no end. What arrives at one
//! moment has one level, so the data arrive in the order in which they were poured.
//!
//! Chunk h is `(level_{h+1} - level_h) * sum(rate_i, i <= h)` long. The paper's equation 13 says that with other
//! numerators and relative to a sum that its equation 6 contradicts, and section 4.1 leaves out rates; figures 4 and 5
//! agree with what is here.

use core::time::Duration;

use crate::{
    ids::PathId,
    units::{Bitrate, Bytes},
};

/// A line in the water-filling model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vessel {
    /// The line's id.
    pub id: PathId,
    /// The line's rate.
    pub rate: Bitrate,
    /// How long data put into the line now take to arrive: its delay, plus the data already in it divided by its rate.
    pub level: Duration,
}

/// Data that are poured into the same lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The volume; `None` for all following data.
    pub volume: Option<Bytes>,
    /// The number of [`Plan::vessels`], from the first on, over which it is poured.
    pub open: usize,
}

/// Which data go over which lines.
#[derive(Clone, Debug)]
pub struct Plan {
    vessels: [Vessel; PathId::MAX],
    chunks: [Chunk; PathId::MAX],
    lines: usize,
    steps: usize,
}

impl Plan {
    /// The plan for `vessels`, of which the first [`PathId::MAX`] count; `None` if there is no vessel.
    #[must_use]
    pub fn new(vessels: impl IntoIterator<Item = Vessel>) -> Option<Self> {
        let mut plan = Self {
            vessels: [NO_VESSEL; PathId::MAX],
            chunks: [Chunk {
                volume: None,
                open: 0,
            }; PathId::MAX],
            lines: 0,
            steps: 0,
        };
        for vessel in vessels.into_iter().take(PathId::MAX) {
            plan.vessels[plan.lines] = vessel;
            plan.lines += 1;
        }
        if plan.lines == 0 {
            return None;
        }
        plan.vessels[..plan.lines].sort_unstable_by_key(|vessel| (vessel.level, vessel.id));
        let mut rate = 0_u64;
        for open in 1..=plan.lines {
            let vessel = plan.vessels[open - 1];
            rate = rate.saturating_add(vessel.rate.as_bps());
            let next = plan.vessels[..plan.lines].get(open);
            let volume = next.map(|next| {
                let height = next.level.saturating_sub(vessel.level);
                Bitrate::from_bps(rate).bytes_in(height)
            });
            if volume != Some(Bytes::ZERO) {
                plan.chunks[plan.steps] = Chunk { volume, open };
                plan.steps += 1;
            }
        }
        Some(plan)
    }

    /// The lines, the quickest first.
    #[must_use]
    pub fn vessels(&self) -> &[Vessel] {
        &self.vessels[..self.lines]
    }

    /// The chunks in the order of the data; at least one, and only the last without a volume.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks[..self.steps]
    }

    /// How much data must be available to fill the lines in order: all chunks but the last.
    #[must_use]
    pub fn look_ahead(&self) -> Bytes {
        let volumes = self.chunks().iter().filter_map(|chunk| chunk.volume);
        volumes.fold(Bytes::ZERO, |sum, volume| sum + volume)
    }

    /// The least K with which [`keeps_timers_quiet`](Self::keeps_timers_quiet) holds for every chunk, with packets of
    /// `len`: the largest excess of a round trip over the mean, in mean deviations. Zero if all round trips are equal.
    #[must_use]
    pub fn timer_factor(&self, len: Bytes) -> f64 {
        let factor = |chunk: &Chunk| {
            let (excess, deviation) = self.round_trips(chunk, len);
            if excess <= EQUAL {
                0.0
            } else {
                excess / deviation
            }
        };
        self.chunks().iter().map(factor).fold(0.0, f64::max)
    }

    /// Whether no retransmission timer goes off for the spread of round trips alone: theorem 2, for chunk `chunk` and
    /// packets of `len`. `k` is the timer's factor, 4 in TCP; its least value, 200 ms or more, is not counted in.
    ///
    /// The theorem is the paper's; here `level` is taken for the one-way delay, as it is when nothing was poured in yet.
    #[must_use]
    pub fn keeps_timers_quiet(&self, chunk: usize, len: Bytes, k: f64) -> bool {
        let Some(chunk) = self.chunks().get(chunk) else {
            return true;
        };
        let (excess, deviation) = self.round_trips(chunk, len);
        excess <= (k * deviation).max(EQUAL)
    }

    /// For the lines of `chunk`, in seconds: the largest round trip less the mean, and the mean deviation.
    fn round_trips(&self, chunk: &Chunk, len: Bytes) -> (f64, f64) {
        let open = &self.vessels()[..chunk.open];
        let total: f64 = open.iter().map(|vessel| vessel.rate.as_mbps()).sum();
        let share = |vessel: &Vessel| vessel.rate.as_mbps() / total;
        let round_trip =
            |vessel: &Vessel| (len / vessel.rate).as_secs_f64() + 2.0 * vessel.level.as_secs_f64();
        let mean: f64 = open.iter().map(|v| share(v) * round_trip(v)).sum();
        let deviation = open
            .iter()
            .map(|v| share(v) * (round_trip(v) - mean).abs())
            .sum();
        let most = open.iter().map(round_trip).fold(mean, f64::max);
        (most - mean, deviation)
    }
}

/// Equal round trips, in seconds: no more than rounding between them.
const EQUAL: f64 = 1e-9;

const NO_VESSEL: Vessel = Vessel {
    id: PathId(0),
    rate: Bitrate::from_bps(0),
    level: Duration::ZERO,
};
