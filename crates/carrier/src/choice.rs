//! Decides when a link changes from UDP to TCP and back.
//!
//! ```text
//!            silent                 a connection stands
//!  ┌─ UDP ───────────► UDP, while ─────────────────────► TCP ◄──────────┐
//!  │   ▲               connecting                         │ UDP answers │ UDP carries nothing
//!  │   └──── UDP works ─────┘                             ▼             │
//!  └──────────────────── UDP works ───────────────── back to UDP ───────┘
//! ```
//!
//! - UDP is *silent* in two cases: a link that reaches the gateway is not up `PATIENCE` after it began to be used, or
//!   the engine detects that the path is down, which takes about a second. A dead link is silent too: then TCP cannot
//!   connect, and nothing changes.
//! - While TCP carries the link, UDP is probed after 30 s, then at intervals that double, up to [`MOST_INTERVAL`]. An
//!   answer to a single datagram is weak evidence, so the connections stay until the path is up over UDP.
//! - If UDP is *throttled* on a link ([`crate::meter`]), the link tries TCP for `TRIAL`. It keeps TCP if TCP carries at
//!   least twice as much; then UDP is probed after [`MOST_INTERVAL`]. Otherwise it returns to UDP. There is at most one
//!   such trial per [`MOST_INTERVAL`].
//! - If a path goes down while TCP carries it, or all its connections end, the link starts again with both UDP and TCP.
//!
//! Inputs carry `now`. [`Choice::poll`] returns the actions to execute.

use std::time::Duration;

use pleach_core::time::Instant;

/// The user's setting for a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// UDP, and TCP while UDP does not work.
    #[default]
    Auto,
    /// Always TCP.
    Tcp,
    /// Always UDP.
    Udp,
}

/// Action to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send probes to the gateway over UDP.
    AskUdp,
    /// Report by [`Choice::on_compared`] whether TCP carries more than UDP did.
    Compare,
    /// Close the connections.
    Close,
    /// Open new connections.
    Open,
    /// Send the link's datagrams over the TCP connections.
    UseTcp,
    /// Send the link's datagrams over UDP.
    UseUdp,
}

/// State machine for the transport of one link.
#[derive(Clone, Debug)]
pub struct Choice {
    mode: Mode,
    state: State,
    /// Whether the link reaches the gateway.
    reaches: bool,
    /// Time of the last change of the transport. Reports on the path shortly afterwards concern the previous transport.
    changed_at: Instant,
    /// Time at which a path counts as up that was reported up shortly after the change.
    early_up: Option<Instant>,
    interval: Duration,
    /// Time before which there is no trial of TCP for throttled UDP.
    no_trial_until: Instant,
    actions: Vec<Action>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// TCP is on trial until this time, because UDP is throttled.
    Comparing(Instant),
    /// Connections are being opened while UDP is used.
    Connecting,
    /// Connections for a trial are being opened, until this time.
    Offering(Instant),
    /// UDP is used again, with connections in reserve, until the path is up or this time has come.
    Returning(Instant),
    /// TCP is used. UDP is probed at this time. The number counts probes since the last pause.
    Tcp(Instant, u32),
    /// UDP is used. If the path is not up at this time, UDP is silent.
    Udp(Option<Instant>),
}

impl Choice {
    /// Creates the state machine of a link that does not yet reach the gateway.
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

    /// Sets the user's setting, which applies from the next [`Self::on_reach`] on.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Restarts the link. `reaches`: whether it reaches the gateway from now on.
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

    /// Called when the addresses of the gateway have changed. `are_kept`: whether the link has TCP connections, and all
    /// lead to addresses that the gateway still has.
    ///
    /// A path that is up over UDP stays as it is: the engine would not report again that it is up. A path that is not
    /// up yet gets time to work over UDP.
    pub fn on_endpoints(&mut self, now: Instant, are_kept: bool) {
        if !self.reaches {
            return;
        }
        match self.state {
            State::Udp(Some(_)) => self.state = State::Udp(Some(now + PATIENCE)),
            State::Connecting => {
                self.state = State::Udp(Some(now + PATIENCE));
                self.actions.push(Action::Close);
            }
            _ if are_kept => {}
            State::Tcp(..) if self.mode == Mode::Tcp => {
                self.changed_at = now;
                self.actions.extend([Action::Close, Action::Open]);
            }
            State::Tcp(..) | State::Comparing(_) => {
                self.changed_at = now;
                self.actions.extend([Action::Close, Action::UseUdp]);
                self.connect();
            }
            // The connections are a reserve while UDP is tested.
            State::Returning(_) => self.actions.extend([Action::Close, Action::Open]),
            State::Offering(_) | State::Udp(None) => {}
        }
    }

