//! When a link changes from UDP to TCP and back.
//!
//! ```text
//!            silent                 a connection stands
//!  ┌─ UDP ───────────► UDP, while ─────────────────────► TCP ◄──────────┐
//!  │   ▲               connecting                         │ UDP answers │ UDP carries nothing
//!  │   └──── UDP works ─────┘                             ▼             │
//!  └──────────────────── UDP works ───────────────── back to UDP ───────┘
//! ```
//!
//! - UDP is *silent* if a link that reaches the gateway is not up `PATIENCE` after it began to be used, or when the engine
//!   finds that the path is down, which takes it about a second. A dead link is silent too: TCP connects in vain, and nothing changes.
//! - While TCP carries the link, UDP is asked again after 30 s, then at intervals that double, up to [`MOST_INTERVAL`]. An
//!   answer to a single datagram says little, so the connections stay until the path is up over UDP.
//! - A link over which UDP is *throttled* ([`crate::meter`]) tries TCP for `TRIAL`. It keeps TCP if that carries twice as much or more;
//!   then UDP is asked after [`MOST_INTERVAL`]. Else it goes back to UDP. There is one such trial in [`MOST_INTERVAL`].
//! - A path that goes down while TCP carries it, or whose connections all end, begins again with both.
//!
//! Inputs carry `now`; [`Choice::poll`] says what to do.

use std::time::Duration;

use pleach_core::time::Instant;

/// What the user wants for a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// UDP, and TCP while UDP does not get through.
    #[default]
    Auto,
    /// Always TCP.
    Tcp,
    /// Always UDP.
    Udp,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the gateway over UDP whether it hears.
    AskUdp,
    /// Say by [`Choice::on_compared`] whether TCP carries more than UDP did.
    Compare,
    /// End the connections.
    Close,
    /// Make connections anew.
    Open,
    /// Carry the link's datagrams over the connections.
    UseTcp,
    /// Send the link's datagrams over UDP.
    UseUdp,
}

/// How one link's datagrams travel.
#[derive(Clone, Debug)]
pub struct Choice {
    mode: Mode,
    state: State,
    /// Whether the link reaches the gateway.
    reaches: bool,
    /// When the carrier changed last: what is heard of the path just then is about the former one.
    changed_at: Instant,
    /// When a path that was found up just after the change counts as up.
    early_up: Option<Instant>,
    interval: Duration,
    /// No trial of TCP for throttled UDP before this time.
    no_trial_until: Instant,
    actions: Vec<Action>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// TCP on trial until this time, since UDP is throttled.
    Comparing(Instant),
    /// Connections are made while UDP is used.
    Connecting,
    /// Connections are made for a trial, until this time.
    Offering(Instant),
    /// Back on UDP, with connections in reserve, until it is up or this time has come.
    Returning(Instant),
    /// TCP; UDP is asked at this time, and has been so often since the last pause.
    Tcp(Instant, u32),
    /// UDP; silent from this time on, if it is not up by then.
    Udp(Option<Instant>),
}

impl Choice {
    /// A link that does not reach anything yet.
    #[must_use]
    pub fn new(now: Instant, mode: Mode) -> Self {
        Self {
            mode,
            state: State::Udp(None),
            reaches: false,
            changed_at: now,
            early_up: None,
            interval: FIRST_INTERVAL,
            no_trial_until: now,
            actions: Vec::new(),
        }
    }

