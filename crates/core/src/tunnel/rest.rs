//! Rest: a tunnel without packets probes its paths rarely, and frees memory.
//!
//! Most clients of a gateway are idle most of the time, and then probes and memory are all that they cost. A tunnel
//! rests when it has carried no packet in either direction for [`REST_AFTER`], or for [`REST_AFTER_START`] since the
//! start of an association. While it rests, its paths are probed at the intervals of
//! [`Health`](crate::path::health::Health) for a rest; a path in reserve that is up is probed more rarely anyway. The
//! first packet that the host passes or that arrives ends the rest, and all paths are probed with it, except a path in
//! reserve that is up. Packets that have waited for longer than the rest while no path was up do not end it. Whether
//! paths work has no influence: a client whose gateway no longer answers starts handshakes, which need no probes, and a
//! gateway whose client has vanished need not look for it.
//!
//! [`RELEASE_AFTER`] after the last packet, the memory that only packets need is freed once, even if the tunnel has no
//! session any more. When the last session expires, the memory for the packets that it has sent and received is freed.
//!
//! Each end decides for itself. Both see the same packets, so they rest at the same times up to the delay of the paths.

use core::time::Duration;

use crate::time::Instant;

/// Whether a tunnel rests, and when it next rests and frees memory.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Start of the next rest; `None` while the tunnel rests and before the first packet or association.
    begins_at: Option<Instant>,
    /// Time at which memory is freed; `None` if memory was freed since the last packet.
    release_at: Option<Instant>,
    /// End of the last rest.
    woke_at: Instant,
    is_on: bool,
}

impl Rest {
    /// Records the start of an association. Returns whether it ended a rest.
    pub(super) fn on_start(&mut self, now: Instant) -> bool {
        self.postpone(now, REST_AFTER_START)
    }

    /// Records a packet. Returns whether it ended a rest.
    pub(super) fn on_packet(&mut self, now: Instant) -> bool {
        self.postpone(now, REST_AFTER)
    }

    fn postpone(&mut self, now: Instant, by: Duration) -> bool {
        self.begins_at = Some(now + by);
        self.release_at = Some(now + RELEASE_AFTER);
        if self.is_on {
            self.woke_at = now;
        }
        core::mem::replace(&mut self.is_on, false)
    }

    /// Begins a rest if it is due. Returns whether it did.
    pub(super) fn begin_due(&mut self, now: Instant) -> bool {
        let begins = self.begins_at.take_if(|at| *at <= now).is_some();
        self.is_on |= begins;
        begins
    }

    /// Whether memory that only packets need is to be freed now. Returns true once after each packet.
    pub(super) fn take_release(&mut self, now: Instant) -> bool {
        self.release_at.take_if(|at| *at <= now).is_some()
    }

    /// Returns when [`Self::begin_due`] or [`Self::take_release`] next has an effect.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.begins_at, self.release_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the tunnel rests.
    pub(super) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the end of the last rest.
    pub(super) const fn woke_at(&self) -> Instant {
        self.woke_at
    }
}

/// Time after the start of an association until it rests without packets: enough for packet trains, for the search for
/// the MTU, and for the first packets of a client that connects because it has some. Thousands of clients may connect
/// at once, most of them idle.
const REST_AFTER_START: Duration = Duration::from_secs(4);
/// Time without a packet after which a tunnel rests: longer than most pauses of an application in use.
const REST_AFTER: Duration = Duration::from_secs(10);
/// Time without a packet after which memory that only packets need is freed: far longer than any state of a flow is of
/// use.
const RELEASE_AFTER: Duration = Duration::from_secs(60);

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
        assert_eq!(rest.poll_timeout(), Some(at(110)));
        assert!(!rest.begin_due(at(109)) && rest.begin_due(at(110)));
        assert!(!rest.begin_due(at(111)) && rest.is_on());
        assert!(rest.on_packet(at(300)) && !rest.is_on());
        assert_eq!(rest.woke_at(), at(300));
        assert!(!rest.begin_due(at(309)) && rest.begin_due(at(310)));
    }

    #[test]
    fn memory_is_freed_once_after_each_packet_whether_the_tunnel_rests_or_not() {
        let mut rest = Rest::default();
        rest.on_packet(at(100));
        assert!(!rest.take_release(at(159)));
        assert!(rest.take_release(at(160)) && !rest.take_release(at(161)));
        rest.on_packet(at(200));
        assert!(rest.begin_due(at(210)));
        assert_eq!(rest.poll_timeout(), Some(at(260)));
        assert!(rest.take_release(at(260)));
        assert_eq!(rest.poll_timeout(), None);
    }

    #[test]
    fn an_association_without_packets_rests_early() {
        let mut rest = Rest::default();
        rest.on_start(at(100));
        assert!(!rest.begin_due(at(103)) && rest.begin_due(at(104)));
        rest.on_start(at(200));
        rest.on_packet(at(201));
        assert!(!rest.begin_due(at(210)) && rest.begin_due(at(211)));
    }

    #[test]
    fn a_tunnel_that_has_never_had_an_association_needs_no_timer() {
        let mut rest = Rest::default();
        assert!(!rest.begin_due(at(100)) && !rest.take_release(at(100)));
        assert_eq!(rest.poll_timeout(), None);
    }
}
