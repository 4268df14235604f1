//! Modifies forwarded TCP segments, including the checksum (RFC 9293; options: RFC 7323, RFC 2018).

use core::ops::Range;

use super::{
    PacketBuf, Pool, ones_complement_sum,
    segment::{
        ACK, ACK_NUMBER, CHECKSUM, ECE, FLAGS, HEADER_LEN, SEQ, URG, WINDOW, header_len, is_before,
        u32_at,
    },
    u16_at, updated_checksum,
};

/// A TCP segment that can be modified.
#[derive(Debug)]
pub struct SegmentMut<'a> {
    /// Bytes from the TCP header on.
    bytes: &'a mut [u8],
    /// Offset of the timestamp.
    time_at: Option<usize>,
    /// Range of the SACK option; empty if there is none.
    sack: Range<usize>,
}

impl PacketBuf {
    /// Returns the TCP segment in the packet.
    ///
    /// Returns `None` for other packets, and for segments that should not be modified. These are segments after IP
    /// options or extension headers, urgent segments, segments with accurate ECN counters (RFC 9768), and segments with
    /// options other than timestamps and SACK, because other options may sign or count the modified fields (RFC 5925,
    /// RFC 8684).
    #[must_use]
    pub fn segment_mut(&mut self) -> Option<SegmentMut<'_>> {
        let (at, end) = {
            let view = self.parse().ok()?;
            view.segment()?;
            let at = usize::from(view.layout.transport_offset);
            let is_plain = at == if view.is_v6() { 40 } else { 20 };
            (at, is_plain.then_some(view.bytes.len())?)
        };
        // The lengths stay the same, so the stored layout remains valid.
        let start = self.start;
        SegmentMut::of(&mut self.bytes[start + at..start + end])
    }

    /// Returns a separate packet with the acknowledgement of the TCP segment in this packet, without its data.
    ///
    /// Returns `None` in the cases of [`Self::segment_mut`].
    #[must_use]
    pub fn lone_ack(&mut self, pool: &mut Pool) -> Option<Self> {
        self.segment_mut()?;
        let view = self.parse().ok()?;
        let end = view.segment()?.end;
        let at = usize::from(view.layout.transport_offset);
        let len = at + header_len(view.transport().first_chunk()?);
        let data_sum = ones_complement_sum(&[&view.bytes[len..]]);
        let was_len = u16::try_from(view.transport().len()).ok()?;
        let mut lone = pool.copy_of(&view.bytes[..len]);
        let bytes = lone.as_mut_slice();
        let transport_len = u16::try_from(len - at).ok()?;
        // A segment without data must not be ECN-capable (RFC 3168 section 6.1.4).
        if bytes[0] >> 4 == 6 {
            bytes[1] &= !0x30;
            bytes[4..6].copy_from_slice(&transport_len.to_be_bytes());
        } else {
            bytes[1] &= !3;
            bytes[2..4].copy_from_slice(&u16::try_from(len).ok()?.to_be_bytes());
            bytes[10..12].fill(0);
            let sum = !ones_complement_sum(&[&bytes[..at]]);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        // A damaged segment must remain invalid, so the checksum is updated instead of computed.
        let segment = &mut bytes[at..];
        let sum = updated_checksum(u16_at(segment, CHECKSUM), data_sum, 0);
        let sum = updated_checksum(sum, was_len, transport_len);
        segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        let flags = segment[FLAGS] & (ACK | ECE);
        let mut changed = SegmentMut::of(segment)?;
        changed.replace(SEQ, &end.to_be_bytes());
        changed.replace(FLAGS, &[flags]);
        Some(lone)
    }
}

impl<'a> SegmentMut<'a> {
    fn of(bytes: &'a mut [u8]) -> Option<Self> {
        let len = header_len(bytes.first_chunk()?);
        let is_changeable = |header: &&[u8]| {
            let is_whole = header.len() >= HEADER_LEN;
            is_whole && header[FLAGS] & URG == 0 && header[FLAGS - 1] & AE == 0
        };
        let options = bytes.get(..len).filter(is_changeable)?;
        let (mut time_at, mut sack) = (None, 0..0);
        let mut at = HEADER_LEN;
        while let Some(kind) = options.get(at) {
            let len = match kind {
                0 => break,
                1 => 1,
                _ => usize::from(*options.get(at + 1)?),
            };
            match (kind, len) {
                (1, _) => {}
                (5, 2..) if sack.is_empty() => sack = at..at + len,
                (8, 10) if time_at.is_none() => time_at = Some(at + 2),
                _ => return None,
            }
            at += len;
        }
        (at <= len).then_some(Self {
            bytes,
            time_at,
            sack,
        })
    }

