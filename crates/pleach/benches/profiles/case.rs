//! A case: links, and the scenario files made of them.

use core::fmt::{self, Write as _};

use serde::Serialize;

use crate::options::{Flow, Options};

/// Round trip above which a run is longer and warms up for longer, in milliseconds.
const FAR_MS: f64 = 300.0;
/// Bytes of a full packet, in which queues are counted.
pub(crate) const PACKET_BYTES: f64 = 1500.0;

/// Links that are to be bonded.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Case {
    /// Unique within its set.
    pub(crate) name: String,
    /// The set it is of.
    pub(crate) set: &'static str,
    /// The links.
    pub(crate) links: Vec<Link>,
    /// How long the download runs, in seconds.
    pub(crate) duration_s: u32,
    /// How much of that does not count.
    pub(crate) warm_up_s: u32,
    /// Share of the sum of the single links that the bond is to reach, if one is set.
    pub(crate) target: Option<f64>,
}

/// One link; both directions alike, but for [`Link::up`].
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Link {
    /// Name in the scenario.
    pub(crate) name: String,
    /// What it carries.
    pub(crate) rate: Rate,
    /// Least one-way delay.
    pub(crate) delay_ms: f64,
    /// Upper end of the uniform delay on top of it.
    pub(crate) jitter_ms: f64,
    /// Whether jitter lets packets overtake each other.
    pub(crate) reorder: bool,
    /// Probability that a packet is lost, in each direction.
    pub(crate) loss: f64,
    /// Length of the queue.
    pub(crate) queue_bytes: f64,
    /// How the direction of uploads differs, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) up: Option<Up>,
}

/// What is different in the direction of uploads.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Up {
    /// What it carries, in Mbit/s.
    pub(crate) mbps: f64,
    /// Length of the queue.
    pub(crate) queue_bytes: f64,
}

/// What a link carries.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Rate {
    /// So many Mbit/s.
    Constant(f64),
    /// A column of a table of rates.
    Csv { file: String, column: String },
    /// `NAME.down` and `NAME.up`, delivery opportunities.
    Trace(String),
}

impl Case {
    /// A case of 12 s, or 20 s if one of the links is far away.
    pub(crate) fn new(set: &'static str, name: String, links: Vec<Link>) -> Self {
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

    /// The scenario of a run over all links through the tunnel.
    pub(crate) fn bonded(&self, options: &Options, run: u32, with_mptcp: bool) -> String {
        let mut text = self.head(run);
        if with_mptcp {
            text.push_str("baselines = [\"mptcp\"]\n");
        }
        for link in &self.links {
            text.push_str(&link.section(&link.name));
        }
        text.push_str("[tunnel]\n");
        line(&mut text, format_args!("policy = {:?}", options.policy));
        for key in &options.keys {
            line(&mut text, format_args!("{key}"));
        }
        traffic(&mut text, options);
        if options.ping {
            text.push_str("[[traffic]]\nkind = \"ping\"\nname = \"ping\"\n");
        }
        text
    }

    /// The scenario of a run over `link` alone, without tunnel. Alike links give the same text.
    pub(crate) fn single(&self, link: &Link, options: &Options, run: u32) -> String {
        let mut text = self.head(run);
        text.push_str(&link.section("link"));
        traffic(&mut text, options);
        text
    }

    /// What has to stand above all sections.
    fn head(&self, run: u32) -> String {
        let (seed, seconds) = (run + 1, self.duration_s);
        format!("name = \"profiles\"\nseed = {seed}\nduration = \"{seconds}s\"\n")
    }
}

impl Link {
    /// A link of `mbps` whose one-way delay is `delay_ms`, without jitter and loss, with a queue of no packets.
    pub(crate) fn new(name: &str, mbps: f64, delay_ms: f64) -> Self {
        Self {
            name: name.to_owned(),
            rate: Rate::Constant(mbps),
            delay_ms,
            jitter_ms: 0.0,
            reorder: false,
            loss: 0.0,
            queue_bytes: 0.0,
            up: None,
        }
    }

    /// The same link with a delay that varies by `jitter_ms` to either side, as netem says it.
    pub(crate) fn vary(self, jitter_ms: f64) -> Self {
        Self {
            delay_ms: self.delay_ms - jitter_ms,
            jitter_ms: 2.0 * jitter_ms,
            ..self
        }
    }

    /// The same link with `loss`.
    pub(crate) fn lossy(self, loss: f64) -> Self {
        Self { loss, ..self }
    }

