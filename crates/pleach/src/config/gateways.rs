//! The gateways of a client: one table `[gateway]`, or a table `[[gateway]]` for each.

use std::{collections::BTreeSet, time::Duration};

use ipnet::IpNet;

use super::{
    ClientConfig, GatewayPeer, HostName, network, peers, secret,
    source::{ConfigError, Note},
    table::Table,
    tunnel,
};
use crate::keys::{self, KEY_LEN};

/// Keys of `[gateway]`.
const ONE_KEYS: &[&str] = &[
    "public_key",
    "preshared_key",
    "preshared_key_file",
    "endpoints",
    "allowed_ips",
];

/// Keys of `[[gateway]]`.
const SEVERAL_KEYS: &[&str] = &[
    "name",
    "priority",
    "public_key",
    "preshared_key",
    "preshared_key_file",
    "endpoints",
    "allowed_ips",
];

/// Reads the gateways of a client whose own public key is `own_key`: at least one, sorted by priority. Gateways of
/// equal priority are in the order of the file.
///
/// # Errors
/// The first mistake in the tables. It is also a mistake if two gateways have the same name, key or endpoint, or if a
/// gateway has the key `own_key`.
pub(super) fn read(
    root: &Table<'_>,
    own_key: &[u8; KEY_LEN],
    notes: &mut Vec<Note>,
) -> Result<Vec<GatewayPeer>, ConfigError> {
    let is_list = root
        .optional("gateway")
        .is_some_and(|value| value.is_list());
    if !is_list {
        let table = root.table("gateway", ONE_KEYS)?;
        return Ok(vec![gateway(&table, ONE_NAME.to_owned(), own_key, notes)?]);
    }
    let tables = root.tables("gateway", SEVERAL_KEYS)?;
    if tables.is_empty() {
        return Err(root.wrong(
            "gateway",
            "an empty list: a client needs a gateway",
            "add a table [[gateway]] with its keys",
        ));
    }
    if let Some(table) = tables.get(MAX_GATEWAYS) {
        return Err(ConfigError::new(
            table.place(),
            "[[gateway]]",
            format!("too many gateways: at most {MAX_GATEWAYS} are allowed"),
            "remove gateways",
        ));
    }
    let [mut names, mut public_keys, mut endpoints] = [(); 3].map(|()| peers::Unique::default());
    let mut gateways = Vec::new();
    for table in &tables {
        let name_value = table.required("name", "name = \"frankfurt\"")?;
        let name = network::name(&name_value)?;
        names.insert(&name, &name_value, "give every gateway its own name")?;
        let gateway = gateway(table, name, own_key, notes)?;
        let key = table.required("public_key", peers::PUBLIC_KEY_EXAMPLE)?;
        public_keys.insert(
            &keys::encode_public(&gateway.public_key),
            &key,
            "write each gateway once, with all its endpoints; two gateways need two key pairs",
        )?;
        let list = table.required("endpoints", ENDPOINTS_EXAMPLE)?;
        let named = gateway.names.iter();
        let named = named.map(|HostName { name, port }| format!("{name}:{port}"));
        let addresses = gateway.endpoints.iter().map(ToString::to_string);
        for endpoint in addresses.chain(named) {
            endpoints.insert(&endpoint, &list, "give every endpoint to one gateway only")?;
        }
        gateways.push(gateway);
    }
    note_networks(&tables, &gateways, notes);
    gateways.sort_by_key(|gateway| gateway.priority);
    Ok(gateways)
}

/// Reads `[tunnel] gateway_return`: how long another gateway must have been better before it replaces a gateway that
/// works. `None`: it never does.
///
/// # Errors
/// If the value is neither a number of seconds nor `"never"`, or if the client has only one gateway.
pub(super) fn return_after(
    table: &Table<'_>,
    gateways: &[GatewayPeer],
) -> Result<Option<Duration>, ConfigError> {
    let Some(value) = table.optional("gateway_return") else {
        return Ok(Some(RETURN_AFTER));
    };
    if gateways.len() == 1 {
        return Err(value.wrong(
            "the client has one gateway only",
            "remove it, or add a [[gateway]] for every gateway",
        ));
    }
    let seconds = value
        .as_integer()
        .and_then(|seconds| u64::try_from(seconds).ok());
    match (seconds, value.as_text()) {
        (Some(seconds @ 5..=86_400), _) => Ok(Some(Duration::from_secs(seconds))),
        (_, Some("never")) => Ok(None),
        _ => Err(value.expected(
            "a number of seconds from 5 to 86400, or \"never\"",
            "write for example 60, or \"never\" to leave a gateway only when it falls silent",
        )),
    }
}

