//! Limits the work that one peer can cause beyond the constant cost of each datagram.
//!
//! Most requests of a datagram take few steps. The cost of some grows with what the peer has sent: skipped sequence
//! numbers, packets reported missing one by one, link descriptions that make this end resolve the policy again. An
//! honest peer causes little of that work.
//!
//! Work is counted after it is done, in *steps* of a few nanoseconds each: a debt that is paid off at one step every
//! `NANOS_PER_STEP`. While the debt exceeds `BURST`, the peer's data is dropped, and its frames that cause such work
//! are ignored; their sender repeats them. One datagram can add about ten times the table size of the resequencer, 650
//! 000 steps, to the debt.

use core::time::Duration;

use crate::time::Instant;

/// The debt of one peer.
#[derive(Debug, Default)]
pub(super) struct Effort {
    /// When the debt will be paid off.
    paid_at: Instant,
    /// The number of datagrams and frames refused.
    refused: u64,
    /// All steps ever recorded, free ones as well.
    steps: u64,
}

impl Effort {
    /// Whether the peer may cause more work now. Counts a refusal if not.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let is_allowed = self.paid_at.since(now) <= BURST;
        self.refused += u64::from(!is_allowed);
        is_allowed
    }

    /// Records `steps` of work.
    pub(super) fn spend(&mut self, now: Instant, steps: u64) {
        self.steps = self.steps.saturating_add(steps);
        self.owe(now, steps);
    }

    fn owe(&mut self, now: Instant, steps: u64) {
        let time = Duration::from_nanos(steps.saturating_mul(NANOS_PER_STEP));
        self.paid_at = self.paid_at.max(now) + time;
    }

    /// Charges the `steps` of a data datagram. Each datagram pays for [`FREE_STEPS`] of them; steps that it does not need pay off debt,
    /// so the budget of a peer grows with the data it sends.
    pub(super) fn spend_on_data(&mut self, now: Instant, steps: u64) {
        self.steps = self.steps.saturating_add(steps);
        if steps > FREE_STEPS {
            self.owe(now, steps - FREE_STEPS);
        } else {
            let unused = (FREE_STEPS - steps).saturating_mul(NANOS_PER_STEP);
            self.paid_at = self.paid_at - Duration::from_nanos(unused);
        }
    }

    /// The work recorded so far, in steps.
    pub(super) const fn steps(&self) -> u64 {
        self.steps
    }

    /// Datagrams and frames refused so far.
    pub(super) const fn refused(&self) -> u64 {
        self.refused
    }
}

/// The debt is paid off at twenty million steps per second: a few hundredths of a processor core. An honest peer at 1
/// Gbit/s with 1 % loss needs an estimated eight million, to find the next held packet after each of 900 repairs.
const NANOS_PER_STEP: u64 = 50;
/// The largest debt without refusals: five million steps.
const BURST: Duration = Duration::from_millis(250);
/// Free steps for each data datagram, because some paths reorder.
const FREE_STEPS: u64 = 256;
/// Steps to look up a packet that is reported missing.
pub(super) const PER_MISSING: u64 = 40;
/// Steps for a range of sequence numbers reported as recovered.
pub(super) const PER_RECOVERED_RANGE: u64 = 128;
/// Steps for the end of a burst.
pub(super) const PER_TAIL: u64 = 80;
/// Steps for a link description: the links in the policy are resolved again.
pub(super) const PER_LINK: u64 = 200_000;
/// Steps for a change of the order: held packets are sorted again.
pub(super) const PER_ORDER: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_then_the_rate_counts() {
        let mut effort = Effort::default();
        let mut done = 0;
        for millis in 0..2_000 {
            let now = Instant::from_millis(millis);
            while effort.allows(now) {
                effort.spend(now, 10_000);
                done += 10_000;
            }
        }
        assert!((44_900_000..45_100_000).contains(&done), "{done}");
        assert_eq!(effort.refused(), 2_000);
    }

    #[test]
    fn usual_datagrams_cost_nothing() {
        let mut effort = Effort::default();
        for _ in 0..1_000_000 {
            effort.spend_on_data(Instant::ZERO, FREE_STEPS);
        }
        assert!(effort.allows(Instant::ZERO));
        effort.spend_on_data(Instant::ZERO, FREE_STEPS + 5_000_001);
        assert!(!effort.allows(Instant::ZERO));
        // Datagrams that take nothing pay it off.
        effort.spend_on_data(Instant::ZERO, 0);
        assert!(effort.allows(Instant::ZERO));
    }
}
