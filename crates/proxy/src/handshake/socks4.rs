//! SOCKS4, and 4a, in which the proxy resolves the name. Only CONNECT is supported.

use std::net::Ipv4Addr;

use super::{Protocol, Request, Step, refuse};
use crate::target::{Host, Target};

/// Reads the whole request: version, command, port, address and user, and a name in 4a.
pub(super) fn request(buffer: &mut Vec<u8>) -> Step {
    let &[_, command, port_high, port_low, a, b, c, d, ..] = buffer.as_slice() else {
        return Step::More;
    };
    if command != CONNECT {
        let reason = format!("SOCKS4 command {command}: only CONNECT is served");
        return refuse(reply(false).to_vec(), reason);
    }
    let user_end = match text_end(buffer, FIXED_LEN) {
        Ok(Some(end)) => end,
        Ok(None) => return Step::More,
        Err(step) => return step,
    };
    // SOCKS4a: an address 0.0.0.x with x other than zero means that a name follows.
    let (host, end) = if [a, b, c] == [0, 0, 0] && d != 0 {
        let name_end = match text_end(buffer, user_end) {
            Ok(Some(end)) => end,
            Ok(None) => return Step::More,
            Err(step) => return step,
        };
        let name = core::str::from_utf8(&buffer[user_end..name_end - 1]);
        (name.ok().and_then(Host::parse), name_end)
    } else {
        (Some(Host::Ip(Ipv4Addr::new(a, b, c, d).into())), user_end)
    };
    let port = u16::from_be_bytes([port_high, port_low]);
    let Some(target) = host.and_then(|host| Target::new(host, port)) else {
        return refuse(
            reply(false).to_vec(),
            "SOCKS4 request for a host or port that cannot be",
        );
    };
    let rest = buffer.split_off(end);
    Step::Request(Box::new(Request {
        rest,
        ..Request::tunnel(Protocol::Socks4, target)
    }))
}

/// Returns the position after the zero byte that ends the text at `start`. `None` if the text is incomplete.
fn text_end(buffer: &[u8], start: usize) -> Result<Option<usize>, Step> {
    let text = &buffer[start..];
    match text.iter().position(|byte| *byte == 0) {
        Some(len) if len <= MAX_TEXT_BYTES => Ok(Some(start + len + 1)),
        None if text.len() <= MAX_TEXT_BYTES => Ok(None),
        Some(_) | None => Err(refuse(
            reply(false).to_vec(),
            "SOCKS4 user or name is longer than 255 bytes",
        )),
    }
}

pub(super) fn reply(is_granted: bool) -> [u8; 8] {
    [0, if is_granted { 90 } else { 91 }, 0, 0, 0, 0, 0, 0]
}

const CONNECT: u8 = 1;
const FIXED_LEN: usize = 8;
const MAX_TEXT_BYTES: usize = 255;
