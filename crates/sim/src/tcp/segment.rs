//! TCP segments and their wire form: RFC 9293 section 3.1, timestamps and window scale of RFC 7323, SACK of RFC 2018.
//!
//! A payload is represented by its length; on the wire its bytes are zero. The checksum is zero and never verified,
//! because a segment does not know its addresses. So the carrier of segments must deliver or drop them as a whole.

use core::fmt;

/// Length of a header without options.
pub const HEADER_LEN: usize = 20;

/// Highest number of SACK blocks that fit into a header. Beside timestamps three fit.
pub const MAX_SACK_BLOCKS: usize = 4;

/// Largest window scale, RFC 7323 section 2.3.
pub const MAX_WINDOW_SCALE: u8 = 14;

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MSS: u8 = 2;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const OPTION_SACK: u8 = 5;
const OPTION_TIMESTAMPS: u8 = 8;

/// Header flags.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// The sender has no more data.
    pub const FIN: Self = Self(0x01);
    /// Opens a connection.
    pub const SYN: Self = Self(0x02);
    /// Aborts a connection.
    pub const RST: Self = Self(0x04);
    /// The data should be passed to the application at once.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number is valid.
    pub const ACK: Self = Self(0x10);
    /// Congestion was experienced (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// The congestion window was reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Returns the union of both sets of flags.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags as a byte on the wire.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Flags, &str); 7] = [
            (Flags::SYN, "S"),
            (Flags::FIN, "F"),
            (Flags::RST, "R"),
            (Flags::PSH, "P"),
            (Flags::ACK, "."),
            (Flags::ECE, "E"),
            (Flags::CWR, "W"),
        ];
        NAMES
            .iter()
            .filter(|(flag, _)| self.contains(*flag))
            .try_for_each(|(_, name)| f.write_str(name))
    }
}

/// The timestamps option, RFC 7323 section 3: milliseconds of each end's own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock (`TSval`).
    pub value: u32,
    /// The latest timestamp received from the peer (`TSecr`).
    pub echo: u32,
}

/// The blocks of a SACK option, the most recent first. Each is the first sequence number and the one after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(u32, u32); MAX_SACK_BLOCKS],
    len: usize,
}

impl SackBlocks {
    /// Adds a block. `false` if there are already [`MAX_SACK_BLOCKS`] blocks.
    pub fn push(&mut self, start: u32, end: u32) -> bool {
        let slot = self.blocks.get_mut(self.len);
        let is_free = slot.is_some();
        if let Some(slot) = slot {
            *slot = (start, end);
            self.len += 1;
        }
        is_free
    }

    fn pop(&mut self) {
        self.len = self.len.saturating_sub(1);
        if let Some(slot) = self.blocks.get_mut(self.len) {
            *slot = (0, 0);
        }
    }

    /// Returns the blocks.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.blocks.iter().take(self.len).copied()
    }

    /// Returns the number of blocks.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no block.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// One TCP segment without ports and addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of the first byte (or of SYN).
    pub seq: u32,
    /// Next sequence number expected, if [`Flags::ACK`] is set.
    pub ack: u32,
    /// Flags.
    pub flags: Flags,
    /// Receive window as on the wire, before scaling.
    pub window: u16,
    /// Maximum segment size option.
    pub mss: Option<u16>,
    /// Window scale option.
    pub window_scale: Option<u8>,
    /// SACK-permitted option.
    pub is_sack_permitted: bool,
    /// Timestamps option.
    pub timestamps: Option<Timestamps>,
    /// SACK option.
    pub sack: SackBlocks,
    /// Payload in bytes.
    pub payload_len: u32,
    /// Whether the IP packet should carry ECT(0) (RFC 3168). It is not part of the header: [`parse`](Self::parse) sets
    /// it to `false`.
    pub is_ecn_capable: bool,
}

/// Reason why bytes are not a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The data offset is below 5 or points past the end.
    #[error("data offset out of range")]
    DataOffset,
    /// An option runs past the header or has a wrong length.
    #[error("malformed TCP option")]
    Option,
    /// The bytes are shorter than a header, or longer than any packet.
    #[error("length is none of a TCP segment")]
    Length,
}

impl Segment {
    /// Returns the length of the segment in sequence numbers: payload, SYN and FIN.
    #[must_use]
    pub fn seq_len(&self) -> u32 {
        self.payload_len
            .saturating_add(u32::from(self.flags.contains(Flags::SYN)))
            .saturating_add(u32::from(self.flags.contains(Flags::FIN)))
    }

    /// Returns the length of the options in bytes, including padding.
    #[must_use]
    pub fn options_len(&self) -> usize {
        let sack = if self.sack.is_empty() {
            0
        } else {
            4 + 8 * self.sack.len()
        };
        4 * usize::from(self.mss.is_some())
            + 4 * usize::from(self.window_scale.is_some())
            + 4 * usize::from(self.is_sack_permitted)
            + 12 * usize::from(self.timestamps.is_some())
            + sack
    }

