//! Transport headers: what parses is written again to the same bytes.

use pleach_core::wire::{
    Kind,
    header::{Header, TAG_LEN},
};

/// `data`: a datagram.
pub fn run(data: &[u8]) {
    let Some((header, fields)) = Header::parse(data) else {
        return;
    };
    assert_eq!(fields.is_some(), header.kind == Kind::Data);
    let len = header.kind.header_len();
    assert!(data.len() >= len + TAG_LEN);
    let mut written = data.to_vec();
    written[..len].fill(0);
    assert_eq!(header.emit(fields.as_ref(), &mut written), len);
    let again = Header::parse(&written);
    assert_eq!(
        again,
        Some((header, fields)),
        "a header changes when it is written"
    );
    let _ = header.key();
}
