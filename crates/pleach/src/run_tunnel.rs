//! The tunnel daemon: joins the engine to the kernel.
//!
//! One thread moves packets ([`data_path`]). It waits for the TUN device, sockets, link changes, requests and signals,
//! passes input to the engine, and sends the engine's output. Further modules:
//!
//! - [`sockets`]: the UDP sockets.
//! - [`handshaker`]: the threads that compute handshakes.
//! - [`enrolled`]: the thread that enrols invited clients.
//! - [`asking`], [`admitted`]: the thread that asks a store of clients, and the clients that it has named.
//! - [`counted`], [`ledger`]: the bytes that clients carry, until the store has them.
//! - [`fleet`]: clients of a gateway among several ones that share a store.
//! - [`gateways`]: which of its gateways a client uses.
//! - [`host`]: the thread that changes the host's configuration.
//! - [`links`]: the links of a client.
//! - [`portals`]: captive portals that keep a link from the gateway.
//! - [`rules`], [`programs`]: rules of a client, and the thread that finds the programs of flows.
//! - [`report`]: the values that `pleach status` shows.
//! - [`workers`]: the further data threads of a gateway that has several.
//!
//! All changes of the host's configuration are undone at the end, or by the next start after a crash
//! ([`pleach_linux::routes`]).

mod admitted;
mod asking;
pub(crate) mod budgets;
mod carried;
mod counted;
mod data_path;
mod device;
pub(crate) mod dns;
mod enrolled;
mod first_data;
mod fleet;
mod gateways;
mod handshaker;
mod host;
mod ledger;
mod links;
mod memory;
pub(crate) mod names;
mod pauses;
mod portals;
mod programs;
mod reload;
pub(crate) mod report;
mod rules;
mod sockets;
mod solo;
mod splitting;
mod workers;

use std::{num::NonZeroUsize, path::Path};

use anyhow::Context as _;
use ipnet::IpNet;
use pleach_core::{
    endpoint::{Endpoint, EndpointConfig, PeerConfig, Side, workers::Share},
    queue::QueueConfig,
    session::{aead::Suite, handshake::NO_PSK, limiter::Limits, secret::Secret},
};
use pleach_linux::{
    clock,
    entropy::KernelEntropy,
    owner::Finder,
    poll::{self, Signals},
    routes::{Plan, Setup},
    split_tcp,
    tun::Tun,
};

use crate::{
    config::{GatewayPeer, Nat, Role, TunnelConfig},
    confine, find_owners,
    keys::SecretKey,
    log_lines,
    trace::TraceFile,
};
use data_path::DataPath;
use dns::Resolvers;
pub(crate) use links::is_uplink;
use reload::Source;
use rules::Rules;
use workers::Lanes;

/// Runs the tunnel that `config`, read from `file`, describes until SIGTERM or SIGINT. SIGHUP reads the file again.
/// `trace`: file for the decisions of the engine.
///
/// # Errors
/// Any error that prevents the daemon from starting or continuing.
pub(crate) fn run(
    mut config: TunnelConfig,
    file: &Path,
    trace: Option<&Path>,
) -> anyhow::Result<()> {
    // Block signals before any thread starts, so that no thread receives them and the poller reads them.
    let signals =
        Signals::block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).context("signals")?;
    if config.mtu.is_none()
        && let Role::Client(client) = &config.role
    {
        config.mtu = Some(links::default_mtu(client)?);
    }
    if let Role::Gateway(gateway) = &mut config.role {
        enrolled::add_known(gateway)?;
    }
    let plan = plan(&config);
    let mut setup = Setup::begin(state_directory(), &config.name)
        .with_context(|| format!("tunnel {}: host configuration", config.name))?;
    // Undo the redirects of an earlier process before the device exists. Without `nft` there can be no redirects.
    if let Err(error) = split_tcp::recover(&config.name) {
        tracing::debug!(%error, "redirected connections of an earlier run");
    }
    let share = Share::new(0, workers::count(&config, cores()));
    let queues = Tun::create_queues(&config.name, plan.mtu, share.count())
        .with_context(|| format!("tunnel {}: device", config.name))?;
    setup
        .apply(&plan)
        .with_context(|| format!("tunnel {}: host configuration", config.name))?;
    if let Err(error) = dns::recover(&config.name) {
        tracing::warn!(%error, "the resolvers of an earlier run are not undone");
    }
    #[cfg(feature = "dashboard")]
    crate::notices::start(config.view.notices.as_ref());
    let finder = finder(&config);
    let _confined = config
        .confine
        .then(|| confine::tunnel(&config, file, trace).apply());
    let resolvers = match &config.role {
        Role::Client(client) => Resolvers::set(&config.name, &client.dns)
            .with_context(|| format!("tunnel {}: [tunnel] dns", config.name))?,
        Role::Gateway(_) => None,
    };
    log_lines::in_background();
    let _ = poll::set_precise_timers();
    let mut endpoint = Endpoint::new(
        endpoint_config(&config, plan.mtu, share),
        KernelEntropy::open().context("random numbers of the kernel")?,
        clock::now(),
    );
    endpoint.set_share(share);
    let trace = trace.map(TraceFile::threaded).transpose()?;
    if let Some(trace) = &trace {
        endpoint.observe(trace);
    }
    endpoint.set_time_of_day(clock::now(), clock::unix_nanos());
    endpoint.set_handshake_limits(Limits::for_cores(cores().get()));
    let name = config.name.clone();
    let source = Source::new(file)?;
    let lanes = Lanes {
        queues,
        trace: trace.clone(),
    };
    let result = DataPath::start(config, source, endpoint, lanes, setup, signals, finder)
        .map(|path| path.traced(trace))
        .and_then(DataPath::run);
    drop(resolvers);
    let setup = result?;
    setup.undo().context("undoing the host configuration")?;
    tracing::info!(tunnel = name, "stopped");
    Ok(())
}

