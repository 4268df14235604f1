//! How fast to send on a path at most, so that what waits, waits in the tunnel queue and not in the modem's.
//!
//! **Queue.** The pace follows the path's standing queue: the least one-way delay of 40 ms and 24 packets, beyond the
//! least of 10 s:
//!
//! | queue | pace |
//! | --- | --- |
//! | below 3 ms | a tenth above the largest rate delivered in the last 2 s: enough to notice within a few reports that the path carries more, and slow enough that a burst of some milliseconds does not overflow a queue of a few dozen packets; a quarter above it once that has lasted, for then the path carries much more |
//! | up to 7 ms | 3 % above it |
//! | above 7 ms, until it is below 3 ms | 8 to 40 % below what it carries, the more the longer the queue |
//!
//! On slow paths 3 and 7 ms are one and a half and four full packets; where the delay jitters they are more (below). Where the
//! queue has overflowed they are a third and two thirds of what it held, and the tenth is so little, 2 % at least, that the queue grows by
//! about a third (by more where the round trip is long) before that is seen: each overflow is a round trip without data in order, in which the path runs empty.
//!
//! While a queue drains the path is full, so the newest rate counts if it is below the largest; but at first not if it is
//! less than three quarters of it, so that a path that is taken for full and is not loses little.
//!
//! That happens when the path's own delay has grown, or varies with the load as a radio link's does. Hence each drain is a
//! test. If after four round trips the delay is as long, though half of a queue would be gone, there is none: the least delay
//! is measured anew, and only while the path is loaded, not soon after a pause. If the path delivered less than was sent, it has become slower,
//! and the next drain goes by the rate it delivers. And a queue that never empties would in time be taken for the path's own delay: every 5 s it is
//! drained to below 1 ms.
//!
//! **Losses.** A queue of a few packets overflows before it is seen. So the share of losses is watched over windows of
//! 300 packets (`loss_window`), and one well above the path's own ([`super::loss::Loss::floor_ppm`], which radio noise makes
//! and no pace mends) is congestion: then the pace has a ceiling, 3 % below what the path delivered, for a second or four
//! round trips as they are meanwhile, which after that rises by 2, 4, 8 … 25 % every two round trips; unless the queue was of
//! 50 ms or more (more on long paths) and is gone, for such a one is seen before it overflows. While that is not settled, it is taken
//! back if so much of what was told missing comes after all that the rest is no congestion: packets overtake each other.
//!
//! **Search.** Of a path that was not full for 60 s nothing is known. If the policy wants that, it is paced at a multiple
//! of what it has carried, a little to begin with, until more was sent than came and a round trip later no more comes,
//! twice, or a long queue stands, or losses show congestion. Otherwise it is not paced before it was full, nor once no queue
//! has stood on it for a second.
//!
//! **Jitter** moves the delay from one report to the next, a queue does not: `low` and `high` above are at least three and five
//! times what two reports differ by, one and a half and three where the queue overflows, and what ends a search three times. With a shorter
//! queue the path would run empty while the delay seems longer than it is.

use core::time::Duration;

use self::{
    aim::{Aim, Others, Sharing},
    ceiling::Ceiling,
    drain::Drain,
    load::Load,
    loss_window::LossWindow,
    recalled::{Evidence, Recalled, Verdict},
    standing::{STANDING, Standing},
};
use super::{
    delay::RelativeDelay,
    memory::PathMemory,
    rate::{DeliveryRate, RateSample},
    window::WindowedMin,
};
use crate::{
    time::Instant,
    units::{Bitrate, Bytes},
};

pub mod aim;
mod ceiling;
mod drain;
mod load;
mod loss_window;
mod recalled;
mod standing;

