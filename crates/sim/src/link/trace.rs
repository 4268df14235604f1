//! Rate of a bottleneck: constant, recorded, or recorded delivery opportunities.
//!
//! *Fluid* rates (constant, steps) are exact. Work is counted in bits times 10^9, so that a rate in bits per second
//! times nanoseconds is work without rounding. Departure times are rounded up to the nanosecond. The excess work due
//! to rounding is credited to the next packet of the same busy period.
//!
//! *Opportunities* follow Mahimahi (Netravali et al., USENIX ATC 2015; `mm-link`): each line of a trace is a
//! millisecond at which up to 1500 bytes may leave. A packet may need parts of several opportunities, and several
//! packets may share an opportunity if they arrived before it. Unused bytes of an opportunity are lost. The trace
//! repeats; its period is its last time stamp.

use std::sync::Arc;

use core::time::Duration;

use pleach_core::{
    time::{Instant, saturating_nanos},
    units::{Bitrate, Bytes},
};

/// Bytes per delivery opportunity of a Mahimahi trace.
pub const OPPORTUNITY_BYTES: u64 = 1500;

/// Highest number of samples of a trace or recorded rate: 10^7 opportunities are 15 GB.
pub const MAX_SAMPLES: usize = 10_000_000;

const WORK_PER_BYTE: u64 = 8 * 1_000_000_000;

/// A serialisation rate.
#[derive(Clone, Debug)]
pub enum Rate {
    /// Packets leave at once.
    Unlimited,
    /// Bits per second. Zero stops the link.
    Constant(Bitrate),
    /// Piecewise constant, repeating.
    Steps(Arc<Steps>),
    /// Delivery opportunities, repeating.
    Opportunities(Arc<Opportunities>),
}

/// A recorded rate: piecewise constant, repeating at its end.
#[derive(Debug)]
pub struct Steps {
    /// Start of each step in nanoseconds since the start of the record (first 0, strictly rising), and rate in bits
    /// per second.
    steps: Vec<(u64, u64)>,
    period_ns: u64,
}

/// Reason why a recorded rate is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The table has no such column.
    #[error("no column `{0}`; the columns are: {1}")]
    Column(String, String),
    /// A line does not match the format.
    #[error("line {0}: expected {1}")]
    Line(usize, &'static str),
    /// The trace has no rate above zero, or its duration is zero.
    #[error(
        "it has no capacity: at least one sample after time 0 and one rate above 0 are required"
    )]
    Empty,
    /// The trace has too many samples.
    #[error("more than {MAX_SAMPLES} samples")]
    TooLong,
}

