//! The outcome of a run, and how its throughput is computed.

use super::Reading;

/// Measurements of one run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Time in seconds from the beginning until the last byte arrived.
    pub done_s: f64,
    /// Number of bytes of all connections.
    pub bytes: f64,
    /// Time in seconds during which connections were opened.
    pub early_s: f64,
    /// Number of bytes that arrived within `early_s`.
    pub early_bytes: f64,
    /// Number of bytes of the long connection that arrived within `early_s`.
    pub long_bytes: f64,
    /// Bytes and duration in seconds of each connection except the long one.
    pub each: Vec<(f64, f64)>,
}

impl Outcome {
    /// Returns the throughput in Mbit/s according to `reading`; NaN if there are no bytes to count.
    pub(super) fn mbps(&self, reading: Reading) -> f64 {
        let mbps = |bytes: f64, seconds: f64| bytes * 8.0 / 1e6 / seconds;
        match reading {
            Reading::UntilDone => mbps(self.bytes, self.done_s),
            Reading::WhileArriving => mbps(self.early_bytes, self.early_s),
            Reading::PerConnection => {
                let rates = self
                    .each
                    .iter()
                    .map(|(bytes, took_s)| mbps(*bytes, *took_s));
                let rates: Vec<f64> = rates.collect();
                crate::series::mean(&rates).unwrap_or(f64::NAN)
            }
            Reading::LongOne => mbps(self.long_bytes, self.early_s),
        }
    }

    /// Returns the time within which `share` of the connections completed, in milliseconds; NaN if there were no
    /// connections.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "clamped to the list"
    )]
    pub(super) fn time_ms(&self, share: f64) -> f64 {
        let mut times: Vec<f64> = self.each.iter().map(|(_, took_s)| took_s * 1e3).collect();
        times.sort_by(f64::total_cmp);
        let rank = (share * times.len() as f64).ceil() as usize;
        let index = rank.max(1).min(times.len());
        index.checked_sub(1).map_or(f64::NAN, |index| times[index])
    }
}
