//! Auto-weighting: weights in proportion to the capacity that other traffic leaves on each link.
//!
//! Every [`AutoSettings::interval`] the caller passes counters of each link: all bytes that its device sent, the
//! bytes that the equalizer passed to the device, and, where they are counted, the bytes that other traffic passed to
//! it. *Background* is the traffic of others. The available rate of a link is its rate minus the background, and at
//! least [`AutoSettings::floor`] of the rate, so that no link is excluded forever. Weights are the available rates:
//! bandwidths, as in the body of the NATALIE paper, and not the bandwidth-delay products of its introduction.
//!
//! Background is the traffic that others *pass* to a device, counted at the same place as the equalizer's own traffic.
//! So it is not distorted by a queue that grows, drains or overflows. If only the device counts bytes, background is
//! the device's count minus the own traffic. The equalizer counts a packet before it waits for its device, and the
//! device counts it afterwards. Bytes that are counted too early in one interval are corrected in the next, up to one
//! interval's worth. [`Background`] smooths the background and detects changes.
//!
//! When a change is detected, a link has already been given more than it can carry, and the excess is in its queue or
//! has overflowed it. Until the excess is gone, packets of a flow on that link are late, and retransmissions on it
//! are lost again when the queue overflows. So after such a change the excess is accumulated (`Link::excess_bytes`),
//! and the available rate is reduced as if the excess had to be carried within `DRAIN`. At other times the queue is
//! TCP's usual queue and is not considered here.
//!
//! The rate of a link is configured, read by ethtool, or learned: see [`LearnedRate`]. A link of unknown rate gets
//! the mean weight of the links with known rates.
//!
//! Source: section V of the paper. It names neither interval nor filter, and says "bytes transferred" without adding
//! that the equalizer's own bytes must be excluded.

use core::time::Duration;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

use crate::{MAX_LINKS, background::Background};

/// Speed at which weights adapt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoSettings {
    /// Time between two readings of the counters.
    pub interval: Duration,
    /// Smallest part of a link's rate that counts as available, 0 to 1.
    pub floor: f64,
}

impl Default for AutoSettings {
    fn default() -> Self {
        Self {
            interval: INTERVAL,
            floor: 0.01,
        }
    }
}

/// Bytes sent over a link since some moment in the past. A value below the previous one means that the counter was
/// reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that the device sent, from any source.
    pub total: Bytes,
    /// Bytes that the equalizer passed to the device.
    pub own: Bytes,
    /// Bytes that other traffic passed to the device. `None` if they are not counted.
    pub others: Option<Bytes>,
}

/// Estimates for a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Rate of the link. `None` if it is neither configured nor learned yet.
    pub rate: Option<Bitrate>,
    /// Smoothed rate of other traffic.
    pub background: Bitrate,
    /// Available rate: the rate minus the background, at least the floor.
    pub available: Option<Bitrate>,
}

/// Estimates of all links, and the weights that follow.
#[derive(Clone, Debug)]
pub struct AutoWeights {
    settings: AutoSettings,
    links: Vec<Link>,
    /// Time of the last reading of the counters.
    read_at: Option<Instant>,
    next_at: Instant,
    /// Time at which rates are learned next, and number of times that they were learned.
    learn_at: Instant,
    lessons: u32,
}

#[derive(Clone, Debug, Default)]
struct Link {
    told: Option<Bitrate>,
    learned: LearnedRate,
    /// Time and value of the device's counter when its rate was last learned.
    lesson: Option<(Instant, Bytes)>,
    last: Option<Counters>,
    /// Bytes that the equalizer has counted and the device has not sent yet.
    early_bytes: u64,
    /// Bytes passed to the link beyond its capacity since an increase of the background was detected. `None` once the
    /// excess is gone, or if the background is not counted separately.
    excess_bytes: Option<u64>,
    background: Background,
}

impl AutoWeights {
    /// Creates the estimates of links whose configured rates are `told`, in their order. At most [`MAX_LINKS`] links
    /// count. The first counters are due at once.
    #[must_use]
    pub fn new(settings: AutoSettings, told: &[Option<Bitrate>], now: Instant) -> Self {
        let link = |told: &Option<Bitrate>| Link {
            told: *told,
            ..Link::default()
        };
        Self {
            settings,
            links: told.iter().take(MAX_LINKS).map(link).collect(),
            read_at: None,
            next_at: now,
            learn_at: now,
            lessons: 0,
        }
    }

