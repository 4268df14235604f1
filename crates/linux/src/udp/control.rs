//! Control messages of `sendmsg(2)`, written byte by byte, so that no pointers are needed.
//!
//! Layout of `struct cmsghdr`: length of header and data (a `size_t`), level and type (an `int` each), data; each
//! message starts at a multiple of the size of a `size_t` (cmsg(3)).

use std::net::IpAddr;

use pleach_core::packet::Ecn;

/// Control messages for one send, with space for ECN, source address and segment size.
#[derive(Debug)]
pub(super) struct Control {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Control {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; CAPACITY],
            len: 0,
        }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Adds the ECN code point of all datagrams.
    pub(super) fn push_ecn(&mut self, is_v6: bool, ecn: Ecn) {
        let bits: i32 = match ecn {
            Ecn::NotCapable => return,
            Ecn::Capable => 0b10,
            Ecn::Congested => 0b11,
        };
        if is_v6 {
            self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &bits.to_ne_bytes());
        } else {
            self.push(libc::IPPROTO_IP, libc::IP_TOS, &bits.to_ne_bytes());
        }
    }

    /// Adds the source address: `struct in_pktinfo` or `struct in6_pktinfo` without a device.
    pub(super) fn push_source(&mut self, source: IpAddr) {
        match source {
            IpAddr::V4(ip) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ip.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(ip) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// Adds the length of the segments.
    pub(super) fn push_segment(&mut self, len: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &len.to_ne_bytes());
    }

    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let header = WORD + 8;
        let bytes = &mut self.bytes[self.len..];
        bytes[..WORD].copy_from_slice(&(header + data.len()).to_ne_bytes());
        bytes[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        bytes[WORD + 4..header].copy_from_slice(&kind.to_ne_bytes());
        bytes[header..header + data.len()].copy_from_slice(data);
        self.len += (header + data.len()).next_multiple_of(WORD);
    }
}

/// Size and alignment in bytes of a `size_t`.
const WORD: usize = size_of::<usize>();

/// Capacity in bytes: three messages with at most 20 bytes of data each.
const CAPACITY: usize = 3 * 40;
