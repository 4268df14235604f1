//! Cascaded leaky buckets with faucets (section 4.1): one bucket per chunk, with one faucet per line.
//!
//! A *chunk* is a range of the data that the plan sends over the same lines ([`super::plan`]). Data fill the first
//! bucket; when it is full, further data fill the second bucket, and so on. The faucets of a bucket send its data over
//! its lines in proportion to the lines' rates (equation 12).

use core::ops::Range;

use super::plan::Plan;
use crate::{
    ids::PathId,
    rng::Rng,
    time::saturating_nanos,
    units::{Bitrate, Bytes},
};

/// The execution of a plan.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    plan: Plan,
    /// Index of the bucket that is being filled, and the bytes in it.
    chunk: usize,
    poured: Bytes,
    /// Fill level of each line, in the order of the plan's vessels: the arrival time of the data last put into the
    /// line, in nanoseconds since the plan was made.
    levels: [u64; PathId::MAX],
}

impl Buckets {
    pub(super) fn new(plan: Plan) -> Self {
        let mut levels = [0; PathId::MAX];
        for (level, vessel) in levels.iter_mut().zip(plan.vessels()) {
            *level = saturating_nanos(vessel.level);
        }
        Self {
            plan,
            chunk: 0,
            poured: Bytes::ZERO,
            levels,
        }
    }

    pub(super) const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the line for the next `len` bytes of the data. Without `drawn`, it is the line of the open faucet over
    /// which they arrive first. With the generator `drawn`, the line is drawn at random, in proportion to the rates.
    pub(super) fn pour(&mut self, len: Bytes, drawn: Option<&mut Rng>) -> PathId {
        while self.plan.chunks()[self.chunk].volume.is_some() && self.is_full_for(len) {
            // The excess over this bucket's volume counts for the next bucket.
            let volume = self.plan.chunks()[self.chunk].volume;
            self.poured = self.poured.saturating_sub(volume.unwrap_or(Bytes::ZERO));
            self.chunk += 1;
        }
        self.poured += len;
        let faucet = match drawn {
            None => self.first_through(len, 0..self.open()).0,
            Some(rng) => self.draw(rng),
        };
        let vessel = self.plan.vessels()[faucet];
        self.levels[faucet] = raised(self.levels[faucet], len, vessel.rate);
        vessel.id
    }

    /// Whether the next `len` bytes belong to a later bucket. They do if this bucket is full, or if they would arrive
    /// earlier over a line whose faucet is still closed; they cannot be split between two buckets.
    fn is_full_for(&self, len: Bytes) -> bool {
        let closed = self.open()..self.plan.vessels().len();
        let volume = self.plan.chunks()[self.chunk].volume;
        let (_, here) = self.first_through(len, 0..self.open());
        let (_, there) = self.first_through(len, closed);
        volume.is_some_and(|volume| self.poured >= volume) || there < here
    }

    /// Number of lines with an open faucet.
    fn open(&self) -> usize {
        self.plan.chunks()[self.chunk].open
    }

    /// Returns the line among `lines` with the lowest level after the next `len` bytes, and that level. Of equal
    /// levels, the line with the lower id wins.
    fn first_through(&self, len: Bytes, lines: Range<usize>) -> (usize, u64) {
        let vessels = self.plan.vessels();
        let heights = lines.map(|line| (line, raised(self.levels[line], len, vessels[line].rate)));
        let least = heights.min_by_key(|&(line, height)| (height, vessels[line].id));
        least.unwrap_or((0, u64::MAX))
    }

    /// Draws one of the open faucets at random, in proportion to the rates.
    fn draw(&self, rng: &mut Rng) -> usize {
        let open = &self.plan.vessels()[..self.open()];
        let rates = open.iter().map(|vessel| vessel.rate.as_bps());
        rng.weighted(rates).unwrap_or(0)
    }
}

fn raised(level: u64, len: Bytes, rate: Bitrate) -> u64 {
    level.saturating_add(saturating_nanos(len / rate))
}
