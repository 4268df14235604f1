use super::*;
use crate::{http::body::BadChunk, target::Host};

/// Feeds `bytes` in pieces of `size`. Returns the replies and the last step.
fn talk(bytes: &[u8], size: usize) -> (Vec<u8>, Step) {
    let mut handshake = Handshake::new();
    let mut replies = Vec::new();
    let mut pieces = bytes.chunks(size);
    while let Some(piece) = pieces.next() {
        handshake.handle_bytes(piece);
        loop {
            match handshake.next_step() {
                Step::More => break,
                Step::Reply(reply) => replies.extend(reply),
                Step::Request(mut request) => {
                    // The pieces that were not fed would be read by the connection.
                    request.rest.extend(pieces.flatten());
                    return (replies, Step::Request(request));
                }
                end @ Step::Refuse(_) => return (replies, end),
            }
        }
    }
    (replies, Step::More)
}

/// Returns the request in `bytes`, after checking that it does not depend on how the bytes are split.
#[track_caller]
fn request(bytes: &[u8]) -> Request {
    let whole = talk(bytes, bytes.len());
    for size in [1, 2, 3, 7] {
        assert_eq!(talk(bytes, size), whole, "in pieces of {size}");
    }
    let Step::Request(request) = whole.1 else {
        panic!("{whole:?}");
    };
    *request
}

#[track_caller]
fn refusal(bytes: &[u8]) -> Refusal {
    let end = talk(bytes, bytes.len()).1;
    let Step::Refuse(refusal) = end else {
        panic!("{end:?}");
    };
    refusal
}

#[test]
fn socks5_takes_all_kinds_of_addresses() {
    let cases: [(&[u8], &str); 4] = [
        (
            b"\x05\x01\x00\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50",
            "192.0.2.1:80",
        ),
        (
            b"\x05\x02\x02\x00\x05\x01\x00\x03\x0bexample.COM\x01\xbb",
            "example.com:443",
        ),
        (
            b"\x05\x01\x00\x05\x01\x00\x03\x09192.0.2.1\x00\x50",
            "192.0.2.1:80",
        ),
        (
            b"\x05\x01\x00\x05\x01\x00\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50",
            "[2001:db8::1]:80",
        ),
    ];
    for (bytes, target) in cases {
        let found = request(&[bytes, b"hello"].concat());
        assert_eq!(found.target.to_string(), target);
        assert_eq!(
            (found.protocol, found.command),
            (Protocol::Socks5, Command::Connect)
        );
        assert_eq!(
            (found.rest.as_slice(), found.body),
            (b"hello".as_slice(), Body::Tunnel)
        );
        assert_eq!(talk(bytes, 1).0, [5, 0]);
    }
    let associate = request(b"\x05\x01\x00\x05\x03\x00\x01\0\0\0\0\0\0");
    assert_eq!(associate.command, Command::UdpAssociate);
}

#[test]
fn socks5_refuses_with_the_right_code() {
    let only_password = refusal(b"\x05\x01\x02");
    assert_eq!(only_password.reply, [5, 0xff]);
    let bind = refusal(b"\x05\x01\x00\x05\x02\x00\x01\x01\x02\x03\x04\x00\x50");
    assert_eq!(bind.reply[..4], [5, 7, 0, 1]);
    assert!(bind.reason.contains("command 2"));
    let unknown = refusal(b"\x05\x01\x00\x05\x01\x00\x07\x01");
    assert_eq!(unknown.reply[..2], [5, 8]);
    let port_zero = refusal(b"\x05\x01\x00\x05\x01\x00\x01\x01\x02\x03\x04\x00\x00");
    assert_eq!(port_zero.reply[..2], [5, 1]);
    let empty_name = refusal(b"\x05\x01\x00\x05\x01\x00\x03\x00\x00\x50");
    assert_eq!(empty_name.reply[..2], [5, 1]);
    let codes = [
        (Failure::HostUnreachable, 4),
        (Failure::NetworkUnreachable, 3),
        (Failure::NotAllowed, 2),
        (Failure::Refused, 5),
        (Failure::TimedOut, 4),
    ];
    for (failure, code) in codes {
        let reply = Protocol::Socks5.failure(failure, "why");
        assert_eq!(reply, [5, code, 0, 1, 0, 0, 0, 0, 0, 0]);
    }
    let bound = "[2001:db8::1]:80".parse().expect("address");
    assert_eq!(Protocol::Socks5.success(bound).len(), 22);
}

#[test]
fn socks5_datagrams_have_addresses_too() {
    let mut datagram = Vec::new();
    let source = "192.0.2.1:53".parse().expect("address");
    socks5::push_datagram_header(&mut datagram, source);
    datagram.extend_from_slice(b"answer");
    let (target, start) = socks5::datagram(&datagram).expect("whole");
    assert_eq!(
        (target, &datagram[start..]),
        (source.into(), b"answer".as_slice())
    );
    for len in 0..10 {
        assert_eq!(socks5::datagram(&datagram[..len]), None);
    }
    datagram[2] = 1;
    assert_eq!(socks5::datagram(&datagram), None, "a fragment");
}

