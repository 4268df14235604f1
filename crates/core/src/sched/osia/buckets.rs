//! Cascaded leaky buckets with faucets (section 4.1): one bucket per chunk, with one faucet per line.
//!
//! Data fill the first bucket; the rest fills the second, and so on. The faucets of a bucket send its data over its
//! lines in proportion to the lines' rates (equation 12).

use core::ops::Range;

use super::plan::{Plan, Vessel};
use crate::{
    ids::PathId,
    rng::Rng,
    time::saturating_nanos,
    units::{Bitrate, Bytes},
};

/// A plan as it is carried out.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    plan: Plan,
    /// Which bucket is being filled, and with how much so far.
    chunk: usize,
    poured: Bytes,
    /// How high each line is filled, in nanoseconds; in the plan's order.
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

    /// The line for the next `len` bytes of the data: among the open faucets the one that lets them through first, or one
    /// `drawn` in proportion to the rates.
    pub(super) fn pour(&mut self, len: Bytes, drawn: Option<&mut Rng>) -> PathId {
        while self.plan.chunks()[self.chunk].volume.is_some() && self.is_full_for(len) {
            // What went in beyond the brim belongs to the next.
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

    /// Whether `len` bytes more belong to a later bucket: this one has all it holds, or as good as all, for the bytes are
    /// one piece and come through sooner over a line that is closed yet.
    fn is_full_for(&self, len: Bytes) -> bool {
        let closed = self.open()..self.plan.vessels().len();
        let volume = self.plan.chunks()[self.chunk].volume;
        let (_, here) = self.first_through(len, 0..self.open());
        let (_, there) = self.first_through(len, closed);
        volume.is_some_and(|volume| self.poured >= volume) || there < here
    }

    /// How many lines have an open faucet.
    fn open(&self) -> usize {
        self.plan.chunks()[self.chunk].open
    }

    /// Which of `lines` is filled the least with `len` bytes more, and how high then; ties go to the lower id.
    fn first_through(&self, len: Bytes, lines: Range<usize>) -> (usize, u64) {
        let vessels = self.plan.vessels();
        let heights = lines.map(|line| (line, raised(self.levels[line], len, vessels[line].rate)));
        let least = heights.min_by_key(|&(line, height)| (height, vessels[line].id));
        least.unwrap_or((0, u64::MAX))
    }

    /// One of the open faucets, by chance in proportion to the rates.
    fn draw(&self, rng: &mut Rng) -> usize {
        let open = &self.plan.vessels()[..self.open()];
        let total = open.iter().map(|vessel| vessel.rate.as_bps());
        let mut left = rng.below(total.fold(0, u64::saturating_add));
        let is_it = |vessel: &Vessel| match left.checked_sub(vessel.rate.as_bps()) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        };
        open.iter().position(is_it).unwrap_or(0)
    }
}

fn raised(level: u64, len: Bytes, rate: Bitrate) -> u64 {
    level.saturating_add(saturating_nanos(len / rate))
}
