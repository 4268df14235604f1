//! When each path last carried a packet that no other path carried, which paths share the current traffic, and when
//! the host last sent packets.

use core::time::Duration;

use crate::{ids::PathId, time::Instant};

/// The times of the newest packets, and the numbers of recent datagrams.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// Latest time passed to this tunnel.
    now: Instant,
    offered_at: Option<Instant>,
    /// Number of packets from the host so far.
    packets_in: u64,
    carried_at: [Option<Instant>; PathId::MAX],
    /// Number of data datagrams with a packet so far.
    packets_out: u64,
    /// Number of recent datagrams by path.
    datagrams: [u32; PathId::MAX],
}

impl Usage {
    /// Records the current time.
    pub(super) fn on_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Returns the latest time passed to this tunnel.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Records a packet from the host.
    pub(super) fn on_packet_in(&mut self, now: Instant) {
        self.packets_in += 1;
        self.on_offered(now);
    }

    /// Returns the number of packets from the host so far.
    pub(super) const fn packets_in(&self) -> u64 {
        self.packets_in
    }

    /// Records that packets wait to be sent.
    pub(super) fn on_offered(&mut self, now: Instant) {
        self.offered_at = Some(now);
    }

    /// Records a packet on `id` that no other path carries.
    pub(super) fn on_carried(&mut self, now: Instant, id: PathId) {
        self.carried_at[id.index()] = Some(now);
    }

    /// Records a data datagram with a packet on `id`.
    pub(super) fn on_datagram(&mut self, id: PathId) {
        self.packets_out += 1;
        let datagrams = &mut self.datagrams[id.index()];
        *datagrams += 1;
        if *datagrams >= DATAGRAMS {
            self.datagrams.iter_mut().for_each(|count| *count /= 2);
        }
    }

    /// Returns the number of packets sent so far, including copies and retransmissions.
    pub(super) const fn packets_out(&self) -> u64 {
        self.packets_out
    }

    /// Resets the counts of `id`, because the path or its capacity has changed.
    pub(super) fn forget(&mut self, id: PathId) {
        self.datagrams[id.index()] = 0;
    }

    /// Resets the counts of all paths, as at the start of an association.
    pub(super) fn forget_datagrams(&mut self) {
        self.datagrams = [0; PathId::MAX];
    }

    /// Whether `id` carries a share of the recent traffic.
    pub(super) fn is_carrying(&self, id: PathId) -> bool {
        self.datagrams[id.index()] > 0
    }

    /// Whether no packet has waited to be sent recently.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_recent(self.offered_at)
    }

    /// Whether `id` has recently carried packets that no other path carried.
    pub(super) fn is_used(&self, id: PathId) -> bool {
        self.is_recent(self.carried_at[id.index()])
    }

    fn is_recent(&self, at: Option<Instant>) -> bool {
        at.is_some_and(|at| self.now.since(at) < RECENT)
    }
}

/// Duration after the last packet for which a path is considered in use: long compared with an RTT, short compared with
/// a user's patience.
const RECENT: Duration = Duration::from_secs(1);
/// Number of datagrams on one path at which the counts of all paths are halved.
const DATAGRAMS: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_carries_one_datagram_in_a_thousand_has_no_part() {
        let mut usage = Usage::default();
        usage.on_datagram(PathId(1));
        assert!(usage.is_carrying(PathId(1)) && !usage.is_carrying(PathId(0)));
        (0..1_000).for_each(|_| usage.on_datagram(PathId(0)));
        assert!(usage.is_carrying(PathId(0)) && !usage.is_carrying(PathId(1)));
        usage.forget(PathId(0));
        assert!(!usage.is_carrying(PathId(0)));
    }
}
