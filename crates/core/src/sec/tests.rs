//! Tests every error that the codes can correct, at every position.

use super::*;
use crate::rng::Rng;

const CODES: [Code; 2] = [Code::Bch, Code::Hamming];

fn packet(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    rng.fill(&mut packet);
    packet
}

fn parity(code: Code, packet: &[u8]) -> Vec<u8> {
    let mut parity = vec![0xff; code.parity_len(packet.len())];
    assert_eq!(code.encode(packet, &mut parity), Some(parity.len()));
    parity
}

fn flip(packet: &mut [u8], bit: usize) {
    packet[bit / 8] ^= 0x80 >> (bit % 8);
}

#[test]
fn parity_is_as_long_as_published() {
    assert_eq!(Code::Hamming.parity_len(1500), 88);
    assert_eq!(Code::Bch.parity_len(1500), 200);
    for code in CODES {
        assert_eq!(code.parity_len(0), 0);
        let mut short = vec![0; code.parity_len(100) - 1];
        assert_eq!(code.encode(&[0; 100], &mut short), None);
    }
}

#[test]
fn every_single_error_is_mended_wherever_it_is() {
    let mut rng = Rng::new(1);
    for code in CODES {
        for len in [1, 14, 15, 16, 47] {
            let sent = packet(&mut rng, len);
            let parity = parity(code, &sent);
            for bit in 0..8 * len {
                let mut came = sent.clone();
                flip(&mut came, bit);
                assert_eq!(code.correct(&mut came, &parity), Ok(1), "{code:?} {bit}");
                assert_eq!(came, sent);
            }
            let mut came = sent.clone();
            assert_eq!(code.correct(&mut came, &parity), Ok(0));
        }
    }
}

#[test]
fn one_error_in_each_block_is_mended() {
    let mut rng = Rng::new(2);
    for code in CODES {
        let sent = packet(&mut rng, 1500);
        let parity = parity(code, &sent);
        let mut came = sent.clone();
        for block in 0..100 {
            let bit = usize::try_from(rng.below(120)).expect("small");
            flip(&mut came, 120 * block + bit);
        }
        assert_eq!(code.correct(&mut came, &parity), Ok(100));
        assert_eq!(came, sent);
    }
}

#[test]
fn every_double_error_in_a_block_is_mended_by_bch_and_never_by_hamming() {
    let mut rng = Rng::new(3);
    let sent = packet(&mut rng, BLOCK_BYTES);
    let [bch, hamming] = CODES.map(|code| parity(code, &sent));
    for first in 0..BLOCK_BITS {
        for second in first + 1..BLOCK_BITS {
            let mut came = sent.clone();
            flip(&mut came, first);
            flip(&mut came, second);
            let mut other = came.clone();
            assert_eq!(
                Code::Bch.correct(&mut came, &bch),
                Ok(2),
                "{first} {second}"
            );
            assert_eq!(came, sent);
            let _ = Code::Hamming.correct(&mut other, &hamming);
            assert_ne!(other, sent, "{first} {second}");
        }
    }
}

#[test]
fn a_wrong_bit_in_the_parity_does_no_harm_under_hamming() {
    let mut rng = Rng::new(4);
    let sent = packet(&mut rng, BLOCK_BYTES);
    let parity = parity(Code::Hamming, &sent);
    for bit in 0..7 {
        let mut wrong = parity.clone();
        flip(&mut wrong, bit);
        let mut came = sent.clone();
        assert_eq!(Code::Hamming.correct(&mut came, &wrong), Ok(0));
        assert_eq!(came, sent);
    }
}

#[test]
fn whatever_comes_nothing_panics_and_lengths_must_fit() {
    let mut rng = Rng::new(5);
    for round in 0..20_000 {
        let code = CODES[round % 2];
        let len = usize::try_from(rng.below(64)).expect("small");
        let mut came = packet(&mut rng, len);
        let parity_len = code.parity_len(len) + usize::from(rng.chance(0.1));
        let parity = packet(&mut rng, parity_len);
        let result = code.correct(&mut came, &parity);
        assert!(parity_len == code.parity_len(len) || result == Err(Uncorrectable));
    }
}

/// Compares the tables with sums over single bits.
#[test]
fn tables_give_what_single_bits_add_up_to() {
    let mut rng = Rng::new(6);
    for code in CODES {
        for _ in 0..100 {
            let block = packet(&mut rng, BLOCK_BYTES);
            let mut sum = 0;
            for bit in (0..BLOCK_BITS).filter(|bit| block[bit / 8] & (0x80 >> (bit % 8)) != 0) {
                let mut single = [0; BLOCK_BYTES];
                flip(&mut single, bit);
                sum ^= code.parity_of(&single);
            }
            assert_eq!(code.parity_of(&block), sum);
        }
    }
}
