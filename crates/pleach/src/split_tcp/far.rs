//! The gateway's end: connects to servers for clients of the tunnel.
//!
//! It listens on the tunnel's device, so only clients with a session reach it, from their own addresses. Bounds:
//!
//! - There are at most [`MAX_CONNECTIONS`] connections in total, and [`MAX_PER_CLIENT`] for each client network.
//!   Further connections are reset.
//! - A request must arrive within [`REQUEST_TIME`]. A server must answer within [`CONNECT_TIME`].
//! - Each connection has two sockets, whose buffers the kernel limits (`tcp_rmem`, `tcp_wmem`). A direction whose
//!   receiver is slow also has a pipe. The first pipes hold 512 KiB each, further pipes 64 KiB. Some connections have a
//!   larger send buffer ([`super::send_buffer`]).
//!
//! The server sees the gateway's address, as it does when the gateway translates addresses (`nat`). Where it does not
//! translate, the request is answered with [`Answer::Untranslated`].

use std::{
    io,
    net::IpAddr,
    rc::Rc,
    sync::{Arc, Mutex, atomic::AtomicU64},
    thread,
    time::Duration,
};

use ipnet::IpNet;
use pleach_carrier::limits::Limit;
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
    send_buffer::{SendBuffers, Sent},
    socket,
};

/// Settings of the gateway's end.
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
/// The port is already in use, or the thread cannot be created.
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
        limit: Limit::new(MAX_PER_CLIENT, MAX_CONNECTIONS),
        buffers: SendBuffers::new(),
    });
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let far = Rc::clone(&far);
                tokio::task::spawn_local(async move {
                    // An error concerns the client or the server. Both see it themselves.
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
    /// Connections of each client network.
    limit: Limit<IpNet>,
    buffers: SendBuffers,
}

impl Far {
    async fn serve(self: &Rc<Self>, mut lane: TcpStream, client: IpAddr) -> io::Result<()> {
        socket::through_tunnel(&lane);
        let client = self.network_of(client);
        let Some(place) = self.limit.take(client) else {
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
            // The client receives the answer before the end of the connection. Data after the request is discarded.
            let mut rest = [0; 512];
            let drain = async { while lane.read(&mut rest).await.is_ok_and(|len| len > 0) {} };
            let _ = timeout(LINGER, drain).await;
            return Ok(());
        };
        let sent = Sent::new(&lane, client, &self.buffers, &self.moved);
        socket::relay(&self.pool, &lane, &server, &sent).await?;
        drop(place);
        Ok(())
    }

    async fn connect(
        &self,
        target: std::net::SocketAddr,
        source: IpAddr,
    ) -> Result<TcpStream, Answer> {
        // `may_reach` checks the source address that the kernel chooses. This is not enough: for the IPv6 address of a
        // client, the kernel can choose a source address of this host that is not the tunnel's.
        if self.is_of_a_client(target.ip().to_canonical()) {
            return Err(Answer::Denied);
        }
        match may_reach(target.ip(), &self.settings.addresses) {
            Ok(true) => {}
            Ok(false) => return Err(Answer::Denied),
            Err(_) => return Err(Answer::Unreachable),
        }
        // The gateway has no address translation to the other address family.
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

    /// Whether `ip` is in a network of the tunnel, or in a network of a client whose addresses are translated.
    fn is_of_a_client(&self, ip: IpAddr) -> bool {
        let mut nets = self.settings.addresses.iter();
        nets.any(|net| net.contains(&ip)) || self.is_translated(ip)
    }

    fn is_translated(&self, source: IpAddr) -> bool {
        let nets = self.translated.lock();
        nets.is_ok_and(|nets| nets.iter().any(|net| net.contains(&source)))
    }

    /// Returns the translated network of one client that contains `address`, because a client can use all addresses of
    /// its network. If no such network is known, returns the address itself.
    fn network_of(&self, address: IpAddr) -> IpNet {
        let own = &self.settings.addresses;
        // The tunnel's own networks are excluded, because all clients have addresses in them.
        let is_of_one = |net: &&IpNet| {
            net.contains(&address) && own.iter().all(|own| own.trunc() != net.trunc())
        };
        let nets = self.translated.lock();
        let known = nets.ok().and_then(|nets| {
            let of_one = nets.iter().filter(is_of_one);
            of_one.max_by_key(|net| net.prefix_len()).copied()
        });
        known.map_or_else(|| IpNet::from(address), |net| net.trunc())
    }
}

/// Maximum number of connections of all clients.
const MAX_CONNECTIONS: usize = 8192;
/// Highest number of connections of one client network.
const MAX_PER_CLIENT: usize = 2048;
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Time limit for the connection to a server. Linux itself gives up after 127 s.
const CONNECT_TIME: Duration = Duration::from_secs(30);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time until a connection that was refused with an answer ends.
const LINGER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn far() -> Rc<Far> {
        let networks = |texts: &[&str]| -> Vec<IpNet> {
            let texts = texts.iter();
            texts.map(|text| text.parse().expect("literal")).collect()
        };
        Rc::new(Far {
            settings: FarSettings {
                tunnel: "t0".to_owned(),
                addresses: networks(&["10.77.0.1/24", "fd77::1/64"]),
            },
            translated: Arc::new(Mutex::new(networks(&["10.77.0.0/24", "2001:db8:7::/48"]))),
            pool: PipePool::default(),
            moved: Arc::default(),
            limit: Limit::new(MAX_PER_CLIENT, MAX_CONNECTIONS),
            buffers: SendBuffers::new(),
        })
    }

    #[test]
    fn a_client_with_a_network_has_the_places_of_one() {
        let far = far();
        let place = |text: &str| {
            let client = far.network_of(text.parse().expect("literal"));
            far.limit.take(client)
        };
        let host = |number: usize| format!("2001:db8:7::{number:x}");
        let taken: Vec<_> = (0..MAX_PER_CLIENT)
            .map(|number| place(&host(number)))
            .collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(place("2001:db8:7:9::1").is_none());
        // Clients with addresses in the tunnel's network are counted separately.
        let one: Vec<_> = (0..MAX_PER_CLIENT).map(|_| place("10.77.0.2")).collect();
        assert!(one.iter().all(Option::is_some) && place("10.77.0.2").is_none());
        assert!(place("10.77.0.3").is_some());
        drop(taken);
        assert!(place("2001:db8:7:9::1").is_some());
    }

    #[test]
    fn clients_do_not_reach_each_other() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        for target in ["10.77.0.3:80", "[fd77::3]:80", "[2001:db8:7::3]:80"] {
            let far = far();
            let connecting = far.connect(
                target.parse().expect("literal"),
                "fd77::2".parse().expect("literal"),
            );
            let answer = runtime.block_on(connecting).expect_err("denied");
            assert_eq!(answer, Answer::Denied, "{target}");
        }
    }
}
