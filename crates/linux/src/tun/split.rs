//! Splits one read of the TUN device into single packets with complete checksums.
//!
//! The kernel delivers a super-packet: the headers of the first segment and up to 64 KiB of payload. Each segment gets
//! a copy of the headers with its own lengths, IPv4 identification, TCP sequence number and flags, as in
//! `tcp_gso_segment` and `inet_gso_segment` of Linux: FIN and PSH stay on the last segment, CWR on the first. The
//! checksum field of a super-packet contains the sum of the pseudo header with the whole length. Replacing this length
//! by the segment's length gives the segment's pseudo header, regardless of addresses and extension headers.

use pleach_core::packet::{PacketBuf, Pool};

use super::{
    checksum::Sum,
    vnet::{Gso, VnetHeader},
};

/// Error: a read of the TUN device cannot be split. The kernel does not send such packets; they are dropped and
/// counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Appends the single packets of `packet` to `out`, in buffers from `pool`. Returns their number.
///
/// There is at most one packet per byte of payload; in practice there are at most 48.
pub(crate) fn split(
    header: &VnetHeader,
    packet: &[u8],
    pool: &mut Pool,
    out: &mut Vec<PacketBuf>,
) -> Result<usize, Malformed> {
    if header.gso == Gso::None {
        let mut single = pool.copy_of(packet);
        if let Some(start) = header.checksum_start {
            complete_checksum(single.as_mut_slice(), start, header.checksum_offset)?;
        }
        out.push(single);
        return Ok(1);
    }
    let shape = Shape::new(header, packet)?;
    let payload = &packet[shape.header_len..];
    let segments = payload.chunks(shape.segment_size);
    let count = segments.len();
    for (index, segment) in segments.enumerate() {
        let mut single = pool.take();
        single.resize(shape.header_len + segment.len());
        let bytes = single.as_mut_slice();
        bytes[..shape.header_len].copy_from_slice(&packet[..shape.header_len]);
        bytes[shape.header_len..].copy_from_slice(segment);
        shape.finish(bytes, index, index + 1 == count)?;
        out.push(single);
    }
    Ok(count)
}

/// Completes a partial checksum.
fn complete_checksum(packet: &mut [u8], start: u16, offset: u16) -> Result<(), Malformed> {
    let (start, offset) = (usize::from(start), usize::from(offset));
    let field = start + offset;
    if start > packet.len() || field + 2 > packet.len() {
        return Err(Malformed);
    }
    // The field is included in the sum, because it contains the sum of the pseudo header.
    let checksum = Sum::default().add(&packet[start..]).checksum();
    packet[field..field + 2].copy_from_slice(&checksum_on_wire(checksum, offset == UDP_CHECKSUM));
    Ok(())
}

/// The checked layout of a super-packet.
struct Shape {
    is_v6: bool,
    is_tcp: bool,
    /// Start of the transport header.
    transport: usize,
    header_len: usize,
    segment_size: usize,
    /// Sum of the pseudo header without a length.
    pseudo: Sum,
}

impl Shape {
    fn new(header: &VnetHeader, packet: &[u8]) -> Result<Self, Malformed> {
        let is_tcp = header.gso != Gso::Udp;
        let transport = usize::from(header.checksum_start.ok_or(Malformed)?);
        let is_v6 = match packet.first().ok_or(Malformed)? >> 4 {
            4 if header.gso != Gso::TcpV6 => false,
            6 if header.gso != Gso::TcpV4 => true,
            _ => return Err(Malformed),
        };
        let ip_len = if is_v6 { 40 } else { 20 };
        let least_len = if is_tcp { 20 } else { 8 };
        if transport < ip_len || packet.len() <= transport + least_len {
            return Err(Malformed);
        }
        if !is_v6 && transport != usize::from(packet[0] & 0x0f) * 4 {
            return Err(Malformed);
        }
        let transport_len = if is_tcp {
            usize::from(packet[transport + 12] >> 4) * 4
        } else {
            least_len
        };
        let header_len = transport + transport_len;
        let segment_size = usize::from(header.segment_size);
        if transport_len < least_len
            || packet.len() <= header_len
            || segment_size == 0
            || header_len + segment_size > usize::from(u16::MAX)
        {
            return Err(Malformed);
        }
        let field = transport + if is_tcp { TCP_CHECKSUM } else { UDP_CHECKSUM };
        let whole = u16::try_from(packet.len() - transport).map_err(|_| Malformed)?;
        let pseudo = Sum::default().add(&packet[field..field + 2]).sub_u16(whole);
        Ok(Self {
            is_v6,
            is_tcp,
            transport,
            header_len,
            segment_size,
            pseudo,
        })
    }

    /// Writes the fields that differ between segments, checksums last.
    fn finish(&self, bytes: &mut [u8], index: usize, is_last: bool) -> Result<(), Malformed> {
        let u16_of = |len: usize| u16::try_from(len).map_err(|_| Malformed);
        let transport_bytes = u16_of(bytes.len() - self.transport)?;
        if self.is_v6 {
            let len = u16_of(bytes.len() - 40)?;
            bytes[4..6].copy_from_slice(&len.to_be_bytes());
        } else {
            let len = u16_of(bytes.len())?;
            bytes[2..4].copy_from_slice(&len.to_be_bytes());
            let id = u16::from_be_bytes([bytes[4], bytes[5]]).wrapping_add(u16_of(index)?);
            bytes[4..6].copy_from_slice(&id.to_be_bytes());
            bytes[10..12].fill(0);
            let checksum = Sum::default().add(&bytes[..self.transport]).checksum();
            bytes[10..12].copy_from_slice(&checksum);
        }
        let transport = &mut bytes[self.transport..];
        let field = if self.is_tcp {
            let advance = u32::try_from(index * self.segment_size).map_err(|_| Malformed)?;
            let seq = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
            transport[4..8].copy_from_slice(&seq.wrapping_add(advance).to_be_bytes());
            if !is_last {
                transport[13] &= !(TCP_FIN | TCP_PSH);
            }
            if index > 0 {
                transport[13] &= !TCP_CWR;
            }
            TCP_CHECKSUM
        } else {
            transport[4..6].copy_from_slice(&transport_bytes.to_be_bytes());
            UDP_CHECKSUM
        };
        transport[field..field + 2].fill(0);
        let checksum = self
            .pseudo
            .add_u16(transport_bytes)
            .add(transport)
            .checksum();
        let checksum = checksum_on_wire(checksum, !self.is_tcp);
        transport[field..field + 2].copy_from_slice(&checksum);
        Ok(())
    }
}

/// Returns the checksum as sent. For UDP a computed zero is sent as all ones, because zero means "no checksum" (RFC
/// 768).
fn checksum_on_wire(checksum: [u8; 2], is_udp: bool) -> [u8; 2] {
    if is_udp && checksum == [0, 0] {
        [0xff, 0xff]
    } else {
        checksum
    }
}

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;
/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM: usize = 6;
