//! The table `[[link]]` of a client, `[[client]]` and `[invitations]` of a gateway.

use std::{collections::BTreeMap, net::SocketAddr};

use ipnet::IpNet;
use pleach_core::{endpoint::accounts::Caps, ids::PathId, units::Bitrate};

use super::{
    ClientPeer, Cost, HostName, InvitationsConfig, LinkConfig, budget, carrier,
    network::{self, Place as Where},
    scheduler, secret,
    source::{ConfigError, Note, Place},
    table::{Table, Value},
    tunnel,
};
use crate::keys::{self, KEY_LEN};

/// Keys of `[[link]]` in every mode.
pub(super) const LINK_KEYS: &[&str] = &["name", "device", "cost", "weight", "upload", "download"];

/// Keys of `[[link]]` in a tunnel's file.
pub(super) const TUNNEL_LINK_KEYS: &[&str] = &[
    "name",
    "device",
    "cost",
    "weight",
    "upload",
    "download",
    "budget",
    "billing_day",
    "at_limit",
    "carrier",
    "http_proxy",
    "http_proxy_user",
    "http_proxy_password_file",
];

/// Keys of `[[client]]`.
const CLIENT_KEYS: &[&str] = &[
    "name",
    "public_key",
    "preshared_key",
    "preshared_key_file",
    "allowed_ips",
    "scheduler",
    "rate_up",
    "rate_down",
];

/// Reads the gateway's `[invitations]`; `None` if the table is missing. `has_store`: whether `[clients]` names a store,
/// which then contains the invitations as well.
///
/// # Errors
/// The first mistake in the table.
pub(super) fn invitations(
    root: &Table<'_>,
    has_store: bool,
) -> Result<Option<InvitationsConfig>, ConfigError> {
    if root.optional("invitations").is_none() {
        return Ok(None);
    }
    let table = root.table("invitations", &["store", "endpoints", "dns"])?;
    let store = if has_store {
        if table.optional("store").is_some() {
            return Err(table.wrong(
                "store",
                "not used with a store in [clients], which contains the invitations as well",
                "remove it",
            ));
        }
        None
    } else {
        let store = table.required("store", "store = \"/var/lib/pleach/gateway\"")?;
        let path = store.text("a directory", "write a path as a string")?;
        if path.is_empty() || path.contains('\0') {
            return Err(store.expected(
                "a directory",
                "write for example \"/var/lib/pleach/gateway\"",
            ));
        }
        Some(root.source().directory().join(path))
    };
    let endpoints = table.required("endpoints", "endpoints = [\"203.0.113.5:7700\"]")?;
    Ok(Some(InvitationsConfig {
        store,
        endpoints: outer_addresses(&endpoints)?,
        dns: tunnel::resolvers(&table)?
            .into_iter()
            .map(|(server, _)| server)
            .collect(),
    }))
}

/// Reads a gateway's outer addresses and host names: at least one entry, all different.
pub(super) fn places(list: &Value<'_>) -> Result<(Vec<SocketAddr>, Vec<HostName>), ConfigError> {
    let (mut addresses, mut names) = (Vec::new(), Vec::new());
    for item in list.list(MAX_ENDPOINTS, "write for example [\"203.0.113.5:7700\"]")? {
        let is_again = match network::place(&item)? {
            Where::Address(address) => {
                addresses.push(address);
                addresses.iter().filter(|known| **known == address).count() > 1
            }
            Where::Name(name) => {
                names.push(name.clone());
                names.iter().filter(|known| **known == name).count() > 1
            }
        };
        if is_again {
            let text = item.as_text().unwrap_or_default();
            return Err(item.wrong(format!("{text} given twice"), "remove one of the two"));
        }
    }
    Ok((addresses, names))
}

