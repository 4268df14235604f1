//! How client and gateway recognise each other inside TLS, without an authority.
//!
//! The client draws an X25519 key pair `e` for each connection. With the gateway's static key `S` both ends have `DH(e, S)`, the
//! client from the public key in its configuration. They show each other tags under it:
//!
//! - client: `e`, the set's id, `HMAC-SHA256(DH, "client" ‖ id ‖ binding)`, shortened to 16 bytes. Who does not know the gateway's
//!   public key cannot make it, and gets the answer of a web server that has nothing.
//! - gateway: `HMAC-SHA256(DH, "server" ‖ id ‖ binding)`. Only the owner of `S` can make it.
//!
//! `binding` is the exporter of the TLS session (RFC 8446 section 7.5), so tags that somebody in between forwards from one TLS session to
//! another do not fit. It is empty if a web server in front of the gateway ends TLS; then the certificate of that server
//! must be pinned, or issued by an authority that the client trusts.
//!
//! The gateway's own certificate is self-signed. Its serial number is a MAC of its key under the gateway's public key, by
//! which a client tells it from one of an interceptor before it sends anything.

use aws_lc_rs::{
    agreement::{self, PrivateKey, UnparsedPublicKey, X25519},
    constant_time::verify_slices_are_equal,
    digest, hmac,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

/// Which set of connections one belongs to; drawn at random by the client.
pub type SetId = [u8; 16];

/// A client's half.
pub(crate) struct Greeting {
    key: hmac::Key,
    set: SetId,
    text: String,
}

impl Greeting {
    /// A greeting for the owner of `gateway_key`; `None` if no key can be drawn, or `gateway_key` is none.
    pub(crate) fn new(gateway_key: &[u8; 32], set: SetId, binding: &[u8]) -> Option<Self> {
        let own = PrivateKey::generate(&X25519).ok()?;
        let public = own.compute_public_key().ok()?;
        let key = shared_key(&own, gateway_key)?;
        let tag = tag(&key, CLIENT, &set, binding);
        let bytes = [public.as_ref(), &set, &tag].concat();
        Some(Self {
            key,
            set,
            text: URL_SAFE_NO_PAD.encode(bytes),
        })
    }

    /// What the request shows.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether `answer` is of the owner of the gateway's key, in the same TLS session.
    pub(crate) fn accepts(&self, answer: &str, binding: &[u8]) -> bool {
        let Ok(shown) = URL_SAFE_NO_PAD.decode(answer) else {
            return false;
        };
        let wanted = tag(&self.key, SERVER, &self.set, binding);
        verify_slices_are_equal(&shown, &wanted).is_ok()
    }
}

/// A gateway's half.
pub(crate) struct GatewayKey(Zeroizing<[u8; 32]>);

impl GatewayKey {
    pub(crate) fn new(private: &[u8; 32]) -> Self {
        Self(Zeroizing::new(*private))
    }

    /// The set that a client names which knows our public key, and what to answer; `None` for anybody else.
    pub(crate) fn answer(&self, shown: &str, binding: &[u8]) -> Option<(SetId, String)> {
        let bytes: [u8; 64] = URL_SAFE_NO_PAD.decode(shown).ok()?.try_into().ok()?;
        let (public, rest) = bytes.split_first_chunk::<32>()?;
        let (set, shown) = rest.split_first_chunk::<16>()?;
        let own = PrivateKey::from_private_key(&X25519, self.0.as_slice()).ok()?;
        let key = shared_key(&own, public)?;
        let bindings = [binding, &[]];
        let binding = bindings.into_iter().find(|binding| {
            verify_slices_are_equal(shown, &tag(&key, CLIENT, set, binding)).is_ok()
        })?;
        let answer = tag(&key, SERVER, set, binding);
        Some((*set, URL_SAFE_NO_PAD.encode(answer)))
    }
}

/// What the serial number of the gateway's certificate holds, for the public key `spki` in it.
pub(crate) fn certificate_mark(gateway_key: &[u8; 32], spki: &[u8]) -> [u8; 16] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, gateway_key);
    tag(&key, b"certificate", &[0; 16], spki)
}

/// SHA-256 as hexadecimal digits.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, bytes);
    hash.as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn shared_key(own: &PrivateKey, other: &[u8; 32]) -> Option<hmac::Key> {
    let other = UnparsedPublicKey::new(&X25519, other);
    agreement::agree(own, other, (), |secret| {
        Ok(hmac::Key::new(hmac::HMAC_SHA256, secret))
    })
    .ok()
}

fn tag(key: &hmac::Key, who: &[u8], set: &SetId, binding: &[u8]) -> [u8; 16] {
    let mut context = hmac::Context::with_key(key);
    for part in [b"pleach carrier 1 ".as_slice(), who, set, binding] {
        context.update(part);
    }
    let mut short = [0; 16];
    for (to, from) in short.iter_mut().zip(context.sign().as_ref()) {
        *to = *from;
    }
    short
}

const CLIENT: &[u8] = b"client";
const SERVER: &[u8] = b"server";

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (GatewayKey, [u8; 32]) {
        let own = PrivateKey::from_private_key(&X25519, &[7; 32]).expect("any bytes");
        let public = own.compute_public_key().expect("public");
        let public = public.as_ref().try_into().expect("32 bytes");
        (GatewayKey::new(&[7; 32]), public)
    }

    #[test]
    fn both_ends_recognise_each_other_in_one_tls_session() {
        let (gateway, public) = pair();
        for binding in [&b"session"[..], &[]] {
            let greeting = Greeting::new(&public, [3; 16], binding).expect("a greeting");
            let (set, answer) = gateway.answer(greeting.text(), b"session").expect("known");
            assert_eq!(set, [3; 16]);
            assert!(greeting.accepts(&answer, binding));
        }
    }

    #[test]
    fn a_tag_of_another_tls_session_or_key_does_not_fit() {
        let (gateway, public) = pair();
        let greeting = Greeting::new(&public, [3; 16], b"one").expect("a greeting");
        assert!(gateway.answer(greeting.text(), b"other").is_none());
        let (_, answer) = gateway.answer(greeting.text(), b"one").expect("known");
        assert!(!greeting.accepts(&answer, b"other") && !greeting.accepts("", b"one"));
        assert!(
            GatewayKey::new(&[8; 32])
                .answer(greeting.text(), b"one")
                .is_none()
        );
        for bad in ["", "abc", "!!", &"A".repeat(86)] {
            assert!(gateway.answer(bad, b"one").is_none());
        }
    }
}
