//! Which gateway a client uses.
//!
//! The client asks every gateway whether it answers: over each link, with the small datagrams of
//! [`pleach_core::endpoint::reaching`]. Questions to the gateway in use and to the others are the same, so the
//! round-trip times can be compared. The rules:
//!
//! - *Order.* A gateway is better than another one if its priority is the lower number. If the priorities are equal, it
//!   is better if the lowest round-trip time over all links is lower.
//! - *At the start* the questions are repeated every [`FAST_ROUND`] until [`COLLECT`] after the first answer, or until
//!   all gateways have answered. The best gateway that has answered is used. A gateway of a better priority whose name
//!   is still being resolved has until [`RESOLVE`] after the first answer.
//! - *Silence.* If no path to the gateway in use is up, the questions are repeated every [`FAST_ROUND`]. Another
//!   gateway replaces it after [`SILENCE`], if the other gateway has answered questions that were asked over a time of
//!   at least [`PROVEN`], and the gateway in use has answered none in the last [`RECENTLY`]. A gateway with a long
//!   round-trip time is given accordingly more time. So an outage of all links, after which all gateways answer again,
//!   does not cause a change. A restart of the gateway in use does, if it takes longer than [`SILENCE`].
//! - *No session.* A gateway that answers questions, but gives no session for [`NO_SESSION`], is replaced too, and is
//!   left out for a minute; this time doubles with each failure, up to 15 minutes. The time counts from the first answer
//!   in the silence. The failures are forgotten after a path has been up for [`STABLE`].
//! - *Drain.* A gateway may ask its clients to use another one. It is worse than every gateway that does not, and is
//!   replaced [`COLLECT`] after its first such answer if another one answers.
//! - *Make before break.* A gateway that works is replaced only after there is a session with the next one
//!   ([`Action::Prepare`]). If there is none, the next one is left out as above.
//! - *Return.* While a gateway works, another one replaces it only if the other one was better during the whole
//!   configured time. A round-trip time counts as lower if it is lower by a quarter and by [`MARGIN`].
//! - *No measurements.* The questions need UDP. If no gateway answers a question, but TCP carried a link last or there
//!   has not been any session since the start, the gateways are tried in turn, [`TURN`] each.
//!
//! An answer proves only that its sender knows the gateway's public key. A forged answer can cause a change to another
//! configured gateway; the session with it is authenticated, and without a session the change is undone by the rules
//! above.
//!
//! Bounds: one datagram of 36 bytes per link and gateway every [`ROUND`], while a gateway works. Standby links are
//! asked only while there is no session.

mod known;

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use pleach_core::{
    endpoint::reaching::{self, Answer},
    time::Instant,
};

use crate::{
    config::{ClientConfig, GatewayPeer},
    control::GatewayStatus,
};
use known::Known;

/// The gateways of a client, and the one in use.
#[derive(Debug)]
pub(super) struct Gateways {
    known: Vec<Known>,
    /// Index of the gateway in use; `None` until the first choice.
    used: Option<usize>,
    why: Why,
    /// Time of the last choice.
    used_at: Instant,
    /// Whether the gateway in use has had a path that was up.
    was_up: bool,
    /// Whether any gateway has had a path that was up.
    was_ever_up: bool,
    /// Whether TCP carried a link when a path was up last.
    used_tcp: bool,
    /// Since when no path is up; `None` while a path is up.
    silent_since: Option<Instant>,
    /// Since when a path is up; `None` while no path is up.
    up_since: Option<Instant>,
    /// Another gateway that is better than the one in use, by index, and since when, plus a [random time](Self::spread).
    better_since: Option<(usize, Instant)>,
    /// The gateway with which a session is begun while the one in use works, by index, and why.
    prepared: Option<(usize, Why)>,
    return_after: Option<Duration>,
    /// Recent rounds of questions, oldest first; at most [`MAX_ROUNDS`].
    rounds: VecDeque<Round>,
    /// Number of rounds so far, by which the addresses of a gateway take turns.
    round_count: usize,
    /// When there was a link for questions first, whether UDP or TCP carries it.
    first_link_at: Option<Instant>,
    next_round_at: Instant,
    next_at: Instant,
}

/// Questions that were asked at the same time.
#[derive(Clone, Copy, Debug)]
struct Round {
    secret: [u8; 8],
    asked_at: Instant,
}

