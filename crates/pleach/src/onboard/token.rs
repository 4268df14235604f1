//! The token: one line of text that makes a host a client.
//!
//! `pleach1` and base32 (RFC 4648, no padding; any case is read) of these bytes, integers big-endian:
//!
//! ```text
//! 0        version: 2 if there are resolvers, else 1
//! 1..33    one-time secret
//! 33..65   static key of the gateway
//! 65..69   end of its life, seconds since 1970
//! then     count and inner addresses of the client, each a prefix
//! then     count and outer addresses of the gateway, each a family (4 or 6), the address, a port
//! then     count and destinations that go through the tunnel, each a prefix; none: all
//! then     version 2: count and resolvers of the client, each a family (4 or 6) and the address
//! last 4   checksum
//! ```
//!
//! A prefix is its length, plus 64 if IPv6, and 4 or 16 bytes of address. Base32 has no character that a chat program
//! takes for markup, and fits the dense mode of QR codes.
//!
//! The checksum finds damage; who may alter a token can put another gateway in it, so it has to travel as a password does.
//! The end of life is for messages only: the gateway decides. Bounds: [`MAX_ITEMS`] of each list, [`MAX_TEXT_BYTES`] of text.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use data_encoding::BASE32_NOPAD;
use ipnet::IpNet;
use pleach_core::session::{
    invitation::{InvitationKey, checksum, id},
    secret::Secret,
};
use zeroize::Zeroizing;

/// What a client needs to become one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Known to this token and, by what follows from it, to the gateway.
    pub(crate) secret: Secret,
    /// The gateway's static key.
    pub(crate) gateway_key: [u8; 32],
    /// Seconds since 1970.
    pub(crate) expires_at: u32,
    /// Inner addresses of the client with their networks.
    pub(crate) addresses: Vec<IpNet>,
    /// Where the gateway listens.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// What goes through the tunnel; empty: everything.
    pub(crate) routes: Vec<IpNet>,
    /// Resolvers while the tunnel runs; empty: the host's own.
    pub(crate) dns: Vec<IpAddr>,
}

/// Why a text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    /// Characters are missing or wrong.
    #[error("the token is damaged: copy it again, whole")]
    Damaged,
    /// Something else.
    #[error(
        "this is no token: paste the line that begins with \"pleach1\", as `pleach gateway invite` prints it"
    )]
    NotAToken,
    /// Made by another version.
    #[error("the token is of version {0}, which this program does not read: update it")]
    Version(u8),
}

impl Token {
    /// Which invitation it is.
    pub(crate) fn id(&self) -> [u8; 16] {
        id(&self.secret)
    }

    /// What the gateway keeps of the secret.
    pub(crate) fn key(&self) -> InvitationKey {
        InvitationKey::from_secret(&self.secret)
    }

    /// The token as text, lower case.
    ///
    /// # Panics
    /// If a list is longer than [`MAX_ITEMS`].
    pub(crate) fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(1024));
        // Programs that know no resolvers read what has none.
        let has_dns = !self.dns.is_empty();
        bytes.push(if has_dns { WITH_DNS } else { VERSION });
        bytes.extend_from_slice(self.secret.expose());
        bytes.extend_from_slice(&self.gateway_key);
        bytes.extend_from_slice(&self.expires_at.to_be_bytes());
        push_list(&mut bytes, &self.addresses, push_prefix);
        push_list(&mut bytes, &self.endpoints, push_endpoint);
        push_list(&mut bytes, &self.routes, push_prefix);
        if has_dns {
            push_list(&mut bytes, &self.dns, |bytes, address| {
                bytes.push(if address.is_ipv4() { 4 } else { 6 });
                push_address(bytes, *address);
            });
        }
        encode_text(PREFIX, bytes)
    }

    /// Finds the token in `text`: what stands before it, lines it was broken into, and what follows after an empty line or
    /// another character is ignored.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub(crate) fn from_text(text: &str) -> Result<Self, TokenError> {
        let body = decode_text(PREFIX, WITH_DNS, text)?.ok_or(TokenError::NotAToken)?;
        let read = Reader(&body[1..]).token(body[0] == WITH_DNS);
        read.ok_or(TokenError::Damaged)
    }
}

