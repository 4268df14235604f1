//! The thread that computes handshakes, so that packets do not wait for it.
//!
//! Work is sent to the thread, and results return, through channels; a [`Waker`] signals results to the data path. The
//! engine limits the waiting work to [`MAX_WORK`], so neither channel contains more.

use std::{
    io,
    sync::mpsc::{self, Receiver, SyncSender, TrySendError},
    thread,
};

use pleach_core::{
    endpoint::{
        Endpoint,
        work::{HandshakeResult, HandshakeWork, MAX_WORK},
    },
    time::Instant,
};
use pleach_linux::poll::Waker;

/// The data path's handle to the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Handshaker {
    work: SyncSender<HandshakeWork>,
    results: Receiver<HandshakeResult>,
    waker: Waker,
}

impl Handshaker {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread or an eventfd cannot be created.
    pub(super) fn start() -> io::Result<Self> {
        let waker = Waker::new()?;
        let (work, todo) = mpsc::sync_channel::<HandshakeWork>(MAX_WORK);
        let (done, results) = mpsc::channel();
        let wake = waker.clone();
        thread::Builder::new()
            .name("handshake".to_owned())
            .spawn(move || {
                let _guard = AbortOnPanic;
                for work in todo {
                    if done.send(work.run()).is_err() {
                        return;
                    }
                    wake.wake();
                }
            })?;
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

    /// Passes the engine's work to the thread. If the thread cannot accept work, it is done here.
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

    /// Passes the thread's results to the engine.
    pub(super) fn collect(&self, endpoint: &mut Endpoint, now: Instant) {
        self.waker.clear();
        while let Ok(result) = self.results.try_recv() {
            endpoint.handle_handshake_result(now, result);
        }
    }
}

/// Aborts the process if the thread panics, which is a bug. The work in the thread would be lost and no handshake would
/// be processed any more; a restart restores the tunnel.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}
