//! Inner packets: a pooled buffer, and a checked view of the IP packet in it.
//!
//! A [`PacketBuf`] owns its memory and comes from a [`Pool`], to which it returns; in the steady state no packet
//! allocates. [`PacketView`] reads the fields of an IPv4 (RFC 791) or IPv6 (RFC 8200) packet that the engine needs:
//! addresses, five-tuple hash, DSCP and ECN. It checks the lengths once, at construction; packets with invalid lengths
//! are not forwarded.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::mark::Mark;

mod fragment;
mod mss;
mod segment;
mod segment_mut;
mod too_big;

pub use fragment::fragments;
pub use segment::{Segment, is_before, later};
pub use segment_mut::SegmentMut;
pub use too_big::too_big;

/// Packet length in bytes that every link with IPv6 can carry (RFC 8200 section 5).
pub const LEAST_MTU_V6: usize = 1_280;

/// An inner packet in a separate buffer.
#[derive(Debug, Default)]
pub struct PacketBuf {
    bytes: Vec<u8>,
    /// Offset of the packet's first byte; the bytes before it were removed.
    start: usize,
    /// Mark of the packet's class, see [`PacketBuf::mark`].
    mark: Option<Mark>,
    /// The result of [`PacketBuf::parse`]; `None` if the bytes may have changed since.
    layout: Option<Layout>,
}

impl PacketBuf {
    /// Returns the bytes of the packet.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Returns the bytes of the packet, for changes.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.layout = None;
        &mut self.bytes[self.start..]
    }

    /// Parses the IP packet and stores the result for the next call.
    ///
    /// # Errors
    /// Like [`PacketView::parse`].
    pub fn parse(&mut self) -> Result<PacketView<'_>, PacketError> {
        let view = match self.layout {
            Some(layout) => layout.view(&self.bytes[self.start..]),
            None => PacketView::parse(&self.bytes[self.start..])?,
        };
        self.layout = Some(view.layout);
        Ok(view)
    }

    /// Returns the parsed IP packet.
    ///
    /// # Errors
    /// Like [`PacketView::parse`].
    pub fn view(&self) -> Result<PacketView<'_>, PacketError> {
        match self.layout {
            Some(layout) => Ok(layout.view(self.as_slice())),
            None => PacketView::parse(self.as_slice()),
        }
    }

    /// Returns the length of the packet in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Returns the length of the packet in bytes before its front was shortened ([`Self::replace_front`]).
    #[must_use]
    pub fn original_len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the buffer contains no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the length to `len`: truncates the packet or appends zeros (which takes time, so avoid it for each packet).
    pub fn resize(&mut self, len: usize) {
        self.layout = None;
        self.bytes.resize(self.start + len, 0);
    }

    /// Truncates the packet to `len` bytes. No effect if it is shorter.
    pub fn truncate(&mut self, len: usize) {
        self.layout
            .take_if(|layout| len < usize::from(layout.total_len));
        self.bytes.truncate(self.start + len);
    }

    /// Replaces the content by `bytes`.
    pub fn fill_from(&mut self, bytes: &[u8]) {
        self.bytes.clear();
        self.start = 0;
        self.mark = None;
        self.layout = None;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the packet's mark, if it has one.
    #[must_use]
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Sets the packet's mark, see [`Self::mark`].
    pub fn set_mark(&mut self, mark: Option<Mark>) {
        self.mark = mark;
    }

    /// Appends `bytes`.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.layout = None;
        self.bytes.extend_from_slice(bytes);
    }

    /// Replaces the first `len` bytes by `front`, which must not be longer than `len`. The packet must have at least
    /// `len` bytes.
    ///
    /// # Panics
    /// If `front` or `len` is too long.
    pub fn replace_front(&mut self, len: usize, front: &[u8]) {
        self.layout = None;
        let end = self.start + len;
        self.start = end - front.len();
        self.bytes[self.start..end].copy_from_slice(front);
    }
}

impl From<Vec<u8>> for PacketBuf {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }
}

/// A bounded pool of buffers. Buffers returned above [`Pool::new`]'s limit are freed, and so are buffers that have
/// grown to more than twice the usual size.
#[derive(Debug)]
pub struct Pool {
    free: Vec<PacketBuf>,
    limit: usize,
    capacity_bytes: usize,
}

