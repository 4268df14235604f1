//! The thread that changes the host's configuration while the tunnel runs. So packets do not wait for `nft`, for the
//! kernel's tables, or for files.
//!
//! The thread owns the tunnel's [`Setup`] and executes one job after another. At intervals of [`LOOK_AROUND`], and on
//! request, it checks whether the host has changed ([`Setup::look_around`]).

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

/// Handle to the thread. Dropping the handle waits for the thread's jobs and drops the [`Setup`].
pub(super) struct Host {
    fwmark: u32,
    /// Sender of jobs, and the thread. `None` after [`Self::finish`].
    running: Option<(Sender<Job>, JoinHandle<Setup>)>,
    /// Number of jobs that are not done.
    waiting: Arc<AtomicUsize>,
    /// Number of times that the nftables table was restored.
    restored: Arc<AtomicU64>,
}

/// State on which jobs work.
pub(super) struct HostState {
    /// The tunnel's changes to the host's configuration.
    pub(super) setup: Setup,
    /// Number of packets that nftables has dropped, by reason, and the time when it was read.
    dropped: Option<(Instant, BTreeMap<String, u64>)>,
    /// Whether the last check of the host succeeded.
    is_well: bool,
    /// Whether all routes to clients are set and removed as they should be.
    are_clients_routed: bool,
    /// Number of times that the nftables table was restored.
    restored: Arc<AtomicU64>,
}

type Job = Box<dyn FnOnce(&mut HostState) + Send>;

impl Host {
    /// Starts the thread, in the network namespace of the caller.
    ///
    /// # Errors
    /// The thread cannot be created. In this case `setup` is undone.
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
            are_clients_routed: true,
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

    /// Returns the firewall mark of the tunnel's own sockets.
    pub(super) const fn fwmark(&self) -> u32 {
        self.fwmark
    }

    /// Adds `job` to the queue of waiting jobs. Returns at once.
    pub(super) fn run(&self, job: impl FnOnce(&mut HostState) + Send + 'static) {
        if let Some((sender, _)) = &self.running {
            self.waiting.fetch_add(1, Ordering::AcqRel);
            // The thread does not end before this handle, so sending cannot fail.
            let _ = sender.send(Box::new(job));
        }
    }

    /// Whether no job is running or waiting.
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
    /// Returns the number of packets that nftables has dropped, by reason. The values are at most [`FRESH`] old.
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

    /// Records the result of a change of the routes to clients. Of successive failures only the first is logged.
    pub(super) fn on_clients_routed(&mut self, result: &io::Result<()>) {
        if let Err(error) = result
            && self.are_clients_routed
        {
            tracing::warn!(%error, "routes to clients are not changed, and tried again");
        }
        self.are_clients_routed = result.is_ok();
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
            crate::log_lines::finish();
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
            let routed = state.setup.settle_host_routes();
            state.on_clients_routed(&routed);
            next_look = clock::now() + LOOK_AROUND;
        }
    }
}

/// Interval at which the host is checked for changes that nothing reports, for example a new port of a bridge or a
/// removed table.
const LOOK_AROUND: Duration = Duration::from_secs(5);

/// Maximum age of the counters. With this limit, a request of the status once per second does not start `nft` each
/// time.
const FRESH: Duration = Duration::from_secs(2);
