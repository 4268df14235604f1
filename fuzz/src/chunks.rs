//! Chunked bodies: however they are cut, the same bytes belong to them; an obvious reader agrees on what is whole.

use pleach_proxy::http::Body;

/// `data`: where to cut, then the body and what follows it.
pub fn run(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else {
        return;
    };
    let mut whole = Body::chunked();
    let taken = whole.take(bytes);
    let mut cuts = Body::chunked();
    let size = usize::from(*cut).max(1);
    let mut sum = Ok(0);
    for part in bytes.chunks(size) {
        match (cuts.take(part), &mut sum) {
            (Ok(len), Ok(sum)) => {
                *sum += len;
                if len < part.len() {
                    assert!(cuts.is_done());
                    break;
                }
            }
            (Err(bad), _) => {
                sum = Err(bad);
                break;
            }
            (Ok(_), Err(_)) => unreachable!("ended above"),
        }
    }
    assert_eq!(sum, taken, "cut into {size}");
    assert_eq!(
        cuts.is_done() && sum.is_ok(),
        whole.is_done() && taken.is_ok()
    );
    if let Ok(taken) = taken {
        assert!(taken <= bytes.len());
        assert!(whole.is_done() || taken == bytes.len());
        if whole.is_done() {
            assert_eq!(
                strict_end(bytes),
                Some(taken),
                "an obvious reader sees another end"
            );
        }
    }
}

/// The end of the chunked body at the start of `bytes`, read as RFC 9112, 7.1 has it; `None` if it is not whole or not well-formed.
fn strict_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let line_end = |from: usize| {
        bytes
            .get(from..)?
            .windows(2)
            .position(|pair| pair == b"\r\n")
            .map(|end| from + end)
    };
    loop {
        let end = line_end(at)?;
        let line = &bytes[at..end];
        let digits = line
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit())
            .count();
        let size = core::str::from_utf8(&line[..digits]).ok()?;
        let size = usize::try_from(u64::from_str_radix(size, 16).ok()?).ok()?;
        at = end + 2;
        if size == 0 {
            break;
        }
        at = at.checked_add(size)?;
        (bytes.get(at..at.checked_add(2)?)? == b"\r\n").then_some(())?;
        at += 2;
    }
    loop {
        let end = line_end(at)?;
        let is_last = end == at;
        at = end + 2;
        if is_last {
            return Some(at);
        }
    }
}