    /// Returns the length on the wire in bytes: header, options and payload. The options of segments from a
    /// [`Connection`](super::Connection) always fit. From other segments, [`write`](Self::write) omits SACK blocks that
    /// do not fit.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.fitting().header_len() + usize::try_from(self.payload_len).unwrap_or(usize::MAX)
    }

    /// Appends header, options and a payload of zeros to `out`. The checksum is zero.
    pub fn write(&self, src_port: u16, dst_port: u16, out: &mut Vec<u8>) {
        let segment = self.fitting();
        let header_len = segment.header_len();
        let end = out.len() + segment.encoded_len();
        out.extend_from_slice(&src_port.to_be_bytes());
        out.extend_from_slice(&dst_port.to_be_bytes());
        out.extend_from_slice(&segment.seq.to_be_bytes());
        out.extend_from_slice(&segment.ack.to_be_bytes());
        let words = u8::try_from(header_len / 4).unwrap_or(15);
        out.extend_from_slice(&[words << 4, segment.flags.bits()]);
        out.extend_from_slice(&segment.window.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        segment.write_options(out);
        out.resize(end, 0);
    }

    fn write_options(&self, out: &mut Vec<u8>) {
        if let Some(mss) = self.mss {
            out.extend_from_slice(&[OPTION_MSS, 4]);
            out.extend_from_slice(&mss.to_be_bytes());
        }
        if self.is_sack_permitted {
            out.extend_from_slice(&[OPTION_NOP, OPTION_NOP, OPTION_SACK_PERMITTED, 2]);
        }
        if let Some(scale) = self.window_scale {
            out.extend_from_slice(&[OPTION_NOP, OPTION_WINDOW_SCALE, 3, scale]);
        }
        if let Some(timestamps) = self.timestamps {
            out.extend_from_slice(&[OPTION_NOP, OPTION_NOP, OPTION_TIMESTAMPS, 10]);
            out.extend_from_slice(&timestamps.value.to_be_bytes());
            out.extend_from_slice(&timestamps.echo.to_be_bytes());
        }
        if !self.sack.is_empty() {
            let len = u8::try_from(2 + 8 * self.sack.len()).unwrap_or(u8::MAX);
            out.extend_from_slice(&[OPTION_NOP, OPTION_NOP, OPTION_SACK, len]);
            for (start, end) in self.sack.iter() {
                out.extend_from_slice(&start.to_be_bytes());
                out.extend_from_slice(&end.to_be_bytes());
            }
        }
    }

    /// Parses the ports and the segment from `bytes`, which begin with the TCP header and end with the payload. Unknown
    /// options are skipped.
    ///
    /// # Errors
    /// Fails if the header or the options are malformed.
    pub fn parse(bytes: &[u8]) -> Result<(u16, u16, Self), ParseError> {
        let (header, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(ParseError::Length)?;
        let options_len = (usize::from(header[12] >> 4) * 4)
            .checked_sub(HEADER_LEN)
            .ok_or(ParseError::DataOffset)?;
        let (options, payload) = rest
            .split_at_checked(options_len)
            .ok_or(ParseError::DataOffset)?;
        let u16_at = |i: usize| u16::from_be_bytes([header[i], header[i + 1]]);
        let u32_at =
            |i: usize| u32::from_be_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
        let mut segment = Self {
            seq: u32_at(4),
            ack: u32_at(8),
            flags: Flags(header[13]),
            window: u16_at(14),
            payload_len: u16::try_from(payload.len())
                .map_err(|_| ParseError::Length)?
                .into(),
            ..Self::default()
        };
        segment.parse_options(options)?;
        Ok((u16_at(0), u16_at(2), segment))
    }

    fn parse_options(&mut self, mut options: &[u8]) -> Result<(), ParseError> {
        while let [kind, rest @ ..] = options {
            match *kind {
                OPTION_END => break,
                OPTION_NOP => options = rest,
                kind => {
                    let len = rest.first().copied().map_or(0, usize::from);
                    let value_len = len.checked_sub(2).ok_or(ParseError::Option)?;
                    let (value, next) = rest
                        .get(1..)
                        .and_then(|rest| rest.split_at_checked(value_len))
                        .ok_or(ParseError::Option)?;
                    self.parse_option(kind, value)?;
                    options = next;
                }
            }
        }
        Ok(())
    }

    fn parse_option(&mut self, kind: u8, value: &[u8]) -> Result<(), ParseError> {
        match (kind, value) {
            (OPTION_MSS, [a, b]) => self.mss = Some(u16::from_be_bytes([*a, *b])),
            (OPTION_WINDOW_SCALE, [scale]) => self.window_scale = Some(*scale),
            (OPTION_SACK_PERMITTED, []) => self.is_sack_permitted = true,
            (OPTION_TIMESTAMPS, [a, b, c, d, e, f, g, h]) => {
                self.timestamps = Some(Timestamps {
                    value: u32::from_be_bytes([*a, *b, *c, *d]),
                    echo: u32::from_be_bytes([*e, *f, *g, *h]),
                });
            }
            (OPTION_SACK, blocks) => {
                let (blocks, []) = blocks.as_chunks::<8>() else {
                    return Err(ParseError::Option);
                };
                for [a, b, c, d, e, f, g, h] in blocks {
                    self.sack.push(
                        u32::from_be_bytes([*a, *b, *c, *d]),
                        u32::from_be_bytes([*e, *f, *g, *h]),
                    );
                }
            }
            (OPTION_MSS | OPTION_WINDOW_SCALE | OPTION_SACK_PERMITTED | OPTION_TIMESTAMPS, _) => {
                return Err(ParseError::Option);
            }
            _ => {}
        }
        Ok(())
    }

    fn header_len(&self) -> usize {
        HEADER_LEN + self.options_len()
    }

    /// Returns the segment with as many SACK blocks as fit into the 40 bytes of options.
    fn fitting(&self) -> Self {
        let mut segment = *self;
        while segment.options_len() > 40 && !segment.sack.is_empty() {
            segment.sack.pop();
        }
        segment
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_segment() -> impl Strategy<Value = Segment> {
        let options = (
            any::<Option<u16>>(),
            any::<Option<u8>>(),
            any::<bool>(),
            any::<Option<(u32, u32)>>(),
            proptest::collection::vec(any::<(u32, u32)>(), 0..=2),
        );
        let header = (
            any::<u32>(),
            any::<u32>(),
            any::<u8>(),
            any::<u16>(),
            0..9_000_u32,
        );
        (header, options).prop_map(|(header, options)| {
            let (seq, ack, flags, window, payload_len) = header;
            let (mss, window_scale, is_sack_permitted, timestamps, blocks) = options;
            let mut segment = Segment {
                seq,
                ack,
                flags: Flags(flags),
                window,
                mss,
                window_scale,
                is_sack_permitted,
                timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
                payload_len,
                ..Segment::default()
            };
            for (start, end) in blocks {
                segment.sack.push(start, end);
            }
            segment.fitting()
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(segment in any_segment(), ports in any::<(u16, u16)>()) {
            let mut bytes = Vec::new();
            segment.write(ports.0, ports.1, &mut bytes);
            prop_assert_eq!(bytes.len(), segment.encoded_len());
            prop_assert_eq!(Segment::parse(&bytes), Ok((ports.0, ports.1, segment)));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Segment::parse(&bytes);
        }
    }

    #[test]
    fn header_has_the_bytes_of_the_standard() {
        let mut segment = Segment {
            seq: 0x0102_0304,
            ack: 0x0506_0708,
            flags: Flags::ACK.with(Flags::PSH),
            window: 0x1122,
            timestamps: Some(Timestamps { value: 1, echo: 2 }),
            ..Segment::default()
        };
        segment.sack.push(3, 4);
        let mut bytes = Vec::new();
        segment.write(443, 80, &mut bytes);
        let expected = [
            1, 187, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0xb0, 0x18, 0x11, 0x22, 0, 0, 0, 0, //
            1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 5, 10, 0, 0, 0, 3, 0, 0, 0, 4,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn three_blocks_fit_beside_timestamps() {
        let mut segment = Segment {
            timestamps: Some(Timestamps::default()),
            ..Segment::default()
        };
        assert!((0..4).all(|i| segment.sack.push(i, i + 1)));
        assert!(!segment.sack.push(8, 9));
        assert_eq!(segment.encoded_len(), 60);
        let mut bytes = Vec::new();
        segment.write(1, 2, &mut bytes);
        let (_, _, parsed) = Segment::parse(&bytes).expect("own segment");
        assert_eq!(parsed.sack.len(), 3);
    }

    #[test]
    fn malformed_options_are_refused() {
        let mut bytes = vec![0; 24];
        bytes[12] = 6 << 4;
        bytes[20..].copy_from_slice(&[OPTION_MSS, 3, 0, 0]);
        assert_eq!(Segment::parse(&bytes), Err(ParseError::Option));
        bytes[20..].copy_from_slice(&[OPTION_SACK, 9, 0, 0]);
        assert_eq!(Segment::parse(&bytes), Err(ParseError::Option));
        bytes[12] = 4 << 4;
        assert_eq!(Segment::parse(&bytes), Err(ParseError::DataOffset));
        assert_eq!(Segment::parse(&bytes[..19]), Err(ParseError::Length));
    }
}
