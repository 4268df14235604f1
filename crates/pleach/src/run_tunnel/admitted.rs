//! The clients that a store has named: from the answers of the store to the engine's peers.
//!
//! A client becomes a peer of the engine when it connects, and stops being one when the store has removed or changed it,
//! or when nothing was received from it for `[clients] idle`. It then connects anew, and the store is asked again. The
//! byte counters of all clients go to the store by the [`ledger`](super::ledger).
//!
//! Nothing is assigned twice: a client is refused if its name or an address belongs to another client, whether of the
//! store or of the configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use ipnet::IpNet;
use pleach_core::{endpoint::PeerConfig, time::Instant};
use pleach_linux::state::StateDir;

use super::{
    asking::{Answer, Asker, Refused, Start},
    counted::Counted,
    data_path::DataPath,
    ledger::Ledger,
    psk, state_directory,
    workers::Question,
};
use crate::{
    clients::{self, StoredClient},
    config::{GatewayConfig, Role, SchedulerConfig, TunnelConfig},
    control::StoreReport,
    keys::{self, KEY_LEN, SecretKey},
};

/// State of the clients of a store that are peers of the engine, and the thread that asks the store.
#[derive(Debug)]
pub(super) struct Admitted {
    /// Kind of the store, as in `[clients] source`.
    source: &'static str,
    asker: Asker,
    clients: BTreeMap<[u8; KEY_LEN], Client>,
    names: BTreeMap<String, [u8; KEY_LEN]>,
    idle: Duration,
    next_look: Instant,
    next_idle: Instant,
    ledger: Arc<Ledger>,
    /// Accounts of the own engine's peers.
    counted: Counted,
    trouble: Option<String>,
    refused: BTreeMap<Refused, u64>,
    evicted: u64,
    removed: u64,
    /// Clients whose clash was logged. Bounded by [`MAX_LOGGED`].
    logged: BTreeSet<[u8; KEY_LEN]>,
}

#[derive(Debug)]
struct Client {
    client: StoredClient,
    admitted_at: Instant,
}

impl Admitted {
    /// Opens the store of `gateway` with `engines` data threads, and starts the thread that asks it. `None` if the gateway has no store.
    ///
    /// # Errors
    /// If the store cannot be opened, or the thread cannot be created.
    pub(super) fn start(
        now: Instant,
        config: &TunnelConfig,
        gateway: &GatewayConfig,
        engines: usize,
    ) -> anyhow::Result<Option<Self>> {
        let opened = clients::store(gateway, true).context("[clients]")?;
        let (Some(mut store), Some(settings)) = (opened, &gateway.store) else {
            return Ok(None);
        };
        let random = SecretKey::random().context("random numbers of the kernel")?;
        let (run, _) = random.expose().as_chunks();
        let run = [run[0], run[1]].map(u64::from_ne_bytes);
        let state = StateDir::open(state_directory());
        let id = store.id().context("[clients]")?;
        let ledger =
            Ledger::open(state, &config.name, &id, run).context("memory for byte counters")?;
        let start = Start {
            store,
            config: settings,
            own_key: keys::public_of(&config.private_key),
            ledger: Arc::clone(&ledger),
            fleet: gateway.fleet.as_ref().map(|fleet| fleet.name.clone()),
            engines,
        };
        Ok(Some(Self {
            source: settings.place.source(),
            asker: Asker::start(start)?,
            clients: BTreeMap::new(),
            names: BTreeMap::new(),
            idle: settings.idle,
            next_look: now + LOOK_EVERY,
            next_idle: now + IDLE_EVERY,
            counted: Counted::new(Arc::clone(&ledger)),
            ledger,
            trouble: None,
            refused: BTreeMap::new(),
            evicted: 0,
            removed: 0,
            logged: BTreeSet::new(),
        }))
    }

    /// Returns the thread that asks the store.
    pub(super) const fn asker(&self) -> &Asker {
        &self.asker
    }

    /// Returns when [`DataPath::look_after_clients`] has something to do.
    pub(super) fn next_at(&self) -> Instant {
        self.next_look.min(self.next_idle)
    }

    /// Whether the client with this key comes from the store.
    pub(super) fn has(&self, public_key: &[u8; KEY_LEN]) -> bool {
        self.clients.contains_key(public_key)
    }

    /// Returns the key of the client of the store with the name `name`.
    pub(super) fn key_of(&self, name: &str) -> Option<[u8; KEY_LEN]> {
        self.names.get(name).copied()
    }

    /// Returns the client of the store with the name `name`.
    pub(super) fn client_of(&self, name: &str) -> Option<&StoredClient> {
        let known = self.clients.get(self.names.get(name)?)?;
        Some(&known.client)
    }

    /// Returns the clients of the store that have the name, the key or an address of `peer`.
    pub(super) fn clashing(&self, peer: &PeerConfig) -> Vec<[u8; KEY_LEN]> {
        let shares = |nets: &[IpNet]| {
            let mut nets = nets.iter();
            nets.any(|net| {
                let mut own = peer.allowed_ips.iter();
                own.any(|own| own.contains(net) || net.contains(own))
            })
        };
        let clients = self.clients.iter().filter(|(key, known)| {
            **key == peer.public_key
                || known.client.name == peer.name
                || shares(&known.client.allowed_ips)
        });
        clients.map(|(key, _)| *key).collect()
    }

