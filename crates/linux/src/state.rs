//! Files that record a tunnel's changes to the host, so that the next start can undo them after a crash.
//!
//! Below a base directory, normally `/run/pleach`, each network namespace has its own directory, because tunnels of the
//! same name may exist in several namespaces. A tunnel has these files there:
//!
//! - `NAME.state` (JSON) is written before the first change.
//! - `NAME.lock` is locked as long as the tunnel's process lives. The kernel releases the lock however the process
//!   ends.
//! - `NAME.rates` contains the last measured rates of the tunnel's links.
//! - `NAME.bytes` contains what clients of a store have carried and the store does not have yet.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{netns, routes::rules::Bank};

/// Default directory of state files.
pub const DEFAULT_STATE_DIR: &str = "/run/pleach";

/// The state files of one network namespace.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

/// Changes of a tunnel to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TunnelState {
    /// Slot of the tunnel, which determines its table, mark and priorities.
    pub(crate) slot: u32,
    /// Whether the tunnel may have created an nftables table.
    pub(crate) has_nft: bool,
    /// Whether packets for the tunnel must not leave by another device while the tunnel does not run.
    #[serde(default)]
    pub(crate) is_closed: bool,
    /// Half of the tunnel's rule priorities that contains the rules in force.
    #[serde(default)]
    pub(crate) bank: Bank,
}

/// A lock that is released when the value is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl StateDir {
    /// Creates and returns the directory below `base` for the network namespace of the calling thread.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn open(base: &Path) -> io::Result<Self> {
        let path = base.join(format!("net-{}", netns::current_id()?));
        fs::create_dir_all(&path).map_err(|error| {
            let text = format!(
                "cannot make {}: {error}; run as root or choose another state directory",
                path.display()
            );
            io::Error::new(error.kind(), text)
        })?;
        Ok(Self { path })
    }

    /// Locks `name`. `None` if a running process holds the lock.
    pub(crate) fn try_lock(&self, name: &str) -> io::Result<Option<Lock>> {
        let file = self.lock_file(name)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Locks `name`, and waits for other processes. Only for locks that are held for milliseconds.
    pub(crate) fn lock(&self, name: &str) -> io::Result<Lock> {
        let file = self.lock_file(name)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Lock { _file: file })
    }

    fn lock_file(&self, name: &str) -> io::Result<File> {
        let path = self.path.join(format!("{name}.lock"));
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
    }

    /// Reads file `name`. `None` if it is missing or invalid.
    #[must_use]
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let bytes = fs::read(self.path.join(name)).ok()?;
        serde_json::from_slice(&bytes)
            .inspect_err(|error| tracing::warn!(name, %error, "state file makes no sense; ignored"))
            .ok()
    }

    /// Writes file `name` completely or not at all.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        let partial = self.path.join(format!("{name}.new"));
        let mut file = File::create(&partial)?;
        file.write_all(&serde_json::to_vec_pretty(value)?)?;
        drop(file);
        fs::rename(partial, self.path.join(name))
    }

    /// Opens file `name` for reading and writing; makes it, for the owner alone, if it is missing.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.mode(0o600).open(self.path.join(name))
    }

    /// Removes file `name` if it exists.
    ///
    /// # Errors
    /// Fails if the file exists and cannot be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the states of all tunnels except `name`, running or not.
    pub(crate) fn others(&self, name: &str) -> io::Result<Vec<TunnelState>> {
        let mut states = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let file = entry?.file_name();
            let Some(file) = file.to_str() else { continue };
            if file
                .strip_suffix(".state")
                .is_some_and(|other| other != name)
            {
                states.extend(self.read(file));
            }
        }
        Ok(states)
    }
}
