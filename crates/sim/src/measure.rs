//! Raw measurements of a run, from which [`Results`](crate::results::Results) are computed. The lab's programs and the
//! simulator's hosts fill the same records.

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
/// Shortest time for which a tunnel has been up when a run begins: real daemons run for days and have measured their
/// links long before a download starts.
pub const SETTLE: Duration = Duration::from_secs(3);
/// Time before the run at which a ping starts, to measure the idle RTT.
pub const IDLE_PING: Duration = Duration::from_secs(1);
/// Highest number of delays stored for one flow.
const MAX_DELAYS: usize = 4_000_000;

/// Measurements of one phase of a run.
#[derive(Debug)]
pub struct PhaseReport {
    /// One entry for each traffic of the scenario. `None` if the traffic did not run.
    pub flows: Vec<Option<FlowReport>>,
    /// Measurements of the direction from the server to the client.
    pub down: DirectionReport,
    /// Measurements of the direction from the client to the server.
    pub up: DirectionReport,
    /// Status of the tunnel's ends, sampled over time.
    pub status: Vec<StatusSample>,
    /// Weights of the links at the gateway, for the down direction. One entry for each link of the scenario, each
    /// with one value per [`SAMPLE`], which is NaN if the weight is unknown. Empty without a tunnel.
    pub weights: Vec<Vec<f64>>,
}

/// Measurements of one flow.
#[derive(Clone, Debug, Default)]
pub struct FlowReport {
    /// Payload bytes that arrived, per [`BIN`] since the start of the run.
    pub bins: Vec<u64>,
    /// Payload bytes that arrived in order, per [`BIN`]. A UDP datagram is in order if its number is above the
    /// numbers of all datagrams that arrived before it.
    pub in_order_bins: Vec<u64>,
    /// Payload bytes sent per [`BIN`] (UDP).
    pub sent_bins: Vec<u64>,
    /// Delays in milliseconds: one-way delay (UDP), RTT (TCP, QUIC, ping) or completion time (requests).
    pub delays_ms: Vec<f64>,
    /// Datagrams or requests sent.
    pub sent: u64,
    /// Datagrams or replies that arrived, without copies.
    pub received: u64,
    /// Datagrams that arrived in order (UDP).
    pub received_in_order: u64,
    /// Datagrams that arrived within their deadline (UDP). All datagrams that arrived, if they have no deadline.
    pub received_in_time: u64,
    /// Payload bytes of datagrams that arrived within their deadline, per [`BIN`] of their time of sending.
    pub in_time_bins: Vec<u64>,
    /// Highest number of later datagrams that arrived before a late datagram.
    pub reorder_depth_max: u64,
    /// Segments retransmitted (TCP), or packets considered lost (QUIC).
    pub retransmits: Option<u64>,
    /// One-way delay of each packet by its number. `None` for packets that did not arrive (voice).
    pub by_number: Vec<Option<Duration>>,
    /// Quality of the video as its viewer saw it (video).
    pub video: Option<VideoResult>,
    /// Summary of the RTTs before the run, summary of the RTTs during the run, and each RTT during the run (ping).
    pub pings: Option<(PingSummary, PingSummary, Vec<PingPoint>)>,
}

/// Measurements of one direction of all links.
#[derive(Debug, Default)]
pub struct DirectionReport {
    /// One entry for each link.
    pub links: Vec<LinkReport>,
    /// Lateness with which packets were written, in nanoseconds. `None` on a virtual clock, which is never late.
    pub lateness_ns: Option<Lateness<u64>>,
}

/// Measurements of one direction of one link.
#[derive(Clone, Debug)]
pub struct LinkReport {
    /// Counters since the start of the run.
    pub stats: LinkStats,
    /// Time that packets spent in the queue and in serialisation.
    pub queue_delay: Histogram,
    /// One entry per [`SAMPLE`].
    pub samples: Vec<Sample>,
}

/// Measurements of one direction of one link within a [`SAMPLE`].
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Bytes delivered.
    pub tx_bytes: u64,
    /// Packets lost, for any reason.
    pub lost_pkts: u64,
    /// Longest time that a packet spent in the queue and in serialisation.
    pub longest_wait: Duration,
    /// Bytes that the link could have carried. `None` if the link's rate is not limited.
    pub capacity: Option<Bytes>,
}

/// Optional measurements of a stream's datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Time within which a datagram is of use. `None`: no limit.
    pub deadline: Option<Duration>,
    /// Whether the delay of each packet is stored by its number.
    pub by_number: bool,
}

impl FlowReport {
    /// Returns the number of payload bytes that arrived.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.bins.iter().sum()
    }

    /// Returns the share of sent datagrams or requests that never arrived. Zero if nothing was sent.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn loss(&self) -> f64 {
        if self.sent == 0 {
            return 0.0;
        }
        self.sent.saturating_sub(self.received) as f64 / self.sent as f64
    }

    /// Returns the longest time without payload that begins in `from..to`, in multiples of [`BIN`]. The time before the
    /// first payload and the time after `stop` do not count. All times are relative to the start of the run.
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

    /// Adds the measurements of another program of the same traffic.
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

    /// Counts `bytes` of payload that arrive at time `at` since the start of the run.
    pub fn record(&mut self, at: Duration, bytes: usize) {
        count(&mut self.bins, at, bytes);
    }

    /// Counts `bytes` of payload that arrive in order. [`record`](Self::record) counts the same bytes too.
    pub fn record_in_order(&mut self, at: Duration, bytes: usize) {
        count(&mut self.in_order_bins, at, bytes);
    }

    /// Counts `bytes` of payload that are sent at time `at` since the start of the run.
    pub fn record_sent(&mut self, at: Duration, bytes: usize) {
        count(&mut self.sent_bins, at, bytes);
    }

    /// Counts the delay of datagram `number` with `bytes` of payload, which was sent at time `sent_at` since the start
    /// of the run.
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

    /// Returns the share of sent datagrams that never arrived in time. Zero if nothing was sent.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn unusable(&self) -> f64 {
        if self.sent == 0 {
            return 0.0;
        }
        self.sent.saturating_sub(self.received_in_time) as f64 / self.sent as f64
    }

    /// Stores the delay of packet `number`.
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

    /// Stores one delay.
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
    // The number of bins is bounded, because programs end a second after the run.
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
