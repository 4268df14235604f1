//! The state of a flow.

use core::time::Duration;

use crate::{sched::PacketInfo, time::Instant, units::Bytes};

/// The state of a flow: how much it sends, and over which paths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Beginning of the current second.
    pub(super) second: Instant,
    /// Bytes sent since then.
    pub(super) bytes: Bytes,
    /// When the flow last had packets to send.
    pub(super) seen_at: Instant,
    /// The flow's rate in the previous second, in bits per second.
    pub(super) rate_before: u128,
    pub(super) is_large: bool,
    /// Whether the flow has left the near paths, which are the group of the quickest path, for later ones.
    pub(super) is_away: bool,
}

impl Flow {
    /// Whether the flow takes a share of the capacity.
    pub(super) fn is_busy(&self) -> bool {
        self.is_large || self.bytes > SMALL || self.rate_before > u128::from(SMALL.get()) * 8
    }

    /// The flow's rate in bits per second.
    pub(super) fn rate(&self, now: Instant) -> u128 {
        let span = now.since(self.second);
        if span < LEAST_SPAN * 3 && self.rate_before > 0 {
            return self.rate_before;
        }
        let bits = u128::from(self.bytes.get()) * 8;
        bits * Duration::from_secs(1).as_nanos() / span.max(LEAST_SPAN).as_nanos()
    }

    /// Whether the flow uses about its share of the near paths.
    pub(super) fn is_held_back(&self, now: Instant, near: u128) -> bool {
        let span = now.since(self.second).max(LEAST_SPAN);
        let bits = u128::from(self.bytes.get()) * 8;
        bits * Duration::from_secs(1).as_nanos() * 100 >= near * HELD_BACK_PERCENT * span.as_nanos()
    }
}

/// The state of the flow of a packet, if the flow has one.
pub(super) fn flow_of<'a>(flows: &'a mut [Flow], packet: &PacketInfo) -> Option<&'a mut Flow> {
    let flow = flows.get_mut(packet.flow.index())?;
    (!packet.is_expendable).then_some(flow)
}

/// Volume per second, backlog included, above which a flow is large, unless other paths bring much more: then
/// [`super::groups::large`] sets the threshold.
pub(super) const LARGE: Bytes = Bytes::new(64_000);
/// Minimum threshold for a large flow.
pub(super) const SMALL: Bytes = Bytes::new(16_000);
/// Percentage of the near paths' capacity below which a flow is not limited by the near paths.
pub(super) const HELD_BACK_PERCENT: u128 = 60;
/// Minimum time over which a flow's rate is measured.
const LEAST_SPAN: Duration = Duration::from_millis(100);
