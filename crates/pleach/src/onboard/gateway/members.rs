//! `pleach gateway clients` and `pleach gateway remove`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use pleach_core::endpoint::accounts::{Caps, Usage};
use pleach_linux::clock;
use serde::Serialize;

use super::Gateway;
use crate::{
    control, keys,
    onboard::{host, place::Place, service},
    status::bytes,
};

/// Options of `pleach gateway clients`.
#[derive(Debug, clap::Args)]
pub(crate) struct Clients {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the byte counters of the store of clients as CSV, also those of removed clients
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    place: Place,
}

/// Options of `pleach gateway remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// Name of the client
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    place: Place,
}

/// A client or invitation, as `clients --json` prints it.
#[derive(Debug, Serialize)]
struct Member {
    name: String,
    /// State of the client: `configured`, `enrolled`, `stored`, `invited` or `expired`.
    state: &'static str,
    addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
    /// Whether the client is connected; `None` if the daemon does not answer, and for invitations.
    connected: Option<bool>,
    /// Time at which an invitation ends, or at which a client enrolled.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    /// Caps, in the form of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_up: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_down: Option<String>,
    /// Bytes in the store; `None` without a store, and for invitations.
    #[serde(skip_serializing_if = "Option::is_none")]
    up_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    down_bytes: Option<u64>,
    /// Gateway to which the client has connected last, and when; `None` outside of a fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway_since: Option<String>,
}

pub(super) fn list(options: &Clients) -> anyhow::Result<String> {
    host::require_root("gateway clients")?;
    let gateway = Gateway::load(&options.place)?;
    if options.csv {
        let usage = gateway.store()?.usage().context("clients")?;
        return Ok(csv(&usage));
    }
    let mut members = members(&gateway)?;
    add_places(&gateway, &mut members)?;
    if options.json {
        let json = serde_json::to_string_pretty(&serde_json::json!({ "clients": members }));
        return Ok(format!("{}\n", json.context("JSON")?));
    }
    if members.is_empty() {
        return Ok(
            "No clients yet: `pleach gateway invite NAME` prints a token for one.\n".to_owned(),
        );
    }
    let mut text = String::new();
    for member in &members {
        let state = match (member.state, member.connected, &member.at) {
            ("invited", _, Some(at)) => format!("invited, until {at}"),
            ("expired", ..) => "invitation expired".to_owned(),
            (_, Some(true), _) => "connected".to_owned(),
            (_, Some(false), _) => "not connected".to_owned(),
            (_, None, _) => "unknown, the gateway is not running".to_owned(),
        };
        let _ = writeln!(
            text,
            "{:<16} {:<36} {state}{}",
            member.name,
            member.addresses.join(", "),
            member.details()
        );
    }
    Ok(text)
}

impl Member {
    /// Returns caps and bytes for the table, with a comma before each of them.
    fn details(&self) -> String {
        let mut text = String::new();
        for (rate, what) in [(&self.rate_up, "up"), (&self.rate_down, "down")] {
            if let Some(rate) = rate {
                let _ = write!(text, ", at most {rate}/s {what}");
            }
        }
        if let (Some(up), Some(down)) = (self.up_bytes, self.down_bytes) {
            let (up, down) = (bytes(up), bytes(down));
            let _ = write!(text, ", {up} up and {down} down");
        }
        if let (Some(gateway), Some(since)) = (&self.gateway, &self.gateway_since) {
            let _ = write!(text, ", at {gateway} since {since}");
        }
        text
    }
}

