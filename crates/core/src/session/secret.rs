//! 32 secret bytes: private keys, pre-shared keys, seeds of ephemeral keys.
//!
//! The bytes are in one heap allocation that is wiped before it is freed, so moving a [`Secret`] leaves no copy.
//! `Debug` prints no byte of them, and comparison takes constant time.
//!
//! Limit: the caller must wipe an array that it has copied before converting it into a [`Secret`].

use core::fmt;

use zeroize::{Zeroize as _, Zeroizing};

use super::hash::equal;

/// A key or seed of 32 bytes. Wiped on drop, hidden in `Debug`.
#[derive(Clone)]
pub struct Secret(Box<Zeroizing<[u8; 32]>>);

impl Secret {
    /// Returns a secret whose bytes, initially zero, are filled by `write`.
    pub fn filled_by(write: impl FnOnce(&mut [u8; 32])) -> Self {
        let mut bytes = Box::new(Zeroizing::new([0; 32]));
        write(&mut bytes);
        Self(bytes)
    }

    /// Returns the bytes. Do not copy them to memory that is not wiped.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Secret {
    fn from(mut bytes: [u8; 32]) -> Self {
        let secret = Self::filled_by(|secret| *secret = bytes);
        bytes.zeroize();
        secret
    }
}

impl From<&[u8; 32]> for Secret {
    fn from(bytes: &[u8; 32]) -> Self {
        Self::filled_by(|secret| *secret = *bytes)
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        equal(self.expose(), other.expose())
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_byte() {
        assert_eq!(format!("{:?}", Secret::from([0xab; 32])), "Secret(hidden)");
    }

    #[test]
    fn the_same_bytes_are_equal() {
        assert_eq!(Secret::from([1; 32]), Secret::from(&[1; 32]));
        assert_ne!(Secret::from([1; 32]), Secret::from([2; 32]));
    }
}
