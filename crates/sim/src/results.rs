//! Measurements of one run of a scenario: the types of `results.json`, written by `lab run` and `sim run`.
//!
//! The names `scenario`, `seed`, `flows[].{name, goodput_mbps, loss, delay_ms.{p50, p95, p99}, reorder_depth_max}`,
//! `links[].{name, tx_bytes, queue_drops, loss_drops}`, `series` and `lateness_us.{p50, p99}` are a contract with
//! other programs: fields may be added, none may be renamed. Every field has a default, so a file of an older version
//! can still be read. Unknown fields are ignored.
//!
//! Conventions: times are seconds since the traffic began, rates are 10^6 bits per second, shares are 0..=1.
//! *Down* is from the server to the client, *up* the other way. A number that was not measured is `None`; inside
//! an array it is NaN. JSON has no NaN: it is written as `null`, and `null` reads as NaN.
//!
//! Known limit: the sizes here are not bounded, because the scenario (duration, interval) bounds the number of records
//! of a run.

use core::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod media;

pub use media::{Freeze, Picture, VideoResult, VoiceResult};

/// All measurements of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Results {
    /// Name of the scenario, as in its file.
    pub scenario: String,
    /// Description of the scenario in one line, if its file has one.
    pub description: Option<String>,
    /// Seed of all random numbers of the run.
    pub seed: u64,
    /// Whether the run took place in the lab or in the simulator.
    pub world: World,
    /// Scheduler policy of the sending end of the measured direction; empty if no tunnel ran.
    pub policy: String,
    /// The command that repeats the run. If it is empty, the report derives a command from `world`, `scenario` and
    /// `seed`.
    pub command: String,
    /// Version of the program that ran.
    pub version: String,
    /// Length of the run's traffic in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub duration_s: f64,
    /// Reason why the run must not be trusted, e.g. the emulator was late. `None`: the run is accepted.
    pub refused: Option<String>,
    /// Further facts that a reader should know, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// One entry for each traffic flow of the run itself, in the scenario's order. Flows over other transports are in
    /// `baselines`.
    pub flows: Vec<FlowResult>,
    /// One entry for each link, in the scenario's order.
    pub links: Vec<LinkResult>,
    /// One entry for each video, in the scenario's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub video: Vec<VideoResult>,
    /// One entry for each call, in the scenario's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub voice: Vec<VoiceResult>,
    /// RTTs of a ping that ran beside the traffic, if the scenario has a ping.
    pub pings: Option<Pings>,
    /// Events that the scenario caused and changes that were noticed, in order of time.
    pub events: Vec<Event>,
    /// Results of the same traffic over other transports.
    pub baselines: Vec<Baseline>,
    /// Figures of repeated runs, if the scenario ran more than once. All other results are those of the median run.
    pub repeats: Vec<Repeat>,
    /// Measurements over time.
    pub series: Series,
    /// Lateness with which the emulator delivered packets, in microseconds (lab only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness_us: Option<Lateness>,
    /// Answers of the daemons to `pleach status --json`, sampled during the run.
    pub status: Vec<StatusSample>,
}

/// Place of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum World {
    /// Real daemons and kernels over emulated links.
    #[default]
    Lab,
    /// The deterministic simulator.
    Sim,
}

