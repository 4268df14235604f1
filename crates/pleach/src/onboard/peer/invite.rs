//! `pleach peer invite`.
//!
//! Order: examine the host; make key, store and `[peer]` of the proxy's configuration unless they exist; make the
//! invitation; make the proxy answer. A failure removes the files that were made.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context as _, anyhow, bail};
use ipnet::IpNet;
use pleach_core::session::secret::Secret;
use pleach_linux::{
    clock,
    watch::{LinkSnapshot, Targets},
};

use super::{FILE, file, known, put_in_force, token::PeerToken};
use crate::{
    config::{self, plain},
    keys::{self, SecretKey},
    onboard::{
        self,
        bad_input::BadInput,
        code,
        durable::Draft,
        gateway::{Endpoint, parse_endpoint, parse_expiry},
        host, outer,
        place::Place,
        store::{Offer, Store},
        token::MAX_ITEMS,
    },
};

/// Options of `pleach peer invite`.
#[derive(Debug, clap::Args)]
pub(crate) struct Invite {
    /// Name of the peer
    #[arg(value_name = "NAME")]
    name: String,
    /// Validity of the token, from 1m to 30d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_expiry)]
    expires: Duration,
    /// TCP port to answer on [default: the port of the configuration, else 7701]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Address, with or without a port, under which the peer reaches this host; may be given several times [default:
    /// the addresses of the configuration, else those of this host's devices]
    #[arg(long = "endpoint", value_name = "ADDRESS", value_parser = parse_endpoint)]
    endpoints: Vec<Endpoint>,
    /// Networks behind this host that the peer may reach, comma-separated [default: only this host]
    #[arg(long, value_name = "NETS", value_delimiter = ',')]
    networks: Vec<IpNet>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only write the files, do not start or restart the proxy
    #[arg(long)]
    no_start: bool,
    #[command(flatten)]
    place: Place,
}

pub(super) fn run(options: &Invite) -> anyhow::Result<String> {
    host::require_root("peer invite")?;
    check(options)?;
    let place = &options.place;
    let name = &options.name;
    let mut draft = Draft::default();
    let section = match file::read(place)? {
        Some(section) => section,
        None => file::create(place, &mut draft)?,
    };
    let wanted = answering(options, section.clone())?;
    if wanted != section && !section.is_ours {
        bail!(
            "[peer] in {} does not say all that the invitation needs, and was not written by `pleach peer`: set listen, endpoints and allow there{}",
            place.config(FILE).display(),
            if options.networks.is_empty() {
                ""
            } else {
                " (allow: the --networks)"
            }
        );
    }
    let path = &wanted.store;
    let cannot = |error: &io::Error| host::cannot_write(path, error);
    let peers = known::peers(path).map_err(|error| cannot(&error))?;
    if peers.iter().any(|peer| peer.name == *name) {
        bail!(
            "there is a peer {name:?} already: choose another name, or `pleach peer remove {name}` first"
        );
    }
    let now = clock::unix_nanos() / 1_000_000_000;
    let expires_at = now + options.expires.as_secs();
    let random = SecretKey::random().context("no random numbers from the kernel")?;
    let token = PeerToken {
        secret: Secret::from(random.expose()),
        public_key: keys::public_of(&wanted.key),
        expires_at: u32::try_from(expires_at).unwrap_or(u32::MAX),
        name: host_name(),
        endpoints: wanted.endpoints.clone(),
        networks: options.networks.clone(),
    };
    let offer = Offer {
        id: token.id(),
        name,
        key: token.key(),
        expires_at,
    };
    // The configuration comes first: an invitation is useless if the proxy does not know its store.
    let before = file::text(place)?;
    let is_changed = section.is_ours && file::write(place, &wanted)?;
    let made = Store::open(path).and_then(|store| store.invite(&offer, now, &[], &[]));
    if let Err(error) = made {
        if is_changed {
            file::restore(place, before.as_deref())?;
        }
        return Err(cannot(&error));
    }
    draft.keep();
    let said = put_in_force(place, is_changed, options.no_start)?;
    Ok(tell(options, &token, expires_at, &said))
}

