//! Datagrams of hosts without a key: initiations, recorded initiations, and datagrams of no meaning.

use pleach_core::ids::{PathId, Seq};
use pleach_core::{
    rng::Rng,
    session::{
        aead::Suite,
        handshake::{Initiator, NO_PSK, StaticKeys},
    },
    time::Instant,
    wire::{
        Kind,
        handshake::{CAPABILITIES, Hello, KIND_INITIATION},
        header::{Header, TAG_LEN},
    },
};
use pleach_linux::clock;

use super::attack::Traffic;

/// Datagrams of equal length that are sent in turn, over and over.
pub(super) struct Ring {
    datagrams: Vec<Vec<u8>>,
    next: usize,
}

impl Ring {
    /// Returns datagrams that are sent in turn. Shorter and longer ones than the first are left out.
    pub(super) fn new(mut datagrams: Vec<Vec<u8>>) -> Self {
        let len = datagrams.first().map(Vec::len);
        datagrams.retain(|datagram| Some(datagram.len()) == len);
        Self { datagrams, next: 0 }
    }

    /// Returns `count` initiations with a correct mac1 by a client that the gateway does not know.
    ///
    /// # Errors
    /// Fails if the kernel has no random bytes.
    pub(super) fn initiations(gateway: &[u8; 32], count: u32) -> anyhow::Result<Self> {
        let keys = StaticKeys::from_private(clock::entropy()?);
        let mut datagrams = Vec::new();
        for number in 1..=count {
            let hello = Hello {
                protocol_version: pleach_core::endpoint::PROTOCOL_VERSION,
                capabilities: CAPABILITIES,
                suites: Suite::offer(&[Suite::ChaCha20Poly1305]),
                association: number.into(),
                time: Some(clock::unix_nanos()),
            };
            let seed = clock::entropy()?;
            let (_, datagram) = Initiator::new(&keys, gateway, &NO_PSK, number, hello, seed)?;
            datagrams.push(datagram);
        }
        Ok(Self::new(datagrams))
    }

    /// Returns `count` datagrams that belong to no session: random bytes, data of random sessions, and initiations with
    /// a wrong mac1.
    pub(super) fn strays(seed: u64, count: u32) -> Self {
        let mut rng = Rng::new(seed);
        let stray = |number: u32| {
            let mut datagram = vec![0; STRAY_LEN];
            for chunk in datagram.chunks_mut(8) {
                let bytes = rng.next_u64().to_le_bytes();
                chunk.copy_from_slice(&bytes[..chunk.len()]);
            }
            match number % 3 {
                0 => {}
                1 => {
                    let header = Header {
                        kind: Kind::Control,
                        is_out_of_turn: false,
                        is_copy: false,
                        is_kept: false,
                        is_answer_path: false,
                        covered: 0,
                        path: PathId(0),
                        receiver_index: u32::from_le_bytes([
                            datagram[0],
                            datagram[1],
                            datagram[2],
                            0,
                        ]),
                        path_seq: Seq(number),
                        sent_us: number,
                    };
                    header.emit(None, &mut datagram);
                }
                _ => {
                    let index = number.to_be_bytes();
                    datagram[..8].copy_from_slice(&[
                        KIND_INITIATION,
                        1,
                        0,
                        0,
                        0,
                        index[2],
                        index[3],
                        1,
                    ]);
                }
            }
            datagram
        };
        Self::new((0..count).map(stray).collect())
    }
}

impl Traffic for Ring {
    fn batch(&mut self, _: Instant, out: &mut Vec<u8>) -> Option<usize> {
        let len = self.datagrams.first()?.len();
        for _ in 0..SEGMENTS {
            out.extend_from_slice(&self.datagrams[self.next]);
            self.next = (self.next + 1) % self.datagrams.len();
        }
        Some(len)
    }
}

/// Number of datagrams of one system call.
const SEGMENTS: usize = 16;
/// Length of strays in bytes: about that of an initiation.
const STRAY_LEN: usize = 160;
const _: () = assert!(STRAY_LEN > TAG_LEN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_sends_datagrams_of_one_length_over_and_over() {
        let mut ring = Ring::new(vec![vec![1; 8], vec![2; 8], vec![3; 9]]);
        let mut out = Vec::new();
        assert_eq!(ring.batch(Instant::ZERO, &mut out), Some(8));
        assert_eq!(out.len(), SEGMENTS * 8);
        assert_eq!((out[0], out[8], out[16]), (1, 2, 1));
        assert_eq!(Ring::new(Vec::new()).batch(Instant::ZERO, &mut out), None);
    }
}