/// One traffic flow as measured by its receiver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowResult {
    /// Name in the scenario.
    pub name: String,
    /// Kind of traffic.
    pub kind: FlowKind,
    /// Direction of the payload.
    pub direction: Direction,
    /// Transport that carried the flow.
    pub transport: Transport,
    /// Congestion control of a TCP flow, e.g. `cubic`.
    pub cc: Option<String>,
    /// Time at which the flow began, in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub start_s: f64,
    /// Duration of the flow in seconds. 0 means the whole run.
    #[serde(deserialize_with = "null_as_nan")]
    pub duration_s: f64,
    /// Payload delivered over the flow's duration, in Mbit/s.
    #[serde(deserialize_with = "null_as_nan")]
    pub goodput_mbps: f64,
    /// Share of the application's packets that never arrived, 0..=1; 0 for TCP.
    #[serde(deserialize_with = "null_as_nan")]
    pub loss: f64,
    /// Delays in milliseconds: one-way delay (UDP), RTT (TCP, QUIC, ping) or completion time (requests).
    pub delay_ms: Quantiles,
    /// Number of packets or requests that the application sent, if it counts them (not TCP, QUIC).
    pub sent_pkts: Option<u64>,
    /// Number of sent packets or requests that arrived, without copies.
    pub received_pkts: Option<u64>,
    /// Number of packets that arrived in order: no packet sent later had arrived before (UDP).
    pub in_order_pkts: Option<u64>,
    /// Share of sent packets that never arrived or arrived after their deadline, 0..=1, if they have a deadline (UDP).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unusable: Option<f64>,
    /// Highest number of later packets that arrived before a late packet.
    pub reorder_depth_max: u64,
    /// Longest time in which no payload arrived, in milliseconds.
    pub longest_gap_ms: Option<f64>,
    /// Number of segments that the sender retransmitted (TCP), or of packets that it considered lost (QUIC).
    pub retransmits: Option<u64>,
    /// Number of lost or late datagrams of all UDP flows in this flow's direction, among those sent within a second
    /// after this flow began: datagrams that never arrived, or arrived after their deadline. Traffic outside the tunnel
    /// does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_lost_pkts: Option<u64>,
    /// Number of packets in this flow's direction that links lost within a second after the flow began, in their
    /// queues or in transit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_line_losses_pkts: Option<u64>,
    /// Time in milliseconds from the end of the flow until the links above the lowest cost rank were at rest. These
    /// links are at rest if together they carry less than 0.2 Mbit/s in each 100 ms of half a second. Rounded up to 100
    /// ms; 0 if they were at rest before the flow ended. `None` if they did not come to rest before the next flow in
    /// this direction began or the run ended, or if all links have the same rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_ms: Option<f64>,
    /// Number of times that the third acknowledgement in a row reported the same packet as missing, averaged over
    /// runs (transfers only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dup_ack_events: Option<f64>,
    /// Number of retransmission timeouts, averaged over runs (transfers only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<f64>,
}

/// Kind of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowKind {
    /// Echo requests.
    Ping,
    /// One bulk QUIC connection.
    Quic,
    /// Many short transfers, one after the other.
    Requests,
    /// One bulk TCP connection.
    #[default]
    Tcp,
    /// Datagrams at a given rate.
    Udp,
    /// A film, sent live.
    Video,
    /// One side of a call.
    Voice,
}

/// Direction of the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Server to client.
    #[default]
    Down,
    /// Client to server.
    Up,
}

/// Transport that carried a flow. In JSON one string: `tunnel`, `mptcp`, `raw` or `single:LINK`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The kernel's Multipath TCP.
    Mptcp,
    /// Plain routing without a tunnel, over the kernel's default route.
    Raw,
    /// Plain routing over this link alone.
    Single(String),
    /// Pleach over all links.
    #[default]
    Tunnel,
}

/// One emulated link. Totals are sums over both directions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkResult {
    /// Name in the scenario.
    pub name: String,
    /// Bytes of IP packets that left the link at its other end.
    pub tx_bytes: u64,
    /// Packets refused by a full queue.
    pub queue_drops: u64,
    /// Packets lost after the queue: random losses and outages.
    pub loss_drops: u64,
    /// Measurements of the direction from server to client.
    pub down: LinkSide,
    /// Measurements of the direction from client to server.
    pub up: LinkSide,
}

