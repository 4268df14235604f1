//! Volume of each flow in half-second intervals.
//!
//! Two flows that share a place in the table ([`crate::flows`]) look like one faster flow. While both send, a slow flow
//! can exceed the `max_rate` of its class, and then no longer matches the class.

use core::time::Duration;

use crate::{
    flows::{FlowId, PLACES},
    time::Instant,
    units::{Bitrate, Bytes},
};

/// Table of flows: 80 KiB, allocated with the first packet.
#[derive(Debug, Default)]
pub(super) struct Flows {
    places: Vec<Flow>,
}

/// Measurements of one flow.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    since: Instant,
    now: Volume,
    /// Volume of the previous half second, if the flow sent in it.
    before: Option<Volume>,
}

/// Volume of a flow in half a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Volume {
    pub(super) packets: u32,
    pub(super) bytes: Bytes,
    pub(super) longest: usize,
}

/// The measurements of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    now: Volume,
    before: Option<Volume>,
}

impl Flows {
    /// Frees the table. No packet may have been sent for two intervals.
    pub(super) fn release_memory(&mut self) {
        self.places = Vec::new();
    }

    /// Counts a packet of `len` bytes of a flow. Returns the flow's measurements.
    pub(super) fn count(&mut self, now: Instant, flow: FlowId, len: usize) -> Known {
        if self.places.is_empty() {
            self.places.resize(PLACES, Flow::default());
        }
        let flow = &mut self.places[flow.index()];
        let age = now.since(flow.since);
        if age >= WINDOW || flow.now.packets == 0 {
            flow.before = (age < 2 * WINDOW && flow.now.packets > 0).then_some(flow.now);
            flow.now = Volume::default();
            flow.since = now;
        }
        flow.now.packets = flow.now.packets.saturating_add(1);
        flow.now.bytes += Bytes::of_len(len);
        flow.now.longest = flow.now.longest.max(len);
        Known {
            now: flow.now,
            before: flow.before,
        }
    }
}

impl Known {
    /// Returns the flow's rate in the previous half second, or its rate in the current half second if that is already
    /// higher.
    pub(super) fn rate(self) -> Bitrate {
        let before = self.before.map_or(Bytes::ZERO, |before| before.bytes);
        Bitrate::from_transfer(self.now.bytes.max(before), WINDOW).unwrap_or_default()
    }

    /// Whether the traffic pattern is that of voice: 20 to 100 packets per second, all short.
    pub(super) fn is_like_voice(self) -> bool {
        let is_short = |volume: Volume| volume.longest <= VOICE_BYTES;
        let is_steady = |volume: Volume| VOICE_PACKETS.contains(&volume.packets);
        let is_now = is_short(self.now) && self.now.packets <= *VOICE_PACKETS.end();
        is_now
            && self
                .before
                .is_some_and(|before| is_short(before) && is_steady(before))
    }
}

const WINDOW: Duration = Duration::from_millis(500);
/// Maximum length of a voice packet in bytes: 20 ms of uncompressed telephone speech (160 bytes) plus encryption and
/// IPv6 headers.
const VOICE_BYTES: usize = 300;
/// Number of packets of a voice flow in half a second.
const VOICE_PACKETS: core::ops::RangeInclusive<u32> = 9..=51;
