//! Kernel settings, changed together and restored exactly.
//!
//! Several tunnels may need the same setting. For each changed setting, a file records its value before the first
//! change and its users. The value is restored when the last user releases it, unless another program has changed it
//! meanwhile. Settings are identified by their path below `/proc/sys`, such as `net/ipv4/ip_forward`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::state::StateDir;

/// One changed setting.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    original: String,
    value: String,
    users: BTreeSet<String>,
}

type Entries = BTreeMap<String, Entry>;

/// Sets `key` to `value` until `owner` releases it. Records the old value first.
///
/// # Errors
/// Fails if the setting does not exist or may not be written.
pub fn set(dir: &StateDir, owner: &str, key: &str, value: &str) -> io::Result<()> {
    read(key)?;
    set_all(dir, owner, &[key.to_owned()], value)
}

/// Sets all `keys` like [`set`]. Settings that no longer exist, for example because their device is gone, are skipped.
///
/// # Errors
/// Fails if a setting may not be written.
pub(crate) fn set_all(dir: &StateDir, owner: &str, keys: &[String], value: &str) -> io::Result<()> {
    let _lock = dir.lock(LOCK)?;
    let mut entries = load(dir);
    for key in keys {
        let Ok(original) = read(key) else { continue };
        let entry = entries.entry(key.clone()).or_insert_with(|| Entry {
            original,
            value: value.to_owned(),
            users: BTreeSet::new(),
        });
        entry.users.insert(owner.to_owned());
        entry.value = value.to_owned();
    }
    dir.write(FILE, &entries)?;
    for key in keys {
        write_unless_gone(key, value)?;
    }
    Ok(())
}

/// Releases all settings of `owner`, and restores those that no other user needs.
///
/// # Errors
/// Fails if the record cannot be written. A setting that no longer exists, for example because its device is gone, is
/// not an error.
pub fn release(dir: &StateDir, owner: &str) -> io::Result<()> {
    let _lock = dir.lock(LOCK)?;
    let mut entries = load(dir);
    if !entries.values().any(|entry| entry.users.contains(owner)) {
        return Ok(());
    }
    let mut due = Vec::new();
    for (key, entry) in &mut entries {
        let was_user = entry.users.remove(owner);
        let is_ours = read(key).is_ok_and(|now| now == entry.value);
        if was_user && entry.users.is_empty() && is_ours {
            due.push((key.as_str(), entry.original.as_str()));
        }
    }
    // A setting for all devices also changes the setting of each device. So the settings of single devices are
    // restored after it.
    due.sort_by_key(|(key, _)| !is_for_all(key));
    for (key, original) in due {
        if read(key).is_ok_and(|now| now != original) {
            write_unless_gone(key, original)?;
        }
    }
    entries.retain(|_, entry| !entry.users.is_empty());
    if entries.is_empty() {
        dir.remove(FILE)
    } else {
        dir.write(FILE, &entries)
    }
}

fn is_for_all(key: &str) -> bool {
    key == "net/ipv4/ip_forward" || key.contains("/conf/all/")
}

fn write_unless_gone(key: &str, value: &str) -> io::Result<()> {
    // In a container the settings often have the wanted values, and may not be written.
    if read(key).is_ok_and(|present| present == value) {
        return Ok(());
    }
    match write(key, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Values of settings before the first tunnel changed them.
pub(crate) struct Originals(Entries);

impl Originals {
    /// Reads the record.
    ///
    /// # Errors
    /// Fails if the record cannot be locked.
    pub(crate) fn read(dir: &StateDir) -> io::Result<Self> {
        let _lock = dir.lock(LOCK)?;
        Ok(Self(load(dir)))
    }

    /// Whether a tunnel has changed `key`.
    pub(crate) fn is_recorded(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Returns the value that `key` has, or had before the first tunnel changed it. `None` if there is no such setting.
    pub(crate) fn of(&self, key: &str) -> Option<String> {
        let recorded = self.0.get(key).map(|entry| entry.original.clone());
        recorded.or_else(|| read(key).ok())
    }
}

/// Returns the value of `key`, without the line end.
///
/// # Errors
/// Fails if the setting does not exist.
pub fn read(key: &str) -> io::Result<String> {
    Ok(fs::read_to_string(path(key))?.trim_end().to_owned())
}

pub(crate) fn write(key: &str, value: &str) -> io::Result<()> {
    fs::write(path(key), value).map_err(|error| {
        let text =
            format!("cannot set {key} to {value}: {error}; run as root, or set it with sysctl");
        io::Error::new(error.kind(), text)
    })
}

fn path(key: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(key)
}

fn load(dir: &StateDir) -> Entries {
    dir.read(FILE).unwrap_or_default()
}

const FILE: &str = "sysctl.json";
/// Name of the lock. No device, and so no tunnel, has a colon in its name.
const LOCK: &str = "sysctl:";
