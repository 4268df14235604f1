//! Path delay compensation: which packets of a block may take a path with a higher delay and still arrive in time.
//!
//! Becke, Dreibholz, Bayer, Packeiser, Rathgeb, "Alternative Transmission Strategies for Multipath Transport of Multimedia
//! Streams over Wireless Networks" (2013), section III-B, has the idea and no equation. Ours: the packet with *j* bytes of
//! its block before it may take path P if both
//!
//! - j / R >= (sRTT_P - sRTT_min) / 2 - H: on the quickest path the packet would wait so long that it arrives over P
//!   before the other end stops waiting for it. R is the capacity of all paths, H is [`LONGEST_HOLD`];
//! - sRTT_P / 2 + B_P / b_P <= deadline: it arrives in time. B_P is the number of bytes already waiting for P, b_P the
//!   capacity of P.
//!
//! A path without estimates may be taken, and so may the quickest path at any time, because dropping the packet would
//! gain nothing. Half the RTT stands for the one-way delay, so a path that is slow only in the other direction is
//! avoided unnecessarily.

use core::time::Duration;

use super::{PacketInfo, PathView};
use crate::{
    resequencer::LONGEST_HOLD,
    units::{Bitrate, Bytes},
};

/// Chooses the paths that packets may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pdc {
    deadline: Duration,
    is_on: bool,
}

impl Pdc {
    /// Packets are useful until `deadline` after they were sent. Unless `is_on`, every path may be taken.
    pub(super) const fn new(is_on: bool, deadline: Duration) -> Self {
        Self { deadline, is_on }
    }

    /// Whether a packet with `before` bytes of its block before it may take `path`, one of `paths`, which already has
    /// `placed` bytes.
    pub(super) fn allows(
        &self,
        paths: &[PathView],
        path: &PathView,
        before: Bytes,
        placed: Bytes,
    ) -> bool {
        if !self.is_on {
            return true;
        }
        let Some(srtt) = path.smoothed_rtt else {
            return true;
        };
        let usable = paths.iter().filter(|path| path.usable);
        let least = usable
            .clone()
            .filter_map(|path| path.smoothed_rtt)
            .min()
            .unwrap_or(srtt);
        if srtt <= least {
            return true;
        }
        let total = usable
            .map(|path| rate(path).as_bps())
            .fold(0, u64::saturating_add);
        let ahead = before / Bitrate::from_bps(total);
        let later = (srtt - least) / 2;
        let waiting = (path.staged + placed) / rate(path);
        ahead.saturating_add(LONGEST_HOLD) >= later
            && (srtt / 2).saturating_add(waiting) <= self.deadline
    }
}

/// The position of a packet in its block, for policies that see one packet at a time. A block is what leaves the
/// tunnel queue in one burst, up to [`BLOCK`](super::consn::BLOCK) packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    before: Bytes,
    packets: usize,
    is_last: bool,
}

impl Window {
    /// At the beginning of a block.
    pub(super) const fn new() -> Self {
        Self {
            before: Bytes::ZERO,
            packets: 0,
            is_last: false,
        }
    }

    /// The number of bytes of its block before `packet`, which is the next.
    pub(super) fn next(&mut self, packet: &PacketInfo) -> Bytes {
        if self.is_last || self.packets >= super::consn::BLOCK {
            *self = Self::new();
        }
        let before = self.before;
        self.before += packet.len;
        self.packets += 1;
        self.is_last = packet.backlog == Bytes::ZERO;
        before
    }
}

fn rate(path: &PathView) -> Bitrate {
    path.rate.unwrap_or(UNKNOWN_RATE).max(LEAST_RATE)
}

/// The assumed capacity of an unmeasured path.
const UNKNOWN_RATE: Bitrate = Bitrate::from_mbps(10);
/// The lowest capacity assumed for any path.
const LEAST_RATE: Bitrate = Bitrate::from_bps(1_000);

#[cfg(test)]
mod tests {
    use super::super::tests::{packet, ready_paths};
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(200);

    /// Two paths of these round trips in milliseconds, of 6 and 4 Mbit/s.
    fn paths(rtts: [u64; 2]) -> Vec<PathView> {
        let mut paths = ready_paths(2);
        for (path, (rtt, mbps)) in paths.iter_mut().zip(rtts.into_iter().zip([6, 4])) {
            path.smoothed_rtt = Some(Duration::from_millis(rtt));
            path.rate = Some(Bitrate::from_mbps(mbps));
        }
        paths
    }

    fn allows(rtts: [u64; 2], index: usize, before: u64, placed: u64) -> bool {
        let paths = paths(rtts);
        let pdc = Pdc::new(true, DEADLINE);
        pdc.allows(
            &paths,
            &paths[index],
            Bytes::new(before),
            Bytes::new(placed),
        )
    }

    #[test]
    fn only_later_packets_take_a_path_that_is_much_slower() {
        // 170 ms later, of which the other end holds 150: 20 ms of 10 Mbit/s are 25 000 bytes.
        assert!(!allows([60, 400], 1, 24_999, 0));
        assert!(allows([60, 400], 1, 25_000, 0));
        assert!(allows([60, 320], 1, 0, 0), "130 ms are held");
    }

    #[test]
    fn what_would_come_after_the_deadline_stays_away() {
        assert!(allows([180, 400], 1, 0, 0), "just in time");
        assert!(!allows([180, 402], 1, 1_000_000, 0));
        // 40 ms of 4 Mbit/s.
        assert!(allows([180, 320], 1, 0, 20_000));
        assert!(!allows([180, 320], 1, 0, 20_001));
    }

    #[test]
    fn the_quickest_path_and_unknown_ones_may_be_taken_always() {
        assert!(allows([1_000, 2_000], 0, 0, 1 << 40));
        let mut paths = paths([60, 1_000]);
        let off = Pdc::new(false, DEADLINE);
        assert!(off.allows(&paths, &paths[1], Bytes::ZERO, Bytes::ZERO));
        paths[1].smoothed_rtt = None;
        let pdc = Pdc::new(true, DEADLINE);
        assert!(pdc.allows(&paths, &paths[1], Bytes::ZERO, Bytes::ZERO));
    }

    #[test]
    fn a_window_ends_with_the_queue_or_when_it_is_long() {
        let mut window = Window::new();
        let behind = |backlog| PacketInfo {
            backlog: Bytes::new(backlog),
            ..packet()
        };
        let offsets = [2_500, 1_250, 0, 1_250].map(|backlog| window.next(&behind(backlog)).get());
        assert_eq!(offsets, [0, 1_250, 2_500, 0]);
        let offsets: Vec<u64> = (0..130).map(|_| window.next(&behind(9)).get()).collect();
        assert_eq!(offsets[62], 63 * 1_250);
        assert_eq!((offsets[63], offsets[127]), (0, 0));
    }
}
