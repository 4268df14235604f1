//! `redundant`: every packet on every path.
//!
//! The receiver delivers the first copy. The delay of each packet is that of the quickest path, and the loss rate is
//! the product of the paths' loss rates. The capacity is that of the slowest path that is always ready: paths that are
//! not ready get no copy.

use super::{PacketInfo, PathView, Pick, Scheduler};
use crate::{ids::PathId, time::Instant};

/// Sends a copy on every ready path. Never waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Redundant;

impl Scheduler for Redundant {
    fn pick(&mut self, _now: Instant, paths: &[PathView], _packet: &PacketInfo) -> Pick {
        let indexed = paths.iter().take(PathId::MAX).enumerate();
        let ready = indexed.filter(|(_, path)| path.ready);
        let copies = ready.fold(0, |copies, (index, _)| copies | 1 << index);
        if copies == 0 {
            Pick::Wait
        } else {
            Pick::Copies(copies)
        }
    }
}
