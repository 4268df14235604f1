//! Split error correction ([`crate::sec`]): the parity of each data datagram is sent on another path than the
//! datagram, and corrects bit errors in it.
//!
//! *Out.* If the user enables it, the other end supports it ([`PARITY`]) and two paths work, the parity of every
//! encrypted data datagram is collected here. At the end of each poll the collected parity is sent in control
//! datagrams ([`Frame::Parity`]) on the best path other than the datagram's own.
//!
//! *In.* From the first parity on, each data datagram is copied before it is decrypted in place, and the copy is kept
//! if its tag does not match. Received parity is tried on kept datagrams of its length, and a received damaged
//! datagram is tried with kept parity, whichever comes later. If at most a quarter of its blocks have bit errors, and
//! the corrected header identifies the datagram of the parity, the copy is handled as if it had just arrived. **Replay
//! window and tag are checked as always**, so only authentic datagrams pass. A datagram is not corrected twice.
//!
//! Without parity a damaged datagram is treated like a forged one and dropped. A datagram that is corrected later no
//! longer counts as dropped.
//!
//! Anyone can send datagrams that do not decrypt, so the work for them is limited. Parity is tried on the blocks of
//! the header first, and on the others only if the corrected header is the right one. Parity that belongs to the
//! received header is tried at once; any other only [`MAX_TRIES`] times for each received datagram or parity, and
//! [`MAX_TRIES_PER_SECOND`] in all. Omitted tries are counted.
//!
//! Parity is sent only on paths that may carry data ([`PathSet::carrying`]), and is charged to the path's pacer. While
//! that has no room, datagrams have no parity.
//!
//! Bounds: [`MAX_KEPT`] datagrams, for [`KEEP_FOR`]; [`MAX_PARITY`] outgoing parities, [`MAX_RECEIVED`] received ones.
//! Datagrams whose parity would be longer than [`MAX_PARITY_BYTES`] have none.
//!
//! A datagram with bit errors in its kind or receiver index identifies no tunnel. It is tried by the tunnel that has a
//! path to its source address, if that tunnel expects parity.
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

/// What became of datagrams with bit errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParityStatus {
    /// Datagrams that were corrected and decrypted, and are not counted as dropped.
    pub mended: u64,
    /// Received parities or damaged datagrams that were not tried in all combinations, to limit the cost.
    pub cut_short: u64,
}

/// Outgoing and received parity, and the damaged datagrams.
#[derive(Debug, Default)]
pub(super) struct Sec {
    /// The user's choice.
    code: Option<Code>,
    /// Whether parity can be sent now.
    is_on: bool,
    out: VecDeque<Parity>,
    /// When parity was last received.
    heard_at: Option<Instant>,
    received: VecDeque<Parity>,
    damaged: VecDeque<Damaged>,
    mended: VecDeque<Damaged>,
    is_mending: bool,
    /// The number of datagrams corrected and decrypted.
    mended_count: u64,
    tries: Tries,
    /// A copy of a datagram before decryption.
    copy: Vec<u8>,
}

/// The parity of one datagram.
#[derive(Clone, Debug)]
struct Parity {
    code: Code,
    path: PathId,
    path_seq: Seq,
    /// The length of the datagram.
    len: u16,
    at: Instant,
    bytes: [u8; MAX_PARITY_BYTES],
}

/// A datagram whose tag does not match, or a corrected one.
#[derive(Debug)]
pub(super) struct Damaged {
    pub(super) incoming: Incoming,
    at: Instant,
    /// The reason under which it was counted as dropped.
    pub(super) reason: DropReason,
    /// Path and number in its header as received.
    names: Option<(PathId, Seq)>,
    pub(super) bytes: PacketBuf,
}

/// The budget of tries, and the count of omitted ones.
#[derive(Debug, Default)]
struct Tries {
    left: usize,
    since: Option<Instant>,
    /// The number of received datagrams and parities that were not tried in all combinations.
    cut_short: u64,
}

impl Tries {
    /// The number of tries for the datagram or parity received now.
    fn allowed(&mut self, now: Instant) -> usize {
        if self.since.is_none_or(|since| now.since(since) >= SECOND) {
            (self.since, self.left) = (Some(now), MAX_TRIES_PER_SECOND);
        }
        self.left.min(MAX_TRIES)
    }

    /// Takes one of the tries. Returns whether one was left.
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

    /// The largest number of bit errors accepted. The parity of another datagram finds an error in nearly every block,
    /// and may change one number into the other.
    fn most_wrong(&self) -> usize {
        1 + usize::from(self.len) / BLOCK_BYTES / 4
    }

    /// Whether the first blocks of `datagram`, after correction, are the header of this parity's datagram. Cheap.
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

    /// Corrects `datagram` in place, whose header matches. Returns whether the correction seems successful; only the
    /// tag can prove it.
    fn mends(&self, datagram: &mut [u8]) -> bool {
        let most = self.most_wrong();
        self.code
            .correct_up_to(most, datagram, self.bytes())
            .is_ok()
    }
}

