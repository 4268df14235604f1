//! Limits the number of handshakes that a responder processes, before any curve operation is done.
//!
//! An initiation costs two X25519 operations to read and three to answer, about 0.3 ms of a core. [`HandshakeLimiter`]
//! decides on it by its source address and by whether a cookie proves that address:
//!
//! | initiation | bucket of its source | bucket of the gateway | without a token |
//! | --- | --- | --- | --- |
//! | not proved, not on guard | [`Limits::unproved_reads`] | [`Limits::all`] | cookie reply |
//! | not proved, on guard | only for cookie replies | | cookie reply, or no reply |
//! | proved | [`Limits::source`] | [`Limits::all`] | busy reply |
//! | proved, address known from a peer | [`Limits::source`] | a second bucket of [`Limits::all`] | busy reply |
//!
//! While the responder is *on guard*, it reads only proved initiations. It is on guard for [`GUARD`] after it read an
//! unproved initiation that turned out to be useless (invalid, recorded, or of a stranger), and for [`LOAD_HOLD`] after
//! unproved initiations exceeded their rate. So strangers without a proved address cost at most a few curve operations
//! per minute, and a stranger with a proved address gets the share of its source. Neither kind of stranger affects a
//! peer whose last sessions began at its present address, or which has proved that address by a cookie: these addresses
//! have a bucket that nobody else can empty. After a restart the responder knows no such addresses, and all peers share
//! a bucket with strangers who prove their addresses.
//!
//! The responder makes these calls in this order: `CookieJar::is_valid_mac1`,
//! [`super::seen::SeenInitiations::contains`], `CookieJar::check_mac2`, [`HandshakeLimiter::admit`],
//! `Responder::read_initiation`, look-up of the client, the client's own [`Bucket`], `Incoming::respond`.
//!
//! *Source.* Limits per address are those of `WireGuard`'s `ratelimiter.c`; work only after a proof of the address is
//! required by RFC 9000, section 8.1. Unlike pleach, `WireGuard` reads all initiations until it is under load.

use core::{net::SocketAddr, time::Duration};
use std::collections::BTreeMap;

use super::secret::Secret;
use crate::time::Instant;

mod bucket;
mod sources;

pub use bucket::{Bucket, Rate};
pub use sources::Source;
use sources::{ClaimedSources, ProvedSources};

/// Duration for which the responder stays on guard after unproved initiations exceeded their rate; `WireGuard`'s value.
pub const LOAD_HOLD: Duration = Duration::from_secs(1);

/// Duration for which the responder stays on guard after it has read a useless initiation: of a stranger, or a recorded
/// one. During this time a new client needs one more RTT.
pub const GUARD: Duration = Duration::from_secs(60);

/// Rates of a [`HandshakeLimiter`], in initiations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rate from all sources together. Each of three kinds of initiations has a bucket of this rate.
    pub all: Rate,
    /// Rate from one source that has proved its address.
    pub source: Rate,
    /// Rate from one source that has not proved its address, while the responder is not on guard.
    pub unproved_reads: Rate,
    /// Rate of fresh initiations from one client, after its static key is known.
    pub client: Rate,
    /// Rate of initiations from one client that are not fresh: the client's clock is wrong, or they were recorded and
    /// are sent by an attacker who has proved another address.
    pub not_fresh: Rate,
}

impl Limits {
    /// Returns the limits for a responder with `cores` processor cores, of which the first [`MAX_CORES`] count.
    ///
    /// The rate of all sources is 200/s on one core, where handshakes delay packets: about 6 % of the core, and enough
    /// to change the keys of 24 000 clients every 120 s. Each further core adds 800/s, about a quarter of that core, so
    /// that thousands of clients reconnect within seconds after a restart of the gateway. The rate of a source with a
    /// proved address is 20/s, as is the rate of fresh initiations of a client.
    #[must_use]
    pub fn for_cores(cores: usize) -> Self {
        let further = u32::try_from(cores.clamp(1, MAX_CORES)).unwrap_or(1) - 1;
        let all = ON_FIRST_CORE + ON_FURTHER_CORE * further;
        Self {
            all: Rate::new(all, all / 4),
            source: Rate::new(20, 20),
            unproved_reads: Rate::new(5, 5),
            client: Rate::new(20, 10),
            not_fresh: Rate::new(2, 5),
        }
    }
}

