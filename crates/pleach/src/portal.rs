//! Captive portals: networks that let a host through only after a user has logged in on a web page.
//!
//! Such a network answers plain HTTP requests in place of the server. So the check requests a page whose answer is
//! known in advance, over one link. RFC 8952 describes the components and calls the web page the *user portal*. The
//! rules:
//!
//! | answer | verdict |
//! | --- | --- |
//! | status 204 | no captive portal |
//! | status 3xx with `Location` | a captive portal, whose user portal has that URL |
//! | status 5xx except 511 | not known |
//! | any other HTTP answer | a captive portal without a known URL |
//! | no connection, no HTTP | not known |
//!
//! Bounds: one request over one link at a time, [`PATIENCE`] for each address, [`MAX_ADDRESSES`] addresses, and
//! [`MAX_ANSWER`] bytes of the answer.
//!
//! Limits: the URL that a network announces by DHCP or router advertisement (RFC 8910) is not read. A portal that lets
//! the check through but not UDP is not found.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    str::FromStr,
    time::Duration,
};

use pleach_linux::{
    clock,
    watch::{LinkSnapshot, Targets, Way},
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{config::HostName, run_tunnel::names};

/// The page that is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckUrl {
    /// Host name, or an address without brackets.
    host: String,
    port: u16,
    /// Path with query, beginning with a slash.
    path: String,
}

/// Result of a check over one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The server answered as expected.
    Open,
    /// A captive portal answered, with the URL of its user portal if it has told one.
    Portal(Option<String>),
    /// Nothing answered.
    Unknown,
}

impl Default for CheckUrl {
    /// Ubuntu's connectivity check. It exists for this purpose, answers with status 204, and sets no cookies.
    fn default() -> Self {
        Self {
            host: "connectivity-check.ubuntu.com".to_owned(),
            port: HTTP_PORT,
            path: "/".to_owned(),
        }
    }
}

/// The text is not a URL that can be used for the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidUrl;

impl FromStr for CheckUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let rest = text.strip_prefix("http://").ok_or(InvalidUrl)?;
        if text.len() > MAX_URL || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidUrl);
        }
        let (place, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = match place.rsplit_once(':') {
            // The colons of an IPv6 address are inside brackets.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| InvalidUrl)?)
            }
            _ => (place, HTTP_PORT),
        };
        let inner = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        let is_valid = match inner {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => (1..=253).contains(&host.len()) && host.bytes().all(is_name_byte),
        };
        if !is_valid || port == 0 || path.contains('#') {
            return Err(InvalidUrl);
        }
        Ok(Self {
            host: inner.unwrap_or(host).to_owned(),
            port,
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for CheckUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.place(), self.path)
    }
}

