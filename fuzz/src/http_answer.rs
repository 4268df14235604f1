//! Heads of answers: what goes to the client is one head whose length of the body is the one that was read.

use pleach_proxy::http::{
    Body,
    answer::{self, Asked},
};

/// `data`: what the answer is to, then what the server sends.
pub fn run(data: &[u8]) {
    let Some((asked, bytes)) = data.split_first() else {
        return;
    };
    let asked = Asked {
        for_head: asked & 1 != 0,
        is_last: asked & 2 != 0,
        is_partial: asked & 4 != 0,
    };
    let Ok(Some(head)) = answer::read(bytes, asked) else {
        return;
    };
    assert!(head.len <= bytes.len() && head.status >= 100);
    // What follows the head does not change it; less of it is no head.
    assert_eq!(
        answer::read(&bytes[..head.len], asked),
        Ok(Some(head.clone()))
    );
    let text = &head.rewritten;
    assert!(text.ends_with(b"\r\n\r\n"));
    let ends = text
        .windows(4)
        .filter(|window| window == b"\r\n\r\n")
        .count();
    assert_eq!(ends, 1, "two heads");
    let again = answer::read(text, asked)
        .expect("we send answers")
        .expect("whole");
    assert_eq!(again.len, text.len());
    assert_eq!(again.status, head.status);
    let is_same = match (&head.body, &again.body) {
        // Without a length the connection's end tells it, and we say so.
        (None, None) => true,
        (Some(one), Some(other)) => one == other,
        _ => false,
    };
    assert!(
        is_same,
        "the client reads {:?} instead of {:?}",
        again.body, head.body
    );
    if let Some((range, resource)) = &head.part {
        assert!(range.start < range.end && range.end <= resource.len);
    }
    if let Some(Body::Length(len)) = head.body
        && let Some(resource) = &head.resource
    {
        assert_eq!(resource.len, len);
    }
    if asked.for_head {
        assert!(
            !matches!(&head.body, Some(body) if !body.is_done()),
            "an answer to HEAD has a body"
        );
    }
}