impl Pool {
    /// Returns an empty pool that stores at most `limit` buffers and creates buffers of `capacity_bytes`.
    #[must_use]
    pub fn new(limit: usize, capacity_bytes: usize) -> Self {
        Self {
            free: Vec::with_capacity(limit.min(1024)),
            limit,
            capacity_bytes,
        }
    }

    /// Sets the maximum number of free buffers.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.free.truncate(limit);
    }

    /// Returns a buffer with unspecified content and length; a new buffer if the pool is empty.
    #[must_use]
    pub fn take(&mut self) -> PacketBuf {
        self.free.pop().unwrap_or_else(|| PacketBuf {
            bytes: Vec::with_capacity(self.capacity_bytes),
            ..PacketBuf::default()
        })
    }

    /// Returns a buffer with a copy of `bytes`.
    #[must_use]
    pub fn copy_of(&mut self, bytes: &[u8]) -> PacketBuf {
        let mut packet = self.take();
        packet.fill_from(bytes);
        packet
    }

    /// Returns `packet` to the pool.
    pub fn recycle(&mut self, mut packet: PacketBuf) {
        packet.start = 0;
        packet.mark = None;
        packet.layout = None;
        let usual = self.capacity_bytes..=self.capacity_bytes.saturating_mul(2);
        if self.free.len() < self.limit && usual.contains(&packet.bytes.capacity()) {
            self.free.push(packet);
        }
    }

    /// Returns the size of a buffer, in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// Returns the number of free buffers.
    #[must_use]
    pub fn free_len(&self) -> usize {
        self.free.len()
    }
}

/// Reason for which bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The version nibble is neither 4 nor 6.
    #[error("neither IPv4 nor IPv6")]
    NotIp,
    /// The bytes end before the end of the header, or before the length in the header.
    #[error("packet cut short")]
    Truncated,
}

/// ECN field of an IP packet (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not support ECN.
    NotCapable,
    /// The sender supports ECN: code point ECT(0) or ECT(1).
    Capable,
    /// Congestion experienced.
    Congested,
}

/// A checked view of an IP packet.
#[derive(Clone, Copy, Debug)]
pub struct PacketView<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

/// Offsets in an IP packet whose lengths were checked.
#[derive(Clone, Copy, Debug)]
struct Layout {
    is_v6: bool,
    /// IP protocol number of the transport header; `None` in a fragment other than the first.
    protocol: Option<u8>,
    /// Offset of the transport header, after IPv4 options and IPv6 extension headers.
    transport_offset: u16,
    total_len: u16,
}

impl Layout {
    /// Returns a view of `bytes`, from which this layout was computed.
    fn view(self, bytes: &[u8]) -> PacketView<'_> {
        PacketView {
            bytes: &bytes[..usize::from(self.total_len)],
            layout: self,
        }
    }
}

