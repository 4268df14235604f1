//! The parts that pleach passes to snow: the pattern, a resolver whose randomness comes from a seed, and X25519.
//!
//! snow draws randomness only for its ephemeral key. The source is a [`SecretStream`] of a seed in a [`SeedSlot`],
//! because snow requests the source before a responder gets its seed. X25519 comes from aws-lc-rs, which wipes its keys
//! and rejects a peer key of small order (RFC 7748 section 6.1). So a placeholder of zeros in a configuration
//! authenticates nobody. All other parts are snow's defaults.

use std::sync::{Arc, OnceLock};

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use snow::{
    Builder, Error,
    params::{CipherChoice, DHChoice, HashChoice},
    resolvers::{CryptoResolver, DefaultResolver},
    types::{Cipher, Dh, Hash, Random},
};
use zeroize::Zeroizing;

use super::{hash::SecretStream, secret::Secret};

/// The Noise protocol name.
const PATTERN: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";

/// Storage for the seed of a handshake, which must be filled before the handshake's message is written.
#[derive(Clone, Default)]
pub(super) struct SeedSlot(Arc<OnceLock<Secret>>);

impl SeedSlot {
    pub(super) fn filled(seed: Secret) -> Self {
        let slot = Self::default();
        slot.fill(seed);
        slot
    }

    /// Stores `seed`, unless a seed is already stored.
    pub(super) fn fill(&self, seed: Secret) {
        self.0.get_or_init(|| seed);
    }
}

/// Returns a builder for either role. `public` is the public key of the only private key that the builder will be
/// given, so that it is not computed for each handshake; `None` if it is not known.
pub(super) fn builder<'a>(slot: SeedSlot, public: Option<[u8; 32]>) -> Builder<'a> {
    let pattern = PATTERN.parse().expect("snow knows the pattern");
    Builder::with_resolver(pattern, Box::new(SeededResolver { slot, public }))
}

/// Returns the public key of an X25519 private key.
pub(super) fn public_key(private: &[u8; 32]) -> [u8; 32] {
    let public = private_key(private).and_then(|key| {
        let public = key.compute_public_key().map_err(|_| Error::Dh)?;
        public.as_ref().try_into().map_err(|_| Error::Dh)
    });
    public.expect("X25519 takes any 32 bytes as a private key")
}

struct SeededResolver {
    slot: SeedSlot,
    public: Option<[u8; 32]>,
}

impl CryptoResolver for SeededResolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(SeededRandom {
            slot: self.slot.clone(),
            stream: None,
        }))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::new(X25519Key {
                known: self.public,
                ..X25519Key::default()
            })),
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
            .get_or_insert_with(|| SecretStream::new(seed.expose(), b"pleach ephemeral key"))
            .fill(dest);
        Ok(())
    }
}

