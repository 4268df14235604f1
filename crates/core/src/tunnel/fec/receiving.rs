//! Stores received packets, so that lost packets can be recovered with repair symbols.
//!
//! Bounds: a decoder's memory, from the first symbol on until none has come for `FORGET`; `MAX_UNTOLD` numbers to
//! report.

use core::time::Duration;
use std::collections::VecDeque;

use crate::{
    counters::DropReason,
    fec::{Decoder, Repair},
    ids::Seq,
    packet::{PacketBuf, Pool},
    time::Instant,
    wire::{control::MissingWriter, header::Header},
};

/// The receiver's side.
#[derive(Debug, Default)]
pub(in super::super) struct Receiving {
    decoder: Option<Box<Decoder>>,
    /// The first packet passed to the decoder; it cannot use symbols that cover earlier packets.
    from: Option<Seq>,
    last_symbol_at: Option<Instant>,
    /// Mean time between repair symbols.
    between: Duration,
    /// Recovered packets that have not been delivered: number, flow step, packet.
    found: VecDeque<(Seq, u16, PacketBuf)>,
    /// Recovered packets, and how often each was reported.
    untold: VecDeque<(Seq, u8)>,
}

impl Receiving {
    /// Adds the received packet `seq`, with its flow step.
    pub(in super::super) fn on_source(
        &mut self,
        now: Instant,
        seq: Seq,
        bytes: &[u8],
        pool: &mut Pool,
    ) {
        if self.last_symbol_at.is_some_and(|at| now.since(at) > FORGET) {
            *self = Self::default();
        }
        let Some(mut decoder) = self.decoder.take() else {
            return;
        };
        self.from.get_or_insert(seq);
        decoder.on_source(seq, bytes, &mut |seq, bytes| self.find(seq, bytes, pool));
        self.decoder = Some(decoder);
    }

    /// Handles a repair symbol whose oldest packet is `first`.
    pub(in super::super) fn on_symbol(
        &mut self,
        now: Instant,
        header: &Header,
        first: Seq,
        symbol: &[u8],
        pool: &mut Pool,
    ) -> Result<(), DropReason> {
        let mut decoder = self.decoder.take().unwrap_or_default();
        let before = decoder.stats().repairs_malformed;
        let repair = Repair {
            first,
            count: header.covered,
            key: header.key(),
            len: symbol.len(),
        };
        // Earlier packets were received or lost, but the decoder does not know which.
        let ahead = self.from.map_or(-1, |from| first.distance_from(from));
        if ahead > KNOWN_BEHIND {
            // Symbols never cover packets so far back. Without this change, the number would one day appear to lie
            // ahead.
            self.from = Some(first.minus(KNOWN_BEHIND.unsigned_abs()));
        }
        if ahead >= 0 {
            decoder.on_repair(repair, symbol, &mut |seq, bytes| {
                self.find(seq, bytes, pool)
            });
        }
        let is_malformed = decoder.stats().repairs_malformed > before;
        self.decoder = Some(decoder);
        let last = self.last_symbol_at.replace(now);
        self.between = match last {
            Some(last) => self.between * 7 / 8 + now.since(last).min(LONGEST_BETWEEN) / 8,
            None => LONGEST_BETWEEN / 2,
        };
        if is_malformed {
            return Err(DropReason::Malformed);
        }
        Ok(())
    }

    /// How long a packet that is missing now is left to repair symbols before it is NACKed: until the next symbols should have come.
    pub(in super::super) fn grace(&self, now: Instant) -> Duration {
        let is_active = self.last_symbol_at.is_some_and(|at| now.since(at) < ACTIVE);
        if is_active {
            (self.between * 3 / 2 + MARGIN).min(LONGEST_GRACE)
        } else {
            Duration::ZERO
        }
    }

    /// The next recovered packet.
    pub(in super::super) fn pop(&mut self) -> Option<(Seq, u16, PacketBuf)> {
        self.found.pop_front()
    }

    /// Whether packets are stored.
    #[cfg(test)]
    pub(super) fn is_active(&self) -> bool {
        self.decoder.is_some()
    }

    /// Adds the numbers of recovered packets to `writer`.
    pub(in super::super) fn tell(&mut self, writer: &mut MissingWriter) {
        for (seq, told) in &mut self.untold {
            if !writer.push(*seq, 1) {
                break;
            }
            *told += 1;
        }
        self.untold.retain(|(_, told)| *told < TELLS);
    }

    fn find(&mut self, seq: Seq, bytes: &[u8], pool: &mut Pool) {
        let Some((step, packet)) = bytes.split_first_chunk() else {
            return;
        };
        if self.untold.len() == MAX_UNTOLD {
            self.untold.pop_front();
        }
        self.untold.push_back((seq, 0));
        self.found
            .push_back((seq, u16::from_be_bytes(*step), pool.copy_of(packet)));
    }
}

/// More than a decoder remembers.
const KNOWN_BEHIND: i32 = 1 << 16;
/// With one report in twenty lost, one recovered packet in 8000 is not reported.
const TELLS: u8 = 3;
const MAX_UNTOLD: usize = 256;
/// Without a symbol for this time, packets are no longer stored.
pub(super) const FORGET: Duration = Duration::from_secs(10);
/// Symbols are expected for this time after one.
const ACTIVE: Duration = Duration::from_millis(300);
const LONGEST_BETWEEN: Duration = Duration::from_millis(50);
const MARGIN: Duration = Duration::from_millis(3);
/// A NACK is delayed by at most this time.
const LONGEST_GRACE: Duration = Duration::from_millis(12);
