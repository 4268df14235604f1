//! The HTTP interface of a daemon: JSON, live values, dashboard and metrics, over the control socket and, where the
//! configuration says so, over TCP.
//!
//! ```text
//!  control socket ─┐                        ┌─ routes ── files   (dashboard)
//!  [dashboard] ────┼─ serve ── guard ───────┤         ── live    (server-sent events)
//!  [metrics] ──────┘  (bounds) (who may)    └─ metrics           (OpenMetrics)
//!                                                 │
//!                                    hub: at most one snapshot per second,
//!                                         and only while there are requests
//!                                                 │ channel
//!                                             data path
//! ```
//!
//! With `history` in `[dashboard]`, [`history`] takes and stores samples even while no client asks, and with `[notices]`
//! every sample is judged.
//!
//! The interface has one thread of its own. The thread starts with the first HTTP request on the control socket, or
//! with the daemon if the interface listens on TCP or notices are sent. The thread never handles packets. It asks the
//! data path for a status as `pleach status` does, and shares each answer among all clients. Bounds:
//!
//! - [`serve::MAX_CONNECTIONS`] connections over TCP and [`routes::MAX_STREAMS`] event streams,
//! - [`serve::MAX_HEAD_BYTES`] for the head of a request and [`routes::MAX_BODY_BYTES`] for its body,
//! - [`serve::PATIENCE`] to receive the head of a request, to answer it, and to wait for a client that reads nothing.

mod files;
mod guard;
mod history;
mod hub;
mod live;
mod metrics;
mod routes;
mod serve;
#[cfg(test)]
mod tests;
mod uplink;

use std::{
    io,
    net::TcpListener,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
    config::{Listen, ViewConfig},
    control::server::{Asker, Slot},
    notices,
};

/// The HTTP interface of this daemon. Dropping it ends its thread.
pub(crate) struct Api {
    asker: Arc<Asker>,
    /// Sender of control-socket connections to the thread, at most as many as the control socket has slots. `None`
    /// before the thread runs.
    thread: Mutex<Option<UnboundedSender<Handed>>>,
}

/// A connection of the control socket and the slot that it occupies there.
struct Handed {
    stream: UnixStream,
    slot: Slot,
}

/// A TCP listener and its configuration.
struct Door {
    /// The listening socket; `None` while the address is in use or not yet on this host.
    listener: Option<TcpListener>,
    listen: Arc<Listen>,
    /// Whether only metrics are served here.
    is_metrics: bool,
}

impl Door {
    /// Listens at `listen`. If that fails, logs one warning.
    fn new(listen: &Listen, is_metrics: bool) -> Self {
        let mut door = Self {
            listener: None,
            listen: Arc::new(listen.clone()),
            is_metrics,
        };
        if let Err(error) = door.open() {
            let what = door.what();
            tracing::warn!(
                "cannot listen on {} for {what}: {}; everything else runs, and this is tried again: set another `listen`, or end what listens there",
                listen.address,
                crate::config::plain(&error)
            );
        }
        door
    }

    fn open(&mut self) -> io::Result<()> {
        let listener = TcpListener::bind(self.listen.address)?;
        listener.set_nonblocking(true)?;
        tracing::info!(listen = %self.listen.address, "{} ready", self.what());
        self.listener = Some(listener);
        Ok(())
    }

    const fn what(&self) -> &'static str {
        if self.is_metrics {
            "[metrics]"
        } else {
            "[dashboard]"
        }
    }
}

impl Api {
    /// Listens at the addresses in `view`. If an address is in use, the thread tries it again later.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub(crate) fn start(asker: &Arc<Asker>, view: &ViewConfig) -> io::Result<Self> {
        let dashboard = view.dashboard.iter().map(|listen| Door::new(listen, false));
        let metrics = view.metrics.iter().map(|listen| Door::new(listen, true));
        let doors: Vec<Door> = dashboard.chain(metrics).collect();
        let this = Self {
            asker: Arc::clone(asker),
            thread: Mutex::new(None),
        };
        if !doors.is_empty() || notices::started().is_some() {
            *this.lock() = Some(this.start_thread(doors, view.history.clone())?);
        }
        Ok(this)
    }

    /// Serves `stream`, whose first bytes are a request that has not been read yet.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub(crate) fn hand_over(&self, stream: UnixStream, slot: Slot) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let mut thread = self.lock();
        let sender = match &mut *thread {
            Some(sender) => sender,
            none => none.insert(self.start_thread(Vec::new(), None)?),
        };
        let handed = Handed { stream, slot };
        sender
            .send(handed)
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn start_thread(
        &self,
        doors: Vec<Door>,
        history: Option<PathBuf>,
    ) -> io::Result<UnboundedSender<Handed>> {
        let (sender, handed): (_, UnboundedReceiver<Handed>) = unbounded_channel();
        let asker = Arc::clone(&self.asker);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()?;
        thread::Builder::new()
            .name("api".to_owned())
            .spawn(move || {
                runtime.block_on(serve::run(asker, doors, handed, history));
                runtime.shutdown_background();
            })?;
        Ok(sender)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<UnboundedSender<Handed>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
