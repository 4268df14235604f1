//! Whether the remote address of a path is the peer's own.
//!
//! A gateway sends to the source of the newest authentic datagram, and a source address can be forged. So an address is
//! *proven* before it gets any data (RFC 9000, sections 8.2 and 9.3): a random 64-bit token is sent there, and comes back
//! from there. Reports and answers to ordinary probes prove nothing, for a client can make them up.
//!
//! - A **challenge** is two pings in one datagram, whose tokens are the halves of the token. Its answer is both pongs in one
//!   datagram from that address. Every end answers pings, so this needs no agreement with the other end; both halves at
//!   once, so that half a token cannot be guessed alone.
//! - Until then at most [`FACTOR`] times the bytes that came from the address are sent there: UDP payload counts of what
//!   came, and IP and UDP headers too of what is sent.
//! - The address that a path leaves stays proven for `FORMER_FOR`, so that one datagram from elsewhere, or a NAT with two
//!   addresses, costs no round trip at each change.
//!
//! Limit: an address is proven once. A client that gives up a proven address can let the gateway send there for as long as
//! it goes on forging its source.

use core::time::Duration;

use super::on_wire;
use crate::{
    time::Instant,
    transmit::Route,
    wire::header::{CONTROL_HEADER_LEN, TAG_LEN},
};

/// What is known of the addresses of one path.
#[derive(Debug)]
pub struct Address {
    /// Whether the path's route is proven.
    is_proven: bool,
    /// The proven route that was left last, and when.
    former: Option<(Route, Instant)>,
    /// The unproven route that was taken last.
    pending: Option<Pending>,
}

#[derive(Debug)]
struct Pending {
    route: Route,
    token: Option<u64>,
    /// UDP payload that came from there, in bytes.
    received: u64,
    /// What was sent there, in bytes with IP and UDP headers.
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
    /// Addresses that need no proof: those the user has set.
    #[must_use]
    pub const fn trusted() -> Self {
        Self {
            is_proven: true,
            former: None,
            pending: None,
        }
    }

    /// No address yet.
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

    /// The path's route changes from `from` to `to`, the source of an authentic datagram.
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

    /// An authentic datagram of `len` bytes of UDP payload came from `route`.
    pub fn on_received(&mut self, route: &Route, len: usize) {
        if let Some(pending) = &mut self.pending
            && pending.route == *route
        {
            pending.received = pending.received.saturating_add(len as u64);
        }
    }

    /// Takes leave to send `len` bytes of UDP payload to the path's route.
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

    /// Bytes of frames that a control datagram to the path's route may have.
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

    /// When a challenge is due; `None` if none is, or there is no leave to send it.
    #[must_use]
    pub fn challenge_due(&self) -> Option<Instant> {
        let pending = self.pending.as_ref().filter(|_| !self.is_proven)?;
        (pending.room() >= CHALLENGE_COST).then_some(pending.due)
    }

    /// The tokens of the two pings of the challenge that is due. `draw` gives an unpredictable token.
    pub fn take_challenge(&mut self, now: Instant, draw: impl FnOnce() -> u64) -> Option<[u32; 2]> {
        self.challenge_due().filter(|due| *due <= now)?;
        let pending = self.pending.as_mut()?;
        let is_eager = now.since(pending.since) < EAGER_FOR;
        pending.due = now + if is_eager { EAGER } else { PATIENT };
        Some(halves(*pending.token.get_or_insert_with(draw)))
    }

    /// Takes the tokens of pongs that came in one datagram from `route`; whether they prove the path's route.
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

/// Bytes sent to an unproven address for each that came from it (RFC 9000, section 8.1).
pub const FACTOR: u64 = 3;
/// Header and tag of a control datagram.
const CONTROL_OVERHEAD: usize = CONTROL_HEADER_LEN + TAG_LEN;
/// A datagram with two pings, over IPv6.
const CHALLENGE_COST: u64 = CONTROL_OVERHEAD as u64 + 2 * 9 + 48;
/// How long an address that was proven and left counts as proven.
const FORMER_FOR: Duration = Duration::from_secs(10);
/// A challenge is repeated after so long in the first second: soon enough that one loss delays a path by hardly more.
const EAGER: Duration = Duration::from_millis(50);
const EAGER_FOR: Duration = Duration::from_secs(1);
/// And after that.
const PATIENT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
