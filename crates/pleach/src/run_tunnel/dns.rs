//! Resolvers of the tunnel: `[tunnel] dns`.
//!
//! The first of these that the host has is used:
//!
//! 1. systemd-resolved, by `resolvectl`: the resolvers belong to the tunnel's device, and the domain `~.` has all names asked
//!    there and nowhere else. It forgets them with the device, also after a crash.
//! 2. `resolvconf`, with the interface `tun.NAME`.
//! 3. `/etc/resolv.conf` itself. What was in it is kept in the file, behind a mark in each line, so that it can be restored after a
//!    crash and after a restart of the machine.
//!
//! The file is looked at each second while the tunnel runs. If somebody else has written it, as a DHCP client does when a lease
//! is renewed, that is logged, and the tunnel's resolvers are set again: the new content is then what comes back at the end.
//! After each time the file is left alone for longer, up to a minute, so that two programs do not write it in turn for ever.
//!
//! It is undone at the end, and by the next start of the tunnel, or `pleach leave`, after a crash. A file that somebody else has
//! written since a crash is left alone. Limits: a program that has read the old file before goes on with it; only one tunnel at a time
//! can have the file.

use std::{
    fs,
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_linux::clock;

use crate::onboard::durable::{self, Existing};

/// The host's resolvers, as changed for a tunnel; given back when dropped.
#[derive(Debug)]
pub(crate) struct Resolvers {
    tunnel: String,
    way: Way,
    keeper: Option<Keeper>,
}

/// How they are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    File,
    Resolvconf,
    Resolved,
}

impl Resolvers {
    /// Has the host ask `servers` by way of the device `tunnel`; `None` if there are none.
    ///
    /// # Errors
    /// With what failed in the text.
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
        // Or it would set them again.
        drop(self.keeper.take());
        let tunnel = &self.tunnel;
        let undone = match self.way {
            Way::File => give_back_file(Path::new(FILE), tunnel),
            Way::Resolvconf => run("resolvconf", &["-d", &interface(tunnel)], ""),
            Way::Resolved => run("resolvectl", &["revert", tunnel], ""),
        };
        if let Err(error) = undone {
            tracing::error!(tunnel, %error, "the resolvers of this host are not what they were");
        }
    }
}

/// A thread that sets the resolvers again when somebody else has written the file; ends when dropped.
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
            // One that panicked has nothing left to do.
            let _ = thread.join();
        }
    }
}

/// Sets `servers` in `file` again whenever it is not `tunnel`'s, until `is_over`.
fn keep_file(file: &Path, tunnel: &str, servers: &[IpAddr], is_over: &AtomicBool) {
    let mut wait = LOOK;
    let mut next = clock::now() + LOOK;
    while !is_over.load(Ordering::Acquire) {
        let now = clock::now();
        if now < next {
            // It may return early.
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

/// Undoes what a crashed daemon of `tunnel` left; nothing if it left nothing.
///
/// # Errors
/// As [`Resolvers::set`].
pub(crate) fn recover(tunnel: &str) -> io::Result<()> {
    if way() == Way::Resolvconf {
        // It does not mind if there is no such interface.
        run("resolvconf", &["-d", &interface(tunnel)], "")?;
    }
    give_back_file(Path::new(FILE), tunnel)
}

fn way() -> Way {
    if Path::new("/run/systemd/resolve").is_dir() && has("resolvectl") {
        Way::Resolved
    } else if has("resolvconf") {
        Way::Resolvconf
    } else {
        Way::File
    }
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
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

#[expect(
    clippy::disallowed_methods,
    reason = "the standard library cannot wait for a child with a deadline"
)]
fn run(program: &str, arguments: &[&str], input: &str) -> io::Result<()> {
    let fail =
        |what: String| io::Error::other(format!("{program} {}: {what}", arguments.join(" ")));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read has its own reason.
        let _ = stdin.write_all(input.as_bytes());
    }
    let end = clock::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if clock::now() >= end {
            // It may hang on a bus that nobody serves.
            child.kill()?;
            child.wait()?;
            return Err(fail("it did not end".to_owned()));
        }
        thread::sleep(PATIENCE / 100);
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(fail(said.trim().to_owned()))
    }
}

/// Writes `servers` into `file`, and what it had behind marks.
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

/// Replaces the content of `file`. A crash leaves the old content or the new one where another file can be put into its place; where
/// it cannot (`file` is mounted, or a link, or the only file that may be written), it never leaves an empty file.
fn rewrite(file: &Path, text: &str) -> io::Result<()> {
    let meta = fs::symlink_metadata(file);
    let mode = meta
        .as_ref()
        .map_or(0o644, |meta| meta.permissions().mode() & 0o7777);
    let is_link = meta.is_ok_and(|meta| meta.is_symlink());
    if !is_link && durable::write(file, text.as_bytes(), mode, Existing::Replace).is_ok() {
        return Ok(());
    }
    let mut options = fs::OpenOptions::new();
    let mut written = options
        .write(true)
        .create(true)
        .truncate(false)
        .open(file)?;
    written.write_all(text.as_bytes())?;
    written.set_len(text.len() as u64)?;
    written.sync_all()
}

/// Restores what `file` had before [`take_file`], unless it is not this tunnel's.
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

/// What a file with the content `text` had before a tunnel took it.
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

/// How the file of `tunnel` begins.
fn own_head(tunnel: &str) -> String {
    format!("{HEAD}{tunnel}; ")
}

/// How long a program of the host may take: a tunnel that stops has two seconds for all.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks at the file.
const LOOK: Duration = Duration::from_secs(1);
/// The longest that the file is left to another program that writes it again and again.
const MOST_WAIT: Duration = Duration::from_secs(60);
const FILE: &str = "/etc/resolv.conf";
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
        // After a crash, and for another tunnel meanwhile.
        take_file(&file, "t0", &servers).expect("taken again");
        take_file(&file, "t1", &servers).expect_err("it is the first's");
        give_back_file(&file, "t1").expect("not its own");
        give_back_file(&file, "t0").expect("given back");
        assert_eq!(fs::read_to_string(&file).expect("readable"), former);
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
