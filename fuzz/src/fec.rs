//! FEC: symbols of a liar, and an honest sender whose packets are recovered as they were.

use arbitrary::Unstructured;
use pleach_core::{
    fec::{Decoder, Encoder, MAX_PENDING, MAX_SYMBOL_BYTES, Repair},
    ids::Seq,
};

/// `data`: the first number, then operations.
pub fn run(data: &[u8]) {
    let _ = operations(&mut Unstructured::new(data));
}

fn operations(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut decoder = Decoder::new();
    let mut encoder = Encoder::new(input.int_in_range(0..=200)?);
    let mut next = Seq(input.arbitrary()?);
    // A lie may spoil what is recovered, but nothing else.
    let mut has_lied = false;
    let packet = |id: Seq| -> Vec<u8> {
        let len = usize::from(u8::try_from(id.0.wrapping_mul(37) % 90).unwrap_or(0));
        (0..len)
            .map(|at| id.0.to_le_bytes()[at % 4].wrapping_add(at.to_le_bytes()[0]))
            .collect()
    };
    let mut operations = 0;
    while !input.is_empty() && operations < 2000 {
        operations += 1;
        let mut recovered = Vec::new();
        let mut note = |id: Seq, bytes: &[u8]| recovered.push((id, bytes.to_vec()));
        match input.int_in_range(0..=7_u8)? {
            0..=2 => {
                let bytes = packet(next);
                encoder.push(next, &bytes);
                if input.ratio(3, 4)? {
                    decoder.on_source(next, &bytes, &mut note);
                }
                next = next.plus(1);
            }
            3 | 4 => {
                let mut out = [0; MAX_SYMBOL_BYTES];
                let newest = input.int_in_range(0..=140)?;
                if let Some(repair) = encoder.repair(newest, input.arbitrary()?, &mut out) {
                    decoder.on_repair(repair, &out[..repair.len], &mut note);
                }
            }
            5 => next = next.plus(input.int_in_range(0..=5000)?),
            6 => {
                has_lied = true;
                let len = input.int_in_range(0..=200_usize)?.min(input.len());
                let id = next.minus(input.int_in_range(0..=2000)?);
                decoder.on_source(id, input.bytes(len)?, &mut note);
            }
            _ => {
                has_lied = true;
                let repair = Repair {
                    first: next
                        .minus(input.int_in_range(0..=1200)?)
                        .plus(input.int_in_range(0..=300)?),
                    count: input.arbitrary()?,
                    key: input.arbitrary()?,
                    len: input.int_in_range(0..=300)?,
                };
                let bytes = vec![input.arbitrary()?; repair.len];
                decoder.on_repair(repair, &bytes, &mut note);
            }
        }
        assert!(decoder.pending() <= MAX_PENDING);
        for (id, bytes) in recovered {
            assert!(bytes.len() <= MAX_SYMBOL_BYTES);
            assert!(
                has_lied || bytes == packet(id),
                "packet {} is recovered wrong",
                id.0
            );
        }
    }
    Ok(())
}