    /// Lowers the acknowledgement to at most `ack`, with a window of at least `window`, and removes the SACK blocks.
    pub fn lower_ack(&mut self, ack: u32, window: u16) {
        for at in self.sack.clone() {
            self.replace(at, &[NO_OPERATION]);
        }
        self.sack = 0..0;
        if is_before(ack, self.u32_at(ACK_NUMBER)) {
            self.replace(ACK_NUMBER, &ack.to_be_bytes());
            // The right edge of the window must not move back (RFC 9293 section 3.8.6).
            let window = window.max(u16_at(self.bytes, WINDOW));
            self.replace(WINDOW, &window.to_be_bytes());
        }
    }

    /// Raises the sequence number to at least `seq` and the timestamp to at least `stamp`, as if the segment had been
    /// sent after the data that ended at `seq`.
    pub fn put_behind(&mut self, seq: u32, stamp: Option<u32>) {
        if is_before(self.u32_at(SEQ), seq) {
            self.replace(SEQ, &seq.to_be_bytes());
        }
        if let (Some(at), Some(stamp)) = (self.time_at, stamp)
            && is_before(self.u32_at(at), stamp)
        {
            self.replace(at, &stamp.to_be_bytes());
        }
    }

    /// Returns the timestamp of the sender's clock (`TSval`).
    #[must_use]
    pub fn time(&self) -> Option<u32> {
        self.time_at.map(|at| self.u32_at(at))
    }

    /// Whether the segment reports data received out of order or twice.
    #[must_use]
    pub fn has_sack(&self) -> bool {
        !self.sack.is_empty()
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32_at(self.bytes, at)
    }

    fn replace(&mut self, at: usize, new: &[u8]) {
        for (at, new) in (at..).zip(new) {
            let shift = if at % 2 == 0 { 8 } else { 0 };
            let words = [self.bytes[at], *new].map(|byte| u16::from(byte) << shift);
            let sum = updated_checksum(u16_at(self.bytes, CHECKSUM), words[0], words[1]);
            self.bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
            self.bytes[at] = *new;
        }
    }
}

