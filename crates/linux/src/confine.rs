//! Gives up rights that a daemon does not need, so that a fault in it exposes little of the host.
//!
//! [`Confinement::apply`] makes these restrictions, none of which can be taken back, and all of which programs that the daemon
//! starts inherit:
//!
//! - *Capabilities* other than the named ones leave all sets of the process, including the bounding set.
//! - *No new privileges* (`PR_SET_NO_NEW_PRIVS`): set-user-ID programs and file capabilities have no effect.
//! - *No core dumps and no debuggers* of the same user (`PR_SET_DUMPABLE`, `RLIMIT_CORE`): the memory contains keys.
//! - *Files* other than the granted ones cannot be opened, changed or created (landlock, Linux 5.13). The process cannot see into other
//!   processes and cannot send signals to processes that it has not started (6.12).
//! - *System calls* that no daemon needs fail with `EPERM` (seccomp).
//!
//! Restrictions belong to a thread, and are inherited by threads and processes that it starts. So [`Confinement::apply`] must be
//! called while the process has one thread.
//!
//! A restriction that the kernel does not support is reported in one warning, and the others apply. Restrictions that the
//! service manager has already made stay.
//!
//! Limits: landlock does not restrict Internet sockets, `stat(2)`, or connections to Unix sockets with a path; below a granted
//! directory, all files are granted.

#[cfg_attr(
    not(any(
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "x86_64"
    )),
    path = "confine/no_calls.rs"
)]
mod calls;
mod files;

use std::{io, path::PathBuf};

use rustix::{
    process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit},
    thread::{
        CapabilitySets, capabilities, capability_is_in_bounding_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

pub use rustix::thread::CapabilitySet;

/// Rights that a process keeps.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// Capabilities that the process keeps, as far as it has them.
    pub capabilities: CapabilitySet,
    /// Whether the process may use `bpf(2)`.
    pub bpf: bool,
    /// Files and directories that the process may use. `None`: all that its user may use.
    pub files: Option<Vec<(PathBuf, Access)>>,
}

/// What may be done with a file, or with all files below a directory. Several grants of one path add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read, write, make, rename and remove files, directories, symbolic links and sockets.
    Change,
    /// Read, write and control a device.
    Device,
    /// Read files, and list directories.
    Read,
    /// As [`Self::Read`], and run programs.
    Run,
    /// Read existing files, and replace their content.
    Set,
}

/// Open directories of a confined process. The kernel attaches grants to inodes, and makes new inodes for files in `/proc`
/// that nobody uses; so granted directories stay open as long as this value.
#[derive(Debug)]
#[must_use = "grants of files in /proc end with this value"]
pub struct Confined {
    _held: files::Held,
}

impl Confinement {
    /// Restricts the calling thread, and threads and processes that it starts from now on. A restriction that the kernel refuses
    /// is logged.
    pub fn apply(&self) -> Confined {
        let mut missing = Vec::new();
        let mut note = |what: &str, result: io::Result<()>| {
            if let Err(error) = result {
                missing.push(format!("{what}: {error}"));
            }
        };
        note("core dumps", forbid_dumps());
        // Landlock and seccomp require it of processes without CAP_SYS_ADMIN.
        note(
            "no new privileges",
            set_no_new_privs(true).map_err(Into::into),
        );
        let held = match &self.files {
            Some(files) => files::restrict(files),
            None => Ok(files::Held::default()),
        };
        let (held, result) = match held {
            Ok(held) => (held, Ok(())),
            Err(error) => (files::Held::default(), Err(error)),
        };
        note("landlock", result);
        note("capabilities", keep_only(self.capabilities));
        note("seccomp", calls::restrict(self.bpf));
        if !missing.is_empty() {
            let missing = missing.join("; ");
            tracing::warn!(missing, "this process has more rights than it needs");
        }
        Confined { _held: held }
    }
}

/// Returns grants that every daemon needs, and programs that it starts: programs and libraries, `/dev/null`, settings of
/// the C library, and the kernel's files, of which the network's settings may be changed.
#[must_use]
pub fn basic_files() -> Vec<(PathBuf, Access)> {
    let mut files: Vec<(PathBuf, Access)> = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = std::env::split_paths(&path).filter(|path| path.is_absolute());
    files.extend(programs.map(|path| (path, Access::Run)));
    files.extend(PROGRAMS.map(|path| (path.into(), Access::Run)));
    files.extend(SETTINGS.map(|path| (path.into(), Access::Read)));
    files.extend(["/dev/null", "/dev/zero"].map(|path| (path.into(), Access::Set)));
    files.extend(["/dev/random", "/dev/urandom"].map(|path| (path.into(), Access::Read)));
    files.extend(["/proc", "/sys"].map(|path| (path.into(), Access::Read)));
    files.push(("/proc/sys/net".into(), Access::Set));
    files
}

fn forbid_dumps() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    Ok(setrlimit(Resource::Core, none)?)
}

/// Removes all capabilities except `kept` from all sets.
fn keep_only(kept: CapabilitySet) -> io::Result<()> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // The kernel refuses numbers that it does not know.
        let Ok(is_in) = capability_is_in_bounding_set(capability) else {
            break;
        };
        if is_in && !kept.contains(capability) {
            match remove_capability_from_bounding_set(capability) {
                // Without CAP_SETPCAP the set stays. It has no effect, because no program of this process can gain capabilities.
                Err(rustix::io::Errno::PERM) => break,
                result => result?,
            }
        }
    }
    let now = capabilities(None)?;
    // The kernel removes from the ambient set what leaves the inheritable set.
    let sets = CapabilitySets {
        effective: now.permitted & kept,
        permitted: now.permitted & kept,
        inheritable: now.inheritable & kept,
    };
    match set_capabilities(None, sets) {
        // The unit of a tunnel forbids the call. It permits each tunnel to listen on any port.
        Err(rustix::io::Errno::PERM) if HARMLESS.contains(now.permitted.difference(kept)) => Ok(()),
        result => Ok(result?),
    }
}

/// Capability that is of little use to an attacker who has the others.
const HARMLESS: CapabilitySet = CapabilitySet::NET_BIND_SERVICE;

/// Directories of programs and libraries; those of NixOS and Guix are links into a store.
const PROGRAMS: [&str; 10] = [
    "/bin",
    "/gnu/store",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/opt",
    "/run/current-system",
    "/sbin",
    "/usr",
];

/// Files that the loader and the C library read, and names of protocols and tables that `nft` reads.
const SETTINGS: [&str; 10] = [
    "/etc/alternatives",
    "/etc/iproute2",
    "/etc/ld-musl-x86_64.path",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/nftables",
    "/etc/protocols",
    "/etc/services",
];

#[cfg(test)]
mod tests;
