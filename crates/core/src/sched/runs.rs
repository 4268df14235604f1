//! Shares of a block as runs of consecutive packets, the quickest path first.
//!
//! Each path is owed its share of the block's bytes. If a share is not a multiple of a packet, the rest is carried
//! over to the next block, up to two packets, so that short blocks do not starve the slower paths.

use super::{PathView, slot};
use crate::{ids::PathId, units::Bytes};

/// The bytes that each path is owed; negative if the path has carried too many.
#[derive(Clone, Debug)]
pub(super) struct Runs([i64; PathId::MAX]);

impl Runs {
    /// Creates the state in which nothing is owed.
    pub(super) const fn new() -> Self {
        Self([0; PathId::MAX])
    }

    /// Begins a block of `total` bytes. `lanes`: the paths with their weights. Each path is owed `total` multiplied
    /// by its share of the sum of the weights.
    pub(super) fn begin<'a>(
        &mut self,
        total: Bytes,
        lanes: impl Iterator<Item = (&'a PathView, u32)> + Clone,
    ) {
        for owed in &mut self.0 {
            *owed = (*owed).clamp(-MAX_OWED, MAX_OWED);
        }
        let weights: u64 = lanes.clone().map(|(_, weight)| u64::from(weight)).sum();
        for (path, weight) in lanes {
            let share = u128::from(total.get()) * u128::from(weight) / u128::from(weights.max(1));
            self.0[slot(path)] += i64::try_from(share).unwrap_or(0);
        }
    }

    /// Returns the first of `lanes`, from `turn` on, that is owed at least half of a packet of `len` bytes; the last
    /// of `lanes` if there is no such path. The path is charged for the packet.
    pub(super) fn next<'a>(
        &mut self,
        lanes: impl ExactSizeIterator<Item = &'a PathView>,
        turn: usize,
        len: Bytes,
    ) -> usize {
        let cost = i64::try_from(len.get().min(MAX_LEN)).unwrap_or(0);
        let last = lanes.len().saturating_sub(1);
        let chosen = lanes
            .enumerate()
            .skip(turn)
            .find(|(lane, path)| *lane == last || self.0[slot(path)] >= cost - cost / 2);
        let Some((lane, path)) = chosen else {
            return 0;
        };
        self.0[slot(path)] -= cost;
        lane
    }
}

/// Maximum length of a packet in bytes.
pub(super) const MAX_LEN: u64 = 1 << 16;
/// Maximum number of bytes carried over: two packets.
const MAX_OWED: i64 = 3_000;
