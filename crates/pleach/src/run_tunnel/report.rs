//! Collects the values that `pleach status` shows.

use std::{collections::BTreeMap, time::Duration};

use pleach_core::{
    endpoint::Endpoint,
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

/// Properties of the daemon that the engine does not know.
pub(crate) struct Identity<'a> {
    /// Whether this daemon is a client.
    pub(crate) is_client: bool,
    /// Name of the tunnel.
    pub(crate) name: &'a str,
    /// Name of the policy.
    pub(crate) policy: &'a str,
}

/// Returns the status of the daemon. `device_of`: returns the device of a link of this end. `host_drops`: packets that
/// the kernel did not accept or did not deliver completely, by reason.
pub(crate) fn status(
    identity: &Identity<'_>,
    endpoint: &Endpoint,
    device_of: impl Fn(&PathStatus) -> String,
    host_drops: &[(&str, u64)],
) -> StatusReport {
    let peers: Vec<_> = endpoint.status().collect();
    let usage = endpoint.usage().map(|(_, usage)| usage);
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
                .zip(usage)
                .map(|((peer, status), usage)| {
                    let caps = endpoint.caps(&peer.public_key).unwrap_or_default();
                    ClientStatus {
                        name: peer.name.clone(),
                        up: status.is_up,
                        links: links_of(status),
                        up_bytes: usage.up_bytes,
                        down_bytes: usage.down_bytes,
                        rate_up_mbps: caps.up.map(Bitrate::as_mbps),
                        rate_down_mbps: caps.down.map(Bitrate::as_mbps),
                    }
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

/// Returns the counters of all classes that have sent packets, summed over all peers.
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

/// Returns the memory that packets of each peer take, and the number of refusals.
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
        limit_bytes: endpoint.kept().total(),
        peer_limit_bytes: endpoint.kept().peer_limit(),
        peers: peers
            .filter(|(_, bounds)| *bounds != PeerBounds::default())
            .collect(),
    }
}

/// Returns the sum of the parity counters of all peers; `None` if no peer has any.
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

/// Returns the sum of the repair counters of all peers.
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
    // The idle reason may be missing because the path carried packets a moment ago.
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

/// Returns a duration in milliseconds, rounded to three decimals.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
