//! Split error correction ([`crate::sec`]): the parity of each data datagram is sent on another path than the
//! datagram, and corrects bit errors in it.
//!
//! *Sender.* Parity is sent if the user enables it, the other end supports it ([`PARITY`]) and two paths work. Then the
//! parity of every encrypted data datagram is collected here. At the end of each poll it is sent in control datagrams
//! ([`Frame::Parity`]) on the best path other than the datagram's own.
//!
//! *Receiver.* After the first received parity, each data datagram is copied before it is decrypted in place, and the
//! copy is stored if its tag does not match. Received parity is tried on stored datagrams of the length that the parity
//! frame states. Stored parity is tried on each damaged datagram that arrives. A datagram is corrected if at most a
//! quarter of its blocks have bit errors and the corrected header *names* the parity's datagram, that is, contains its
//! path and sequence number. The corrected copy is handled as if it had just arrived. **Replay window and tag are
//! checked as always**, so only authentic datagrams are accepted. A datagram is not corrected twice.
//!
//! Without parity a damaged datagram is treated like a forged one and dropped. A datagram that is corrected later no
//! longer counts as dropped.
//!
//! Anyone can send datagrams that cannot be decrypted, so the work for them is limited. Parity is first tried on the
//! blocks of the header; the other blocks follow only if the corrected header names the parity's datagram. If the
//! received header names the parity's datagram, the parity is tried at once. All other combinations are limited to
//! [`MAX_TRIES`] for each received datagram or parity, and to [`MAX_TRIES_PER_SECOND`] in total. Omitted tries are
//! counted.
//!
//! Parity is sent only on paths that may carry data ([`PathSet::carrying`]), and is charged to the path's pacer. While
//! the pacer does not permit more data, datagrams are sent without parity.
//!
//! Bounds: [`MAX_KEPT`] damaged datagrams, for [`KEEP_FOR`]; [`MAX_PARITY`] outgoing and [`MAX_RECEIVED`] received
//! parities. No parity is sent for datagrams whose parity would be longer than [`MAX_PARITY_BYTES`].
//!
//! A datagram with bit errors in its kind or receiver index identifies no tunnel. The tunnel that has a path to its
//! source address tries to correct it, if that tunnel expects parity.
//!
//! [`Frame::Parity`]: crate::wire::control::Frame::Parity

use core::{net::SocketAddr, time::Duration};
use std::collections::VecDeque;

use super::{
    incoming::Incoming,
    path_set::PathSet,
    sealer::{MAX_BODY, Sealer, knows},
};
use crate::{
    counters::DropReason,
    ids::{PathId, Seq},
    packet::{PacketBuf, Pool},
    path::Path,
    sec::{BLOCK_BYTES, Code},
    session::rotation::SessionSet,
    time::Instant,
    units::Bytes,
    wire::{
        Kind,
        control::{Frame, FrameWriter},
        handshake::PARITY,
        header::{DATA_OVERHEAD, Header, TAG_LEN},
    },
};

#[cfg(test)]
mod tests;

/// Counters of the correction of datagrams with bit errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParityStatus {
    /// Number of datagrams that were corrected and decrypted; they do not count as dropped.
    pub mended: u64,
    /// Number of received parities or damaged datagrams for which some combinations were not tried, to limit the cost.
    pub cut_short: u64,
}

/// Outgoing and received parity, and the damaged datagrams.
#[derive(Debug, Default)]
pub(super) struct Sec {
    /// The code that the user has chosen.
    code: Option<Code>,
    /// Whether parity can be sent now.
    is_on: bool,
    out: VecDeque<Parity>,
    /// Time at which parity was last received.
    heard_at: Option<Instant>,
    received: VecDeque<Parity>,
    damaged: VecDeque<Damaged>,
    mended: VecDeque<Damaged>,
    is_mending: bool,
    /// Number of datagrams corrected and decrypted.
    mended_count: u64,
    tries: Tries,
    /// Copy of a datagram before decryption.
    copy: Vec<u8>,
}

/// The parity of one datagram.
#[derive(Clone, Debug)]
struct Parity {
    code: Code,
    path: PathId,
    path_seq: Seq,
    /// Length of the datagram in bytes.
    len: u16,
    at: Instant,
    bytes: [u8; MAX_PARITY_BYTES],
}

/// A datagram whose tag does not match, or a corrected datagram.
#[derive(Debug)]
pub(super) struct Damaged {
    pub(super) incoming: Incoming,
    at: Instant,
    /// Reason under which the datagram was counted as dropped.
    pub(super) reason: DropReason,
    /// Path and sequence number in the header as received.
    names: Option<(PathId, Seq)>,
    pub(super) bytes: PacketBuf,
}

