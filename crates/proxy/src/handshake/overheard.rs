//! A plain HTTP request in a connection whose ends know of no proxy: by SOCKS, CONNECT or redirected.
//!
//! It is only looked at, to know where it ends. What is not the common case, an upgrade or a login tied to the connection
//! above all, is none of ours: such a connection stays one.

use super::{
    Body, Exchange, MAX_HEAD_BYTES,
    http::{MAX_FIELDS, connection_options, has_end, has_tied_login},
};

/// What a client has begun to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overheard {
    /// Not enough to tell.
    More,
    /// Something else than a request that could be taken out of its connection.
    Other,
    /// A request, whose head has `len` bytes.
    Request {
        /// See there.
        len: usize,
        /// What follows of it.
        body: Body,
        /// What its answer has to do with it.
        exchange: Exchange,
    },
}

/// What `buffer` begins with.
#[must_use]
pub fn listen(buffer: &[u8]) -> Overheard {
    let is_begun = |method: &&str| {
        let start = [method.as_bytes(), b" /"].concat();
        start.starts_with(buffer) || buffer.starts_with(&start)
    };
    if !METHODS.iter().any(is_begun) {
        return Overheard::Other;
    }
    if !has_end(buffer, &mut 0) {
        return if buffer.len() < MAX_HEAD_BYTES {
            Overheard::More
        } else {
            Overheard::Other
        };
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let Ok(httparse::Status::Complete(len)) = parsed.parse(buffer) else {
        return Overheard::Other;
    };
    let fields = &*parsed.headers;
    let count = |name: &str| {
        let named = fields
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case(name));
        named.count()
    };
    let is_common = parsed.version == Some(1)
        && count("host") == 1
        && count("upgrade") == 0
        && !has_tied_login(fields, "authorization");
    match Body::of_request(1, fields) {
        Ok(body) if is_common => {
            let keeps = !connection_options(fields).contains("close");
            let exchange = Exchange {
                is_head: parsed.method == Some("HEAD"),
                is_overheard: true,
                keeps,
                server_keeps: keeps,
            };
            Overheard::Request {
                len,
                body,
                exchange,
            }
        }
        Ok(_) | Err(_) => Overheard::Other,
    }
}

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_when_whole_and_others_at_once() {
        let head = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n";
        for len in 0..head.len() {
            assert_eq!(
                listen(&head.as_bytes()[..len]),
                Overheard::More,
                "{len} bytes"
            );
        }
        let Overheard::Request {
            len,
            body,
            exchange,
        } = listen(format!("{head}abc").as_bytes())
        else {
            panic!("a request");
        };
        assert_eq!((len, body), (head.len(), Body::Length(3)));
        assert!(exchange.keeps && exchange.server_keeps && !exchange.is_head);
        for other in [
            "\x16\x03\x01",
            "SSH-2.0-x\r\n",
            "GET http://a/ HTTP/1.1\r\n",
            "GETX",
            "PRI * HTTP/2.0\r\n",
            "EHLO a\r\n",
            "GET / HTTP/1.0\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Negotiate YII\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / RTSP/1.0\r\nHost: a\r\n\r\n",
        ] {
            assert_eq!(listen(other.as_bytes()), Overheard::Other, "{other}");
        }
        let long = format!("GET /{}", "x".repeat(MAX_HEAD_BYTES));
        assert_eq!(listen(long.as_bytes()), Overheard::Other);
    }
}
