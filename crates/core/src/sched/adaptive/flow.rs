//! The state of a flow.

use core::time::Duration;

use crate::{sched::PacketInfo, time::Instant, units::Bytes};

/// How much a flow sends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    pub(super) second: Instant,
    pub(super) bytes: Bytes,
    /// When the flow last had packets to send.
    pub(super) seen_at: Instant,
    /// Its rate in the previous second, in bits per second.
    pub(super) rate_before: u128,
    pub(super) is_large: bool,
    /// Whether it has left the paths near the quickest one for later ones.
    pub(super) is_away: bool,
}

impl Flow {
    /// Whether the flow takes a share of the capacity.
    pub(super) fn is_busy(&self) -> bool {
        self.is_large || self.bytes > SMALL || self.rate_before > u128::from(SMALL.get()) * 8
    }

    /// Its rate in bits per second.
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

/// A flow is large if it sends more than this in a second, backlog included, unless other paths bring much more: then
/// [`super::groups::large`] sets the threshold.
pub(super) const LARGE: Bytes = Bytes::new(64_000);
/// No less makes a flow large.
pub(super) const SMALL: Bytes = Bytes::new(16_000);
/// A flow that sends less than this percentage of the near paths' capacity is not limited by them.
pub(super) const HELD_BACK_PERCENT: u128 = 60;
/// The shortest span over which a flow's rate is measured.
const LEAST_SPAN: Duration = Duration::from_millis(100);
