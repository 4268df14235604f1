//! The thread that does the arithmetic of handshakes, so that packets do not wait for it.
//!
//! Work goes to the thread and results come back through channels; a [`Waker`] tells the data path of results. The engine
//! bounds what waits ([`MAX_WORK`]), so neither channel holds more.

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

/// The thread, as the data path knows it. It ends when this is dropped.
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
    /// No thread or no eventfd can be had.
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

    /// Readable when there are results.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Hands the engine's work to the thread. Work that the thread cannot take is done here.
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

    /// Gives the engine what the thread has done.
    pub(super) fn collect(&self, endpoint: &mut Endpoint, now: Instant) {
        self.waker.clear();
        while let Ok(result) = self.results.try_recv() {
            endpoint.handle_handshake_result(now, result);
        }
    }
}

/// Ends the process if the thread panics, which is a bug: with the work it held no handshake would be read any more, and a restart
/// brings the tunnel back.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}
