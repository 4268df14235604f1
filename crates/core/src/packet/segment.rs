//! Parses TCP segments (RFC 9293 section 3.1): the state of their connection.

use super::{Ecn, PacketView, u16_at};

/// The position of a segment in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whether it has SYN set.
    pub is_opening: bool,
    /// Whether it closes one direction of the connection, or resets it.
    pub is_closing: bool,
    /// Whether it uses sequence numbers: for data, SYN or FIN.
    pub has_numbers: bool,
    /// The first sequence number.
    pub seq: u32,
    /// The sequence number after its last one.
    pub end: u32,
    /// The acknowledgement number, if it has one.
    pub ack: Option<u32>,
    /// The window field, without scaling.
    pub window: u16,
}

impl<'a> PacketView<'a> {
    /// Whether this is a TCP segment that carries an acknowledgement and nothing else: no data, and no flag that opens,
    /// closes or resets (RFC 9293 section 3.1).
    ///
    /// The next ACK usually contains all the information of this one, so it is not worth waiting for or
    /// retransmitting; if there is none, the peer of its sender retransmits.
    #[must_use]
    pub fn is_pure_ack(&self) -> bool {
        let Some(header) = self.tcp_header() else {
            return false;
        };
        header[FLAGS] & !(ECE | CWR) == ACK && header_len(header) == self.transport().len()
    }

    /// Whether this segment contains all the information of `earlier`, an older packet of the same flow: both are pure
    /// ACKs, this one acknowledges more, and the other has no option that matters (RFC 3449 section 5.2.1). SACK
    /// blocks (RFC 2018) matter if this segment does not contain them; reports of duplicates (RFC 2883) always do.
    #[must_use]
    pub fn supersedes(&self, earlier: &PacketView<'_>) -> bool {
        let (Some((seq, new)), Some((old_seq, old))) = (self.plain_ack(), earlier.plain_ack())
        else {
            return false;
        };
        let counts = |(kind, said): (u8, &[u8])| match kind {
            NOTHING => false,
            TIMESTAMPS => said.len() != 8,
            SACK => said.is_empty() || said.len() % 8 != 0,
            _ => true,
        };
        let is_timed =
            |view: &PacketView<'_>| options(view.options()).any(|(kind, _)| kind == TIMESTAMPS);
        // A probe's sequence number is the one before: some heed nothing else that it says, and it wants an answer.
        if seq != old_seq
            || options(earlier.options()).any(counts)
            || is_timed(self) != is_timed(earlier)
            || earlier.ecn() == Ecn::Congested
        {
            return false;
        }
        let says = |(ack, view): (u32, &PacketView<'_>), block: Block| {
            !is_before(ack, block.end)
                || selectively_acked(view.options()).any(|other| block.is_in(other))
        };
        let told = || selectively_acked(earlier.options());
        let is_told_again = told().all(|block| says((new, self), block));
        let tells_of_more = is_before(old, new)
            || old == new
                && selectively_acked(self.options()).any(|block| !says((old, earlier), block));
        let first = told().next();
        let came_twice = first.is_some_and(|first| {
            is_before(first.begin, old) || told().skip(1).any(|other| first.is_in(other))
        });
        tells_of_more && is_told_again && !came_twice
    }

    /// The sequence and acknowledgement numbers of a pure ACK without congestion signals or accurate ECN counters (RFC
    /// 9768).
    fn plain_ack(&self) -> Option<(u32, u32)> {
        let header = self.tcp_header().filter(|_| self.is_pure_ack())?;
        let is_plain = header[FLAGS] == ACK && header[FLAGS - 1] & ACCURATE_ECN == 0;
        is_plain.then(|| (u32_at(header, SEQ), u32_at(header, ACK_NUMBER)))
    }

