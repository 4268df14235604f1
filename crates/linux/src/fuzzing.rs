//! Entries for the fuzz targets: parsers of bytes that the kernel or a file gives. Only with the feature `fuzzing`.

use std::io::IoSlice;

use pleach_core::packet::{PacketBuf, Pool};

use crate::{
    nft, owner, procnet,
    redirect::divert,
    state::TunnelState,
    tcp, tcp_diag,
    tun::{
        merge::{Headers, MAX_SEGMENTS, Merger},
        split::split,
        vnet::{VNET_HEADER_LEN, VnetHeader},
    },
};

/// Maximum number of connections that are taken from an answer.
const MOST_CONNECTIONS: usize = 16;

/// Parses `data` as a message of the kernel or as a file; the first byte selects the parser.
///
/// # Panics
/// Panics if a parser returns more than it may.
pub fn parse(data: &[u8]) {
    let Some((which, data)) = data.split_first() else {
        return;
    };
    match which % 7 {
        0 => {
            let mut found = Vec::new();
            // Whether the answer is valid is of no interest here, nor is it below.
            let _ = tcp_diag::take(data, MOST_CONNECTIONS, &mut found);
            assert!(
                found.len() <= MOST_CONNECTIONS,
                "{} connections",
                found.len()
            );
        }
        1 => {
            let _ = owner::parse(data);
        }
        2 => {
            let _ = nft::presence::parse(data);
        }
        3 => {
            let _ = tcp::tos_in(data);
        }
        4 => {
            let _ = divert::destination(data);
        }
        5 => {
            let text = String::from_utf8_lossy(data);
            for line in text.lines() {
                for net in [procnet::route_v4(line), procnet::route_v6(line)] {
                    let most = |net: &ipnet::IpNet| net.prefix_len() <= net.max_prefix_len();
                    assert!(net.as_ref().is_none_or(most), "{net:?}");
                }
                let _ = procnet::device(line);
            }
        }
        _ => {
            let _ = serde_json::from_slice::<TunnelState>(data);
        }
    }
}

/// Splits `data` as one read of the TUN device: a header of 10 bytes and a packet. Then merges the packets, and splits
/// each merged packet again.
///
/// # Panics
/// Panics if a packet is lost, doubled, or changed.
pub fn split_and_merge(data: &[u8]) {
    let Some((header, packet)) = data.split_first_chunk::<VNET_HEADER_LEN>() else {
        return;
    };
    let mut pool = Pool::new(1 << 10, 64);
    let mut packets = Vec::new();
    if let Some(header) = VnetHeader::decode(*header) {
        match split(&header, packet, &mut pool, &mut packets) {
            Ok(count) => {
                assert_eq!(count, packets.len());
                let bytes: usize = packets.iter().map(PacketBuf::len).sum();
                assert!(bytes >= packet.len(), "bytes are lost");
            }
            Err(_) => packets.clear(),
        }
    }
    packets.truncate(512);
    // The same bytes as packets, one after the other, each with its length in two bytes before it.
    let mut rest = packet;
    while let Some((len, more)) = rest.split_first_chunk::<2>()
        && packets.len() < 1_024
    {
        let len = usize::from(u16::from_be_bytes(*len)).min(more.len());
        let (packet, more) = more.split_at(len);
        packets.push(pool.copy_of(packet));
        rest = more;
    }
    let merges_udp = header[0] & 2 == 0;
    merge(&packets, merges_udp, &mut pool);
}

/// Checks that each packet is in exactly one run, in order, and that a run that is split again gives its packets.
fn merge(packets: &[PacketBuf], merges_udp: bool, pool: &mut Pool) {
    let mut merger = Merger::default();
    merger.plan(packets, merges_udp);
    let mut seen = vec![false; packets.len()];
    for index in 0..merger.len() {
        let run = merger.run(index);
        let members: Vec<usize> = merger.members(run).collect();
        assert!(members.is_sorted() && members.len() == run.count);
        assert!((1..=MAX_SEGMENTS).contains(&run.count));
        for member in &members {
            assert!(
                !core::mem::replace(&mut seen[*member], true),
                "written twice"
            );
        }
        if run.count < 2 {
            continue;
        }
        let mut headers = Headers::new();
        let mut io = [IoSlice::new(&[]); MAX_SEGMENTS + 1];
        let Some(used) = merger.gather(run, packets, &mut headers, &mut io) else {
            continue;
        };
        let written: Vec<u8> = io[..used].iter().flat_map(|slice| slice.to_vec()).collect();
        let (header, whole) = written
            .split_first_chunk::<VNET_HEADER_LEN>()
            .expect("a header comes first");
        let header = VnetHeader::decode(*header).expect("a known kind");
        let mut again = Vec::new();
        let count = split(&header, whole, pool, &mut again);
        assert_eq!(count, Ok(members.len()));
        let transport = usize::from(header.checksum_start.expect("always partial"));
        for (packet, member) in again.iter().zip(&members) {
            let (packet, former) = (packet.as_slice(), packets[*member].as_slice());
            assert_eq!(packet.len(), former.len());
            // With DF, the identification of IPv4, and so the checksum of its header, may differ.
            let at = usize::from(header.checksum_offset);
            let (packet, former) = (&packet[transport..], &former[transport..]);
            assert_eq!(packet[..at], former[..at], "changed");
            assert_eq!(packet[at + 2..], former[at + 2..], "changed");
            let same = checksum(packet, at) == checksum(former, at);
            assert!(same, "another checksum");
        }
    }
    assert!(seen.iter().all(|seen| *seen), "a packet is not written");
}

/// Returns the checksum at `at`. All ones and all zeros mean the same (RFC 1624).
fn checksum(transport: &[u8], at: usize) -> u16 {
    match u16::from_be_bytes([transport[at], transport[at + 1]]) {
        u16::MAX => 0,
        checksum => checksum,
    }
}
