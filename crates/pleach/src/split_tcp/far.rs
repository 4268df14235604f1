//! The gateway's end: connects to servers for clients of the tunnel.
//!
//! It listens on the tunnel's device, so only clients with a session reach it, from addresses that are theirs. Bounds:
//! [`MAX_CONNECTIONS`] in all and [`MAX_PER_CLIENT`] for each client address, above which a connection is reset; a request comes within [`REQUEST_TIME`], a server
//! answers within [`CONNECT_TIME`]. Each connection has two sockets, whose buffers the kernel bounds (`tcp_rmem`, `tcp_wmem`),
//! and a pipe of at most 512 KiB for each direction while its receiver does not keep up.
//!
//! The server sees the gateway's address, as it does when the gateway translates addresses (`nat`). Where it does not
//! translate, the request is answered with [`Answer::Untranslated`].

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    net::IpAddr,
    rc::Rc,
    sync::{Arc, Mutex, atomic::AtomicU64},
    thread,
    time::Duration,
};

use ipnet::IpNet;
use pleach_linux::split_tcp::may_reach;
use pleach_proxy::relay::pipe::PipePool;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::LocalSet,
    time::{sleep, timeout},
};

use super::{
    protocol::{self, Answer, Request},
    socket,
};

/// What a gateway permits.
#[derive(Clone, Debug)]
pub(crate) struct FarSettings {
    /// The tunnel's device.
    pub(crate) tunnel: String,
    /// The gateway's inner addresses.
    pub(crate) addresses: Vec<IpNet>,
}

/// Networks of clients whose addresses the gateway translates; replaced when clients change.
pub(crate) type Translated = Arc<Mutex<Vec<IpNet>>>;

/// Serves clients until the process ends.
///
/// # Errors
/// The port is taken, or no thread can be had.
pub(crate) fn start(settings: FarSettings, translated: Translated) -> io::Result<()> {
    socket::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = {
        let _guard = runtime.enter();
        socket::listen(Some(&settings.tunnel), protocol::PORT)?
    };
    thread::Builder::new()
        .name("split-tcp".to_owned())
        .spawn(move || LocalSet::new().block_on(&runtime, accept(listener, settings, translated)))
        .map(drop)
}

async fn accept(listener: TcpListener, settings: FarSettings, translated: Translated) {
    let far = Rc::new(Far {
        settings,
        translated,
        pool: PipePool::default(),
        moved: Arc::default(),
        by_client: RefCell::default(),
    });
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let far = Rc::clone(&far);
                tokio::task::spawn_local(async move {
                    // An error is the client's, or the server's; both see it.
                    let _ = far.serve(stream, client.ip().to_canonical()).await;
                });
            }
            Err(error) => {
                tracing::debug!(%error, "split TCP");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Far {
    settings: FarSettings,
    translated: Translated,
    pool: PipePool,
    moved: Arc<AtomicU64>,
    /// Connections of each client address.
    by_client: RefCell<BTreeMap<IpAddr, usize>>,
}

impl Far {
    async fn serve(self: &Rc<Self>, mut lane: TcpStream, client: IpAddr) -> io::Result<()> {
        socket::through_tunnel(&lane);
        let Some(place) = self.place(client) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let mut request = [0; protocol::REQUEST_LEN];
        timeout(REQUEST_TIME, lane.read_exact(&mut request)).await??;
        let Some(request) = Request::decode(&request) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let (answer, server) = match request {
            Request::Hello { source } if self.is_translated(source) => (Answer::Connected, None),
            Request::Hello { .. } => (Answer::Untranslated, None),
            Request::Connect { target, source } => match self.connect(target, source).await {
                Ok(server) => (Answer::Connected, Some(server)),
                Err(answer) => (answer, None),
            },
        };
        lane.write_all(&[answer as u8]).await?;
        let Some(server) = server else {
            // The answer arrives before the end; the data behind the request are not read.
            let mut rest = [0; 512];
            let drain = async { while lane.read(&mut rest).await.is_ok_and(|len| len > 0) {} };
            let _ = timeout(LINGER, drain).await;
            return Ok(());
        };
        socket::relay(&self.pool, &lane, &server, &self.moved).await?;
        drop(place);
        Ok(())
    }

    async fn connect(
        &self,
        target: std::net::SocketAddr,
        source: IpAddr,
    ) -> Result<TcpStream, Answer> {
        match may_reach(target.ip(), &self.settings.addresses) {
            Ok(true) => {}
            Ok(false) => return Err(Answer::Denied),
            Err(_) => return Err(Answer::Unreachable),
        }
        // A source of the other family would get a translation that this gateway does not give.
        if source.is_ipv4() != target.ip().to_canonical().is_ipv4() || !self.is_translated(source) {
            return Err(Answer::Untranslated);
        }
        match timeout(CONNECT_TIME, TcpStream::connect(target)).await {
            Ok(Ok(server)) => {
                socket::prepare(&server);
                Ok(server)
            }
            Ok(Err(error)) => Err(Answer::of(&error)),
            Err(_) => Err(Answer::TimedOut),
        }
    }

    fn is_translated(&self, source: IpAddr) -> bool {
        let nets = self.translated.lock();
        nets.is_ok_and(|nets| nets.iter().any(|net| net.contains(&source)))
    }

    /// A place for one more connection of `client`, given back when dropped.
    fn place(self: &Rc<Self>, client: IpAddr) -> Option<Place> {
        let mut by_client = self.by_client.borrow_mut();
        let total: usize = by_client.values().sum();
        let own = by_client.get(&client).copied().unwrap_or_default();
        if total >= MAX_CONNECTIONS || own >= MAX_PER_CLIENT {
            return None;
        }
        by_client.insert(client, own + 1);
        drop(by_client);
        Some(Place {
            far: Rc::clone(self),
            client,
        })
    }
}

/// One connection's place among those of its client.
struct Place {
    far: Rc<Far>,
    client: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_client = self.far.by_client.borrow_mut();
        if let Some(own) = by_client.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                by_client.remove(&self.client);
            }
        }
    }
}

/// Connections of all clients.
const MAX_CONNECTIONS: usize = 8192;
/// Connections of one client address.
const MAX_PER_CLIENT: usize = 2048;
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Linux gives up after 127 s; nobody waits that long.
const CONNECT_TIME: Duration = Duration::from_secs(30);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long an answered connection may take to end.
const LINGER: Duration = Duration::from_secs(2);
