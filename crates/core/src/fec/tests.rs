use super::{
    Decoder, Encoder, MAX_PACKET_BYTES, MAX_PENDING, MAX_SYMBOL_BYTES, MAX_WINDOW_PKTS, Repair,
    Stats, coefficients::coefficients, gf256,
};
use crate::{ids::Seq, rng::Rng};

/// A repair symbol as it is sent.
type Sent = (Repair, Vec<u8>);
/// A packet as the decoder outputs it.
type Packet = (Seq, Vec<u8>);

fn packet(rng: &mut Rng, max_len: usize) -> Vec<u8> {
    let len = usize::try_from(rng.below(max_len as u64 + 1)).unwrap();
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

fn repair(encoder: &mut Encoder, newest: usize, key: u16) -> Sent {
    let mut out = vec![0xa5; MAX_SYMBOL_BYTES];
    let repair = encoder.repair(newest, key, &mut out).expect("packets");
    assert!(out[repair.len..].iter().all(|byte| *byte == 0xa5));
    out.truncate(repair.len);
    (repair, out)
}

fn give_source(decoder: &mut Decoder, id: Seq, bytes: &[u8]) -> Vec<Packet> {
    let mut out = Vec::new();
    decoder.on_source(id, bytes, &mut |id, bytes| out.push((id, bytes.to_vec())));
    decoder.check();
    out
}

fn give_repair(decoder: &mut Decoder, (repair, bytes): &Sent) -> Vec<Packet> {
    let mut out = Vec::new();
    decoder.on_repair(*repair, bytes, &mut |id, bytes| {
        out.push((id, bytes.to_vec()));
    });
    decoder.check();
    out
}

/// Returns `len` packets from `first` on and `repairs` symbols over all of them, with keys from `key` on.
fn block(
    first: Seq,
    len: usize,
    repairs: u16,
    key: u16,
    rng: &mut Rng,
) -> (Vec<Packet>, Vec<Sent>) {
    let mut encoder = Encoder::new(len);
    let packets: Vec<Packet> = (0..u32::try_from(len).unwrap())
        .map(|i| (first.plus(i), packet(rng, 40)))
        .collect();
    for (id, bytes) in &packets {
        encoder.push(*id, bytes);
    }
    let repairs = (0..repairs)
        .map(|i| repair(&mut encoder, len, key.wrapping_add(i)))
        .collect();
    (packets, repairs)
}

fn moved(packet: &Packet, by: u32) -> Packet {
    (packet.0.plus(by), packet.1.clone())
}

fn moved_repair((repair, bytes): &Sent, by: u32) -> Sent {
    let first = repair.first.plus(by);
    (Repair { first, ..*repair }, bytes.clone())
}

#[test]
fn a_repair_symbol_is_the_sum_of_symbols_times_coefficients() {
    let mut rng = Rng::new(1);
    for round in 0..140_u16 {
        let window = 1 + usize::from(round) % MAX_WINDOW_PKTS;
        let mut encoder = Encoder::new(window);
        let first = Seq(u32::MAX - 20);
        let pushed = u32::from(round) * 2 + 1;
        let packets: Vec<Vec<u8>> = (0..pushed)
            .map(|_| packet(&mut rng, MAX_PACKET_BYTES))
            .collect();
        for (i, bytes) in (0..).zip(&packets) {
            encoder.push(first.plus(i), bytes);
        }
        let newest = 1 + usize::try_from(rng.below(140)).unwrap();
        let (repair, bytes) = repair(&mut encoder, newest, round);
        let count = newest.min(window).min(packets.len());
        let covered = &packets[packets.len() - count..];
        let mut factors = vec![0; count];
        coefficients(round, &mut factors);
        let mut expected = vec![0; 2 + covered.iter().map(Vec::len).max().unwrap()];
        for (factor, packet) in factors.iter().zip(covered) {
            let length = u16::try_from(packet.len()).unwrap().to_be_bytes();
            for (sum, byte) in expected.iter_mut().zip(length.iter().chain(packet)) {
                *sum ^= gf256::mul(*factor, *byte);
            }
        }
        assert_eq!(bytes, expected);
        assert_eq!(usize::from(repair.count), count);
        assert_eq!(repair.last(), first.plus(pushed - 1));
        assert_eq!((repair.key, repair.len), (round, bytes.len()));
    }
}

#[test]
fn an_encoder_covers_consecutive_packets_only() {
    let mut encoder = Encoder::new(8);
    let mut out = [0; MAX_SYMBOL_BYTES];
    assert_eq!(encoder.repair(1, 0, &mut out), None);
    encoder.push(Seq(5), b"five");
    encoder.push(Seq(6), b"six");
    assert_eq!(encoder.repair(0, 0, &mut out), None);
    assert_eq!(encoder.repair(2, 0, &mut out[..5]), None, "too short");
    let repair = encoder.repair(9, 0, &mut out[..6]).expect("just enough");
    assert_eq!((repair.first, repair.count, repair.len), (Seq(5), 2, 6));
    encoder.push(Seq(8), b"eight");
    assert_eq!(encoder.held(), 1);
    encoder.push(Seq(9), &[0; MAX_PACKET_BYTES + 1]);
    assert_eq!(encoder.held(), 0);
    encoder.push(Seq(10), &[0; MAX_PACKET_BYTES]);
    assert_eq!(encoder.held(), 1);
}

#[test]
fn every_single_loss_is_recovered_by_every_repair_symbol() {
    let mut rng = Rng::new(2);
    let mut decoder = Decoder::new();
    // The blocks have consecutive numbers, which wrap.
    let mut by = u32::MAX - 1000;
    for len in 1..=20 {
        let (packets, repairs) = block(Seq(0), len, 4, 7, &mut rng);
        for lost in 0..len {
            for repair in &repairs {
                by = by.wrapping_add(20);
                for (i, (id, bytes)) in packets.iter().enumerate() {
                    if i != lost {
                        assert!(give_source(&mut decoder, id.plus(by), bytes).is_empty());
                    }
                }
                let out = give_repair(&mut decoder, &moved_repair(repair, by));
                assert_eq!(out, [moved(&packets[lost], by)]);
            }
        }
    }
}

#[test]
fn losses_up_to_the_number_of_repair_symbols_are_recovered() {
    let mut rng = Rng::new(3);
    let mut decoder = Decoder::new();
    let (mut cases, mut failures) = ([0; 4], [0; 4]);
    // The blocks have consecutive numbers, which wrap.
    let mut by = u32::MAX - 1000;
    for key in 0..25_u16 {
        for len in 1..=12_u16 {
            let (packets, repairs) = block(Seq(0), usize::from(len), 3, key * 100 + len, &mut rng);
            for pattern in 1_u32..1 << len {
                let losses = pattern.count_ones() as usize;
                if losses > 3 {
                    continue;
                }
                by = by.wrapping_add(12);
                let mut out = Vec::new();
                for (i, (id, bytes)) in packets.iter().enumerate() {
                    if pattern >> i & 1 == 0 {
                        out.extend(give_source(&mut decoder, id.plus(by), bytes));
                    }
                }
                for repair in &repairs {
                    out.extend(give_repair(&mut decoder, &moved_repair(repair, by)));
                }
                for packet in &out {
                    assert!(packets.iter().any(|sent| moved(sent, by) == *packet));
                }
                cases[losses] += 1;
                failures[losses] += u32::from(out.len() != losses);
            }
        }
    }
    println!("of {cases:?} patterns of 0, 1, 2, 3 losses failed {failures:?}");
    assert_eq!(failures[1], 0);
    // Three random equations in three unknowns are dependent in about one case in 255, and so are equations in four or
    // more unknowns.
    assert!(failures[2] * 2000 <= cases[2]);
    assert!(failures[3] * 200 <= cases[3]);
    assert_eq!(decoder.stats().repairs_contradictory, 0);
}

/// Returns the share of source packets that an MDS code cannot recover, for windows of `sources` and `repairs` packets
/// that are each lost with probability `p`.
fn mds_residual(sources: u32, repairs: u32, p: f64) -> f64 {
    // A lost packet is not recovered if at least `repairs` of the other packets are lost.
    let others = sources + repairs - 1;
    let mut choose = 1.0;
    let mut fewer = 0.0;
    for lost in 0..repairs {
        fewer += choose * p.powf(f64::from(lost)) * (1.0 - p).powf(f64::from(others - lost));
        choose *= f64::from(others - lost) / f64::from(lost + 1);
    }
    p * (1.0 - fewer)
}

/// Returns the share of source packets that this code cannot recover, from a simulation with `packets` packets.
fn residual(repairs: u16, p: f64, packets: u32, seed: u64) -> f64 {
    const SOURCES: usize = 20;
    let mut rng = Rng::new(seed);
    let mut encoder = Encoder::new(SOURCES);
    let mut decoder = Decoder::new();
    let (mut next, mut key) = (Seq(0), 0_u16);
    let (mut left, mut packets_gone) = (0_i32, 0_u32);
    while packets_gone < packets {
        packets_gone += 20;
        let lost: Vec<bool> = (0..SOURCES + usize::from(repairs))
            .map(|_| rng.chance(p))
            .collect();
        // A single loss is always recovered, as tested above, and is not simulated.
        let lost_sources = lost[..SOURCES].iter().filter(|lost| **lost).count();
        if lost_sources == 0 || lost.iter().filter(|lost| **lost).count() == 1 {
            continue;
        }
        let mut recovered = 0;
        for lost in &lost[..SOURCES] {
            let bytes = next.0.to_be_bytes();
            encoder.push(next, &bytes);
            if !lost {
                recovered += give_source(&mut decoder, next, &bytes).len();
            }
            next = next.plus(1);
        }
        for lost in &lost[SOURCES..] {
            let sent = repair(&mut encoder, SOURCES, key);
            key = key.wrapping_add(1);
            if !lost {
                for (id, bytes) in give_repair(&mut decoder, &sent) {
                    assert_eq!(id.0.to_be_bytes(), bytes[..]);
                    recovered += 1;
                }
            }
        }
        // Occasionally a packet of an earlier block is recovered by chance.
        left += i32::try_from(lost_sources).unwrap() - i32::try_from(recovered).unwrap();
    }
    f64::from(left) / f64::from(packets_gone)
}

#[test]
fn what_stays_lost_is_what_an_mds_code_leaves() {
    for (repairs, figure) in [(1, 0.18e-2), (2, 0.019e-2), (3, 0.0013e-2)] {
        assert!((mds_residual(20, repairs, 0.01) / figure - 1.0).abs() < 0.05);
    }
    for (repairs, p, packets) in [
        (1, 0.01, 400_000),
        (2, 0.01, 1_000_000),
        (3, 0.01, 6_000_000),
        (1, 0.03, 100_000),
        (2, 0.03, 100_000),
        (3, 0.03, 200_000),
        (1, 0.05, 50_000),
        (2, 0.05, 50_000),
        (3, 0.05, 50_000),
    ] {
        let expected = mds_residual(20, u32::from(repairs), p);
        let got = residual(repairs, p, packets, 4);
        println!("20+{repairs} at {p}: {got:.7}, MDS {expected:.7}");
        assert!(got < 2.0 * expected && got > expected / 2.0);
    }
}

/// A reference receiver that stores every equation and solves all of them from scratch, byte by byte.
#[derive(Default)]
struct Twin {
    known: std::collections::BTreeMap<u32, Vec<u8>>,
    repairs: Vec<Sent>,
}

impl Twin {
    /// Returns the packets that the equations determine, and the received packets.
    fn solve(&self) -> std::collections::BTreeMap<u32, Vec<u8>> {
        let mut unknowns: Vec<u32> = self
            .repairs
            .iter()
            .flat_map(|(repair, _)| repair.ids())
            .map(|id| id.0)
            .filter(|id| !self.known.contains_key(id))
            .collect();
        unknowns.sort_unstable();
        unknowns.dedup();
        let mut rows: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for (repair, bytes) in &self.repairs {
            let mut factors = vec![0; usize::from(repair.count)];
            coefficients(repair.key, &mut factors);
            let mut left = vec![0; unknowns.len()];
            let mut right = bytes.clone();
            right.resize(MAX_SYMBOL_BYTES, 0);
            for (id, factor) in repair.ids().zip(factors) {
                if let Some(packet) = self.known.get(&id.0) {
                    let mut symbol = u16::try_from(packet.len()).unwrap().to_be_bytes().to_vec();
                    symbol.extend(packet);
                    gf256::mul_add(&mut right, &symbol, factor);
                } else {
                    left[unknowns.binary_search(&id.0).unwrap()] = factor;
                }
            }
            rows.push((left, right));
        }
        let mut rank = 0;
        for column in 0..unknowns.len() {
            let Some(pivot) = (rank..rows.len()).find(|row| rows[*row].0[column] != 0) else {
                continue;
            };
            rows.swap(rank, pivot);
            let inverse = gf256::inverse(rows[rank].0[column]);
            let scaled = |row: &[u8]| row.iter().map(|x| gf256::mul(*x, inverse)).collect();
            let pivot: (Vec<u8>, Vec<u8>) = (scaled(&rows[rank].0), scaled(&rows[rank].1));
            rows[rank] = pivot.clone();
            for (i, row) in rows.iter_mut().enumerate() {
                let factor = row.0[column];
                if i != rank {
                    gf256::mul_add(&mut row.0, &pivot.0, factor);
                    gf256::mul_add(&mut row.1, &pivot.1, factor);
                }
            }
            rank += 1;
        }
        let mut all = self.known.clone();
        for (left, right) in &rows[..rank] {
            let mut nonzero = unknowns.iter().zip(left).filter(|(_, x)| **x != 0);
            if let (Some((id, _)), None) = (nonzero.next(), nonzero.next()) {
                let len = usize::from(u16::from_be_bytes([right[0], right[1]]));
                all.insert(*id, right[2..2 + len].to_vec());
            }
        }
        all
    }
}

#[test]
fn a_decoder_recovers_what_a_slow_one_does_in_any_order() {
    let mut rng = Rng::new(5);
    for round in 0..300_u32 {
        let mut encoder = Encoder::new(24);
        let mut decoder = Decoder::new();
        let mut twin = Twin::default();
        let loss = 0.02 + 0.2 * rng.uniform();
        // In every other stream the numbers wrap.
        let first = Seq(if round % 2 == 0 { u32::MAX - 30 } else { 1000 });
        let mut sent: Vec<Packet> = Vec::new();
        // Packets and symbols with their arrival times.
        let mut arrivals: Vec<(u64, Result<Packet, Sent>)> = Vec::new();
        for i in 0..80_u32 {
            let packet = (first.plus(i), packet(&mut rng, 200));
            encoder.push(packet.0, &packet.1);
            let at = u64::from(i) * 10;
            if !rng.chance(loss) {
                arrivals.push((at + rng.below(200), Ok(packet.clone())));
            }
            sent.push(packet);
            if rng.chance(0.2) && !rng.chance(loss) {
                let newest = 1 + usize::try_from(rng.below(24)).unwrap();
                let key = u16::try_from(rng.below(1 << 16)).unwrap();
                let repair = repair(&mut encoder, newest, key);
                arrivals.push((at + rng.below(200), Err(repair)));
            }
        }
        arrivals.sort_by_key(|(at, _)| *at);
        let mut all = std::collections::BTreeMap::new();
        for (_, arrival) in arrivals {
            let out = match arrival {
                Ok((id, bytes)) => {
                    twin.known.insert(id.0, bytes.clone());
                    all.insert(id.0, bytes.clone());
                    give_source(&mut decoder, id, &bytes)
                }
                Err(repair) => {
                    twin.repairs.push(repair.clone());
                    give_repair(&mut decoder, &repair)
                }
            };
            assert!(out.is_sorted_by_key(|(id, _)| id.distance_from(first)));
            for (id, bytes) in out {
                assert_eq!(all.insert(id.0, bytes), None, "recovered what was there");
            }
            assert!(decoder.pending() <= MAX_PENDING);
        }
        assert_eq!(decoder.stats().repairs_given_up, 0, "no bound was reached");
        assert_eq!(decoder.stats().repairs_contradictory, 0);
        assert_eq!(all, twin.solve());
        for (id, bytes) in &sent {
            assert!(all.get(&id.0).is_none_or(|got| got == bytes));
        }
    }
}

#[test]
fn a_late_packet_completes_what_waits_for_it() {
    let mut rng = Rng::new(6);
    let (packets, repairs) = block(Seq(u32::MAX - 3), 8, 2, 9, &mut rng);
    let mut decoder = Decoder::new();
    assert_eq!(give_repair(&mut decoder, &repairs[0]), []);
    for i in [0, 1, 5, 7] {
        assert_eq!(give_source(&mut decoder, packets[i].0, &packets[i].1), []);
    }
    assert_eq!(give_repair(&mut decoder, &repairs[1]), []);
    assert_eq!(give_source(&mut decoder, packets[3].0, &packets[3].1), []);
    assert_eq!(decoder.pending(), 2);
    assert_eq!(
        give_source(&mut decoder, packets[4].0, &packets[4].1),
        [packets[2].clone(), packets[6].clone()]
    );
    assert_eq!(decoder.pending(), 0);
    assert_eq!(give_source(&mut decoder, packets[2].0, b"again"), []);
    assert_eq!(give_repair(&mut decoder, &repairs[1]), []);
    let expected = Stats {
        sources: 6,
        sources_duplicate: 1,
        repairs: 3,
        repairs_useless: 1,
        recovered: 2,
        ..Stats::default()
    };
    assert_eq!(decoder.stats(), expected);
}

#[test]
fn a_repair_symbol_that_came_before_is_useless() {
    let mut rng = Rng::new(7);
    let (_, repairs) = block(Seq(0), 4, 2, 0, &mut rng);
    let mut decoder = Decoder::new();
    for sent in [&repairs[0], &repairs[1], &repairs[0]] {
        assert_eq!(give_repair(&mut decoder, sent), []);
    }
    assert_eq!(decoder.pending(), 3);
    let (packets, _) = block(Seq(0), 4, 2, 0, &mut Rng::new(7));
    assert_eq!(give_source(&mut decoder, Seq(0), &packets[0].1), []);
    assert_eq!(decoder.stats().repairs_useless, 1, "three might do");
    assert_eq!(give_source(&mut decoder, Seq(1), &packets[1].1).len(), 2);
    assert_eq!(decoder.pending(), 0);
}

#[test]
fn what_cannot_be_solved_any_more_is_dropped_oldest_first() {
    let mut rng = Rng::new(8);
    let mut decoder = Decoder::new();
    // Each symbol covers two lost packets, so one symbol per block is too few to recover them.
    let blocks: Vec<_> = (0..130_u32)
        .map(|i| block(Seq(i * 4), 4, 2, 0, &mut rng))
        .collect();
    for (packets, repairs) in &blocks {
        for i in [1, 2] {
            give_source(&mut decoder, packets[i].0, &packets[i].1);
        }
        give_repair(&mut decoder, &repairs[0]);
    }
    assert_eq!(decoder.pending(), MAX_PENDING);
    assert_eq!(decoder.stats().repairs_given_up, 2);
    assert_eq!(give_repair(&mut decoder, &blocks[0].1[1]), [], "given up");
    // The system has space for the unknowns of sixteen blocks, wherever these blocks are.
    for i in [129, 70, 4] {
        assert_eq!(give_repair(&mut decoder, &blocks[i].1[1]).len(), 2, "{i}");
    }
    // The second symbols of blocks 0 and 129 replaced the oldest symbols. Each recovery then removed two symbols, so
    // there was space again.
    assert_eq!(decoder.stats().repairs_given_up, 4);
    assert_eq!(decoder.pending(), MAX_PENDING - 4);
    // The history advances, and no earlier packet remains.
    give_source(&mut decoder, Seq(600 + 1024), b"far");
    assert_eq!(decoder.pending(), 0);
    assert_eq!(give_repair(&mut decoder, &blocks[18].1[1]), []);
    assert_eq!(give_source(&mut decoder, Seq(600), b"old"), []);
    assert_eq!(decoder.stats().repairs_out_of_reach, 1);
    assert_eq!(decoder.stats().sources_stale, 1);
}

#[test]
fn what_can_be_solved_is_whatever_waits_beside_it() {
    let mut rng = Rng::new(19);
    let mut decoder = Decoder::new();
    // Sixteen symbols that can never be used fill the system, just before another block.
    for i in 0..16_u32 {
        let (packets, repairs) = block(Seq(i * 4), 4, 1, 0, &mut rng);
        for i in [1, 2] {
            give_source(&mut decoder, packets[i].0, &packets[i].1);
        }
        give_repair(&mut decoder, &repairs[0]);
    }
    let (packets, repairs) = block(Seq(64), 64, 2, 0, &mut rng);
    for (id, bytes) in &packets {
        if ![64, 100, 101].contains(&id.0) {
            give_source(&mut decoder, *id, bytes);
        }
    }
    assert_eq!(give_repair(&mut decoder, &repairs[0]), []);
    assert_eq!(give_repair(&mut decoder, &repairs[1]), []);
    let found = give_source(&mut decoder, packets[0].0, &packets[0].1);
    assert_eq!(found, packets[36..38]);
    assert_eq!(decoder.pending(), 16);
}

#[test]
fn symbols_wait_for_what_a_slower_path_brings() {
    let mut rng = Rng::new(18);
    let (mut encoder, mut decoder) = (Encoder::new(48), Decoder::new());
    // Every third packet is delayed much longer than the other packets and the symbols. Of the other packets, every
    // fortieth is lost.
    let mut later = Vec::new();
    let mut lost = Vec::new();
    for i in 0..600_u32 {
        let packet = (Seq(i), packet(&mut rng, 200));
        encoder.push(packet.0, &packet.1);
        match i {
            _ if i % 3 == 0 => later.push(packet),
            _ if i % 40 == 1 => lost.push(packet),
            _ => assert_eq!(give_source(&mut decoder, packet.0, &packet.1), []),
        }
        if i >= 48 && i % 12 == 0 {
            let symbol = repair(&mut encoder, 48, u16::try_from(i).unwrap());
            assert_eq!(give_repair(&mut decoder, &symbol), []);
        }
    }
    assert_eq!(decoder.stats().repairs_given_up, 0);
    let mut found = Vec::new();
    for (id, bytes) in &later {
        found.extend(give_source(&mut decoder, *id, bytes));
    }
    for (id, bytes) in lost {
        assert!(found.contains(&(id, bytes)), "{id:?}");
    }
    // Some of the late packets are recovered as well.
    assert!(found.iter().all(|(id, bytes)| {
        let is_late = later.contains(&(*id, bytes.clone()));
        is_late || id.0 % 40 == 1
    }));
    assert_eq!(decoder.pending(), 0);
}

#[test]
fn malformed_symbols_are_counted_and_dropped() {
    let mut decoder = Decoder::new();
    give_source(&mut decoder, Seq(100), &[1; 50]);
    let good = Repair {
        first: Seq(100),
        count: 2,
        key: 0,
        len: 60,
    };
    let malformed = [
        Repair { count: 0, ..good },
        Repair { count: 129, ..good },
        Repair { count: 255, ..good },
        Repair { len: 59, ..good },
        Repair { len: 1, ..good },
        Repair {
            len: usize::MAX,
            ..good
        },
    ];
    for repair in malformed {
        assert_eq!(give_repair(&mut decoder, &(repair, vec![0; 60])), []);
    }
    let long = MAX_SYMBOL_BYTES + 1;
    give_repair(&mut decoder, &(Repair { len: long, ..good }, vec![0; long]));
    give_repair(&mut decoder, &(Repair { len: 1, ..good }, vec![0]));
    give_repair(&mut decoder, &(Repair { len: 0, ..good }, vec![]));
    assert_eq!(decoder.stats().repairs_malformed, 9);
    give_source(&mut decoder, Seq(101), &[0; MAX_PACKET_BYTES + 1]);
    assert_eq!(decoder.stats().sources_malformed, 1);
    for first in [100 + 128, 100_000, 0x8000_0064, 0x8000_0063, u32::MAX - 923] {
        let first = Seq(first);
        give_repair(&mut decoder, &(Repair { first, ..good }, vec![0; 60]));
    }
    assert_eq!(decoder.stats().repairs_out_of_reach, 5);
    assert_eq!((decoder.pending(), decoder.stats().repairs), (0, 0));
}

#[test]
fn contradictory_symbols_are_counted_and_dropped() {
    let mut rng = Rng::new(9);
    let repair = |len| Repair {
        first: Seq(100),
        count: 2,
        key: 0,
        len,
    };
    // The symbol is shorter than a packet that is known, and than a packet that arrives later.
    let mut decoder = Decoder::new();
    give_source(&mut decoder, Seq(100), &[1; 50]);
    give_repair(&mut decoder, &(repair(51), vec![1; 51]));
    assert_eq!(decoder.stats().repairs_contradictory, 1);
    let mut decoder = Decoder::new();
    give_repair(&mut decoder, &(repair(51), vec![1; 51]));
    assert_eq!(decoder.pending(), 1);
    give_source(&mut decoder, Seq(100), &[1; 50]);
    assert_eq!(decoder.pending(), 0);
    assert_eq!(decoder.stats().repairs_contradictory, 1);
    // A recovered packet has an impossible length or padding.
    for (at, value) in [(0, 0x55), (41, 1)] {
        let mut decoder = Decoder::new();
        let mut encoder = Encoder::new(2);
        encoder.push(Seq(100), &[7; 40]);
        encoder.push(Seq(101), &[8; 30]);
        let mut sent = self::repair(&mut encoder, 2, 3);
        sent.1[at] ^= value;
        give_source(&mut decoder, Seq(100), &[7; 40]);
        assert_eq!(give_repair(&mut decoder, &sent), []);
        assert_eq!(decoder.stats().repairs_contradictory, 1);
        assert_eq!(decoder.pending(), 0);
    }
    // Two equal equations have different bytes. Both are dropped, and other equations remain usable.
    let (packets, repairs) = block(Seq(0), 3, 3, 0, &mut rng);
    let mut decoder = Decoder::new();
    give_source(&mut decoder, packets[2].0, &packets[2].1);
    let mut other = repairs[0].clone();
    other.1[0] ^= 1;
    give_repair(&mut decoder, &repairs[0]);
    give_repair(&mut decoder, &other);
    assert_eq!(decoder.stats().repairs_contradictory, 2);
    assert_eq!(give_repair(&mut decoder, &repairs[1]), []);
    assert_eq!(give_repair(&mut decoder, &repairs[2]), packets[..2]);
}

#[test]
fn no_input_panics() {
    let mut rng = Rng::new(10);
    for _ in 0..10 {
        let mut decoder = Decoder::new();
        let base = Seq(u32::try_from(rng.next_u64() >> 32).unwrap());
        for _ in 0..3000 {
            // Most numbers are close to each other, so that symbols are stored and combined.
            let near = |rng: &mut Rng| base.plus(u32::try_from(rng.below(90)).unwrap());
            let anywhere = Seq(u32::try_from(rng.next_u64() >> 32).unwrap());
            let far = rng.chance(0.002);
            let id = if far { anywhere } else { near(&mut rng) };
            let max_len = if rng.chance(0.1) { 1600 } else { 12 };
            let bytes = packet(&mut rng, max_len);
            if rng.chance(0.3) {
                give_source(&mut decoder, id, &bytes);
                continue;
            }
            let counts = if rng.chance(0.1) { 256 } else { 12 };
            let repair = Repair {
                first: id,
                count: u8::try_from(rng.below(counts)).unwrap(),
                key: u16::try_from(rng.below(4)).unwrap(),
                len: bytes.len() + usize::from(rng.chance(0.05)),
            };
            for (_, bytes) in give_repair(&mut decoder, &(repair, bytes)) {
                assert!(bytes.len() <= MAX_PACKET_BYTES);
            }
            assert!(decoder.pending() <= MAX_PENDING);
        }
        let stats = decoder.stats();
        assert!(
            stats.repairs > 100 && stats.repairs_contradictory > 10,
            "{stats:?}"
        );
    }
}
