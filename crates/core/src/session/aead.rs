//! Sealing and opening datagrams in place (AEAD, RFC 5116), with the header as associated data.
//!
//! The 96-bit nonce is `path id (8 bits), 24 zero bits, counter (64 bits, big-endian)`. It never repeats under a key,
//! because each path has its own counter, and a counter never decreases during the lifetime of a key; the caller owns
//! the counters. The cipher comes from aws-lc-rs. No other module of the data path names that crate, so a replacement
//! only affects this module.
//!
//! Bounds: 2^28 full-sized packets under one AES-GCM key keep an attacker's advantage below 2^-57 (RFC 9001 appendix
//! B.1 at 2^11 bytes). Keys change every 120 s, in which 2^28 packets are reached at 25 Gbit/s.

use core::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use thiserror::Error;

use crate::{ids::PathId, wire::handshake::SuiteBits};

/// Length of an authentication tag in bytes.
pub const TAG_LEN: usize = 16;
/// Length of a key in bytes.
pub const KEY_LEN: usize = 32;

/// A cipher on which both ends agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// AES-256 in Galois/Counter Mode: the faster suite where the CPU has AES instructions.
    Aes256Gcm,
    /// ChaCha20-Poly1305 (RFC 8439): fast on every CPU, and offered by every end.
    ChaCha20Poly1305,
}

impl Suite {
    /// Returns the suites worth offering, best first. `has_aes` says whether the CPU has AES instructions.
    #[must_use]
    pub const fn preferred(has_aes: bool) -> &'static [Self] {
        if has_aes {
            &[Self::Aes256Gcm, Self::ChaCha20Poly1305]
        } else {
            &[Self::ChaCha20Poly1305]
        }
    }

    /// Returns the bits that stand for this suite in a Hello.
    #[must_use]
    pub const fn bits(self) -> SuiteBits {
        match self {
            Self::Aes256Gcm => SuiteBits(1),
            Self::ChaCha20Poly1305 => SuiteBits(2),
        }
    }

    /// Returns the bits that stand for all of `suites` in a Hello.
    #[must_use]
    pub fn offer(suites: &[Self]) -> SuiteBits {
        SuiteBits(suites.iter().fold(0, |all, suite| all | suite.bits().0))
    }

    /// Returns the responder's choice: AES-256-GCM if both ends offer it, which means that both are fast at it; else
    /// ChaCha20-Poly1305 if both offer it; else `None`.
    #[must_use]
    pub fn choose(ours: SuiteBits, theirs: SuiteBits) -> Option<Self> {
        let both = ours.0 & theirs.0;
        [Self::Aes256Gcm, Self::ChaCha20Poly1305]
            .into_iter()
            .find(|suite| both & suite.bits().0 != 0)
    }
}

/// The datagram was not encrypted with this key, nonce and associated data, or is too short for a tag.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("authentication failed")]
pub struct AuthError;

/// Key that encrypts the datagrams of this end.
pub struct SealingKey(LessSafeKey);

impl SealingKey {
    /// Returns a key for `suite`.
    #[must_use]
    pub fn new(suite: Suite, key: &[u8; KEY_LEN]) -> Self {
        Self(cipher(suite, key))
    }

    /// Encrypts `in_out` in place and returns the tag that authenticates it together with `aad`.
    ///
    /// The pair of `path` and `counter` must never be used twice with this key.
    ///
    /// # Panics
    /// Never for a buffer below 64 GiB.
    #[must_use]
    pub fn seal(&self, path: PathId, counter: u64, aad: &[u8], in_out: &mut [u8]) -> [u8; TAG_LEN] {
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce(path, counter), Aad::from(aad), in_out)
            .expect("sealing fails only above 64 GiB");
        tag.as_ref()
            .try_into()
            .expect("both suites have 16-byte tags")
    }
}

/// Key that decrypts the datagrams of the other end.
pub struct OpeningKey(LessSafeKey);

impl OpeningKey {
    /// Returns a key for `suite`.
    #[must_use]
    pub fn new(suite: Suite, key: &[u8; KEY_LEN]) -> Self {
        Self(cipher(suite, key))
    }

