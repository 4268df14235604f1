//! The weights in force: fixed, set by a user, or automatic, for the links that are up, limited by the guideline.
//!
//! A link that is down has weight 0. If all links are down, all weights are 0, and packets are left to the routing
//! table. Weights that a user sets while the equalizer runs remain in force until it stops. They apply to all links:
//! links that the user did not name keep their current weights.

use core::{fmt, time::Duration};

use pleach_core::{time::Instant, units::Bitrate};

use crate::{
    MAX_LINKS,
    auto::{AutoSettings, AutoWeights, Counters, Load},
    guideline::{Guideline, Impairment, LinkState, Rule},
};

/// Source of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The available rate of each link.
    #[default]
    Auto,
    /// The configuration.
    Fixed,
    /// A user who set the weights while running.
    Live,
}

/// Configuration of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// Weight under [`Source::Fixed`].
    pub weight: u32,
    /// Rate of the link, if configured.
    pub rate: Option<Bitrate>,
}

/// Reason for a change of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Counters showed a change of the background or of a rate.
    Background,
    /// A link went down.
    Down(usize),
    /// Loss or delay of the links has become too different, or no longer is.
    Guideline(Rule),
    /// A user set the weights.
    Set,
    /// The equalizer started.
    Start,
    /// A link came up.
    Up(usize),
}

/// New weights to be put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// One weight for each link, in their order.
    pub weights: Vec<u32>,
    /// The reason.
    pub why: Why,
    /// Time of the change.
    pub at: Instant,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkView {
    /// Current weight.
    pub weight: u32,
    /// Weight of the link divided by the sum of all weights, 0 to 1.
    pub share: f64,
    /// Whether the link may carry packets.
    pub is_up: bool,
    /// Rate, background and available rate.
    pub load: Load,
    /// Loss and delay, if known.
    pub impairment: Option<Impairment>,
}

/// Computes the weights from all inputs.
#[derive(Clone, Debug)]
pub struct WeightControl {
    source: Source,
    links: Vec<Link>,
    auto: AutoWeights,
    guideline: Option<Guideline>,
    rule: Rule,
    in_force: Vec<u32>,
    pending: Option<Change>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    weight: u32,
    is_up: bool,
    impairment: Option<Impairment>,
}

impl WeightControl {
    /// Creates the control of `links`, of which at most [`MAX_LINKS`] count. All links are initially down.
    ///
    /// `source` is the source of the weights. `gate`: whether the guideline ([`crate::guideline`]) may change
    /// automatic weights.
    #[must_use]
    pub fn new(
        source: Source,
        settings: AutoSettings,
        links: &[LinkSettings],
        gate: bool,
        now: Instant,
    ) -> Self {
        let links = &links[..links.len().min(MAX_LINKS)];
        let told: Vec<Option<Bitrate>> = links.iter().map(|link| link.rate).collect();
        let link = |settings: &LinkSettings| Link {
            weight: settings.weight,
            is_up: false,
            impairment: None,
        };
        Self {
            source,
            links: links.iter().map(link).collect(),
            auto: AutoWeights::new(settings, &told, now),
            guideline: gate.then(Guideline::default),
            rule: Rule::default(),
            in_force: vec![0; links.len()],
            pending: None,
        }
    }

    /// Records whether link `index` is up.
    pub fn handle_link(&mut self, now: Instant, index: usize, is_up: bool) {
        if let Some(link) = self.links.get_mut(index)
            && link.is_up != is_up
        {
            link.is_up = is_up;
            let is_start =
                self.in_force.iter().all(|weight| *weight == 0) && self.pending.is_none();
            let why = match (is_up, is_start) {
                (true, true) => Why::Start,
                (true, false) => Why::Up(index),
                (false, _) => Why::Down(index),
            };
            self.decide(now, why, true);
        }
    }

    /// Sets weights by hand: pairs of link and weight.
    pub fn handle_weights(&mut self, now: Instant, weights: &[(usize, u32)]) {
        if self.source == Source::Auto {
            // Links that are not named keep their current weights.
            for (link, weight) in self.links.iter_mut().zip(self.auto.weights()) {
                link.weight = weight;
            }
        }
        self.source = Source::Live;
        for (index, weight) in weights {
            if let Some(link) = self.links.get_mut(*index) {
                link.weight = *weight;
            }
        }
        self.decide(now, Why::Set, true);
    }

