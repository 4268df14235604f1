//! The rate controller: how fast a path is sent on, so that queues stand in the tunnel and not in the modem.
//!
//! It decides by the network model ([`super::model`]) and is in one of five states:
//!
//! | state | pace | file |
//! | --- | --- | --- |
//! | startup | 250 % of the largest delivery rate; from 70 % of a remembered rate | `control/startup.rs` |
//! | unpaced | none: the profile does not search, and the path was never saturated | here |
//! | probe up | 110 % of the capacity: more capacity shows within a few reports, and a burst of some milliseconds does not overflow a short buffer | `control/cruise.rs` |
//! | cruise | 103 % of the capacity: the queue stands between `low` and `high` | `control/cruise.rs` |
//! | drain | 8 to 40 % below the capacity, until the queue is below `low` | `control/drain.rs` |
//!
//! `low` and `high` are the levels [`LOW`] and [`HIGH`] of the standing queue: 3 and 7 ms, or what the user wants ([`aim`]).
//! Capacity is the largest delivery rate of 2 s over one less the loss floor.
//!
//! Beside the state, congestion by loss limits the pace (`control/limit.rs`): an overflow of a short buffer is not seen as a queue.
//!
//! # Transitions
//!
//! | from | to | when |
//! | --- | --- | --- |
//! | startup | probe up | two rounds brought no quarter more; a long queue; congestion; a packet train or a remembered rate gives the capacity |
//! | startup | unpaced | the profile does not search |
//! | unpaced | startup | the profile searches |
//! | unpaced | probe up | the path was saturated |
//! | probe up | cruise | queue at `low` |
//! | cruise | probe up | queue below `low` |
//! | probe up, cruise | drain | queue above `high` |
//! | drain | probe up | queue below `low`, or the drain showed that there is none |
//! | drain | drain | the queue is still there after four round trips: again, by what was delivered |
//! | all but startup | startup | not saturated for 60 s, or become slow |
//! | all but unpaced | unpaced | the same without search; or no queue for 1 s |
//!
//! `State::allows` holds the table, and `Controller::enter` checks it in debug builds.

use core::time::Duration;

use self::{
    aim::{Aim, Sharing},
    cruise::{CRUISE_PERCENT, PROBE_UP_PERCENT},
    drain::{Drain, Verdict},
    limit::Limit,
    startup::Startup,
};
use super::{
    memory::PathMemory,
    model::{HIGH, LEAST_RATE, LOW, Model, Signals, round::LEAST_ROUND},
    rate::RateSample,
};
use crate::{
    profile::{Mechanism, Mechanisms},
    time::Instant,
    units::Bitrate,
};

pub mod aim;
mod cruise;
mod drain;
mod limit;
mod recalled;
mod startup;

/// The rate controller of one path.
#[derive(Clone, Debug)]
pub struct Controller {
    state: State,
    limit: Limit,
    /// When a queue of at least `low`, or congestion, was last seen.
    queued_at: Instant,
    /// Whether the profile searches capacities.
    searches: bool,
    mechanisms: Mechanisms,
    aim: Aim,
}

/// What the controller does now; see the table in the module's head.
#[derive(Clone, Copy, Debug)]
enum State {
    Startup(Startup),
    Unpaced,
    ProbeUp,
    Cruise,
    Drain(Drain),
}

impl State {
    /// Whether the table has a transition to `next`.
    const fn allows(&self, next: &Self) -> bool {
        match (self, next) {
            (_, Self::Startup(_) | Self::Unpaced)
            | (Self::Startup(_) | Self::Unpaced, Self::ProbeUp)
            | (Self::ProbeUp, Self::Cruise | Self::Drain(_))
            | (Self::Cruise, Self::ProbeUp | Self::Drain(_))
            | (Self::Drain(_), Self::Drain(_) | Self::ProbeUp) => true,
            (Self::Startup(_) | Self::Unpaced, Self::Cruise | Self::Drain(_))
            | (Self::ProbeUp, Self::ProbeUp)
            | (Self::Cruise | Self::Drain(_), Self::Cruise) => false,
        }
    }
}

impl Controller {
    /// A controller in its first state.
    #[must_use]
    pub(super) fn new(mechanisms: Mechanisms) -> Self {
        Self {
            state: State::Startup(Startup::default()),
            limit: Limit::default(),
            queued_at: Instant::ZERO,
            searches: true,
            mechanisms,
            aim: Aim::default(),
        }
    }

    fn enter(&mut self, next: State) {
        debug_assert!(
            self.state.allows(&next),
            "{:?} -> {next:?} is not in the table",
            self.state
        );
        self.state = next;
    }

