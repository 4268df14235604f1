//! The source of secret random bytes.
//!
//! An endpoint requests fresh bytes from its [`Entropy`] at each handshake. It stores no data from which the bytes of
//! an earlier handshake could be derived. An attacker who reads the memory of a running end therefore learns its
//! present keys, but no earlier keys. In the daemon the source is the kernel. In the simulator it is [`Seeded`],
//! because the same seed must give the same bytes.

use core::fmt;

use super::{hash::SecretStream, secret::Secret};

/// A source of secret random bytes.
pub trait Entropy: fmt::Debug + Send {
    /// Fills `out` with fresh bytes that nobody can predict.
    ///
    /// An implementation whose source fails must not return.
    fn fill(&mut self, out: &mut [u8]);
}

/// Returns the next 32 bytes of `source`.
pub(crate) fn secret(source: &mut dyn Entropy) -> Secret {
    Secret::filled_by(|bytes| source.fill(bytes))
}

/// Returns the next `N` bytes of `source`.
pub(crate) fn array<const N: usize>(source: &mut dyn Entropy) -> [u8; N] {
    let mut out = [0; N];
    source.fill(&mut out);
    out
}

/// Bytes derived from a seed, for simulations and tests only. Whoever knows the seed knows all keys.
#[derive(Debug)]
pub struct Seeded(SecretStream);

impl Seeded {
    /// Returns a source that gives the same bytes for the same seed.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Self {
        Self(SecretStream::new(&seed, b"pleach endpoint"))
    }
}

impl Entropy for Seeded {
    fn fill(&mut self, out: &mut [u8]) {
        self.0.fill(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_bytes_which_do_not_repeat() {
        let run = |seed| {
            let mut source = Seeded::new([seed; 32]);
            (secret(&mut source), array::<32>(&mut source))
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1).0, run(2).0);
        assert_ne!(run(1).0.expose(), &run(1).1);
    }
}
