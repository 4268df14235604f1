//! Split error correction ([`crate::sec`]): parity of each data datagram goes over another path than the datagram, and one that came
//! with wrong bits is mended by it.
//!
//! *Out.* If the user wants it, the other end knows it ([`PARITY`]) and two paths work, every data datagram that is sealed leaves
//! its parity here. What one poll has gathered goes out at its end, in control datagrams ([`Frame::Parity`]) on the best path other
//! than the datagram's own.
//!
//! *In.* From the first parity on, a copy of each data datagram is made before it is opened, and kept if its tag does not fit:
//! opening spoils it. Parity that comes is tried on what is kept of its length, and a datagram that comes on the parity that is
//! kept: whichever is later. If bits of a quarter of its blocks at most are wrong, and the header that results names the datagram the parity is of, the copy is handled as if it had just
//! come: **replay window and tag are checked as ever**, so nothing passes that was not sealed. It is not mended twice.
//!
//! Without parity a damaged datagram is what it was before: forged, and dropped. It is counted as that also if it is mended later.
//!
//! Bounds: [`MAX_KEPT`] datagrams, for [`KEEP_FOR`]; [`MAX_PARITY`] parities out, [`MAX_RECEIVED`] in. Datagrams whose parity is
//! longer than [`MAX_PARITY_BYTES`] have none.
//!
//! Known limit: a datagram with wrong bits where its kind or receiver index stand never reaches its tunnel.
//!
//! [`Frame::Parity`]: crate::wire::control::Frame::Parity

use core::{net::IpAddr, time::Duration};
use std::collections::VecDeque;

use super::{Incoming, Shared, Tunnel, control::MAX_BODY};
use crate::{
    ids::{PathId, Seq},
    packet::{PacketBuf, Pool},
    sec::{BLOCK_BYTES, Code},
    time::Instant,
    transmit::TxQueue,
    wire::{
        Kind,
        control::{Frame, FrameWriter},
        handshake::PARITY,
        header::Header,
    },
};

/// Parity out and in, and what waits to be mended.
#[derive(Debug, Default)]
pub(super) struct Sec {
    /// What the user wants.
    code: Option<Code>,
    /// Whether it can be had now.
    is_on: bool,
    out: VecDeque<Parity>,
    /// When parity last came.
    heard_at: Option<Instant>,
    received: VecDeque<Parity>,
    damaged: VecDeque<Damaged>,
    mended: VecDeque<Damaged>,
    is_mending: bool,
    /// A datagram before it was opened.
    copy: Vec<u8>,
}

/// The parity of one datagram.
#[derive(Clone, Debug)]
struct Parity {
    code: Code,
    path: PathId,
    path_seq: Seq,
    /// Length of the datagram.
    len: u16,
    at: Instant,
    bytes: [u8; MAX_PARITY_BYTES],
}

/// A datagram whose tag does not fit, or one that was mended.
#[derive(Debug)]
struct Damaged {
    incoming: Incoming,
    at: Instant,
    bytes: PacketBuf,
}

impl Parity {
    fn bytes(&self) -> &[u8] {
        let len = self.code.parity_len(self.len.into());
        self.bytes.get(..len).unwrap_or_default()
    }

    /// Mends `datagram` in place if this is its parity, and tells whether it seems so: only its tag can say.
    fn mends(&self, datagram: &mut [u8]) -> bool {
        if datagram.len() != usize::from(self.len) {
            return false;
        }
        let Ok(wrong) = self.code.correct(datagram, self.bytes()) else {
            return false;
        };
        // Another datagram's parity finds something wrong in nearly every block, and may turn one number into the other.
        wrong <= 1 + usize::from(self.len) / BLOCK_BYTES / 4
            && Header::parse(datagram).is_some_and(|(header, _)| {
                let of = (header.kind, header.path, header.path_seq);
                of == (Kind::Data, self.path, self.path_seq)
            })
    }
}

impl Sec {
    /// Leaves the parity of a data datagram that was just sealed.
    pub(super) fn on_sealed(&mut self, now: Instant, path: PathId, path_seq: Seq, datagram: &[u8]) {
        let Some(code) = self
            .code
            .filter(|_| self.is_on && self.out.len() < MAX_PARITY)
        else {
            return;
        };
        let mut bytes = [0; MAX_PARITY_BYTES];
        if let Ok(len) = u16::try_from(datagram.len())
            && code.encode(datagram, &mut bytes).is_some()
        {
            self.out.push_back(Parity {
                code,
                path,
                path_seq,
                len,
                at: now,
                bytes,
            });
        }
    }

