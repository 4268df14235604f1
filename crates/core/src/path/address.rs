//! Address validation: whether the remote address of a path is the peer's own.
//!
//! A gateway sends to the source address of the newest authentic datagram, and a source address can be forged. So an
//! address must be *proven* before data are sent to it (RFC 9000, sections 8.2 and 9.3): a random 64-bit token is
//! sent to the address and must be returned from it. Reports and answers to ordinary probes prove nothing, because a
//! client can make them up.
//!
//! - A **challenge** is two pings in one datagram; their tokens are the halves of the 64-bit token. The answer must
//!   contain both pongs in one datagram from that address. Every end answers pings, so no agreement with the other
//!   end is needed. Both halves must arrive in one datagram, so that half a token cannot be guessed alone.
//! - Until the address is proven, at most [`FACTOR`] times the bytes received from it are sent to it. Received bytes
//!   are counted as UDP payload, sent bytes with IP and UDP headers.
//! - When a path moves to another address, the old address, if proven, stays proven for 10 s (`FORMER_FOR`). So one
//!   datagram from another address, or a NAT with two addresses, does not cost an RTT for a new proof at each change.
//!
//! Limitation: an address is proven only once. A client that gives up a proven address can make the gateway send to
//! this address for as long as the client forges it as its source address.

use core::time::Duration;

use super::on_wire;
use crate::{
    time::Instant,
    transmit::Route,
    wire::header::{CONTROL_HEADER_LEN, TAG_LEN},
};

/// Validation state of the addresses of one path.
#[derive(Debug)]
pub struct Address {
    /// Whether the path's route is proven.
    is_proven: bool,
    /// The last proven route that the path left, and when the path left it.
    former: Option<(Route, Instant)>,
    /// The unproven route to which the path moved last.
    pending: Option<Pending>,
}

#[derive(Debug)]
struct Pending {
    route: Route,
    token: Option<u64>,
    /// Bytes received from the route: UDP payload.
    received: u64,
    /// Bytes sent to the route, with IP and UDP headers.
    sent: u64,
    since: Instant,
    /// When the challenge is due (again).
    due: Instant,
}

impl Pending {
    fn room(&self) -> u64 {
        self.received
            .saturating_mul(FACTOR)
            .saturating_sub(self.sent)
    }
}

impl Address {
    /// Creates the state of an address that needs no proof, because the user has configured it.
    #[must_use]
    pub const fn trusted() -> Self {
        Self {
            is_proven: true,
            former: None,
            pending: None,
        }
    }

    /// Creates the state of a path without an address.
    #[must_use]
    pub const fn unknown() -> Self {
        Self {
            is_proven: false,
            former: None,
            pending: None,
        }
    }

    /// Whether the path's route is proven.
    #[must_use]
    pub const fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Records that the path's route changes from `from` to `to`, the source of an authentic datagram.
    pub fn on_move(&mut self, now: Instant, from: Option<Route>, to: Route) {
        let is_recent = |(_, left_at): &(Route, Instant)| now.since(*left_at) < FORMER_FOR;
        let former = self.former.take().filter(is_recent);
        let is_back = former.is_some_and(|(route, _)| route == to);
        let left = from.filter(|_| self.is_proven).map(|route| (route, now));
        self.former = left.or(former.filter(|_| !is_back));
        self.is_proven = is_back;
        let is_pending = |pending: &Pending| pending.route == to;
        if !is_back && !self.pending.as_ref().is_some_and(is_pending) {
            self.pending = Some(Pending {
                route: to,
                token: None,
                received: 0,
                sent: 0,
                since: now,
                due: now,
            });
        }
    }

    /// Records that an authentic datagram of `len` bytes of UDP payload was received from `route`.
    pub fn on_received(&mut self, route: &Route, len: usize) {
        if let Some(pending) = &mut self.pending
            && pending.route == *route
        {
            pending.received = pending.received.saturating_add(len as u64);
        }
    }

    /// Charges `len` bytes of UDP payload to the path's route. Returns whether these bytes may be sent; if not, nothing
    /// is charged.
    #[must_use]
    pub fn try_spend(&mut self, len: usize) -> bool {
        if self.is_proven {
            return true;
        }
        let Some(pending) = &mut self.pending else {
            return false;
        };
        let cost = len as u64 + on_wire::headers(Some(&pending.route)).get();
        let is_paid = cost <= pending.room();
        pending.sent += if is_paid { cost } else { 0 };
        is_paid
    }

    /// Maximum bytes of frames in a control datagram to the path's route.
    #[must_use]
    pub fn body_room(&self) -> usize {
        if self.is_proven {
            return usize::MAX;
        }
        let room = self.pending.as_ref().map_or(0, |pending| {
            let headers = on_wire::headers(Some(&pending.route)).get();
            pending
                .room()
                .saturating_sub(headers + CONTROL_OVERHEAD as u64)
        });
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// When a challenge is due; `None` if there is no address to prove or the byte limit does not allow a challenge.
    #[must_use]
    pub fn challenge_due(&self) -> Option<Instant> {
        let pending = self.pending.as_ref().filter(|_| !self.is_proven)?;
        (pending.room() >= CHALLENGE_COST).then_some(pending.due)
    }

    /// Returns the tokens of the two pings of the challenge, if a challenge is due. `draw` returns an unpredictable
    /// token.
    pub fn take_challenge(&mut self, now: Instant, draw: impl FnOnce() -> u64) -> Option<[u32; 2]> {
        self.challenge_due().filter(|due| *due <= now)?;
        let pending = self.pending.as_mut()?;
        let is_eager = now.since(pending.since) < EAGER_FOR;
        pending.due = now + if is_eager { EAGER } else { PATIENT };
        Some(halves(*pending.token.get_or_insert_with(draw)))
    }

    /// Processes the tokens of pongs that arrived in one datagram from `route`. Returns whether the path's route is
    /// proven.
    pub fn on_pongs(&mut self, route: &Route, tokens: impl Iterator<Item = u32>) -> bool {
        let Some(pending) = self.pending.as_ref().filter(|_| !self.is_proven) else {
            return false;
        };
        let Some(asked) = pending.token.filter(|_| pending.route == *route) else {
            return false;
        };
        let asked = halves(asked);
        let mut is_answered = [false; 2];
        for token in tokens {
            for (half, is_answered) in asked.iter().zip(&mut is_answered) {
                *is_answered |= *half == token;
            }
        }
        if is_answered == [true; 2] {
            self.is_proven = true;
            self.pending = None;
        }
        self.is_proven
    }
}

fn halves(token: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = token.to_be_bytes();
    [
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    ]
}

/// Bytes that may be sent to an unproven address for each byte received from it (RFC 9000, section 8.1).
pub const FACTOR: u64 = 3;
/// Length of header and tag of a control datagram, in bytes.
const CONTROL_OVERHEAD: usize = CONTROL_HEADER_LEN + TAG_LEN;
/// Length in bytes of a datagram with two pings, over IPv6.
const CHALLENGE_COST: u64 = CONTROL_OVERHEAD as u64 + 2 * 9 + 48;
/// How long a proven address stays proven after the path has left it.
const FORMER_FOR: Duration = Duration::from_secs(10);
/// Repetition interval of a challenge in the first second. It is short, so that one loss delays the proof only a
/// little.
const EAGER: Duration = Duration::from_millis(50);
const EAGER_FOR: Duration = Duration::from_secs(1);
/// Repetition interval of a challenge after the first second.
const PATIENT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
