//! How much each flow sends, by the half second.
//!
//! Two flows that share a place ([`crate::flows`]) look like one that sends more; that may cost a small flow its class, for as long
//! as both send.

use core::time::Duration;

use crate::{
    flows::{FlowId, PLACES},
    time::Instant,
    units::{Bitrate, Bytes},
};

/// The flows. Takes memory with the first packet: 80 KiB.
#[derive(Debug, Default)]
pub(super) struct Flows {
    places: Vec<Flow>,
}

/// One of them.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    since: Instant,
    now: Volume,
    /// Of the half second before, if it sent in that.
    before: Option<Volume>,
}

/// What a flow sends in half a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Volume {
    pub(super) packets: u32,
    pub(super) bytes: Bytes,
    pub(super) longest: usize,
}

/// What is known of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    now: Volume,
    before: Option<Volume>,
}

impl Flows {
    /// Counts a packet of `len` bytes of a flow.
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
    /// Its rate: of the half second before, or of this one if it is more already.
    pub(super) fn rate(self) -> Bitrate {
        let before = self.before.map_or(Bytes::ZERO, |before| before.bytes);
        Bitrate::from_transfer(self.now.bytes.max(before), WINDOW).unwrap_or_default()
    }

    /// Whether it looks like voice: 20 to 100 packets a second, all short.
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
/// Longest packet: 20 ms of uncompressed telephone speech (160 bytes), with room for encryption and IPv6.
const VOICE_BYTES: usize = 300;
/// In half a second.
const VOICE_PACKETS: core::ops::RangeInclusive<u32> = 9..=51;
