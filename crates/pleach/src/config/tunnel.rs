//! Reads complete files of clients and gateways, and the table `[tunnel]` that both have.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use pleach_core::{class::Class, endpoint::workers::MAX_WORKERS, sec::Code};

use super::{
    ClientConfig, GatewayConfig, Loaded, Nat, Role, SchedulerConfig, TunnelConfig, ViewConfig,
    carrier, classes, clients, fleet, gateways, network, peers, proxy, rules,
    scheduler::{self, sec},
    secret,
    source::{ConfigError, Note, Place},
    table::{Table, Value},
    view,
};
use crate::{keys, portal::CheckUrl, split_tcp::SplitTcp};

/// Reads a file with `mode = "client"`.
///
/// # Errors
/// The first mistake in the file.
pub(super) fn client(root: &Table<'_>) -> Result<Loaded, ConfigError> {
    refuse_other_mode(
        root,
        "client",
        &["client", "clients", "invitations", "fleet"],
    )?;
    root.allow(&[
        "mode",
        "tunnel",
        "scheduler",
        "gateway",
        "link",
        "carrier",
        "class",
        "rule",
        "dashboard",
        "metrics",
        "notices",
    ])?;
    let tunnel = root.table(
        "tunnel",
        &[
            "name",
            "address",
            "confine",
            "private_key",
            "private_key_file",
            "control",
            "mtu",
            "compression",
            "parity",
            "remember",
            "split_tcp",
            "kill_switch",
            "dns",
            "state",
            "gateway_return",
            "portal_check",
            "workers",
        ],
    )?;
    one_worker(&tunnel)?;
    let mut notes = Vec::new();
    let name = network::tunnel_name(&tunnel.required("name", "name = \"pleach0\"")?)?;
    let links = peers::links(root)?;
    let devices = links.iter().map(|(link, _)| link.device.as_str());
    refuse_own_device(root, &name, devices)?;
    let common = common(root, &tunnel, name, &mut notes)?;
    let own_key = keys::public_of(&common.private_key);
    let gateways = gateways::read(root, &own_key, &mut notes)?;
    let mut named = common.scheduler.policy.links().into_iter();
    let is_unknown = |name: &str| !links.iter().any(|(known, _)| known.name == name);
    if let Some((key, link)) = named.find(|(_, name)| !links.is_empty() && is_unknown(name)) {
        let names: Vec<&str> = links.iter().map(|(link, _)| link.name.as_str()).collect();
        let table = root.table("scheduler", &scheduler::keys())?;
        let remedy = format!("write the name of a [[link]]: {}", names.join(", "));
        return Err(table.wrong(key, format!("no link is called \"{link}\""), &remedy));
    }
    let names: Vec<&str> = links.iter().map(|(link, _)| link.name.as_str()).collect();
    let known = (!names.is_empty()).then_some(names.as_slice());
    let classes = classes::read(root, known)?;
    let standby = links.iter().map(|(link, _)| link);
    let standby: Vec<&str> = rules::standby(standby).collect();
    let links_of_rules = rules::Links {
        names: known,
        standby: &standby,
    };
    let kill_switch = switch(&tunnel, "kill_switch", false)?;
    let (rules, past) = rules::of_client(root, links_of_rules, kill_switch)?;
    let (links, device_places) = links.into_iter().unzip();
    let carrier = carrier::client(root)?;
    if gateways.len() > 1 && !carrier.endpoints.is_empty() {
        return Err(root.wrong(
            "carrier",
            "endpoints do not say to which of several gateways they belong",
            "remove endpoints: port 443 of each gateway is used",
        ));
    }
    let mut client = ClientConfig {
        gateway_return: gateways::return_after(&tunnel, &gateways)?,
        gateways,
        links,
        rules,
        past,
        carrier,
        kill_switch,
        dns: Vec::new(),
        portal_check: tunnel
            .optional("portal_check")
            .as_ref()
            // A request outside the tunnel needs the user's consent where a kill switch is on.
            .map_or(Ok((!kill_switch).then(CheckUrl::default)), portal_check)?,
        state: tunnel
            .optional("state")
            .as_ref()
            .map(proxy::state)
            .transpose()?,
    };
    client.dns = dns(&tunnel, &client.allowed_ips(), &mut notes)?;
    Ok(Loaded {
        config: common.with_role(Role::Client(client), classes),
        notes,
        listen_place: None,
        device_places,
    })
}

