//! What a run measures, before it becomes [`Results`](crate::results::Results): the lab's programs and the simulator's
//! hosts fill the same records.

mod arrivals;
mod pings;

use core::time::Duration;

use hdrhistogram::Histogram as Lateness;
use pleach_core::units::Bytes;

use crate::{
    link::{LinkStats, histogram::Histogram},
    results::{PingPoint, PingSummary, StatusSample, VideoResult},
};

pub use arrivals::{Arrival, Arrivals};
pub use pings::EchoRequests;

/// Length of a sample of a link's series.
pub const SAMPLE: Duration = Duration::from_millis(100);
/// Length of a bin of [`FlowReport::bins`].
pub const BIN: Duration = Duration::from_millis(10);
/// How long a tunnel has been up, at least, when a run begins: daemons run for days and have looked at their links long
/// before somebody downloads.
pub const SETTLE: Duration = Duration::from_secs(3);
/// How long before the run a ping starts, to see the idle round trip.
pub const IDLE_PING: Duration = Duration::from_secs(1);
/// Most delays kept of one flow.
const MAX_DELAYS: usize = 4_000_000;

/// What one phase of a run measured.
#[derive(Debug)]
pub struct PhaseReport {
    /// One entry per traffic of the scenario; `None` if it did not run.
    pub flows: Vec<Option<FlowReport>>,
    /// Server to client.
    pub down: DirectionReport,
    /// Client to server.
    pub up: DirectionReport,
    /// What the ends of the tunnel said of themselves.
    pub status: Vec<StatusSample>,
    /// Weights of the links at the gateway, which sends downwards: one entry a link of the scenario, each with one
    /// value per [`SAMPLE`], NaN where none is known. Empty without tunnel.
    pub weights: Vec<Vec<f64>>,
}

/// What a flow measured.
#[derive(Clone, Debug, Default)]
pub struct FlowReport {
    /// Payload bytes that arrived per [`BIN`], from the run's beginning on.
    pub bins: Vec<u64>,
    /// Those of them that arrived in order, that is with a number above all before (UDP).
    pub in_order_bins: Vec<u64>,
    /// Payload bytes sent per [`BIN`] (UDP).
    pub sent_bins: Vec<u64>,
    /// One-way delay (UDP), round trip (TCP, QUIC, ping) or completion time (requests), in milliseconds.
    pub delays_ms: Vec<f64>,
    /// Datagrams or requests sent.
    pub sent: u64,
    /// Datagrams or replies that arrived, copies not counted.
    pub received: u64,
    /// Datagrams that arrived in order (UDP).
    pub received_in_order: u64,
    /// Datagrams that arrived within their deadline (UDP); all that arrived, if they have none.
    pub received_in_time: u64,
    /// Payload bytes of those, per [`BIN`] of when they were sent.
    pub in_time_bins: Vec<u64>,
    /// How many later datagrams arrived before a late one, at most.
    pub reorder_depth_max: u64,
    /// Segments sent again (TCP), packets taken for lost (QUIC).
    pub retransmits: Option<u64>,
    /// One-way delay of each packet by its number, `None` for those that did not come (voice).
    pub by_number: Vec<Option<Duration>>,
    /// What the viewer saw (video).
    pub video: Option<VideoResult>,
    /// Round trips before the run, and each round trip in it (ping).
    pub pings: Option<(PingSummary, PingSummary, Vec<PingPoint>)>,
}

/// What one direction of all links did.
#[derive(Debug, Default)]
pub struct DirectionReport {
    /// One entry a link.
    pub links: Vec<LinkReport>,
    /// How late packets were written, in nanoseconds; `None` on a virtual clock, which is never late.
    pub lateness_ns: Option<Lateness<u64>>,
}

/// What one direction of one link did.
#[derive(Clone, Debug)]
pub struct LinkReport {
    /// Counters since the start of the run.
    pub stats: LinkStats,
    /// Time in queue and serialisation.
    pub queue_delay: Histogram,
    /// One entry per [`SAMPLE`].
    pub samples: Vec<Sample>,
}

/// What one direction of one link did within a [`SAMPLE`].
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Bytes delivered.
    pub tx_bytes: u64,
    /// Packets lost, for whatever reason.
    pub lost_pkts: u64,
    /// Longest time in queue and serialisation.
    pub longest_wait: Duration,
    /// Bytes the line could have carried; `None` without a limit.
    pub capacity: Option<Bytes>,
}

/// What is to be known of a stream's datagrams beside their delays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// How long each is of use; for ever if not limited.
    pub deadline: Option<Duration>,
    /// Whether each packet's delay is kept by its number.
    pub by_number: bool,
}

