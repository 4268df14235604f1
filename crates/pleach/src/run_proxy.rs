//! The proxy daemon: joins [`pleach_proxy`] to configuration, signals, and the control socket.
//!
//! One thread serves everything; see [`pleach_proxy::daemon`]. SIGTERM and SIGINT end the daemon. It then closes
//! connections, removes its redirects, and stores its estimates for the next start.

mod set;
pub(crate) mod store;

use std::{io, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use pleach_core::session::handshake::StaticKeys;
use pleach_linux::{
    poll::{Signals, Waker},
    readiness::Readiness,
    state::DEFAULT_STATE_DIR,
};
use pleach_proxy::{
    daemon::{Change, Daemon, KnownPeer, Settings, StripeSettings, known::Known, report},
    stripe,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use store::Store;
use tokio::{task::LocalSet, time};

use crate::{
    config::{self, ProxyConfig, StripeConfig},
    confine,
    control::{
        ApplicationStatus, BudgetStatus, ConnectionStatus, ControlRequest, LaneStatus, LinkState,
        LinkStatus, ReloadReport, SchedulerStatus, StatusReport, StripedStatus,
        server::{ControlServer, StartError},
    },
    find_owners, keys, log_lines, onboard, reasons,
};

/// Runs the proxy that `config` describes until SIGTERM or SIGINT.
///
/// # Errors
/// The error because of which the daemon cannot start or continue.
pub(crate) fn run(config: ProxyConfig, file: &Path) -> anyhow::Result<()> {
    // Signals are blocked before any thread starts, so that all threads leave signals to the poller.
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT]).context("signals")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .context("runtime")?;
    let tasks = LocalSet::new();
    let result = runtime.block_on(tasks.run_until(serve(config, file, signals)));
    // Connections end here. The daemon does not wait for threads that still look up names.
    drop(tasks);
    runtime.shutdown_background();
    result
}

