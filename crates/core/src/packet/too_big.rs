//! ICMP errors for packets that are too long for the next hop: fragmentation needed (RFC 792, RFC 1191 section 4), or
//! packet too big (RFC 4443 section 3.2).

use super::{LEAST_MTU_V6, PacketBuf, PacketView, Pool, ones_complement_sum};

/// Returns the ICMP error that informs the sender of `packet` that packets of `mtu` bytes can pass. Its source is the
/// destination of `packet`, because the tunnel has no own address that every sender would accept.
///
/// Returns `None` for packets that must not be answered (RFC 1122 section 3.2.2): ICMP errors, later fragments, and
/// packets whose source or destination is not the address of one host.
#[must_use]
pub fn too_big(packet: &PacketView<'_>, mtu: usize, pool: &mut Pool) -> Option<PacketBuf> {
    let bytes = packet.bytes();
    let protocol = packet.protocol()?;
    let kind = packet.transport().first().copied();
    if packet.is_v6() {
        let is_error = protocol == ICMP_V6 && kind.is_none_or(|kind| kind < 128);
        let is_from_one = bytes[8] != 0xff && bytes[8..24] != [0; 16];
        return (!is_error && is_from_one)
            .then(|| of_v6(bytes, mtu, pool))
            .flatten();
    }
    // The other ICMP messages are requests and replies: echo and timestamps.
    let is_error = protocol == ICMP && !matches!(kind, Some(0 | 8 | 13 | 14));
    // Packets with a multicast or broadcast destination, or without the address of one host as source.
    let is_to_many = bytes[16] >= 224 || bytes[12] == 0 || bytes[12] >= 224;
    (!is_error && !is_to_many)
        .then(|| of_v4(bytes, mtu, pool))
        .flatten()
}

