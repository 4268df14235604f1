//! `pleach gateway add` and `pleach gateway cap`: clients of a store.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use ipnet::IpNet;
use pleach_core::{endpoint::accounts::Caps, units::Bitrate};
use pleach_linux::clock;
use zeroize::Zeroizing;

use super::Gateway;
use crate::{
    clients::StoredClient,
    config,
    keys::{self, KEY_LEN, SecretKey},
    onboard::{bad_input::BadInput, host, place::Place},
};

/// Options of `pleach gateway add`.
#[derive(Debug, clap::Args)]
pub(crate) struct Add {
    /// Name of the client
    #[arg(value_name = "NAME")]
    name: String,
    /// Public key of the client, as printed by `pleach pubkey`
    #[arg(long, value_name = "KEY", value_parser = public_key)]
    public_key: [u8; KEY_LEN],
    /// Inner addresses of the client, comma-separated
    #[arg(long, value_name = "NETS", value_delimiter = ',', required = true)]
    address: Vec<IpNet>,
    /// File with the pre-shared key of client and gateway
    #[arg(long, value_name = "FILE")]
    preshared_key_file: Option<PathBuf>,
    #[command(flatten)]
    rates: Rates,
    #[command(flatten)]
    place: Place,
}

/// Options of `pleach gateway cap`.
#[derive(Debug, clap::Args)]
pub(crate) struct Cap {
    /// Name of the client
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    rates: Rates,
    #[command(flatten)]
    place: Place,
}

/// Rate caps.
#[derive(Debug, clap::Args)]
struct Rates {
    /// Cap of the rate from the client, such as 20Mbit [default: no cap]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate_up: Option<Bitrate>,
    /// Cap of the rate to the client, such as 50Mbit [default: no cap]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate_down: Option<Bitrate>,
}

impl Rates {
    fn caps(&self) -> Caps {
        Caps {
            up: self.rate_up,
            down: self.rate_down,
        }
    }
}

pub(super) fn add(options: &Add) -> anyhow::Result<String> {
    host::require_root("gateway add")?;
    let name = &options.name;
    if !config::is_name(name) {
        return Err(BadInput::error(format!(
            "{name:?} is not a valid name for a client: use 1 to 32 characters from A-Z a-z 0-9 . _ -"
        )));
    }
    if let Some(net) = options.address.iter().find(|net| net.trunc() != **net) {
        return Err(BadInput::error(format!(
            "--address: {net} has host bits set: write {} for the network, or {} for the one host",
            net.trunc(),
            IpNet::from(net.addr())
        )));
    }
    let gateway = Gateway::load(&options.place)?;
    gateway.may_change_clients()?;
    let mut store = gateway.store()?;
    let networks = gateway.role.store.iter().flat_map(|store| &store.networks);
    let is_foreign = |net: &&IpNet| !networks.clone().any(|own| own.contains(*net));
    if let Some(net) = options.address.iter().find(is_foreign) {
        bail!(
            "{net} is in no network of the gateway: choose another address, or add the network to [clients] networks in {}",
            gateway.file.display()
        );
    }
    let mut configured = gateway.role.clients.iter();
    let clash = configured.find(|other| {
        let mut nets = other.allowed_ips.iter();
        let overlaps = |net: &IpNet| {
            let mut own = options.address.iter();
            own.any(|own| own.contains(net) || net.contains(own))
        };
        other.name == *name || other.public_key == options.public_key || nets.any(overlaps)
    });
    if let Some(other) = clash {
        bail!(
            "the [[client]] {:?} of {} has this name, key or address: choose another one",
            other.name,
            gateway.file.display()
        );
    }
    let client = StoredClient {
        name: name.clone(),
        public_key: options.public_key,
        preshared_key: options
            .preshared_key_file
            .as_deref()
            .map(preshared_key)
            .transpose()?,
        allowed_ips: options.address.clone(),
        caps: options.rates.caps(),
        added_at: clock::unix_nanos() / 1_000_000_000,
    };
    store.add(&client)?;
    Ok(format!(
        "Client {name} is in the store; the gateway serves it from its next attempt on.\n"
    ))
}

pub(super) fn cap(options: &Cap) -> anyhow::Result<String> {
    host::require_root("gateway cap")?;
    let gateway = Gateway::load(&options.place)?;
    gateway.may_change_clients()?;
    let (name, caps) = (&options.name, options.rates.caps());
    if !gateway.store()?.set_caps(name, caps)? {
        bail!("there is no client {name:?} in the store: `pleach gateway clients` lists them");
    }
    let shown = |rate: Option<Bitrate>| {
        rate.map_or_else(|| "no cap".to_owned(), |rate| format!("at most {rate}/s"))
    };
    Ok(format!(
        "Client {name}: {} up, {} down.\n",
        shown(caps.up),
        shown(caps.down)
    ))
}

fn preshared_key(file: &Path) -> anyhow::Result<SecretKey> {
    let text = fs::read_to_string(file).map(Zeroizing::new);
    let text = text.with_context(|| file.display().to_string())?;
    let key = keys::decode(&text);
    let key = key.map_err(|error| anyhow!("{}: expected {error}", file.display()))?;
    Ok(SecretKey::new(key))
}

fn public_key(text: &str) -> Result<[u8; KEY_LEN], String> {
    let key = keys::decode(text);
    key.map(|key| *key)
        .map_err(|error| format!("expected {error}"))
}

fn rate(text: &str) -> Result<Bitrate, String> {
    let expected =
        || "expected a rate above zero such as 64Mbit (bit, kbit, Mbit, Gbit)".to_owned();
    let rate: Bitrate = text.parse().map_err(|_| expected())?;
    if rate == Bitrate::ZERO {
        return Err(expected());
    }
    Ok(rate)
}
