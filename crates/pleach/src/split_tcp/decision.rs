//! Decision whether splitting TCP connections helps, for `split_tcp = "auto"`.
//!
//! BBR keeps at most twice the product of its rate and its minimum RTT in flight ([`BBR_GAIN`]: `cwnd_gain`,
//! draft-ietf-ccwg-bbr section 5.6). The links together can have the sum of each link's rate times its RTT in flight.
//! So BBR's window is too small if the mean RTT, weighted by rate, exceeds twice the minimum RTT.

use std::time::Duration;

/// A link that carries packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkTrip {
    /// RTT over the tunnel.
    pub(crate) rtt: Duration,
    /// Delivery rate in bit/s. `None` if it is not known.
    pub(crate) rate: Option<u64>,
}

/// The decision, with hysteresis.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    splits: bool,
}

impl Decision {
    /// Decides again, from the present state of the links. Returns whether to split.
    pub(crate) fn update(&mut self, links: &[LinkTrip]) -> bool {
        let threshold = if self.splits { LEAVE_GAIN } else { BBR_GAIN };
        self.splits = spread(links).is_some_and(|spread| spread > threshold);
        self.splits
    }
}

/// Returns the ratio of the mean RTT, weighted by rate, to the minimum RTT. `None` with fewer than two links.
///
/// A link of unknown rate is weighted with the mean of the known rates.
fn spread(links: &[LinkTrip]) -> Option<f64> {
    let shortest = links.iter().map(|link| link.rtt).min()?.as_secs_f64();
    if links.len() < 2 || shortest <= 0.0 {
        return None;
    }
    let known: Vec<f64> = links
        .iter()
        .filter_map(|link| link.rate)
        .map(|rate| rate as f64)
        .collect();
    let usual = match known.len() {
        0 => 1.0,
        count => known.iter().sum::<f64>() / count as f64,
    };
    let weights = links
        .iter()
        .map(|link| link.rate.map_or(usual, |rate| rate as f64).max(1.0));
    let total: f64 = weights.clone().sum();
    let sum: f64 = weights
        .zip(links)
        .map(|(weight, link)| weight * link.rtt.as_secs_f64())
        .sum();
    Some(sum / total / shortest)
}

/// Maximum amount of data that BBR keeps in flight, as a multiple of rate times minimum RTT. Splitting begins above it.
const BBR_GAIN: f64 = 2.0;
/// Ratio of the mean RTT to the minimum RTT below which splitting ends. It is lower than the ratio at which splitting
/// begins, because RTTs vary by about a fifth with the queues of the links.
const LEAVE_GAIN: f64 = 1.6;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(millis: u64, mbps: u64) -> LinkTrip {
        LinkTrip {
            rtt: Duration::from_millis(millis),
            rate: (mbps > 0).then_some(mbps * 1_000_000),
        }
    }

    #[test]
    fn splits_where_the_far_link_carries_much() {
        let mut decision = Decision::default();
        assert!(!decision.update(&[link(40, 50), link(60, 30)]));
        assert!(decision.update(&[link(50, 20), link(290, 20)]));
        // A link with a long RTT that carries only a twentieth of the traffic does not justify splitting.
        assert!(!Decision::default().update(&[link(50, 95), link(290, 5)]));
    }

    #[test]
    fn is_decided_with_hysteresis() {
        let mut decision = Decision::default();
        assert!(!decision.update(&[link(20, 10), link(50, 10)]));
        assert!(decision.update(&[link(20, 10), link(70, 10)]));
        assert!(decision.update(&[link(20, 10), link(50, 10)]));
        assert!(!decision.update(&[link(20, 10), link(40, 10)]));
    }

    #[test]
    fn one_link_or_none_is_never_split() {
        let mut decision = Decision::default();
        assert!(!decision.update(&[]));
        assert!(!decision.update(&[link(300, 10)]));
        assert!(decision.update(&[link(20, 0), link(300, 0)]));
    }
}
