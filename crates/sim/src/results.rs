//! What one run of a scenario measured: the types of `results.json`, written by `lab run` and `sim run`.
//!
//! The names `scenario`, `seed`, `flows[].{name, goodput_mbps, loss, delay_ms.{p50, p95, p99}, reorder_depth_max}`,
//! `links[].{name, tx_bytes, queue_drops, loss_drops}`, `series` and `lateness_us.{p50, p99}` are a contract with
//! other programs: fields may be added, none may be renamed. Every field has a default, so a file of an older
//! version still reads, and unknown fields are ignored.
//!
//! Conventions: times are seconds since the traffic began, rates are 10^6 bits per second, shares are 0..=1.
//! *Down* is from the server to the client, *up* the other way. A number that was not measured is `None`; inside
//! an array it is NaN. JSON has no NaN: it is written as `null`, and `null` reads as NaN.
//!
//! Known limit: nothing here is bounded, because the scenario (duration, interval) bounds what a run records.

use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod media;

pub use media::{Freeze, Picture, VideoResult, VoiceResult};

/// All that one run measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Results {
    /// Name of the scenario, as in its file.
    pub scenario: String,
    /// One line in plain words on what the scenario is, if its file says so.
    pub description: Option<String>,
    /// Seed of all randomness of the run.
    pub seed: u64,
    /// Where it ran.
    pub world: World,
    /// Scheduler policy of the sending end of the measured direction; empty if no tunnel ran.
    pub policy: String,
    /// The command that repeats the run; the report makes one up from `world`, `scenario` and `seed` if empty.
    pub command: String,
    /// Version of the program that ran.
    pub version: String,
    /// Length of the run's traffic in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub duration_s: f64,
    /// Why the run must not be trusted, e.g. the emulator was late; `None`: accepted.
    pub refused: Option<String>,
    /// What else a reader should know, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// One entry a traffic flow, in the scenario's order. Those of the run itself; other transports' are in `baselines`.
    pub flows: Vec<FlowResult>,
    /// One entry a link, in the scenario's order.
    pub links: Vec<LinkResult>,
    /// One entry a video, in the scenario's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub video: Vec<VideoResult>,
    /// One entry a call, in the scenario's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub voice: Vec<VoiceResult>,
    /// Round trips of the ping beside the traffic, if the scenario has one.
    pub pings: Option<Pings>,
    /// What the scenario did to the links, and what was noticed, in order of time.
    pub events: Vec<Event>,
    /// The same traffic over other transports.
    pub baselines: Vec<Baseline>,
    /// Numbers of repeated runs, if the scenario ran more than once; the rest of the results is of the median run.
    pub repeats: Vec<Repeat>,
    /// Numbers over time.
    pub series: Series,
    /// How late the emulator delivered packets, in microseconds (lab only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness_us: Option<Lateness>,
    /// What the daemons said of themselves, sampled during the run.
    pub status: Vec<StatusSample>,
}

/// Where a run took place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum World {
    /// Real daemons and kernels over emulated links.
    #[default]
    Lab,
    /// The deterministic simulator.
    Sim,
}

/// One traffic flow as its receiver saw it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowResult {
    /// Name in the scenario.
    pub name: String,
    /// What kind of traffic.
    pub kind: FlowKind,
    /// Which way the payload went.
    pub direction: Direction,
    /// What carried it.
    pub transport: Transport,
    /// Congestion control of a TCP flow, e.g. `cubic`.
    pub cc: Option<String>,
    /// When it began, in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub start_s: f64,
    /// How long it ran, in seconds; 0 means the whole run.
    #[serde(deserialize_with = "null_as_nan")]
    pub duration_s: f64,
    /// Payload delivered over the flow's time, in Mbit/s.
    #[serde(deserialize_with = "null_as_nan")]
    pub goodput_mbps: f64,
    /// Share of the application's packets that never arrived, 0..=1; 0 for TCP.
    #[serde(deserialize_with = "null_as_nan")]
    pub loss: f64,
    /// One-way delay (UDP), round trip (TCP, QUIC, ping) or completion time (requests), in milliseconds.
    pub delay_ms: Quantiles,
    /// Packets or requests the application sent, if it counts them (not TCP, QUIC).
    pub sent_pkts: Option<u64>,
    /// Those of them that arrived, copies not counted.
    pub received_pkts: Option<u64>,
    /// Those of them that arrived in order: after none that was sent later (UDP).
    pub in_order_pkts: Option<u64>,
    /// Share of them that never arrived or came after their deadline, 0..=1, if they have one (UDP).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unusable: Option<f64>,
    /// How many later packets arrived before a late one, at most.
    pub reorder_depth_max: u64,
    /// Longest time without any payload arriving, in milliseconds.
    pub longest_gap_ms: Option<f64>,
    /// Segments the sender sent again (TCP), packets it took for lost (QUIC).
    pub retransmits: Option<u64>,
    /// Datagrams of all UDP flows of this way that left within a second of this flow's start and never arrived, or came
    /// after their deadline; what passes by the tunnel does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_lost_pkts: Option<u64>,
    /// Packets of this way that links lost within a second of its start, in their queues or on the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_line_losses_pkts: Option<u64>,
    /// Time from its end until the links above the lowest rank were at rest: below 0.2 Mbit/s together in each 100 ms of half
    /// a second. In milliseconds, rounded up to 100; 0 if they were before. `None` if they did not come to rest before the
    /// next flow of this way began or the run ended, or if all links are of one rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_ms: Option<f64>,
    /// Third acknowledgements in a row that miss the same packet, a mean over runs (transfers only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dup_ack_events: Option<f64>,
    /// Retransmission timeouts, a mean over runs (transfers only).
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
    /// A film, as it is sent live.
    Video,
    /// One side of a call.
    Voice,
}

