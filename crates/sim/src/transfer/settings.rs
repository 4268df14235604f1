//! The file that describes a transfer.

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};
use serde::Deserialize;

use super::order::Order;

/// Transfer of one file, simulated over several sets of lines.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// Name of the transfer.
    pub name: String,
    /// Description in plain words.
    #[serde(default)]
    pub description: Option<String>,
    /// Seed of all random numbers.
    #[serde(default = "one")]
    pub seed: u64,
    /// Number of runs of each case, with consecutive seeds. The results are the mean over the runs.
    #[serde(default = "once")]
    pub repeat: u32,
    /// Number of packets in the file.
    pub packets: u32,
    /// Length of each packet.
    pub packet: Bytes,
    /// Scheduler that assigns packets to lines.
    pub order: Order,
    /// Whether the sender reacts to events as to losses.
    #[serde(default)]
    pub reacts: bool,
    /// Share of packets lost on each line.
    #[serde(default)]
    pub loss: f64,
    /// Share of a line's rate that cross traffic uses while it is on. It is on for half of the time.
    #[serde(default)]
    pub cross: f64,
    /// The sets of lines.
    pub case: Vec<Case>,
}

/// A set of lines.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name, unique in the file.
    pub name: String,
    /// The lines.
    pub line: Vec<LineSettings>,
}

/// One path between sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LineSettings {
    /// Rate of the line.
    pub rate: Bitrate,
    /// One-way delay in milliseconds.
    pub delay_ms: u32,
}

impl LineSettings {
    pub(super) fn delay(self) -> Duration {
        Duration::from_millis(self.delay_ms.into())
    }
}

/// Error in the file of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelFileError {
    /// The text does not have the form of such a file.
    #[error("{0}")]
    Form(String),
    /// A number is out of its range.
    #[error("{key}: expected {expected}")]
    Range {
        /// Name of the key.
        key: &'static str,
        /// Description of the permitted values.
        expected: &'static str,
    },
}

impl Transfer {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// Returns the error in the text.
    pub fn parse(text: &str) -> Result<Self, ModelFileError> {
        let this: Self =
            toml::from_str(text).map_err(|error| ModelFileError::Form(error.to_string()))?;
        let check = |holds: bool, key, expected| match holds {
            true => Ok(()),
            false => Err(ModelFileError::Range { key, expected }),
        };
        check((1..=1_000).contains(&this.repeat), "repeat", "1 to 1000")?;
        check(
            (1..=1_000_000).contains(&this.packets),
            "packets",
            "1 to 1000000",
        )?;
        let len = this.packet.get();
        check((1..=65_535).contains(&len), "packet", "1 to 65535 bytes")?;
        check((0.0..=0.5).contains(&this.loss), "loss", "0 to 0.5")?;
        check((0.0..=0.9).contains(&this.cross), "cross", "0 to 0.9")?;
        for case in &this.case {
            let count = case.line.len();
            check((1..=16).contains(&count), "line", "1 to 16 lines a case")?;
            for line in &case.line {
                let rate = line.rate.as_bps();
                check(
                    (1_000..=100_000_000_000).contains(&rate),
                    "rate",
                    "1 kbit to 100 gbit",
                )?;
                check(line.delay_ms <= 10_000, "delay_ms", "0 to 10000")?;
            }
        }
        Ok(this)
    }
}

const fn one() -> u64 {
    1
}

const fn once() -> u32 {
    1
}
