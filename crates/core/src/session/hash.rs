//! Keyed BLAKE2s (RFC 7693 section 2.9), and a stream of key material made from it.

use blake2::{
    Blake2sMac,
    digest::{
        Mac,
        consts::{U16, U32},
    },
};
use zeroize::Zeroizing;

/// Returns the 128-bit keyed hash of the concatenated `parts`.
pub(super) fn mac128(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 16] {
    let mut mac: Blake2sMac<U16> = Mac::new(key.into());
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Returns the 256-bit keyed hash of the concatenated `parts`.
pub(super) fn mac256(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac: Blake2sMac<U32> = Mac::new(key.into());
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Whether two values are equal, in constant time.
pub(super) fn equal(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}

/// An unpredictable stream of bytes from a secret seed. Block `i` is the hash of the 64-bit big-endian `i` by BLAKE2s,
/// keyed with `BLAKE2s(seed, label)`. The stream is deterministic; streams with different labels are independent.
pub(crate) struct SecretStream {
    key: Zeroizing<[u8; 32]>,
    blocks: u64,
}

impl core::fmt::Debug for SecretStream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SecretStream")
    }
}

impl SecretStream {
    pub(crate) fn new(seed: &[u8; 32], label: &[u8]) -> Self {
        Self {
            key: Zeroizing::new(mac256(seed, &[label])),
            blocks: 0,
        }
    }

    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(32) {
            let block = Zeroizing::new(mac256(&self.key, &[&self.blocks.to_be_bytes()]));
            self.blocks += 1;
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        self.fill(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyed_hash_is_blake2s() {
        // First keyed vector of the BLAKE2 reference test suite (blake2s, empty input, key 00..1f).
        let key = core::array::from_fn(|i| u8::try_from(i).unwrap());
        let expected = [
            0x48, 0xa8, 0x99, 0x7d, 0xa4, 0x07, 0x87, 0x6b, 0x3d, 0x79, 0xc0, 0xd9, 0x23, 0x25,
            0xad, 0x3b, 0x89, 0xcb, 0xb7, 0x54, 0xd8, 0x6a, 0xb7, 0x1a, 0xee, 0x04, 0x7a, 0xd3,
            0x45, 0xfd, 0x2c, 0x49,
        ];
        assert_eq!(mac256(&key, &[]), expected);
        assert_eq!(mac256(&key, &[b"a", b"b"]), mac256(&key, &[b"ab"]));
    }

    #[test]
    fn streams_depend_on_seed_and_label_and_do_not_repeat() {
        let first: [u8; 64] = SecretStream::new(&[1; 32], b"a").array();
        assert_eq!(first, SecretStream::new(&[1; 32], b"a").array());
        assert_ne!(first, SecretStream::new(&[1; 32], b"b").array());
        assert_ne!(first, SecretStream::new(&[2; 32], b"a").array());
        assert_ne!(first[..32], first[32..]);
    }
}
