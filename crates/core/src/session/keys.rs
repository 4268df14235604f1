//! One session: a pair of keys, and for each path the counters received under them.
//!
//! # Counters
//!
//! Each direction of each path has a 64-bit datagram counter, owned by the sender's tunnel; its low 32 bits are sent.
//! The counter **continues when keys change**, so that path accounting is not affected. It restarts somewhere in
//! `0..2^31` when the sender's association starts. It also restarts when the *receiver's* association is new, because
//! the receiver then does not know the high bits. Under one key the counter never decreases.
//!
//! The receiver reconstructs the counter from the 32 bits and the highest counter known of the path. That counter was
//! received in this session, or was passed on from an earlier session by [`Session::continue_path`]. If neither
//! applies, the high bits are zero.
//!
//! # Bounds
//!
//! The replay window of a path (520 bytes) is allocated at its first authentic datagram; there are at most
//! [`PathId::LANES`] windows. There are no other allocations.

use thiserror::Error;

use super::{
    aead::{AuthError, OpeningKey, SealingKey, Suite, TAG_LEN},
    handshake::Established,
    per_lane::{self, PerLane},
    replay::{ReplayError, ReplayWindow, extend},
};
use crate::{
    ids::{PathId, Seq},
    time::Instant,
    wire::handshake::Hello,
};

/// Which end started the handshake of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This end.
    Initiator,
    /// The other end.
    Responder,
}

/// A decrypted datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Length of the plaintext at the front of the buffer, in bytes.
    pub len: usize,
    /// The datagram's counter on its path.
    pub counter: u64,
}

/// Reason for which a datagram cannot be decrypted. All of them occur on ordinary networks and should be counted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// The datagram is forged or damaged.
    #[error("authentication failed")]
    Authentication,
    /// The session is too old to be used.
    #[error("session expired")]
    Expired,
    /// No session has this index.
    #[error("unknown session index")]
    UnknownIndex,
    /// The path id is [`PathId::LANES`] or more.
    #[error("unknown path")]
    UnknownPath,
    /// The datagram was received before, or is too old for the replay window.
    #[error("replayed datagram: {0}")]
    Replayed(#[from] ReplayError),
}

/// One session with its pair of keys.
#[derive(Debug)]
pub struct Session {
    send: SealingKey,
    recv: OpeningKey,
    suite: Suite,
    role: Role,
    local_index: u32,
    remote_index: u32,
    remote_hello: Hello,
    created_at: Instant,
    sealed_datagrams: u64,
    paths: PerLane<Received>,
}

/// Knowledge about the counters of one path.
#[derive(Debug, Default)]
enum Received {
    #[default]
    Nothing,
    /// No datagram was received in this session; this is the highest counter of an earlier session.
    Continues(u64),
    Window(Box<ReplayWindow>),
}

impl Session {
    /// Returns the session of a completed handshake. The other end addresses it by `local_index`.
    #[must_use]
    pub fn new(now: Instant, established: Established, local_index: u32, role: Role) -> Self {
        Self {
            send: established.send,
            recv: established.recv,
            suite: established.suite,
            role,
            local_index,
            remote_index: established.remote_index,
            remote_hello: established.remote_hello,
            created_at: now,
            sealed_datagrams: 0,
            paths: PerLane::default(),
        }
    }

    /// Encrypts `in_out` in place and returns the tag. `aad` is the datagram's header.
    ///
    /// `counter` must be larger than all previous counters on `path`.
    #[must_use]
    pub fn seal(
        &mut self,
        path: PathId,
        counter: u64,
        aad: &[u8],
        in_out: &mut [u8],
    ) -> [u8; TAG_LEN] {
        self.sealed_datagrams = self.sealed_datagrams.saturating_add(1);
        self.send.seal(path, counter, aad, in_out)
    }

    /// Checks and decrypts a datagram in place. `in_out` contains ciphertext and tag; `seq` is the low 32 bits of its
    /// counter.
    ///
    /// # Errors
    /// The reason why the datagram is dropped; after [`OpenError::Authentication`] the content of `in_out` is
    /// unspecified.
    pub fn open(
        &mut self,
        path: PathId,
        seq: Seq,
        aad: &[u8],
        in_out: &mut [u8],
    ) -> Result<Opened, OpenError> {
        if !per_lane::exists(path) {
            return Err(OpenError::UnknownPath);
        }
        let counter = match self.paths.get(path) {
            None | Some(Received::Nothing) => u64::from(seq.0),
            Some(Received::Continues(highest)) => extend(*highest, seq),
            Some(Received::Window(window)) => {
                let counter = extend(window.highest(), seq);
                window.check(counter)?;
                counter
            }
        };
        let len = self
            .recv
            .open(path, counter, aad, in_out)
            .map_err(|AuthError| OpenError::Authentication)?;
        // Only an authentic datagram makes the table longer.
        let received = self.paths.get_mut(path).ok_or(OpenError::UnknownPath)?;
        match received {
            Received::Window(window) => window.accept(counter)?,
            Received::Nothing | Received::Continues(_) => {
                let mut window = Box::new(ReplayWindow::starting_at(counter));
                window.accept(counter)?;
                *received = Received::Window(window);
            }
        }
        Ok(Opened { len, counter })
    }

