//! The gateways of a client: which of them is in use, and whether the others could take over.

use std::net::SocketAddr;

use anyhow::Context as _;
use pleach_core::session::{
    handshake::{NO_PSK, StaticKeys},
    secret::Secret,
};
use pleach_linux::watch::{LinkSnapshot, Targets};

use super::{PROBED, Report, checks, uplinks_of};
use crate::{
    config::{ClientConfig, GatewayPeer, TunnelConfig},
    control::StatusReport,
    onboard::{
        probe::{self, Findings, Parties},
        uplinks::Uplink,
    },
    run_tunnel::names,
};

/// Returns the gateway that the daemon uses; without a daemon, the first one.
pub(super) fn in_use<'a>(
    client: &'a ClientConfig,
    status: Option<&StatusReport>,
) -> anyhow::Result<&'a GatewayPeer> {
    let used = status.and_then(|status| status.gateways.iter().find(|gateway| gateway.used));
    let mut gateways = client.gateways.iter();
    let named = used.and_then(|used| gateways.find(|gateway| gateway.name == used.name));
    named
        .or(client.gateways.first())
        .context("a client without a gateway")
}

/// Returns the addresses of a gateway, including those of its names.
pub(super) fn endpoints(gateway: &GatewayPeer, config: &TunnelConfig) -> Vec<SocketAddr> {
    let mut endpoints = gateway.endpoints.clone();
    endpoints.extend(names::look_up(&gateway.names, None, &config.name));
    endpoints
}

/// Checks whether the gateways other than `used` could take over: by the daemon's status, or by handshakes if no
/// daemon runs.
pub(super) fn look_at_others(
    config: &TunnelConfig,
    client: &ClientConfig,
    used: &GatewayPeer,
    status: Option<&StatusReport>,
    report: &mut Report,
) -> anyhow::Result<()> {
    if let Some(status) = status {
        report
            .problems
            .extend(checks::gateways::from_status(status));
        return Ok(());
    }
    for gateway in client.gateways.iter().filter(|g| g.name != used.name) {
        let endpoints = endpoints(gateway, config);
        let targets = Targets {
            addresses: endpoints.iter().map(SocketAddr::ip).collect(),
            fwmark: None,
        };
        let links = LinkSnapshot::read_all(&targets).context("devices of this host")?;
        let mut uplinks = uplinks_of(client, &config.name, &links);
        uplinks.retain(|uplink| !uplink.link.ways.is_empty());
        let findings = shake_hands(config, gateway, &uplinks, &endpoints)?;
        report.problems.extend(checks::gateways::from_handshakes(
            &gateway.name,
            findings.is_enrolled,
            &findings.links,
        ));
    }
    Ok(())
}

/// Performs handshakes with a gateway over each of `uplinks`.
pub(super) fn shake_hands(
    config: &TunnelConfig,
    gateway: &GatewayPeer,
    uplinks: &[Uplink],
    endpoints: &[SocketAddr],
) -> anyhow::Result<Findings> {
    let keys = StaticKeys::from_private(config.private_key.expose());
    let psk = gateway.preshared_key.as_ref();
    let parties = Parties {
        keys: &keys,
        gateway: gateway.public_key,
        psk: &psk.map_or_else(|| Secret::from(NO_PSK), |psk| psk.expose().into()),
        claim: None,
        fwmark: 0,
        patience: PROBED,
    };
    probe::run(uplinks, endpoints, &parties)
}
