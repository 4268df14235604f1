//! One gateway of a client: its addresses, and its answers to questions.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use pleach_core::time::Instant;

use crate::config::GatewayPeer;

/// A gateway, its addresses and its answers.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) priority: u8,
    pub(super) public_key: [u8; 32],
    pub(super) configured: Vec<SocketAddr>,
    /// Addresses found by name resolution.
    pub(super) named: Vec<SocketAddr>,
    /// Since when there is an address; `None` until then.
    addressed_at: Option<Instant>,
    /// Recent answers, oldest first; at most [`MAX_ANSWERS`].
    answers: VecDeque<Answer>,
    /// When the first question of the present run of answers in a silence was asked.
    run_from: Option<Instant>,
    /// Lowest round-trip time of the last [`super::FRESH`] before the latest answer.
    pub(super) last_rtt: Option<Duration>,
    /// For each link: the address that answered last, and when.
    pub(super) good: BTreeMap<u8, (SocketAddr, Instant)>,
    /// Time until which the gateway is left out.
    pub(super) left_out_until: Instant,
    pub(super) failures: u32,
    /// Since when the gateway asks its clients to use another one; `None` if it does not, by its last answer.
    drains_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    asked_at: Instant,
    rtt: Duration,
}

impl Known {
    pub(super) fn new(gateway: &GatewayPeer) -> Self {
        Self {
            name: gateway.name.clone(),
            priority: gateway.priority,
            public_key: gateway.public_key,
            configured: gateway.endpoints.clone(),
            named: Vec::new(),
            addressed_at: (!gateway.endpoints.is_empty()).then_some(Instant::ZERO),
            answers: VecDeque::new(),
            run_from: None,
            last_rtt: None,
            good: BTreeMap::new(),
            left_out_until: Instant::ZERO,
            failures: 0,
            drains_since: None,
        }
    }

    /// Sets the addresses that name resolution has found.
    pub(super) fn set_named(&mut self, now: Instant, found: Vec<SocketAddr>) {
        self.named = found;
        self.addressed_at.get_or_insert(now);
    }

    /// Whether there is no address yet, or only for less than `time`, so that the gateway had no chance to answer.
    pub(super) fn is_being_resolved(&self, now: Instant, time: Duration) -> bool {
        self.first_answer_at().is_none() && self.addressed_at.is_none_or(|at| now.since(at) < time)
    }

    /// Stores the answer to a question that was asked at `asked_at`. `silent_since`: beginning of the present silence.
    pub(super) fn on_answer(
        &mut self,
        now: Instant,
        asked_at: Instant,
        silent_since: Option<Instant>,
    ) {
        if silent_since.is_some_and(|since| asked_at >= since) {
            let is_interrupted = self.last_asked_since(asked_at, GAP).is_none();
            if is_interrupted || self.run_from < silent_since {
                self.run_from = Some(asked_at);
            }
        }
        if self.answers.len() == MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back(Answer {
            asked_at,
            rtt: now.since(asked_at),
        });
        self.last_rtt = self.rtt_since(now, super::FRESH);
    }

    /// Notes whether the gateway asks its clients to use another one.
    pub(super) fn on_drain(&mut self, now: Instant, is_draining: bool) {
        let since = self.drains_since.unwrap_or(now);
        self.drains_since = is_draining.then_some(since);
    }

    /// Returns when a gateway that asks its clients to use another one is to be left: not at once, so that the answers of the
    /// others to the same questions count. `None` if it does not ask.
    pub(super) fn leave_at(&self) -> Option<Instant> {
        self.drains_since.map(|since| since + super::COLLECT)
    }

    /// Forgets all answers.
    pub(super) fn forget_answers(&mut self) {
        self.answers.clear();
        self.run_from = None;
    }

    /// Returns when the first stored answer arrived.
    pub(super) fn first_answer_at(&self) -> Option<Instant> {
        let first = self.answers.front();
        first.map(|answer| answer.asked_at + answer.rtt)
    }

    /// Returns the configured addresses, and those found by name resolution.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        [self.configured.as_slice(), &self.named].concat()
    }

    /// Returns when the latest answered question of the last `time` was asked.
    pub(super) fn last_asked_since(&self, now: Instant, time: Duration) -> Option<Instant> {
        let asked = self.answers.iter().map(|answer| answer.asked_at);
        asked.filter(|at| now.since(*at) <= time).max()
    }

    /// Returns the lowest round-trip time of the last `time`.
    pub(super) fn rtt_since(&self, now: Instant, time: Duration) -> Option<Duration> {
        let recent = self.answers.iter();
        let recent = recent.filter(|answer| now.since(answer.asked_at) <= time);
        recent.map(|answer| answer.rtt).min()
    }

    /// Returns since when the gateway has answered in the silence that began at `since`: when the first question was
    /// asked.
    pub(super) fn answers_from(&self, since: Instant) -> Option<Instant> {
        self.run_from.filter(|from| *from >= since)
    }

    /// Returns the time between the first and the last answered question that were asked after `since`, without an
    /// interruption.
    pub(super) fn answered_for(&self, since: Instant) -> Duration {
        let last = self.answers.iter().map(|answer| answer.asked_at).max();
        match (self.answers_from(since), last) {
            (Some(first), Some(last)) => last.since(first),
            _ => Duration::ZERO,
        }
    }

    /// Leaves the gateway out for some time, because it gives no session.
    pub(super) fn leave_out(&mut self, now: Instant) {
        let time = LEFT_OUT.saturating_mul(1 << self.failures.min(8));
        self.left_out_until = now + time.min(MOST_LEFT_OUT);
        self.failures += 1;
    }
}

/// Time for which a gateway without a session is left out at first.
const LEFT_OUT: Duration = Duration::from_secs(60);
const MOST_LEFT_OUT: Duration = Duration::from_secs(15 * 60);
/// Time without an answered question that interrupts the answers of a silence.
const GAP: Duration = Duration::from_secs(1);
/// Maximum number of stored answers: eight rounds over eight links.
const MAX_ANSWERS: usize = 64;