/// The state of one path's pace.
#[derive(Clone, Debug)]
pub struct RateControl {
    /// When the path, not the sender, last limited the rate.
    filled_at: Option<Instant>,
    /// Delays below are microseconds beyond this one, the first.
    reference: Option<RelativeDelay>,
    /// Least delays of late: jitter is shorter.
    delays: Standing,
    /// The newest of them, and how much one differs from the next.
    last_delay: i32,
    jitter: Duration,
    /// The path's own delay.
    base: WindowedMin<i32>,
    /// Whether the path's own delay is that under load.
    is_base_loaded: bool,
    /// Whether it has been loaded of late.
    load: Load,
    /// When the least delay was last looked at.
    based_at: Instant,
    /// The standing queue, and when it was reported.
    queue: Duration,
    reported_at: Instant,
    /// When the queue was last empty.
    emptied_at: Option<Instant>,
    drain: Option<Drain>,
    /// Whether a path of unknown rate is searched; otherwise it is not paced before it was full.
    is_search_wanted: bool,
    /// How fast the path is, is still being found out.
    is_searching: bool,
    round: Round,
    /// Whether a tenth more was sent than came in the last round trip.
    is_overrun: bool,
    /// Since when there was neither a queue nor congestion.
    calm_since: Instant,
    losses: LossWindow,
    ceiling: Option<Ceiling>,
    /// What made the ceiling, while it may be shown wrong.
    verdict: Option<LossVerdict>,
    /// When the last one went because the queue had.
    drained_at: Option<Instant>,
    /// The longest queue of late, and when it was seen.
    peak: (Duration, Instant),
    /// The longest queue seen before it overflowed.
    depth: Option<Depth>,
    /// The path's own share of losses in parts per million.
    floor_ppm: u32,
    aim: Aim,
    /// What is known of others on the path.
    others: Others,
    /// What is remembered of the path, while it is searched.
    recalled: Option<Recalled>,
}

/// What a report says of the path.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// Least one-way delay of the packets it covers.
    pub delay: RelativeDelay,
    /// Smoothed round-trip time of the path.
    pub rtt: Duration,
    /// Datagrams that it says came, and that it says are missing, since the last report.
    pub received: u64,
    /// See [`received`](Self::received).
    pub lost: u64,
    /// All datagrams told missing so far that came after all.
    pub disproved: u64,
    /// The path's own share of losses in parts per million, if known.
    pub floor_ppm: Option<u32>,
    /// Packets waited for the pacer.
    pub is_limited: bool,
    /// All bytes that were sent and that the report says came, with IP and UDP headers.
    pub sent_bytes: u64,
    /// See [`sent_bytes`](Self::sent_bytes).
    pub received_bytes: u64,
    /// The pace so far.
    pub pace: Option<Bitrate>,
}

impl Signals {
    /// How long the last losses from before a change of the pace take to be told.
    fn settled_after(&self) -> Duration {
        self.rtt * 2 + LEAST_SEARCH_ROUND
    }
}

/// A round trip, and what was known when it began.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    began_at: Instant,
    /// The largest rate delivered.
    rate: Bitrate,
    /// All that had been sent and had come.
    sent_bytes: u64,
    received_bytes: u64,
    /// Whether a quarter more than came had been sent in the round before.
    is_pushed: bool,
    pace: Option<Bitrate>,
    /// Rounds in a row in which that brought no quarter more.
    flat_rounds: u32,
}

/// What was taken for congestion.
#[derive(Clone, Copy, Debug)]
struct LossVerdict {
    window: LossWindow,
    floor_ppm: Option<u32>,
    /// Datagrams told missing that had come after all by then.
    disproved: u64,
    before: Before,
}

/// What a verdict changes that is put back if it was wrong. What others on the path are thought to do is not, nor how long the path
/// is known to be calm, nor the samples of its rate and losses: all of that is soon found again.
#[derive(Clone, Copy, Debug)]
struct Before {
    is_searching: bool,
    recalled: Option<Recalled>,
    filled_at: Option<Instant>,
    ceiling: Option<Ceiling>,
    depth: Option<Depth>,
}

/// What a queue held when it overflowed.
#[derive(Clone, Copy, Debug)]
struct Depth {
    queue: Duration,
    /// What the path carried then: it is another time at another rate.
    rate: Bitrate,
    at: Instant,
}

impl Depth {
    /// Whether a queue that overflows late enough to be seen before it does, and not only `noise`, has drained to `queue`.
    fn has_drained(self, queue: Duration, rtt: Duration, noise: Duration) -> bool {
        // At a quarter more than the capacity, the queue grows by a quarter of the time until its growth is reported.
        let deep = DEEP.max((STANDING + rtt) / 4).max(noise);
        self.queue >= deep && queue < self.queue / 4
    }
}