    /// Sets the rate of link `index`. `None`: the rate must be learned.
    pub fn handle_rate(&mut self, now: Instant, index: usize, rate: Option<Bitrate>) {
        self.auto.set_rate(index, rate);
        self.decide(now, Why::Background, false);
    }

    /// Processes counters of all links, when they are due by [`Self::poll_timeout`]. `None` for a link that does not
    /// exist.
    pub fn handle_counters(&mut self, now: Instant, counters: &[Option<Counters>]) {
        self.auto.handle_counters(now, counters);
        self.decide(now, Why::Background, false);
    }

    /// Processes loss and delay of each link. `None` if unknown.
    pub fn handle_impairments(&mut self, now: Instant, impairments: &[Option<Impairment>]) {
        for (link, impairment) in self.links.iter_mut().zip(impairments) {
            link.impairment = *impairment;
        }
        self.decide(now, Why::Guideline(self.rule), false);
    }

    /// Returns the time at which counters are due. Counters are needed in every mode, because [`Self::view`] reports
    /// them.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.auto.poll_timeout()
    }

    /// Returns the weights to be put in force, if they changed since the last call.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.pending.take()
    }

    /// Returns the source of the weights.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns the state of link `index`.
    #[must_use]
    pub fn view(&self, index: usize) -> Option<LinkView> {
        let link = self.links.get(index)?;
        let weight = self.in_force[index];
        let sum: u64 = self.in_force.iter().map(|weight| u64::from(*weight)).sum();
        Some(LinkView {
            weight,
            share: fraction(u64::from(weight), sum.max(1)),
            is_up: link.is_up,
            load: self.auto.load(index),
            impairment: link.impairment,
        })
    }

    /// Computes the weights, and stores them if they differ enough from the current ones, or differ at all if `exact`
    /// is set.
    fn decide(&mut self, now: Instant, why: Why, exact: bool) {
        let wanted = match self.source {
            Source::Auto => self.auto.weights(),
            Source::Fixed | Source::Live => self.links.iter().map(|link| link.weight).collect(),
        };
        let (rule, factors) = self.judge();
        let weight = |((wanted, link), factor): ((u32, &Link), f64)| {
            if link.is_up {
                scaled(wanted, factor)
            } else {
                0
            }
        };
        let weights: Vec<u32> = wanted
            .into_iter()
            .zip(&self.links)
            .zip(factors)
            .map(weight)
            .collect();
        let is_new = if exact {
            weights != self.in_force
        } else {
            moved(&weights, &self.in_force)
        };
        if !is_new {
            self.rule = rule;
            return;
        }
        let why = if core::mem::replace(&mut self.rule, rule) == rule {
            why
        } else {
            Why::Guideline(rule)
        };
        self.in_force.clone_from(&weights);
        self.pending = Some(Change {
            weights,
            why,
            at: now,
        });
    }

    fn judge(&mut self) -> (Rule, Vec<f64>) {
        let ones = vec![1.0; self.links.len()];
        // The guideline does not change weights that a user set.
        let Some(guideline) = self
            .guideline
            .as_mut()
            .filter(|_| self.source == Source::Auto)
        else {
            return (Rule::Proportional, ones);
        };
        let state = |(index, link): (usize, &Link)| LinkState {
            is_up: link.is_up,
            available: self.auto.load(index).available,
            impairment: link.impairment,
        };
        let states: Vec<LinkState> = self.links.iter().enumerate().map(state).collect();
        let verdict = guideline.judge(&states);
        (verdict.rule, verdict.factors)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Fixed => "fixed",
            Self::Live => "live",
        })
    }
}

/// Returns `weight` times `factor`: at least 1 unless the factor is 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "0 to 1 times u32"
)]
fn scaled(weight: u32, factor: f64) -> u32 {
    if factor <= 0.0 || weight == 0 {
        return 0;
    }
    ((f64::from(weight) * factor.min(1.0)) as u32).max(1)
}