fn of_v4(bytes: &[u8], mtu: usize, pool: &mut Pool) -> Option<PacketBuf> {
    let quoted = &bytes[..bytes.len().min(QUOTED_V4)];
    let total = u16::try_from(V4_HEADER + MESSAGE + quoted.len()).ok()?;
    let mut header = [0; V4_HEADER];
    header[..2].copy_from_slice(&[0x45, 0xc0]);
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[6] = 0x40;
    header[8..10].copy_from_slice(&[64, ICMP]);
    header[12..16].copy_from_slice(&bytes[16..20]);
    header[16..20].copy_from_slice(&bytes[12..16]);
    let sum = !ones_complement_sum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut message = [3, 4, 0, 0, 0, 0, 0, 0];
    message[6..].copy_from_slice(&u16::try_from(mtu).ok()?.to_be_bytes());
    let sum = !ones_complement_sum(&[&message, quoted]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(joined(&[&header, &message, quoted], pool))
}

fn of_v6(bytes: &[u8], mtu: usize, pool: &mut Pool) -> Option<PacketBuf> {
    let quoted = &bytes[..bytes.len().min(LEAST_MTU_V6 - V6_HEADER - MESSAGE)];
    let len = u16::try_from(MESSAGE + quoted.len()).ok()?;
    let mut header = [0; V6_HEADER];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6..8].copy_from_slice(&[ICMP_V6, 64]);
    header[8..24].copy_from_slice(&bytes[24..40]);
    header[24..40].copy_from_slice(&bytes[8..24]);
    let mut message = [2, 0, 0, 0, 0, 0, 0, 0];
    let mtu = u32::try_from(mtu.max(LEAST_MTU_V6)).ok()?;
    message[4..].copy_from_slice(&mtu.to_be_bytes());
    let pseudo = [&header[8..40], &len.to_be_bytes(), &[0, ICMP_V6]];
    let sum = !ones_complement_sum(&[pseudo[0], pseudo[1], pseudo[2], &message, quoted]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(joined(&[&header, &message, quoted], pool))
}

fn joined(parts: &[&[u8]], pool: &mut Pool) -> PacketBuf {
    let mut packet = pool.copy_of(parts[0]);
    parts[1..].iter().for_each(|part| packet.extend(part));
    packet
}

const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
/// Length of the ICMP header, before the quoted packet.
const MESSAGE: usize = 8;
/// Maximum number of quoted bytes; the whole error has at most 576 bytes (RFC 1812 section 4.3.2.3).
const QUOTED_V4: usize = 576 - V4_HEADER - MESSAGE;

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, kind: u8) -> Vec<u8> {
        let mut bytes = vec![7; 1_400];
        bytes[..4].copy_from_slice(&[0x45, 0, 5, 120]);
        bytes[6..10].copy_from_slice(&[0x40, 0, 64, protocol]);
        bytes[12..21].copy_from_slice(&[10, 0, 0, 1, 192, 0, 2, 9, kind]);
        bytes
    }

    fn v6(protocol: u8, kind: u8) -> Vec<u8> {
        let mut bytes = vec![7; 1_400];
        bytes[..8].copy_from_slice(&[0x60, 0, 0, 0, 5, 80, protocol, 64]);
        bytes[8..24].fill(1);
        bytes[24..40].fill(2);
        bytes[40] = kind;
        bytes
    }

    fn answer(bytes: &[u8], mtu: usize) -> Option<Vec<u8>> {
        let view = PacketView::parse(bytes).expect("a packet");
        let answer = too_big(&view, mtu, &mut Pool::new(8, 2_048))?;
        Some(answer.as_slice().to_vec())
    }

    #[test]
    fn the_sender_is_told_what_passes() {
        let bytes = v4(17, 0);
        let answer = answer(&bytes, 1_362).expect("an answer");
        assert_eq!(answer.len(), 576);
        assert_eq!(ones_complement_sum(&[&answer[..20]]), 0xffff);
        assert_eq!(ones_complement_sum(&[&answer[20..]]), 0xffff);
        assert_eq!(answer[12..20], [192, 0, 2, 9, 10, 0, 0, 1]);
        assert_eq!(answer[20..22], [3, 4]);
        assert_eq!(answer[26..28], 1_362_u16.to_be_bytes());
        assert_eq!(answer[28..], bytes[..548]);
    }

    #[test]
    fn and_so_over_ipv6_but_never_less_than_every_link_takes() {
        for (mtu, told) in [(1_362, 1_362_u32), (1_200, 1_280)] {
            let bytes = v6(6, 0);
            let answer = answer(&bytes, mtu).expect("an answer");
            assert_eq!(answer.len(), 1_280);
            let pseudo = [0x04, 0xd8, 0, 58];
            let sum = ones_complement_sum(&[&answer[8..40], &pseudo, &answer[40..]]);
            assert_eq!(sum, 0xffff);
            assert_eq!((answer[8], answer[24], answer[40]), (2, 1, 2));
            assert_eq!(answer[44..48], told.to_be_bytes());
            assert_eq!(answer[48..], bytes[..1_232]);
        }
    }

    #[test]
    fn errors_later_fragments_and_what_goes_to_many_are_not_answered() {
        for (protocol, kind, is_answered) in [(1, 3, false), (1, 8, true), (1, 11, false)] {
            let is = answer(&v4(protocol, kind), 1_300).is_some();
            assert_eq!(is, is_answered, "{protocol} {kind}");
        }
        assert!(answer(&v6(58, 1), 1_300).is_none());
        assert!(answer(&v6(58, 128), 1_300).is_some());
        let mut later = v4(17, 0);
        later[7] = 1;
        assert!(answer(&later, 1_300).is_none());
        for (at, byte) in [(16, 224), (12, 224), (12, 0)] {
            let mut many = v4(17, 0);
            many[at] = byte;
            assert!(answer(&many, 1_300).is_none());
        }
        for source in [0xff, 0] {
            let mut many = v6(17, 0);
            many[8..24].fill(source);
            assert!(answer(&many, 1_300).is_none());
        }
    }
}
