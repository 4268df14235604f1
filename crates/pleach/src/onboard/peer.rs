//! `pleach peer`: makes two proxies know each other, so that connections between them are striped.
//!
//! `invite` at the end that answers makes a key and a port for other pleaches in the proxy's configuration, and prints a token.
//! `accept` at the end that asks makes a key, presents the token over the striping protocol, and writes down where the other
//! end answers. `remove` undoes either.
//!
//! | module | what |
//! | --- | --- |
//! | [`known`] | peers in the store: who accepted an invitation here, whose invitation was accepted |
//! | [`mod@file`] | `[peer]` in the proxy's configuration |
//! | [`token`] | the line of text |

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
    /// Make this host's proxy a peer of the one that printed a token
    Accept(accept::Accept),
    /// Remove a peer, or withdraw its invitation
    Remove(remove::Remove),
}

/// Does it; what to print.
///
/// # Errors
/// One sentence with the remedy.
pub(crate) fn run(command: &PeerCommand) -> anyhow::Result<String> {
    match command {
        PeerCommand::Invite(options) => invite::run(options),
        PeerCommand::Accept(options) => accept::run(options),
        PeerCommand::Remove(options) => remove::run(options),
    }
}

/// Has the proxy take up what was written: it reads its peers again, or starts anew if its own configuration `is_changed`.
/// What to tell the user.
fn put_in_force(place: &Place, is_changed: bool, no_start: bool) -> anyhow::Result<String> {
    let control = place.control(NAME);
    let is_running = service::is_running(&control);
    if is_running && !is_changed {
        control::reload(&control).context("the running proxy does not read its peers again")?;
        return Ok("The running proxy knows of it.\n".to_owned());
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
            format!("The proxy is running, also after a restart (service pleach-proxy@{NAME}).\n")
        }
        (Start::ByHand, true) => {
            format!("{file} has changed: restart the proxy to put it in force.\n")
        }
        (Start::ByHand, false) => {
            format!("Start the proxy with `pleach proxy {file}`, and have it started at boot.\n")
        }
    })
}

/// Name of the proxy among the services, and of its files.
const NAME: &str = "proxy";
const FILE: &str = "proxy.toml";
/// Key of `[peer]`, unless the user has another.
const KEY_FILE: &str = "peer.key";
/// Directory of the store below that of states.
const STORE: &str = "peer";
