//! Packet format in datagrams: as long as QUIC packets, with contents in the clear.
//!
//! A packet consists of its kind, a connection id of eight bytes, the frame, and 16 bytes in place of the
//! authentication tag. Numbers and delays have 32 bits, offsets 48 bits. The ranges of an acknowledgement are
//! variable-length integers of RFC 9000 (section 16): the highest number, then alternately the length of a range minus
//! one and the length of the gap below it minus one.

/// Highest number of ranges in an acknowledgement.
pub(super) const MAX_RANGES: usize = 64;

/// Length in bytes of a data packet without its payload.
pub(super) const OVERHEAD: u64 = 1 + 8 + 4 + 6 + 16;

/// Length in bytes to which packets of the handshake are padded.
const HANDSHAKE_BYTES: usize = 1_200;

const CONNECTION_ID: [u8; 8] = [0; 8];
const TAG: [u8; 16] = [0; 16];

/// Largest offset.
const MAX_OFFSET: u64 = (1 << 48) - 1;

const HELLO: u8 = 1;
const HELLO_ACK: u8 = 2;
const REQUEST: u8 = 3;
const DATA: u8 = 4;
const ACK: u8 = 5;

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is written at once, never stored"
)]
pub(crate) enum Packet {
    /// Acknowledgement of packets.
    Ack(Ack),
    /// A piece of the stream. An empty piece is a probe.
    Data {
        /// Packet number.
        number: u64,
        /// Offset of the piece in the stream.
        offset: u64,
        /// Length of the piece, at most 65 535.
        len: u64,
    },
    /// First packet of the client.
    Hello,
    /// First packet of the server.
    HelloAck,
    /// Last packet of the client, with the request for the stream.
    Request,
}

/// An acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    /// First and last number of each range, highest first.
    ranges: [(u64, u64); MAX_RANGES],
    len: usize,
    /// Delay since the arrival of the highest packet, in microseconds.
    pub(super) delay_us: u64,
    /// Flow control limit of the stream.
    pub(super) limit: u64,
}

impl Ack {
    pub(super) fn new(delay_us: u64, limit: u64) -> Self {
        Self {
            ranges: [(0, 0); MAX_RANGES],
            len: 0,
            delay_us,
            limit,
        }
    }

    /// Adds a range below the previous ranges. `false` if there is no space.
    pub(super) fn push(&mut self, first: u64, last: u64) -> bool {
        let slot = self.ranges.get_mut(self.len);
        let has_room = slot.is_some();
        if let Some(slot) = slot {
            *slot = (first, last);
            self.len += 1;
        }
        has_room
    }

    /// Returns the first and last number of each range, highest first.
    pub(super) fn ranges(&self) -> &[(u64, u64)] {
        self.ranges.get(..self.len).unwrap_or_default()
    }
}

impl Packet {
    /// Appends the packet.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let kind = match self {
            Self::Ack(_) => ACK,
            Self::Data { .. } => DATA,
            Self::Hello => HELLO,
            Self::HelloAck => HELLO_ACK,
            Self::Request => REQUEST,
        };
        out.push(kind);
        out.extend_from_slice(&CONNECTION_ID);
        match self {
            Self::Ack(ack) => write_ack(ack, out),
            Self::Data {
                number,
                offset,
                len,
            } => {
                put(out, *number, 4);
                put(out, *offset, 6);
                let len = usize::from(u16::try_from(*len).unwrap_or(u16::MAX));
                out.resize(out.len() + len, 0);
            }
            Self::Hello | Self::HelloAck | Self::Request => {
                out.resize(start + HANDSHAKE_BYTES - TAG.len(), 0);
            }
        }
        out.extend_from_slice(&TAG);
    }

    /// Parses a packet. `None` if `bytes` is not a packet.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let frame_len = rest.len().checked_sub(CONNECTION_ID.len() + TAG.len())?;
        let mut frame = rest.get(CONNECTION_ID.len()..CONNECTION_ID.len() + frame_len)?;
        match kind {
            HELLO => Some(Self::Hello),
            HELLO_ACK => Some(Self::HelloAck),
            REQUEST => Some(Self::Request),
            DATA => {
                let number = take(&mut frame, 4)?;
                let offset = take(&mut frame, 6)?;
                let len = u64::try_from(frame.len()).ok()?;
                Some(Self::Data {
                    number,
                    offset,
                    len,
                })
            }
            ACK => parse_ack(frame).map(Self::Ack),
            _ => None,
        }
    }
}