    /// Returns the state for the status.
    pub(super) fn report(&self) -> StoreReport {
        let refused = self.refused.iter();
        StoreReport {
            source: self.source.to_owned(),
            trouble: self.trouble.clone(),
            known: self.clients.len() as u64,
            refused: refused
                .map(|(refused, count)| (refused.name().to_owned(), *count))
                .collect(),
            forgotten: self.evicted,
            removed: self.removed,
        }
    }

    /// Returns where the bytes of all clients are counted.
    pub(super) const fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Returns the accounts of the own engine's peers.
    pub(super) const fn counted(&mut self) -> &mut Counted {
        &mut self.counted
    }

    fn on_refused(&mut self, refused: Refused) {
        *self.refused.entry(refused).or_default() += 1;
    }

    /// Refuses a client because of a clash, which is logged once for each client.
    fn on_clash(&mut self, client: &StoredClient, what: &str) {
        self.on_refused(Refused::Clash);
        self.asker.on_clash(client.public_key);
        if self.logged.len() < MAX_LOGGED && self.logged.insert(client.public_key) {
            tracing::warn!(client = client.name, "client refused: {what}");
        }
    }

    fn insert(&mut self, now: Instant, client: StoredClient) {
        self.logged.remove(&client.public_key);
        self.names.insert(client.name.clone(), client.public_key);
        self.asker.on_admitted(client.public_key);
        let admitted = Client {
            client,
            admitted_at: now,
        };
        self.clients.insert(admitted.client.public_key, admitted);
    }

    fn remove(&mut self, public_key: &[u8; KEY_LEN]) -> Option<StoredClient> {
        let client = self.clients.remove(public_key)?.client;
        if self.names.get(&client.name) == Some(public_key) {
            self.names.remove(&client.name);
        }
        Some(client)
    }

    /// Returns the clients that were admitted so long ago that they may be idle.
    fn may_be_idle(&self, now: Instant) -> Vec<[u8; KEY_LEN]> {
        let is_old = |(_, known): &(&[u8; KEY_LEN], &Client)| self.is_over(now, known.admitted_at);
        let old = self.clients.iter().filter(is_old);
        old.map(|(key, _)| *key).collect()
    }

    /// Whether `since` is as long ago as a client may be idle.
    fn is_over(&self, now: Instant, since: Instant) -> bool {
        now.since(since) >= self.idle
    }
}

impl DataPath {
    /// Passes the answers of the store to the engine.
    pub(super) fn settle_answers(&mut self, now: Instant) {
        if let Some(admitted) = &self.admitted {
            admitted.asker.waker().clear();
        }
        while let Some(answer) = self.admitted.as_ref().and_then(|all| all.asker.collect()) {
            match answer {
                Answer::Changed(client) => self.change_client(now, client),
                Answer::Contested(keys) => self.on_contested(&keys),
                Answer::Departed(departed) => self.on_departed(now, &departed),
                Answer::Gone(key) => {
                    if let Some(client) = self.forget_client(now, &key) {
                        tracing::info!(client = client.name, "removed from the store");
                        self.admitted.iter_mut().for_each(|all| all.removed += 1);
                    }
                }
                Answer::Settled(keys) => self.on_settled(now, &keys),
                Answer::State(trouble) => {
                    if let Some(admitted) = &mut self.admitted {
                        admitted.trouble = trouble;
                    }
                }
                Answer::Told { ticket, client } => self.admit(now, ticket, client),
            }
        }
    }

    /// Makes a client that the store has named a peer of the engine, or refuses it.
    fn admit(&mut self, now: Instant, ticket: u64, client: Result<StoredClient, Refused>) {
        let question = Question::of(ticket);
        let owner = client
            .as_ref()
            .ok()
            .and_then(|client| self.owner_of_name(client));
        let is_configured = client
            .as_ref()
            .is_ok_and(|client| self.is_configured(client));
        let client = match client {
            // A reload has added it since the question. It is known when it asks again.
            Ok(_) if is_configured => {
                self.refuse(now, question);
                return;
            }
            Ok(client) if owner.is_none() => client,
            Ok(client) => {
                let what = "another client has its name; rename one of the two";
                self.admitted
                    .iter_mut()
                    .for_each(|all| all.on_clash(&client, what));
                self.refuse(now, question);
                return;
            }
            Err(refused) => {
                self.admitted
                    .iter_mut()
                    .for_each(|all| all.on_refused(refused));
                self.refuse(now, question);
                return;
            }
        };
        let peer = peer(&client, &self.config.scheduler);
        let settled = self.settle(now, question, Some(peer), client.caps);
        let Some(admitted) = &mut self.admitted else {
            return;
        };
        match settled {
            Ok(true) => admitted.insert(now, client),
            // The question was too old.
            Ok(false) => admitted.asker.on_forgotten(client.public_key),
            Err(clash) => {
                let what = format!("{clash}; give every inner address to one client only");
                admitted.on_clash(&client, &what);
            }
        }
    }