impl Steps {
    /// Parses the column `column` of a rate table. The table is comma-separated with a header line. Its first column is
    /// the time in seconds (rising), the other columns are rates in Mbit/s. The last step lasts as long as the step
    /// before it.
    ///
    /// # Errors
    /// [`TraceError`] says which line is wrong.
    pub fn from_csv(text: &str, column: &str) -> Result<Self, TraceError> {
        let mut lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty());
        let header = lines.next().ok_or(TraceError::Empty)?.1;
        let index = header
            .split(',')
            .skip(1)
            .position(|name| name.trim() == column)
            .ok_or_else(|| {
                let names: Vec<_> = header.split(',').skip(1).map(str::trim).collect();
                TraceError::Column(column.to_owned(), names.join(", "))
            })?;
        let mut samples: Vec<(u64, u64)> = Vec::new();
        for (number, line) in lines {
            let mut cells = line.split(',').map(str::trim);
            let time = cells.next().and_then(|cell| scaled(cell, 1e9));
            let rate = cells.nth(index).and_then(|cell| scaled(cell, 1e6));
            let (Some(time), Some(rate)) = (time, rate) else {
                return Err(TraceError::Line(
                    number + 1,
                    "seconds and rates in Mbit/s, none negative",
                ));
            };
            if samples.last().is_some_and(|&(last, _)| last >= time) {
                return Err(TraceError::Line(number + 1, "a later time than before"));
            }
            if samples.len() >= MAX_SAMPLES {
                return Err(TraceError::TooLong);
            }
            samples.push((time, rate));
        }
        Self::new(samples)
    }

    fn new(mut steps: Vec<(u64, u64)>) -> Result<Self, TraceError> {
        let first = steps.first().ok_or(TraceError::Empty)?.0;
        steps.iter_mut().for_each(|step| step.0 -= first);
        let last = steps.last().map_or(0, |step| step.0);
        let before = steps.len().checked_sub(2).map_or(0, |i| steps[i].0);
        let period_ns = if last == 0 {
            1_000_000_000
        } else {
            last + (last - before)
        };
        // At an average rate below 1 kbit/s one packet would take extremely long, so such a table is rejected as an
        // error.
        let bits = |(i, step): (usize, &(u64, u64))| {
            let end = steps.get(i + 1).map_or(period_ns, |next| next.0);
            u128::from(step.1) * u128::from(end - step.0)
        };
        let work: u128 = steps.iter().enumerate().map(bits).sum();
        if work / u128::from(period_ns) < 1_000 {
            return Err(TraceError::Empty);
        }
        Ok(Self { steps, period_ns })
    }

    /// Returns the rate at `offset_ns` after the epoch, and the offset at which the next step begins.
    fn at(&self, offset_ns: u64) -> (u64, u64) {
        let within = offset_ns % self.period_ns;
        let base = offset_ns - within;
        let next = self.steps.partition_point(|step| step.0 <= within);
        let end = self.steps.get(next).map_or(self.period_ns, |step| step.0);
        (self.steps[next - 1].1, base + end)
    }
}

/// A Mahimahi trace.
#[derive(Debug)]
pub struct Opportunities {
    /// Milliseconds of each opportunity, in ascending order with duplicates.
    times_ms: Vec<u32>,
}

impl Opportunities {
    /// Parses a trace with one line per opportunity: milliseconds since the start, never decreasing.
    ///
    /// # Errors
    /// [`TraceError`] says which line is wrong.
    pub fn from_text(text: &str) -> Result<Self, TraceError> {
        let mut times_ms: Vec<u32> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let Ok(time) = line.parse() else {
                return Err(TraceError::Line(number + 1, "whole milliseconds"));
            };
            if times_ms.last().is_some_and(|&last| last > time) {
                return Err(TraceError::Line(
                    number + 1,
                    "a time not earlier than before",
                ));
            }
            if times_ms.len() >= MAX_SAMPLES {
                return Err(TraceError::TooLong);
            }
            times_ms.push(time);
        }
        if times_ms.last().is_none_or(|&last| last == 0) {
            return Err(TraceError::Empty);
        }
        Ok(Self { times_ms })
    }

    fn period_ms(&self) -> u64 {
        self.times_ms.last().map_or(1, |&last| u64::from(last))
    }

    /// Returns the number of opportunities earlier than `offset_ns` after the start.
    fn count_before(&self, offset_ns: u64) -> u64 {
        let offset_ms = offset_ns.div_ceil(1_000_000);
        let (rounds, within) = (offset_ms / self.period_ms(), offset_ms % self.period_ms());
        let index = self
            .times_ms
            .partition_point(|&time| u64::from(time) < within);
        let count = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        rounds * count(self.times_ms.len()) + count(index)
    }

    /// Returns the average rate of the trace.
    #[must_use]
    pub fn mean_rate(&self) -> Bitrate {
        let bytes = Bytes::of_len(self.times_ms.len()).get() * OPPORTUNITY_BYTES;
        let period = Duration::from_millis(self.period_ms());
        Bitrate::from_transfer(Bytes::new(bytes), period).unwrap_or(Bitrate::ZERO)
    }
}

