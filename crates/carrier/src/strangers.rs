//! Limits for strangers, which are connections that have not yet proved that they know the gateway's public key.
//!
//! A stranger occupies a place in a table until it has proved this. It also costs the signatures and key agreements of
//! a TLS handshake. An attacker must not be able to use up either, because then clients could not connect:
//!
//! - **Places.** [`Places`] limits the number of strangers from one source (an IPv4 address or an IPv6 /64), from the
//!   network of the source (for IPv6 a /48), and in total. If a limit is reached, a new stranger takes the place of the
//!   oldest stranger to which this limit applies, and first of those whose handshake has not begun. A client needs its
//!   place for a few RTTs only, so the oldest strangers are most likely silent connections.
//! - **Rates.** [`Rates`] limits the handshakes by token buckets: one for each source, one for each network, and one
//!   for all unknown sources together. All known sources together have a separate bucket. A source is known if a client
//!   has connected from it. A token is taken when a whole ClientHello has arrived, so silent connections take none.
//!
//! Bounds on memory: there are at most [`Places::all`] strangers, [`MOST_SOURCES`] buckets of sources and networks (the
//! fullest bucket is removed first), and [`MOST_KNOWN`] known sources (the oldest is removed first).

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
};

use pleach_core::{
    session::limiter::{Bucket, Rate},
    time::Instant,
};
use tokio::sync::Notify;

use crate::limits::source;

/// Highest numbers of strangers at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Highest number from one source.
    pub(crate) each: usize,
    /// Highest number from one network.
    pub(crate) network: usize,
    /// Highest number in total.
    pub(crate) all: usize,
}

/// Highest rates of strangers' handshakes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// Highest rate from one source.
    pub(crate) each: Rate,
    /// Highest rate from one network.
    pub(crate) network: Rate,
    /// Highest rate from all unknown sources together, and also from all known sources together.
    pub(crate) all: Rate,
}

/// All strangers of a listener.
#[derive(Clone, Debug)]
pub(crate) struct Strangers {
    places: Places,
    rates: Rates,
    desk: Arc<Mutex<Desk>>,
}

#[derive(Debug)]
struct Desk {
    /// Strangers that have a place, the oldest first.
    present: VecDeque<Entry>,
    /// Buckets of sources (key with `false`) and of networks (key with `true`).
    buckets: BTreeMap<(IpAddr, bool), Bucket>,
    unknown: Bucket,
    known: Bucket,
    /// Sources from which clients have connected, the oldest first.
    known_sources: VecDeque<IpAddr>,
}

#[derive(Debug)]
struct Entry {
    source: IpAddr,
    network: IpAddr,
    /// Whether its handshake has begun.
    is_admitted: bool,
    leave: Arc<Notify>,
}

/// A stranger's place. Dropping the value frees the place.
#[derive(Debug)]
pub(crate) struct Stranger {
    rates: Rates,
    desk: Arc<Mutex<Desk>>,
    leave: Arc<Notify>,
}

impl Strangers {
    pub(crate) fn new(places: Places, rates: Rates) -> Self {
        Self {
            places,
            rates,
            desk: Arc::new(Mutex::new(Desk {
                present: VecDeque::new(),
                buckets: BTreeMap::new(),
                unknown: Bucket::FULL,
                known: Bucket::FULL,
                known_sources: VecDeque::new(),
            })),
        }
    }

    /// Returns a place for a connection from `address`.
    pub(crate) fn enter(&self, address: IpAddr) -> Stranger {
        let (source, network) = (source(address), network(address));
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of_source = |entry: &Entry| entry.source == source;
        let is_of_network = |entry: &Entry| entry.network == network;
        desk.make_room(self.places.each, is_of_source);
        desk.make_room(self.places.network, is_of_network);
        desk.make_room(self.places.all, |_| true);
        let leave = Arc::new(Notify::new());
        desk.present.push_back(Entry {
            source,
            network,
            is_admitted: false,
            leave: Arc::clone(&leave),
        });
        drop(desk);
        Stranger {
            rates: self.rates,
            desk: Arc::clone(&self.desk),
            leave,
        }
    }

