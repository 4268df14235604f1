//! IP packets in reused buffers.
//!
//! Headers are real (RFC 791, RFC 8200, RFC 768), with one exception: the checksums of UDP and TCP are zero. A flag of
//! the packet says whether a checksum would fail. A link with bit errors sets this flag, and every host drops such a
//! packet.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use pleach_core::packet::{PacketView, ones_complement_sum};

use crate::link::Corrupt;

/// UDP's protocol number.
pub(crate) const UDP: u8 = 17;
const UDP_HEADER_BYTES: usize = 8;
/// Highest number of free buffers that are stored for reuse.
const MAX_FREE: usize = 65_536;
const HOP_LIMIT: u8 = 64;

/// An IP packet.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    bytes: Vec<u8>,
    is_corrupt: bool,
}

impl Packet {
    /// Returns the packet, starting with its IP header.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the packet for changes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Whether a checksum of the packet would fail.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.is_corrupt
    }
}

impl Corrupt for Packet {
    fn flip_bit(&mut self, bit: u64) {
        self.bytes.flip_bit(bit);
        self.is_corrupt = true;
    }
}

/// Pool of free buffers.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Vec<Vec<u8>>,
}

impl Buffers {
    /// Returns a packet's buffer to the pool.
    pub(crate) fn recycle(&mut self, packet: Packet) {
        if self.free.len() < MAX_FREE {
            self.free.push(packet.bytes);
        }
    }

    /// Returns a copy of an IP packet.
    pub(crate) fn copy_of(&mut self, bytes: &[u8]) -> Packet {
        let mut buffer = self.take();
        buffer.extend_from_slice(bytes);
        Packet {
            bytes: buffer,
            is_corrupt: false,
        }
    }

    /// Creates an IP packet of `protocol`. `fill` appends the transport header and the payload. `None` if the packet
    /// would be too long for IP, or if the addresses differ in family.
    pub(crate) fn packet(
        &mut self,
        protocol: u8,
        source: IpAddr,
        destination: IpAddr,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Packet> {
        let mut bytes = self.take();
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, protocol, 0, 0]);
                bytes.extend_from_slice(&source.octets());
                bytes.extend_from_slice(&destination.octets());
                fill(&mut bytes);
                let len = u16::try_from(bytes.len()).ok()?;
                bytes[2..4].copy_from_slice(&len.to_be_bytes());
                let sum = !ones_complement_sum(&[&bytes[..20]]);
                bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                bytes.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, protocol, HOP_LIMIT]);
                bytes.extend_from_slice(&source.octets());
                bytes.extend_from_slice(&destination.octets());
                fill(&mut bytes);
                let len = u16::try_from(bytes.len() - 40).ok()?;
                bytes[4..6].copy_from_slice(&len.to_be_bytes());
            }
            _ => return None,
        }
        Some(Packet {
            bytes,
            is_corrupt: false,
        })
    }

    /// Creates a UDP packet whose payload `fill` appends. `None` in the same cases as for [`packet`](Self::packet).
    pub(crate) fn datagram(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Packet> {
        self.packet(UDP, source.ip(), destination.ip(), |bytes| {
            let start = bytes.len();
            bytes.extend_from_slice(&source.port().to_be_bytes());
            bytes.extend_from_slice(&destination.port().to_be_bytes());
            bytes.extend_from_slice(&[0; 4]);
            fill(bytes);
            // A datagram too long for this field is also too long for a packet, so creating the packet fails.
            let len = u16::try_from(bytes.len() - start).unwrap_or(u16::MAX);
            bytes[start + 4..start + 6].copy_from_slice(&len.to_be_bytes());
        })
    }

    fn take(&mut self) -> Vec<u8> {
        let mut buffer = self.free.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }
}

/// Packets that a node sends in the current round, with the ports on which they leave.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Pool of buffers for new packets.
    pub(crate) buffers: Buffers,
    packets: VecDeque<(usize, Packet)>,
}

impl Outbox {
    /// Sends `packet` out of `port`.
    pub(crate) fn send(&mut self, port: usize, packet: Packet) {
        self.packets.push_back((port, packet));
    }

    pub(super) fn pop(&mut self) -> Option<(usize, Packet)> {
        self.packets.pop_front()
    }
}

/// A UDP datagram as its receiver sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) payload: &'a [u8],
}

/// Returns the UDP datagram in an IP packet. `None` if the packet does not contain one.
pub(crate) fn datagram<'a>(packet: &PacketView<'a>) -> Option<Datagram<'a>> {
    if packet.protocol() != Some(UDP) {
        return None;
    }
    let transport = packet.transport();
    let (header, payload) = transport.split_first_chunk::<UDP_HEADER_BYTES>()?;
    let [a, b, c, d, ..] = *header;
    Some(Datagram {
        source: SocketAddr::new(packet.source(), u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(packet.destination(), u16::from_be_bytes([c, d])),
        payload,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut buffers = Buffers::default();
        for (from, to) in [("10.0.0.1:5", "10.0.0.2:6"), ("[fd00::1]:5", "[fd00::2]:6")] {
            let (from, to) = (from.parse().expect("literal"), to.parse().expect("literal"));
            let packet = buffers.datagram(from, to, |bytes| bytes.extend_from_slice(b"payload"));
            let packet = packet.expect("fits");
            let view = PacketView::parse(packet.bytes()).expect("valid");
            let read = datagram(&view).expect("UDP");
            assert_eq!((read.source, read.destination), (from, to));
            assert_eq!(read.payload, b"payload");
            buffers.recycle(packet);
        }
        let (v4, v6) = ("10.0.0.1:5", "[fd00::2]:6");
        let (v4, v6) = (v4.parse().expect("literal"), v6.parse().expect("literal"));
        assert!(buffers.datagram(v4, v6, |_| {}).is_none());
        let too_long = buffers.datagram(v4, v4, |bytes| bytes.resize(70_000, 0));
        assert!(too_long.is_none());
    }

    #[test]
    fn the_header_checksum_is_that_of_rfc_1071() {
        let mut header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(!ones_complement_sum(&[&header]), 0xb861);
        header[10..12].copy_from_slice(&[0xb8, 0x61]);
        assert_eq!(!ones_complement_sum(&[&header]), 0);
    }
}
