//! Packets that are too long for a path: which paths are, and what becomes of the packets.
//!
//! Both ends probe every path ([`crate::path::mtu`]) and see to what they send themselves. While one path that may carry data is
//! known to be narrow, packets are made to fit all: what opens a TCP connection, either way, is made to promise no longer segments;
//! of what comes too long all the same, the sender is told ([`too_big`]), and it goes over the paths that take it. Where none does,
//! it is taken apart if it may be. No device and no rule of the host changes.

use core::time::Duration;

use super::{
    path_set::{PathSet, bit},
    sealer::Sealer,
    shared::Shared,
};
use crate::{
    counters::DropReason,
    ids::PathId,
    packet::{LEAST_MTU_V6, PacketBuf, fragments, too_big},
    path::{Path, mtu::LEAST},
    time::Instant,
    wire::{
        control::{Frame, FrameWriter, LinkRole},
        header::{CONTROL_HEADER_LEN, DATA_OVERHEAD, TAG_LEN},
    },
};

/// The longest packet of the host, and what is known of paths that take only shorter ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    /// The longest datagram that carries a packet of the host.
    longest: usize,
    /// Whether some path takes less.
    has_narrow: bool,
    /// When a sender was last told of a packet that is too long.
    told_at: Option<Instant>,
}

impl Default for Lengths {
    fn default() -> Self {
        Self::of(UNKNOWN_MTU)
    }
}

impl Lengths {
    /// Of packets of up to `mtu` bytes.
    pub(super) const fn of(mtu: usize) -> Self {
        Self {
            longest: mtu + DATA_OVERHEAD,
            has_narrow: false,
            told_at: None,
        }
    }

    /// The longest packet that is taken from the other end, in bytes: the host's own, and what any link may carry where the other end's
    /// is set higher.
    pub(super) const fn longest_in(&self) -> usize {
        let own = self.longest - DATA_OVERHEAD;
        if own > USUAL_MTU { own } else { USUAL_MTU }
    }

    /// The longest packet that a path takes, in bytes.
    pub(super) fn mtu_of(&self, path: &Path) -> usize {
        let longest = self.longest;
        path.mtu().found().unwrap_or(longest).min(longest) - DATA_OVERHEAD
    }

    /// When a path has to be probed, or its probe has failed.
    pub(super) fn probe_at(&self, path: &Path) -> Option<Instant> {
        let next = path.mtu().next_due().filter(|_| self.may_probe(path));
        let conditions = path.mtu().is_probing().then(|| path.mtu_conditions());
        let failed = conditions.and_then(|conditions| path.mtu().deadline(&conditions));
        next.or(failed)
    }

    fn may_probe(&self, path: &Path) -> bool {
        let is_wanted = self.longest > LEAST && path.link().role != LinkRole::Never;
        is_wanted && path.is_working()
    }

    /// Probes a path with a long ping if that is due, and a short one behind it.
    pub(super) fn probe(&self, sealer: &mut Sealer<'_>, id: PathId) {
        if sealer.out.is_full() {
            return;
        }
        let now = sealer.now;
        let path = sealer.paths.get_mut(id);
        let Some(path) = path.filter(|path| self.may_probe(path)) else {
            return;
        };
        let Some((len, tokens)) = path.start_mtu_probe(now, self.longest) else {
            return;
        };
        let size = len.saturating_sub(CONTROL_HEADER_LEN + TAG_LEN);
        let mut body = vec![0; size];
        let mut writer = FrameWriter::new(&mut body);
        let _ = writer.push(&Frame::Ping {
            token: tokens.long,
            size: u16::try_from(len).unwrap_or(u16::MAX),
        });
        writer.pad_to(size);
        let mut short = [0; 16];
        let mut writer = FrameWriter::new(&mut short);
        let _ = writer.push(&Frame::Ping {
            token: tokens.short,
            size: 0,
        });
        let short_len = writer.len();
        // Whether the path works is not in question.
        let _ = sealer.control(id, &body);
        let _ = sealer.control(id, &short[..short_len]);
    }

