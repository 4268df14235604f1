//! Invitations, by which a gateway learns the static key of a new client.
//!
//! An invitation is a secret of 32 random bytes that a client receives once, over a channel that only it can read. All
//! other values are derived from it by keyed BLAKE2s (RFC 7693 section 2.9) over fixed labels:
//!
//! ```text
//! id    = BLAKE2s-128(secret, "pleach invitation id")        identifies the invitation
//! key   = BLAKE2s-256(secret, "pleach invitation key")       stored by the gateway, instead of the secret
//! psk   = BLAKE2s-256(key, "pleach invitation psk")          pre-shared key of the handshake
//! proof = BLAKE2s-128(BLAKE2s-256(key, "pleach invitation proof"), client static key ‖ gateway static key)
//! ```
//!
//! The client generates its own static key. It sends id and proof as a [`Claim`] after the Hello of its initiation.
//! Noise encrypts the Hello for the gateway and authenticates it by the client's static key (IK, security properties of
//! payload 1: source 1, destination 2). The proof covers that key, so a claim is useless with another key. A replay
//! enrols the same client once more, which changes nothing. The handshake then continues with the psk at both ends.
//!
//! A gateway stores id and key, not the secret. An attacker who reads its file can impersonate the gateway, whose
//! static key is stored next to the file anyway. The attacker can also claim open invitations, but cannot create a
//! token. To guess a claim, an attacker has to guess 128 bits of id and proof.
//!
//! The owner ensures that an invitation is used once and expires; see [`crate::endpoint::enrolment`].

use core::fmt;

use super::{
    hash::{equal, mac128, mac256},
    secret::Secret,
};
pub use crate::wire::handshake::Claim;

/// Value that a gateway stores instead of an invitation's secret. Wiped on drop, hidden in `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct InvitationKey(Secret);

impl InvitationKey {
    /// Returns the key derived from the secret of an invitation.
    #[must_use]
    pub fn from_secret(secret: &Secret) -> Self {
        Self(derive(secret, b"pleach invitation key"))
    }

    /// Returns the key whose bytes were stored.
    #[must_use]
    pub const fn from_kept(key: Secret) -> Self {
        Self(key)
    }

    /// Returns the bytes to store.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        self.0.expose()
    }

    /// Returns the pre-shared key of the client that uses the invitation, and of its gateway.
    #[must_use]
    pub fn psk(&self) -> Secret {
        derive(&self.0, b"pleach invitation psk")
    }

    /// Returns the proof that the owner of `client_public` knows the key. It is valid only at the owner of
    /// `gateway_public`.
    #[must_use]
    pub fn proof(&self, client_public: &[u8; 32], gateway_public: &[u8; 32]) -> [u8; 16] {
        let key = derive(&self.0, b"pleach invitation proof");
        mac128(key.expose(), &[client_public, gateway_public])
    }

    /// Whether `claim` proves this key for `client_public`; in constant time.
    #[must_use]
    pub fn fits(&self, claim: &Claim, client_public: &[u8; 32], gateway_public: &[u8; 32]) -> bool {
        equal(&self.proof(client_public, gateway_public), &claim.proof)
    }
}

impl fmt::Debug for InvitationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InvitationKey(hidden)")
    }
}

/// Returns the id of the invitation with this `secret`. The id is unpredictable without the secret, and does not reveal
/// it.
#[must_use]
pub fn id(secret: &Secret) -> [u8; 16] {
    mac128(secret.expose(), &[b"pleach invitation id"])
}

/// Returns four bytes by which damage of a written invitation is detected. They do not protect against deliberate
/// changes.
#[must_use]
pub fn checksum(bytes: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = mac128(&[0; 32], &[b"pleach token checksum", bytes]);
    [a, b, c, d]
}

fn derive(secret: &Secret, label: &[u8]) -> Secret {
    Secret::filled_by(|out| *out = mac256(secret.expose(), &[label]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_one_client_at_one_gateway_only() {
        let key = InvitationKey::from_secret(&Secret::from([7; 32]));
        let claim = Claim {
            id: id(&Secret::from([7; 32])),
            proof: key.proof(&[1; 32], &[2; 32]),
        };
        assert!(key.fits(&claim, &[1; 32], &[2; 32]));
        assert!(!key.fits(&claim, &[3; 32], &[2; 32]));
        assert!(!key.fits(&claim, &[1; 32], &[3; 32]));
        let other = InvitationKey::from_secret(&Secret::from([8; 32]));
        assert!(!other.fits(&claim, &[1; 32], &[2; 32]));
    }

    #[test]
    fn what_follows_from_a_secret_differs_and_is_kept_whole() {
        let secret = Secret::from([7; 32]);
        let key = InvitationKey::from_secret(&secret);
        let kept = InvitationKey::from_kept(Secret::from(*key.expose()));
        assert_eq!(kept, key);
        let psk = key.psk();
        assert_eq!(kept.psk(), psk);
        assert_ne!(psk.expose(), key.expose());
        assert_ne!(key.expose(), secret.expose());
        assert_ne!(&psk.expose()[..16], id(&secret));
        assert_eq!(format!("{key:?}"), "InvitationKey(hidden)");
    }
}
