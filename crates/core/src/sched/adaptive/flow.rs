//! What is known of a flow.

use core::time::Duration;

use crate::{sched::PacketInfo, time::Instant, units::Bytes};

/// A flow's volume within the present second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    pub(super) second: Instant,
    pub(super) bytes: Bytes,
    /// When it last had something to send.
    pub(super) seen_at: Instant,
    /// Bits per second that it sent in the one before.
    pub(super) rate_before: u128,
    pub(super) is_large: bool,
    /// Whether it has left the paths near the quickest one for later ones.
    pub(super) is_away: bool,
}

impl Flow {
    /// Whether it has its part in what paths carry.
    pub(super) fn is_busy(&self) -> bool {
        self.is_large || self.bytes > SMALL || self.rate_before > u128::from(SMALL.get()) * 8
    }

    /// Bits per second that it sends.
    pub(super) fn rate(&self, now: Instant) -> u128 {
        let span = now.since(self.second);
        if span < LEAST_SPAN * 3 && self.rate_before > 0 {
            return self.rate_before;
        }
        let bits = u128::from(self.bytes.get()) * 8;
        bits * Duration::from_secs(1).as_nanos() / span.max(LEAST_SPAN).as_nanos()
    }

    /// Whether it sends about its part of what near paths carry.
    pub(super) fn is_held_back(&self, now: Instant, near: u128) -> bool {
        let span = now.since(self.second).max(LEAST_SPAN);
        let bits = u128::from(self.bytes.get()) * 8;
        bits * Duration::from_secs(1).as_nanos() * 100 >= near * HELD_BACK_PERCENT * span.as_nanos()
    }
}

/// What is known of the flow of a packet that matters.
pub(super) fn flow_of<'a>(flows: &'a mut [Flow], packet: &PacketInfo) -> Option<&'a mut Flow> {
    let flow = flows.get_mut(packet.flow.index())?;
    (!packet.is_expendable).then_some(flow)
}

/// A flow is large if it sends more than this in a second, what waits included, where no other paths bring much more ([`super::groups::large`]).
pub(super) const LARGE: Bytes = Bytes::new(64_000);
/// No less makes a flow large.
pub(super) const SMALL: Bytes = Bytes::new(16_000);
/// A flow that sends less than this part of what near paths carry, in percent, is not held back by them.
pub(super) const HELD_BACK_PERCENT: u128 = 60;
/// Shortest time over which a flow's rate is taken.
const LEAST_SPAN: Duration = Duration::from_millis(100);
