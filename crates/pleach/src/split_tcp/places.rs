//! Places for a limited number of things, in total and for each network.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use ipnet::IpNet;

/// Places, of which each network has a limited number.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    most_each: usize,
    taken: Mutex<BTreeMap<IpNet, usize>>,
}

/// A place that is taken until the value is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    network: IpNet,
}

impl Places {
    /// At most `most` places in total, and `most_each` for each network.
    pub(super) fn new(most: usize, most_each: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_each,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for `network`. `None` if a limit is reached.
    pub(super) fn take(self: &Arc<Self>, network: IpNet) -> Option<Place> {
        let mut taken = self.taken.lock().ok()?;
        let total: usize = taken.values().sum();
        let own = taken.get(&network).copied().unwrap_or_default();
        if total >= self.most || own >= self.most_each {
            return None;
        }
        taken.insert(network, own + 1);
        drop(taken);
        Some(Place {
            places: Arc::clone(self),
            network,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Ok(mut taken) = self.places.taken.lock() else {
            return;
        };
        if let Some(own) = taken.get_mut(&self.network) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_leaves_places_to_others() {
        let places = Places::new(3, 2);
        let take = |text: &str| places.take(text.parse().expect("literal"));
        let first = [take("10.0.0.1/32"), take("10.0.0.1/32")];
        assert!(first.iter().all(Option::is_some));
        assert!(take("10.0.0.1/32").is_none(), "two each");
        let second = take("10.0.0.2/32");
        assert!(second.is_some());
        assert!(take("10.0.0.3/32").is_none(), "three in total");
        drop(first);
        assert!(take("10.0.0.1/32").is_some());
    }
}