/// Why the gateway in use was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    /// Of the gateways that answered, it was the best.
    Best,
    /// Another gateway, with this name, asked its clients to leave.
    Drain(String),
    /// Another gateway, with this name, answers but gives no session.
    NoSession(String),
    /// It is the only gateway.
    Only,
    /// Another gateway, with this name, has fallen silent.
    Silence(String),
    /// No gateway answers questions.
    Turn,
}

/// What the data path has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Begin a round of questions ([`Gateways::begin_round`]).
    Ask,
    /// Begin a session with this gateway, by index, while the one in use works; then call [`Gateways::adopt`] or
    /// [`Gateways::reject`].
    Prepare(usize),
    /// Use this gateway, by index.
    Use(usize),
}

/// State of the tunnel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heard {
    /// Whether there is a session and a path that is up.
    pub(super) is_up: bool,
    /// Whether TCP carries a link.
    pub(super) uses_tcp: bool,
}

impl Gateways {
    /// Returns the gateways of `client`. If there is only one, it is in use from the start and no questions are asked.
    pub(super) fn new(now: Instant, client: &ClientConfig) -> Self {
        Self::of(now, &client.gateways, client.gateway_return)
    }

    fn of(now: Instant, gateways: &[GatewayPeer], return_after: Option<Duration>) -> Self {
        let known: Vec<Known> = gateways.iter().map(Known::new).collect();
        let is_only = known.len() == 1;
        Self {
            known,
            used: is_only.then_some(0),
            why: Why::Only,
            used_at: now,
            was_up: false,
            was_ever_up: false,
            used_tcp: false,
            silent_since: None,
            up_since: None,
            better_since: None,
            prepared: None,
            return_after,
            rounds: VecDeque::new(),
            round_count: 0,
            first_link_at: None,
            next_round_at: now,
            next_at: now,
        }
    }

    /// Returns the index of the gateway in use; `None` before the first choice.
    pub(super) const fn used(&self) -> Option<usize> {
        self.used
    }