/// `bytes`, which begin with their version, as text with checksum behind `prefix`.
pub(super) fn encode_text(prefix: &str, mut bytes: Zeroizing<Vec<u8>>) -> Zeroizing<String> {
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum);
    let encoded = Zeroizing::new(BASE32_NOPAD.encode(&bytes));
    Zeroizing::new(format!("{prefix}{}", encoded.to_ascii_lowercase()))
}

/// The bytes of the token behind `prefix` in `text`, version first, without the checksum; `None` if there is no `prefix`.
///
/// # Errors
/// They are damaged, or of another version than 1 to `newest`.
pub(super) fn decode_text(
    prefix: &str,
    newest: u8,
    text: &str,
) -> Result<Option<Zeroizing<Vec<u8>>>, TokenError> {
    let lower = Zeroizing::new(text.to_ascii_lowercase());
    let Some(start) = lower.find(prefix) else {
        return Ok(None);
    };
    let mut encoded = Zeroizing::new(String::with_capacity(lower.len()));
    for line in lower[start + prefix.len()..].lines() {
        let line = line.trim();
        let is_base32 = |c: char| matches!(c, 'a'..='z' | '2'..='7');
        let digits = line
            .find(|c| !is_base32(c))
            .map_or(line, |end| &line[..end]);
        encoded.push_str(digits);
        if digits.is_empty() || digits.len() < line.len() {
            break;
        }
    }
    encoded.make_ascii_uppercase();
    let mut bytes = BASE32_NOPAD
        .decode(encoded.as_bytes())
        .map(Zeroizing::new)
        .map_err(|_| TokenError::Damaged)?;
    let (body, sum) = bytes.split_last_chunk().ok_or(TokenError::Damaged)?;
    if checksum(body) != *sum {
        return Err(TokenError::Damaged);
    }
    match body.first() {
        Some(version) if (VERSION..=newest).contains(version) => {}
        Some(&version) => return Err(TokenError::Version(version)),
        None => return Err(TokenError::Damaged),
    }
    let body_len = body.len();
    bytes.truncate(body_len);
    Ok(Some(bytes))
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("expires_at", &self.expires_at)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

pub(super) fn push_list<T>(bytes: &mut Vec<u8>, items: &[T], push: impl Fn(&mut Vec<u8>, &T)) {
    assert!(
        items.len() <= MAX_ITEMS,
        "the maker of a token bounds its lists"
    );
    bytes.push(u8::try_from(items.len()).unwrap_or(u8::MAX));
    items.iter().for_each(|item| push(bytes, item));
}

pub(super) fn push_endpoint(bytes: &mut Vec<u8>, endpoint: &SocketAddr) {
    bytes.push(if endpoint.is_ipv4() { 4 } else { 6 });
    push_address(bytes, endpoint.ip());
    bytes.extend_from_slice(&endpoint.port().to_be_bytes());
}

pub(super) fn push_prefix(bytes: &mut Vec<u8>, net: &IpNet) {
    let family = if net.addr().is_ipv4() { 0 } else { V6_MARK };
    bytes.push(family + net.prefix_len());
    push_address(bytes, net.addr());
}

fn push_address(bytes: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => bytes.extend_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes.extend_from_slice(&address.octets()),
    }
}

/// What is left to read.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    /// All of it.
    fn token(mut self, has_dns: bool) -> Option<Token> {
        let token = Token {
            secret: Secret::from(&self.array()?),
            gateway_key: self.array()?,
            expires_at: u32::from_be_bytes(self.array()?),
            addresses: self.list(Self::prefix)?,
            endpoints: self.list(Self::endpoint)?,
            routes: self.list(Self::prefix)?,
            dns: if has_dns {
                self.list(Self::family_and_address)?
            } else {
                Vec::new()
            },
        };
        let is_whole = !token.addresses.is_empty() && !token.endpoints.is_empty();
        (self.0.is_empty() && is_whole).then_some(token)
    }

    pub(super) fn list<T>(&mut self, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let [count] = self.array()?;
        let count = usize::from(count);
        if count > MAX_ITEMS {
            return None;
        }
        (0..count).map(|_| item(self)).collect()
    }

    pub(super) fn prefix(&mut self) -> Option<IpNet> {
        let [len] = self.array()?;
        let (len, is_v6) = match len.checked_sub(V6_MARK) {
            Some(len) => (len, true),
            None => (len, false),
        };
        IpNet::new(self.address(is_v6)?, len).ok()
    }

    pub(super) fn endpoint(&mut self) -> Option<SocketAddr> {
        let ip = self.family_and_address()?;
        let port = u16::from_be_bytes(self.array()?);
        (port != 0).then(|| SocketAddr::new(ip, port))
    }

    fn family_and_address(&mut self) -> Option<IpAddr> {
        match self.array()? {
            [4] => self.address(false),
            [6] => self.address(true),
            _ => None,
        }
    }

    fn address(&mut self, is_v6: bool) -> Option<IpAddr> {
        Some(if is_v6 {
            Ipv6Addr::from(self.array::<16>()?).into()
        } else {
            Ipv4Addr::from(self.array::<4>()?).into()
        })
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }
}

