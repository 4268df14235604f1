use core::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::{transmit::Route, wire::header::DataHeader};

const NOW: Instant = Instant::from_millis(1_000);

fn incoming() -> Incoming {
    Incoming {
        route: Route {
            link: 0,
            remote: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7700),
            local: None,
        },
        is_congested: false,
    }
}

fn datagram(path_seq: u32) -> Vec<u8> {
    let header = Header {
        kind: Kind::Data,
        is_out_of_turn: false,
        is_copy: false,
        is_kept: false,
        is_answer_path: false,
        covered: 0,
        path: PathId(1),
        receiver_index: 5,
        path_seq: Seq(path_seq),
        sent_us: 9,
    };
    let data = DataHeader {
        global_seq: Seq(path_seq),
        path_step: 1,
        flow_step: 1,
    };
    let mut datagram: Vec<u8> = (0..=250).cycle().take(600).collect();
    header.emit(Some(&data), &mut datagram);
    datagram
}

fn hear(sec: &mut Sec, path_seq: u32, pool: &mut Pool) {
    let datagram = datagram(path_seq);
    let mut parity = [0; MAX_PARITY_BYTES];
    let code = Code::Hamming;
    let len = code.encode(&datagram, &mut parity).expect("fits");
    sec.on_parity(
        NOW,
        (PathId(1), Seq(path_seq)),
        (code, 600),
        &parity[..len],
        pool,
    );
}

fn come(sec: &mut Sec, now: Instant, datagram: &[u8], pool: &mut Pool) {
    sec.before_opening(now, datagram);
    sec.on_damaged(now, &incoming(), DropReason::Forged, pool);
}

#[test]
fn wrong_bits_in_number_and_packet_are_mended_whichever_comes_first() {
    for is_parity_first in [true, false] {
        for wrong_bytes in [
            &[300][..],
            &[9][..],
            &[9, 40, 599][..],
            &[0][..],
            &[4, 17][..],
        ] {
            let (mut sec, mut pool) = (Sec::default(), Pool::new(64, 2000));
            hear(&mut sec, 70, &mut pool);
            let mut damaged = datagram(7);
            wrong_bytes
                .iter()
                .for_each(|byte: &usize| damaged[*byte] ^= 4);
            if is_parity_first {
                hear(&mut sec, 7, &mut pool);
            }
            come(&mut sec, NOW, &damaged, &mut pool);
            if !is_parity_first {
                hear(&mut sec, 7, &mut pool);
            }
            let mended = sec.mended.pop_front().expect("mended");
            assert_eq!(mended.bytes.as_slice(), datagram(7));
            assert_eq!(sec.tries.cut_short, 0);
        }
    }
}

#[test]
fn what_is_forged_costs_little_and_stops_no_parity_that_is_named() {
    let (mut sec, mut pool) = (Sec::default(), Pool::new(64, 2000));
    for path_seq in 0..400 {
        hear(&mut sec, path_seq, &mut pool);
    }
    let mut forged = datagram(100_000);
    forged[600 - 1] ^= 255;
    for _ in 0..1000 {
        come(&mut sec, NOW, &forged, &mut pool);
    }
    assert!(sec.mended.is_empty() && sec.damaged.len() <= MAX_KEPT);
    assert_eq!((sec.tries.left, sec.tries.cut_short), (0, 1000));
    // The tries for damaged headers are used up in this second. A datagram with an undamaged header is still corrected.
    let mut named = datagram(33);
    named[300] ^= 1;
    come(&mut sec, NOW, &named, &mut pool);
    assert_eq!(sec.mended.len(), 1);
    // The damaged header names datagram 415, for which there is no parity.
    let mut unnamed = datagram(399);
    unnamed[9] ^= 16;
    come(&mut sec, NOW, &unnamed, &mut pool);
    assert_eq!((sec.mended.len(), sec.tries.cut_short), (1, 1001));
    // In the next second, tries are available again.
    let later = NOW + SECOND;
    let whole = datagram(399);
    let mut parity = [0; MAX_PARITY_BYTES];
    let len = Code::Hamming.encode(&whole, &mut parity).expect("fits");
    let of = (PathId(1), Seq(399));
    sec.on_parity(later, of, (Code::Hamming, 600), &parity[..len], &mut pool);
    come(&mut sec, later, &unnamed, &mut pool);
    assert_eq!(sec.mended.len(), 2);
}