    /// Sets the highest counter of `path` in an earlier session of the same association. No effect after a datagram was
    /// received on the path, or for an unknown path.
    pub fn continue_path(&mut self, path: PathId, highest: u64) {
        if let Some(received @ (Received::Nothing | Received::Continues(_))) =
            self.paths.get_mut(path)
        {
            *received = Received::Continues(highest);
        }
    }

    /// Returns the highest counter known of `path`, from this session or an earlier one; `None` if no datagram was
    /// received.
    #[must_use]
    pub fn highest(&self, path: PathId) -> Option<u64> {
        match self.paths.get(path)? {
            Received::Nothing => None,
            Received::Continues(highest) => Some(*highest),
            Received::Window(window) => Some(window.highest()),
        }
    }

    /// Returns the index by which the other end addresses this session.
    #[must_use]
    pub const fn local_index(&self) -> u32 {
        self.local_index
    }

    /// Returns the index by which this end addresses the other end.
    #[must_use]
    pub const fn remote_index(&self) -> u32 {
        self.remote_index
    }

    /// Returns the Hello of the other end.
    #[must_use]
    pub const fn remote_hello(&self) -> &Hello {
        &self.remote_hello
    }

    /// Returns the cipher suite in use.
    #[must_use]
    pub const fn suite(&self) -> Suite {
        self.suite
    }

    /// Returns which end started the handshake.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Returns the time at which the handshake was completed at this end.
    #[must_use]
    pub const fn created_at(&self) -> Instant {
        self.created_at
    }

    /// Returns the number of datagrams encrypted in this session.
    #[must_use]
    pub const fn sealed_datagrams(&self) -> u64 {
        self.sealed_datagrams
    }
}

#[cfg(test)]
mod tests {
    use super::{super::rotation::tests::pair, *};

    const PATH: PathId = PathId(2);

    #[test]
    fn a_datagram_opens_once() {
        let (mut a, mut b) = pair(1);
        let mut sealed = seal(&mut a, 7);
        let copy = sealed.clone();
        let opened = b.open(PATH, Seq(7), b"head", &mut sealed);
        assert_eq!(opened, Ok(Opened { len: 5, counter: 7 }));
        assert_eq!(&sealed[..5], b"inner");
        assert_eq!(
            b.open(PATH, Seq(7), b"head", &mut copy.clone()),
            Err(ReplayError::Seen.into())
        );
        assert_eq!(
            b.open(PathId(32), Seq(7), b"head", &mut copy.clone()),
            Err(OpenError::UnknownPath)
        );
    }

    #[test]
    fn a_forgery_moves_nothing() {
        let (mut a, mut b) = pair(1);
        let mut forged = seal(&mut a, 7);
        forged[0] ^= 1;
        for _ in 0..2 {
            assert_eq!(
                b.open(PATH, Seq(0x7fff_ffff), b"head", &mut forged.clone()),
                Err(OpenError::Authentication)
            );
        }
        assert_eq!(b.highest(PATH), None);
        assert!(b.open(PATH, Seq(8), b"head", &mut seal(&mut a, 8)).is_ok());
    }

    #[test]
    fn paths_have_windows_of_their_own() {
        let (mut a, mut b) = pair(1);
        for path in (0..16).map(PathId) {
            let mut sealed = b"inner".to_vec();
            let tag = a.seal(path, 1, b"", &mut sealed);
            sealed.extend_from_slice(&tag);
            assert!(b.open(path, Seq(1), b"", &mut sealed).is_ok());
        }
        assert_eq!(a.sealed_datagrams(), 16);
    }

    #[test]
    fn wire_numbers_wrap_in_a_session() {
        let (mut a, mut b) = pair(1);
        b.continue_path(PATH, (1 << 32) - 1_000);
        // Pairs of datagrams arrive swapped, also where the counter wraps.
        let counters = ((1_u64 << 32) - 300..(1 << 32) + 300)
            .step_by(2)
            .flat_map(|counter| [counter + 1, counter]);
        for counter in counters {
            let mut sealed = seal(&mut a, counter);
            assert_eq!(
                b.open(PATH, wire(counter), b"head", &mut sealed),
                Ok(Opened { len: 5, counter })
            );
        }
    }

    #[test]
    fn a_path_continues_from_an_earlier_session() {
        let (mut a, mut b) = pair(1);
        let counter = (5 << 32) + 3;
        assert_eq!(
            b.open(PATH, wire(counter), b"head", &mut seal(&mut a, counter)),
            Err(OpenError::Authentication),
            "the high bits are unknown"
        );
        b.continue_path(PATH, (5 << 32) - 9);
        assert!(
            b.open(PATH, wire(counter), b"head", &mut seal(&mut a, counter))
                .is_ok()
        );
        b.continue_path(PATH, 1 << 50);
        assert_eq!(b.highest(PATH), Some(counter));
    }

    fn seal(session: &mut Session, counter: u64) -> Vec<u8> {
        let mut sealed = b"inner".to_vec();
        let tag = session.seal(PATH, counter, b"head", &mut sealed);
        sealed.extend_from_slice(&tag);
        sealed
    }

    fn wire(counter: u64) -> Seq {
        Seq(u32::try_from(counter & 0xffff_ffff).unwrap())
    }
}