impl<'a> PacketView<'a> {
    /// Checks `bytes` as one whole IP packet. Bytes beyond the length in the IP header are not part of the packet.
    ///
    /// # Errors
    /// [`PacketError`] if the version or a length is wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        match bytes.first().ok_or(PacketError::Truncated)? >> 4 {
            4 => Self::parse_v4(bytes),
            6 => Self::parse_v6(bytes),
            _ => Err(PacketError::NotIp),
        }
    }

    fn parse_v4(bytes: &'a [u8]) -> Result<Self, PacketError> {
        if bytes.len() < 20 {
            return Err(PacketError::Truncated);
        }
        let header_len = u16::from(bytes[0] & 0x0f) * 4;
        let total_len = u16_at(bytes, 2);
        if header_len < 20 || total_len < header_len || bytes.len() < usize::from(total_len) {
            return Err(PacketError::Truncated);
        }
        let later_fragment = u16_at(bytes, 6) & 0x1fff != 0;
        let layout = Layout {
            is_v6: false,
            protocol: (!later_fragment).then_some(bytes[9]),
            transport_offset: header_len,
            total_len,
        };
        Ok(layout.view(bytes))
    }

    fn parse_v6(bytes: &'a [u8]) -> Result<Self, PacketError> {
        if bytes.len() < 40 {
            return Err(PacketError::Truncated);
        }
        let total_len = 40 + usize::from(u16_at(bytes, 4));
        if bytes.len() < total_len {
            return Err(PacketError::Truncated);
        }
        let bytes = &bytes[..total_len];
        let (mut next, mut offset) = (bytes[6], 40);
        let mut protocol = None;
        // Extension headers of RFC 8200 section 4: hop-by-hop, routing, destination options, fragment. At most eight
        // are followed.
        for _ in 0..8 {
            match next {
                0 | 43 | 60 if offset + 8 <= total_len => {
                    next = bytes[offset];
                    offset += 8 + usize::from(bytes[offset + 1]) * 8;
                }
                44 if offset + 8 <= total_len => {
                    let later_fragment = u16_at(bytes, offset + 2) & 0xfff8 != 0;
                    next = bytes[offset];
                    offset += 8;
                    if later_fragment {
                        break;
                    }
                }
                _ => {
                    protocol = Some(next);
                    break;
                }
            }
        }
        if offset > total_len {
            return Err(PacketError::Truncated);
        }
        // A packet longer than 65 535 bytes would be a jumbogram (RFC 2675), which is not supported.
        let of_len = |len: usize| u16::try_from(len).map_err(|_| PacketError::Truncated);
        let layout = Layout {
            is_v6: true,
            protocol,
            transport_offset: of_len(offset)?,
            total_len: of_len(total_len)?,
        };
        Ok(layout.view(bytes))
    }

    /// Returns the packet's bytes, without bytes beyond the length in its header.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether the packet is IPv6.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.layout.is_v6
    }

    /// Returns the source address.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        if self.layout.is_v6 {
            v6_at(self.bytes, 8)
        } else {
            v4_at(self.bytes, 12)
        }
    }

    /// Returns the destination address.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        if self.layout.is_v6 {
            v6_at(self.bytes, 24)
        } else {
            v4_at(self.bytes, 16)
        }
    }

    /// Returns the transport protocol (6 TCP, 17 UDP, …); `None` in later fragments and after unknown header chains.
    #[must_use]
    pub fn protocol(&self) -> Option<u8> {
        self.layout.protocol
    }

    /// Returns the source and destination port of TCP, UDP, UDP-Lite, SCTP and DCCP; `None` in fragments, because only
    /// the first fragment has ports.
    #[must_use]
    pub fn ports(&self) -> Option<[u16; 2]> {
        let has_ports = matches!(self.layout.protocol, Some(6 | 17 | 132 | 136 | 33));
        let [a, b, c, d] = *self.transport().first_chunk::<4>()?;
        let ports = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
        (has_ports && !self.is_fragment()).then_some(ports)
    }

    /// Returns the transport header and the bytes after it.
    #[must_use]
    pub fn transport(&self) -> &'a [u8] {
        &self.bytes[usize::from(self.layout.transport_offset)..]
    }

    /// Returns the differentiated services code point, 6 bits (RFC 2474).
    #[must_use]
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// Returns the ECN field.
    #[must_use]
    pub fn ecn(&self) -> Ecn {
        match self.traffic_class() & 3 {
            0 => Ecn::NotCapable,
            3 => Ecn::Congested,
            _ => Ecn::Capable,
        }
    }

    /// Returns a hash of the five-tuple under `key`, the same for both directions. For fragments and protocols without
    /// ports, it is a hash of the three-tuple.
    ///
    /// The key prevents strangers from choosing flows that collide.
    #[must_use]
    pub fn flow_hash(&self, key: u64) -> u64 {
        let [from_port, to_port] = self.ports().unwrap_or_default();
        let (hash, [a, b]) = if self.layout.is_v6 {
            let [from, to] = [8, 24].map(|at| u128_at(self.bytes, at));
            let [(first, a), (second, b)] = ordered((from, from_port), (to, to_port));
            let words = [first, second].map(|end| [end >> 64, end & u128::from(u64::MAX)]);
            let words = words.as_flattened().iter();
            let hash = words.fold(key, |hash, word| {
                mix(hash, u64::try_from(*word).unwrap_or(0))
            });
            (hash, [a, b])
        } else {
            let [from, to] = [12, 16].map(|at| u32_at(self.bytes, at));
            let [(first, a), (second, b)] = ordered((from, from_port), (to, to_port));
            let word = u64::from(first) << 32 | u64::from(second);
            (mix(key, word), [a, b])
        };
        let ports = u32::from(a) << 16 | u32::from(b);
        let protocol = if self.is_fragment() {
            0
        } else {
            self.layout.protocol.unwrap_or(0)
        };
        mix(hash, u64::from(ports) << 8 | u64::from(protocol))
    }

    /// Whether this is UDP, appears to be RTP with a dynamic payload type, and has the marker bit, which the last
    /// packet of a video frame has (RFC 3550 section 5.1; RFC 6184 section 5.1).
    #[must_use]
    pub fn ends_frame(&self) -> bool {
        const UDP_HEADER: usize = 8;
        const RTP_HEADER: usize = 12;
        const MARKED_DYNAMIC: u8 = 0x80 | 96;
        if self.layout.protocol != Some(17) || self.is_fragment() {
            return false;
        }
        let payload = self.transport().get(UDP_HEADER..);
        let Some(header) = payload.and_then(|payload| payload.first_chunk::<RTP_HEADER>()) else {
            return false;
        };
        header[0] >> 6 == 2 && header[1] >= MARKED_DYNAMIC
    }

    /// Whether the packet is a fragment of a larger packet.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        if self.layout.is_v6 {
            self.bytes[6] == 44
        } else {
            u16_at(self.bytes, 6) & 0x3fff != 0
        }
    }

    /// Whether the sender allows fragmentation in the network (IPv4).
    #[must_use]
    pub fn may_be_fragmented(&self) -> bool {
        !self.layout.is_v6 && u16_at(self.bytes, 6) & 0x4000 == 0
    }

    fn traffic_class(&self) -> u8 {
        if self.layout.is_v6 {
            self.bytes[0] << 4 | self.bytes[1] >> 4
        } else {
            self.bytes[1]
        }
    }
}