/// One direction of one emulated link.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSide {
    /// Bytes of IP packets that left the link at its other end.
    pub tx_bytes: u64,
    /// Packets refused by a full queue.
    pub queue_drops: u64,
    /// Packets lost after the queue: random losses and outages.
    pub loss_drops: u64,
    /// Rate configured at the start of the run, in Mbit/s; `None` for a link driven by a trace.
    pub rate_mbps: Option<f64>,
    /// Mean capacity of the link over the run, in Mbit/s. An outage counts as 0.
    pub capacity_mbps: Option<f64>,
    /// Share of `capacity_mbps` that was used, 0..=1.
    pub utilisation: Option<f64>,
    /// Utilisation of the links up to this cost while costlier links were in use, 0..=1. Only samples count in which
    /// all links together carried more than the capacity of this link and of all links that cost the same or less.
    /// The value is the share of this capacity that was used: if it is below 1, costlier links carried traffic
    /// unnecessarily. `None` if no link costs more, or if there was no such sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<f64>,
    /// Traffic that this link carried while cheaper links had free capacity for it, as a share of the traffic of all
    /// links, 0..=1. `None` if no link is cheaper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excess: Option<f64>,
    /// Delay of packets in the link's queue, in milliseconds.
    pub queue_delay_ms: Quantiles,
}

/// Quantiles of a time. `null` if there was no sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantiles {
    /// Median.
    pub p50: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// RTTs of a ping over the same transport as the traffic.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pings {
    /// Pings before the traffic began.
    pub idle: PingSummary,
    /// Pings while the traffic ran.
    pub loaded: PingSummary,
}

/// Summary of the pings of one phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PingSummary {
    /// Requests sent.
    pub sent: u64,
    /// Requests without a reply.
    pub lost: u64,
    /// RTTs in milliseconds.
    pub rtt_ms: Quantiles,
    /// Longest RTT in milliseconds.
    pub max_ms: Option<f64>,
}

/// An event during the run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Time of the event, in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub time_s: f64,
    /// Name of the link that the event concerns, if any.
    pub link: Option<String>,
    /// Kind of event.
    pub kind: EventKind,
    /// A few words that are written beside the mark in the plots, e.g. `lte silent`.
    pub text: String,
    /// Longest time without payload, over all bulk flows, that began within 2 s after the event, in milliseconds.
    pub gap_ms: Option<f64>,
}

/// Kind of event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// Rate, delay or loss of a link changed.
    Change,
    /// A link was taken down, and the hosts were notified.
    Down,
    /// Any other event.
    #[default]
    Note,
    /// A link drops all packets, and the hosts were not notified.
    Silent,
    /// A link works again.
    Up,
}

/// The same traffic over another transport.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Baseline {
    /// Label in the plot. If it is empty, the label is derived from `transport`.
    pub label: String,
    /// Transport that carried the traffic.
    pub transport: Transport,
    /// Goodput in Mbit/s.
    #[serde(deserialize_with = "null_as_nan")]
    pub goodput_mbps: f64,
    /// Goodput of the tunnel divided by the goodput of this transport. Above 1, the tunnel is faster. `None` if this
    /// transport delivered nothing.
    pub ratio: Option<f64>,
    /// Goodput over time, in Mbit/s. The samples have the length of [`Series::interval_ms`].
    #[serde(deserialize_with = "nulls_as_nan")]
    pub series_mbps: Vec<f64>,
}

/// One figure over repeated runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Repeat {
    /// Name of the figure with its unit, e.g. `goodput_mbps`.
    pub metric: String,
    /// Median of `values`.
    pub median: Option<f64>,
    /// One value for each run, in the order of the runs.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub values: Vec<f64>,
}

/// Measurements over time. Sample `i` of an array covers `i * interval_ms .. (i + 1) * interval_ms` after the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// Length of a sample in milliseconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub interval_ms: f64,
    /// One entry for each link.
    pub links: Vec<LinkSeries>,
    /// One entry for each flow.
    pub flows: Vec<FlowSeries>,
    /// Pings while the traffic ran.
    pub ping: Vec<PingPoint>,
    /// Histogram of the emulator's lateness, in ascending order (lab only).
    pub lateness: Vec<LatenessBin>,
}

