//! Probe up: sends more than the capacity until a queue appears, and the more, the longer none does.
//!
//! The first round is paced at 110 % of the capacity. While each round shows more capacity, the excess doubles: 120,
//! 140 and 180 %, then as much as in startup. A link whose rate has returned is full again after a few rounds. On a path
//! whose capacity is known, the first round shows no more capacity, so a short buffer does not overflow. Where it is not
//! known, the last round may send 1.5 times the bytes of an RTT too much, as startup does. BBR does the same with the
//! bytes in flight, whose growth doubles each round (`bw_probe_up_rounds`, draft-ietf-ccwg-bbr section 5.3.3.6).

use super::startup;
use crate::units::Bitrate;

/// State of probing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeUp {
    /// Pacing rate in excess of the capacity, in percent of the capacity.
    excess: u64,
    /// The capacity when the round began. `None` in the first round.
    before: Option<Bitrate>,
}

impl Default for ProbeUp {
    fn default() -> Self {
        Self {
            excess: LEAST_EXCESS,
            before: None,
        }
    }
}

impl ProbeUp {
    /// The pacing gain, in percent of the capacity.
    pub(super) const fn gain_percent(&self) -> u64 {
        100 + self.excess
    }

    /// Adapts the excess at the end of a round, in which the capacity has risen to `max`: doubles it if at least half of
    /// the excess has arrived, and starts again otherwise.
    pub(super) fn on_round(&mut self, max: Bitrate) {
        let has_grown = self
            .before
            .is_some_and(|before| max >= before.scale(200 + self.excess, 200));
        self.excess = if has_grown {
            (self.excess * 2).min(startup::SEARCH_PERCENT - 100)
        } else {
            LEAST_EXCESS
        };
        self.before = Some(max);
    }
}

/// Excess of the first round, in percent: additional capacity or a queue becomes visible within a few reports.
const LEAST_EXCESS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_excess_doubles_while_the_path_carries_it() {
        let mut probe = ProbeUp::default();
        let mut gains = vec![probe.gain_percent()];
        for mbps in [10, 11, 13, 18, 32, 80, 82, 90] {
            probe.on_round(Bitrate::from_mbps(mbps));
            gains.push(probe.gain_percent());
        }
        assert_eq!(gains, [110, 110, 120, 140, 180, 250, 250, 110, 120]);
    }
}
