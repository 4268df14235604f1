//! The handshake: `Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s` (Noise specification revision 34), one round trip.
//!
//! ```text
//! initiator                                     responder
//! Initiator::new            -- initiation -->   Responder::read_initiation   (who is it? look up its psk)
//! Initiator::read_response  <-- response ---    Incoming::respond
//! ```
//!
//! The initiator knows the responder's static key; the responder learns the initiator's from the initiation and must
//! look it up before it answers. Both mix in a pre-shared key, [`NO_PSK`] by default. Both sides carry a
//! [`Hello`]; the responder chooses the suite. The two transport keys are Noise's split.
//!
//! A wrong static key is detected at the initiation, a wrong psk at the response, by the initiator. The responder
//! never detects a wrong psk, because the psk enters only its own message. It must not activate the session before the
//! first datagram decrypts with the new keys, which [`super::rotation::SessionSet`] ensures.
//!
//! The initiation's clear header is the Noise prologue, so that nobody can redirect the answer of a copied initiation.
//! Changes of the response's header are found by mac1, which only keeps out those who do not know the public key: at
//! worst an attacker who can also drop the response sends this end's datagrams to a wrong index. mac2 of an initiation
//! is checked by [`super::cookie::CookieJar`] alone; mac2 of a response is zero.

use core::fmt;

use snow::HandshakeState;
use thiserror::Error;
use zeroize::Zeroizing;

use super::{
    aead::{OpeningKey, SealingKey, Suite},
    cookie,
    noise::{self, SeedSlot},
    secret::Secret,
};
use crate::wire::handshake::{
    self as wire, Claim, Hello, InitiationView, MAX_LEN, ResponseView, WireError, initiation_header,
};

/// The pre-shared key of peers that agreed on none.
pub const NO_PSK: [u8; 32] = [0; 32];

/// Position of the psk in the pattern: `psk2`.
const PSK_POSITION: u8 = 2;

/// Why a handshake fails. Input of any kind ends in one of these.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HandshakeError {
    /// Not encrypted by the expected end: wrong static key, wrong psk, modified, or answered before.
    #[error("handshake does not authenticate")]
    Authentication,
    /// mac1 is wrong: the sender does not know our public key, or the datagram was damaged.
    #[error("mac1 does not fit")]
    Mac,
    /// No handshake datagram at all, or its Hello is too short.
    #[error("malformed handshake datagram: {0}")]
    Malformed(#[from] WireError),
    /// The Hellos have no suite in common, or the responder chose one that was not offered.
    #[error("no cipher suite in common")]
    NoCommonSuite,
    /// The remote static key is of small order, so no secret can be agreed on with it.
    #[error("remote public key is invalid")]
    RemoteKey,
    /// The other end speaks a different version of the protocol, given here.
    #[error("protocol version {0} is not ours")]
    Version(u16),
    /// The response answers another initiation.
    #[error("response to another handshake")]
    WrongReceiver,
}

/// An X25519 key pair that names this end. Wiped on drop; `Debug` shows the public half only.
pub struct StaticKeys {
    private: Secret,
    public: [u8; 32],
}

impl StaticKeys {
    /// The pair of a private key: any 32 bytes, clamped as RFC 7748 says.
    #[must_use]
    pub fn from_private(private: impl Into<Secret>) -> Self {
        let private = private.into();
        let public = noise::public_key(private.expose());
        Self { private, public }
    }

    /// The public key, to be given to peers.
    #[must_use]
    pub const fn public(&self) -> &[u8; 32] {
        &self.public
    }
}

impl fmt::Debug for StaticKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticKeys")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

/// What a finished handshake yields.
#[derive(Debug)]
pub struct Established {
    /// Key for what this end sends.
    pub send: SealingKey,
    /// Key for what this end receives.
    pub recv: OpeningKey,
    /// The other end's index: written into the datagrams to it.
    pub remote_index: u32,
    /// The suite of both keys.
    pub suite: Suite,
    /// What the other end said of itself.
    pub remote_hello: Hello,
}

/// The side that starts. One value is one attempt: a retry is a new one with a new seed and index.
pub struct Initiator {
    state: HandshakeState,
    local_public: [u8; 32],
    local_index: u32,
    hello: Hello,
}

impl Initiator {
    /// Starts a handshake with the owner of `remote_public` and returns the initiation to send, mac1 set, mac2 zero.
    ///
    /// `local_index`: how the other end is to address this session, unique among this end's sessions. `hello.suites`:
    /// the suites offered. `seed`: 32 fresh secret random bytes. Cost: three X25519 operations.
    ///
    /// # Errors
    /// [`HandshakeError::RemoteKey`], or [`HandshakeError::Malformed`] if `local_index` is 0 or beyond 24 bits.
    pub fn new(
        local: &StaticKeys,
        remote_public: &[u8; 32],
        psk: &[u8; 32],
        local_index: u32,
        hello: Hello,
        seed: impl Into<Secret>,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        Self::start(local, remote_public, psk, local_index, hello, &[], seed)
    }

