//! The limit after an overflow: a ceiling on the pace that rises again.
//!
//! A queue of a few packets overflows before it is seen. So a window of packets ([`LossWindow`]) with clearly more loss than the
//! loss floor is congestion, and sets a ceiling 3 % below what the path delivered (10 % if a quarter was lost). It holds for a
//! second or four round trips, and then rises by 2, 4, 8 … 25 % every two round trips.
//!
//! | from | to | when |
//! | --- | --- | --- |
//! | open, held | on trial | congestion |
//! | on trial | held | losses of before the ceiling are all reported: after two round trips and a round |
//! | on trial | the limit before | so many of the losses are spurious that the rest is no congestion: packets overtake each other |
//! | on trial, held | open | the ceiling is 50 % above the largest delivery rate; the capacity is searched anew |
//! | held | open | the queue that overflowed was deep and has drained: a deep queue is seen before it overflows again |

use core::time::Duration;

use super::{LEAST_ROUND, startup::Startup};
use crate::{
    path::model::{HIGH, Model, Signals, buffer::Depth, loss_window::LossWindow},
    time::Instant,
    units::Bitrate,
};

/// What congestion by loss left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limit {
    phase: Phase,
    /// When a ceiling was last lifted because its queue had drained.
    lifted_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Open,
    OnTrial(Ceiling, Trial),
    Held(Ceiling),
}

/// A bound on the pace.
#[derive(Clone, Copy, Debug)]
struct Ceiling {
    pace: Bitrate,
    since: Instant,
    /// When it was last raised, and the next step in percent.
    raised_at: Instant,
    step: u64,
}

/// The losses that set a ceiling, and what they ended.
#[derive(Clone, Copy, Debug)]
struct Trial {
    window: LossWindow,
    floor_ppm: Option<u32>,
    /// All spurious losses by then.
    spurious: u64,
    origin: Origin,
    /// The limit and the estimates before.
    ceiling: Option<Ceiling>,
    saturated_at: Option<Instant>,
    depth: Option<Depth>,
}

/// The controller's state before the congestion.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    Startup(Startup),
    Paced,
}

impl Limit {
    /// The largest pace, if there is a limit.
    pub(super) const fn ceiling(&self) -> Option<Bitrate> {
        match &self.phase {
            Phase::Open => None,
            Phase::OnTrial(ceiling, _) | Phase::Held(ceiling) => Some(ceiling.pace),
        }
    }

    /// Lifts the limit: the capacity is searched anew.
    pub(super) const fn open(&mut self) {
        self.phase = Phase::Open;
    }

    /// The capacity became known otherwise: spurious losses no longer lead back to startup.
    pub(super) const fn keep(&mut self) {
        if let Phase::OnTrial(_, trial) = &mut self.phase {
            trial.origin = Origin::Paced;
        }
    }

    /// Takes the losses of a report while on trial. If the rest without spurious losses is no congestion, and `undoes`: goes back,
    /// and returns the state to go back to.
    pub(super) fn on_late_losses(
        &mut self,
        now: Instant,
        signals: &Signals,
        model: &mut Model,
        undoes: bool,
    ) -> Option<Origin> {
        let Phase::OnTrial(ceiling, trial) = &mut self.phase else {
            return None;
        };
        trial.window.lost = trial.window.lost.saturating_add(signals.lost);
        let spurious = signals.spurious.saturating_sub(trial.spurious);
        let rest = LossWindow {
            lost: trial.window.lost.saturating_sub(spurious),
            ..trial.window
        };
        if undoes && !rest.is_congested(trial.floor_ppm) {
            let trial = *trial;
            model.undo_overflow(trial.saturated_at, trial.depth);
            self.phase = trial.ceiling.map_or(Phase::Open, Phase::Held);
            return Some(trial.origin);
        }
        if ceiling.is_settled(now, signals) {
            self.phase = Phase::Held(*ceiling);
        }
        None
    }

