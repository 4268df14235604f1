//! The guideline of the NATALIE paper on unequal links: each link's weight is multiplied by a factor from 0 to 1.
//!
//! 1. Without a large disparity of loss or delay, weights are proportional to bandwidth: all factors are 1.
//! 2. As the disparity grows, the link of highest bandwidth gets a higher share: the factors of the others fall.
//! 3. If the disparity is large, all packets take the link of highest bandwidth: the factors of the others are 0.
//!
//! The meaning of "large" depends on the bandwidth, as the paper's figures show (R-NAT-1 to 9). The bounds are taken
//! from these figures:
//!
//! - **Delay.** Two links of 1 Mbit/s tolerate any difference up to 80 ms. At 10 Mbit/s, throughput takes longer to
//!   converge the larger the difference is: 250 s at 60 ms, and it never converges at 80 ms. The measure is the
//!   number of packets of the flow that overtake each other, which is the difference × the bandwidth of the compared
//!   link. Up to [`DELAY_SMALL_PKTS`] it is small, from [`DELAY_LARGE_PKTS`] on it is large.
//! - **Loss.** Loss is harmless up to 0.1 at 1 Mbit/s and 0.01 at 10 Mbit/s, and a link is of no use beyond 0.04 at 10
//!   Mbit/s. So the measure is the rate of lost bits. Up to [`LOSS_SMALL`] it is small, from [`LOSS_LARGE`] on it is
//!   large. If the loss exceeds that of the best link by [`LOSS_LEAST_LARGE`], it is always large.
//!
//! The link of highest bandwidth is the link with the highest available bandwidth minus its losses. Among equal links
//! it is the one with less loss, then the one with the shorter delay, then the first one. Rule 3 ends only when the
//! disparity is a fifth below its bound. Links of unknown loss and delay count as unimpaired.

use core::time::Duration;

use pleach_core::units::Bitrate;

/// Loss and delay of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Impairment {
    /// Part of the link's packets that are lost, 0 to 1.
    pub loss: f64,
    /// Delay of the link: one-way delay or RTT, but the same kind for all links, because only differences count.
    pub delay: Duration,
}

/// Input of the guideline for one link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkState {
    /// Whether the link is in use.
    pub is_up: bool,
    /// Available rate of the link. `None` if unknown: then only loss and delay determine the best link.
    pub available: Option<Bitrate>,
    /// Loss and delay. `None` if unknown.
    pub impairment: Option<Impairment>,
}

/// The rule that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Rule 1.
    #[default]
    Proportional,
    /// Rule 2.
    Overweight,
    /// Rule 3.
    BestOnly,
}

/// Result of the guideline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The strictest rule that applies to any link.
    pub rule: Rule,
    /// Factor of each link, 0 to 1.
    pub factors: Vec<f64>,
}

/// State of the guideline: the links that are excluded by rule 3.
#[derive(Clone, Debug, Default)]
pub struct Guideline {
    shut_out: Vec<bool>,
}

impl Guideline {
    /// Returns the rule and the factors for `links`.
    pub fn judge(&mut self, links: &[LinkState]) -> Verdict {
        self.shut_out.resize(links.len(), false);
        let mut verdict = Verdict {
            rule: Rule::Proportional,
            factors: vec![1.0; links.len()],
        };
        let Some(best) = best(links) else {
            return verdict;
        };
        for (index, link) in links.iter().enumerate() {
            let (Some(own), Some(reference)) = (link.impairment, links[best].impairment) else {
                self.shut_out[index] = false;
                continue;
            };
            if index == best || !link.is_up {
                self.shut_out[index] = false;
                continue;
            }
            let rate = link.available.unwrap_or(Bitrate::ZERO);
            let disparity = disparity(own, reference, rate);
            let end = if self.shut_out[index] { STAY_OUT } else { 1.0 };
            let factor = (1.0 - disparity).clamp(0.0, 1.0);
            self.shut_out[index] = disparity >= end;
            let (rule, factor) = if self.shut_out[index] {
                (Rule::BestOnly, 0.0)
            } else if factor < 1.0 {
                (Rule::Overweight, factor)
            } else {
                (Rule::Proportional, 1.0)
            };
            verdict.rule = verdict.rule.max(rule);
            verdict.factors[index] = factor;
        }
        verdict
    }
}

/// Returns the disparity between `own` and `best` at `rate`: small is 0 and below, large is 1 and above.
fn disparity(own: Impairment, best: Impairment, rate: Bitrate) -> f64 {
    let mbps = rate.as_mbps();
    let later = own.delay.abs_diff(best.delay).as_secs_f64();
    let overtaken = later * mbps * 1e6 / PACKET_BITS;
    let delay = (overtaken - DELAY_SMALL_PKTS) / (DELAY_LARGE_PKTS - DELAY_SMALL_PKTS);
    let lossier = (own.loss - best.loss).abs();
    let small = LOSS_SMALL / mbps.max(0.001);
    let large = (LOSS_LARGE / mbps.max(0.001)).min(LOSS_LEAST_LARGE);
    let small = small.min(0.9 * large);
    delay.max((lossier - small) / (large - small))
}

