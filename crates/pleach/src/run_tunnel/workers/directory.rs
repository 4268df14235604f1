//! All clients of a gateway with several data threads: who they are, and to which worker their inner addresses lead.
//!
//! Worker 0 keeps the [`Directory`], because names and inner addresses must be unique in the whole gateway. All workers
//! read the [`Routes`] in it, and only for packets whose destination belongs to no client of their own.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
};

use pleach_core::endpoint::{
    PeerConfig, accounts::Caps, allowed_ips::AllowedIps, enrolment::Clash, workers::Share,
};

use crate::keys::KEY_LEN;

/// Finds the worker of an inner address.
#[derive(Debug, Default)]
pub(super) struct Routes(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Places of the clients, by inner network.
    places: AllowedIps,
    /// Workers of the clients, by place.
    workers: Vec<usize>,
}

impl Routes {
    /// Returns the worker of the client to which `address` belongs.
    pub(super) fn worker_of(&self, address: IpAddr) -> Option<usize> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let place = table.places.peer_of(address)?;
        table.workers.get(place).copied()
    }
}

/// All clients of a gateway.
#[derive(Debug)]
pub(super) struct Directory {
    share: Share,
    clients: BTreeMap<[u8; KEY_LEN], Known>,
    names: BTreeMap<String, [u8; KEY_LEN]>,
    /// Keys of the clients, by place. `None` for places that are free.
    places: Vec<Option<[u8; KEY_LEN]>>,
    free: Vec<usize>,
    routes: Arc<Routes>,
}

#[derive(Debug)]
struct Known {
    config: PeerConfig,
    caps: Caps,
    place: usize,
}

impl Directory {
    /// Returns an empty directory of the gateway with the workers of `share`.
    pub(super) fn new(share: Share) -> Self {
        Self {
            share,
            clients: BTreeMap::new(),
            names: BTreeMap::new(),
            places: Vec::new(),
            free: Vec::new(),
            routes: Arc::default(),
        }
    }

    pub(super) const fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// Adds a client unless its key is known. Returns whether it was added.
    pub(super) fn insert(&mut self, config: PeerConfig, caps: Caps) -> bool {
        let key = config.public_key;
        if self.clients.contains_key(&key) {
            return false;
        }
        let place = self.free.pop().unwrap_or(self.places.len());
        let worker = self.share.owner_of(&key);
        let mut table = self
            .routes
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if place == self.places.len() {
            self.places.push(Some(key));
            table.workers.push(worker);
        } else {
            self.places[place] = Some(key);
            table.workers[place] = worker;
        }
        for net in &config.allowed_ips {
            table.places.insert(*net, place);
        }
        drop(table);
        self.names.insert(config.name.clone(), key);
        let known = Known {
            config,
            caps,
            place,
        };
        self.clients.insert(key, known);
        true
    }

    /// Removes a client. Returns its name.
    pub(super) fn remove(&mut self, public_key: &[u8; KEY_LEN]) -> Option<String> {
        let Known { config, place, .. } = self.clients.remove(public_key)?;
        let mut table = self
            .routes
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for net in &config.allowed_ips {
            table.places.remove(*net, place);
        }
        drop(table);
        self.places[place] = None;
        self.free.push(place);
        if self.names.get(&config.name) == Some(public_key) {
            self.names.remove(&config.name);
        }
        Some(config.name)
    }

    /// Returns the first address of `client` that belongs to a client with another key; see
    /// [`Endpoint::settle_enrolment`](pleach_core::endpoint::Endpoint::settle_enrolment).
    pub(super) fn clash_of(&self, client: &PeerConfig) -> Option<Clash> {
        if self.clients.contains_key(&client.public_key) {
            return None;
        }
        let table = self.routes.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut nets = client.allowed_ips.iter();
        nets.find_map(|net| {
            let place = table.places.overlapping(*net)?;
            let owner = self.places.get(place).copied().flatten()?;
            let owner = self.clients.get(&owner)?.config.name.clone();
            Some(Clash { net: *net, owner })
        })
    }

    pub(super) fn key_of(&self, name: &str) -> Option<[u8; KEY_LEN]> {
        self.names.get(name).copied()
    }

    pub(super) fn caps(&self, public_key: &[u8; KEY_LEN]) -> Option<Caps> {
        self.clients.get(public_key).map(|known| known.caps)
    }

    /// Notes the caps of a client. Returns whether the client is known.
    pub(super) fn set_caps(&mut self, public_key: &[u8; KEY_LEN], caps: Caps) -> bool {
        let known = self.clients.get_mut(public_key);
        known.is_some_and(|known| {
            known.caps = caps;
            true
        })
    }

    pub(super) fn clients(&self) -> impl Iterator<Item = &PeerConfig> {
        self.clients.values().map(|known| &known.config)
    }
}

#[cfg(test)]
mod tests {
    use pleach_core::session::{handshake::NO_PSK, secret::Secret};

    use super::*;
    use crate::config::SchedulerConfig;

    fn client(number: u8, net: &str) -> PeerConfig {
        PeerConfig {
            name: format!("c{number}"),
            public_key: [number; KEY_LEN],
            preshared_key: Secret::from(NO_PSK),
            allowed_ips: vec![net.parse().expect("net")],
            scheduler: SchedulerConfig::default(),
        }
    }

    #[test]
    fn addresses_lead_to_the_worker_of_their_client_as_long_as_it_exists() {
        let share = Share::new(0, 3);
        let mut directory = Directory::new(share);
        for number in 1..=6 {
            let net = format!("10.0.0.{number}/32");
            assert!(directory.insert(client(number, &net), Caps::default()));
            assert!(!directory.insert(client(number, &net), Caps::default()));
        }
        let routes = Arc::clone(directory.routes());
        let worker_of = |number: u8| routes.worker_of([10, 0, 0, number].into());
        for number in 1..=6 {
            assert_eq!(worker_of(number), Some(share.owner_of(&[number; KEY_LEN])));
        }
        assert_eq!(directory.remove(&[3; KEY_LEN]).as_deref(), Some("c3"));
        assert_eq!((worker_of(3), directory.key_of("c3")), (None, None));
        // Its place and its address are used again.
        assert!(directory.insert(client(7, "10.0.0.3/32"), Caps::default()));
        assert_eq!(worker_of(3), Some(share.owner_of(&[7; KEY_LEN])));
    }

    #[test]
    fn an_address_clashes_whatever_worker_has_it() {
        let mut directory = Directory::new(Share::new(0, 4));
        for number in 1..=4 {
            let net = format!("10.0.{number}.0/24");
            directory.insert(client(number, &net), Caps::default());
        }
        for number in 1..=4 {
            let clash = directory.clash_of(&client(9, &format!("10.0.{number}.7/32")));
            assert_eq!(clash.expect("a clash").owner, format!("c{number}"));
        }
        assert_eq!(directory.clash_of(&client(9, "10.0.5.7/32")), None);
        assert_eq!(
            directory.clash_of(&client(2, "10.0.2.7/32")),
            None,
            "it is known"
        );
    }
}