    /// Checks and decrypts `in_out`, ciphertext followed by tag, in place. Returns the length of the plaintext.
    ///
    /// # Errors
    /// [`AuthError`] if any part differs from the encrypted datagram; the content of `in_out` is then unspecified.
    pub fn open(
        &self,
        path: PathId,
        counter: u64,
        aad: &[u8],
        in_out: &mut [u8],
    ) -> Result<usize, AuthError> {
        self.0
            .open_in_place(nonce(path, counter), Aad::from(aad), in_out)
            .map(|plaintext| plaintext.len())
            .map_err(|_| AuthError)
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(..)")
    }
}

impl fmt::Debug for OpeningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpeningKey(..)")
    }
}

fn cipher(suite: Suite, key: &[u8; KEY_LEN]) -> LessSafeKey {
    let algorithm = match suite {
        Suite::Aes256Gcm => &AES_256_GCM,
        Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    };
    LessSafeKey::new(UnboundKey::new(algorithm, key).expect("both suites have 32-byte keys"))
}

fn nonce(path: PathId, counter: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[0] = path.0;
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITES: [Suite; 2] = [Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

    #[test]
    fn only_what_was_sealed_opens() {
        for suite in SUITES {
            let open = |suite, key, path, counter, aad: &[u8], sealed: &[u8]| {
                let mut sealed = sealed.to_vec();
                let len = OpeningKey::new(suite, key).open(path, counter, aad, &mut sealed)?;
                sealed.truncate(len);
                Ok::<_, AuthError>(sealed)
            };
            let mut sealed = b"inner packet".to_vec();
            let tag = SealingKey::new(suite, &[7; 32]).seal(PathId(3), 9, b"head", &mut sealed);
            sealed.extend_from_slice(&tag);

            let right = open(suite, &[7; 32], PathId(3), 9, b"head", &sealed);
            assert_eq!(right.as_deref(), Ok(&b"inner packet"[..]));
            let other = SUITES.into_iter().find(|&other| other != suite).unwrap();
            assert!(open(other, &[7; 32], PathId(3), 9, b"head", &sealed).is_err());
            assert!(open(suite, &[8; 32], PathId(3), 9, b"head", &sealed).is_err());
            assert!(open(suite, &[7; 32], PathId(2), 9, b"head", &sealed).is_err());
            assert!(open(suite, &[7; 32], PathId(3), 8, b"head", &sealed).is_err());
            assert!(open(suite, &[7; 32], PathId(3), 9, b"heat", &sealed).is_err());
            for bit in 0..sealed.len() * 8 {
                let mut flipped = sealed.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(open(suite, &[7; 32], PathId(3), 9, b"head", &flipped).is_err());
            }
            for len in 0..sealed.len() {
                assert!(open(suite, &[7; 32], PathId(3), 9, b"head", &sealed[..len]).is_err());
            }
        }
    }

    #[test]
    fn nonce_layout_is_fixed() {
        // The expected value is ChaCha20-Poly1305 (RFC 8439) with the nonce written out byte by byte.
        let mut sealed = *b"x";
        let ours = SealingKey::new(Suite::ChaCha20Poly1305, &[1; 32]).seal(
            PathId(5),
            0x0102_0304_0506_0708,
            b"",
            &mut sealed,
        );
        let mut expected = *b"x";
        let tag = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &[1; 32]).unwrap())
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key([5, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
                Aad::empty(),
                &mut expected,
            )
            .unwrap();
        assert_eq!((sealed, &ours[..]), (expected, tag.as_ref()));
    }

    #[test]
    fn aes_is_chosen_only_where_both_are_quick_at_it() {
        let quick = Suite::offer(Suite::preferred(true));
        let slow = Suite::offer(Suite::preferred(false));
        assert_eq!(Suite::choose(quick, quick), Some(Suite::Aes256Gcm));
        assert_eq!(Suite::choose(quick, slow), Some(Suite::ChaCha20Poly1305));
        assert_eq!(Suite::choose(quick, SuiteBits(0xfc)), None);
    }
}
