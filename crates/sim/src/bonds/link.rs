//! One link of a case, and its part of a scenario file.

use core::fmt;

use serde::Serialize;

use super::line;

/// One link; both directions alike, but for [`Link::up`].
#[derive(Clone, Debug, Serialize)]
pub struct Link {
    /// Name in the scenario.
    pub name: String,
    /// What it carries.
    pub rate: Rate,
    /// Least one-way delay, in milliseconds.
    pub delay_ms: f64,
    /// Upper end of the uniform delay on top of it, in milliseconds.
    pub jitter_ms: f64,
    /// Whether jitter lets packets overtake each other.
    pub reorder: bool,
    /// Probability that a packet is lost, in each direction.
    pub loss: f64,
    /// Length of the queue, in bytes.
    pub queue_bytes: f64,
    /// How the direction of uploads differs, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<Up>,
}

/// What is different in the direction of uploads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Up {
    /// What it carries, in Mbit/s.
    pub mbps: f64,
    /// Length of the queue, in bytes.
    pub queue_bytes: f64,
}

/// What a link carries.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rate {
    /// So many Mbit/s.
    Constant(f64),
    /// A column of a table of rates.
    Csv {
        /// The file, in the folder of traces.
        file: String,
        /// The column's head.
        column: String,
    },
    /// `NAME.down` and `NAME.up`, delivery opportunities.
    Trace(String),
}

impl Link {
    /// A link of `mbps` whose one-way delay is `delay_ms`, without jitter and loss, with a queue of no packets.
    #[must_use]
    pub fn new(name: &str, mbps: f64, delay_ms: f64) -> Self {
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
    #[must_use]
    pub fn vary(self, jitter_ms: f64) -> Self {
        Self {
            delay_ms: self.delay_ms - jitter_ms,
            jitter_ms: 2.0 * jitter_ms,
            ..self
        }
    }

    /// The same link with `loss`.
    #[must_use]
    pub fn lossy(self, loss: f64) -> Self {
        Self { loss, ..self }
    }

    /// Mean round trip without queues.
    #[must_use]
    pub fn rtt_ms(&self) -> f64 {
        2.0 * self.delay_ms + self.jitter_ms
    }

    /// Bytes under way if the link is full and its queue empty; zero for a recorded link.
    #[must_use]
    pub fn bdp_bytes(&self) -> f64 {
        match self.rate {
            Rate::Constant(mbps) => mbps * self.rtt_ms() * 1e3 / 8.0,
            Rate::Csv { .. } | Rate::Trace(_) => 0.0,
        }
    }

    /// `[[link]]` of a scenario.
    pub(super) fn section(&self, name: &str) -> String {
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
