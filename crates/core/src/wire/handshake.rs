//! Handshake datagrams: initiation, response, cookie reply, busy reply, and the encrypted Hello in the first two.
//!
//! All integers are big-endian. Reserved bytes are sent as zero and ignored when received. A view checks lengths, kind,
//! version and indices once, at construction; its accessors cannot fail after that. This module does not authenticate
//! data; [`crate::session::handshake`] does.
//!
//! ```text
//! initiation              response                cookie reply (64 bytes)
//! 0      kind 1           0      kind 2           0      kind 3
//! 1      version          1      version          1      version
//! 2..4   reserved         2..4   reserved         2..4   reserved
//! 4..8   sender index     4..8   sender index     4..8   receiver index
//! 8..    Noise message 1  8..12  receiver index   8..32  nonce
//! -32..  mac1             12..   Noise message 2  32..64 sealed cookie (16 + 16 tag)
//! -16..  mac2             -32..  mac1
//!                         -16..  mac2
//! ```
//!
//! Noise message 1 is `e (32), s (32 + 16), Hello (n + 16)`, message 2 `e (32), Hello (n + 16)`. The MACs are at the
//! end of the datagram, so a later version may append to the Hello. Indices use 24 bits, because data datagrams carry
//! only 24 bits, and are never 0. No handshake datagram is longer than [`MAX_LEN`], and neither answer is longer than
//! the shortest initiation, so a forged source address does not amplify traffic.
//!
//! Hello before encryption: `0..2` protocol version, `2..6` capability bits, `6` suite bits, `7..15` association id, in
//! an initiation `15..23` its timestamp. A [`Claim`] may follow in an initiation: `23` tag 1, `24..40` id of an
//! invitation, `40..56` proof. Further bytes are ignored.
//!
//! Busy reply (28 bytes): `0` kind 6, `1` version, `2..4` reserved, `4..8` receiver index, `8..12` milliseconds to
//! wait, `12..28` MAC.
//!
//! Reach question and answer (36 bytes): `0` kind 7 or 8, `1` version, `2..4` reserved, `4..20` nonce, `20..36` MAC. An
//! answer repeats the nonce of its question.

use thiserror::Error;

/// Kind byte of an initiation.
pub const KIND_INITIATION: u8 = 1;
/// Kind byte of a response.
pub const KIND_RESPONSE: u8 = 2;
/// Kind byte of a cookie reply.
pub const KIND_COOKIE_REPLY: u8 = 3;
/// Kind byte of a busy reply. Kinds 4 and 5 are transport datagrams.
pub const KIND_BUSY: u8 = 6;
/// Kind byte of a reach question.
pub const KIND_REACH_QUESTION: u8 = 7;
/// Kind byte of a reach answer.
pub const KIND_REACH_ANSWER: u8 = 8;
/// Version of the datagram layout. An end that receives another version drops the datagram.
pub const VERSION: u8 = 1;
/// Maximum length of a handshake datagram in bytes, which every link that carries IPv6 can carry (RFC 8200 section 5).
pub const MAX_LEN: usize = 1200;
/// Maximum session index: 24 bits.
pub const MAX_INDEX: u32 = 0x00ff_ffff;
/// Length of mac1 and of mac2 in bytes.
pub const MAC_LEN: usize = 16;
/// Length of a cookie reply's nonce in bytes.
pub const COOKIE_NONCE_LEN: usize = 24;
/// Length of an encrypted cookie with its tag in bytes.
pub const SEALED_COOKIE_LEN: usize = 32;
/// Length of a busy reply in bytes.
pub const BUSY_LEN: usize = 12 + MAC_LEN;
/// Length of a reach question and of its answer in bytes.
pub const REACH_LEN: usize = 4 + 16 + MAC_LEN;
/// Length of a cookie reply in bytes.
pub const COOKIE_REPLY_LEN: usize = 8 + COOKIE_NONCE_LEN + SEALED_COOKIE_LEN;

