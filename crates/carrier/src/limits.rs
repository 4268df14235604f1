//! How many connections a gateway has, in all and from one source.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
};

/// Counts connections of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    each: usize,
    all: usize,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    by_source: BTreeMap<IpAddr, usize>,
}

impl Limit {
    /// At most `all`, and `each` from one source.
    pub(crate) fn new(each: usize, all: usize) -> Self {
        Self {
            each,
            all,
            counts: Arc::default(),
        }
    }

    /// A place for a connection from `address`, which is free again when the value is dropped; `None` if there is none.
    pub(crate) fn take(&self, address: IpAddr) -> Option<Place> {
        let source = source(address);
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
pub(crate) struct Place {
    source: IpAddr,
    counts: Arc<Mutex<Counts>>,
}

impl Drop for Place {
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

/// Who can have many addresses of IPv6 has a network of 2^64.
fn source(address: IpAddr) -> IpAddr {
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
        let take = |text: &str| limit.take(text.parse().expect("literal"));
        let first = take("2001:db8::1").expect("room");
        let _second = take("2001:db8::2").expect("room");
        assert!(take("2001:db8::3").is_none());
        let _other = take("192.0.2.1").expect("room");
        assert!(take("192.0.2.2").is_none());
        drop(first);
        assert!(take("::ffff:192.0.2.1").is_some());
    }
}
