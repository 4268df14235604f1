//! The source of secret random bytes.
//!
//! An endpoint asks its [`Entropy`] for fresh bytes at each handshake, and keeps nothing from which the bytes of an
//! earlier handshake could be derived. An attacker who reads the memory of a running end therefore learns its present
//! keys, but no earlier ones. In the daemon the source is the kernel; in the simulator it is [`Seeded`], because the
//! same seed must give the same bytes.

use core::fmt;

use super::{hash::SecretStream, secret::Secret};

/// A source of secret random bytes.
pub trait Entropy: fmt::Debug + Send {
    /// Fills `out` with fresh bytes that nobody can predict.
    ///
    /// An implementation whose source fails must not return.
    fn fill(&mut self, out: &mut [u8]);
}

/// The next 32 bytes of `source`.
pub(crate) fn secret(source: &mut dyn Entropy) -> Secret {
    Secret::filled_by(|bytes| source.fill(bytes))
}

/// The next `N` bytes of `source`.
pub(crate) fn array<const N: usize>(source: &mut dyn Entropy) -> [u8; N] {
    let mut out = [0; N];
    source.fill(&mut out);
    out
}

/// Bytes that follow from a seed: for simulations and tests only. Who knows the seed knows all keys.
#[derive(Debug)]
pub struct Seeded(SecretStream);

impl Seeded {
    /// The same bytes for the same seed.
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
