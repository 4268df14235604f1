//! Stores received packets, so that repair symbols can recover lost packets.
//!
//! Bounds: a decoder's memory from the first symbol until no symbol has arrived for `FORGET`, and `MAX_UNTOLD` numbers
//! to report.

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

/// The receiver's part of forward erasure correction.
#[derive(Debug, Default)]
pub(in super::super) struct Receiving {
    decoder: Option<Box<Decoder>>,
    /// First packet passed to the decoder, which cannot use symbols that cover earlier packets.
    from: Option<Seq>,
    last_symbol_at: Option<Instant>,
    /// Mean time between repair symbols.
    between: Duration,
    /// Recovered packets that have not been delivered: sequence number, flow step, packet.
    found: VecDeque<(Seq, u16, PacketBuf)>,
    /// Sequence numbers of recovered packets, and how often each was reported.
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
        // Earlier packets were received or lost, but the decoder does not know which of the two.
        let ahead = self.from.map_or(-1, |from| first.distance_from(from));
        if ahead > KNOWN_BEHIND {
            // No symbol covers packets this far back. `from` has to advance, because otherwise the distance would
            // overflow at some point, and `from` would appear to lie ahead of the symbols.
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

    /// Returns how long the NACK of a packet that is missing now is delayed, so that repair symbols can recover it:
    /// until the next symbols should have arrived.
    pub(in super::super) fn grace(&self, now: Instant) -> Duration {
        let is_active = self.last_symbol_at.is_some_and(|at| now.since(at) < ACTIVE);
        if is_active {
            (self.between * 3 / 2 + MARGIN).min(LONGEST_GRACE)
        } else {
            Duration::ZERO
        }
    }

    /// Removes and returns the next recovered packet.
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

/// Maximum distance in packets from the first packet passed to the decoder to the oldest packet of a symbol. It is
/// larger than the number of packets that a decoder stores.
const KNOWN_BEHIND: i32 = 1 << 16;
/// Number of reports that contain a recovered packet. If one report in twenty is lost, one recovered packet in 8000 is
/// not reported.
const TELLS: u8 = 3;
const MAX_UNTOLD: usize = 256;
/// Duration without a symbol after which packets are no longer stored.
pub(super) const FORGET: Duration = Duration::from_secs(10);
/// Duration after a symbol in which further symbols are expected.
const ACTIVE: Duration = Duration::from_millis(300);
const LONGEST_BETWEEN: Duration = Duration::from_millis(50);
const MARGIN: Duration = Duration::from_millis(3);
/// Maximum delay of a NACK.
const LONGEST_GRACE: Duration = Duration::from_millis(12);