/// Whether the share of any link differs by more than [`LEAST_CHANGE`] or by more than the part [`LEAST_PART`] of the
/// share, or a link was added or removed.
fn moved(new: &[u32], old: &[u32]) -> bool {
    let sum = |weights: &[u32]| {
        weights
            .iter()
            .map(|weight| u64::from(*weight))
            .sum::<u64>()
            .max(1)
    };
    let (new_sum, old_sum) = (sum(new), sum(old));
    new.iter().zip(old).any(|(new, old)| {
        let (new_share, old_share) = (
            fraction(u64::from(*new), new_sum),
            fraction(u64::from(*old), old_sum),
        );
        let least = LEAST_CHANGE.min(LEAST_PART * new_share.min(old_share));
        (*new == 0) != (*old == 0) || (new_share - old_share).abs() > least
    })
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn fraction(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// Change of a share below which automatic weights are left unchanged.
const LEAST_CHANGE: f64 = 0.005;
/// Relative change of a share from which weights are changed. It matters for links with a small share: if the share
/// is 0.1, a change by [`LEAST_CHANGE`] is already a twentieth of it.
const LEAST_PART: f64 = 0.02;

/// Age from which the loss and delay of a link count as unknown, for the modules that measure them.
pub const IMPAIRMENT_MEMORY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use pleach_core::units::Bytes;

    use super::*;

    const NOW: Instant = Instant::from_millis(5);

    fn control(source: Source) -> WeightControl {
        let link = |weight| LinkSettings {
            weight,
            rate: Some(Bitrate::from_mbps(10)),
        };
        let links = [link(3), link(1)];
        let mut control =
            WeightControl::new(source, AutoSettings::default(), &links, true, Instant::ZERO);
        control.handle_link(NOW, 0, true);
        control.handle_link(NOW, 1, true);
        control
    }

    fn changed(control: &mut WeightControl) -> Option<(Vec<u32>, Why)> {
        control
            .poll_change()
            .map(|change| (change.weights, change.why))
    }

    #[test]
    fn a_link_that_goes_down_has_no_weight_until_it_returns() {
        let mut control = control(Source::Fixed);
        assert_eq!(changed(&mut control), Some((vec![3, 1], Why::Up(1))));
        control.handle_link(NOW, 0, false);
        assert_eq!(changed(&mut control), Some((vec![0, 1], Why::Down(0))));
        control.handle_link(NOW, 0, false);
        assert_eq!(changed(&mut control), None);
        control.handle_link(NOW, 0, true);
        assert_eq!(changed(&mut control), Some((vec![3, 1], Why::Up(0))));
    }

    #[test]
    fn weights_set_by_hand_end_automatic_ones() {
        let mut control = control(Source::Auto);
        assert_eq!(
            changed(&mut control),
            Some((vec![10_000, 10_000], Why::Up(1)))
        );
        control.handle_weights(NOW, &[(1, 2500), (77, 1)]);
        assert_eq!(changed(&mut control), Some((vec![10_000, 2500], Why::Set)));
        assert_eq!(control.source(), Source::Live);
        control.handle_counters(NOW, &[Some(Counters::default()); 2]);
        assert_eq!(changed(&mut control), None);
    }

    #[test]
    fn a_small_share_is_kept_more_exactly_than_a_large_one() {
        assert!(!moved(&[10_050, 10_000], &[10_000, 10_000]));
        assert!(moved(&[10_500, 10_000], &[10_000, 10_000]));
        assert!(moved(&[1_030, 10_000], &[1_000, 10_000]));
        assert!(!moved(&[1_010, 10_000], &[1_000, 10_000]));
    }

    #[test]
    fn automatic_weights_follow_background_and_guideline() {
        let mut control = control(Source::Auto);
        control.poll_change();
        let mut counters = [Counters::default(); 2];
        let mut now = NOW;
        for _ in 0..4 {
            control.handle_counters(now, &counters.map(Some));
            now = control.poll_timeout();
            counters[1].total += Bytes::new(50_000);
        }
        let (weights, why) = changed(&mut control).expect("background");
        assert_eq!((weights, why), (vec![10_000, 2_000], Why::Background));
        let lossy = Impairment {
            loss: 0.2,
            delay: Duration::ZERO,
        };
        control.handle_impairments(now, &[Some(Impairment::default()), Some(lossy)]);
        let only = Some((vec![10_000, 0], Why::Guideline(Rule::BestOnly)));
        assert_eq!(changed(&mut control), only);
        control.handle_impairments(now, &[None, None]);
        let back = Some((vec![10_000, 2_000], Why::Guideline(Rule::Proportional)));
        assert_eq!(changed(&mut control), back);
        let view = control.view(1).expect("a link");
        assert_eq!(view.load.background, Bitrate::from_mbps(8));
        assert!((view.share - 1.0 / 6.0).abs() < 1e-9);
    }
}
