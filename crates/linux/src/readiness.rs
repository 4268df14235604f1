//! Readiness of a descriptor inside a tokio runtime.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// Tells when a descriptor that is not tokio's becomes readable.
#[derive(Debug)]
pub struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Watches `fd` by a duplicate of it. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// If it cannot be duplicated or watched.
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        let fd = fd.as_fd().try_clone_to_owned()?;
        // SAFETY: an OwnedFd is open, stays so until it is dropped, and always names the same descriptor.
        let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(watched?))
    }

    /// Waits until it has become readable since the last call: then read until there is nothing more.
    ///
    /// # Errors
    /// The runtime is ending.
    pub async fn changed(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
