//! Stores idle connections to servers: plain HTTP requests have used them, and later requests from the same client
//! address may use them again. So a request can find an open connection with a grown congestion window on whichever
//! link suits it. A server may have tied a login to one connection. Such a connection is reserved for the client
//! connection that logged in, whose later requests to this server all use it.

use std::{collections::BTreeMap, net::IpAddr, rc::Rc, time::Duration};

use pleach_core::{time::Instant, units::Bytes};
use rustix::net::{RecvFlags, recv};
use tokio::net::TcpStream;

use crate::{placer::Warm, sched::LinkId, target::Target};

/// Idle connections to servers: see the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Idle connections by client address and server, the most recent last.
    streams: BTreeMap<(IpAddr, Target), Vec<Upstream>>,
    /// Number of connections that each client has to the proxy.
    clients: BTreeMap<IpAddr, usize>,
}

/// A connection to a server that has no request under way.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) link: Option<LinkId>,
    pub(crate) stream: Rc<TcpStream>,
    /// Number of bytes received over the connection.
    pub(crate) received: Bytes,
    /// Time since which the connection has been idle.
    pub(crate) since: Instant,
}

impl Kept {
    /// Notes that `client` has opened one more connection to the proxy.
    pub(super) fn come(&mut self, client: IpAddr) {
        *self.clients.entry(client).or_default() += 1;
    }

    /// Notes that `client` has closed a connection to the proxy. When the client's last connection closes, the idle
    /// connections to servers that are stored for this client are closed.
    pub(super) fn leave(&mut self, client: IpAddr) {
        if let Some(count) = self.clients.get_mut(&client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.clients.remove(&client);
                self.streams.retain(|(one, _), _| *one != client);
            }
        }
    }

    /// Stores `upstream` for the next request of `client` to `target`. If [`MAX_KEPT`] connections are already
    /// stored, the oldest is closed.
    pub(super) fn put(&mut self, client: IpAddr, target: Target, upstream: Upstream) {
        let streams = self.streams.entry((client, target)).or_default();
        if streams.len() >= MAX_KEPT {
            streams.remove(0);
        }
        streams.push(upstream);
    }

    /// Removes the connections that servers have closed, and returns the remaining idle connections of `client` to
    /// `target`.
    pub(super) fn warm(&mut self, now: Instant, client: IpAddr, target: &Target) -> Vec<Warm> {
        let Some(streams) = self.streams.get_mut(&(client, target.clone())) else {
            return Vec::new();
        };
        streams.retain(|one| is_quiet(&one.stream));
        let warm = |one: &Upstream| {
            let has_rested = now.since(one.since) > REST;
            let received = if has_rested {
                Bytes::ZERO
            } else {
                one.received
            };
            Some(Warm {
                link: one.link?,
                received,
            })
        };
        streams.iter().filter_map(warm).collect()
    }

    /// Removes and returns an idle connection of `client` to `target` over `link`: the connection that has received
    /// most bytes.
    pub(super) fn take(
        &mut self,
        client: IpAddr,
        target: &Target,
        link: Option<LinkId>,
    ) -> Option<Upstream> {
        let streams = self.streams.get_mut(&(client, target.clone()))?;
        // The server may have closed some since the last check.
        streams.retain(|one| is_quiet(&one.stream));
        let serving = streams.iter().enumerate();
        let serving = serving.filter(|(_, one)| one.link == link);
        let (at, _) = serving.max_by_key(|(_, one)| one.received)?;
        Some(streams.remove(at))
    }

    /// Closes the idle connections over `link`, because the link leads to another network now.
    pub(super) fn forget(&mut self, link: LinkId) {
        for streams in self.streams.values_mut() {
            streams.retain(|one| one.link != Some(link));
        }
    }

    /// Returns the number of idle connections.
    pub(super) fn len(&self) -> usize {
        self.streams.values().map(Vec::len).sum()
    }

    /// Closes connections that have been idle for longer than [`MAX_WAIT`].
    pub(super) fn handle_window(&mut self, now: Instant) {
        self.streams.retain(|_, streams| {
            streams.retain(|one| now.since(one.since) <= MAX_WAIT);
            !streams.is_empty()
        });
    }
}

/// The server connection over which a client connection has logged in.
#[derive(Debug, Default)]
pub(super) struct Login {
    /// Whether the client connection has logged in, so that its requests must not use connections that other clients
    /// share.
    pub(super) is_bound: bool,
    /// The server connection, while no request is under way.
    pub(super) upstream: Option<(Target, Upstream)>,
}

impl Login {
    /// Removes and returns the server connection, if it leads to `target` and is still open.
    pub(super) fn take(&mut self, target: &Target) -> Option<Upstream> {
        let (to, upstream) = self.upstream.take()?;
        (to == *target && is_quiet(&upstream.stream)).then_some(upstream)
    }
}

