//! The first words of a proxy's client: SOCKS4, SOCKS4a, SOCKS5, HTTP. However they are cut, the same request comes of them.

use pleach_proxy::handshake::{Failure, Handshake, Protocol, Step, socks5};

/// `data`: where to cut, then what the client sends.
pub fn run(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else {
        return;
    };
    let whole = outcome(&[bytes]);
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    assert_eq!(
        outcome(&[first, second]),
        whole,
        "cut after {}",
        first.len()
    );
    let _ = socks5::datagram(bytes).map(|(_, at)| assert!(at <= bytes.len()));
}

/// The replies on the way, and the last step.
fn outcome(parts: &[&[u8]]) -> (Vec<Vec<u8>>, Step) {
    let mut handshake = Handshake::new();
    let mut replies = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        handshake.handle_bytes(part);
        loop {
            match handshake.next_step() {
                Step::More => break,
                Step::Reply(reply) => {
                    assert!(replies.len() < 4, "replies without end");
                    replies.push(reply);
                }
                Step::Request(mut request) => {
                    let later = parts[index + 1..].concat();
                    request.rest.extend_from_slice(&later);
                    let total: usize = parts.iter().map(|part| part.len()).sum();
                    assert!(request.rest.len() <= total);
                    check_head(&request.head, request.protocol);
                    let mut last = request.clone();
                    last.ask_for_the_end();
                    check_head(&last.head, request.protocol);
                    let _ = request.protocol.failure(Failure::General, "no");
                    return (replies, Step::Request(request));
                }
                Step::Refuse(refusal) => return (replies, Step::Refuse(refusal)),
            }
        }
    }
    let _ = handshake.timed_out();
    (replies, Step::More)
}

/// What goes to the server is one head and nothing else.
fn check_head(head: &[u8], protocol: Protocol) {
    if protocol != Protocol::HttpRequest {
        assert!(head.is_empty());
        return;
    }
    assert!(head.ends_with(b"\r\n\r\n"), "a head without an end");
    let ends = head
        .windows(4)
        .filter(|window| window == b"\r\n\r\n")
        .count();
    assert_eq!(ends, 1, "two heads");
    let mut fields = [httparse::EMPTY_HEADER; 256];
    let mut parsed = httparse::Request::new(&mut fields);
    let status = parsed.parse(head).expect("we send requests");
    assert!(status.is_complete());
    let path = parsed.path.unwrap_or_default();
    assert!(
        path.starts_with('/') || path == "*",
        "an absolute URL goes to a server"
    );
    let has = |name: &str| {
        parsed
            .headers
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case(name))
            .count()
    };
    assert!(has("host") == 1, "not one Host");
    assert!(has("proxy-authorization") == 0 && has("proxy-connection") == 0);
    assert!(has("content-length") <= 1 && has("transfer-encoding") <= 1);
    assert!(
        has("content-length") == 0 || has("transfer-encoding") == 0,
        "two lengths"
    );
}
