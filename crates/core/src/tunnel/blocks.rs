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
    Shared, Tunnel,
    lanes::{Lane, waiting},
};
use crate::{
    ids::{PathId, Seq},
    path::{on_wire::in_datagrams, sender::Numbered},
    profile::RttSampling,
    sched::{PacketInfo, Placement, consn::BLOCK},
    time::Instant,
    transmit::TxQueue,
    units::Bytes,
};

/// The block that is being placed, and copies of the last.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Scratch: the packets, and whether they were sent before.
    packets: Vec<Option<(Numbered, bool)>>,
    /// Scratch.
    infos: Vec<PacketInfo>,
    placement: Placement,
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
}

impl Tunnel {
    /// [`send_packets`](Self::send_packets) for a policy that works in blocks.
    pub(super) fn send_blocks(&mut self, now: Instant, out: &mut TxQueue, shared: &mut Shared<'_>) {
        let mut is_held_back = self.view_paths(now);
        self.send_staged(now, out, shared);
        while !out.is_full() && !self.staged.is_full() {
            let is_free = |view: &crate::sched::PathView| view.ready && view.staged == Bytes::ZERO;
            if !self.views.iter().any(is_free) {
                if !is_held_back {
                    break;
                }
                is_held_back = self.view_paths(now);
                continue;
            }
            if !self.take_block(now, shared) {
                break;
            }
            self.place_block(now);
            self.send_staged(now, out, shared);
        }
        self.send_block_copies(now, out, shared);
    }

    /// Takes the next block out of the queue; false if nothing waits.
    fn take_block(&mut self, now: Instant, shared: &mut Shared<'_>) -> bool {
        let mut blocks = core::mem::take(&mut self.blocks);
        blocks.packets.clear();
        blocks.infos.clear();
        while blocks.packets.len() < BLOCK {
            let numbered = self.next_reinjected(now, shared);
            let is_reinjected = numbered.is_some();
            let numbered = numbered.or_else(|| {
                let next = self.next_of_lanes(now, [false; Lane::ALL.len()], shared);
                next.map(|(_, numbered)| numbered)
            });
            let Some(numbered) = numbered else {
                break;
            };
            blocks.infos.push(PacketInfo {
                len: in_datagrams(Bytes::of_len(numbered.packet.len()), 1),
                flow_hash: numbered.flow_hash,
                is_expendable: numbered.is_expendable,
                backlog: waiting(&self.queue),
                own_backlog: self.queue.flow_bytes(numbered.flow_hash),
                has_behind: false,
                to_last: Bytes::ZERO,
                round_trip: Duration::ZERO,
                urgency: None,
            });
            blocks.packets.push(Some((numbered, is_reinjected)));
        }
        let is_some = !blocks.packets.is_empty();
        self.blocks = blocks;
        is_some
    }

    /// Keeps each packet of the block for its path.
    fn place_block(&mut self, now: Instant) {
        let mut blocks = core::mem::take(&mut self.blocks);
        let Blocks {
            packets,
            infos,
            placement,
            copies,
            copies_until,
            rests_until,
            begun,
        } = &mut blocks;
        let is_of =
            |&(at, pkts): &(Instant, usize)| now.since(at) < BURST && pkts + packets.len() <= BLOCK;
        let before = begun.filter(is_of);
        let (at, pkts) = before.unwrap_or((now, 0));
        *begun = Some((at, pkts + packets.len()));
        if before.is_none() {
            copies.clear();
        }
        if before.is_none() && self.views.iter().any(|view| view.staged > Bytes::ZERO) {
            *rests_until = Some(now + REST);
        }
        let rests = rests_until.is_some_and(|until| now < until);
        if let Some(policy) = self.scheduler.blocks() {
            policy.place(&self.views, infos, placement);
            *copies_until = Some(now + policy.settings().deadline);
        }
        let wanted = placement.copies.iter().rev().filter(|_| !rests);
        let new = wanted.filter_map(|(on, index)| {
            let (of, _) = placement
                .packets
                .iter()
                .find(|(_, packet)| packet == index)?;
            let (numbered, _) = packets.get(usize::from(*index))?.as_ref()?;
            Some(Copy {
                on: self.views[usize::from(*on)].id,
                of: self.views[usize::from(*of)].id,
                global_seq: numbered.global_seq,
            })
        });
        // After those of the block's pieces before.
        copies.splice(0..0, new);
        for (path, index) in &placement.packets {
            let packet = packets.get_mut(usize::from(*index)).and_then(Option::take);
            if let Some((numbered, is_reinjected)) = packet {
                self.stage(usize::from(*path), numbered, is_reinjected);
            }
        }
        // A path that became busy since is asked again with what is left; the placement leaves nothing otherwise.
        self.reinject
            .extend(packets.drain(..).flatten().map(|(numbered, _)| numbered));
        self.blocks = blocks;
    }

    /// Sends copies of packets of the last block, while nothing waits that is new.
    fn send_block_copies(&mut self, now: Instant, out: &mut TxQueue, shared: &mut Shared<'_>) {
        let is_new = !self.queue.is_empty() || !self.lanes.is_empty() || !self.reinject.is_empty();
        if is_new || !self.blocks.has_copies() {
            return;
        }
        if self.blocks.copies_until.is_none_or(|until| until <= now) {
            return self.blocks.clear();
        }
        for index in 0..self.views.len() {
            let id = self.views[index].id;
            while self.views[index].ready && !out.is_full() {
                let next = self.blocks.copies.iter().rposition(|copy| copy.on == id);
                let Some(at) = next else {
                    break;
                };
                let copy = self.blocks.copies.remove(at);
                self.send_block_copy(now, index, copy, out, shared);
            }
        }
    }

    fn send_block_copy(
        &mut self,
        now: Instant,
        index: usize,
        copy: Copy,
        out: &mut TxQueue,
        shared: &mut Shared<'_>,
    ) {
        let staged = self.staged.find(copy.of, copy.global_seq);
        let kept = || self.path(copy.of)?.sender().unreported(copy.global_seq);
        let Some(original) = staged.or_else(kept) else {
            return;
        };
        let numbered = Numbered {
            global_seq: original.global_seq,
            flow_step: original.flow_step,
            flow_hash: original.flow_hash,
            is_expendable: original.is_expendable,
            round_trip: original.round_trip,
            origin: None,
            packet: shared.pool.copy_of(original.packet.as_slice()),
        };
        self.send_one_copy(now, index, &numbered, out, shared);
        shared.pool.recycle(numbered.packet);
    }
}

impl Tunnel {
    /// Lets round trips be sampled while there is traffic, for a path that is busy needs no other probes: one that was too late
    /// is seen to be quick again, and one measured in a jam is not taken for far away. Before probes are sent, which may be
    /// due by this.
    pub(super) fn sample_paths(&mut self, now: Instant) {
        let Some(RttSampling { interval, .. }) = self.profile.rtt_sampling else {
            return;
        };
        if !self.has_packets() {
            return;
        }
        for path in self.paths.iter_mut().filter_map(Option::as_deref_mut) {
            path.sample_rtt(interval, now + SAMPLED_FOR);
        }
    }
}

/// A sender writes what belongs together within less.
const BURST: Duration = Duration::from_millis(5);
/// How long no copies are sent after a block came before the last had left.
const REST: Duration = Duration::from_millis(500);
/// How long after the last packet round trips are still sampled.
const SAMPLED_FOR: Duration = Duration::from_secs(1);
