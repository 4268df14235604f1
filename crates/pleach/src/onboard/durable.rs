//! Files that are there as a whole or not at all, and that go again if what they belong to fails.
//!
//! A file is written beside its place under the name `.NAME.new`, flushed to the disk, given its name, and the directory is
//! flushed. What an interruption leaves is one such file, which the next attempt overwrites. A [`Draft`] removes what it
//! has made unless it is [kept](Draft::keep), so a command that fails leaves nothing half done.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use zeroize::Zeroizing;

use super::host;
use crate::keys::{self, SecretKey};

/// What happens if the file is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// [`io::ErrorKind::AlreadyExists`].
    Refuse,
    /// It is replaced.
    Replace,
}

/// Writes `path` with `mode`, for good when it returns.
///
/// # Errors
/// It cannot be written; then it is as before.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32, existing: Existing) -> io::Result<()> {
    let partial = beside(path)?;
    let placed = fill(&partial, bytes, mode).and_then(|()| match existing {
        Existing::Refuse => fs::hard_link(&partial, path),
        Existing::Replace => fs::rename(&partial, path),
    });
    if placed.is_err() || existing == Existing::Refuse {
        // Gone already, or of no use.
        let _ = fs::remove_file(&partial);
    }
    placed?;
    sync_directory(path)
}

/// Removes `path` for good; whether it was there.
///
/// # Errors
/// It cannot be removed.
pub(crate) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a command has made so far. Dropped, it is removed, last first.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    is_kept: bool,
}

impl Draft {
    /// Makes the directory `path` with those above it, unless it is there.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn directory(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        let absent = path
            .ancestors()
            .take_while(|above| !above.as_os_str().is_empty() && !above.exists());
        let mut absent: Vec<_> = absent.map(Path::to_owned).collect();
        absent.reverse();
        for directory in absent {
            DirBuilder::new().mode(mode).create(&directory)?;
            self.directories.push(directory);
        }
        Ok(())
    }

    /// Writes a new file.
    ///
    /// # Errors
    /// It is there, or cannot be written.
    pub(crate) fn file(&mut self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        write(path, bytes, mode, Existing::Refuse)?;
        self.files.push(path.to_owned());
        Ok(())
    }

    /// The secret in the file `path`: what an earlier attempt has left there, else a new one.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub(crate) fn secret(&mut self, path: &Path) -> anyhow::Result<SecretKey> {
        let cannot = |error: io::Error| host::cannot_write(path, &error);
        match fs::read_to_string(path).map(Zeroizing::new) {
            Ok(text) => match keys::decode(&text) {
                Ok(key) => return Ok(SecretKey::new(key)),
                // Cannot have been used.
                Err(_) => remove(path).map(drop).map_err(cannot)?,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(cannot(error)),
        }
        let key = SecretKey::random().context("no random numbers from the kernel")?;
        let line = Zeroizing::new(format!("{}\n", *key.to_base64()));
        self.file(path, line.as_bytes(), 0o600).map_err(cannot)?;
        Ok(key)
    }

    /// Leaves `path`, and its directory with it, whatever happens.
    pub(crate) fn spare(&mut self, path: &Path) {
        self.files.retain(|file| file != path);
    }

    /// It is complete: nothing is removed.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // What others have put beside it stays, and its directory with it.
        for file in self.files.iter().rev() {
            let _ = remove(file);
        }
        for directory in self.directories.iter().rev() {
            let _ = fs::remove_dir(directory);
        }
    }
}

fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(path.with_file_name(format!(".{name}.new")))
}

fn fill(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // What is left of an interruption may have another mode.
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_draft_that_is_not_kept_leaves_nothing() {
        let root = tempfile::TempDir::new().expect("directory");
        let below = root.path().join("a/b");
        for is_kept in [false, true] {
            let mut draft = Draft::default();
            draft.directory(&below, 0o755).expect("made");
            draft
                .file(&below.join("key"), b"secret", 0o600)
                .expect("written");
            let mode = fs::metadata(below.join("key"))
                .expect("there")
                .permissions();
            assert_eq!(mode.mode() & 0o777, 0o600);
            if is_kept {
                draft.keep();
            } else {
                drop(draft);
            }
            assert_eq!(below.join("key").exists(), is_kept);
            assert_eq!(root.path().join("a").exists(), is_kept);
        }
        let names: Vec<_> = fs::read_dir(&below).expect("there").collect();
        assert_eq!(names.len(), 1, "no partial file");
        let mut second = Draft::default();
        let refused = second.file(&below.join("key"), b"other", 0o600);
        assert_eq!(
            refused.expect_err("is there").kind(),
            io::ErrorKind::AlreadyExists
        );
        drop(second);
        assert_eq!(fs::read(below.join("key")).expect("untouched"), b"secret");
    }

    #[test]
    fn what_an_interruption_left_is_overwritten() {
        let root = tempfile::TempDir::new().expect("directory");
        fs::write(root.path().join(".file.new"), "half").expect("written");
        let path = root.path().join("file");
        write(&path, b"one", 0o600, Existing::Refuse).expect("written");
        write(&path, b"two", 0o600, Existing::Replace).expect("replaced");
        assert_eq!(fs::read(&path).expect("there"), b"two");
        assert_eq!(fs::read_dir(root.path()).expect("there").count(), 1);
        assert!(remove(&path).expect("removed") && !remove(&path).expect("gone"));
    }
}
