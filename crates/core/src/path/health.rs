//! Whether a path works.
//!
//! Any uplink may be dead at the start, die, return, or go silent for a moment, as cellular ones do several times a
//! minute. A sender finds out only from what comes back, so the judge is silence while something is outstanding:
//!
//! | state | meaning | left when |
//! | --- | --- | --- |
//! | [`Probing`](State::Probing) | new or returned, not yet known to work | evidence: Up; 1 s without: Down |
//! | [`Up`](State::Up) | works; the only state that carries traffic | silence of [`suspect_timeout`](Health::suspect_timeout): Suspect |
//! | [`Suspect`](State::Suspect) | silent; the tunnel repeats elsewhere what was outstanding | evidence: Up; 1 s after the first unacknowledged send: Down |
//! | [`Down`](State::Down) | taken for dead | evidence: Up; interface returns: Probing |
//!
//! Evidence is authenticated news that a packet sent on this path arrived, over whichever path the news came. Packets
//! received on the path show that the other direction works: they only hasten the next probe. An interface that goes
//! down makes its path Down at once, and then no evidence counts, for it is old.
//!
//! The suspect timeout is max(40 ms, smoothed RTT + 3 feedback intervals, min(80 ms, g)), where g is the silence that
//! this path exceeds once in a hundred times. It is learned with a stochastic quantile (Ma, Muthukrishnan and
//! Sandler, "Frugal streaming"). Where twice that timeout exceeds 1 s, it takes the place of the second.
//!
//! Probes: every 20 ms in the first second of Probing and Suspect, every 250 ms afterwards and when Down, and 550 ms
//! after the last evidence when Up (more often where a policy [samples](Health::sample) round trips), so that idle paths are measured and their failure is noticed. A path in reserve is
//! probed once a minute while Up. Both ends probe. On a path that is Up one of them waits a fifth longer before it does, so it is
//! asked first, and sends its own probe with the answer ([`probe_may_join`](Health::probe_may_join)); without the fifth, jitter
//! would let the two cross.

use core::time::Duration;

use super::rtt::INITIAL_RTT;
use crate::time::Instant;

/// What a path is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Taken for dead; probed slowly.
    Down,
    /// Not yet known to work.
    Probing,
    /// Silent for too long; perhaps dead.
    Suspect,
    /// Known to work.
    Up,
}

/// What the operating system says of the interface under a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The interface is gone, or has no carrier, address or route.
    Down,
    /// The interface can send.
    Up,
}

/// Health of the sending direction of one path.
#[derive(Clone, Debug)]
pub struct Health {
    state: State,
    entered_at: Instant,
    link_is_up: bool,
    /// Since when something is unacknowledged: the later of its sending and the last evidence.
    outstanding_since: Option<Instant>,
    last_evidence_at: Instant,
    last_probe_at: Option<Instant>,
    /// When something was received since the last probe, in a state that wants to know.
    prompted_at: Option<Instant>,
    response_time: Duration,
    usual_silence: Duration,
    /// Whether the path is only in reserve, and whether the other end probes it first.
    is_reserve: bool,
    is_second: bool,
    /// Whoever wants to know its round trip all the time: how often, and until when.
    sampled: Option<(Duration, Instant)>,
}