/// Budget of tries, and count of omitted tries.
#[derive(Debug, Default)]
struct Tries {
    left: usize,
    since: Option<Instant>,
    /// Number of received datagrams and parities for which some combinations were not tried.
    cut_short: u64,
}

impl Tries {
    /// Returns the number of tries for the datagram or parity received now.
    fn allowed(&mut self, now: Instant) -> usize {
        if self.since.is_none_or(|since| now.since(since) >= SECOND) {
            (self.since, self.left) = (Some(now), MAX_TRIES_PER_SECOND);
        }
        self.left.min(MAX_TRIES)
    }

    /// Uses one of the tries. Returns whether one was left.
    fn take(&mut self, allowed: &mut usize) -> bool {
        let Some(left) = allowed.checked_sub(1) else {
            self.cut_short += 1;
            return false;
        };
        *allowed = left;
        self.left = self.left.saturating_sub(1);
        true
    }
}

impl Parity {
    fn bytes(&self) -> &[u8] {
        let len = self.code.parity_len(self.len.into());
        self.bytes.get(..len).unwrap_or_default()
    }

    /// Whether this is the parity of `damaged` according to the header of `damaged`.
    fn is_named_by(&self, damaged: &Damaged) -> bool {
        damaged.names == Some((self.path, self.path_seq))
    }

    /// Returns the maximum number of bit errors for a correction. With the parity of another datagram, nearly every
    /// block appears to have an error, and the correction might change one sequence number into the other.
    fn most_wrong(&self) -> usize {
        1 + usize::from(self.len) / BLOCK_BYTES / 4
    }

    /// Whether the first blocks of `datagram`, after correction, are the header of this parity's datagram. Inexpensive.
    fn fits_header_of(&self, datagram: &[u8]) -> bool {
        let mut head = [0; HEAD_BYTES];
        let len = datagram.len().min(HEAD_BYTES);
        let (Some(head), Some(start)) = (head.get_mut(..len), datagram.get(..len)) else {
            return false;
        };
        head.copy_from_slice(start);
        let parity = self.bytes().get(..self.code.parity_len(len));
        let is_corrected = parity.is_some_and(|parity| {
            self.code
                .correct_up_to(self.most_wrong(), head, parity)
                .is_ok()
        });
        is_corrected && names(head) == Some((self.path, self.path_seq))
    }

    /// Corrects `datagram` in place. Its corrected header must match. Returns whether the correction seems successful;
    /// only the tag can prove it.
    fn mends(&self, datagram: &mut [u8]) -> bool {
        let most = self.most_wrong();
        self.code
            .correct_up_to(most, datagram, self.bytes())
            .is_ok()
    }
}

/// Returns the path and sequence number in the header of a data datagram.
fn names(datagram: &[u8]) -> Option<(PathId, Seq)> {
    let (header, _) = Header::parse(datagram)?;
    (header.kind == Kind::Data).then_some((header.path, header.path_seq))
}

impl Sec {
    /// Stores the parity of a data datagram that was just encrypted. Returns whether the parity was stored.
    pub(super) fn on_sealed(
        &mut self,
        now: Instant,
        path: PathId,
        path_seq: Seq,
        datagram: &[u8],
    ) -> bool {
        let Some(code) = self
            .code
            .filter(|_| self.is_on && self.out.len() < MAX_PARITY)
        else {
            return false;
        };
        let mut bytes = [0; MAX_PARITY_BYTES];
        let len = u16::try_from(datagram.len());
        let (Ok(len), Some(_)) = (len, code.encode(datagram, &mut bytes)) else {
            return false;
        };
        self.out.push_back(Parity {
            code,
            path,
            path_seq,
            len,
            at: now,
            bytes,
        });
        true
    }

    /// Copies a datagram before decryption if it could be corrected later. Its kind is not considered, because the bits
    /// of the kind may be damaged.
    pub(super) fn before_opening(&mut self, now: Instant, datagram: &[u8]) {
        self.copy.clear();
        if !self.is_mending && self.is_expected(now) {
            self.copy.extend_from_slice(datagram);
        }
    }

    fn is_expected(&self, now: Instant) -> bool {
        self.heard_at.is_some_and(|at| now.since(at) < HEARD_FOR)
    }

