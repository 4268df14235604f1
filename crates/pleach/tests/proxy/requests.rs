//! Plain HTTP requests: several over one client connection, each over the link that the scheduler chooses.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use crate::{
    client::{self, Way, read_head},
    world::{
        EARLY_PORT, FICKLE_PORT, HTTP_PORT, KEEPING_PORT, RESET_PORT, SERVER, STUBBORN_PORT, World,
        content,
    },
};

/// Returns the beginning of a request: method and URL.
fn line(method: &str, port: u16, path: &str) -> String {
    format!("{method} http://{SERVER}:{port}/{path} HTTP/1.1\r\n")
}

/// Requests `path` over `stream` and returns the body, whose length the answer states.
fn ask(stream: &mut TcpStream, port: u16, path: &str) -> io::Result<Vec<u8>> {
    write!(stream, "{}\r\n", line("GET", port, path))?;
    take(stream)
}

/// Reads the next answer, and returns its body.
fn take(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let head = read_head(stream)?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(!head.contains("Connection"), "{head}");
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.and_then(|text| text.parse().ok()).unwrap_or(0)];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// Runs `client` against a proxy with `keys`, and asserts that no descriptors remain open.
#[track_caller]
pub(crate) fn served(keys: &str, client: impl FnOnce() -> io::Result<()> + Send) {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy(keys, "");
    let before = proxy.descriptors();
    let outcome = world.client().run(|| Ok(client()?));
    outcome.expect("answers");
    proxy.until_clean(before);
}

#[test]
fn one_connection_serves_many_requests() {
    served("scheduler = \"only-one\"", || {
        let mut stream = client::plain()?;
        let first = ask(&mut stream, KEEPING_PORT, "peer")?;
        assert_eq!(ask(&mut stream, KEEPING_PORT, "peer")?, first);
        // Another server, one that closes the connection, and one that announces this but does not do it.
        for port in [HTTP_PORT, STUBBORN_PORT] {
            let other = ask(&mut stream, port, "peer")?;
            assert_ne!(ask(&mut stream, port, "peer")?, other, "{port}");
        }
        assert_eq!(ask(&mut stream, KEEPING_PORT, "peer")?, first);
        // Other client connections can use the stored server connection, too.
        let mut other = client::plain()?;
        assert_eq!(ask(&mut other, KEEPING_PORT, "peer")?, first);
        // A request that must not be repeated is not sent over a connection that the server may be closing.
        for turn in 0..3 {
            let body = content(50_000);
            let post = line("POST", FICKLE_PORT, "");
            write!(stream, "{post}Content-Length: {}\r\n\r\n", body.len())?;
            stream.write_all(&body)?;
            // Some old clients add a line break.
            stream.write_all(b"\r\n")?;
            assert!(take(&mut stream)? == body, "{turn}");
        }
        // If a server closes the connection instead of answering, the request is repeated.
        for turn in 0..3 {
            assert!(
                ask(&mut stream, FICKLE_PORT, "2000")? == content(2000),
                "{turn}"
            );
        }
        // Answers without a body, in chunks, and with a length.
        write!(stream, "{}\r\n", line("HEAD", KEEPING_PORT, "70"))?;
        assert!(read_head(&mut stream)?.contains("Content-Length: 70\r\n"));
        write!(stream, "{}\r\n", line("GET", KEEPING_PORT, "chunked/12000"))?;
        read_head(&mut stream)?;
        let mut chunks = vec![0; 12_000 + 2 * "1388\r\n\r\n".len() + "7d0\r\n\r\n0\r\n\r\n".len()];
        stream.read_exact(&mut chunks)?;
        assert!(chunks.ends_with(b"0\r\n\r\n"));
        assert!(ask(&mut stream, KEEPING_PORT, "500000")? == content(500_000));
        Ok(())
    });
}

