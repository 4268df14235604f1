//! `pleach gateway invite`.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, bail};
use ipnet::IpNet;
use pleach_core::session::secret::Secret;
use pleach_linux::{
    clock,
    watch::{LinkSnapshot, Targets},
};

use super::Gateway;
use crate::{
    clients::StoreError,
    config, keys,
    keys::SecretKey,
    onboard::{
        self,
        bad_input::BadInput,
        code, host,
        place::Place,
        service,
        store::Offer,
        token::{MAX_ITEMS, Token},
    },
};

/// Options of `pleach gateway invite`.
#[derive(Debug, clap::Args)]
pub(crate) struct Invite {
    /// Name of the client
    #[arg(value_name = "NAME")]
    name: String,
    /// Validity of the token, from 1m to 30d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_expiry)]
    expires: Duration,
    /// Destinations that the client sends through the tunnel, comma-separated [default: all that this gateway can
    /// forward]
    #[arg(long, value_name = "NETS", value_delimiter = ',')]
    routes: Vec<IpNet>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

pub(super) fn run(options: &Invite) -> anyhow::Result<String> {
    host::require_root("gateway invite")?;
    if !config::is_name(&options.name) {
        return Err(BadInput::error(format!(
            "{:?} is not a valid name for a client: use 1 to 32 characters from A-Z a-z 0-9 . _ -",
            options.name
        )));
    }
    let gateway = Gateway::load(&options.place)?;
    gateway.may_change_clients()?;
    let invitations = gateway.invitations()?;
    let name = &options.name;
    if gateway
        .role
        .clients
        .iter()
        .any(|client| client.name == *name)
    {
        bail!("client {name:?} is in the configuration already: choose another name");
    }
    let routes = routes(&options.routes)?;
    let random = SecretKey::random().context("no random numbers from the kernel")?;
    let now = clock::unix_nanos() / 1_000_000_000;
    let expires_at = now + options.expires.as_secs();
    let mut token = Token {
        secret: Secret::from(random.expose()),
        gateway_key: keys::public_of(&gateway.config.private_key),
        expires_at: u32::try_from(expires_at).unwrap_or(u32::MAX),
        addresses: Vec::new(),
        endpoints: invitations.endpoints.clone(),
        routes,
        dns: invitations.dns.clone(),
    };
    let networks = networks(&gateway);
    let configured = gateway.role.clients.iter();
    let mut taken: Vec<IpNet> = configured
        .flat_map(|client| client.allowed_ips.clone())
        .collect();
    let own = gateway.config.addresses.iter();
    taken.extend(own.map(|net| IpNet::from(net.addr())));
    let mut store = gateway.members()?.context("no store of invitations")?;
    let offer = Offer {
        id: token.id(),
        name,
        key: token.key(),
        expires_at,
    };
    let made = store.invite(&offer, now, &networks, &taken);
    let invitation = made.map_err(|error| {
        if matches!(error, StoreError::Exists) {
            anyhow!("there is a client {name:?} already: choose another name, or `pleach gateway remove {name}` first")
        } else if matches!(error, StoreError::Full) {
            anyhow!("the inner network has no free address: remove clients, or set a larger network in [tunnel] address")
        } else {
            gateway.told(error)
        }
    })?;
    let lens = networks.iter().map(IpNet::prefix_len);
    let addresses = invitation.addresses.iter().zip(lens);
    token.addresses = addresses
        .filter_map(|(address, len)| IpNet::new(*address, len).ok())
        .collect();
    let line = token.to_text();
    if !service::is_running(&gateway.config.control) {
        onboard::note(
            "the gateway is not running, so no client can join: run `pleach gateway init`, which starts it or shows how to start it",
        );
    }
    if options.json {
        let json = serde_json::json!({
            "name": name,
            "token": *line,
            "expires_at": humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(expires_at)).to_string(),
            "addresses": invitation.addresses,
            "endpoints": token.endpoints,
            "routes": token.routes,
            "dns": token.dns,
        });
        return Ok(format!("{json:#}\n"));
    }
    let code = code::render(&line).unwrap_or_default();
    Ok(format!(
        "{}\n\n{code}\nSend the line to {name} so that only {name} can read it; on that host, `pleach join` asks for it. The token works once, within {}.\n",
        *line,
        onboard::spelled(options.expires)
    ))
}

/// Returns the gateway's own address and network, or its home network in a fleet, at most one of each address family.
fn networks(gateway: &Gateway) -> Vec<IpNet> {
    let home = gateway.role.fleet.as_ref().map(|fleet| &fleet.home);
    let networks = home.unwrap_or(&gateway.config.addresses);
    let of = |is_v4: bool| {
        let mut networks = networks.iter();
        networks
            .find(move |net| net.addr().is_ipv4() == is_v4)
            .copied()
    };
    [of(true), of(false)].into_iter().flatten().collect()
}

/// Returns the destinations in the token that clients route through the tunnel.
fn routes(wanted: &[IpNet]) -> anyhow::Result<Vec<IpNet>> {
    if wanted.len() > MAX_ITEMS {
        return Err(BadInput::error(format!(
            "--routes: more than {MAX_ITEMS} networks: give fewer"
        )));
    }
    if let Some(net) = wanted.iter().find(|net| net.trunc() != **net) {
        return Err(BadInput::error(format!(
            "--routes: {net} has host bits set: write {}",
            net.trunc()
        )));
    }
    if !wanted.is_empty() {
        return Ok(wanted.to_vec());
    }
    let links = LinkSnapshot::read_all(&Targets::default()).context("devices of this host")?;
    // If this host has no IPv6 connectivity, clients keep their own IPv6 route.
    let has_v6 = links.iter().any(|link| link.has_default_v6);
    let all = ["0.0.0.0/0", "::/0"]
        .into_iter()
        .take(1 + usize::from(has_v6));
    Ok(all.filter_map(|net| net.parse().ok()).collect())
}

pub(in crate::onboard) fn parse_expiry(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time from 1m to 30d, such as 24h".to_owned();
    let time = humantime::parse_duration(text).map_err(|_| expected())?;
    if (LEAST_EXPIRY..=MOST_EXPIRY).contains(&time) {
        Ok(time)
    } else {
        Err(expected())
    }
}

/// Shortest validity: clocks of two hosts may differ by less.
const LEAST_EXPIRY: Duration = Duration::from_secs(60);
/// Longest validity: a token that stays valid for longer and is forgotten is a risk.
const MOST_EXPIRY: Duration = Duration::from_secs(30 * 24 * 3600);
