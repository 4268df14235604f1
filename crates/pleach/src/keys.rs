//! Keys as text: X25519 private and public keys, preshared keys.
//!
//! A key is 32 bytes, written as standard base64 with padding (44 characters). Any 32 random bytes are a private key:
//! X25519 clamps them (RFC 7748 section 5). Secrets are wiped on drop and never printed by `Debug`.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use pleach_core::session::{handshake::StaticKeys, secret::Secret};
use zeroize::Zeroizing;

/// Length of every key in bytes.
pub(crate) const KEY_LEN: usize = 32;

/// A secret of 32 bytes: private or preshared key. Wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretKey(Secret);

impl SecretKey {
    /// Wraps `bytes`.
    pub(crate) fn new(bytes: Zeroizing<[u8; KEY_LEN]>) -> Self {
        Self(Secret::from(&*bytes))
    }

    /// Makes a new random key.
    ///
    /// # Errors
    /// If `/dev/urandom` cannot be read.
    pub(crate) fn random() -> io::Result<Self> {
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        File::open("/dev/urandom")?.read_exact(bytes.as_mut_slice())?;
        Ok(Self::new(bytes))
    }

    /// Returns the bytes of the key.
    pub(crate) fn expose(&self) -> &[u8; KEY_LEN] {
        self.0.expose()
    }

    /// Returns the key as base64.
    pub(crate) fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.expose()))
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(hidden)")
    }
}

/// Why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyError {
    /// The text is not standard base64.
    #[error("a key in base64 (44 characters), found other text")]
    NotBase64,
    /// The text is base64 of a wrong number of bytes, which is given.
    #[error("a key of 32 bytes, found {0}")]
    WrongLength(usize),
    /// All bytes are zero, which is a placeholder and not a key.
    #[error("a key, found 32 zero bytes")]
    Zero,
}

/// Decodes a key; surrounding white space is ignored.
///
/// # Errors
/// If the text is not the base64 of 32 bytes, or if all bytes are zero. The error never contains the text.
pub(crate) fn decode(text: &str) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    let bytes = Zeroizing::new(
        STANDARD
            .decode(text.trim())
            .map_err(|_| KeyError::NotBase64)?,
    );
    let mut key = Zeroizing::new([0; KEY_LEN]);
    if bytes.len() != KEY_LEN {
        return Err(KeyError::WrongLength(bytes.len()));
    }
    key.copy_from_slice(&bytes);
    if key.iter().all(|byte| *byte == 0) {
        return Err(KeyError::Zero);
    }
    Ok(key)
}

/// Returns a public key as base64.
pub(crate) fn encode_public(key: &[u8; KEY_LEN]) -> String {
    STANDARD.encode(key)
}

/// Returns the public key of `private`: X25519 with the base point (RFC 7748 section 6.1).
pub(crate) fn public_of(private: &SecretKey) -> [u8; KEY_LEN] {
    *StaticKeys::from_private(private.expose()).public()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_hex(hex: &str) -> [u8; KEY_LEN] {
        core::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex"))
    }

    #[test]
    fn public_keys_match_rfc_7748() {
        for (private, public) in [
            (
                "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
                "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
            ),
            (
                "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
                "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
            ),
        ] {
            let private = SecretKey::new(Zeroizing::new(from_hex(private)));
            assert_eq!(public_of(&private), from_hex(public));
        }
    }

    #[test]
    fn random_keys_differ_and_survive_text() {
        let (a, b) = (
            SecretKey::random().expect("urandom"),
            SecretKey::random().expect("urandom"),
        );
        assert_ne!(a, b);
        assert_eq!(decode(&a.to_base64()).map(SecretKey::new).as_ref(), Ok(&a));
    }

    #[test]
    fn bad_texts_are_refused() {
        assert_eq!(decode("%%%"), Err(KeyError::NotBase64));
        assert_eq!(decode("AAAA"), Err(KeyError::WrongLength(3)));
        assert_eq!(decode(&STANDARD.encode([0; 32])), Err(KeyError::Zero));
        assert_eq!(
            decode(&STANDARD.encode([1; 33])),
            Err(KeyError::WrongLength(33))
        );
    }

    #[test]
    fn debug_hides_secrets() {
        let key = SecretKey::new(Zeroizing::new([7; KEY_LEN]));
        assert_eq!(format!("{key:?}"), "SecretKey(hidden)");
    }
}
