//! Byte ranges of a server's resource (RFC 9110, section 14), so that one answer can be fetched over several links.
//!
//! Only a resource with a strong entity tag is considered the same when it is requested again (RFC 9110, 8.8.3). The
//! request carries the tag in `If-Range`, and a server whose resource has changed answers with the whole resource
//! instead of a part.

use core::ops::Range;

use super::fields::{list_members, push};

/// A resource of which the server sends parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Length of the resource in bytes.
    pub len: u64,
    /// Strong entity tag of the resource.
    pub tag: Vec<u8>,
}

/// Returns the resource in a complete answer with `fields` and a body of `len` bytes. `None` if the server sends no
/// parts or the resource has no strong entity tag.
#[must_use]
pub fn resource(fields: &[httparse::Header<'_>], len: u64) -> Option<Resource> {
    let mut units = values(fields, "accept-ranges").flat_map(list_members);
    let gives_parts = units.any(|unit| unit.eq_ignore_ascii_case("bytes"));
    let tag = strong_tag(fields).filter(|_| gives_parts)?;
    Some(Resource { len, tag })
}

/// Returns the byte range and the resource in the answer with `fields` to a request for a part. `None` if the fields
/// do not state both.
#[must_use]
pub fn part(fields: &[httparse::Header<'_>]) -> Option<(Range<u64>, Resource)> {
    let mut told = values(fields, "content-range");
    let (text, None) = (told.next()?, told.next()) else {
        return None;
    };
    let text = core::str::from_utf8(text).ok()?.trim();
    let (unit, rest) = text.split_once(' ')?;
    let (range, len) = rest.trim_start().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, len) = (number(first)?, number(last)?, number(len)?);
    let is_sound = unit.eq_ignore_ascii_case("bytes") && first <= last && last < len;
    let tag = strong_tag(fields).filter(|_| is_sound)?;
    Some((first..last + 1, Resource { len, tag }))
}

/// Returns a request for the bytes `range` of the resource with entity tag `tag`, based on the request with the head
/// `head`. The conditions of the original request are left out, because the server has already evaluated them.
#[must_use]
pub fn request(head: &[u8], range: &Range<u64>, tag: &[u8]) -> Vec<u8> {
    let mut asked = Vec::with_capacity(head.len() + 100);
    let lines = head.split_inclusive(|byte| *byte == b'\n');
    for line in lines.filter(|line| !line.starts_with(b"\r\n") && !is_condition(line)) {
        asked.extend_from_slice(line);
    }
    let bytes = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
    push(&mut asked, "Range", bytes.as_bytes());
    push(&mut asked, "If-Range", tag);
    asked.extend_from_slice(b"\r\n");
    asked
}

/// Whether the request with the head `head` is a GET request for a whole resource, so that it may be repeated.
#[must_use]
pub fn asks_for_all(head: &[u8]) -> bool {
    let mut lines = head.split(|byte| *byte == b'\n');
    head.starts_with(b"GET ") && !lines.any(|line| has_name(line, "range"))
}

fn is_condition(line: &[u8]) -> bool {
    let names = [
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
    ];
    names.iter().any(|name| has_name(line, name))
}

/// Whether `line` of a head is a field with this `name`.
fn has_name(line: &[u8], name: &str) -> bool {
    let found = line.split(|byte| *byte == b':').next().unwrap_or_default();
    found.len() < line.len() && found.eq_ignore_ascii_case(name.as_bytes())
}

fn values<'a>(
    fields: &'a [httparse::Header<'a>],
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> {
    let named = fields
        .iter()
        .filter(move |field| field.name.eq_ignore_ascii_case(name));
    named.map(|field| field.value)
}

/// Returns the entity tag, if there is exactly one and it is strong: in quotes, without `W/`.
fn strong_tag(fields: &[httparse::Header<'_>]) -> Option<Vec<u8>> {
    let mut tags = values(fields, "etag");
    let (tag, None) = (tags.next()?.trim_ascii(), tags.next()) else {
        return None;
    };
    let inner = tag.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    // RFC 9110, 8.8.3: visible characters except the quote, and bytes beyond ASCII.
    let is_tag = |byte: &u8| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..=0xff);
    inner.iter().all(is_tag).then(|| tag.to_vec())
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields<'a>(pairs: &[(&'a str, &'a str)]) -> Vec<httparse::Header<'a>> {
        let field = |(name, value): &(&'a str, &'a str)| httparse::Header {
            name,
            value: value.as_bytes(),
        };
        pairs.iter().map(field).collect()
    }

    #[test]
    fn only_what_names_itself_strongly_has_parts() {
        let gives = |pairs: &[(&str, &str)]| resource(&fields(pairs), 9).is_some();
        assert!(gives(&[("Accept-Ranges", "bytes"), ("ETag", "\"a-1\"")]));
        assert!(gives(&[("accept-ranges", "x, Bytes"), ("etag", " \"\" ")]));
        for pairs in [
            &[("ETag", "\"a\"")][..],
            &[("Accept-Ranges", "bytes")],
            &[("Accept-Ranges", "none"), ("ETag", "\"a\"")],
            &[("Accept-Ranges", "bytes"), ("ETag", "W/\"a\"")],
            &[("Accept-Ranges", "bytes"), ("ETag", "\"a\" \"b\"")],
            &[("Accept-Ranges", "bytes"), ("ETag", "a")],
            &[("Accept-Ranges", "bytes"), ("ETag", "\"")],
            &[
                ("Accept-Ranges", "bytes"),
                ("ETag", "\"a\""),
                ("ETag", "\"b\""),
            ],
        ] {
            assert!(!gives(pairs), "{pairs:?}");
        }
    }

    #[test]
    fn a_part_says_which_bytes_of_what_it_holds() {
        let found = |range: &str| part(&fields(&[("Content-Range", range), ("ETag", "\"a\"")]));
        let resource = Resource {
            len: 100,
            tag: b"\"a\"".to_vec(),
        };
        assert_eq!(found("bytes 10-19/100"), Some((10..20, resource.clone())));
        assert_eq!(found("Bytes 0-99/100"), Some((0..100, resource)));
        for text in [
            "bytes 10-100/100",
            "bytes 20-19/100",
            "bytes 10-19/*",
            "bytes */100",
            "bytes 1-99999999999999999999999/100",
            "bytes 0-18446744073709551615/18446744073709551615",
            "lines 10-19/100",
            "bytes +1-19/100",
            "",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
        assert_eq!(part(&fields(&[("Content-Range", "bytes 0-1/2")])), None);
        let twice = [
            ("Content-Range", "bytes 0-1/2"),
            ("Content-Range", "bytes 0-1/2"),
            ("ETag", "\"a\""),
        ];
        assert_eq!(part(&fields(&twice)), None);
    }

    #[test]
    fn a_request_for_a_part_is_the_same_but_for_its_conditions() {
        let head =
            b"GET /x HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"b\"\r\nCookie: if-match: c\r\n\r\n";
        assert!(asks_for_all(head));
        let asked = request(head, &(5..8), b"\"t\"");
        assert_eq!(
            String::from_utf8_lossy(&asked),
            "GET /x HTTP/1.1\r\nHost: a\r\nCookie: if-match: c\r\nRange: bytes=5-7\r\nIf-Range: \"t\"\r\n\r\n"
        );
        assert!(!asks_for_all(&asked));
        assert!(!asks_for_all(b"POST /x HTTP/1.1\r\n\r\n"));
        assert!(!asks_for_all(b"HEAD /x HTTP/1.1\r\n\r\n"));
    }
}