fn gateway(
    table: &Table<'_>,
    name: String,
    own_key: &[u8; KEY_LEN],
    notes: &mut Vec<Note>,
) -> Result<GatewayPeer, ConfigError> {
    let public_key = table.required("public_key", peers::PUBLIC_KEY_EXAMPLE)?;
    let endpoints = table.required("endpoints", ENDPOINTS_EXAMPLE)?;
    let allowed_ips = table.required("allowed_ips", "allowed_ips = [\"0.0.0.0/0\", \"::/0\"]")?;
    let (endpoints, names) = peers::places(&endpoints)?;
    let priority = table.optional("priority").map(|value| {
        value.integer(
            0..=255,
            "write 0 for the gateway to use first, a higher number for one to use when that does not answer",
        )
    });
    let gateway = GatewayPeer {
        name,
        priority: u8::try_from(priority.transpose()?.unwrap_or(0)).unwrap_or(u8::MAX),
        public_key: secret::public(&public_key)?,
        preshared_key: secret::optional(table, "preshared_key", "preshared_key_file", notes)?,
        endpoints,
        names,
        allowed_ips: network::allowed_ips(&allowed_ips)?,
    };
    if gateway.public_key == *own_key {
        return Err(tunnel::own_key(table));
    }
    Ok(gateway)
}

/// Adds a note for each gateway that does not lead to all networks of the others.
fn note_networks(tables: &[Table<'_>], gateways: &[GatewayPeer], notes: &mut Vec<Note>) {
    let all: BTreeSet<&IpNet> = gateways.iter().flat_map(|g| &g.allowed_ips).collect();
    for (table, gateway) in tables.iter().zip(gateways) {
        let missing = missing(&gateway.allowed_ips, all.iter().copied());
        if !missing.is_empty() {
            notes.push(Note {
                place: table.place(),
                text: format!(
                    "gateway \"{}\" does not lead to {}, as another gateway does: while it is in use, packets for these networks are dropped",
                    gateway.name,
                    missing.join(", ")
                ),
                warning: true,
            });
        }
    }
}

/// Returns those of the networks `all` that no network of `own` contains.
fn missing<'a>(own: &[IpNet], all: impl Iterator<Item = &'a IpNet>) -> Vec<String> {
    let is_missing = |net: &&IpNet| !own.iter().any(|own| own.contains(*net));
    all.filter(is_missing).map(ToString::to_string).collect()
}

impl ClientConfig {
    /// Returns the networks that are routed into the tunnel: those of all gateways, each once.
    pub(crate) fn allowed_ips(&self) -> Vec<IpNet> {
        let mut all: Vec<IpNet> = Vec::new();
        for net in self
            .gateways
            .iter()
            .flat_map(|gateway| &gateway.allowed_ips)
        {
            if !all.contains(net) {
                all.push(*net);
            }
        }
        all
    }

    /// Returns the networks of other gateways to which the gateway `index` does not lead.
    pub(crate) fn missing_networks(&self, index: usize) -> Vec<String> {
        let own = self.gateways.get(index);
        let own = own.map_or(&[][..], |gateway| gateway.allowed_ips.as_slice());
        missing(own, self.allowed_ips().iter())
    }

    /// Whether an outer address of a gateway is given by name.
    pub(crate) fn has_names(&self) -> bool {
        self.gateways
            .iter()
            .any(|gateway| !gateway.names.is_empty())
    }
}

/// Name of the gateway in a table `[gateway]`.
const ONE_NAME: &str = "gateway";
const ENDPOINTS_EXAMPLE: &str = "endpoints = [\"203.0.113.5:7700\"]";
/// Maximum number of gateways: each is measured over each link.
const MAX_GATEWAYS: usize = 8;
/// Duration for which another gateway must have been better, by default.
const RETURN_AFTER: Duration = Duration::from_secs(60);