impl CheckUrl {
    /// Returns host and port as in the URL.
    fn place(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        if self.port == HTTP_PORT {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }

    /// Requests the page over `device`. Takes some seconds at most. `fwmark`: firewall mark of all packets. `tunnel`:
    /// the device of the tunnel, which the check does not use.
    pub(crate) fn check(&self, device: &str, fwmark: Option<u32>, tunnel: &str) -> Verdict {
        let mut addresses = match self.host.parse() {
            Ok(address) => vec![SocketAddr::new(address, self.port)],
            Err(_) => {
                let names = [HostName {
                    name: self.host.clone(),
                    port: self.port,
                }];
                names::look_up_over(|name| name == device, &names, fwmark, tunnel)
            }
        };
        addresses.truncate(MAX_LOOKED_UP);
        let targets = Targets {
            addresses: addresses.iter().map(SocketAddr::ip).collect(),
            fwmark,
        };
        let links = LinkSnapshot::read_all(&targets).unwrap_or_default();
        let Some(link) = links.iter().find(|link| link.name == device) else {
            return Verdict::Unknown;
        };
        let has_way = |address: &SocketAddr| {
            let mut ways = link.ways.iter();
            ways.any(|way| way.target == address.ip())
        };
        for address in in_turn(addresses, has_way) {
            let Some(way) = link.ways.iter().find(|way| way.target == address.ip()) else {
                continue;
            };
            match self.ask(device, address, way, fwmark) {
                Ok(answer) => match judge(&answer) {
                    Verdict::Unknown => {}
                    verdict @ (Verdict::Open | Verdict::Portal(_)) => return verdict,
                },
                Err(error) => {
                    tracing::debug!(device, %address, %error, "captive portal: no answer")
                }
            }
        }
        Verdict::Unknown
    }

    /// Returns the beginning of the answer.
    fn ask(
        &self,
        device: &str,
        address: SocketAddr,
        way: &Way,
        fwmark: Option<u32>,
    ) -> io::Result<Vec<u8>> {
        let deadline = clock::now() + PATIENCE;
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.bind_device(Some(device.as_bytes()))?;
        if let Some(mark) = fwmark {
            socket.set_mark(mark)?;
        }
        if let Some(source) = way.source {
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        socket.connect_timeout(&address.into(), PATIENCE)?;
        let mut stream = TcpStream::from(socket);
        stream.set_write_timeout(Some(PATIENCE))?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: */*\r\nConnection: close\r\n\r\n",
            self.path,
            self.place()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut buffer = [0; 2048];
        while answer.len() < MAX_ANSWER && judge(&answer) == Verdict::Unknown {
            let left = deadline.since(clock::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            let len = stream.read(&mut buffer)?;
            if len == 0 {
                break;
            }
            answer.extend_from_slice(&buffer[..len]);
        }
        Ok(answer)
    }
}

/// Returns the addresses to try: those that `has_way` accepts, IPv4 and IPv6 in turn, at most [`MAX_ADDRESSES`].
fn in_turn(
    mut addresses: Vec<SocketAddr>,
    has_way: impl Fn(&SocketAddr) -> bool,
) -> Vec<SocketAddr> {
    addresses.retain(has_way);
    let (mut v4, mut v6) = (0, 0);
    addresses.sort_by_cached_key(|address| {
        let place = if address.is_ipv4() { &mut v4 } else { &mut v6 };
        *place += 1;
        *place
    });
    addresses.truncate(MAX_ADDRESSES);
    addresses
}

/// Judges the beginning of an answer; [`Verdict::Unknown`] if its header is not complete or is no HTTP.
fn judge(answer: &[u8]) -> Verdict {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(len)) = response.parse(answer) else {
        return Verdict::Unknown;
    };
    match response.code {
        // The final answer follows.
        Some(100..=199) => judge(&answer[len..]),
        Some(204) => Verdict::Open,
        Some(300..=399) => {
            let mut headers = response.headers.iter();
            let location = headers.find(|header| header.name.eq_ignore_ascii_case("location"));
            Verdict::Portal(location.and_then(|location| clean(location.value)))
        }
        Some(511) => Verdict::Portal(None),
        // The server itself may have failed.
        Some(500..) => Verdict::Unknown,
        Some(_) => Verdict::Portal(None),
        None => Verdict::Unknown,
    }
}

/// Returns the URL of a user portal as it is shown to the user: an absolute HTTP URL of visible ASCII characters, at
/// most [`MAX_URL`] of them, without user name. `None` for anything else, so that the network cannot put other text into the output.
fn clean(location: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(location).ok()?;
    let is_http = text.starts_with("http://") || text.starts_with("https://");
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'<>\\`".contains(&byte);
    let authority = text.split(['/', '?', '#']).nth(2).unwrap_or_default();
    (is_http && !authority.contains('@') && text.len() <= MAX_URL && text.bytes().all(is_plain))
        .then(|| text.to_owned())
}

/// Returns the URL of a user portal without its query, which can identify the user or the host.
pub(crate) fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

/// Cuts the queries of all HTTP URLs in `text`.
pub(crate) fn without_queries(text: &str) -> String {
    let mut cut = String::with_capacity(text.len());
    let mut rest = text;
    let starts = ["http://", "https://"];
    while let Some(at) = starts.iter().filter_map(|start| rest.find(start)).min() {
        cut.push_str(&rest[..at]);
        let is_end = |c: char| !c.is_ascii_graphic() || "\"'<>\\`".contains(c);
        let end = rest[at..].find(is_end).map_or(rest.len(), |len| at + len);
        cut.push_str(without_query(&rest[at..end]));
        rest = &rest[end..];
    }
    cut.push_str(rest);
    cut
}

const HTTP_PORT: u16 = 80;
/// Maximum length of a URL in bytes.
const MAX_URL: usize = 300;
/// Maximum number of addresses of the server that are tried.
const MAX_ADDRESSES: usize = 3;
/// Maximum number of addresses of the server whose routes are looked up.
const MAX_LOOKED_UP: usize = 16;
/// Maximum length of the part of an answer that is read, in bytes.
const MAX_ANSWER: usize = 8192;
const MAX_HEADERS: usize = 64;
/// Time for connection, request and answer of one address.
const PATIENCE: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_expected_status_shows_an_open_network() {
        let portal = |url: &str| Verdict::Portal(Some(url.to_owned()));
        for (answer, expected) in [
            ("HTTP/1.1 204 No Content\r\n\r\n", Verdict::Open),
            (
                "HTTP/1.1 302 Found\r\nlocation: http://login.example/?a=1\r\n\r\n",
                portal("http://login.example/?a=1"),
            ),
            (
                "HTTP/1.0 307 x\r\nServer: x\r\nLocation: https://[fd00::1]:8443/\r\n\r\nbody",
                portal("https://[fd00::1]:8443/"),
            ),
            ("HTTP/1.1 302 Found\r\n\r\n", Verdict::Portal(None)),
            ("HTTP/1.1 200 OK\r\n\r\n<html>", Verdict::Portal(None)),
            ("HTTP/1.1 511 x\r\n\r\n", Verdict::Portal(None)),
            ("HTTP/1.1 503 x\r\n\r\n", Verdict::Unknown),
            ("HTTP/1.1 103 x\r\n\r\n", Verdict::Unknown),
            (
                "HTTP/1.1 103 x\r\n\r\nHTTP/1.1 204 x\r\n\r\n",
                Verdict::Open,
            ),
            ("HTTP/1.1 204 No Content\r\n", Verdict::Unknown),
            ("SSH-2.0-OpenSSH\r\n\r\n", Verdict::Unknown),
            ("", Verdict::Unknown),
        ] {
            assert_eq!(judge(answer.as_bytes()), expected, "{answer}");
            for len in 0..answer.len() {
                let _ = judge(&answer.as_bytes()[..len]);
            }
        }
    }

    #[test]
    fn a_portal_cannot_put_other_text_into_the_output() {
        for location in [
            "javascript:alert(1)",
            "/login",
            "http://a/\u{1b}[31m",
            "http://a/ b",
            "http://a/<script>",
            "http://bank.example@a/",
            "http://u:p@a?x",
            "http://ä/",
            "",
        ] {
            assert_eq!(clean(location.as_bytes()), None, "{location}");
        }
        let long = format!("http://a/{}", "x".repeat(MAX_URL));
        assert_eq!(clean(long.as_bytes()), None);
        assert_eq!(clean(&[b'h', 0xff]), None);
    }

    #[test]
    fn a_link_with_one_family_has_addresses_to_try() {
        let all: Vec<SocketAddr> = [
            "192.0.2.1:80",
            "192.0.2.2:80",
            "192.0.2.3:80",
            "[2001:db8::1]:80",
            "[2001:db8::2]:80",
        ]
        .map(|text| text.parse().expect("literal"))
        .to_vec();
        assert_eq!(in_turn(all.clone(), SocketAddr::is_ipv6), all[3..]);
        assert_eq!(in_turn(all.clone(), |_| true), [all[0], all[3], all[1]]);
        assert_eq!(without_query("http://a/b?mac=1#x"), "http://a/b");
        let text = "see http://a/b?mac=1 or \"https://c/?d\": why?";
        assert_eq!(
            without_queries(text),
            "see http://a/b or \"https://c/\": why?"
        );
    }

    #[test]
    fn urls_are_read_and_shown() {
        for text in [
            "http://connectivity-check.ubuntu.com/",
            "http://203.0.113.80/",
            "http://203.0.113.80:8080/a?b=c",
            "http://[2001:db8::80]/x",
            "http://[2001:db8::80]:81/x",
        ] {
            let url: CheckUrl = text.parse().expect("a URL");
            assert_eq!(url.to_string(), text);
        }
        assert_eq!(
            "http://a.example"
                .parse::<CheckUrl>()
                .map(|url| url.to_string()),
            Ok("http://a.example/".to_owned())
        );
        assert_eq!(
            "http://connectivity-check.ubuntu.com".parse::<CheckUrl>(),
            Ok(CheckUrl::default())
        );
        for text in [
            "https://a.example/",
            "http://",
            "http:///x",
            "http://a b/",
            "http://a:0/",
            "http://a:99999/",
            "http://[::1/",
            "http://u@a/",
            "http://a/\r\nX: y",
            "a.example",
        ] {
            assert_eq!(text.parse::<CheckUrl>(), Err(InvalidUrl), "{text}");
        }
    }
}
