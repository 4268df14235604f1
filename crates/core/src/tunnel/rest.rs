//! Rest: a tunnel that carries no packets probes its paths rarely.
//!
//! Most clients of a gateway are idle most of the time, and then probes are all that they cost. A tunnel rests when it
//! has carried no packet in either direction for [`REST_AFTER`], as long as some path is up or suspect. Paths that are up are then
//! probed at the interval of [`Health`](crate::path::health::Health) for a rest. The first packet ends the rest: the
//! paths are probed with it, so a path that has failed in the meantime is found as soon as a busy path is. A rest also
//! ends when no path works any more, because probes were not answered for [`SILENCE`].
//!
//! A new association rests after [`REST_AFTER_START`] if no packet follows. A minute after the last packet the tunnel
//! frees the memory that only packets need: tables of flows, the reorder buffer, encoder and decoder.
//!
//! Each end decides for itself. Both see the same packets, so they rest at the same times up to the delay of the paths.

use core::time::Duration;

use crate::time::Instant;

/// Whether a tunnel rests, and since when it does not.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Earliest start of the next rest.
    due_at: Instant,
    /// End of the last rest, or earlier: since when the other end is expected to send.
    woke_at: Instant,
    is_on: bool,
    /// Whether memory was freed since the last packet.
    has_released: bool,
}

impl Rest {
    /// Records the start of an association. Returns whether it ended a rest.
    pub(super) fn on_start(&mut self, now: Instant) -> bool {
        self.postpone(now, now + REST_AFTER_START)
    }

    /// Records a packet. Returns whether it ended a rest.
    pub(super) fn on_packet(&mut self, now: Instant) -> bool {
        self.postpone(now, now + REST_AFTER)
    }

    fn postpone(&mut self, now: Instant, due_at: Instant) -> bool {
        self.due_at = due_at;
        self.has_released = false;
        self.is_on && self.end(now)
    }

    /// Begins or ends a rest at `now`, if it is time to. `is_working`: whether some path is up or suspect. Returns
    /// whether the tunnel rests.
    pub(super) fn update(&mut self, now: Instant, is_working: bool) -> bool {
        if !is_working {
            if self.is_on {
                let silent_for = SILENCE.min(now.since(Instant::ZERO));
                self.end(Instant::ZERO + (now.since(Instant::ZERO) - silent_for));
            }
        } else if now >= self.due_at {
            self.is_on = true;
        }
        self.is_on
    }

    /// Whether memory that only packets need is to be freed now. Returns true once in a rest, [`RELEASE_AFTER`] after
    /// its earliest start.
    pub(super) fn take_release(&mut self, now: Instant) -> bool {
        let is_due = self.is_on && now >= self.due_at + RELEASE_AFTER;
        is_due && !core::mem::replace(&mut self.has_released, true)
    }

    /// Whether the tunnel rests.
    pub(super) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the end of the last rest, or the time from which the answer to its last probe was awaited.
    pub(super) const fn woke_at(&self) -> Instant {
        self.woke_at
    }

    fn end(&mut self, woke_at: Instant) -> bool {
        self.woke_at = woke_at;
        core::mem::replace(&mut self.is_on, false)
    }
}

/// Time after the start of an association until it rests without packets: enough for packet trains, for the search for
/// the MTU, and for the first packets of a client that connects because it has some. Thousands of clients may connect
/// at once, most of them idle.
const REST_AFTER_START: Duration = Duration::from_secs(4);
/// Time of silence after which a path is down.
const SILENCE: Duration = Duration::from_secs(1);
/// Time without a packet after which a tunnel rests: longer than most pauses of an application in use.
const REST_AFTER: Duration = Duration::from_secs(10);

/// Time of rest after which memory that only packets need is freed: far longer than any state of a flow is of use.
const RELEASE_AFTER: Duration = Duration::from_secs(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1_000)
    }

    #[test]
    fn a_tunnel_rests_without_packets_and_wakes_with_the_first() {
        let mut rest = Rest::default();
        assert!(!rest.on_packet(at(100)));
        assert!(!rest.update(at(109), true));
        assert!(rest.update(at(110), true));
        assert!(rest.on_packet(at(300)) && !rest.is_on());
        assert_eq!(rest.woke_at(), at(300));
        assert!(!rest.update(at(309), true) && rest.update(at(310), true));
    }

    #[test]
    fn memory_is_freed_once_in_a_rest() {
        let mut rest = Rest::default();
        rest.on_packet(at(100));
        rest.update(at(110), true);
        assert!(!rest.take_release(at(159)));
        assert!(rest.take_release(at(160)) && !rest.take_release(at(161)));
        rest.on_packet(at(200));
        assert!(!rest.take_release(at(300)), "the rest has ended");
        rest.update(at(301), true);
        assert!(rest.take_release(at(301)));
    }

    #[test]
    fn an_association_without_packets_rests_early() {
        let mut rest = Rest::default();
        rest.on_start(at(100));
        assert!(!rest.update(at(103), true) && rest.update(at(104), true));
        rest.on_start(at(200));
        rest.on_packet(at(201));
        assert!(!rest.update(at(210), true) && rest.update(at(211), true));
    }

    #[test]
    fn a_tunnel_without_a_working_path_does_not_rest() {
        let mut rest = Rest::default();
        assert!(!rest.update(at(100), false));
        assert!(rest.update(at(101), true));
        assert!(!rest.update(at(102), false));
        assert_eq!(rest.woke_at(), at(101), "it has been silent for a second");
        assert!(rest.update(at(103), true));
    }
}
