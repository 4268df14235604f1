//! A lane's bytes: greeting, handshake, then sealed frames.
//!
//! ```text
//! answering end                        asking end
//! greeting: magic, nonce, tag   ──►    who knows the public key recognises its owner by the tag
//!                               ◄──    length, initiation      the tunnel's handshake, Noise IKpsk2 (core, session)
//! length, response              ──►
//! length, sealed frame          ◄─►    ChaCha20-Poly1305, nonce: number of the frame, associated data: length
//! ```
//!
//! A length is 16 bits, big-endian. ChaCha20-Poly1305 because TCP connections live long and its key bears 2^64 frames.
//! Nothing is believed before the first frame opens: an initiation may be a replay.

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

/// First bytes of a greeting: name and version. Version 1 had lanes for each connection.
pub const MAGIC: [u8; 8] = *b"pleach\0\x02";
/// Length of a greeting in bytes.
pub const GREETING_LEN: usize = MAGIC.len() + 32;
/// Longest record after its length, in bytes.
pub const MAX_RECORD: usize = MAX_FRAME + TAG_LEN;

/// Why a lane's bytes cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The greeting is that of another version of the protocol.
    #[error(
        "the peer speaks version {0} of the striping protocol, this end version 2: use the same release at both ends"
    )]
    Version(u8),
    /// A length that no record has.
    #[error("a record of {0} bytes")]
    Length(usize),
    /// A record that was not sealed by the other end.
    #[error("a record does not authenticate")]
    Seal,
}

/// The greeting of the owner of `public`, with 16 fresh random bytes.
#[must_use]
pub fn greeting(public: &[u8; 32], nonce: [u8; 16]) -> [u8; GREETING_LEN] {
    let mut out = [0; GREETING_LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..24].copy_from_slice(&nonce);
    out[24..].copy_from_slice(&cookie::recognition(public, &nonce));
    out
}

/// Which of `known` sent the greeting; `None`: none, or it is no greeting.
///
/// # Errors
/// It is that of a known peer, in another version of the protocol.
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

/// Starts a handshake with the owner of `remote`: the initiation to send, after its length. `seed`: fresh and secret.
///
/// # Errors
/// The key is none.
pub fn initiate(
    local: &StaticKeys,
    remote: &[u8; 32],
    seed: impl Into<Secret>,
) -> Result<(Initiator, Vec<u8>), ChannelError> {
    let (initiator, datagram) = Initiator::new(local, remote, &NO_PSK, INDEX, hello(), seed)?;
    Ok((initiator, with_length(&datagram)))
}

/// The same for an end that the owner of `remote` does not know yet and that presents its `claim`. `time`: nanoseconds since
/// 1970.
///
/// # Errors
/// The key is none.
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

/// Reads an initiation: its `remote_static` says who sent it.
///
/// # Errors
/// It is none to this key.
pub fn read_initiation(local: &StaticKeys, datagram: &[u8]) -> Result<Incoming, ChannelError> {
    Ok(Responder::read_initiation(local, datagram)?)
}

/// Answers an initiation: the channel, and the response to send, after its length. `seed`: fresh and secret.
///
/// # Errors
/// The ends have no version or suite in common.
pub fn respond(
    incoming: Incoming,
    seed: impl Into<Secret>,
) -> Result<(Sealer, Opener, Vec<u8>), ChannelError> {
    let [family, version] = incoming.hello.protocol_version.to_be_bytes();
    // Only an initiation with a claim has a time.
    let offered = Hello {
        time: None,
        ..incoming.hello
    };
    if u16::from_be_bytes([family, 0]) == VERSION & 0xff00 && offered != hello() {
        return Err(ChannelError::Version(version));
    }
    let (established, datagram) = incoming.respond(&NO_PSK, INDEX, hello(), seed)?;
    let (sealer, opener) = channel(established);
    Ok((sealer, opener, with_length(&datagram)))
}

/// Reads the response to `initiator`'s initiation.
///
/// # Errors
/// It is none.
pub fn read_response(
    mut initiator: Initiator,
    datagram: &[u8],
) -> Result<(Sealer, Opener), ChannelError> {
    Ok(channel(initiator.read_response(datagram)?))
}

/// The length before a handshake's message, checked.
///
/// # Errors
/// None is so long.
pub fn handshake_len(bytes: [u8; 2]) -> Result<usize, ChannelError> {
    let len = usize::from(u16::from_be_bytes(bytes));
    if (1..=MAX_LEN).contains(&len) {
        Ok(len)
    } else {
        Err(ChannelError::Length(len))
    }
}

/// Seals frames.
#[derive(Debug)]
pub struct Sealer {
    key: SealingKey,
    count: u64,
}

impl Sealer {
    /// Appends `frame` to `out`, sealed.
    ///
    /// # Panics
    /// Never for frames of at most [`MAX_FRAME`] bytes.
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

/// Finds and opens frames in the bytes of a lane. Keeps less than two records.
#[derive(Debug)]
pub struct Opener {
    key: OpeningKey,
    count: u64,
    buffer: Vec<u8>,
    /// Before it, all was read.
    start: usize,
    filled: usize,
}

impl Opener {
    /// Where to put the next bytes; never empty if [`Self::next_frame`] was called until there was none.
    pub fn space(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.filled, 0);
        self.filled -= self.start;
        self.start = 0;
        &mut self.buffer[self.filled..]
    }

    /// Notes that `len` bytes were put there.
    pub fn on_filled(&mut self, len: usize) {
        self.filled = (self.filled + len).min(self.buffer.len());
    }

    /// The next frame; `None`: more bytes are needed.
    ///
    /// # Errors
    /// The lane is of no use any more.
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

/// Of what goes over lanes; far from the tunnel's, so that neither takes the other for itself.
const VERSION: u16 = 0x5302;
/// There is one session on a TCP connection.
const INDEX: u32 = 1;
const NO_PATH: PathId = PathId(0);
