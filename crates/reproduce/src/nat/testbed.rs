//! The paper's testbed (sections III and IV) as scenario text.
//!
//! Published:
//!
//! - Two hosts are connected by links of 1 to 10 Mbit/s, which dummynet emulates.
//! - Data take link 0 and link 1. In the delay experiments, acknowledgements take link 2.
//! - The hosts run Linux 2.6.11 with TCP Westwood, without saved TCP metrics, and with buffers that never limit a flow.
//! - One flow of Iperf is measured, for 120 s where a duration is stated.
//!
//! Not published, and chosen here:
//!
//! - Queues: 50 packets (75 kB), dummynet's default.
//! - Link 2 has the rate of the others and 10 ms; acknowledgements return over it in the loss experiments as well.
//! - Rates are of IP packets. TCP can carry the share [`PAYLOAD_SHARE`] of them, which is the "ideal".
//! - *The paper's TCP* ([`Tcp::Paper`]): Westwood+, and the loss recovery of the time. A kernel of 2005 considers a
//!   segment lost if it lies more than `tp->reordering` below the highest selectively acknowledged segment (forward
//!   acknowledgement). This threshold begins at 3 and grows when a reduction proves spurious, up to the constant
//!   `TCP_MAX_REORDERING` = 127. This constant explains figure 4: 60 ms of additional delay on one of two links of 10
//!   Mbit/s are a distance of 100 segments, and 80 ms are 133 segments. (A threshold that stays at 3, a different
//!   interpretation, leaves 1 Mbit/s at 70 ms, and reproduces none of the figures.)
//! - *Today's TCP* ([`Tcp::Today`]): Linux's defaults, that is, CUBIC, RACK and a reordering threshold of up to 300
//!   segments.
//! - Each point has one run with one seed, as in the paper as far as is known.
//!
//! In the lab some of the points run, for a shorter time, with the kernel's TCP and `pleach equalize`. No current
//! kernel has this loss recovery, and few have Westwood. There, the paper's TCP is Reno without RACK and with the old
//! bound of the reordering threshold, the closest configuration available (`net.ipv4.tcp_recovery = 0`,
//! `tcp_max_reordering = 127`).

use pleach_sim::{
    report::{Chart, ChartLine},
    results::{Results, World},
};

use crate::{
    experiment::{Cell, Kind},
    runs::Runs,
    series,
};

/// Share of payload in the IP packet of a full segment with timestamps.
pub const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;

/// TCP of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// Linux 2.6.11 with Westwood.
    Paper,
    /// Linux's present defaults.
    Today,
}

impl Tcp {
    /// Both kinds of TCP.
    pub const ALL: [Self; 2] = [Self::Paper, Self::Today];

    /// Returns the name used in names of cells.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Today => "today",
        }
    }

    /// Returns the name used in charts.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Paper => "Linux of 2005 (Westwood; in the lab Reno)",
            Self::Today => "Linux of today (CUBIC)",
        }
    }

    fn sections(self, world: World) -> &'static str {
        match (self, world) {
            (Self::Paper, World::Lab) => {
                "
[tcp]
recovery = \"dupack\"          # Linux without RACK
max_reordering = 127         # Linux 2.6.11
[[traffic]]
kind = \"tcp\"
name = \"tcp\"
cc = \"reno\"
direction = \"up\"
"
            }
            (Self::Paper, World::Sim) => {
                "
[tcp]
recovery = \"fack\"            # Linux 2.6.11
max_reordering = 127
[[traffic]]
kind = \"tcp\"
name = \"tcp\"
cc = \"westwood\"
direction = \"up\"
"
            }
            (Self::Today, _) => {
                "
[[traffic]]
kind = \"tcp\"
name = \"tcp\"
cc = \"cubic\"
direction = \"up\"
"
            }
        }
    }
}

/// An emulated link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Rate in Mbit/s of IP packets.
    pub mbps: f64,
    /// One-way delay in ms.
    pub delay_ms: u32,
    /// Share of packets lost in the direction of the data.
    pub loss: f64,
    /// Weight; 0 excludes the link from the data.
    pub weight: u32,
}

impl Line {
    /// Returns a link without loss, with 10 ms and weight 100.
    #[must_use]
    pub const fn plain(mbps: f64) -> Self {
        Self {
            mbps,
            delay_ms: 10,
            loss: 0.0,
            weight: 100,
        }
    }
}

/// A run of an experiment.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// Name of the cell.
    pub name: String,
    /// Description.
    pub about: String,
    /// Duration in the simulator, in seconds.
    pub seconds: u32,
    /// Duration in the lab, in seconds. `None`: the run is omitted in the lab.
    pub lab_seconds: Option<u32>,
    /// The links `l0` and `l1`.
    pub lines: [Line; 2],
    /// Keys of the client's equalizer, except its links.
    pub spread: &'a str,
    /// Links over which acknowledgements return.
    pub back: &'a str,
    /// TCP of the sender.
    pub tcp: Tcp,
    /// Additional sections.
    pub more: String,
}