/// One link over time. An empty array was not measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSeries {
    /// Name in the scenario.
    pub name: String,
    /// Rate of delivery to the client, in Mbit/s.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub down_mbps: Vec<f64>,
    /// Rate of delivery to the server, in Mbit/s.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub up_mbps: Vec<f64>,
    /// Longest delay in the queue towards the client within the sample, in milliseconds.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub queue_down_ms: Vec<f64>,
    /// Longest delay in the queue towards the server within the sample, in milliseconds.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub queue_up_ms: Vec<f64>,
    /// Capacity of the link towards the client, in Mbit/s.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub capacity_down_mbps: Vec<f64>,
    /// Capacity of the link towards the server, in Mbit/s.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub capacity_up_mbps: Vec<f64>,
    /// Number of packets lost on the link to the client, in the queue or in transit.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub lost_down_pkts: Vec<f64>,
    /// Number of packets lost on the link to the server, in the queue or in transit.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub lost_up_pkts: Vec<f64>,
    /// Weight of the link at the gateway, which sends to the client.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub weight: Vec<f64>,
}

/// One flow over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowSeries {
    /// Name in the scenario.
    pub name: String,
    /// Payload delivered, in Mbit/s.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub goodput_mbps: Vec<f64>,
    /// Payload delivered in order, in Mbit/s: no packet sent later had arrived before (UDP).
    #[serde(deserialize_with = "nulls_as_nan")]
    pub in_order_mbps: Vec<f64>,
    /// Payload sent, in Mbit/s (UDP).
    #[serde(deserialize_with = "nulls_as_nan")]
    pub sent_mbps: Vec<f64>,
    /// Payload that arrived within its deadline, in Mbit/s, by the time of sending (UDP with a deadline).
    #[serde(
        deserialize_with = "nulls_as_nan",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub in_time_mbps: Vec<f64>,
}

/// One ping: `[seconds, milliseconds]` in JSON. `null` milliseconds mean that no reply arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "PingJson", into = "PingJson")]
pub struct PingPoint {
    /// Time at which the request was sent, in seconds.
    pub time_s: f64,
    /// RTT in milliseconds. `None`: no reply arrived.
    pub rtt_ms: Option<f64>,
}

/// One bin of the lateness histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatenessBin {
    /// Upper end in microseconds. The lower end is the upper end of the previous bin, or 0.
    #[serde(deserialize_with = "null_as_nan")]
    pub up_to_us: f64,
    /// Number of packets delivered this late.
    pub count: u64,
}

/// Lateness of packets that leave the emulator, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lateness {
    /// Median.
    #[serde(deserialize_with = "null_as_nan")]
    pub p50: f64,
    /// 99th percentile.
    #[serde(deserialize_with = "null_as_nan")]
    pub p99: f64,
    /// Maximum, if recorded.
    pub max: Option<f64>,
    /// Highest accepted `p99`: runs above it are refused. `None`: [`LATENESS_LIMIT_US`] applies.
    pub limit_p99: Option<f64>,
}

/// Status of one daemon.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusSample {
    /// Time of the sample, in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub time_s: f64,
    /// End at which the daemon runs, e.g. `client`.
    pub node: String,
    /// Answer of the daemon to `pleach status --json`.
    pub status: serde_json::Value,
}