    /// Sets the rate of link `index`. `None`: the rate must be learned.
    pub fn set_rate(&mut self, index: usize, told: Option<Bitrate>) {
        if let Some(link) = self.links.get_mut(index) {
            link.told = told;
        }
    }

    /// Returns the time at which counters are due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.next_at
    }

    /// Processes the counters of all links at `now`. `None` for a link that does not exist; its history is deleted.
    ///
    /// A call before the time that [`Self::poll_timeout`] returns is ignored.
    pub fn handle_counters(&mut self, now: Instant, counters: &[Option<Counters>]) {
        if now < self.next_at {
            return;
        }
        self.next_at = now + self.settings.interval;
        let length = self
            .read_at
            .map_or(Duration::ZERO, |read_at| now.since(read_at));
        self.read_at = Some(now);
        if now >= self.learn_at {
            self.learn_at = now + LEARN_INTERVAL;
            self.learn(now, counters);
        }
        for (index, link) in self.links.iter_mut().enumerate() {
            match counters.get(index).copied().flatten() {
                Some(counters) => link.on_counters(counters, length),
                None => link.forget(),
            }
        }
    }

    /// Learns rates from the bytes that the devices have sent since the last time.
    fn learn(&mut self, now: Instant, counters: &[Option<Counters>]) {
        self.lessons = self.lessons.wrapping_add(1);
        let turn = (self.lessons / LEARN_TURN) as usize % self.links.len().max(1);
        let is_reached: Vec<bool> = self
            .links
            .iter()
            .map(|link| link.learned.is_reached)
            .collect();
        for ((index, link), counters) in self.links.iter_mut().enumerate().zip(counters) {
            let Some(total) = counters.map(|counters| counters.total) else {
                continue;
            };
            let demand = is_reached
                .iter()
                .enumerate()
                .any(|(other, reached)| other != index && *reached);
            if let Some((since, before)) = link.lesson.replace((now, total))
                && before <= total
                && let Some(carried) = Bitrate::from_transfer(total - before, now.since(since))
            {
                link.learned.on_interval(carried, index == turn, demand);
            }
        }
    }

    /// Returns the estimates for link `index`.
    #[must_use]
    pub fn load(&self, index: usize) -> Load {
        self.links
            .get(index)
            .map_or(Load::default(), |link| link.load(&self.settings))
    }

    /// Returns the weights of all links in their order: available rates in kbit/s, at least 1.
    #[must_use]
    pub fn weights(&self) -> Vec<u32> {
        let available: Vec<Option<u64>> = self
            .links
            .iter()
            .map(|link| {
                link.load(&self.settings)
                    .available
                    .map(|rate| rate.as_bps() / 1000)
            })
            .collect();
        let known: Vec<u64> = available.iter().copied().flatten().collect();
        let mean = known.iter().sum::<u64>() / (known.len() as u64).max(1);
        let weight =
            |kbps: Option<u64>| u32::try_from(kbps.unwrap_or(mean).max(1)).unwrap_or(u32::MAX);
        available.into_iter().map(weight).collect()
    }
}

impl Link {
    fn on_counters(&mut self, counters: Counters, length: Duration) {
        let Some(last) = self.last.replace(counters) else {
            return;
        };
        if counters.total < last.total || counters.own < last.own || length.is_zero() {
            self.early_bytes = 0;
            return;
        }
        let total = (counters.total - last.total).get();
        let others = match (counters.others, last.others) {
            (Some(others), Some(before)) if others >= before => (others - before).get(),
            (Some(_), _) => return,
            (None, _) => {
                let own = (counters.own - last.own).get();
                let own = own.saturating_add(self.early_bytes);
                let room = self
                    .rate()
                    .map_or(u64::MAX, |rate| rate.bytes_in(length).get());
                self.early_bytes = own.saturating_sub(total).min(room);
                total.saturating_sub(own)
            }
        };
        // If the rate of a link is unknown, changes are measured relative to the rate that it carries now.
        let carried = Bitrate::from_transfer(Bytes::new(total), length);
        let rate = self.rate().or(carried).unwrap_or(Bitrate::ZERO);
        let is_more = self
            .background
            .on_interval(Bytes::new(others), length, rate);
        let is_counted = counters.others.is_some();
        if is_more && is_counted && self.excess_bytes.is_none() {
            self.excess_bytes = Some(0);
        }
        if let (Some(rate), Some(excess)) = (self.rate(), self.excess_bytes) {
            let given = others.saturating_add((counters.own - last.own).get());
            let most = rate.bytes_in(MAX_EXCESS).get();
            let excess = excess.saturating_add(given);
            let excess = excess.saturating_sub(rate.bytes_in(length).get()).min(most);
            self.excess_bytes = (excess > 0).then_some(excess);
        }
    }

