//! Byte ranges: fields of answers, and requests for parts made of the request for the whole.

use pleach_proxy::http::ranges;

/// `data`: a range, then a head.
pub fn run(data: &[u8]) {
    let Some((numbers, head)) = data.split_first_chunk::<8>() else {
        return;
    };
    let start = u64::from(u32::from_be_bytes([
        numbers[0], numbers[1], numbers[2], numbers[3],
    ]));
    let len = u64::from(u32::from_be_bytes([
        numbers[4], numbers[5], numbers[6], numbers[7],
    ]));
    let range = start..start + len.max(1);

    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Response::new(&mut fields);
    if parsed.parse(head).is_ok_and(|status| status.is_complete()) {
        if let Some((part, resource)) = ranges::part(parsed.headers) {
            assert!(
                part.start < part.end && part.end <= resource.len,
                "{part:?} of {}",
                resource.len
            );
            assert!(resource.tag.starts_with(b"\"") && resource.tag.ends_with(b"\""));
        }
        if let Some(resource) = ranges::resource(parsed.headers, len) {
            assert_eq!(resource.len, len);
        }
    }

    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut fields);
    // As heads are that the proxy itself has made: whole, with nothing behind, and lines that end as they should.
    let is_ours = parsed.parse(head) == Ok(httparse::Status::Complete(head.len()))
        && head.ends_with(b"\r\n\r\n")
        && parsed.headers.len() < 60
        && !head
            .windows(2)
            .any(|pair| pair[1] == b'\n' && pair[0] != b'\r');
    if !is_ours || !ranges::asks_for_all(head) {
        return;
    }
    let asked = ranges::request(head, &range, b"\"tag\"");
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut again = httparse::Request::new(&mut fields);
    assert_eq!(
        again.parse(&asked),
        Ok(httparse::Status::Complete(asked.len()))
    );
    let count = |name: &str| {
        again
            .headers
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case(name))
            .count()
    };
    assert!(
        count("range") == 1 && count("if-range") == 1,
        "not one range"
    );
    assert!(
        count("if-match") == 0 && count("if-none-match") == 0,
        "a condition of the whole stays"
    );
    assert_eq!(again.path, parsed.path);
}
