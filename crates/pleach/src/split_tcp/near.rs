//! The client's end: takes the connections that the kernel redirects, and carries each to the far end.
//!
//! A connection is accepted before the server has answered: the application's `connect` succeeds, and if the server refuses, a
//! reset follows. Destinations that could not be reached this way are excluded for a time, so that the next attempt goes
//! through the tunnel packet by packet and meets the server's own answer.

use std::{
    cell::Cell,
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ipnet::IpNet;
use pleach_linux::{
    redirect::original_destination,
    split_tcp::{Families, Interception},
    state::DEFAULT_STATE_DIR,
};
use pleach_proxy::relay::pipe::PipePool;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::LocalSet,
    time::{sleep, timeout},
};

use super::{
    protocol::{self, Answer, Request},
    socket,
};
use crate::control::SplitTcpStatus;

/// The thread that carries connections; it ends, and the redirect with it, when this is dropped.
#[derive(Debug)]
pub(crate) struct Near {
    wanted: Option<watch::Sender<bool>>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Connections now.
    open: AtomicUsize,
    /// Connections carried since the start.
    carried: AtomicU64,
    /// Connections reset because the far end did not connect.
    failed: AtomicU64,
    moved: Arc<AtomicU64>,
    is_redirecting: std::sync::atomic::AtomicBool,
    /// Why connections are not redirected although they are to be.
    trouble: Mutex<Option<String>>,
}