/// Reads a file with `mode = "gateway"`.
///
/// # Errors
/// The first mistake in the file.
pub(super) fn gateway(root: &Table<'_>) -> Result<Loaded, ConfigError> {
    refuse_other_mode(root, "gateway", &["gateway", "link", "rule"])?;
    root.allow(&[
        "mode",
        "tunnel",
        "scheduler",
        "client",
        "clients",
        "carrier",
        "class",
        "invitations",
        "fleet",
        "dashboard",
        "metrics",
        "notices",
    ])?;
    let tunnel = root.table(
        "tunnel",
        &[
            "name",
            "address",
            "confine",
            "private_key",
            "private_key_file",
            "control",
            "mtu",
            "compression",
            "parity",
            "remember",
            "split_tcp",
            "listen",
            "nat",
            "isolate",
            "speedtest",
            "workers",
        ],
    )?;
    let mut notes = Vec::new();
    let name = network::tunnel_name(&tunnel.required("name", "name = \"pleach0\"")?)?;
    let common = common(root, &tunnel, name, &mut notes)?;
    let listen = tunnel.required("listen", "listen = \"[::]:7700\"")?;
    let nat = tunnel.optional("nat").as_ref().map_or(Ok(Nat::Off), nat)?;
    let own_key = keys::public_of(&common.private_key);
    let clients = peers::clients(root, &own_key, &mut notes)?;
    let store = clients::read(root, &common.addresses, &common.name)?;
    let invitations = peers::invitations(root, store.is_some())?;
    let fleet = fleet::read(root, store.as_ref(), nat, &mut notes)?;
    if clients.is_empty() && invitations.is_none() && store.is_none() {
        notes.push(Note {
            place: root.source().whole(),
            text: "no [[client]], no [clients] and no [invitations]: no client can connect to this gateway"
                .to_owned(),
            warning: true,
        });
    }
    let role = Role::Gateway(GatewayConfig {
        listen: network::listen(&listen)?,
        carrier: carrier::gateway(root)?,
        nat,
        isolate: switch(&tunnel, "isolate", true)?,
        speedtest: switch(&tunnel, "speedtest", true)?,
        workers: workers(&tunnel)?,
        clients,
        store,
        invitations,
        fleet,
    });
    let classes = classes::read(root, None)?;
    Ok(Loaded {
        config: common.with_role(role, classes),
        notes,
        listen_place: Some(listen.place()),
        device_places: Vec::new(),
    })
}

/// Makes the error that the table `peer` has this end's own public key under `public_key`.
pub(super) fn own_key(peer: &Table<'_>) -> ConfigError {
    peer.wrong(
        "public_key",
        "is the public key of this end itself",
        "write the public key of the other end",
    )
}

/// The settings of `[tunnel]` that clients and gateways share.
struct Common {
    name: String,
    addresses: Vec<ipnet::IpNet>,
    private_key: keys::SecretKey,
    control: PathBuf,
    mtu: Option<u16>,
    compression: bool,
    parity: Option<Code>,
    remember: bool,
    split_tcp: SplitTcp,
    scheduler: SchedulerConfig,
    view: ViewConfig,
    confine: bool,
}

impl Common {
    fn with_role(self, role: Role, classes: Vec<Class>) -> TunnelConfig {
        let Self {
            name,
            addresses,
            private_key,
            control,
            mtu,
            compression,
            parity,
            remember,
            split_tcp,
            scheduler,
            view,
            confine,
        } = self;
        TunnelConfig {
            name,
            addresses,
            private_key,
            control,
            mtu,
            compression,
            parity,
            remember,
            split_tcp,
            scheduler,
            classes,
            view,
            confine,
            role,
        }
    }
}