    /// Marks the source of `address` as known, because a client has connected from it.
    pub(crate) fn on_client(&self, address: IpAddr) {
        let source = source(address);
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        if !desk.known_sources.contains(&source) {
            if desk.known_sources.len() >= MOST_KNOWN {
                desk.known_sources.pop_front();
            }
            desk.known_sources.push_back(source);
        }
    }
}

impl Desk {
    /// Takes a token for a handshake out of the buckets of the source, of its network and of all. Returns `None` if one
    /// of them is empty.
    fn admit(
        &mut self,
        now: Instant,
        (source, network): (IpAddr, IpAddr),
        rates: &Rates,
    ) -> Option<()> {
        for (key, rate) in [
            ((source, false), rates.each),
            ((network, true), rates.network),
        ] {
            if self.buckets.len() >= MOST_SOURCES && !self.buckets.contains_key(&key) {
                let first = self.buckets.iter().min_by_key(|(_, bucket)| **bucket);
                if let Some(first) = first.map(|(key, _)| *key) {
                    self.buckets.remove(&first);
                }
            }
            let bucket = self.buckets.entry(key).or_insert(Bucket::FULL);
            bucket.take(now, rate).ok()?;
        }
        let all = if self.known_sources.contains(&source) {
            &mut self.known
        } else {
            &mut self.unknown
        };
        all.take(now, rates.all).ok()
    }

    /// Removes a stranger for which `counted` is true, if there are at least `most` such strangers: the oldest whose
    /// handshake has not begun, or else the oldest.
    fn make_room(&mut self, most: usize, counted: impl Fn(&Entry) -> bool) {
        let count = self.present.iter().filter(|entry| counted(entry)).count();
        if count < most.max(1) {
            return;
        }
        let is_silent = |entry: &Entry| counted(entry) && !entry.is_admitted;
        let oldest = self.present.iter().position(is_silent);
        let oldest = oldest.or_else(|| self.present.iter().position(counted));
        if let Some(oldest) = oldest.and_then(|at| self.present.remove(at)) {
            oldest.leave.notify_one();
        }
    }
}

impl Stranger {
    /// Takes the tokens for a handshake. Returns whether it may begin: `false` if handshakes exceed the rate of its
    /// source, of its network, or of all, or if the place was given to a newer stranger.
    pub(crate) fn admit(&self, now: Instant) -> bool {
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        let mut present = desk.present.iter();
        let Some(at) = present.position(|entry| Arc::ptr_eq(&entry.leave, &self.leave)) else {
            return false;
        };
        let key = (desk.present[at].source, desk.present[at].network);
        let is_admitted = desk.admit(now, key, &self.rates).is_some();
        desk.present[at].is_admitted = is_admitted;
        is_admitted
    }

    /// Waits until the place is given to a newer stranger.
    pub(crate) async fn leaves(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        desk.present
            .retain(|entry| !Arc::ptr_eq(&entry.leave, &self.leave));
    }
}

/// Returns the network of an address. For IPv6 it is the /48, the largest network that a provider usually gives one
/// customer. For IPv4 it is the address itself.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 80 << 80).into(),
    }
}

