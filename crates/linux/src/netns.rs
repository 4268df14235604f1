//! Runs work in another network namespace.
//!
//! A namespace belongs to a thread. [`run_in`] enters a namespace on a separate thread, so that the caller's namespace
//! does not change. Sockets, TUN devices and threads created inside stay in that namespace and can be used anywhere.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, linux::fs::MetadataExt},
    path::Path,
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs `work` on a new thread inside the namespace to which `path` refers, such as `/run/netns/NAME`, and returns
/// its result.
///
/// # Errors
/// Fails if `path` is not a namespace or may not be entered.
///
/// # Panics
/// Panics if `work` panics.
pub fn run_in<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(path)?;
    thread::scope(|scope| {
        scope
            .spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            })
            .join()
            .expect("work does not panic")
    })
}

/// Returns the inode number of the calling thread's network namespace, which identifies it as long as it exists.
///
/// # Errors
/// Fails if `/proc` is not mounted.
pub fn current_id() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.st_ino())
}
