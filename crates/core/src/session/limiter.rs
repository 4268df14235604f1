//! Limits the number of handshakes that a responder processes, before any curve operation.
//!
//! An initiation costs two X25519 operations to read and three to answer, some 0.3 ms of a core. [`HandshakeLimiter`]
//! decides on it by its source address and by whether a cookie proves that address:
//!
//! | initiation | bucket of its source | bucket of the gateway | without a token |
//! | --- | --- | --- | --- |
//! | not proved, not on guard | [`Limits::unproved_reads`] | [`Limits::all`] | cookie reply |
//! | not proved, on guard | cookie replies only | | cookie reply, or nothing |
//! | proved | [`Limits::source`] | [`Limits::all`] | told when to come back |
//! | proved, from where a peer has shaken hands | [`Limits::source`] | another of [`Limits::all`] | told when to come back |
//!
//! *On guard*, the responder reads only proved initiations. It is on guard for [`GUARD`] after it read an unproved
//! initiation in vain, and for [`LOAD_HOLD`] after unproved initiations exceeded their rate. So strangers who do not
//! prove an address cost at most a few curve operations per minute, and a stranger who proves one gets the share of
//! its source. Peers are not affected by either if their last sessions began at their present address, or if they have
//! proved it by a cookie: these addresses have a bucket that nobody else can empty. After a restart the responder
//! knows no such addresses, and all peers share a bucket with strangers who prove their addresses.
//!
//! The order at the responder: `CookieJar::is_valid_mac1`, [`super::seen::SeenInitiations::contains`],
//! `CookieJar::check_mac2`, [`HandshakeLimiter::admit`], `Responder::read_initiation`, look up the client, its own
//! [`Bucket`], `Incoming::respond`.
//!
//! *Source.* `WireGuard`'s `ratelimiter.c` for limits per address; RFC 9000, section 8.1, for work only after a proof of
//! the address. *We differ:* `WireGuard` reads everything until it is under load.

use core::{net::SocketAddr, time::Duration};
use std::collections::BTreeMap;

use super::secret::Secret;
use crate::time::Instant;

mod bucket;
mod sources;

pub use bucket::{Bucket, Rate};
pub use sources::Source;
use sources::{ClaimedSources, ProvedSources};

/// How long the responder stays on guard after the last excess of initiations that are not proved. `WireGuard`'s value.
pub const LOAD_HOLD: Duration = Duration::from_secs(1);

/// How long the responder stays on guard after it has read an initiation in vain: from a stranger, or a recorded one.
/// During this time a new client pays one more round trip.
pub const GUARD: Duration = Duration::from_secs(60);

/// Rates of a [`HandshakeLimiter`], in initiations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From all sources together; each of three kinds of initiation has a bucket of this rate.
    pub all: Rate,
    /// From one source that proved its address.
    pub source: Rate,
    /// From one source that did not, while the responder is not on guard.
    pub unproved_reads: Rate,
    /// From one client, once its static key is known.
    pub client: Rate,
    /// From one client, of those that are not fresh: the client's clock is wrong, or they are recorded ones, sent by
    /// somebody who proved another address.
    pub not_fresh: Rate,
}

impl Limits {
    /// For a responder that has `cores` of processors, of which the first [`MAX_CORES`] count: 200/s for each, about 6 %
    /// of it, enough to change the keys of 24 000 clients every 120 s; 20/s for each source and for each client.
    #[must_use]
    pub fn for_cores(cores: usize) -> Self {
        let cores = u32::try_from(cores.clamp(1, MAX_CORES)).unwrap_or(1);
        Self {
            all: Rate::new(200 * cores, 50 * cores),
            source: Rate::new(20, 20),
            unproved_reads: Rate::new(5, 5),
            client: Rate::new(20, 10),
            not_fresh: Rate::new(2, 5),
        }
    }
}

impl Default for Limits {
    /// For one core.
    fn default() -> Self {
        Self::for_cores(1)
    }
}

/// What to do with an initiation whose mac1 is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Read it.
    Proceed,
    /// Answer with a cookie reply.
    ProveAddress,
    /// Tell its sender to come back after this time; only for a proved address.
    ComeBack(Duration),
    /// Drop it.
    Refuse,
}

/// Bounds the work that initiations cause.
#[derive(Debug)]
pub struct HandshakeLimiter {
    limits: Limits,
    guard_until: Instant,
    claimed: ClaimedSources,
    proved: ProvedSources,
    /// Proved sources to which we have replied, with the number of peers that have each among their last sources.
    known: BTreeMap<Source, u32>,
    unproved_reads: Bucket,
    proved_reads: Bucket,
    known_reads: Bucket,
    /// When the last of the clients that were told to come back will come.
    appointments_until: Instant,
}

