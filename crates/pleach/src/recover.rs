//! `pleach recover`: undoes the changes that a killed daemon of a tunnel has left in the host's network configuration.
//!
//! The next start of the tunnel also undoes these changes. The command is for a host on which the tunnel will not be
//! started again. Without the command, a kill switch remains in force on this host until the next boot.

use std::path::Path;

use anyhow::{Context as _, bail};
use pleach_linux::{routes, split_tcp, state::DEFAULT_STATE_DIR};

use crate::{config, onboard::require_root, run_tunnel::dns};

/// Runs the command with the configuration `file` of a tunnel. Returns the text to print.
///
/// # Errors
/// If the user is not root, the configuration is invalid, the tunnel runs, or a change cannot be undone.
pub(crate) fn run(file: &Path) -> anyhow::Result<String> {
    require_root("recover")?;
    let name = config::load(file)?.config.name;
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
    let is_stopped = routes::recover(DEFAULT_STATE_DIR.as_ref(), name)
        .with_context(|| format!("routes of the tunnel {name}"))?;
    if is_stopped {
        dns::recover(name).with_context(|| format!("resolvers of the tunnel {name}"))?;
        // Without `nft`, no rules of split TCP can exist.
        let _ = split_tcp::recover(name);
    }
    Ok(is_stopped)
}
