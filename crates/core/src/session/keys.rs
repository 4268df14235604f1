//! One session: a pair of keys, and per path what has been received under them.
//!
//! # Counters
//!
//! Each direction of each path has a 64-bit datagram counter, owned by the sender's tunnel; 32 bits of it travel. The
//! counter **continues over a change of keys**, so that path accounting need not notice one. It starts anew, somewhere
//! in `0..2^31`, when the sender's association starts, and also when the *receiver's* association is new, because that
//! receiver cannot know the high bits. Under one key it never goes back.
//!
//! The receiver extends the 32 bits near the highest counter it knows of the path: seen in this session, or carried
//! over by [`Session::continue_path`] from one before; with neither the high bits are zero.
//!
//! # Bounds
//!
//! A path's window (520 bytes) is allocated at its first authentic datagram, at most [`PathId::LANES`] of them. Nothing
//! else allocates.

use thiserror::Error;

use super::{
    aead::{AuthError, OpeningKey, SealingKey, Suite, TAG_LEN},
    handshake::Established,
    replay::{ReplayError, ReplayWindow, extend},
};
use crate::{
    ids::{PathId, Seq},
    time::Instant,
    wire::handshake::Hello,
};

/// Who started the handshake of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This end.
    Initiator,
    /// The other end.
    Responder,
}

/// A datagram that opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Length of the plaintext at the front of the buffer, in bytes.
    pub len: usize,
    /// The datagram's counter on its path.
    pub counter: u64,
}

/// Why a datagram does not open. All are ordinary on a network; count them.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// Forged or damaged.
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
    /// Received before, or too late to tell.
    #[error("replayed datagram: {0}")]
    Replayed(#[from] ReplayError),
}

/// One pair of keys.
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
    paths: [Received; PathId::LANES],
}

/// What is known of the counters of one path.
#[derive(Debug)]
enum Received {
    Nothing,
    /// Nothing under this session; an earlier one saw this counter last.
    Continues(u64),
    Window(Box<ReplayWindow>),
}

impl Session {
    /// A session out of a finished handshake, known to the other end by `local_index`.
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
            paths: [const { Received::Nothing }; PathId::LANES],
        }
    }

    /// Encrypts `in_out` in place and returns the tag; `aad` is the datagram's header.
    ///
    /// `counter` must be larger than any before it on `path`.
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

    /// Checks and decrypts a datagram in place: `in_out` is ciphertext and tag, `seq` the low 32 bits of its counter.
    ///
    /// # Errors
    /// Why it is dropped; after [`OpenError::Authentication`] the content of `in_out` is unspecified.
    pub fn open(
        &mut self,
        path: PathId,
        seq: Seq,
        aad: &[u8],
        in_out: &mut [u8],
    ) -> Result<Opened, OpenError> {
        let received = self
            .paths
            .get_mut(path.index())
            .ok_or(OpenError::UnknownPath)?;
        let counter = match received {
            Received::Nothing => u64::from(seq.0),
            Received::Continues(highest) => extend(*highest, seq),
            Received::Window(window) => extend(window.highest(), seq),
        };
        if let Received::Window(window) = received {
            window.check(counter)?;
        }
        let len = self
            .recv
            .open(path, counter, aad, in_out)
            .map_err(|AuthError| OpenError::Authentication)?;
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

    /// Tells where the counter of `path` stood under an earlier session of the same association. No effect once
    /// something has been received on it, or for an unknown path.
    pub fn continue_path(&mut self, path: PathId, highest: u64) {
        if let Some(received @ (Received::Nothing | Received::Continues(_))) =
            self.paths.get_mut(path.index())
        {
            *received = Received::Continues(highest);
        }
    }

    /// The highest counter known of `path`, from this session or an earlier one; `None` if nothing ever came.
    #[must_use]
    pub fn highest(&self, path: PathId) -> Option<u64> {
        match self.paths.get(path.index())? {
            Received::Nothing => None,
            Received::Continues(highest) => Some(*highest),
            Received::Window(window) => Some(window.highest()),
        }
    }

    /// The index by which the other end addresses this session.
    #[must_use]
    pub const fn local_index(&self) -> u32 {
        self.local_index
    }

    /// The index by which to address the other end.
    #[must_use]
    pub const fn remote_index(&self) -> u32 {
        self.remote_index
    }

    /// What the other end said of itself.
    #[must_use]
    pub const fn remote_hello(&self) -> &Hello {
        &self.remote_hello
    }

    /// The cipher in use.
    #[must_use]
    pub const fn suite(&self) -> Suite {
        self.suite
    }

    /// Who started it.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// When its handshake finished here.
    #[must_use]
    pub const fn created_at(&self) -> Instant {
        self.created_at
    }

    /// How many datagrams were sealed under it.
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
        // Pairs arrive swapped, across the wrap too.
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
