//! `pleach gateway`: makes a host a gateway, and manages its clients.
//!
//! The commands work on files only, so they do the same whether the daemon runs or not: the daemon looks up an
//! invitation when a client claims it. In addition, `remove` makes a running daemon drop the client.

mod init;
mod invite;
mod members;

pub(super) use init::{Endpoint, parse_endpoint};
pub(super) use invite::parse_expiry;

use std::path::Path;

use anyhow::bail;
use clap::Subcommand;

use super::place::Place;
use crate::config::{self, GatewayConfig, InvitationsConfig, Role, TunnelConfig};

/// Commands below `pleach gateway`.
#[derive(Debug, Subcommand)]
pub(crate) enum GatewayCommand {
    /// Make this host a gateway: key, configuration and service. Running it again changes nothing
    Init(init::Init),
    /// Print a token that makes one host a client
    Invite(invite::Invite),
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
        GatewayCommand::Invite(options) => invite::run(&options),
        GatewayCommand::Clients(options) => members::list(&options),
        GatewayCommand::Remove(options) => members::remove(&options),
    }
}

/// A gateway's configuration.
struct Gateway {
    config: TunnelConfig,
    role: GatewayConfig,
    invitations: InvitationsConfig,
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
        let Some(invitations) = role.invitations.clone() else {
            bail!(
                "{} has no table [invitations]: add it, with `store` and `endpoints` (docs/onboarding.md)",
                file.display()
            );
        };
        Ok(Self {
            config,
            role,
            invitations,
        })
    }
}

/// Name of the gateway's tunnel among the services, and in file names.
const NAME: &str = "gateway";
const FILE: &str = "gateway.toml";
