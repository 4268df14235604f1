//! Windows of 300 packets whose loss may be congestion.

use super::Signals;
use crate::{path::rate::DeliveryRate, units::Bitrate};

/// Losses being counted.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::path) struct LossWindow {
    pub(in crate::path) packets: u64,
    pub(in crate::path) lost: u64,
    /// The largest rate delivered meanwhile.
    pub(in crate::path) rate: Bitrate,
}

impl LossWindow {
    /// Counts what a report says, on a path that delivers at `rate`; once the window holds enough to judge by, it is returned and
    /// another begins.
    pub(in crate::path) fn count(
        &mut self,
        signals: &Signals,
        rate: &DeliveryRate,
    ) -> Option<Self> {
        self.lost = self.lost.saturating_add(signals.lost);
        self.packets = self.packets.saturating_add(signals.received);
        self.packets = self.packets.saturating_add(signals.lost);
        let latest = rate.latest().map_or(Bitrate::ZERO, |sample| sample.rate);
        self.rate = self.rate.max(latest);
        let is_over = self.packets >= LOSS_WINDOW || self.is_heavy();
        is_over.then(|| core::mem::take(self))
    }

    /// Whether so many are lost, more than a quarter, that fewer packets are enough to judge by.
    pub(in crate::path) fn is_heavy(&self) -> bool {
        self.packets >= HEAVY_WINDOW && self.lost > self.packets / 4
    }

    /// Whether that is congestion on a path whose own share is `floor_ppm`, if that is known.
    pub(in crate::path) fn is_congested(&self, floor_ppm: Option<u32>) -> bool {
        match floor_ppm {
            Some(floor) => self.exceeds(floor),
            None => self.lost.saturating_mul(100) > self.packets.saturating_mul(UNKNOWN_FLOOR),
        }
    }

    /// Whether more was lost than a path that loses `floor` parts per million by itself can explain.
    fn exceeds(&self, floor_ppm: u32) -> bool {
        let packets = self.packets as f64;
        let floor = f64::from(floor_ppm) / 1e6;
        // Of a path that has lost nothing yet it is not known that it loses nothing.
        let deviation = ((floor + 0.002) / packets).sqrt();
        let limit = floor + (4.0 * deviation).max(0.02);
        self.lost as f64 > limit * packets
    }
}

/// Packets over which a share of losses is taken: 1 % of them has a standard deviation of 0.6 %.
const LOSS_WINDOW: u64 = 300;
/// Fewest packets to judge by if a quarter of them is lost.
const HEAVY_WINDOW: u64 = 40;
/// Percent of losses that count as congestion while the path's own share is not known.
const UNKNOWN_FLOOR: u64 = 15;
