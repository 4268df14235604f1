//! The paper's testbed (section IV) as scenario text.
//!
//! Published: WLAN of 25 Mbit/s (scenario A) or 6 Mbit/s (B) downstream and 6 upstream, 30 ms, below 1 % of loss; 3G
//! of 4 Mbit/s downstream and 1.5 upstream, 160 ms, from 16 to 24 s 280 ms, no loss; 25 000 bytes of payload every 25
//! ms. A packet is unusable if it is lost or "too late (by more than 200 ms)".
//!
//! The following values are not published, or published inconsistently, and are chosen here:
//! - *Delay* is one way, and lateness counts from the time at which a packet was generated. Otherwise a delay of 280
//!   ms would not make half of the packets of round robin miss 200 ms ("more than 50 %").
//! - *Bitrates* are those of IP packets on the lines. Otherwise B would not lose more than 30 % over WLAN alone (8
//!   Mbit/s of payload are 8.6 Mbit/s on the line). Table I calls them payload; its sum of 8.5 Mbit/s fits no pair.
//! - *The 3G's delay varies* by 150 ms in table I. The text of section V has only 160 ms, and with a spread of 150 ms
//!   a third of all 3G packets would be late, so that `ConSN` could not be "similar to the single-path performance".
//!   The delay is constant here; [`scenario`] has a parameter for the variation.
//! - *Queues*: the 3G's holds 22 kB (44 ms). This value is fitted so that round robin, which sends half of the stream
//!   (4.3 Mbit/s) over the 3G's 4 Mbit/s, loses 10 to 20 %. WLAN's holds 120 kB (160 ms), so that a full queue alone
//!   makes no packet late.
//! - Packets have 1250 bytes of payload, the loss rate is 0.5 %, a run takes 40 s.
//! - *Default multipath* is strict round robin without congestion control: `srtt-weighted` with `weights = "equal"`.
//!   A single path uses the same policy with one link, because the policy `single` paces its packets and has a queue
//!   of its own.
//! - Packets are delivered as they arrive (`in_order = false`), because each packet is judged separately.

use pleach_sim::{
    report::{Chart, ChartLine},
    results::{FlowSeries, Results},
};

use crate::{runs::Runs, series};

/// A scenario of the paper's sections V-A and V-B, named by the rate of its WLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wlan {
    /// 25 Mbit/s: enough for the stream.
    A,
    /// 6 Mbit/s: too little for the stream.
    B,
}

impl Wlan {
    /// Returns the name used in names of cells.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    /// Returns the rate towards the client in Mbit/s.
    #[must_use]
    pub const fn rate_mbps(self) -> u32 {
        match self {
            Self::A => 25,
            Self::B => 6,
        }
    }
}

/// Time range in seconds before the jump of the 3G's delay, while the delay is 160 ms.
pub const BEFORE: core::ops::Range<f64> = 2.0..16.0;
/// Time range in seconds after the jump, while the 3G's delay is 160 ms again. The first seconds after the jump are
/// left out.
pub const AFTER: core::ops::Range<f64> = 28.0..40.0;
/// Time range in seconds of the jump, while the 3G's delay is 280 ms.
pub const JUMP: core::ops::Range<f64> = 16.0..24.0;
/// Time range in seconds of the whole run.
pub const WHOLE: core::ops::Range<f64> = 0.0..40.0;
/// Payload of a packet in bytes.
const PAYLOAD_BYTES: u32 = 1250;
/// Maximum age in ms of a usable packet.
const DEADLINE_MS: u32 = 200;

/// Returns the text of a scenario. `policy` is the text of `[tunnel]`. `uses_3g` says whether the tunnel may use the
/// 3G, `varying` whether the 3G's delay varies.
#[must_use]
pub fn scenario(
    name: &str,
    about: &str,
    wlan: Wlan,
    policy: &str,
    uses_3g: bool,
    varying: bool,
) -> String {
    let rate = wlan.rate_mbps();
    let cost = if uses_3g { "" } else { "cost = \"never\"\n" };
    // Uniformly distributed delay around the published one. Packets may overtake each other.
    let (delays, jitter) = if varying {
        ([10, 130], "jitter = \"300ms\"\nreorder = true\n")
    } else {
        ([160, 280], "")
    };
    let [delay, jump] = delays;
    format!(
        "name = \"{name}\"
description = \"{about}\"
duration = \"40s\"

[[link]]
name = \"wlan\"
rate = \"{rate}Mbit\"
delay = \"30ms\"
loss = 0.005
queue = \"120kB\"
[link.up]
rate = \"6Mbit\"

[[link]]
name = \"umts\"
rate = \"4Mbit\"
delay = \"{delay}ms\"
{jitter}queue = \"22kB\"
{cost}[link.up]
rate = \"1.5Mbit\"

[[event]]
at = \"16s\"
link = \"umts\"
delay = \"{jump}ms\"
[[event]]
at = \"24s\"
link = \"umts\"
delay = \"{delay}ms\"

[tunnel]
{policy}mtu = 1400
compression = false

[[traffic]]
kind = \"udp\"
name = \"stream\"
rate = \"8Mbit\"              # 25000 bytes every 25 ms
size = \"{PAYLOAD_BYTES}B\"
profile = \"frames\"
interval = \"25ms\"
deadline = \"{DEADLINE_MS}ms\"
"
    )
}

/// Returns the share, in percent, of the packets sent within `seconds` that were lost or late.
#[must_use]
pub fn unusable(runs: &Runs, cell: &str, seconds: core::ops::Range<f64>) -> Option<f64> {
    let results = runs.get(cell)?;
    let stream = series::flow_series(results, "stream")?;
    let of = |values: &[f64]| series::sum(series::window(results, values, seconds.clone()));
    let sent = of(&stream.sent_mbps);
    (sent > 0.0 && !stream.in_time_mbps.is_empty())
        .then(|| 100.0 * (1.0 - of(&stream.in_time_mbps) / sent))
}

/// Returns the mean of [`unusable`] before and after the jump, while the 3G's delay is 160 ms.
#[must_use]
pub fn unusable_at_160(runs: &Runs, cell: &str) -> Option<f64> {
    Some((unusable(runs, cell, BEFORE)? + unusable(runs, cell, AFTER)?) / 2.0)
}

/// Returns a chart of the unusable share of the stream over time in each of `cells`, in percent, one sample per
/// second.
#[must_use]
pub fn chart(runs: &Runs, cells: &[(String, &str)]) -> Option<Chart> {
    let lines = cells.iter().filter_map(|(cell, title)| {
        let results = runs.get(cell)?;
        let stream = series::flow_series(results, "stream")?;
        Some(ChartLine {
            name: (*title).to_owned(),
            values: per_second(results, stream),
            is_ideal: false,
        })
    });
    let lines: Vec<ChartLine> = lines.collect();
    (!lines.is_empty()).then(|| Chart {
        label: "Unusable packets over time".to_owned(),
        unit: "%".to_owned(),
        interval_s: 1.0,
        across: None,
        lines,
        at_least: 10.0,
    })
}

fn per_second(results: &Results, stream: &FlowSeries) -> Vec<f64> {
    let seconds = (0..)
        .map(f64::from)
        .take_while(|at| *at < results.duration_s);
    let share = |at: f64| {
        let of = |values| series::sum(series::window(results, values, at..at + 1.0));
        100.0 * (1.0 - of(&stream.in_time_mbps) / of(&stream.sent_mbps))
    };
    seconds.map(share).collect()
}
