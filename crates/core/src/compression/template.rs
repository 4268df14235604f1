//! The headers of a packet: their bytes, the bytes that can be derived, and a template of them.

use crate::packet::{PacketBuf, ones_complement_sum};

/// Maximum length of compressed headers in bytes: IPv6 and TCP with all options.
pub const MAX_HEADERS_BYTES: usize = 100;

/// Header bytes, and the set of bytes that are sent with each packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    headers: Headers,
    /// Set of the bytes that are sent with each packet: bit *i* stands for byte *i*.
    travelling: u128,
    /// Mask with all bits set in bytes that must be equal.
    fixed: [u8; MAX_HEADERS_BYTES],
}

/// The IP and transport headers of a packet; bytes that can be derived from others are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    bytes: [u8; MAX_HEADERS_BYTES],
    len: usize,
}

impl Headers {
    /// Returns the headers of `packet`, a whole IP packet; `None` if the receiver could not reconstruct them.
    pub(super) fn of(packet: &PacketBuf) -> Option<Self> {
        let view = packet.view().ok()?;
        let packet = packet.as_slice();
        if view.bytes().len() != packet.len() || view.is_fragment() {
            return None;
        }
        let transport = view.transport();
        let offset = packet.len() - transport.len();
        let transport_len = match view.protocol()? {
            TCP => usize::from(transport.get(12)? >> 4) * 4,
            UDP => 8,
            _ => 0,
        };
        if transport_len > transport.len() || (view.protocol()? == TCP && transport_len < 20) {
            return None;
        }
        let len = offset + transport_len;
        let mut headers = Self {
            bytes: [0; MAX_HEADERS_BYTES],
            len,
        };
        headers
            .bytes
            .get_mut(..len)?
            .copy_from_slice(&packet[..len]);
        headers.clear_derived();
        // A packet that could not be reconstructed exactly, for example with a wrong checksum, must be sent
        // uncompressed.
        let mut again = [0; MAX_HEADERS_BYTES];
        again[..len].copy_from_slice(headers.as_slice());
        headers.derive(&mut again[..len], packet.len())?;
        (again[..len] == packet[..len]).then_some(headers)
    }

    /// Returns the bytes.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the set of bytes that differ from `other`, which must have the same length: bit *i* stands for byte *i*.
    pub(super) fn differences(&self, other: &Self) -> u128 {
        let pairs = self.as_slice().iter().zip(other.as_slice());
        pairs
            .enumerate()
            .fold(0, |bits, (i, (a, b))| bits | (u128::from(a != b) << i))
    }

    /// Returns the offset of the UDP length, if it can be derived.
    fn udp_length_at(&self) -> Option<usize> {
        let is_v6 = self.bytes[0] >> 4 == 6;
        let (protocol, ip_len) = if is_v6 {
            // After extension headers, the UDP length is not derived but sent.
            (self.bytes[6], 40)
        } else {
            (self.bytes[9], usize::from(self.bytes[0] & 15) * 4)
        };
        (protocol == UDP && self.len == ip_len + 8).then_some(ip_len + 4)
    }

    fn clear_derived(&mut self) {
        if let Some(at) = self.udp_length_at() {
            self.bytes[at..at + 2].fill(0);
        }
        if self.bytes[0] >> 4 == 6 {
            self.bytes[4..6].fill(0);
        } else {
            self.bytes[2..4].fill(0);
            self.bytes[10..12].fill(0);
        }
    }

    /// Writes the derived bytes into `headers`, which have the same layout and belong to a packet of `packet_len`
    /// bytes. Returns `None` if no such packet can exist.
    fn derive(&self, headers: &mut [u8], packet_len: usize) -> Option<()> {
        if let Some(at) = self.udp_length_at() {
            let udp_len = packet_len.checked_sub(at - 4)?;
            put_u16(headers, at, u16::try_from(udp_len).ok()?)?;
        }
        if self.bytes[0] >> 4 == 6 {
            put_u16(headers, 4, u16::try_from(packet_len.checked_sub(40)?).ok()?)?;
        } else {
            put_u16(headers, 2, u16::try_from(packet_len).ok()?)?;
            put_u16(headers, 10, 0)?;
            let ip_len = usize::from(self.bytes[0] & 15) * 4;
            let sum = !ones_complement_sum(&[headers.get(..ip_len)?]);
            put_u16(headers, 10, sum)?;
        }
        Some(())
    }

