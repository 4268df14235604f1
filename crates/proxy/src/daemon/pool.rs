//! Connections to servers that wait for the next plain HTTP request: of a client, to a destination, over a link.
//!
//! A request that finds one is spared a round trip and a slow start. They are no clients' places: at most [`MAX_IDLE`]
//! wait, [`MAX_ALIKE`] of a kind, each for [`PATIENCE`], the newest used first.

use std::{cell::RefCell, collections::VecDeque, io, net::IpAddr, rc::Rc, time::Duration};

use pleach_core::time::Instant;
use rustix::net::{RecvFlags, recv};
use tokio::{io::Interest, net::TcpStream};

use crate::{sched::LinkId, target::Target};

/// Whose a waiting connection is, where it leads and by which link; `None`: without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) client: IpAddr,
    pub(crate) target: Target,
    pub(crate) link: Option<LinkId>,
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) stream: Rc<TcpStream>,
    /// Segments sent and repeated for requests that are over.
    pub(crate) tcp_seen: (u32, u32),
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// The oldest first.
    idle: RefCell<VecDeque<(Kind, Instant, Upstream)>>,
}

impl Pool {
    /// A connection of this kind on which nothing has happened since it was put here.
    pub(crate) fn take(&self, kind: &Kind) -> Option<Upstream> {
        let mut idle = self.idle.borrow_mut();
        while let Some(index) = idle.iter().rposition(|(other, _, _)| other == kind) {
            let (_, _, upstream) = idle.remove(index)?;
            if is_quiet(&upstream.stream) {
                return Some(upstream);
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(crate) fn put(&self, now: Instant, kind: Kind, upstream: Upstream) {
        let mut idle = self.idle.borrow_mut();
        let alike = idle.iter().filter(|(other, _, _)| *other == kind).count();
        if alike >= MAX_ALIKE
            && let Some(oldest) = idle.iter().position(|(other, _, _)| *other == kind)
        {
            idle.remove(oldest);
        }
        if idle.len() >= MAX_IDLE {
            idle.pop_front();
        }
        idle.push_back((kind, now, upstream));
    }

    /// Closes what has waited for too long, what the server has closed, and what is on a link that is not up.
    pub(crate) fn sweep(&self, now: Instant, is_up: impl Fn(LinkId) -> bool) {
        self.idle.borrow_mut().retain(|(kind, since, upstream)| {
            now.since(*since) < PATIENCE
                && kind.link.is_none_or(&is_up)
                && is_quiet(&upstream.stream)
        });
    }
}

/// Whether neither bytes nor an end have come.
fn is_quiet(stream: &TcpStream) -> bool {
    let peek = || Ok(recv(stream, &mut [0; 1], RecvFlags::PEEK)?.0);
    let outcome = stream.try_io(Interest::READABLE, peek);
    matches!(outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// Less than servers wait, most of them.
const PATIENCE: Duration = Duration::from_secs(20);
const MAX_IDLE: usize = 128;
/// Browsers ask a host for six things at a time.
const MAX_ALIKE: usize = 8;

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::relay::stripe::tests::run;

    fn kind(link: usize) -> Kind {
        Kind {
            client: [127, 0, 0, 1].into(),
            target: "192.0.2.1:80"
                .parse::<std::net::SocketAddr>()
                .expect("address")
                .into(),
            link: Some(LinkId(link)),
        }
    }

    /// A connection and the server's end of it.
    async fn pair() -> (Upstream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = listener.local_addr().expect("bound");
        let (stream, accepted) = tokio::join!(TcpStream::connect(to), listener.accept());
        let stream = Rc::new(stream.expect("connected"));
        let tcp_seen = (0, 0);
        (
            Upstream { stream, tcp_seen },
            accepted.expect("connected").0,
        )
    }

    #[test]
    fn the_newest_that_lives_is_taken_and_only_by_its_kind() {
        run(async {
            let pool = Pool::default();
            let (mut ports, mut servers) = (Vec::new(), Vec::new());
            for _ in 0..3 {
                let (upstream, server) = pair().await;
                ports.push(upstream.stream.local_addr().expect("bound"));
                servers.push(server);
                pool.put(Instant::ZERO, kind(0), upstream);
            }
            assert!(pool.take(&kind(1)).is_none());
            // The newest was closed by its server.
            servers.pop();
            tokio::time::sleep(Duration::from_millis(20)).await;
            let taken = pool.take(&kind(0)).expect("two wait");
            assert_eq!(taken.stream.local_addr().expect("bound"), ports[1]);
            // The last has something to say that nobody asked for.
            servers[0].try_write(b"HTTP/1.1 408").expect("room");
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(pool.take(&kind(0)).is_none());
            assert!(pool.idle.borrow().is_empty());
        });
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_time() {
        run(async {
            let pool = Pool::default();
            let mut servers = Vec::new();
            for _ in 0..=MAX_ALIKE {
                let (upstream, server) = pair().await;
                servers.push(server);
                pool.put(Instant::ZERO, kind(0), upstream);
            }
            let (upstream, server) = pair().await;
            servers.push(server);
            pool.put(Instant::ZERO + PATIENCE, kind(1), upstream);
            assert_eq!(pool.idle.borrow().len(), MAX_ALIKE + 1);
            pool.sweep(Instant::ZERO + PATIENCE, |_| true);
            assert_eq!(pool.idle.borrow().len(), 1);
            pool.sweep(Instant::ZERO + PATIENCE, |link| link != LinkId(1));
            assert!(pool.idle.borrow().is_empty());
        });
    }
}