    /// Called when the engine reports the path up or down.
    pub fn on_path(&mut self, now: Instant, is_up: bool) {
        if !self.reaches || self.mode == Mode::Udp {
            return;
        }
        let is_old = now.since(self.changed_at) < SETTLING;
        // The engine does not repeat its report. The report counts when the change has settled, unless the path is down
        // by then.
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
                // The connections may be dead like the path.
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

    /// Called when UDP is throttled.
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

    /// Processes the answer to [`Action::Compare`].
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

    /// Called when a first connection is established, or when the last one has ended.
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

    /// Called when the gateway has answered over UDP.
    pub fn on_udp_answer(&mut self, now: Instant) {
        if matches!(self.state, State::Tcp(..)) && self.mode == Mode::Auto {
            self.state = State::Returning(now + PATIENCE);
            self.changed_at = now;
            self.actions.push(Action::UseUdp);
        }
    }

    /// Returns the time at which to call [`poll`](Self::poll) again.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.early_up.into_iter().chain(self.due()).min()
    }

    /// Returns the time at which the state ends by itself.
    fn due(&self) -> Option<Instant> {
        match self.state {
            State::Comparing(at) | State::Offering(at) | State::Returning(at) => Some(at),
            State::Tcp(at, _) => (at < FAR).then_some(at),
            State::Udp(at) => at,
            State::Connecting => None,
        }
    }

    /// Returns the next action.
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
                    // The action is returned only once, because the answer changes the state.
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

/// Time for several attempts of a handshake, longer than the RTT of a satellite link.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Time after a change in which reports of the engine concern the previous transport.
const SETTLING: Duration = Duration::from_millis(100);
/// First interval of probes over UDP while TCP carries the link.
const FIRST_INTERVAL: Duration = Duration::from_secs(30);
/// Longest interval of probes over UDP.
pub const MOST_INTERVAL: Duration = Duration::from_secs(600);
/// Number of datagrams in a probe, of which one must be answered, and their interval.
const ASK: u32 = 3;
const ASK_INTERVAL: Duration = Duration::from_millis(300);
/// Time limit for opening connections for a trial.
const OFFER: Duration = Duration::from_secs(4);
/// Duration of a trial of TCP.
const TRIAL: Duration = Duration::from_secs(3);
/// A time that never comes.
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
    fn new_addresses_of_the_gateway_close_only_connections_to_former_addresses() {
        let mut choice = reached(Mode::Auto);
        choice.on_path(at(200), true);
        choice.on_endpoints(at(5000), false);
        assert_eq!(all(&mut choice, at(9000)), [], "UDP works");
        assert_eq!((choice.next_at(), choice.is_tcp()), (None, false));
        // The first addresses: UDP could not work before.
        let mut choice = reached(Mode::Auto);
        choice.on_endpoints(at(1000), false);
        assert_eq!(all(&mut choice, at(1500)), []);
        assert_eq!(all(&mut choice, at(2500)), [Action::Open]);
        choice.on_endpoints(at(3000), false);
        assert_eq!(all(&mut choice, at(3000)), [Action::Close]);
        choice.on_path(at(3200), true);
        assert_eq!((choice.next_at(), choice.is_tcp()), (None, false));
        let mut choice = carried();
        let next = choice.next_at();
        choice.on_endpoints(at(5000), true);
        assert_eq!(all(&mut choice, at(5000)), [], "the address in use stays");
        assert_eq!((choice.next_at(), choice.is_tcp()), (next, true));
        choice.on_endpoints(at(6000), false);
        assert_eq!(
            all(&mut choice, at(6000)),
            [Action::Close, Action::UseUdp, Action::Open]
        );
        let mut choice = reached(Mode::Tcp);
        choice.on_endpoints(at(5000), true);
        assert_eq!(all(&mut choice, at(5000)), []);
        choice.on_endpoints(at(6000), false);
        assert_eq!(all(&mut choice, at(6000)), [Action::Close, Action::Open]);
        assert!(choice.is_tcp());
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
                // No server is listening.
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
