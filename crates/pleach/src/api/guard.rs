//! Access control: which requests are permitted to read or to change something.
//!
//! The control socket is protected by its file permissions: only its owner may connect. Over TCP:
//!
//! - `Host` must be an address, `localhost` or a name of the configuration. `Origin`, if present, must name the same
//!   host. So pages of other sites get no data, even if an attacker has made the site's name resolve to this host (DNS
//!   rebinding). No CORS header is ever sent.
//! - Browsers send no `Origin` with many GETs, but `Sec-Fetch-Site` (Fetch Metadata) shows which site caused a request.
//!   Requests of the dashboard itself, and addresses that the user has typed, are permitted. Requests caused by another
//!   site are refused, except if the user follows a link to the dashboard.
//! - With a token file, each request for data must carry `Authorization: Bearer TOKEN` (RFC 6750). The dashboard's
//!   files need no token, because they contain no data.
//! - Without a token file, which is possible on loopback addresses only, everybody on this host may read, and nobody
//!   may change anything.

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

/// The access rules of one listener; `None` for the control socket.
#[derive(Clone)]
pub(super) struct Access(Option<Arc<Listen>>);

/// What a request may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    Change,
    Read,
}

impl Access {
    /// Returns the rules of the control socket: its owner may do everything.
    pub(super) const fn owner() -> Self {
        Self(None)
    }

    /// Returns the rules of a TCP listener.
    pub(super) const fn tcp(listen: Arc<Listen>) -> Self {
        Self(Some(listen))
    }

    /// Returns what a request may do, or the response that refuses it.
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

/// Whether the request must be refused because another site caused it, according to the header `Sec-Fetch-Site` of the
/// browser. A link on another site is permitted if `is_open`, that is, if the request is for one of the dashboard's
/// static files, which need no token.
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

/// Middleware: passes a permitted request on, limits its time to [`PATIENCE`], and adds the security headers that
/// browsers obey.
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

/// Content security policy: scripts and styles must be separate files of this host, and no page may frame the
/// dashboard.
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
