//! `pleach peer remove`: the peer first, then, if it was the last, what `invite` and `accept` have made.

use std::fs;

use anyhow::bail;

use super::{NAME, file, known, put_in_force};
use crate::{
    config,
    onboard::{
        host,
        place::Place,
        service::{self, Kind},
        store::Store,
    },
};

/// Options of `pleach peer remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// Name of the peer
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    place: Place,
}

pub(super) fn run(options: &Remove) -> anyhow::Result<String> {
    host::require_root("peer remove")?;
    let place = &options.place;
    let name = &options.name;
    let section = file::read(place)?;
    let path = section
        .as_ref()
        .map_or_else(|| file::store(place), |section| section.store.clone());
    let cannot = |error| host::cannot_write(&path, &error);
    let mut is_found = false;
    if config::is_name(name) && path.exists() {
        let store = Store::open(&path).map_err(cannot)?;
        is_found = store.remove(name).map_err(cannot)?;
        is_found |= known::remove(&path, name).map_err(cannot)?;
    }
    if !is_found {
        let peers = known::peers(&path).map_err(cannot)?;
        let names: Vec<String> = peers.into_iter().map(|peer| peer.name).collect();
        let there = if names.is_empty() {
            "none became known by an invitation".to_owned()
        } else {
            format!("there are {}", names.join(", "))
        };
        bail!(
            "there is no peer {name:?}: {there}; a [[known_peer]] is removed in the configuration"
        );
    }
    let mut said =
        format!("Peer {name} is removed: its key and its token are of no use here any more.\n");
    let store = Store::open(&path).map_err(cannot)?;
    let is_last = known::peers(&path).map_err(cannot)?.is_empty()
        && store.invitations().map_err(cannot)?.is_empty();
    let is_ours = section.is_some_and(|section| section.is_ours);
    if !(is_last && is_ours) {
        if service::is_running(&place.control(NAME)) {
            said += &put_in_force(place, false, true)?;
        }
        return Ok(said);
    }
    if file::remove(place)? {
        service::stop(place, Kind::Proxy, NAME)?;
        said += "It was the last one: the proxy is stopped, and its configuration removed.\n";
    } else {
        said += "It was the last one: [peer] is gone from the proxy's configuration.\n";
        if service::is_running(&place.control(NAME)) {
            said += &put_in_force(place, true, false)?;
        }
    }
    for directory in ["invitations", "clients", known::PEERS] {
        let _ = fs::remove_dir(path.join(directory));
    }
    let _ = fs::remove_file(path.join("lock"));
    // Only if nothing else is in them.
    for directory in [Some(path.as_path()), path.parent(), Some(place.directory())] {
        let _ = directory.map(fs::remove_dir);
    }
    Ok(said)
}
