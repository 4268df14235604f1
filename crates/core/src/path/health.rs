//! Health: whether a path works.
//!
//! Any uplink may be dead at the start, fail, return, or fall silent for a moment, as cellular links do several times
//! a minute. A sender notices a failure only by missing acknowledgements, so health depends on the silence while a
//! datagram is unacknowledged:
//!
//! | state | meaning | left when |
//! | --- | --- | --- |
//! | [`Probing`](State::Probing) | new or returned, not yet known to work | evidence arrives: Up; 1 s without evidence: Down |
//! | [`Up`](State::Up) | works; the only state that carries traffic | silence longer than [`suspect_timeout`](Health::suspect_timeout): Suspect |
//! | [`Suspect`](State::Suspect) | silent; its packets are sent on other paths | evidence arrives: Up; silence of 1 s in all: Down |
//! | [`Down`](State::Down) | considered dead | evidence arrives: Up; the interface returns: Probing |
//!
//! *Evidence* is an authenticated report or answer that a packet sent on this path arrived, whichever path the report
//! arrived on. Packets received on this path only show that the other direction works; they make the next probe due
//! earlier. An interface that goes down makes its path Down at once. Evidence that arrives while the interface is
//! down is ignored, because it concerns earlier packets. The end whose interface went down informs the other end on
//! every other path ([`Frame::LinkDown`](crate::wire::control::Frame::LinkDown)); at the other end the path becomes
//! Suspect at once instead of after the suspect timeout.
//!
//! The suspect timeout is max(40 ms, smoothed RTT + 3 feedback intervals, min(80 ms, g)), where g is the 99th
//! percentile of this path's silences, estimated with a stochastic quantile algorithm (Ma, Muthukrishnan and Sandler,
//! "Frugal streaming"). If twice the suspect timeout exceeds 1 s, twice the suspect timeout replaces the 1 s in the
//! table. While the path wakes up ([`super::radio`]), the suspect timeout is at least 1 s. The owner of several paths
//! uses the others earlier if they have answered ([`waking`](Health::waking)).
//!
//! Probes are sent:
//!
//! - in Probing and Suspect every 20 ms in the first second, and every 250 ms afterwards;
//! - in Down every 250 ms;
//! - in Up 550 ms after the last evidence (more often if a policy [samples](Health::sample) the RTT), so that idle
//!   paths are measured and their failure is noticed. A reserve path is probed once a minute while Up;
//! - in Up, while the path wakes up, half of the silence allowed after the first datagram, because a single lost probe
//!   must not make the path Suspect; and at the answer that ends the waking, because only a datagram sent after it
//!   shows the delay of the path.
//!
//! While the tunnel [rests](Health::set_resting), because it has carried no packets for a while, the interval in Up and
//! Down is 10 s, except in Up for a reserve path. In Probing and Suspect it is 250 ms from the start, so that a gateway
//! that was busy for a moment is not kept busy by the probes of thousands of idle clients.
//!
//! Both ends probe. On a path that is Up, the gateway (the *second* end) waits a fifth longer before it probes. It
//! therefore receives the client's probe first, and sends its own probe with the answer
//! ([`probe_may_join`](Health::probe_may_join)). Without the extra fifth, jitter would let the two probes cross.

use core::time::Duration;

use super::{
    radio::{PROMOTION, Radio},
    rtt::INITIAL_RTT,
};
use crate::time::Instant;

/// Health state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Considered dead; probed slowly.
    Down,
    /// Not yet known to work.
    Probing,
    /// Silent for longer than the suspect timeout.
    Suspect,
    /// Known to work.
    Up,
}

/// A change of the interface under a path, as reported by the operating system.
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
    /// Since when a datagram is unacknowledged: the later of its sending and the last evidence.
    outstanding_since: Option<Instant>,
    last_evidence_at: Instant,
    last_probe_at: Option<Instant>,
    /// When the first datagram after the last probe was received, in a state other than Up.
    prompted_at: Option<Instant>,
    /// Time within which an acknowledgement is expected.
    response_time: Duration,
    /// Estimate of the 99th percentile of this path's silences.
    usual_silence: Duration,
    radio: Radio,
    /// Whether the path is only in reserve.
    is_reserve: bool,
    /// Whether the tunnel has carried no packets for a while.
    is_resting: bool,
    /// Whether the other end probes an idle path first.
    is_second: bool,
    /// Interval and end of the RTT sampling requested by a policy.
    sampled: Option<(Duration, Instant)>,
}