    /// Takes note of whether some path is narrow, and tells `on_narrowed` of each that has become so.
    pub(super) fn look(
        &mut self,
        now: Instant,
        paths: &mut PathSet,
        mut on_narrowed: impl FnMut(PathId),
    ) {
        for path in paths.iter_mut() {
            if path.take_narrowed(now) {
                on_narrowed(path.id());
            }
        }
        self.has_narrow = paths.iter().any(|path| path.mtu().is_narrow());
    }

    /// The longest packet that all paths take that may carry data now, if that is less than the tunnel's own. One that takes less
    /// than IPv6 needs does not count beside others.
    fn shared_mtu(&self, paths: &PathSet) -> Option<usize> {
        if !self.has_narrow {
            return None;
        }
        let mtus = || paths.carrying().map(|path| self.mtu_of(path));
        let least = mtus().filter(|mtu| *mtu >= LEAST_MTU_V6).min();
        let mtu = least.or_else(|| mtus().max())?;
        (mtu + DATA_OVERHEAD < self.longest).then_some(mtu)
    }

    /// The packets to send for a packet from the host, whose sender is told if it is too long for some path: the packet itself, if
    /// any path takes it; else its fragments, if it may be fragmented; else nothing.
    pub(super) fn fit(
        &mut self,
        now: Instant,
        mut packet: PacketBuf,
        paths: &PathSet,
        shared: &mut Shared<'_>,
    ) -> Vec<PacketBuf> {
        let Some(mtu) = self.shared_mtu(paths) else {
            return vec![packet];
        };
        packet.clamp_mss(mtu);
        if packet.len() <= mtu {
            return vec![packet];
        }
        let len = packet.len() + DATA_OVERHEAD;
        let passes = paths.carrying().any(|path| path.mtu().admits(len));
        let Ok(view) = packet.parse() else {
            return vec![packet];
        };
        // A sender that allows fragments need not be told.
        if view.may_be_fragmented() {
            if passes {
                return vec![packet];
            }
            if let Some(parts) = fragments(&view, mtu, shared.pool) {
                shared.pool.recycle(packet);
                return parts;
            }
        }
        if self.told_at.is_none_or(|at| now.since(at) >= TOLD_EACH)
            && let Some(message) = too_big(&view, mtu, shared.pool)
        {
            shared.delivered.push_back(message);
            self.told_at = Some(now);
        }
        if passes {
            return vec![packet];
        }
        shared.drop(packet, DropReason::TooLong);
        Vec::new()
    }

    /// Whether every path that works is known not to take a packet.
    pub(super) fn fits_nowhere(&self, packet: &PacketBuf, paths: &PathSet) -> bool {
        if !self.has_narrow {
            return false;
        }
        let len = packet.len() + DATA_OVERHEAD;
        let refuses = |path: &Path| !path.mtu().admits(len) && !path.mtu().is_searching();
        paths.carrying().next().is_some() && paths.carrying().all(refuses)
    }

    /// Whether some path is narrow, so that packets from the host have to be looked at.
    pub(super) const fn has_narrow(&self) -> bool {
        self.has_narrow
    }

    /// Lowers the segment size that a packet to the host announces, if paths are narrow on the way back.
    pub(super) fn fit_answers(&self, packet: &mut PacketBuf, paths: &PathSet) {
        if let Some(mtu) = self.shared_mtu(paths) {
            packet.clamp_mss(mtu);
        }
    }

    /// Paths that may carry data, as sets: bit *i*, path *i*. Those that take a packet of `len` bytes, and those that do not; none of
    /// either where that makes no difference.
    pub(super) fn wide_and_narrow(&self, len: usize, paths: &PathSet) -> (u16, u16) {
        if !self.has_narrow {
            return (0, 0);
        }
        let (wide, narrow) = paths.carrying().fold((0, 0), |(wide, narrow), path| {
            let bit = bit(path.id());
            if path.mtu().admits(len + DATA_OVERHEAD) {
                (wide | bit, narrow)
            } else {
                (wide, narrow | bit)
            }
        });
        if wide == 0 { (0, 0) } else { (wide, narrow) }
    }
}

/// Until the owner says how long packets are: what IPv6 needs (RFC 8200 section 5).
const UNKNOWN_MTU: usize = LEAST_MTU_V6;
/// Of Ethernet.
pub(crate) const USUAL_MTU: usize = 1500;
/// Senders are told of packets that are too long at most that often.
const TOLD_EACH: Duration = Duration::from_millis(1);
