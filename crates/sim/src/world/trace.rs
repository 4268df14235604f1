//! A running hash of all events, to compare two runs.

use pleach_core::time::Instant;

use super::packet::Packet;

/// Number of bytes hashed at either end of a packet: all headers, and the tag that authenticates the rest of a
/// datagram.
const EDGE_BYTES: usize = 64;

/// State of the hash.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trace {
    state: u64,
}

impl Trace {
    /// Adds the event that a node's timer fires.
    pub(super) fn timer(&mut self, at: Instant, node: usize) {
        self.mix(at.as_nanos());
        self.mix(node as u64);
    }

    /// Adds the arrival of a packet at a node.
    pub(super) fn arrival(&mut self, at: Instant, node: usize, packet: &Packet) {
        let bytes = packet.bytes();
        self.mix(at.as_nanos());
        self.mix((bytes.len() as u64) << 32 | 1 << 31 | node as u64);
        let head = bytes.len().min(EDGE_BYTES);
        let tail = bytes.len().saturating_sub(EDGE_BYTES);
        for edge in [&bytes[..head], &bytes[tail..]] {
            for chunk in edge.chunks(8) {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                self.mix(u64::from_le_bytes(word));
            }
        }
    }

    /// Returns the hash.
    pub(super) fn hash(self) -> u64 {
        self.state ^ (self.state >> 32)
    }

    fn mix(&mut self, word: u64) {
        self.state = (self.state.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