/// Reads a gateway's outer addresses: at least one, all different.
pub(super) fn outer_addresses(list: &Value<'_>) -> Result<Vec<SocketAddr>, ConfigError> {
    let mut addresses = Vec::new();
    for item in list.list(MAX_ENDPOINTS, "write for example [\"203.0.113.5:7700\"]")? {
        let address = network::endpoint(&item)?;
        if addresses.contains(&address) {
            return Err(item.wrong(format!("{address} given twice"), "remove one of the two"));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

/// Reads the client's `[[link]]` tables, each with the position of its device.
///
/// # Errors
/// The first mistake in the tables, a name or device given twice, or too many tables.
pub(super) fn links(root: &Table<'_>) -> Result<Vec<(LinkConfig, Place)>, ConfigError> {
    links_with(root, TUNNEL_LINK_KEYS)
}

/// Reads the `[[link]]` tables, in which the keys `known` are permitted. Returns each link with the position of its
/// device.
///
/// # Errors
/// As [`links`].
pub(super) fn links_with(
    root: &Table<'_>,
    known: &[&str],
) -> Result<Vec<(LinkConfig, Place)>, ConfigError> {
    let tables = root.tables("link", known)?;
    if let Some(table) = tables.get(PathId::MAX) {
        return Err(ConfigError::new(
            table.place(),
            "[[link]]",
            format!("too many links: at most {} are allowed", PathId::MAX),
            "remove links",
        ));
    }
    let mut names = Unique::default();
    let mut devices = Unique::default();
    tables
        .iter()
        .map(|table| link(table, &mut names, &mut devices))
        .collect()
}

/// Reads the gateway's `[[client]]` tables.
///
/// # Errors
/// The first mistake in the tables. It is also a mistake if two clients have the same name, key or inner address, or if
/// the key of a client is `own_key`, the gateway's own public key.
pub(super) fn clients(
    root: &Table<'_>,
    own_key: &[u8; KEY_LEN],
    notes: &mut Vec<Note>,
) -> Result<Vec<ClientPeer>, ConfigError> {
    let tables = root.tables("client", CLIENT_KEYS)?;
    let mut names = Unique::default();
    let mut keys = Unique::default();
    let clients: Vec<ClientPeer> = tables
        .iter()
        .map(|table| client(table, own_key, &mut names, &mut keys, notes))
        .collect::<Result<_, _>>()?;
    let prefixes: Vec<(usize, IpNet)> = clients
        .iter()
        .enumerate()
        .flat_map(|(owner, client)| client.allowed_ips.iter().map(move |net| (owner, *net)))
        .collect();
    if let Some((first, second)) = network::overlap(&prefixes) {
        let ((other, other_net), (owner, net)) = (prefixes[first], prefixes[second]);
        return Err(tables[owner].wrong(
            "allowed_ips",
            format!(
                "{net} overlaps {other_net} of client \"{}\"",
                clients[other].name
            ),
            "give every inner address to one client only",
        ));
    }
    Ok(clients)
}

fn link(
    table: &Table<'_>,
    names: &mut Unique,
    devices: &mut Unique,
) -> Result<(LinkConfig, Place), ConfigError> {
    let name_value = table.required("name", "name = \"dsl\"")?;
    let name = network::name(&name_value)?;
    let device_value = table.required("device", "device = \"eth1\"")?;
    let device = network::device(&device_value)?;
    names.insert(&name, &name_value, "give every link its own name")?;
    devices.insert(&device, &device_value, "remove one of the two links")?;
    let weight = table.optional("weight").map(|value| {
        value.integer(
            1..=1000,
            "write a share such as 64; to disable a link, write cost = \"never\"",
        )
    });
    let (carrier, http_proxy) = carrier::of_link(table)?;
    let link = LinkConfig {
        carrier,
        http_proxy,
        name,
        device,
        cost: table
            .optional("cost")
            .as_ref()
            .map_or(Ok(Cost::Rank(0)), cost)?,
        weight: weight.transpose()?.unwrap_or(1),
        upload: table.optional("upload").as_ref().map(rate).transpose()?,
        download: table.optional("download").as_ref().map(rate).transpose()?,
        budget: budget::budget(table)?,
        at_limit: budget::at_limit(table)?,
    };
    Ok((link, device_value.place()))
}

fn client(
    table: &Table<'_>,
    own_key: &[u8; KEY_LEN],
    names: &mut Unique,
    public_keys: &mut Unique,
    notes: &mut Vec<Note>,
) -> Result<ClientPeer, ConfigError> {
    let name_value = table.required("name", "name = \"home\"")?;
    let name = network::name(&name_value)?;
    names.insert(&name, &name_value, "give every client its own name")?;
    let key_value = table.required("public_key", PUBLIC_KEY_EXAMPLE)?;
    let public_key = secret::public(&key_value)?;
    if public_key == *own_key {
        return Err(tunnel::own_key(table));
    }
    public_keys.insert(
        &keys::encode_public(&public_key),
        &key_value,
        "give every client its own key pair, made with `pleach genkey`",
    )?;
    let allowed_ips = table.required("allowed_ips", "allowed_ips = [\"10.77.0.2/32\"]")?;
    let scheduler = table
        .optional("scheduler")
        .map(|value| scheduler::read_table(&value, "[client.scheduler]"));
    Ok(ClientPeer {
        name,
        public_key,
        preshared_key: secret::optional(table, "preshared_key", "preshared_key_file", notes)?,
        allowed_ips: network::allowed_ips(&allowed_ips)?,
        scheduler: scheduler.transpose()?,
        caps: Caps {
            up: table.optional("rate_up").as_ref().map(rate).transpose()?,
            down: table.optional("rate_down").as_ref().map(rate).transpose()?,
        },
    })
}

fn cost(value: &Value<'_>) -> Result<Cost, ConfigError> {
    let rank = value
        .as_integer()
        .and_then(|number| u8::try_from(number).ok());
    match (rank, value.as_text()) {
        (Some(rank), _) => Ok(Cost::Rank(rank)),
        (_, Some("standby")) => Ok(Cost::Standby),
        (_, Some("never")) => Ok(Cost::Never),
        _ => Err(value.expected(
            "a whole number from 0 to 255, \"standby\" or \"never\"",
            "write 0 for the link to use first, a higher number for a more expensive one",
        )),
    }
}

fn rate(value: &Value<'_>) -> Result<Bitrate, ConfigError> {
    let what = "a rate above zero such as \"64Mbit\" (bit, kbit, Mbit, Gbit)";
    let remedy = "write number and unit as a string, or remove the limit";
    let rate: Bitrate = value.parse(what, remedy)?;
    if rate == Bitrate::ZERO {
        return Err(value.expected(what, remedy));
    }
    Ok(rate)
}

/// Values that may appear only once, each with the position of its first appearance.
#[derive(Default)]
pub(super) struct Unique(BTreeMap<String, Place>);

impl Unique {
    pub(super) fn insert(
        &mut self,
        text: &str,
        value: &Value<'_>,
        remedy: &str,
    ) -> Result<(), ConfigError> {
        match self.0.insert(text.to_owned(), value.place()) {
            None => Ok(()),
            Some(first) => {
                let line = first.line.unwrap_or_default();
                Err(value.wrong(format!("\"{text}\" is already used on line {line}"), remedy))
            }
        }
    }
}

pub(super) const PUBLIC_KEY_EXAMPLE: &str =
    "public_key = \"KEY\", the public key of the other end, as printed by `pleach pubkey`";

/// Maximum number of outer addresses, more than any gateway has.
const MAX_ENDPOINTS: usize = 16;