impl Default for RateControl {
    fn default() -> Self {
        Self {
            filled_at: None,
            reference: None,
            delays: Standing::default(),
            last_delay: 0,
            jitter: Duration::ZERO,
            base: WindowedMin::new(BASE_WINDOW),
            is_base_loaded: false,
            load: Load::default(),
            based_at: Instant::ZERO,
            queue: Duration::ZERO,
            reported_at: Instant::ZERO,
            emptied_at: None,
            drain: None,
            is_search_wanted: true,
            is_searching: true,
            round: Round::default(),
            is_overrun: false,
            calm_since: Instant::ZERO,
            losses: LossWindow::default(),
            ceiling: None,
            verdict: None,
            drained_at: None,
            peak: (Duration::ZERO, Instant::ZERO),
            depth: None,
            floor_ppm: 0,
            aim: Aim::default(),
            others: Others::default(),
            recalled: None,
        }
    }
}

impl RateControl {
    /// Takes note of a new sample of the delivery rate.
    pub fn on_sample(&mut self, now: Instant, sample: RateSample) {
        if !sample.app_limited {
            self.filled_at = Some(now);
        }
    }

    /// Takes note of a report; `rate`: what was known before it. If it shows that the path overflows even under a ceiling: what
    /// was delivered meanwhile.
    pub fn on_report(
        &mut self,
        now: Instant,
        signals: &Signals,
        rate: &DeliveryRate,
    ) -> Option<Bitrate> {
        self.floor_ppm = signals.floor_ppm.unwrap_or(0);
        let overflow = self.on_losses(now, signals, rate);
        self.on_delay(now, signals, rate);
        self.on_recalled(now, signals, rate);
        self.on_round(now, signals, rate);
        self.on_slack(now, signals);
        self.others
            .on_rate(now, rate.max().map(|max| self.gross(max)));
        self.on_drained(now, signals, rate);
        if let Some(ceiling) = &mut self.ceiling {
            ceiling.rise(now, signals.rtt);
            let max = rate.max().unwrap_or(Bitrate::ZERO);
            if ceiling.pace > max.scale(150, 100) {
                self.ceiling = None;
            }
        }
        overflow
    }

    /// Looks back on a round trip: the search ends when more was sent than came, and no more comes a round trip later.
    fn on_round(&mut self, now: Instant, signals: &Signals, rate: &DeliveryRate) {
        let max = rate.max().unwrap_or(Bitrate::ZERO);
        let elapsed = now.since(self.round.began_at);
        // However long a queue is wanted, the search needs none.
        let high = self.beyond_noise(HIGH, max);
        let is_long = self.queue > high * 4;
        if elapsed < signals.rtt.max(LEAST_SEARCH_ROUND) && !is_long {
            return;
        }
        let sent = signals.sent_bytes.saturating_sub(self.round.sent_bytes);
        let sent = Bitrate::from_transfer(Bytes::new(sent), elapsed).unwrap_or(Bitrate::ZERO);
        let received = signals
            .received_bytes
            .saturating_sub(self.round.received_bytes);
        let received =
            Bitrate::from_transfer(Bytes::new(received), elapsed).unwrap_or(Bitrate::ZERO);
        self.is_overrun = sent > received.scale(110, 100);
        let is_flat = self.round.is_pushed && max < self.round.rate.scale(5, 4);
        let flat_rounds = if is_flat {
            self.round.flat_rounds + 1 + u32::from(self.queue > high * 2)
        } else {
            0
        };
        if self.is_searching && (flat_rounds >= FLAT_ROUNDS || is_long) {
            self.is_searching = false;
            self.filled_at = Some(now);
        } else if self.filled_at.is_some_and(|at| now.since(at) > MEMORY) {
            self.is_searching = self.is_search_wanted;
            self.filled_at = None;
        }
        self.round = Round {
            began_at: now,
            rate: max,
            sent_bytes: signals.sent_bytes,
            received_bytes: signals.received_bytes,
            is_pushed: sent > self.gross(max).scale(5, 4),
            pace: signals.pace,
            flat_rounds,
        };
    }

    /// A path that is not searched and has no queue is not full, whatever filled it once: at a pace not far above the little
    /// it is given it would get no more, for of what comes in bursts others take what has to wait for it.
    fn on_slack(&mut self, now: Instant, signals: &Signals) {
        let is_calm = now.since(self.calm_since) > SLACK.max(signals.rtt * 4);
        if !self.is_search_wanted && is_calm && self.ceiling.is_none() {
            self.filled_at = None;
        }
    }

