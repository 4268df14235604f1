//! The client's end of split TCP. It accepts the connections that the kernel redirects, and carries each of them to the
//! far end.
//!
//! A connection is accepted before the server has answered: the application's `connect` succeeds, and if the server
//! refuses, a reset follows. A destination that could not be reached in this way is excluded from splitting for some
//! time. The next attempt then goes through the tunnel packet by packet, and the application sees the server's own
//! answer.

use std::{
    cell::RefCell,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, SyncSender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ipnet::IpNet;
use pleach_linux::{
    redirect::original_destination,
    split_tcp::{Exclusions, Exempt, Families, Interception},
    state::DEFAULT_STATE_DIR,
};
use pleach_proxy::relay::pipe::PipePool;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Notify, watch},
    task::LocalSet,
    time::{sleep, timeout},
};

use super::{
    protocol::{self, Answer, Request},
    send_buffer::{SendBuffers, Sent},
    socket,
};
use crate::control::SplitTcpStatus;

/// Handle to the thread that carries connections. Dropping the handle ends the thread and removes the redirect.
#[derive(Debug)]
pub(crate) struct Near {
    wanted: Option<watch::Sender<Wanted>>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

/// State that the data path requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// Whether new connections are to be split.
    splits: bool,
    /// Devices of links. Connections that arrive over these devices are not split.
    uplinks: Vec<String>,
    /// Further connections that are not split.
    exempt: Vec<Exempt>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Number of present connections.
    open: AtomicUsize,
    /// Number of connections carried since the start.
    carried: AtomicU64,
    /// Number of connections that were reset because the far end did not connect.
    failed: AtomicU64,
    /// Number of times that the nftables table was restored after another program had removed it.
    restored: AtomicU64,
    moved: Arc<AtomicU64>,
    is_redirecting: AtomicBool,
    /// Reason why connections are not redirected although the data path requests it.
    trouble: Mutex<Option<String>>,
}

