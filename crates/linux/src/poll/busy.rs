//! Polls for input for a moment instead of sleeping, if this was successful before.
//!
//! Waking a thread on a halted CPU takes 20 to 80 µs; in a virtual machine this is more than the time that a packet
//! spends in the whole tunnel. An answer from a nearby host arrives sooner. If input of a kind (a [`Token`]) was
//! usually followed by more input within [`LONGEST`], a wait after such input polls for up to this time before it
//! sleeps. If answers come from distant hosts, polling gains nothing and is not tried. All attempts together take at
//! most a twentieth of the time.
//!
//! *Source.* Adaptive halt polling, as in KVM and the `haltpoll` governor for virtual CPUs. *Difference.* These adapt
//! one polling time to the last wait. Here requests and answers alternate with long pauses, so there are separate
//! statistics for each kind of last input.

use std::{collections::BTreeMap, io, time::Duration};

use pleach_core::time::Instant;

use super::{Event, Poller, Token};
use crate::clock;

/// Statistics of waits, and the time that polling may still use.
#[derive(Debug)]
pub struct BusyPoll {
    /// Token of the last input.
    last: Token,
    /// Number of recent short waits, by the token of the input before them, at most [`MOST_SCORE`].
    scores: BTreeMap<Token, u8>,
    /// Time that polling may use, as of `credited_at`.
    credit: Duration,
    credited_at: Instant,
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self {
            last: Token(0),
            scores: BTreeMap::new(),
            credit: Duration::ZERO,
            credited_at: clock::now(),
        }
    }
}

impl BusyPoll {
    /// Waits like [`Poller::wait`], but may poll before it sleeps.
    ///
    /// # Errors
    /// Returns the errors of [`Poller::wait`].
    pub fn wait(
        &mut self,
        poller: &Poller,
        deadline: Option<Instant>,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        let began_at = clock::now();
        events.clear();
        if self.is_promising(began_at) {
            let until = began_at + LONGEST;
            let until = deadline.map_or(until, |deadline| deadline.min(until));
            let mut now = began_at;
            while events.is_empty() && now < until {
                poller.wait(Some(Instant::ZERO), events)?;
                if events.is_empty() {
                    std::thread::yield_now();
                }
                now = clock::now();
            }
            self.credit = self.credit.saturating_sub(now.since(began_at));
        }
        if events.is_empty() {
            poller.wait(deadline, events)?;
        }
        self.learn(clock::now().since(began_at), events.last());
        Ok(())
    }

    /// Whether input is likely to arrive within [`LONGEST`], and there is enough credit to poll.
    fn is_promising(&mut self, now: Instant) -> bool {
        let earned = now.since(self.credited_at) / SHARE;
        self.credit = (self.credit + earned).min(MOST_CREDIT);
        self.credited_at = now;
        let score = self.scores.get(&self.last);
        score.is_some_and(|&score| score > MOST_SCORE / 2) && self.credit >= LONGEST
    }

    /// Learns from a wait of length `waited`, which ended with `event`, or with a deadline or a signal (`None`).
    fn learn(&mut self, waited: Duration, event: Option<&Event>) {
        let is_short = waited <= LONGEST;
        if is_short && event.is_none() {
            return;
        }
        let score = self.scores.entry(self.last).or_default();
        *score = if is_short {
            (*score + 1).min(MOST_SCORE)
        } else {
            score.saturating_sub(1)
        };
        if let Some(event) = event {
            self.last = event.token;
        }
    }
}

/// Longest time of polling before the thread sleeps. An answer through two daemons and back takes half of it.
const LONGEST: Duration = Duration::from_micros(200);
/// Divisor: polling may use the elapsed time divided by this number.
const SHARE: u32 = 20;
/// Highest credit: ten attempts.
const MOST_CREDIT: Duration = Duration::from_millis(2);
/// Highest score, which is the number of waits that are remembered.
const MOST_SCORE: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(90);
    const LONG: Duration = Duration::from_millis(10);
    const REQUEST: Event = Event {
        token: Token(1),
        readable: true,
        writable: false,
    };
    const ANSWER: Event = Event {
        token: Token(2),
        ..REQUEST
    };

    /// Returns the state after `rounds` of a request whose answer arrives after `answer`, and a pause.
    fn after(rounds: u32, answer: Duration) -> (BusyPoll, Instant) {
        let mut busy = BusyPoll {
            last: REQUEST.token,
            ..BusyPoll::default()
        };
        for _ in 0..rounds {
            busy.learn(answer, Some(&ANSWER));
            busy.learn(LONG, Some(&REQUEST));
        }
        let now = busy.credited_at + Duration::from_secs(1);
        (busy, now)
    }

    #[test]
    fn quick_answers_are_looked_for_and_requests_are_not() {
        let (mut busy, now) = after(10, SHORT);
        assert!(busy.is_promising(now));
        busy.learn(SHORT, Some(&ANSWER));
        assert!(!busy.is_promising(now), "a pause follows an answer");
    }

    #[test]
    fn answers_from_far_away_are_not_looked_for() {
        let (mut busy, now) = after(10, LONG);
        assert!(!busy.is_promising(now));
    }

    #[test]
    fn it_is_given_up_when_answers_become_slow() {
        let (mut busy, now) = after(100, SHORT);
        for _ in 0..4 {
            assert!(busy.is_promising(now));
            busy.learn(LONG, Some(&ANSWER));
            busy.learn(LONG, Some(&REQUEST));
        }
        assert!(!busy.is_promising(now));
    }

    #[test]
    fn time_spent_is_limited() {
        let (mut busy, now) = after(10, SHORT);
        let mut spent = Duration::ZERO;
        let (mut now, end) = (now, now + Duration::from_secs(1));
        while now < end {
            if busy.is_promising(now) {
                busy.credit -= LONGEST;
                spent += LONGEST;
            }
            now += LONGEST;
        }
        let most = Duration::from_secs(1) / SHARE + MOST_CREDIT;
        assert!(spent > Duration::ZERO && spent <= most, "{spent:?}");
    }

    #[test]
    fn deadlines_end_a_busy_wait_too() {
        let (mut busy, _) = after(10, SHORT);
        busy.credit = MOST_CREDIT;
        let poller = Poller::new().expect("epoll works");
        let mut events = Vec::new();
        let deadline = clock::now() + LONGEST / 4;
        busy.wait(&poller, Some(deadline), &mut events)
            .expect("waits");
        assert!(events.is_empty() && clock::now() >= deadline);
    }
}