/// Starts the process that finds programs, if a rule names a program and this process will be confined.
fn finder(config: &TunnelConfig) -> Option<Finder> {
    if !rules::names_programs(config.rules()) {
        return None;
    }
    find_owners::warn_of_rights("docs/rules.md");
    config.confine.then(find_owners::start).flatten()
}

/// Returns the configuration of the host that the tunnel needs.
fn plan(config: &TunnelConfig) -> Plan {
    let (mut isolate, mut kill_switch, mut past) = (false, false, Vec::new());
    let (routes, forward, masquerade) = match &config.role {
        Role::Client(client) => {
            kill_switch = client.kill_switch;
            past.clone_from(&client.past);
            (client.allowed_ips(), false, Vec::new())
        }
        Role::Gateway(gateway) => {
            isolate = gateway.isolate;
            let clients = gateway.clients.iter();
            let mut inner: Vec<IpNet> = clients
                .flat_map(|client| client.allowed_ips.clone())
                .collect();
            if gateway.invitations.is_some() {
                // Invited clients get addresses of these networks.
                inner.extend(config.addresses.iter().map(IpNet::trunc));
            }
            // Clients of a store are not known in advance.
            let networks = gateway.store.iter().flat_map(|store| &store.networks);
            inner.extend(
                networks
                    .filter(|net| !inner.contains(net))
                    .copied()
                    .collect::<Vec<_>>(),
            );
            let hidden = |net: &&IpNet| match gateway.nat {
                Nat::Off => false,
                Nat::Ipv4 => net.addr().is_ipv4(),
                Nat::Ipv4AndIpv6 => true,
            };
            let masquerade = inner.iter().filter(hidden).copied().collect();
            (inner, true, masquerade)
        }
    };
    Plan {
        addresses: config.addresses.clone(),
        routes,
        mtu: config.mtu.unwrap_or(DEFAULT_MTU),
        forward,
        masquerade,
        isolate,
        kill_switch,
        past,
    }
}

/// Returns the engine's peer for a gateway of the client with the configuration `config`.
fn gateway_peer(config: &TunnelConfig, gateway: &GatewayPeer) -> PeerConfig {
    PeerConfig {
        name: gateway.name.clone(),
        public_key: gateway.public_key,
        preshared_key: psk(gateway.preshared_key.as_ref()),
        allowed_ips: gateway.allowed_ips.clone(),
        scheduler: config.scheduler.clone(),
    }
}

/// Returns the engine's pre-shared key.
fn psk(key: Option<&SecretKey>) -> Secret {
    key.map_or_else(|| Secret::from(NO_PSK), |key| key.expose().into())
}

/// Returns the configuration of the engine of a worker.
fn endpoint_config(config: &TunnelConfig, mtu: u16, share: Share) -> EndpointConfig {
    let side = match &config.role {
        Role::Client(client) => {
            let gateway = &client.gateways[0];
            // The first of several gateways has no addresses until it is chosen.
            let is_only = client.gateways.len() == 1;
            Side::Client {
                gateway: gateway_peer(config, gateway),
                endpoints: if is_only {
                    gateway.endpoints.clone()
                } else {
                    Vec::new()
                },
            }
        }
        Role::Gateway(gateway) => Side::Gateway {
            clients: gateway
                .clients
                .iter()
                .filter(|client| share.owner_of(&client.public_key) == share.number())
                .map(|client| PeerConfig {
                    name: client.name.clone(),
                    public_key: client.public_key,
                    preshared_key: psk(client.preshared_key.as_ref()),
                    allowed_ips: client.allowed_ips.clone(),
                    scheduler: client
                        .scheduler
                        .as_ref()
                        .unwrap_or(&config.scheduler)
                        .clone(),
                })
                .collect(),
        },
    };
    EndpointConfig {
        private_key: config.private_key.expose().into(),
        suites: Suite::preferred(has_aes()).to_vec(),
        queue: QueueConfig::default(),
        compression: config.compression,
        classes: Rules::default().classes(config),
        parity: config.parity,
        mtu: usize::from(mtu),
        side,
    }
}

/// Returns the number of processor cores that this process may use.
fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Whether the CPU has AES instructions, without which AES-GCM is slow.
fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    return std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

fn state_directory() -> &'static Path {
    Path::new(pleach_linux::state::DEFAULT_STATE_DIR)
}

/// Largest MTU that is used without a configured one: 1500 bytes minus the overhead of IPv6, UDP and the tunnel. A
/// larger MTU of a device does not mean that the path behind it has the same MTU.
const DEFAULT_MTU: u16 = 1414;