    /// Takes a report. Delay, loss and bytes of the model have seen it; queue, rounds and cross traffic are
    /// updated here. If the path overflows even under a ceiling, what was delivered meanwhile.
    pub(super) fn on_report(
        &mut self,
        now: Instant,
        signals: &Signals,
        model: &mut Model,
    ) -> Option<Bitrate> {
        let overflow = self.on_losses(now, signals, model);
        model.on_queue(now, signals);
        if model.queue.standing() >= self.low(model) {
            self.queued_at = now;
        }
        self.on_queue(now, signals, model);
        let low = self.low(model);
        if let State::Startup(startup) = &mut self.state
            && startup.confirms(now, signals, low, model)
        {
            self.on_known(now, model);
        }
        self.on_round(now, signals, model);
        if self.is_slack(now, signals) {
            model.forget_saturation();
            self.enter(State::Unpaced);
        }
        let gross = model.rate.max().map(|max| model.gross(max));
        model.cross.on_capacity(now, gross);
        self.limit.on_report(now, signals, model);
        overflow
    }

    /// Takes note of a new sample of the delivery rate, by the report of `signals`.
    pub(super) fn on_sample(
        &mut self,
        now: Instant,
        sample: RateSample,
        signals: &Signals,
        model: &mut Model,
    ) {
        if !sample.app_limited {
            model.on_saturated(now);
            if matches!(self.state, State::Unpaced) {
                self.enter(State::ProbeUp);
                self.on_queue(now, signals, model);
            }
        }
    }

    /// Judges losses: congestion sets a limit.
    fn on_losses(&mut self, now: Instant, signals: &Signals, model: &mut Model) -> Option<Bitrate> {
        let window = model.losses.count(signals, &model.rate)?;
        if !window.is_congested(signals.floor_ppm) || !self.mechanisms.has(Mechanism::LossCeiling) {
            return None;
        }
        let was_limited = self.is_limited();
        let is_searching = self.is_searching();
        if !self
            .limit
            .on_congestion(now, signals, model, window, is_searching)
        {
            return None;
        }
        self.queued_at = now;
        if !self.is_paced() {
            self.enter(State::ProbeUp);
        }
        (was_limited && signals.is_limited).then_some(window.rate)
    }

    /// Makes the transitions that the standing queue asks for.
    fn on_queue(&mut self, now: Instant, signals: &Signals, model: &mut Model) {
        let queue = model.queue.standing();
        let (low, high) = (self.low(model), self.high(model));
        let next = match &mut self.state {
            State::Startup(_) | State::Unpaced => return,
            State::ProbeUp | State::Cruise if queue > high => {
                State::Drain(Drain::begin(now, signals.rtt, low, model))
            }
            State::ProbeUp if queue >= low => State::Cruise,
            State::Cruise if queue < low => State::ProbeUp,
            State::ProbeUp | State::Cruise => return,
            State::Drain(drain) => {
                let tests =
                    self.mechanisms.has(Mechanism::DrainTest) && self.aim.sharing != Sharing::Yield;
                match drain.on_report(now, signals.rtt, low, tests, model) {
                    Verdict::Open => return,
                    Verdict::Empty | Verdict::NoQueue => State::ProbeUp,
                    Verdict::Again(drain) => State::Drain(drain),
                }
            }
        };
        self.enter(next);
    }

    /// Ends startup when more was sent than arrived and no more arrived a round later, or a long queue stands; begins it when the
    /// capacity is outdated.
    fn on_round(&mut self, now: Instant, signals: &Signals, model: &mut Model) {
        let (queue, high) = (model.queue.standing(), model.noise(HIGH));
        let max = model.max_rate();
        let gross = model.gross(max);
        let is_long = queue > high * 4;
        let Some(is_flat) = model.rounds.on_report(now, signals, is_long, max, gross) else {
            return;
        };
        if let State::Startup(startup) = &mut self.state {
            startup.on_round(is_flat, queue > high * 2);
            if startup.is_flat() || is_long {
                model.on_saturated(now);
                self.enter(State::ProbeUp);
            }
        } else if model.is_outdated(now) {
            self.search_again(model);
        }
    }

    /// Whether an unsearched path has had no queue for long. Such a path is not saturated, and a pace a little above the little
    /// that is sent would hold bursts back.
    fn is_slack(&self, now: Instant, signals: &Signals) -> bool {
        let is_calm = now.since(self.queued_at) > SLACK.max(signals.rtt * 4);
        !self.searches && self.is_paced() && is_calm && self.limit.ceiling().is_none()
    }

    const fn is_paced(&self) -> bool {
        !matches!(self.state, State::Startup(_) | State::Unpaced)
    }

    /// The capacity became known otherwise than by startup.
    pub(super) fn on_known(&mut self, now: Instant, model: &mut Model) {
        model.on_saturated(now);
        if !self.is_paced() {
            self.enter(State::ProbeUp);
        }
    }

    /// The capacity is unknown (again).
    pub(super) fn search_again(&mut self, model: &mut Model) {
        model.forget_saturation();
        self.limit.open();
        self.enter(self.unknown());
    }

