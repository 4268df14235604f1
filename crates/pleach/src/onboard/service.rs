//! Starting and stopping the daemon: by systemd where it runs, else by the user, who is told how.
//!
//! If no unit of its kind (`pleach@.service`, `pleach-proxy@.service`) is installed, the packaged one is written to `/etc/systemd/system`, with the path of this
//! program. A daemon that runs without systemd is stopped by the process id that its control socket tells.

use std::{
    env, fs, io, os::unix::net::UnixStream, path::Path, process::Command, thread, time::Duration,
};

use anyhow::{Context as _, bail};
use pleach_linux::clock;
use rustix::{
    net::sockopt::socket_peercred,
    process::{Signal, kill_process},
};

use super::{
    durable::{self, Existing},
    place::Place,
};

/// What kind of daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `pleach proxy`.
    Proxy,
    /// `pleach up`.
    Tunnel,
}

impl Kind {
    /// Name of its unit before the `@`.
    const fn unit(self) -> &'static str {
        match self {
            Self::Proxy => "pleach-proxy",
            Self::Tunnel => "pleach",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Proxy => PROXY_UNIT_TEXT,
            Self::Tunnel => UNIT_TEXT,
        }
    }
}

/// What became of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The service manager runs it, now and after the next boot.
    Enabled,
    /// The user has to start it.
    ByHand,
}

/// Starts the daemon of `NAME.toml` as a service, unless the files are elsewhere or there is no systemd.
///
/// # Errors
/// systemd refuses.
pub(crate) fn start(place: &Place, kind: Kind, name: &str) -> anyhow::Result<Start> {
    if !place.is_usual() || !has_systemd() {
        return Ok(Start::ByHand);
    }
    let unit = format!("{}@.service", kind.unit());
    if !UNIT_DIRECTORIES
        .iter()
        .any(|directory| Path::new(directory).join(&unit).exists())
    {
        let program = env::current_exe().context("path of this program")?;
        let program = program
            .to_str()
            .context("the path of this program is not UTF-8")?;
        let text = format!(
            "{OWN_UNIT}\n{}",
            kind.text().replace("/usr/bin/pleach", program)
        );
        let path = Path::new(UNIT_DIRECTORIES[0]).join(&unit);
        durable::write(&path, text.as_bytes(), 0o644, Existing::Replace)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        systemctl(&["daemon-reload"])?;
    }
    systemctl(&["enable", "--now", &format!("{}@{name}", kind.unit())])?;
    Ok(Start::Enabled)
}

/// Has a service that [`start`] has started start anew, to read its file.
///
/// # Errors
/// systemd refuses.
pub(crate) fn restart(place: &Place, kind: Kind, name: &str) -> anyhow::Result<Start> {
    if !place.is_usual() || !has_systemd() {
        return Ok(Start::ByHand);
    }
    let instance = format!("{}@{name}", kind.unit());
    // One that the user runs by hand is none of the service manager's.
    if systemctl(&["is-active", "--quiet", &instance]).is_err() {
        return Ok(Start::ByHand);
    }
    systemctl(&["restart", &instance])?;
    Ok(Start::Enabled)
}

/// Stops what [`start`] has started, and a daemon that the user did; takes the unit away if nothing else needs it.
///
/// # Errors
/// It does not stop.
pub(crate) fn stop(place: &Place, kind: Kind, name: &str) -> anyhow::Result<()> {
    if place.is_usual() && has_systemd() {
        systemctl(&["disable", "--now", &format!("{}@{name}", kind.unit())])?;
        let unit = format!("{}@.service", kind.unit());
        let path = Path::new(UNIT_DIRECTORIES[0]).join(unit);
        let is_ours = fs::read_to_string(&path).is_ok_and(|text| text.starts_with(OWN_UNIT));
        let others = fs::read_dir(place.directory())
            .into_iter()
            .flatten()
            .flatten();
        let mut others = others.filter(|entry| {
            let file = entry.path();
            file.extension()
                .is_some_and(|extension| extension == "toml")
                && file.file_stem().is_some_and(|stem| stem != name)
        });
        if is_ours && others.next().is_none() {
            durable::remove(&path)?;
            systemctl(&["daemon-reload"])?;
        }
    }
    stop_by_socket(&place.control(name))
}

/// Whether a daemon answers on `control`.
pub(crate) fn is_running(control: &Path) -> bool {
    UnixStream::connect(control).is_ok()
}

fn stop_by_socket(control: &Path) -> anyhow::Result<()> {
    let Ok(stream) = UnixStream::connect(control) else {
        return Ok(());
    };
    let pid = socket_peercred(&stream).map_err(io::Error::from)?.pid;
    drop(stream);
    kill_process(pid, Signal::TERM)
        .map_err(io::Error::from)
        .with_context(|| format!("cannot stop the daemon, process {}", pid.as_raw_nonzero()))?;
    let deadline = clock::now() + PATIENCE;
    while is_running(control) {
        if clock::now() >= deadline {
            bail!(
                "the daemon, process {}, does not end: kill it, then try again",
                pid.as_raw_nonzero()
            );
        }
        thread::park_timeout(Duration::from_millis(20));
    }
    Ok(())
}

fn has_systemd() -> bool {
    // sd_booted(3).
    Path::new("/run/systemd/system").is_dir()
}

fn systemctl(arguments: &[&str]) -> anyhow::Result<()> {
    let shown = arguments.join(" ");
    let output = Command::new("systemctl").args(arguments).output();
    let output = output.with_context(|| format!("cannot run `systemctl {shown}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`systemctl {shown}` failed: {}; `journalctl -u 'pleach@*'` says more",
            said.trim()
        );
    }
    Ok(())
}

/// The first is the administrator's; systemd.unit(5).
const UNIT_DIRECTORIES: [&str; 3] = [
    "/etc/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
const UNIT_TEXT: &str = include_str!("../../../../packaging/pleach@.service");
const PROXY_UNIT_TEXT: &str = include_str!("../../../../packaging/pleach-proxy@.service");
const OWN_UNIT: &str = "# Written by pleach, removed by `pleach leave`.";
/// The daemon promises two seconds.
const PATIENCE: Duration = Duration::from_secs(5);