    /// The options of a TCP header.
    fn options(&self) -> &'a [u8] {
        let options = self
            .tcp_header()
            .and_then(|header| self.transport().get(HEADER_LEN..header_len(header)));
        options.unwrap_or_default()
    }

    /// The fixed part of a TCP header; `None` for other packets and for fragments.
    fn tcp_header(&self) -> Option<&'a [u8; HEADER_LEN]> {
        let is_tcp = self.layout.protocol == Some(6) && !self.is_fragment();
        self.transport().first_chunk().filter(|_| is_tcp)
    }

    /// The position of a TCP segment in its connection; `None` for other packets and for fragments.
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

    /// Whether a TCP segment reports a congestion mark (RFC 3168 section 6.1), or that its sender has received such a
    /// report.
    #[must_use]
    pub fn tells_of_congestion(&self) -> bool {
        let flags = self.tcp_header().map_or(0, |header| header[FLAGS]);
        flags & (ECE | CWR) != 0
    }

    /// The end of the data that a TCP segment acknowledges, up to `ack` in order or out of order by SACK (RFC 2018).
    #[must_use]
    pub fn acked_to(&self, ack: u32) -> u32 {
        let blocks = selectively_acked(self.options());
        blocks.map(|block| block.end).fold(ack, later)
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

/// A range of sequence numbers: the first, and the one after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    begin: u32,
    end: u32,
}

impl Block {
    fn is_in(self, other: Self) -> bool {
        !is_before(self.begin, other.begin) && !is_before(other.end, self.end)
    }
}

/// The SACK blocks in the options of a header.
fn selectively_acked(header: &[u8]) -> impl Iterator<Item = Block> {
    // Whole ones: receivers ignore others.
    let blocks = options(header).filter(|(kind, said)| *kind == SACK && said.len() % 8 == 0);
    let blocks = blocks.last();
    let (blocks, _) = blocks.unwrap_or_default().1.as_chunks::<8>();
    blocks.iter().map(|block| Block {
        begin: u32_at(block, 0),
        end: u32_at(block, 4),
    })
}