fn check(options: &Invite) -> anyhow::Result<()> {
    if !config::is_name(&options.name) {
        return Err(BadInput::error(format!(
            "{:?} is no name for a peer: take 1 to 32 characters out of A-Z a-z 0-9 . _ -",
            options.name
        )));
    }
    if options.networks.len() > MAX_ITEMS || options.endpoints.len() > MAX_ITEMS {
        return Err(BadInput::error(format!(
            "--networks, --endpoint: more than {MAX_ITEMS}: name fewer"
        )));
    }
    if let Some(net) = options.networks.iter().find(|net| net.trunc() != **net) {
        return Err(BadInput::error(format!(
            "--networks: {net} has host bits set: write {}",
            net.trunc()
        )));
    }
    Ok(())
}

/// Returns `section` with the changes that the invitation needs.
fn answering(
    options: &Invite,
    mut section: file::PeerSection,
) -> anyhow::Result<file::PeerSection> {
    let is_other = |listen: SocketAddr| options.port.is_some_and(|port| port != listen.port());
    let listen = match section.listen {
        Some(listen) if !is_other(listen) => listen,
        Some(_) | None => free_listen_address(options.port.unwrap_or(DEFAULT_PORT))?,
    };
    section.listen = Some(listen);
    if !options.endpoints.is_empty() {
        let endpoints = options.endpoints.iter();
        let port = listen.port();
        section.endpoints = endpoints
            .map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port.unwrap_or(port)))
            .collect();
    }
    if section.endpoints.is_empty() {
        let links = LinkSnapshot::read_all(&Targets::default()).context("devices of this host")?;
        let found = outer::find(&links, listen.port());
        if found.endpoints.is_empty() {
            bail!(
                "this host has no address but its loopback: connect it to the network, or name its address with --endpoint"
            );
        }
        if !found.is_public {
            onboard::note(
                "this host has private addresses only: if the peer comes through the Internet, name the public one with --endpoint",
            );
        }
        section.endpoints = found.endpoints;
    }
    for net in &options.networks {
        if !section.allow.iter().any(|allowed| allowed.contains(net)) {
            section.allow.push(*net);
        }
    }
    Ok(section)
}

/// Returns the address to listen on at `port`.
fn free_listen_address(port: u16) -> anyhow::Result<SocketAddr> {
    let has_v6 = Path::new("/proc/sys/net/ipv6").exists();
    let address = if has_v6 {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))
    } else {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
    };
    TcpListener::bind(address).map_err(|error| {
        anyhow!(
            "cannot listen on TCP port {port}: {}; choose another with --port",
            plain(&error)
        )
    })?;
    Ok(address)
}

/// Returns the host name if it is valid as the name of a peer, else "peer".
fn host_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    let short = name.split('.').next().unwrap_or_default();
    if config::is_name(short) {
        short.to_owned()
    } else {
        "peer".to_owned()
    }
}

fn tell(options: &Invite, token: &PeerToken, expires_at: u64, said: &str) -> String {
    let line = token.to_text();
    let name = &options.name;
    if options.json {
        let expires_at = UNIX_EPOCH + Duration::from_secs(expires_at);
        let json = serde_json::json!({
            "name": name,
            "token": *line,
            "expires_at": humantime::format_rfc3339_seconds(expires_at).to_string(),
            "endpoints": token.endpoints,
            "networks": token.networks,
        });
        return format!("{json:#}\n");
    }
    let code = code::render(&line).unwrap_or_default();
    let ports: Vec<String> = token.endpoints.iter().map(ToString::to_string).collect();
    format!(
        "{}\n\n{code}\nSend the line to {name} so that only {name} can read it; there, `pleach peer accept` asks for it. It works once, within {}.\nIt reaches this host at {}: let that TCP port in.\n{said}",
        *line,
        onboard::spelled(options.expires),
        ports.join(", ")
    )
}

/// Default TCP port, the one used in all examples.
const DEFAULT_PORT: u16 = 7701;
