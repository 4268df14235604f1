//! Tests that splitting and merging are inverse, and that each rule keeps unmergeable packets apart.

use pleach_core::{packet::Pool, rng::Rng};

use super::*;
use crate::tun::split::split;

/// Returns a super-packet as the kernel delivers it: vnet header and bytes.
fn super_packet(
    is_tcp: bool,
    is_v6: bool,
    payload_len: usize,
    segment: usize,
) -> (VnetHeader, Vec<u8>) {
    let transport = if is_v6 { 40 } else { 20 };
    let header_len = transport + if is_tcp { 32 } else { 8 };
    let mut bytes = vec![0; header_len + payload_len];
    Rng::new(5).fill(&mut bytes[8..]);
    let len = len_u16(bytes.len());
    let transport_len = len_u16(bytes.len() - transport);
    let protocol = if is_tcp { TCP } else { UDP };
    let addresses = if is_v6 {
        bytes[..4].copy_from_slice(&[0x60, 0x02, 0, 9]);
        bytes[4..6].copy_from_slice(&transport_len.to_be_bytes());
        bytes[6] = protocol;
        8..40
    } else {
        bytes[..2].copy_from_slice(&[0x45, 2]);
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes[4..10].copy_from_slice(&[0xff, 0xfe, DONT_FRAGMENT, 0, 64, protocol]);
        bytes[10..12].fill(0);
        let checksum = Sum::default().add(&bytes[..20]).checksum();
        bytes[10..12].copy_from_slice(&checksum);
        12..20
    };
    let checksum_offset = if is_tcp { 16 } else { 6 };
    let pseudo = pseudo_header(&bytes[addresses], protocol, transport_len).fold();
    let body = &mut bytes[transport..];
    if is_tcp {
        // Sequence numbers wrap within the packet.
        body[4..8].copy_from_slice(&(u32::MAX - 3000).to_be_bytes());
        body[12] = 8 << 4;
        body[13] = TCP_ACK | TCP_PSH;
    } else {
        body[4..6].copy_from_slice(&transport_len.to_be_bytes());
    }
    let at = usize::from(checksum_offset);
    body[at..at + 2].copy_from_slice(&pseudo);
    let vnet = VnetHeader {
        gso: match (is_tcp, is_v6) {
            (true, false) => Gso::TcpV4,
            (true, true) => Gso::TcpV6,
            (false, _) => Gso::Udp,
        },
        checksum_start: Some(len_u16(transport)),
        checksum_offset,
        header_len: len_u16(header_len),
        segment_size: len_u16(segment),
    };
    (vnet, bytes)
}

fn segments(is_tcp: bool, is_v6: bool, payload_len: usize, segment: usize) -> Vec<PacketBuf> {
    let (vnet, bytes) = super_packet(is_tcp, is_v6, payload_len, segment);
    let mut out = Vec::new();
    split(&vnet, &bytes, &mut Pool::new(64, 1500), &mut out).expect("well-formed");
    out
}

/// Returns the runs of a batch, each as packet indices.
fn runs(packets: &[PacketBuf]) -> Vec<Vec<usize>> {
    let mut merger = Merger::default();
    merger.plan(packets, true);
    (0..merger.len())
        .map(|index| merger.members(merger.run(index)).collect())
        .collect()
}

#[test]
fn split_then_merged_is_the_same_super_packet() {
    for (is_tcp, is_v6) in [(true, false), (true, true), (false, false), (false, true)] {
        for (payload_len, segment) in [(13_000, 1000), (12_999, 1000), (1001, 1000), (60_000, 1400)]
        {
            let (vnet, bytes) = super_packet(is_tcp, is_v6, payload_len, segment);
            let packets = segments(is_tcp, is_v6, payload_len, segment);
            assert_eq!(packets.len(), payload_len.div_ceil(segment));
            for packet in &packets {
                let segment = Segment {
                    is_v6,
                    is_tcp,
                    transport: if is_v6 { 40 } else { 20 },
                    header_len: 0,
                    payload_len: 0,
                    seq: 0,
                    push: false,
                };
                assert!(is_intact(&segment, packet.as_slice()));
            }
            let mut merger = Merger::default();
            merger.plan(&packets, true);
            assert_eq!(merger.len(), 1);
            let (mut headers, mut io) = (Headers::new(), [IoSlice::new(&[]); MAX_SEGMENTS + 1]);
            let used = merger
                .gather(merger.run(0), &packets, &mut headers, &mut io)
                .expect("a run");
            let written: Vec<u8> = io[..used].iter().flat_map(|io| io.to_vec()).collect();
            assert_eq!(written[..VNET_HEADER_LEN], vnet.encode());
            assert_eq!(written[VNET_HEADER_LEN..], bytes);
        }
    }
}

#[test]
fn interleaved_flows_each_become_one_run_and_stay_in_order() {
    let one = segments(true, false, 5000, 1000);
    let other = segments(true, true, 5000, 1000);
    let third = segments(false, false, 5000, 1000);
    let mut batch = Vec::new();
    for ((a, b), c) in one.into_iter().zip(other).zip(third) {
        batch.extend([a, b, c]);
    }
    let expected: Vec<Vec<usize>> = (0..3).map(|flow| (flow..15).step_by(3).collect()).collect();
    assert_eq!(runs(&batch), expected);
}

