//! Test cases for bonding, each with a set of links: builds the scenarios of each link alone and of all links through
//! the tunnel, and evaluates the goodput of a run.
//!
//! A [`Case`] is a set of links with a duration. [`Case::single`] is the scenario of a flow over one link without a
//! tunnel. [`Case::bonded`] is the scenario of the same flow over all links with the tunnel. [`Case::goodput`] reads
//! the goodput of the flow after the warm-up from the results of either scenario, so that the two can be compared.
//! [`Sweep`] makes random cases.
//!
//! `./dev bench profiles`, `./dev bench promise` and `crates/sim/tests/promise.rs` measure the same cases.

mod link;
mod sweep;

use core::{
    fmt::{self, Write as _},
    time::Duration,
};

use serde::Serialize;

pub use link::{Link, Rate, Up};
pub use sweep::Sweep;

use crate::results::{Results, mean_after};

/// Size of a full packet in bytes, the unit of queue lengths.
pub const PACKET_BYTES: f64 = 1500.0;

/// A set of links that are to be bonded.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// Name, unique within the set of cases.
    pub name: String,
    /// Name of the set of cases.
    pub set: &'static str,
    /// The links.
    pub links: Vec<Link>,
    /// Duration of the flow in seconds.
    pub duration_s: u32,
    /// Warm-up at the start of the flow in seconds. The goodput does not include it.
    pub warm_up_s: u32,
    /// Share of the sum of the single links' goodputs that the bond is to reach, if a target is set.
    pub target: Option<f64>,
}

/// Traffic over the links.
#[derive(Clone, Debug)]
pub struct Load {
    /// Transport and congestion control.
    pub flow: Flow,
    /// Number of parallel TCP connections. `None`: one, or eight for [`Flow::Cubic8`].
    pub flows: Option<u32>,
    /// Whether the client sends to the server, instead of the server to the client.
    pub is_upload: bool,
    /// Whether a ping runs through the tunnel beside the flow.
    pub has_ping: bool,
}

/// Transport and congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// One TCP connection with BBR.
    Bbr,
    /// One TCP connection with CUBIC.
    Cubic,
    /// Eight TCP connections with CUBIC.
    Cubic8,
    /// One TCP connection with CUBIC, after a handshake like that of TLS.
    CubicTls,
    /// One QUIC connection.
    Quic,
}

impl Case {
    /// Creates a case of 12 s, or of 20 s if the RTT of a link is above 300 ms.
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

    /// Returns the scenario file of a run of `load` over all links through the tunnel. `keys` are lines of
    /// `[tunnel]`. `run` is the number of the run, from zero, and determines the seed.
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

    /// Returns the scenario file of a run of `load` over `link` alone, without a tunnel. Links that differ only in
    /// their names give the same text.
    #[must_use]
    pub fn single(&self, load: &Load, link: &Link, run: u32) -> String {
        let mut text = self.head(run);
        text.push_str(&link.section("link"));
        load.section(&mut text);
        text
    }

    /// Returns the goodput of the first flow after the warm-up, in Mbit/s. `None` if there is no flow.
    #[must_use]
    pub fn goodput(&self, results: &Results) -> Option<f64> {
        let flow = results.series.flows.first()?;
        self.after_warm_up(results.series.interval_ms, &flow.goodput_mbps)
    }

    /// Returns the mean of the samples after the warm-up. Each sample covers `interval_ms`. `None` if there is no such
    /// sample.
    #[must_use]
    pub fn after_warm_up(&self, interval_ms: f64, samples: &[f64]) -> Option<f64> {
        let warm_up = Duration::from_secs(self.warm_up_s.into());
        mean_after(warm_up, interval_ms, samples)
    }

    /// Returns the keys that precede all sections.
    fn head(&self, run: u32) -> String {
        let (seed, seconds) = (run + 1, self.duration_s);
        format!("name = \"profiles\"\nseed = {seed}\nduration = \"{seconds}s\"\n")
    }
}

impl Load {
    /// Creates the load of one download.
    #[must_use]
    pub const fn download(flow: Flow) -> Self {
        Self {
            flow,
            flows: None,
            is_upload: false,
            has_ping: false,
        }
    }

    /// Writes the `[[traffic]]` section of a scenario.
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
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

/// RTT in milliseconds above which a run and its warm-up are longer.
const FAR_MS: f64 = 300.0;
