//! Connections to servers that plain HTTP requests have used and others of the same client address may use: so a request finds
//! one on whichever link suits it, opened, and with a window that has grown. A server may have tied a login to one: that
//! is kept for the client connection that logged in, and such a client stays on it.

use std::{collections::BTreeMap, net::IpAddr, rc::Rc, time::Duration};

use pleach_core::{time::Instant, units::Bytes};
use rustix::net::{RecvFlags, recv};
use tokio::net::TcpStream;

use crate::{placer::Warm, sched::LinkId, target::Target};

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The latest last.
    streams: BTreeMap<(IpAddr, Target), Vec<Upstream>>,
    /// How many connections clients have to the proxy.
    clients: BTreeMap<IpAddr, usize>,
}

/// A connection to a server that has no request to answer.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) link: Option<LinkId>,
    pub(crate) stream: Rc<TcpStream>,
    /// What has come over it.
    pub(crate) received: Bytes,
    /// Since when it waits.
    pub(crate) since: Instant,
}

impl Kept {
    /// `client` has one more connection to the proxy.
    pub(super) fn come(&mut self, client: IpAddr) {
        *self.clients.entry(client).or_default() += 1;
    }

    /// `client` has one less. With the last its connections to servers end.
    pub(super) fn leave(&mut self, client: IpAddr) {
        if let Some(count) = self.clients.get_mut(&client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.clients.remove(&client);
                self.streams.retain(|(one, _), _| *one != client);
            }
        }
    }

    /// Keeps `upstream` for the next request of `client` to `target`; with [`MAX_KEPT`] there the oldest goes.
    pub(super) fn put(&mut self, client: IpAddr, target: Target, upstream: Upstream) {
        let streams = self.streams.entry((client, target)).or_default();
        if streams.len() >= MAX_KEPT {
            streams.remove(0);
        }
        streams.push(upstream);
    }

    /// Forgets what servers have closed, and returns what is left for `client` to `target`.
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

    /// A connection of `client` to `target` over `link`, the one over which most has come.
    pub(super) fn take(
        &mut self,
        client: IpAddr,
        target: &Target,
        link: Option<LinkId>,
    ) -> Option<Upstream> {
        let streams = self.streams.get_mut(&(client, target.clone()))?;
        // Time may have passed since they were looked at.
        streams.retain(|one| is_quiet(&one.stream));
        let serving = streams.iter().enumerate();
        let serving = serving.filter(|(_, one)| one.link == link);
        let (at, _) = serving.max_by_key(|(_, one)| one.received)?;
        Some(streams.remove(at))
    }

    /// Closes those over `link`: it leads elsewhere now.
    pub(super) fn forget(&mut self, link: LinkId) {
        for streams in self.streams.values_mut() {
            streams.retain(|one| one.link != Some(link));
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.streams.values().map(Vec::len).sum()
    }

    /// Closes what has waited for longer than [`MAX_WAIT`].
    pub(super) fn handle_window(&mut self, now: Instant) {
        self.streams.retain(|_, streams| {
            streams.retain(|one| now.since(one.since) <= MAX_WAIT);
            !streams.is_empty()
        });
    }
}

/// The connection to a server over which a client connection has logged in.
#[derive(Debug, Default)]
pub(super) struct Login {
    /// The client has logged in so: its requests go over none that others use.
    pub(super) is_bound: bool,
    /// While no request is under way.
    pub(super) upstream: Option<(Target, Upstream)>,
}

impl Login {
    /// The connection, if it leads to `target` and is still there.
    pub(super) fn take(&mut self, target: &Target) -> Option<Upstream> {
        let (to, upstream) = self.upstream.take()?;
        (to == *target && is_quiet(&upstream.stream)).then_some(upstream)
    }
}

/// Whether nothing has come over `stream`, not even its end.
fn is_quiet(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    recv(stream, &mut [0; 1], flags).is_err_and(|error| error == rustix::io::Errno::AGAIN)
}

/// As many as a browser has to one server at a time, on each of three links.
const MAX_KEPT: usize = 18;
/// Servers hang up after 5 s to 75 s.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Who has sent nothing for this long begins with a small window again (RFC 5681, 4.1).
const REST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;
    use crate::relay::stripe::tests::run;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// A connection to `listener`, over link 0, 1, 2 ….
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
