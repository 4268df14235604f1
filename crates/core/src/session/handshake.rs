//! The handshake: `Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s` (Noise specification revision 34), one round trip.
//!
//! ```text
//! initiator                                     responder
//! Initiator::new            -- initiation -->   Responder::read_initiation   (identify the peer, look up its PSK)
//! Initiator::read_response  <-- response ---    Incoming::respond
//! ```
//!
//! The initiator knows the responder's static key. The responder learns the initiator's static key from the initiation
//! and must look it up before it answers. Both ends mix in a pre-shared key, [`NO_PSK`] by default. Both messages carry
//! a [`Hello`]; the responder chooses the suite. The two transport keys are the result of Noise's split.
//!
//! The responder detects a wrong static key at the initiation. The initiator detects a wrong psk at the response. The
//! responder never detects a wrong psk, because the psk enters only its own message. It must not activate the session
//! before the first datagram is decrypted with the new keys, which [`super::rotation::SessionSet`] ensures.
//!
//! The clear header of the initiation is the Noise prologue, so that nobody can redirect the answer to a copied
//! initiation. Changes of the response's header are detected by mac1, which anyone who knows the public key can
//! compute. At worst, an attacker who can also drop the response makes this end send its datagrams to a wrong index.
//! mac2 of an initiation is checked by [`super::cookie::CookieJar`] alone; mac2 of a response is zero.

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

/// Pre-shared key of peers that have not agreed on one.
pub const NO_PSK: [u8; 32] = [0; 32];

/// Position of the psk in the pattern: `psk2`.
const PSK_POSITION: u8 = 2;

/// Reason for which a handshake fails. Any invalid input results in one of these errors.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HandshakeError {
    /// The message was not encrypted by the expected end: wrong static key, wrong psk, modified, or answered before.
    #[error("handshake does not authenticate")]
    Authentication,
    /// mac1 is wrong: the sender does not know this end's public key, or the datagram was damaged.
    #[error("mac1 does not fit")]
    Mac,
    /// The datagram is not a handshake datagram, or its Hello is too short.
    #[error("malformed handshake datagram: {0}")]
    Malformed(#[from] WireError),
    /// The Hellos have no suite in common, or the responder chose a suite that was not offered.
    #[error("no cipher suite in common")]
    NoCommonSuite,
    /// The remote static key is of small order, so no shared secret can be computed with it.
    #[error("remote public key is invalid")]
    RemoteKey,
    /// The other end uses a different version of the protocol, given here.
    #[error("protocol version {0} is not ours")]
    Version(u16),
    /// The response belongs to another initiation.
    #[error("response to another handshake")]
    WrongReceiver,
}

/// X25519 key pair that identifies this end. Wiped on drop; `Debug` shows only the public key.
pub struct StaticKeys {
    private: Secret,
    public: [u8; 32],
}

impl StaticKeys {
    /// Returns the key pair of a private key. Any 32 bytes are valid; they are clamped as in RFC 7748.
    #[must_use]
    pub fn from_private(private: impl Into<Secret>) -> Self {
        let private = private.into();
        let public = noise::public_key(private.expose());
        Self { private, public }
    }

    /// Returns the public key, which peers need.
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

/// Result of a completed handshake.
#[derive(Debug)]
pub struct Established {
    /// Key for datagrams that this end sends.
    pub send: SealingKey,
    /// Key for datagrams that this end receives.
    pub recv: OpeningKey,
    /// Session index of the other end, which is written into the datagrams sent to it.
    pub remote_index: u32,
    /// Suite of both keys.
    pub suite: Suite,
    /// Hello of the other end.
    pub remote_hello: Hello,
}

/// The end that starts the handshake. One value is one attempt; a retry is a new value with a new seed and index.
pub struct Initiator {
    state: HandshakeState,
    local_public: [u8; 32],
    local_index: u32,
    hello: Hello,
}

impl Initiator {
    /// Starts a handshake with the owner of `remote_public` and returns the initiation to send, with mac1 set and mac2
    /// zero.
    ///
    /// `local_index` is the index by which the other end will address this session, unique among this end's sessions.
    /// `hello.suites` contains the suites offered. `seed` is 32 fresh secret random bytes. Cost: three X25519
    /// operations.
    ///
    /// # Errors
    /// [`HandshakeError::RemoteKey`], or [`HandshakeError::Malformed`] if `local_index` is 0 or has more than 24 bits.
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

    /// Starts a handshake like [`Self::new`], for an invited client that the gateway does not know yet and that
    /// presents its `claim`. `psk` is the pre-shared key of the invitation. `hello` must have a time.
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

    /// Returns the index by which the other end addresses this session.
    #[must_use]
    pub const fn local_index(&self) -> u32 {
        self.local_index
    }

    /// Reads the response and completes the handshake. After an error, the genuine response may still arrive.
    ///
    /// Cost: two X25519 operations if mac1 and the index are correct.
    ///
    /// # Errors
    /// [`HandshakeError::Authentication`] for a wrong psk or a modified response; other variants for other defects of
    /// the response.
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

/// The end that answers. It has no state before an initiation is read.
#[derive(Debug)]
pub struct Responder;

impl Responder {
    /// Reads an initiation, which contains the sender's static key and the suites that it offers.
    ///
    /// mac1 is checked first. After that the cost is two X25519 operations, so call
    /// [`super::limiter::HandshakeLimiter`] first.
    ///
    /// # Errors
    /// Every datagram that is not an intact initiation for this key is an error.
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

/// Identifies an initiation: the first 64 bits of the ephemeral key, which are random in honest initiations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EphemeralId(pub u64);

impl EphemeralId {
    /// Returns the id of an initiation. The ephemeral key is not encrypted.
    #[must_use]
    pub fn of(view: &InitiationView<'_>) -> Self {
        let id = view.noise().first_chunk();
        Self(id.map_or(0, |id| u64::from_be_bytes(*id)))
    }
}

/// An authenticated initiation, to be answered or dropped. It may be a replay of a genuine initiation.
pub struct Incoming {
    /// Static public key of the initiator. Look it up, and drop the initiation if the key is unknown.
    pub remote_static: [u8; 32],
    /// Session index of the initiator, by which the answer must address it.
    pub remote_index: u32,
    /// Hello of the initiator.
    pub hello: Hello,
    /// The claim of an invitation, if the initiation contains one.
    pub claim: Option<Claim>,
    state: HandshakeState,
    seed: SeedSlot,
}

impl Incoming {
    /// Answers the initiation. Returns the keys and the response to send.
    ///
    /// `psk` is the pre-shared key of this client, or [`NO_PSK`]. `local_index` must be unique among this end's
    /// sessions. `hello.suites` contains the suites that this end accepts; the response names the chosen suite. `seed`
    /// is 32 fresh secret random bytes. Cost: three X25519 operations.
    ///
    /// # Errors
    /// [`HandshakeError::Version`]; [`HandshakeError::NoCommonSuite`]; [`HandshakeError::Malformed`] if `local_index`
    /// is 0 or has more than 24 bits.
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
    // Noise, section 5.2: the first key of the split is for the direction from initiator to responder.
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