impl Default for Limits {
    /// Returns the limits for one core.
    fn default() -> Self {
        Self::for_cores(1)
    }
}

/// Decision on an initiation with a valid mac1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Read the initiation.
    Proceed,
    /// Answer with a cookie reply.
    ProveAddress,
    /// Send a busy reply with this waiting time; only for a proved address.
    ComeBack(Duration),
    /// Drop the initiation.
    Refuse,
}

/// Limits the work that initiations cause.
#[derive(Debug)]
pub struct HandshakeLimiter {
    limits: Limits,
    guard_until: Instant,
    claimed: ClaimedSources,
    proved: ProvedSources,
    /// Sources that peers have proved, each with the number of peers that have it among their latest sources.
    known: BTreeMap<Source, u32>,
    unproved_reads: Bucket,
    proved_reads: Bucket,
    known_reads: Bucket,
    /// End of the waiting time of the last client that was asked to wait.
    appointments_until: Instant,
}

impl HandshakeLimiter {
    /// Returns a limiter with full buckets. `key` must be fresh and secret.
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

    /// Returns the rates.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether only proved initiations are read.
    #[must_use]
    pub fn is_on_guard(&self, now: Instant) -> bool {
        now < self.guard_until
    }

    /// Decides on an initiation with a valid mac1 from `source`. `is_proved` says whether its mac2 is valid too. O(log
    /// n) in the number of sources.
    pub fn admit(&mut self, now: Instant, source: SocketAddr, is_proved: bool) -> Admission {
        let source = Source::from(source);
        if !is_proved {
            return self.admit_unproved(now, source);
        }
        if let Err(wait) = self.proved.take(now, source, self.limits.source) {
            // This sender has used up the share of its source, so it gets no place among the waiting clients.
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

    /// Decides on one more initiation while the work queue is full.
    pub fn on_full(&mut self, now: Instant, source: SocketAddr, is_proved: bool) -> Admission {
        if is_proved {
            Admission::ComeBack(self.appointment(now))
        } else {
            self.ask_for_proof(now, source.into())
        }
    }

    /// Records that an unproved initiation was read that turned out to be useless.
    pub fn on_wasted(&mut self, now: Instant) {
        self.stay_on_guard(now, GUARD);
    }

    /// Records that a peer has proved `source`, and that it no longer uses `former`, if given.
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

    /// Returns how long a proved client has to wait because the gateway is busy. The waiting times of clients are
    /// spaced by the interval of the gateway's rate.
    fn appointment(&mut self, now: Instant) -> Duration {
        let next = self.appointments_until.max(now + SOONEST) + self.limits.all.interval();
        self.appointments_until = next.min(now + LATEST);
        self.appointments_until.since(now)
    }
}

/// Maximum number of cores that count in [`Limits::for_cores`]. The owner of an endpoint should run handshake work on as
/// many threads as there are further cores.
pub const MAX_CORES: usize = 5;
/// Handshakes per second on the first core.
const ON_FIRST_CORE: u32 = 200;
/// Handshakes per second on each further core.
const ON_FURTHER_CORE: u32 = 800;
/// Rate of cookie replies to one claimed source. A client needs one reply per handshake; the rest is for other sources
/// that share the bucket.
const COOKIES: Rate = Rate::new(200, 200);
/// Minimum and maximum waiting time in a busy reply. The minimum is twice the interval between a client's attempts. The
/// maximum is far below the 60 s for which a client's keys remain valid after it has begun to change them.
const SOONEST: Duration = Duration::from_millis(200);
const LATEST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
