//! Computes numbers from results: windows of series, sums, deviations. All times are in seconds since the run began.

use core::ops::Range;

use pleach_sim::results::{FlowResult, FlowSeries, LinkSeries, Results};

/// Returns the series of the link `name`.
#[must_use]
pub fn link<'a>(results: &'a Results, name: &str) -> Option<&'a LinkSeries> {
    results.series.links.iter().find(|link| link.name == name)
}

/// Returns the series of the flow `name`.
#[must_use]
pub fn flow_series<'a>(results: &'a Results, name: &str) -> Option<&'a FlowSeries> {
    results.series.flows.iter().find(|flow| flow.name == name)
}

/// Returns the result of the flow `name`.
#[must_use]
pub fn flow<'a>(results: &'a Results, name: &str) -> Option<&'a FlowResult> {
    results.flows.iter().find(|flow| flow.name == name)
}

/// Returns the samples of `values` that begin within `seconds`.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the slice below"
)]
pub fn window<'a>(results: &Results, values: &'a [f64], seconds: Range<f64>) -> &'a [f64] {
    let interval_s = results.series.interval_ms / 1e3;
    if interval_s.is_nan() || interval_s <= 0.0 {
        return &[];
    }
    // A start that differs from a multiple of the interval only by rounding counts as this multiple.
    let index = |at: f64| ((at / interval_s - 1e-6).ceil().max(0.0) as usize).min(values.len());
    let (from, to) = (index(seconds.start), index(seconds.end));
    values.get(from..to).unwrap_or_default()
}

/// Returns the mean of the finite values. `None` if there are none.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub fn mean(values: &[f64]) -> Option<f64> {
    let known: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

/// Returns the standard deviation of the finite values. `None` if there are none.
#[must_use]
pub fn deviation(values: &[f64]) -> Option<f64> {
    let centre = mean(values)?;
    let squares: Vec<f64> = values
        .iter()
        .map(|value| (value - centre).powi(2))
        .collect();
    Some(mean(&squares)?.sqrt())
}

/// Returns the sum of the finite values.
#[must_use]
pub fn sum(values: &[f64]) -> f64 {
    values.iter().filter(|v| v.is_finite()).sum()
}

/// Returns the element-wise sum; a missing number counts as 0.
#[must_use]
pub fn total<'a>(arrays: impl IntoIterator<Item = &'a [f64]>) -> Vec<f64> {
    let mut total: Vec<f64> = Vec::new();
    for array in arrays {
        if total.len() < array.len() {
            total.resize(array.len(), 0.0);
        }
        for (sum, value) in total.iter_mut().zip(array) {
            *sum += if value.is_finite() { *value } else { 0.0 };
        }
    }
    total
}

/// Returns the first time within `seconds` from which the values stay below `limit` for at least `hold` seconds.
/// `None` if there is no such time.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub fn falls_below(
    results: &Results,
    values: &[f64],
    limit: f64,
    hold: f64,
    seconds: Range<f64>,
) -> Option<f64> {
    let interval_s = results.series.interval_ms / 1e3;
    let needed = window(results, values, 0.0..hold).len().max(1);
    let samples = window(results, values, seconds.clone());
    let mut low = samples.windows(needed);
    let first = low.position(|run| run.iter().all(|value| *value < limit))?;
    Some(seconds.start + first as f64 * interval_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_sim::results::Series;

    fn results() -> Results {
        Results {
            series: Series {
                interval_ms: 100.0,
                ..Series::default()
            },
            ..Results::default()
        }
    }

    #[test]
    fn windows_hold_the_samples_that_begin_in_them() {
        let values: Vec<f64> = (0..10).map(f64::from).collect();
        let window = |seconds| window(&results(), &values, seconds).to_vec();
        assert_eq!(window(0.2..0.5), [2.0, 3.0, 4.0]);
        assert_eq!(window(0.85..9.0), [9.0]);
        assert_eq!(window(3.0..2.0), [] as [f64; 0]);
        assert_eq!(
            super::window(&Results::default(), &values, 0.0..1.0),
            [] as [f64; 0]
        );
    }

    #[test]
    fn means_leave_out_what_is_unknown() {
        let values = [1.0, f64::NAN, 3.0];
        assert_eq!(mean(&values), Some(2.0));
        assert_eq!(deviation(&values), Some(1.0));
        assert_eq!(mean(&[f64::NAN]), None);
        assert_eq!(sum(&values), 4.0);
        assert_eq!(total([&values[..], &[1.0][..]]), [2.0, 0.0, 3.0]);
    }

    #[test]
    fn falling_below_counts_once_it_lasts() {
        let values = [9.0, 0.0, 9.0, 0.0, 0.0, 0.0];
        let at = |hold| falls_below(&results(), &values, 1.0, hold, 0.0..0.6);
        assert_eq!(at(0.1), Some(0.1));
        assert!(at(0.3).is_some_and(|at| (at - 0.3).abs() < 1e-9));
        assert_eq!(at(0.6), None);
    }
}
