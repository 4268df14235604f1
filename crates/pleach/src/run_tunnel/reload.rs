//! Changes of the configuration while the tunnel runs: SIGHUP, or `pleach reload`.
//!
//! A thread reads the file, so that packets do not wait for the disk; another thread changes routes ([`super::host`]).
//! If the file contains a mistake, nothing changes. Otherwise the data path changes links, policy, rules, classes and
//! clients to the new configuration. Other changes are listed, and take effect with the next start. Only sessions of
//! clients that were removed or whose key has changed end.

use std::{
    io,
    path::{Path, PathBuf},
    slice,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use anyhow::Context as _;
use pleach_core::{
    class::Class,
    endpoint::PeerConfig,
    path::link::Link,
    session::{handshake::NO_PSK, secret::Secret},
    time::Instant,
};
use pleach_linux::{poll::Waker, routes::Plan};

use super::{
    budgets::Budgets,
    data_path::DataPath,
    enrolled,
    links::{self, ClientLink},
    workers::Order,
};
use crate::{
    config::{
        self, ClientConfig, ClientPeer, GatewayPeer, LinkConfig, Role, SchedulerConfig,
        TunnelConfig,
    },
    control::{ReloadReport, Reply},
    keys::SecretKey,
};

/// The source of the configuration: the file, and the threads that work on it.
pub(super) struct Source {
    file: PathBuf,
    sender: Sender<Outcome>,
    outcomes: Receiver<Outcome>,
    /// Receiver of the result of a change of routes; `None` if no change is running.
    routing: Option<Receiver<Routed>>,
    waker: Waker,
    /// Number of times that clients were enrolled or removed. A list of clients that was read at a lower number is
    /// stale.
    changes: u64,
}

/// A configuration that was read, or the mistake in it.
struct Outcome {
    config: Result<Box<TunnelConfig>, String>,
    /// Receiver of the result, if a user waits for it.
    reply: Option<Reply<ReloadReport>>,
    /// Value of [`Source::changes`] when reading began.
    changes: u64,
}

/// A configuration for whose clients the host's routes were changed, or could not be changed.
struct Routed {
    config: Box<TunnelConfig>,
    plan: Plan,
    result: io::Result<()>,
    reply: Option<Reply<ReloadReport>>,
    changes: u64,
}

impl Source {
    /// Makes the source of the configuration in `file`.
    ///
    /// # Errors
    /// If no eventfd can be created, or if the working directory does not exist any more.
    pub(super) fn new(file: &Path) -> anyhow::Result<Self> {
        let (sender, outcomes) = mpsc::channel();
        Ok(Self {
            file: std::path::absolute(file).with_context(|| file.display().to_string())?,
            sender,
            outcomes,
            routing: None,
            waker: Waker::new()?,
            changes: 0,
        })
    }

    /// Notes that a client was enrolled or removed: a list of clients that is being read may not contain this change.
    pub(super) fn on_clients_changed(&mut self) {
        self.changes += 1;
    }

    /// Returns the waker, which is readable when a configuration has been read.
    pub(super) const fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Starts a thread that reads the file. `reply`: receiver of the result of the reload.
    pub(super) fn read(&self, reply: Option<Reply<ReloadReport>>) {
        let (file, sender, waker) = (self.file.clone(), self.sender.clone(), self.waker.clone());
        let changes = self.changes;
        let reading = move || {
            let config = load(&file);
            // The receiver may be gone if the daemon is stopping.
            let _ = sender.send(Outcome {
                config,
                reply,
                changes,
            });
            waker.wake();
        };
        let started = thread::Builder::new()
            .name("reload".to_owned())
            .spawn(reading);
        if let Err(error) = started {
            tracing::warn!(%error, "the configuration is not read again");
        }
    }
}

fn load(file: &Path) -> Result<Box<TunnelConfig>, String> {
    let loaded = config::load(file).map_err(|error| error.to_string())?;
    let mut config = loaded.config;
    if let Role::Gateway(gateway) = &mut config.role {
        enrolled::add_known(gateway).map_err(|error| format!("{error:#}"))?;
    }
    Ok(Box::new(config))
}

impl DataPath {
    /// Applies configurations that have been read. Only one change of routes runs at a time; configurations read
    /// meanwhile wait.
    pub(super) fn settle_reload(&mut self, now: Instant) {
        self.source.waker.clear();
        loop {
            if let Some(routing) = &self.source.routing {
                let Ok(routed) = routing.try_recv() else {
                    return;
                };
                self.source.routing = None;
                self.settle_routes(now, routed);
            }
            let Ok(outcome) = self.source.outcomes.try_recv() else {
                return;
            };
            self.settle_reading(now, outcome);
        }
    }

    /// Applies a configuration, or first starts the change of routes that it needs.
    fn settle_reading(&mut self, now: Instant, outcome: Outcome) {
        let Outcome {
            config,
            reply,
            changes,
        } = outcome;
        if changes != self.source.changes {
            return self.source.read(reply);
        }
        let config = match config {
            Ok(config) => config,
            Err(error) => return tell(Err(error), reply),
        };
        let mut after = TunnelConfig::clone(&self.config);
        match (&mut after.role, &config.role) {
            (Role::Gateway(gateway), Role::Gateway(wanted)) => {
                gateway.clients.clone_from(&wanted.clients);
            }
            (Role::Client(client), Role::Client(wanted)) => client.past.clone_from(&wanted.past),
            (Role::Client(_) | Role::Gateway(_), _) => {}
        }
        let (before, plan) = (self.plan.clone(), super::plan(&after));
        if before == plan {
            return tell(self.apply(now, *config), reply);
        }
        let (sender, routing) = mpsc::channel();
        self.source.routing = Some(routing);
        let waker = self.source.waker.clone();
        self.host.run(move |host| {
            let result = host.setup.change_routes(&before, &plan);
            // The receiver may be gone if the daemon is stopping.
            let _ = sender.send(Routed {
                config,
                plan,
                result,
                reply,
                changes,
            });
            waker.wake();
        });
    }

    fn settle_routes(&mut self, now: Instant, routed: Routed) {
        if let Err(error) = routed.result {
            return tell(Err(format!("nothing is changed: {error}")), routed.reply);
        }
        self.plan = routed.plan;
        if routed.changes != self.source.changes {
            return self.source.read(routed.reply);
        }
        tell(self.apply(now, *routed.config), routed.reply);
    }

    /// Applies `wanted`, except for the routes, which have been set.
    fn apply(&mut self, now: Instant, wanted: TunnelConfig) -> Result<ReloadReport, String> {
        self.end_handover(now);
        self.end_solo(now);
        let old = Arc::clone(&self.config);
        let rules: Vec<Class> = self.rules.all(&old).cloned().collect();
        let mut needs_restart = needs_restart(&old, &wanted);
        let mut config = TunnelConfig::clone(&old);
        config.scheduler = wanted.scheduler;
        config.classes = wanted.classes;
        let mut applied = Vec::new();
        match (&old.role, &mut config.role, wanted.role) {
            (Role::Client(old), Role::Client(client), Role::Client(wanted)) => {
                client.links = wanted.links;
                if client.past != wanted.past {
                    applied.push(format!("{} rules past the tunnel", wanted.past.len()));
                    client.past = wanted.past;
                }
                let all = wanted.rules.len();
                let followed = wanted.rules.into_iter();
                let followed = followed.filter(|rule| self.rules.may_follow(slice::from_ref(rule)));
                client.rules = followed.collect();
                if client.rules.len() < all {
                    needs_restart.push("[[rule]] with app (the other rules apply)".to_owned());
                }
                let client = client.clone();
                // The following steps read the new configuration.
                self.config = Arc::new(config.clone());
                self.change_links(now, &old.links, &client, &mut applied);
                match &mut self.budgets {
                    Some(budgets) => budgets.start_over(now),
                    None => self.budgets = Budgets::load(now, &client, &config.name),
                }
            }
            (Role::Gateway(old), Role::Gateway(gateway), Role::Gateway(wanted)) => {
                gateway.clients = wanted.clients;
                self.change_clients(now, &old.clients, &config, &mut applied);
            }
            (Role::Client(_) | Role::Gateway(_), ..) => {
                return Err("the mode is another: restart the daemon".to_owned());
            }
        }
        let of_clients = own_schedulers(&config);
        if config.scheduler != old.scheduler {
            applied.push(format!("policy {}", config.scheduler.policy.name()));
        } else if of_clients != own_schedulers(&old) {
            applied.push("policies of clients".to_owned());
        }
        if config.classes != old.classes {
            applied.push(format!("{} classes", config.classes.len()));
        }
        self.rules.forget_live();
        let has_other_rules = config.rules() != rules.as_slice();
        if has_other_rules {
            applied.push(format!("{} rules", config.rules().len()));
        }
        if config.scheduler != old.scheduler
            || config.classes != old.classes
            || has_other_rules
            || of_clients != own_schedulers(&old)
        {
            let classes = self.rules.classes(&config);
            self.endpoint
                .reconfigure(now, &classes, |peer| scheduler_of(&config, &peer.name));
            if let Some(crew) = &self.crew {
                let config = Arc::new(config.clone());
                crew.order_all(|| Order::Reconfigure {
                    config: Arc::clone(&config),
                    classes: classes.clone(),
                });
            }
        }
        self.config = Arc::new(config);
        self.update_translated();
        Ok(ReloadReport {
            applied,
            needs_restart,
        })
    }

    /// Changes the links to those of `client`. Unchanged links are not disturbed.
    fn change_links(
        &mut self,
        now: Instant,
        old: &[LinkConfig],
        client: &ClientConfig,
        applied: &mut Vec<String>,
    ) {
        let wanted = &client.links;
        let is_same = |link: &ClientLink, config: &LinkConfig| {
            link.name == config.name && link.device == config.device
        };
        if !wanted.is_empty() {
            let is_gone = |link: &&ClientLink| !wanted.iter().any(|config| is_same(link, config));
            for gone in self.links.iter().filter(is_gone) {
                applied.push(format!("link {} removed", gone.name));
            }
            self.keep_links(|link| wanted.iter().any(|config| is_same(link, config)));
        }
        for config in wanted {
            let settings = links::settings(config, self.inner_mtu());
            let known = self.links.iter().any(|link| is_same(link, config));
            if !known {
                applied.push(format!("link {} added", config.name));
                self.add_link(&config.device, settings);
            } else if !old.contains(config) {
                applied.push(format!("link {} changed", config.name));
                self.set_link(now, &settings);
                let carrier = |link: &LinkConfig| (link.carrier, link.http_proxy.clone());
                let before = old.iter().find(|old| old.name == config.name);
                let index = self.links.iter().position(|link| is_same(link, config));
                if let Some(index) = index
                    && before.map(carrier) != Some(carrier(config))
                {
                    self.carry(now, index);
                }
            }
        }
        if wanted.is_empty() {
            // Links that were named before remain in use with the settings of links that are found automatically.
            for config in old {
                applied.push(format!("link {} is used like any other", config.name));
                let settings = Link::named(&config.name);
                self.set_link(now, &settings);
            }
        }
        self.take_up_links(now);
    }

    pub(super) fn set_link(&mut self, now: Instant, settings: &Link) {
        self.endpoint.update_links(now, &settings.name, |link| {
            *link = Link {
                name: link.name.clone(),
                mtu: link.mtu,
                ..settings.clone()
            };
        });
    }

    /// Changes the clients to those of `config`. Unchanged clients keep their sessions.
    fn change_clients(
        &mut self,
        now: Instant,
        old: &[ClientPeer],
        config: &TunnelConfig,
        applied: &mut Vec<String>,
    ) {
        let Role::Gateway(gateway) = &config.role else {
            return;
        };
        let wanted: Vec<PeerConfig> = gateway
            .clients
            .iter()
            .map(|client| peer(client, &config.scheduler))
            .collect();
        let is_same = |known: &PeerConfig, wanted: &PeerConfig| {
            known.name == wanted.name
                && known.public_key == wanted.public_key
                && known.preshared_key.expose() == wanted.preshared_key.expose()
                && known.allowed_ips == wanted.allowed_ips
        };
        // What the configuration says about a client is worth more than what the store says.
        for client in &wanted {
            let clashing = self.admitted.as_ref().map(|all| all.clashing(client));
            for key in clashing.into_iter().flatten() {
                self.forget_client(now, &key);
            }
        }
        let admitted = self.admitted.as_ref();
        let is_stored = |known: &PeerConfig| admitted.is_some_and(|all| all.has(&known.public_key));
        let is_gone = |known: &PeerConfig| {
            !is_stored(known) && !wanted.iter().any(|wanted| is_same(known, wanted))
        };
        let gone = self.names_of_clients(is_gone);
        for name in &gone {
            // An event about a removed client may be left out.
            self.on_client(now, name, false);
            self.remove_by_name(now, name);
        }
        for client in wanted {
            let name = client.name.clone();
            if self.add_client(client) {
                applied.push(if gone.contains(&name) {
                    format!("client {name} changed, it connects anew")
                } else {
                    format!("client {name} added")
                });
            }
        }
        for client in &gateway.clients {
            let key = &client.public_key;
            let before = self.caps(key);
            self.set_caps(now, key, client.caps);
            let is_known = old.iter().any(|old| old.public_key == *key);
            if is_known && before != Some(client.caps) {
                applied.push(format!("caps of client {} changed", client.name));
            }
        }
        let is_wanted = |name: &&String| gateway.clients.iter().any(|client| client.name == **name);
        let removed = gone.iter().filter(|name| !is_wanted(name));
        applied.extend(removed.map(|name| format!("client {name} removed")));
    }
}

/// Reports the result of a reload to the log and to the user.
fn tell(result: Result<ReloadReport, String>, reply: Option<Reply<ReloadReport>>) {
    match &result {
        Ok(report) => {
            let changes = report.applied.join("; ");
            let restart = report.needs_restart.join(", ");
            tracing::info!(changes, restart, "configuration read again");
        }
        Err(error) => tracing::error!("configuration not read again: {error}"),
    }
    if let Some(reply) = reply {
        reply.send(result);
    }
}

/// Returns the engine's peer for a client of the configuration.
pub(super) fn peer(client: &ClientPeer, scheduler: &SchedulerConfig) -> PeerConfig {
    let psk = client.preshared_key.as_ref();
    PeerConfig {
        name: client.name.clone(),
        public_key: client.public_key,
        preshared_key: psk.map_or_else(|| Secret::from(NO_PSK), |key| key.expose().into()),
        allowed_ips: client.allowed_ips.clone(),
        scheduler: client.scheduler.as_ref().unwrap_or(scheduler).clone(),
    }
}

/// Returns the scheduler for packets to the peer `name`.
pub(super) fn scheduler_of(config: &TunnelConfig, name: &str) -> SchedulerConfig {
    let mut own = own_schedulers(config).into_iter();
    let own = own.find(|(client, _)| *client == name);
    own.map_or_else(
        || config.scheduler.clone(),
        |(_, scheduler)| scheduler.clone(),
    )
}

/// Returns the schedulers of all clients that have one of their own, by client name.
fn own_schedulers(config: &TunnelConfig) -> Vec<(&str, &SchedulerConfig)> {
    let clients = match &config.role {
        Role::Client(_) => [].iter(),
        Role::Gateway(gateway) => gateway.clients.iter(),
    };
    clients
        .filter_map(|client| Some((client.name.as_str(), client.scheduler.as_ref()?)))
        .collect()
}

/// Returns the keys in which `wanted` differs and that take effect only after a restart.
fn needs_restart(old: &TunnelConfig, wanted: &TunnelConfig) -> Vec<String> {
    let mut keys = vec![
        ("[tunnel] name", old.name != wanted.name),
        ("[tunnel] address", old.addresses != wanted.addresses),
        (
            "[tunnel] private_key",
            old.private_key.expose() != wanted.private_key.expose(),
        ),
        ("[tunnel] control", old.control != wanted.control),
        // Without `mtu` in the file, the MTU was derived from the links at the start.
        (
            "[tunnel] mtu",
            wanted.mtu.is_some() && old.mtu != wanted.mtu,
        ),
        (
            "[tunnel] compression",
            old.compression != wanted.compression,
        ),
        ("[tunnel] parity", old.parity != wanted.parity),
        ("[tunnel] remember", old.remember != wanted.remember),
        ("[tunnel] split_tcp", old.split_tcp != wanted.split_tcp),
        ("[tunnel] confine", old.confine != wanted.confine),
        (
            "[dashboard], [metrics] or [notices]",
            old.view != wanted.view,
        ),
    ];
    match (&old.role, &wanted.role) {
        (Role::Client(old), Role::Client(wanted)) => {
            keys.extend([
                ("[tunnel] dns", old.dns != wanted.dns),
                (
                    "[tunnel] portal_check",
                    old.portal_check != wanted.portal_check,
                ),
                ("[carrier]", old.carrier != wanted.carrier),
                ("[tunnel] state", old.state != wanted.state),
                (
                    "[tunnel] kill_switch",
                    old.kill_switch != wanted.kill_switch,
                ),
            ]);
            keys.push((
                "[tunnel] gateway_return",
                old.gateway_return != wanted.gateway_return,
            ));
            if let ([old], [wanted]) = (old.gateways.as_slice(), wanted.gateways.as_slice()) {
                keys.extend(of_gateway(old, wanted));
            } else {
                let mut pairs = old.gateways.iter().zip(&wanted.gateways);
                let is_other = |(old, wanted): (&GatewayPeer, &GatewayPeer)| {
                    (&old.name, old.priority) != (&wanted.name, wanted.priority)
                        || of_gateway(old, wanted).iter().any(|(_, is)| *is)
                };
                let differ = old.gateways.len() != wanted.gateways.len() || pairs.any(is_other);
                keys.push(("[[gateway]]", differ));
            }
        }
        (Role::Gateway(old), Role::Gateway(wanted)) => keys.extend([
            ("[tunnel] listen", old.listen != wanted.listen),
            ("[carrier]", old.carrier != wanted.carrier),
            ("[tunnel] nat", old.nat != wanted.nat),
            ("[tunnel] isolate", old.isolate != wanted.isolate),
            ("[tunnel] speedtest", old.speedtest != wanted.speedtest),
            ("[tunnel] workers", old.workers != wanted.workers),
            ("[clients]", old.store != wanted.store),
            ("[invitations]", old.invitations != wanted.invitations),
            ("[fleet]", old.fleet != wanted.fleet),
        ]),
        (Role::Client(_) | Role::Gateway(_), _) => {}
    }
    let changed = keys.into_iter().filter(|(_, is_changed)| *is_changed);
    changed.map(|(key, _)| key.to_owned()).collect()
}

/// Returns for each key of a gateway's table whether its value has changed.
fn of_gateway(old: &GatewayPeer, wanted: &GatewayPeer) -> [(&'static str, bool); 4] {
    let psk = |key: &Option<SecretKey>| key.as_ref().map(|key| *key.expose());
    let has_other_psk = psk(&old.preshared_key) != psk(&wanted.preshared_key);
    let is_elsewhere = old.endpoints != wanted.endpoints || old.names != wanted.names;
    [
        ("[gateway] public_key", old.public_key != wanted.public_key),
        ("[gateway] preshared_key", has_other_psk),
        ("[gateway] endpoints", is_elsewhere),
        (
            "[gateway] allowed_ips",
            old.allowed_ips != wanted.allowed_ips,
        ),
    ]
}
