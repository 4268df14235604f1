//! The token of `pleach peer invite`.
//!
//! `pleachpeer1` and base32 as in [`crate::onboard::token`] of: version (1), secret (32), public key of the end that invites
//! (32), end of its life in seconds since 1970 (4), length (1) and name of that end, count and addresses at which it answers,
//! count and networks that it takes connections to, checksum (4).

use std::{fmt, net::SocketAddr};

use ipnet::IpNet;
use pleach_core::session::{
    invitation::{InvitationKey, id},
    secret::Secret,
};
use zeroize::Zeroizing;

use crate::{
    config,
    onboard::token::{
        self, Reader, TokenError, VERSION, decode_text, encode_text, push_endpoint, push_list,
        push_prefix,
    },
};

/// What a proxy needs to become a peer.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PeerToken {
    pub(super) secret: Secret,
    /// Of the end that invites.
    pub(super) public_key: [u8; 32],
    /// Seconds since 1970.
    pub(super) expires_at: u32,
    /// What the end that invites is called.
    pub(super) name: String,
    /// Where it answers; at least one.
    pub(super) endpoints: Vec<SocketAddr>,
    /// Where else it takes connections to.
    pub(super) networks: Vec<IpNet>,
}

impl PeerToken {
    /// Which invitation it is.
    pub(super) fn id(&self) -> [u8; 16] {
        id(&self.secret)
    }

    /// What the end that invites keeps of the secret.
    pub(super) fn key(&self) -> InvitationKey {
        InvitationKey::from_secret(&self.secret)
    }

    /// The token as text, lower case.
    ///
    /// # Panics
    /// If a list is longer than [`token::MAX_ITEMS`].
    pub(super) fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(1024));
        bytes.push(VERSION);
        bytes.extend_from_slice(self.secret.expose());
        bytes.extend_from_slice(&self.public_key);
        bytes.extend_from_slice(&self.expires_at.to_be_bytes());
        bytes.push(u8::try_from(self.name.len()).unwrap_or(0));
        bytes.extend_from_slice(self.name.as_bytes());
        push_list(&mut bytes, &self.endpoints, push_endpoint);
        push_list(&mut bytes, &self.networks, push_prefix);
        encode_text(PREFIX, bytes)
    }

    /// Finds the token in `text`, as [`token::Token::from_text`] does.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn from_text(text: &str) -> Result<Self, String> {
        let bytes = decode_text(PREFIX, VERSION, text).map_err(|error| error.to_string())?;
        let Some(bytes) = bytes else {
            let is_clients = matches!(decode_text(token::PREFIX, u8::MAX, text), Ok(Some(_)));
            return Err(if is_clients {
                "this token is for a client of a gateway: give it to `pleach join`"
            } else {
                "this is no token: paste the line that begins with \"pleachpeer1\", as `pleach peer invite` prints it"
            }
            .to_owned());
        };
        let read = Self::read(Reader(&bytes[1..]));
        read.ok_or_else(|| TokenError::Damaged.to_string())
    }

    fn read(mut from: Reader<'_>) -> Option<Self> {
        let secret = Secret::from(&from.array()?);
        let public_key = from.array()?;
        let expires_at = u32::from_be_bytes(from.array()?);
        let [len] = from.array()?;
        let (name, rest) = from.0.split_at_checked(len.into())?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        let mut from = Reader(rest);
        let token = Self {
            secret,
            public_key,
            expires_at,
            name,
            endpoints: from.list(Reader::endpoint)?,
            networks: from.list(Reader::prefix)?,
        };
        let is_whole =
            from.0.is_empty() && !token.endpoints.is_empty() && config::is_name(&token.name);
        is_whole.then_some(token)
    }
}

impl fmt::Debug for PeerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerToken")
            .field("name", &self.name)
            .field("expires_at", &self.expires_at)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

/// How every token of a peer begins.
pub(super) const PREFIX: &str = "pleachpeer1";

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> PeerToken {
        PeerToken {
            secret: Secret::from([7; 32]),
            public_key: [9; 32],
            expires_at: 0x6789_abcd,
            name: "server".to_owned(),
            endpoints: ["203.0.113.5:7701", "[2001:db8::5]:7701"]
                .map(|text| text.parse().expect("endpoint"))
                .to_vec(),
            networks: vec!["10.20.0.0/16".parse().expect("network")],
        }
    }

    #[test]
    fn a_token_survives_text_and_every_damage_is_seen() {
        let text = token().to_text();
        assert_eq!(PeerToken::from_text(&text), Ok(token()));
        let mail = format!("Here:\n  {}\n\nRegards", text.to_ascii_uppercase());
        assert_eq!(PeerToken::from_text(&mail), Ok(token()));
        for at in PREFIX.len()..text.len() {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'a' { b'b' } else { b'a' };
            let damaged = String::from_utf8(bytes).expect("ASCII");
            assert!(PeerToken::from_text(&damaged).is_err(), "{at}");
            assert!(PeerToken::from_text(&text[..at]).is_err(), "{at}");
        }
        assert!(!format!("{:?}", token()).contains("7, 7"));
    }

    #[test]
    fn a_token_of_a_gateway_is_told_apart() {
        let clients = encode_text(token::PREFIX, Zeroizing::new(vec![VERSION, 1, 2]));
        let said = PeerToken::from_text(&clients).expect_err("of a gateway");
        assert!(said.contains("pleach join"), "{said}");
        let ours = token().to_text();
        let said = token::Token::from_text(&ours).expect_err("of a peer");
        assert_eq!(said, TokenError::NotAToken);
    }
}