    /// Returns the addresses of the gateway in use; none before the first choice.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.used
            .map_or_else(Vec::new, |used| self.addresses_of(used))
    }

    /// Returns the addresses of the gateway `index`.
    pub(super) fn addresses_of(&self, index: usize) -> Vec<SocketAddr> {
        self.known
            .get(index)
            .map_or_else(Vec::new, Known::addresses)
    }

    /// Returns the addresses of all gateways.
    pub(super) fn all_addresses(&self) -> Vec<SocketAddr> {
        self.known.iter().flat_map(Known::addresses).collect()
    }

    /// Sets the addresses that name resolution has found for the gateway `index`. Returns whether they have changed.
    /// An empty list changes nothing.
    pub(super) fn set_named(
        &mut self,
        now: Instant,
        index: usize,
        mut found: Vec<SocketAddr>,
    ) -> bool {
        let Some(known) = self.known.get_mut(index) else {
            return false;
        };
        if found.is_empty() {
            return false;
        }
        found.retain(|address| !known.configured.contains(address));
        if found == known.named {
            return false;
        }
        known.set_named(now, found);
        true
    }

    /// Returns when [`Self::poll`] is due; `None` with only one gateway.
    pub(super) fn next_at(&self) -> Option<Instant> {
        (self.known.len() > 1).then_some(self.next_at)
    }

    /// Makes [`Self::poll`] due at once, because the health of a path has changed.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next_at = self.next_at.min(now);
    }

    /// Returns the next task. Call it until it returns `None`.
    pub(super) fn poll(&mut self, now: Instant, heard: Heard) -> Option<Action> {
        if self.known.len() < 2 {
            return None;
        }
        if let Some(used) = self.used.filter(|_| heard.is_up) {
            (self.was_up, self.was_ever_up) = (true, true);
            self.used_tcp = heard.uses_tcp;
            let up_since = *self.up_since.get_or_insert(now);
            if now.since(up_since) >= STABLE {
                self.known[used].failures = 0;
            }
            self.silent_since = None;
        } else {
            self.up_since = None;
            if self.silent_since.is_none() {
                self.silent_since = Some(now);
                self.next_round_at = now;
            }
        }
        if now >= self.next_round_at {
            self.next_round_at = now + self.pace(now);
            return Some(Action::Ask);
        }
        let choice = match (self.used, self.silent_since) {
            (None, _) => self.first_choice(now),
            (Some(used), Some(since)) => self.in_silence(now, used, since, heard),
            (Some(used), None) => self.while_it_works(now, used),
        };
        self.next_at = match (self.silent_since, self.better_since) {
            (Some(_), _) => now + TICK,
            (None, Some((_, since))) => {
                let due = self.return_after.map(|time| since + time);
                due.map_or(self.next_round_at, |due| due.min(self.next_round_at))
            }
            (None, None) => self.next_round_at,
        };
        let leave_at = self.used.and_then(|used| self.known[used].leave_at());
        if let Some(leave_at) = leave_at.filter(|at| *at > now) {
            self.next_at = self.next_at.min(leave_at);
        }
        let (index, why) = choice?;
        if self.silent_since.is_none() {
            self.prepared = Some((index, why));
            return Some(Action::Prepare(index));
        }
        self.take(now, index, why);
        Some(Action::Use(index))
    }

    fn take(&mut self, now: Instant, index: usize, why: Why) {
        self.used = Some(index);
        self.why = why;
        self.used_at = now;
        self.was_up = false;
        self.silent_since = Some(now);
        self.up_since = None;
        self.better_since = None;
        self.prepared = None;
        self.next_at = now;
    }

    /// Uses the gateway that is prepared, and returns its index. `has_session`: whether there is a session with it.
    pub(super) fn adopt(&mut self, now: Instant, has_session: bool) -> Option<usize> {
        let (index, why) = self.prepared.take()?;
        self.take(now, index, why);
        if has_session {
            (self.was_up, self.silent_since, self.up_since) = (true, None, Some(now));
            self.next_round_at = now + self.pace(now);
        }
        Some(index)
    }

    /// Keeps the gateway in use. The one that is prepared has given no session, and is left out.
    pub(super) fn reject(&mut self, now: Instant) {
        if let Some((index, _)) = self.prepared.take() {
            self.known[index].leave_out(now);
            self.better_since = None;
        }
    }

    /// Keeps the gateway in use for now, because the links have changed while another one was prepared.
    pub(super) fn postpone(&mut self) {
        self.prepared = None;
    }

    /// Begins a round of questions, whose nonces are derived from `secret`, eight random bytes.
    pub(super) fn begin_round(&mut self, now: Instant, secret: [u8; 8]) {
        if self.rounds.len() == MAX_ROUNDS {
            self.rounds.pop_front();
        }
        self.rounds.push_back(Round {
            secret,
            asked_at: now,
        });
        self.round_count += 1;
    }

    /// Returns the address at which the gateway `index` answered over `link` last, unless it has failed since.
    fn good_address(&self, now: Instant, index: usize, link: u8) -> Option<SocketAddr> {
        let known = self.known.get(index)?;
        let (address, answered_at) = *known.good.get(&link)?;
        let time = known.last_rtt.unwrap_or_default()
            + match self.silent_since {
                Some(_) => FAST_ROUND * 3,
                None => self.pace(now) * 2,
            };
        let from = self
            .silent_since
            .map_or(answered_at, |since| since.max(answered_at));
        (now.since(from) <= time).then_some(address)
    }

    /// Returns the questions of the present round for the link `link`, one for each gateway, with the address.
    /// `reaches`: whether the link reaches an address.
    pub(super) fn questions(
        &self,
        link: u8,
        reaches: impl Fn(&SocketAddr) -> bool,
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        let Some(round) = self.rounds.back() else {
            return Vec::new();
        };
        let mut questions = Vec::new();
        for (index, known) in self.known.iter().enumerate() {
            let mut addresses = known.addresses();
            addresses.retain(&reaches);
            let turn = self.round_count.checked_rem(addresses.len()).unwrap_or(0);
            // The address that answered last is kept until it fails.
            let good = self.good_address(round.asked_at, index, link);
            let good = good.filter(|good| addresses.contains(good));
            let Some(address) = good.or_else(|| addresses.get(turn).copied()) else {
                continue;
            };
            let question = reaching::question(&known.public_key, &nonce(round, index, link));
            questions.push((address, question.to_vec()));
        }
        questions
    }

    /// Notes that there is a link with a socket. It need not have sent a question: a link that TCP carries sends none.
    pub(super) fn on_link(&mut self, now: Instant) {
        self.first_link_at.get_or_insert(now);
    }

    /// Handles a datagram that was received over `link`. Returns whether it answers a question of this value.
    pub(super) fn on_datagram(
        &mut self,
        now: Instant,
        link: u8,
        from: SocketAddr,
        datagram: &[u8],
    ) -> bool {
        if self.rounds.is_empty() {
            return false;
        }
        let mut known = self.known.iter().enumerate();
        let found = known.find_map(|(index, known)| {
            let answer = reaching::answered(datagram, &known.public_key)?;
            Some((index, answer))
        });
        let Some((index, answer)) = found else {
            return false;
        };
        if !self.on_answer(now, index, link, answer) {
            return false;
        }
        self.known[index].good.insert(link, (from, now));
        true
    }

    /// Stores an answer of the gateway `index`. Returns whether there was such a question.
    fn on_answer(&mut self, now: Instant, index: usize, link: u8, answer: Answer) -> bool {
        let mut rounds = self.rounds.iter();
        let Some(round) = rounds.find(|round| nonce(round, index, link) == answer.nonce) else {
            return false;
        };
        self.known[index].on_answer(now, round.asked_at, self.silent_since);
        self.known[index].on_drain(now, answer.is_draining);
        if self.silent_since.is_some() {
            self.next_at = now;
        }
        if self.used == Some(index)
            && let Some(leave_at) = self.known[index].leave_at()
        {
            self.next_at = self.next_at.min(leave_at);
        }
        true
    }

    /// Whether a gateway whose addresses are resolved by name does not answer.
    pub(super) fn is_any_silent(&self, now: Instant) -> bool {
        self.known
            .iter()
            .any(|known| known.last_asked_since(now, FRESH).is_none())
    }

    /// Returns the state of all gateways for `status`; none if there is only one.
    pub(super) fn status(&self, now: Instant) -> Vec<GatewayStatus> {
        if self.known.len() < 2 {
            return Vec::new();
        }
        let known = self.known.iter().enumerate();
        known
            .map(|(index, known)| {
                let rtt = known.rtt_since(now, FRESH);
                GatewayStatus {
                    name: known.name.clone(),
                    used: self.used == Some(index),
                    priority: known.priority,
                    answers: rtt.is_some(),
                    rtt_ms: rtt.map(|rtt| (rtt.as_secs_f64() * 1e6).round() / 1e3),
                    why: self.explain(now, index),
                }
            })
            .collect()
    }

    /// Returns a sentence, without its full stop, that says why a gateway is in use or not.
    pub(super) fn explain(&self, now: Instant, index: usize) -> String {
        let Some(known) = self.known.get(index) else {
            return String::new();
        };
        let name = &known.name;
        if self.used == Some(index) {
            return match &self.why {
                Why::Best
                    if self
                        .known
                        .iter()
                        .any(|other| other.priority > known.priority) =>
                {
                    format!(
                        "{name} is in use: of the gateways that answer, it has the first priority"
                    )
                }
                Why::Best => {
                    format!(
                        "{name} is in use: of the gateways that answer, its round-trip time was the lowest"
                    )
                }
                Why::Drain(other) => {
                    format!("{name} is in use, because {other} asked its clients to leave")
                }
                Why::NoSession(other) => {
                    format!("{name} is in use, because {other} answers but gives no session")
                }
                Why::Only => format!("{name} is the only gateway"),
                Why::Silence(other) => {
                    format!("{name} is in use, because {other} fell silent on all links")
                }
                Why::Turn => format!(
                    "{name} is in use: no gateway answers questions over UDP, so they are tried in turn"
                ),
            };
        }
        if now < known.left_out_until {
            let left = known.left_out_until.since(now).as_secs() + 1;
            return format!("{name} answers but gave no session: it is left out for {left} s");
        }
        match known.last_asked_since(now, FRESH) {
            None => format!("{name} does not answer"),
            Some(_) if known.leave_at().is_some() => {
                format!("{name} asks its clients to use another gateway")
            }
            Some(_) => match (self.better_since, self.return_after, self.used) {
                (Some((better, since)), Some(after), Some(used))
                    if better == index && self.is_better(now, index, used) =>
                {
                    let left = (since + after).since(now).as_secs() + 1;
                    format!("{name} is better: it is used in {left} s, if it stays so")
                }
                _ => format!("{name} is on standby: it answers"),
            },
        }
    }

    /// Returns the interval to the next round.
    fn pace(&self, now: Instant) -> Duration {
        match self.silent_since {
            Some(since) if now.since(since) < FAST_FOR => FAST_ROUND,
            Some(_) => SLOW_ROUND,
            None => self.return_after.map_or(ROUND, |time| ROUND.min(time / 3)),
        }
    }

    /// Makes the first choice after the start.
    fn first_choice(&self, now: Instant) -> Option<(usize, Why)> {
        let first = self.known.iter().filter_map(Known::first_answer_at).min();
        let Some(first) = first else {
            let link_at = self.first_link_at?;
            return (now.since(link_at) >= FIRST_TURN).then_some((0, Why::Turn));
        };
        let all = self
            .known
            .iter()
            .all(|known| known.first_answer_at().is_some());
        let answering =
            (0..self.known.len()).filter(|index| self.known[*index].first_answer_at().is_some());
        let best = answering.min_by_key(|index| self.rank(now, *index))?;
        if !all && now.since(first) < COLLECT {
            return None;
        }
        let is_awaited = |known: &Known| known.is_being_resolved(now, COLLECT);
        let mut preferred = self.known.iter();
        let is_any_awaited =
            preferred.any(|known| known.priority < self.known[best].priority && is_awaited(known));
        if is_any_awaited && now.since(first) < RESOLVE {
            return None;
        }
        Some((best, Why::Best))
    }

    /// Chooses while no path of the gateway `used` is up.
    fn in_silence(
        &mut self,
        now: Instant,
        used: usize,
        since: Instant,
        heard: Heard,
    ) -> Option<(usize, Why)> {
        let silence = now.since(since);
        // An outage may have lasted longer than round-trip times are fresh.
        let rtt = self.known[used].last_rtt.unwrap_or_default();
        if silence < SILENCE + 2 * rtt {
            return None;
        }
        let name = self.known[used].name.clone();
        let recently = silence.min(RECENTLY + rtt);
        let answers_still = self.known[used].last_asked_since(now, recently);
        let patience = 4 * rtt
            + if self.was_up {
                NO_SESSION
            } else {
                NO_FIRST_SESSION
            };
        let answers_for = now.since(self.known[used].answers_from(since).unwrap_or(now));
        let gives_none = answers_still.is_some() && answers_for >= patience;
        if answers_still.is_some() && !gives_none {
            return None;
        }
        let others = (0..self.known.len()).filter(|index| *index != used);
        let proof = PROVEN + 2 * rtt;
        let proven = others.filter(|index| self.known[*index].answered_for(since) >= proof);
        let best = proven.min_by_key(|index| {
            (
                now < self.known[*index].left_out_until,
                self.rank(now, *index),
            )
        });
        if let Some(best) = best {
            if gives_none {
                self.known[used].leave_out(now);
                return Some((best, Why::NoSession(name)));
            }
            // Its earlier answers do not show that it works.
            self.known[used].forget_answers();
            return Some((best, Why::Silence(name)));
        }
        // Once the connections have ended, the links use UDP again.
        let is_blind = heard.uses_tcp || self.used_tcp || !self.was_ever_up;
        let answers = |known: &Known| known.last_asked_since(now, silence).is_some();
        if is_blind && silence >= TURN && !self.known.iter().any(answers) {
            return Some(((used + 1) % self.known.len(), Why::Turn));
        }
        None
    }

    /// Chooses while the gateway `used` works.
    fn while_it_works(&mut self, now: Instant, used: usize) -> Option<(usize, Why)> {
        if self.prepared.is_some() {
            return None;
        }
        // The time of one gateway does not count for another one.
        let known = self.better_since;
        let still = known.filter(|(index, _)| self.is_better(now, *index, used));
        let found = still.or_else(|| {
            let better = (0..self.known.len()).filter(|index| self.is_better(now, *index, used));
            let best = better.min_by_key(|index| self.rank(now, *index))?;
            Some((best, now + self.spread()))
        });
        self.better_since = found;
        let (index, since) = found?;
        if let Some(leave_at) = self.known[used].leave_at() {
            let why = Why::Drain(self.known[used].name.clone());
            return (now >= leave_at).then_some((index, why));
        }
        let is_due = self
            .return_after
            .is_some_and(|time| now.since(since) >= time);
        is_due.then_some((index, Why::Best))
    }

    /// Returns a random time, up to a quarter of the time for which a better gateway is watched. All clients of a gateway
    /// that returns see it at the same time, but must not return at the same time.
    fn spread(&self) -> Duration {
        let random = self.rounds.back().map_or(0, |round| round.secret[0]);
        self.return_after.unwrap_or_default() * u32::from(random) / 1024
    }

    /// Whether the gateway `index` answers and is better than the gateway `used`, which works.
    fn is_better(&self, now: Instant, index: usize, used: usize) -> bool {
        let (other, used) = (&self.known[index], &self.known[used]);
        // One answer can be lost, so the last two rounds count.
        let recently = self.pace(now) * 2 + SILENCE;
        if now < other.left_out_until || other.last_asked_since(now, recently).is_none() {
            return false;
        }
        let drains = [other, used].map(|known| known.leave_at().is_some());
        if drains.contains(&true) {
            return drains == [false, true];
        }
        if other.priority != used.priority {
            return other.priority < used.priority;
        }
        let (rtt, used_rtt) = (other.rtt_since(now, FRESH), used.rtt_since(now, FRESH));
        matches!((rtt, used_rtt), (Some(rtt), Some(used)) if rtt + (used / 4).max(MARGIN) <= used)
    }

    /// Returns the position of a gateway in the order of preference: lower is better. Ties are broken by the index.
    fn rank(&self, now: Instant, index: usize) -> (bool, u8, Duration, usize) {
        let known = &self.known[index];
        let rtt = known.rtt_since(now, FRESH).unwrap_or(Duration::MAX);
        (known.leave_at().is_some(), known.priority, rtt, index)
    }
}

