//! `consn`: confluent sequence numbers. A block of packets is split over the paths so that their sequences run towards
//! each other.
//!
//! Becke et al. 2013 (see `pdc`), section III-A. A block consists of the packets that leave the tunnel queue in one
//! burst, up to [`BLOCK`] packets. Each path gets a run of consecutive packets: the quickest path the first run, the
//! others the next runs in the order of their RTTs. The weight of a path gives the length of its run
//! ([`SrttWeighted`](super::SrttWeighted)). *Variant 1*: the first path sends its run in ascending order, the others
//! from the end of their run in descending order. *Variant 2*: only the last path descends. Losses or delays of one
//! path then cause a single gap in the sequence: with two paths, the packets on both sides of the boundary between the
//! runs are sent last.
//!
//! With `redundancy`, each path continues into the runs of the others in its own direction. It sends copies of packets
//! that are not known to have arrived, but only while no new packet waits and the path has room (`tunnel/blocks.rs`).
//! This requires the capacity of the paths, so paths are paced. Without redundancy only the user's limits pace them, as
//! published. The delay of packets that wait at this end for a paced path counts as part of the path's RTT, as the
//! delay of the modem's queue does on a path that is not paced.
//!
//! With `pdc`, packets that would be late on the path of their run are exchanged for other packets, or take another
//! path (`pdc`).
//!
//! Pure ACKs take the path with the lowest RTT.

use core::{cmp::Reverse, time::Duration};

use serde::{Deserialize, de};

use super::{
    PacketInfo, PathView, Pick, Scheduler,
    pdc::{BLOCK, Pdc},
    runs::{MAX_LEN, Runs},
    srtt::{Alpha, DEADLINE, PROBE_EVERY, Weights, round_trip, shares, weight},
};
use crate::{
    ids::PathId,
    profile::{Profile, RttSampling},
    time::Instant,
    units::Bytes,
};

#[cfg(test)]
mod tests;

/// Settings of [`Consn`], with the keys of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsnSettings {
    /// The paths that send their runs in descending order.
    pub variant: Variant,
    /// Whether paths continue into the runs of other paths.
    pub redundancy: bool,
    /// The weight of a new sample in the smoothed RTT.
    pub alpha: Alpha,
    /// Whether packets that would be late on the path of their run are exchanged, or moved.
    pub pdc: bool,
    /// The longest delay after which a packet is still useful, for `pdc` and copies.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// Whether the other end restores the order of packets before it delivers them.
    pub in_order: bool,
}

impl Default for ConsnSettings {
    /// Returns the settings of sections IV and V-A of the paper.
    fn default() -> Self {
        Self {
            variant: Variant::FirstAscends,
            redundancy: false,
            alpha: Alpha::DEFAULT,
            pdc: false,
            deadline: DEADLINE,
            in_order: true,
        }
    }
}

impl ConsnSettings {
    /// The keys, in the order they are listed to users.
    pub const KEYS: &[&str] = &[
        "variant",
        "redundancy",
        "pdc",
        "alpha",
        "deadline",
        "in_order",
    ];

    /// Creates a scheduler with these settings.
    #[must_use]
    pub const fn scheduler(&self) -> Consn {
        Consn::new(*self)
    }
}

/// The paths that send their runs from the end. In a configuration the variants are 1 and 2, as in the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// All paths except the first.
    FirstAscends,
    /// Only the last path.
    LastDescends,
}

impl Variant {
    /// Returns the variant that the paper calls `number`.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::FirstAscends),
            2 => Some(Self::LastDescends),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Variant {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        Self::new(number).ok_or_else(|| de::Error::custom("variant must be 1 or 2"))
    }
}

/// The assignment of a block to paths. Owned by the caller, to avoid an allocation per block.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// One entry per packet of the block: the index of the packet's path among the views, and the index of the packet
    /// in the block. The packets of each path are in the order of sending.
    pub packets: Vec<(u8, u8)>,
    /// The packets that a path may copy when it has sent its own packets, in the order of sending. Each entry is the
    /// index of the path and the index of the packet in the block.
    pub copies: Vec<(u8, u8)>,
}

/// Splits blocks over the ready paths. Never waits. Ignores weight.
#[derive(Clone, Debug)]
pub struct Consn {
    settings: ConsnSettings,
    pdc: Pdc,
    runs: Runs,
    single: Placement,
}

impl Consn {
    /// Creates a scheduler without credit from earlier blocks.
    #[must_use]
    pub const fn new(settings: ConsnSettings) -> Self {
        Self {
            pdc: Pdc::new(settings.pdc, settings.deadline),
            runs: Runs::new(),
            single: Placement {
                packets: Vec::new(),
                copies: Vec::new(),
            },
            settings,
        }
    }

    /// The settings of the scheduler.
    #[must_use]
    pub const fn settings(&self) -> &ConsnSettings {
        &self.settings
    }

