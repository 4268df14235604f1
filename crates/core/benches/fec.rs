//! Cost of forward erasure correction: nanoseconds of one core, packets of 1400 bytes, windows of 20.
//!
//! - `repair`: one repair symbol.
//! - `recover K`: K packets of a window, recovered from K repair symbols, with all calls for received packets and
//!   symbols.
//! - `nothing lost`: the part of `recover K` that is needed without a loss.
//! - `recover 32`: the maximum, in a window of 64.
//! - `late`: 12 packets and a symbol, where every fourth packet arrives 480 numbers later than the others, so that
//!   about 40 symbols are stored at any time.
//! - `table`: one of the twenty products of a repair symbol, computed by a look-up per byte, which is the usual method.

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
    // The content of the table does not affect the time.
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

/// Returns `repairs` symbols over the newest `window` packets.
fn symbols(encoder: &mut Encoder, window: usize, repairs: u16) -> Vec<(Repair, Vec<u8>)> {
    let mut symbol = |key| {
        let mut out = vec![0; MAX_SYMBOL_BYTES];
        let repair = encoder.repair(window, key, &mut out).expect("room");
        out.truncate(repair.len);
        (repair, out)
    };
    (0..repairs).map(&mut symbol).collect()
}

/// Passes a window whose first `losses` packets are lost to a decoder repeatedly, with new numbers each time.
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

/// Decodes packets of which every fourth arrives much later than the other packets and the symbols.
fn late(c: &mut Criterion) {
    const EACH: u32 = 12;
    const COVERED: u32 = 4 * EACH;
    const LATER: u32 = 480;
    // The packets repeat, so the symbols repeat as well.
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