impl Run<'_> {
    /// Returns the run's cells: one for the simulator and, if it has a duration there, one for the lab.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let cell = |(kind, world, seconds)| Cell {
            name: self.name.clone(),
            toml: self.text(world, seconds),
            kind,
        };
        let in_lab = self.lab_seconds;
        [(Kind::Simulated, World::Sim, self.seconds)]
            .into_iter()
            .chain(in_lab.map(|seconds| (Kind::Played, World::Lab, seconds)))
            .map(cell)
            .collect()
    }

    fn text(&self, world: World, seconds: u32) -> String {
        let Self {
            name,
            about,
            spread,
            back,
            ..
        } = self;
        let mut toml =
            format!("name = \"{name}\"\ndescription = \"{about}\"\nduration = \"{seconds}s\"\n");
        let most = self.lines.iter().map(|line| line.mbps).fold(0.0, f64::max);
        let way_back = Line::plain(most);
        for (number, line) in self.lines.iter().chain([&way_back]).enumerate() {
            let Line {
                mbps,
                delay_ms,
                loss,
                weight,
            } = line;
            // A link without data may have to carry acknowledgements, and then needs a weight.
            let weight = if *weight == 0 { &100 } else { weight };
            toml += &format!(
                "
[[link]]
name = \"l{number}\"
rate = \"{mbps}Mbit\"
delay = \"{delay_ms}ms\"
queue = \"75kB\"               # 50 packets
weight = {weight}
"
            );
            if *loss > 0.0 {
                toml += &format!("[link.up]\nloss = {loss:?}\n");
            }
        }
        let used = (0..).zip(&self.lines).filter(|(_, line)| line.weight > 0);
        let used: Vec<String> = used.map(|(number, _)| format!("\"l{number}\"")).collect();
        toml += &format!(
            "
[[equalizer]]
end = \"client\"
links = [{}]
{spread}
[[equalizer]]
end = \"gateway\"
links = {back}
",
            used.join(", ")
        );
        toml += self.tcp.sections(world);
        toml + &self.more
    }
}

/// Links over which acknowledgements return by default.
pub const LINK_2: &str = "[\"l2\"]";
/// Keys of an equalizer that spreads single packets by weights.
pub const PACKETS: &str = "spread = \"packet\"";

/// Returns the maximum rate of TCP's payload over links of these rates, in Mbit/s.
#[must_use]
pub fn ideal(mbps: f64) -> f64 {
    mbps * PAYLOAD_SHARE
}

/// Returns all `points` of a sweep; in the lab only the points for which `played` holds.
#[must_use]
pub fn points<P: Copy>(runs: &Runs, points: &[P], played: impl Fn(P) -> bool) -> Vec<P> {
    let is_lab = runs.world() == Some(World::Lab);
    let points = points.iter().copied();
    points.filter(|&point| !is_lab || played(point)).collect()
}

/// Returns the flow's goodput over the whole run, in Mbit/s.
#[must_use]
pub fn goodput(runs: &Runs, cell: &str) -> Option<f64> {
    let flow = series::flow(runs.get(cell)?, "tcp")?;
    Some(flow.goodput_mbps)
}

/// Returns the flow's goodput between the times `from` and `to` in seconds, in Mbit/s.
#[must_use]
pub fn goodput_between(runs: &Runs, cell: &str, from: f64, to: f64) -> Option<f64> {
    let results = runs.get(cell)?;
    let flow = &series::flow_series(results, "tcp")?.goodput_mbps;
    series::mean(series::window(results, flow, from..to))
}

/// Returns the first time between `from` and `to` at which the flow's mean goodput over `hold` seconds is at least
/// `least` Mbit/s. `None` if there is none.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub fn reaches(results: &Results, least: f64, hold: f64, from: f64, to: f64) -> Option<f64> {
    let flow = &series::flow_series(results, "tcp")?.goodput_mbps;
    let needed = series::window(results, flow, 0.0..hold).len().max(1);
    let mut windows = series::window(results, flow, from..to).windows(needed);
    let first =
        windows.position(|window| series::mean(window).is_some_and(|mean| mean >= least))?;
    Some(from + first as f64 * results.series.interval_ms / 1e3)
}

/// Returns a line of a chart.
#[must_use]
pub fn line(name: &str, values: Vec<f64>, is_ideal: bool) -> ChartLine {
    ChartLine {
        name: name.to_owned(),
        values,
        is_ideal,
    }
}

/// Returns a chart of `lines` over the labels `places` of the axis `axis`.
#[must_use]
pub fn across(label: &str, axis: &str, places: Vec<String>, lines: Vec<ChartLine>) -> Chart {
    Chart {
        label: label.to_owned(),
        unit: "Mbit/s".to_owned(),
        interval_s: 0.0,
        across: Some((axis.to_owned(), places)),
        lines,
        at_least: 0.1,
    }
}

/// Returns a chart of `lines` over the time of `results`.
#[must_use]
pub fn over_time(results: &Results, label: &str, lines: Vec<ChartLine>) -> Chart {
    Chart {
        label: label.to_owned(),
        unit: "Mbit/s".to_owned(),
        interval_s: results.series.interval_ms / 1e3,
        across: None,
        lines,
        at_least: 1.0,
    }
}