    /// The same for an invited client that the gateway does not know yet and that presents its `claim`. `psk`: the
    /// pre-shared key of the invitation. `hello` must have a time.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_claim(
        local: &StaticKeys,
        remote_public: &[u8; 32],
        psk: &[u8; 32],
        local_index: u32,
        hello: Hello,
        claim: &Claim,
        seed: impl Into<Secret>,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let extra = claim.encode();
        Self::start(local, remote_public, psk, local_index, hello, &extra, seed)
    }

    fn start(
        local: &StaticKeys,
        remote_public: &[u8; 32],
        psk: &[u8; 32],
        local_index: u32,
        hello: Hello,
        extra: &[u8],
        seed: impl Into<Secret>,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        check_index(local_index)?;
        let prologue = prologue(&initiation_header(local_index));
        let mut state = noise::builder(SeedSlot::filled(seed.into()), Some(local.public))
            .local_private_key(local.private.expose())
            .and_then(|builder| builder.remote_public_key(remote_public))
            .and_then(|builder| builder.psk(PSK_POSITION, psk))
            .and_then(|builder| builder.prologue(&prologue))
            .and_then(snow::Builder::build_initiator)
            .map_err(|_| HandshakeError::RemoteKey)?;
        let mut noise = [0; MAX_LEN];
        let len = state
            .write_message(&[&hello.encode(), extra].concat(), &mut noise)
            .map_err(|_| HandshakeError::RemoteKey)?;
        let mut datagram = wire::initiation(local_index, &noise[..len]);
        cookie::set_mac1(remote_public, &mut datagram);
        let initiator = Self {
            state,
            local_public: *local.public(),
            local_index,
            hello,
        };
        Ok((initiator, datagram))
    }

    /// The index by which the other end addresses this session.
    #[must_use]
    pub const fn local_index(&self) -> u32 {
        self.local_index
    }

    /// Reads the response and finishes. After an error the true response can still come.
    ///
    /// Cost: two X25519 operations, only after mac1 and the index fit.
    ///
    /// # Errors
    /// [`HandshakeError::Authentication`] for a wrong psk among other things; what else does not fit.
    pub fn read_response(&mut self, datagram: &[u8]) -> Result<Established, HandshakeError> {
        let view = ResponseView::new(datagram)?;
        if view.receiver_index() != self.local_index {
            return Err(HandshakeError::WrongReceiver);
        }
        let macs = view.macs();
        if !cookie::mac1_fits(&self.local_public, &macs) || macs.mac2() != [0; 16] {
            return Err(HandshakeError::Mac);
        }
        let mut payload = [0; MAX_LEN];
        let len = self
            .state
            .read_message(view.noise(), &mut payload)
            .map_err(|_| HandshakeError::Authentication)?;
        let remote_hello = Hello::decode(&payload[..len])?;
        check_version(self.hello, remote_hello)?;
        let suite = Suite::choose(self.hello.suites, remote_hello.suites)
            .filter(|suite| suite.bits() == remote_hello.suites)
            .ok_or(HandshakeError::NoCommonSuite)?;
        Ok(establish(
            &mut self.state,
            view.sender_index(),
            suite,
            remote_hello,
        ))
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator")
            .field("local_index", &self.local_index)
            .field("hello", &self.hello)
            .finish_non_exhaustive()
    }
}

/// The side that answers; it has no state before an initiation is read.
#[derive(Debug)]
pub struct Responder;

impl Responder {
    /// Reads an initiation: who sent it and what it offers.
    ///
    /// mac1 is checked first. Cost after that: two X25519 operations, so ask
    /// [`super::limiter::HandshakeLimiter`] before.
    ///
    /// # Errors
    /// Everything that is not an intact initiation to this very key.
    pub fn read_initiation(
        local: &StaticKeys,
        datagram: &[u8],
    ) -> Result<Incoming, HandshakeError> {
        let view = InitiationView::new(datagram)?;
        if !cookie::mac1_fits(local.public(), &view.macs()) {
            return Err(HandshakeError::Mac);
        }
        let seed = SeedSlot::default();
        let prologue = prologue(view.header());
        let mut state = noise::builder(seed.clone(), Some(local.public))
            .local_private_key(local.private.expose())
            .and_then(|builder| builder.prologue(&prologue))
            .and_then(snow::Builder::build_responder)
            .map_err(|_| HandshakeError::Authentication)?;
        let mut payload = [0; MAX_LEN];
        let len = state
            .read_message(view.noise(), &mut payload)
            .map_err(|_| HandshakeError::Authentication)?;
        let remote_static = state
            .get_remote_static()
            .and_then(|key| key.try_into().ok())
            .ok_or(HandshakeError::Authentication)?;
        Ok(Incoming {
            remote_static,
            remote_index: view.sender_index(),
            hello: Hello::decode(&payload[..len])?,
            claim: Claim::decode(&payload[..len]),
            state,
            seed,
        })
    }
}

