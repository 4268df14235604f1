//! Proportional rate reduction, RFC 9937 (RFC 6937): the window during recovery.
//!
//! Above the threshold, `ssthresh / prior_cwnd` segments may be sent for each delivered segment. Below it, as many
//! segments may be sent as were delivered, and one more if the acknowledgement shows progress without a new loss (the
//! slow-start bound). As in Linux, the first acknowledgement of an episode permits at least one segment.

/// Counters of one episode, in segments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prr {
    prior_cwnd: u32,
    delivered: u32,
    out: u32,
}

impl Prr {
    /// Starts an episode at a window of `cwnd`.
    pub(super) const fn new(cwnd: u32) -> Self {
        Self {
            prior_cwnd: cwnd,
            delivered: 0,
            out: 0,
        }
    }

    /// Counts a segment sent.
    pub(super) fn on_sent(&mut self) {
        self.out = self.out.saturating_add(1);
    }

    /// Returns the window after `newly_delivered` segments were delivered. `None`: unchanged. `is_progress`: whether
    /// the cumulative acknowledgement advanced and no new loss was detected.
    pub(super) fn on_ack(
        &mut self,
        newly_delivered: u32,
        in_flight: u32,
        ssthresh: u32,
        is_progress: bool,
    ) -> Option<u32> {
        if newly_delivered == 0 || self.prior_cwnd == 0 {
            return None;
        }
        self.delivered = self.delivered.saturating_add(newly_delivered);
        let allowed = if in_flight > ssthresh {
            let share = u64::from(ssthresh) * u64::from(self.delivered);
            let target = share.div_ceil(u64::from(self.prior_cwnd));
            u32::try_from(target)
                .unwrap_or(u32::MAX)
                .saturating_sub(self.out)
        } else {
            self.delivered
                .saturating_sub(self.out)
                .max(newly_delivered)
                .saturating_add(u32::from(is_progress))
                .min(ssthresh - in_flight)
        };
        let at_least = u32::from(self.out == 0);
        Some(in_flight.saturating_add(allowed.max(at_least)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_the_thresholds_share_of_what_is_delivered() {
        // RFC 9937: the window is reduced from 100 to 70 after one loss; 99 deliveries permit 70 segments.
        let mut prr = Prr::new(100);
        let mut in_flight = 99;
        let mut sent = 0;
        for _ in 0..99 {
            in_flight -= 1;
            let cwnd = prr.on_ack(1, in_flight, 70, false).expect("delivered");
            while in_flight < cwnd {
                in_flight += 1;
                sent += 1;
                prr.on_sent();
            }
        }
        assert_eq!((sent, in_flight), (70, 70));
    }

    #[test]
    fn after_a_burst_of_losses_it_grows_back_to_the_threshold() {
        let mut prr = Prr::new(100);
        // Sixty segments are lost at once and 10 are in flight. With the slow-start bound, two segments may be sent for
        // each delivered segment with progress.
        assert_eq!(prr.on_ack(1, 10, 70, true), Some(12));
        prr.on_sent();
        prr.on_sent();
        assert_eq!(prr.on_ack(1, 11, 70, false), Some(12));
        assert_eq!(prr.on_ack(100, 0, 70, true), Some(70));
        assert_eq!(prr.on_ack(0, 5, 70, true), None);
    }

    #[test]
    fn the_first_answer_lets_one_out() {
        let mut prr = Prr::new(10);
        assert_eq!(prr.on_ack(1, 9, 1, false), Some(10));
        prr.on_sent();
        assert_eq!(prr.on_ack(1, 9, 1, false), Some(9));
    }
}
