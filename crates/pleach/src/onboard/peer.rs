//! `pleach peer`: makes two proxies known to each other, so that connections between them are striped.
//!
//! - `invite`, at the answering end, adds a key and a port for other proxies to the proxy's configuration, and prints a
//!   token.
//! - `accept`, at the asking end, makes a key, presents the token over the striping protocol, and stores the addresses
//!   of the other end.
//! - `remove` undoes either command.
//!
//! | module | contents |
//! | --- | --- |
//! | [`known`] | peers in the store, which accepted an invitation of this host or whose invitation was accepted here |
//! | [`mod@file`] | `[peer]` in the proxy's configuration |
//! | [`token`] | the token as a line of text |

mod accept;
mod file;
mod invite;
pub(crate) mod known;
mod remove;
mod token;

use anyhow::Context as _;
use clap::Subcommand;

use super::{
    place::Place,
    service::{self, Kind, Start},
};
use crate::control;

/// Commands below `pleach peer`.
#[derive(Debug, Subcommand)]
pub(crate) enum PeerCommand {
    /// Print a token that makes the proxy of one other host a peer of this host's proxy
    Invite(invite::Invite),
    /// Make this host's proxy a peer of the proxy that printed a token
    Accept(accept::Accept),
    /// Remove a peer, or withdraw its invitation
    Remove(remove::Remove),
}

/// Runs the command. Returns the text to print.
///
/// # Errors
/// A sentence with the remedy.
pub(crate) fn run(command: &PeerCommand) -> anyhow::Result<String> {
    match command {
        PeerCommand::Invite(options) => invite::run(options),
        PeerCommand::Accept(options) => accept::run(options),
        PeerCommand::Remove(options) => remove::run(options),
    }
}

/// Makes the proxy use the files that were written: the proxy reads its peers again, or is restarted if its
/// configuration file `is_changed`. Returns a message for the user.
fn put_in_force(place: &Place, is_changed: bool, no_start: bool) -> anyhow::Result<String> {
    let control = place.control(NAME);
    let is_running = service::is_running(&control);
    if is_running && !is_changed {
        control::reload(&control).context("the running proxy cannot reload its peers")?;
        return Ok("The running proxy has loaded the change.\n".to_owned());
    }
    let start = if no_start {
        Start::ByHand
    } else if is_running {
        service::restart(place, Kind::Proxy, NAME)?
    } else {
        service::start(place, Kind::Proxy, NAME)?
    };
    let file = place.config(FILE);
    let file = file.display();
    Ok(match (start, is_running) {
        (Start::Enabled, true) => "The proxy was restarted.\n".to_owned(),
        (Start::Enabled, false) => {
            format!("The proxy is running, and will start at boot (service pleach-proxy@{NAME}).\n")
        }
        (Start::ByHand, true) => {
            format!("{file} has changed: restart the proxy to apply the change.\n")
        }
        (Start::ByHand, false) => {
            format!(
                "Start the proxy with `pleach proxy {file}`, and make your init system start it at boot.\n"
            )
        }
    })
}

/// Name of the proxy among the services, and in file names.
const NAME: &str = "proxy";
const FILE: &str = "proxy.toml";
/// Default key file of `[peer]`.
const KEY_FILE: &str = "peer.key";
/// Name of the store below the state directory.
const STORE: &str = "peer";
