//! How much work one peer may cause beside what each of its datagrams costs anyway.
//!
//! Most of what a datagram asks for is done in a few steps. Some of it takes more the more a peer has made of it: numbers
//! that it skips, or tells missing one by one, descriptions that bind the policy anew. An honest peer needs little of that.
//! The effort is counted in *steps*, of a few nanoseconds each, after it was made: a debt that is paid off at
//! one step every `NANOS_PER_STEP` and may stand at `BURST`. While it is above, the peer's data is dropped and frames of that kind are
//! ignored, which their sender repeats. One datagram can run into debt by about ten times the table of the resequencer, 650 000
//! steps.

use core::time::Duration;

use crate::time::Instant;

/// The debt of one peer.
#[derive(Debug, Default)]
pub(super) struct Effort {
    /// When all that was done will be paid off.
    paid_at: Instant,
    /// Datagrams and frames that were refused.
    refused: u64,
}

impl Effort {
    /// Whether more may be done for the peer now; counts if not.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let is_allowed = self.paid_at.since(now) <= BURST;
        self.refused += u64::from(!is_allowed);
        is_allowed
    }

    /// Takes note of `steps` that were made.
    pub(super) fn spend(&mut self, now: Instant, steps: u64) {
        let time = Duration::from_nanos(steps.saturating_mul(NANOS_PER_STEP));
        self.paid_at = self.paid_at.max(now) + time;
    }

    /// Takes note of the `steps` that a data datagram took. Each datagram pays for [`FREE_STEPS`]: what it does not need pays
    /// debts off, so that the budget of a peer grows with what it really sends.
    pub(super) fn spend_on_data(&mut self, now: Instant, steps: u64) {
        match steps.checked_sub(FREE_STEPS) {
            Some(more) if more > 0 => self.spend(now, more),
            Some(_) => {}
            None => {
                let time =
                    Duration::from_nanos((FREE_STEPS - steps).saturating_mul(NANOS_PER_STEP));
                self.paid_at = self.paid_at - time;
            }
        }
    }

    /// Datagrams and frames refused so far.
    pub(super) const fn refused(&self) -> u64 {
        self.refused
    }
}

/// Debts are paid off at twenty million steps per second: some hundredths of a processor core. An
/// estimate for an honest peer at 1 Gbit/s with 1 % of loss: eight million, to find the next held packet behind each of 900 repairs.
const NANOS_PER_STEP: u64 = 50;
/// What is spent at once without harm: five million steps.
const BURST: Duration = Duration::from_millis(250);
/// Steps that each data datagram may take: some paths reorder.
const FREE_STEPS: u64 = 256;
/// Steps for a number that is told missing: its packet is looked up.
pub(super) const PER_MISSING: u64 = 40;
/// Steps for a range of numbers told recovered.
pub(super) const PER_RECOVERED_RANGE: u64 = 128;
/// Steps for the end of a burst.
pub(super) const PER_TAIL: u64 = 80;
/// Steps for a link's description: the policy is bound to the links anew.
pub(super) const PER_LINK: u64 = 200_000;
/// Steps for another order: what is held changes its place.
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
