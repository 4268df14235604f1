//! The HTTP interface of a daemon: JSON, live values, dashboard and metrics, over the control socket and, where the
//! configuration says so, over TCP.
//!
//! ```text
//!  control socket ─┐                        ┌─ routes ── files   (dashboard)
//!  [dashboard] ────┼─ serve ── guard ───────┤         ── live    (server-sent events)
//!  [metrics] ──────┘  (bounds) (who may)    └─ metrics           (OpenMetrics)
//!                                                 │
//!                                    hub: one snapshot a second at most,
//!                                         and only while somebody asks
//!                                                 │ channel
//!                                             data path
//! ```
//!
//! With `history` in `[dashboard]`, [`history`] looks all the time and keeps what it sees.
//!
//! One thread of its own, which starts with the first HTTP request on the control socket, or with the daemon if it listens on
//! TCP. Packets are never its matter: it asks the data path for a status as `pleach status` does, and shares each answer
//! among all who look. Bounds: [`serve::MAX_CONNECTIONS`] over TCP, [`routes::MAX_STREAMS`] event streams, a head of
//! [`serve::MAX_HEAD_BYTES`], a body of [`routes::MAX_BODY_BYTES`], [`serve::PATIENCE`] for a head, an answer, and a reader
//! that takes nothing.

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
    control::server::{Asker, Slot, StartError},
};

/// The interface of this daemon. Dropping it ends the thread.
pub(crate) struct Api {
    asker: Arc<Asker>,
    /// Connections of the control socket, for the thread; as many as that has slots. `None` before the thread runs.
    thread: Mutex<Option<UnboundedSender<Handed>>>,
}

/// A connection of the control socket and its place among those.
struct Handed {
    stream: UnixStream,
    slot: Slot,
}

/// A listener of TCP.
struct Door {
    listener: TcpListener,
    listen: Arc<Listen>,
    /// Whether there are but metrics.
    is_metrics: bool,
}

impl Api {
    /// Listens where `view` says.
    ///
    /// # Errors
    /// An address is taken, or no thread can be made.
    pub(crate) fn start(asker: &Arc<Asker>, view: &ViewConfig) -> Result<Self, StartError> {
        let mut doors = Vec::new();
        for (listen, what) in [
            (&view.dashboard, "[dashboard]"),
            (&view.metrics, "[metrics]"),
        ] {
            let Some(listen) = listen else { continue };
            let fail = |error| StartError::Listen(listen.address, what, error);
            let listener = TcpListener::bind(listen.address).map_err(fail)?;
            listener.set_nonblocking(true).map_err(fail)?;
            tracing::info!(listen = %listen.address, "{what} ready");
            doors.push(Door {
                listener,
                listen: Arc::new(listen.clone()),
                is_metrics: what == "[metrics]",
            });
        }
        let this = Self {
            asker: Arc::clone(asker),
            thread: Mutex::new(None),
        };
        if let Some(first) = doors.first() {
            let address = first.listen.address;
            let started = this.start_thread(doors, view.history.clone());
            let sender = started.map_err(|error| StartError::Listen(address, "HTTP", error))?;
            *this.lock() = Some(sender);
        }
        Ok(this)
    }

    /// Serves `stream`, which begins with a request that nobody has read.
    ///
    /// # Errors
    /// There is no thread for it.
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