    /// Whether a receiver can safely use these headers, even from a malicious sender.
    fn is_sound(&self) -> bool {
        match self.bytes[0] >> 4 {
            4 => {
                let ip_len = usize::from(self.bytes[0] & 15) * 4;
                ip_len >= 20 && ip_len <= self.len
            }
            6 => self.len >= 40,
            _ => false,
        }
    }
}

impl Template {
    /// Returns a template for all packets whose headers differ from `headers` only in the bytes of `travelling`.
    pub(super) fn new(headers: Headers, travelling: u128) -> Self {
        let mut fixed = [0; MAX_HEADERS_BYTES];
        for (i, byte) in fixed[..headers.len].iter_mut().enumerate() {
            *byte = if travelling >> i & 1 == 0 { 0xff } else { 0 };
        }
        let within = u128::MAX >> (u128::BITS as usize - headers.len.max(1));
        Self {
            travelling: travelling & within,
            fixed,
            headers,
        }
    }

    /// Returns a template received from the other end; `None` if it is invalid.
    #[must_use]
    pub fn from_wire(bytes: &[u8], travelling: u128) -> Option<Self> {
        let mut headers = Headers {
            bytes: [0; MAX_HEADERS_BYTES],
            len: bytes.len(),
        };
        headers.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        // The first byte determines the layout, so it must be part of the template.
        (!bytes.is_empty() && headers.is_sound() && travelling & 1 == 0)
            .then(|| Self::new(headers, travelling))
    }

    /// Returns the header bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.headers.as_slice()
    }

    /// Returns the set of header bytes that are sent with each packet: bit *i* stands for byte *i*.
    #[must_use]
    pub fn travelling(&self) -> u128 {
        self.travelling
    }

    /// Whether packets with these headers can be compressed with this template.
    pub(super) fn agrees_with(&self, headers: &Headers) -> bool {
        // All bytes after the headers are zero. The comparison covers all bytes without a branch, because it is done
        // for every packet.
        let pairs = self.headers.bytes.iter().zip(&headers.bytes);
        let differences = pairs
            .zip(&self.fixed)
            .fold(0, |all, ((a, b), fixed)| all | ((a ^ b) & fixed));
        self.headers.len == headers.len && differences == 0
    }

    /// Writes the bytes of `headers` that are sent to `out`. Returns their number.
    pub(super) fn pick(&self, headers: &Headers, out: &mut [u8]) -> usize {
        let (mut left, mut len) = (self.travelling, 0);
        while left != 0 {
            out[len] = headers.bytes[left.trailing_zeros() as usize];
            left &= left - 1;
            len += 1;
        }
        len
    }

    /// Returns the number of bytes sent with each packet.
    pub(super) fn travelling_len(&self) -> usize {
        self.travelling.count_ones() as usize
    }

    /// Returns the headers of a packet from its sent bytes `travelled` and a payload of `rest_len` bytes; `None` if no
    /// such packet can exist.
    pub(super) fn expand(&self, travelled: &[u8], rest_len: usize) -> Option<Headers> {
        let mut headers = self.headers.clone();
        let mut left = self.travelling;
        for byte in travelled {
            headers.bytes[left.trailing_zeros() as usize] = *byte;
            left &= left - 1;
        }
        let len = headers.len;
        let shape = headers.clone();
        shape.derive(&mut headers.bytes[..len], len + rest_len)?;
        Some(headers)
    }
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes
        .get_mut(at..at + 2)?
        .copy_from_slice(&value.to_be_bytes());
    Some(())
}

const TCP: u8 = 6;
const UDP: u8 = 17;
