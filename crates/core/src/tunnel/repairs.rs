//! What sending lost packets again may cost.
//!
//! Repairs pay off where losses are random. Where they come from a full queue, repairs would feed it, so they get a share
//! of what is sent and no more; the rest is left to the inner transports. Own rule.

use crate::path::sender::Numbered;

/// What may be spent on repairs: an eighth of what is sent, and a burst.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: BURST }
    }
}

impl Budget {
    /// Takes note of `len` bytes sent.
    pub(super) fn on_sent(&mut self, len: usize) {
        self.bytes = (self.bytes + len as u64 / SHARE).min(BURST);
    }

    /// Whether a repair of `len` bytes can be paid.
    pub(super) fn has(&self, len: usize) -> bool {
        self.bytes >= len as u64
    }

    /// Gives back what was paid for a packet that is not sent again after all.
    pub(super) fn refund(&mut self, numbered: &Numbered) {
        if numbered.origin.is_some_and(|origin| origin.is_paid) {
            self.bytes = (self.bytes + numbered.packet.len() as u64).min(BURST);
        }
    }

    /// Pays for a repair of `len` bytes; whether there was enough.
    pub(super) fn try_spend(&mut self, len: usize) -> bool {
        let rest = self.bytes.checked_sub(len as u64);
        self.bytes = rest.unwrap_or(self.bytes);
        rest.is_some()
    }
}

/// One part in so many of what is sent: losses of up to 12 % are repaired.
const SHARE: u64 = 8;
/// In bytes: what a queue of 256 packets loses at once.
const BURST: u64 = 384 << 10;