    fn rate(&self) -> Option<Bitrate> {
        self.told.or(self.learned.rate())
    }

    fn load(&self, settings: &AutoSettings) -> Load {
        let background = self.background.rate();
        let available = self.rate().map(|rate| {
            let least = rate.scale(part(settings.floor), PARTS);
            let excess = Bytes::new(self.excess_bytes.unwrap_or(0));
            let excess = Bitrate::from_transfer(excess, DRAIN).unwrap_or_default();
            let left = rate.saturating_sub(background).saturating_sub(excess);
            left.max(least)
        });
        Load {
            rate: self.rate(),
            background,
            available,
        }
    }

    fn forget(&mut self) {
        let told = self.told;
        *self = Self {
            told,
            ..Self::default()
        };
    }
}

/// The learned rate of a link without a configured rate, from the bytes that its device sent.
///
/// A rate that two consecutive intervals reach is *proven*. The links take turns of one second in which they are
/// given 5 % more than they have proven. If the link can carry more, its proven rate rises. If a link falls short of
/// its proven rate while another link reaches its own, it is slower than estimated, and its estimate is reduced.
///
/// Limits: learning needs traffic that fills the links. Without such traffic, nothing is learned and nothing is
/// forgotten. A configured rate is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnedRate {
    proven: Option<Bitrate>,
    is_turn: bool,
    last: Bitrate,
    is_reached: bool,
}

impl LearnedRate {
    /// Returns the estimate, including the increase on trial.
    #[must_use]
    pub fn rate(&self) -> Option<Bitrate> {
        let tried = |proven: Bitrate| proven.scale(LEARN_STEP.0, LEARN_STEP.1);
        self.proven
            .map(|proven| if self.is_turn { tried(proven) } else { proven })
    }

    /// Processes a sample. `turn`: whether the link may exceed its proven rate from now on. `demand`: whether another
    /// link carries its proven rate.
    fn on_interval(&mut self, sample: Bitrate, turn: bool, demand: bool) {
        let low = sample.min(self.last);
        let high = sample.max(self.last);
        self.last = sample;
        self.is_turn = turn;
        let Some(proven) = self.proven else {
            self.proven = (low >= LEAST_LEARNED).then_some(low);
            return;
        };
        self.is_reached = low >= proven.scale(REACHED.0, REACHED.1);
        if self.is_reached {
            self.proven = Some(proven.max(low));
        } else if demand {
            let less = proven.scale(LEARN_FALL.0, LEARN_FALL.1);
            self.proven = Some(less.max(high).max(LEAST_LEARNED).min(proven));
        }
    }
}

/// Returns a fraction in millionths.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped"
)]
fn part(fraction: f64) -> u64 {
    (fraction.clamp(0.0, 1.0) * PARTS as f64) as u64
}

const PARTS: u64 = 1_000_000;

