//! Resolvers of the tunnel: `[tunnel] dns`.
//!
//! One of these methods is used, the first that the host supports:
//!
//! 1. systemd-resolved, through `resolvectl`, if `/etc/resolv.conf` leads to it: the resolvers are assigned to the tunnel's
//!    device, and the domain `~.` makes them the only ones for all names. systemd-resolved forgets them with the device, also
//!    after a crash.
//! 2. `resolvconf`, with the interface `tun.NAME`, unless this is the link to `resolvectl` that systemd-resolved installs.
//! 3. `/etc/resolv.conf` itself. Its former content stays in the file, with a mark at the beginning of each line, so
//!    that it can be restored after a crash and after a reboot.
//!
//! In the third case the file is checked every second while the tunnel runs. If another program has written it, as a
//! DHCP client does when a lease is renewed, that is logged and the tunnel's resolvers are set again. The new content
//! is then restored at the end. After each such time the next check comes later, up to a minute, so that two programs
//! do not overwrite each other all the time.
//!
//! The change is undone at the end; after a crash, by the next start of the tunnel or by `pleach leave`. A file that
//! another program has written since the crash is left alone. Limits: a program that has read the former file continues
//! to use its resolvers. Only one tunnel at a time can use the file.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_linux::{clock, confine::Access, netlink::Netlink, program};

use crate::onboard::durable::{self, Existing};

/// The host's resolvers, as changed for a tunnel; dropping the value restores the former ones.
#[derive(Debug)]
pub(crate) struct Resolvers {
    tunnel: String,
    way: Way,
    keeper: Option<Keeper>,
}

/// How the resolvers are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    File,
    Resolvconf,
    Resolved,
}

impl Resolvers {
    /// Makes the host use the resolvers `servers` over the device `tunnel`. Returns `None` if `servers` is empty.
    ///
    /// # Errors
    /// The text says which step failed.
    pub(crate) fn set(tunnel: &str, servers: &[IpAddr]) -> io::Result<Option<Self>> {
        if servers.is_empty() {
            return Ok(None);
        }
        let way = way();
        let mut this = Self {
            tunnel: tunnel.to_owned(),
            way,
            keeper: None,
        };
        match way {
            Way::File => {
                take_file(Path::new(FILE), tunnel, servers)?;
                this.keeper = Some(Keeper::start(Path::new(FILE), tunnel, servers)?);
            }
            Way::Resolvconf => {
                let interface = interface(tunnel);
                run(
                    "resolvconf",
                    &["-a", &interface, "-m", "0", "-x"],
                    &lines(servers),
                )?;
            }
            Way::Resolved => {
                let texts: Vec<String> = servers.iter().map(ToString::to_string).collect();
                let mut arguments = vec!["dns", tunnel];
                arguments.extend(texts.iter().map(String::as_str));
                run("resolvectl", &arguments, "")?;
                run("resolvectl", &["domain", tunnel, "~."], "")?;
            }
        }
        tracing::info!(tunnel, ?servers, ?way, "resolvers");
        Ok(Some(this))
    }
}

impl Drop for Resolvers {
    fn drop(&mut self) {
        // Stop the thread first: otherwise it would set the resolvers again.
        drop(self.keeper.take());
        let tunnel = &self.tunnel;
        let undone = match self.way {
            Way::File => give_back_file(Path::new(FILE), tunnel),
            Way::Resolvconf => run("resolvconf", &["-d", &interface(tunnel)], ""),
            // systemd-resolved has already forgotten the resolvers of a device that is gone.
            Way::Resolved if !has_device(tunnel) => Ok(()),
            Way::Resolved => run("resolvectl", &["revert", tunnel], ""),
        };
        if let Err(error) = undone {
            tracing::error!(tunnel, %error, "the resolvers of this host are not what they were");
        }
    }
}

/// A thread that sets the resolvers again when another program has written the file. Dropping it ends the thread.
#[derive(Debug)]
struct Keeper {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    fn start(file: &Path, tunnel: &str, servers: &[IpAddr]) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let (file, tunnel, servers) = (file.to_owned(), tunnel.to_owned(), servers.to_vec());
        let keep = move || keep_file(&file, &tunnel, &servers, &seen);
        let thread = thread::Builder::new()
            .name("resolvers".to_owned())
            .spawn(keep)?;
        Ok(Self {
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // If the thread has panicked, it does not run any more.
            let _ = thread.join();
        }
    }
}