fn common(
    root: &Table<'_>,
    tunnel: &Table<'_>,
    name: String,
    notes: &mut Vec<Note>,
) -> Result<Common, ConfigError> {
    let address = tunnel.required("address", "address = [\"10.77.0.2/24\"]")?;
    let addresses = network::addresses(&address)?;
    let private_key = secret::required(tunnel, "private_key", "private_key_file", notes)?;
    let control = match tunnel.optional("control") {
        Some(value) => control(&value)?,
        None => Path::new(RUN_DIRECTORY).join(format!("{name}.sock")),
    };
    let mtu = tunnel.optional("mtu").map(|value| {
        value.integer(
            1280..=9000,
            "remove it to use the MTU of the links' devices, or write 1280 (the minimum of IPv6) to 9000",
        )
    });
    Ok(Common {
        name,
        addresses,
        private_key,
        control,
        mtu: mtu.transpose()?,
        compression: switch(tunnel, "compression", true)?,
        parity: tunnel
            .optional("parity")
            .map(|value| sec::parity(&value))
            .transpose()?,
        remember: switch(tunnel, "remember", true)?,
        split_tcp: tunnel
            .optional("split_tcp")
            .as_ref()
            .map_or(Ok(SplitTcp::default()), split_tcp)?,
        scheduler: scheduler::read(root)?,
        view: view::read(root)?,
        confine: switch(tunnel, "confine", true)?,
    })
}

/// Reads the number of data threads of a gateway; `None` for `"auto"`, and if the key is missing.
///
/// # Errors
/// If the value is anything else than `"auto"` or a number from 1 to [`MAX_WORKERS`].
fn workers(tunnel: &Table<'_>) -> Result<Option<usize>, ConfigError> {
    let Some(value) = tunnel.optional("workers") else {
        return Ok(None);
    };
    if value.as_text() == Some("auto") {
        return Ok(None);
    }
    let number = value
        .as_integer()
        .and_then(|number| usize::try_from(number).ok());
    let number = number.filter(|number| (1..=MAX_WORKERS).contains(number));
    number.map(Some).ok_or_else(|| {
        value.expected(
            "\"auto\" or a number from 1 to 64",
            "write \"auto\", or as many data threads as the machine has processor cores",
        )
    })
}

/// Refuses several data threads of a client.
fn one_worker(tunnel: &Table<'_>) -> Result<(), ConfigError> {
    match workers(tunnel)? {
        None | Some(1) => Ok(()),
        Some(_) => Err(tunnel.wrong(
            "workers",
            "a client has one data thread",
            "remove it; it is a setting of gateways",
        )),
    }
}

/// Reads a boolean; returns `usual` if the key is missing.
///
/// # Errors
/// If the value is no boolean.
pub(super) fn switch(table: &Table<'_>, key: &str, usual: bool) -> Result<bool, ConfigError> {
    let switch = table.optional(key).map(|value| {
        value
            .as_bool()
            .ok_or_else(|| value.expected("true or false", "write true, or remove it"))
    });
    Ok(switch.transpose()?.unwrap_or(usual))
}

fn split_tcp(value: &Value<'_>) -> Result<SplitTcp, ConfigError> {
    match value.as_text() {
        Some("auto") => Ok(SplitTcp::Auto),
        Some("on") => Ok(SplitTcp::On),
        Some("off") => Ok(SplitTcp::Off),
        _ => Err(value.expected(
            "\"auto\", \"on\" or \"off\"",
            "write \"auto\" to split TCP connections if the RTTs of the links differ much, or \"off\"",
        )),
    }
}

/// Reads the tunnel's resolvers. Adds a note for each resolver that is not reached through the tunnel.
fn dns(
    tunnel: &Table<'_>,
    allowed_ips: &[ipnet::IpNet],
    notes: &mut Vec<Note>,
) -> Result<Vec<IpAddr>, ConfigError> {
    let mut servers = Vec::new();
    for (server, place) in resolvers(tunnel)? {
        if !allowed_ips.iter().any(|net| net.contains(&server)) {
            notes.push(Note {
                place,
                text: format!("queries to the resolver {server} do not use the tunnel: no network of allowed_ips contains it"),
                warning: true,
            });
        }
        servers.push(server);
    }
    Ok(servers)
}

