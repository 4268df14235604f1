//! Ends a wait shortly after the machine has resumed from suspension.
//!
//! The timeout of `epoll_pwait2` does not count while the machine is suspended, but the time of [`crate::clock`] does.
//! So after a night, a deadline that was 100 s away would be 100 s late, and session keys would live too long. A timer
//! of `CLOCK_BOOTTIME` fires at once when the machine resumes.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::Timespec,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create,
        timerfd_settime,
    },
};

/// A descriptor that becomes readable every 30 s, by the clock that counts suspension.
#[derive(Debug)]
pub struct ResumeTimer(OwnedFd);

impl ResumeTimer {
    /// Starts the timer.
    ///
    /// # Errors
    /// Returns the errors of `timerfd_create(2)`.
    pub fn start() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        let period = Timespec {
            tv_sec: PERIOD_S,
            tv_nsec: 0,
        };
        let setting = Itimerspec {
            it_interval: period,
            it_value: period,
        };
        timerfd_settime(&fd, TimerfdTimerFlags::empty(), &setting)?;
        Ok(Self(fd))
    }

    /// Makes the descriptor unreadable until the next period ends.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for ResumeTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Period in seconds: a sixth of a session's lifetime. Each period costs one wake-up.
const PERIOD_S: i64 = 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock,
        poll::{Poller, Token},
    };

    #[test]
    fn a_fresh_timer_wakes_nobody() {
        let timer = ResumeTimer::start().expect("timerfd");
        let poller = Poller::new().expect("epoll");
        poller.add(&timer, Token(1)).expect("new");
        let mut events = Vec::new();
        poller
            .wait(Some(clock::now()), &mut events)
            .expect("epoll works");
        assert!(events.is_empty());
        timer.clear();
    }
}