const CLAIM_TAG: u8 = 1;
const TIME_LEN: usize = 8;
const INITIATION_HEADER: usize = 8;
const RESPONSE_HEADER: usize = 12;
const MACS: usize = 2 * MAC_LEN;
const INITIATION_MIN: usize = INITIATION_HEADER + 32 + 48 + 16 + Hello::LEN + MACS;
const RESPONSE_MIN: usize = RESPONSE_HEADER + 32 + 16 + Hello::LEN + MACS;

/// Reason for which bytes are not a handshake datagram of the expected kind.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WireError {
    /// An index is 0 or has more than 24 bits.
    #[error("session index out of range")]
    Index,
    /// The datagram is of another kind.
    #[error("not the expected kind of datagram")]
    Kind,
    /// The datagram is too short, or longer than [`MAX_LEN`].
    #[error("length out of range")]
    Length,
    /// The version of the layout is unknown.
    #[error("unknown datagram version")]
    Version,
}

/// Capability bit: the sender understands repair symbols ([`crate::wire::header`]).
pub const REPAIR_SYMBOLS: u32 = 8;
/// Capability bit: the sender understands parity of datagrams ([`crate::sec`]).
pub const PARITY: u32 = 4;
/// Capability bit: the sender understands that a data datagram names the path for the answers to its packet
/// ([`crate::wire::header::Header::is_answer_path`]).
pub const ANSWER_PATHS: u32 = 16;
/// All capability bits of this version.
pub const CAPABILITIES: u32 = REPAIR_SYMBOLS | PARITY | ANSWER_PATHS;

/// The encrypted message of each end in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the protocol above the handshake.
    pub protocol_version: u16,
    /// Bits of optional features. A feature is used if both ends set its bit.
    pub capabilities: u32,
    /// Suites offered (in an initiation), or suite chosen (in a response).
    pub suites: SuiteBits,
    /// Random number, drawn when the sender begins to store sessions with this peer. The same number as in the previous
    /// handshake means a change of keys. A different number means that the sender has restarted.
    pub association: u64,
    /// Timestamp in an initiation: nanoseconds since 1970 if the sender has the time of day. It is larger than all
    /// timestamps that the sender has used since its start. `None` in responses, and from ends that do not send it.
    pub time: Option<u64>,
}

/// A client's claim to an invitation, for a gateway that does not know the client yet; see
/// [`crate::session::invitation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Id of the invitation.
    pub id: [u8; 16],
    /// Proof that the client knows the invitation's secret; valid only for this client's static key.
    pub proof: [u8; 16],
}

impl Claim {
    /// Returns the bytes to encrypt after a [`Hello`] that has a timestamp.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&[CLAIM_TAG][..], &self.id, &self.proof].concat()
    }

    /// Reads the claim after a Hello. Returns `None` if `bytes`, which begin with the Hello, contain no claim.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let claim: &[u8; 33] = bytes.get(Hello::LEN + TIME_LEN..)?.first_chunk()?;
        (claim[0] == CLAIM_TAG).then(|| Self {
            id: array(claim, 1),
            proof: array(claim, 17),
        })
    }
}

/// A set of cipher suites, one bit each: 1 is AES-256-GCM, 2 is ChaCha20-Poly1305. Unknown bits are preserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuiteBits(pub u8);

impl Hello {
    /// Encoded length in bytes, without a timestamp.
    pub const LEN: usize = 15;

    /// Returns the bytes to encrypt.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::LEN + 8);
        out.extend_from_slice(&self.protocol_version.to_be_bytes());
        out.extend_from_slice(&self.capabilities.to_be_bytes());
        out.push(self.suites.0);
        out.extend_from_slice(&self.association.to_be_bytes());
        out.extend(self.time.iter().flat_map(|time| time.to_be_bytes()));
        out
    }

    /// Reads a Hello and ignores the bytes after it.
    ///
    /// # Errors
    /// [`WireError::Length`] if `bytes` is shorter than [`Hello::LEN`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let time = bytes.get(Self::LEN..).and_then(<[u8]>::first_chunk);
        let bytes: &[u8; Self::LEN] = bytes.first_chunk().ok_or(WireError::Length)?;
        Ok(Self {
            protocol_version: u16::from_be_bytes(array(bytes, 0)),
            capabilities: u32::from_be_bytes(array(bytes, 2)),
            suites: SuiteBits(bytes[6]),
            association: u64::from_be_bytes(array(bytes, 7)),
            time: time.map(|time| u64::from_be_bytes(*time)),
        })
    }
}