/// The serialiser of one bottleneck: computes the time at which the packet in service leaves.
#[derive(Clone, Debug)]
pub struct Server {
    rate: Rate,
    epoch: Instant,
    /// Time at which the packet in service leaves, or at which the last packet left.
    finish: Option<Instant>,
    /// Only for fluid rates. `since` and `work`: start time and amount of the work for the current packet. `credit`:
    /// excess work that is done by `finish`.
    since: Instant,
    work: u64,
    credit: u64,
    /// For opportunities: round, index and unused bytes of the current opportunity.
    cursor: Cursor,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    round: u64,
    index: usize,
    left_bytes: u64,
}

impl Server {
    /// Creates a server whose traces start at `epoch`.
    #[must_use]
    pub fn new(rate: Rate, epoch: Instant) -> Self {
        Self {
            rate,
            epoch,
            finish: None,
            since: epoch,
            work: 0,
            credit: 0,
            cursor: Cursor {
                left_bytes: OPPORTUNITY_BYTES,
                ..Cursor::default()
            },
        }
    }

    /// Starts to serve a packet of `len` at `at`, which is not before the last packet has left.
    pub fn begin(&mut self, at: Instant, len: Bytes) {
        let credit = if self.finish == Some(at) {
            self.credit
        } else {
            0
        };
        self.work = len
            .get()
            .saturating_mul(WORK_PER_BYTE)
            .saturating_sub(credit);
        self.since = at;
        self.plan(len);
    }

    /// Returns the time at which the packet in service leaves. `None` if it never leaves at the current rate.
    #[must_use]
    pub fn finish(&self) -> Option<Instant> {
        self.finish
    }

    /// Changes the rate at `now`. `in_service` is the length of the packet in service.
    pub fn change(&mut self, now: Instant, rate: Rate, epoch: Instant, in_service: Option<Bytes>) {
        let fluid = |rate: &Rate| matches!(rate, Rate::Constant(_) | Rate::Steps(_));
        let keeps_progress = fluid(&self.rate) && fluid(&rate);
        let done = self.work_between(self.since, now, self.work);
        self.rate = rate;
        self.epoch = epoch;
        self.credit = 0;
        self.cursor = Cursor {
            left_bytes: OPPORTUNITY_BYTES,
            ..Cursor::default()
        };
        let Some(len) = in_service else {
            self.finish = None;
            return;
        };
        let whole = len.get().saturating_mul(WORK_PER_BYTE);
        self.work = if keeps_progress {
            self.work.saturating_sub(done)
        } else {
            whole
        };
        self.since = now;
        self.plan(len);
    }

    /// Returns the number of bytes that the rate carries from `from` to `to`. `None` if the rate is not limited.
    #[must_use]
    pub fn capacity_between(&self, from: Instant, to: Instant) -> Option<Bytes> {
        match &self.rate {
            Rate::Unlimited => None,
            Rate::Opportunities(trace) => {
                let until =
                    |at: Instant| trace.count_before(saturating_nanos(at.since(self.epoch)));
                let opportunities = until(to).saturating_sub(until(from));
                Some(Bytes::new(opportunities * OPPORTUNITY_BYTES))
            }
            Rate::Constant(_) | Rate::Steps(_) => {
                let work = self.work_between(from, to, u64::MAX);
                Some(Bytes::new(work / WORK_PER_BYTE))
            }
        }
    }

    fn plan(&mut self, len: Bytes) {
        self.credit = 0;
        self.finish = match &self.rate {
            Rate::Unlimited => Some(self.since),
            Rate::Constant(rate) => {
                fluid_finish(rate.as_bps(), self.work).map(|(nanos, credit)| {
                    self.credit = credit;
                    self.since + Duration::from_nanos(nanos)
                })
            }
            Rate::Steps(steps) => {
                let start = self.since.since(self.epoch);
                let (end, credit) = steps_finish(steps, saturating_nanos(start), self.work);
                self.credit = credit;
                Some(self.epoch + Duration::from_nanos(end))
            }
            Rate::Opportunities(trace) => {
                let start_ns = saturating_nanos(self.since.since(self.epoch));
                let at_ms = trace_finish(trace, &mut self.cursor, start_ns, len.get());
                Some(self.epoch + Duration::from_millis(at_ms))
            }
        };
    }