/// Sets the congestion mark of an ECN-capable packet (RFC 3168), and updates the header checksum.
///
/// Returns whether the packet now carries the mark. If it returns `false`, the sender is not ECN-capable, and only a
/// drop informs it of congestion. `bytes` must have passed [`PacketView::parse`].
pub fn mark_congested(bytes: &mut [u8]) -> bool {
    let Ok(view) = PacketView::parse(bytes) else {
        return false;
    };
    match (view.ecn(), view.is_v6()) {
        (Ecn::NotCapable, _) => return false,
        (Ecn::Congested, _) => {}
        (Ecn::Capable, true) => bytes[1] |= 0x30,
        (Ecn::Capable, false) => {
            let old = u16_at(bytes, 0);
            bytes[1] |= 3;
            let checksum = updated_checksum(u16_at(bytes, 10), old, u16_at(bytes, 0));
            bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
    }
    true
}

/// Returns the Internet checksum after one 16-bit word changed from `old` to `new` (RFC 1624, equation 3).
fn updated_checksum(checksum: u16, old: u16, new: u16) -> u16 {
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Returns the one's complement sum of `parts` (RFC 1071), whose complement is the checksum. All parts except the last
/// must have an even number of bytes.
#[must_use]
pub fn ones_complement_sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    u16::try_from(folded).unwrap_or(0)
}

fn mix(hash: u64, word: u64) -> u64 {
    // The folded multiply of wyhash (Wang Yi, public domain): fast, and keyed by `hash`.
    let product =
        u128::from(hash ^ 0x2d35_8dcc_aa6c_78a5) * u128::from(word ^ 0x8bb8_4b93_962e_acc9);
    let [low, high] = [product & u128::from(u64::MAX), product >> 64];
    // Without this term, one word would make the product zero under any key.
    u64::try_from(low ^ high).unwrap_or(0) ^ hash.rotate_left(32)
}

/// Returns `a` and `b` in ascending order.
fn ordered<T: Ord>(a: T, b: T) -> [T; 2] {
    if a <= b { [a, b] } else { [b, a] }
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |bytes| u128::from_be_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn v4_at(bytes: &[u8], at: usize) -> IpAddr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]).into()
}

