//! Connections: accepted, limited in number, and closed when the client does nothing.

use core::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::Router;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use pleach_linux::clock;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, UnixStream},
    sync::{Semaphore, mpsc::UnboundedReceiver},
    time::{Sleep, sleep},
};

use super::{Door, Handed, guard::Access, history::History, hub::Hub, routes};
use crate::{
    control::server::Asker,
    notices::{self, Judge, Messenger},
};

/// Serves `doors` and the connections received from `handed`, until all senders of `handed` are gone. `history`: path
/// of the history, if one is configured.
pub(super) async fn run(
    asker: Arc<Asker>,
    doors: Vec<Door>,
    mut handed: UnboundedReceiver<Handed>,
    history: Option<PathBuf>,
) {
    let hub = Arc::new(Hub::new(asker, history.as_deref().and_then(open)));
    if hub.history.is_some() {
        tokio::spawn(keep(Arc::clone(&hub)));
    }
    if let Some(messenger) = notices::started() {
        tokio::spawn(notify(Arc::clone(&hub), messenger));
    }
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    for door in doors {
        let access = Access::tcp(Arc::clone(&door.listen));
        let router = if door.is_metrics {
            routes::metrics_only(&hub, access)
        } else {
            routes::all(&hub, access)
        };
        tokio::spawn(receive(door, router, Arc::clone(&room)));
    }
    let router = routes::all(&hub, Access::owner());
    while let Some(Handed { stream, slot }) = handed.recv().await {
        let router = router.clone();
        if let Ok(stream) = UnixStream::from_std(stream) {
            tokio::spawn(async move {
                connection(stream, router).await;
                drop(slot);
            });
        }
    }
}

/// Opens the history at `path`. Returns `None` and logs a warning if that fails.
fn open(path: &Path) -> Option<History> {
    match History::open(path) {
        Ok((history, None)) => Some(history),
        Ok((history, Some(aside))) => {
            tracing::warn!(
                "the history was damaged, is now {}, and begins anew",
                aside.display()
            );
            Some(history)
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), "no history is kept: {error:#}");
            None
        }
    }
}

/// Adds a sample a second to the history.
async fn keep(hub: Arc<Hub>) {
    let mut is_well = true;
    loop {
        let wait = match hub.sample().await {
            Ok(sample) => {
                match hub.remember(&sample).await {
                    Ok(()) => is_well = true,
                    Err(error) if is_well => {
                        tracing::warn!("the history misses a minute: {error}");
                        is_well = false;
                    }
                    Err(_) => {}
                }
                Hub::wait(&sample)
            }
            Err(_) => BREATHER,
        };
        sleep(wait + BREATHER / 20).await;
    }
}

/// Judges a sample a second, and sends the notices that follow from it.
async fn notify(hub: Arc<Hub>, messenger: &'static Messenger) {
    let mut judge = Judge::new(messenger.after());
    loop {
        let wait = match hub.sample().await {
            Ok(sample) => {
                let notices = judge.take(clock::now(), &sample.status);
                notices
                    .into_iter()
                    .for_each(|notice| messenger.send(notice));
                Hub::wait(&sample)
            }
            Err(_) => BREATHER,
        };
        sleep(wait + BREATHER / 20).await;
    }
}

/// Serves the connections that `door` accepts, once its address can be bound.
async fn receive(mut door: Door, router: Router, room: Arc<Semaphore>) {
    let listener = loop {
        if let Some(listener) = door.listener.take() {
            break listener;
        }
        sleep(RETRY).await;
        let _ = door.open();
    };
    match TcpListener::from_std(listener) {
        Ok(listener) => accept(listener, router, room).await,
        Err(error) => tracing::warn!(%error, "HTTP is not served"),
    }
}

async fn accept(listener: TcpListener, router: Router, room: Arc<Semaphore>) {
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    connection(stream, router).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of descriptors or memory: wait, so that other tasks can release some.
                tracing::warn!(%error, at = ?listener.local_addr().ok().map(|at: SocketAddr| at), "connection not accepted");
                sleep(BREATHER).await;
            }
        }
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let service = TowerToHyperService::new(router);
    // An error here is the client's: it has closed the connection, was too slow, or does not speak HTTP.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(Patient::new(stream)), service)
        .await;
}

/// A stream whose writes fail if the reader reads nothing for [`PATIENCE`].
struct Patient<T> {
    stream: T,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<T> Patient<T> {
    fn new(stream: T) -> Self {
        Self {
            stream,
            deadline: None,
        }
    }

    fn judge<R>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.deadline = None;
            return polled;
        }
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, polled)
    }
}

/// Longest wait for a request head, an answer or a reader.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum number of simultaneous connections over TCP; the next connection waits in the kernel's queue.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// Maximum size of a request head in bytes; hyper does not accept less than 8 KiB.
pub(super) const MAX_HEAD_BYTES: usize = 16 << 10;

/// Interval between two attempts to bind an address that is in use.
const RETRY: Duration = Duration::from_secs(2);

/// Pause after a failed accept.
const BREATHER: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_left() {
        let (mut near, _far) = tokio::io::duplex(64);
        near.write_all(&[0; 64]).await.expect("room");
        let mut patient = Patient {
            stream: near,
            deadline: Some(Box::pin(sleep(Duration::from_millis(10)))),
        };
        let error = patient.write_all(b"more").await.expect_err("full");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_reader_that_takes_something_is_served() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut patient = Patient::new(near);
        patient.write_all(&[0; 64]).await.expect("room");
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut far, &mut all).await
        });
        patient.write_all(&[0; 64]).await.expect("read meanwhile");
        assert!(patient.deadline.is_none());
        drop(patient);
        assert_eq!(reading.await.expect("task").expect("read"), 128);
    }
}
