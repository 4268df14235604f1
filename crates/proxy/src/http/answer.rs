//! The head of an answer: rewrites it for the client, and finds where the body ends (RFC 9112, 6.3).
//!
//! Heads are parsed as leniently as browsers do: folded lines and stray spaces are accepted, because some servers
//! send them. A head with contradictory lengths is refused nevertheless.

use core::ops::Range;

use super::{
    Body,
    fields::{connection_options, is_hop_by_hop, list_members, push},
    ranges::{self, Resource},
};

/// The request to which an answer belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Whether the request's method is HEAD.
    pub for_head: bool,
    /// Whether this is the last request of the client connection.
    pub is_last: bool,
    /// Whether a part of the request has not been sent to the server yet.
    pub is_partial: bool,
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Length of the head in bytes.
    pub len: usize,
    /// The status code.
    pub status: u16,
    /// Head that the client receives instead.
    pub rewritten: Vec<u8>,
    /// Body of the answer. `None` if the body ends when the server closes the connection.
    pub body: Option<Body>,
    /// Whether the server keeps the connection open for another request.
    pub is_kept: bool,
    /// Whether the client may send another request on its connection.
    pub may_go_on: bool,
    /// The resource that the answer holds, if the server sends parts of it on request.
    pub resource: Option<Resource>,
    /// If the answer holds a part: the byte range, and the resource.
    pub part: Option<(Range<u64>, Resource)>,
}

impl Head {
    /// Whether this is an interim answer, before the final one (RFC 9110, 15.2).
    #[must_use]
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }
}

/// Why bytes are not a valid head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHead {
    /// The bytes are HTTP/1, but the end of the head or of the body is ambiguous. The text gives the reason.
    Ambiguous(&'static str),
    /// The bytes are not HTTP.
    Foreign,
}

/// Reads the head at the beginning of `bytes`. `None` if the head is incomplete.
///
/// # Errors
/// Fails with [`NoHead`] if `bytes` do not begin with a valid head.
pub fn read(bytes: &[u8], asked: Asked) -> Result<Option<Head>, NoHead> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut fields);
    let len = match lenient().parse_response(&mut parsed, bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(NoHead::Ambiguous("the head of the answer is too long"));
        }
        Err(_) if !bytes.starts_with(NAME) => return Err(NoHead::Foreign),
        // A more lenient client might see the end of the answer elsewhere.
        Err(_) => return Err(NoHead::Ambiguous("the head of the answer is no HTTP/1")),
    };
    let (Some(version), Some(status @ 100..)) = (parsed.version, parsed.code) else {
        return Err(NoHead::Ambiguous("the answer has no status"));
    };
    if status == SWITCHING_PROTOCOLS {
        return Err(NoHead::Ambiguous("the server changed the protocol unasked"));
    }
    let fields = &*parsed.headers;
    let Framing { body, is_doubtful } = framing(status, asked.for_head, version, fields)?;
    let options = connection_options(fields);
    let has_end = body.is_some() && !is_doubtful;
    let is_kept =
        has_end && !options.contains("close") && (version > 0 || options.contains("keep-alive"));
    // A server that closes before it has received the whole request would misinterpret the remaining bytes.
    let may_go_on = has_end && !asked.is_last && (is_kept || !asked.is_partial);

    let resource = match body {
        Some(Body::Length(len)) if status == 200 => ranges::resource(fields, len),
        _ => None,
    };
    let part = (status == 206).then(|| ranges::part(fields)).flatten();

    // A proxy answers with its own HTTP version (RFC 9110, 6.2).
    let mut rewritten = format!("HTTP/1.1 {status:03} ").into_bytes();
    rewritten.extend_from_slice(parsed.reason.unwrap_or_default().as_bytes());
    rewritten.extend_from_slice(b"\r\n");
    let mut length = match body {
        Some(Body::Length(length @ 1..)) => Some(length.to_string()),
        _ => None,
    };
    let has_length = length.is_some();
    for field in fields {
        let is_length = field.name.eq_ignore_ascii_case("content-length");
        if is_length && (is_doubtful || has_length) {
            // The length is written once, even if the server sent it repeatedly.
            if let Some(length) = length.take() {
                push(&mut rewritten, field.name, length.as_bytes());
            }
        } else if !is_hop_by_hop(field.name, &options) {
            // A folded value becomes one line (RFC 9112, 5.2).
            let is_fold = |byte: &u8| matches!(byte, b'\r' | b'\n');
            let value = field.value.iter();
            let value: Vec<u8> = value
                .map(|byte| if is_fold(byte) { b' ' } else { *byte })
                .collect();
            push(&mut rewritten, field.name, &value);
        }
    }
    if !may_go_on && status >= 200 {
        push(&mut rewritten, "Connection", b"close");
    }
    rewritten.extend_from_slice(b"\r\n");
    Ok(Some(Head {
        len,
        status,
        rewritten,
        body,
        is_kept,
        may_go_on,
        resource,
        part,
    }))
}