/// Until `is_over`, sets `servers` in `file` again whenever another program has written the file.
fn keep_file(file: &Path, tunnel: &str, servers: &[IpAddr], is_over: &AtomicBool) {
    let mut wait = LOOK;
    let mut next = clock::now() + LOOK;
    while !is_over.load(Ordering::Acquire) {
        let now = clock::now();
        if now < next {
            // `park_timeout` may return early.
            thread::park_timeout(next.since(now));
            continue;
        }
        next = now + LOOK;
        let text = fs::read_to_string(file);
        if text.is_ok_and(|text| text.starts_with(&own_head(tunnel))) {
            continue;
        }
        match take_file(file, tunnel, servers) {
            Ok(()) => tracing::warn!(
                tunnel,
                file = %file.display(),
                "another program has changed the resolvers of this host; the tunnel's are set again"
            ),
            Err(error) => {
                tracing::warn!(tunnel, %error, "the resolvers of this host are not the tunnel's any more");
            }
        }
        wait = (wait * 2).min(MOST_WAIT);
        next = now + wait;
    }
}

/// Undoes the changes that a crashed daemon of `tunnel` left, if any.
///
/// # Errors
/// As [`Resolvers::set`].
pub(crate) fn recover(tunnel: &str) -> io::Result<()> {
    // The host may have had no `resolvconf` before the crash: the file is checked in every case.
    let restored = give_back_file(Path::new(FILE), tunnel);
    if way() == Way::Resolvconf {
        // `resolvconf` succeeds even if there is no such interface.
        run("resolvconf", &["-d", &interface(tunnel)], "")?;
    }
    restored
}

/// Returns the files that are needed to read the host's resolvers, and, if the host gets resolvers of a tunnel (`is_set`),
/// to set and restore them.
pub(crate) fn files(is_set: bool) -> Vec<(PathBuf, Access)> {
    let file = Path::new(FILE);
    let mut files = vec![
        (file.to_owned(), Access::Read),
        (RESOLVED.into(), Access::Read),
    ];
    // A link leads to a file that its owner replaces. The directory of the file itself contains much else.
    if file.is_symlink() {
        files.push((directory_of(file), Access::Read));
    }
    if !is_set {
        return files;
    }
    match way() {
        Way::File => {
            files.push((file.to_owned(), Access::Set));
            files.push((directory_of(file), Access::Change));
        }
        // The program runs scripts, which change files of other resolvers.
        Way::Resolvconf => {
            files.push(("/etc".into(), Access::Run));
            files.extend(["/etc", "/run", "/var"].map(|path| (path.into(), Access::Change)));
        }
        Way::Resolved => {}
    }
    files
}

fn way() -> Way {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &str| find(program, &path).is_some();
    if leads_to_resolved(Path::new(FILE), Path::new(RESOLVED)) && has("resolvectl") {
        Way::Resolved
    } else if has_resolvconf(&path) {
        Way::Resolvconf
    } else {
        Way::File
    }
}

/// Whether programs that read `file` query systemd-resolved, whose files are in `directory`. They do if `file` links to
/// a file in `directory` or names an address on which systemd-resolved answers.
fn leads_to_resolved(file: &Path, directory: &Path) -> bool {
    if !directory.is_dir() {
        return false;
    }
    let is_its = fs::canonicalize(file).is_ok_and(|file| file.starts_with(directory));
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next())?
    });
    is_its || servers.any(|server| ["127.0.0.53", "127.0.0.54"].contains(&server))
}

/// Whether the device exists. Returns `true` if the kernel cannot be asked.
fn has_device(name: &str) -> bool {
    let index = Netlink::open().and_then(|netlink| netlink.link_index(name));
    index.map_or(true, |index| index.is_some())
}

/// Whether `path` leads to a `resolvconf` that manages `/etc/resolv.conf`. systemd-resolved installs a link of this name to
/// `resolvectl`, which knows only existing devices and does not change the file.
fn has_resolvconf(path: &OsStr) -> bool {
    find("resolvconf", path).is_some_and(|program| {
        fs::canonicalize(program).is_ok_and(|program| !program.ends_with("resolvectl"))
    })
}

