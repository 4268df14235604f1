//! How many handshakes a responder works on.
//!
//! An initiation costs about five X25519 operations, some 0.3 ms of a core. [`HandshakeLimiter`] spends them in three
//! token buckets (the generic cell rate algorithm, ITU-T I.371: one instant each):
//!
//! 1. any initiation with a good mac1: [`Limits::per_second`]. Once that is exceeded the responder is *under load* for
//!    [`LOAD_HOLD`], and initiations without a good mac2 get a cookie reply instead of work;
//! 2. initiations with a good mac2: the same rate again, so that a flood never exceeds twice the rate;
//! 3. per client static key, once it is known: [`Limits::client_per_second`].
//!
//! The order at the responder: `CookieJar::is_valid_mac1`, [`HandshakeLimiter::admit`],
//! `Responder::read_initiation`, look up the client, [`RecentInitiations::contains`],
//! [`HandshakeLimiter::admit_client`], [`RecentInitiations::insert`], `Incoming::respond`.

use core::time::Duration;
use std::collections::BTreeMap;

use super::handshake::EphemeralId;
use crate::time::{Instant, saturating_nanos};

/// How long the responder stays under load after the last excess. `WireGuard`'s value.
pub const LOAD_HOLD: Duration = Duration::from_secs(1);

/// Clients with a bucket of their own. At the default rates at most 500 buckets are less than full at any time, so the
/// one that gives way is full, and dropping it changes nothing.
const MAX_CLIENTS: usize = 1024;

/// Rates and bursts of a [`HandshakeLimiter`], in initiations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Initiations per second from all sources; at least 1.
    pub per_second: u32,
    /// How many of them at once.
    pub burst: u32,
    /// Initiations per second from one client; at least 1.
    pub client_per_second: u32,
    /// How many of them at once.
    pub client_burst: u32,
}

impl Default for Limits {
    /// 200/s with bursts of 50, about 6 % of a core, enough to change the keys of 24 000 clients every 120 s; per client
    /// 20/s with bursts of 10.
    fn default() -> Self {
        Self {
            per_second: 200,
            burst: 50,
            client_per_second: 20,
            client_burst: 10,
        }
    }
}

/// What to do with an initiation whose mac1 is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Read it.
    Proceed,
    /// Answer with a cookie reply.
    ProveAddress,
    /// Drop it.
    Refuse,
}

/// Bounds the work that initiations cause.
#[derive(Debug)]
pub struct HandshakeLimiter {
    limits: Limits,
    any: Bucket,
    proved: Bucket,
    under_load_until: Instant,
    clients: BTreeMap<[u8; 32], Bucket>,
}

impl HandshakeLimiter {
    /// A limiter with full buckets.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            any: Bucket(Instant::ZERO),
            proved: Bucket(Instant::ZERO),
            under_load_until: Instant::ZERO,
            clients: BTreeMap::new(),
        }
    }

    /// Whether initiations need a cookie now.
    #[must_use]
    pub fn under_load(&self, now: Instant) -> bool {
        now < self.under_load_until
    }

    /// Decides on an initiation with a good mac1; `address_proved`: its mac2 is good too. O(1).
    pub fn admit(&mut self, now: Instant, address_proved: bool) -> Admission {
        let (rate, burst) = (self.limits.per_second, self.limits.burst);
        if !self.under_load(now) {
            if self.any.take(now, rate, burst) {
                return Admission::Proceed;
            }
            self.under_load_until = now + LOAD_HOLD;
        }
        if !address_proved {
            // Only an excess prolongs the load, or a trickle of initiations would hold it up forever.
            if !self.any.take(now, rate, burst) {
                self.under_load_until = now + LOAD_HOLD;
            }
            return Admission::ProveAddress;
        }
        if self.proved.take(now, rate, burst) {
            Admission::Proceed
        } else {
            Admission::Refuse
        }
    }

    /// Decides on an initiation of the known client `remote_static`. O(log n) in at most 1024 clients, O(n) to make
    /// room.
    pub fn admit_client(&mut self, now: Instant, remote_static: &[u8; 32]) -> bool {
        if self.clients.len() >= MAX_CLIENTS && !self.clients.contains_key(remote_static) {
            let fullest = self
                .clients
                .iter()
                .min_by_key(|(_, bucket)| bucket.0)
                .map(|(key, _)| *key);
            fullest.and_then(|key| self.clients.remove(&key));
        }
        let (rate, burst) = (self.limits.client_per_second, self.limits.client_burst);
        self.clients
            .entry(*remote_static)
            .or_insert(Bucket(Instant::ZERO))
            .take(now, rate, burst)
    }
}

/// A token bucket: the instant at which it will be full again.
#[derive(Clone, Copy, Debug)]
struct Bucket(Instant);