/// How the end of a body is found.
struct Framing {
    body: Option<Body>,
    /// Whether a transfer coding leaves doubt: it appears together with a length or in HTTP/1.0, or does not end with
    /// `chunked`. The coding applies, and the connection closes after the answer (RFC 9112, 6.3).
    is_doubtful: bool,
}

fn framing(
    status: u16,
    to_head: bool,
    version: u8,
    fields: &[httparse::Header<'_>],
) -> Result<Framing, NoHead> {
    let sure = |body| Framing {
        body,
        is_doubtful: false,
    };
    if to_head || matches!(status, 100..200 | 204 | 304) {
        return Ok(sure(Some(Body::Length(0))));
    }
    let values = |name: &'static str| {
        let fields = fields.iter();
        fields
            .filter(move |field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
    };
    let mut lengths = values("content-length").flat_map(list_members);
    if let Some(codings) = values("transfer-encoding").next_back() {
        let is_chunked = list_members(codings)
            .last()
            .is_some_and(|last| last.eq_ignore_ascii_case("chunked"));
        return Ok(if is_chunked {
            Framing {
                body: Some(Body::chunked()),
                is_doubtful: version == 0 || lengths.next().is_some(),
            }
        } else {
            Framing {
                body: None,
                is_doubtful: true,
            }
        });
    }
    let Some(first) = lengths.next() else {
        return Ok(sure(None));
    };
    if !lengths.all(|other| other == first) {
        return Err(NoHead::Ambiguous("the answer has two lengths"));
    }
    let is_number = first.bytes().all(|byte| byte.is_ascii_digit());
    let number: Option<u64> = is_number.then(|| first.parse().ok()).flatten();
    let length = number.ok_or(NoHead::Ambiguous("the answer's length is no number"))?;
    Ok(sure(Some(Body::Length(length))))
}

/// Accepts malformed heads that servers send and browsers accept.
fn lenient() -> httparse::ParserConfig {
    let mut config = httparse::ParserConfig::default();
    config
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        .ignore_invalid_headers_in_responses(true);
    config
}

/// Status 101, which this proxy never asks for: the following bytes would belong to another protocol.
const SWITCHING_PROTOCOLS: u16 = 101;
/// First bytes of every HTTP/1 answer.
pub const NAME: &[u8] = b"HTTP/";
const MAX_FIELDS: usize = 256;
/// Maximum length in bytes of the head of an answer; browsers accept as much.
pub const MAX_HEAD_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn head(text: &str) -> Head {
        for end in 0..text.len() {
            assert_eq!(
                read(&text.as_bytes()[..end], Asked::default()),
                Ok(None),
                "{end} bytes"
            );
        }
        let head = read(text.as_bytes(), Asked::default()).expect("HTTP");
        head.expect("whole")
    }

    fn rewritten(text: &str) -> String {
        String::from_utf8(head(text).rewritten).expect("text")
    }

    fn with(field: &str) -> String {
        format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n")
    }

    #[test]
    fn heads_lose_what_is_for_the_next_hop_only() {
        let text = "HTTP/1.1 404 Not Found\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
                    Content-Length: 3\r\nSet-Cookie: a=b\r\n\r\n";
        let expected = "HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\nSet-Cookie: a=b\r\n\r\n";
        assert_eq!(rewritten(text), expected);
        let found = head(text);
        assert_eq!((found.len, found.status), (text.len(), 404));
        assert!(found.is_kept && found.may_go_on);
    }

    #[test]
    fn bodies_end_as_the_head_says() {
        let body = |text: &str| head(text).body;
        assert_eq!(body(&with("Content-Length: 12")), Some(Body::Length(12)));
        assert_eq!(body(&with("Content-Length: 5, 5")), Some(Body::Length(5)));
        assert_eq!(
            body(&with("Transfer-Encoding: chunked")),
            Some(Body::chunked())
        );
        assert_eq!(
            body(&with("Transfer-Encoding: gzip, chunked")),
            Some(Body::chunked())
        );
        assert_eq!(body(&with("Transfer-Encoding: gzip")), None);
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\n"), None);
        for status in ["204 No Content", "304 Not Modified", "100 Continue"] {
            let text = format!("HTTP/1.1 {status}\r\nContent-Length: 7\r\n\r\n");
            assert_eq!(body(&text), Some(Body::Length(0)), "{status}");
        }
        let to_head = read(
            with("Content-Length: 7").as_bytes(),
            Asked {
                for_head: true,
                ..Asked::default()
            },
        );
        assert_eq!(
            to_head.expect("HTTP").expect("whole").body,
            Some(Body::Length(0))
        );
    }

    #[test]
    fn what_ends_with_the_connection_says_so() {
        let closing = rewritten("HTTP/1.1 200 OK\r\nServer: x\r\n\r\n");
        assert_eq!(
            closing,
            "HTTP/1.1 200 OK\r\nServer: x\r\nConnection: close\r\n\r\n"
        );
        let last = read(
            with("Content-Length: 1").as_bytes(),
            Asked {
                is_last: true,
                ..Asked::default()
            },
        );
        let last = last.expect("HTTP").expect("whole");
        assert!(last.is_kept && !last.may_go_on);
        assert!(last.rewritten.ends_with(b"\r\nConnection: close\r\n\r\n"));
        let closing = "HTTP/1.1 413 Too Large\r\nContent-Length: 1\r\nConnection: close\r\n\r\n";
        for (text, is_partial, goes_on) in [
            (closing, false, true),
            (closing, true, false),
            ("HTTP/1.1 401 No\r\nContent-Length: 1\r\n\r\n", true, true),
        ] {
            let asked = Asked {
                is_partial,
                ..Asked::default()
            };
            let found = read(text.as_bytes(), asked).expect("HTTP").expect("whole");
            assert_eq!(found.may_go_on, goes_on, "{text}");
        }
        // The server closes, but the client connection stays open.
        let found = head("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n");
        assert!(!found.is_kept && found.may_go_on);
        let old = head("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n");
        assert!(!old.is_kept && old.may_go_on);
        assert!(old.rewritten.starts_with(b"HTTP/1.1 200 OK\r\n"));
        assert!(
            head("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\n").is_kept
        );
    }

    #[test]
    fn a_length_is_said_once() {
        for twice in ["5, 5", "5\r\nContent-Length: 5"] {
            let text = rewritten(&with(&format!("Content-Length: {twice}")));
            assert_eq!(text, with("Content-Length: 5"), "{twice}");
        }
    }

    #[test]
    fn two_ends_are_one_or_none() {
        let both = head(&with("Content-Length: 7\r\nTransfer-Encoding: chunked"));
        assert_eq!(both.body, Some(Body::chunked()));
        assert!(!both.is_kept && !both.may_go_on);
        assert!(!String::from_utf8_lossy(&both.rewritten).contains("Content-Length"));
        let until_closed = head(&with("Content-Length: 7\r\nTransfer-Encoding: gzip"));
        assert_eq!(until_closed.body, None);
        assert!(!String::from_utf8_lossy(&until_closed.rewritten).contains("Content-Length"));
        for field in [
            "Content-Length: 7\r\nContent-Length: 8",
            "Content-Length: 7, 8",
            "Content-Length: +7",
            "Content-Length: 99999999999999999999",
        ] {
            let found = read(with(field).as_bytes(), Asked::default());
            assert!(matches!(found, Err(NoHead::Ambiguous(_))), "{field}");
        }
    }

    #[test]
    fn other_protocols_are_told_from_sloppy_servers() {
        for foreign in ["ICY 200 OK\r\n\r\n", "<html>", "\0\0"] {
            assert_eq!(
                read(foreign.as_bytes(), Asked::default()),
                Err(NoHead::Foreign),
                "{foreign}"
            );
        }
        let folded = head("HTTP/1.1 200\r\nX: a\r\n  b\r\nContent-Length : 4\r\n\r\n");
        assert_eq!(folded.body, Some(Body::Length(4)));
        let line = b"X: a    b\r\n";
        assert!(
            folded
                .rewritten
                .windows(line.len())
                .any(|part| part == line)
        );
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(MAX_HEAD_BYTES));
        assert!(matches!(
            read(endless.as_bytes(), Asked::default()),
            Err(NoHead::Ambiguous(_))
        ));
        // Clients that accept these heads would see an end where the proxy sees none.
        for text in [
            "HTTP/2 200 OK\r\nContent-Length: 1\r\n\r\n",
            "HTTP/1.1 042 Early\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
            "HTTP/1.1 200 O\0K\r\nContent-Length: 1\r\n\r\n",
        ] {
            let found = read(text.as_bytes(), Asked::default());
            assert!(matches!(found, Err(NoHead::Ambiguous(_))), "{text}");
        }
    }
}