async fn serve(config: ProxyConfig, file: &Path, mut signals: Signals) -> anyhow::Result<()> {
    let signalled = Readiness::of(&signals).context("signals")?;
    let mut settings = settings(&config)?;
    let file = std::path::absolute(file).context("configuration")?;
    if config.confine {
        if settings.placer.rules.iter().any(|rule| rule.app.is_some()) {
            find_owners::warn_of_rights("docs/proxy.md, Privileges");
        }
        settings.finder = find_owners::start().map(Arc::new);
    }
    let daemon = Daemon::start(settings).with_context(|| format!("proxy on {}", config.listen))?;
    #[cfg(feature = "dashboard")]
    crate::notices::start(config.view.notices.as_ref());
    let _confined = config
        .confine
        .then(|| confine::proxy(&config, &file).apply());
    log_lines::in_background();
    let waker = Waker::new().context("control socket")?;
    let wake = waker.clone();
    let control = match ControlServer::start(&config.control, &config.view, move || wake.wake()) {
        Ok(control) => Some(control),
        Err(StartError::Io(path, error))
            if !config.control_is_given && error.kind() == io::ErrorKind::PermissionDenied =>
        {
            let path = path.display();
            tracing::warn!(
                "no control socket: {path} may not be made; `control` in [proxy] names another place"
            );
            None
        }
        Err(error) => return Err(error.into()),
    };
    let mut store = open_store(&config, &daemon);
    let asked = Readiness::of(&waker).context("control socket")?;
    let name = daemon.local_addr().context("listen")?.to_string();
    tracing::info!(
        listen = name,
        policy = config.placer.policy.name(),
        "serving"
    );
    // This fails if no service manager supervises the daemon.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);

    let mut running = std::pin::pin!(daemon.run());
    let first = time::Instant::now() + KEEP_INTERVAL;
    let mut keep = time::interval_at(first, KEEP_INTERVAL);
    loop {
        tokio::select! {
            ended = &mut running => return ended.context("proxy"),
            ready = signalled.changed() => {
                ready.context("signals")?;
                if signals.take().is_some() {
                    break;
                }
            }
            _ = keep.tick() => save(store.as_mut(), &daemon),
            ready = asked.changed() => {
                ready.context("control socket")?;
                waker.clear();
                let requests = control.iter().flat_map(|(_, requests)| requests.try_iter());
                requests.for_each(|request| answer(&daemon, &name, (&config, &file), request));
            }
        }
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    save(store.as_mut(), &daemon);
    tracing::info!(listen = name, "stopped");
    Ok(())
}

/// Opens the database and passes its contents to `daemon`. Without a database the proxy works as well.
fn open_store(config: &ProxyConfig, daemon: &Daemon) -> Option<Store> {
    let path = config.state.as_ref()?;
    let opened = Store::open(path).and_then(|store| {
        daemon.restore(store.load()?);
        Ok(store)
    });
    opened
        .inspect_err(|error| tracing::warn!(path = %path.display(), "nothing is kept over a restart: {error:#}"))
        .ok()
}

fn save(store: Option<&mut Store>, daemon: &Daemon) {
    if let Some(Err(error)) = store.map(|store| store.save(&daemon.learnt())) {
        tracing::warn!(%error, "what was learnt is not kept");
    }
}

/// Reads the configuration file again. Changes of peers are applied immediately, other changes with the next start.
///
/// # Errors
/// The configuration file contains an error. Nothing is changed in this case.
fn reload(daemon: &Daemon, running: &ProxyConfig, file: &Path) -> anyhow::Result<ReloadReport> {
    let fresh = config::load_proxy(file)?.config;
    let peers = fresh.stripe.as_ref().map(known).transpose()?;
    let rest = |config: &ProxyConfig| {
        let mut config = config.clone();
        if let Some(stripe) = &mut config.stripe {
            stripe.known.clear();
        }
        // Secrets are not shown, but a changed key file is recognized by its public key.
        let key = config.stripe.as_ref();
        let key = key.map(|stripe| keys::public_of(&stripe.private_key));
        format!("{config:?}{key:?}")
    };
    let needs_restart = if rest(&fresh) == rest(running) {
        Vec::new()
    } else {
        vec!["what the file says beside [[known_peer]]".to_owned()]
    };
    Ok(ReloadReport {
        applied: daemon.set_known(peers.unwrap_or_default()),
        needs_restart,
    })
}

/// Returns all peers: the peers of the configuration file, and the peers of the store that the file does not name.
fn known(stripe: &StripeConfig) -> anyhow::Result<Vec<KnownPeer>> {
    let mut known = stripe.known.clone();
    if let Some(path) = &stripe.store {
        let kept = onboard::peer::known::peers(path);
        for peer in kept.with_context(|| format!("peers in {}", path.display()))? {
            let is_same =
                |other: &KnownPeer| other.name == peer.name || other.public_key == peer.public_key;
            if !known.iter().any(is_same) {
                known.push(peer);
            }
        }
    }
    Ok(known)
}

fn stripe_settings(
    stripe: &StripeConfig,
    max_connections: usize,
) -> anyhow::Result<StripeSettings> {
    let public_key = keys::public_of(&stripe.private_key);
    let store = stripe.store.as_ref();
    Ok(StripeSettings {
        keys: StaticKeys::from_private(stripe.private_key.expose()).into(),
        known: Known::new(known(stripe)?),
        enrolment: store.map(|path| onboard::peer::known::enrolment(path.clone(), public_key)),
        striping: stripe.striping,
        ask_port: stripe.ask_port,
        listen: stripe.listen,
        allow: stripe.allow.clone(),
        max: (max_connections / 2).clamp(1, MAX_STRIPED),
    })
}

fn settings(config: &ProxyConfig) -> anyhow::Result<Settings> {
    let descriptors = raise_descriptor_limit();
    // Each connection has two sockets. There are at most half as many idle sockets for reuse, half as many for parts of
    // answers, and half as many for connections that continue an answer after the first connection was lost. A pipe
    // exists only while it holds data.
    let room = descriptors.saturating_sub(RESERVED_DESCRIPTORS) * 2 / 7;
    let room = usize::try_from(room)
        .unwrap_or(usize::MAX)
        .clamp(16, MAX_CLIENTS);
    let max_connections = config
        .max_connections
        .map_or(room, |wanted| room.min(wanted.into()));
    if config
        .max_connections
        .is_some_and(|wanted| max_connections < wanted.into())
    {
        tracing::warn!(
            max_connections,
            "descriptors are enough for fewer connections only; raise `ulimit -n`"
        );
    }
    let stripe = config.stripe.as_ref();
    let stripe = stripe.map(|stripe| stripe_settings(stripe, max_connections));
    let stripe = stripe.transpose()?;
    Ok(Settings {
        listen: config.listen,
        allow: config.allow.clone(),
        max_connections,
        idle: config.idle,
        placer: config.placer.clone(),
        links: config.links.clone(),
        stripe,
        transparent: config.transparent.clone(),
        probes: config.probes.clone(),
        save_energy: config.save_energy,
        short_queues: config.short_queues,
        ranges: config.ranges,
        state_dir: DEFAULT_STATE_DIR.into(),
        finder: None,
    })
}

/// Raises the limit of open file descriptors to the permitted maximum. Returns the limit that then applies.
fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// Answers a control request. `source` is the current configuration and its file.
fn answer(daemon: &Daemon, name: &str, source: (&ProxyConfig, &Path), request: ControlRequest) {
    match request {
        ControlRequest::Only(_, reply) => reply.send(Err("this is a proxy, no tunnel".to_owned())),
        ControlRequest::Reload(reply) => {
            let (config, file) = source;
            let done = reload(daemon, config, file);
            reply.send(done.map_err(|error| format!("{error:#}")));
        }
        ControlRequest::Drain(_, reply) | ControlRequest::RemoveClient(_, reply) => {
            reply.send(Err("this is a proxy, no gateway".to_owned()));
        }
        ControlRequest::Set(set, reply) => {
            let change = set::change(&set).and_then(|change| daemon.change(change));
            if change.is_ok() {
                tracing::info!(?set, "changed");
            }
            reply.send(change);
        }
        ControlRequest::Status(reply) => reply.send(Ok(status(&daemon.report(), name))),
        ControlRequest::Weights(weights, reply) => {
            reply.send(daemon.change(Change::Weights(weights)));
        }
    }
}

fn status(report: &report::Report, name: &str) -> StatusReport {
    let connections = report
        .connections
        .iter()
        .map(|connection| ConnectionStatus {
            client: connection.client.clone(),
            app: connection.app.clone(),
            target: connection.target.clone(),
            protocol: connection.protocol.to_owned(),
            link: connection.link.clone(),
            why: connection.why.clone(),
            rate_mbps: connection.rate.as_mbps(),
            tx_bytes: connection.tx_bytes,
            rx_bytes: connection.rx_bytes,
            striped: connection.striped.as_ref().map(striped),
        });
    let drops = report.drops.iter();
    let bound = |link: &report::LinkReport| Some((link.name.clone(), link.bound?));
    StatusReport {
        mode: "proxy".to_owned(),
        name: name.to_owned(),
        up: report.links.iter().any(|link| {
            matches!(
                link.state,
                report::LinkState::Up | report::LinkState::Standby | report::LinkState::Suspect
            )
        }),
        links: report.links.iter().map(link_status).collect(),
        connections: connections.collect(),
        connection_count: Some(report.connection_count as u64),
        bound_sockets: report.links.iter().filter_map(bound).collect(),
        budgets: report.links.iter().filter_map(budget).collect(),
        residual_mbps: report.links.iter().filter_map(residual).collect(),
        applications: report.applications.iter().map(application).collect(),
        scheduler: SchedulerStatus {
            policy: report.policy.to_owned(),
        },
        drops: drops
            .map(|(reason, count)| ((*reason).to_owned(), *count))
            .collect(),
        ..StatusReport::default()
    }
}

fn residual(link: &report::LinkReport) -> Option<(String, f64)> {
    Some((link.name.clone(), link.residual?.as_mbps()))
}

fn application(
    (name, found): (&String, &report::ApplicationReport),
) -> (String, ApplicationStatus) {
    let status = ApplicationStatus {
        class: found.class.map(str::to_owned),
        demand_up_bytes: found.demand_up,
        demand_down_bytes: found.demand_down,
        connections: found.connections,
        last_bytes: found.last_bytes.clone(),
        link: found.link.clone(),
    };
    (name.clone(), status)
}

fn budget(link: &report::LinkReport) -> Option<(String, BudgetStatus)> {
    Some((link.name.clone(), link.budget?.into()))
}

fn striped(report: &report::StripedReport) -> StripedStatus {
    let lane = |lane: &report::LaneReport| LaneStatus {
        link: lane.link.clone(),
        state: if lane.is_suspect {
            LinkState::Suspect
        } else {
            LinkState::Up
        },
        rtt_ms: (lane.rtt.as_secs_f64() * 1e6).round() / 1e3,
        rate_mbps: lane.rate.as_mbps(),
        tx_bytes: lane.tx_bytes,
        rx_bytes: lane.rx_bytes,
        tx_datagrams: lane.tx_datagrams,
        rx_datagrams: lane.rx_datagrams,
    };
    StripedStatus {
        peer: report.peer.clone(),
        striping: report.striping.to_owned(),
        links: report.lanes.iter().map(lane).collect(),
        held_bytes: report.held_bytes,
        most_held_bytes: report.most_held_bytes,
        waiting_bytes: report.waiting_bytes,
        repeated_bytes: report.repeated_bytes,
    }
}

fn link_status(link: &report::LinkReport) -> LinkStatus {
    let state = match link.state {
        report::LinkState::Down => LinkState::Down,
        report::LinkState::Never => LinkState::Never,
        report::LinkState::Standby => LinkState::Standby,
        report::LinkState::Suspect => LinkState::Suspect,
        report::LinkState::Up => LinkState::Up,
    };
    LinkStatus {
        name: link.name.clone(),
        device: link.device.clone(),
        state,
        endpoint: None,
        rtt_ms: link.rtt.map(|rtt| (rtt.as_secs_f64() * 1e6).round() / 1e3),
        queue_delay_ms: None,
        capacity_mbps: link.download.map(pleach_core::units::Bitrate::as_mbps),
        loss: link.loss,
        tx_bytes: link.tx_bytes,
        rx_bytes: link.rx_bytes,
        weight: link.weight.map_or(1, u32::from),
        mtu: None,
        carrier: None,
        carrier_error: None,
        idle_reason: None,
        why: Some(reasons::by_state(&link.name, state)),
        advice: None,
    }
}

/// Interval at which estimates are stored.
const KEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Number of threads that look up names and processes. If all threads are busy, further lookups wait.
const BLOCKING_THREADS: usize = 16;
/// Number of file descriptors reserved for purposes other than clients.
const RESERVED_DESCRIPTORS: u64 = 256;
const MAX_CLIENTS: usize = 20_000;
/// Maximum number of striped connections: as many as one association can have.
const MAX_STRIPED: usize = stripe::MAX_CONNECTIONS;
