//! `pleach recover`: undoes the changes that a killed daemon of a tunnel has left in the host's network configuration.
//!
//! The next start of the tunnel also undoes these changes. The command is for a host on which the tunnel will not be
//! started again. Without the command, a kill switch remains in force on this host until the next boot.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use pleach_linux::{routes, split_tcp, state::DEFAULT_STATE_DIR};

use crate::{config, onboard::require_root, run_tunnel::dns};

/// Options of `pleach recover`.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Recover {
    /// Configuration file of the tunnel
    file: Option<PathBuf>,
    /// Name of the tunnel's device, if the configuration file is gone or not valid
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Runs the command. Returns the text to print.
///
/// # Errors
/// A sentence with the remedy.
pub(crate) fn run(options: &Recover) -> anyhow::Result<String> {
    require_root("recover")?;
    let name = match (&options.file, &options.name) {
        (Some(file), _) => config::load(file)?.config.name,
        (None, Some(name)) => name.clone(),
        (None, None) => bail!("give the configuration file of the tunnel, or --name"),
    };
    if !tunnel(&name)? {
        bail!("the tunnel {name} runs: stop its daemon, which gives back what it has changed");
    }
    Ok(format!(
        "Nothing of the tunnel {name} is left in the network configuration of this host.\n"
    ))
}

/// Undoes the changes that a killed daemon of the tunnel `name` has left. Returns `false` if the tunnel runs; then
/// nothing is changed.
///
/// # Errors
/// If a change cannot be undone.
pub(crate) fn tunnel(name: &str) -> anyhow::Result<bool> {
    // Under the lock on the name: a daemon that started meanwhile would lose its resolvers.
    let rest = || (dns::recover(name), split_tcp::recover(name));
    let recovered = routes::recover_with(DEFAULT_STATE_DIR.as_ref(), name, rest)
        .with_context(|| format!("routes of the tunnel {name}"))?;
    let Some((resolvers, splitting)) = recovered else {
        return Ok(false);
    };
    resolvers.with_context(|| format!("resolvers of the tunnel {name}"))?;
    splitting.with_context(|| format!("split TCP connections of the tunnel {name}"))?;
    Ok(true)
}