#[test]
fn requests_said_at_once_are_answered_one_after_the_other() {
    served("", || {
        let mut stream = client::plain()?;
        let body = content(3000);
        let post = line("POST", KEEPING_PORT, "");
        let mut said = format!("{post}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
        said.extend_from_slice(&body);
        let rest = [
            line("GET", HTTP_PORT, "100000"),
            line("GET", KEEPING_PORT, "7"),
        ];
        said.extend(
            rest.iter()
                .flat_map(|line| [line.as_bytes(), b"\r\n"].concat()),
        );
        stream.write_all(&said)?;
        assert!(take(&mut stream)? == body);
        assert!(take(&mut stream)? == content(100_000));
        assert!(take(&mut stream)? == content(7));
        // A request that cannot be served ends the connection, with an error page.
        write!(stream, "{}\r\n", line("GET", 1, ""))?;
        let refused = read_head(&mut stream)?;
        assert!(refused.starts_with("HTTP/1.1 502 "), "{refused}");
        assert!(refused.contains("Connection: close\r\n"));
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        assert!(page.contains(&format!("{SERVER}:1")), "{page}");
        Ok(())
    });
}

#[test]
fn a_client_may_be_silent_between_requests() {
    served("", || {
        let mut stream = client::plain()?;
        assert!(ask(&mut stream, KEEPING_PORT, "9")? == content(9));
        // Longer than the first request may take. Nothing is received, not even the end of the connection.
        stream.set_read_timeout(Some(Duration::from_secs(11)))?;
        let silence = stream.read(&mut [0]).expect_err("nobody was asked");
        assert_eq!(silence.kind(), io::ErrorKind::WouldBlock);
        assert!(ask(&mut stream, KEEPING_PORT, "9")? == content(9));
        Ok(())
    });
}

#[test]
fn an_answer_may_come_before_the_request_is_whole() {
    served("", || {
        let ask = |stream: &mut TcpStream, path: &str| -> io::Result<String> {
            let post = line("POST", EARLY_PORT, path);
            write!(stream, "{post}Content-Length: 100000\r\n\r\n")?;
            assert!(read_head(stream)?.starts_with("HTTP/1.1 100 "));
            let head = read_head(stream)?;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            Ok(head)
        };
        for more in [0, 50_000] {
            let mut stream = client::plain()?;
            let head = ask(&mut stream, "")?;
            assert!(head.contains("Connection: close\r\n"), "{head}");
            // Further data of the client are not treated as another request, and do not damage the answer.
            let _ = stream.write_all(&content(more));
            let mut body = Vec::new();
            stream.read_to_end(&mut body)?;
            assert_eq!(body, b"early", "{more}");
        }
        // A server that continues to read gets all data, and the next request.
        let mut stream = client::plain()?;
        for _ in 0..2 {
            let head = ask(&mut stream, "on")?;
            assert!(!head.contains("Connection"), "{head}");
            let mut body = [0; 5];
            stream.read_exact(&mut body)?;
            assert_eq!(&body, b"early");
            stream.write_all(&content(100_000))?;
        }
        Ok(())
    });
}

#[test]
fn the_last_request_of_a_connection_says_so() {
    served("", || {
        let head = client::download(Way::HttpRequest, "head")?;
        let expected = format!(
            "GET /head HTTP/1.1\r\nHost: {SERVER}:{HTTP_PORT}\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(String::from_utf8_lossy(&head), expected);
        // A client with HTTP/1.0 needs the end of the connection to find the end of an answer. If the client asks
        // again, the connection to a server that keeps it open is closed.
        let request = format!("GET http://{SERVER}:{STUBBORN_PORT}/3 HTTP/1.0\r\n\r\n");
        for is_ahead in [false, true] {
            let mut stream = client::plain()?;
            stream.write_all(request.as_bytes())?;
            if is_ahead {
                stream.write_all(request.as_bytes())?;
            }
            read_head(&mut stream)?;
            stream.read_exact(&mut [0; 3])?;
            if !is_ahead {
                stream.write_all(request.as_bytes())?;
            }
            match stream.read(&mut [0]) {
                Ok(len) => assert_eq!(len, 0, "one answer only"),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
            }
        }
        // If a server breaks the connection or does not answer, the client gets an error.
        let mut stream = client::plain()?;
        write!(stream, "{}\r\n", line("GET", RESET_PORT, ""))?;
        let refused = read_head(&mut stream)?;
        assert!(refused.starts_with("HTTP/1.1 502 "), "{refused}");
        Ok(())
    });
}

#[test]
fn each_request_takes_the_link_that_suits_it() {
    served("scheduler = \"round-robin\"", || {
        let mut stream = client::plain()?;
        let mut peers = Vec::new();
        for _ in 0..4 {
            peers.push(ask(&mut stream, KEEPING_PORT, "peer")?);
        }
        assert_ne!(peers[0], peers[1], "two links");
        assert_eq!(peers[..2], peers[2..], "a connection over each");
        // A login applies to a connection, so later requests use the same server connection.
        let login = "Authorization: NTLM TlRMTVNTUAABAAAA\r\n";
        write!(stream, "{}{login}\r\n", line("GET", KEEPING_PORT, "peer"))?;
        let with_login = take(&mut stream)?;
        for _ in 0..3 {
            assert_eq!(ask(&mut stream, KEEPING_PORT, "peer")?, with_login);
        }
        // Other clients do not use this server connection.
        assert!(!peers.contains(&with_login));
        let mut other = client::plain()?;
        for _ in 0..2 {
            assert!(peers.contains(&ask(&mut other, KEEPING_PORT, "peer")?));
        }
        Ok(())
    });
}
