//! The earliest predicted arrivals of a packet.

use crate::time::Instant;

/// The earliest arrivals of a packet.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    /// Earliest arrival on a ready path, and the index of that path.
    pub(super) ready: Option<(Instant, usize)>,
    /// Earliest arrival on a ready path that is not late, and the index of that path.
    pub(super) ready_near: Option<(Instant, usize)>,
    /// Earliest arrival on a path that is not ready but worth the wait.
    pub(super) awaited: Option<Instant>,
}

impl Ranking {
    pub(super) fn on_ready(&mut self, arrival: Instant, index: usize, is_late: bool) {
        let is_earlier = |best: Option<(Instant, _)>| best.is_none_or(|(best, _)| arrival < best);
        if is_earlier(self.ready) {
            self.ready = Some((arrival, index));
        }
        if !is_late && is_earlier(self.ready_near) {
            self.ready_near = Some((arrival, index));
        }
    }

    pub(super) fn on_awaited(&mut self, arrival: Instant) {
        let earliest = self
            .awaited
            .map_or(arrival, |earliest| earliest.min(arrival));
        self.awaited = Some(earliest);
    }
}