#[test]
fn socks4_and_4a() {
    let plain = request(b"\x04\x01\x00\x50\xc0\x00\x02\x01user\0rest");
    assert_eq!(plain.target.to_string(), "192.0.2.1:80");
    assert_eq!(plain.rest, b"rest");
    let named = request(b"\x04\x01\x00\x50\x00\x00\x00\x01\0example.com\0");
    assert_eq!(named.target.host, Host::Name("example.com".to_owned()));
    assert_eq!(Protocol::Socks4.success(socks5::NOWHERE)[..2], [0, 90]);
    assert_eq!(
        refusal(b"\x04\x02\x00\x50\xc0\x00\x02\x01\0").reply[..2],
        [0, 91]
    );
    assert_eq!(
        refusal(b"\x04\x01\x00\x50\0\0\0\x01\0\0").reply[..2],
        [0, 91]
    );
    let endless = [b"\x04\x01\x00\x50\xc0\x00\x02\x01".as_slice(), &[b'u'; 300]].concat();
    assert_eq!(refusal(&endless).reply[..2], [0, 91]);
}

#[test]
fn http_connect() {
    let found = request(b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03");
    assert_eq!(found.target.to_string(), "example.com:443");
    assert_eq!(
        (found.protocol, found.rest),
        (Protocol::HttpConnect, b"\x16\x03".to_vec())
    );
    assert!(found.head.is_empty());
    let v6 = request(b"CONNECT [2001:db8::1]:443 HTTP/1.0\r\n\r\n");
    assert_eq!(v6.target.to_string(), "[2001:db8::1]:443");
    for bad in [
        "example.com",
        "example.com:",
        ":443",
        "example.com:99999",
        "example.com:0",
        "a:b:1",
        "a,b:1",
        "a'b:1",
        "a%41:1",
    ] {
        let text = format!("CONNECT {bad} HTTP/1.1\r\n\r\n");
        assert!(
            refusal(text.as_bytes()).reply.starts_with(b"HTTP/1.1 400 "),
            "{bad}"
        );
    }
}

#[test]
fn http_requests_become_origin_form_without_hop_by_hop_fields() {
    let found = request(
        b"GET http://Example.com:8080/a?b#c HTTP/1.1\r\nHost: wrong\r\nProxy-Connection: keep-alive\r\n\
          Connection: X-Private, keep-alive\r\nX-Private: 1\r\nX-Kept: 2\r\nProxy-Authorization: secret\r\n\
          Keep-Alive: 5\r\nTE: trailers\r\nUpgrade: h2c\r\n\r\n",
    );
    assert_eq!(found.target.to_string(), "example.com:8080");
    let expected = "GET /a?b HTTP/1.1\r\nHost: Example.com:8080\r\nX-Kept: 2\r\n\r\n";
    assert_eq!(str::from_utf8(&found.head), Ok(expected));
    assert_eq!(found.body, Body::Length(0));
    assert!(!found.is_last && !found.is_bound && !found.asks_for_head());
    let mut last = found;
    last.ask_for_the_end();
    assert!(last.is_last);
    assert!(
        last.head
            .ends_with(b"X-Kept: 2\r\nConnection: close\r\n\r\n")
    );

    let head = |text: &str| String::from_utf8(request(text.as_bytes()).head).expect("text");
    assert!(
        head("OPTIONS http://a.example HTTP/1.1\r\n\r\n")
            .starts_with("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n")
    );
    assert!(head("GET http://a.example?q HTTP/1.0\r\n\r\n").starts_with("GET /?q HTTP/1.0\r\n"));
    assert!(head("GET http://[::1]:81/ HTTP/1.1\r\n\r\n").contains("\r\nHost: [::1]:81\r\n"));
}

#[test]
fn http_requests_tell_whether_another_one_comes() {
    let asked = |version: &str, field: &str| {
        let text = format!("HEAD http://a.example/ HTTP/{version}\r\n{field}\r\n\r\n");
        request(text.as_bytes())
    };
    assert!(!asked("1.1", "A: b").is_last && asked("1.1", "A: b").asks_for_head());
    assert!(asked("1.1", "Connection: x, Close").is_last);
    assert!(asked("1.1", "Proxy-Connection: close").is_last);
    assert!(asked("1.0", "Proxy-Connection: keep-alive").is_last);
    assert!(asked("1.1", "Authorization: Negotiate YII").is_bound);
    assert!(asked("1.1", "authorization: ntlm TlR").is_bound);
    assert!(!asked("1.1", "Authorization: Basic YTpi").is_bound);
}

#[test]
fn http_heads_end_at_an_empty_line_of_either_kind() {
    for end in ["\r\n\r\n", "\n\n", "\r\n\n", "\n\r\n"] {
        let text = format!("GET http://a_b.example/ HTTP/1.1\r\nA: b{end}rest");
        assert_eq!(
            request(text.as_bytes()).target.to_string(),
            "a_b.example:80"
        );
    }
    let host = refusal(b"GET http://a;b/ HTTP/1.1\r\n\r\n");
    assert!(host.reply.starts_with(b"HTTP/1.1 400 "));
    assert_eq!(
        talk(b"GET nonsense\r\n", 1).1,
        Step::More,
        "judged when whole"
    );
}

#[test]
fn http_bodies_end_where_the_request_ends() {
    let post = |field: &str| {
        let text = format!("POST http://a.example/ HTTP/1.1\r\n{field}\r\n\r\n");
        talk(text.as_bytes(), text.len()).1
    };
    let body = |step| {
        let Step::Request(request) = step else {
            panic!("{step:?}");
        };
        request.body
    };
    assert_eq!(body(post("Content-Length: 7")), Body::Length(7));
    let mut chunked = body(post("Transfer-Encoding: chunked"));
    let sent = b"3;x=y\r\nabc\r\n0a \r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n";
    let with_more = [sent.as_slice(), b"GET http://other/"].concat();
    assert_eq!(chunked.clone().take(&with_more), Ok(sent.len()));
    // The result is the same byte by byte.
    for (at, byte) in with_more.iter().enumerate() {
        assert_eq!(chunked.is_done(), at >= sent.len());
        assert_eq!(chunked.take(&[*byte]), Ok(usize::from(at < sent.len())));
    }
    for bad in [
        "Content-Length: 7\r\nTransfer-Encoding: chunked",
        "Content-Length: 7\r\nContent-Length: 8",
        "Content-Length: +7",
        "Transfer-Encoding: gzip, chunked",
    ] {
        assert!(matches!(post(bad), Step::Refuse(_)), "{bad}");
    }
    let old = refusal(b"POST http://a.example/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert!(old.reply.starts_with(b"HTTP/1.1 400 "));
    for bad in [
        "\r\n",
        "xyz\r\n",
        "fffffffffffffffff\r\n",
        // Other implementations see the end of the body elsewhere.
        "3\nabc\r\n",
        "3\rabc",
        "3 3\r\n",
        "3\r\nabc0;ff\r\n",
        "3\r\nabc\n",
        "0\r\n\n",
        "0\r\nX: 1\n",
    ] {
        let mut chunked = body(post("Transfer-Encoding: chunked"));
        assert_eq!(chunked.take(bad.as_bytes()), Err(BadChunk), "{bad}");
    }
}

#[test]
fn what_is_not_for_a_proxy_is_told_so() {
    let website = refusal(b"GET / HTTP/1.1\r\nHost: localhost:1080\r\n\r\n");
    assert!(String::from_utf8_lossy(&website.reply).contains("this is a proxy, not a web server"));
    let https = refusal(b"GET https://a.example/ HTTP/1.1\r\n\r\n");
    assert!(https.reply.starts_with(b"HTTP/1.1 501 "));
    assert_eq!(refusal(b"\x16\x03\x01").reply[0], 0x15);
    for garbage in [
        b"\0\0\0".as_slice(),
        b"\xff\xfe",
        b"\x01",
        b"get nonsense\r\n\r\n",
        b"GET \x01 HTTP/1.1\r\n\r\n",
    ] {
        let refusal = refusal(garbage);
        assert!(refusal.reply.starts_with(b"HTTP/1.1 400 "), "{garbage:?}");
    }
}

#[test]
fn heads_have_a_limit() {
    let long = format!(
        "GET http://a.example/{} HTTP/1.1\r\n",
        "x".repeat(MAX_HEAD_BYTES)
    );
    assert!(refusal(long.as_bytes()).reply.starts_with(b"HTTP/1.1 431 "));
    let fields = "A: b\r\n".repeat(200);
    let many = format!("GET http://a.example/ HTTP/1.1\r\n{fields}\r\n");
    assert!(refusal(many.as_bytes()).reply.starts_with(b"HTTP/1.1 431 "));
    let complete = format!(
        "GET http://a.example/ HTTP/1.1\r\nA: {}\r\n\r\n",
        "x".repeat(MAX_HEAD_BYTES)
    );
    assert!(
        refusal(complete.as_bytes())
            .reply
            .starts_with(b"HTTP/1.1 431 ")
    );
    assert!(Handshake::new().timed_out().reply.is_empty());
}

/// No input causes a panic, and the result does not depend on how the input is split.
#[test]
fn random_bytes_do_no_harm() {
    let mut seed = 7_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33).to_le_bytes()[0]
    };
    let starts: [&[u8]; 5] = [
        b"\x05\x01\x00\x05\x01\x00",
        b"\x04\x01",
        b"GET http://",
        b"CONNECT ",
        b"",
    ];
    for round in 0..20_000 {
        let mut bytes = starts[round % starts.len()].to_vec();
        bytes.extend((0..next() % 60).map(|_| next()));
        if bytes.is_empty() {
            continue;
        }
        let whole = talk(&bytes, bytes.len());
        let cut = talk(&bytes, 1);
        match (&whole.1, &cut.1) {
            (Step::Refuse(_), Step::Refuse(_)) => {}
            _ => assert_eq!(whole, cut, "{bytes:?}"),
        }
    }
}