/// The options of a header, with kind and content (RFC 9293 section 3.1); options after a damaged one are omitted.
fn options(header: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = header;
    core::iter::from_fn(move || {
        let (&kind, after) = rest.split_first().filter(|(kind, _)| **kind != END)?;
        if kind == NOTHING {
            rest = after;
            return Some((kind, &[][..]));
        }
        // A valid option is at least as long as its kind and length fields.
        let len = after.first().map_or(0, |len| usize::from(*len));
        let Some(said) = rest.get(2..len) else {
            rest = &[];
            return Some((kind, &[][..]));
        };
        rest = &rest[len..];
        Some((kind, said))
    })
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
pub(super) const SYN: u8 = 0x02;
const RST: u8 = 0x04;
pub(super) const ACK: u8 = 0x10;
pub(super) const URG: u8 = 0x20;
pub(super) const ECE: u8 = 0x40;
const CWR: u8 = 0x80;
/// In the byte before.
const ACCURATE_ECN: u8 = 0x01;

/// Kinds of options (RFC 9293 section 3.2, RFC 2018 section 3, RFC 7323 section 3).
const END: u8 = 0;
const NOTHING: u8 = 1;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(options: &[u8]) -> Vec<u32> {
        selectively_acked(options).map(|block| block.end).collect()
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
            assert!(ends(options).is_empty(), "{options:?}");
        }
    }

    /// A segment without data that acknowledges `number`, with these flags and options.
    fn segment(number: u32, flags: [u8; 2], options: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        bytes.extend(options);
        bytes[0] = 0x45;
        bytes[3] = 40 + u8::try_from(options.len()).expect("few");
        bytes[9] = 6;
        bytes[28..32].copy_from_slice(&number.to_be_bytes());
        bytes[32] = (5 + u8::try_from(options.len() / 4).expect("few")) << 4 | flags[0];
        bytes[33] = flags[1];
        bytes
    }

    #[test]
    fn what_came_out_of_order_is_said_again_or_counts() {
        let sack = |number: u32, blocks: &[(u32, u32)]| {
            let mut options = vec![1, 1, 5, u8::try_from(2 + 8 * blocks.len()).expect("few")];
            for (begin, end) in blocks {
                options.extend([begin.to_be_bytes(), end.to_be_bytes()].concat());
            }
            segment(number, [0, ACK], &options)
        };
        let plain = |number| segment(number, [0, ACK], &[]);
        for (new, old, expected) in [
            // The hole is the same, or begins later, and more came behind it.
            (sack(5, &[(7, 12)]), sack(5, &[(7, 10)]), true),
            (sack(6, &[(7, 12)]), sack(5, &[(7, 10)]), true),
            (sack(5, &[(14, 15), (7, 12)]), sack(5, &[(7, 12)]), true),
            (sack(5, &[(7, 12)]), plain(5), true),
            // All of it has been filled.
            (plain(12), sack(5, &[(7, 12)]), true),
            (plain(2), sack(u32::MAX - 7, &[(u32::MAX - 2, 1)]), true),
            // Of what came nothing is said any more.
            (sack(5, &[(14, 15)]), sack(5, &[(7, 12)]), false),
            (sack(5, &[(8, 14)]), sack(5, &[(7, 12)]), false),
            (plain(11), sack(5, &[(7, 12)]), false),
            // No more than before: each of those counts for senders without selective acknowledgements.
            (sack(5, &[(7, 12)]), sack(5, &[(7, 12)]), false),
            (plain(5), plain(5), false),
            // Something came twice.
            (plain(9), sack(5, &[(3, 4)]), false),
            // It is damaged, or what would say it again is.
            (plain(12), segment(5, [0, ACK], &[5, 10, 0, 0]), false),
            (
                segment(5, [0, ACK], &[5, 12, 0, 0, 0, 7, 0, 0, 0, 15, 0, 0]),
                sack(5, &[(7, 12)]),
                false,
            ),
            (sack(5, &[(7, 15)]), sack(5, &[(8, 9), (7, 12)]), false),
        ] {
            let [new_view, old_view] =
                [&new, &old].map(|bytes| PacketView::parse(bytes).expect("a packet"));
            assert_eq!(new_view.supersedes(&old_view), expected, "{new:?} {old:?}");
        }
    }

    #[test]
    fn a_later_acknowledgement_supersedes_one_that_says_no_more() {
        const STAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 7];
        const BLOCK: [u8; 12] = [1, 1, 5, 10, 0, 0, 0, 9, 0, 0, 1, 0];
        // Of MPTCP, and one that is damaged.
        const OTHER: [u8; 4] = [30, 4, 0, 0];
        const DAMAGED: [u8; 4] = [8, 10, 0, 0];
        let plain = |number, options: &[u8]| segment(number, [0, ACK], options);
        let [newer, older] = [plain(9, &STAMPS), plain(5, &STAMPS)];
        let [mut probe, mut marked] = [plain(7, &STAMPS), older.clone()];
        probe[24..28].fill(u8::MAX);
        marked[1] = 3;
        for (new, old, expected) in [
            (newer.clone(), older.clone(), true),
            (plain(9, &BLOCK), plain(5, &[1; 4]), true),
            (plain(9, &OTHER), plain(5, &[]), true),
            (plain(5, &[]), plain(u32::MAX - 7, &[]), true),
            (plain(9, &[]), older.clone(), false),
            (probe.clone(), older.clone(), false),
            (newer.clone(), probe.clone(), false),
            (newer.clone(), marked, false),
            (older.clone(), older.clone(), false),
            (older.clone(), newer.clone(), false),
            (newer.clone(), plain(5, &BLOCK), false),
            (newer.clone(), plain(5, &OTHER), false),
            (newer.clone(), plain(5, &DAMAGED), false),
            (newer.clone(), segment(5, [0, ACK | ECE], &[]), false),
            (newer.clone(), segment(5, [ACCURATE_ECN, ACK], &[]), false),
            (segment(9, [0, ACK | CWR], &[]), older.clone(), false),
            (segment(9, [0, ACK | FIN], &[]), older.clone(), false),
            (newer, segment(5, [0, ACK | RST], &[]), false),
        ] {
            let [new_view, old_view] =
                [&new, &old].map(|bytes| PacketView::parse(bytes).expect("a packet"));
            assert_eq!(new_view.supersedes(&old_view), expected, "{new:?} {old:?}");
        }
    }
}
