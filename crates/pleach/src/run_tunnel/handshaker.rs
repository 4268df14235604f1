//! The threads that compute handshakes, so that packets do not wait for them.
//!
//! There is one thread for each core besides the core of the data path, at least one and at most [`MAX_CORES`] - 1,
//! because the engine's limits of handshakes follow the cores as far. Work is sent to the threads, and results return,
//! through channels; a [`Waker`] signals results to the data path. The engine limits the waiting work to [`MAX_WORK`],
//! so neither channel contains more. Several data threads share the threads ([`Handshaker::another`]), and each gets the
//! results of its own engine. Results may return in another order than the work was sent: a handshake has at most
//! one piece of work at a time, and the engine assumes no order between handshakes.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender, SyncSender, TrySendError},
    },
    thread,
};

use pleach_core::{
    endpoint::{
        Endpoint,
        work::{HandshakeResult, HandshakeWork, MAX_WORK},
    },
    session::limiter::MAX_CORES,
    time::Instant,
};
use pleach_linux::poll::Waker;

/// The handle of a data thread to the threads. Dropping all handles ends the threads.
#[derive(Debug)]
pub(super) struct Handshaker {
    work: SyncSender<Job>,
    done: Sender<HandshakeResult>,
    results: Receiver<HandshakeResult>,
    waker: Waker,
}

/// Work, and where its result goes.
#[derive(Debug)]
struct Job {
    work: HandshakeWork,
    done: Sender<HandshakeResult>,
    waker: Waker,
}

impl Handshaker {
    /// Starts the threads for a machine with `cores` processor cores and `engines` data threads.
    ///
    /// # Errors
    /// If a thread or an eventfd cannot be created.
    pub(super) fn start(cores: usize, engines: usize) -> io::Result<Self> {
        let (work, todo) = mpsc::sync_channel::<Job>(MAX_WORK * engines.max(1));
        let todo = Arc::new(Mutex::new(todo));
        for _ in 1..cores.clamp(2, MAX_CORES) {
            let todo = Arc::clone(&todo);
            thread::Builder::new()
                .name("handshake".to_owned())
                .spawn(move || compute(&todo))?;
        }
        Self::of(work)
    }

    /// Returns a handle to the same threads for another data thread.
    ///
    /// # Errors
    /// If an eventfd cannot be created.
    pub(super) fn another(&self) -> io::Result<Self> {
        Self::of(self.work.clone())
    }

    fn of(work: SyncSender<Job>) -> io::Result<Self> {
        let (done, results) = mpsc::channel();
        Ok(Self {
            work,
            done,
            results,
            waker: Waker::new()?,
        })
    }

    /// Returns the waker, which is readable when there are results.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Passes the engine's work to the threads. If they cannot accept work, it is done here.
    pub(super) fn hand_over(&self, endpoint: &mut Endpoint, now: Instant) {
        while let Some(work) = endpoint.poll_handshake_work() {
            let job = Job {
                work,
                done: self.done.clone(),
                waker: self.waker.clone(),
            };
            match self.work.try_send(job) {
                Ok(()) => {}
                Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                    endpoint.handle_handshake_result(now, job.work.run());
                }
            }
        }
    }

    /// Passes the threads' results to the engine.
    pub(super) fn collect(&self, endpoint: &mut Endpoint, now: Instant) {
        self.waker.clear();
        while let Ok(result) = self.results.try_recv() {
            endpoint.handle_handshake_result(now, result);
        }
    }
}

/// Does work until the other ends of the channel are dropped.
fn compute(todo: &Mutex<Receiver<Job>>) {
    let _guard = AbortOnPanic;
    loop {
        // One thread waits for work, and the others wait for the lock.
        let next = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { work, done, waker }) = next else {
            return;
        };
        // A data thread that has ended needs no result.
        if done.send(work.run()).is_ok() {
            waker.wake();
        }
    }
}

/// Aborts the process if a thread panics, which is a bug. The work in the thread would be lost, and the engine would count
/// it as in progress forever; a restart restores the tunnel. The same applies to the clients of a data thread.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            crate::log_lines::finish();
            std::process::abort();
        }
    }
}
