//! Path delay compensation: which packets of a block take a path with a higher delay.
//!
//! Becke, Dreibholz, Bayer, Packeiser, Rathgeb, "Alternative Transmission Strategies for Multipath Transport of
//! Multimedia Streams over Wireless Networks" (2013), section III-B, describes the idea without an equation: sRTT is
//! used "to estimate its RTT and perform an educated guess on which packets should be sent over the path with the
//! higher delay, in order to let these packets arrive at the right time". The idea decides which packets take the
//! path, not how many: "it is not generally useful to completely turn off a path". The rules here:
//!
//! - The shares are those of the policy. Later packets of a block take the slower paths
//!   ([`Runs`](super::runs::Runs)): the time that earlier packets need on the quicker paths compensates the delay of
//!   the slower paths.
//! - A packet is *in time* on path P if sRTT_P / 2 <= its time left. The time left is the settings' deadline, or the
//!   deadline of the packet's class if it has one. sRTT_P includes the delay of packets that wait for P at this end.
//!   The quickest path and a path without estimates count as in time, because leaving them would gain nothing.
//! - A packet that is late on its path is exchanged for another packet that is in time there, if the late packet is
//!   in time on the other packet's path. Later packets are tried before earlier ones. Shares do not change.
//! - If no packet can be exchanged, as when all have the same deadline, up to [`MOVED_MAX`] packets of the block
//!   leave the path. They take the next quicker path on which they are in time. The path is charged for them, so that
//!   it does not get more packets later. All other packets stay, so the path keeps the rest of its share and its
//!   estimates.
//!
//! [`MOVED_MAX`] is inferred from the paper's figure 7. Without ConSN, where the slow path's share is ten packets of
//! a block of twenty, more than 30 % are still late. With ConSN, where the share is two packets, no packet is late.
//!
//! Half the RTT stands for the one-way delay, so a path that is slow only in the other direction is avoided
//! unnecessarily.

use core::time::Duration;

use super::{PacketInfo, PathView, srtt::round_trip};
use crate::units::Bytes;

/// Chooses the packets that slow paths take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pdc {
    deadline: Duration,
    is_on: bool,
}

impl Pdc {
    /// Creates the rules. Packets without a deadline of their own are useful until `deadline` after they were sent.
    /// Unless `is_on`, every packet is in time.
    pub(super) const fn new(is_on: bool, deadline: Duration) -> Self {
        Self { deadline, is_on }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether `packet` would arrive in time over `path`. `least`: the RTT of the quickest path.
    pub(super) fn in_time(&self, path: &PathView, least: Duration, packet: &PacketInfo) -> bool {
        if !self.is_on || path.smoothed_rtt.is_none() {
            return true;
        }
        let round_trip = round_trip(path);
        let left = match packet.urgency {
            Some(urgency) => urgency.left.saturating_add(least / 2),
            None => self.deadline,
        };
        round_trip <= least || round_trip / 2 <= left
    }

    /// Exchanges or moves packets of `block` that would be late. `lanes`: the paths, the quickest first; `lane_of`:
    /// for each packet the index of its path in `lanes`.
    pub(super) fn compensate<'a>(
        &self,
        lanes: impl ExactSizeIterator<Item = &'a PathView> + Clone,
        block: &[PacketInfo],
        lane_of: &mut [usize],
    ) {
        let Some(least) = lanes.clone().next().map(round_trip) else {
            return;
        };
        if !self.is_on {
            return;
        }
        for (lane, path) in lanes.clone().enumerate().skip(1) {
            let mut moved = 0;
            for at in 0..lane_of.len() {
                let is_late = |packet: usize| !self.in_time(path, least, &block[packet]);
                if lane_of[at] != lane || block[at].is_expendable || !is_late(at) {
                    continue;
                }
                let suits = |other: &usize| {
                    let of = lane_of[*other];
                    let of_other = lanes.clone().nth(of);
                    of != lane
                        && !block[*other].is_expendable
                        && !is_late(*other)
                        && of_other.is_some_and(|path| self.in_time(path, least, &block[at]))
                };
                let other = (at + 1..lane_of.len())
                    .find(suits)
                    .or_else(|| (0..at).rev().find(suits));
                if let Some(other) = other {
                    lane_of.swap(at, other);
                    continue;
                }
                let quicker = lanes.clone().enumerate().take(lane);
                let in_time = quicker.filter(|(_, path)| self.in_time(path, least, &block[at]));
                if let Some((quicker, _)) = in_time.last().filter(|_| moved < MOVED_MAX) {
                    lane_of[at] = quicker;
                    moved += 1;
                }
            }
        }
    }
}

/// Maximum number of packets in a block of [`srtt_weighted`](super::srtt_weighted) and [`consn`](super::consn).
pub const BLOCK: usize = 64;

/// Maximum number of packets of a block that may leave one path without exchange.
pub(super) const MOVED_MAX: usize = 2;

