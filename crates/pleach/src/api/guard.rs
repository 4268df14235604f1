//! Who may ask for what.
//!
//! The control socket is its owner's: file permissions are its guard. Over TCP:
//!
//! - `Host` must be an address, `localhost` or a name of the configuration, and `Origin`, if there is one, the same: a page of
//!   another site, or a name that an attacker has made to point here (DNS rebinding), gets nothing. No CORS header is ever sent.
//! - Browsers send no `Origin` with many GETs, but say where a request comes from (`Sec-Fetch-Site`, Fetch Metadata): only the page
//!   itself and its user may ask. A link on another site may open the page.
//! - With a token file, each request for data carries `Authorization: Bearer TOKEN` (RFC 6750). The dashboard's files need
//!   none: there is nothing in them.
//! - Without, which is possible on loopback only, everybody on this host may read, and nobody may change anything.

use core::net::IpAddr;
use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use super::{routes::problem, serve::PATIENCE};
use crate::config::Listen;

/// The rules of one way in.
#[derive(Clone)]
pub(super) struct Access(Option<Arc<Listen>>);

/// What the bearer of a request may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    Change,
    Read,
}

impl Access {
    /// Of the control socket.
    pub(super) const fn owner() -> Self {
        Self(None)
    }

    /// Of a TCP listener.
    pub(super) const fn tcp(listen: Arc<Listen>) -> Self {
        Self(Some(listen))
    }

    /// What a request may do, or the answer that it may do nothing.
    fn right(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Right, Box<Response>> {
        let Some(listen) = &self.0 else {
            return Ok(Right::Change);
        };
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok());
        let host = host.unwrap_or_default();
        if !is_known_host(host, &listen.hosts) {
            return Err(refusal(
                StatusCode::MISDIRECTED_REQUEST,
                "this name is not served; use the address, or add the name to `hosts` in [dashboard] or [metrics]",
            ));
        }
        if let Some(origin) = headers.get(header::ORIGIN) {
            let origin = origin.to_str().unwrap_or_default();
            let own = origin.strip_prefix("http://");
            if own.or(origin.strip_prefix("https://")) != Some(host) {
                return Err(refusal(
                    StatusCode::FORBIDDEN,
                    "a page of another site may not ask",
                ));
            }
        }
        if is_of_another_site(headers, super::files::is_open(path)) {
            return Err(refusal(
                StatusCode::FORBIDDEN,
                "a page of another site may not ask",
            ));
        }
        let right = if listen.tokens.is_empty() {
            Right::Read
        } else if super::files::is_open(path) {
            return Ok(Right::Read);
        } else {
            let bearer = headers.get(header::AUTHORIZATION);
            let bearer = bearer.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
            let token = bearer.and_then(|text| listen.tokens.iter().find(|token| token.is(text)));
            match token {
                Some(token) if token.may_change => Right::Change,
                Some(_) => Right::Read,
                None => {
                    let mut answer = problem(StatusCode::UNAUTHORIZED, "a token is needed");
                    let scheme = header::HeaderValue::from_static("Bearer");
                    answer
                        .headers_mut()
                        .insert(header::WWW_AUTHENTICATE, scheme);
                    return Err(Box::new(answer));
                }
            }
        };
        if right == Right::Read && !method.is_safe() {
            return Err(refusal(
                StatusCode::FORBIDDEN,
                "only a token that is not read-only may change anything",
            ));
        }
        Ok(right)
    }
}

/// Whether a browser says that a page of another origin asks. `is_open`: for a file with nothing in it, which a link may lead to.
fn is_of_another_site(headers: &HeaderMap, is_open: bool) -> bool {
    let said = |name: &str| headers.get(name).map(|value| value.as_bytes().to_vec());
    let is_own = match said("sec-fetch-site").as_deref() {
        None | Some(b"same-origin" | b"none") => true,
        Some(_) => false,
    };
    let follows_a_link = said("sec-fetch-mode").as_deref() == Some(b"navigate");
    !(is_own || (is_open && follows_a_link))
}

fn refusal(status: StatusCode, text: &str) -> Box<Response> {
    Box::new(problem(status, text))
}

/// Whether `host`, with or without port, is an address, `localhost` or one of `names`.
fn is_known_host(host: &str, names: &[String]) -> bool {
    let bare = match host.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|b| b.is_ascii_digit()) => bare,
        _ => host,
    };
    let address = bare
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    address.unwrap_or(bare).parse::<IpAddr>().is_ok()
        || bare.eq_ignore_ascii_case("localhost")
        || names.iter().any(|name| name.eq_ignore_ascii_case(bare))
}

/// Lets a request through that may come in, for [`PATIENCE`], and adds what browsers are to keep to.
pub(super) async fn check(
    State(access): State<Access>,
    mut request: Request,
    next: Next,
) -> Response {
    let right = access.right(request.method(), request.uri().path(), request.headers());
    let mut answer = match right {
        Err(refusal) => *refusal,
        Ok(right) => {
            request.extensions_mut().insert(right);
            let answer = tokio::time::timeout(PATIENCE, next.run(request)).await;
            answer.unwrap_or_else(|_| {
                problem(StatusCode::REQUEST_TIMEOUT, "it took too long").into_response()
            })
        }
    };
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        answer
            .headers_mut()
            .insert(name, header::HeaderValue::from_static(value));
    }
    answer
}

/// Scripts and styles are files of their own, and nobody may frame the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_named_hosts_are_served() {
        let names = ["router.lan".to_owned()];
        for host in [
            "127.0.0.1:7780",
            "127.0.0.1",
            "[::1]:7780",
            "[::1]",
            "localhost:7780",
            "LOCALHOST",
            "router.lan",
            "Router.LAN:80",
        ] {
            assert!(is_known_host(host, &names), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "router.lan.evil.example",
            "localhost.evil",
            "127.0.0.1.evil:1",
        ] {
            assert!(!is_known_host(host, &names), "{host}");
        }
    }
}