fn v6_at(bytes: &[u8], at: usize) -> IpAddr {
    let octets: [u8; 16] = core::array::from_fn(|i| bytes[at + i]);
    Ipv6Addr::from(octets).into()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_has_grown_is_not_kept() {
        let mut pool = Pool::new(10, 1500);
        let usual = pool.copy_of(&[0; 1500]);
        pool.recycle(usual);
        let grown = pool.copy_of(&[0; 60_000]);
        pool.recycle(grown);
        assert_eq!(pool.free_len(), 0);
        let usual = pool.copy_of(&[0; 40]);
        pool.recycle(usual);
        assert_eq!(pool.free_len(), 1);
    }

    /// Returns an IPv4 UDP packet of `len` bytes with a valid header checksum.
    pub(crate) fn udp_v4(
        source: [u8; 4],
        destination: [u8; 4],
        ports: (u16, u16),
        len: usize,
    ) -> Vec<u8> {
        let mut bytes = vec![0_u8; len.max(28)];
        let total = u16::try_from(bytes.len()).expect("short packet");
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        bytes[8] = 64;
        bytes[9] = 17;
        bytes[12..16].copy_from_slice(&source);
        bytes[16..20].copy_from_slice(&destination);
        bytes[20..22].copy_from_slice(&ports.0.to_be_bytes());
        bytes[22..24].copy_from_slice(&ports.1.to_be_bytes());
        bytes[24..26].copy_from_slice(&(total - 20).to_be_bytes());
        let checksum = !header_sum(&bytes);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    fn header_sum(bytes: &[u8]) -> u16 {
        let sum: u32 = (0..20)
            .step_by(2)
            .map(|i| u32::from(u16_at(bytes, i)))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded")
    }

    #[test]
    fn reads_addresses_and_rejects_short_packets() {
        let bytes = udp_v4([10, 0, 0, 1], [10, 0, 0, 2], (1000, 53), 100);
        let view = PacketView::parse(&bytes).expect("valid");
        assert_eq!(
            view.source(),
            "10.0.0.1".parse::<IpAddr>().expect("literal")
        );
        assert_eq!(
            view.destination(),
            "10.0.0.2".parse::<IpAddr>().expect("literal")
        );
        assert_eq!(view.protocol(), Some(17));
        for len in 0..100 {
            assert!(PacketView::parse(&bytes[..len]).is_err(), "{len}");
        }
        assert_eq!(
            PacketView::parse(&[0x75; 40]).err(),
            Some(PacketError::NotIp)
        );
    }

    #[test]
    fn never_panics_on_random_bytes() {
        let mut rng = crate::rng::Rng::new(1);
        for _ in 0..20_000 {
            let len = usize::try_from(rng.below(90)).expect("small");
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            if let Some(first) = bytes.first_mut() {
                *first = if *first & 1 == 0 {
                    0x45
                } else {
                    0x60 | *first >> 4
                };
            }
            if len > 44 && bytes[0] >> 4 == 6 {
                bytes[4..6].copy_from_slice(&[0, u8::try_from(len - 40).expect("small")]);
                bytes[6] = [0, 43, 44, 60, 6][usize::from(bytes[6] % 5)];
            }
            if let Ok(view) = PacketView::parse(&bytes) {
                let _ = (
                    view.flow_hash(3),
                    view.transport(),
                    view.source(),
                    view.ecn(),
                    view.dscp(),
                );
            }
            mark_congested(&mut bytes);
        }
    }

    #[test]
    fn flows_differ_by_ports_and_fragments_do_not() {
        let hash = |bytes: &[u8]| PacketView::parse(bytes).expect("valid").flow_hash(9);
        let one = udp_v4([10, 0, 0, 1], [10, 0, 0, 2], (1000, 53), 60);
        let other = udp_v4([10, 0, 0, 1], [10, 0, 0, 2], (1001, 53), 60);
        assert_ne!(hash(&one), hash(&other));
        let answer = udp_v4([10, 0, 0, 2], [10, 0, 0, 1], (53, 1000), 60);
        assert_eq!(hash(&one), hash(&answer));
        let mut first = one.clone();
        first[6] = 0x20;
        let mut second = other;
        second[7] = 9;
        assert_eq!(hash(&first), hash(&second));
    }

    #[test]
    fn marks_only_capable_packets_and_keeps_the_checksum() {
        let mut bytes = udp_v4([10, 0, 0, 1], [10, 0, 0, 2], (1000, 53), 60);
        assert!(!mark_congested(&mut bytes));
        let old = u16_at(&bytes, 0);
        bytes[1] |= 2;
        let checksum = updated_checksum(u16_at(&bytes, 10), old, u16_at(&bytes, 0));
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        assert!(mark_congested(&mut bytes));
        assert_eq!(
            PacketView::parse(&bytes).expect("valid").ecn(),
            Ecn::Congested
        );
        assert_eq!(header_sum(&bytes), 0xffff);
    }

    #[test]
    fn pool_is_bounded() {
        let mut pool = Pool::new(2, 100);
        let taken: Vec<_> = (0..4).map(|_| pool.take()).collect();
        taken.into_iter().for_each(|packet| pool.recycle(packet));
        assert_eq!(pool.free_len(), 2);
        assert_eq!(pool.copy_of(&[1, 2]).as_slice(), &[1, 2]);
    }
}