    /// Whether TCP carries the link.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        matches!(self.state, State::Tcp(..) | State::Comparing(_))
            || (self.mode == Mode::Tcp && self.reaches)
    }

    /// What the user wants from the next [`Self::on_reach`] on.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// The link begins anew: it reaches the gateway from now on, or does not.
    pub fn on_reach(&mut self, now: Instant, reaches: bool) {
        self.reaches = reaches;
        self.interval = FIRST_INTERVAL;
        self.changed_at = now;
        self.actions.clear();
        if self.state != State::Udp(None) || self.mode == Mode::Tcp {
            self.actions.push(Action::Close);
        }
        match (self.mode, reaches) {
            (Mode::Tcp, true) => {
                self.state = State::Tcp(FAR, 0);
                self.actions.extend([Action::Open, Action::UseTcp]);
            }
            (Mode::Auto, true) => {
                self.state = State::Udp(Some(now + PATIENCE));
                self.actions.push(Action::UseUdp);
            }
            (Mode::Udp, _) | (_, false) => {
                self.state = State::Udp(None);
                self.actions.push(Action::UseUdp);
            }
        }
    }

    /// The engine found the path up or down.
    pub fn on_path(&mut self, now: Instant, is_up: bool) {
        if !self.reaches || self.mode == Mode::Udp {
            return;
        }
        let is_old = now.since(self.changed_at) < SETTLING;
        // The engine does not repeat it: it counts when the change has settled, unless the path is down by then.
        let waits = matches!(self.state, State::Connecting | State::Returning(_));
        self.early_up = (is_old && is_up && waits).then(|| self.changed_at + SETTLING);
        match (self.state, is_up) {
            (State::Udp(_), true) => self.state = State::Udp(None),
            (State::Udp(_) | State::Offering(_), false) if !is_old => self.connect(),
            (State::Connecting | State::Returning(_), true) if !is_old => {
                self.state = State::Udp(None);
                self.interval = FIRST_INTERVAL;
                self.actions.push(Action::Close);
            }
            (State::Tcp(..), false) if !is_old && self.mode == Mode::Tcp => {
                // The connections may be as dead as the path.
                self.changed_at = now;
                self.actions.extend([Action::Close, Action::Open]);
            }
            (State::Tcp(..) | State::Comparing(_), false) if !is_old => {
                self.changed_at = now;
                self.actions.extend([Action::Close, Action::UseUdp]);
                self.connect();
            }
            (
                State::Comparing(_)
                | State::Connecting
                | State::Offering(_)
                | State::Returning(_)
                | State::Tcp(..)
                | State::Udp(_),
                _,
            ) => {}
        }
    }

    /// UDP is throttled.
    pub fn on_throttled(&mut self, now: Instant) {
        if self.state == State::Udp(None)
            && self.mode == Mode::Auto
            && self.reaches
            && now >= self.no_trial_until
        {
            self.no_trial_until = now + MOST_INTERVAL;
            self.state = State::Offering(now + OFFER);
            self.actions.push(Action::Open);
        }
    }

    /// The answer to [`Action::Compare`].
    pub fn on_compared(&mut self, now: Instant, is_tcp_better: bool) {
        if !matches!(self.state, State::Comparing(_)) {
            return;
        }
        if is_tcp_better {
            self.interval = MOST_INTERVAL;
            self.state = State::Tcp(now + self.interval, 0);
        } else {
            self.state = State::Udp(None);
            self.changed_at = now;
            self.actions.extend([Action::UseUdp, Action::Close]);
        }
    }

    /// A first connection stands, or the last one has ended.
    pub fn on_connection(&mut self, now: Instant, stands: bool) {
        match (self.state, stands) {
            (State::Connecting, true) => self.use_tcp(now),
            (State::Offering(_), true) => {
                self.state = State::Comparing(now + TRIAL);
                self.changed_at = now;
                self.actions.push(Action::UseTcp);
            }
            (State::Returning(_), false) => self.state = State::Connecting,
            (State::Tcp(..) | State::Comparing(_), false) if self.mode == Mode::Auto => {
                self.state = State::Connecting;
                self.changed_at = now;
                self.actions.push(Action::UseUdp);
            }
            (
                State::Comparing(_)
                | State::Connecting
                | State::Offering(_)
                | State::Returning(_)
                | State::Tcp(..)
                | State::Udp(_),
                _,
            ) => {}
        }
    }

    /// The gateway has answered over UDP.
    pub fn on_udp_answer(&mut self, now: Instant) {
        if matches!(self.state, State::Tcp(..)) && self.mode == Mode::Auto {
            self.state = State::Returning(now + PATIENCE);
            self.changed_at = now;
            self.actions.push(Action::UseUdp);
        }
    }

    /// When to [`poll`](Self::poll) again.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.early_up.into_iter().chain(self.due()).min()
    }

    /// When the state ends by itself.
    fn due(&self) -> Option<Instant> {
        match self.state {
            State::Comparing(at) | State::Offering(at) | State::Returning(at) => Some(at),
            State::Tcp(at, _) => (at < FAR).then_some(at),
            State::Udp(at) => at,
            State::Connecting => None,
        }
    }

    /// What to do next.
    pub fn poll(&mut self, now: Instant) -> Option<Action> {
        if self.early_up.is_some_and(|at| at <= now) {
            self.early_up = None;
            self.on_path(now, true);
        }
        if self.due().is_some_and(|at| at <= now) {
            match self.state {
                State::Udp(_) => self.connect(),
                State::Returning(_) => {
                    self.interval = (self.interval * 2).min(MOST_INTERVAL);
                    self.use_tcp(now);
                }
                State::Tcp(_, asked) if asked + 1 < ASK => {
                    self.state = State::Tcp(now + ASK_INTERVAL, asked + 1);
                    self.actions.push(Action::AskUdp);
                }
                State::Tcp(..) => {
                    self.interval = (self.interval * 2).min(MOST_INTERVAL);
                    self.state = State::Tcp(now + self.interval, 0);
                    self.actions.push(Action::AskUdp);
                }
                State::Comparing(_) => {
                    // Once: the answer changes the state.
                    self.state = State::Comparing(now + TRIAL);
                    self.actions.push(Action::Compare);
                }
                State::Offering(_) => {
                    self.state = State::Udp(None);
                    self.actions.push(Action::Close);
                }
                State::Connecting => {}
            }
        }
        (!self.actions.is_empty()).then(|| self.actions.remove(0))
    }

    fn connect(&mut self) {
        self.state = State::Connecting;
        self.actions.push(Action::Open);
    }

    fn use_tcp(&mut self, now: Instant) {
        self.state = State::Tcp(now + self.interval, 0);
        self.changed_at = now;
        self.actions.push(Action::UseTcp);
    }
}