/// Time in which the excess after a change should drain, if other traffic leaves enough capacity.
const DRAIN: Duration = Duration::from_millis(200);
/// Upper bound of the excess, as the time that the link needs to carry it. Bytes beyond this bound were lost.
const MAX_EXCESS: Duration = Duration::from_millis(50);
/// Rate below which nothing is learned: keep-alives contain no information about a link.
const LEAST_LEARNED: Bitrate = Bitrate::from_bps(100_000);
/// Factor by which a link exceeds its proven rate in its turn.
const LEARN_STEP: (u64, u64) = (105, 100);
/// Part of the proven rate from which the rate counts as reached. It is below 1, because a link carries slightly less
/// while another link tries more.
const REACHED: (u64, u64) = (95, 100);
/// Factor per lesson for the proven rate of a link that does not reach this rate while another link reaches its own.
/// The rate falls to half in 7 s.
const LEARN_FALL: (u64, u64) = (98, 100);
/// Time between two lessons. Over shorter times a device sends in bursts.
const LEARN_INTERVAL: Duration = Duration::from_millis(200);
/// Number of lessons per turn: a second.
const LEARN_TURN: u32 = 5;
/// Default time between two readings of the counters.
const INTERVAL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::bitrate;

    /// Two links on which the equalizer sends as much as it can.
    struct Lines {
        rates: [u64; 2],
        background: [u64; 2],
        now: Instant,
        counters: [Counters; 2],
        auto: AutoWeights,
    }

    impl Lines {
        fn new(rates: [u64; 2], told: [Option<u64>; 2]) -> Self {
            let told = told.map(|mbps| mbps.map(Bitrate::from_mbps));
            let mut this = Self {
                rates,
                background: [0; 2],
                now: Instant::ZERO,
                counters: Default::default(),
                auto: AutoWeights::new(AutoSettings::default(), &told, Instant::ZERO),
            };
            this.auto
                .handle_counters(this.now, &this.counters.map(Some));
            this
        }

        /// Runs one flow over both links. The rate of the flow is limited by the link that fills up first.
        fn run(&mut self, intervals: u32) {
            for _ in 0..intervals {
                let weights = self.auto.weights();
                let sum = f64::from(weights[0]) + f64::from(weights[1]);
                let share = |index: usize| f64::from(weights[index]) / sum;
                let left = |index: usize| (self.rates[index] - self.background[index]) as f64;
                let flow = (left(0) / share(0)).min(left(1) / share(1));
                self.now += INTERVAL;
                for index in 0..2 {
                    let bytes = |mbps: f64| bitrate(mbps * 1e6).bytes_in(INTERVAL);
                    let own = bytes(flow * share(index));
                    self.counters[index].own += own;
                    self.counters[index].total += own + bytes(self.background[index] as f64);
                }
                self.auto
                    .handle_counters(self.now, &self.counters.map(Some));
            }
        }

        fn ratio(&self) -> f64 {
            let weights = self.auto.weights();
            f64::from(weights[0]) / f64::from(weights[1])
        }
    }

    #[test]
    fn what_came_too_much_before_a_change_was_found_is_given_time_to_leave() {
        let told = [Some(Bitrate::from_mbps(10)); 2];
        let mut auto = AutoWeights::new(AutoSettings::default(), &told, Instant::ZERO);
        let mut counters = [Counters {
            others: Some(Bytes::ZERO),
            ..Counters::default()
        }; 2];
        let mut now = Instant::ZERO;
        auto.handle_counters(now, &counters.map(Some));
        let mut interval = |own: [f64; 2], others: [f64; 2]| {
            now += INTERVAL;
            for (index, counters) in counters.iter_mut().enumerate() {
                let bytes = |mbps: f64| bitrate(mbps * 1e6).bytes_in(INTERVAL);
                counters.own += bytes(own[index]);
                counters.others = counters.others.map(|all| all + bytes(others[index]));
                counters.total += bytes(10.0);
            }
            auto.handle_counters(now, &counters.map(Some));
            auto.load(0).available.expect("told").as_mbps()
        };
        // A queue that TCP maintains is no reason to reduce a link's weight.
        for _ in 0..20 {
            interval([10.2, 1.0], [0.0, 9.0]);
        }
        assert!((interval([10.2, 1.0], [0.0, 9.0]) - 10.0).abs() < 0.01);
        // 9 Mbit/s are in excess for 50 ms, and other traffic leaves 1 Mbit/s to drain them.
        assert!((interval([10.0, 1.0], [9.0, 0.0]) - 0.1).abs() < 0.01);
        let mut waited = 1;
        while interval([0.1, 10.0], [9.0, 0.0]) < 0.95 {
            waited += 1;
            assert!(waited < 30, "the link comes back");
        }
        assert!((8..=12).contains(&waited), "{waited}");
    }

    #[test]
    fn weights_are_right_four_intervals_after_each_change_of_background() {
        let mut lines = Lines::new([10, 10], [Some(10), Some(10)]);
        lines.run(10);
        // Fig. 7 of the NATALIE paper is a diagram without numbers, so these steps are not from the paper.
        for background in [[2, 8], [8, 2], [5, 5], [0, 9], [9, 0]] {
            lines.background = background;
            lines.run(4);
            let ideal = (10 - background[0]) as f64 / (10 - background[1]) as f64;
            assert!(
                (lines.ratio() / ideal - 1.0).abs() < 0.02,
                "{background:?}: {}",
                lines.ratio()
            );
            lines.run(20);
            assert!(
                (lines.ratio() / ideal - 1.0).abs() < 0.01,
                "{background:?}: {}",
                lines.ratio()
            );
        }
    }

    #[test]
    fn what_a_full_queue_drops_of_ours_is_not_taken_for_room() {
        let mut lines = Lines::new([10, 10], [Some(10), Some(10)]);
        let bytes = |mbps: u64| Bitrate::from_mbps(mbps).bytes_in(INTERVAL);
        for counters in &mut lines.counters {
            counters.others = Some(Bytes::ZERO);
        }
        for _ in 0..10 {
            lines.now += INTERVAL;
            // 9 Mbit/s of other traffic and 9 Mbit/s of the equalizer are passed to a link that carries 10.
            lines.counters[0].own += bytes(9);
            lines.counters[0].others = lines.counters[0].others.map(|others| others + bytes(9));
            lines.counters[0].total += bytes(10);
            lines
                .auto
                .handle_counters(lines.now, &lines.counters.map(Some));
        }
        let background = lines.auto.load(0).background.as_mbps();
        assert!((background - 9.0).abs() < 0.01, "{background}");
    }

    #[test]
    fn a_full_link_keeps_the_floor() {
        let mut lines = Lines::new([10, 10], [Some(10), Some(10)]);
        lines.counters[0].total += Bytes::new(1_000_000);
        lines.now += INTERVAL;
        lines
            .auto
            .handle_counters(lines.now, &lines.counters.map(Some));
        assert_eq!(
            lines.auto.load(0).available,
            Some(Bitrate::from_bps(100_000))
        );
        assert_eq!(lines.auto.weights(), [100, 10_000]);
    }

    #[test]
    fn what_waits_in_a_queue_is_no_background() {
        let mut lines = Lines::new([10, 10], [Some(10), Some(10)]);
        let interval = INTERVAL;
        for turn in 0..10 {
            lines.now += interval;
            // The bytes are counted as own in one interval and sent in the next.
            lines.counters[0].own += Bytes::new(if turn % 2 == 0 { 60_000 } else { 0 });
            lines.counters[0].total += Bytes::new(if turn % 2 == 0 { 0 } else { 60_000 });
            lines
                .auto
                .handle_counters(lines.now, &lines.counters.map(Some));
        }
        assert_eq!(lines.auto.load(0).background, Bitrate::ZERO);
    }

    #[test]
    fn rates_nobody_told_are_learned_from_traffic() {
        for rates in [[10, 20], [10, 10], [50, 4]] {
            let mut lines = Lines::new(rates, [None, None]);
            assert_eq!(lines.ratio(), 1.0);
            lines.run(1_200);
            let ideal = rates[0] as f64 / rates[1] as f64;
            assert!(
                (lines.ratio() / ideal - 1.0).abs() < 0.1,
                "{rates:?}: {}",
                lines.ratio()
            );
        }
    }

    #[test]
    fn counters_that_start_again_and_links_that_vanish_do_no_harm() {
        let mut lines = Lines::new([10, 10], [Some(10), None]);
        lines.run(5);
        lines.counters[0] = Counters::default();
        lines.run(5);
        assert_eq!(lines.auto.load(0).background, Bitrate::ZERO);
        lines.now += INTERVAL;
        lines.auto.handle_counters(lines.now, &[None, None]);
        assert_eq!(lines.auto.load(1), Load::default());
        lines
            .auto
            .handle_counters(lines.now + Duration::from_secs(1), &[]);
        assert_eq!(lines.auto.weights().len(), 2);
    }
}
