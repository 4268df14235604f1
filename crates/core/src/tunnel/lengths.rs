//! Packets that are too long for some paths.
//!
//! Both ends probe every path ([`crate::path::mtu`]), and each end adapts the packets that it sends. While a path that
//! may carry data has a smaller MTU than the tunnel, packets are made to fit all paths. The MSS option of TCP
//! handshakes is lowered in both directions. The sender of a packet that is still too long receives an ICMP error
//! ([`too_big`]), and the packet is sent on the paths that can carry it. If no path can carry the packet, it is
//! fragmented if fragmentation is allowed. No device and no rule of the host is changed.

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

/// Length of the host's longest packet, and state of the paths with a smaller MTU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    /// Length in bytes of the longest datagram that carries a packet of the host.
    longest: usize,
    /// Whether some path has a smaller MTU than the tunnel.
    has_narrow: bool,
    /// Time at which a sender last received an ICMP error for a packet that is too long.
    told_at: Option<Instant>,
}

impl Default for Lengths {
    fn default() -> Self {
        Self::of(UNKNOWN_MTU)
    }
}

impl Lengths {
    /// Returns the state for packets of up to `mtu` bytes, without known paths.
    pub(super) const fn of(mtu: usize) -> Self {
        Self {
            longest: mtu + DATA_OVERHEAD,
            has_narrow: false,
            told_at: None,
        }
    }

    /// Returns the length in bytes of the longest packet accepted from the other end. It is at least the longest packet
    /// that any link may carry, because the other end's MTU may be larger.
    pub(super) const fn longest_in(&self) -> usize {
        let own = self.longest - DATA_OVERHEAD;
        if own > USUAL_MTU { own } else { USUAL_MTU }
    }

    /// Returns the length in bytes of the longest packet that a path can carry.
    pub(super) fn mtu_of(&self, path: &Path) -> usize {
        let longest = self.longest;
        path.mtu().found().unwrap_or(longest).min(longest) - DATA_OVERHEAD
    }

    /// Returns the time at which a path is to be probed, or at which its present probe has failed.
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

    /// Sends a long ping on a path if a probe is due, followed by a short one.
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
        // The result is ignored, because this ping does not test whether the path works.
        let _ = sealer.control(id, &body);
        let _ = sealer.control(id, &short[..short_len]);
    }

    /// Checks whether some path has a smaller MTU than the tunnel, and calls `on_narrowed` for each path whose MTU has
    /// become smaller.
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

    /// Returns the length of the longest packet that can use every path that may carry data, if it is shorter than the
    /// tunnel's MTU. A path whose MTU is below the IPv6 minimum is ignored if another path has a sufficient MTU.
    fn shared_mtu(&self, paths: &PathSet) -> Option<usize> {
        if !self.has_narrow {
            return None;
        }
        let mtus = || paths.carrying().map(|path| self.mtu_of(path));
        let least = mtus().filter(|mtu| *mtu >= LEAST_MTU_V6).min();
        let mtu = least.or_else(|| mtus().max())?;
        (mtu + DATA_OVERHEAD < self.longest).then_some(mtu)
    }

    /// Returns the packets to send for a packet from the host. If any path can carry the packet, it is returned
    /// unchanged; else its fragments are returned if it may be fragmented; else nothing. Sends an ICMP error to the
    /// sender if the packet is too long for some path.
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
        // A sender that allows fragmentation needs no ICMP error.
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

    /// Whether no working path can carry a packet.
    pub(super) fn fits_nowhere(&self, packet: &PacketBuf, paths: &PathSet) -> bool {
        if !self.has_narrow {
            return false;
        }
        let len = packet.len() + DATA_OVERHEAD;
        let refuses = |path: &Path| !path.mtu().admits(len) && !path.mtu().is_searching();
        paths.carrying().next().is_some() && paths.carrying().all(refuses)
    }

    /// Whether some path has a smaller MTU than the tunnel, so that packets from the host must be checked.
    pub(super) const fn has_narrow(&self) -> bool {
        self.has_narrow
    }

    /// Lowers the MSS option of a packet to the host if some path has a smaller MTU than the tunnel, so that the
    /// answers fit.
    pub(super) fn fit_answers(&self, packet: &mut PacketBuf, paths: &PathSet) {
        if let Some(mtu) = self.shared_mtu(paths) {
            packet.clamp_mss(mtu);
        }
    }

    /// Returns the paths that may carry data as two bit sets, in which bit *i* stands for path *i*. The first set
    /// contains the paths that can carry a packet of `len` bytes, the second set the paths that cannot. Both sets are
    /// empty if no path has a smaller MTU than the tunnel, or if no path can carry the packet.
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

/// MTU in bytes until the owner sets it: the IPv6 minimum (RFC 8200 section 5).
const UNKNOWN_MTU: usize = LEAST_MTU_V6;
/// MTU of Ethernet in bytes.
pub(crate) const USUAL_MTU: usize = 1500;
/// Minimum interval between two ICMP errors.
const TOLD_EACH: Duration = Duration::from_millis(1);
