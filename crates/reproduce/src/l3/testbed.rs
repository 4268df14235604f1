//! The paper's testbed (section 5.1) as scenario text.
//!
//! Published: DSL shaped to 64 Mbit/s with an RTT of about 13 ms; LTE of about 60 Mbit/s with 25 to 45 ms; UDP
//! packets of 1492 bytes; `w_fixed` 50, `T_report` 50 ms; traffic from the server to the client only.
//!
//! Not published, and chosen here:
//!
//! - the DSL's capacity at IP level (62.5 Mbit/s: 64 less framing) and its buffer (256 packets): the values with
//!   which the nine loss rates of figure 3 fit best
//! - the lateness of the UDP sender, [`JITTER`]
//! - `T_lto` of 50 ms (the reorder timeout of 5.3)
//! - the lines' rates towards the server, which carry reports only, and the LTE's buffer (100 ms)
//!
//! All rates are rates of IP packets on the lines, as in the paper. The paper adds 4 bytes of sequence numbers to a
//! packet. pleach adds a header, a tag, and a second IP and UDP header. So the payload is smaller here, and the
//! packets on the lines have the same length.

use pleach_core::wire::header::DATA_OVERHEAD;
use pleach_sim::{
    report::{Chart, ChartLine},
    results::Results,
};

use crate::{runs::Runs, series};

/// Length of a packet on the lines, in bytes (5.1).
pub const PACKET_BYTES: usize = 1492;
/// Length of IPv4 and UDP headers in bytes.
const IP_UDP_BYTES: usize = 28;
/// Maximum length in bytes of an IP packet in the tunnel: with the tunnel's headers it is as long as the paper's
/// packets.
pub const MTU: usize = PACKET_BYTES - DATA_OVERHEAD - IP_UDP_BYTES;
/// Payload in bytes of a datagram in the tunnel.
pub const PAYLOAD_BYTES: usize = MTU - IP_UDP_BYTES;
/// Capacity of the DSL in Mbit/s of IP packets.
pub const DSL_MBPS: f64 = 62.5;
/// Rate in Mbit/s to which the DSL is shaped (5.1).
pub const DSL_SYNC_MBPS: f64 = 64.0;
/// Weight of the DSL (5.1).
pub const W_FIXED: f64 = 50.0;
/// Capacity of the DSL's buffer in packets.
const DSL_QUEUE_PKTS: usize = 256;

/// Maximum lateness of each datagram. The paper's senders and gateways are ordinary programs (its gateway handles
/// every packet through `libnetfilter_queue`), so the intervals between its datagrams varied. With exact intervals,
/// flows that share a full queue synchronise: one TCP flow that competes with the UDP flow of 5.4 gets 1.3 Mbit/s
/// instead of the published 7.8 Mbit/s. The lateness is fitted to the published rate: with 0.3, 1 and 3 ms the TCP
/// flow gets about 4, 8 to 10 (depending on the seed) and 13 Mbit/s.
pub const JITTER: &str = "1ms";

/// Parameters of the paper's algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Gain k.
    pub k: f64,
    /// `T_dwd` in milliseconds.
    pub t_dwd_ms: u32,
    /// Maximum weight of the LTE.
    pub w_mobile_max: u32,
}

/// Returns name, duration, lines and tunnel of a scenario. The caller appends the traffic.
#[must_use]
pub fn scenario(name: &str, about: &str, duration_s: f64, parameters: Parameters) -> String {
    let Parameters {
        k,
        t_dwd_ms,
        w_mobile_max,
    } = parameters;
    let queue_bytes = DSL_QUEUE_PKTS * PACKET_BYTES;
    format!(
        "name = \"{name}\"
description = \"{about}\"
duration = \"{duration_s}s\"

[[link]]
name = \"dsl\"
rate = \"{DSL_MBPS}Mbit\"      # 64 Mbit/s less framing
delay = \"6.5ms\"
queue = \"{queue_bytes}B\"      # {DSL_QUEUE_PKTS} packets
[link.up]
rate = \"12Mbit\"

[[link]]
name = \"lte\"
rate = \"60Mbit\"
delay = \"12.5ms\"
jitter = \"10ms\"              # round trip of 25 to 45 ms
queue = \"750kB\"              # 100 ms
[link.up]
rate = \"20Mbit\"

[tunnel]
policy = \"awi\"
fixed = \"dsl\"
k = {k:?}
t_dwd = \"{t_dwd_ms}ms\"
w_fixed = {W_FIXED}
w_mobile_max = {w_mobile_max}
t_report = \"50ms\"
t_lto = \"50ms\"
mtu = {MTU}                   # {PACKET_BYTES} bytes on the lines
compression = false
"
    )
}

