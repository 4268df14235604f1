//! mac1, mac2 and cookies, after `WireGuard` (Donenfeld, NDSS 2017, section 5.4.7): no work for a sender that does not
//! know our public key, and under load none for a sender that cannot prove its source address.
//!
//! - `mac1 = MAC(HASH("mac1" label, receiver's public key), everything before mac1)`, always present.
//! - A responder under load answers an initiation that lacks a good mac2 with a cookie reply. The cookie is
//!   `MAC(secret, source address and port)`; the secret changes every [`COOKIE_LIFETIME`] and the one before it is
//!   kept, so nothing is stored per source and a cookie is good for 120 to 240 s.
//! - `mac2 = MAC(cookie, everything before mac2)`.
//! - A responder that is too busy for an initiation with a good mac2 says when to come back; the mac of that reply is
//!   keyed with the cookie.
//! - The reply is encrypted with a key derived from the responder's public key and a fresh nonce, with the
//!   initiation's mac1 as associated data: only a host that saw the initiation can forge a reply, and only the
//!   initiation's sender can use it.
//!
//! MAC is keyed BLAKE2s-128, HASH keyed BLAKE2s-256. Instead of XChaCha20-Poly1305 the 24-byte nonce is hashed into a
//! ChaCha20-Poly1305 key of its own, which the AEAD then uses once.
//!
//! A cookie belongs to one source address, so an initiator with several links keeps one [`CookieCache`] per link. It
//! may send one initiation over all links: they differ in mac2 only, and the responder answers the first.
//!
//! The initiator keeps each initiation as it was sent until it is answered or given up, because a reply is checked with the
//! macs of its own initiation: over a long round trip several initiations are under way.

use core::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use thiserror::Error;
use zeroize::Zeroizing;

use super::{
    aead::{AuthError, OpeningKey, SealingKey, Suite},
    entropy::{self, Entropy},
    hash::{SecretStream, equal, mac128, mac256},
    secret::Secret,
};
use crate::{
    ids::PathId,
    time::Instant,
    wire::handshake::{
        BUSY_LEN, BusyView, COOKIE_NONCE_LEN, CookieReplyView, InitiationView, MAC_LEN, Macs,
        WireError, busy, cookie_reply,
    },
};

/// How long a secret makes cookies, and how long an initiator uses one. `WireGuard`'s value.
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(120);

/// Key of the two label hashes; labels have one length, so that label and public key cannot run together.
const LABEL_KEY: [u8; 32] = *b"pleach handshake macs, version 1";
const MAC1_LABEL: [u8; 8] = *b"mac1----";
const COOKIE_LABEL: [u8; 8] = *b"cookie--";
const BUSY_LABEL: [u8; 8] = *b"busy----";

/// Whether the sender of a datagram knows `receiver_public`.
pub(super) fn mac1_fits(receiver_public: &[u8; 32], macs: &Macs<'_>) -> bool {
    equal(&mac1(receiver_public, macs.before_mac1()), &macs.mac1())
}

/// Sets mac1 of an initiation or response that has room for both macs at its end.
pub(super) fn set_mac1(receiver_public: &[u8; 32], datagram: &mut [u8]) {
    let Some(at) = datagram.len().checked_sub(2 * MAC_LEN) else {
        return;
    };
    let mac = mac1(receiver_public, &datagram[..at]);
    datagram[at..at + MAC_LEN].copy_from_slice(&mac);
}

/// A value by which hosts that know `public`, and no others, recognise its owner, which sends it with a fresh `nonce`.
/// It proves nothing; a handshake does.
#[must_use]
pub fn recognition(public: &[u8; 32], nonce: &[u8; 16]) -> [u8; 16] {
    let key = mac256(&LABEL_KEY, &[b"greeting", public]);
    mac128(&key, &[nonce])
}

/// What a question over UDP is made of, and its answer: whether the owner of `public` hears. Like [`recognition`], it proves
/// that the sender knows `public`, nothing else.
pub(crate) fn reach_mac(public: &[u8; 32], label: &[u8; 8], nonce: &[u8; 16]) -> [u8; MAC_LEN] {
    let key = mac256(&LABEL_KEY, &[label, public]);
    mac128(&key, &[nonce])
}

