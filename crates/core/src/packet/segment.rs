//! TCP segments (RFC 9293 section 3.1): what they say of where their connection is.

use super::{PacketView, u16_at};

/// What a segment says of where its connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whether it opens the connection, or answers one that does.
    pub is_opening: bool,
    /// Whether it is the last one way, or of all.
    pub is_closing: bool,
    /// Whether it has sequence numbers: of data, or for opening or closing.
    pub has_numbers: bool,
    /// The sequence number that it begins with.
    pub seq: u32,
    /// The sequence number behind those.
    pub end: u32,
    /// The sequence number that is wanted next the other way, if it says so.
    pub ack: Option<u32>,
    /// What its sender says of its room, in units of its own.
    pub window: u16,
}

impl<'a> PacketView<'a> {
    /// Whether this is a TCP segment that carries an acknowledgement and nothing else: no data, and no flag that opens,
    /// closes or resets (RFC 9293 section 3.1).
    ///
    /// The next one mostly says all that this one says, so it is neither worth waiting for nor worth repeating; where there
    /// is none, its sender's other end asks again.
    #[must_use]
    pub fn is_pure_ack(&self) -> bool {
        let Some(header) = self.tcp_header() else {
            return false;
        };
        header[FLAGS] & !(ECE | CWR) == ACK && header_len(header) == self.transport().len()
    }

    /// The fixed part of a TCP header; `None` of anything else, and of fragments.
    fn tcp_header(&self) -> Option<&'a [u8; HEADER_LEN]> {
        let is_tcp = self.layout.protocol == Some(6) && !self.is_fragment();
        self.transport().first_chunk().filter(|_| is_tcp)
    }

    /// Where a TCP segment's connection is; `None` of anything else, and of fragments.
    #[must_use]
    pub fn segment(&self) -> Option<Segment> {
        let header = self.tcp_header()?;
        let is_set = |flag: u8| header[FLAGS] & flag != 0;
        let len = self.transport().len().checked_sub(header_len(header))?;
        let len = u32::try_from(len).ok()?;
        let numbers = len + u32::from(is_set(SYN)) + u32::from(is_set(FIN));
        let seq = u32_at(header, SEQ);
        Some(Segment {
            is_opening: is_set(SYN),
            is_closing: is_set(FIN | RST),
            has_numbers: numbers > 0,
            seq,
            end: seq.wrapping_add(numbers),
            ack: is_set(ACK).then(|| u32_at(header, ACK_NUMBER)),
            window: u16_at(header, WINDOW),
        })
    }

    /// Whether a TCP segment tells of a congestion mark (RFC 3168 section 6.1), or that its sender has heard of one.
    #[must_use]
    pub fn tells_of_congestion(&self) -> bool {
        let flags = self.tcp_header().map_or(0, |header| header[FLAGS]);
        flags & (ECE | CWR) != 0
    }

    /// The sequence number behind the last that a TCP segment says has come, where those before `ack` have come in order:
    /// what came out of order counts as well (RFC 2018).
    #[must_use]
    pub fn acked_to(&self, ack: u32) -> u32 {
        let options = self
            .tcp_header()
            .and_then(|header| self.transport().get(HEADER_LEN..header_len(header)));
        selectively_acked(options.unwrap_or_default()).fold(ack, later)
    }
}

/// Whether a sequence number is before another (RFC 9293 section 3.4).
#[must_use]
pub const fn is_before(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) > u32::MAX / 2
}

/// The later of two sequence numbers.
#[must_use]
pub const fn later(number: u32, other: u32) -> u32 {
    if is_before(number, other) {
        other
    } else {
        number
    }
}

/// Where the blocks end that the selective acknowledgement among the options of a header tells of.
fn selectively_acked(options: &[u8]) -> impl Iterator<Item = u32> {
    let mut rest = options;
    let mut blocks: &[u8] = &[];
    while let Some((kind, after)) = rest.split_first() {
        let len = match kind {
            0 => break,
            1 => 1,
            _ => after.first().map_or(0, |len| usize::from(*len)),
        };
        if *kind == SACK {
            blocks = rest.get(2..len).unwrap_or_default();
        }
        // An option is as long as its kind and length, or the header is damaged.
        let least = if *kind == 1 { 1 } else { 2 };
        match rest.get(len..).filter(|_| len >= least) {
            Some(next) => rest = next,
            None => break,
        }
    }
    blocks
        .as_chunks::<8>()
        .0
        .iter()
        .map(|block| u32_at(block, 4))
}

/// Bytes of the header with its options, as it says.
pub(super) fn header_len(header: &[u8; HEADER_LEN]) -> usize {
    usize::from(header[FLAGS - 1] >> 4) * 4
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

/// Bytes of the header without options.
pub(super) const HEADER_LEN: usize = 20;

/// Offsets in the header.
pub(super) const SEQ: usize = 4;
pub(super) const ACK_NUMBER: usize = 8;
pub(super) const FLAGS: usize = 13;
pub(super) const WINDOW: usize = 14;
pub(super) const CHECKSUM: usize = 16;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
pub(super) const ACK: u8 = 0x10;
pub(super) const URG: u8 = 0x20;
pub(super) const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

/// The kind of option (RFC 2018 section 3).
const SACK: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(options: &[u8]) -> Vec<u32> {
        selectively_acked(options).collect()
    }

    #[test]
    fn the_blocks_of_a_selective_acknowledgement_end_somewhere() {
        let two = [1, 1, 5, 18, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        assert_eq!(ends(&two), [0x300, 0x100]);
        assert_eq!(ends(&[8, 4, 0, 0, 5, 10, 0, 0, 0, 0, 0, 0, 0, 9]), [9]);
    }

    #[test]
    fn damaged_options_tell_nothing() {
        for options in [
            &[5][..],
            &[5, 0, 0],
            &[5, 1, 0],
            &[5, 10, 0, 0, 0, 0, 0, 0, 0],
            &[8, 0, 5, 10, 0, 0, 0, 0, 0, 0, 0, 9],
            &[0, 5, 10, 0, 0, 0, 0, 0, 0, 0, 9],
        ] {
            assert_eq!(ends(options), [], "{options:?}");
        }
    }
}
