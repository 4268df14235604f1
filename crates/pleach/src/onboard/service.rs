//! Starts and stops the daemon: with systemd where it runs, else by telling the user how.
//!
//! If no unit of the daemon's kind (`pleach@.service`, `pleach-proxy@.service`) is installed, the packaged unit is
//! written to `/etc/systemd/system`, with the path of this program. A daemon that runs without systemd is stopped by
//! its process id, which is read from its control socket.

use std::{
    env, fs, io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
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

/// The kind of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A daemon started by `pleach proxy`.
    Proxy,
    /// A daemon started by `pleach up`.
    Tunnel,
}

impl Kind {
    /// Returns the name of the kind's unit before the `@`.
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

/// Result of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// systemd runs the daemon now and after each boot.
    Enabled,
    /// The user has to start it.
    ByHand,
}

/// Starts the daemon of `NAME.toml` as a service, unless the files are in another directory or systemd does not run.
///
/// # Errors
/// If systemd refuses.
pub(crate) fn start(place: &Place, kind: Kind, name: &str) -> anyhow::Result<Start> {
    if !place.is_usual() || !has_systemd() {
        return Ok(Start::ByHand);
    }
    let unit = format!("{}@.service", kind.unit());
    if !is_installed(&unit) {
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

/// Permits the daemon of the tunnel `NAME.toml` to write in `/etc`, because its `[tunnel] dns` may have to replace
/// `/etc/resolv.conf`. Does nothing if the files are in another directory or systemd does not run. [`stop`] undoes this.
///
/// # Errors
/// If the drop-in file of the unit cannot be written, or if systemd refuses.
pub(crate) fn permit_dns(place: &Place, name: &str) -> anyhow::Result<()> {
    if !place.is_usual() || !has_systemd() {
        return Ok(());
    }
    write_drop_in(Path::new(UNIT_DIRECTORIES[0]), name)?;
    systemctl(&["daemon-reload"])
}

/// Returns the directory of the drop-in files for the unit of the tunnel `name`.
fn drop_ins(units: &Path, name: &str) -> PathBuf {
    units.join(format!("{}@{name}.service.d", Kind::Tunnel.unit()))
}

fn write_drop_in(units: &Path, name: &str) -> anyhow::Result<()> {
    let directory = drop_ins(units, name);
    let path = directory.join(DROP_IN);
    let written = fs::create_dir_all(&directory).and_then(|()| {
        let text = format!("{OWN_UNIT}\n{DROP_IN_TEXT}");
        durable::write(&path, text.as_bytes(), 0o644, Existing::Replace)
    });
    written.with_context(|| format!("{} cannot be written", path.display()))
}

/// Removes the drop-in file of [`write_drop_in`]. Returns whether it existed. Other files of the directory remain.
fn remove_drop_in(units: &Path, name: &str) -> anyhow::Result<bool> {
    let directory = drop_ins(units, name);
    let path = directory.join(DROP_IN);
    let is_ours = fs::read_to_string(&path).is_ok_and(|text| text.starts_with(OWN_UNIT));
    if is_ours {
        durable::remove(&path).with_context(|| format!("{} stays", path.display()))?;
        // Succeeds only if the directory is empty.
        let _ = fs::remove_dir(directory);
    }
    Ok(is_ours)
}

/// Restarts a service that [`start`] has started, so that it reads its file again.
///
/// # Errors
/// If systemd refuses.
pub(crate) fn restart(place: &Place, kind: Kind, name: &str) -> anyhow::Result<Start> {
    if !place.is_usual() || !has_systemd() {
        return Ok(Start::ByHand);
    }
    let instance = format!("{}@{name}", kind.unit());
    // systemd does not know a daemon that the user has started by hand.
    if systemctl(&["is-active", "--quiet", &instance]).is_err() {
        return Ok(Start::ByHand);
    }
    systemctl(&["restart", &instance])?;
    Ok(Start::Enabled)
}

/// Stops the daemon, whether [`start`] or the user has started it. Removes the unit if no other configuration needs it.
///
/// # Errors
/// If the daemon does not stop.
pub(crate) fn stop(place: &Place, kind: Kind, name: &str) -> anyhow::Result<()> {
    let unit = format!("{}@.service", kind.unit());
    // Without a unit, the user has started the daemon by hand.
    if place.is_usual() && has_systemd() && is_installed(&unit) {
        systemctl(&["disable", "--now", &format!("{}@{name}", kind.unit())])?;
        if kind == Kind::Tunnel && remove_drop_in(Path::new(UNIT_DIRECTORIES[0]), name)? {
            systemctl(&["daemon-reload"])?;
        }
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

fn is_installed(unit: &str) -> bool {
    let mut directories = UNIT_DIRECTORIES.iter();
    directories.any(|directory| Path::new(directory).join(unit).exists())
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
                "the daemon, process {}, does not stop: kill it, then try again",
                pid.as_raw_nonzero()
            );
        }
        thread::park_timeout(Duration::from_millis(20));
    }
    Ok(())
}

fn has_systemd() -> bool {
    // Documented in sd_booted(3).
    Path::new("/run/systemd/system").is_dir()
}

fn systemctl(arguments: &[&str]) -> anyhow::Result<()> {
    let shown = arguments.join(" ");
    let output = Command::new("systemctl").args(arguments).output();
    let output = output.with_context(|| format!("cannot run `systemctl {shown}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`systemctl {shown}` failed: {}; see `journalctl -u 'pleach@*'`",
            said.trim()
        );
    }
    Ok(())
}

/// Directories of units; the first is the administrator's, see systemd.unit(5).
const UNIT_DIRECTORIES: [&str; 3] = [
    "/etc/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
const UNIT_TEXT: &str = include_str!("../../../../packaging/pleach@.service");
const PROXY_UNIT_TEXT: &str = include_str!("../../../../packaging/pleach-proxy@.service");
const OWN_UNIT: &str = "# Written by pleach, removed by `pleach leave`.";
/// Name of the drop-in file of [`permit_dns`].
const DROP_IN: &str = "pleach-dns.conf";
const DROP_IN_TEXT: &str = "\
# For [tunnel] dns: the daemon replaces /etc/resolv.conf.
[Service]
ReadWritePaths=/etc
";
/// Time to wait for a daemon to stop: more than the two seconds that it may take.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tunnel_with_resolvers_may_write_in_etc() {
        let writes_etc = |text: &str| {
            let mut paths = text
                .lines()
                .filter_map(|line| line.strip_prefix("ReadWritePaths="));
            paths.any(|paths| paths.split(' ').any(|path| path == "/etc"))
        };
        assert!(!writes_etc(UNIT_TEXT));
        let units = tempfile::TempDir::new().expect("directory");
        write_drop_in(units.path(), "client").expect("written");
        let directory = units.path().join("pleach@client.service.d");
        let text = fs::read_to_string(directory.join(DROP_IN)).expect("readable");
        assert!(text.contains("[Service]\n") && writes_etc(&text), "{text}");
        assert!(remove_drop_in(units.path(), "client").expect("removed"));
        assert!(!directory.exists());
        // A file of the administrator stays.
        fs::create_dir(&directory).expect("made");
        fs::write(directory.join(DROP_IN), "[Service]\n").expect("written");
        assert!(!remove_drop_in(units.path(), "client").expect("left alone"));
        assert!(directory.join(DROP_IN).exists());
    }
}
