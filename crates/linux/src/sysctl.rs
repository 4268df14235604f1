//! Kernel settings, changed together and restored exactly.
//!
//! Several tunnels may need the same setting. A file records for each changed setting its value before the first
//! change and who needs it; the value comes back when the last user releases it, unless somebody else has changed it
//! meanwhile. Settings are named by their path below `/proc/sys`, such as `net/ipv4/ip_forward`.

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

/// Sets `key` to `value` until `owner` releases it; records the old value first.
///
/// # Errors
/// If the setting does not exist or may not be written.
pub fn set(dir: &StateDir, owner: &str, key: &str, value: &str) -> io::Result<()> {
    read(key)?;
    set_all(dir, owner, &[key.to_owned()], value)
}

/// Sets all `keys`, as [`set`]. Settings that are gone, with their devices for example, are left out.
///
/// # Errors
/// If a setting may not be written.
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

/// Releases all that `owner` has set; restores what nobody else needs.
///
/// # Errors
/// If the record cannot be written. A setting that is gone, with its device for example, is no error.
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
    // A switch for all devices sets those of each: what each had comes after it.
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
    match write(key, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// What settings had before the first tunnel changed them.
pub(crate) struct Originals(Entries);

impl Originals {
    /// Reads the record.
    ///
    /// # Errors
    /// If it cannot be locked.
    pub(crate) fn read(dir: &StateDir) -> io::Result<Self> {
        let _lock = dir.lock(LOCK)?;
        Ok(Self(load(dir)))
    }

    /// Whether a tunnel has changed `key`.
    pub(crate) fn is_recorded(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// The value that `key` has, or had before the first tunnel changed it; `None` if there is no such setting.
    pub(crate) fn of(&self, key: &str) -> Option<String> {
        let recorded = self.0.get(key).map(|entry| entry.original.clone());
        recorded.or_else(|| read(key).ok())
    }
}

/// The value of `key`, without the line end.
///
/// # Errors
/// If the setting does not exist.
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
/// No device, and so no tunnel, has a colon in its name.
const LOCK: &str = "sysctl:";
