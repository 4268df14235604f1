//! One link of a case, and its part of a scenario file.

use core::fmt;

use serde::Serialize;

use super::line;

/// One link. Both directions are alike, except for [`Link::up`].
#[derive(Clone, Debug, Serialize)]
pub struct Link {
    /// Name of the link in the scenario.
    pub name: String,
    /// Rate of the link.
    pub rate: Rate,
    /// Shortest one-way delay, in milliseconds.
    pub delay_ms: f64,
    /// Upper end of the uniform extra delay of each packet, in milliseconds.
    pub jitter_ms: f64,
    /// Whether jitter lets packets overtake each other.
    pub reorder: bool,
    /// Probability that a packet is lost, in each direction.
    pub loss: f64,
    /// Length of the queue, in bytes.
    pub queue_bytes: f64,
    /// Different parameters of the upload direction, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<Up>,
}

/// Parameters of the upload direction that differ.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Up {
    /// Rate in Mbit/s.
    pub mbps: f64,
    /// Length of the queue, in bytes.
    pub queue_bytes: f64,
}

/// Rate of a link.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rate {
    /// Constant rate in Mbit/s.
    Constant(f64),
    /// Rate from a column of a table.
    Csv {
        /// Name of the file, in the directory of traces.
        file: String,
        /// Heading of the column.
        column: String,
    },
    /// Delivery opportunities from the files `NAME.down` and `NAME.up`.
    Trace(String),
}

impl Link {
    /// Creates a link of `mbps` with a one-way delay of `delay_ms`, without jitter and loss, with a queue of zero
    /// packets.
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

    /// Returns the link with a delay that varies by up to `jitter_ms` above and below its mean, which is how netem
    /// defines jitter.
    #[must_use]
    pub fn vary(self, jitter_ms: f64) -> Self {
        Self {
            delay_ms: self.delay_ms - jitter_ms,
            jitter_ms: 2.0 * jitter_ms,
            ..self
        }
    }

    /// Returns the link with the loss probability `loss`.
    #[must_use]
    pub fn lossy(self, loss: f64) -> Self {
        Self { loss, ..self }
    }

    /// Returns the mean RTT without queueing delay.
    #[must_use]
    pub fn rtt_ms(&self) -> f64 {
        2.0 * self.delay_ms + self.jitter_ms
    }

    /// Returns the bandwidth-delay product in bytes. Zero for a recorded link.
    #[must_use]
    pub fn bdp_bytes(&self) -> f64 {
        match self.rate {
            Rate::Constant(mbps) => mbps * self.rtt_ms() * 1e3 / 8.0,
            Rate::Csv { .. } | Rate::Trace(_) => 0.0,
        }
    }

    /// Returns the `[[link]]` section of a scenario.
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

/// Prints the link on one line.
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