/// Whether nothing is waiting to be read from `stream`, not even the end of the stream.
fn is_quiet(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    recv(stream, &mut [0; 1], flags).is_err_and(|error| error == rustix::io::Errno::AGAIN)
}

/// Maximum number of idle connections per client and server: the six that a browser opens to one server, on each of
/// three links.
const MAX_KEPT: usize = 18;
/// Time after which an idle connection is closed. Servers close idle connections after 5 s to 75 s.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Idle time after which a sender begins with a small congestion window again (RFC 5681, 4.1).
const REST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;
    use crate::relay::stripe::tests::run;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Returns a connection to `listener` over link number `link`.
    async fn upstream(listener: &TcpListener, link: usize) -> Upstream {
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).await;
        Upstream {
            link: Some(LinkId(link)),
            stream: Rc::new(stream.expect("it listens")),
            received: Bytes::new(100),
            since: Instant::ZERO,
        }
    }

    fn links(kept: &mut Kept, target: &Target) -> Vec<usize> {
        let warm = kept.warm(Instant::ZERO, CLIENT, target);
        warm.iter().map(|warm| warm.link.0).collect()
    }

    #[test]
    fn what_a_server_closed_or_speaks_over_is_not_used_again() {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let target = Target::from(listener.local_addr().expect("bound"));
            let mut kept = Kept::default();
            let mut servers = Vec::new();
            for link in 0..3 {
                let upstream = upstream(&listener, link).await;
                let stream = Rc::clone(&upstream.stream);
                kept.put(CLIENT, target.clone(), upstream);
                servers.push((listener.accept().await.expect("a client").0, stream));
            }
            assert_eq!(links(&mut kept, &target), [0, 1, 2]);
            servers[1]
                .0
                .write_all(b"HTTP/1.1 408 ")
                .await
                .expect("sent");
            servers[2].0.shutdown().await.expect("closed");
            for (_, stream) in &servers[1..] {
                stream.readable().await.expect("something came");
            }
            assert_eq!(links(&mut kept, &target), [0]);
            let mut take = |link| kept.take(CLIENT, &target, Some(LinkId(link)));
            assert!(take(1).is_none());
            assert!(take(0).is_some());
            assert!(take(0).is_none(), "once");
        });
    }

    #[test]
    fn each_client_and_server_has_its_own_few_for_a_while() {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let target = Target::from(listener.local_addr().expect("bound"));
            let other = Target::from(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
            let stranger = IpAddr::from([10, 0, 0, 1]);
            let mut kept = Kept::default();
            for link in 0..=MAX_KEPT {
                let upstream = upstream(&listener, link).await;
                kept.put(CLIENT, target.clone(), upstream);
            }
            assert_eq!(kept.len(), MAX_KEPT);
            let last = Some(LinkId(MAX_KEPT));
            let oldest = Some(LinkId(0));
            assert!(kept.take(CLIENT, &target, oldest).is_none());
            assert!(kept.take(stranger, &target, last).is_none());
            assert!(kept.take(CLIENT, &other, last).is_none());
            let rested = Instant::ZERO + REST * 2;
            for (now, received) in [(Instant::ZERO, 100), (rested, 0)] {
                let warm = kept.warm(now, CLIENT, &target);
                let is_so = |warm: &Warm| warm.received == Bytes::new(received);
                assert!(warm.len() == MAX_KEPT && warm.iter().all(is_so));
            }
            assert!(kept.take(CLIENT, &target, last).is_some());
            kept.forget(LinkId(1));
            assert!(kept.take(CLIENT, &target, Some(LinkId(1))).is_none());
            assert_eq!(kept.len(), MAX_KEPT - 2);
            kept.come(CLIENT);
            kept.come(CLIENT);
            kept.leave(CLIENT);
            kept.handle_window(Instant::ZERO + MAX_WAIT);
            assert_eq!(kept.len(), MAX_KEPT - 2);
            kept.handle_window(Instant::ZERO + MAX_WAIT * 2);
            assert_eq!(kept.len(), 0);
            kept.put(CLIENT, target, upstream(&listener, 0).await);
            kept.leave(stranger);
            assert_eq!(kept.len(), 1);
            kept.leave(CLIENT);
            assert_eq!(kept.len(), 0);
        });
    }

    #[test]
    fn a_login_serves_its_server_only() {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let target = Target::from(listener.local_addr().expect("bound"));
            let other = Target::from(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
            let mut login = Login::default();
            for (wanted, is_served) in [(&target, true), (&other, false)] {
                login.upstream = Some((target.clone(), upstream(&listener, 0).await));
                assert_eq!(login.take(wanted).is_some(), is_served);
                assert!(login.upstream.is_none());
            }
        });
    }
}
