//! What `pleach status` shows.

use std::{collections::BTreeMap, time::Duration};

use pleach_core::{
    endpoint::{Endpoint, kept},
    path::health::State,
    trace::IdleReason,
    tunnel::{PathStatus, TunnelStatus},
    units::Bitrate,
    wire::control::LinkRole,
};

use crate::{
    control::{
        BoundsReport, ClassStatus, ClientStatus, LinkState, LinkStatus, ParityReport, PeerBounds,
        RepairStatus, ResequencerStatus, SchedulerStatus, StatusReport,
    },
    reasons,
};

/// What the engine does not know of its daemon.
pub(crate) struct Identity<'a> {
    /// Whether it is the client.
    pub(crate) is_client: bool,
    /// Name of the tunnel.
    pub(crate) name: &'a str,
    /// Name of the policy.
    pub(crate) policy: &'a str,
}

/// A snapshot of the daemon. `device_of`: the device of a link of ours. `host_drops`: what the kernel did not take or
/// give whole.
pub(crate) fn status(
    identity: &Identity<'_>,
    endpoint: &Endpoint,
    device_of: impl Fn(&PathStatus) -> String,
    host_drops: &[(&str, u64)],
) -> StatusReport {
    let peers: Vec<_> = endpoint.status().collect();
    let is_client = identity.is_client;
    let links_of = |status: &TunnelStatus| -> Vec<LinkStatus> {
        status
            .paths
            .iter()
            .map(|path| link_status(path, device_of(path)))
            .collect()
    };
    let mut drops: BTreeMap<String, u64> = endpoint
        .drops()
        .iter()
        .map(|(reason, count)| (reason.name().to_owned(), count))
        .collect();
    let host_drops = host_drops.iter();
    drops.extend(host_drops.map(|(reason, count)| ((*reason).to_owned(), *count)));
    StatusReport {
        mode: if is_client { "client" } else { "gateway" }.to_owned(),
        name: identity.name.to_owned(),
        up: !is_client || endpoint.is_up(),
        links: if is_client {
            peers
                .iter()
                .flat_map(|(_, status)| links_of(status))
                .collect()
        } else {
            Vec::new()
        },
        clients: if is_client {
            Vec::new()
        } else {
            peers
                .iter()
                .map(|(peer, status)| ClientStatus {
                    name: peer.name.clone(),
                    up: status.is_up,
                    links: links_of(status),
                })
                .collect()
        },
        scheduler: SchedulerStatus {
            policy: identity.policy.to_owned(),
        },
        resequencer: ResequencerStatus {
            held: peers.iter().map(|(_, status)| status.held as u64).sum(),
            released_late: peers
                .iter()
                .map(|(_, status)| status.resequencer.released_late)
                .sum(),
            hold_p95_ms: peers
                .iter()
                .map(|(_, status)| millis(status.hold_p95))
                .fold(0.0, f64::max),
        },
        classes: classes(peers.iter().map(|(_, status)| status)),
        parity: parity(peers.iter().map(|(_, status)| status)),
        bounds: Some(bounds(endpoint)),
        repair: Some(repair(peers.iter().map(|(_, status)| status))),
        drops,
        ..StatusReport::default()
    }
}

/// Classes that have sent something, over all peers.
fn classes<'a>(peers: impl Iterator<Item = &'a TunnelStatus>) -> BTreeMap<String, ClassStatus> {
    let mut classes: BTreeMap<String, ClassStatus> = BTreeMap::new();
    let counted = peers.flat_map(|status| &status.classes);
    for (name, counts) in counted.filter(|(_, counts)| counts.packets > 0) {
        let class = classes.entry(name.clone()).or_default();
        class.packets += counts.packets;
        class.bytes += counts.bytes.get();
        class.copies += counts.copies;
        class.copied_bytes += counts.copied_bytes.get();
        class.expired += counts.expired;
    }
    classes
}

/// What packets of peers take, and what was refused.
fn bounds(endpoint: &Endpoint) -> BoundsReport {
    let peers = endpoint.status().map(|(peer, status)| {
        let bounds = PeerBounds {
            kept_bytes: status.kept_bytes,
            refused: status.refused,
        };
        (peer.name.clone(), bounds)
    });
    BoundsReport {
        kept_bytes: endpoint.kept().bytes(),
        limit_bytes: kept::TOTAL_BYTES,
        peer_limit_bytes: endpoint.kept().peer_limit(),
        peers: peers
            .filter(|(_, bounds)| *bounds != PeerBounds::default())
            .collect(),
    }
}

/// Over all peers that have any.
fn parity<'a>(peers: impl Iterator<Item = &'a TunnelStatus>) -> Option<ParityReport> {
    peers
        .filter_map(|status| status.parity)
        .map(|parity| ParityReport {
            mended: parity.mended,
            cut_short: parity.cut_short,
        })
        .reduce(|sum, parity| ParityReport {
            mended: sum.mended + parity.mended,
            cut_short: sum.cut_short + parity.cut_short,
        })
}

/// Over all peers.
fn repair<'a>(peers: impl Iterator<Item = &'a TunnelStatus>) -> RepairStatus {
    peers.fold(RepairStatus::default(), |sum, status| RepairStatus {
        queued: sum.queued + status.queued as u64,
        reinjected: sum.reinjected + status.reinjected,
        symbols_sent: sum.symbols_sent + status.symbols[0],
        symbols_received: sum.symbols_received + status.symbols[1],
        recovered: sum.recovered + status.recovered,
    })
}

fn link_status(path: &PathStatus, device: String) -> LinkStatus {
    // It may have carried packets a moment ago.
    let idle = path.idle.or(match path.state {
        State::Down | State::Probing => Some(IdleReason::Down),
        State::Suspect => Some(IdleReason::Suspect),
        State::Up => None,
    });
    LinkStatus {
        name: path.name.clone(),
        device,
        state: match (path.role, path.state) {
            (LinkRole::Never, _) => LinkState::Never,
            (_, State::Down | State::Probing) => LinkState::Down,
            (_, State::Suspect) => LinkState::Suspect,
            (LinkRole::Standby, State::Up) => LinkState::Standby,
            (LinkRole::Active, State::Up) => LinkState::Up,
        },
        endpoint: path.remote.map(|remote| remote.to_string()),
        rtt_ms: path.smoothed_rtt.map(millis),
        queue_delay_ms: Some(millis(path.queue_delay)),
        capacity_mbps: path.rate.map(Bitrate::as_mbps),
        loss: f64::from(path.loss_ppm.unwrap_or(0)) / 1e6,
        tx_bytes: path.tx_bytes,
        rx_bytes: path.rx_bytes,
        weight: path.weight,
        mtu: Some(path.mtu),
        carrier: None,
        carrier_error: None,
        idle_reason: idle.map(|reason| reason.word().to_owned()),
        why: Some(match idle {
            Some(reason) => format!("{} {reason}", path.name),
            None => format!("{} carries packets", path.name),
        }),
        advice: idle
            .and_then(|reason| reasons::advice(reason.word()))
            .map(str::to_owned),
    }
}

/// Milliseconds with three decimals.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
