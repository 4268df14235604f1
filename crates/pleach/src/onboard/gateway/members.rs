//! `pleach gateway clients` and `pleach gateway remove`.

use std::{
    fmt::Write as _,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use pleach_linux::clock;
use serde::Serialize;

use super::Gateway;
use crate::{
    control, keys,
    onboard::{host, place::Place, service, store::Store},
};

/// Options of `pleach gateway clients`.
#[derive(Debug, clap::Args)]
pub(crate) struct Clients {
    /// Print JSON
    #[arg(long)]
    json: bool,
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
    /// State of the client: `configured`, `enrolled`, `invited` or `expired`.
    state: &'static str,
    addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
    /// Whether the client is connected; `None` if the daemon does not answer, and for invitations.
    connected: Option<bool>,
    /// Time at which an invitation ends, or at which a client enrolled.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

pub(super) fn list(options: &Clients) -> anyhow::Result<String> {
    host::require_root("gateway clients")?;
    let gateway = Gateway::load(&options.place)?;
    let store = Store::open(&gateway.invitations.store).context("store")?;
    let status = control::status(&gateway.config.control).ok();
    let connected = |name: &str| {
        let status = status.as_ref()?;
        let mut clients = status.clients.iter();
        Some(clients.any(|client| client.name == name && client.up))
    };
    let mut members: Vec<Member> = Vec::new();
    for client in &gateway.role.clients {
        members.push(Member {
            state: "configured",
            addresses: client.allowed_ips.iter().map(ToString::to_string).collect(),
            public_key: Some(keys::encode_public(&client.public_key)),
            connected: connected(&client.name),
            at: None,
            name: client.name.clone(),
        });
    }
    for client in store.clients().context("enrolled clients")? {
        members.push(Member {
            state: "enrolled",
            addresses: client.addresses.iter().map(ToString::to_string).collect(),
            public_key: Some(keys::encode_public(&client.public_key)),
            connected: connected(&client.name),
            at: Some(date(client.enrolled_at)),
            name: client.name,
        });
    }
    let now = clock::unix_nanos() / 1_000_000_000;
    for (_, invitation) in store.invitations().context("invitations")? {
        let is_open = invitation.expires_at > now;
        members.push(Member {
            state: if is_open { "invited" } else { "expired" },
            addresses: invitation
                .addresses
                .iter()
                .map(ToString::to_string)
                .collect(),
            public_key: None,
            connected: None,
            at: Some(date(invitation.expires_at)),
            name: invitation.name,
        });
    }
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
            "{:<16} {:<36} {state}",
            member.name,
            member.addresses.join(", ")
        );
    }
    Ok(text)
}

pub(super) fn remove(options: &Remove) -> anyhow::Result<String> {
    host::require_root("gateway remove")?;
    let gateway = Gateway::load(&options.place)?;
    let name = &options.name;
    let path = &gateway.invitations.store;
    let store = Store::open(path).context("store")?;
    let found = crate::config::is_name(name)
        && store
            .remove(name)
            .map_err(|error| host::cannot_write(path, &error))?;
    if !found {
        if gateway
            .role
            .clients
            .iter()
            .any(|client| client.name == *name)
        {
            bail!(
                "client {name:?} is a [[client]] of {}: delete it there and restart the gateway",
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