/// A checked initiation.
#[derive(Clone, Copy, Debug)]
pub struct InitiationView<'a>(&'a [u8]);

impl<'a> InitiationView<'a> {
    /// Checks `datagram`: length, kind, version, sender index.
    ///
    /// # Errors
    /// [`WireError`] if one of them is invalid.
    pub fn new(datagram: &'a [u8]) -> Result<Self, WireError> {
        check_head(datagram, KIND_INITIATION, INITIATION_MIN)?;
        check_index(u32_at(datagram, 4))?;
        Ok(Self(datagram))
    }

    /// Returns the session index of the initiator, by which the answer must address it.
    #[must_use]
    pub fn sender_index(&self) -> u32 {
        u32_at(self.0, 4)
    }

    /// Returns the clear bytes before the Noise message.
    #[must_use]
    pub fn header(&self) -> &'a [u8] {
        &self.0[..INITIATION_HEADER]
    }

    /// Returns Noise message 1.
    #[must_use]
    pub fn noise(&self) -> &'a [u8] {
        &self.0[INITIATION_HEADER..self.0.len() - MACS]
    }

    /// Returns the two MACs.
    #[must_use]
    pub fn macs(&self) -> Macs<'a> {
        Macs(self.0)
    }
}

/// A checked response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseView<'a>(&'a [u8]);

impl<'a> ResponseView<'a> {
    /// Checks `datagram`: length, kind, version, both indices.
    ///
    /// # Errors
    /// [`WireError`] if one of them is invalid.
    pub fn new(datagram: &'a [u8]) -> Result<Self, WireError> {
        check_head(datagram, KIND_RESPONSE, RESPONSE_MIN)?;
        check_index(u32_at(datagram, 4))?;
        check_index(u32_at(datagram, 8))?;
        Ok(Self(datagram))
    }

    /// Returns the session index of the responder, by which the initiator must address it.
    #[must_use]
    pub fn sender_index(&self) -> u32 {
        u32_at(self.0, 4)
    }

    /// Returns the initiator's session index, which identifies the handshake.
    #[must_use]
    pub fn receiver_index(&self) -> u32 {
        u32_at(self.0, 8)
    }

    /// Returns Noise message 2.
    #[must_use]
    pub fn noise(&self) -> &'a [u8] {
        &self.0[RESPONSE_HEADER..self.0.len() - MACS]
    }

    /// Returns the two MACs.
    #[must_use]
    pub fn macs(&self) -> Macs<'a> {
        Macs(self.0)
    }
}

/// A checked cookie reply.
#[derive(Clone, Copy, Debug)]
pub struct CookieReplyView<'a>(&'a [u8; COOKIE_REPLY_LEN]);

impl<'a> CookieReplyView<'a> {
    /// Checks `datagram`: exact length, kind, version, receiver index.
    ///
    /// # Errors
    /// [`WireError`] if one of them is invalid.
    pub fn new(datagram: &'a [u8]) -> Result<Self, WireError> {
        check_head(datagram, KIND_COOKIE_REPLY, COOKIE_REPLY_LEN)?;
        check_index(u32_at(datagram, 4))?;
        Ok(Self(datagram.try_into().map_err(|_| WireError::Length)?))
    }

    /// Returns the initiator's session index, which identifies the initiation.
    #[must_use]
    pub fn receiver_index(&self) -> u32 {
        u32_at(self.0, 4)
    }

    /// Returns the nonce of the encrypted cookie.
    #[must_use]
    pub fn nonce(&self) -> [u8; COOKIE_NONCE_LEN] {
        array(self.0, 8)
    }

