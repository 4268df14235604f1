//! One gateway of a client: its addresses, and its answers to questions.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

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
    /// Recent answers, oldest first; at most [`MAX_ANSWERS`].
    answers: VecDeque<Answer>,
    /// Time until which the gateway is left out.
    pub(super) left_out_until: Instant,
    pub(super) failures: u32,
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
            answers: VecDeque::new(),
            left_out_until: Instant::ZERO,
            failures: 0,
        }
    }

    /// Stores the answer to a question that was asked at `asked_at`.
    pub(super) fn on_answer(&mut self, now: Instant, asked_at: Instant) {
        if self.answers.len() == MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back(Answer {
            asked_at,
            rtt: now.since(asked_at),
        });
    }

    /// Forgets all answers.
    pub(super) fn forget_answers(&mut self) {
        self.answers.clear();
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

    /// Returns the time between the first and the last answered question that were asked after `since`.
    pub(super) fn answered_for(&self, since: Instant) -> Duration {
        let mut asked = self.answers.iter().map(|answer| answer.asked_at);
        let first = asked.find(|at| *at >= since);
        let last = self.answers.iter().map(|answer| answer.asked_at).max();
        match (first, last) {
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
/// Maximum number of stored answers: eight rounds over eight links.
const MAX_ANSWERS: usize = 64;