/// The responder's side: checks macs, makes cookies.
pub struct CookieJar {
    /// Keys that follow from our public key alone, kept because every stranger makes us need the first.
    mac1_key: [u8; 32],
    reply_base: [u8; 32],
    current: JarSecret,
    previous: Option<JarSecret>,
    changed_at: Instant,
}

/// What cookies are made of, and the nonces of the replies that carry them, for one [`COOKIE_LIFETIME`].
struct JarSecret {
    key: Secret,
    nonces: SecretStream,
}

impl JarSecret {
    fn new(entropy: &mut dyn Entropy) -> Self {
        let seed = entropy::secret(entropy);
        let mut random = SecretStream::new(seed.expose(), b"pleach cookies");
        Self {
            key: Secret::filled_by(|key| random.fill(key)),
            nonces: random,
        }
    }
}

impl CookieJar {
    /// A jar for the owner of `local_public`.
    #[must_use]
    pub fn new(now: Instant, local_public: &[u8; 32], entropy: &mut dyn Entropy) -> Self {
        Self {
            mac1_key: mac1_key(local_public),
            reply_base: reply_base(local_public),
            current: JarSecret::new(entropy),
            previous: None,
            changed_at: now,
        }
    }

    /// Whether `datagram` is an initiation made for our public key. Check this first; it costs one hash.
    #[must_use]
    pub fn is_valid_mac1(&self, datagram: &[u8]) -> bool {
        InitiationView::new(datagram).is_ok_and(|view| {
            let macs = view.macs();
            equal(&mac128(&self.mac1_key, &[macs.before_mac1()]), &macs.mac1())
        })
    }

    /// Whether the initiation `datagram` carries a cookie that we made for `source` and that is still valid, as of the
    /// last [`Self::refresh`].
    #[must_use]
    pub fn check_mac2(&self, source: SocketAddr, datagram: &[u8]) -> bool {
        let Ok(view) = InitiationView::new(datagram) else {
            return false;
        };
        let macs = view.macs();
        if macs.mac2() == [0; MAC_LEN] {
            // Its sender has no cookie: this saves two or four hashes.
            return false;
        }
        [Some(&self.current), self.previous.as_ref()]
            .into_iter()
            .flatten()
            .any(|secret| {
                let cookie = cookie(secret.key.expose(), source);
                equal(&mac2(&cookie, macs.before_mac2()), &macs.mac2())
            })
    }

    /// The cookie reply to the initiation `datagram` from `source`. Asks for no entropy.
    ///
    /// # Errors
    /// [`WireError`] if `datagram` is no initiation.
    pub fn reply(&mut self, source: SocketAddr, datagram: &[u8]) -> Result<Vec<u8>, WireError> {
        let view = InitiationView::new(datagram)?;
        let nonce = self.current.nonces.array();
        let mut sealed = [0; 32];
        sealed[..16].copy_from_slice(&cookie(self.current.key.expose(), source));
        let key = mac256(&self.reply_base, &[&nonce]);
        let tag = SealingKey::new(Suite::ChaCha20Poly1305, &key).seal(
            PathId(0),
            0,
            &view.macs().mac1(),
            &mut sealed[..16],
        );
        sealed[16..].copy_from_slice(&tag);
        Ok(cookie_reply(view.sender_index(), &nonce, &sealed).to_vec())
    }

    /// Replaces the secret and removes the previous ones.
    pub fn renew(&mut self, now: Instant, entropy: &mut dyn Entropy) {
        self.current = JarSecret::new(entropy);
        self.previous = None;
        self.changed_at = now;
    }

