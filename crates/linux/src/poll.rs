//! Waiting for many descriptors with a deadline in nanoseconds.
//!
//! `epoll_pwait2` is used level-triggered: a descriptor that was not read to the end is reported again. The deadline of
//! the engine is an [`Instant`] of [`crate::clock`]. The kernel delays the wake-ups of ordinary threads by up to 50 µs.
//! [`set_precise_timers`] requests 1 ns, which the pacing of packets needs.
//!
//! [`BusyPoll`] polls for a moment before it sleeps. A [`Waker`] interrupts a wait from another thread. [`Signals`]
//! makes signals such as SIGTERM readable from a descriptor.

use std::{
    io,
    mem::MaybeUninit,
    num::NonZeroU64,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use pleach_core::time::Instant;
use rustix::{
    event::{EventfdFlags, Timespec, epoll, eventfd},
    io::Errno,
};

use crate::clock;

mod busy;
mod resume;

pub use busy::BusyPoll;
pub use resume::ResumeTimer;

/// Value by which a caller identifies a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Token of the descriptor.
    pub token: Token,
    /// Whether reading will not block. Also set if the descriptor has an error, so that a read returns the error.
    pub readable: bool,
    /// Whether writing will not block.
    pub writable: bool,
}

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// Creates an empty set.
    ///
    /// # Errors
    /// Returns the error of `epoll_create1(2)`.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll })
    }

    /// Adds `fd` under `token`, waiting for input. A descriptor leaves the set when it is closed.
    ///
    /// # Errors
    /// Fails if `fd` is already in the set or cannot be polled.
    pub fn add(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(token.0),
            epoll::EventFlags::IN,
        )?)
    }

    /// Sets whether free buffer space for writing is reported for `fd` too.
    ///
    /// # Errors
    /// Fails if `fd` is not in the set.
    pub fn want_write(&self, fd: impl AsFd, token: Token, want: bool) -> io::Result<()> {
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, want);
        Ok(epoll::modify(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(token.0),
            flags,
        )?)
    }

    /// Removes `fd` from the set.
    ///
    /// # Errors
    /// Fails if `fd` is not in the set.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits until a descriptor is ready or `deadline` has passed (`None`: no deadline), and replaces the content of
    /// `events`.
    ///
    /// Each call returns at most 64 events. If the deadline has passed, the call does not wait. The call returns
    /// early without events if a signal handler ran.
    ///
    /// # Errors
    /// Returns the error of `epoll_pwait2(2)`.
    pub fn wait(&self, deadline: Option<Instant>, events: &mut Vec<Event>) -> io::Result<()> {
        events.clear();
        let timeout = deadline.map(|deadline| timespec(deadline.since(clock::now())));
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); 64];
        let ready = match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        events.extend(ready.iter().map(|event| {
            // The struct is packed, so fields are copied before use.
            let (flags, data) = (event.flags, event.data);
            let failed = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
            Event {
                token: Token(data.u64()),
                readable: flags.intersects(epoll::EventFlags::IN | failed),
                writable: flags.intersects(epoll::EventFlags::OUT | failed),
            }
        }));
        Ok(())
    }
}

/// Ends a wait from any thread. All clones wake the same poller.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Creates a waker, which must be added to a [`Poller`].
    ///
    /// # Errors
    /// Returns the error of `eventfd2(2)`.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Makes the descriptor readable until [`Waker::clear`].
    pub fn wake(&self) {
        // If the counter is full, the descriptor is already readable.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable. Call this before looking for work, so that no wake-up is lost.
    pub fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Signals that are read from a descriptor.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks `signals` (such as `libc::SIGTERM`) for the calling thread and for threads that it starts later, and
    /// collects them.
    ///
    /// Call it before other threads exist: a signal to a thread that does not block it would still kill the process.
    ///
    /// # Errors
    /// Returns the error of `pthread_sigmask(3)` or `signalfd4(2)`.
    pub fn block(signals: &[i32]) -> io::Result<Self> {
        // SAFETY: a zeroed sigset_t is valid storage for sigemptyset, which initialises it; the other calls get
        // pointers to that live local. A null old set is allowed.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for &signal in signals {
                libc::sigaddset(&raw mut set, signal);
            }
            let error =
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd returned a new descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Returns the number of the next signal that arrived. `None` if there is none.
    pub fn take(&mut self) -> Option<i32> {
        // `ssi_signo` is the first field of the 128-byte record (signalfd(2)).
        let mut record = [0_u8; 128];
        let len = rustix::io::read(&self.fd, &mut record).ok()?;
        let number = record[..len].first_chunk::<4>()?;
        i32::try_from(u32::from_ne_bytes(*number)).ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Lets all signals reach the calling thread, and threads and processes that it starts from now on. Processes inherit the
/// signals that the thread which starts them has blocked.
///
/// # Errors
/// Returns the error of `pthread_sigmask(3)`.
pub fn unblock_signals() -> io::Result<()> {
    // SAFETY: a zeroed sigset_t is valid storage for sigemptyset, which initialises it; the second call gets a pointer to
    // that live local. A null old set is allowed.
    let error = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())
    };
    if error == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(error))
    }
}

/// Asks the kernel to wake the calling thread at its deadlines without rounding.
///
/// # Errors
/// Returns the error of `prctl(2)`.
pub fn set_precise_timers() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(Some(
        NonZeroU64::MIN,
    ))?)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_ends_the_wait_and_not_before() {
        set_precise_timers().expect("prctl works");
        let poller = Poller::new().expect("epoll works");
        let mut events = Vec::new();
        let deadline = clock::now() + Duration::from_micros(300);
        poller.wait(Some(deadline), &mut events).expect("waits");
        assert!(events.is_empty());
        assert!(clock::now() >= deadline);
        poller
            .wait(Some(Instant::ZERO), &mut events)
            .expect("a passed deadline only looks");
        assert!(events.is_empty());
    }

    #[test]
    fn waker_is_seen_once_cleared_never() {
        let poller = Poller::new().expect("epoll works");
        let waker = Waker::new().expect("eventfd works");
        poller.add(&waker, Token(7)).expect("adds");
        let other = waker.clone();
        let thread = std::thread::spawn(move || other.wake());
        let mut events = Vec::new();
        poller.wait(None, &mut events).expect("waits");
        thread.join().expect("does not panic");
        let expected = Event {
            token: Token(7),
            readable: true,
            writable: false,
        };
        assert_eq!(events, [expected]);
        waker.clear();
        poller
            .wait(Some(Instant::ZERO), &mut events)
            .expect("looks");
        assert!(events.is_empty());
    }

    #[test]
    fn signal_becomes_readable() {
        let thread = std::thread::spawn(|| {
            let mut signals = Signals::block(&[libc::SIGUSR2]).expect("blocks");
            assert_eq!(signals.take(), None);
            let poller = Poller::new().expect("epoll works");
            poller.add(&signals, Token(1)).expect("adds");
            // SAFETY: pthread_self is the calling thread, which lives.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            let mut events = Vec::new();
            poller.wait(None, &mut events).expect("waits");
            assert_eq!(signals.take(), Some(libc::SIGUSR2));
        });
        thread.join().expect("does not panic");
    }
}
