//! `pleach gateway init`.
//!
//! Order: examine the host, choose the settings, write key and configuration, start. Nothing is written before all
//! checks have passed. A later failure removes the files that were written. The configuration is written last, so an
//! interruption leaves at most a key and an empty directory, which the next `pleach gateway init` uses.

use std::{
    fmt::Write as _,
    fs,
    net::{IpAddr, SocketAddr, TcpListener},
    path::{self, Path, PathBuf},
};

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use pleach_linux::watch::{LinkSnapshot, Targets};

use super::{FILE, Gateway, NAME};
use crate::{
    keys::{self, SecretKey},
    onboard::{
        self,
        bad_input::BadInput,
        durable::Draft,
        firewall, host, networks,
        outer::{self, Outer},
        place::Place,
        service::{self, Kind, Start},
    },
};

/// Options of `pleach gateway init`.
#[derive(Debug, clap::Args)]
pub(crate) struct Init {
    /// UDP port to listen on [default: 7700]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Address, with or without a port, under which clients reach this host; may be given several times [default: the
    /// addresses of this host's devices]
    #[arg(long = "endpoint", value_name = "ADDRESS", value_parser = parse_endpoint)]
    endpoints: Vec<Endpoint>,
    /// Inner network, such as 10.77.0.0/22 or fd77::/64; may be given once for each address family [default: a network
    /// that is unused on this host]
    #[arg(long = "network", value_name = "NET")]
    networks: Vec<IpNet>,
    /// Keep the clients in a store that other programs can change, with caps and byte counters (docs/clients.md)
    #[arg(long)]
    store: bool,
    /// Only write the files, do not start the daemon
    #[arg(long)]
    no_start: bool,
    #[command(flatten)]
    place: Place,
}

/// An address of the gateway, with a port if it differs from the port it listens on.
#[derive(Clone, Copy, Debug)]
pub(in crate::onboard) struct Endpoint {
    pub(in crate::onboard) ip: IpAddr,
    pub(in crate::onboard) port: Option<u16>,
}

pub(super) fn run(options: &Init) -> anyhow::Result<String> {
    host::require_root("gateway init")?;
    let file = options.place.config(FILE);
    let mut text = String::new();
    if file.exists() {
        let gateway = Gateway::read(&file)?;
        gateway.invitations()?;
        refuse_changes(options, &gateway, &file)?;
        let _ = writeln!(
            text,
            "This host is a gateway already: {} stays as it is.",
            file.display()
        );
    } else {
        make(options, &file, &mut text)?;
    }
    let gateway = Gateway::read(&file)?;
    let is_running = service::is_running(&gateway.config.control);
    let start = if options.no_start || is_running {
        Start::ByHand
    } else {
        service::start(&options.place, Kind::Tunnel, NAME)?
    };
    tell(&gateway, start, is_running, &file, &mut text);
    Ok(text)
}

