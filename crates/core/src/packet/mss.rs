//! Lowers the MSS option of forwarded TCP handshakes (RFC 9293 section 3.7.1).

use super::{
    PacketBuf,
    segment::{CHECKSUM, FLAGS, HEADER_LEN, SYN, header_len},
    u16_at, updated_checksum,
};

impl PacketBuf {
    /// If the packet opens a TCP connection, lowers its MSS option so that segments fit into packets of `mtu` bytes,
    /// and updates the checksum. Returns whether the option was lowered.
    pub fn clamp_mss(&mut self, mtu: usize) -> bool {
        let Ok(view) = self.parse() else {
            return false;
        };
        let headers = HEADER_LEN + if view.is_v6() { 40 } else { 20 };
        let is_whole = view.protocol() == Some(6) && !view.is_fragment();
        let at = usize::from(view.layout.transport_offset);
        let end = view.bytes.len();
        if !is_whole {
            return false;
        }
        let most = u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
        // The lengths stay the same, so the stored layout remains valid.
        let start = self.start;
        clamp(&mut self.bytes[start + at..start + end], most)
    }
}

fn clamp(segment: &mut [u8], most: u16) -> bool {
    let Some(len) = segment.first_chunk().map(header_len) else {
        return false;
    };
    if segment.len() < len || len < HEADER_LEN || segment[FLAGS] & SYN == 0 {
        return false;
    }
    let mut at = HEADER_LEN;
    while at < len {
        let size = match segment[at] {
            0 => return false,
            1 => 1,
            _ if at + 1 < len => usize::from(segment[at + 1]),
            _ => return false,
        };
        if size == 0 || at + size > len {
            return false;
        }
        if (segment[at], size) == (MSS, 4) {
            return lower(segment, at + 2, most);
        }
        at += size;
    }
    false
}

/// Lowers the value at `at`, which may extend over two words of the checksum.
fn lower(segment: &mut [u8], at: usize, most: u16) -> bool {
    if u16_at(segment, at) <= most {
        return false;
    }
    for (byte, new) in (at..).zip(most.to_be_bytes()) {
        let word = byte & !1;
        let old = u16_at(segment, word);
        segment[byte] = new;
        let sum = updated_checksum(u16_at(segment, CHECKSUM), old, u16_at(segment, word));
        segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    }
    true
}

/// Kind of the option "maximum segment size".
const MSS: u8 = 2;

#[cfg(test)]
mod tests {
    use super::super::{PacketView, ones_complement_sum};
    use super::*;

    /// Returns an IPv4 segment with these flags and options.
    fn segment(flags: u8, options: &[u8]) -> PacketBuf {
        let len = 40 + options.len();
        let mut bytes = vec![0; len];
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&u16::try_from(len).expect("short").to_be_bytes());
        bytes[9] = 6;
        bytes[12..20].copy_from_slice(&[10, 0, 0, 1, 192, 0, 2, 1]);
        bytes[32] = u8::try_from(((20 + options.len()) / 4) << 4).expect("short");
        bytes[33] = flags;
        bytes[40..].copy_from_slice(options);
        let sum = !sum_of(&bytes);
        bytes[36..38].copy_from_slice(&sum.to_be_bytes());
        PacketBuf::from(bytes)
    }

    /// Returns the checksum sum with the pseudo-header of RFC 9293.
    fn sum_of(bytes: &[u8]) -> u16 {
        let len = u16::try_from(bytes.len() - 20).expect("short");
        ones_complement_sum(&[&bytes[12..20], &[0, 6], &len.to_be_bytes(), &bytes[20..]])
    }

    #[test]
    fn what_opens_a_connection_is_made_to_fit() {
        for (flags, options, at) in [
            (SYN, &[2, 4, 5, 180][..], 42),
            (SYN | 0x10, &[4, 2, 1, 2, 4, 5, 180, 0], 45),
        ] {
            let mut packet = segment(flags, options);
            assert!(packet.clamp_mss(1_400));
            let bytes = packet.as_slice();
            assert_eq!(u16_at(bytes, at), 1_360);
            assert_eq!(sum_of(bytes), 0xffff, "a good checksum");
            assert!(PacketView::parse(bytes).is_ok());
            assert!(!packet.clamp_mss(1_400) && !packet.clamp_mss(1_500));
        }
    }

    #[test]
    fn nothing_else_is_changed() {
        for (flags, options) in [
            (0x10, &[2, 4, 5, 180][..]),
            (SYN, &[]),
            (SYN, &[2, 4, 5, 80]),
            (SYN, &[0, 0, 2, 4, 5, 180, 0, 0]),
            (SYN, &[8, 0, 0, 0]),
            (SYN, &[1, 1, 1, 2]),
            (SYN, &[1, 2, 4, 5]),
            (SYN, &[2, 3, 5, 0]),
        ] {
            let mut packet = segment(flags, options);
            let before = packet.as_slice().to_vec();
            assert!(!packet.clamp_mss(1_400), "{options:?}");
            assert_eq!(packet.as_slice(), before);
        }
        assert!(!PacketBuf::from(vec![0x45; 12]).clamp_mss(1_400));
    }

    #[test]
    fn the_header_of_ipv6_is_longer() {
        let mut bytes = vec![0; 64];
        bytes[0] = 0x60;
        bytes[5] = 24;
        bytes[6] = 6;
        bytes[52] = 0x60;
        bytes[53] = SYN;
        bytes[60..].copy_from_slice(&[2, 4, 5, 180]);
        let mut packet = PacketBuf::from(bytes);
        assert!(packet.clamp_mss(1_400));
        assert_eq!(u16_at(packet.as_slice(), 62), 1_340);
    }
}
