//! Packets that leave in blocks, for the policy [`Consn`](crate::sched::Consn).
//!
//! Waiting packets, up to a block, leave the tunnel queue together, so that the policy can split the whole block over
//! the paths. Sequence numbers follow the order of the data. The part of each path is staged
//! ([`staged`](super::staged)) in the order of sending, which may be backwards, and is sent as soon as the path is
//! ready. The next block is taken when packets wait and a ready path has no staged packets.
//!
//! While no packet waits, a ready path sends copies of packets that were placed on other paths, in case those packets
//! are late or lost. A staged packet is copied
//! from the staging queue, a packet in flight from the buffer that its path retains. A packet found in neither place
//! has arrived, or is lost beyond repair, and is skipped. If a block is placed before all packets of the previous block
//! have been sent, no copies are sent for [`REST`], so that they do not delay new packets. Copies of a block are
//! dropped when the next block is placed or their deadline has passed.
//!
//! A host delivers a burst in pieces, and the first piece is placed before the last piece has arrived. For the copies,
//! packets that arrive within [`BURST`] of the first packet belong to the same block, up to the size of a block.
//!
//! Bounds: one block of packets to place, and for each path as many copies as a block has packets.

use core::time::Duration;

use super::{
    egress::Egress,
    lanes::{Lanes, waiting},
    placement::Placement,
    staged::Staged,
};
use crate::{
    ids::{PathId, Seq},
    path::{on_wire::in_datagrams, sender::Numbered},
    sched::{BLOCK, PacketInfo, Placement as Split},
    time::Instant,
    units::Bytes,
};

/// The block that is being placed, and the copies of the last block.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Packets of the block, each with whether it is a retransmission; cleared after placement.
    packets: Vec<Option<(Numbered, bool)>>,
    /// Descriptions of the packets for the policy; cleared after placement.
    infos: Vec<PacketInfo>,
    split: Split,
    /// The copies to send; the next one is at the end.
    copies: Vec<Copy>,
    copies_until: Option<Instant>,
    /// No copies are sent before this time, because the paths could not carry all new packets.
    rests_until: Option<Instant>,
    /// Time at which the first piece of the block was placed, and number of packets placed since then.
    begun: Option<(Instant, usize)>,
}

/// A packet that is assigned to another path, and of which a path may send a copy.
#[derive(Clone, Copy, Debug)]
struct Copy {
    on: PathId,
    of: PathId,
    global_seq: Seq,
}

impl Blocks {
    /// Whether copies wait for a path.
    pub(super) fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.copies.clear();
    }

    /// Whether the block that is being placed has room for another packet.
    pub(super) fn has_room(&self) -> bool {
        self.packets.len() < BLOCK
    }

    /// Whether the next block has no packets yet.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds a packet to the block. `lanes` contains the packets that wait after this packet.
    pub(super) fn push(&mut self, numbered: Numbered, is_reinjected: bool, lanes: &Lanes) {
        self.infos.push(PacketInfo {
            flow: numbered.flow,
            is_expendable: numbered.is_expendable,
            backlog: waiting(&lanes.bulk),
            own_backlog: lanes.bulk.flow_bytes(numbered.flow),
            ..PacketInfo::of_len(in_datagrams(Bytes::of_len(numbered.packet.len()), 1))
        });
        self.packets.push(Some((numbered, is_reinjected)));
    }

    /// Stages each packet of the block for its path. Returns the packets for which no path was found.
    pub(super) fn place(
        &mut self,
        now: Instant,
        placement: &mut Placement,
        staged: &mut Staged,
    ) -> impl Iterator<Item = Numbered> {
        let Placement {
            scheduler, views, ..
        } = placement;
        let packets = &mut self.packets;
        let is_of =
            |&(at, pkts): &(Instant, usize)| now.since(at) < BURST && pkts + packets.len() <= BLOCK;
        let before = self.begun.filter(is_of);
        let (at, pkts) = before.unwrap_or((now, 0));
        self.begun = Some((at, pkts + packets.len()));
        if before.is_none() {
            self.copies.clear();
        }
        if before.is_none() && views.iter().any(|view| view.staged > Bytes::ZERO) {
            self.rests_until = Some(now + REST);
        }
        let rests = self.rests_until.is_some_and(|until| now < until);
        let split = &mut self.split;
        if let Some(policy) = scheduler.blocks() {
            policy.place(views.as_slice(), &self.infos, split);
            self.copies_until = Some(now + policy.settings().deadline);
        }
        let wanted = split.copies.iter().rev().filter(|_| !rests);
        let new = wanted.filter_map(|(on, index)| {
            let (of, _) = split.packets.iter().find(|(_, packet)| packet == index)?;
            let (numbered, _) = packets.get(usize::from(*index))?.as_ref()?;
            Some(Copy {
                on: views[usize::from(*on)].id,
                of: views[usize::from(*of)].id,
                global_seq: numbered.global_seq,
            })
        });
        // Copies of earlier pieces of the block are sent first.
        self.copies.splice(0..0, new);
        for (path, index) in &split.packets {
            let packet = packets.get_mut(usize::from(*index)).and_then(Option::take);
            if let Some((numbered, is_reinjected)) = packet {
                staged.keep(views, usize::from(*path), numbered, is_reinjected);
            }
        }
        self.infos.clear();
        // Some packets remain only if a path has become busy in the meantime. They are placed again later.
        self.packets
            .drain(..)
            .flatten()
            .map(|(numbered, _)| numbered)
    }

    /// Sends copies of packets of the last block on paths that are ready.
    pub(super) fn send_copies(&mut self, staged: &Staged, egress: &mut Egress<'_, '_>) {
        if !self.has_copies() {
            return;
        }
        let now = egress.now();
        if self.copies_until.is_none_or(|until| until <= now) {
            return self.clear();
        }
        for index in 0..egress.placement.views.len() {
            let id = egress.placement.views[index].id;
            while egress.placement.views[index].ready && !egress.is_full() {
                let next = self.copies.iter().rposition(|copy| copy.on == id);
                let Some(at) = next else {
                    break;
                };
                let copy = self.copies.remove(at);
                send_copy(index, copy, staged, egress);
            }
        }
    }
}

fn send_copy(index: usize, copy: Copy, staged: &Staged, egress: &mut Egress<'_, '_>) {
    let paths = &egress.sealer.paths;
    let kept = || paths.get(copy.of)?.sender().unreported(copy.global_seq);
    let original = staged.find(copy.of, copy.global_seq).or_else(kept);
    let Some(original) = original else {
        return;
    };
    let numbered = Numbered {
        global_seq: original.global_seq,
        flow_step: original.flow_step,
        flow: original.flow,
        is_expendable: original.is_expendable,
        round_trip: original.round_trip,
        origin: None,
        packet: egress.shared.pool.copy_of(original.packet.as_slice()),
    };
    egress.send_one_copy(index, &numbered);
    egress.shared.pool.recycle(numbered.packet);
}

/// Duration within which a sender writes all pieces of one burst.
const BURST: Duration = Duration::from_millis(5);
/// Duration without copies after a block that was placed before all packets of the previous block had been sent.
const REST: Duration = Duration::from_millis(500);