/// Writes all files of a new gateway.
fn make(options: &Init, file: &Path, text: &mut String) -> anyhow::Result<()> {
    host::require_tun()?;
    let listen = host::free_listen_address(options.port.unwrap_or(DEFAULT_PORT))?;
    let links = LinkSnapshot::read_all(&Targets::default()).context("devices of this host")?;
    let outer = outer(options, &links, listen.port())?;
    if !outer.is_public {
        let named: Vec<String> = outer
            .endpoints
            .iter()
            .map(|endpoint| endpoint.ip().to_string())
            .collect();
        let _ = writeln!(
            text,
            "Warning: this host has private addresses only ({}). If clients connect over the Internet, remove {} and run this command again with --endpoint and the public address.",
            named.join(", "),
            file.display()
        );
    }
    let addresses = inner_addresses(options, &links)?;
    let has_v6_way = links.iter().any(|link| link.has_default_v6);

    let mut draft = Draft::default();
    let directory = options.place.directory();
    draft
        .directory(directory, 0o755)
        .map_err(|error| host::cannot_write(directory, &error))?;
    let store = options.place.state("gateway");
    draft
        .directory(&store, 0o700)
        .map_err(|error| host::cannot_write(&store, &error))?;
    let key_file = options.place.config(KEY_FILE);
    if !key_file.exists() {
        let key = SecretKey::random().context("no random numbers from the kernel")?;
        let line = zeroize::Zeroizing::new(format!("{}\n", *key.to_base64()));
        draft
            .file(&key_file, line.as_bytes(), 0o600)
            .map_err(|error| host::cannot_write(&key_file, &error))?;
    }
    let list = |items: Vec<String>| format!("[{}]", items.join(", "));
    let quoted = |item: &dyn std::fmt::Display| format!("\"{item}\"");
    let content = format!(
        "# Written by `pleach gateway init`. Change it as you like: all keys are in the example gateway.toml.\n\
         mode = \"gateway\"\n\n\
         [tunnel]\n\
         name = \"{}\"\n\
         address = {}\n\
         private_key_file = \"{KEY_FILE}\"\n\
         listen = \"{listen}\"\n\
         control = {:?}\n\
         nat = {}\n\n\
         {}\
         # A host that joins with a token of `pleach gateway invite` becomes a client; the store contains these clients.\n\
         {}\
         endpoints = {}                # addresses of this gateway, written into tokens\n",
        onboard::free_device(&links),
        list(addresses.iter().map(|net| quoted(net)).collect()),
        options.place.control(NAME).display().to_string(),
        if has_v6_way { "\"nat66\"" } else { "true" },
        carrier(listen.ip()),
        clients(&absolute(&store)?, options.store),
        list(
            outer
                .endpoints
                .iter()
                .map(|endpoint| quoted(endpoint))
                .collect()
        ),
    );
    draft
        .file(file, content.as_bytes(), 0o600)
        .map_err(|error| host::cannot_write(file, &error))?;
    // The daemon must be able to read the file that was written.
    Gateway::read(file)?;
    draft.keep();
    let _ = writeln!(text, "This host is a gateway now: {}.", file.display());
    Ok(())
}

/// Returns the configuration of the listener for links that TCP carries. Returns an empty string if another program,
/// such as a web server, uses the port.
fn carrier(listen: IpAddr) -> String {
    let address = SocketAddr::new(listen, CARRIER_PORT);
    if TcpListener::bind(address).is_err() {
        return String::new();
    }
    format!(
        "# Accept links over TCP from networks that block UDP.\n[carrier]\nlisten = \"{address}\"\n\n"
    )
}

/// Returns the tables that name the store of clients in the directory `store`, up to the further keys of
/// `[invitations]`. `is_database`: whether the store is a database.
fn clients(store: &Path, is_database: bool) -> String {
    if is_database {
        let file = store.join("clients.db").display().to_string();
        format!("[clients]\nsource = \"sqlite\"\nstore = {file:?}\n\n[invitations]\n")
    } else {
        let directory = store.display().to_string();
        format!("[invitations]\nstore = {directory:?}\n")
    }
}

fn outer(options: &Init, links: &[LinkSnapshot], port: u16) -> anyhow::Result<Outer> {
    if !options.endpoints.is_empty() {
        let endpoints = options.endpoints.iter();
        let endpoints =
            endpoints.map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port.unwrap_or(port)));
        return Ok(Outer {
            endpoints: endpoints.collect(),
            is_public: true,
        });
    }
    let found = outer::find(links, port);
    if found.endpoints.is_empty() {
        bail!(
            "this host has only loopback addresses: connect it to the network, or give its address with --endpoint"
        );
    }
    Ok(found)
}

fn inner_addresses(options: &Init, links: &[LinkSnapshot]) -> anyhow::Result<Vec<IpNet>> {
    let taken = networks::taken(links, "")?;
    let random = SecretKey::random().context("no random numbers from the kernel")?;
    let seed = random
        .expose()
        .first_chunk()
        .map_or(0, |seed| u64::from_be_bytes(*seed));
    if options.networks.is_empty() {
        return Ok(networks::choose(&taken, seed)?.to_vec());
    }
    options
        .networks
        .iter()
        .map(|net| {
            if let Some(other) = networks::overlapping(*net, &taken) {
                return Err(BadInput::error(format!(
                    "--network {net} overlaps {other}, which this host uses: give another network"
                )));
            }
            let first = net
                .hosts()
                .next()
                .filter(|_| net.prefix_len() + 2 <= net.max_prefix_len());
            // The subnet-router anycast address (RFC 4291 section 2.6.1) cannot be a host's address.
            let first = first.and_then(|first| match first {
                IpAddr::V4(first) => Some(IpAddr::V4(first)),
                IpAddr::V6(_) => net.hosts().nth(1),
            });
            let own = first.and_then(|first| IpNet::new(first, net.prefix_len()).ok());
            own.ok_or_else(|| {
                BadInput::error(format!(
                    "--network {net} has no free address for clients: give a larger network"
                ))
            })
        })
        .collect()
}

