//! `pleach leave`: undoes `pleach join`.
//!
//! The daemon is stopped, and it undoes all its changes to the host's network. Then configuration, keys and the key of
//! an unfinished `join` are removed, the configuration first, so that the command can be repeated after an
//! interruption. A configuration that `join` has not written is left alone.

use std::{fmt::Write as _, fs};

use anyhow::bail;

use super::{
    durable, host,
    join::{FILE, HEAD, KEY_FILE, NAME, PSK_FILE},
    place::Place,
    service::{self, Kind},
};
use crate::{config, recover};

/// Options of `pleach leave`.
#[derive(Debug, clap::Args)]
pub(crate) struct Leave {
    #[command(flatten)]
    place: Place,
}

/// Runs the command. Returns the text to print.
///
/// # Errors
/// A sentence with the remedy.
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
        // Undo the changes of a daemon that was killed.
        if let Ok(loaded) = config::load(&file) {
            let name = &loaded.config.name;
            if !recover::tunnel(name)? {
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
    // Succeeds only if the directories are empty.
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
