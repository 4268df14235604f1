//! The destination of a client's connection.

use core::fmt;
use std::net::{IpAddr, SocketAddr};

/// A host as the client named it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// An IP address.
    Ip(IpAddr),
    /// A name, in lower case, 1 to 255 visible ASCII characters.
    Name(String),
}

/// A host and a TCP or UDP port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port; never zero.
    pub port: u16,
}

impl Host {
    /// Reads an address (IPv6 with or without brackets) or a name. `None` if `text` is neither.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        if let Some(ip) = bare {
            return ip.parse().ok().map(IpAddr::V6).map(Self::Ip);
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(Self::Ip(ip.to_canonical()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_name_byte = |byte: u8| byte.is_ascii_graphic() && !b"/:@[]\\?#%\"<>".contains(&byte);
        let is_name = (1..=255).contains(&name.len()) && name.bytes().all(is_name_byte);
        is_name.then(|| Self::Name(name.to_ascii_lowercase()))
    }
}

impl Target {
    /// Combines a host and a port. `None` if the port is zero.
    #[must_use]
    pub fn new(host: Host, port: u16) -> Option<Self> {
        (port != 0).then_some(Self { host, port })
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: Host::Ip(address.ip().to_canonical()),
            port: address.port(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_where_they_can_be() {
        for (text, shown) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("2001:DB8::1", Some("2001:db8::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("Example.COM.", Some("example.com")),
            ("[192.0.2.1]", None),
            ("a b", None),
            ("user@host", None),
            ("", None),
            (".", None),
        ] {
            let host = Host::parse(text).map(|host| host.to_string());
            assert_eq!(host.as_deref(), shown, "{text}");
        }
        assert_eq!(Host::parse(&"a".repeat(256)), None);
    }
}
