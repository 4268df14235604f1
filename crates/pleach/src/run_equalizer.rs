//! The equalizer daemon: joins [`pleach_equalizer`] to configuration, signals, links and the control socket.
//!
//! The daemon has one thread. It processes no packets; the kernel does. On SIGTERM or SIGINT, the daemon undoes its
//! changes and ends.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::Context as _;
use pleach_core::{time::Instant, units::Bitrate};
use pleach_equalizer::{
    auto::AutoSettings,
    daemon::{Daemon, LinkReport, Report, Settings},
};
use pleach_linux::{
    clock,
    poll::{Poller, Signals, Token, Waker},
    state::{DEFAULT_STATE_DIR, StateDir},
    watch::LinkWatch,
};

use crate::{
    config::EqualizerConfig,
    confine,
    control::{
        ControlRequest, HoldStatus, LinkState, LinkStatus, SchedulerStatus, SplitStatus,
        SplitterStatus, StatusReport, server::ControlServer,
    },
    log_lines, reasons,
};

/// Runs the equalizer that `config`, read from `file`, describes until SIGTERM or SIGINT.
///
/// # Errors
/// The error because of which the daemon cannot start or continue.
pub(crate) fn run(config: &EqualizerConfig, file: &Path) -> anyhow::Result<()> {
    // Signals are blocked before any thread starts, so that all threads leave signals to the poller.
    let mut signals = Signals::block(&[libc::SIGTERM, libc::SIGINT]).context("signals")?;
    // The directory of state files and sockets must exist before it can be granted.
    StateDir::open(DEFAULT_STATE_DIR.as_ref()).context("state directory")?;
    #[cfg(feature = "dashboard")]
    crate::notices::start(config.view.notices.as_ref());
    let _confined = config
        .confine
        .then(|| confine::equalizer(config, file).apply());
    log_lines::in_background();
    let waker = Waker::new().context("control socket")?;
    let wake = waker.clone();
    let (_server, requests) =
        ControlServer::start(&config.control, &config.view, move || wake.wake())?;
    let mut daemon = Daemon::start(settings(config), clock::now()).context("equalizer")?;
    let watch = LinkWatch::start().context("watching links")?;
    let poller = Poller::new().context("epoll")?;
    poller.add(&signals, SIGNALS)?;
    poller.add(&waker, CONTROL)?;
    poller.add(&watch, LINKS)?;
    let (backend, why) = daemon.backend();
    tracing::info!(%backend, why, links = config.links.len(), "equalizer ready");
    let mut is_announced = false;
    let mut events = Vec::new();
    loop {
        poller
            .wait(Some(daemon.poll_timeout()), &mut events)
            .context("epoll")?;
        if signals.take().is_some() {
            break;
        }
        let now = clock::now();
        if let Some(snapshots) = watch.take() {
            daemon.handle_links(now, &snapshots);
            if !std::mem::replace(&mut is_announced, true) {
                // This fails if no service manager supervises the daemon.
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
            }
        }
        waker.clear();
        for request in requests.try_iter() {
            answer(&mut daemon, now, request);
        }
        daemon.handle_timeout(now);
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    daemon.stop().context("undoing the host configuration")?;
    tracing::info!("stopped");
    Ok(())
}

fn settings(config: &EqualizerConfig) -> Settings {
    Settings {
        destinations: config.destinations.clone(),
        backend: config.backend,
        mode: config.mode,
        probe: config.probe,
        source: config.weights,
        auto: AutoSettings {
            interval: config.interval,
            ..AutoSettings::default()
        },
        guideline: config.guideline,
        links: config.links.clone(),
        state_dir: Path::new(DEFAULT_STATE_DIR).to_owned(),
    }
}

fn answer(daemon: &mut Daemon, now: Instant, request: ControlRequest) {
    match request {
        ControlRequest::Only(_, reply) => {
            reply.send(Err("this is an equalizer, no tunnel".to_owned()))
        }
        ControlRequest::Reload(reply) => {
            reply.send(Err(
                "an equalizer reads its file at the start only: restart it".to_owned(),
            ));
        }
        ControlRequest::Drain(_, reply) | ControlRequest::RemoveClient(_, reply) => {
            reply.send(Err("this is an equalizer, no gateway".to_owned()));
        }
        ControlRequest::Set(_, reply) => {
            reply.send(Err("this is an equalizer, which has no rules".to_owned()));
        }
        ControlRequest::Status(reply) => reply.send(Ok(status(&daemon.report(now), now))),
        ControlRequest::Weights(weights, reply) => reply.send(daemon.handle_weights(now, &weights)),
    }
}

fn status(report: &Report, now: Instant) -> StatusReport {
    StatusReport {
        mode: "equalize".to_owned(),
        name: report.backend.to_string(),
        up: report.links.iter().any(|link| link.view.is_up),
        links: report.links.iter().map(link_status).collect(),
        scheduler: SchedulerStatus {
            policy: report.source.to_string(),
        },
        splitter: Some(SplitterStatus {
            backend: report.backend.to_string(),
            backend_why: report.backend_why.clone(),
            weights: report.source.to_string(),
            last_change_why: report.last_change.as_ref().map(|(why, _)| why.clone()),
            last_change_seconds: report
                .last_change
                .as_ref()
                .map(|(_, at)| tenths(now.since(*at))),
            hold: report.hold.map(|hold| HoldStatus {
                probe: hold.probe,
                keeps_flows: hold.keeps_flows,
                not_held: hold.not_held,
                lost: hold.lost,
            }),
            links: splits(&report.links),
        }),
        ..StatusReport::default()
    }
}

fn splits(links: &[LinkReport]) -> BTreeMap<String, SplitStatus> {
    let packets = links
        .iter()
        .map(|link| link.sent_since_change.packets)
        .sum();
    let bytes = links.iter().map(|link| link.sent_since_change.bytes).sum();
    let split = |link: &LinkReport| SplitStatus {
        share_wanted: link.view.share,
        share_packets: fraction(link.sent_since_change.packets, packets),
        share_bytes: fraction(link.sent_since_change.bytes, bytes),
        packets: link.sent.packets,
        background_mbps: link.view.load.background.as_mbps(),
        available_mbps: link.view.load.available.map(Bitrate::as_mbps),
        hold_ms: link.holding.map(|holding| millis(holding.hold)),
        held_bytes: link.holding.map(|holding| holding.waiting.get()),
    };
    links
        .iter()
        .map(|link| (link.name.clone(), split(link)))
        .collect()
}

fn link_status(link: &LinkReport) -> LinkStatus {
    let impairment = link.view.impairment;
    let asked = link.holding.map(|holding| holding.round_trip);
    let asked = asked.filter(|round_trip| !round_trip.is_zero());
    let state = if link.view.is_up {
        LinkState::Up
    } else {
        LinkState::Down
    };
    LinkStatus {
        name: link.name.clone(),
        device: link.device.clone(),
        state,
        endpoint: None,
        rtt_ms: asked
            .or(impairment.map(|impairment| impairment.delay))
            .map(millis),
        queue_delay_ms: None,
        capacity_mbps: link.view.load.rate.map(Bitrate::as_mbps),
        loss: impairment.map_or(0.0, |impairment| impairment.loss),
        tx_bytes: link.sent.bytes,
        rx_bytes: link.rx_bytes,
        weight: link.view.weight,
        mtu: None,
        carrier: None,
        carrier_error: None,
        idle_reason: None,
        why: Some(reasons::by_state(&link.name, state)),
        advice: None,
    }
}

/// Returns a share as a fraction. `None` if nothing was sent.
#[expect(clippy::cast_precision_loss, reason = "display only")]
fn fraction(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn tenths(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

const SIGNALS: Token = Token(0);
const CONTROL: Token = Token(1);
const LINKS: Token = Token(2);
