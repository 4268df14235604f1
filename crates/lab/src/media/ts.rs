//! MPEG transport stream (ISO/IEC 13818-1) with packets of 188 bytes, as far as needed to find the starts of frames.

/// Length of a packet.
pub(crate) const PACKET_BYTES: usize = 188;
/// First byte of a packet.
const SYNC: u8 = 0x47;
/// Lowest id of a video stream in a PES header. There are sixteen such ids.
const VIDEO_STREAM: u8 = 0xe0;

/// One packet.
pub(crate) type Packet = [u8; PACKET_BYTES];

/// A packet without content.
pub(crate) const NULL_PACKET: Packet = {
    let mut packet = [0xff; PACKET_BYTES];
    packet[0] = SYNC;
    packet[1] = 0x1f;
    packet[3] = 0x10;
    packet
};

/// Header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Stream id in the multiplex, 13 bits.
    pub(crate) pid: u16,
    /// Whether a video frame begins in the packet.
    pub(crate) starts_frame: bool,
    /// Whether decoding can begin with the packet.
    pub(crate) is_random_access: bool,
    /// Whether the packet has a payload and increments the continuity counter.
    pub(crate) has_payload: bool,
}

/// Divides `stream` into packets.
///
/// # Errors
/// Fails if the length or a sync byte is wrong. The error names the position.
pub(crate) fn packets(stream: &[u8]) -> anyhow::Result<Vec<Packet>> {
    let (packets, rest) = stream.as_chunks::<PACKET_BYTES>();
    if let Some(index) = packets.iter().position(|packet| packet[0] != SYNC) {
        anyhow::bail!("packet {index} of the transport stream does not begin with a sync byte");
    }
    anyhow::ensure!(
        rest.is_empty(),
        "the transport stream ends within a packet of {PACKET_BYTES} bytes"
    );
    Ok(packets.to_vec())
}

/// Returns the header of `packet`.
pub(crate) fn head(packet: &Packet) -> Head {
    let pid = u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
    let starts_unit = packet[1] & 0x40 != 0;
    let has_payload = packet[3] & 0x10 != 0;
    // An adaptation field begins with its length.
    let adaptation = match packet[3] & 0x20 {
        0 => 0,
        _ => 1 + usize::from(packet[4]),
    };
    let is_random_access = adaptation > 1 && packet[5] & 0x40 != 0;
    let payload = packet.get(4 + adaptation..).unwrap_or_default();
    let is_video = matches!(payload, [0, 0, 1, id, ..] if id & 0xf0 == VIDEO_STREAM);
    Head {
        pid,
        starts_frame: starts_unit && has_payload && is_video,
        is_random_access,
        has_payload,
    }
}

/// Sets the continuity counter of `packet`, modulo 16.
pub(crate) fn set_counter(packet: &mut Packet, counter: u8) {
    packet[3] = packet[3] & 0xf0 | counter & 0x0f;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(bytes: &[u8]) -> Packet {
        let mut packet = [0xff; PACKET_BYTES];
        packet[..bytes.len()].copy_from_slice(bytes);
        packet
    }

    #[test]
    fn finds_frames_and_key_frames() {
        // PID 0x100, unit starts, adaptation field of 7 bytes with random access, then a video PES.
        let key = packet(&[
            0x47, 0x41, 0x00, 0x37, 7, 0x50, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xe0, 0, 0,
        ]);
        let of_key = head(&key);
        assert_eq!((of_key.pid, of_key.starts_frame), (0x100, true));
        assert!(of_key.is_random_access && of_key.has_payload);
        let plain = packet(&[0x47, 0x41, 0x00, 0x11, 0, 0, 1, 0xe0]);
        let of_plain = head(&plain);
        assert!(of_plain.starts_frame && !of_plain.is_random_access);
        // Audio, a table, the middle of a frame, and a field that leaves no space for payload.
        for other in [
            packet(&[0x47, 0x41, 0x01, 0x11, 0, 0, 1, 0xc0]),
            packet(&[0x47, 0x40, 0x00, 0x11, 0, 0, 0xb0]),
            packet(&[0x47, 0x01, 0x00, 0x11, 0, 0, 1, 0xe0]),
            packet(&[0x47, 0x41, 0x00, 0x20, 183]),
            packet(&[0x47, 0x41, 0x00, 0x30, 255]),
        ] {
            assert!(!head(&other).starts_frame, "{:?}", &other[..8]);
        }
    }

    #[test]
    fn any_bytes_have_a_head() {
        for byte in 0..=255 {
            let _ = head(&[byte; PACKET_BYTES]);
        }
    }

    #[test]
    fn splits_and_says_where_it_is_wrong() {
        let mut stream = [packet(&[0x47]), packet(&[0x47])].concat();
        assert_eq!(packets(&stream).expect("whole").len(), 2);
        stream[188] = 0;
        assert!(packets(&stream).is_err_and(|e| e.to_string().contains("packet 1")));
        assert!(packets(&stream[..100]).is_err());
        assert!(packets(&[]).is_ok_and(|packets| packets.is_empty()));
    }

    #[test]
    fn counts_modulo_sixteen() {
        let mut packet = packet(&[0x47, 0x41, 0x00, 0x3a]);
        set_counter(&mut packet, 17);
        assert_eq!(packet[3], 0x31);
    }
}