/// The position of a packet in its block, for policies that see one packet at a time. A block consists of the packets
/// that leave the tunnel queue in one burst, up to [`BLOCK`] packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    packets: usize,
    is_last: bool,
}

impl Window {
    /// Creates the state at the end of a block.
    pub(super) const fn new() -> Self {
        Self {
            packets: 0,
            is_last: true,
        }
    }

    /// Processes the next packet. Returns the length of the block that begins with `packet`; `None` if `packet`
    /// belongs to the same block as the previous packet.
    pub(super) fn next(&mut self, packet: &PacketInfo) -> Option<Bytes> {
        let begins = self.is_last || self.packets >= BLOCK;
        if begins {
            self.packets = 0;
        }
        self.packets += 1;
        self.is_last = packet.backlog == Bytes::ZERO;
        let most = Bytes::new(packet.len.get().saturating_mul(BLOCK as u64 - 1));
        begins.then(|| packet.len + packet.backlog.min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Urgency,
        tests::{packet, ready_paths},
    };
    use super::*;
    use crate::class::Duplicate;

    /// Paths with the given RTTs in milliseconds.
    fn paths(rtts: &[u64]) -> Vec<PathView> {
        let mut paths = ready_paths(rtts.len());
        for (path, rtt) in paths.iter_mut().zip(rtts) {
            path.smoothed_rtt = Some(Duration::from_millis(*rtt));
        }
        paths
    }

    /// A packet with the given time in milliseconds until its deadline, minus the delay of the quickest path.
    fn with_left(millis: u64) -> PacketInfo {
        PacketInfo {
            urgency: Some(Urgency {
                left: Duration::from_millis(millis),
                duplicate: Duplicate::Never,
                is_small: false,
            }),
            ..packet()
        }
    }

    fn compensated(rtts: &[u64], block: &[PacketInfo], lane_of: &[usize]) -> Vec<usize> {
        let mut lane_of = lane_of.to_vec();
        let pdc = Pdc::new(true, Duration::from_millis(200));
        pdc.compensate(paths(rtts).iter(), block, &mut lane_of);
        lane_of
    }

    #[test]
    fn nothing_is_moved_that_arrives_in_time() {
        let lanes = [0, 0, 1, 1];
        assert_eq!(compensated(&[62, 400], &[packet(); 4], &lanes), lanes);
        let mut off = lanes;
        Pdc::new(false, Duration::ZERO).compensate(
            paths(&[62, 9_000]).iter(),
            &[packet(); 4],
            &mut off,
        );
        assert_eq!(off, lanes);
    }

    #[test]
    fn two_packets_of_a_block_leave_a_path_that_is_too_slow_and_no_more() {
        let lanes = [0, 0, 0, 1, 1, 1, 1];
        let kept = compensated(&[62, 402], &[packet(); 7], &lanes);
        assert_eq!(kept, [0, 0, 0, 0, 0, 1, 1]);
        // Packets leave each of two slow paths; those of the slowest path move to the other one if they are in time
        // there.
        let kept = compensated(&[62, 390, 402], &[packet(); 6], &[0, 1, 1, 2, 2, 2]);
        assert_eq!(kept, [0, 1, 1, 1, 1, 2]);
    }

    #[test]
    fn packets_with_time_are_exchanged_for_those_without_and_shares_stay() {
        // The slow path is 150 ms later.
        let (tight, loose) = (with_left(100), with_left(160));
        let block = [loose, loose, tight, loose, tight, tight, tight];
        let lanes = compensated(&[60, 360], &block, &[0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(lanes, [1, 1, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn the_quickest_path_and_unknown_ones_are_never_late() {
        let mut paths = paths(&[1_000, 2_000]);
        let pdc = Pdc::new(true, Duration::from_millis(200));
        let least = Duration::from_secs(1);
        assert!(pdc.in_time(&paths[0], least, &packet()));
        assert!(!pdc.in_time(&paths[1], least, &packet()));
        paths[1].smoothed_rtt = None;
        assert!(pdc.in_time(&paths[1], least, &packet()));
    }

    #[test]
    fn a_block_ends_with_the_queue_or_when_it_is_long() {
        let mut window = Window::new();
        let behind = |backlog| PacketInfo {
            backlog: Bytes::new(backlog),
            ..packet()
        };
        let lengths = [2_500, 1_250, 0, 1_250].map(|backlog| window.next(&behind(backlog)));
        let long = |bytes| Some(Bytes::new(bytes));
        assert_eq!(lengths, [long(3_750), None, None, long(2_500)]);
        let mut window = Window::new();
        let starts = (0..130).filter(|_| window.next(&behind(1 << 20)).is_some());
        assert_eq!(starts.count(), 3);
        assert_eq!(Window::new().next(&behind(1 << 20)), long(64 * 1_250));
    }
}
