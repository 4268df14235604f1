//! The rate controller: it sets the pacing rate of a path so that packets queue in the tunnel, not in the modem.
//!
//! It reads the network model ([`super::model`]) and is in one of five states:
//!
//! | state | pacing rate | file |
//! | --- | --- | --- |
//! | startup | 250 % of the maximum delivery rate; with a remembered rate it begins at 70 % of that rate | `control/startup.rs` |
//! | unpaced | no pacing: the profile does not search for the capacity, and the path has not been saturated | this file |
//! | probe up | 110 % of the capacity: shows more capacity within a few reports without overflowing a short buffer; up to 250 % while each round shows more | `control/probe_up.rs` |
//! | cruise | 103 % of the capacity: the standing queue is between `low` and `high` | this file |
//! | drain | 8 to 40 % below the capacity, until the standing queue is below `low` | `control/drain.rs` |
//!
//! `low` and `high` are the levels [`LOW`] and [`HIGH`] of the standing queue: 3 and 7 ms by default, or set by the
//! user ([`aim`]). The capacity is the maximum delivery rate of the last 2 s divided by (1 - loss floor).
//!
//! Independently of the state, congestion detected by loss limits the pacing rate (`control/limit.rs`), because a
//! short buffer overflows before its queue becomes visible.
//!
//! # Transitions
//!
//! | from | to | when |
//! | --- | --- | --- |
//! | startup | probe up | two rounds without growth by a quarter; long queue; congestion; capacity known by packet train or memory |
//! | startup | unpaced | the profile does not search for the capacity |
//! | unpaced | startup | the profile searches for the capacity |
//! | unpaced | probe up | the path was saturated |
//! | probe up | cruise | queue at or above `low` |
//! | cruise | probe up | queue below `low` |
//! | probe up, cruise | drain | queue above `high` |
//! | drain | probe up | queue below `low`, or the drain showed that the delay is not a queue |
//! | drain | drain | the queue remains after four RTTs: a new drain starts, paced below the rate delivered during the previous drain |
//! | any | startup | not saturated for 60 s, path became slow, or a remembered rate is recalled |
//! | any | unpaced | the profile does not search, and: not saturated for 60 s, path became slow, or no queue for 1 s |
//!
//! `State::allows` encodes this table, and `Controller::enter` checks it in debug builds.

use core::time::Duration;