    /// Returns the encrypted cookie and its tag.
    #[must_use]
    pub fn sealed_cookie(&self) -> [u8; SEALED_COOKIE_LEN] {
        array(self.0, 8 + COOKIE_NONCE_LEN)
    }
}

/// A checked busy reply.
#[derive(Clone, Copy, Debug)]
pub struct BusyView<'a>(&'a [u8; BUSY_LEN]);

impl<'a> BusyView<'a> {
    /// Checks `datagram`: exact length, kind, version, receiver index.
    ///
    /// # Errors
    /// [`WireError`] if one of them is invalid.
    pub fn new(datagram: &'a [u8]) -> Result<Self, WireError> {
        check_head(datagram, KIND_BUSY, BUSY_LEN)?;
        check_index(u32_at(datagram, 4))?;
        Ok(Self(datagram.try_into().map_err(|_| WireError::Length)?))
    }

    /// Returns the initiator's session index, which identifies the initiation.
    #[must_use]
    pub fn receiver_index(&self) -> u32 {
        u32_at(self.0, 4)
    }

    /// Returns how long to wait before another initiation, in milliseconds.
    #[must_use]
    pub fn wait_ms(&self) -> u32 {
        u32_at(self.0, 8)
    }

    /// Returns the part of the datagram that the MAC covers.
    #[must_use]
    pub fn before_mac(&self) -> &'a [u8] {
        &self.0[..BUSY_LEN - MAC_LEN]
    }

    /// Returns the MAC, which proves that the sender knows the cookie.
    #[must_use]
    pub fn mac(&self) -> [u8; MAC_LEN] {
        array(self.0, BUSY_LEN - MAC_LEN)
    }
}

/// Returns a busy reply whose MAC is zero.
#[must_use]
pub fn busy(receiver_index: u32, wait_ms: u32) -> [u8; BUSY_LEN] {
    let mut out = [0; BUSY_LEN];
    out[0] = KIND_BUSY;
    out[1] = VERSION;
    out[4..8].copy_from_slice(&receiver_index.to_be_bytes());
    out[8..12].copy_from_slice(&wait_ms.to_be_bytes());
    out
}

/// The MACs at the end of a checked initiation or response.
#[derive(Clone, Copy, Debug)]
pub struct Macs<'a>(&'a [u8]);

impl<'a> Macs<'a> {
    /// Returns the bytes that mac1 covers: all bytes before it.
    #[must_use]
    pub fn before_mac1(&self) -> &'a [u8] {
        &self.0[..self.0.len() - MACS]
    }

    /// Returns the bytes that mac2 covers: all bytes before it, including mac1.
    #[must_use]
    pub fn before_mac2(&self) -> &'a [u8] {
        &self.0[..self.0.len() - MAC_LEN]
    }

    /// Returns mac1, which proves that the sender knows the receiver's public key.
    #[must_use]
    pub fn mac1(&self) -> [u8; MAC_LEN] {
        array(self.0, self.0.len() - MACS)
    }

    /// Returns mac2, which proves that the sender receives datagrams at its address; zero if the sender has no cookie.
    #[must_use]
    pub fn mac2(&self) -> [u8; MAC_LEN] {
        array(self.0, self.0.len() - MAC_LEN)
    }
}

/// Returns the header of an initiation.
#[must_use]
pub fn initiation_header(sender_index: u32) -> [u8; INITIATION_HEADER] {
    let [a, b, c, d] = sender_index.to_be_bytes();
    [KIND_INITIATION, VERSION, 0, 0, a, b, c, d]
}

/// Returns an initiation whose MACs are zero.
#[must_use]
pub fn initiation(sender_index: u32, noise: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(INITIATION_HEADER + noise.len() + MACS);
    out.extend_from_slice(&initiation_header(sender_index));
    out.extend_from_slice(noise);
    out.extend_from_slice(&[0; MACS]);
    out
}

