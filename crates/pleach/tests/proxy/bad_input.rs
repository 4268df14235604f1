//! Wrong input causes a clear error, no hang, and no leak.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use crate::{
    client,
    world::{HTTP_PORT, MUTE_PORT, PATIENCE, RESET_PORT, SERVER, World, proxy_address},
};

/// Sends `words`, and returns everything that is sent back.
fn answer(words: &[u8]) -> Vec<u8> {
    let mut stream = client::plain().expect("connects");
    // The proxy may close the connection before it has read everything.
    let _ = stream.write_all(words);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn nonsense_gets_an_error_and_leaves_nothing() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("", "");
    let before = proxy.descriptors();
    world
        .client()
        .run(|| {
            let text = |words: &[u8]| String::from_utf8_lossy(&answer(words)).into_owned();
            for garbage in [
                b"\0\x01\x02".as_slice(),
                b"\xff\xff",
                b"get nonsense\r\n\r\n",
            ] {
                assert!(text(garbage).starts_with("HTTP/1.1 400 "), "{garbage:?}");
            }
            assert_eq!(answer(b"\x16\x03\x01\x02\0")[0], 0x15, "a TLS alert");
            let long = format!(
                "GET http://{SERVER}/ HTTP/1.1\r\nA: {}",
                "x".repeat(100_000)
            );
            assert!(text(long.as_bytes()).starts_with("HTTP/1.1 431 "));
            let website = text(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(
                website.contains("this is a proxy, not a web server"),
                "{website}"
            );
            assert_eq!(answer(b"\x05\x01\x02"), [5, 0xff], "only passwords offered");
            for (command, kind, code) in [(2, 1, 7), (9, 1, 7), (1, 2, 8)] {
                let (_, reply) = client::socks5(command, &[kind, 1, 2, 3, 4], 80)?;
                assert_eq!(reply[1], code, "command {command}, type {kind}");
            }
            assert_eq!(answer(b"\x04\x02\0\x50\x01\x02\x03\x04\0")[..2], [0, 91]);
            Ok(())
        })
        .expect("inside");
    proxy.until_clean(before);
    let status = proxy.status().expect("it runs");
    assert!(
        status["drops"]["bad-request"].as_u64() >= Some(9),
        "{status}"
    );
}

#[test]
fn what_cannot_be_reached_is_said_with_the_reason() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("", "");
    let before = proxy.descriptors();
    world
        .client()
        .run(|| {
            let closed = 81;
            let (_, reply) = client::socks5(1, &client::v4(SERVER), closed)?;
            assert_eq!(reply[1], 5, "refused");
            let (_, reply) = client::socks5(1, &client::name("no-such-host.invalid"), 80)?;
            assert_eq!(reply[1], 4, "host unreachable");
            let no_v6_port = [4, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
            let (_, reply) = client::socks5(1, &no_v6_port, 0)?;
            assert_eq!(reply[1], 1, "port zero");

            let text =
                |words: String| String::from_utf8_lossy(&answer(words.as_bytes())).into_owned();
            let refused = text(format!("CONNECT {SERVER}:{closed} HTTP/1.1\r\n\r\n"));
            assert!(refused.starts_with("HTTP/1.1 502 "), "{refused}");
            assert!(
                refused.contains("wifi: connection refused; lte: connection refused"),
                "{refused}"
            );
            for (port, method, reason) in [
                (MUTE_PORT, "GET", "the server closed without an answer"),
                (RESET_PORT, "POST", "onnection reset"),
            ] {
                let page = text(format!(
                    "{method} http://{SERVER}:{port}/ HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
                ));
                assert!(
                    page.starts_with("HTTP/1.1 502 ") && page.contains(reason),
                    "{page}"
                );
            }
            let unknown = text("GET http://no-such-host.invalid/ HTTP/1.1\r\n\r\n".to_owned());
            assert!(unknown.starts_with("HTTP/1.1 502 "), "{unknown}");
            assert!(
                unknown.contains("no-such-host.invalid does not resolve: "),
                "{unknown}"
            );
            Ok(())
        })
        .expect("inside");
    proxy.until_clean(before);
}

#[test]
fn without_links_the_error_names_each() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("", "");
    world
        .client()
        .ip("link set dev wifi down\nlink set dev lte down\n")
        .expect("down");
    proxy.until("both are down", |status| {
        let links = status["links"].as_array().expect("links");
        links.iter().all(|link| link["state"] == "down")
    });
    world
        .client()
        .run(|| {
            let page = answer(format!("GET http://{SERVER}/ HTTP/1.1\r\n\r\n").as_bytes());
            let page = String::from_utf8_lossy(&page).into_owned();
            assert!(page.starts_with("HTTP/1.1 503 "), "{page}");
            assert!(page.contains("wifi: down; lte: down"), "{page}");
            let (_, reply) = client::socks5(1, &client::v4(SERVER), 80)?;
            assert_eq!(reply[1], 3, "network unreachable");
            Ok(())
        })
        .expect("inside");
}