/// Which way payload goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Server to client.
    #[default]
    Down,
    /// Client to server.
    Up,
}

/// What carried a flow. In JSON one string: `tunnel`, `mptcp`, `raw` or `single:LINK`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The kernel's Multipath TCP.
    Mptcp,
    /// Plain routing without tunnel: the kernel's default route.
    Raw,
    /// Plain routing over this link alone.
    Single(String),
    /// Pleach over all links.
    #[default]
    Tunnel,
}

/// One emulated link. The totals are of both directions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkResult {
    /// Name in the scenario.
    pub name: String,
    /// Bytes of IP packets that came out at the far end.
    pub tx_bytes: u64,
    /// Packets refused by a full queue.
    pub queue_drops: u64,
    /// Packets lost on the line, outages included.
    pub loss_drops: u64,
    /// Server to client.
    pub down: LinkSide,
    /// Client to server.
    pub up: LinkSide,
}

/// One direction of one emulated link.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSide {
    /// Bytes of IP packets that came out at the far end.
    pub tx_bytes: u64,
    /// Packets refused by a full queue.
    pub queue_drops: u64,
    /// Packets lost on the line, outages included.
    pub loss_drops: u64,
    /// Rate configured at the start of the run, in Mbit/s; `None` for a link driven by a trace.
    pub rate_mbps: Option<f64>,
    /// Mean of what the line offered over the run, in Mbit/s; an outage counts as 0.
    pub capacity_mbps: Option<f64>,
    /// Share of `capacity_mbps` that was used, 0..=1.
    pub utilisation: Option<f64>,
    /// Share of their capacity that this link and all that are not dearer carried while all links together carried more than
    /// that, 0..=1: less than 1 was left to dearer links without need. `None` if no link is dearer, or if that never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<f64>,
    /// What this link carried while cheaper ones had room for it, as a share of what all links carried, 0..=1. `None` if no
    /// link is cheaper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excess: Option<f64>,
    /// Time packets waited in the link's queue, in milliseconds.
    pub queue_delay_ms: Quantiles,
}

/// Quantiles of a time; `null` if there was no sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantiles {
    /// Median.
    pub p50: Option<f64>,
    /// 95 of 100 are at most this.
    pub p95: Option<f64>,
    /// 99 of 100 are at most this.
    pub p99: Option<f64>,
}

/// Round trips of a ping through the same transport as the traffic.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pings {
    /// Before the traffic began.
    pub idle: PingSummary,
    /// While the traffic ran.
    pub loaded: PingSummary,
}

/// What one phase of pinging saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PingSummary {
    /// Requests sent.
    pub sent: u64,
    /// Requests without a reply.
    pub lost: u64,
    /// Round trip in milliseconds.
    pub rtt_ms: Quantiles,
    /// Longest round trip in milliseconds.
    pub max_ms: Option<f64>,
}

/// Something that happened during the run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// When, in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub time_s: f64,
    /// The link it concerns, if one.
    pub link: Option<String>,
    /// What sort of thing.
    pub kind: EventKind,
    /// A few words that stand beside the mark in the plots, e.g. `lte silent`.
    pub text: String,
    /// Longest time without payload that began within 2 s after the event, over all bulk flows, in milliseconds.
    pub gap_ms: Option<f64>,
}

/// Sort of event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// Rate, delay or loss of a link changed.
    Change,
    /// A link was taken down; the hosts were told.
    Down,
    /// Anything else.
    #[default]
    Note,
    /// A link swallows all packets; nobody was told.
    Silent,
    /// A link came back.
    Up,
}

/// The same traffic over another transport.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Baseline {
    /// What it is called in the plot; empty: made from `transport`.
    pub label: String,
    /// What carried it.
    pub transport: Transport,
    /// Goodput in Mbit/s.
    #[serde(deserialize_with = "null_as_nan")]
    pub goodput_mbps: f64,
    /// Goodput of the tunnel over this one's: above 1 the tunnel is faster; `None` if this one delivered nothing.
    pub ratio: Option<f64>,
    /// The goodput over time, in Mbit/s; samples are as long as those of [`Series`].
    #[serde(deserialize_with = "nulls_as_nan")]
    pub series_mbps: Vec<f64>,
}

/// One number over repeated runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Repeat {
    /// Which number, with its unit, e.g. `goodput_mbps`.
    pub metric: String,
    /// Median of `values`.
    pub median: Option<f64>,
    /// One value a run, in the order of the runs.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub values: Vec<f64>,
}

