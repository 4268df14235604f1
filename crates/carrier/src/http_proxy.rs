//! Through an HTTP proxy: `CONNECT` (RFC 9110 section 9.3.6), with a password if it asks for one (RFC 7617).

use std::{fmt, net::SocketAddr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

use crate::error::{CarrierError, ProxyError};

/// The proxy of a link.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpProxy {
    /// Its host name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// User and password.
    pub login: Option<(String, Zeroizing<String>)>,
}

impl fmt::Debug for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpProxy")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("has_login", &self.login.is_some())
            .finish()
    }
}

/// Asks for a connection to `to`; `stream` is that connection afterwards.
pub(crate) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    proxy: &HttpProxy,
    to: SocketAddr,
) -> Result<(), CarrierError> {
    let mut request = Zeroizing::new(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n"));
    if let Some((user, password)) = &proxy.login {
        let login = Zeroizing::new(format!("{user}:{}", password.as_str()));
        let login = Zeroizing::new(STANDARD.encode(login.as_bytes()));
        request.push_str("Proxy-Authorization: Basic ");
        request.push_str(&login);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    let lost = |_| CarrierError::Closed;
    stream.write_all(request.as_bytes()).await.map_err(lost)?;
    let mut answer = Vec::new();
    loop {
        // One byte at a time, since what follows belongs to TLS.
        let mut byte = [0; 1];
        if stream.read(&mut byte).await.map_err(lost)? == 0 {
            return Err(if answer.is_empty() {
                CarrierError::Closed
            } else {
                ProxyError::Nonsense.into()
            });
        }
        answer.push(byte[0]);
        match status(&answer)? {
            None => {}
            Some(200..=299) => return Ok(()),
            Some(407) if proxy.login.is_some() => return Err(ProxyError::WrongPassword.into()),
            Some(407) => return Err(ProxyError::NeedsPassword.into()),
            Some(status) => {
                let to = to.to_string();
                return Err(ProxyError::Refused { to, status }.into());
            }
        }
    }
}

/// The status of a complete answer; `None` while more must come.
fn status(answer: &[u8]) -> Result<Option<u16>, ProxyError> {
    if answer.len() > MAX_ANSWER {
        return Err(ProxyError::Nonsense);
    }
    // Nobody need wait for the rest of what is not HTTP.
    if !HTTP.starts_with(&answer[..answer.len().min(HTTP.len())]) {
        return Err(ProxyError::Nonsense);
    }
    if !answer.ends_with(b"\n") {
        return Ok(None);
    }
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(answer) {
        Ok(httparse::Status::Complete(_)) => response.code.map(Some).ok_or(ProxyError::Nonsense),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(_) => Err(ProxyError::Nonsense),
    }
}

const HTTP: &[u8] = b"HTTP/1.";
const MAX_ANSWER: usize = 8192;
const MAX_HEADERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// What was asked, or why there is no connection.
    fn ask(answer: &'static [u8], login: bool) -> (String, Option<CarrierError>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let (mut near, mut far) = tokio::io::duplex(4096);
            let proxy = HttpProxy {
                host: "proxy".to_owned(),
                port: 3128,
                login: login.then(|| ("me".to_owned(), Zeroizing::new("pass word".to_owned()))),
            };
            far.write_all(answer).await.expect("room");
            let to = "[2001:db8::5]:443".parse().expect("literal");
            let error = connect(&mut near, &proxy, to).await.err();
            let mut asked = vec![0; 4096];
            let len = far.read(&mut asked).await.expect("a request");
            asked.truncate(len);
            if error.is_none() {
                let mut rest = [0; 3];
                near.read_exact(&mut rest).await.expect("what follows");
                assert_eq!(&rest, b"TLS");
            }
            (String::from_utf8(asked).expect("text"), error)
        })
    }

    #[test]
    fn the_tunnel_begins_behind_the_answer() {
        let asked = ask(
            b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nTLS",
            true,
        );
        let (text, error) = asked;
        assert!(error.is_none(), "{error:?}");
        assert!(
            text.starts_with("CONNECT [2001:db8::5]:443 HTTP/1.1\r\nHost: [2001:db8::5]:443\r\n")
        );
        assert!(text.contains("Basic bWU6cGFzcyB3b3Jk\r\n"), "{text}");
    }

    #[test]
    fn refusals_are_told_apart() {
        let error = |answer, login| match ask(answer, login).1 {
            Some(CarrierError::Proxy(error)) => error,
            other => panic!("{other:?}"),
        };
        let ask = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        assert_eq!(error(ask, false), ProxyError::NeedsPassword);
        assert_eq!(error(ask, true), ProxyError::WrongPassword);
        let refused = error(b"HTTP/1.0 403 Forbidden\r\n\r\n", false);
        assert!(matches!(refused, ProxyError::Refused { status: 403, .. }));
        for nonsense in [
            &b"SSH-2.0-OpenSSH\r\n"[..],
            b"HTTP/1.1 abc\r\n\r\n",
            b"\n\n",
        ] {
            assert_eq!(error(nonsense, false), ProxyError::Nonsense);
        }
    }
}
