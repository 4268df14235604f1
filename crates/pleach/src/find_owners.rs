//! The process `pleach find-owners`, which finds the programs of sockets for a daemon that confines itself
//! ([`pleach_linux::owner`]).

use std::{
    io,
    os::{fd::AsFd as _, unix::net::UnixStream},
    process::Command,
};

use pleach_linux::{
    confine::Confinement,
    owner::{self, Finder},
};

use crate::log_lines;

/// Starts the process. A confined daemon cannot start it any more. Without it, rules with `app` match nothing.
pub(crate) fn start() -> Option<Finder> {
    let program = std::env::current_exe();
    let started =
        program.and_then(|program| Finder::start(Command::new(program).arg("find-owners")));
    started
        .inspect_err(|error| tracing::warn!(%error, "programs of clients are not identified"))
        .ok()
}

/// Logs a warning if the process will not see the programs of other users. `page`: where the remedy is described.
pub(crate) fn warn_of_rights(page: &str) {
    if !owner::sees_all() {
        tracing::warn!(
            "rules with `app` match no programs of other users, and few of root: \
             permit CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH ({page})"
        );
    }
}

/// Runs the process that [`start`] starts.
///
/// # Errors
/// If standard input is no socket.
pub(crate) fn run() -> anyhow::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let rights = Confinement {
        capabilities: owner::RIGHTS,
        bpf: false,
        // Landlock hides other processes.
        files: None,
    };
    let _confined = rights.apply();
    log_lines::in_background();
    Ok(owner::serve(&mut UnixStream::from(socket))?)
}