/// Numbers over time. Sample `i` of an array covers `i * interval_ms .. (i + 1) * interval_ms` after the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// Length of a sample in milliseconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub interval_ms: f64,
    /// One entry a link.
    pub links: Vec<LinkSeries>,
    /// One entry a flow.
    pub flows: Vec<FlowSeries>,
    /// Ping while the traffic ran.
    pub ping: Vec<PingPoint>,
    /// Histogram of the emulator's lateness, in ascending order (lab only).
    pub lateness: Vec<LatenessBin>,
}

/// One link over time. Any array may be empty: not measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSeries {
    /// Name in the scenario.
    pub name: String,
    /// Delivered to the client, in Mbit/s.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub down_mbps: Vec<f64>,
    /// Delivered to the server, in Mbit/s.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub up_mbps: Vec<f64>,
    /// Longest wait in the queue towards the client within the sample, in milliseconds.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub queue_down_ms: Vec<f64>,
    /// Longest wait in the queue towards the server within the sample, in milliseconds.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub queue_up_ms: Vec<f64>,
    /// What the line offered towards the client, in Mbit/s.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub capacity_down_mbps: Vec<f64>,
    /// What the line offered towards the server, in Mbit/s.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub capacity_up_mbps: Vec<f64>,
    /// Packets lost on the way to the client, in the queue or on the line.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub lost_down_pkts: Vec<f64>,
    /// Packets lost on the way to the server, in the queue or on the line.
    #[serde(deserialize_with = "nulls_as_nan")]
    pub lost_up_pkts: Vec<f64>,
    /// The link's weight at the gateway, which sends to the client.
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
    /// Payload delivered in order, in Mbit/s: what arrived after none that was sent later (UDP).
    #[serde(deserialize_with = "nulls_as_nan")]
    pub in_order_mbps: Vec<f64>,
    /// Payload sent, in Mbit/s (UDP).
    #[serde(deserialize_with = "nulls_as_nan")]
    pub sent_mbps: Vec<f64>,
    /// Payload that arrived within its deadline, by when it was sent, in Mbit/s (UDP with a deadline).
    #[serde(
        deserialize_with = "nulls_as_nan",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub in_time_mbps: Vec<f64>,
}

/// One ping: `[seconds, milliseconds]` in JSON, `null` milliseconds for no reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "PingJson", into = "PingJson")]
pub struct PingPoint {
    /// When it was sent, in seconds.
    pub time_s: f64,
    /// Round trip in milliseconds; `None`: no reply.
    pub rtt_ms: Option<f64>,
}

/// One bin of the lateness histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatenessBin {
    /// Upper end in microseconds; the lower one is the bin before, or 0.
    #[serde(deserialize_with = "null_as_nan")]
    pub up_to_us: f64,
    /// Packets delivered this late.
    pub count: u64,
}

/// How late packets left the emulator, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lateness {
    /// Median.
    #[serde(deserialize_with = "null_as_nan")]
    pub p50: f64,
    /// 99 of 100 are at most this.
    #[serde(deserialize_with = "null_as_nan")]
    pub p99: f64,
    /// The worst, if recorded.
    pub max: Option<f64>,
    /// Runs with a higher `p99` than this are refused; `None`: [`LATENESS_LIMIT_US`].
    pub limit_p99: Option<f64>,
}

/// What one daemon said of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusSample {
    /// When, in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub time_s: f64,
    /// Which end, e.g. `client`.
    pub node: String,
    /// Its answer to `pleach status --json`.
    pub status: serde_json::Value,
}

impl Results {
    /// The content of `results.json`.
    ///
    /// # Errors
    /// None that the types here can cause; a `status` value that does not serialise.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Reads what [`Self::to_json`] wrote; missing fields get their defaults.
    ///
    /// # Errors
    /// `json` is not JSON, or a field has another type.
    pub fn from_json(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    /// Sets `refused` if the emulator was later than its limit; keeps an earlier reason.
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
    /// The quantiles of `samples`, which this sorts.
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
    /// The highest `p99` in microseconds that is accepted.
    #[must_use]
    pub fn limit(&self) -> f64 {
        self.limit_p99.unwrap_or(LATENESS_LIMIT_US)
    }
}

impl Repeat {
    /// `metric` with its `values`, one a run.
    #[must_use]
    pub fn new(metric: &str, values: Vec<f64>) -> Self {
        Self {
            metric: metric.to_owned(),
            median: median(&values),
            values,
        }
    }
}

/// The smallest of `sorted` (ascending) that at least the share `q` of all is not above; `None` if empty.
///
/// The nearest-rank definition: always one of the samples. `q` is clamped to 0..=1.
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

/// The median of the finite `values`, the mean of the middle two if their number is even; `None` if there are none.
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

/// Both may be `null`: JSON has no number for what is not finite.
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

/// Highest accepted p99 of the emulator's lateness, in microseconds. A two-core machine shared with other work showed
/// 0.8 to 2.8 ms; a delay target of 20 ms is judged to a tenth.
pub const LATENESS_LIMIT_US: f64 = 2_000.0;