    /// Creates the reply that asks the owner of a cookie, who sent the initiation `datagram` with it from `source`, to
    /// come back after `wait`; `None` if the initiation carries no valid cookie.
    #[must_use]
    pub fn busy(&self, source: SocketAddr, datagram: &[u8], wait: Duration) -> Option<Vec<u8>> {
        let view = InitiationView::new(datagram).ok()?;
        let mac2_of = |secret: &JarSecret| {
            let cookie = cookie(secret.key.expose(), source);
            let fits = equal(
                &mac2(&cookie, view.macs().before_mac2()),
                &view.macs().mac2(),
            );
            fits.then_some(cookie)
        };
        let secrets = [Some(&self.current), self.previous.as_ref()];
        let cookie = secrets.into_iter().flatten().find_map(mac2_of)?;
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let mut reply = busy(view.sender_index(), wait_ms);
        let (covered, mac): (&mut [u8], &mut [u8]) = reply.split_at_mut(BUSY_LEN - MAC_LEN);
        mac.copy_from_slice(&busy_mac(&cookie, covered, &view.macs().mac2()));
        Some(reply.to_vec())
    }

    /// Changes the secret early, because the initiations that it proves can no longer be remembered.
    pub fn hasten(&mut self, now: Instant, entropy: &mut dyn Entropy) {
        self.previous = Some(core::mem::replace(
            &mut self.current,
            JarSecret::new(entropy),
        ));
        self.changed_at = now;
    }

    /// Changes the secret if it is due. Returns whether it did. Call this before the other methods.
    pub fn refresh(&mut self, now: Instant, entropy: &mut dyn Entropy) -> bool {
        let age = now.since(self.changed_at);
        if age < COOKIE_LIFETIME {
            return false;
        }
        let fresh = JarSecret::new(entropy);
        let old = core::mem::replace(&mut self.current, fresh);
        if age < 2 * COOKIE_LIFETIME {
            // Counted from when the change was due, so that a late call does not stretch a cookie's life.
            self.previous = Some(old);
            self.changed_at += COOKIE_LIFETIME;
        } else {
            self.previous = None;
            self.changed_at = now;
        }
        true
    }
}

impl fmt::Debug for CookieJar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CookieJar")
            .field("changed_at", &self.changed_at)
            .finish_non_exhaustive()
    }
}

/// Why a cookie reply is rejected.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CookieError {
    /// The responder did not make it for this initiation.
    #[error("cookie reply does not authenticate")]
    Authentication,
    /// It contains the cookie that we already have: a copy of an earlier reply. Repeating the initiation would not
    /// help.
    #[error("cookie known already")]
    Known,
    /// It is not a cookie reply.
    #[error("malformed cookie reply: {0}")]
    Malformed(#[from] WireError),
    /// The index in it is not that of the initiation.
    #[error("cookie reply to another initiation")]
    WrongReceiver,
}

/// The initiator's side, for one local link: keeps the last cookie.
pub struct CookieCache {
    remote_public: [u8; 32],
    cookie: Option<(Instant, Zeroizing<[u8; 16]>)>,
}

impl CookieCache {
    /// An empty cache for handshakes with the owner of `remote_public`.
    #[must_use]
    pub const fn new(remote_public: &[u8; 32]) -> Self {
        Self {
            remote_public: *remote_public,
            cookie: None,
        }
    }

    /// Prepares an initiation for this link: sets mac1, and mac2 if there is a cookie (else zero).
    ///
    /// # Errors
    /// [`WireError`] if `datagram` is no initiation.
    pub fn stamp(&mut self, now: Instant, datagram: &mut [u8]) -> Result<(), WireError> {
        set_mac1(&self.remote_public, datagram);
        let view = InitiationView::new(datagram)?;
        self.cookie
            .take_if(|(received_at, _)| now.since(*received_at) >= COOKIE_LIFETIME);
        let mac = self.cookie.as_ref().map_or([0; MAC_LEN], |(_, cookie)| {
            mac2(cookie, view.macs().before_mac2())
        });
        let at = datagram.len() - MAC_LEN;
        datagram[at..].copy_from_slice(&mac);
        Ok(())
    }

