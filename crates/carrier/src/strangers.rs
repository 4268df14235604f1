//! Connections that have not shown themselves: how many there are, and how often their handshakes are begun.
//!
//! A stranger costs a place until it has shown itself, and the two signatures and key agreements of a TLS handshake. Neither may keep
//! clients out:
//!
//! - **Places.** A source has [`Places::each`], the network around it (a /48 of IPv6) [`Places::network`], all together
//!   [`Places::all`]. Where one of these is full, the newest takes the place of the oldest: a client needs a few round trips, silence
//!   lasts.
//! - **Rates.** A token bucket for each source, for each network around one, and for all together. Sources from which clients have
//!   shown themselves have a bucket of their own beside that for all others.
//!
//! Bounds: [`Places::all`] strangers; [`MOST_SOURCES`] sources with buckets, of which the one that was refilled first is forgotten;
//! [`MOST_KNOWN`] known sources, of which the oldest is forgotten.

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

/// Strangers at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// From one source.
    pub(crate) each: usize,
    /// From the network around it.
    pub(crate) network: usize,
    /// In all.
    pub(crate) all: usize,
}

/// Handshakes of strangers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// From one source.
    pub(crate) each: Rate,
    /// From the network around it.
    pub(crate) network: Rate,
    /// In all; from known sources as many again.
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
    /// The oldest first.
    present: VecDeque<Entry>,
    /// By source and by the network around one.
    buckets: BTreeMap<(IpAddr, bool), Bucket>,
    unknown: Bucket,
    known: Bucket,
    /// Sources from which clients have shown themselves, the oldest first.
    known_sources: VecDeque<IpAddr>,
}

#[derive(Debug)]
struct Entry {
    source: IpAddr,
    network: IpAddr,
    leave: Arc<Notify>,
}

/// A stranger's place, which is free again when the value is dropped.
#[derive(Debug)]
pub(crate) struct Stranger {
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

    /// A place for a connection from `address`; `None` if handshakes are begun from there, or in all, too often.
    pub(crate) fn enter(&self, now: Instant, address: IpAddr) -> Option<Stranger> {
        let (source, network) = (source(address), network(address));
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        desk.admit(now, (source, network), &self.rates)?;
        let is_of_source = |entry: &Entry| entry.source == source;
        let is_of_network = |entry: &Entry| entry.network == network;
        desk.make_room(self.places.each, is_of_source);
        desk.make_room(self.places.network, is_of_network);
        desk.make_room(self.places.all, |_| true);
        let leave = Arc::new(Notify::new());
        desk.present.push_back(Entry {
            source,
            network,
            leave: Arc::clone(&leave),
        });
        drop(desk);
        Some(Stranger {
            desk: Arc::clone(&self.desk),
            leave,
        })
    }

    /// A client has shown itself from `address`.
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
    /// Takes a token for a handshake out of each bucket that counts; `None` if one is empty.
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

    /// Sends the oldest of those that are `counted` away if there are `most` of them.
    fn make_room(&mut self, most: usize, counted: impl Fn(&Entry) -> bool) {
        let count = self.present.iter().filter(|entry| counted(entry)).count();
        if count < most.max(1) {
            return;
        }
        let oldest = self.present.iter().position(counted);
        if let Some(oldest) = oldest.and_then(|at| self.present.remove(at)) {
            oldest.leave.notify_one();
        }
    }
}

impl Stranger {
    /// Resolves when the place was given to a newer one.
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

/// What a provider gives one customer.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 80 << 80).into(),
    }
}

/// Sources and networks with buckets.
const MOST_SOURCES: usize = 2048;
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
        let now = Instant::from_millis(1);
        let enter = |text: &str| strangers.enter(now, ip(text)).expect("often enough");
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
            let places: Vec<_> = (0..10).map(|_| strangers.enter(now, ip(text))).collect();
            places.iter().flatten().count()
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
            entered.push(strangers.enter(now, IpAddr::V4(number.into())));
            strangers.on_client(IpAddr::V4(number.into()));
        }
        let desk = strangers.desk.lock().expect("no panic");
        assert_eq!(desk.present.len(), 8);
        assert!(desk.buckets.len() <= MOST_SOURCES);
        assert_eq!(desk.known_sources.len(), MOST_KNOWN);
    }
}