impl Health {
    /// A path not yet known to work, whose first probe is due now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            state: State::Probing,
            entered_at: now,
            link_is_up: true,
            outstanding_since: None,
            last_evidence_at: now,
            last_probe_at: None,
            prompted_at: None,
            response_time: INITIAL_RTT,
            usual_silence: Duration::ZERO,
            is_reserve: false,
            is_second: false,
            sampled: None,
        }
    }

    /// Probes a path that works every `interval` from now on until `until`, whatever else shows that it does; but not one
    /// in reserve.
    pub fn sample(&mut self, interval: Duration, until: Instant) {
        self.sampled = Some((interval, until));
    }

    /// What the path is good for.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether it may carry traffic.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.state == State::Up
    }

    /// Sets how soon an answer can be expected: the path's smoothed round-trip time, and how often the peer reports.
    pub fn on_rtt(&mut self, smoothed_rtt: Duration, feedback_interval: Duration) {
        self.response_time = smoothed_rtt.saturating_add(feedback_interval.saturating_mul(3));
    }

    /// Whether the path is only in reserve: then it is hardly probed while it works, for its data may cost money.
    pub fn set_reserve(&mut self, is_reserve: bool) {
        self.is_reserve = is_reserve;
    }

    /// Whether the other end probes an idle path that works first, and this one sends its probe with the answer.
    pub fn set_second(&mut self, is_second: bool) {
        self.is_second = is_second;
    }

    /// How long after the last evidence a path that works is probed.
    fn idle_interval(&self) -> Duration {
        let interval = if self.is_reserve {
            PROBE_RESERVE
        } else {
            PROBE_IDLE
        };
        if self.is_second {
            interval * 6 / 5
        } else {
            interval
        }
    }

    /// Something was sent that the peer will acknowledge.
    pub fn on_sent(&mut self, now: Instant) {
        self.outstanding_since.get_or_insert(now);
    }

    /// A probe was sent, or could not be: the next one is due later in both cases.
    pub fn on_probe_sent(&mut self, now: Instant) {
        self.last_probe_at = Some(now);
        self.prompted_at = None;
        self.on_sent(now);
    }

    /// Authenticated news that something sent on this path arrived, not known before. `outstanding`: whether more was
    /// sent that is still to be acknowledged.
    pub fn on_acked(&mut self, now: Instant, outstanding: bool) {
        if !self.link_is_up {
            return;
        }
        if let Some(since) = self.outstanding_since {
            self.learn_silence(now.since(since));
        }
        self.outstanding_since = outstanding.then_some(now);
        self.last_evidence_at = now;
        self.enter(now, State::Up);
    }

    /// Something authenticated was received on this path.
    pub fn on_received(&mut self, now: Instant) {
        if self.state != State::Up {
            self.prompted_at.get_or_insert(now);
        }
    }

    /// The operating system reported on the interface. Repeated reports of the same change nothing, but "up" makes a
    /// path that is Down try again quickly.
    pub fn on_link(&mut self, now: Instant, event: LinkEvent) {
        match event {
            LinkEvent::Down => {
                self.link_is_up = false;
                self.outstanding_since = None;
                self.enter(now, State::Down);
            }
            LinkEvent::Up => {
                self.link_is_up = true;
                if self.state == State::Down {
                    self.outstanding_since = None;
                    self.last_probe_at = None;
                    self.enter(now, State::Probing);
                }
            }
        }
    }

    /// Time has passed: makes the transitions that are due.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some((at, next)) = self.transition()
            && at <= now
        {
            self.enter(now, next);
        }
    }

    /// Whether a probe should be sent now; if so, [`on_probe_sent`](Self::on_probe_sent) must follow.
    #[must_use]
    pub fn probe_due(&self, now: Instant) -> bool {
        self.next_probe_at().is_some_and(|at| at <= now)
    }

    /// Whether a probe may go along with an answer that is sent now: the path works, nothing has shown that for half of the time
    /// after which it is probed, and three datagrams then do for both ends' probes what takes four apart.
    #[must_use]
    pub fn probe_may_join(&self, now: Instant) -> bool {
        self.is_usable() && now.since(self.quiet_since()) >= self.idle_interval() / 2
    }

    /// Since when nothing has been asked nor shown of whether the path works.
    fn quiet_since(&self) -> Instant {
        let last = self.last_probe_at.unwrap_or(Instant::ZERO);
        last.max(self.last_evidence_at)
    }

    /// When to call [`on_timeout`](Self::on_timeout) and look at [`probe_due`](Self::probe_due) again. `None` while
    /// the interface is down.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let transition_at = self.transition().map(|(at, _)| at);
        let deadlines = [transition_at, self.next_probe_at()];
        deadlines.into_iter().flatten().min()
    }

    /// How long silence may last with something outstanding before the path is suspected.
    #[must_use]
    pub fn suspect_timeout(&self) -> Duration {
        let silence = self.usual_silence.min(MAX_USUAL_SILENCE);
        self.response_time.max(silence).max(MIN_SUSPECT)
    }

    /// Whether silence has lasted half as long with something outstanding.
    #[must_use]
    pub fn is_silent(&self, now: Instant) -> bool {
        self.outstanding_since
            .is_some_and(|since| now.since(since) * 2 > self.suspect_timeout())
    }

    /// The transition that time alone will bring, and when.
    fn transition(&self) -> Option<(Instant, State)> {
        let down_timeout = DOWN_AFTER.max(self.suspect_timeout().saturating_mul(2));
        match self.state {
            State::Down => None,
            State::Probing => Some((self.entered_at + down_timeout, State::Down)),
            State::Suspect => Some((self.outstanding_since? + down_timeout, State::Down)),
            State::Up => {
                let at = self.outstanding_since? + self.suspect_timeout();
                Some((at, State::Suspect))
            }
        }
    }

    fn next_probe_at(&self) -> Option<Instant> {
        if !self.link_is_up {
            return None;
        }
        if self.state == State::Up {
            let last = self.last_probe_at.unwrap_or(Instant::ZERO);
            let idle_at = self.quiet_since() + self.idle_interval();
            let sampled = self.sampled.filter(|_| !self.is_reserve);
            let sampled = sampled.map(|(interval, until)| (last + interval, until));
            let sampled_at = sampled.filter(|(at, until)| at < until).map(|(at, _)| at);
            return Some(sampled_at.map_or(idle_at, |at| at.min(idle_at)));
        }
        let Some(last) = self.last_probe_at else {
            return Some(self.entered_at);
        };
        let eager_at = self.entered_at.max(last + PROBE_EAGER);
        let is_eager = self.state != State::Down && eager_at < self.entered_at + EAGER_FOR;
        let patient_at = last + PROBE_PATIENT;
        let prompted_at = self.prompted_at.map(|at| at.max(last + PROBE_EAGER));
        let at = if is_eager { eager_at } else { patient_at };
        Some(prompted_at.map_or(at, |prompted_at| prompted_at.min(at)))
    }

    fn enter(&mut self, now: Instant, state: State) {
        if self.state != state {
            self.state = state;
            self.entered_at = now;
            self.prompted_at = None;
        }
    }

    /// Moves the 99 % quantile of silences by a step that is small against it: up by 0.99 of the step for one above
    /// it, down by 0.01 for one below, so that it rests where one in a hundred is above.
    fn learn_silence(&mut self, silence: Duration) {
        let step = (self.usual_silence / 8).max(Duration::from_millis(1));
        self.usual_silence = if silence > self.usual_silence {
            (self.usual_silence + step * 99 / 100).min(DOWN_AFTER)
        } else {
            self.usual_silence.saturating_sub(step / 100)
        };
    }
}

/// No shorter silence is suspicious: one lost report and scheduling noise make as much.
const MIN_SUSPECT: Duration = Duration::from_millis(40);

/// What is learned may lengthen the timeout up to here. Cellular traces have a gap of 80 ms 15 to 21 times a minute.
const MAX_USUAL_SILENCE: Duration = Duration::from_millis(80);

const DOWN_AFTER: Duration = Duration::from_secs(1);

const PROBE_EAGER: Duration = Duration::from_millis(20);
const PROBE_PATIENT: Duration = Duration::from_millis(250);
const PROBE_IDLE: Duration = Duration::from_millis(550);
const PROBE_RESERVE: Duration = Duration::from_secs(60);
const EAGER_FOR: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