/// Returns all clients and invitations.
fn members(gateway: &Gateway) -> anyhow::Result<Vec<Member>> {
    let status = control::status(&gateway.config.control).ok();
    let connected = |name: &str| {
        let status = status.as_ref()?;
        let client = status.clients.iter().find(|client| client.name == name);
        // The clients of a data thread that does not answer are missing.
        let is_complete = status.silent_workers.is_empty();
        let unlisted = is_complete.then_some(false);
        client.map(|client| client.up).or(unlisted)
    };
    let usage = match &gateway.role.store {
        Some(_) => Some(gateway.store()?.usage().context("clients")?),
        None => None,
    };
    let usage_of = |name: &str| {
        usage
            .as_ref()
            .map(|usage| usage.get(name).copied().unwrap_or_default())
    };
    let mut members: Vec<Member> = Vec::new();
    for client in &gateway.role.clients {
        members.push(Member {
            addresses: client.allowed_ips.iter().map(ToString::to_string).collect(),
            public_key: Some(keys::encode_public(&client.public_key)),
            connected: connected(&client.name),
            ..Member::new(
                &client.name,
                "configured",
                client.caps,
                usage_of(&client.name),
            )
        });
    }
    let Some(mut store) = gateway.members()? else {
        return Ok(members);
    };
    for client in store.clients().context("clients")? {
        let state = if gateway.role.store.is_some() {
            "stored"
        } else {
            "enrolled"
        };
        // Addresses of one host are shown without a length.
        let addresses = client.allowed_ips.iter().map(|net| {
            let is_host = net.prefix_len() == net.max_prefix_len();
            if is_host {
                net.addr().to_string()
            } else {
                net.to_string()
            }
        });
        members.push(Member {
            addresses: addresses.collect(),
            public_key: Some(keys::encode_public(&client.public_key)),
            connected: connected(&client.name),
            at: Some(date(client.added_at)),
            ..Member::new(&client.name, state, client.caps, usage_of(&client.name))
        });
    }
    let now = clock::unix_nanos() / 1_000_000_000;
    for invitation in store.invitations().context("invitations")? {
        let is_open = invitation.expires_at > now;
        let state = if is_open { "invited" } else { "expired" };
        members.push(Member {
            addresses: invitation
                .addresses
                .iter()
                .map(ToString::to_string)
                .collect(),
            at: Some(date(invitation.expires_at)),
            ..Member::new(&invitation.name, state, Caps::default(), None)
        });
    }
    Ok(members)
}

/// Adds to the members of a fleet the gateway at which each of them is.
fn add_places(gateway: &Gateway, members: &mut [Member]) -> anyhow::Result<()> {
    if gateway.role.fleet.is_none() {
        return Ok(());
    }
    let mut store = gateway.store()?;
    let Some(places) = store.places() else {
        return Ok(());
    };
    let places = places.all().context("places of clients")?;
    for member in members {
        let key = member.public_key.as_deref();
        let key = key.and_then(|key| keys::decode(key).ok());
        if let Some((gateway, since_ms)) = key.and_then(|key| places.get(&*key)) {
            member.gateway = Some(gateway.clone());
            member.gateway_since = Some(date(since_ms / 1000));
        }
    }
    Ok(())
}

impl Member {
    fn new(name: &str, state: &'static str, caps: Caps, usage: Option<Usage>) -> Self {
        Self {
            name: name.to_owned(),
            state,
            addresses: Vec::new(),
            public_key: None,
            connected: None,
            at: None,
            rate_up: caps.up.map(|rate| rate.to_string()),
            rate_down: caps.down.map(|rate| rate.to_string()),
            up_bytes: usage.map(|usage| usage.up_bytes),
            down_bytes: usage.map(|usage| usage.down_bytes),
            gateway: None,
            gateway_since: None,
        }
    }
}

/// Returns the counters as CSV (RFC 4180), one line for each client. Names contain no characters that need quotes.
fn csv(usage: &BTreeMap<String, Usage>) -> String {
    let mut text = "client,up_bytes,down_bytes\r\n".to_owned();
    for (name, usage) in usage {
        let _ = write!(text, "{name},{},{}\r\n", usage.up_bytes, usage.down_bytes);
    }
    text
}

pub(super) fn remove(options: &Remove) -> anyhow::Result<String> {
    host::require_root("gateway remove")?;
    let gateway = Gateway::load(&options.place)?;
    gateway.may_change_clients()?;
    let name = &options.name;
    let found = match gateway.members()? {
        Some(mut store) if crate::config::is_name(name) => {
            store.remove(name).map_err(|error| gateway.told(error))?
        }
        Some(_) | None => false,
    };
    if !found {
        if gateway
            .role
            .clients
            .iter()
            .any(|client| client.name == *name)
        {
            bail!(
                "client {name:?} is a [[client]] of {}: delete it there, then run `pleach reload`",
                options.place.config(super::FILE).display()
            );
        }
        bail!("there is no client {name:?}: `pleach gateway clients` lists them");
    }
    if service::is_running(&gateway.config.control) {
        control::remove_client(&gateway.config.control, name).context(
            "removed from the store, but the running gateway serves the client until you restart the gateway",
        )?;
    }
    Ok(format!(
        "Client {name} is removed: its key and its token are no longer valid.\n"
    ))
}

fn date(seconds: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}
