//! The Internet checksum (RFC 1071) over byte slices.
//!
//! Sums are stored in native byte order: the one's complement sum does not depend on it (RFC 1071 section 2 B). So
//! words are read in native order, and only the result is stored with `to_ne_bytes`. 32-bit words are added in 64-bit
//! lanes, which the compiler vectorises.

/// A running one's complement sum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds `bytes`, which start at an even offset of the summed data. An odd last byte is padded with zero.
    pub(crate) fn add(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        let total = add_words(words);
        let mut tail = [0; 4];
        tail[..rest.len()].copy_from_slice(rest);
        Self(self.0 + total + u64::from(u32::from_ne_bytes(tail)))
    }

    /// Adds a number in network byte order.
    pub(super) fn add_u16(self, number: u16) -> Self {
        self.add(&number.to_be_bytes())
    }

    /// Subtracts a number in network byte order.
    pub(super) fn sub_u16(self, number: u16) -> Self {
        self.add(&(!number).to_be_bytes())
    }

    /// Returns the folded sum in memory order. It is 0xffff for data that contains its own correct checksum.
    pub(super) fn fold(self) -> [u8; 2] {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap_or(u16::MAX).to_ne_bytes()
    }

    /// Returns the checksum in memory order.
    pub(crate) fn checksum(self) -> [u8; 2] {
        let [a, b] = self.fold();
        [!a, !b]
    }

    /// Whether the summed data, including its checksum, is intact.
    pub(super) fn is_intact(self) -> bool {
        self.fold() == [0xff, 0xff]
    }
}

/// Returns the sum of `words`. A packet has far fewer words than the 2^32 that could overflow it.
fn add_words(words: &[[u8; 4]]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if words.len() >= 32 && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { add_words_avx2(words) };
    }
    add_words_portable(words)
}

/// Returns the sum of `words`, compiled for wider vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_words_avx2(words: &[[u8; 4]]) -> u64 {
    add_words_portable(words)
}

#[inline(always)]
fn add_words_portable(words: &[[u8; 4]]) -> u64 {
    let words = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)));
    words.sum()
}

/// Returns the sum of the pseudo header of an IP packet (RFC 793, RFC 8200 section 8.1).
///
/// `addresses` are source and destination as in the IP header, 8 or 32 bytes. `len` is the length of transport header
/// and payload.
pub(super) fn pseudo_header(addresses: &[u8], protocol: u8, len: u16) -> Sum {
    Sum::default()
        .add(addresses)
        .add_u16(protocol.into())
        .add_u16(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_core::rng::Rng;

    /// Computes the checksum word by word, RFC 1071 section 4.1.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).expect("folded")
    }

    #[test]
    fn equals_the_slow_sum() {
        let mut rng = Rng::new(11);
        for len in (0..70).chain([1400, 1401, 65_535]) {
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            assert_eq!(
                Sum::default().add(&bytes).fold(),
                slow(&bytes).to_be_bytes()
            );
        }
    }

    #[test]
    fn numbers_can_be_exchanged() {
        let sum = Sum::default().add(&[1, 2, 3, 4]).add_u16(700);
        let other = Sum::default().add(&[1, 2, 3, 4]).add_u16(1400);
        assert_eq!(sum.sub_u16(700).add_u16(1400).fold(), other.fold());
    }
}
