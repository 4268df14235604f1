//! Links that are to be bonded: the scenarios of each alone and of all through the tunnel, and the goodput of a run.
//!
//! A [`Case`] is a set of links with a length of time. [`Case::single`] is the scenario of a flow over one link without
//! tunnel, [`Case::bonded`] of the same flow over all of them with it. [`Case::goodput`] reads the flow's goodput after the
//! warm-up from the results of either, so that the two can be compared. [`Sweep`] makes random cases.
//!
//! `./dev bench profiles`, `./dev bench promise` and `crates/sim/tests/promise.rs` measure the same cases.

mod link;
mod sweep;

use core::fmt::{self, Write as _};

use serde::Serialize;

pub use link::{Link, Rate, Up};
pub use sweep::Sweep;

use crate::results::Results;

/// Bytes of a full packet, in which queues are counted.
pub const PACKET_BYTES: f64 = 1500.0;

/// Links that are to be bonded.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// Unique within its set.
    pub name: String,
    /// The set it is of.
    pub set: &'static str,
    /// The links.
    pub links: Vec<Link>,
    /// How long the flow runs, in seconds.
    pub duration_s: u32,
    /// How much of that does not count, in seconds.
    pub warm_up_s: u32,
    /// Share of the sum of the single links that the bond is to reach, if one is set.
    pub target: Option<f64>,
}

/// What is sent over the links.
#[derive(Clone, Debug)]
pub struct Load {
    /// Transport and congestion control.
    pub flow: Flow,
    /// Connections at once, of TCP; `None`: one, or eight of [`Flow::Cubic8`].
    pub flows: Option<u32>,
    /// From the client to the server instead of down.
    pub is_upload: bool,
    /// A ping through the tunnel beside it.
    pub has_ping: bool,
}

/// Transport and congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// One TCP connection with BBR.
    Bbr,
    /// One TCP connection with CUBIC.
    Cubic,
    /// Eight of them.
    Cubic8,
    /// One with CUBIC behind a handshake as of TLS.
    CubicTls,
    /// One QUIC connection.
    Quic,
}

impl Case {
    /// A case of 12 s, or 20 s if one of the links is far away.
    #[must_use]
    pub fn new(set: &'static str, name: String, links: Vec<Link>) -> Self {
        let is_far = links.iter().any(|link| link.rtt_ms() > FAR_MS);
        let (duration_s, warm_up_s) = if is_far { (20, 5) } else { (12, 2) };
        Self {
            name,
            set,
            links,
            duration_s,
            warm_up_s,
            target: None,
        }
    }

    /// The scenario file of a run of `load` over all links through the tunnel. `keys` are lines of `[tunnel]`, `run` counts
    /// from zero and makes the seed.
    #[must_use]
    pub fn bonded(&self, load: &Load, policy: &str, keys: &[String], run: u32) -> String {
        let mut text = self.head(run);
        for link in &self.links {
            text.push_str(&link.section(&link.name));
        }
        text.push_str("[tunnel]\n");
        line(&mut text, format_args!("policy = {policy:?}"));
        for key in keys {
            line(&mut text, format_args!("{key}"));
        }
        load.section(&mut text);
        if load.has_ping {
            text.push_str("[[traffic]]\nkind = \"ping\"\nname = \"ping\"\n");
        }
        text
    }

    /// The scenario file of a run of `load` over `link` alone, without tunnel. Alike links give the same text.
    #[must_use]
    pub fn single(&self, load: &Load, link: &Link, run: u32) -> String {
        let mut text = self.head(run);
        text.push_str(&link.section("link"));
        load.section(&mut text);
        text
    }

    /// Goodput of the first flow after the warm-up, in Mbit/s; `None` if there is no flow.
    #[must_use]
    pub fn goodput(&self, results: &Results) -> Option<f64> {
        let flow = results.series.flows.first()?;
        self.after_warm_up(results.series.interval_ms, &flow.goodput_mbps)
    }

    /// Mean of the samples, `interval_ms` each, after the warm-up; `None` if none is.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a number of samples")]
    pub fn after_warm_up(&self, interval_ms: f64, samples: &[f64]) -> Option<f64> {
        let begin_ms = f64::from(self.warm_up_s) * 1e3;
        let times = (0_u32..).map(|index| f64::from(index) * interval_ms);
        let counted: Vec<f64> = times
            .zip(samples)
            .filter(|(time_ms, _)| *time_ms >= begin_ms - interval_ms / 2.0)
            .map(|(_, sample)| if sample.is_finite() { *sample } else { 0.0 })
            .collect();
        (!counted.is_empty()).then(|| counted.iter().sum::<f64>() / counted.len() as f64)
    }

    /// What has to stand above all sections.
    fn head(&self, run: u32) -> String {
        let (seed, seconds) = (run + 1, self.duration_s);
        format!("name = \"profiles\"\nseed = {seed}\nduration = \"{seconds}s\"\n")
    }
}

impl Load {
    /// One download.
    #[must_use]
    pub const fn download(flow: Flow) -> Self {
        Self {
            flow,
            flows: None,
            is_upload: false,
            has_ping: false,
        }
    }

    /// `[[traffic]]` of a scenario.
    fn section(&self, text: &mut String) {
        text.push_str(if self.is_upload {
            "[[traffic]]\nname = \"upload\"\ndirection = \"up\"\n"
        } else {
            "[[traffic]]\nname = \"download\"\n"
        });
        text.push_str(match self.flow {
            Flow::Bbr => "kind = \"tcp\"\ncc = \"bbr\"\n",
            Flow::Cubic | Flow::Cubic8 => "kind = \"tcp\"\ncc = \"cubic\"\n",
            Flow::CubicTls => "kind = \"tcp\"\ncc = \"cubic\"\nopening = \"tls\"\n",
            Flow::Quic => "kind = \"quic\"\n",
        });
        let eight = (self.flow == Flow::Cubic8).then_some(8);
        if let Some(flows) = self.flows.or(eight) {
            line(text, format_args!("flows = {flows}"));
        }
    }
}

fn line(text: &mut String, line: fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}

/// Round trip above which a run is longer and warms up for longer, in milliseconds.
const FAR_MS: f64 = 300.0;