impl Bucket {
    fn take(&mut self, now: Instant, per_second: u32, burst: u32) -> bool {
        let interval = Duration::from_secs(1) / per_second.max(1);
        let full_at = self.0.max(now) + interval;
        let room = Duration::from_nanos(
            saturating_nanos(interval).saturating_mul(u64::from(burst.max(1))),
        );
        if full_at.since(now) > room {
            return false;
        }
        self.0 = full_at;
        true
    }
}

/// The ephemeral keys of a client's last 64 initiations that were answered; 520 bytes.
#[derive(Clone, Debug)]
pub struct RecentInitiations {
    /// A ring; `used` of them hold an id, the oldest at `next` once all do.
    ids: [EphemeralId; Self::LEN],
    used: usize,
    next: usize,
}

impl RecentInitiations {
    /// How many are known.
    pub const LEN: usize = 64;

    /// None seen yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ids: [EphemeralId(0); Self::LEN],
            used: 0,
            next: 0,
        }
    }

    /// Whether this initiation was answered before: a replay, or a copy that took another link. O(64).
    #[must_use]
    pub fn contains(&self, id: EphemeralId) -> bool {
        self.ids[..self.used].contains(&id)
    }

    /// Records an initiation, when it is answered; false if it is known already. An initiation that gets a cookie reply
    /// is not recorded, because the same one comes again with a cookie.
    pub fn insert(&mut self, id: EphemeralId) -> bool {
        if self.contains(id) {
            return false;
        }
        self.ids[self.next] = id;
        self.next = (self.next + 1) % Self::LEN;
        self.used = (self.used + 1).min(Self::LEN);
        true
    }
}

impl Default for RecentInitiations {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gets_work_at_the_rate_only() {
        for address_proved in [false, true] {
            let mut limiter = HandshakeLimiter::new(Limits::default());
            let admitted = (0..100_000_u64)
                .filter(|i| {
                    let now = Instant::from_nanos(i * 100_000);
                    limiter.admit(now, address_proved) == Admission::Proceed
                })
                .count();
            // The open bucket is spent within moments and then refills only for who has a cookie.
            let bound = if address_proved {
                2 * (10 * 200 + 50)
            } else {
                50 + 5
            };
            assert!((50..=bound).contains(&admitted), "{admitted} in 10 s");
        }
    }

    #[test]
    fn a_client_with_a_cookie_gets_through_a_flood() {
        let mut limiter = HandshakeLimiter::new(Limits::default());
        let now = Instant::from_millis(7);
        while limiter.admit(now, false) == Admission::Proceed {}
        assert!(limiter.under_load(now));
        assert_eq!(limiter.admit(now, false), Admission::ProveAddress);
        assert_eq!(limiter.admit(now, true), Admission::Proceed);
        let later = now + LOAD_HOLD;
        assert!(!limiter.under_load(later));
        assert_eq!(limiter.admit(later, false), Admission::Proceed);
    }

    #[test]
    fn load_ends_though_initiations_trickle_in() {
        let mut limiter = HandshakeLimiter::new(Limits::default());
        while limiter.admit(Instant::ZERO, false) == Admission::Proceed {}
        let trickle = (1..=20).map(|i| limiter.admit(Instant::from_millis(i * 100), false));
        assert_eq!(trickle.last(), Some(Admission::Proceed));
    }

    #[test]
    fn each_client_has_its_own_allowance() {
        let mut limiter = HandshakeLimiter::new(Limits::default());
        let count = |limiter: &mut HandshakeLimiter, now, key| {
            (0..100)
                .filter(|_| limiter.admit_client(now, &[key; 32]))
                .count()
        };
        let start = Instant::from_millis(1);
        assert_eq!(count(&mut limiter, start, 1), 10);
        assert_eq!(count(&mut limiter, start, 2), 10);
        let later = start + Duration::from_millis(100);
        assert_eq!(count(&mut limiter, later, 1), 2);
    }

    #[test]
    fn the_client_table_is_bounded_and_keeps_who_is_limited() {
        let mut limiter = HandshakeLimiter::new(Limits::default());
        let now = Instant::from_millis(1);
        let busy = [0xff; 32];
        while limiter.admit_client(now, &busy) {}
        for client in 0..5_000_u32 {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&client.to_be_bytes());
            assert!(limiter.admit_client(now, &key));
        }
        assert_eq!(limiter.clients.len(), MAX_CLIENTS);
        assert!(!limiter.admit_client(now, &busy));
    }

    #[test]
    fn recent_initiations_are_known_and_old_ones_forgotten() {
        let mut recent = RecentInitiations::new();
        assert!(!recent.contains(EphemeralId(0)));
        for id in 0..100 {
            assert!(recent.insert(EphemeralId(id)));
            assert!(!recent.insert(EphemeralId(id)));
        }
        assert!((36..100).all(|id| recent.contains(EphemeralId(id))));
        assert!((0..36).all(|id| !recent.contains(EphemeralId(id))));
    }
}