impl Near {
    /// Starts the thread for the tunnel over device `tunnel` with the inner addresses `own`. Nothing is redirected before
    /// [`Self::want`].
    ///
    /// # Errors
    /// No thread, no listener; `nft` is missing.
    pub(crate) fn start(tunnel: &str, own: &[IpNet]) -> io::Result<Self> {
        socket::raise_descriptor_limit();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _guard = runtime.enter();
            socket::listen(None, 0)?
        };
        let (wanted, changes) = watch::channel(false);
        let counts = Arc::new(Counts::default());
        let end = NearEnd {
            redirect: Interception::begin(DEFAULT_STATE_DIR.as_ref(), tunnel)?,
            redirected: Cell::default(),
            tunnel: tunnel.to_owned(),
            own: own.to_vec(),
            pool: PipePool::default(),
            counts: Arc::clone(&counts),
        };
        let thread = thread::Builder::new()
            .name("split-tcp".to_owned())
            .spawn(move || {
                // Dropped last: resets of connections are translated by the kernel while the table exists.
                let end = Rc::new(end);
                let serving = Rc::clone(&end).run(listener, changes);
                LocalSet::new().block_on(&runtime, serving);
            })?;
        Ok(Self {
            wanted: Some(wanted),
            counts,
            thread: Some(thread),
        })
    }

    /// Whether new connections are to be split; those that exist go on.
    pub(crate) fn want(&self, is_wanted: bool) {
        if let Some(wanted) = &self.wanted {
            wanted.send_if_modified(|known| std::mem::replace(known, is_wanted) != is_wanted);
        }
    }

    /// For `status`.
    pub(crate) fn status(&self) -> SplitTcpStatus {
        let counts = &self.counts;
        let is_wanted = self.wanted.as_ref().is_some_and(|wanted| *wanted.borrow());
        let is_redirecting = counts.is_redirecting.load(Ordering::Relaxed);
        SplitTcpStatus {
            state: match (is_wanted, is_redirecting) {
                (_, true) => "on",
                (true, false) => "waiting",
                (false, false) => "off",
            }
            .to_owned(),
            connections: counts.open.load(Ordering::Relaxed) as u64,
            carried: counts.carried.load(Ordering::Relaxed),
            failed: counts.failed.load(Ordering::Relaxed),
            bytes: counts.moved.load(Ordering::Relaxed),
            trouble: counts.trouble.lock().ok().and_then(|text| text.clone()),
        }
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct NearEnd {
    redirect: Interception,
    /// What it redirects now.
    redirected: Cell<Families>,
    tunnel: String,
    own: Vec<IpNet>,
    pool: PipePool,
    counts: Arc<Counts>,
}

impl NearEnd {
    /// Until the sender of `changes` is dropped.
    async fn run(self: Rc<Self>, listener: TcpListener, changes: watch::Receiver<bool>) {
        let port = listener.local_addr().map_or(0, |address| address.port());
        let accepting = tokio::task::spawn_local(Rc::clone(&self).accept(listener));
        Rc::clone(&self).follow(changes, port).await;
        accepting.abort();
    }

    async fn accept(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((client, source)) => {
                    tokio::task::spawn_local(Rc::clone(&self).serve(client, source));
                }
                Err(error) => {
                    tracing::debug!(%error, "split TCP");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Redirects while that is wanted and the far end serves.
    async fn follow(self: Rc<Self>, mut changes: watch::Receiver<bool>, port: u16) {
        loop {
            let is_wanted = *changes.borrow_and_update();
            let served = if is_wanted {
                self.greet().await
            } else {
                Ok(Families::default())
            };
            let families = served.as_ref().copied().unwrap_or_default();
            self.set_redirect(port, families);
            let trouble = served.err();
            let is_retried = trouble.is_some();
            if let Ok(mut known) = self.counts.trouble.lock() {
                *known = trouble;
            }
            let changed = changes.changed();
            let outcome = if is_retried {
                timeout(RETRY, changed).await.unwrap_or(Ok(()))
            } else {
                changed.await
            };
            if outcome.is_err() {
                return;
            }
        }
    }

    fn set_redirect(&self, port: u16, families: Families) {
        if self.redirected.replace(families) == families {
            return;
        }
        let is_any = families != Families::default();
        match self.redirect.redirect(port, families, &self.own) {
            Ok(()) => {
                let redirecting = &self.counts.is_redirecting;
                redirecting.store(is_any, Ordering::Relaxed);
                tracing::info!(
                    ipv4 = families.v4,
                    ipv6 = families.v6,
                    "TCP connections are split"
                );
            }
            Err(error) => tracing::warn!(%error, "TCP connections are not redirected"),
        }
    }

    /// For which families the far end serves this host's connections; if for none, why.
    async fn greet(&self) -> Result<Families, String> {
        let mut families = Families::default();
        let mut trouble = "the tunnel has no address".to_owned();
        for own in &self.own {
            let source = own.addr();
            let hello = async {
                let mut lane = self.open().await?;
                lane.write_all(&Request::Hello { source }.encode()).await?;
                lane.read_u8().await
            };
            trouble = match timeout(GREETING, hello).await {
                Ok(Ok(byte)) => match Answer::decode(byte) {
                    Some(Answer::Connected) => {
                        families.v4 |= source.is_ipv4();
                        families.v6 |= source.is_ipv6();
                        continue;
                    }
                    Some(Answer::Untranslated) => {
                        "the gateway does not translate addresses: set `nat` there".to_owned()
                    }
                    _ => "the gateway serves no more connections".to_owned(),
                },
                Ok(Err(error)) => format!("the gateway does not serve them: {error}"),
                Err(_) => "the gateway does not answer".to_owned(),
            };
        }
        if families == Families::default() {
            return Err(trouble);
        }
        Ok(families)
    }

    /// A connection to the far end, through the tunnel.
    async fn open(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for gateway in self.own.iter().filter_map(gateway_of) {
            let socket = if gateway.is_ipv4() {
                TcpSocket::new_v4()?
            } else {
                TcpSocket::new_v6()?
            };
            socket.bind_device(Some(self.tunnel.as_bytes()))?;
            match socket.connect((gateway, protocol::PORT).into()).await {
                Ok(stream) => {
                    socket::through_tunnel(&stream);
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn serve(self: Rc<Self>, client: TcpStream, source: SocketAddr) {
        // Whoever connects to the port itself has no destination.
        let Some(target) = original_destination(&client) else {
            return;
        };
        socket::prepare(&client);
        let counts = Arc::clone(&self.counts);
        counts.open.fetch_add(1, Ordering::Relaxed);
        if let Err(answer) = self.carry(&client, target, source).await {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            let time = match answer {
                Some(Answer::Denied | Answer::Untranslated) => EXCLUDED_LONG,
                _ => EXCLUDED,
            };
            tracing::debug!(%target, ?answer, "not carried");
            if let Err(error) = self.redirect.exclude(target, time) {
                tracing::debug!(%target, %error, "not excluded");
            }
        }
        counts.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Carries `client` to `target`.
    ///
    /// # Errors
    /// The far end did not connect: its answer, or `None` if it gave none. `client` is reset when dropped.
    async fn carry(
        &self,
        client: &TcpStream,
        target: SocketAddr,
        source: SocketAddr,
    ) -> Result<(), Option<Answer>> {
        let opening = async {
            let mut lane = self.open().await?;
            lane.write_all(&Request::Connect { target, source }.encode())
                .await?;
            io::Result::Ok(lane)
        };
        let lane = timeout(OPENING, opening).await;
        let lane = lane.map_err(|_| None)?.map_err(|_| None)?;
        let carried = &self.counts.carried;
        let end = socket::relay_when(&self.pool, client, &lane, &self.counts.moved, || {
            carried.fetch_add(1, Ordering::Relaxed);
        });
        end.await
    }
}

/// The gateway's address in the tunnel's network `own`: the first of it, as `pleach gateway init` chooses.
fn gateway_of(own: &IpNet) -> Option<IpAddr> {
    let mut hosts = own.hosts();
    hosts.find(|host| *host != own.addr() && *host != own.network())
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often a far end that does not serve is asked again.
const RETRY: Duration = Duration::from_secs(30);
const GREETING: Duration = Duration::from_secs(5);
const OPENING: Duration = Duration::from_secs(30);
/// A destination that was not reached is excluded for so long.
const EXCLUDED: Duration = Duration::from_secs(60);
/// A destination that the gateway does not reach for clients.
const EXCLUDED_LONG: Duration = Duration::from_secs(3600);
