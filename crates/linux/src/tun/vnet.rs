//! The header before each packet of a TUN device with offloads: `struct virtio_net_hdr`, 10 bytes, native byte order.
//!
//! Source: virtio 1.2 section 5.1.6 and `include/uapi/linux/virtio_net.h`.

/// Length of the header in bytes.
pub(crate) const VNET_HEADER_LEN: usize = 10;

/// Flag: the checksum is incomplete, and its field contains only the sum of the pseudo header.
const NEEDS_CHECKSUM: u8 = 1;

const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Flag beside the type: the first segment carries CWR.
const GSO_ECN: u8 = 0x80;

/// Kind of the segments in a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gso {
    /// A single packet.
    None,
    /// TCP segments over IPv4.
    TcpV4,
    /// TCP segments over IPv6.
    TcpV6,
    /// UDP datagrams.
    Udp,
}

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VnetHeader {
    /// Kind of the packet's segments.
    pub(crate) gso: Gso,
    /// Start of the checksummed part, which is the transport header, if the checksum is incomplete.
    pub(crate) checksum_start: Option<u16>,
    /// Offset of the checksum field from `checksum_start`.
    pub(crate) checksum_offset: u16,
    /// Length of the IP and transport headers in bytes.
    pub(crate) header_len: u16,
    /// Payload bytes of each segment except the last.
    pub(crate) segment_size: u16,
}

impl VnetHeader {
    /// Decodes the header. `None` if its segmentation type is unknown.
    pub(crate) fn decode(bytes: [u8; VNET_HEADER_LEN]) -> Option<Self> {
        let u16_at = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let gso = match bytes[1] & !GSO_ECN {
            GSO_NONE => Gso::None,
            GSO_TCP_V4 => Gso::TcpV4,
            GSO_TCP_V6 => Gso::TcpV6,
            GSO_UDP_L4 => Gso::Udp,
            _ => return None,
        };
        Some(Self {
            gso,
            checksum_start: (bytes[0] & NEEDS_CHECKSUM != 0).then_some(u16_at(6)),
            checksum_offset: u16_at(8),
            header_len: u16_at(2),
            segment_size: u16_at(4),
        })
    }

    /// Returns the header in the kernel's format.
    pub(crate) fn encode(&self) -> [u8; VNET_HEADER_LEN] {
        let mut bytes = [0; VNET_HEADER_LEN];
        bytes[0] = u8::from(self.checksum_start.is_some()) * NEEDS_CHECKSUM;
        bytes[1] = match self.gso {
            Gso::None => GSO_NONE,
            Gso::TcpV4 => GSO_TCP_V4,
            Gso::TcpV6 => GSO_TCP_V6,
            Gso::Udp => GSO_UDP_L4,
        };
        let fields = [
            self.header_len,
            self.segment_size,
            self.checksum_start.unwrap_or(0),
            self.checksum_offset,
        ];
        for (slot, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
            slot.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_round_trip_and_rejects_unknown_types() {
        let header = VnetHeader {
            gso: Gso::Udp,
            checksum_start: Some(40),
            checksum_offset: 6,
            header_len: 48,
            segment_size: 1200,
        };
        assert_eq!(VnetHeader::decode(header.encode()), Some(header));
        let mut bytes = header.encode();
        bytes[1] = 3;
        assert_eq!(VnetHeader::decode(bytes), None);
    }
}
