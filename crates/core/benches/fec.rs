//! What erasure correction costs: nanoseconds of one core, packets of 1400 bytes, windows of 20.
//!
//! `repair` is one repair symbol. `recover K` is K packets of a window, from K repair symbols, with all calls that go with
//! it: the packets that came, the symbols, the solution; of that, `nothing lost` is what it costs without a loss.
//! `recover 32` is the most there can be, of a window of 64. `late` is 12 packets and a symbol where every fourth packet comes 480
//! numbers later than the rest, so that some 40 symbols wait at any time. `table` is one of the twenty products of a repair symbol by a
//! lookup per byte, the usual way.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput};
use pleach_core::{
    fec::{Decoder, Encoder, MAX_SYMBOL_BYTES, Repair},
    ids::Seq,
    rng::Rng,
};

const LEN: usize = 1400;
const WINDOW: usize = 20;

fn packets(window: usize) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(1);
    let mut packet = || {
        let mut bytes = vec![0; LEN];
        rng.fill(&mut bytes);
        bytes
    };
    (0..window).map(|_| packet()).collect()
}

fn filled(packets: &[Vec<u8>]) -> Encoder {
    let mut encoder = Encoder::new(packets.len());
    for (i, packet) in (0..).zip(packets) {
        encoder.push(Seq(i), packet);
    }
    encoder
}

fn encode(c: &mut Criterion) {
    let packets = packets(WINDOW);
    let mut encoder = filled(&packets);
    let mut out = [0; MAX_SYMBOL_BYTES];
    let mut group = c.benchmark_group("fec");
    group.throughput(Throughput::Elements(1));
    let mut key = 0_u16;
    group.bench_function("repair", |b| {
        b.iter(|| {
            key = key.wrapping_add(1);
            encoder.repair(WINDOW, key, black_box(&mut out))
        });
    });
    let mut next = 20;
    group.bench_function("push", |b| {
        b.iter(|| {
            encoder.push(Seq(next), black_box(&packets[next as usize % WINDOW]));
            next = next.wrapping_add(1);
        });
    });
    // Any table will do for the time it takes.
    let mut table = [0; 256];
    Rng::new(2).fill(&mut table);
    group.bench_function("table", |b| {
        b.iter(|| {
            for (out, byte) in out.iter_mut().zip(black_box(&packets[0])) {
                *out ^= table[usize::from(*byte)];
            }
            black_box(&mut out);
        });
    });
    group.finish();
}

/// So many symbols over the newest packets of a window.
fn symbols(encoder: &mut Encoder, window: usize, repairs: u16) -> Vec<(Repair, Vec<u8>)> {
    let mut symbol = |key| {
        let mut out = vec![0; MAX_SYMBOL_BYTES];
        let repair = encoder.repair(window, key, &mut out).expect("room");
        out.truncate(repair.len);
        (repair, out)
    };
    (0..repairs).map(&mut symbol).collect()
}

/// A window of which the first `losses` packets are lost, given to a decoder again and again under new numbers.
fn decode(c: &mut Criterion, name: &str, window: u32, losses: usize, repairs: u16) {
    let packets = packets(window as usize);
    let mut encoder = filled(&packets);
    let symbols = symbols(&mut encoder, packets.len(), repairs);
    let mut decoder = Decoder::new();
    let mut first = Seq(0);
    let mut recovered = 0_usize;
    let mut rounds = 0_usize;
    c.bench_function(&format!("fec/{name}"), |b| {
        b.iter_batched(
            || (),
            |()| {
                rounds += 1;
                for (i, packet) in (0..).zip(&packets).skip(losses) {
                    decoder.on_source(first.plus(i), packet, &mut |_, _| {});
                }
                for (repair, bytes) in &symbols {
                    let repair = Repair { first, ..*repair };
                    decoder.on_repair(repair, bytes, &mut |_, packet| {
                        recovered += usize::from(!black_box(packet).is_empty());
                    });
                }
                first = first.plus(window);
            },
            BatchSize::SmallInput,
        );
    });
    assert_eq!(recovered, rounds * losses, "all are recovered");
}

/// Packets of which every fourth comes much later than the others and than the symbols.
fn late(c: &mut Criterion) {
    const EACH: u32 = 12;
    const COVERED: u32 = 4 * EACH;
    const LATER: u32 = 480;
    // What repeats itself has the same symbols again and again.
    let packets = packets(EACH as usize);
    let all: Vec<_> = packets
        .iter()
        .cycle()
        .take(COVERED as usize)
        .cloned()
        .collect();
    let mut encoder = filled(&all);
    let symbols = symbols(&mut encoder, all.len(), 4);
    let mut decoder = Decoder::new();
    let mut first = Seq(LATER);
    let mut turn = 0;
    c.bench_function("fec/late", |b| {
        b.iter(|| {
            for (i, packet) in (0..).zip(&packets) {
                if i % 4 != 0 {
                    decoder.on_source(first.plus(i), packet, &mut |_, _| {});
                }
            }
            let (repair, bytes) = &symbols[turn];
            let repair = Repair {
                first: first.minus(COVERED - EACH),
                ..*repair
            };
            decoder.on_repair(repair, bytes, &mut |_, _| {});
            for (i, packet) in (0..).zip(&packets).step_by(4) {
                decoder.on_source(first.minus(LATER).plus(i), packet, &mut |_, _| {});
            }
            first = first.plus(EACH);
            turn = (turn + 1) % symbols.len();
        });
    });
    assert_eq!(decoder.stats().repairs_contradictory, 0);
    assert!(decoder.pending() > 30, "they wait");
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    encode(&mut criterion);
    decode(&mut criterion, "nothing lost", 20, 0, 1);
    decode(&mut criterion, "recover 1", 20, 1, 1);
    decode(&mut criterion, "recover 3", 20, 3, 3);
    decode(&mut criterion, "recover 32", 64, 32, 32);
    late(&mut criterion);
    criterion.final_summary();
}