/// Returns a response whose MACs are zero.
#[must_use]
pub fn response(sender_index: u32, receiver_index: u32, noise: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(RESPONSE_HEADER + noise.len() + MACS);
    out.extend_from_slice(&[KIND_RESPONSE, VERSION, 0, 0]);
    out.extend_from_slice(&sender_index.to_be_bytes());
    out.extend_from_slice(&receiver_index.to_be_bytes());
    out.extend_from_slice(noise);
    out.extend_from_slice(&[0; MACS]);
    out
}

/// Returns a cookie reply.
#[must_use]
pub fn cookie_reply(
    receiver_index: u32,
    nonce: &[u8; COOKIE_NONCE_LEN],
    sealed_cookie: &[u8; SEALED_COOKIE_LEN],
) -> [u8; COOKIE_REPLY_LEN] {
    let mut out = [0; COOKIE_REPLY_LEN];
    out[0] = KIND_COOKIE_REPLY;
    out[1] = VERSION;
    out[4..8].copy_from_slice(&receiver_index.to_be_bytes());
    out[8..8 + COOKIE_NONCE_LEN].copy_from_slice(nonce);
    out[8 + COOKIE_NONCE_LEN..].copy_from_slice(sealed_cookie);
    out
}

/// Whether `index` is a valid session index: 24 bits and not 0.
#[must_use]
pub const fn is_index(index: u32) -> bool {
    index != 0 && index <= MAX_INDEX
}

fn check_head(datagram: &[u8], kind: u8, min_len: usize) -> Result<(), WireError> {
    let [found_kind, version, ..] = datagram else {
        return Err(WireError::Length);
    };
    if *found_kind != kind {
        return Err(WireError::Kind);
    }
    if *version != VERSION {
        return Err(WireError::Version);
    }
    if datagram.len() < min_len || datagram.len() > MAX_LEN {
        return Err(WireError::Length);
    }
    Ok(())
}

fn check_index(index: u32) -> Result<(), WireError> {
    if is_index(index) {
        Ok(())
    } else {
        Err(WireError::Index)
    }
}

