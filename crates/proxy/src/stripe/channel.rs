//! Byte stream of a lane, that is, of one TCP connection to a peer: greeting, handshake, then encrypted frames.
//!
//! ```text
//! answering end                        asking end
//! greeting: magic, nonce, tag   ──►    who knows the public key recognises its owner by the tag
//!                               ◄──    length, initiation      the tunnel's handshake, Noise IKpsk2 (core, session)
//! length, response              ──►
//! length, sealed frame          ◄─►    ChaCha20-Poly1305, nonce: number of the frame, associated data: length
//! ```
//!
//! A length is 16 bits, big-endian. The cipher is ChaCha20-Poly1305 because TCP connections live long and its key may
//! encrypt 2^64 frames. The connecting end is authenticated only when its first frame has been decrypted, because an
//! initiation may be a replay.

use pleach_core::{
    ids::PathId,
    session::{
        aead::{OpeningKey, SealingKey, Suite, TAG_LEN},
        cookie,
        handshake::{
            Established, HandshakeError, Incoming, Initiator, NO_PSK, Responder, StaticKeys,
        },
        secret::Secret,
    },
    wire::handshake::{Claim, Hello, MAX_LEN},
};

use super::frame::MAX_FRAME;

/// First bytes of a greeting: name and version. In version 1 each connection had lanes of its own.
pub const MAGIC: [u8; 8] = *b"pleach\0\x02";
/// Length of a greeting in bytes.
pub const GREETING_LEN: usize = MAGIC.len() + 32;
/// Maximum length of a record in bytes, without the length field.
pub const MAX_RECORD: usize = MAX_FRAME + TAG_LEN;

/// Why a lane's bytes cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The greeting belongs to another version of the protocol.
    #[error(
        "the peer speaks version {0} of the striping protocol, this end version 2: use the same release at both ends"
    )]
    Version(u8),
    /// A record has an invalid length.
    #[error("a record of {0} bytes")]
    Length(usize),
    /// A record was not encrypted by the other end.
    #[error("a record does not authenticate")]
    Seal,
}

/// Returns the greeting of the owner of `public`. `nonce` must be fresh random bytes.
#[must_use]
pub fn greeting(public: &[u8; 32], nonce: [u8; 16]) -> [u8; GREETING_LEN] {
    let mut out = [0; GREETING_LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..24].copy_from_slice(&nonce);
    out[24..].copy_from_slice(&cookie::recognition(public, &nonce));
    out
}

/// Returns which of the `known` public keys belongs to the sender of the greeting. `None` if none does, or if the
/// bytes are not a greeting.
///
/// # Errors
/// Fails if the greeting belongs to a known peer, but to another version of the protocol.
pub fn recognise<'a>(
    greeting: &[u8; GREETING_LEN],
    mut known: impl Iterator<Item = &'a [u8; 32]>,
) -> Result<Option<usize>, ChannelError> {
    let Some(nonce) = greeting[8..].first_chunk::<16>() else {
        return Ok(None);
    };
    if greeting[..7] != MAGIC[..7] {
        return Ok(None);
    }
    let found = known.position(|public| cookie::recognition(public, nonce) == greeting[24..]);
    if found.is_some() && greeting[7] != MAGIC[7] {
        return Err(ChannelError::Version(greeting[7]));
    }
    Ok(found)
}

/// Begins a handshake with the owner of `remote`. Returns the initiation to send, with its length in front. `seed`
/// must be fresh and secret.
///
/// # Errors
/// Fails if `remote` is not a valid public key.
pub fn initiate(
    local: &StaticKeys,
    remote: &[u8; 32],
    seed: impl Into<Secret>,
) -> Result<(Initiator, Vec<u8>), ChannelError> {
    let (initiator, datagram) = Initiator::new(local, remote, &NO_PSK, INDEX, hello(), seed)?;
    Ok((initiator, with_length(&datagram)))
}

/// Begins a handshake as [`initiate`] does, for an end that the owner of `remote` does not know yet. The initiation
/// carries the invitation `claim`. `time` is in nanoseconds since 1970.
///
/// # Errors
/// Fails if `remote` is not a valid public key.
pub fn initiate_with_claim(
    local: &StaticKeys,
    remote: &[u8; 32],
    claim: &Claim,
    time: u64,
    seed: impl Into<Secret>,
) -> Result<(Initiator, Vec<u8>), ChannelError> {
    let hello = Hello {
        time: Some(time),
        ..hello()
    };
    let initiated = Initiator::with_claim(local, remote, &NO_PSK, INDEX, hello, claim, seed);
    let (initiator, datagram) = initiated?;
    Ok((initiator, with_length(&datagram)))
}

/// Reads an initiation. Its field `remote_static` is the sender's public key.
///
/// # Errors
/// Fails if the datagram is not an initiation for the owner of `local`.
pub fn read_initiation(local: &StaticKeys, datagram: &[u8]) -> Result<Incoming, ChannelError> {
    Ok(Responder::read_initiation(local, datagram)?)
}