/// Returns the first file `program` in the directories of `path`.
fn find(program: &str, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

fn interface(tunnel: &str) -> String {
    format!("tun.{tunnel}")
}

fn lines(servers: &[IpAddr]) -> String {
    let lines = servers
        .iter()
        .map(|server| format!("nameserver {server}\n"));
    lines.collect()
}

fn run(program: &str, arguments: &[&str], input: &str) -> io::Result<()> {
    let fail = |what: &str| io::Error::other(format!("{program} {}: {what}", arguments.join(" ")));
    let command = &mut Command::new(program);
    command.args(arguments).stdout(Stdio::null());
    // The program may wait for a bus that nobody serves.
    let output = match program::run(command, input, PATIENCE) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(fail(&error.to_string()));
        }
        ended => ended?,
    };
    if output.status.success() {
        Ok(())
    } else {
        Err(fail(String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// Writes `servers` into `file`, followed by the former content with a mark on each line.
fn take_file(file: &Path, tunnel: &str, servers: &[IpAddr]) -> io::Result<()> {
    give_back_file(file, tunnel)?;
    let before = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read?),
    };
    if before
        .as_ref()
        .is_some_and(|before| before.starts_with(HEAD))
    {
        let text = format!("{} is another tunnel's already", file.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    let mut text = format!("{}\n{}", head(tunnel, before.is_some()), lines(servers));
    for line in before.unwrap_or_default().lines() {
        text += &format!("{MARK}{line}\n");
    }
    rewrite(file, &text)
}

/// Replaces the content of `file`. If the file can be replaced by rename, a crash leaves either the old or the new
/// content. If it cannot (`file` is a mount, a symbolic link, or the only writable file of its directory), a crash
/// never leaves an empty file.
fn rewrite(file: &Path, text: &str) -> io::Result<()> {
    let meta = fs::symlink_metadata(file).ok();
    let mode = meta
        .as_ref()
        .map_or(0o644, |meta| meta.permissions().mode() & 0o7777);
    let is_link = meta.as_ref().is_some_and(fs::Metadata::is_symlink);
    if !is_link && durable::write(file, text.as_bytes(), mode, Existing::Replace).is_ok() {
        return Ok(());
    }
    let write = || {
        let mut options = fs::OpenOptions::new();
        let mut written = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(file)?;
        if meta.is_none() {
            written.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        written.write_all(text.as_bytes())?;
        written.set_len(text.len() as u64)?;
        written.sync_all()
    };
    write().map_err(|error| cannot_write(file, &error))
}

fn cannot_write(file: &Path, error: &io::Error) -> io::Error {
    let kinds = [
        io::ErrorKind::ReadOnlyFilesystem,
        io::ErrorKind::PermissionDenied,
    ];
    let remedy = if kinds.contains(&error.kind()) {
        let place = directory_of(file);
        format!(
            ": let the daemon write there (ReadWritePaths={} in its unit), or remove [tunnel] dns",
            place.display()
        )
    } else {
        String::new()
    };
    let text = format!("{}: {error}{remedy}", file.display());
    io::Error::new(error.kind(), text)
}

/// Returns the directory of `file`, or of the file to which `file` is a symbolic link. A relative link starts at the
/// directory of `file`. The target does not need to exist.
fn directory_of(file: &Path) -> PathBuf {
    let own = file.parent().unwrap_or(file);
    let Ok(link) = fs::read_link(file) else {
        return own.to_owned();
    };
    let target = own.join(link);
    let directory = target.parent().unwrap_or(own);
    // A path in a unit must not contain `..`.
    fs::canonicalize(directory).unwrap_or_else(|_| without_dots(directory))
}

/// Resolves `.` and `..` in `path` without looking at the file system.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            Component::Normal(_) | Component::Prefix(_) | Component::RootDir => plain.push(part),
        }
    }
    plain
}

/// Restores the content that `file` had before [`take_file`], unless another tunnel or program has written the file.
fn give_back_file(file: &Path, tunnel: &str) -> io::Result<()> {
    let Ok(text) = fs::read_to_string(file) else {
        return Ok(());
    };
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    if first == head(tunnel, false) {
        return fs::remove_file(file);
    }
    if first != head(tunnel, true) {
        return Ok(());
    }
    let before = lines.filter_map(|line| line.strip_prefix(MARK));
    let before: String = before.map(|line| format!("{line}\n")).collect();
    rewrite(file, &before)
}

/// Returns the content that a file had before a tunnel wrote it. `text`: the present content of the file.
pub(super) fn former(text: &str) -> String {
    if !text.starts_with(HEAD) {
        return text.to_owned();
    }
    let before = text.lines().filter_map(|line| line.strip_prefix(MARK));
    before.map(|line| format!("{line}\n")).collect()
}

fn head(tunnel: &str, had_content: bool) -> String {
    let what = if had_content {
        "the former content follows"
    } else {
        "there was no such file"
    };
    format!("{}{what}, and comes back when it stops", own_head(tunnel))
}

/// Returns the beginning of the file that `tunnel` writes.
fn own_head(tunnel: &str) -> String {
    format!("{HEAD}{tunnel}; ")
}

/// Longest run of a helper program: a tunnel that stops has two seconds for everything.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval between two checks of the file.
const LOOK: Duration = Duration::from_secs(1);
/// Longest pause before the next check, after another program has overwritten the file.
const MOST_WAIT: Duration = Duration::from_secs(60);
const FILE: &str = "/etc/resolv.conf";
/// Directory of systemd-resolved.
const RESOLVED: &str = "/run/systemd/resolve";
const HEAD: &str = "# Written by pleach for the tunnel ";
const MARK: &str = "#pleach# ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_back_as_it_was() {
        let directory = tempfile::TempDir::new().expect("directory");
        let file = directory.path().join("resolv.conf");
        let servers = ["10.77.0.1", "fd77::1"].map(|text| text.parse().expect("literal"));
        let former = "# comment\nnameserver 192.0.2.1\n\noptions edns0\n";
        fs::write(&file, former).expect("written");
        take_file(&file, "t0", &servers).expect("taken");
        let text = fs::read_to_string(&file).expect("readable");
        let active: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(active, ["nameserver 10.77.0.1", "nameserver fd77::1"]);
        // Another tunnel takes the file after a crash of the first one.
        take_file(&file, "t0", &servers).expect("taken again");
        take_file(&file, "t1", &servers).expect_err("it is the first's");
        give_back_file(&file, "t1").expect("not its own");
        give_back_file(&file, "t0").expect("given back");
        assert_eq!(fs::read_to_string(&file).expect("readable"), former);
    }

    #[test]
    fn systemd_resolved_is_told_only_if_programs_ask_it() {
        let directory = tempfile::TempDir::new().expect("directory");
        let resolved = directory
            .path()
            .canonicalize()
            .expect("there")
            .join("resolve");
        let file = directory.path().join("resolv.conf");
        let leads = || leads_to_resolved(&file, &resolved);
        let stub = "# stub\nnameserver 127.0.0.53\n";
        fs::write(&file, stub).expect("written");
        assert!(!leads(), "it does not run");
        fs::create_dir(&resolved).expect("made");
        assert!(leads());
        fs::write(&file, "#nameserver 127.0.0.53\nnameserver 192.0.2.1\n").expect("written");
        assert!(!leads());
        fs::remove_file(&file).expect("removed");
        assert!(!leads());
        let uplink = resolved.join("resolv.conf");
        fs::write(&uplink, "nameserver 192.0.2.1\n").expect("written");
        std::os::unix::fs::symlink(&uplink, &file).expect("linked");
        assert!(leads());
    }

    #[test]
    fn a_resolvconf_that_is_resolvectl_is_not_used() {
        let directory = tempfile::TempDir::new().expect("directory");
        let at = |name: &str| directory.path().join(name);
        let path = directory.path().as_os_str();
        assert!(!has_resolvconf(path));
        fs::write(at("resolvectl"), "").expect("written");
        std::os::unix::fs::symlink("resolvectl", at("resolvconf")).expect("linked");
        assert!(!has_resolvconf(path));
        assert_eq!(find("resolvconf", path), Some(at("resolvconf")));
        fs::remove_file(at("resolvconf")).expect("removed");
        fs::write(at("resolvconf"), "").expect("written");
        assert!(has_resolvconf(path));
    }

    #[test]
    fn the_directory_in_a_remedy_is_absolute() {
        let directory = tempfile::TempDir::new().expect("directory");
        let root = directory.path().canonicalize().expect("there");
        let file = root.join("etc/resolv.conf");
        fs::create_dir_all(root.join("etc")).expect("made");
        assert_eq!(directory_of(&file), root.join("etc"));
        std::os::unix::fs::symlink("../run/resolvconf/resolv.conf", &file).expect("linked");
        assert_eq!(directory_of(&file), root.join("run/resolvconf"), "missing");
        fs::create_dir_all(root.join("run/resolvconf")).expect("made");
        assert_eq!(directory_of(&file), root.join("run/resolvconf"));
        let error = cannot_write(&file, &io::ErrorKind::ReadOnlyFilesystem.into());
        let remedy = format!("ReadWritePaths={} ", root.join("run/resolvconf").display());
        assert!(error.to_string().contains(&remedy), "{error}");
    }

    #[test]
    fn what_others_wrote_is_left_and_what_was_not_there_goes() {
        let directory = tempfile::TempDir::new().expect("directory");
        let file = directory.path().join("resolv.conf");
        let servers = ["10.77.0.1".parse().expect("literal")];
        take_file(&file, "t0", &servers).expect("taken");
        give_back_file(&file, "t0").expect("given back");
        assert!(!file.exists());
        take_file(&file, "t0", &servers).expect("taken");
        fs::write(&file, "nameserver 192.0.2.9\n").expect("written");
        give_back_file(&file, "t0").expect("nothing to do");
        assert_eq!(
            fs::read_to_string(&file).expect("readable"),
            "nameserver 192.0.2.9\n"
        );
    }
}
