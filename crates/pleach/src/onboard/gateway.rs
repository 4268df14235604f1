//! `pleach gateway`: what makes a host a gateway, and who its clients are.
//!
//! Each command works on files only, so it does the same whether the daemon runs or not: the daemon looks for an invitation
//! when somebody claims it. `remove` also has a running daemon drop the client.

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

/// Does it; what to print.
///
/// # Errors
/// One sentence with the remedy.
pub(crate) fn run(command: GatewayCommand) -> anyhow::Result<String> {
    match command {
        GatewayCommand::Init(options) => init::run(&options),
        GatewayCommand::Invite(options) => invite::run(&options),
        GatewayCommand::Clients(options) => members::list(&options),
        GatewayCommand::Remove(options) => members::remove(&options),
    }
}

/// The gateway's configuration.
struct Gateway {
    config: TunnelConfig,
    role: GatewayConfig,
    invitations: InvitationsConfig,
}

impl Gateway {
    /// That in `place`.
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
                "{} describes a client, no gateway: choose another --dir",
                file.display()
            );
        };
        let Some(invitations) = role.invitations.clone() else {
            bail!(
                "{} takes no invitations: add [invitations] with `store` and `endpoints` to it (docs/onboarding.md)",
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

/// Name of the gateway's tunnel among the services, and of its files.
const NAME: &str = "gateway";
const FILE: &str = "gateway.toml";