fn write_ack(ack: &Ack, out: &mut Vec<u8>) {
    put(out, ack.delay_us.min(u64::from(u32::MAX)), 4);
    put(out, ack.limit.min(MAX_OFFSET), 6);
    let mut above = None;
    for &(first, last) in ack.ranges() {
        match above {
            None => put_varint(out, last),
            Some(above) => put_varint(out, u64::saturating_sub(above, last + 2)),
        }
        put_varint(out, last.saturating_sub(first));
        above = Some(first);
    }
}

fn parse_ack(mut frame: &[u8]) -> Option<Ack> {
    let delay_us = take(&mut frame, 4)?;
    let limit = take(&mut frame, 6)?;
    let mut ack = Ack::new(delay_us, limit);
    let mut last = take_varint(&mut frame)?;
    loop {
        let first = last.checked_sub(take_varint(&mut frame)?)?;
        if !ack.push(first, last) {
            return None;
        }
        if frame.is_empty() {
            return Some(ack);
        }
        last = first.checked_sub(take_varint(&mut frame)?.checked_add(2)?)?;
    }
}

/// Appends the lowest `len` bytes of `value` in big-endian order.
fn put(out: &mut Vec<u8>, value: u64, len: usize) {
    let bytes = value.to_be_bytes();
    out.extend_from_slice(bytes.get(bytes.len() - len..).unwrap_or_default());
}

fn take(bytes: &mut &[u8], len: usize) -> Option<u64> {
    let (value, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(
        value
            .iter()
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
    )
}

fn put_varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..0x40 => put(out, value, 1),
        0x40..0x4000 => put(out, value | 0x4000, 2),
        0x4000..0x4000_0000 => put(out, value | 0x8000_0000, 4),
        _ => put(out, value | 0xc000_0000_0000_0000, 8),
    }
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let len = 1 << (bytes.first()? >> 6);
    let value = take(bytes, len)?;
    Some(value & (u64::MAX >> (66 - 8 * len)))
}

#[cfg(test)]
mod tests {
    use pleach_core::rng::Rng;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut ack = Ack::new(1_234, 1 << 33);
        for (first, last) in [(70_000, 70_001), (400, 69_000), (3, 390), (0, 0)] {
            assert!(ack.push(first, last));
        }
        let data = Packet::Data {
            number: 70_000,
            offset: 1 << 40,
            len: 1_417,
        };
        for packet in [
            Packet::Hello,
            Packet::HelloAck,
            Packet::Request,
            data,
            Packet::Ack(ack),
        ] {
            let mut bytes = Vec::new();
            packet.write(&mut bytes);
            assert_eq!(Packet::parse(&bytes), Some(packet));
        }
    }

    #[test]
    fn a_full_packet_has_the_length_asked_for() {
        let mut bytes = Vec::new();
        let packet = Packet::Data {
            number: 1,
            offset: 2,
            len: 1_452 - OVERHEAD,
        };
        packet.write(&mut bytes);
        assert_eq!(bytes.len(), 1_452);
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let mut rng = Rng::new(4);
        for len in 0..200 {
            for kind in 0..7 {
                let mut bytes = vec![0; len];
                rng.fill(&mut bytes);
                if let Some(first) = bytes.first_mut() {
                    *first = kind;
                }
                if let Some(Packet::Ack(ack)) = Packet::parse(&bytes) {
                    assert!(ack.ranges().is_sorted_by(|a, b| a.0 > b.1));
                }
            }
        }
    }
}
