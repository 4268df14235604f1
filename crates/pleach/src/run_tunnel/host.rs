//! The thread that changes the host while the tunnel runs, so that packets wait neither for `nft` nor for the kernel's tables nor
//! for files.
//!
//! It owns the tunnel's [`Setup`] and does one job after the other. Between jobs it looks every [`LOOK_AROUND`], and when asked, at
//! what lies around the tunnel ([`Setup::look_around`]).

use std::{
    collections::BTreeMap,
    io, process,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_core::time::Instant;
use pleach_linux::{clock, routes::Setup};

/// The thread. Dropping it waits for its jobs and drops the [`Setup`].
pub(super) struct Host {
    fwmark: u32,
    /// Both are there until [`Self::finish`].
    running: Option<(Sender<Job>, JoinHandle<Setup>)>,
    /// Jobs that are not done.
    waiting: Arc<AtomicUsize>,
    /// Number of times that the nftables table was restored.
    restored: Arc<AtomicU64>,
}

/// What jobs work on.
pub(super) struct HostState {
    /// The tunnel's hold on the host.
    pub(super) setup: Setup,
    /// What nftables has dropped, and when it was asked.
    dropped: Option<(Instant, BTreeMap<String, u64>)>,
    /// Whether the last look around went well.
    is_well: bool,
    /// Number of times that the nftables table was restored.
    restored: Arc<AtomicU64>,
}

type Job = Box<dyn FnOnce(&mut HostState) + Send>;

impl Host {
    /// Starts the thread, in the network namespace of the caller.
    ///
    /// # Errors
    /// There is no thread to be had; then `setup` is undone.
    pub(super) fn start(setup: Setup) -> io::Result<Self> {
        let fwmark = setup.fwmark();
        let (sender, jobs) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        let restored = Arc::new(AtomicU64::new(0));
        let state = HostState {
            setup,
            dropped: None,
            is_well: true,
            restored: Arc::clone(&restored),
        };
        let thread = thread::Builder::new()
            .name("host".to_owned())
            .spawn(move || run(state, &jobs, &counted))?;
        Ok(Self {
            fwmark,
            running: Some((sender, thread)),
            waiting,
            restored,
        })
    }

    /// The mark that the tunnel's own sockets must carry.
    pub(super) const fn fwmark(&self) -> u32 {
        self.fwmark
    }

    /// Has `job` done after those that wait. Returns at once.
    pub(super) fn run(&self, job: impl FnOnce(&mut HostState) + Send + 'static) {
        if let Some((sender, _)) = &self.running {
            self.waiting.fetch_add(1, Ordering::AcqRel);
            // The thread ends with this value only.
            let _ = sender.send(Box::new(job));
        }
    }

    /// Whether a job would be begun at once.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Returns the number of times that the nftables table was restored after another program had removed it.
    pub(super) fn restored_tables(&self) -> u64 {
        self.restored.load(Ordering::Relaxed)
    }

    /// Waits until all jobs are done. Returns the tunnel's [`Setup`], or `None` if the thread has already ended.
    pub(super) fn finish(mut self) -> Option<Setup> {
        self.end()
    }

    fn end(&mut self) -> Option<Setup> {
        let (sender, thread) = self.running.take()?;
        drop(sender);
        thread.join().ok()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl HostState {
    /// What nftables has dropped, at most [`FRESH`] old.
    pub(super) fn dropped(&mut self) -> BTreeMap<String, u64> {
        let now = clock::now();
        if let Some((at, known)) = &self.dropped
            && now.since(*at) < FRESH
        {
            return known.clone();
        }
        let found = self.setup.dropped().unwrap_or_else(|error| {
            tracing::debug!(%error, "counters of nftables");
            BTreeMap::new()
        });
        self.dropped = Some((now, found.clone()));
        found
    }

    /// Updates the tunnel's nftables table, and restores it if another program has removed it. Of successive failures
    /// only the first is logged.
    pub(super) fn look_around(&mut self) {
        match self.setup.look_around() {
            Ok(is_restored) => {
                self.is_well = true;
                if is_restored {
                    tracing::warn!(
                        "the tunnel's nftables table was missing, or its state was unknown; it is set again"
                    );
                    self.restored.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(error) if self.is_well => {
                tracing::warn!(%error, "the tunnel's nftables table is not kept up to date");
                self.is_well = false;
            }
            Err(_) => {}
        }
    }
}

/// Ends the process if the thread panics before this value is dropped. Otherwise unwinding would undo the host's
/// configuration while the tunnel still runs. The next start of the tunnel undoes the changes that remain.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("a change of the host has failed: the daemon ends");
            process::abort();
        }
    }
}

fn run(mut state: HostState, jobs: &Receiver<Job>, waiting: &AtomicUsize) -> Setup {
    // The guard is dropped before `state`, so that a panic ends the process before `state` is undone.
    let _guard = AbortOnPanic;
    let mut next_look = clock::now() + LOOK_AROUND;
    loop {
        match jobs.recv_timeout(next_look.since(clock::now())) {
            Ok(job) => {
                job(&mut state);
                waiting.fetch_sub(1, Ordering::AcqRel);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return state.setup,
        }
        if clock::now() >= next_look {
            state.look_around();
            next_look = clock::now() + LOOK_AROUND;
        }
    }
}

/// Interval at which the host is checked for changes that nothing reports, for example a new port of a bridge or a
/// removed table.
const LOOK_AROUND: Duration = Duration::from_secs(5);

/// Counters may be so old: who looks once a second does not start `nft` as often.
const FRESH: Duration = Duration::from_secs(2);
