//! What a server answers to a plain HTTP/1 request (RFC 9110, 9112): its head, and how long its body is.
//!
//! An answer goes on to a client connection on which more answers follow, perhaps of other servers. So where it ends must be
//! the same to everybody who reads it: a head that can be read in two ways is refused. The head is written anew, without
//! hop-by-hop fields; the body is passed on as it is, measured by [`Body`].

use crate::handshake::{
    Body,
    http::{connection_options, has_tied_login, is_hop_by_hop, list_members},
};

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status code, 100 to 999; 0: unknown.
    pub status: u16,
    /// How many bytes of what was parsed are the head.
    pub len: usize,
    /// How much of what follows belongs to the answer; [`Body::Tunnel`]: all, to the end of the connection. So with 101.
    pub body: Body,
    /// Whether the server takes another request on the connection.
    pub keeps: bool,
    /// Status line and fields for the client, without `Connection` and the empty line at the end: [`Self::sealed`].
    head: Vec<u8>,
}

/// Why what came is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's answer cannot be used: {0}")]
pub struct BadAnswer(&'static str);

impl Answer {
    /// Reads the head of an answer at the beginning of `buffer`; `None`: not all of it is there. `is_to_head`: it answers HEAD.
    ///
    /// # Errors
    /// It is no HTTP/1, longer than [`MAX_ANSWER_HEAD`], or says in two ways how long the body is.
    pub fn parse(buffer: &[u8], is_to_head: bool) -> Result<Option<Self>, BadAnswer> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut parsed = httparse::Response::new(&mut fields);
        let mut config = httparse::ParserConfig::default();
        config
            .allow_multiple_spaces_in_response_status_delimiters(true)
            .allow_obsolete_multiline_headers_in_responses(true);
        let len = match config.parse_response(&mut parsed, buffer) {
            Ok(httparse::Status::Complete(len)) if len <= MAX_ANSWER_HEAD => len,
            Ok(httparse::Status::Partial) if buffer.len() < MAX_ANSWER_HEAD => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                return Err(BadAnswer("its head is too long"));
            }
            Err(_) => return Err(BadAnswer("it is no HTTP/1")),
        };
        let (Some(version), Some(status)) = (parsed.version, parsed.code) else {
            return Err(BadAnswer("it is no HTTP/1"));
        };
        let fields = &*parsed.headers;
        let is_switch = status == 101;
        let is_bodiless =
            is_to_head || status < 200 && !is_switch || status == 204 || status == 304;
        let (framing, is_clear) = framing(version, fields)?;
        let named = connection_options(fields);
        // Of HTTP/1.0 servers only those that say so stay, and nobody asks them to.
        let keeps = version == 1
            && !named.contains("close")
            && is_clear
            && !has_tied_login(fields, "www-authenticate");
        let mut head = format!("HTTP/1.1 {status} ").into_bytes();
        head.extend_from_slice(parsed.reason.unwrap_or_default().as_bytes());
        head.extend_from_slice(b"\r\n");
        for field in fields {
            // The chunks count then (RFC 9112, 6.3).
            let is_moot = !is_clear && field.name.eq_ignore_ascii_case("content-length");
            if !is_moot && !is_hop_by_hop(field.name, &named) {
                head.extend_from_slice(field.name.as_bytes());
                head.extend_from_slice(b": ");
                let unfolded = |byte: &u8| if b"\r\n".contains(byte) { b' ' } else { *byte };
                head.extend(field.value.iter().map(unfolded));
                head.extend_from_slice(b"\r\n");
            }
        }
        Ok(Some(Self {
            status,
            len,
            keeps: keeps && (is_bodiless || framing != Body::Tunnel),
            body: if is_bodiless {
                Body::Length(0)
            } else {
                framing
            },
            head,
        }))
    }

    /// What nobody here understands, from its first byte to the end of the connection.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            status: 0,
            len: 0,
            body: Body::Tunnel,
            keeps: false,
            head: Vec::new(),
        }
    }

    /// Whether another answer to the same request follows.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    /// The head for the client, who may ask again on its connection or not.
    #[must_use]
    pub fn sealed(mut self, client_keeps: bool) -> Vec<u8> {
        let end: &[u8] = if client_keeps || self.is_interim() {
            b"\r\n"
        } else {
            b"Connection: close\r\n\r\n"
        };
        self.head.extend_from_slice(end);
        self.head
    }
}

