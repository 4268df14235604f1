//! Packets that are assigned to a path and wait until the path is ready. They were assigned by
//! [`Pick::One`](crate::sched::Pick::One) under a policy that looks ahead, or as parts of [`blocks`](super::blocks).
//!
//! Staged packets have left the tunnel queue and have their sequence numbers, so they are not dropped here. If their
//! path becomes unusable, they are assigned again, in order, before any other packet.
//!
//! Bound: [`MAX_PACKETS`] over all paths. At the bound no new packet is placed until a path has sent staged packets.

use std::collections::VecDeque;

use super::views::Views;
use crate::{
    ids::{PathId, Seq},
    path::{on_wire::in_datagrams, sender::Numbered},
    units::Bytes,
};

/// The packets that wait for each path.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// Queues indexed by path id; empty until a packet waits.
    lanes: Vec<Lane>,
    packets: usize,
}

#[derive(Debug, Default)]
struct Lane {
    /// Waiting packets, each with whether it is a retransmission.
    packets: VecDeque<(Numbered, bool)>,
    bytes: Bytes,
}

impl Staged {
    pub(super) const fn is_empty(&self) -> bool {
        self.packets == 0
    }

    pub(super) const fn len(&self) -> usize {
        self.packets
    }

    pub(super) const fn is_full(&self) -> bool {
        self.packets >= MAX_PACKETS
    }

    /// Returns the number of bytes on the wire that wait for a path.
    pub(super) fn bytes(&self, id: PathId) -> Bytes {
        let lane = self.lanes.get(id.index());
        lane.map_or(Bytes::ZERO, |lane| lane.bytes)
    }

    /// Stages a packet for the path of view `index`.
    pub(super) fn keep(
        &mut self,
        views: &mut Views,
        index: usize,
        numbered: Numbered,
        is_reinjected: bool,
    ) {
        let id = views[index].id;
        self.push(id, numbered, is_reinjected);
        views.set_staged(index, self.bytes(id));
    }

    fn push(&mut self, id: PathId, numbered: Numbered, is_reinjected: bool) {
        if self.lanes.is_empty() {
            self.lanes.resize_with(PathId::MAX, Lane::default);
        }
        let lane = &mut self.lanes[id.index() % PathId::MAX];
        lane.bytes += wire_len(&numbered);
        lane.packets.push_back((numbered, is_reinjected));
        self.packets += 1;
    }

    /// Returns the packet with this sequence number that waits for a path. O(packets waiting for the path).
    pub(super) fn find(&self, id: PathId, global_seq: Seq) -> Option<&Numbered> {
        let packets = &self.lanes.get(id.index())?.packets;
        let mut packets = packets.iter().map(|(numbered, _)| numbered);
        packets.find(|numbered| numbered.global_seq == global_seq)
    }

    /// Removes and returns the next packet for a path, with whether it is a retransmission.
    pub(super) fn pop(&mut self, id: PathId) -> Option<(Numbered, bool)> {
        let lane = self.lanes.get_mut(id.index())?;
        let next = lane.packets.pop_front()?;
        lane.bytes = lane.bytes - wire_len(&next.0);
        self.packets -= 1;
        Some(next)
    }

    /// Removes and returns the packets that wait for paths which are no longer usable.
    pub(super) fn recall(&mut self, is_usable: impl Fn(PathId) -> bool) -> Vec<Numbered> {
        let mut recalled = Vec::new();
        for id in (0..PathId::MAX).filter_map(|id| u8::try_from(id).ok().map(PathId)) {
            if self.bytes(id) == Bytes::ZERO || is_usable(id) {
                continue;
            }
            while let Some((numbered, _)) = self.pop(id) {
                recalled.push(numbered);
            }
        }
        recalled
    }

    /// Removes and returns all packets, path by path.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Numbered> {
        self.packets = 0;
        let lanes = core::mem::take(&mut self.lanes);
        lanes
            .into_iter()
            .flat_map(|lane| lane.packets)
            .map(|(numbered, _)| numbered)
    }
}

fn wire_len(numbered: &Numbered) -> Bytes {
    in_datagrams(Bytes::of_len(numbered.packet.len()), 1)
}

/// Maximum number of staged packets on all paths: 100 ms at 490 Mbit/s.
const MAX_PACKETS: usize = 4096;
