//! The threads that compute handshakes, so that packets do not wait for them.
//!
//! There is one thread for each core besides the core of the data path, at least one and at most [`MAX_CORES`] - 1,
//! because the engine's limits of handshakes follow the cores as far. Work is sent to the threads, and results return,
//! through channels; a [`Waker`] signals results to the data path. The engine limits the waiting work to [`MAX_WORK`],
//! so neither channel contains more. Results may return in another order than the work was sent: a handshake has at most
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

/// The data path's handle to the threads. Dropping it ends the threads.
#[derive(Debug)]
pub(super) struct Handshaker {
    work: SyncSender<HandshakeWork>,
    results: Receiver<HandshakeResult>,
    waker: Waker,
}

impl Handshaker {
    /// Starts the threads for a machine with `cores` processor cores.
    ///
    /// # Errors
    /// If a thread or an eventfd cannot be created.
    pub(super) fn start(cores: usize) -> io::Result<Self> {
        let waker = Waker::new()?;
        let (work, todo) = mpsc::sync_channel::<HandshakeWork>(MAX_WORK);
        let (done, results) = mpsc::channel();
        let todo = Arc::new(Mutex::new(todo));
        for _ in 1..cores.clamp(2, MAX_CORES) {
            let (todo, done, waker) = (Arc::clone(&todo), done.clone(), waker.clone());
            thread::Builder::new()
                .name("handshake".to_owned())
                .spawn(move || compute(&todo, &done, &waker))?;
        }
        Ok(Self {
            work,
            results,
            waker,
        })
    }

    /// Returns the waker, which is readable when there are results.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Passes the engine's work to the threads. If they cannot accept work, it is done here.
    pub(super) fn hand_over(&self, endpoint: &mut Endpoint, now: Instant) {
        while let Some(work) = endpoint.poll_handshake_work() {
            match self.work.try_send(work) {
                Ok(()) => {}
                Err(TrySendError::Full(work) | TrySendError::Disconnected(work)) => {
                    endpoint.handle_handshake_result(now, work.run());
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

/// Does work until the other end of a channel is dropped.
fn compute(todo: &Mutex<Receiver<HandshakeWork>>, done: &Sender<HandshakeResult>, waker: &Waker) {
    let _guard = AbortOnPanic;
    loop {
        // One thread waits for work, and the others wait for the lock.
        let next = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = next else {
            return;
        };
        if done.send(work.run()).is_err() {
            return;
        }
        waker.wake();
    }
}

/// Aborts the process if a thread panics, which is a bug. The work in the thread would be lost, and the engine would count
/// it as in progress forever; a restart restores the tunnel.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            crate::log_lines::finish();
            std::process::abort();
        }
    }
}
