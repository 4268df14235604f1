//! Radios that sleep: the first answer after a pause arrives late.
//!
//! A cellular modem releases its radio connection after some seconds without traffic (radio resource control, 3GPP TS
//! 36.331; about 10 s in LTE networks). The next datagram, in either direction, waits until the connection is set up
//! again. This *promotion delay* is 0.3 to 1 s. During it, silence does not show that the path has failed, and measured
//! delays do not show the delay or the queue of the path.
//!
//! Algorithm: a path *wakes up* when a datagram is sent after a pause of [`IDLE_AFTER`], and until evidence arrives that
//! a datagram has arrived. Meanwhile the path may be silent for [`PROMOTION`], and datagrams sent meanwhile yield no
//! samples. A probe follows at once, so that the path has samples after each pause. Wired paths are treated in the same
//! way, because an end does not know the kind of a link.
//!
//! Which paths pause: all paths of a tunnel that rests, and paths in reserve. Other paths are probed twice a second.

use core::time::Duration;

use crate::time::Instant;

/// Whether the radio of a path may be asleep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Radio {
    /// When a datagram was last sent or received; `None` if none was since the link came up.
    active_at: Option<Instant>,
    is_waking: bool,
    /// When the path last woke up; `None` if it has not since the link came up.
    woke_at: Option<Instant>,
}

impl Radio {
    /// Records a datagram that the peer will acknowledge. `is_first`: whether no earlier datagram is unacknowledged.
    pub(super) fn on_sent(&mut self, now: Instant, is_first: bool) {
        let pause = self.active_at.replace(now).map(|at| now.since(at));
        if is_first {
            self.is_waking = is_pause(pause);
        }
    }

    /// Records a datagram that was received on the path.
    pub(super) fn on_received(&mut self, now: Instant) {
        self.active_at = Some(now);
    }

    /// Records evidence that a datagram sent on the path has arrived.
    pub(super) fn on_evidence(&mut self, now: Instant) {
        if core::mem::replace(&mut self.is_waking, false) {
            self.woke_at = Some(now);
        }
    }

    /// Whether no answer has arrived since the path was idle.
    #[must_use]
    pub const fn is_waking(&self) -> bool {
        self.is_waking
    }

    /// When the path last woke up; `None` if it has not since the link came up.
    pub(super) const fn woke_at(&self) -> Option<Instant> {
        self.woke_at
    }

    /// Whether a datagram sent `age` ago was not delayed by the radio.
    #[must_use]
    pub fn was_awake(&self, now: Instant, age: Duration) -> bool {
        !self.is_waking && self.woke_at.is_none_or(|at| now.since(at) >= age)
    }
}

/// Whether the time since the last datagram on a path, if there was one, is so long that the radio may be asleep.
pub(super) fn is_pause(pause: Option<Duration>) -> bool {
    pause.is_some_and(|pause| pause >= IDLE_AFTER)
}

/// Time without datagrams after which the radio may be asleep: below the inactivity timers of LTE networks, and above
/// the interval of probes on an idle path of a tunnel that does not rest.
pub const IDLE_AFTER: Duration = Duration::from_secs(5);
/// Silence that is allowed while a path wakes up: the longest usual promotion delay of LTE.
pub const PROMOTION: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn a_path_wakes_up_after_a_pause_until_an_answer_arrives() {
        let mut radio = Radio::default();
        radio.on_sent(at(100_000), true);
        assert!(!radio.is_waking(), "the link came up just now");
        radio.on_evidence(at(100_020));
        radio.on_sent(at(104_900), true);
        assert!(!radio.is_waking(), "the pause was short");
        radio.on_evidence(at(104_920));
        radio.on_sent(at(110_000), true);
        radio.on_sent(at(110_100), false);
        assert!(radio.is_waking() && !radio.was_awake(at(110_700), ms(0)));
        radio.on_evidence(at(110_700));
        assert!(!radio.is_waking());
        // Datagrams that were sent before the answer arrived were delayed too.
        assert!(!radio.was_awake(at(110_720), ms(620)));
        assert!(radio.was_awake(at(110_740), ms(40)));
    }

    #[test]
    fn a_radio_that_has_just_received_is_awake() {
        let mut radio = Radio::default();
        radio.on_sent(at(1_000), true);
        radio.on_evidence(at(1_020));
        radio.on_received(at(11_000));
        radio.on_sent(at(11_001), true);
        assert!(!radio.is_waking());
    }
}