/// Highest number of buckets of sources and networks.
const MOST_SOURCES: usize = 2048;
/// Highest number of known sources.
const MOST_KNOWN: usize = 1024;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("literal")
    }

    fn leaves(stranger: &Stranger) -> bool {
        stranger.leaves().now_or_never().is_some()
    }

    const MANY: Rate = Rate::new(1000, 1000);
    const OFTEN: Rates = Rates {
        each: MANY,
        network: MANY,
        all: MANY,
    };

    #[test]
    fn the_oldest_leaves_for_the_newest_of_its_source_of_its_network_and_of_all() {
        let places = Places {
            each: 2,
            network: 3,
            all: 4,
        };
        let strangers = Strangers::new(places, OFTEN);
        let enter = |text: &str| strangers.enter(ip(text));
        let mut all = vec![
            enter("192.0.2.1"),
            enter("2001:db8::1"),
            enter("2001:db8::2"),
        ];
        assert!(!all.iter().any(leaves));
        all.push(enter("2001:db8::3"));
        assert!(leaves(&all[1]), "its source is full");
        all.push(enter("2001:db8:0:1::1"));
        assert!(!leaves(&all[0]) && !leaves(&all[2]));
        all.push(enter("2001:db8:0:2::1"));
        assert!(leaves(&all[2]), "its network is full");
        all.push(enter("198.51.100.1"));
        assert!(leaves(&all[0]), "the oldest of all");
        drop(all.pop());
        all.push(enter("198.51.100.2"));
        assert!(!all[3..].iter().any(leaves), "there was room");
    }

    #[test]
    fn handshakes_have_a_rate_and_strangers_do_not_use_up_that_of_clients() {
        let places = Places {
            each: 1000,
            network: 1000,
            all: 1000,
        };
        let rates = Rates {
            each: Rate::new(1, 2),
            network: Rate::new(1, 4),
            all: Rate::new(1, 6),
        };
        let strangers = Strangers::new(places, rates);
        let mut now = Instant::from_millis(1);
        strangers.on_client(ip("192.0.2.9"));
        let admitted = |now, text: &str| {
            let places: Vec<_> = (0..10).map(|_| strangers.enter(ip(text))).collect();
            places.iter().filter(|place| place.admit(now)).count()
        };
        assert_eq!(admitted(now, "2001:db8::1"), 2);
        assert_eq!(admitted(now, "2001:db8:0:1::1"), 2);
        assert_eq!(admitted(now, "2001:db8:0:2::1"), 0, "its network had 4");
        assert_eq!(admitted(now, "192.0.2.1"), 2);
        assert_eq!(admitted(now, "192.0.2.2"), 0, "all had 6");
        assert_eq!(admitted(now, "192.0.2.9"), 2, "clients come from there");
        now += core::time::Duration::from_secs(1);
        assert_eq!(admitted(now, "192.0.2.2"), 1);
    }

    #[test]
    fn silent_strangers_take_no_tokens_and_leave_first() {
        let places = Places {
            each: 4,
            network: 4,
            all: 4,
        };
        let one = Rate::new(1, 1);
        let rates = Rates {
            each: one,
            network: one,
            all: one,
        };
        let strangers = Strangers::new(places, rates);
        let now = Instant::from_millis(1);
        let enter = || strangers.enter(ip("192.0.2.1"));
        let silent = enter();
        let client = enter();
        assert!(client.admit(now), "nothing was taken before");
        assert!(!silent.admit(now), "the only token is taken");
        let others = [enter(), enter(), enter(), enter()];
        assert!(leaves(&silent) && leaves(&others[0]) && !leaves(&client));
        assert!(!others[0].admit(now + core::time::Duration::from_secs(9)));
    }

    #[test]
    fn memory_is_bounded() {
        let places = Places {
            each: 1,
            network: 1,
            all: 8,
        };
        let strangers = Strangers::new(places, OFTEN);
        let mut entered = Vec::new();
        for number in 0..5000_u32 {
            let now = Instant::from_millis(u64::from(number) + 1);
            let stranger = strangers.enter(IpAddr::V4(number.into()));
            assert!(stranger.admit(now));
            entered.push(stranger);
            strangers.on_client(IpAddr::V4(number.into()));
        }
        let desk = strangers.desk.lock().expect("no panic");
        assert_eq!(desk.present.len(), 8);
        assert!(desk.buckets.len() <= MOST_SOURCES);
        assert_eq!(desk.known_sources.len(), MOST_KNOWN);
    }
}