/// Refuses options that contradict the existing configuration.
fn refuse_changes(options: &Init, gateway: &Gateway, file: &Path) -> anyhow::Result<()> {
    let port = gateway.role.listen.port();
    let differs = if options.store && gateway.role.store.is_none() {
        Some("--store")
    } else if options.port.is_some_and(|wanted| wanted != port) {
        Some("--port")
    } else if options.endpoints.iter().any(|wanted| {
        let wanted = SocketAddr::new(wanted.ip, wanted.port.unwrap_or(port));
        let invitations = gateway.role.invitations.as_ref();
        invitations.is_none_or(|invitations| !invitations.endpoints.contains(&wanted))
    }) {
        Some("--endpoint")
    } else if options.networks.iter().any(|wanted| {
        let own = gateway.config.addresses.iter().map(IpNet::trunc);
        !own.collect::<Vec<_>>().contains(&wanted.trunc())
    }) {
        Some("--network")
    } else {
        None
    };
    match differs {
        Some(option) => Err(BadInput::error(format!(
            "{option} differs from {}: edit that file, or remove it to start anew",
            file.display()
        ))),
        None => Ok(()),
    }
}

fn tell(gateway: &Gateway, start: Start, is_running: bool, file: &Path, text: &mut String) {
    let port = gateway.role.listen.port();
    let key = keys::encode_public(&keys::public_of(&gateway.config.private_key));
    let invitations = gateway.role.invitations.iter();
    let endpoints = invitations
        .flat_map(|invitations| &invitations.endpoints)
        .map(ToString::to_string);
    let networks = gateway
        .config
        .addresses
        .iter()
        .map(|net| net.trunc().to_string());
    let _ = writeln!(text, "Public key      {key}");
    let _ = writeln!(
        text,
        "Reached at      {}",
        endpoints.collect::<Vec<_>>().join(", ")
    );
    let _ = writeln!(
        text,
        "Inner networks  {}",
        networks.collect::<Vec<_>>().join(", ")
    );
    let _ = writeln!(
        text,
        "Firewall of your provider (security group, port forwarding): allow incoming UDP port {port} from all addresses, and all outgoing UDP."
    );
    if let Some(carrier) = &gateway.role.carrier {
        let _ = writeln!(
            text,
            "Also allow incoming TCP port {}, for clients in networks that block UDP.",
            carrier.listen.port()
        );
    }
    if let Some(obstacle) = firewall::obstacle(port) {
        let _ = writeln!(text, "Warning: {obstacle}.");
    }
    if fs::metadata("/proc/sys/net/ipv4/ip_forward")
        .is_ok_and(|metadata| metadata.permissions().readonly())
    {
        let _ = writeln!(
            text,
            "Warning: pleach cannot enable forwarding on this host (/proc/sys is read-only): set net.ipv4.ip_forward=1 outside of the container."
        );
    }
    let next = "`pleach gateway invite NAME` prints a token for a client";
    let _ = match (start, is_running) {
        (_, true) => writeln!(text, "The gateway is running. Next: {next}."),
        (Start::Enabled, false) => writeln!(
            text,
            "The gateway is running, and will start at boot (service pleach@{NAME}). Next: {next}."
        ),
        (Start::ByHand, false) => writeln!(
            text,
            "Start the gateway with `pleach up {}`, and make your init system start it at boot. Next: {next}.",
            file.display()
        ),
    };
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    path::absolute(path).with_context(|| format!("{}", path.display()))
}

pub(in crate::onboard) fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let ip_only = bare.parse().map(|ip| Endpoint { ip, port: None });
    let with_port = || {
        text.parse::<SocketAddr>().map(|address| Endpoint {
            ip: address.ip(),
            port: Some(address.port()),
        })
    };
    ip_only.or_else(|_| with_port()).map_err(|_| {
        "expected an IP address, with or without a port, such as 203.0.113.5".to_owned()
    })
}

const KEY_FILE: &str = "gateway.key";
/// Port of the carrier, where clients expect it: the HTTPS port.
const CARRIER_PORT: u16 = 443;
/// Default UDP port, the one used in all examples.
const DEFAULT_PORT: u16 = 7700;