impl Near {
    /// Starts the thread for the tunnel over device `tunnel` with the inner addresses `own`. Connections are redirected
    /// only after [`Self::want`].
    ///
    /// # Errors
    /// The thread or the listener cannot be created, or `nft` is missing.
    pub(crate) fn start(tunnel: &str, own: &[IpNet]) -> io::Result<Self> {
        socket::raise_descriptor_limit();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _guard = runtime.enter();
            socket::listen(None, 0)?
        };
        let (wanted, changes) = watch::channel(Wanted::default());
        let counts = Arc::new(Counts::default());
        let redirect = Interception::begin(DEFAULT_STATE_DIR.as_ref(), tunnel)?;
        let end = NearEnd {
            exclusions: exclude_on_a_thread(redirect.exclusions())?,
            redirect: Arc::new(redirect),
            redirected: RefCell::default(),
            again: Notify::new(),
            tunnel: tunnel.to_owned(),
            own: own.to_vec(),
            pool: PipePool::default(),
            buffers: SendBuffers::new(),
            counts: Arc::clone(&counts),
        };
        let thread = thread::Builder::new()
            .name("split-tcp".to_owned())
            .spawn(move || {
                // `end` is dropped last, because the kernel translates the resets of connections only while the table
                // exists.
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

    /// Sets whether new connections are to be split, except connections in `exempt`. Existing connections continue.
    /// `uplinks` are the devices of the links.
    pub(crate) fn want(&self, splits: bool, uplinks: Vec<String>, exempt: Vec<Exempt>) {
        let wanted = Wanted {
            splits,
            uplinks,
            exempt,
        };
        if let Some(sender) = &self.wanted {
            sender.send_if_modified(|known| {
                let is_changed = *known != wanted;
                *known = wanted;
                is_changed
            });
        }
    }

    /// Returns the state of split TCP for `status`.
    pub(crate) fn status(&self) -> SplitTcpStatus {
        let counts = &self.counts;
        let is_wanted = self
            .wanted
            .as_ref()
            .is_some_and(|wanted| wanted.borrow().splits);
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
            restored_tables: counts.restored.load(Ordering::Relaxed),
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
    redirect: Arc<Interception>,
    exclusions: SyncSender<(SocketAddr, Duration)>,
    /// Address families that are redirected at present, and the state for which this was set.
    redirected: RefCell<(Families, Wanted)>,
    /// Signals that the far end did not answer, so that it must be asked again whether it serves this client.
    again: Notify,
    tunnel: String,
    own: Vec<IpNet>,
    pool: PipePool,
    buffers: SendBuffers,
    counts: Arc<Counts>,
}

impl NearEnd {
    /// Accepts and carries connections until the sender of `changes` is dropped.
    async fn run(self: Rc<Self>, listener: TcpListener, changes: watch::Receiver<Wanted>) {
        let port = listener.local_addr().map_or(0, |address| address.port());
        let accepting = tokio::task::spawn_local(Rc::clone(&self).accept(listener));
        Rc::clone(&self).follow(changes, port).await;
        accepting.abort();
    }

    async fn accept(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    if self.counts.open.load(Ordering::Relaxed) < MAX_CONNECTIONS {
                        tokio::task::spawn_local(Rc::clone(&self).serve(client));
                    } else {
                        // Dropping the prepared socket resets the connection.
                        socket::prepare(&client);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "split TCP");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Redirects connections while the data path requests it and the far end serves this client. Returns when the
    /// sender of `changes` is dropped.
    async fn follow(self: Rc<Self>, mut changes: watch::Receiver<Wanted>, port: u16) {
        loop {
            let wanted = changes.borrow_and_update().clone();
            let served = if wanted.splits {
                tokio::select! {
                    served = self.greet() => served,
                    changed = changes.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                }
            } else {
                Ok(Families::default())
            };
            let families = served.as_ref().copied().unwrap_or_default();
            let redirected = self.set_redirect(port, families, wanted).await;
            let trouble = served.err().or_else(|| redirected.err());
            let is_retried = trouble.is_some();
            if let Ok(mut known) = self.counts.trouble.lock() {
                *known = trouble;
            }
            if !self.waits(&mut changes, is_retried).await {
                return;
            }
        }
    }

    /// Waits until the redirection must be set again. Returns `false` if the sender of `changes` is dropped.
    async fn waits(&self, changes: &mut watch::Receiver<Wanted>, is_retried: bool) -> bool {
        let mut retry = pin!(async {
            if is_retried {
                sleep(RETRY).await;
            } else {
                self.again.notified().await;
                // Many connections often fail at the same time. One retry serves them all.
                sleep(SETTLING).await;
            }
        });
        loop {
            tokio::select! {
                changed = changes.changed() => return changed.is_ok(),
                () = &mut retry => return true,
                () = sleep(LOOK) => if self.restore().await {
                    return true;
                },
            }
        }
    }

    /// Restores the table if another program has removed it. Returns whether the table was restored.
    async fn restore(&self) -> bool {
        let redirect = Arc::clone(&self.redirect);
        let restored = tokio::task::spawn_blocking(move || redirect.restore()).await;
        match restored.map_err(io::Error::other).flatten() {
            Ok(false) => false,
            Ok(true) => {
                tracing::warn!(
                    "another program has removed the nftables table that redirects connections; it is set again"
                );
                self.redirected.take();
                self.counts.is_redirecting.store(false, Ordering::Relaxed);
                self.counts.restored.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "the table that redirects connections");
                false
            }
        }
    }

    /// Redirects connections of `families` to `port`, except connections that are not split according to `wanted`.
    ///
    /// # Errors
    /// The error message of `nft`.
    async fn set_redirect(
        self: &Rc<Self>,
        port: u16,
        families: Families,
        wanted: Wanted,
    ) -> Result<(), String> {
        let redirected = (families, wanted);
        if *self.redirected.borrow() == redirected {
            return Ok(());
        }
        let (redirect, own) = (Arc::clone(&self.redirect), self.own.clone());
        let Wanted {
            uplinks, exempt, ..
        } = redirected.1.clone();
        let run = move || redirect.redirect(port, families, &own, &uplinks, &exempt);
        let outcome = tokio::task::spawn_blocking(run).await;
        let outcome = outcome.map_err(|error| error.to_string())?;
        outcome.map_err(|error| format!("connections are not redirected: {error}"))?;
        let before = self.redirected.replace(redirected).0;
        if before != families {
            let is_any = families != Families::default();
            let redirecting = &self.counts.is_redirecting;
            redirecting.store(is_any, Ordering::Relaxed);
            tracing::info!(
                ipv4 = families.v4,
                ipv6 = families.v6,
                "new TCP connections that are split"
            );
        }
        Ok(())
    }

    /// Returns the address families for which the far end serves this host's connections. If there are none, returns
    /// the reason as an error.
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
                    _ => "the gateway gives an unknown answer".to_owned(),
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

    /// Opens a connection to the far end, through the tunnel.
    async fn open(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "the first address of the tunnel's network, which is the gateway's, is this host's: change [tunnel] address at both ends",
        );
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

    async fn serve(self: Rc<Self>, client: TcpStream) {
        // A connection that was made directly to this port has no original destination.
        let Some(target) = original_destination(&client) else {
            return;
        };
        socket::prepare(&client);
        let counts = Arc::clone(&self.counts);
        counts.open.fetch_add(1, Ordering::Relaxed);
        if let Err(answer) = self.carry(&client, target).await {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            if answer.is_none() {
                self.again.notify_one();
            }
            let time = match answer {
                Some(Answer::Denied | Answer::Untranslated) => EXCLUDED_LONG,
                _ => EXCLUDED,
            };
            tracing::debug!(%target, ?answer, "not carried");
            // If many connections fail at the same time, some exclusions are dropped. The next attempt to reach their
            // destinations then fails again.
            let _ = self.exclusions.try_send((target, time));
        }
        counts.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Carries `client` to `target`.
    ///
    /// # Errors
    /// The far end did not connect. The error is its answer, or `None` if it sent no answer. `client` is reset when
    /// dropped.
    async fn carry(&self, client: &TcpStream, target: SocketAddr) -> Result<(), Option<Answer>> {
        let is_v4 = target.ip().to_canonical().is_ipv4();
        let mut own = self.own.iter().map(IpNet::addr);
        let source = own.find(|own| own.is_ipv4() == is_v4).ok_or(None)?;
        let opening = async {
            let mut lane = self.open().await?;
            lane.write_all(&Request::Connect { target, source }.encode())
                .await?;
            io::Result::Ok(lane)
        };
        let lane = timeout(OPENING, opening).await;
        let lane = lane.map_err(|_| None)?.map_err(|_| None)?;
        // The application's first bytes are sent immediately after the request. The far end's answer precedes the
        // server's data.
        let carried = &self.counts.carried;
        let application = client.peer_addr().map_err(|_| None)?.ip().to_canonical();
        let sent = Sent::new(&lane, application.into(), &self.buffers, &self.counts.moved);
        let end = socket::relay_when(&self.pool, client, &lane, &sent, || {
            carried.fetch_add(1, Ordering::Relaxed);
        });
        end.await
    }
}

/// Starts a thread that excludes destinations. It runs `nft` once for all waiting destinations.
fn exclude_on_a_thread(exclusions: Exclusions) -> io::Result<SyncSender<(SocketAddr, Duration)>> {
    let (sender, waiting) = mpsc::sync_channel::<(SocketAddr, Duration)>(MAX_WAITING);
    let run = move || {
        while let Ok(first) = waiting.recv() {
            let mut targets = vec![first];
            targets.extend(waiting.try_iter());
            if let Err(error) = exclusions.add(&targets) {
                tracing::debug!(%error, "destinations are not excluded");
            }
        }
    };
    thread::Builder::new()
        .name("split-tcp-nft".to_owned())
        .spawn(run)?;
    Ok(sender)
}

/// Returns the gateway's address in the tunnel's network `own`. It is the first address of the network, as
/// `pleach gateway init` chooses it. Returns `None` if this host has the first address; the next address may belong to
/// another client.
fn gateway_of(own: &IpNet) -> Option<IpAddr> {
    let mut hosts = own.hosts();
    let first = hosts.find(|host| *host != own.network());
    first.filter(|first| *first != own.addr())
}

/// Maximum number of simultaneous connections. Further connections are reset.
const MAX_CONNECTIONS: usize = 8192;
/// Maximum number of destinations that wait to be excluded.
const MAX_WAITING: usize = 64;
/// Delay between a failure and the next question to the far end whether it serves this client.
const SETTLING: Duration = Duration::from_secs(1);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which a far end that does not serve this client is asked again.
const RETRY: Duration = Duration::from_secs(30);
/// Interval at which the client checks whether another program has removed the table.
const LOOK: Duration = Duration::from_secs(5);
const GREETING: Duration = Duration::from_secs(5);
const OPENING: Duration = Duration::from_secs(30);
/// Duration for which a destination that was not reached is excluded.
const EXCLUDED: Duration = Duration::from_secs(60);
/// Duration for which a destination is excluded that the gateway does not reach for clients.
const EXCLUDED_LONG: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_has_the_first_address_and_no_other_host_is_taken_for_it() {
        for (own, gateway) in [
            ("10.77.0.2/24", Some("10.77.0.1")),
            ("10.77.0.1/24", None),
            ("10.77.0.2/32", None),
            ("fd77::5/64", Some("fd77::1")),
            ("fd77::1/64", None),
            ("10.77.0.1/31", None),
        ] {
            let own: IpNet = own.parse().expect("literal");
            let gateway = gateway.map(|text| text.parse().expect("literal"));
            assert_eq!(gateway_of(&own), gateway, "{own}");
        }
    }
}