use self::{
    aim::{Aim, Sharing},
    drain::{Drain, Verdict},
    limit::Limit,
    probe_up::ProbeUp,
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
mod drain;
mod limit;
mod probe_up;
mod recalled;
mod startup;

/// The rate controller of one path.
#[derive(Clone, Debug)]
pub struct Controller {
    state: State,
    limit: Limit,
    /// When a standing queue of at least `low`, or congestion, was last seen.
    queued_at: Instant,
    /// Whether the profile searches for the capacity.
    searches: bool,
    mechanisms: Mechanisms,
    aim: Aim,
}

/// State of the controller; see the table in the module's head.
#[derive(Clone, Copy, Debug)]
enum State {
    Startup(Startup),
    Unpaced,
    ProbeUp(ProbeUp),
    Cruise,
    Drain(Drain),
}

impl State {
    /// Whether the table has a transition to `next`.
    const fn allows(&self, next: &Self) -> bool {
        match (self, next) {
            (_, Self::Startup(_) | Self::Unpaced)
            | (Self::Startup(_) | Self::Unpaced, Self::ProbeUp(_))
            | (Self::ProbeUp(_), Self::Cruise | Self::Drain(_))
            | (Self::Cruise, Self::ProbeUp(_) | Self::Drain(_))
            | (Self::Drain(_), Self::Drain(_) | Self::ProbeUp(_)) => true,
            (Self::Startup(_) | Self::Unpaced, Self::Cruise | Self::Drain(_))
            | (Self::ProbeUp(_), Self::ProbeUp(_))
            | (Self::Cruise | Self::Drain(_), Self::Cruise) => false,
        }
    }
}

impl Controller {
    /// Creates a controller in startup.
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

    fn probe_up(&mut self) {
        self.enter(State::ProbeUp(ProbeUp::default()));
    }

    fn enter(&mut self, next: State) {
        debug_assert!(
            self.state.allows(&next),
            "{:?} -> {next:?} is not in the table",
            self.state
        );
        self.state = next;
    }

    /// Processes a report. The model's delay, loss and byte counts are already updated; its queue, rounds and cross
    /// traffic are updated here. Returns the rate delivered during the loss window if the path overflowed although a
    /// ceiling was in force.
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

    /// Processes a new delivery-rate sample. `signals`: the other measurements of the same report.
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
                self.probe_up();
                self.on_queue(now, signals, model);
            }
        }
    }

    /// Checks losses for congestion, and limits the pacing rate if there is congestion. Returns the rate delivered
    /// during the loss window if the path overflowed although a ceiling was in force.
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
            self.probe_up();
        }
        (was_limited && signals.is_limited).then_some(window.rate)
    }

    /// Makes the transitions caused by the standing queue.
    fn on_queue(&mut self, now: Instant, signals: &Signals, model: &mut Model) {
        let queue = model.queue.standing();
        let (low, high) = (self.low(model), self.high(model));
        let next = match &mut self.state {
            State::Startup(_) | State::Unpaced => return,
            State::ProbeUp(_) | State::Cruise if queue > high => {
                State::Drain(Drain::begin(now, signals.rtt, low, model))
            }
            State::ProbeUp(_) if queue >= low => State::Cruise,
            State::Cruise if queue < low => State::ProbeUp(ProbeUp::default()),
            State::ProbeUp(_) | State::Cruise => return,
            State::Drain(drain) => {
                let tests =
                    self.mechanisms.has(Mechanism::DrainTest) && self.aim.sharing != Sharing::Yield;
                match drain.on_report(now, signals.rtt, low, tests, model) {
                    Verdict::Open => return,
                    Verdict::Empty | Verdict::NoQueue => State::ProbeUp(ProbeUp::default()),
                    Verdict::Again(drain) => State::Drain(drain),
                }
            }
        };
        self.enter(next);
    }

    /// Ends startup when the delivery rate no longer grows after rounds that sent more than the capacity, or when the
    /// standing queue is long. In other states, restarts the search when the capacity estimate is outdated.
    fn on_round(&mut self, now: Instant, signals: &Signals, model: &mut Model) {
        let (queue, high) = (model.queue.standing(), model.noise(HIGH));
        let max = model.max_rate();
        let gross = model.gross(max);
        let is_long = queue > high * 4;
        let Some(is_flat) = model.rounds.on_report(now, signals, is_long, max, gross) else {
            return;
        };
        if let State::ProbeUp(probe) = &mut self.state {
            probe.on_round(max);
        }
        if let State::Startup(startup) = &mut self.state {
            startup.on_round(is_flat, queue > high * 2);
            if startup.is_flat() || is_long {
                model.on_saturated(now);
                self.probe_up();
            }
        } else if model.is_outdated(now) {
            self.search_again(model);
        }
    }

    /// Whether the path is paced without search for its capacity and has had no queue for [`SLACK`]. Such a path is not
    /// saturated, and pacing slightly above its low delivery rate would delay bursts.
    fn is_slack(&self, now: Instant, signals: &Signals) -> bool {
        let is_calm = now.since(self.queued_at) > SLACK.max(signals.rtt * 4);
        !self.searches && self.is_paced() && is_calm && self.limit.ceiling().is_none()
    }

    const fn is_paced(&self) -> bool {
        !matches!(self.state, State::Startup(_) | State::Unpaced)
    }

    /// Leaves startup or unpaced, because a packet train or a remembered rate has shown the capacity.
    pub(super) fn on_known(&mut self, now: Instant, model: &mut Model) {
        model.on_saturated(now);
        if !self.is_paced() {
            self.probe_up();
        }
    }

    /// Forgets that the path was saturated and restarts the search.
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

    /// Restarts startup with a remembered rate. Returns `false`, without effect, if the profile does not search or
    /// does not use remembered rates.
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

    /// Sets whether the profile searches for the capacity, and the mechanisms of the profile.
    pub(super) fn set_profile(&mut self, searches: bool, mechanisms: Mechanisms) {
        self.mechanisms = mechanisms;
        if self.searches != searches {
            self.searches = searches;
            match self.state {
                State::Startup(_) if !searches => self.enter(State::Unpaced),
                State::Unpaced if searches => self.enter(State::Startup(Startup::default())),
                State::Startup(_)
                | State::Unpaced
                | State::ProbeUp(_)
                | State::Cruise
                | State::Drain(_) => {}
            }
        }
    }

    /// Sets the user's target for the standing queue, and how to share the path with cross traffic.
    pub(super) fn set_aim(&mut self, aim: Aim) {
        self.aim = aim;
    }

    /// The remembered rate for a path with this RTT; `None` if there is no such rate, or once startup has
    /// contradicted it.
    #[must_use]
    pub(super) fn remembered(&self, rtt: Duration) -> Option<Bitrate> {
        match &self.state {
            State::Startup(startup) => startup.remembered(rtt),
            State::Unpaced | State::ProbeUp(_) | State::Cruise | State::Drain(_) => None,
        }
    }

    /// Whether the controller is in startup.
    #[must_use]
    pub const fn is_searching(&self) -> bool {
        matches!(self.state, State::Startup(_))
    }

    /// Whether a ceiling set by congestion limits the pacing rate.
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
            State::ProbeUp(_) => "probe-up",
            State::Cruise => "cruise",
            State::Drain(_) => "drain",
        }
    }

    /// Whether the path or its pacing rate limits the delivery rate, so that samples are not application-limited.
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
        // A queue alone may be jitter; while a real queue grows, more is sent than arrives.
        signals.is_limited && (is_at_pace || (is_filled && model.rounds.is_overrun()))
    }

    /// The pacing rate; `None` if the path is not paced.
    #[must_use]
    pub(super) fn pace(&self, now: Instant, rtt: Duration, model: &Model) -> Option<Bitrate> {
        let gain = |percent| {
            let max = model.rate.max().filter(|_| model.is_capacity_known(now))?;
            Some(model.gross(max).scale(percent, 100))
        };
        let pace = match &self.state {
            State::Startup(startup) => return startup.pace(rtt, model.max_rate()),
            State::Unpaced => return None,
            State::ProbeUp(probe) => gain(probe.gain_percent())?,
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

    /// Minimum pacing rate while cross traffic is present.
    fn share(&self, now: Instant, model: &Model) -> Bitrate {
        match (self.aim.sharing, model.cross.shared_capacity(now)) {
            (Sharing::Hold { percent }, Some(capacity)) => capacity.scale(percent.into(), 100),
            (Sharing::Auto | Sharing::Hold { .. } | Sharing::Yield, _) => Bitrate::ZERO,
        }
    }

    /// Standing queue below which the controller probes for more capacity.
    fn low(&self, model: &Model) -> Duration {
        model.level(LOW, self.aim.low(LOW.delay))
    }

    /// Standing queue above which the controller drains.
    fn high(&self, model: &Model) -> Duration {
        model.level(HIGH, self.aim.high(HIGH.delay))
    }
}

/// Time without a queue after which a path counts as not saturated, if the profile does not search for the capacity.
const SLACK: Duration = Duration::from_secs(1);
/// Pacing gain of cruise, in percent.
const CRUISE_PERCENT: u64 = 103;

#[cfg(test)]
mod tests;
