//! Loss windows: sequences of about 300 packets whose loss is checked for congestion. If more than a quarter is lost,
//! 40 packets are sufficient.

use super::Signals;
use crate::{path::rate::DeliveryRate, units::Bitrate};

/// The window being counted.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::path) struct LossWindow {
    pub(in crate::path) packets: u64,
    pub(in crate::path) lost: u64,
    /// Maximum delivery rate during the window.
    pub(in crate::path) rate: Bitrate,
}

impl LossWindow {
    /// Adds a report on a path that delivers at `rate`. Once the window holds enough packets, returns the window and
    /// begins a new one.
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

    /// Whether more than a quarter of the packets is lost, so that fewer packets are sufficient.
    pub(in crate::path) fn is_heavy(&self) -> bool {
        self.packets >= HEAVY_WINDOW && self.lost > self.packets / 4
    }

    /// Whether the loss is caused by congestion. `floor_ppm`: the path's loss floor, if known.
    pub(in crate::path) fn is_congested(&self, floor_ppm: Option<u32>) -> bool {
        match floor_ppm {
            Some(floor) => self.exceeds(floor),
            None => self.lost.saturating_mul(100) > self.packets.saturating_mul(UNKNOWN_FLOOR),
        }
    }

    /// Whether the loss exceeds the loss that `floor_ppm` explains, by four standard deviations and by at least 2 %.
    fn exceeds(&self, floor_ppm: u32) -> bool {
        let packets = self.packets as f64;
        let floor = f64::from(floor_ppm) / 1e6;
        // A floor of zero does not prove that the path never loses a packet.
        let deviation = ((floor + 0.002) / packets).sqrt();
        let limit = floor + (4.0 * deviation).max(0.02);
        self.lost as f64 > limit * packets
    }
}

/// Number of packets in a window. At this number a loss of 1 % has a standard deviation of 0.6 %.
const LOSS_WINDOW: u64 = 300;
/// Minimum number of packets in a window if more than a quarter is lost.
const HEAVY_WINDOW: u64 = 40;
/// Loss in percent above which a window counts as congested while the loss floor is unknown.
const UNKNOWN_FLOOR: u64 = 15;