    /// Takes congestion. Sets a ceiling, unless the losses may be of before the last; whether it did.
    pub(super) fn on_congestion(
        &mut self,
        now: Instant,
        signals: &Signals,
        model: &mut Model,
        window: LossWindow,
        origin: Origin,
    ) -> bool {
        let before = match &self.phase {
            Phase::Open => None,
            Phase::OnTrial(..) => return false,
            Phase::Held(ceiling) => Some(*ceiling),
        };
        // The queue that overflowed that much has to be drained as well.
        let kept_percent = if window.is_heavy() { 90 } else { 97 };
        let carried = model.gross(window.rate).scale(kept_percent, 100);
        // A ceiling of nothing would never rise.
        if carried == Bitrate::ZERO {
            return false;
        }
        // Senders that back off make the delivery rate fall below the capacity. So the largest delivery rate is believed at the
        // first overflow, and further ones lower the ceiling by steps.
        let max = model.rate.max().map(|max| model.gross(max));
        let is_heavy = window.is_heavy() && matches!(origin, Origin::Paced);
        let least = match (is_heavy, before) {
            (true, before) => before
                .map(|before| before.pace)
                .or(max)
                .map(|rate| rate.scale(70, 100)),
            (false, Some(before)) => Some(before.pace.scale(85, 100)),
            (false, None) => max.map(|max| max.scale(kept_percent, 100)),
        };
        let ceiling = Ceiling::new(now, carried.max(least.unwrap_or(Bitrate::ZERO)));
        // Under a ceiling less was sent than the path carried.
        if before.is_some() {
            let is_slower = window.lost > window.packets / 10;
            model
                .cross
                .on_test(now, false, is_slower.then_some(carried));
        }
        let (saturated_at, depth) = model.on_overflow(now);
        let trial = Trial {
            window,
            floor_ppm: signals.floor_ppm,
            spurious: signals.spurious,
            origin,
            ceiling: before,
            saturated_at,
            depth,
        };
        self.phase = Phase::OnTrial(ceiling, trial);
        true
    }

    /// Raises the ceiling if that is due, or lifts it. `lifts`: it is lifted when a deep queue has drained.
    pub(super) fn on_report(
        &mut self,
        now: Instant,
        signals: &Signals,
        model: &Model,
        lifts: bool,
    ) {
        if let Phase::Held(_) = self.phase
            && lifts
            && self.has_drained(now, signals, model)
        {
            self.phase = Phase::Open;
            self.lifted_at = Some(now);
        }
        let (Phase::OnTrial(ceiling, _) | Phase::Held(ceiling)) = &mut self.phase else {
            return;
        };
        ceiling.rise(now, signals.rtt);
        if ceiling.pace > model.max_rate().scale(150, 100) {
            self.phase = Phase::Open;
        }
    }

    /// Whether the queue that overflowed was deep and has drained. A radio link whose rate collapsed overflows at a rate that says
    /// nothing of its capacity later. If it overflows again soon, the queue is not the reason.
    fn has_drained(&self, now: Instant, signals: &Signals, model: &Model) -> bool {
        let is_again = self
            .lifted_at
            .is_some_and(|at| now.since(at) < LIFTED_APART);
        let queue = model.queue.standing();
        let noise = model.noise(HIGH);
        let has_drained = |depth: Depth| depth.has_drained(queue, signals.rtt, noise);
        !is_again && model.buffer.depth().is_some_and(has_drained)
    }
}

impl Ceiling {
    const fn new(now: Instant, pace: Bitrate) -> Self {
        Self {
            pace,
            since: now,
            raised_at: now,
            step: 2,
        }
    }

    /// Whether losses reported now were sent under the ceiling.
    fn is_settled(&self, now: Instant, signals: &Signals) -> bool {
        now.since(self.since) >= signals.rtt * 2 + LEAST_ROUND
    }

    /// Rises if that is due. `rtt` is the present round-trip time: the one at the overflow may have been seconds longer.
    fn rise(&mut self, now: Instant, rtt: Duration) {
        if now.since(self.since) < HOLD.max(rtt * 4) {
            self.raised_at = now;
        } else if now.since(self.raised_at) >= (rtt * 2).max(LEAST_RISE) {
            self.raised_at = now;
            self.pace = self.pace.scale(100 + self.step, 100);
            self.step = (self.step * 2).min(25);
        }
    }
}

/// How long the ceiling does not rise: CUBIC and BBR probe for more a second or more after a loss.
const HOLD: Duration = Duration::from_secs(1);
/// Shortest time between two rises: two samples of the delivery rate.
const LEAST_RISE: Duration = Duration::from_millis(100);
/// No two ceilings are lifted within this time.
const LIFTED_APART: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_set_behind_a_queue_of_seconds_rises_when_that_has_gone() {
        let at = Instant::from_millis;
        let pace = Bitrate::from_mbps(9);
        for (rtt_ms, rises) in [(50, true), (2_400, false)] {
            let mut ceiling = Ceiling::new(at(0), pace);
            for ms in (0..=1_300).step_by(50) {
                ceiling.rise(at(ms), Duration::from_millis(rtt_ms));
            }
            assert_eq!(ceiling.pace > pace, rises, "{rtt_ms} ms");
        }
    }
}
