//! The request that begins a connection: a WebSocket upgrade (RFC 6455 section 4.2.1) with a greeting.

use std::net::IpAddr;

use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// What a request says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// What the answer's `Sec-WebSocket-Accept` says.
    pub(crate) accept: String,
    /// The client's greeting.
    pub(crate) greeting: String,
    /// The client's address as the nearest web server saw it.
    pub(crate) forwarded: Option<IpAddr>,
}

/// Reads the head of a request; `None` if it is anything else.
pub(crate) fn read(head: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    if !request.parse(head).ok()?.is_complete() || request.method != Some("GET") {
        return None;
    }
    let all = |name: &'static str| {
        let headers = request.headers.iter();
        headers
            .filter(move |header| header.name.eq_ignore_ascii_case(name))
            .filter_map(|header| std::str::from_utf8(header.value).ok())
    };
    let has = |name, token: &str| {
        all(name).any(|value| {
            value
                .split(',')
                .any(|part| part.trim().eq_ignore_ascii_case(token))
        })
    };
    if !has("connection", "upgrade")
        || !has("upgrade", "websocket")
        || !has("sec-websocket-version", "13")
    {
        return None;
    }
    let key = all("sec-websocket-key").next()?;
    let greeting = all("authorization").next()?.strip_prefix("Bearer ")?;
    let last = all("x-forwarded-for").next_back();
    let last = last.and_then(|value| value.rsplit(',').next());
    Some(Request {
        accept: derive_accept_key(key.as_bytes()),
        greeting: greeting.to_owned(),
        forwarded: last.and_then(|text| Some(text.trim().parse::<IpAddr>().ok()?.to_canonical())),
    })
}

const MAX_HEADERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const UPGRADE: &str = "GET /pleach HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    #[test]
    fn an_upgrade_with_a_greeting_is_read() {
        let head = format!(
            "{UPGRADE}authorization: Bearer abc\r\nX-Forwarded-For: 192.0.2.1, 198.51.100.7\r\n\r\n"
        );
        let expected = Request {
            // RFC 6455 section 1.3.
            accept: "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned(),
            greeting: "abc".to_owned(),
            forwarded: Some([198, 51, 100, 7].into()),
        };
        assert_eq!(read(head.as_bytes()), Some(expected));
    }

    #[test]
    fn anything_else_is_not() {
        for head in [
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
            format!("{UPGRADE}\r\n"),
            format!("{UPGRADE}Authorization: Basic abc\r\n\r\n"),
            format!("{UPGRADE}Authorization: Bearer abc\r\n"),
            UPGRADE.replace("GET", "POST") + "Authorization: Bearer abc\r\n\r\n",
            "\0\r\n\r\n".to_owned(),
        ] {
            assert_eq!(read(head.as_bytes()), None, "{head:?}");
        }
    }
}