    /// Of a long queue that overflowed and is gone nothing is left to be held down for: one that grows again is seen before it
    /// overflows. That of a radio link whose rate has collapsed overflows at whatever it carries then, which says nothing
    /// of what it carries once it is back. If it overflows again soon, something else than that queue may.
    fn on_drained(&mut self, now: Instant, signals: &Signals, rate: &DeliveryRate) {
        let Some(ceiling) = &mut self.ceiling else {
            return;
        };
        let is_settled = ceiling.is_settled(now, signals.settled_after());
        let is_again = self
            .drained_at
            .is_some_and(|at| now.since(at) < DRAINED_APART);
        let noise = self.beyond_noise(Duration::ZERO, rate.max().unwrap_or(Bitrate::ZERO));
        let has_drained = |depth: Depth| depth.has_drained(self.queue, signals.rtt, noise);
        if is_settled && !is_again && self.depth.is_some_and(has_drained) {
            self.ceiling = None;
            self.drained_at = Some(now);
        }
    }

    /// Puts what is remembered to the test.
    fn on_recalled(&mut self, now: Instant, signals: &Signals, rate: &DeliveryRate) {
        let Some(mut recalled) = self.recalled.take().filter(|_| self.is_searching) else {
            return;
        };
        let most = rate.max();
        let max = most.unwrap_or(Bitrate::ZERO);
        let low = self.low(max);
        let evidence = Evidence {
            queue: self.queue,
            late: self.late(),
            low: low + low / 3,
            high: self.beyond_noise(HIGH, max).max(self.jitter * HIGH_JITTERS),
            most,
            patience: signals.rtt.max(LEAST_SEARCH_ROUND) * 2,
        };
        match recalled.on_report(now, &evidence) {
            Verdict::Full => self.on_known(now),
            Verdict::Open => self.recalled = Some(recalled),
            Verdict::Wrong => {}
        }
    }

    /// Begins anew with what is remembered of the path; whether a path of unknown rate is searched at all.
    pub fn recall(&mut self, memory: &PathMemory) -> bool {
        if self.is_search_wanted {
            *self = Self {
                aim: self.aim,
                recalled: Some(Recalled::new(*memory)),
                ..Self::default()
            };
        }
        self.is_search_wanted
    }

    /// What is remembered of the rate of the path, whose round trip is `rtt`, while it is not refuted.
    #[must_use]
    pub fn remembered(&self, rtt: Duration) -> Option<Bitrate> {
        self.recalled?.rate(rtt)
    }

    /// When the path was last full; `None` if that was too long ago for its rate to be known.
    #[must_use]
    pub fn filled_at(&self, now: Instant) -> Option<Instant> {
        self.filled_at.filter(|at| now.since(*at) < MEMORY)
    }

    /// What the path carries was measured by other means.
    pub fn on_known(&mut self, now: Instant) {
        self.is_searching = false;
        self.filled_at = Some(now);
        self.verdict = None;
    }

    /// The path has become slow, and how fast it will be is to be found out again.
    pub fn search_again(&mut self) {
        self.is_searching = self.is_search_wanted;
        self.filled_at = None;
        self.drain = None;
        self.ceiling = None;
        self.verdict = None;
    }

    /// Whether a path of unknown rate is to be searched.
    pub fn set_search(&mut self, is_wanted: bool) {
        self.is_search_wanted = is_wanted;
        self.is_searching &= is_wanted;
    }

    /// What the user wants of the path's queue.
    pub fn set_aim(&mut self, aim: Aim) {
        self.aim = aim;
    }

    /// Whether the path's queue is so short that bursts overflow it.
    #[must_use]
    pub fn is_shallow(&self) -> bool {
        self.ceiling.is_some()
    }

    /// How much the least delay of one report differs from that of the next.
    #[must_use]
    pub fn jitter(&self) -> Duration {
        self.jitter
    }

    /// Whether the newest report met hardly a queue: less than a third of the longest of late, or of what is no queue.
    #[must_use]
    pub fn is_unqueued(&self) -> bool {
        let noise = self.jitter * NOISE_JITTERS;
        self.late() < self.peak.0.max(LOW).max(noise) / 3
    }

    /// How much longer the newest delay is than the path's own.
    fn late(&self) -> Duration {
        let base = self.base.min().unwrap_or(self.last_delay);
        let late = u64::try_from(self.last_delay.saturating_sub(base)).unwrap_or(0);
        Duration::from_micros(late)
    }