    /// Stores the datagram that [`before_opening`](Self::before_opening) copied, because its tag does not match, and
    /// tries to correct it. The caller will count the datagram as dropped for `reason`.
    pub(super) fn on_damaged(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        reason: DropReason,
        pool: &mut Pool,
    ) {
        if self.copy.is_empty() {
            return;
        }
        self.forget_old(now, pool);
        let damaged = Damaged {
            incoming: *incoming,
            at: now,
            reason,
            names: names(&self.copy),
            bytes: pool.copy_of(&self.copy),
        };
        self.copy.clear();
        let is_named = |parity: &Parity| parity.is_named_by(&damaged);
        let named = self.received.iter().position(is_named);
        self.damaged.push_back(damaged);
        let newest = self.damaged.len() - 1;
        // Most headers are undamaged.
        if let Some(index) = named
            && self.try_mend(index, newest, pool)
        {
            self.received.remove(index);
            return;
        }
        let mut allowed = self.tries.allowed(now);
        for index in (0..self.received.len()).rev() {
            let is_tried = self.is_of_length(index, newest) && Some(index) != named;
            if !is_tried {
                continue;
            }
            if !self.tries.take(&mut allowed) {
                break;
            }
            if self.try_mend(index, newest, pool) {
                self.received.remove(index);
                return;
            }
        }
        if self.damaged.len() > MAX_KEPT
            && let Some(oldest) = self.damaged.pop_front()
        {
            pool.recycle(oldest.bytes);
        }
    }

    /// Handles the received `parity` for the datagram of `len` bytes with the sequence number `path_seq` on `path`.
    pub(super) fn on_parity(
        &mut self,
        now: Instant,
        (path, path_seq): (PathId, Seq),
        (code, len): (Code, u16),
        parity: &[u8],
        pool: &mut Pool,
    ) {
        self.heard_at = Some(now);
        self.forget_old(now, pool);
        let mut bytes = [0; MAX_PARITY_BYTES];
        let Some(room) = bytes.get_mut(..parity.len()) else {
            return;
        };
        room.copy_from_slice(parity);
        if self.received.len() == MAX_RECEIVED {
            self.received.pop_front();
        }
        self.received.push_back(Parity {
            code,
            path,
            path_seq,
            len,
            at: now,
            bytes,
        });
        let newest = self.received.len() - 1;
        if self.try_on_damaged(now, newest, pool) {
            self.received.pop_back();
        }
    }

    /// Tries the received parity `index` on damaged datagrams: first on a datagram whose header names it, then on the
    /// other datagrams, newest first.
    fn try_on_damaged(&mut self, now: Instant, index: usize, pool: &mut Pool) -> bool {
        let Some(parity) = self.received.get(index) else {
            return false;
        };
        let named = self
            .damaged
            .iter()
            .position(|damaged| parity.is_named_by(damaged));
        if named.is_some_and(|damaged| self.try_mend(index, damaged, pool)) {
            return true;
        }
        let mut allowed = self.tries.allowed(now);
        for damaged in (0..self.damaged.len()).rev() {
            let is_tried = self.is_of_length(index, damaged) && Some(damaged) != named;
            if !is_tried {
                continue;
            }
            if !self.tries.take(&mut allowed) {
                return false;
            }
            if self.try_mend(index, damaged, pool) {
                return true;
            }
        }
        false
    }

    /// Whether the received parity `index` belongs to a datagram of the same length as the damaged datagram `damaged`.
    fn is_of_length(&self, index: usize, damaged: usize) -> bool {
        let parity = self.received.get(index).map(|parity| parity.len.into());
        let kept = self.damaged.get(damaged).map(|kept| kept.bytes.len());
        parity.is_some() && parity == kept
    }

    /// Tries the received parity `index` on the damaged datagram `damaged`, and corrects it if the parity matches.
    fn try_mend(&mut self, index: usize, damaged: usize, pool: &mut Pool) -> bool {
        if !self.is_of_length(index, damaged) {
            return false;
        }
        let (Some(parity), Some(kept)) = (self.received.get(index), self.damaged.get(damaged))
        else {
            return false;
        };
        if !parity.fits_header_of(kept.bytes.as_slice()) {
            return false;
        }
        let mut bytes = pool.copy_of(kept.bytes.as_slice());
        if !parity.mends(bytes.as_mut_slice()) {
            pool.recycle(bytes);
            return false;
        }
        if let Some(kept) = self.damaged.remove(damaged) {
            pool.recycle(kept.bytes);
            self.mended.push_back(Damaged { bytes, ..kept });
        }
        true
    }

    fn forget_old(&mut self, now: Instant, pool: &mut Pool) {
        let is_old = |at: Instant| now.since(at) > KEEP_FOR;
        while let Some(old) = self.damaged.pop_front_if(|damaged| is_old(damaged.at)) {
            pool.recycle(old.bytes);
        }
        while self
            .received
            .pop_front_if(|parity| is_old(parity.at))
            .is_some()
        {}
    }

