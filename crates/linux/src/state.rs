//! Files about what a tunnel has changed in the host, so that the next start can clear it after a crash.
//!
//! Below a base directory, normally `/run/pleach`, each network namespace has a directory of its own, because tunnels
//! of one name may live in several. In it each tunnel has `NAME.state` (JSON), written before the first change, and
//! `NAME.lock`, locked as long as its process lives: the kernel drops the lock when the process dies, however it dies;
//! and `NAME.rates`, what its links carried when it last looked.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{netns, routes::rules::Bank};

/// Where state files lie unless told otherwise.
pub const DEFAULT_STATE_DIR: &str = "/run/pleach";

/// The state files of one network namespace.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

/// What a tunnel has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TunnelState {
    /// Its share of tables, marks and priorities.
    pub(crate) slot: u32,
    /// Whether it may have made an nftables table.
    pub(crate) has_nft: bool,
    /// Whether what it routes must go no other way while it does not run.
    #[serde(default)]
    pub(crate) is_closed: bool,
    /// Which half of its priorities has the rules in force.
    #[serde(default)]
    pub(crate) bank: Bank,
}

/// A lock that ends with the value or the process.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl StateDir {
    /// The directory below `base` for the network namespace of the calling thread; makes it.
    ///
    /// # Errors
    /// If it cannot be made.
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

    /// Locks `name`; `None` if a living process holds the lock.
    pub(crate) fn try_lock(&self, name: &str) -> io::Result<Option<Lock>> {
        let file = self.lock_file(name)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Locks `name`, waiting for others. Only for locks that are held for milliseconds.
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

    /// Reads file `name`; `None` if it is missing or makes no sense.
    #[must_use]
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let bytes = fs::read(self.path.join(name)).ok()?;
        serde_json::from_slice(&bytes)
            .inspect_err(|error| tracing::warn!(name, %error, "state file makes no sense; ignored"))
            .ok()
    }

    /// Writes file `name` as a whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        let partial = self.path.join(format!("{name}.new"));
        let mut file = File::create(&partial)?;
        file.write_all(&serde_json::to_vec_pretty(value)?)?;
        drop(file);
        fs::rename(partial, self.path.join(name))
    }

    /// Removes file `name` if it is there.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The states of all tunnels but `name`, alive or not.
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