    /// Whether the configuration has a client with the key of `client`.
    fn is_configured(&self, client: &StoredClient) -> bool {
        let Role::Gateway(gateway) = &self.config.role else {
            return false;
        };
        let mut configured = gateway.clients.iter();
        configured.any(|other| other.public_key == client.public_key)
    }

    /// Returns the key of another client that has the name of `client`.
    fn owner_of_name(&self, client: &StoredClient) -> Option<[u8; KEY_LEN]> {
        let admitted = self.admitted.as_ref()?.names.get(&client.name).copied();
        let Role::Gateway(gateway) = &self.config.role else {
            return None;
        };
        let mut configured = gateway.clients.iter();
        let configured = configured.find(|other| other.name == client.name);
        let owner = admitted.or(configured.map(|other| other.public_key));
        owner.filter(|owner| *owner != client.public_key)
    }

    /// Applies a change of a client in the store.
    fn change_client(&mut self, now: Instant, client: StoredClient) {
        let Some(admitted) = &mut self.admitted else {
            return;
        };
        let Some(known) = admitted.clients.get_mut(&client.public_key) else {
            return;
        };
        if known.client.is_same_peer(&client) {
            tracing::info!(client = client.name, caps = ?client.caps, "changed in the store");
            known.client = client.clone();
            self.set_caps(now, &client.public_key, client.caps);
        } else {
            tracing::info!(
                client = client.name,
                "changed in the store, it connects anew"
            );
            self.forget_client(now, &client.public_key);
        }
    }

    /// Removes a client of the store from the engine.
    pub(super) fn forget_client(
        &mut self,
        now: Instant,
        public_key: &[u8; KEY_LEN],
    ) -> Option<StoredClient> {
        let admitted = self.admitted.as_mut()?;
        let client = admitted.remove(public_key)?;
        admitted.asker.on_forgotten(*public_key);
        // An event about a removed client may be left out.
        self.on_client(now, &client.name, false);
        self.remove_by_key(now, public_key);
        Some(client)
    }

    /// Counts what clients have carried in this round.
    pub(super) fn count_clients(&mut self) {
        if let Some(admitted) = &mut self.admitted {
            admitted.counted.count(&mut self.endpoint);
        }
    }

    /// Looks for clients of a fleet that have returned, and forgets idle clients, when this is due.
    pub(super) fn look_after_clients(&mut self, now: Instant) {
        let Some(admitted) = &mut self.admitted else {
            return;
        };
        if admitted.next_look <= now {
            admitted.next_look = now + LOOK_EVERY;
            self.look_for_returned(now);
            self.look_for_uncontested(now);
        }
        let Some(admitted) = &mut self.admitted else {
            return;
        };
        if admitted.next_idle <= now {
            admitted.next_idle = now + IDLE_EVERY;
            let (old, idle) = (admitted.may_be_idle(now), admitted.idle);
            self.look_for_idle(now, old, idle);
        }
    }

    /// Forgets the clients of `keys` from which nothing was received for `idle`. Other workers are asked about theirs.
    fn look_for_idle(&mut self, now: Instant, keys: Vec<[u8; KEY_LEN]>, idle: Duration) {
        let own = match &self.crew {
            None => keys,
            Some(crew) => crew.find_idle(now - idle, keys),
        };
        let heard = |key: &[u8; KEY_LEN]| self.endpoint.last_heard(key);
        let is_idle = |key: &[u8; KEY_LEN]| heard(key).is_none_or(|at| now.since(at) >= idle);
        let own: Vec<_> = own.into_iter().filter(is_idle).collect();
        self.forget_idle(now, &own);
    }

    /// Forgets clients that a worker has found to be idle.
    pub(super) fn forget_idle(&mut self, now: Instant, keys: &[[u8; KEY_LEN]]) {
        for key in keys {
            let is_old = self.admitted.as_ref().is_some_and(|all| {
                let known = all.clients.get(key);
                known.is_some_and(|known| all.is_over(now, known.admitted_at))
            });
            if is_old && let Some(client) = self.forget_client(now, key) {
                tracing::debug!(client = client.name, "idle, forgotten");
                self.admitted.iter_mut().for_each(|all| all.evicted += 1);
            }
        }
    }

    /// Writes the counters to the store, and ends the thread.
    pub(super) fn finish_clients(&mut self) {
        self.count_clients();
        if let Some(admitted) = self.admitted.take() {
            admitted.asker.finish();
        }
    }
}

fn peer(client: &StoredClient, scheduler: &SchedulerConfig) -> PeerConfig {
    PeerConfig {
        name: client.name.clone(),
        public_key: client.public_key,
        preshared_key: psk(client.preshared_key.as_ref()),
        allowed_ips: client.allowed_ips.clone(),
        scheduler: scheduler.clone(),
    }
}

/// Interval at which clients of a fleet are looked for that have returned.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval at which idle clients are looked for.
const IDLE_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of clients whose clash was logged.
const MAX_LOGGED: usize = 1000;
