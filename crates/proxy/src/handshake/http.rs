//! HTTP/1 proxying (RFC 9110, 9112): CONNECT, and requests with an absolute URL.
//!
//! A plain request is rewritten: origin form, the host of the URL in `Host`, no hop-by-hop fields. The field `Via` is
//! omitted, against RFC 9110 section 7.6.3: this proxy is part of the user's own host, and servers treat requests
//! with `Via` worse (no compression).

use super::{Failure, MAX_HEAD_BYTES, Protocol, Refusal, Request, Step, refuse};
use crate::{
    http::{
        Body,
        fields::{connection_options, has_end, is_hop_by_hop, push},
    },
    target::{Host, Target},
};

/// Reads a request head once it is complete. `searched` is the number of bytes of `buffer` that were searched before.
pub(super) fn request(buffer: &mut Vec<u8>, searched: &mut usize) -> Step {
    if !has_end(buffer, searched) {
        return Step::More;
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    // An incomplete head of this many bytes is refused.
    let len = match parsed.parse(buffer) {
        Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD_BYTES => len,
        Ok(httparse::Status::Partial) if buffer.len() < MAX_HEAD_BYTES => return Step::More,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Step::Refuse(too_long()),
        Err(error) => return bad(&format!("this is no HTTP/1 request: {error}")),
    };
    let (Some(method), Some(path), Some(version)) = (parsed.method, parsed.path, parsed.version)
    else {
        return bad("this is no HTTP/1 request");
    };
    let outcome = if method == "CONNECT" {
        connect(path)
    } else {
        plain(method, path, version, parsed.headers)
    };
    match outcome {
        Ok(mut request) => {
            request.rest = buffer.split_off(len);
            Step::Request(Box::new(request))
        }
        Err(step) => step,
    }
}

fn connect(authority: &str) -> Result<Request, Step> {
    let target = split_authority(authority)
        .and_then(|(host, port)| Target::new(host_of(host)?, port?))
        .ok_or_else(|| bad("CONNECT needs HOST:PORT"))?;
    Ok(Request::tunnel(Protocol::HttpConnect, target))
}

fn plain(
    method: &str,
    url: &str,
    version: u8,
    fields: &[httparse::Header<'_>],
) -> Result<Request, Step> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(bad(
            "this is a proxy, not a web server: set it as HTTP or SOCKS proxy of a program",
        ));
    };
    if !scheme.eq_ignore_ascii_case("http") {
        let text = format!("{scheme}:// cannot be asked for in the clear: use CONNECT, or SOCKS5");
        return Err(refuse(error_page("501 Not Implemented", &text), text));
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = path.split('#').next().unwrap_or_default();
    let target = split_authority(authority)
        .and_then(|(host, port)| Target::new(host_of(host)?, port.unwrap_or(80)))
        .ok_or_else(|| bad("the URL's host or port cannot be"))?;
    let body = Body::of_request(version, fields).map_err(bad)?;

    let mut head = Vec::with_capacity(1024);
    head.extend_from_slice(method.as_bytes());
    head.push(b' ');
    match (path.chars().next(), method) {
        (Some('/'), _) => {}
        (None, "OPTIONS") => head.push(b'*'),
        (Some(_) | None, _) => head.push(b'/'),
    }
    head.extend_from_slice(path.as_bytes());
    head.extend_from_slice(if version == 0 {
        b" HTTP/1.0\r\nHost: "
    } else {
        b" HTTP/1.1\r\nHost: "
    });
    head.extend_from_slice(authority.as_bytes());
    head.extend_from_slice(b"\r\n");
    let named = connection_options(fields);
    for field in fields {
        // `Host` has been written above.
        if !field.name.eq_ignore_ascii_case("host") && !is_hop_by_hop(field.name, &named) {
            push(&mut head, field.name, field.value);
        }
    }
    head.extend_from_slice(b"\r\n");
    let mut request = Request::tunnel(Protocol::HttpRequest, target);
    request.head = head;
    request.body = body;
    request.is_last = version == 0 || named.contains("close");
    request.is_bound = fields.iter().any(binds);
    Ok(request)
}

/// Whether a field authenticates the whole connection and not only the request (RFC 4559; NTLM).
fn binds(field: &httparse::Header<'_>) -> bool {
    let scheme = field.value.split(|byte| *byte == b' ').next();
    field.name.eq_ignore_ascii_case("authorization")
        && scheme.is_some_and(|scheme| {
            scheme.eq_ignore_ascii_case(b"negotiate") || scheme.eq_ignore_ascii_case(b"ntlm")
        })
}

/// Splits `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`. `None` if the port is not a number.
fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let colon = match authority.rfind(']') {
        Some(bracket) => authority[bracket..].find(':').map(|at| bracket + at),
        None => authority.rfind(':'),
    };
    match colon {
        // `HOST:` means the default port (RFC 3986, 3.2.3).
        Some(at) if at + 1 == authority.len() => Some((&authority[..at], None)),
        Some(at) => {
            let port = &authority[at + 1..];
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            let port = is_number.then(|| port.parse().ok()).flatten()?;
            Some((&authority[..at], Some(port)))
        }
        None => Some((authority, None)),
    }
}

/// Reads an address or a name. A name may only contain the characters of host names, because it is copied into a head
/// and passed to a resolver.
fn host_of(text: &str) -> Option<Host> {
    let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    Host::parse(text).filter(|host| match host {
        Host::Ip(_) => true,
        Host::Name(name) => name.bytes().all(is_host_byte),
    })
}

/// Returns an answer of the proxy itself, after which the connection closes.
pub(super) fn error_page(status: &str, text: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\
         Proxy-Status: pleach\r\n\r\npleach: {text}\n",
        text.len() + "pleach: \n".len()
    )
    .into_bytes()
}

pub(super) fn too_long() -> Refusal {
    Refusal {
        reply: error_page(
            "431 Request Header Fields Too Large",
            "the head of a request may have 16 KiB and 128 fields",
        ),
        reason: "request head too long".to_owned(),
    }
}

pub(super) fn status_of(failure: Failure) -> &'static str {
    match failure {
        Failure::General | Failure::HostUnreachable | Failure::Refused => "502 Bad Gateway",
        Failure::NetworkUnreachable => "503 Service Unavailable",
        Failure::NotAllowed => "403 Forbidden",
        Failure::TimedOut => "504 Gateway Timeout",
    }
}

fn bad(text: &str) -> Step {
    refuse(error_page("400 Bad Request", text), text)
}

const MAX_FIELDS: usize = 128;