#[test]
fn what_differs_stays_apart() {
    // Each change is the offset of a byte in the second IPv4 TCP packet, and the bits that change.
    let changes = [
        (1, 1, "traffic class"),
        (8, 1, "TTL"),
        (13, 1, "source address"),
        (21, 1, "port"),
        (27, 1, "sequence"),
        (31, 1, "acknowledgement"),
        (33, 1, "FIN"),
        (33, 2, "SYN"),
        (33, 0x80, "CWR"),
        (35, 1, "window"),
        (45, 1, "option"),
    ];
    for (at, bits, what) in changes {
        let mut packets = segments(true, false, 2000, 1000);
        packets[1].as_mut_slice()[at] ^= bits;
        seal(packets[1].as_mut_slice());
        assert_eq!(runs(&packets), [vec![0], vec![1]], "{what}");
    }
}

#[test]
fn damaged_packets_stay_alone() {
    for damaged in 0..2 {
        for at in [11, 36, 700] {
            let mut packets = segments(true, false, 2000, 1000);
            packets[damaged].as_mut_slice()[at] ^= 0x10;
            assert_eq!(
                runs(&packets),
                [vec![0], vec![1]],
                "packet {damaged}, byte {at}"
            );
        }
    }
}

#[test]
fn push_and_short_packets_end_a_run() {
    let mut packets = segments(true, false, 4000, 1000);
    packets[1].as_mut_slice()[33] |= TCP_PSH;
    seal(packets[1].as_mut_slice());
    assert_eq!(runs(&packets), [vec![0, 1], vec![2, 3]]);

    let short = segments(true, false, 1500, 1000);
    let mut packets = segments(true, false, 3000, 1000);
    packets[1] = short.into_iter().nth(1).expect("two");
    assert_eq!(runs(&packets), [vec![0, 1], vec![2]]);
}

#[test]
fn without_df_the_identification_must_count() {
    let with = |second_id: u16| {
        let mut packets = segments(false, false, 2000, 1000);
        for (packet, id) in packets.iter_mut().zip([7, second_id]) {
            let bytes = packet.as_mut_slice();
            bytes[4..6].copy_from_slice(&id.to_be_bytes());
            bytes[6] = 0;
            seal(bytes);
        }
        runs(&packets)
    };
    assert_eq!(with(8), [vec![0, 1]]);
    assert_eq!(with(7), [vec![0], vec![1]]);
}

#[test]
fn a_run_is_bounded() {
    let packets: Vec<_> = segments(true, false, 6500, 50);
    assert_eq!(packets.len(), 130);
    let lens: Vec<_> = runs(&packets).iter().map(Vec::len).collect();
    assert_eq!(lens, [64, 64, 2]);
}

#[test]
fn random_bytes_never_panic_and_every_packet_is_in_one_run() {
    let mut rng = Rng::new(3);
    for _ in 0..3000 {
        let mut packets = segments(rng.below(2) == 0, rng.below(2) == 0, 4000, 900);
        for packet in &mut packets {
            let len = usize::try_from(rng.below(960)).expect("small");
            if rng.below(3) == 0 {
                packet.truncate(len);
            }
            if let Some(byte) = packet.as_mut_slice().get_mut(len % 48) {
                *byte ^= 1 << rng.below(8);
            }
        }
        let mut members: Vec<usize> = runs(&packets).into_iter().flatten().collect();
        members.sort_unstable();
        assert_eq!(members, [0, 1, 2, 3, 4]);
    }
}

#[test]
fn malformed_super_packets_are_refused() {
    let mut rng = Rng::new(4);
    let mut pool = Pool::new(64, 1500);
    for _ in 0..20_000 {
        let (vnet, mut bytes) = super_packet(rng.below(2) == 0, rng.below(2) == 0, 200, 60);
        let mut header = vnet.encode();
        let at = usize::try_from(rng.below(10)).expect("small");
        header[at] = u8::try_from(rng.below(256)).expect("a byte");
        let at = usize::try_from(rng.below(60)).expect("small");
        bytes[at] = u8::try_from(rng.below(256)).expect("a byte");
        bytes.truncate(usize::try_from(rng.below(260)).expect("small"));
        let mut out = Vec::new();
        if let Some(header) = VnetHeader::decode(header) {
            let _ = split(&header, &bytes, &mut pool, &mut out);
        }
        out.into_iter().for_each(|packet| pool.recycle(packet));
    }
}

/// Recomputes the checksums of an IPv4 packet.
fn seal(bytes: &mut [u8]) {
    bytes[10..12].fill(0);
    let checksum = Sum::default().add(&bytes[..20]).checksum();
    bytes[10..12].copy_from_slice(&checksum);
    let at = if bytes[9] == TCP { 36 } else { 26 };
    bytes[at..at + 2].fill(0);
    let checksum = pseudo_header(&bytes[12..20], bytes[9], len_u16(bytes.len() - 20))
        .add(&bytes[20..])
        .checksum();
    bytes[at..at + 2].copy_from_slice(&checksum);
}