/// Handshakes are tried several times in it, and a satellite's round trip passes.
const PATIENCE: Duration = Duration::from_millis(1500);
/// What the engine tells so soon after a change is of the path before.
const SETTLING: Duration = Duration::from_millis(100);
/// First interval at which UDP is asked again while TCP carries the link.
const FIRST_INTERVAL: Duration = Duration::from_secs(30);
/// The longest.
pub const MOST_INTERVAL: Duration = Duration::from_secs(600);
/// Datagrams of which one is to be answered, and their interval.
const ASK: u32 = 3;
const ASK_INTERVAL: Duration = Duration::from_millis(300);
/// How long connections for a trial are tried.
const OFFER: Duration = Duration::from_secs(4);
/// How long a trial of TCP takes.
const TRIAL: Duration = Duration::from_secs(3);
/// Never.
const FAR: Instant = Instant::from_nanos(u64::MAX);

#[cfg(test)]
mod tests {
    use super::*;

    fn all(choice: &mut Choice, now: Instant) -> Vec<Action> {
        std::iter::from_fn(|| choice.poll(now)).collect()
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn reached(mode: Mode) -> Choice {
        let mut choice = Choice::new(at(0), mode);
        choice.on_reach(at(0), true);
        all(&mut choice, at(0));
        choice
    }

    fn carried() -> Choice {
        let mut choice = reached(Mode::Auto);
        assert_eq!(all(&mut choice, at(1500)), [Action::Open]);
        choice.on_connection(at(1600), true);
        assert_eq!(all(&mut choice, at(1600)), [Action::UseTcp]);
        assert!(choice.is_tcp());
        choice
    }

    #[test]
    fn udp_that_works_is_left_alone() {
        let mut choice = reached(Mode::Auto);
        assert_eq!(choice.next_at(), Some(at(1500)));
        choice.on_path(at(200), true);
        assert_eq!((choice.next_at(), choice.is_tcp()), (None, false));
    }

    #[test]
    fn a_path_that_falls_silent_is_connected_at_once_and_may_come_back_before() {
        let mut choice = reached(Mode::Auto);
        choice.on_path(at(200), true);
        choice.on_path(at(9000), false);
        assert_eq!(all(&mut choice, at(9000)), [Action::Open]);
        assert!(!choice.is_tcp());
        choice.on_path(at(9100), true);
        assert_eq!(all(&mut choice, at(9100)), [Action::Close]);
        assert!(!choice.is_tcp());
    }

    #[test]
    fn udp_is_asked_ever_more_rarely_and_taken_when_it_works() {
        let mut choice = carried();
        let mut now = at(1600);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let next = choice.next_at().expect("asks");
            pauses.push(next.since(now).as_secs());
            now = next;
            for _ in 0..3 {
                now = choice.next_at().expect("asks");
                assert_eq!(all(&mut choice, now), [Action::AskUdp]);
            }
        }
        assert_eq!(pauses, [30, 60, 120, 240, 480, 600, 600, 600]);
        choice.on_udp_answer(now);
        assert_eq!(all(&mut choice, now), [Action::UseUdp]);
        choice.on_path(now + Duration::from_millis(300), true);
        assert_eq!(all(&mut choice, now), [Action::Close]);
        assert!(!choice.is_tcp() && choice.next_at().is_none());
    }

