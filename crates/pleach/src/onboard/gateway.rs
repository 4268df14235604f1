//! `pleach gateway`: makes a host a gateway, and manages its clients.
//!
//! Except `drain`, the commands work on files or a store only, so they do the same whether the daemon runs or not: the daemon
//! looks up an invitation when a client claims it, and a client of a store when it connects. In addition, `remove` makes a
//! running daemon drop the client.

mod add;
mod drain;
mod init;
mod invite;
mod members;

pub(super) use init::{Endpoint, parse_endpoint};
pub(super) use invite::parse_expiry;

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use clap::Subcommand;

use super::{host, place::Place, service};
use crate::{
    clients::{self, ClientStore, Members, StoreError},
    config::{self, GatewayConfig, InvitationsConfig, Role, StorePlace, TunnelConfig},
};

/// Commands below `pleach gateway`.
#[derive(Debug, Subcommand)]
pub(crate) enum GatewayCommand {
    /// Make this host a gateway: key, configuration and service. Running it again changes nothing
    Init(init::Init),
    /// Print a token that makes one host a client
    Invite(invite::Invite),
    /// Add a client with a known public key to the store of clients
    Add(add::Add),
    /// Set or remove the rate caps of a client in the store of clients
    Cap(add::Cap),
    /// Ask the clients of this gateway to use another gateway, and wait until they do
    Drain(drain::Drain),
    /// List clients and open invitations
    Clients(members::Clients),
    /// Remove a client, or withdraw its invitation
    Remove(members::Remove),
}

/// Runs the command. Returns the text to print.
///
/// # Errors
/// A sentence with the remedy.
pub(crate) fn run(command: GatewayCommand) -> anyhow::Result<String> {
    match command {
        GatewayCommand::Init(options) => init::run(&options),
        GatewayCommand::Add(options) => add::add(&options),
        GatewayCommand::Cap(options) => add::cap(&options),
        GatewayCommand::Drain(options) => drain::run(&options),
        GatewayCommand::Invite(options) => invite::run(&options),
        GatewayCommand::Clients(options) => members::list(&options),
        GatewayCommand::Remove(options) => members::remove(&options),
    }
}

/// A gateway's configuration.
struct Gateway {
    file: PathBuf,
    config: TunnelConfig,
    role: GatewayConfig,
}

impl Gateway {
    /// Loads the gateway's configuration in `place`.
    fn load(place: &Place) -> anyhow::Result<Self> {
        let file = place.config(FILE);
        if !file.exists() {
            bail!(
                "this host is no gateway yet (no {}): run `pleach gateway init`",
                file.display()
            );
        }
        Self::read(&file)
    }

    fn read(file: &Path) -> anyhow::Result<Self> {
        let config = config::load(file)?.config;
        let Role::Gateway(role) = config.role.clone() else {
            bail!(
                "{} describes a client, not a gateway: choose another --dir",
                file.display()
            );
        };
        Ok(Self {
            file: file.to_owned(),
            config,
            role,
        })
    }

    /// Returns the settings of invitations.
    fn invitations(&self) -> anyhow::Result<&InvitationsConfig> {
        self.role.invitations.as_ref().ok_or_else(|| {
            anyhow!(
                "{} has no table [invitations]: add it, with `endpoints`, and with `store` unless [clients] names a store (docs/onboarding.md)",
                self.file.display()
            )
        })
    }

    /// Refuses a change of clients that a service manages.
    fn may_change_clients(&self) -> anyhow::Result<()> {
        match self.role.store.as_ref().map(|store| &store.place) {
            Some(StorePlace::Http(service)) => Err(StoreError::Managed {
                place: service.to_string(),
            }
            .into()),
            Some(StorePlace::Postgres(_) | StorePlace::Sqlite(_)) | None => Ok(()),
        }
    }

    /// Opens the clients that are not in the configuration. `None` if there are none.
    fn members(&self) -> anyhow::Result<Option<Box<dyn Members>>> {
        clients::members(&self.role, self.may_create()).map_err(|error| self.told(error))
    }

    /// Whether a missing store is created. While the daemon runs, its store has been lost. A database may have been lost
    /// while the gateways of other hosts run, so only a gateway that starts makes its tables.
    fn may_create(&self) -> bool {
        let store = self.role.store.as_ref();
        let is_shared = store.is_some_and(|store| matches!(store.place, StorePlace::Postgres(_)));
        !is_shared && !service::is_running(&self.config.control)
    }

    /// Makes the error for the user from an error of the store.
    fn told(&self, error: StoreError) -> anyhow::Error {
        let invitations = self.role.invitations.as_ref();
        let path = invitations.and_then(|invitations| invitations.store.as_ref());
        if let StoreError::Io(error) = error {
            host::cannot_write(path.unwrap_or(&self.file), &error)
        } else {
            error.into()
        }
    }

    /// Opens the store of clients.
    fn store(&self) -> anyhow::Result<Box<dyn ClientStore>> {
        let store = clients::store(&self.role, self.may_create())?;
        store.ok_or_else(|| {
            anyhow!(
                "{} has no store of clients: add a table [clients] with source = \"sqlite\" or \"postgres\" (docs/clients.md), or write a [[client]]",
                self.file.display()
            )
        })
    }
}

/// Name of the gateway's tunnel among the services, and in file names.
const NAME: &str = "gateway";
const FILE: &str = "gateway.toml";
