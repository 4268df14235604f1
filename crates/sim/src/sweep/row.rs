//! The figures of one case, as one line of JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{MAX_CASES, quantity::significant};
use crate::results::Quantiles;

/// The figures of one case. Numbers are rounded to six significant digits. A figure that was not measured is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Name of the sweep.
    pub sweep: String,
    /// Version of the program.
    pub version: String,
    /// Hash of the sweep file, of all files it refers to, and of the program. Rows with different hashes do not belong
    /// together.
    pub id: String,
    /// Number of the case, from 0.
    pub case: u64,
    /// Number of cases of the sweep.
    pub cases: u64,
    /// Seed of the simulation.
    pub seed: u64,
    /// Policy of the tunnel. Empty if there is no tunnel.
    pub policy: String,
    /// Value of each parameter. `null`: the value in the base scenario applies.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// Reason why the case could not be simulated.
    pub error: Option<String>,
    /// Payload of all bulk flows after the warm-up, in Mbit/s. Cross traffic does not count.
    pub rate_mbps: Option<f64>,
    /// The same payload over each link alone without the tunnel, in Mbit/s, by name of the link.
    pub links_mbps: BTreeMap<String, Option<f64>>,
    /// `rate_mbps` divided by the highest of `links_mbps`.
    pub share_of_best: Option<f64>,
    /// `rate_mbps` divided by the sum of `links_mbps`.
    pub share_of_sum: Option<f64>,
    /// RTTs of the ping beside the traffic if the scenario has a ping. Otherwise the delays of the first flow: RTT (TCP,
    /// QUIC), one-way delay (UDP) or completion time (requests).
    pub delay_ms: Quantiles,
    /// Share of datagrams, pings and requests that never arrived, 0..=1. `None` if there is only TCP and QUIC.
    pub loss: Option<f64>,
    /// Number of segments that senders retransmitted (TCP), or of packets that they considered lost (QUIC).
    pub retransmits: Option<u64>,
}

/// A line that is not a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not a row of a sweep: {reason}")]
pub struct NotARow {
    /// Number of the line, from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

impl Row {
    /// Returns the row as one line, without the line break.
    #[must_use]
    pub fn line(&self) -> String {
        // All keys are strings and all values are representable, so this cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses line number `line` of a file.
    ///
    /// # Errors
    /// Fails if `text` is not a row.
    pub fn parse(line: usize, text: &str) -> Result<Self, NotARow> {
        let row: Self = serde_json::from_str(text).map_err(|error| NotARow {
            line,
            reason: error.to_string(),
        })?;
        if row.case >= row.cases || row.cases > MAX_CASES {
            return Err(NotARow {
                line,
                reason: format!("case {} of {}", row.case, row.cases),
            });
        }
        Ok(row)
    }

    /// Returns the row with rounded figures.
    pub(super) fn rounded(self) -> Self {
        let round = |value: Option<f64>| {
            value
                .filter(|value| value.is_finite())
                .map(|value| significant(value, DIGITS))
        };
        Self {
            rate_mbps: round(self.rate_mbps),
            links_mbps: self
                .links_mbps
                .into_iter()
                .map(|(name, value)| (name, round(value)))
                .collect(),
            share_of_best: round(self.share_of_best),
            share_of_sum: round(self.share_of_sum),
            delay_ms: Quantiles {
                p50: round(self.delay_ms.p50),
                p95: round(self.delay_ms.p95),
                p99: round(self.delay_ms.p99),
            },
            loss: round(self.loss),
            ..self
        }
    }
}

/// Number of significant digits of figures.
const DIGITS: u8 = 6;