    /// [`jitter`](Self::jitter) for samples of the delivery rate. None while the path is searched, for a search follows what grows within a round
    /// trip; nor where none is wanted, for there the path is paced as soon as it has been full for a short time. More where the
    /// queue overflows, for there a pace that is a few percent too high does so again and again.
    #[must_use]
    pub fn sampled_jitter(&self) -> Duration {
        if !self.is_search_wanted || self.is_searching {
            Duration::ZERO
        } else if self.depth.is_some() {
            self.jitter * OVERFLOW_JITTERS
        } else {
            self.jitter
        }
    }

    /// The queueing delay at which the buffer has overflowed, if that is known.
    #[must_use]
    pub fn buffer_depth(&self) -> Option<Duration> {
        self.depth.map(|depth| depth.queue)
    }

    /// Whether the path's rate is still being found out.
    #[must_use]
    pub fn is_searching(&self) -> bool {
        self.is_searching
    }

    /// What was delivered while the path overflowed, if it did under a ceiling.
    fn on_losses(
        &mut self,
        now: Instant,
        signals: &Signals,
        rate: &DeliveryRate,
    ) -> Option<Bitrate> {
        if self.takes_back(now, signals) {
            return None;
        }
        let window = self.losses.count(signals, rate)?;
        let is_heavy = window.is_heavy();
        let is_congested = window.is_congested(signals.floor_ppm);
        let is_again = self
            .ceiling
            .as_mut()
            .is_some_and(|ceiling| !ceiling.is_settled(now, signals.settled_after()));
        // What overflows that much has to be drained as well.
        let kept_percent = if is_heavy { 90 } else { 97 };
        let carried = self.gross(window.rate).scale(kept_percent, 100);
        // A ceiling of nothing would never rise.
        if is_congested && !is_again && carried > Bitrate::ZERO {
            // Senders that back off make the rate fall below what the path carries. So the first time it is taken to carry
            // what it did.
            let max = rate.max().map(|max| self.gross(max));
            let is_heavy = is_heavy && !self.is_searching;
            let least = match (is_heavy, self.ceiling) {
                (true, ceiling) => {
                    let before = ceiling.map(|ceiling| ceiling.pace).or(max);
                    before.map(|before| before.scale(70, 100))
                }
                (false, Some(ceiling)) => Some(ceiling.pace.scale(85, 100)),
                (false, None) => max.map(|max| max.scale(kept_percent, 100)),
            };
            let least = least.unwrap_or(Bitrate::ZERO);
            self.verdict = Some(LossVerdict {
                window,
                floor_ppm: signals.floor_ppm,
                disproved: signals.disproved,
                before: Before {
                    is_searching: self.is_searching,
                    recalled: self.recalled,
                    filled_at: self.filled_at,
                    ceiling: self.ceiling,
                    depth: self.depth,
                },
            });
            self.depth = Some(Depth {
                queue: self.peak.0.max(LEAST_DEPTH),
                rate: rate.max().unwrap_or(Bitrate::ZERO),
                at: now,
            });
            // With a ceiling in force less was sent already.
            let is_under_ceiling = self.ceiling.is_some();
            if is_under_ceiling {
                let is_slower = window.lost > window.packets / 10;
                self.others
                    .on_test(now, false, is_slower.then_some(carried));
            }
            self.filled_at = Some(now);
            self.calm_since = now;
            self.is_searching = false;
            self.ceiling = Some(Ceiling::new(now, carried.max(least)));
            return (is_under_ceiling && signals.is_limited).then_some(window.rate);
        }
        None
    }

    /// Takes a verdict of congestion back if so much of what was told missing came after all that the rest is none: packets
    /// overtake each other on the path. The first burst shows that, which is also what a search judges by. Whether it did.
    fn takes_back(&mut self, now: Instant, signals: &Signals) -> bool {
        let Some(verdict) = &mut self.verdict else {
            return false;
        };
        let is_settled = self
            .ceiling
            .as_mut()
            .is_none_or(|ceiling| ceiling.is_settled(now, signals.settled_after()));
        // Of what is told missing later, some comes after all as well.
        verdict.window.lost = verdict.window.lost.saturating_add(signals.lost);
        let disproved = signals.disproved.saturating_sub(verdict.disproved);
        let rest = LossWindow {
            lost: verdict.window.lost.saturating_sub(disproved),
            ..verdict.window
        };
        let is_wrong = !rest.is_congested(verdict.floor_ppm);
        if is_wrong {
            let before = verdict.before;
            if before.is_searching {
                self.is_searching = true;
                self.recalled = before.recalled;
                self.drain = None;
            }
            self.filled_at = before.filled_at;
            (self.ceiling, self.depth) = (before.ceiling, before.depth);
            self.losses = LossWindow::default();
        }
        if is_wrong || is_settled {
            self.verdict = None;
        }
        is_wrong
    }

