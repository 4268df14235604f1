//! `pleach leave`: undoes `pleach join`.
//!
//! The daemon is stopped, which gives back all it has changed in the host's network; then configuration, keys and what an
//! unfinished `join` kept are removed, the configuration first, so that an interruption is repeated. A configuration that
//! `join` has not written is left alone.

use std::{fmt::Write as _, fs};

use anyhow::{Context as _, bail};
use pleach_linux::{routes, split_tcp, state::DEFAULT_STATE_DIR};

use super::{
    durable, host,
    join::{FILE, HEAD, KEY_FILE, NAME, PSK_FILE},
    place::Place,
    service::{self, Kind},
};
use crate::{config, run_tunnel::dns};

/// Options of `pleach leave`.
#[derive(Debug, clap::Args)]
pub(crate) struct Leave {
    #[command(flatten)]
    place: Place,
}

/// Does it; what to print.
///
/// # Errors
/// One sentence with the remedy.
pub(crate) fn run(options: &Leave) -> anyhow::Result<String> {
    host::require_root("leave")?;
    let place = &options.place;
    let file = place.config(FILE);
    let text = fs::read_to_string(&file);
    if let Ok(text) = &text
        && !text.starts_with(HEAD)
    {
        bail!(
            "{} was not written by `pleach join`: stop its service and remove it yourself",
            file.display()
        );
    }
    let mut said = String::new();
    if text.is_ok() {
        service::stop(place, Kind::Tunnel, NAME)?;
        // What a daemon left that was killed.
        if let Ok(loaded) = config::load(&file) {
            let name = &loaded.config.name;
            dns::recover(name).with_context(|| format!("resolvers of the tunnel {name}"))?;
            // Without `nft` there is nothing left of it.
            let _ = split_tcp::recover(name);
            let is_stopped = routes::recover(DEFAULT_STATE_DIR.as_ref(), name)
                .with_context(|| format!("routes of the tunnel {name}"))?;
            if !is_stopped {
                let _ = writeln!(said, "The tunnel {name} still runs: stop its daemon.");
            }
        }
    }
    let waiting = place.state("join");
    let kept = fs::read_dir(&waiting).into_iter().flatten().flatten();
    let kept: Vec<_> = kept.map(|entry| entry.path()).collect();
    let own = [FILE, KEY_FILE, PSK_FILE].map(|name| place.config(name));
    let mut removed = 0;
    for path in own.iter().chain(&kept) {
        let was_there = durable::remove(path).map_err(|error| host::cannot_write(path, &error))?;
        removed += usize::from(was_there);
    }
    // Only if nothing else is in them.
    for directory in [
        Some(waiting.as_path()),
        waiting.parent(),
        Some(place.directory()),
    ] {
        let _ = directory.map(fs::remove_dir);
    }
    let _ = if removed == 0 {
        writeln!(said, "This host is no client: there is nothing to undo.")
    } else {
        writeln!(
            said,
            "This host is no client any more. At the gateway, `pleach gateway remove NAME` forgets it."
        )
    };
    Ok(said)
}