/// Returns the `N` bytes at `offset`; the caller has checked the length.
fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[offset..offset + N]);
    out
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(array(bytes, offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn hello_survives_and_ignores_what_follows() {
        let hello = Hello {
            protocol_version: 0x0102,
            capabilities: 0x0304_0506,
            suites: SuiteBits(7),
            association: 0x08_09_0a_0b_0c_0d_0e_0f,
            time: Some(0x10_11_12_13_14_15_16_17),
        };
        let mut bytes = hello.encode();
        assert_eq!(bytes, (1..=23).collect::<Vec<u8>>());
        bytes.extend_from_slice(b"a later version's");
        assert_eq!(Hello::decode(&bytes), Ok(hello));
        let older = Hello {
            time: None,
            ..hello
        };
        assert_eq!(older.encode(), bytes[..15]);
        for len in 15..23 {
            assert_eq!(Hello::decode(&bytes[..len]), Ok(older));
        }
        assert_eq!(Hello::decode(&bytes[..14]), Err(WireError::Length));
    }

    #[test]
    fn a_claim_follows_a_hello_that_has_a_time() {
        let hello = Hello {
            protocol_version: 1,
            capabilities: 0,
            suites: SuiteBits(1),
            association: 1,
            time: Some(2),
        };
        let claim = Claim {
            id: [3; 16],
            proof: [4; 16],
        };
        let mut bytes = [hello.encode(), claim.encode()].concat();
        assert_eq!((Hello::decode(&bytes), bytes.len()), (Ok(hello), 56));
        assert_eq!(Claim::decode(&bytes), Some(claim));
        for len in 0..56 {
            assert_eq!(Claim::decode(&bytes[..len]), None);
        }
        bytes[23] = 2;
        assert_eq!(Claim::decode(&bytes), None);
    }

    #[test]
    fn views_find_every_field() {
        let noise: Vec<u8> = (0..111).collect();
        let mut datagram = initiation(0x0a_0b0c, &noise);
        let len = datagram.len();
        datagram[len - 32..len - 16].fill(1);
        datagram[len - 16..].fill(2);
        let view = InitiationView::new(&datagram).unwrap();
        assert_eq!(view.header(), [1, 1, 0, 0, 0, 10, 11, 12]);
        assert_eq!((view.sender_index(), view.noise()), (0x0a_0b0c, &noise[..]));
        assert_eq!((view.macs().mac1(), view.macs().mac2()), ([1; 16], [2; 16]));
        assert_eq!(view.macs().before_mac2(), &datagram[..len - 16]);

        let datagram = response(7, 9, &noise);
        let view = ResponseView::new(&datagram).unwrap();
        assert_eq!((view.sender_index(), view.receiver_index()), (7, 9));
        assert_eq!(view.noise(), noise);

        let datagram = cookie_reply(5, &[3; 24], &[4; 32]);
        let view = CookieReplyView::new(&datagram).unwrap();
        assert_eq!(view.receiver_index(), 5);
        assert_eq!((view.nonce(), view.sealed_cookie()), ([3; 24], [4; 32]));

        let mut datagram = busy(5, 0x0102_0304);
        datagram[12..].fill(9);
        let view = BusyView::new(&datagram).unwrap();
        assert_eq!((view.receiver_index(), view.wait_ms()), (5, 0x0102_0304));
        assert_eq!(view.before_mac(), [6, 1, 0, 0, 0, 0, 0, 5, 1, 2, 3, 4]);
        assert_eq!(view.mac(), [9; 16]);
        assert_eq!(
            BusyView::new(&datagram[..27]).err(),
            Some(WireError::Length)
        );
    }

    #[test]
    fn bad_heads_are_named() {
        let noise = [0; 111];
        for index in [0, MAX_INDEX + 1, u32::MAX] {
            let datagram = initiation(index, &noise);
            assert_eq!(InitiationView::new(&datagram).err(), Some(WireError::Index));
        }
        let mut datagram = initiation(1, &noise);
        assert_eq!(ResponseView::new(&datagram).err(), Some(WireError::Kind));
        datagram[1] = 2;
        assert_eq!(
            InitiationView::new(&datagram).err(),
            Some(WireError::Version)
        );
        let long = initiation(1, &[0; MAX_LEN]);
        assert_eq!(InitiationView::new(&long).err(), Some(WireError::Length));
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        let mut rng = Rng::new(1);
        let mut busy = 0;
        for _ in 0..20_000 {
            let len = match rng.below(4) {
                0 => BUSY_LEN,
                1 => COOKIE_REPLY_LEN,
                _ => usize::try_from(rng.below(200)).unwrap(),
            };
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            if let Some(first_of_index) = bytes.get_mut(4) {
                *first_of_index &= 1;
            }
            if let [kind, version, ..] = &mut bytes[..] {
                let kinds = [KIND_INITIATION, KIND_RESPONSE, KIND_COOKIE_REPLY, KIND_BUSY];
                *kind = kinds[usize::from(*kind) % kinds.len()];
                *version = VERSION;
            }
            if let Ok(view) = InitiationView::new(&bytes) {
                assert!(view.noise().len() >= 111 && is_index(view.sender_index()));
            }
            if let Ok(view) = ResponseView::new(&bytes) {
                assert!(view.noise().len() >= 63 && is_index(view.receiver_index()));
            }
            if let Ok(view) = CookieReplyView::new(&bytes) {
                assert_eq!(view.nonce(), bytes[8..32]);
            }
            if let Ok(view) = BusyView::new(&bytes) {
                busy += 1;
                assert!(bytes.ends_with(&view.mac()) && is_index(view.receiver_index()));
            }
        }
        assert!(busy > 100, "{busy}");
    }

    #[test]
    fn answers_are_no_longer_than_the_question() {
        const {
            assert!(RESPONSE_MIN <= INITIATION_MIN);
            assert!(COOKIE_REPLY_LEN <= INITIATION_MIN && BUSY_LEN <= INITIATION_MIN);
        };
    }
}
