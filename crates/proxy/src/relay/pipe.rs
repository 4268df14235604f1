//! Moves one direction of a connection inside the kernel: `splice(2)` from one socket into a pipe and out into the
//! other.
//!
//! A pipe is taken from a pool when there are bytes to move and returned when it is empty. So an idle connection has
//! no pipe, and a busy proxy needs only as many pipes as there are receivers that do not keep up. If sockets cannot
//! be spliced, or pipes run out, bytes are copied through a buffer.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

/// A pipe, which is empty whenever it is in the pool.
#[derive(Debug)]
pub(crate) struct Pipe {
    from: OwnedFd,
    into: OwnedFd,
    size: usize,
    _large: Option<Large>,
}

/// Counts one pipe of [`PIPE_BYTES`] until it is dropped.
#[derive(Debug)]
struct Large(Arc<AtomicUsize>);

impl Large {
    /// Returns `None` if there are already [`MAX_LARGE`] such pipes.
    fn new(count: &Arc<AtomicUsize>) -> Option<Self> {
        let one = Self(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < MAX_LARGE).then_some(one)
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Pool of idle pipes.
#[derive(Debug, Default)]
pub struct PipePool {
    idle: RefCell<Vec<Pipe>>,
    /// Number of pipes of [`PIPE_BYTES`], idle or in use.
    large: Arc<AtomicUsize>,
    /// Whether the kernel has refused to splice or to create pipes.
    is_useless: Cell<bool>,
}

impl PipePool {
    fn take(&self) -> Option<Pipe> {
        if self.is_useless.get() {
            return None;
        }
        if let Some(pipe) = self.idle.borrow_mut().pop() {
            return Some(pipe);
        }
        let (from, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // The kernel gives small pipes to a user with many pipes (pipe(7)), but not to a user with CAP_SYS_RESOURCE.
        // So the number of large pipes is limited here. Small pipes suffice.
        let large = Large::new(&self.large);
        let enlarged = large
            .as_ref()
            .map(|_| fcntl_setpipe_size(&into, PIPE_BYTES));
        let size = enlarged.and_then(Result::ok).unwrap_or(SMALL_PIPE_BYTES);
        Some(Pipe {
            from,
            into,
            size,
            _large: large,
        })
    }

    fn give(&self, pipe: Pipe) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE {
            idle.push(pipe);
        }
    }
}

/// Receives reports on one direction of a connection.
pub trait Meter {
    /// Called when the receiver's kernel has accepted `bytes` bytes.
    fn moved(&self, bytes: u64);
    /// Called with `true` when the receiver stops keeping up, and with `false` when it continues.
    fn held_up(&self, is_held_up: bool);
    /// Called when the receiver's side of the connection has failed.
    fn refused(&self) {}
}

/// Moves all bytes from `from` to `to` until the end, then closes that direction of `to`.
///
/// # Errors
/// Fails if either connection fails. Bytes that were read from `from` but not written to `to` are lost.
pub async fn pump(
    pool: &PipePool,
    from: &TcpStream,
    to: &TcpStream,
    meter: &impl Meter,
) -> io::Result<()> {
    pass(pool, from, to, u64::MAX, meter).await?;
    finish(to)
}

/// Moves the next `bytes` bytes from `from` to `to`, or fewer if the stream ends before. Returns how many bytes are
/// missing.
///
/// # Errors
/// Fails as [`pump`] does.
pub(crate) async fn pass(
    pool: &PipePool,
    from: &TcpStream,
    to: &TcpStream,
    bytes: u64,
    meter: &impl Meter,
) -> io::Result<u64> {
    let missing = Cell::new(bytes);
    pass_missing(pool, from, to, &missing, meter).await?;
    Ok(missing.get())
}

/// Moves bytes from `from` to `to` until `missing` is zero or the stream ends. `missing` is counted down as bytes are
/// read from `from`, and the caller may lower it meanwhile.
///
/// # Errors
/// Fails as [`pump`] does.
pub(crate) async fn pass_missing(
    pool: &PipePool,
    from: &TcpStream,
    to: &TcpStream,
    missing: &Cell<u64>,
    meter: &impl Meter,
) -> io::Result<()> {
    while missing.get() > 0 {
        from.readable().await?;
        let Some(pipe) = pool.take() else {
            return copy(from, to, missing, meter).await;
        };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let size = at_most(missing.get(), pipe.size);
        let fill = || Ok(splice(from, None, &pipe.into, None, size, flags)?);
        match from.try_io(Interest::READABLE, fill) {
            Ok(0) => {
                pool.give(pipe);
                break;
            }
            Ok(filled) => {
                missing.set(missing.get().saturating_sub(filled as u64));
                let mut left = filled;
                while left > 0 {
                    let drain = || Ok(splice(&pipe.from, None, to, None, left, flags)?);
                    match to.try_io(Interest::WRITABLE, drain) {
                        Ok(drained) => {
                            left -= drained.min(left);
                            meter.moved(drained as u64);
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            meter.held_up(true);
                            to.writable().await?;
                            meter.held_up(false);
                        }
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => {
                            meter.refused();
                            return Err(error);
                        }
                    }
                }
                pool.give(pipe);
            }
            Err(error) if is_transient(&error) => pool.give(pipe),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                pool.is_useless.set(true);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Moves bytes as [`pass_missing`] does, but copies them through a buffer instead of a pipe.
async fn copy(
    from: &TcpStream,
    to: &TcpStream,
    missing: &Cell<u64>,
    meter: &impl Meter,
) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    while missing.get() > 0 {
        from.readable().await?;
        let size = at_most(missing.get(), buffer.len());
        match from.try_read(&mut buffer[..size]) {
            Ok(0) => break,
            Ok(len) => {
                missing.set(missing.get().saturating_sub(len as u64));
                write_all(to, &buffer[..len], meter).await?;
            }
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn at_most(bytes: u64, size: usize) -> usize {
    usize::try_from(bytes).map_or(size, |bytes| bytes.min(size))
}

/// Writes all of `bytes`.
pub(crate) async fn write_all(
    to: &TcpStream,
    mut bytes: &[u8],
    meter: &impl Meter,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(len) => {
                bytes = &bytes[len..];
                meter.moved(len as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                meter.held_up(true);
                to.writable().await?;
                meter.held_up(false);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                meter.refused();
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Closes the sending direction of `to`. It is not an error if the receiver has already disconnected.
pub(crate) fn finish(to: &TcpStream) -> io::Result<()> {
    match SockRef::from(to).shutdown(std::net::Shutdown::Write) {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Maximum capacity of a pipe in bytes; a larger one gains nothing on loopback (`./dev bench proxy`).
const PIPE_BYTES: usize = 512 << 10;
/// Highest number of pipes of [`PIPE_BYTES`] at a time. Together they hold 64 MiB.
const MAX_LARGE: usize = 128;
/// Default capacity of a pipe in bytes, for pipes that are not enlarged to [`PIPE_BYTES`].
const SMALL_PIPE_BYTES: usize = 64 << 10;
const COPY_BYTES: usize = 16 << 10;
/// Maximum number of idle pipes in the pool. Further pipes are closed.
const MAX_IDLE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_pipes_are_large() {
        let pool = PipePool::default();
        let pipes: Vec<Pipe> = (0..MAX_LARGE + 8).filter_map(|_| pool.take()).collect();
        assert_eq!(pipes.len(), MAX_LARGE + 8);
        assert!(
            pipes[MAX_LARGE..]
                .iter()
                .all(|pipe| pipe.size == SMALL_PIPE_BYTES)
        );
        assert_eq!(pool.large.load(Ordering::Relaxed), MAX_LARGE);
        drop(pipes);
        assert_eq!(pool.large.load(Ordering::Relaxed), 0);
    }
}