    fn on_delay(&mut self, now: Instant, signals: &Signals, rate: &DeliveryRate) {
        let reference = *self.reference.get_or_insert(signals.delay);
        let micros = signals.delay.micros_from(reference);
        let step = Duration::from_micros(micros.abs_diff(self.last_delay).into());
        self.last_delay = micros;
        self.jitter = self.jitter * 15 / 16 + step.min(MOST_STEP) / 16;
        let packets = signals.received;
        let standing = self.delays.insert(now, micros, packets);
        let max = rate.max().unwrap_or(Bitrate::ZERO);
        let latest = rate.latest().map_or(max, |sample| sample.rate);
        if self.filled_at.is_none_or(|at| now.since(at) > MEMORY) {
            self.is_base_loaded = false;
        }
        self.load.on_report(now, signals, max);
        // Never for long is it left as it was.
        let is_steady = self.load.is_steady(now) || now.since(self.based_at) > EMPTY_EVERY;
        if !self.is_base_loaded || (latest >= max.scale(1, 2) && is_steady) {
            self.base.insert(now, standing);
            self.based_at = now;
        }
        let base = self.base.min().unwrap_or(standing);
        let queue =
            Duration::from_micros(u64::try_from(standing.saturating_sub(base)).unwrap_or(0));
        self.queue = queue;
        self.reported_at = now;
        if queue >= self.peak.0 || now.since(self.peak.1) > PEAK_WINDOW + signals.rtt {
            self.peak = (queue, now);
        }
        // It holds more than was thought, the path is another, or what was lost was long ago.
        self.depth = self.depth.filter(|depth| {
            queue < depth.queue * 3 / 2
                && max <= depth.rate.scale(5, 4)
                && now.since(depth.at) < MEMORY
        });
        let (low, high) = (self.low(max), self.high(max));
        if queue < EMPTY {
            self.emptied_at = Some(now);
        }
        if queue >= low {
            self.calm_since = now;
        }
        let emptied_at = *self.emptied_at.get_or_insert(now);
        let is_stale = now.since(emptied_at) > EMPTY_EVERY;
        let goal = if is_stale { EMPTY.min(low) } else { low };
        let rtt = signals.rtt;
        let gross = self.gross(latest);
        if let Some(drain) = &mut self.drain {
            drain.peak = drain.peak.max(queue);
            // As soon as no sample holds anything of before.
            if now.since(drain.since) > rtt + rate.least_time() {
                drain.most = drain.most.max(gross);
            }
        }
        match self.drain {
            Some(_) if queue < goal => self.drain = None,
            Some(drain) if now.since(drain.since) > (rtt * 4).max(LEAST_TEST) => {
                let is_slower = drain.most < drain.pace.scale(90, 100);
                // As much of a queue as was sent less than is carried would be gone. But one that has grown is one: what was
                // sent before the drain went on arriving for a round trip.
                let gone = now.since(drain.since) * drain.cut_percent / 100;
                let has_grown = drain.peak > (drain.from * 3 / 2).max(NOT_JITTER) + self.jitter * 2;
                let is_as_long = queue > drain.from / 2 && !has_grown;
                let is_none_of_ours = is_as_long && gone > drain.from / 2 && !is_slower;
                let is_gone = queue <= drain.from / 2 || gone <= drain.from / 2;
                self.others
                    .on_test(now, is_gone, is_slower.then_some(drain.most));
                if is_none_of_ours && self.aim.sharing != Sharing::Yield {
                    self.drain = None;
                    self.base = WindowedMin::new(BASE_WINDOW);
                    self.base.insert(now, standing);
                    self.is_base_loaded = true;
                    // What can stand there is that much less, too.
                    self.peak.0 = self.peak.0.saturating_sub(queue);
                    if let Some(depth) = &mut self.depth {
                        depth.queue = depth.queue.saturating_sub(queue).max(LEAST_DEPTH);
                    }
                    self.queue = Duration::ZERO;
                    self.emptied_at = Some(now);
                } else {
                    let carried = drain.most.min(self.gross(max));
                    self.drain = Some(Drain::begin(now, queue, low, rtt, carried));
                }
            }
            Some(_) => {}
            None if self.is_searching => {}
            None if queue > high || is_stale => {
                let carried = self.gross(latest.max(max.scale(3, 4)).min(max));
                self.drain = Some(Drain::begin(now, queue, low, rtt, carried));
            }
            None => {}
        }
    }

