//! Fragmentation of IPv4 packets (RFC 791 section 3.2) whose senders allow it.

use super::{PacketBuf, PacketView, Pool, ones_complement_sum, u16_at};

/// Returns the fragments of a packet, of at most `mtu` bytes each, in order.
///
/// Returns `None` if the packet must not be fragmented, or has options, because most options are not copied into every
/// fragment.
#[must_use]
pub fn fragments(packet: &PacketView<'_>, mtu: usize, pool: &mut Pool) -> Option<Vec<PacketBuf>> {
    let bytes = packet.bytes();
    if !packet.may_be_fragmented() || bytes[0] != 0x45 {
        return None;
    }
    let at = u16_at(bytes, FLAGS_AND_OFFSET);
    let (header, body) = bytes.split_at(HEADER_LEN);
    // All fragments except the last carry a multiple of eight bytes.
    let room = mtu.checked_sub(HEADER_LEN)? / 8 * 8;
    if room == 0 {
        return None;
    }
    let count = body.len().div_ceil(room);
    let fragments = body.chunks(room).enumerate().map(|(index, part)| {
        let mut fragment = pool.copy_of(header);
        fragment.extend(part);
        let units = u16::try_from(index * room / 8).ok()?;
        let is_last = index + 1 == count;
        let more = if is_last { at & MORE } else { MORE };
        let total = u16::try_from(HEADER_LEN + part.len()).ok()?;
        let header = &mut fragment.as_mut_slice()[..HEADER_LEN];
        header[2..4].copy_from_slice(&total.to_be_bytes());
        let offset = Some((at & OFFSET) + units).filter(|offset| *offset <= OFFSET)?;
        header[6..8].copy_from_slice(&(more | offset).to_be_bytes());
        header[10..12].fill(0);
        let sum = !ones_complement_sum(&[header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        Some(fragment)
    });
    fragments.collect()
}

const HEADER_LEN: usize = 20;
const FLAGS_AND_OFFSET: usize = 6;
/// The flag "more fragments", and the mask of the offset in units of eight bytes.
const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

#[cfg(test)]
mod tests {
    use super::*;

    /// The flag "don't fragment".
    const DONT: u16 = 0x4000;

    fn packet(len: u16, at: u16) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len).map(|i| i.to_le_bytes()[0]).collect();
        bytes[..2].copy_from_slice(&[0x45, 0]);
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes[6..8].copy_from_slice(&at.to_be_bytes());
        bytes
    }

    fn split(bytes: &[u8], mtu: usize) -> Option<Vec<PacketBuf>> {
        let view = PacketView::parse(bytes).expect("a packet");
        fragments(&view, mtu, &mut Pool::new(8, 2_048))
    }

    #[test]
    fn they_are_the_packet_again_when_put_together() {
        for (len, mtu, lens) in [
            (1_400, 1_300, &[1_300, 120][..]),
            (1_400, 1_307, &[1_300, 120]),
            (1_400, 708, &[708, 708, 24]),
        ] {
            let whole = packet(len, 0);
            let parts = split(&whole, mtu).expect("may be split");
            assert_eq!(parts.iter().map(PacketBuf::len).collect::<Vec<_>>(), lens);
            let mut body = vec![0; whole.len() - 20];
            for (index, part) in parts.iter().enumerate() {
                let bytes = part.as_slice();
                let view = part.view().expect("a packet");
                assert_eq!(view.bytes().len(), bytes.len());
                assert_eq!(ones_complement_sum(&[&bytes[..20]]), 0xffff);
                let at = u16_at(bytes, 6);
                assert_eq!(at & MORE != 0, index + 1 < parts.len());
                let offset = usize::from(at & OFFSET) * 8;
                body[offset..offset + bytes.len() - 20].copy_from_slice(&bytes[20..]);
            }
            assert_eq!(body, whole[20..]);
        }
    }

    #[test]
    fn a_fragment_is_split_where_it_belongs() {
        let parts = split(&packet(1_400, MORE | 100), 1_300).expect("may be split");
        let places: Vec<u16> = parts
            .iter()
            .map(|part| u16_at(part.as_slice(), 6))
            .collect();
        assert_eq!(places, [MORE | 100, MORE | 260]);
    }

    #[test]
    fn what_must_stay_whole_does() {
        assert!(split(&packet(1_400, DONT), 1_300).is_none());
        assert!(split(&packet(1_400, 0), 27).is_none());
        assert!(split(&packet(1_400, MORE | OFFSET), 1_300).is_none());
        let mut with_options = packet(1_400, 0);
        with_options[0] = 0x46;
        assert!(split(&with_options, 1_300).is_none());
    }
}
