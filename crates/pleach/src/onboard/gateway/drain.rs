//! `pleach gateway drain`: moves the clients of a running gateway to other gateways, for example before an update.

use std::{path::Path, thread, time::Duration};

use anyhow::bail;
use pleach_linux::clock;

use super::Gateway;
use crate::{
    control,
    onboard::{self, host, place::Place},
};

/// Options of `pleach gateway drain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Drain {
    /// Take clients again
    #[arg(long)]
    off: bool,
    /// Time to wait until no client is connected; the gateway drains on afterwards
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    place: Place,
}

pub(super) fn run(options: &Drain) -> anyhow::Result<String> {
    host::require_root("gateway drain")?;
    let gateway = Gateway::load(&options.place)?;
    let control = &gateway.config.control;
    control::drain(control, !options.off)?;
    if options.off {
        return Ok("The gateway takes clients again.\n".to_owned());
    }
    let deadline = clock::now() + options.timeout;
    let mut told = None;
    let mut failed = 0;
    loop {
        // A single request may fail while the daemon is busy.
        let left = match connected(control) {
            Ok(left) => left,
            Err(error) if failed >= FAILURES || clock::now() >= deadline => return Err(error),
            Err(_) => {
                failed += 1;
                thread::park_timeout(LOOK_EVERY);
                continue;
            }
        };
        failed = 0;
        if left.is_empty() {
            return Ok(
                "No client is connected. Until a restart or `pleach gateway drain --off`, clients come back only if no other gateway answers.\n"
                    .to_owned(),
            );
        }
        if clock::now() >= deadline {
            let names: Vec<&str> = left.iter().take(NAMED).map(String::as_str).collect();
            let more = if left.len() > NAMED { ", ..." } else { "" };
            bail!(
                "{} clients are still connected ({}{more}): they have no other gateway that answers, or use an older version; the gateway drains on until `pleach gateway drain --off`",
                left.len(),
                names.join(", ")
            );
        }
        if told != Some(left.len()) {
            onboard::note(&format!("{} clients are connected", left.len()));
            told = Some(left.len());
        }
        // `park_timeout` may return early.
        thread::park_timeout(LOOK_EVERY);
    }
}

/// Returns the names of the clients that are connected.
///
/// # Errors
/// If the gateway does not answer, or only a part of it.
fn connected(control: &Path) -> anyhow::Result<Vec<String>> {
    let status = control::status(control)?;
    if let Some(worker) = status.silent_workers.first() {
        bail!(
            "data thread {worker} of the gateway does not answer, so it is not known which of its clients are connected; restart the gateway if this lasts"
        );
    }
    let clients = status.clients.into_iter();
    Ok(clients
        .filter(|client| client.up)
        .map(|client| client.name)
        .collect())
}

/// Interval at which the clients are counted.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Number of successive requests that may fail.
const FAILURES: u32 = 5;
/// Number of clients that an error names.
const NAMED: usize = 5;