/// Returns the nonce of the question in `round` to the gateway `index` over `link`. Without the secret of the round it
/// cannot be guessed.
fn nonce(round: &Round, index: usize, link: u8) -> [u8; 16] {
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&round.secret);
    nonce[8] = link;
    nonce[9] = u8::try_from(index).unwrap_or(u8::MAX);
    nonce
}

/// Interval of questions while a gateway works, unless the configured time of return is shorter.
const ROUND: Duration = Duration::from_secs(10);
/// Interval of questions at the start and during the first [`FAST_FOR`] of a silence.
const FAST_ROUND: Duration = Duration::from_millis(100);
const FAST_FOR: Duration = Duration::from_secs(3);
/// Interval of questions during a longer silence: a path that is down is probed as often.
const SLOW_ROUND: Duration = Duration::from_millis(250);
/// Time to wait at the start for the answers of further gateways.
const COLLECT: Duration = Duration::from_millis(300);
/// Time to wait at the start for the name of a gateway of a better priority.
const RESOLVE: Duration = Duration::from_secs(2);
/// Time without a path that is up after which another gateway may replace the one in use. Paths are probed every 20 ms
/// in this time, or every 250 ms if no packets have passed for 10 s.
const SILENCE: Duration = Duration::from_millis(400);
/// Time over which another gateway must have answered. After an outage of all links, the paths to the gateway in use
/// are probed every 250 ms, so they have this time to come up first.
const PROVEN: Duration = Duration::from_millis(300);
/// Age of the question up to which an answer shows that a silent gateway is alive.
const RECENTLY: Duration = Duration::from_secs(1);
/// Time in which a gateway that answers must give a session again.
const NO_SESSION: Duration = Duration::from_secs(5);
/// Time in which a gateway that answers must give a session after it was chosen.
const NO_FIRST_SESSION: Duration = Duration::from_secs(2);
/// Time with a path that is up after which earlier failures of the gateway do not count.
const STABLE: Duration = Duration::from_secs(5 * 60);
/// Least difference between two round-trip times.
const MARGIN: Duration = Duration::from_millis(5);
/// Age of the question up to which an answer counts for the round-trip time: three rounds.
const FRESH: Duration = Duration::from_secs(35);
/// Time with a link after which the first gateway is tried without an answer.
const FIRST_TURN: Duration = Duration::from_secs(3);
/// Time for which each gateway is tried if none answers: a link needs some seconds until TCP carries it.
const TURN: Duration = Duration::from_secs(15);
/// Interval at which a silence is looked at.
const TICK: Duration = Duration::from_millis(50);
/// Maximum number of stored rounds: those of the last 1.6 s in the first seconds of a silence.
const MAX_ROUNDS: usize = 16;

#[cfg(test)]
mod tests;
