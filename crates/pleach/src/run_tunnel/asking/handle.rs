//! The data path's handle to the thread that asks the store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context as _;
use pleach_core::{
    endpoint::enrolment::{EnrolmentRequest, MAX_ASKED},
    time::Instant,
};
use pleach_linux::{clock, poll::Waker};

use super::{Answer, Asking, Note, Out, lookers::Lookers};
use crate::{clients::ClientStore, config::StoreConfig, keys::KEY_LEN, run_tunnel::ledger::Ledger};

/// Sends questions and news to the thread, and gets its answers. Dropping it ends the thread.
#[derive(Debug)]
pub(in crate::run_tunnel) struct Asker {
    /// `None` after [`Self::finish`].
    running: Option<(Sender<Note>, JoinHandle<bool>)>,
    /// Whether the gateway stops, so that only bytes are written.
    stop: Arc<AtomicBool>,
    /// Limits the questions that wait. Its receiver is in the thread.
    slots: SyncSender<()>,
    answers: Receiver<Answer>,
    waker: Waker,
    ledger: Arc<Ledger>,
}

/// What the thread starts with.
pub(in crate::run_tunnel) struct Start<'a> {
    pub(in crate::run_tunnel) store: Box<dyn ClientStore>,
    pub(in crate::run_tunnel) config: &'a StoreConfig,
    /// Static public key of the gateway.
    pub(in crate::run_tunnel) own_key: [u8; KEY_LEN],
    /// Bytes for the store.
    pub(in crate::run_tunnel) ledger: Arc<Ledger>,
    /// Name of the gateway in a fleet.
    pub(in crate::run_tunnel) fleet: Option<String>,
    /// Number of data threads.
    pub(in crate::run_tunnel) engines: usize,
}

impl Asker {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread or an eventfd cannot be created.
    pub(in crate::run_tunnel) fn start(start: Start<'_>) -> anyhow::Result<Self> {
        let waker = Waker::new()?;
        let (notes, todo) = mpsc::channel();
        let (slots, taken) = mpsc::sync_channel(MAX_ASKED * start.engines.max(1));
        let (answer, answers) = mpsc::channel();
        let out = Out {
            answer,
            taken,
            waker: waker.clone(),
        };
        let lookers = Lookers::start(start.store.lookups(), &notes)?;
        let ledger = Arc::clone(&start.ledger);
        let now = clock::now();
        let mut asking = Asking::new(now, start, lookers, out);
        asking.recall(now);
        let stop = Arc::<AtomicBool>::default();
        let stopping = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("clients".to_owned())
            .spawn(move || asking.run(&todo, &stopping))
            .context("thread for the store of clients")?;
        Ok(Self {
            running: Some((notes, thread)),
            stop,
            slots,
            answers,
            waker,
            ledger,
        })
    }

    /// Returns the waker, which is readable when there are answers.
    pub(in crate::run_tunnel) const fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Passes a question of an engine to the thread. Returns whether it will be answered: the thread may have ended, or
    /// have too many questions.
    pub(in crate::run_tunnel) fn ask(&self, request: EnrolmentRequest) -> bool {
        self.slots.try_send(()).is_ok() && self.tell(Note::Ask(Box::new(request)))
    }

    /// Tells the thread that the engine has a client.
    pub(in crate::run_tunnel) fn on_admitted(&self, public_key: [u8; KEY_LEN]) {
        self.tell(Note::Admitted(public_key));
    }

    /// Tells the thread that the engine has forgotten a client.
    pub(in crate::run_tunnel) fn on_forgotten(&self, public_key: [u8; KEY_LEN]) {
        self.tell(Note::Forgotten(public_key));
    }

    /// Tells the thread that a client was refused, because its name or an address belongs to another one. The answer about
    /// it is not kept for later runs: after a restart, it might take the address before its owner.
    pub(in crate::run_tunnel) fn on_clash(&self, public_key: [u8; KEY_LEN]) {
        self.tell(Note::Clashed(public_key));
    }

    /// Tells the thread that a client has connected at the time `at`.
    pub(in crate::run_tunnel) fn on_arrived(&self, public_key: [u8; KEY_LEN], at: Instant) {
        self.tell(Note::Arrived(public_key, at));
    }

    /// Returns the next answer.
    pub(in crate::run_tunnel) fn collect(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }

    /// Waits until the thread has tried once to write the counters, for at most [`FINISH_WITHIN`]. Questions that still
    /// wait are not answered.
    pub(in crate::run_tunnel) fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some((notes, thread)) = self.running.take() else {
            return;
        };
        // The thread may have ended.
        let _ = notes.send(Note::End);
        let until = clock::now() + FINISH_WITHIN;
        loop {
            // The thread holds the other end of the channel until it ends.
            match self.answers.recv_timeout(until.since(clock::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!(
                        "the store of clients does not answer: the last bytes wait for the next start"
                    );
                    return;
                }
            }
        }
        if thread.join().is_ok_and(|is_written| is_written) {
            self.ledger.remove();
        }
    }

    pub(super) fn tell(&self, note: Note) -> bool {
        let sender = self.running.as_ref().map(|(notes, _)| notes);
        sender.is_some_and(|notes| notes.send(note).is_ok())
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.tell(Note::End);
    }
}

/// Longest wait for the store when the gateway stops: less than a service manager grants.
const FINISH_WITHIN: Duration = Duration::from_secs(8);
