//! Clients of the proxy, one for each protocol. Call them inside the client's namespace.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::Duration,
};

use crate::world::{HTTP_PORT, SERVER, proxy_address};

/// Protocol in which a client asks the proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    HttpConnect,
    HttpRequest,
    Socks4a,
    Socks5,
    Socks5Name,
}

pub(crate) const WAYS: [Way; 5] = [
    Way::HttpConnect,
    Way::HttpRequest,
    Way::Socks4a,
    Way::Socks5,
    Way::Socks5Name,
];

/// Connects to the proxy, with time limits for reading and writing.
pub(crate) fn plain() -> io::Result<TcpStream> {
    let stream = TcpStream::connect(proxy_address())?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

/// Sends the greeting and request of SOCKS5. Returns the connection and the reply.
pub(crate) fn socks5(command: u8, address: &[u8], port: u16) -> io::Result<(TcpStream, [u8; 10])> {
    let mut stream = plain()?;
    stream.write_all(&[5, 1, 0])?;
    let mut choice = [0; 2];
    stream.read_exact(&mut choice)?;
    assert_eq!(choice, [5, 0]);
    let request = [&[5, command, 0], address, &port.to_be_bytes()].concat();
    stream.write_all(&request)?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    Ok((stream, reply))
}

/// Returns an IPv4 address in the encoding of SOCKS5.
pub(crate) fn v4(text: &str) -> Vec<u8> {
    let ip: std::net::Ipv4Addr = text.parse().expect("literal");
    [&[1], ip.octets().as_slice()].concat()
}

/// Returns a name in the encoding of SOCKS5.
pub(crate) fn name(text: &str) -> Vec<u8> {
    let len = u8::try_from(text.len()).expect("short");
    [&[3, len], text.as_bytes()].concat()
}

/// Opens a connection to `port` of the server through SOCKS5.
pub(crate) fn tunnel(port: u16) -> io::Result<TcpStream> {
    let (stream, reply) = socks5(1, &v4(SERVER), port)?;
    assert_eq!(reply[1], 0, "SOCKS5 reply");
    Ok(stream)
}

/// Downloads `/path` from the server with the protocol `way`, and returns the body.
pub(crate) fn download(way: Way, path: &str) -> io::Result<Vec<u8>> {
    let host = format!("{SERVER}:{HTTP_PORT}");
    let mut stream = match way {
        Way::HttpConnect => {
            let mut stream = plain()?;
            write!(stream, "CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
            let head = read_head(&mut stream)?;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            stream
        }
        Way::HttpRequest => plain()?,
        Way::Socks4a => {
            let mut stream = plain()?;
            let mut request = vec![4, 1];
            request.extend_from_slice(&HTTP_PORT.to_be_bytes());
            request.extend_from_slice(b"\0\0\0\x01user\0");
            request.extend_from_slice(SERVER.as_bytes());
            request.push(0);
            stream.write_all(&request)?;
            let mut reply = [0; 8];
            stream.read_exact(&mut reply)?;
            assert_eq!(reply[..2], [0, 90]);
            stream
        }
        Way::Socks5 => tunnel(HTTP_PORT)?,
        Way::Socks5Name => {
            let (stream, reply) = socks5(1, &name(SERVER), HTTP_PORT)?;
            assert_eq!(reply[1], 0, "SOCKS5 reply");
            stream
        }
    };
    let url = if matches!(way, Way::HttpRequest) {
        format!("http://{host}/{path}")
    } else {
        format!("/{path}")
    };
    write!(
        stream,
        "GET {url} HTTP/1.1\r\nHost: {host}\r\nProxy-Connection: close\r\n\r\n"
    )?;
    let head = read_head(&mut stream)?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut body = Vec::new();
    stream.read_to_end(&mut body)?;
    Ok(body)
}

/// Reads up to the empty line.
pub(crate) fn read_head(stream: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