    /// How long the gateway asks us to wait in the busy reply `datagram` to the initiation `sent`, as stamped.
    ///
    /// # Errors
    /// Why the reply is not for us.
    pub fn handle_busy(&self, sent: &[u8], datagram: &[u8]) -> Result<Duration, CookieError> {
        let view = BusyView::new(datagram)?;
        let sent = InitiationView::new(sent)?;
        if view.receiver_index() != sent.sender_index() {
            return Err(CookieError::WrongReceiver);
        }
        let Some((_, cookie)) = &self.cookie else {
            return Err(CookieError::Authentication);
        };
        let mac = busy_mac(cookie, view.before_mac(), &sent.macs().mac2());
        if !equal(&mac, &view.mac()) {
            return Err(CookieError::Authentication);
        }
        Ok(Duration::from_millis(view.wait_ms().into()))
    }

    /// Takes the cookie out of the reply `datagram` to the initiation `sent`, as stamped. Then stamp and send the same
    /// initiation again.
    ///
    /// # Errors
    /// Why the reply is not for us.
    pub fn handle_reply(
        &mut self,
        now: Instant,
        sent: &[u8],
        datagram: &[u8],
    ) -> Result<(), CookieError> {
        let view = CookieReplyView::new(datagram)?;
        let sent = InitiationView::new(sent)?;
        if view.receiver_index() != sent.sender_index() {
            return Err(CookieError::WrongReceiver);
        }
        let mut sealed = view.sealed_cookie();
        let key = reply_key(&self.remote_public, &view.nonce());
        OpeningKey::new(Suite::ChaCha20Poly1305, &key)
            .open(PathId(0), 0, &sent.macs().mac1(), &mut sealed)
            .map_err(|AuthError| CookieError::Authentication)?;
        let cookie = sealed.first_chunk().copied().unwrap_or_default();
        let is_known = |(_, known): &(Instant, Zeroizing<[u8; 16]>)| **known == cookie;
        if self.cookie.as_ref().is_some_and(is_known) {
            return Err(CookieError::Known);
        }
        self.cookie = Some((now, Zeroizing::new(cookie)));
        Ok(())
    }
}

impl fmt::Debug for CookieCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CookieCache")
            .field("received_at", &self.cookie.as_ref().map(|(at, _)| at))
            .finish_non_exhaustive()
    }
}

fn mac1(receiver_public: &[u8; 32], covered: &[u8]) -> [u8; MAC_LEN] {
    mac128(&mac1_key(receiver_public), &[covered])
}

fn mac1_key(receiver_public: &[u8; 32]) -> [u8; 32] {
    mac256(&LABEL_KEY, &[&MAC1_LABEL, receiver_public])
}

fn mac2(cookie: &[u8; 16], covered: &[u8]) -> [u8; MAC_LEN] {
    let mut key = Zeroizing::new([0; 32]);
    key[..16].copy_from_slice(cookie);
    mac128(&key, &[covered])
}

/// An IPv4 address counts the same whether it arrives as such or mapped into IPv6.
fn cookie(secret: &[u8; 32], source: SocketAddr) -> [u8; 16] {
    let port = source.port().to_be_bytes();
    match source.ip().to_canonical() {
        IpAddr::V4(ip) => mac128(secret, &[&ip.octets(), &port]),
        IpAddr::V6(ip) => mac128(secret, &[&ip.octets(), &port]),
    }
}

fn reply_key(responder_public: &[u8; 32], nonce: &[u8; COOKIE_NONCE_LEN]) -> [u8; 32] {
    mac256(&reply_base(responder_public), &[nonce])
}

fn reply_base(responder_public: &[u8; 32]) -> [u8; 32] {
    mac256(&LABEL_KEY, &[&COOKIE_LABEL, responder_public])
}

/// The mac of a busy reply to an initiation with `mac2`; `covered`: the reply before its mac.
fn busy_mac(cookie: &[u8; 16], covered: &[u8], mac2: &[u8; MAC_LEN]) -> [u8; MAC_LEN] {
    let mut key = Zeroizing::new([0; 32]);
    key[..16].copy_from_slice(cookie);
    mac128(&key, &[&BUSY_LABEL, mac2, covered])
}

#[cfg(test)]
mod tests;