/// Flag of accurate ECN, in the byte before the flags.
const AE: u8 = 1;
/// Kind of the option that is used as padding.
const NO_OPERATION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 7];
    const SACK: [u8; 12] = [1, 1, 5, 10, 0, 0, 2, 0, 0, 0, 3, 0];
    /// Options with the timestamp at an odd offset.
    const BOTH: [u8; 24] = [
        1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 7, 5, 10, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0,
    ];

    /// Returns a segment with these options and data, with sequence number 1000, acknowledgement 500, and valid
    /// checksums.
    fn segment(is_v6: bool, options: &[u8], data: &[u8]) -> PacketBuf {
        let mut transport = vec![
            0, 80, 1, 0, 0, 0, 3, 232, 0, 0, 1, 244, 0, 0x18, 1, 0, 0, 0, 0, 0,
        ];
        transport[12] = u8::try_from((20 + options.len()) / 4 * 16).expect("short");
        transport.extend_from_slice(options);
        transport.extend_from_slice(data);
        let len = u16::try_from(transport.len()).expect("short");
        let mut bytes = if is_v6 {
            let mut bytes = vec![0; 40];
            (bytes[0], bytes[1], bytes[6]) = (0x60, 0x20, 6);
            bytes[4..6].copy_from_slice(&len.to_be_bytes());
            bytes[8..40].fill(3);
            bytes
        } else {
            let mut bytes = vec![0; 20];
            (bytes[0], bytes[1], bytes[9]) = (0x45, 2, 6);
            bytes[2..4].copy_from_slice(&(20 + len).to_be_bytes());
            bytes[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
            let sum = !ones_complement_sum(&[&bytes]);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            bytes
        };
        bytes.extend_from_slice(&transport);
        let mut packet = PacketBuf::from(bytes);
        let at = packet.len() - usize::from(len);
        let sum = !sum_of(&packet);
        packet.as_mut_slice()[at + CHECKSUM..at + CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// Returns the sum over pseudo-header and segment that a receiver computes.
    fn sum_of(packet: &PacketBuf) -> u16 {
        let view = packet.view().expect("a packet");
        let bytes = packet.as_slice();
        let addresses = if view.is_v6() {
            &bytes[8..40]
        } else {
            &bytes[12..20]
        };
        let len = u16::try_from(view.transport().len()).expect("short");
        let pseudo = [[0, 6], len.to_be_bytes()].concat();
        ones_complement_sum(&[addresses, &pseudo, view.transport()])
    }

    fn seen(packet: &PacketBuf) -> super::super::Segment {
        packet
            .view()
            .ok()
            .and_then(|view| view.segment())
            .expect("a segment")
    }

    #[test]
    fn what_is_changed_keeps_its_checksum() {
        for is_v6 in [false, true] {
            for options in [&[][..], &TIMES, &SACK, &BOTH] {
                let mut packet = segment(is_v6, options, b"data, odd");
                assert_eq!(sum_of(&packet), 0xffff);
                let mut changed = packet.segment_mut().expect("plain");
                let has_time = options.len() != 12 || options[2] == 8;
                let has_time = has_time && !options.is_empty();
                assert_eq!(changed.time(), has_time.then_some(9));
                assert_eq!(changed.has_sack(), options.contains(&5));
                changed.lower_ack(444, 300);
                changed.put_behind(2_000, Some(77_777));
                assert_eq!(changed.time(), has_time.then_some(77_777));
                assert!(!changed.has_sack());
                assert_eq!(sum_of(&packet), 0xffff, "{options:?}");
                assert!(!packet.segment_mut().expect("plain").has_sack());
                assert_eq!((seen(&packet).seq, seen(&packet).ack), (2_000, Some(444)));
                assert_eq!(seen(&packet).window, 300);
                assert!(packet.as_slice().ends_with(b"data, odd"));
            }
        }
    }

    #[test]
    fn nothing_is_made_newer_or_acknowledges_more() {
        let mut packet = segment(false, &TIMES, b"");
        let before = packet.as_slice().to_vec();
        let mut changed = packet.segment_mut().expect("plain");
        changed.lower_ack(501, 300);
        changed.put_behind(999, Some(8));
        changed.put_behind(1_000, None);
        assert_eq!(packet.as_slice(), before);
    }

    #[test]
    fn a_lone_acknowledgement_says_the_same_behind_the_data() {
        let mut pool = Pool::new(4, 2048);
        for is_v6 in [false, true] {
            let mut packet = segment(is_v6, &BOTH, b"data");
            packet.extend(b"behind the packet");
            let lone = packet.lone_ack(&mut pool).expect("plain");
            let view = lone.view().expect("a packet");
            assert!(view.is_pure_ack());
            assert_eq!(view.bytes().len(), lone.len());
            assert_eq!(view.ecn(), super::super::Ecn::NotCapable);
            assert_eq!(sum_of(&lone), 0xffff);
            if !is_v6 {
                assert_eq!(ones_complement_sum(&[&lone.as_slice()[..20]]), 0xffff);
            }
            let (damaged, at) = (segment(is_v6, &BOTH, b"data"), if is_v6 { 40 } else { 20 });
            let mut damaged = PacketBuf::from(damaged.as_slice().to_vec());
            damaged.as_mut_slice()[at + ACK_NUMBER] ^= 4;
            let damaged = damaged.lone_ack(&mut pool).expect("plain");
            assert_ne!(sum_of(&damaged), 0xffff, "it stays one");
            let (lone, packet) = (seen(&lone), seen(&packet));
            assert_eq!((lone.seq, lone.end), (packet.end, packet.end));
            assert_eq!((lone.ack, lone.window), (packet.ack, packet.window));
        }
    }

    #[test]
    fn what_may_be_signed_or_is_no_plain_segment_is_left_alone() {
        let mut pool = Pool::new(4, 2048);
        let signed = [19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let multipath = [30, 4, 0, 0];
        let cut = [1, 1, 1, 8];
        let long = [8, 10, 0, 0];
        let empty = [5, 0, 1, 1];
        let twice = [TIMES, TIMES].concat();
        for options in [&signed[..], &multipath, &cut, &long, &empty, &twice] {
            let mut packet = segment(false, options, b"data");
            assert!(packet.segment_mut().is_none(), "{options:?}");
            assert!(packet.lone_ack(&mut pool).is_none());
        }
        let mut urgent = segment(false, &[], b"data");
        urgent.as_mut_slice()[33] |= URG;
        assert!(urgent.segment_mut().is_none());
        let mut counting = segment(false, &[], b"data");
        counting.as_mut_slice()[32] |= AE;
        assert!(counting.segment_mut().is_none());
        let mut short = segment(false, &[], b"data");
        short.as_mut_slice()[32] = 0x10;
        assert!(short.segment_mut().is_none());
        let mut datagram = segment(false, &[], b"data");
        datagram.as_mut_slice()[9] = 17;
        assert!(datagram.segment_mut().is_none());
        let mut fragment = segment(false, &[], b"data");
        fragment.as_mut_slice()[6] = 0x20;
        assert!(fragment.segment_mut().is_none());
        let mut extended = vec![0x60, 0, 0, 0, 0, 28, 0, 64];
        extended.extend_from_slice(&[3; 32]);
        extended.extend_from_slice(&[6, 0, 0, 0, 0, 0, 0, 0]);
        extended.extend_from_slice(&segment(true, &[], b"").as_slice()[40..]);
        let mut extended = PacketBuf::from(extended);
        assert!(extended.view().is_ok_and(|view| view.segment().is_some()));
        assert!(extended.segment_mut().is_none());
    }
}