    /// Returns the work of a fluid server between two instants. May stop counting at `enough`.
    fn work_between(&self, from: Instant, to: Instant, enough: u64) -> u64 {
        let mut work: u128 = 0;
        match &self.rate {
            Rate::Unlimited | Rate::Opportunities(_) => {}
            Rate::Constant(rate) => work = u128::from(rate.as_bps()) * to.since(from).as_nanos(),
            Rate::Steps(steps) => {
                let mut at = saturating_nanos(from.since(self.epoch));
                let end = saturating_nanos(to.since(self.epoch));
                while at < end && work < u128::from(enough) {
                    let (bps, step_end) = steps.at(at);
                    work += u128::from(bps) * u128::from(step_end.min(end) - at);
                    at = step_end;
                }
            }
        }
        u64::try_from(work).unwrap_or(u64::MAX)
    }
}

/// Returns the nanoseconds that `work` takes at `bps`, and the excess work done in the last nanosecond.
fn fluid_finish(bps: u64, work: u64) -> Option<(u64, u64)> {
    if bps == 0 {
        return None;
    }
    let nanos = work.div_ceil(bps);
    let done = u128::from(nanos) * u128::from(bps);
    let credit = u64::try_from(done - u128::from(work)).unwrap_or(0);
    Some((nanos, credit))
}

/// Returns the time (ns since the epoch of `steps`) at which `work` that starts at `at` is done, and the excess work.
fn steps_finish(steps: &Steps, mut at: u64, mut work: u64) -> (u64, u64) {
    loop {
        let (bps, end) = steps.at(at);
        if let Some((nanos, credit)) = fluid_finish(bps, work)
            && nanos <= end - at
        {
            return (at + nanos, credit);
        }
        // The work is not completed in this step, so `done` is below `work` and in range.
        let done = u128::from(bps) * u128::from(end - at);
        work = work.saturating_sub(u64::try_from(done).unwrap_or(u64::MAX));
        at = end;
    }
}

/// Consumes opportunities for a packet of `len_bytes` that is available from `start_ns` on. Returns the time of the
/// last opportunity that it needs.
fn trace_finish(
    trace: &Opportunities,
    cursor: &mut Cursor,
    start_ns: u64,
    mut len_bytes: u64,
) -> u64 {
    let period_ms = trace.period_ms();
    let at_ms =
        |cursor: &Cursor| cursor.round * period_ms + u64::from(trace.times_ms[cursor.index]);
    let start_ms = start_ns.div_ceil(1_000_000);
    if at_ms(cursor) < start_ms {
        // A round covers the times above 0 up to its period; time 0 of a round is the end of the round before.
        let round = start_ms.saturating_sub(1) / period_ms;
        let within = start_ms - round * period_ms;
        let index = trace
            .times_ms
            .partition_point(|&time| u64::from(time) < within);
        *cursor = Cursor {
            round,
            index,
            left_bytes: OPPORTUNITY_BYTES,
        };
    }
    loop {
        if cursor.left_bytes == 0 {
            cursor.left_bytes = OPPORTUNITY_BYTES;
            cursor.index += 1;
            if cursor.index == trace.times_ms.len() {
                cursor.index = 0;
                cursor.round += 1;
            }
        }
        let used = cursor.left_bytes.min(len_bytes);
        cursor.left_bytes -= used;
        len_bytes -= used;
        if len_bytes == 0 {
            return at_ms(cursor);
        }
    }
}

/// Returns a non-negative decimal number times `factor`, at most 10^15.
fn scaled(cell: &str, factor: f64) -> Option<u64> {
    let value: f64 = cell.parse::<f64>().ok()? * factor;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to lie in range"
    )]
    (0.0..=1e15).contains(&value).then(|| value.round() as u64)
}

#[cfg(test)]
mod tests;