/// How every token begins.
pub(crate) const PREFIX: &str = "pleach1";
/// Most addresses, endpoints or destinations in a token.
pub(crate) const MAX_ITEMS: usize = 16;
/// Most text that is searched for a token: a mail with one.
pub(crate) const MAX_TEXT_BYTES: usize = 64 << 10;

pub(super) const VERSION: u8 = 1;
const WITH_DNS: u8 = 2;
/// Beyond the longest IPv4 prefix.
const V6_MARK: u8 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        let nets = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| text.parse().expect("net"))
                .collect()
        };
        Token {
            secret: Secret::from([7; 32]),
            gateway_key: [9; 32],
            expires_at: 0x6789_abcd,
            addresses: nets(&["10.77.0.2/22", "fd77::2/64"]),
            endpoints: ["203.0.113.5:7700", "[2001:db8::5]:443"]
                .map(|text| text.parse().expect("endpoint"))
                .to_vec(),
            routes: nets(&["10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::1/128"]),
            dns: Vec::new(),
        }
    }

    #[test]
    fn a_token_survives_text_and_what_stands_around_it() {
        let text = token().to_text();
        assert!(text.len() < 300, "{}", text.len());
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(Token::from_text(&text), Ok(token()));
        assert_eq!(Token::from_text(&text.to_ascii_uppercase()), Ok(token()));
        let (one, two) = text.split_at(60);
        let mail = format!("Here it is:\n\n  {one}\r\n  {two}\n\nas you wished");
        assert_eq!(Token::from_text(&mail), Ok(token()));
        let with_code = format!("{}\n\n█▀▀▀█ ▄▀\n", *text);
        assert_eq!(Token::from_text(&with_code), Ok(token()));
        let all = Token {
            routes: Vec::new(),
            ..token()
        };
        assert_eq!(Token::from_text(&all.to_text()), Ok(all));
        let with_dns = Token {
            dns: ["10.77.0.1", "fd77::1"]
                .map(|text| text.parse().expect("address"))
                .to_vec(),
            ..token()
        };
        assert_eq!(Token::from_text(&with_dns.to_text()), Ok(with_dns));
    }

    #[test]
    fn every_damage_is_seen() {
        let text = token().to_text();
        for at in PREFIX.len()..text.len() {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'a' { b'b' } else { b'a' };
            let damaged = String::from_utf8(bytes).expect("ASCII");
            assert_eq!(Token::from_text(&damaged), Err(TokenError::Damaged), "{at}");
            assert_eq!(Token::from_text(&text[..at]), Err(TokenError::Damaged));
        }
        assert_eq!(Token::from_text(""), Err(TokenError::NotAToken));
        assert_eq!(Token::from_text("hello"), Err(TokenError::NotAToken));
    }

    #[test]
    fn arbitrary_bytes_with_a_good_checksum_never_panic() {
        for seed in 0..2000_u32 {
            let mut body = vec![VERSION];
            let mut state = seed;
            for _ in 0..seed % 200 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                body.push(state.to_be_bytes()[0]);
            }
            body.extend(checksum(&body));
            let text = format!("{PREFIX}{}", BASE32_NOPAD.encode(&body));
            if let Ok(token) = Token::from_text(&text) {
                assert!(!token.endpoints.is_empty());
            }
        }
        let mut other = vec![3, 3];
        other.extend(checksum(&other));
        let text = format!("{PREFIX}{}", BASE32_NOPAD.encode(&other));
        assert_eq!(Token::from_text(&text), Err(TokenError::Version(3)));
    }

    #[test]
    fn debug_shows_no_secret() {
        let text = format!("{:?}", token());
        assert!(
            !text.contains("7, 7") && text.contains("203.0.113.5"),
            "{text}"
        );
    }
}