    /// Places the packets of `block`, at most [`BLOCK`], on the paths that are ready or for which less than a block
    /// is staged. Places nothing if there is no such path. `paths` is as in [`Scheduler::pick`]. `placement` is
    /// overwritten.
    pub fn place(&mut self, paths: &[PathView], block: &[PacketInfo], placement: &mut Placement) {
        let has_room = |path: &PathView| path.ready || path.usable && path.staged < ROOM;
        self.split(paths, has_room, block, placement);
    }

    fn split(
        &mut self,
        paths: &[PathView],
        has_room: impl Fn(&PathView) -> bool + Copy,
        block: &[PacketInfo],
        placement: &mut Placement,
    ) {
        placement.packets.clear();
        placement.copies.clear();
        let mut order = [0_u8; PathId::MAX];
        let mut lanes = 0;
        for (index, _) in (0_u8..).zip(paths).filter(|(_, path)| has_room(path)) {
            if lanes < order.len() {
                order[lanes] = index;
                lanes += 1;
            }
        }
        let order = &mut order[..lanes];
        if order.is_empty() {
            return;
        }
        let path = |lane: u8| &paths[usize::from(lane)];
        order.sort_by_key(|lane| (round_trip(path(*lane)), path(*lane).id));
        let mut lane_of = [0_usize; BLOCK];
        let lane_of = &mut lane_of[..block.len().min(BLOCK)];
        self.assign(paths, has_room, order, block, lane_of);
        for (lane, &index) in order.iter().enumerate() {
            let own = (0_u8..).zip(lane_of.iter()).filter(|(_, of)| **of == lane);
            let own = own.map(|(packet, _)| (index, packet));
            let start = placement.packets.len();
            placement.packets.extend(own);
            let descends = self.descends(lane, lanes);
            let run = &mut placement.packets[start..];
            if descends {
                run.sort_by_key(|(_, packet)| Reverse(*packet));
            }
            let Some((_, last)) = run.last().copied().filter(|_| self.settings.redundancy) else {
                continue;
            };
            let others = (0_u8..).zip(lane_of.iter()).filter(|(packet, of)| {
                let is_ahead = if descends {
                    *packet < last
                } else {
                    *packet > last
                };
                let is_expendable = block[usize::from(*packet)].is_expendable;
                is_ahead && **of != lane && !is_expendable
            });
            let start = placement.copies.len();
            placement
                .copies
                .extend(others.map(|(packet, _)| (index, packet)));
            if descends {
                placement.copies[start..].reverse();
            }
        }
    }

    /// Writes the index in `order` of each packet's path to `lane_of`.
    fn assign(
        &mut self,
        paths: &[PathView],
        has_room: impl Fn(&PathView) -> bool,
        order: &[u8],
        block: &[PacketInfo],
        lane_of: &mut [usize],
    ) {
        let path = |lane: &u8| &paths[usize::from(*lane)];
        let shares = shares(Weights::Srtt, paths, has_room);
        let len = |packet: &PacketInfo| packet.len.get().min(MAX_LEN);
        let counted = block.iter().filter(|packet| !packet.is_expendable);
        let total = Bytes::new(counted.map(len).sum());
        let weights = order
            .iter()
            .map(|lane| (path(lane), weight(shares, path(lane))));
        self.runs.begin(total, weights);
        let mut turn = 0;
        for (packet, lane_of) in block.iter().zip(&mut *lane_of) {
            *lane_of = 0;
            if !packet.is_expendable {
                turn = self.runs.next(order.iter().map(path), turn, packet.len);
                *lane_of = turn;
            }
        }
        self.pdc.compensate(order.iter().map(path), block, lane_of);
    }

    fn descends(&self, lane: usize, lanes: usize) -> bool {
        match self.settings.variant {
            Variant::FirstAscends => lane > 0,
            Variant::LastDescends => lanes > 1 && lane + 1 == lanes,
        }
    }
}

impl Scheduler for Consn {
    /// Places a block of one packet; the tunnel calls [`place`](Self::place) for whole blocks.
    fn pick(&mut self, _now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        let mut placement = core::mem::take(&mut self.single);
        let packet = core::slice::from_ref(packet);
        self.split(paths, |path| path.ready, packet, &mut placement);
        let path = placement
            .packets
            .first()
            .map(|(path, _)| usize::from(*path));
        self.single = placement;
        path.map_or(Pick::Wait, Pick::One)
    }

    /// Paths are paced only with redundancy, which requires their capacity. As published, no path is paced.
    fn profile(&self) -> Profile {
        Profile {
            pacing: self.settings.redundancy,
            in_order: self.settings.in_order,
            rtt_sampling: Some(RttSampling {
                interval: PROBE_EVERY,
                gain_thousandths: Some(self.settings.alpha.thousandths()),
            }),
            ..Profile::default()
        }
    }
}

/// Number of bytes staged for a path at which it gets no further packets: one block.
const ROOM: Bytes = Bytes::new(1_500 * BLOCK as u64);
