//! The table `[fleet]` of a gateway: its place among several gateways that share a store of clients.

use ipnet::IpNet;

use super::{
    FleetConfig, Nat, StoreConfig, StorePlace, network,
    source::{ConfigError, Note},
    table::Table,
};

/// Reads `[fleet]`; `None` if there is no such table. `store`: the store of clients of this gateway.
///
/// # Errors
/// The first mistake in the table. It is also a mistake if the clients are not in a database, or if they cannot have
/// addresses of a network in `home`.
pub(super) fn read(
    root: &Table<'_>,
    store: Option<&StoreConfig>,
    nat: Nat,
    notes: &mut Vec<Note>,
) -> Result<Option<FleetConfig>, ConfigError> {
    if root.optional("fleet").is_none() {
        return Ok(None);
    }
    let table = root.table("fleet", &["name", "home"])?;
    let name = table.required("name", "name = \"gw1\"")?;
    let home = table.required("home", "home = [\"10.77.1.0/24\", \"fd77:0:0:1::/64\"]")?;
    let fleet = FleetConfig {
        name: network::name(&name)?,
        home: network::allowed_ips(&home)?,
    };
    let shared = store.filter(|store| matches!(store.place, StorePlace::Postgres(_)));
    let Some(store) = shared else {
        return Err(root.wrong(
            "fleet",
            "the gateways of a fleet share their clients in a database",
            "add a table [clients] with source = \"postgres\", or remove [fleet]",
        ));
    };
    let is_outside = |net: &&IpNet| !store.networks.iter().any(|all| all.contains(*net));
    if let Some(net) = fleet.home.iter().find(is_outside) {
        return Err(home.wrong(
            format!("no client can have an address of {net}"),
            "add a network that contains it to [clients] networks, which is the same at all gateways, or correct it",
        ));
    }
    if nat != Nat::Off {
        notes.push(Note {
            place: table.place(),
            text: "nat translates the addresses of clients: their connections end when they change to another gateway; write nat = false, and let a router behind the gateways translate"
                .to_owned(),
            warning: true,
        });
    }
    Ok(Some(fleet))
}