    /// The state of a path of unknown capacity.
    fn unknown(&self) -> State {
        if self.searches {
            State::Startup(Startup::default())
        } else {
            State::Unpaced
        }
    }

    /// Begins startup anew with a remembered rate; whether the profile searches at all.
    pub(super) fn recall(&mut self, memory: &PathMemory, model: &mut Model) -> bool {
        let recalls = self.searches && self.mechanisms.has(Mechanism::Recall);
        if recalls {
            model.forget_network();
            self.limit.open();
            self.queued_at = Instant::ZERO;
            self.enter(State::Startup(Startup::from_memory(*memory)));
        }
        recalls
    }

    /// Sets whether the profile searches, and its mechanisms.
    pub(super) fn set_profile(&mut self, searches: bool, mechanisms: Mechanisms) {
        self.mechanisms = mechanisms;
        if self.searches != searches {
            self.searches = searches;
            match self.state {
                State::Startup(_) if !searches => self.enter(State::Unpaced),
                State::Unpaced if searches => self.enter(State::Startup(Startup::default())),
                State::Startup(_)
                | State::Unpaced
                | State::ProbeUp
                | State::Cruise
                | State::Drain(_) => {}
            }
        }
    }

    /// Sets what the user wants of the path's queue.
    pub(super) fn set_aim(&mut self, aim: Aim) {
        self.aim = aim;
    }

    /// The remembered rate of a path with this round-trip time, while nothing contradicts it.
    #[must_use]
    pub(super) fn remembered(&self, rtt: Duration) -> Option<Bitrate> {
        match &self.state {
            State::Startup(startup) => startup.remembered(rtt),
            State::Unpaced | State::ProbeUp | State::Cruise | State::Drain(_) => None,
        }
    }

    /// Whether the capacity is being searched.
    #[must_use]
    pub const fn is_searching(&self) -> bool {
        matches!(self.state, State::Startup(_))
    }

    /// Whether congestion by loss limits the pace.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limit.ceiling().is_some()
    }

    /// The name of the state.
    #[must_use]
    pub const fn state_name(&self) -> &'static str {
        match self.state {
            State::Startup(_) => "startup",
            State::Unpaced => "unpaced",
            State::ProbeUp => "probe-up",
            State::Cruise => "cruise",
            State::Drain(_) => "drain",
        }
    }

    /// Whether the path or its pace, and not the sender, limits the delivery rate.
    #[must_use]
    pub(super) fn is_saturated(&self, signals: &Signals, model: &Model) -> bool {
        let low = self.low(model);
        let is_filled = model.queue.standing() >= low + low / 3;
        if !self.searches {
            return is_filled;
        }
        let latest = model.rate.latest();
        let latest = latest.map_or(Bitrate::ZERO, |sample| sample.rate);
        let paces = [signals.pace, model.rounds.pace()].into_iter().flatten();
        let is_at_pace = paces
            .min()
            .is_some_and(|pace| model.gross(latest) > pace.scale(85, 100));
        // Jitter looks like a queue, but under a growing queue more is sent than arrives.
        signals.is_limited && (is_at_pace || (is_filled && model.rounds.is_overrun()))
    }

    /// The pace; `None`: none.
    #[must_use]
    pub(super) fn pace(&self, now: Instant, rtt: Duration, model: &Model) -> Option<Bitrate> {
        let gain = |percent| {
            let max = model.rate.max().filter(|_| model.is_capacity_known(now))?;
            Some(model.gross(max).scale(percent, 100))
        };
        let pace = match &self.state {
            State::Startup(startup) => return startup.pace(rtt, model.max_rate()),
            State::Unpaced => return None,
            State::ProbeUp => gain(PROBE_UP_PERCENT)?,
            State::Cruise => gain(CRUISE_PERCENT)?,
            State::Drain(drain) => {
                let known = model.rate.max().filter(|_| model.is_capacity_known(now));
                known.map(|_| drain.pace())?
            }
        };
        let pace = self.limit.ceiling().map_or(pace, |most| pace.min(most));
        let share = self.share(now, model);
        Some(pace.max(share).max(LEAST_RATE))
    }

    /// The pace that is kept beside cross traffic.
    fn share(&self, now: Instant, model: &Model) -> Bitrate {
        match (self.aim.sharing, model.cross.shared_capacity(now)) {
            (Sharing::Hold { percent }, Some(capacity)) => capacity.scale(percent.into(), 100),
            (Sharing::Auto | Sharing::Hold { .. } | Sharing::Yield, _) => Bitrate::ZERO,
        }
    }

    /// A shorter queue lets the path be probed for more.
    fn low(&self, model: &Model) -> Duration {
        model.level(LOW, self.aim.low(LOW.delay))
    }

    /// A longer queue is drained.
    fn high(&self, model: &Model) -> Duration {
        model.level(HIGH, self.aim.high(HIGH.delay))
    }
}

/// After so long without a queue an unsearched path is not saturated.
const SLACK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