    /// Whether the path or its pace, and not the sender, limits the rate.
    #[must_use]
    pub fn is_full(&self, signals: &Signals, rate: &DeliveryRate) -> bool {
        let low = self.low(rate.max().unwrap_or(Bitrate::ZERO));
        let latest = rate.latest().map_or(Bitrate::ZERO, |sample| sample.rate);
        let paces = [signals.pace, self.round.pace].into_iter().flatten();
        let is_at_pace = paces
            .min()
            .is_some_and(|pace| self.gross(latest) > pace.scale(85, 100));
        let is_filled = self.queue >= low + low / 3;
        if self.is_search_wanted {
            // Jitter looks like a queue; but one that grows gets more than leaves it.
            signals.is_limited && (is_at_pace || (is_filled && self.is_overrun))
        } else {
            is_filled
        }
    }

    /// What is left of the standing queue of the last report, if nothing was sent since.
    #[must_use]
    pub fn queue(&self, now: Instant) -> Duration {
        self.queue.saturating_sub(now.since(self.reported_at))
    }

    /// Whether the path has been full of late, so that its rate is known.
    #[must_use]
    pub fn is_known(&self, now: Instant) -> bool {
        self.filled_at(now).is_some()
    }

    /// The pace; `None`: no limit is known.
    #[must_use]
    pub fn pace(
        &self,
        now: Instant,
        rtt: Duration,
        is_quickest: bool,
        rate: &DeliveryRate,
    ) -> Option<Bitrate> {
        if self.is_searching {
            let first = Bitrate::from_transfer(FIRST_WINDOW_BYTES, rtt.max(LEAST_FIRST_RTT))?;
            let percent = if is_quickest {
                SEARCH_PERCENT
            } else {
                GENTLE_PERCENT
            };
            let shown = rate.max().unwrap_or(Bitrate::ZERO).scale(percent, 100);
            let shown = self
                .recalled
                .map_or(shown, |recalled| recalled.pace(rtt, shown));
            return Some(shown.max(first));
        }
        let max = rate.max().filter(|_| self.is_known(now))?;
        let pace = if let Some(drain) = self.drain {
            drain.pace
        } else {
            let percent = if self.queue >= self.low(max) {
                100 + self.most_growth(rtt).min(3)
            } else if now.since(self.calm_since) < CALM {
                100 + self.most_growth(rtt)
            } else {
                125
            };
            self.gross(max).scale(percent, 100)
        };
        let pace = self.ceiling.map_or(pace, |ceiling| pace.min(ceiling.pace));
        Some(pace.max(self.others.share(now, self.aim)).max(LEAST))
    }

    /// By how many percent to send more than the path carries: where the queue has overflowed so little, but 2 at least, that it
    /// grows by a third before that is seen, for it stands for a while and is told a round trip later. Where jitter hides it, it
    /// is not seen however slowly it grows, and losses have to tell.
    fn most_growth(&self, rtt: Duration) -> u64 {
        let hidden = self.jitter * NOISE_JITTERS;
        let Some(depth) = self.depth.filter(|depth| depth.queue >= hidden) else {
            return 10;
        };
        let seen_after = (STANDING + rtt).as_micros().max(1);
        let percent = (depth.queue / 3).as_micros() * 100 / seen_after;
        u64::try_from(percent).unwrap_or(10).clamp(2, 10)
    }

    /// What must be sent so that `rate` arrives, the path's own losses being what they are.
    fn gross(&self, rate: Bitrate) -> Bitrate {
        let kept = 1_000_000 - u64::from(self.floor_ppm.min(MOST_FLOOR_PPM));
        rate.scale(1_000_000, kept)
    }