    /// Clears everything except the user's choice of code.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        for damaged in self.damaged.drain(..).chain(self.mended.drain(..)) {
            pool.recycle(damaged.bytes);
        }
        self.out.clear();
        self.received.clear();
        self.heard_at = None;
    }

    /// Sets the code for the parity of outgoing datagrams; `None` switches parity off.
    pub(super) fn set_code(&mut self, code: Option<Code>) {
        self.code = code;
    }

    /// Whether this end expects parity for datagrams from `remote`.
    pub(super) fn expects(&self, now: Instant, remote: SocketAddr, paths: &PathSet) -> bool {
        let leads_there = |path: &Path| path.route().is_some_and(|route| route.remote == remote);
        self.is_expected(now) && paths.iter().any(leads_there)
    }

    /// Determines whether parity may be sent now.
    pub(super) fn update(&mut self, sessions: &SessionSet, paths: &PathSet) {
        let can = || paths.carrying().count() > 1 && knows(sessions, PARITY);
        self.is_on = self.code.is_some() && can();
    }

    /// Sends the collected parity, as far as batch and pacers permit.
    pub(super) fn send(&mut self, sealer: &mut Sealer<'_>) {
        let now = sealer.now;
        while let Some(first) = self.out.front() {
            let of = first.path;
            if sealer.out.is_full() {
                return self.out.clear();
            }
            let Some(on) = path_of_parity(now, sealer.paths, of) else {
                self.out.retain(|parity| parity.path != of);
                continue;
            };
            let mut body = [0; MAX_BODY];
            let mut writer = FrameWriter::new(&mut body);
            while let Some(parity) = self.out.front().filter(|parity| parity.path == of) {
                let frame = Frame::Parity {
                    code: parity.code,
                    path: parity.path,
                    path_seq: parity.path_seq,
                    len: parity.len,
                    parity: parity.bytes(),
                };
                if !writer.push(&frame) {
                    break;
                }
                self.out.pop_front();
            }
            let len = writer.len();
            if sealer.control(on, &body[..len])
                && let Some(path) = sealer.paths.get_mut(on)
            {
                let len = Kind::Control.header_len() + len + TAG_LEN;
                path.charge(now, Bytes::of_len(len));
            }
        }
    }

    /// Returns the counters of damaged datagrams; `None` if they are zero and parity is neither sent nor received.
    pub(super) fn status(&self) -> Option<ParityStatus> {
        let status = ParityStatus {
            mended: self.mended_count,
            cut_short: self.tries.cut_short,
        };
        let is_used = self.code.is_some() || self.heard_at.is_some();
        (is_used || status != ParityStatus::default()).then_some(status)
    }

    /// Returns the next corrected datagram, to be handled as if it had just arrived. No copies are made until
    /// [`finish_mended`](Self::finish_mended), so that no datagram is corrected twice.
    pub(super) fn start_mended(&mut self) -> Option<Damaged> {
        let mended = self.mended.pop_front()?;
        self.is_mending = true;
        Some(mended)
    }

    /// Records that the corrected datagram was handled. `is_good` says whether it was authentic.
    pub(super) fn finish_mended(&mut self, is_good: bool) {
        self.is_mending = false;
        self.mended_count += u64::from(is_good);
    }
}

/// Returns the path with the lowest RTT among the paths that may carry the parity of datagrams on `of`; `None` if that
/// path cannot send now.
fn path_of_parity(now: Instant, paths: &PathSet, of: PathId) -> Option<PathId> {
    let path = paths
        .carrying()
        .filter(|path| path.id() != of)
        .min_by_key(|path| (path.rtt().smoothed().unwrap_or(Duration::MAX), path.id()))?;
    path.can_send(now).then_some(path.id())
}

/// Length in bytes of the blocks that contain the header of a data datagram and the minimum body that [`Header::parse`]
/// requires.
const HEAD_BYTES: usize = DATA_OVERHEAD.next_multiple_of(BLOCK_BYTES);
/// Maximum number of tries for each received datagram or parity.
const MAX_TRIES: usize = 64;
/// Maximum number of tries per second, which take about 0.2 µs each.
const MAX_TRIES_PER_SECOND: usize = 32_768;
const SECOND: Duration = Duration::from_secs(1);
/// Maximum number of damaged datagrams stored.
const MAX_KEPT: usize = 64;
/// Maximum age of stored damaged datagrams: longer than the delay of any path that is worth using for media.
const KEEP_FOR: Duration = Duration::from_millis(500);
/// Duration after receiving parity in which datagrams are copied before decryption.
const HEARD_FOR: Duration = Duration::from_secs(10);
/// Maximum number of parities that wait for the end of a poll.
const MAX_PARITY: usize = 256;
/// Maximum number of stored parities for datagrams that have not arrived: half a second at 8 Mbit/s.
const MAX_RECEIVED: usize = 512;
/// Maximum length of a parity in bytes: BCH for 1560 bytes.
pub(super) const MAX_PARITY_BYTES: usize = 208;
