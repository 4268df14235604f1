//! Finds the end of a head, and the fields that are hop-by-hop (RFC 9110, 7.6.1).

use std::collections::BTreeSet;

/// Returns the names that the fields `Connection` and `Proxy-Connection` list, in lower case.
pub(crate) fn connection_options(fields: &[httparse::Header<'_>]) -> BTreeSet<String> {
    let is_one = |name: &str| {
        name.eq_ignore_ascii_case("connection") || name.eq_ignore_ascii_case("proxy-connection")
    };
    fields
        .iter()
        .filter(|field| is_one(field.name))
        .flat_map(|field| list_members(field.value))
        .map(str::to_ascii_lowercase)
        .collect()
}

/// Whether the field `name` is hop-by-hop: the fixed names, and the names that `Connection` listed (`named`).
pub(crate) fn is_hop_by_hop(name: &str, named: &BTreeSet<String>) -> bool {
    // `Transfer-Encoding` and `Trailer` remain, because bodies are forwarded unchanged.
    const FIXED: [&str; 8] = [
        "connection",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "upgrade",
    ];
    const KEPT: [&str; 3] = ["transfer-encoding", "content-length", "trailer"];
    let is = |other: &&str| name.eq_ignore_ascii_case(other);
    if FIXED.iter().any(is) {
        return true;
    }
    !KEPT.iter().any(is) && named.contains(&name.to_ascii_lowercase())
}

/// Returns the members of a list field.
pub(crate) fn list_members(value: &[u8]) -> impl Iterator<Item = &str> {
    core::str::from_utf8(value)
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|member| !member.is_empty())
}

/// Adds the field `name: value` to a head.
pub(crate) fn push(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value);
    head.extend_from_slice(b"\r\n");
}

/// Whether `buffer` contains an empty line. `searched` counts the bytes searched before, so that each byte is
/// searched only once, however small the pieces are.
pub(crate) fn has_end(buffer: &[u8], searched: &mut usize) -> bool {
    // The end of the line before may have been searched already.
    let from = searched.saturating_sub(2);
    *searched = buffer.len();
    let mut line_ends = buffer[from..].split(|byte| *byte == b'\n');
    // The bytes after the last line end are not a complete line.
    line_ends.next_back();
    line_ends.skip(1).any(|line| matches!(line, b"" | b"\r"))
}
