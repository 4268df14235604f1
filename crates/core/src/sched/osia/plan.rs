//! Progressive water-filling (section 3.3): how much data goes over which lines, in the order of the data.
//!
//! A line (a path) is modelled as a vessel. The width of the vessel is the rate of the line. Its initial *level* is
//! the time that data put into the line now take to arrive. Data are poured in order, always where the level is
//! lowest. They first raise the lowest vessel alone to the level of the second one, then both vessels to the level of
//! the third one, and so on. Each step is a *chunk*; the last chunk has no end. The level at which data are poured is
//! the time at which they arrive, so the data arrive in the order in which they were poured.
//!
//! Chunk h has the length `(level_{h+1} - level_h) * sum(rate_i, i <= h)`. The paper's equation 13 has other
//! numerators and refers to a sum that its equation 6 contradicts, and its section 4.1 omits the rates. The paper's
//! figures 4 and 5 agree with the length given here.

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
    /// Time that data put into the line now take to arrive: the line's delay, plus the data already in the line divided
    /// by its rate.
    pub level: Duration,
}

/// Consecutive data that are poured into the same lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The volume. `None`: the chunk contains all remaining data.
    pub volume: Option<Bytes>,
    /// Number of lines over which the chunk is poured: the first `open` elements of [`Plan::vessels`].
    pub open: usize,
}

/// Assignment of data to lines.
#[derive(Clone, Debug)]
pub struct Plan {
    vessels: [Vessel; PathId::MAX],
    chunks: [Chunk; PathId::MAX],
    lines: usize,
    steps: usize,
}

impl Plan {
    /// Returns the plan for the first [`PathId::MAX`] elements of `vessels`. `None` if there is no vessel.
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

    /// Returns the lines, sorted by ascending level.
    #[must_use]
    pub fn vessels(&self) -> &[Vessel] {
        &self.vessels[..self.lines]
    }

    /// Returns the chunks in the order of the data. There is at least one chunk, and only the last one has no volume.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks[..self.steps]
    }

    /// Returns how much data must be available to fill the lines in order: the volume of all chunks except the last.
    #[must_use]
    pub fn look_ahead(&self) -> Bytes {
        let volumes = self.chunks().iter().filter_map(|chunk| chunk.volume);
        volumes.fold(Bytes::ZERO, |sum, volume| sum + volume)
    }

    /// Returns the smallest K with which [`keeps_timers_quiet`](Self::keeps_timers_quiet) holds for every chunk, with
    /// packets of `len`: the largest excess of an RTT over the mean RTT, in mean deviations. Zero if all RTTs are
    /// equal.
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

    /// Whether different RTTs of the lines alone never make a retransmission timer expire (theorem 2), for chunk
    /// `chunk` and packets of `len`. `k` is the factor of the mean deviation in the timeout, 4 in TCP. The timer's
    /// minimum, 200 ms or more, is ignored.
    ///
    /// Theorem 2 of the paper uses the one-way delay. Here [`Vessel::level`] stands for it; both are equal as long as
    /// the line contains no data.
    #[must_use]
    pub fn keeps_timers_quiet(&self, chunk: usize, len: Bytes, k: f64) -> bool {
        let Some(chunk) = self.chunks().get(chunk) else {
            return true;
        };
        let (excess, deviation) = self.round_trips(chunk, len);
        excess <= (k * deviation).max(EQUAL)
    }

    /// Returns two times in seconds for the lines of `chunk`: the largest RTT minus the mean RTT, and the mean
    /// deviation.
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

/// Largest difference in seconds between RTTs that count as equal. It covers rounding errors only.
const EQUAL: f64 = 1e-9;

const NO_VESSEL: Vessel = Vessel {
    id: PathId(0),
    rate: Bitrate::from_bps(0),
    level: Duration::ZERO,
};