/// Returns the payload rate of packets that take `mbps` on the lines, in the notation of scenario files.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "packet lengths are small")]
pub fn payload_rate(mbps: f64) -> String {
    let share = PAYLOAD_BYTES as f64 / PACKET_BYTES as f64;
    format!("{:.6}Mbit", mbps * share)
}

/// Returns a UDP flow at `mbps` on the lines, from `start_s` to `stop_s`.
#[must_use]
pub fn udp(name: &str, mbps: f64, start_s: f64, stop_s: f64) -> String {
    format!(
        "
[[traffic]]
kind = \"udp\"
name = \"{name}\"
size = \"{PAYLOAD_BYTES}B\"
rate = \"{}\"   # {mbps} Mbit/s on the lines
jitter = \"{JITTER}\"
start = \"{start_s}s\"
stop = \"{stop_s}s\"
",
        payload_rate(mbps)
    )
}

/// Returns bulk TCP flows on the DSL outside the tunnel, as scenario text. The RTT to the server is 50 ms ("50ms away
/// from the client"): 13 ms on the DSL, and 18.5 ms in each direction between the DSL and the server. The flows use
/// CUBIC, as the paper's Debian did, and Linux's loss recovery.
#[must_use]
pub fn tcp(flows: u32, start_s: f64, stop_s: f64) -> String {
    format!(
        "
[[traffic]]
kind = \"tcp\"
name = \"tcp\"
cc = \"cubic\"
flows = {flows}
link = \"dsl\"
distance = \"18.5ms\"          # a round trip of 50 ms with the DSL's
start = \"{start_s}s\"
stop = \"{stop_s}s\"
"
    )
}

/// Returns `k` as it appears in names: `0.5` is `05`, `1` is `1`.
#[must_use]
pub fn k_in_name(k: f64) -> String {
    k.to_string().replace('.', "")
}

/// Returns the mean rate in Mbit/s that `link` delivered to the client over `seconds`.
#[must_use]
pub fn load(results: &Results, link: &str, seconds: core::ops::Range<f64>) -> Option<f64> {
    let series = series::link(results, link)?;
    series::mean(series::window(results, &series.down_mbps, seconds))
}

/// Returns the share of the packets sent to `link` over `seconds` that the link lost.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "packet lengths are small")]
pub fn link_loss(results: &Results, link: &str, seconds: core::ops::Range<f64>) -> Option<f64> {
    let series = series::link(results, link)?;
    let lost = series::sum(series::window(
        results,
        &series.lost_down_pkts,
        seconds.clone(),
    ));
    let megabits = series::sum(series::window(results, &series.down_mbps, seconds));
    let delivered = megabits * 1e6 * results.series.interval_ms / 1e3 / (8 * PACKET_BYTES) as f64;
    (lost + delivered > 0.0).then(|| lost / (lost + delivered))
}

/// Returns a line of a chart.
#[must_use]
pub fn line(name: &str, values: &[f64]) -> ChartLine {
    ChartLine {
        name: name.to_owned(),
        values: values.to_vec(),
        is_ideal: false,
    }
}

/// Returns a chart of `lines` over the time of `results`.
#[must_use]
pub fn chart(results: &Results, label: &str, unit: &str, lines: Vec<ChartLine>) -> Chart {
    Chart {
        label: label.to_owned(),
        unit: unit.to_owned(),
        interval_s: results.series.interval_ms / 1e3,
        across: None,
        lines,
        at_least: 1.0,
    }
}

/// Returns a chart of the throughput of both links in `cell`, with the additional lines `more`.
#[must_use]
pub fn throughput(runs: &Runs, cell: &str, more: Vec<ChartLine>) -> Option<Chart> {
    let results = runs.get(cell)?;
    let mut lines = Vec::new();
    for (link, name) in [("dsl", "DSL"), ("lte", "LTE")] {
        lines.push(line(name, &series::link(results, link)?.down_mbps));
    }
    lines.extend(more);
    Some(chart(
        results,
        "Throughput per link over time",
        "Mbit/s",
        lines,
    ))
}