impl HandshakeLimiter {
    /// A limiter with full buckets. `key`: fresh and secret.
    #[must_use]
    pub fn new(limits: Limits, key: Secret) -> Self {
        Self {
            limits,
            guard_until: Instant::ZERO,
            claimed: ClaimedSources::new(key),
            proved: ProvedSources::default(),
            known: BTreeMap::new(),
            unproved_reads: Bucket::FULL,
            proved_reads: Bucket::FULL,
            known_reads: Bucket::FULL,
            appointments_until: Instant::ZERO,
        }
    }

    /// Changes the rates.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The rates.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether only proved initiations are read.
    #[must_use]
    pub fn is_on_guard(&self, now: Instant) -> bool {
        now < self.guard_until
    }

    /// Decides on an initiation with a good mac1 from `source`; `is_proved`: its mac2 is good too. O(log n) in the number
    /// of sources.
    pub fn admit(&mut self, now: Instant, source: SocketAddr, is_proved: bool) -> Admission {
        let source = Source::from(source);
        if !is_proved {
            return self.admit_unproved(now, source);
        }
        if let Err(wait) = self.proved.take(now, source, self.limits.source) {
            // This sender has used up its share, so it gets no place in the queue of the others.
            return Admission::ComeBack(wait.max(SOONEST));
        }
        let bucket = if self.known.contains_key(&source) {
            &mut self.known_reads
        } else {
            &mut self.proved_reads
        };
        match bucket.take(now, self.limits.all) {
            Ok(()) => Admission::Proceed,
            Err(_) => Admission::ComeBack(self.appointment(now)),
        }
    }

    fn admit_unproved(&mut self, now: Instant, source: Source) -> Admission {
        let is_on_guard = self.is_on_guard(now);
        let claimed = self.claimed.of(source);
        if !is_on_guard && claimed.reads.take(now, self.limits.unproved_reads).is_ok() {
            if self.unproved_reads.take(now, self.limits.all).is_ok() {
                return Admission::Proceed;
            }
            self.stay_on_guard(now, LOAD_HOLD);
        }
        self.ask_for_proof(now, source)
    }

    fn ask_for_proof(&mut self, now: Instant, source: Source) -> Admission {
        match self.claimed.of(source).cookies.take(now, COOKIES) {
            Ok(()) => Admission::ProveAddress,
            Err(_) => Admission::Refuse,
        }
    }

    /// The work queue is full: decides on one more initiation.
    pub fn on_full(&mut self, now: Instant, source: SocketAddr, is_proved: bool) -> Admission {
        if is_proved {
            Admission::ComeBack(self.appointment(now))
        } else {
            self.ask_for_proof(now, source.into())
        }
    }

    /// Records that an unproved initiation was read in vain.
    pub fn on_wasted(&mut self, now: Instant) {
        self.stay_on_guard(now, GUARD);
    }

    /// Records that a peer has proved `source`, and no longer uses `former`, if any.
    pub fn on_known(&mut self, source: Source, former: Option<Source>) {
        *self.known.entry(source).or_default() += 1;
        if let Some(former) = former
            && let Some(peers) = self.known.get_mut(&former)
        {
            *peers -= 1;
            if *peers == 0 {
                self.known.remove(&former);
            }
        }
    }

    fn stay_on_guard(&mut self, now: Instant, time: Duration) {
        self.guard_until = self.guard_until.max(now + time);
    }

    /// When a proved client that finds the gateway busy should come back: waiting clients come one after the other, at
    /// the gateway's rate.
    fn appointment(&mut self, now: Instant) -> Duration {
        let next = self.appointments_until.max(now + SOONEST) + self.limits.all.interval();
        self.appointments_until = next.min(now + LATEST);
        self.appointments_until.since(now)
    }
}

/// Cores that count in [`Limits::for_cores`]: one thread does the arithmetic, of which their rate is half.
pub const MAX_CORES: usize = 8;
/// Cookie replies to one claimed source. A client needs one a handshake; the rest is for those that share its bucket.
const COOKIES: Rate = Rate::new(200, 200);
/// The soonest and the latest that a client is told to come back: two attempts of a client, and well within the 60 s
/// that its keys are good for after it began to change them.
const SOONEST: Duration = Duration::from_millis(200);
const LATEST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
