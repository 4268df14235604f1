//! Hosts of the lab: network namespaces that are referenced by a descriptor.
//!
//! This module needs no `ip netns`, no mounts and no names in the file system. A thread creates a namespace by
//! unsharing, and its descriptor keeps the namespace alive, so the kernel removes the namespace however the process
//! ends. Child processes are killed when the thread that started them ends.

use std::{
    ffi::{CStr, CString},
    fs::{self, File},
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::process::CommandExt as _,
    },
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, bail};
use rustix::{
    io::Errno,
    process::{Signal, set_parent_process_death_signal},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

/// A network namespace. Clones refer to the same namespace.
#[derive(Clone, Debug)]
pub struct Netns {
    name: String,
    namespace: Arc<File>,
}

impl Netns {
    /// Creates a new, empty namespace with its loopback device up. `name` is for messages.
    ///
    /// # Errors
    /// Fails if namespaces are not permitted; see [`prepare`].
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let namespace = on_new_thread(|| {
            unshare(UnshareFlags::NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        })
        .with_context(|| format!("cannot make a network namespace for {name}"))?;
        let this = Self {
            name: name.to_owned(),
            namespace: Arc::new(namespace),
        };
        this.ip("link set dev lo up\n")?;
        Ok(this)
    }

    /// Returns the name used in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a path that refers to the namespace as long as this process keeps it open.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let fd = self.namespace.as_raw_fd();
        PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()))
    }

    /// Runs `work` on a new thread inside the namespace and returns its result. Sockets and devices that `work` opens
    /// stay inside.
    ///
    /// # Errors
    /// Fails if the namespace cannot be entered, or `work` fails.
    pub fn run<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        on_new_thread(|| {
            self.enter()?;
            Ok(work())
        })
        .with_context(|| format!("in {}", self.name))?
    }

    /// Starts `work` on a new thread inside the namespace.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn spawn<T: Send + 'static>(
        &self,
        thread_name: &str,
        work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> io::Result<JoinHandle<anyhow::Result<T>>> {
        let this = self.clone();
        thread::Builder::new()
            .name(thread_name.to_owned())
            .spawn(move || {
                this.enter()?;
                work()
            })
    }

    /// Returns a command that will run inside the namespace, and that is killed when the thread that starts it ends.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let namespace = Arc::clone(&self.namespace);
        // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                enter(&namespace)
            });
        }
        command
    }

    /// Runs `lines` of `ip` commands inside the namespace, each without the word `ip`. Lines that begin with `-6` run
    /// after the others.
    ///
    /// # Errors
    /// Returns the message of `ip` about the first line that fails.
    pub fn ip(&self, lines: &str) -> anyhow::Result<()> {
        let (mut v6, mut rest) = (String::new(), String::new());
        for line in lines.lines() {
            let (batch, line) = match line.strip_prefix("-6 ") {
                Some(line) => (&mut v6, line),
                None => (&mut rest, line),
            };
            batch.push_str(line);
            batch.push('\n');
        }
        self.ip_batch(&[], &rest)?;
        if v6.is_empty() {
            return Ok(());
        }
        self.ip_batch(&["-6"], &v6)
    }

    fn ip_batch(&self, options: &[&str], lines: &str) -> anyhow::Result<()> {
        let mut child = self
            .command("ip")
            .args(options)
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run `ip` (iproute2)")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(lines.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            bail!("`ip` in {}: {}", self.name, message.trim());
        }
        Ok(())
    }

    /// Sets kernel parameters inside the namespace: pairs of a path below `/proc/sys/net/` and a value.
    ///
    /// # Errors
    /// Fails if a parameter cannot be written.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> anyhow::Result<()> {
        self.run(|| {
            for (key, value) in settings {
                fs::write(format!("/proc/sys/net/{key}"), value)
                    .with_context(|| format!("cannot set {key}"))?;
            }
            Ok(())
        })
    }

    fn enter(&self) -> io::Result<()> {
        enter(&self.namespace)
    }
}

/// Ensures that this process may create namespaces, by entering a user namespace of its own if necessary.
///
/// If the process does not run as root, call this before it starts threads. In a user namespace `/run` is empty and
/// private, so results must not be written there.
///
/// # Errors
/// Returns a remedy if namespaces are not permitted.
pub fn prepare() -> anyhow::Result<()> {
    match on_new_thread(|| unshare(UnshareFlags::NEWNET)) {
        Ok(()) => return Ok(()),
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {}
        Err(error) => return Err(error).context("this kernel has no network namespaces"),
    }
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    unshare(flags).context(
        "the lab needs network namespaces: run it as root, or allow user namespaces \
         (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)",
    )?;
    let map = |file: &str, line: String| {
        fs::write(format!("/proc/self/{file}"), line)
            .with_context(|| format!("cannot write /proc/self/{file}"))
    };
    map("setgroups", "deny".to_owned())?;
    map("uid_map", format!("0 {} 1", uid.as_raw()))?;
    map("gid_map", format!("0 {} 1", gid.as_raw()))?;
    mount_run_directory(None).context("cannot mount /run in a namespace of its own")
}

/// Mounts an empty `/run` of at most `bytes` bytes that only this thread sees, and threads and processes that it starts
/// from now on.
///
/// # Errors
/// Fails if the kernel does not permit it.
pub(crate) fn limit_run_directory(bytes: usize) -> anyhow::Result<()> {
    unshare(UnshareFlags::NEWNS).context("cannot make a mount namespace")?;
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    mount(None, c"/", flags, None).context("cannot make mounts private")?;
    let options = CString::new(format!("size={bytes}"))?;
    mount_run_directory(Some(&options)).context("cannot mount a small /run")
}

/// Mounts an empty `/run` that only this process sees: daemons store their state there, and the host's `/run` belongs
/// to root.
fn mount_run_directory(options: Option<&CStr>) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    mount(Some(c"tmpfs"), c"/run", flags, options)
}

/// Mounts a file system of the type `kind`, or with `None` changes how mounts propagate.
fn mount(
    kind: Option<&CStr>,
    place: &CStr,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> io::Result<()> {
    let kind = kind.map_or(core::ptr::null(), CStr::as_ptr);
    let options = options.map_or(core::ptr::null(), CStr::as_ptr);
    // SAFETY: all pointers are null or strings that end in NUL and live until the call returns; null means none.
    let done = unsafe { libc::mount(kind, place.as_ptr(), kind, flags, options.cast()) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: none of the flags used here changes the file descriptor table.
    unsafe { unshare_unsafe(flags) }.map_err(Into::into)
}

fn enter(namespace: &File) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(namespace.as_fd(), kind).map_err(Into::into)
}

/// Runs `work` on a separate thread, so that the caller's namespace does not change.
fn on_new_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, work)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread of the lab panicked")))
    })
}