/// How the body of an answer of HTTP/1.`version` with these fields is measured (RFC 9112, 6.3), and whether they say so in
/// one way only.
fn framing(version: u8, fields: &[httparse::Header<'_>]) -> Result<(Body, bool), BadAnswer> {
    let of = |name: &'static str| {
        let named = fields
            .iter()
            .filter(move |f| f.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value)
    };
    let mut length: Option<u64> = None;
    for value in of("content-length") {
        let mut count = 0;
        for member in list_members(value) {
            let is_number = member.bytes().all(|byte| byte.is_ascii_digit());
            let number = is_number.then(|| member.parse().ok()).flatten();
            let number = number.ok_or(BadAnswer("its Content-Length is no number"))?;
            if length.is_some_and(|other| other != number) {
                return Err(BadAnswer("it has two Content-Length that differ"));
            }
            length = Some(number);
            count += 1;
        }
        if count == 0 {
            return Err(BadAnswer("its Content-Length is no number"));
        }
    }
    let mut codings = of("transfer-encoding").flat_map(list_members).peekable();
    if codings.peek().is_none() {
        if of("transfer-encoding").next().is_some() {
            return Err(BadAnswer("its Transfer-Encoding is empty"));
        }
        return Ok((length.map_or(Body::Tunnel, Body::Length), true));
    }
    if version == 0 {
        return Err(BadAnswer("it has Transfer-Encoding in HTTP/1.0"));
    }
    if !codings
        .by_ref()
        .all(|coding| coding.eq_ignore_ascii_case("chunked"))
    {
        return Err(BadAnswer("it has a Transfer-Encoding other than chunked"));
    }
    let is_single = of("transfer-encoding").flat_map(list_members).count() == 1;
    if !is_single {
        return Err(BadAnswer("it is chunked twice"));
    }
    Ok((Body::chunked(), length.is_none()))
}

/// Longest head of an answer in bytes: servers set many cookies.
pub const MAX_ANSWER_HEAD: usize = 64 << 10;
const MAX_FIELDS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer in `head`, the same however much of what follows is there, and not before it is whole.
    #[track_caller]
    fn parsed(head: &str) -> Answer {
        for len in 0..head.len() {
            assert_eq!(
                Answer::parse(&head.as_bytes()[..len], false),
                Ok(None),
                "{len} bytes"
            );
        }
        let answer = Answer::parse(head.as_bytes(), false)
            .expect("an answer")
            .expect("whole");
        assert_eq!(answer.len, head.len());
        let more = [head.as_bytes(), b"HTTP/1.1 5"].concat();
        assert_eq!(Answer::parse(&more, false), Ok(Some(answer.clone())));
        answer
    }

    fn sealed(answer: Answer, keeps: bool) -> String {
        String::from_utf8(answer.sealed(keeps)).expect("text")
    }

    #[test]
    fn heads_lose_what_is_for_the_next_hop_only() {
        let answer = parsed(
            "HTTP/1.1 200 OK\r\nContent-Length: 7, 7\r\nConnection: X-Own, keep-alive\r\nX-Own: 1\r\n\
             Keep-Alive: 5\r\nA: b\r\n c\r\n\r\n",
        );
        assert_eq!((answer.keeps, &answer.body), (true, &Body::Length(7)));
        let kept = "HTTP/1.1 200 OK\r\nContent-Length: 7, 7\r\nA: b   c\r\n";
        assert_eq!(sealed(answer.clone(), true), format!("{kept}\r\n"));
        assert_eq!(
            sealed(answer, false),
            format!("{kept}Connection: close\r\n\r\n")
        );
        let interim = parsed("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
        assert!(interim.is_interim());
        assert_eq!(
            sealed(interim, false),
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        );
    }

    #[test]
    fn bodies_are_measured_as_the_standard_says() {
        let end = "\r\n\r\n";
        for (head, body, keeps) in [
            ("HTTP/1.1 200 OK", Body::Tunnel, false),
            ("HTTP/1.1 204 No", Body::Length(0), true),
            (
                "HTTP/1.1 304 No\r\nContent-Length: 9",
                Body::Length(0),
                true,
            ),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 9",
                Body::Length(9),
                false,
            ),
            ("HTTP/1.1 200\r\nContent-Length: 9", Body::Length(9), true),
            (
                "HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 9",
                Body::Length(9),
                false,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked",
                Body::chunked(),
                true,
            ),
        ] {
            let answer = parsed(&format!("{head}{end}"));
            assert_eq!((answer.body, answer.keeps), (body, keeps), "{head}");
        }
        let both =
            parsed("HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!((&both.body, both.keeps), (&Body::chunked(), false));
        assert!(!sealed(both, true).contains("Length"));
        let login =
            parsed("HTTP/1.1 401 No\r\nContent-Length: 0\r\nWWW-Authenticate: NTLM\r\n\r\n");
        assert!(!login.keeps, "it would be another's login");
        let to_head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
        let answer = Answer::parse(to_head, true).expect("good").expect("whole");
        assert_eq!((&answer.body, answer.keeps), (&Body::Length(0), true));
        assert!(sealed(answer, true).contains("Content-Length: 9"));
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for fields in [
            "Content-Length: 7\r\nContent-Length: 8",
            "Content-Length: 7, 8",
            "Content-Length: +7",
            "Content-Length:",
            "Content-Length: 99999999999999999999",
            "Transfer-Encoding: gzip",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: chunked, chunked",
            "Transfer-Encoding:",
            "Content-Length : 7",
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
            assert!(Answer::parse(head.as_bytes(), false).is_err(), "{fields}");
        }
        let old = b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(Answer::parse(old, false).is_err());
        for garbage in [b"SSH-2.0\r\n".as_slice(), b"\0\0\0", b"HTTP/2 200\r\n\r\n"] {
            assert!(Answer::parse(garbage, false).is_err(), "{garbage:?}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(MAX_ANSWER_HEAD));
        assert!(Answer::parse(long.as_bytes(), false).is_err());
    }
}
