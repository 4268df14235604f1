//! Limits the number of connections, in total and per source.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
};

/// Counts connections of one kind. `K` says where they come from: a source, or the network of a client.
#[derive(Clone, Debug)]
pub struct Limit<K> {
    each: usize,
    all: usize,
    counts: Arc<Mutex<Counts<K>>>,
}

#[derive(Debug)]
struct Counts<K> {
    all: usize,
    by_source: BTreeMap<K, usize>,
}

impl<K: Copy + Ord> Limit<K> {
    /// Creates a limit of `all` connections in total and `each` per source.
    #[must_use]
    pub fn new(each: usize, all: usize) -> Self {
        let counts = Counts {
            all: 0,
            by_source: BTreeMap::new(),
        };
        Self {
            each,
            all,
            counts: Arc::new(Mutex::new(counts)),
        }
    }

    /// Reserves a place for a connection from `source`. The place is released when the value is dropped. `None` if
    /// there is no free place.
    #[must_use]
    pub fn take(&self, source: K) -> Option<Place<K>> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let from_it = counts.by_source.get(&source).copied().unwrap_or(0);
        if counts.all >= self.all || from_it >= self.each {
            return None;
        }
        counts.all += 1;
        counts.by_source.insert(source, from_it + 1);
        Some(Place {
            source,
            counts: Arc::clone(&self.counts),
        })
    }
}

/// A connection's place under a [`Limit`].
#[derive(Debug)]
pub struct Place<K: Ord> {
    source: K,
    counts: Arc<Mutex<Counts<K>>>,
}

impl<K: Ord> Drop for Place<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all -= 1;
        if let Some(count) = counts.by_source.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.by_source.remove(&self.source);
            }
        }
    }
}

/// Returns the source of an address. For IPv6 it is the /64 network, because one host can have many addresses in it.
pub(crate) fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_does_not_take_all_places() {
        let limit = Limit::new(2, 3);
        let take = |text: &str| limit.take(source(text.parse().expect("literal")));
        let first = take("2001:db8::1").expect("room");
        let _second = take("2001:db8::2").expect("room");
        assert!(take("2001:db8::3").is_none());
        let _other = take("192.0.2.1").expect("room");
        assert!(take("192.0.2.2").is_none());
        drop(first);
        assert!(take("::ffff:192.0.2.1").is_some());
    }
}
