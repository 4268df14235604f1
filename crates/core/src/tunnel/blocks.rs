//! Packets that leave in blocks: [`Consn`](crate::sched::Consn).
//!
//! What waits, up to a block, leaves the tunnel queue at once, so that it can be split over the paths as a whole. Numbers
//! are given in the order of the data. Each path's part is kept for it ([`staged`](super::staged)) in the order in which it is to
//! leave, which may be backwards, and goes as soon as the path is ready. The next block is taken once something waits and some
//! path is ready with nothing kept for it.
//!
//! Copies of what other paths have go last: while nothing waits, on paths that are ready. A packet that still waits for its
//! path is copied from there, one that is under way from what its path keeps; one that neither has is known to have come, or is
//! lost and past help, and is passed over. Where a block comes before the last has left, copies rest for [`REST`]: they must not
//! take from what is new. Copies of a block are forgotten with the next block, or once its deadline is over.
//!
//! A host hands a burst over in pieces, and the first is placed before the last has come. What comes within [`BURST`] of the first, up to a
//! block of packets, is of the same block as far as copies are concerned.
//!
//! Bounds: one block of packets to place, and as many copies for each path.

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
    sched::{PacketInfo, Placement as Split, consn::BLOCK},
    time::Instant,
    units::Bytes,
};

/// The block that is being placed, and copies of the last.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Scratch: the packets, and whether they were sent before.
    packets: Vec<Option<(Numbered, bool)>>,
    /// Scratch.
    infos: Vec<PacketInfo>,
    split: Split,
    /// The next last.
    copies: Vec<Copy>,
    copies_until: Option<Instant>,
    /// No copies before: there was more to send than paths carried.
    rests_until: Option<Instant>,
    /// When the first piece of the block was placed, and how many packets have been since.
    begun: Option<(Instant, usize)>,
}

/// A packet that a path may send though it is another's.
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

    /// Whether another packet is of the block that is being placed.
    pub(super) fn has_room(&self) -> bool {
        self.packets.len() < BLOCK
    }

    /// Whether no packet was taken for the next block.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds a packet to the block; what waits behind it is in `lanes`.
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

    /// Keeps each packet of the block for its path; those left over come out.
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
        // After those of the block's pieces before.
        self.copies.splice(0..0, new);
        for (path, index) in &split.packets {
            let packet = packets.get_mut(usize::from(*index)).and_then(Option::take);
            if let Some((numbered, is_reinjected)) = packet {
                staged.keep(views, usize::from(*path), numbered, is_reinjected);
            }
        }
        self.infos.clear();
        // A path that became busy since is asked again with what is left; the placement leaves nothing otherwise.
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

/// A sender writes what belongs together within less.
const BURST: Duration = Duration::from_millis(5);
/// How long no copies are sent after a block came before the last had left.
const REST: Duration = Duration::from_millis(500);