/// Reads the list `dns` of `table`, with the position of each address.
///
/// # Errors
/// If an item is not the address of a host.
pub(super) fn resolvers(table: &Table<'_>) -> Result<Vec<(IpAddr, Place)>, ConfigError> {
    let Some(list) = table.optional("dns") else {
        return Ok(Vec::new());
    };
    let remedy = "write the addresses of resolvers, for example [\"10.77.0.1\"]";
    let mut servers = Vec::new();
    for item in list.list(MAX_RESOLVERS, remedy)? {
        let server: IpAddr = item.parse("the address of a resolver", remedy)?;
        if server.is_unspecified() || server.is_multicast() {
            return Err(item.expected("the address of a resolver", remedy));
        }
        servers.push((server, item.place()));
    }
    Ok(servers)
}

/// Reports tables that belong to the other mode, so that they do not look like typing mistakes.
fn refuse_other_mode(root: &Table<'_>, mode: &str, foreign: &[&str]) -> Result<(), ConfigError> {
    match root.present().into_iter().find(|key| foreign.contains(key)) {
        Some(key) => Err(root.wrong(
            key,
            format!("not used with mode = \"{mode}\""),
            "remove it, or correct the mode",
        )),
        None => Ok(()),
    }
}

fn refuse_own_device<'a>(
    root: &Table<'_>,
    name: &str,
    mut devices: impl Iterator<Item = &'a str>,
) -> Result<(), ConfigError> {
    let Some(index) = devices.position(|device| device == name) else {
        return Ok(());
    };
    let tables = root.tables("link", peers::TUNNEL_LINK_KEYS)?;
    let table = tables.get(index).unwrap_or(root);
    Err(table.wrong(
        "device",
        format!("\"{name}\" is the tunnel's own device"),
        "write the device of an uplink",
    ))
}

/// Reads a path that fits into a UNIX socket address.
///
/// # Errors
/// If the value is anything else.
pub(super) fn control(value: &Value<'_>) -> Result<PathBuf, ConfigError> {
    let what = "an absolute path of at most 107 bytes";
    let remedy = "write for example \"/run/pleach/pleach0.sock\"";
    let text = value.text(what, remedy)?;
    if !text.starts_with('/') || text.ends_with('/') || text.len() > 107 || text.contains('\0') {
        return Err(value.expected(what, remedy));
    }
    Ok(PathBuf::from(text))
}

/// Reads the page of the check for captive portals; `None` if the check is off.
fn portal_check(value: &Value<'_>) -> Result<Option<CheckUrl>, ConfigError> {
    let text = value.as_text();
    if text == Some("off") {
        return Ok(None);
    }
    let url = text.and_then(|text| text.parse().ok());
    url.map(Some).ok_or_else(|| {
        value.expected(
            "\"off\", or a URL that begins with http://",
            "write a page that answers with status 204, such as \"http://connectivity-check.ubuntu.com/\"; portals cannot answer for https",
        )
    })
}

fn nat(value: &Value<'_>) -> Result<Nat, ConfigError> {
    match (value.as_bool(), value.as_text()) {
        (Some(false), _) => Ok(Nat::Off),
        (Some(true), _) => Ok(Nat::Ipv4),
        (_, Some("nat66")) => Ok(Nat::Ipv4AndIpv6),
        _ => Err(value.expected(
            "true, false or \"nat66\"",
            "write true for NAT of IPv4, \"nat66\" for NAT of IPv6 too",
        )),
    }
}

/// Maximum number of resolvers: `MAXNS` of resolv.conf(5).
const MAX_RESOLVERS: usize = 3;
/// Default directory of control sockets.
pub(crate) const RUN_DIRECTORY: &str = "/run/pleach";
