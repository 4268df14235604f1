//! Client side of the control socket.

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

/// Requests the status of the daemon at `socket`.
///
/// # Errors
/// No daemon answers at `socket`, or the daemon answers with an error.
pub(crate) fn status(socket: &Path) -> anyhow::Result<StatusReport> {
    ask(socket, &Request::Status {})
}

/// Sets weights of links, by name, at the daemon at `socket`. A weight is 1 to 1000.
///
/// # Errors
/// No daemon answers at `socket`, or the daemon refuses.
pub(crate) fn set_weights(socket: &Path, weights: BTreeMap<String, u32>) -> anyhow::Result<()> {
    ask::<serde_json::Value>(socket, &Request::Weights { weights }).map(drop)
}

/// Tells the gateway at `socket` to ask its clients to use another gateway (`on`), or no longer.
///
/// # Errors
/// No daemon answers at `socket`, or the daemon is no gateway.
pub(crate) fn drain(socket: &Path, on: bool) -> anyhow::Result<()> {
    ask::<serde_json::Value>(socket, &Request::Drain { on }).map(drop)
}

/// Sends the changes `set` to the proxy or client at `socket`.
///
/// # Errors
/// No daemon answers at `socket`, the daemon is neither a proxy nor a client, or it refuses.
pub(crate) fn set(socket: &Path, set: BTreeMap<String, String>) -> anyhow::Result<()> {
    ask::<serde_json::Value>(socket, &Request::Set { set }).map(drop)
}

/// Tells the gateway at `socket` to remove the client `name`.
///
/// # Errors
/// No daemon answers at `socket`, or the daemon is no gateway.
pub(crate) fn remove_client(socket: &Path, name: &str) -> anyhow::Result<()> {
    let name = name.to_owned();
    ask::<serde_json::Value>(socket, &Request::RemoveClient { name }).map(drop)
}

/// Tells the daemon at `socket` to read its configuration again.
///
/// # Errors
/// No daemon answers at `socket`, or the configuration contains an error.
pub(crate) fn reload(socket: &Path) -> anyhow::Result<ReloadReport> {
    ask(socket, &Request::Reload {})
}

/// Tells the client at `socket` to use only `link` for `time`. If `link` is `None`, all links are used again.
///
/// # Errors
/// No daemon answers at `socket`, the daemon is no client, or it has no link with this name.
pub(crate) fn only(socket: &Path, link: Option<&str>, time: Duration) -> anyhow::Result<()> {
    let request = Request::Only {
        link: link.map(str::to_owned),
        millis: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
    };
    ask::<serde_json::Value>(socket, &request).map(drop)
}

/// Returns the path of the only socket in `directory`.
///
/// # Errors
/// There is no socket, or there are several. In the latter case the message lists them.
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

/// Time limit for an answer. It is longer than the daemon's own limit, so that the daemon's message arrives.
const PATIENCE: Duration = Duration::from_secs(8);

/// Maximum length of an answer in bytes: enough for the status of about ten thousand clients.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
