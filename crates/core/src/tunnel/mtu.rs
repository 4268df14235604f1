//! Packets that are too long for a path: which paths are, and what becomes of the packets.
//!
//! Both ends probe every path ([`crate::path::mtu`]) and see to what they send themselves. While one path that may carry data is
//! known to be narrow, packets are made to fit all: what opens a TCP connection, either way, is made to promise no longer segments;
//! of what comes too long all the same, the sender is told ([`too_big`]), and it goes over the paths that take it. Where none does,
//! it is taken apart if it may be. No device and no rule of the host changes.

use core::time::Duration;

use super::Tunnel;
use crate::{
    counters::DropReason,
    packet::{LEAST_MTU_V6, PacketBuf, fragments, too_big},
    path::{Path, mtu::LEAST},
    time::Instant,
    transmit::TxQueue,
    tunnel::Shared,
    wire::{
        control::{Frame, FrameWriter, LinkRole},
        header::{CONTROL_HEADER_LEN, DATA_OVERHEAD, TAG_LEN},
    },
};

/// What a tunnel knows of its packets' lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    /// The longest datagram that carries a packet of the host.
    longest: usize,
    /// Whether some path takes less.
    has_narrow: bool,
    /// When a sender was last told of a packet that is too long.
    told_at: Option<Instant>,
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
}