/// Answers an initiation. Returns the two directions of the channel and the response to send, with its length in
/// front. `seed` must be fresh and secret.
///
/// # Errors
/// Fails if the ends have no version or cipher suite in common.
pub fn respond(
    incoming: Incoming,
    seed: impl Into<Secret>,
) -> Result<(Sealer, Opener, Vec<u8>), ChannelError> {
    let [family, version] = incoming.hello.protocol_version.to_be_bytes();
    // Only an initiation with a claim contains a time.
    let offered = Hello {
        time: None,
        ..incoming.hello
    };
    if u16::from_be_bytes([family, 0]) == VERSION & 0xff00 && offered != hello() {
        return Err(ChannelError::Version(version));
    }
    // An asking end that does not know the capability ignores it, and opens no UDP flows.
    let answer = Hello {
        capabilities: DATAGRAMS,
        ..hello()
    };
    let (established, datagram) = incoming.respond(&NO_PSK, INDEX, answer, seed)?;
    let (sealer, opener) = channel(established);
    Ok((sealer, opener, with_length(&datagram)))
}

/// Reads the response to `initiator`'s initiation. Also returns whether the answering end serves UDP flows.
///
/// # Errors
/// Fails if the datagram is not a valid response.
pub fn read_response(
    mut initiator: Initiator,
    datagram: &[u8],
) -> Result<(Sealer, Opener, bool), ChannelError> {
    let established = initiator.read_response(datagram)?;
    let serves_flows = established.remote_hello.capabilities & DATAGRAMS != 0;
    let (sealer, opener) = channel(established);
    Ok((sealer, opener, serves_flows))
}

/// Reads and checks the length in front of a handshake message.
///
/// # Errors
/// Fails if no handshake message has this length.
pub fn handshake_len(bytes: [u8; 2]) -> Result<usize, ChannelError> {
    let len = usize::from(u16::from_be_bytes(bytes));
    if (1..=MAX_LEN).contains(&len) {
        Ok(len)
    } else {
        Err(ChannelError::Length(len))
    }
}

/// Encrypts the frames of one direction of a lane.
#[derive(Debug)]
pub struct Sealer {
    key: SealingKey,
    count: u64,
}

impl Sealer {
    /// Encrypts `frame` and appends it to `out`.
    ///
    /// # Panics
    /// Panics if `frame` is too long for a record. Frames of at most [`MAX_FRAME`] bytes always fit.
    pub fn seal(&mut self, frame: &[u8], out: &mut Vec<u8>) {
        let len = u16::try_from(frame.len() + TAG_LEN).expect("frames are shorter");
        let len = len.to_be_bytes();
        out.extend_from_slice(&len);
        let start = out.len();
        out.extend_from_slice(frame);
        let tag = self.key.seal(NO_PATH, self.count, &len, &mut out[start..]);
        out.extend_from_slice(&tag);
        self.count += 1;
    }
}

/// Finds and decrypts the frames of one direction of a lane. Buffers less than two records.
#[derive(Debug)]
pub struct Opener {
    key: OpeningKey,
    count: u64,
    buffer: Vec<u8>,
    /// Number of bytes in the buffer that have been read.
    start: usize,
    filled: usize,
}

impl Opener {
    /// Returns the free space for the next bytes. It is never empty if [`Self::next_frame`] has been called until it
    /// returned `None`.
    pub fn space(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.filled, 0);
        self.filled -= self.start;
        self.start = 0;
        &mut self.buffer[self.filled..]
    }

    /// Notes that `len` bytes were written to [`Self::space`].
    pub fn on_filled(&mut self, len: usize) {
        self.filled = (self.filled + len).min(self.buffer.len());
    }

    /// Returns the next frame. `None` if more bytes are needed.
    ///
    /// # Errors
    /// Fails if a record is invalid. The lane must then be closed.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, ChannelError> {
        let unread = &mut self.buffer[self.start..self.filled];
        let Some((header, rest)) = unread.split_first_chunk_mut::<2>() else {
            return Ok(None);
        };
        let len = usize::from(u16::from_be_bytes(*header));
        if len <= TAG_LEN || len > MAX_RECORD {
            return Err(ChannelError::Length(len));
        }
        let Some(sealed) = rest.get_mut(..len) else {
            return Ok(None);
        };
        let opened = self.key.open(NO_PATH, self.count, header, sealed);
        let plain = opened.map_err(|_| ChannelError::Seal)?;
        self.count += 1;
        let begin = self.start + 2;
        self.start = begin + len;
        Ok(Some(&self.buffer[begin..begin + plain]))
    }
}

fn channel(established: Established) -> (Sealer, Opener) {
    let sealer = Sealer {
        key: established.send,
        count: 0,
    };
    let opener = Opener {
        key: established.recv,
        count: 0,
        buffer: vec![0; 2 * (2 + MAX_RECORD)],
        start: 0,
        filled: 0,
    };
    (sealer, opener)
}

/// Returns the message of an initiation. Answering ends refuse an initiation with capabilities.
fn hello() -> Hello {
    Hello {
        protocol_version: VERSION,
        capabilities: 0,
        suites: Suite::offer(&[Suite::ChaCha20Poly1305]),
        association: 0,
        time: None,
    }
}

fn with_length(datagram: &[u8]) -> Vec<u8> {
    let len = u16::try_from(datagram.len()).unwrap_or(0);
    [&len.to_be_bytes(), datagram].concat()
}

/// Protocol version in the handshakes of lanes. It is far from the tunnel's version, so that neither protocol accepts
/// the other's handshakes.
const VERSION: u16 = 0x5302;
/// Capability bit of an answering end that serves UDP flows.
const DATAGRAMS: u32 = 1;
/// Session index: a TCP connection has only one session.
const INDEX: u32 = 1;
const NO_PATH: PathId = PathId(0);