    /// Keeps a copy of a datagram that is about to be opened, if it could be mended.
    pub(super) fn before_opening(&mut self, now: Instant, kind: Kind, datagram: &[u8]) {
        self.copy.clear();
        let is_expected = |at| now.since(at) < HEARD_FOR;
        if kind == Kind::Data && !self.is_mending && self.heard_at.is_some_and(is_expected) {
            self.copy.extend_from_slice(datagram);
        }
    }

    /// The datagram of which [`before_opening`](Self::before_opening) has kept a copy has no fitting tag.
    pub(super) fn on_damaged(&mut self, now: Instant, incoming: &Incoming, pool: &mut Pool) {
        if self.copy.is_empty() {
            return;
        }
        self.forget_old(now, pool);
        let damaged = Damaged {
            incoming: *incoming,
            at: now,
            bytes: pool.copy_of(&self.copy),
        };
        self.copy.clear();
        self.damaged.push_back(damaged);
        let newest = self.damaged.len() - 1;
        for index in 0..self.received.len() {
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

    /// Parity came: `bytes` of the datagram of `len` bytes that travels as `path_seq` on `path`.
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
        if (0..self.damaged.len()).any(|index| self.try_mend(newest, index, pool)) {
            self.received.pop_back();
        }
    }

    /// Tries the parity received as `index` on a damaged datagram; if it fits, that is mended.
    fn try_mend(&mut self, index: usize, damaged: usize, pool: &mut Pool) -> bool {
        let (Some(parity), Some(kept)) = (self.received.get(index), self.damaged.get(damaged))
        else {
            return false;
        };
        if kept.bytes.len() != usize::from(parity.len) {
            return false;
        }
        let mut bytes = pool.copy_of(kept.bytes.as_slice());
        if !parity.mends(bytes.as_mut_slice()) {
            pool.recycle(bytes);
            return false;
        }
        if let Some(kept) = self.damaged.remove(damaged) {
            let (incoming, at) = (kept.incoming, kept.at);
            pool.recycle(kept.bytes);
            self.mended.push_back(Damaged {
                incoming,
                at,
                bytes,
            });
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

    /// Forgets everything but what the user wants.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        for damaged in self.damaged.drain(..).chain(self.mended.drain(..)) {
            pool.recycle(damaged.bytes);
        }
        self.out.clear();
        self.received.clear();
        self.heard_at = None;
    }
}

impl Tunnel {
    /// By which code parity is made of what is sent; `None`: not at all.
    pub fn set_parity(&mut self, code: Option<Code>) {
        self.sec.code = code;
    }

    /// Finds out whether parity may be sent now.
    pub(super) fn update_parity(&mut self) {
        let can = || {
            let works = self
                .paths()
                .filter(|path| path.health.is_usable() && path.route.is_some());
            works.count() > 1 && self.knows(PARITY)
        };
        self.sec.is_on = self.sec.code.is_some() && can();
    }

    /// Sends the parity that was gathered.
    pub(super) fn send_parity(&mut self, now: Instant, out: &mut TxQueue) {
        while let Some(first) = self.sec.out.front() {
            let of = first.path;
            let Some(on) = self.best_path(Some(of)).filter(|_| !out.is_full()) else {
                return self.sec.out.clear();
            };
            let mut body = [0; MAX_BODY];
            let mut writer = FrameWriter::new(&mut body);
            while let Some(parity) = self.sec.out.front().filter(|parity| parity.path == of) {
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
                self.sec.out.pop_front();
            }
            let len = writer.len();
            self.seal_control(now, on, &body[..len], out);
        }
    }

    /// Handles what was mended as if it had just come.
    pub(super) fn handle_mended(
        &mut self,
        now: Instant,
        is_source_allowed: &dyn Fn(IpAddr) -> bool,
        shared: &mut Shared<'_>,
    ) {
        while let Some(mut mended) = self.sec.mended.pop_front() {
            self.sec.is_mending = true;
            let bytes = mended.bytes.as_mut_slice();
            if let Some(headers) = Header::parse(bytes) {
                let incoming = mended.incoming;
                let result =
                    self.handle_datagram(now, &incoming, headers, bytes, is_source_allowed, shared);
                self.counts.mended += u64::from(result.is_ok());
            }
            self.sec.is_mending = false;
            shared.pool.recycle(mended.bytes);
        }
    }
}

/// Most damaged datagrams kept.
const MAX_KEPT: usize = 64;
/// How long they are: longer than any path is worth using for media.
const KEEP_FOR: Duration = Duration::from_millis(500);
/// Datagrams are copied before they are opened for so long after parity came.
const HEARD_FOR: Duration = Duration::from_secs(10);
/// Parities that may wait for the end of a poll.
const MAX_PARITY: usize = 256;
/// Parities kept for datagrams that are still to come: half a second of 8 Mbit/s.
const MAX_RECEIVED: usize = 512;
/// Longest parity: BCH of 1560 bytes.
pub(super) const MAX_PARITY_BYTES: usize = 208;
