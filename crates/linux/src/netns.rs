//! Work in another network namespace.
//!
//! A namespace belongs to a thread. [`run_in`] enters one on a thread of its own, so that the caller stays where it
//! is; sockets, TUN devices and threads made inside stay in that namespace and can be used anywhere.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, linux::fs::MetadataExt},
    path::Path,
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs `work` on a new thread inside the namespace behind `path`, such as `/run/netns/NAME`, and returns its result.
///
/// # Errors
/// If `path` is no namespace or may not be entered.
///
/// # Panics
/// If `work` panics.
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

/// The inode number of the calling thread's network namespace: its name as long as it exists.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn current_id() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.st_ino())
}
