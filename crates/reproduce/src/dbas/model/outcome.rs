//! What came of a run, and how its throughput is read.

use super::Reading;

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds from the beginning until the last byte had come.
    pub done_s: f64,
    /// All bytes.
    pub bytes: f64,
    /// For how long connections arrived, in seconds.
    pub early_s: f64,
    /// What came meanwhile.
    pub early_bytes: f64,
    /// What of that was the long connection's.
    pub long_bytes: f64,
    /// Of each connection but the long one: bytes, and seconds from beginning to end.
    pub each: Vec<(f64, f64)>,
}

impl Outcome {
    /// Mbit/s as `reading` counts; NaN if there is nothing to count.
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

    /// The time that `share` of the connections took at most, in milliseconds; NaN if there were none.
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