    #[test]
    fn udp_is_taken_though_a_short_round_trip_shows_it_at_once() {
        for falls_again in [false, true] {
            let mut choice = carried();
            choice.on_udp_answer(at(32_000));
            assert_eq!(all(&mut choice, at(32_000)), [Action::UseUdp]);
            choice.on_path(at(32_020), true);
            assert_eq!(all(&mut choice, at(32_020)), []);
            if falls_again {
                choice.on_path(at(32_050), false);
            }
            let next = choice.next_at().expect("settles");
            let action = if falls_again {
                Action::UseTcp
            } else {
                Action::Close
            };
            assert_eq!(all(&mut choice, next), [action]);
            assert_eq!(choice.is_tcp(), falls_again);
        }
    }

    #[test]
    fn udp_that_answers_but_does_not_carry_is_given_up_again() {
        let mut choice = carried();
        choice.on_udp_answer(at(32_000));
        assert_eq!(all(&mut choice, at(32_000)), [Action::UseUdp]);
        assert!(!choice.is_tcp());
        assert_eq!(all(&mut choice, at(33_500)), [Action::UseTcp]);
        assert_eq!(choice.next_at(), Some(at(93_500)));
    }

    #[test]
    fn dead_connections_are_made_anew() {
        let mut choice = carried();
        choice.on_path(at(1650), false);
        assert_eq!(all(&mut choice, at(1650)), [], "of the path before");
        choice.on_path(at(5000), false);
        assert_eq!(
            all(&mut choice, at(5000)),
            [Action::Close, Action::UseUdp, Action::Open]
        );
        let mut choice = carried();
        choice.on_connection(at(5000), false);
        assert_eq!(all(&mut choice, at(5000)), [Action::UseUdp]);
        choice.on_connection(at(6000), true);
        assert_eq!(all(&mut choice, at(6000)), [Action::UseTcp]);
        choice.on_reach(at(7000), false);
        assert_eq!(all(&mut choice, at(7000)), [Action::Close, Action::UseUdp]);
    }

    #[test]
    fn throttled_udp_is_compared_with_tcp_once_in_a_while() {
        for is_better in [true, false] {
            let mut choice = reached(Mode::Auto);
            choice.on_path(at(200), true);
            choice.on_throttled(at(5000));
            assert_eq!(all(&mut choice, at(5000)), [Action::Open]);
            choice.on_connection(at(5100), true);
            assert_eq!(all(&mut choice, at(5100)), [Action::UseTcp]);
            assert_eq!(all(&mut choice, at(8100)), [Action::Compare]);
            choice.on_compared(at(8100), is_better);
            assert_eq!(choice.is_tcp(), is_better);
            if is_better {
                assert_eq!(choice.next_at(), Some(at(608_100)));
            } else {
                assert_eq!(all(&mut choice, at(8100)), [Action::UseUdp, Action::Close]);
                choice.on_throttled(at(9000));
                assert_eq!(all(&mut choice, at(9000)), []);
                choice.on_throttled(at(606_000));
                assert_eq!(all(&mut choice, at(606_000)), [Action::Open]);
                // Nobody listens.
                assert_eq!(all(&mut choice, at(610_000)), [Action::Close]);
            }
        }
    }

    #[test]
    fn the_users_word_holds() {
        let mut choice = Choice::new(at(0), Mode::Tcp);
        choice.on_reach(at(0), true);
        assert_eq!(
            all(&mut choice, at(0)),
            [Action::Close, Action::Open, Action::UseTcp]
        );
        choice.on_udp_answer(at(50));
        choice.on_connection(at(60), false);
        assert!(choice.is_tcp() && choice.next_at().is_none());
        let mut choice = reached(Mode::Udp);
        choice.on_path(at(5000), false);
        assert_eq!(
            (all(&mut choice, at(5000)), choice.next_at()),
            (vec![], None)
        );
    }
}
