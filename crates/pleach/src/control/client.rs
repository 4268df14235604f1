//! The user's side of the control socket.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;

use super::{ReloadReport, Request, StatusReport};
use crate::config::plain;

/// Asks the daemon at `socket` how things are.
///
/// # Errors
/// No daemon answers there, or it answers with an error.
pub(crate) fn status(socket: &Path) -> anyhow::Result<StatusReport> {
    ask(socket, &Request::Status {})
}

/// Gives the daemon at `socket` new weights, link name to 1..=1000.
///
/// # Errors
/// No daemon answers there, or it refuses.
pub(crate) fn set_weights(socket: &Path, weights: BTreeMap<String, u32>) -> anyhow::Result<()> {
    ask::<serde_json::Value>(socket, &Request::Weights { weights }).map(drop)
}

/// Has the proxy at `socket` change what `set` says.
///
/// # Errors
/// No daemon answers there, it is no proxy, or it refuses.
pub(crate) fn set(socket: &Path, set: BTreeMap<String, String>) -> anyhow::Result<()> {
    ask::<serde_json::Value>(socket, &Request::Set { set }).map(drop)
}

/// Has the gateway at `socket` drop the client `name`.
///
/// # Errors
/// No daemon answers there, or it is no gateway.
pub(crate) fn remove_client(socket: &Path, name: &str) -> anyhow::Result<()> {
    let name = name.to_owned();
    ask::<serde_json::Value>(socket, &Request::RemoveClient { name }).map(drop)
}

/// Has the daemon at `socket` read its configuration again.
///
/// # Errors
/// No daemon answers there, or the configuration is wrong.
pub(crate) fn reload(socket: &Path) -> anyhow::Result<ReloadReport> {
    ask(socket, &Request::Reload {})
}

/// Has the client at `socket` use `link` only for `time`, or all again.
///
/// # Errors
/// No daemon answers there, it is no client, or it has no such link.
pub(crate) fn only(socket: &Path, link: Option<&str>, time: Duration) -> anyhow::Result<()> {
    let request = Request::Only {
        link: link.map(str::to_owned),
        millis: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
    };
    ask::<serde_json::Value>(socket, &request).map(drop)
}

/// The only socket in `directory`.
///
/// # Errors
/// There is none, or there are several: the message lists them.
pub(crate) fn find_socket(directory: &Path) -> anyhow::Result<PathBuf> {
    let mut sockets: Vec<PathBuf> = match fs::read_dir(directory) {
        Ok(entries) => entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "sock")
            })
            .collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => bail!("cannot list {}: {}", directory.display(), plain(&error)),
    };
    sockets.sort();
    match sockets.as_slice() {
        [] => bail!(
            "no daemon is running: no control socket in {}; start one with `pleach up FILE`, or name its socket with --control",
            directory.display()
        ),
        [one] => Ok(one.clone()),
        several => {
            let names: Vec<String> = several
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            bail!(
                "several daemons: choose one with --control: {}",
                names.join(", ")
            )
        }
    }
}

/// Sends `request` and reads the answer.
fn ask<T: DeserializeOwned>(socket: &Path, request: &Request) -> anyhow::Result<T> {
    let stream = UnixStream::connect(socket).map_err(|error| not_reached(socket, &error))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    let unanswered = || format!("the daemon at {} does not answer", socket.display());
    (&stream).write_all(&line).with_context(unanswered)?;
    let mut answer = Vec::new();
    BufReader::new(&stream)
        .take(MAX_ANSWER_BYTES)
        .read_until(b'\n', &mut answer)
        .with_context(unanswered)?;
    if answer.last() != Some(&b'\n') {
        bail!("the daemon at {} broke off its answer", socket.display());
    }
    let answer: serde_json::Value = serde_json::from_slice(&answer)
        .with_context(|| format!("{} is no control socket of pleach", socket.display()))?;
    if let Some(error) = answer.get("error").and_then(serde_json::Value::as_str) {
        bail!("the daemon answered: {error}");
    }
    serde_json::from_value(answer)
        .with_context(|| format!("{}: the daemon is of another version", socket.display()))
}

fn not_reached(socket: &Path, error: &io::Error) -> anyhow::Error {
    let shown = socket.display();
    let is = |kind| error.kind() == kind;
    if is(io::ErrorKind::NotFound) {
        anyhow::anyhow!("no daemon is running: there is no control socket {shown}")
    } else if is(io::ErrorKind::ConnectionRefused) {
        anyhow::anyhow!("no daemon is running: {shown} is left from one that crashed")
    } else if is(io::ErrorKind::PermissionDenied) {
        anyhow::anyhow!("no right to use {shown}: try again as root")
    } else {
        anyhow::anyhow!("cannot connect to {shown}: {}", plain(error))
    }
}

/// Longer than the daemon's own patience, so that its message arrives.
const PATIENCE: Duration = Duration::from_secs(8);

/// The status of some ten thousand clients.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