/// Path and number of a data datagram, according to its header.
fn names(datagram: &[u8]) -> Option<(PathId, Seq)> {
    let (header, _) = Header::parse(datagram)?;
    (header.kind == Kind::Data).then_some((header.path, header.path_seq))
}

impl Sec {
    /// Stores the parity of a data datagram that was just encrypted. Returns whether it did.
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

    /// Keeps a copy of a datagram before decryption, if it could be corrected. Its kind does not matter, because the
    /// kind may be damaged.
    pub(super) fn before_opening(&mut self, now: Instant, datagram: &[u8]) {
        self.copy.clear();
        if !self.is_mending && self.is_expected(now) {
            self.copy.extend_from_slice(datagram);
        }
    }

    fn is_expected(&self, now: Instant) -> bool {
        self.heard_at.is_some_and(|at| now.since(at) < HEARD_FOR)
    }

    /// The datagram that [`before_opening`](Self::before_opening) copied has no matching tag, and will be counted as
    /// dropped for `reason`.
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

    /// Handles received parity: `bytes` for the datagram of `len` bytes with the number `path_seq` on `path`.
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

    /// Tries the received parity `index` on damaged datagrams: first on a datagram whose header matches it, then on
    /// the newest.
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

    /// Whether the received parity `index` belongs to a datagram of the same length as a damaged one.
    fn is_of_length(&self, index: usize, damaged: usize) -> bool {
        let parity = self.received.get(index).map(|parity| parity.len.into());
        let kept = self.damaged.get(damaged).map(|kept| kept.bytes.len());
        parity.is_some() && parity == kept
    }

    /// Tries the received parity `index` on a damaged datagram, which is corrected if the parity matches.
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

    /// Clears everything except the user's choice.
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

    /// Whether parity is expected for datagrams from `remote`.
    pub(super) fn expects(&self, now: Instant, remote: SocketAddr, paths: &PathSet) -> bool {
        let leads_there = |path: &Path| path.route().is_some_and(|route| route.remote == remote);
        self.is_expected(now) && paths.iter().any(leads_there)
    }

    /// Determines whether parity may be sent now.
    pub(super) fn update(&mut self, sessions: &SessionSet, paths: &PathSet) {
        let can = || paths.carrying().count() > 1 && knows(sessions, PARITY);
        self.is_on = self.code.is_some() && can();
    }

    /// Sends the collected parity, as far as there is room.
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

    /// What became of damaged datagrams; `None` if there were none and parity is neither sent nor received.
    pub(super) fn status(&self) -> Option<ParityStatus> {
        let status = ParityStatus {
            mended: self.mended_count,
            cut_short: self.tries.cut_short,
        };
        let is_used = self.code.is_some() || self.heard_at.is_some();
        (is_used || status != ParityStatus::default()).then_some(status)
    }

    /// The next corrected datagram, to be handled as if it had just arrived. No copies are made until
    /// [`finish_mended`](Self::finish_mended), so that no datagram is corrected twice.
    pub(super) fn start_mended(&mut self) -> Option<Damaged> {
        let mended = self.mended.pop_front()?;
        self.is_mending = true;
        Some(mended)
    }

    /// The datagram was handled. `is_good`: it is authentic.
    pub(super) fn finish_mended(&mut self, is_good: bool) {
        self.is_mending = false;
        self.mended_count += u64::from(is_good);
    }
}

/// The path with the lowest RTT among the paths that may carry the parity of datagrams on `of`, if it has room.
fn path_of_parity(now: Instant, paths: &PathSet, of: PathId) -> Option<PathId> {
    let path = paths
        .carrying()
        .filter(|path| path.id() != of)
        .min_by_key(|path| (path.rtt().smoothed().unwrap_or(Duration::MAX), path.id()))?;
    path.can_send(now).then_some(path.id())
}

/// Blocks that hold the header of a data datagram, and what [`Header::parse`] wants behind it.
const HEAD_BYTES: usize = DATA_OVERHEAD.next_multiple_of(BLOCK_BYTES);
/// Tries for each received datagram or parity.
const MAX_TRIES: usize = 64;
/// Tries per second, of some 0.2 µs each.
const MAX_TRIES_PER_SECOND: usize = 32_768;
const SECOND: Duration = Duration::from_secs(1);
/// The largest number of damaged datagrams kept.
const MAX_KEPT: usize = 64;
/// How long they are kept: longer than the delay of any path that is worth using for media.
const KEEP_FOR: Duration = Duration::from_millis(500);
/// For how long after received parity datagrams are copied before decryption.
const HEARD_FOR: Duration = Duration::from_secs(10);
/// Parities that may wait for the end of a poll.
const MAX_PARITY: usize = 256;
/// Received parities kept for datagrams that have not arrived: half a second at 8 Mbit/s.
const MAX_RECEIVED: usize = 512;
/// The longest parity: BCH of 1560 bytes.
pub(super) const MAX_PARITY_BYTES: usize = 208;
