//! Readiness of a descriptor inside a tokio runtime.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// Reports when a descriptor that does not belong to tokio becomes readable.
#[derive(Debug)]
pub struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Watches a duplicate of `fd`. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Fails if `fd` cannot be duplicated or watched.
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        let fd = fd.as_fd().try_clone_to_owned()?;
        // SAFETY: an OwnedFd is open, stays so until it is dropped, and always names the same descriptor.
        let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(watched?))
    }

    /// Waits until the descriptor has become readable since the last call. Afterwards read until there is no more data.
    ///
    /// # Errors
    /// Fails if the runtime is ending.
    pub async fn changed(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
