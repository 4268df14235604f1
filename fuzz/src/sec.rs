//! Split error correction: any parity, and wrong bits up to what a code is for, which are mended.

use pleach_core::sec::{BLOCK_BYTES, Code};

/// `data`: a code and bits to turn, one a block, then a packet.
pub fn run(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<3>() else {
        return;
    };
    let code = if head[0] & 1 == 0 {
        Code::Bch
    } else {
        Code::Hamming
    };
    let (packet, foreign) = rest.split_at(rest.len() * usize::from(head[1]) / 256);
    let mut damaged = packet.to_vec();
    let _ = code.correct_up_to(usize::from(head[2]), &mut damaged, foreign);
    assert_eq!(damaged.len(), packet.len());

    let mut parity = vec![0; code.parity_len(packet.len())];
    assert_eq!(code.encode(packet, &mut parity), Some(parity.len()));
    let mut damaged = packet.to_vec();
    let wrong = if code == Code::Bch { 2 } else { 1 };
    let mut turned = 0;
    for (block, bytes) in damaged.chunks_mut(BLOCK_BYTES).enumerate() {
        let bits = 8 * bytes.len();
        let places: [usize; 2] = core::array::from_fn(|which| {
            let byte = data[(block * 7 + which * 3 + 1) % data.len()];
            (usize::from(byte) + which * 31) % bits
        });
        let count = if places[0] == places[1] { 1 } else { wrong };
        for place in places.into_iter().take(count) {
            bytes[place / 8] ^= 0x80 >> (place % 8);
            turned += 1;
        }
    }
    assert_eq!(code.correct(&mut damaged, &parity), Ok(turned));
    assert_eq!(damaged, packet, "what was turned is not mended");
}