impl Tunnel {
    /// The longest packet of the host, in bytes.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.lengths = Lengths::of(mtu);
    }

    /// The longest packet that a path takes, in bytes.
    pub(super) fn mtu_of(&self, path: &Path) -> usize {
        let longest = self.lengths.longest;
        path.mtu().found().unwrap_or(longest).min(longest) - DATA_OVERHEAD
    }

    /// A path that was found to take other packets than when this was last called: the name of its link, and how long they
    /// may be, in bytes.
    pub fn poll_mtu_change(&mut self) -> Option<(String, usize)> {
        let mut paths = self.paths.iter_mut().filter_map(Option::as_deref_mut);
        let id = paths.find_map(|path| path.take_mtu_change().then_some(path.id()))?;
        let path = self.path(id)?;
        Some((path.link().name.clone(), self.mtu_of(path)))
    }

    /// When a path has to be probed, or its probe has failed.
    pub(super) fn probe_mtu_at(&self, path: &Path) -> Option<Instant> {
        let next = path.mtu().next_due().filter(|_| self.may_probe_mtu(path));
        let conditions = path.mtu().is_probing().then(|| path.mtu_conditions());
        let failed = conditions.and_then(|conditions| path.mtu().deadline(&conditions));
        next.or(failed)
    }

    fn may_probe_mtu(&self, path: &Path) -> bool {
        let is_wanted = self.lengths.longest > LEAST && path.link().role != LinkRole::Never;
        is_wanted && path.is_working()
    }

    /// Probes a path with a long ping if that is due, and a short one behind it.
    pub(super) fn probe_mtu(&mut self, now: Instant, index: usize, out: &mut TxQueue) {
        let longest = self.lengths.longest;
        let may = self.paths[index].as_deref();
        if !may.is_some_and(|path| self.may_probe_mtu(path)) || out.is_full() {
            return;
        }
        let Some(path) = self.paths[index].as_deref_mut() else {
            return;
        };
        let Some((len, tokens)) = path.start_mtu_probe(now, longest) else {
            return;
        };
        let id = path.id();
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
        let _ = self.seal_control(now, id, &body, out);
        let _ = self.seal_control(now, id, &short[..short_len], out);
    }

    /// Takes note of whether some path is narrow.
    pub(super) fn look_for_narrow(&mut self, now: Instant) {
        for path in self.paths.iter_mut().filter_map(Option::as_deref_mut) {
            if path.take_narrowed(now) {
                self.fec_sending.forget(path.id());
            }
        }
        let has_narrow = self.paths().any(|path| path.mtu().is_narrow());
        self.lengths.has_narrow = has_narrow;
    }

    /// The longest packet that all paths take that may carry data now, if that is less than the tunnel's own. One that takes less
    /// than IPv6 needs does not count beside others.
    fn shared_mtu(&self) -> Option<usize> {
        if !self.lengths.has_narrow {
            return None;
        }
        let carrying = || self.paths().filter(|path| self.may_carry(path));
        let mtus = || carrying().map(|path| self.mtu_of(path));
        let least = mtus().filter(|mtu| *mtu >= LEAST_MTU_V6).min();
        let mtu = least.or_else(|| mtus().max())?;
        (mtu + DATA_OVERHEAD < self.lengths.longest).then_some(mtu)
    }

    /// What is to be sent of a packet from the host, whose sender is told if it is too long for some path: it, if any path takes it;
    /// else its parts, if it may be taken apart; else nothing.
    pub(super) fn fit(
        &mut self,
        now: Instant,
        mut packet: PacketBuf,
        shared: &mut Shared<'_>,
    ) -> Vec<PacketBuf> {
        let Some(mtu) = self.shared_mtu() else {
            return vec![packet];
        };
        packet.clamp_mss(mtu);
        if packet.len() <= mtu {
            return vec![packet];
        }
        let len = packet.len() + DATA_OVERHEAD;
        let admits = |path: &Path| self.may_carry(path) && path.mtu().admits(len);
        let passes = self.paths().any(admits);
        let Ok(view) = packet.parse() else {
            return vec![packet];
        };
        // Who lets it be taken apart need not be told.
        if view.may_be_fragmented() {
            if passes {
                return vec![packet];
            }
            if let Some(parts) = fragments(&view, mtu, shared.pool) {
                shared.pool.recycle(packet);
                return parts;
            }
        }
        let told_at = self.lengths.told_at;
        if told_at.is_none_or(|at| now.since(at) >= TOLD_EACH)
            && let Some(message) = too_big(&view, mtu, shared.pool)
        {
            shared.delivered.push_back(message);
            self.lengths.told_at = Some(now);
        }
        if passes {
            return vec![packet];
        }
        shared.drops.add(DropReason::TooLong, 1);
        shared.pool.recycle(packet);
        Vec::new()
    }

    /// Whether every path that works is known not to take a packet.
    pub(super) fn fits_nowhere(&self, packet: &PacketBuf) -> bool {
        if !self.lengths.has_narrow {
            return false;
        }
        let len = packet.len() + DATA_OVERHEAD;
        let carrying = || self.paths().filter(|path| self.may_carry(path));
        let refuses = |path: &Path| !path.mtu().admits(len) && !path.mtu().is_searching();
        carrying().next().is_some() && carrying().all(refuses)
    }

    /// Whether some path is narrow, so that packets from the host have to be looked at.
    pub(super) const fn has_narrow(&self) -> bool {
        self.lengths.has_narrow
    }

    /// What comes to the host may open a connection over paths that are narrow on the way back.
    pub(super) fn fit_answers(&self, packet: &mut PacketBuf) {
        if let Some(mtu) = self.shared_mtu() {
            packet.clamp_mss(mtu);
        }
    }

    /// Paths that may carry data, as sets: bit *i*, path *i*. Those that take a packet of `len` bytes, and those that do not; none of
    /// either where that makes no difference.
    pub(super) fn wide_and_narrow(&self, len: usize) -> (u16, u16) {
        if !self.lengths.has_narrow {
            return (0, 0);
        }
        let carrying = self.paths().filter(|path| self.may_carry(path));
        let (wide, narrow) = carrying.fold((0, 0), |(wide, narrow), path| {
            let bit = super::urgent::bit(path.id());
            if path.mtu().admits(len + DATA_OVERHEAD) {
                (wide | bit, narrow)
            } else {
                (wide, narrow | bit)
            }
        });
        if wide == 0 { (0, 0) } else { (wide, narrow) }
    }
}

/// Senders are told of packets that are too long at most that often.
const TOLD_EACH: Duration = Duration::from_millis(1);