#[test]
fn a_request_may_pause_as_long_as_its_deadline_allows() {
    let Some(world) = World::new() else { return };
    let _proxy = world.proxy("", "");
    world
        .client()
        .run(|| {
            let mut slow = TcpStream::connect(proxy_address())?;
            slow.set_read_timeout(Some(Duration::from_millis(500)))?;
            let words = format!("GET http://{SERVER}:{HTTP_PORT}/1000 HTTP/1.1\r\n\r\n");
            let (last, first) = words.as_bytes().split_last().expect("words");
            // Eight pauses of half a second: four of the ten seconds that a request may take.
            for part in first.chunks(first.len().div_ceil(8)) {
                slow.write_all(part)?;
                let error = slow
                    .read(&mut [0])
                    .expect_err("the request is not complete");
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            }
            slow.write_all(&[*last])?;
            slow.set_read_timeout(Some(PATIENCE))?;
            let head = client::read_head(&mut slow)?;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            Ok(())
        })
        .expect("inside");
}

#[test]
fn the_slow_and_the_silent_do_not_stay() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("", "");
    let before = proxy.descriptors();
    world
        .client()
        .run(|| {
            let silent: Vec<TcpStream> =
                (0..50).map(|_| client::plain()).collect::<Result<_, _>>()?;
            let mut slow = TcpStream::connect(proxy_address())?;
            slow.set_read_timeout(Some(Duration::from_millis(500)))?;
            // A byte every half a second: the deadline applies to the whole request, not to each byte.
            let words = b"GET http://10.99.0.2/ HTTP/1.1\r\n".iter().cycle();
            let ended = words.take(120).any(|byte| {
                let mut answer = [0; 500];
                let is_over = slow.write_all(&[*byte]).is_err();
                match slow.read(&mut answer) {
                    Ok(len) => {
                        assert!(answer.starts_with(b"HTTP/1.1 408 "), "{len} bytes");
                        true
                    }
                    Err(_) => is_over,
                }
            });
            assert!(ended, "it still listens after 120 bytes");
            for mut stream in silent {
                assert_eq!(stream.read(&mut [0])?, 0);
            }
            // The client disconnects after half of a greeting, after half of a request, and after a request.
            for words in [
                b"\x05".as_slice(),
                b"\x05\x01\0\x05\x01",
                b"CONNECT 10.99.0.2:8000 HTTP/1.1\r\n\r\n",
            ] {
                client::plain()?.write_all(words)?;
            }
            // The proxy still serves other clients.
            assert_eq!(client::download(client::Way::Socks5, "1000")?.len(), 1000);
            Ok(())
        })
        .expect("inside");
    proxy.until_clean(before);
    assert_eq!(
        proxy.status().expect("it runs")["drops"]["slow-request"],
        51
    );
}