impl FlowReport {
    /// Payload that arrived, in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.bins.iter().sum()
    }

    /// Share of what was sent that never arrived; zero if nothing was sent.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn loss(&self) -> f64 {
        if self.sent == 0 {
            return 0.0;
        }
        self.sent.saturating_sub(self.received) as f64 / self.sent as f64
    }

    /// The longest time without payload that begins in `from..to`, to the length of a [`BIN`]. Counts from the first
    /// payload on and until `stop`; all times since the run's beginning.
    #[must_use]
    pub fn longest_gap(&self, stop: Duration, from: Duration, to: Duration) -> Duration {
        let index =
            |at: Duration| usize::try_from(at.as_nanos() / BIN.as_nanos()).unwrap_or(usize::MAX);
        let is_empty = |bin: usize| self.bins.get(bin).is_none_or(|&bytes| bytes == 0);
        let first = self.bins.iter().position(|&bytes| bytes > 0);
        let (mut longest, mut current, mut began) = (0_u32, 0_u32, 0);
        for bin in first.unwrap_or(0)..index(stop) {
            if !is_empty(bin) {
                current = 0;
                continue;
            }
            if current == 0 {
                began = bin;
            }
            current += 1;
            if (index(from)..index(to)).contains(&began) {
                longest = longest.max(current);
            }
        }
        BIN * longest
    }

    /// Adds what another program of the same traffic measured.
    pub fn add(&mut self, other: Self) {
        for (sum, other) in [
            (&mut self.bins, other.bins),
            (&mut self.in_order_bins, other.in_order_bins),
            (&mut self.sent_bins, other.sent_bins),
            (&mut self.in_time_bins, other.in_time_bins),
        ] {
            if sum.len() < other.len() {
                sum.resize(other.len(), 0);
            }
            for (sum, bytes) in sum.iter_mut().zip(other) {
                *sum += bytes;
            }
        }
        let room = MAX_DELAYS.saturating_sub(self.delays_ms.len());
        self.delays_ms
            .extend(other.delays_ms.into_iter().take(room));
        self.sent += other.sent;
        self.received += other.received;
        self.received_in_order += other.received_in_order;
        self.received_in_time += other.received_in_time;
        self.reorder_depth_max = self.reorder_depth_max.max(other.reorder_depth_max);
        self.retransmits = match (self.retransmits, other.retransmits) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        if self.by_number.is_empty() {
            self.by_number = other.by_number;
        }
        self.video = self.video.take().or(other.video);
        self.pings = self.pings.take().or(other.pings);
    }

    /// Counts `bytes` of payload that arrive `at` this time after the run's beginning.
    pub fn record(&mut self, at: Duration, bytes: usize) {
        count(&mut self.bins, at, bytes);
    }

    /// Counts `bytes` of the payload that [`record`](Self::record) counts as in order.
    pub fn record_in_order(&mut self, at: Duration, bytes: usize) {
        count(&mut self.in_order_bins, at, bytes);
    }

    /// Counts `bytes` of payload that leave `at` this time after the run's beginning.
    pub fn record_sent(&mut self, at: Duration, bytes: usize) {
        count(&mut self.sent_bins, at, bytes);
    }

    /// Counts the delay of datagram `number` with `bytes` of payload, which was sent at `sent_at` after the run's beginning.
    pub fn record_delay(
        &mut self,
        number: u64,
        sent_at: Option<Duration>,
        delay: Duration,
        bytes: usize,
        asked: Asked,
    ) {
        self.delay(delay);
        if asked.by_number {
            self.delay_of(number, delay);
        }
        if asked.deadline.is_none_or(|deadline| delay <= deadline) {
            self.received_in_time += 1;
            if let Some(at) = sent_at {
                count(&mut self.in_time_bins, at, bytes);
            }
        }
    }

    /// Share of what was sent that never arrived in time; zero if nothing was sent.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn unusable(&self) -> f64 {
        if self.sent == 0 {
            return 0.0;
        }
        self.sent.saturating_sub(self.received_in_time) as f64 / self.sent as f64
    }

    /// Notes that packet `number` took `delay`.
    pub fn delay_of(&mut self, number: u64, delay: Duration) {
        let Ok(index) = usize::try_from(number) else {
            return;
        };
        if index < MAX_DELAYS {
            if self.by_number.len() <= index {
                self.by_number.resize(index + 1, None);
            }
            self.by_number[index] = Some(delay);
        }
    }

    /// Counts one delay.
    pub fn delay(&mut self, delay: Duration) {
        if self.delays_ms.len() < MAX_DELAYS {
            self.delays_ms.push(delay.as_secs_f64() * 1e3);
        }
    }
}

fn count(bins: &mut Vec<u64>, at: Duration, bytes: usize) {
    let Ok(bin) = usize::try_from(at.as_nanos() / BIN.as_nanos()) else {
        return;
    };
    // Bounded: programs end a second after the run.
    if bins.len() <= bin {
        bins.resize(bin + 1, 0);
    }
    bins[bin] += u64::try_from(bytes).unwrap_or(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_count_between_payloads_and_until_the_end() {
        let report = FlowReport {
            bins: vec![0, 0, 0, 9, 0, 9, 0, 0, 9],
            ..FlowReport::default()
        };
        let ms = Duration::from_millis;
        let gap = |stop, from, to| report.longest_gap(ms(stop), ms(from), ms(to));
        assert_eq!(
            gap(90, 0, 90),
            ms(20),
            "what precedes the first payload is no gap"
        );
        assert_eq!(gap(90, 0, 60), ms(10), "began before 60 ms");
        assert_eq!(gap(150, 0, 150), ms(60));
        let silent = FlowReport::default();
        assert_eq!(silent.longest_gap(ms(50), ms(0), ms(50)), ms(50));
    }
}
