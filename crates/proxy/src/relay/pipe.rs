//! One direction of a connection, moved inside the kernel: `splice(2)` from one socket into a pipe and out into the
//! other.
//!
//! A pipe is taken from a pool when there is something to move and given back when it is empty, so an idle connection
//! has none, and a busy proxy needs only as many as there are receivers that do not keep up. Where sockets cannot be
//! spliced, or pipes run out, bytes are copied through a buffer.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::OwnedFd,
};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

/// A pipe, empty whenever it is in the pool.
#[derive(Debug)]
pub(crate) struct Pipe {
    from: OwnedFd,
    into: OwnedFd,
    size: usize,
}

/// Pipes that wait for work.
#[derive(Debug, Default)]
pub struct PipePool {
    idle: RefCell<Vec<Pipe>>,
    /// The kernel refused to splice or to make pipes.
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
        // A user with many pipes gets small ones (pipe(7)); they serve, too.
        let size = fcntl_setpipe_size(&into, PIPE_BYTES).unwrap_or(SMALL_PIPE_BYTES);
        Some(Pipe { from, into, size })
    }

    fn give(&self, pipe: Pipe) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE {
            idle.push(pipe);
        }
    }
}

/// What a direction reports while it moves.
pub trait Meter {
    /// So many bytes were taken over by the receiver's kernel.
    fn moved(&self, bytes: u64);
    /// Whether the receiver does not keep up.
    fn held_up(&self, is_held_up: bool);
    /// The receiver takes no more: what broke is its side.
    fn refused(&self) {}
}

/// Moves all that comes from `from` to `to`, then closes that direction of `to`.
///
/// # Errors
/// Either side's. What was taken from one and not given to the other is lost with the connection.
pub async fn pump(
    pool: &PipePool,
    from: &TcpStream,
    to: &TcpStream,
    meter: &impl Meter,
) -> io::Result<()> {
    pass(pool, from, to, u64::MAX, meter).await?;
    finish(to)
}

/// Moves the next `bytes` that come from `from` to `to`, or what comes until the end if that is less; returns how many are
/// missing.
///
/// # Errors
/// As [`pump`].
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

/// Moves the next bytes that come from `from` to `to` until none is `missing`, or to the end. It counts down as they leave `from`,
/// and may be lowered meanwhile.
///
/// # Errors
/// As [`pump`].
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

/// The same without pipes.
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

/// Says that nothing more comes. A receiver that is gone already is no error of this direction.
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

/// What a pipe holds at most; more gains nothing on loopback (`./dev bench proxy`).
const PIPE_BYTES: usize = 512 << 10;
/// What the kernel gives when it does not give that.
const SMALL_PIPE_BYTES: usize = 64 << 10;
const COPY_BYTES: usize = 16 << 10;
/// Idle pipes kept; the rest is closed.
const MAX_IDLE: usize = 64;