/// Tells initiations apart: the first 64 bits of the ephemeral key, which are random in honest initiations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EphemeralId(pub u64);

impl EphemeralId {
    /// That of a checked initiation; it travels in the clear.
    #[must_use]
    pub fn of(view: &InitiationView<'_>) -> Self {
        let id = view.noise().first_chunk();
        Self(id.map_or(0, |id| u64::from_be_bytes(*id)))
    }
}

/// An authenticated initiation, to be answered or dropped. It may be a replay of one that was genuine.
pub struct Incoming {
    /// The initiator's static public key: look it up, drop the initiation if it is unknown.
    pub remote_static: [u8; 32],
    /// The index under which the initiator wants to be addressed.
    pub remote_index: u32,
    /// What the initiator said of itself.
    pub hello: Hello,
    /// The claim of an invitation, if it presents one.
    pub claim: Option<Claim>,
    state: HandshakeState,
    seed: SeedSlot,
}

impl Incoming {
    /// Answers: the keys, and the response to send.
    ///
    /// `psk`: of this client, or [`NO_PSK`]. `local_index`: unique among this end's sessions. `hello.suites`: the suites
    /// this end takes; the response names the one chosen. `seed`: 32 fresh secret random bytes. Cost: three X25519
    /// operations.
    ///
    /// # Errors
    /// [`HandshakeError::Version`]; [`HandshakeError::NoCommonSuite`]; [`HandshakeError::Malformed`] if `local_index` is 0
    /// or beyond 24 bits.
    pub fn respond(
        mut self,
        psk: &[u8; 32],
        local_index: u32,
        hello: Hello,
        seed: impl Into<Secret>,
    ) -> Result<(Established, Vec<u8>), HandshakeError> {
        check_index(local_index)?;
        check_version(hello, self.hello)?;
        let suite =
            Suite::choose(hello.suites, self.hello.suites).ok_or(HandshakeError::NoCommonSuite)?;
        let answer = Hello {
            suites: suite.bits(),
            time: None,
            ..hello
        };
        self.seed.fill(seed.into());
        let mut noise = [0; MAX_LEN];
        let len = self
            .state
            .set_psk(usize::from(PSK_POSITION), psk)
            .and_then(|()| self.state.write_message(&answer.encode(), &mut noise))
            .map_err(|_| HandshakeError::Authentication)?;
        let mut datagram = wire::response(local_index, self.remote_index, &noise[..len]);
        cookie::set_mac1(&self.remote_static, &mut datagram);
        let established = establish(&mut self.state, self.remote_index, suite, self.hello);
        Ok((established, datagram))
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("remote_static", &self.remote_static)
            .field("remote_index", &self.remote_index)
            .field("hello", &self.hello)
            .finish_non_exhaustive()
    }
}

fn establish(
    state: &mut HandshakeState,
    remote_index: u32,
    suite: Suite,
    remote_hello: Hello,
) -> Established {
    // Noise, section 5.2: the first key of the split is for initiator to responder.
    let (first, second) = state.dangerously_get_raw_split();
    let (first, second) = (Zeroizing::new(first), Zeroizing::new(second));
    let (send, recv) = if state.is_initiator() {
        (first, second)
    } else {
        (second, first)
    };
    Established {
        send: SealingKey::new(suite, &send),
        recv: OpeningKey::new(suite, &recv),
        remote_index,
        suite,
        remote_hello,
    }
}

fn check_version(ours: Hello, theirs: Hello) -> Result<(), HandshakeError> {
    if ours.protocol_version == theirs.protocol_version {
        Ok(())
    } else {
        Err(HandshakeError::Version(theirs.protocol_version))
    }
}

fn prologue(header: &[u8]) -> Vec<u8> {
    [b"pleach handshake ", header].concat()
}

fn check_index(index: u32) -> Result<(), WireError> {
    if wire::is_index(index) {
        Ok(())
    } else {
        Err(WireError::Index)
    }
}

#[cfg(test)]
pub(super) mod tests;