    /// Mean round trip without queues.
    pub(crate) fn rtt_ms(&self) -> f64 {
        2.0 * self.delay_ms + self.jitter_ms
    }

    /// Bytes under way if the link is full and its queue empty; zero for a recorded link.
    pub(crate) fn bdp_bytes(&self) -> f64 {
        match self.rate {
            Rate::Constant(mbps) => mbps * self.rtt_ms() * 1e3 / 8.0,
            Rate::Csv { .. } | Rate::Trace(_) => 0.0,
        }
    }

    /// `[[link]]` of a scenario.
    fn section(&self, name: &str) -> String {
        let mut text = format!("[[link]]\nname = \"{name}\"\n");
        let mut directions = String::new();
        match &self.rate {
            Rate::Constant(mbps) => {
                line(&mut text, format_args!("rate = \"{:.0}kbit\"", mbps * 1e3));
                line(
                    &mut text,
                    format_args!("weight = {:.0}", mbps.round().max(1.0)),
                );
            }
            Rate::Csv { file, column } => {
                line(&mut text, format_args!("csv = \"traces:{file}\""));
                line(&mut text, format_args!("column = \"{column}\""));
            }
            Rate::Trace(name) => {
                for way in ["down", "up"] {
                    let trace = format_args!("[link.{way}]\ntrace = \"traces:{name}.{way}\"");
                    line(&mut directions, trace);
                }
            }
        }
        line(
            &mut text,
            format_args!("delay = \"{:.0}us\"", self.delay_ms * 1e3),
        );
        if self.jitter_ms > 0.0 {
            line(
                &mut text,
                format_args!("jitter = \"{:.0}us\"", self.jitter_ms * 1e3),
            );
            line(&mut text, format_args!("reorder = {}", self.reorder));
        }
        if self.loss > 0.0 {
            line(&mut text, format_args!("loss = {:.6}", self.loss));
        }
        line(
            &mut text,
            format_args!("queue = \"{:.0}B\"", self.queue_bytes),
        );
        if let Some(up) = self.up {
            line(
                &mut directions,
                format_args!(
                    "[link.up]\nrate = \"{:.0}kbit\"\nqueue = \"{:.0}B\"",
                    up.mbps * 1e3,
                    up.queue_bytes
                ),
            );
        }
        text + &directions
    }
}

/// On one line, for a reader.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rate {
            Rate::Constant(mbps) => write!(f, "{mbps:.1} Mbit/s")?,
            Rate::Csv { file, column } => write!(f, "{column} of {file}")?,
            Rate::Trace(name) => write!(f, "{name}")?,
        }
        write!(f, " {:.1} ms", self.delay_ms)?;
        if self.jitter_ms > 0.0 {
            let order = if self.reorder { " overtaking" } else { "" };
            write!(f, " + 0..{:.1} ms{order}", self.jitter_ms)?;
        }
        if self.loss > 0.0 {
            write!(f, ", loss {:.2} %", self.loss * 1e2)?;
        }
        write!(f, ", queue {:.0} kB", self.queue_bytes / 1e3)?;
        let bdp_bytes = self.bdp_bytes();
        if bdp_bytes > 0.0 {
            write!(f, " = {:.2} BDP", self.queue_bytes / bdp_bytes)?;
        }
        if let Some(up) = self.up {
            write!(f, ", up {:.1} Mbit/s", up.mbps)?;
        }
        Ok(())
    }
}

/// `[[traffic]]` of the download, or upload.
fn traffic(text: &mut String, options: &Options) {
    text.push_str(if options.upload {
        "[[traffic]]\nname = \"upload\"\ndirection = \"up\"\n"
    } else {
        "[[traffic]]\nname = \"download\"\n"
    });
    text.push_str(match options.flow {
        Flow::Bbr => "kind = \"tcp\"\ncc = \"bbr\"\n",
        Flow::Cubic | Flow::Cubic8 => "kind = \"tcp\"\ncc = \"cubic\"\n",
        Flow::CubicTls => "kind = \"tcp\"\ncc = \"cubic\"\nopening = \"tls\"\n",
        Flow::Quic => "kind = \"quic\"\n",
    });
    let eight = (options.flow == Flow::Cubic8).then_some(8);
    if let Some(flows) = options.flows.or(eight) {
        line(text, format_args!("flows = {flows}"));
    }
}

fn line(text: &mut String, line: fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}