impl Health {
    /// Creates the health of a path in Probing, whose first probe is due now.
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
            radio: Radio::default(),
            is_reserve: false,
            is_resting: false,
            is_second: false,
            sampled: None,
        }
    }

    /// Samples the RTT: until `until`, probes the path every `interval` while it is Up, regardless of other evidence.
    /// Does not apply to a reserve path.
    pub fn sample(&mut self, interval: Duration, until: Instant) {
        self.sampled = Some((interval, until));
    }

    /// The health state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether the path may carry traffic.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.state == State::Up
    }

    /// Whether the radio of the path may be asleep.
    #[must_use]
    pub const fn radio(&self) -> &Radio {
        &self.radio
    }

    /// Sets the expected response time: the smoothed RTT, and the feedback interval of the peer.
    pub fn on_rtt(&mut self, smoothed_rtt: Duration, feedback_interval: Duration) {
        self.response_time = smoothed_rtt.saturating_add(feedback_interval.saturating_mul(3));
    }

    /// Sets whether the path is only in reserve. A reserve path is rarely probed while it is Up, because its traffic
    /// may cost money.
    pub fn set_reserve(&mut self, is_reserve: bool) {
        self.is_reserve = is_reserve;
    }

    /// Sets whether the tunnel rests, because it has carried no packets for a while. Then a path that is Up or Down is
    /// probed every [`PROBE_RESTING`], and any other path every 250 ms.
    pub fn set_resting(&mut self, is_resting: bool) {
        self.is_resting = is_resting;
    }

    /// Sets whether this end is the second one to probe an idle path. The other end then probes first, and this end
    /// sends its probe with the answer.
    pub fn set_second(&mut self, is_second: bool) {
        self.is_second = is_second;
    }

    /// Time from the last evidence to the next probe of a path that is Up.
    fn idle_interval(&self) -> Duration {
        let interval = if self.is_reserve {
            PROBE_RESERVE
        } else if self.is_resting {
            PROBE_RESTING
        } else {
            PROBE_IDLE
        };
        if self.is_second {
            interval * 6 / 5
        } else {
            interval
        }
    }

    /// Records the sending of a datagram that the peer will acknowledge.
    pub fn on_sent(&mut self, now: Instant) {
        self.radio.on_sent(now, self.outstanding_since.is_none());
        self.outstanding_since.get_or_insert(now);
    }

    /// Records that a probe was sent, or could not be sent: in both cases the next probe is due later.
    pub fn on_probe_sent(&mut self, now: Instant) {
        self.last_probe_at = Some(now);
        self.prompted_at = None;
        self.on_sent(now);
    }

    /// Records new authenticated evidence that a datagram sent on this path arrived. `outstanding`: whether more
    /// datagrams are unacknowledged.
    pub fn on_acked(&mut self, now: Instant, outstanding: bool) {
        if !self.link_is_up {
            return;
        }
        if let Some(since) = self.outstanding_since.filter(|_| !self.radio.is_waking()) {
            self.learn_silence(now.since(since));
        }
        self.radio.on_evidence(now);
        self.outstanding_since = outstanding.then_some(now);
        self.last_evidence_at = now;
        self.enter(now, State::Up);
    }

    /// Records that an authenticated datagram was received on this path.
    pub fn on_received(&mut self, now: Instant) {
        self.radio.on_received(now);
        if self.state != State::Up {
            self.prompted_at.get_or_insert(now);
        }
    }

    /// Processes an interface event. Repeated events have no effect, except that `Up` returns a path that is Down to
    /// Probing.
    pub fn on_link(&mut self, now: Instant, event: LinkEvent) {
        match event {
            LinkEvent::Down => {
                self.link_is_up = false;
                self.outstanding_since = None;
                self.radio = Radio::default();
                self.enter(now, State::Down);
            }
            LinkEvent::Up => {
                self.link_is_up = true;
                if self.state == State::Down {
                    self.outstanding_since = None;
                    self.radio = Radio::default();
                    self.last_probe_at = None;
                    self.enter(now, State::Probing);
                }
            }
        }
    }

    /// Processes the other end's message that its interface went down. Returns whether the path was Up.
    pub fn on_peer_link_down(&mut self, now: Instant) -> bool {
        let was_up = self.state == State::Up;
        if was_up {
            self.outstanding_since = Some(now);
            self.enter(now, State::Suspect);
        }
        was_up
    }

    /// Makes the transitions that are due.
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

    /// Whether a probe may join an answer that is sent now. It may if the path is Up and had neither a probe nor
    /// evidence for half of the idle interval. Three datagrams then serve the probes of both ends, instead of four.
    #[must_use]
    pub fn probe_may_join(&self, now: Instant) -> bool {
        self.is_usable() && now.since(self.quiet_since()) >= self.idle_interval() / 2
    }

    /// The later of the last probe and the last evidence.
    fn quiet_since(&self) -> Instant {
        let last = self.last_probe_at.unwrap_or(Instant::ZERO);
        last.max(self.last_evidence_at)
    }

    /// When to call [`on_timeout`](Self::on_timeout) and [`probe_due`](Self::probe_due) again. `None` while the
    /// interface is down.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let transition_at = self.transition().map(|(at, _)| at);
        let deadlines = [transition_at, self.next_probe_at()];
        deadlines.into_iter().flatten().min()
    }

    /// Maximum silence with a datagram unacknowledged before the path becomes Suspect.
    #[must_use]
    pub fn suspect_timeout(&self) -> Duration {
        if self.radio.is_waking() {
            self.awake_timeout().max(PROMOTION)
        } else {
            self.awake_timeout()
        }
    }

    /// The suspect timeout of a path whose radio is awake.
    fn awake_timeout(&self) -> Duration {
        let silence = self.usual_silence.min(MAX_USUAL_SILENCE);
        self.response_time.max(silence).max(MIN_SUSPECT)
    }

    /// When the first unacknowledged datagram was sent, and when the path would become Suspect if its radio were awake.
    /// `None` unless the path is Up and wakes up.
    #[must_use]
    pub fn waking(&self) -> Option<(Instant, Instant)> {
        let is_waking = self.state == State::Up && self.radio.is_waking();
        let since = self.outstanding_since.filter(|_| is_waking)?;
        Some((since, since + self.awake_timeout()))
    }

    /// Time of the last evidence.
    pub(crate) const fn last_evidence_at(&self) -> Instant {
        self.last_evidence_at
    }

    /// Whether a datagram is unacknowledged and the silence has lasted more than half of the suspect timeout.
    #[must_use]
    pub fn is_silent(&self, now: Instant) -> bool {
        self.outstanding_since
            .is_some_and(|since| now.since(since) * 2 > self.suspect_timeout())
    }

    /// The next transition that time alone causes, and its time.
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
            let radio_at = self.radio_probe_at().filter(|at| last < *at);
            return [sampled_at, radio_at, Some(idle_at)]
                .into_iter()
                .flatten()
                .min();
        }
        let Some(last) = self.last_probe_at else {
            return Some(self.entered_at);
        };
        let eager_at = self.entered_at.max(last + PROBE_EAGER);
        let is_eager =
            self.state != State::Down && !self.is_resting && eager_at < self.entered_at + EAGER_FOR;
        let patience = if self.is_resting && self.state == State::Down {
            PROBE_RESTING
        } else {
            PROBE_PATIENT
        };
        let patient_at = last + patience;
        let prompted_at = self.prompted_at.map(|at| at.max(last + PROBE_EAGER));
        let at = if is_eager { eager_at } else { patient_at };
        Some(prompted_at.map_or(at, |prompted_at| prompted_at.min(at)))
    }

    /// Time from which a probe is wanted because the path wakes up or has woken up; it may be long ago.
    fn radio_probe_at(&self) -> Option<Instant> {
        if self.radio.is_waking() {
            Some(self.outstanding_since? + PROMOTION / 2)
        } else {
            self.radio.woke_at()
        }
    }

    fn enter(&mut self, now: Instant, state: State) {
        if self.state != state {
            self.state = state;
            self.entered_at = now;
            self.prompted_at = None;
        }
    }

    /// Moves the estimate of the 99th percentile of silences by a small step. A silence longer than the estimate
    /// raises it by 0.99 of the step, a shorter one lowers it by 0.01 of the step. The estimate therefore settles
    /// where one silence in a hundred is longer.
    fn learn_silence(&mut self, silence: Duration) {
        let step = (self.usual_silence / 8).max(Duration::from_millis(1));
        self.usual_silence = if silence > self.usual_silence {
            (self.usual_silence + step * 99 / 100).min(DOWN_AFTER)
        } else {
            self.usual_silence.saturating_sub(step / 100)
        };
    }
}

/// Minimum suspect timeout. One lost report together with scheduling delays causes a silence of this length.
const MIN_SUSPECT: Duration = Duration::from_millis(40);

/// Maximum contribution of the learned silence to the suspect timeout. Cellular traces have a gap of 80 ms 15 to 21
/// times a minute.
const MAX_USUAL_SILENCE: Duration = Duration::from_millis(80);

/// Silence after which a path is Down, and time in Probing without evidence after which it is Down. It also limits the
/// learned silence, because a path that has been silent for longer is Down.
const DOWN_AFTER: Duration = Duration::from_secs(1);

const PROBE_EAGER: Duration = Duration::from_millis(20);
const PROBE_PATIENT: Duration = Duration::from_millis(250);
const PROBE_IDLE: Duration = Duration::from_millis(550);
/// Interval of probes while the tunnel rests. It is below the 30 s after which many NATs forget an idle mapping of UDP
/// (RFC 4787 section 4.3 requires 2 minutes). With twice [`PROMOTION`], after which the path is Down, it bounds the time
/// after which idle clients notice a restart of their gateway.
pub const PROBE_RESTING: Duration = Duration::from_secs(10);
const PROBE_RESERVE: Duration = Duration::from_secs(60);
const EAGER_FOR: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