impl Results {
    /// Returns the content of `results.json`.
    ///
    /// # Errors
    /// Fails only if a `status` value cannot be serialised; the types here cause no errors.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Parses the output of [`Self::to_json`]. Missing fields get their defaults.
    ///
    /// # Errors
    /// Fails if `json` is not JSON, or if a field has another type.
    pub fn from_json(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    /// Sets `refused` if the emulator's lateness exceeded its limit. Keeps an earlier reason.
    pub fn judge_lateness(&mut self) {
        let Some(lateness) = self.lateness_us else {
            return;
        };
        let limit = lateness.limit();
        if self.refused.is_none() && (lateness.p99.is_nan() || lateness.p99 > limit) {
            self.refused = Some(format!(
                "the emulator was late: p99 {:.0} µs, limit {limit:.0} µs",
                lateness.p99
            ));
        }
    }
}

impl Quantiles {
    /// Sorts `samples` and returns their quantiles.
    #[must_use]
    pub fn of(samples: &mut [f64]) -> Self {
        samples.sort_by(f64::total_cmp);
        Self {
            p50: quantile(samples, 0.50),
            p95: quantile(samples, 0.95),
            p99: quantile(samples, 0.99),
        }
    }
}

impl Lateness {
    /// Returns the highest accepted `p99` in microseconds.
    #[must_use]
    pub fn limit(&self) -> f64 {
        self.limit_p99.unwrap_or(LATENESS_LIMIT_US)
    }
}

impl Repeat {
    /// Creates the figure `metric` with one of `values` for each run.
    #[must_use]
    pub fn new(metric: &str, values: Vec<f64>) -> Self {
        Self {
            metric: metric.to_owned(),
            median: median(&values),
            values,
        }
    }
}

/// Returns the quantile `q` of `sorted` (ascending): the smallest sample such that at least the share `q` of all
/// samples is not above it. `None` if `sorted` is empty.
///
/// This is the nearest-rank definition, so the result is always one of the samples. `q` is clamped to 0..=1.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a rank within a slice, clamped below"
)]
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    let last = sorted.len().checked_sub(1)?;
    sorted.get(rank.saturating_sub(1).min(last)).copied()
}

/// Returns the mean of the samples that begin at `warm_up` or later. Each sample covers `interval_ms`; a sample that is
/// not finite counts as 0. `None` if there is no such sample.
#[must_use]
pub fn mean_after(warm_up: Duration, interval_ms: f64, samples: &[f64]) -> Option<f64> {
    let begin_ms = warm_up.as_secs_f64() * 1e3 - interval_ms / 2.0;
    let times = (0_u32..).map(|index| f64::from(index) * interval_ms);
    let (mut sum, mut count) = (0.0, 0.0);
    for (_, sample) in times.zip(samples).filter(|(time, _)| *time >= begin_ms) {
        sum += if sample.is_finite() { *sample } else { 0.0 };
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}

/// Returns the median of the finite `values`, which is the mean of the middle two if their number is even. `None` if no
/// value is finite.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(sorted.len() / 2 - 1)?;
    Some(f64::midpoint(lower, upper))
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mptcp => f.write_str("mptcp"),
            Self::Raw => f.write_str("raw"),
            Self::Single(link) => write!(f, "single:{link}"),
            Self::Tunnel => f.write_str("tunnel"),
        }
    }
}

impl Serialize for Transport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Transport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "mptcp" => Ok(Self::Mptcp),
            "raw" => Ok(Self::Raw),
            "tunnel" => Ok(Self::Tunnel),
            other => match other.strip_prefix("single:") {
                Some(link) => Ok(Self::Single(link.to_owned())),
                None => Err(serde::de::Error::custom(
                    "expected tunnel, mptcp, raw or single:LINK",
                )),
            },
        }
    }
}

/// JSON form of [`PingPoint`]. Both numbers may be `null`, because JSON cannot express numbers that are not finite.
type PingJson = (Option<f64>, Option<f64>);

impl From<PingJson> for PingPoint {
    fn from((time_s, rtt_ms): PingJson) -> Self {
        Self {
            time_s: time_s.unwrap_or(f64::NAN),
            rtt_ms,
        }
    }
}

impl From<PingPoint> for PingJson {
    fn from(point: PingPoint) -> Self {
        (Some(point.time_s), point.rtt_ms)
    }
}

fn null_as_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

fn nulls_as_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let values: Vec<Option<f64>> = Vec::deserialize(deserializer)?;
    Ok(values.into_iter().map(|v| v.unwrap_or(f64::NAN)).collect())
}

/// Highest accepted p99 of the emulator's lateness, in microseconds. A two-core machine that also did other work
/// reached 0.8 to 2.8 ms. With this limit, the error of a check of a 20 ms delay target is at most a tenth.
pub const LATENESS_LIMIT_US: f64 = 2_000.0;