#[derive(Default)]
struct X25519Key {
    private: Zeroizing<[u8; 32]>,
    public: [u8; 32],
    /// Public key of the static key, which snow passes to [`Dh::set`]. Ephemeral keys are generated instead.
    known: Option<[u8; 32]>,
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
        self.public = self.known.unwrap_or_else(|| public_key(&self.private));
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
        // snow passes its largest public key buffer, whose first 32 bytes are the key.
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
        let resolver = SeededResolver {
            slot: SeedSlot::default(),
            public: None,
        };
        let mut random = resolver.resolve_rng().unwrap();
        assert_eq!(random.try_fill_bytes(&mut [0; 32]), Err(Error::Rng));
        resolver.slot.fill(Secret::from([1; 32]));
        assert_eq!(random.try_fill_bytes(&mut [0; 32]), Ok(()));
    }

    /// A handshake and three transport messages of `Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s` from the test vectors of
    /// cacophony, an implementation in Haskell, as the crate snow (MIT or Apache-2.0) ships them in
    /// `tests/vectors/cacophony.txt`.
    #[test]
    fn the_handshake_is_noise_as_others_compute_it() {
        let prologue = hex("4a6f686e2047616c74");
        let psk = hex("54686973206973206d7920417573747269616e20706572737065637469766521");
        let client_static = hex("e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1");
        let client_ephemeral =
            hex("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a");
        let gateway_public =
            hex("31e0303fd6418d2f8c0e78b91f22e8caed0fbe48656dcf4767e4834f701b8f62");
        let gateway_static =
            hex("4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893");
        let gateway_ephemeral =
            hex("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b");
        let psk = psk.first_chunk().unwrap();
        let mut client = builder(SeedSlot::default(), None)
            .local_private_key(&client_static)
            .and_then(|builder| builder.remote_public_key(&gateway_public))
            .and_then(|builder| builder.psk(2, psk))
            .and_then(|builder| builder.prologue(&prologue))
            .map(|builder| builder.fixed_ephemeral_key_for_testing_only(&client_ephemeral))
            .and_then(Builder::build_initiator)
            .unwrap();
        let mut gateway = builder(SeedSlot::default(), None)
            .local_private_key(&gateway_static)
            .and_then(|builder| builder.psk(2, psk))
            .and_then(|builder| builder.prologue(&prologue))
            .map(|builder| builder.fixed_ephemeral_key_for_testing_only(&gateway_ephemeral))
            .and_then(Builder::build_responder)
            .unwrap();
        let (mut sent, mut read) = ([0; 256], [0; 256]);

        let len = client
            .write_message(&hex("4c756477696720766f6e204d69736573"), &mut sent)
            .unwrap();
        let expected = "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944001e21de9f98ddd8e2ad\
             57527207feb56253c9c94a9e496782ecfcb2a75fbcaf1b52948cc48daefe660c62119ab5000980c84831215f2441eba616548e83\
             2985464cf17e51ee93109008399a21f7e13f";
        assert_eq!(sent[..len], hex(expected));
        let len = gateway.read_message(&sent[..len], &mut read).unwrap();
        assert_eq!(&read[..len], b"Ludwig von Mises");

        let len = gateway
            .write_message(b"Murray Rothbard", &mut sent)
            .unwrap();
        let expected = "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843cb765f2caef0751b8f00\
             7572dab0322217755c0632f365717edbf34d33e87a";
        assert_eq!(sent[..len], hex(expected));
        let len = client.read_message(&sent[..len], &mut read).unwrap();
        assert_eq!(&read[..len], b"Murray Rothbard");

        let hash = hex("f5191b875290abcd41347ac3622d9679688a7e980229cb937ef748336cfde0e5");
        assert_eq!(client.get_handshake_hash(), hash);
        assert_eq!(gateway.get_handshake_hash(), hash);
        // The keys of both directions are used as in pleach: without snow's transport, with explicit nonces.
        let (from_client, from_gateway) = client.dangerously_get_raw_split();
        assert_eq!(
            (from_client, from_gateway),
            gateway.dangerously_get_raw_split()
        );
        for (key, counter, sealed, expected) in [
            (
                from_client,
                0_u64,
                "8153ca9833bc3c1b91a7e66e5f4d4f5b59bf9e64c2f20d15f0bba7",
                "F. A. Hayek",
            ),
            (
                from_gateway,
                0,
                "07af0c9c86e1b4e80f36b04ff7688d51141af3debd0332f0a705ef",
                "Carl Menger",
            ),
            (
                from_client,
                1,
                "6ab1467c0448cc78394494abaaf23afce0e234315d6e2624dcbfa8a21c1c4d073d",
                "Jean-Baptiste Say",
            ),
        ] {
            let mut cipher = DefaultResolver
                .resolve_cipher(&CipherChoice::ChaChaPoly)
                .unwrap();
            cipher.set(&key);
            let len = cipher
                .decrypt(counter, b"", &hex(sealed), &mut read)
                .unwrap();
            assert_eq!(&read[..len], expected.as_bytes());
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text
            .chars()
            .filter_map(|digit| digit.to_digit(16))
            .map(|digit| u8::try_from(digit).unwrap())
            .collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()
    }
}
