//! The protocol of a speed test: a request of [`REQUEST_LEN`] bytes, one byte of answer, then the data requested.
//!
//! | request | data |
//! | --- | --- |
//! | [`Kind::Down`] | the gateway sends for the time requested, then closes the connection |
//! | [`Kind::Up`] | the client sends; ten times a second the gateway sends its byte count, as 8 bytes, big-endian |
//! | [`Kind::Echo`] | the gateway sends each byte back |

use std::time::Duration;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Down,
    Echo,
    Up,
}

/// Makes a request: `MAGIC`, kind, and time in tenths of a second.
pub(crate) fn request(kind: Kind, time: Duration) -> [u8; REQUEST_LEN] {
    let kind = match kind {
        Kind::Down => b'D',
        Kind::Echo => b'E',
        Kind::Up => b'U',
    };
    let tenths = u8::try_from(time.as_millis() / 100).unwrap_or(u8::MAX);
    let mut request = [0; REQUEST_LEN];
    request[..MAGIC.len()].copy_from_slice(MAGIC);
    request[MAGIC.len()] = kind;
    request[MAGIC.len() + 1] = tenths;
    request
}

/// Returns kind and time of a request; `None` if the bytes are not a request.
pub(crate) fn read(request: &[u8; REQUEST_LEN]) -> Option<(Kind, Duration)> {
    let [kind, tenths] = *request.strip_prefix(MAGIC)? else {
        return None;
    };
    let kind = match kind {
        b'D' => Kind::Down,
        b'E' => Kind::Echo,
        b'U' => Kind::Up,
        _ => return None,
    };
    let time = Duration::from_millis(u64::from(tenths) * 100);
    Some((kind, time.min(MOST_TIME)))
}

/// TCP port on which a gateway listens, inside the tunnel.
pub(crate) const PORT: u16 = 7702;
/// Answer that the request is served.
pub(crate) const SERVED: u8 = b'+';
/// Answer that too many other requests are being served.
pub(crate) const BUSY: u8 = b'-';
pub(crate) const REQUEST_LEN: usize = MAGIC.len() + 2;
/// Beginning of a request; the last digit is the version.
const MAGIC: &[u8] = b"plspeed1";
/// Longest time of one connection; a whole test takes half a minute.
pub(crate) const MOST_TIME: Duration = Duration::from_secs(25);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        for kind in [Kind::Down, Kind::Echo, Kind::Up] {
            let written = request(kind, Duration::from_millis(1550));
            assert_eq!(read(&written), Some((kind, Duration::from_millis(1500))));
        }
        let long = request(Kind::Up, Duration::from_secs(3600));
        assert_eq!(read(&long), Some((Kind::Up, MOST_TIME)));
        let mut other = long;
        other[0] ^= 1;
        assert_eq!(read(&other), None);
        other = long;
        other[8] = b'X';
        assert_eq!(read(&other), None);
    }
}
