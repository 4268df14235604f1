//! The directory of the daemons' state files, of which the soak fills the file system.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use crate::netns;

/// Size of the file system in bytes.
const SIZE: usize = 512 << 10;
const FILLER: &str = "/run/filler";

/// Mounts a small `/run` that only this thread, and threads and processes that it starts, see.
///
/// # Errors
/// Fails if the kernel does not permit it.
pub(super) fn mount_small() -> anyhow::Result<()> {
    netns::limit_run_directory(SIZE)
}

/// Fills the file system until nothing more fits.
///
/// # Errors
/// Fails if the file cannot be written for another reason.
pub(super) fn fill() -> io::Result<()> {
    let mut file = fs::File::create(FILLER)?;
    let block = [0; 4096];
    for _ in 0..=SIZE / block.len() {
        match file.write_all(&block) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("/run does not become full"))
}

/// Frees the file system again.
///
/// # Errors
/// Fails if the file cannot be removed.
pub(super) fn free() -> io::Result<()> {
    if Path::new(FILLER).exists() {
        fs::remove_file(FILLER)?;
    }
    Ok(())
}