    /// A queue below this needs more.
    fn low(&self, rate: Bitrate) -> Duration {
        let low = self.aim.low(LOW).max(LOW_BYTES / rate.max(LEAST));
        // What overflows is not to run full for the sake of jitter.
        match self.depth {
            Some(depth) => low
                .min(depth.queue / 3)
                .max(self.jitter * NOISE_JITTERS / 2),
            None => low.max(self.jitter * NOISE_JITTERS),
        }
    }

    /// A queue above this is drained.
    fn high(&self, rate: Bitrate) -> Duration {
        let high = self.beyond_noise(self.aim.high(HIGH), rate);
        match self.depth {
            Some(depth) => high
                .min(depth.queue * 2 / 3)
                .max(self.jitter * NOISE_JITTERS),
            None => high.max(self.jitter * HIGH_JITTERS),
        }
    }

    /// A queue as long as `queue`, but longer than what jitter and a few packets on a slow path look like.
    fn beyond_noise(&self, queue: Duration, rate: Bitrate) -> Duration {
        let noise = self.jitter * NOISE_JITTERS;
        queue.max(HIGH_BYTES / rate.max(LEAST)).max(noise)
    }
}

/// A larger step from one report to the next is none of jitter.
const MOST_STEP: Duration = Duration::from_millis(50);
/// How long the least delay is remembered.
const BASE_WINDOW: Duration = Duration::from_secs(10);
/// A queue below this needs more.
const LOW: Duration = Duration::from_millis(3);
/// A queue above this is drained.
pub(crate) const HIGH: Duration = Duration::from_millis(7);
/// A queue that overflowed no sooner than this is seen in time when it grows again, unless the round trip is long.
const DEEP: Duration = Duration::from_millis(50);
/// No two ceilings go with their queues within this time.
const DRAINED_APART: Duration = Duration::from_secs(2);
/// A queue below this is as good as none.
const EMPTY: Duration = Duration::from_millis(1);
/// How long a queue is seen before its losses are.
const PEAK_WINDOW: Duration = Duration::from_millis(300);
/// No queue is taken to overflow below this.
const LEAST_DEPTH: Duration = Duration::from_micros(1_500);
/// Nor is a queue of one and a half full packets long, or one of four in need of a drain.
const LOW_BYTES: Bytes = Bytes::new(2_250);
pub(crate) const HIGH_BYTES: Bytes = Bytes::new(6_000);
/// A queue of no more times the jitter is not told from it.
const NOISE_JITTERS: u32 = 3;
/// How many times the jitter a queue is at least that is drained.
const HIGH_JITTERS: u32 = 5;
/// How many times as long samples of the rate are where the queue overflows: what overtakes moves them by more than the jitter shows. Not as
/// long as may be, for a sender limited by its window sends in bursts, which long samples would mix with its pauses.
const OVERFLOW_JITTERS: u32 = 4;
/// A shorter one may be jitter that is not recognised as such.
const NOT_JITTER: Duration = Duration::from_millis(25);
/// How often a queue is emptied: twice within the window of the least delay.
const EMPTY_EVERY: Duration = Duration::from_secs(5);
/// Shortest drain that tells whether there is a queue.
const LEAST_TEST: Duration = Duration::from_millis(250);
/// How long a path's capacity is remembered after it was last full.
const MEMORY: Duration = Duration::from_secs(60);
/// A path without a queue for so long carries much more than it is given.
const CALM: Duration = Duration::from_millis(500);
/// A path without a queue for so long is not full.
const SLACK: Duration = Duration::from_secs(1);
/// No pace is lower.
const LEAST: Bitrate = Bitrate::from_bps(200_000);
/// More than this is not the path's own.
const MOST_FLOOR_PPM: u32 = 200_000;
/// Shortest round of the search: a sample of the delivery rate (without jitter, as while a path is searched) and a half.
const LEAST_SEARCH_ROUND: Duration = Duration::from_millis(60);
const FLAT_ROUNDS: u32 = 2;
/// What is sent in the first round trip of a search.
const FIRST_WINDOW_BYTES: Bytes = Bytes::new(24_000);
const LEAST_FIRST_RTT: Duration = Duration::from_millis(4);
/// How fast a path is searched, in percent of what it has carried: a TCP in slow start doubles its rate within a round
/// trip, which the newest measurement is behind.
const SEARCH_PERCENT: u64 = 250;
/// The same of a path that others carry the flow beside.
const GENTLE_PERCENT: u64 = 160;

#[cfg(test)]
mod tests;
