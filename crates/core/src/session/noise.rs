//! What snow is built from: its pattern, a resolver whose randomness is a seed, and X25519.
//!
//! snow draws randomness only for its ephemeral key. The source is a [`SecretStream`] of a seed that is put into a
//! [`SeedSlot`], because a responder gets its seed after snow wants the source. X25519 comes from aws-lc-rs, which wipes
//! its keys and refuses a peer key of small order (RFC 7748 section 6.1), so that a placeholder of zeros in a
//! configuration authenticates nobody. Everything else is snow's default.

use std::sync::{Arc, OnceLock};

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use snow::{
    Builder, Error,
    params::{CipherChoice, DHChoice, HashChoice},
    resolvers::{CryptoResolver, DefaultResolver},
    types::{Cipher, Dh, Hash, Random},
};
use zeroize::{Zeroize as _, Zeroizing};

use super::hash::SecretStream;

/// The Noise protocol name.
const PATTERN: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";

/// Where the seed of a handshake is put, at the latest before its message is written.
#[derive(Clone, Default)]
pub(super) struct SeedSlot(Arc<OnceLock<Zeroizing<[u8; 32]>>>);

impl SeedSlot {
    pub(super) fn filled(seed: [u8; 32]) -> Self {
        let slot = Self::default();
        slot.fill(seed);
        slot
    }

    /// Puts `seed` in; no effect if there is one already.
    pub(super) fn fill(&self, mut seed: [u8; 32]) {
        self.0.get_or_init(|| Zeroizing::new(seed));
        seed.zeroize();
    }
}

/// A builder for either role.
pub(super) fn builder<'a>(slot: SeedSlot) -> Builder<'a> {
    let pattern = PATTERN.parse().expect("snow knows the pattern");
    Builder::with_resolver(pattern, Box::new(SeededResolver(slot)))
}

/// The public key of an X25519 private key.
pub(super) fn public_key(private: &[u8; 32]) -> [u8; 32] {
    let public = private_key(private).and_then(|key| {
        let public = key.compute_public_key().map_err(|_| Error::Dh)?;
        public.as_ref().try_into().map_err(|_| Error::Dh)
    });
    public.expect("X25519 takes any 32 bytes as a private key")
}

struct SeededResolver(SeedSlot);

impl CryptoResolver for SeededResolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(SeededRandom {
            slot: self.0.clone(),
            stream: None,
        }))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::new(X25519Key::default())),
            DHChoice::Curve448 => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct SeededRandom {
    slot: SeedSlot,
    stream: Option<SecretStream>,
}

impl Random for SeededRandom {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        let seed = self.slot.0.get().ok_or(Error::Rng)?;
        self.stream
            .get_or_insert_with(|| SecretStream::new(seed, b"pleach ephemeral key"))
            .fill(dest);
        Ok(())
    }
}

#[derive(Default)]
struct X25519Key {
    private: Zeroizing<[u8; 32]>,
    public: [u8; 32],
}

impl Dh for X25519Key {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, privkey: &[u8]) {
        self.private.copy_from_slice(privkey);
        self.public = public_key(&self.private);
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        rng.try_fill_bytes(self.private.as_mut_slice())?;
        self.public = public_key(&self.private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.private.as_slice()
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        // snow hands over its largest public key buffer, of which the first 32 bytes are the key.
        let public: &[u8; 32] = pubkey.first_chunk().ok_or(Error::Dh)?;
        let private = private_key(&self.private)?;
        let peer = UnparsedPublicKey::new(&X25519, public);
        agree(&private, peer, Error::Dh, |secret| {
            out.get_mut(..secret.len())
                .ok_or(Error::Dh)?
                .copy_from_slice(secret);
            Ok(())
        })
    }
}

fn private_key(private: &[u8; 32]) -> Result<PrivateKey, Error> {
    PrivateKey::from_private_key(&X25519, private).map_err(|_| Error::Dh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x25519_agrees_with_snow() {
        let mut ours = X25519Key::default();
        let mut theirs = DefaultResolver.resolve_dh(&DHChoice::Curve25519).unwrap();
        ours.set(&[0xa5; 32]);
        theirs.set(&[0xa5; 32]);
        assert_eq!(ours.pubkey(), theirs.pubkey());
        let (mut a, mut b) = ([0; 56], [0; 56]);
        let mut peer = [0; 56];
        peer[0] = 9;
        ours.dh(&peer, &mut a).unwrap();
        theirs.dh(&peer, &mut b).unwrap();
        assert_eq!(a, b);
    }

    #[test]
    fn a_peer_key_of_small_order_is_refused() {
        let mut key = X25519Key::default();
        key.set(&[3; 32]);
        let mut one = [0; 32];
        one[0] = 1;
        for peer in [[0; 32], one] {
            assert_eq!(key.dh(&peer, &mut [0; 32]), Err(Error::Dh));
        }
    }

    #[test]
    fn without_a_seed_there_is_no_randomness() {
        let resolver = SeededResolver(SeedSlot::default());
        let mut random = resolver.resolve_rng().unwrap();
        assert_eq!(random.try_fill_bytes(&mut [0; 32]), Err(Error::Rng));
        resolver.0.fill([1; 32]);
        assert_eq!(random.try_fill_bytes(&mut [0; 32]), Ok(()));
    }
}