/// Returns the index of the link of highest bandwidth.
fn best(links: &[LinkState]) -> Option<usize> {
    let order = |a: &LinkState, b: &LinkState| {
        let rate = |link: &LinkState| {
            let loss = link.impairment.unwrap_or_default().loss;
            link.available.unwrap_or_default().as_mbps() * (1.0 - loss)
        };
        let (own, other) = (
            a.impairment.unwrap_or_default(),
            b.impairment.unwrap_or_default(),
        );
        let by_rate = rate(a).total_cmp(&rate(b));
        let by_loss = other.loss.total_cmp(&own.loss);
        by_rate.then(by_loss).then(other.delay.cmp(&own.delay))
    };
    let up = links
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, link)| link.is_up);
    up.max_by(|(_, a), (_, b)| order(a, b))
        .map(|(index, _)| index)
}

/// Small delay difference in packets: 20 ms at 10 Mbit/s. Up to this difference the paper's throughput is close to
/// the sum of the links (R-NAT-2).
pub const DELAY_SMALL_PKTS: f64 = 17.0;
/// Large delay difference in packets: 70 ms at 10 Mbit/s. It is between 60 ms, where the paper's connection needs 250
/// s, and 80 ms, where it never converges (R-NAT-3).
pub const DELAY_LARGE_PKTS: f64 = 58.0;
/// Small loss in lost Mbit/s: 0.01 of 10 and 0.1 of 1 Mbit/s (R-NAT-5, 6, 7).
pub const LOSS_SMALL: f64 = 0.1;
/// Large loss in lost Mbit/s: 0.04 of 10 Mbit/s (R-NAT-6).
pub const LOSS_LARGE: f64 = 0.4;
/// Loss probability from which a link is of no use at any rate (R-NAT-8).
pub const LOSS_LEAST_LARGE: f64 = 0.1;
/// Disparity below which an excluded link is used again.
const STAY_OUT: f64 = 0.8;
const PACKET_BITS: f64 = 12_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(mbps: u64, loss: f64, delay_ms: u64) -> LinkState {
        LinkState {
            is_up: true,
            available: Some(Bitrate::from_mbps(mbps)),
            impairment: Some(Impairment {
                loss,
                delay: Duration::from_millis(delay_ms),
            }),
        }
    }

    fn rule(links: &[LinkState]) -> (Rule, Vec<f64>) {
        let verdict = Guideline::default().judge(links);
        (verdict.rule, verdict.factors)
    }

    #[test]
    fn the_papers_cases_fall_under_the_rules_it_found_for_them() {
        use Rule::{BestOnly, Overweight, Proportional};
        for (links, expected) in [
            ([link(1, 0.0, 10), link(1, 0.0, 90)], Proportional),
            ([link(10, 0.0, 10), link(10, 0.0, 30)], Proportional),
            ([link(10, 0.0, 10), link(10, 0.0, 50)], Overweight),
            ([link(10, 0.0, 10), link(10, 0.0, 90)], BestOnly),
            ([link(10, 0.0, 10), link(10, 0.01, 10)], Proportional),
            ([link(10, 0.0, 10), link(10, 0.03, 10)], Overweight),
            ([link(10, 0.0, 10), link(10, 0.05, 10)], BestOnly),
            ([link(1, 0.0, 10), link(1, 0.08, 10)], Proportional),
            ([link(10, 0.0, 10), link(2, 0.12, 10)], BestOnly),
            ([link(10, 0.01, 10), link(2, 0.0, 10)], Proportional),
        ] {
            assert_eq!(rule(&links).0, expected, "{links:?}");
        }
        assert_eq!(rule(&[link(10, 0.05, 10), link(10, 0.0, 10)]).1, [0.0, 1.0]);
    }

    #[test]
    fn what_is_unknown_or_down_changes_nothing() {
        let unknown = LinkState {
            impairment: None,
            ..link(10, 0.0, 0)
        };
        assert_eq!(
            rule(&[link(10, 0.5, 900), unknown]),
            (Rule::Proportional, vec![1.0, 1.0])
        );
        let down = LinkState {
            is_up: false,
            ..link(100, 0.0, 0)
        };
        assert_eq!(rule(&[link(10, 0.5, 900), down]).0, Rule::Proportional);
        assert_eq!(rule(&[]), (Rule::Proportional, vec![]));
    }

    #[test]
    fn a_link_shut_out_comes_back_only_when_it_is_clearly_better() {
        let mut guideline = Guideline::default();
        let mut judge = |delay| {
            guideline
                .judge(&[link(10, 0.0, 0), link(10, 0.0, delay)])
                .rule
        };
        assert_eq!(judge(68), Rule::Overweight);
        assert_eq!(judge(71), Rule::BestOnly);
        assert_eq!(judge(68), Rule::BestOnly);
        assert_eq!(judge(55), Rule::Overweight);
        assert_eq!(judge(68), Rule::Overweight);
    }
}
