//! RTP (RFC 3550) with a transport stream as payload (RFC 2250): header and sequence numbers.

use core::time::Duration;

/// Length of a header without contributing sources and extensions.
pub(crate) const HEADER_BYTES: usize = 12;
/// Payload type MP2T (RFC 3551, table 5).
const PAYLOAD_TYPE: u8 = 33;
/// Ticks of the timestamp per second.
const CLOCK_HZ: u128 = 90_000;
/// Synchronisation source of the stream, an arbitrary number.
const SOURCE: u32 = 0x706c_6561;

/// Returns the header of packet `number`, which is to be sent at time `at` since the start of the stream.
pub(crate) fn header(number: u64, at: Duration) -> [u8; HEADER_BYTES] {
    let ticks = at.as_nanos() * CLOCK_HZ / 1_000_000_000;
    let mut header = [0; HEADER_BYTES];
    header[0] = 2 << 6;
    header[1] = PAYLOAD_TYPE;
    header[2..4].copy_from_slice(&number.to_be_bytes()[6..]);
    header[4..8].copy_from_slice(&ticks.to_be_bytes()[12..]);
    header[8..].copy_from_slice(&SOURCE.to_be_bytes());
    header
}

/// Returns sequence number and payload of `datagram`. `None` if the datagram is not RTP with a transport stream as
/// payload.
pub(crate) fn parse(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let (header, payload) = datagram.split_first_chunk::<HEADER_BYTES>()?;
    let is_ours = header[0] == 2 << 6
        && header[1] & 0x7f == PAYLOAD_TYPE
        && header[8..] == SOURCE.to_be_bytes();
    is_ours.then_some((u16::from_be_bytes([header[2], header[3]]), payload))
}

/// Extends 16-bit sequence numbers to whole numbers: the result is the number closest to the highest number so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unwrap {
    highest: u64,
}

impl Unwrap {
    /// Returns the whole number of `sequence`. `None` if it would be before the first number.
    pub(crate) fn number(&mut self, sequence: u16) -> Option<u64> {
        let step = sequence.wrapping_sub(
            self.highest
                .to_be_bytes()
                .last_chunk()
                .map_or(0, |low| u16::from_be_bytes(*low)),
        );
        let number = if step < 1 << 15 {
            self.highest + u64::from(step)
        } else {
            self.highest.checked_sub(u64::from(step.wrapping_neg()))?
        };
        self.highest = self.highest.max(number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_it_reads() {
        let mut datagram = header(65_537, Duration::from_secs(2)).to_vec();
        datagram.extend_from_slice(b"film");
        assert_eq!(datagram[4..8], 180_000_u32.to_be_bytes());
        assert_eq!(parse(&datagram), Some((1, &b"film"[..])));
        assert_eq!(parse(&datagram[..11]), None);
        datagram[1] = 96;
        assert_eq!(parse(&datagram), None);
        assert_eq!(parse(b"hello"), None);
    }

    #[test]
    fn numbers_go_on_after_the_sixteen_bits_are_used_up() {
        let mut unwrap = Unwrap::default();
        assert_eq!(unwrap.number(65_535), None, "before the first");
        for number in [
            0,
            1,
            40_000 - 8_000,
            60_000,
            65_535,
            65_536,
            65_530,
            65_540,
            131_072 - 40_000,
        ] {
            let low = u16::try_from(number % 65_536).expect("16 bits");
            assert_eq!(unwrap.number(low), Some(number));
        }
    }
}
