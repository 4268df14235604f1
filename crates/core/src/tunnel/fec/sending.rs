//! When a repair symbol goes out, and over what.
//!
//! *Rate.* One symbol after so many packets that there are about twice as many symbols as losses (`interval`), by the
//! losses that the other end has told of late, recovered ones included; none while there are hardly any. It
//! covers several intervals, so that a symbol that is lost, or falls short, is made up for by the next.
//!
//! *Tail.* When nothing follows for `TAIL_AFTER`, a symbol covers the last packets, if they are enough to be worth it.
//!
//! Packets whose loss does no harm have a number, so they are covered, but nothing is sent for their sake.

use core::time::Duration;

use crate::{
    fec::{Encoder, MAX_WINDOW_PKTS, Repair},
    ids::{PathId, Seq},
    path::sender::Numbered,
    time::Instant,
    wire::header::COVERED_UNIT,
};

/// The sender's side.
#[derive(Debug, Default)]
pub(in super::super) struct Sending {
    /// From the first loss on.
    encoder: Option<Box<Encoder>>,
    /// Data datagrams sent and lost, the older ones weighing less.
    sent: u32,
    lost: u32,
    /// Packets worth a repair since the last symbol.
    uncovered: u32,
    /// When nothing has followed them for long enough.
    tail_at: Option<Instant>,
    /// Data datagrams of late, by path.
    carried: [u32; PathId::MAX],
    /// What the other end has recovered, by number; as long as needed.
    recovered: Vec<Option<Seq>>,
}

impl Sending {
    /// Takes the packet that will be sent next.
    pub(super) fn push(&mut self, numbered: &Numbered) {
        if self.interval().is_none() {
            self.uncovered = 0;
            return;
        }
        let new = || Box::new(Encoder::new(MAX_WINDOW_PKTS));
        let encoder = self.encoder.get_or_insert_with(new);
        let head = numbered.flow_step.to_be_bytes();
        encoder.push_parts(numbered.global_seq, &head, numbered.packet.as_slice());
        self.uncovered += u32::from(!numbered.is_expendable);
    }

    /// Notes a data datagram on `id`.
    pub(super) fn on_sent(&mut self, id: PathId) {
        self.sent += 1;
        if self.sent >= MEMORY {
            self.sent /= 2;
            self.lost /= 2;
        }
        let carried = &mut self.carried[id.index()];
        *carried += 1;
        if *carried >= CARRIED {
            self.carried.iter_mut().for_each(|pkts| *pkts /= 2);
        }
    }

    /// Notes losses.
    pub(in super::super) fn on_lost(&mut self, pkts: u64) {
        self.lost = self
            .lost
            .saturating_add(u32::try_from(pkts).unwrap_or(u32::MAX));
    }

    /// Whether `id` has its part in what was sent of late.
    pub(super) fn carries(&self, id: PathId) -> bool {
        self.carried[id.index()] > 0
    }

    /// Sets when the tail is due: nothing has followed what was sent at `now` by then.
    pub(in super::super) fn rest(&mut self, now: Instant) {
        self.tail_at = (self.uncovered >= LEAST_TAIL).then_some(now + TAIL_AFTER);
    }

    /// No path was ready for the tail.
    pub(in super::super) fn give_up_tail(&mut self, now: Instant) {
        self.tail_at = self.tail_at.filter(|at| *at > now);
    }

    /// When a symbol is due if nothing is sent before.
    pub(in super::super) fn tail_due(&self) -> Option<Instant> {
        self.tail_at.filter(|_| self.uncovered >= LEAST_TAIL)
    }

    /// Whether a symbol is due.
    pub(in super::super) fn is_due(&self, now: Instant, is_idle: bool) -> bool {
        let is_full = self.interval().is_some_and(|pkts| self.uncovered >= pkts);
        is_full || (is_idle && self.tail_due().is_some_and(|at| at <= now))
    }

    /// Writes the symbol that is due.
    pub(super) fn take(&mut self, key: u16, out: &mut [u8]) -> Option<Repair> {
        self.uncovered = 0;
        self.tail_at = None;
        let interval = usize::try_from(self.interval()?).ok()?;
        let encoder = self.encoder.as_mut()?;
        let newest = encoder.held().min(interval * INTERVALS);
        let newest = newest - newest % usize::from(COVERED_UNIT);
        encoder.repair(newest, key, out)
    }

    /// The other end has `count` packets from `first`.
    pub(super) fn on_recovered(&mut self, first: Seq, count: u16) {
        if self.recovered.is_empty() {
            self.recovered.resize(REMEMBERED, None);
        }
        for offset in 0..u32::from(count).min(64) {
            let seq = first.plus(offset);
            self.recovered[seq.0 as usize % REMEMBERED] = Some(seq);
        }
    }

    /// Whether the other end has said that it has `seq`.
    pub(in super::super) fn has_recovered(&self, seq: Seq) -> bool {
        self.recovered.get(seq.0 as usize % REMEMBERED) == Some(&Some(seq))
    }

    /// Packets for one symbol; `None` while there is hardly a loss.
    fn interval(&self) -> Option<u32> {
        let ppm = u64::from(self.lost) * 1_000_000 / u64::from(self.sent.max(LEAST_SENT));
        match ppm {
            0..LEAST_PPM => None,
            LEAST_PPM..=10_000 => Some(20),
            10_001..=25_000 => Some(12),
            _ => Some(10),
        }
    }
}

/// Losses below this are left to being sent again.
const LEAST_PPM: u64 = 1_500;
/// Datagrams after which earlier ones weigh half.
const MEMORY: u32 = 4_096;
/// So many are assumed to be sent at least.
const LEAST_SENT: u32 = 512;
/// The same for which paths are in use.
const CARRIED: u32 = 256;
/// Intervals one symbol covers.
const INTERVALS: usize = 3;
const LEAST_TAIL: u32 = 3;
const TAIL_AFTER: Duration = Duration::from_millis(2);
/// Numbers of recovered packets remembered. A power of two.
const REMEMBERED: usize = 1024;
