//! SOCKS5's UDP ASSOCIATE (RFC 1928, section 7).
//!
//! A client sends datagrams with a header to a socket that the proxy creates for it. The association ends with the TCP
//! connection on which it was requested. Where the datagrams go: see [`client`].

pub(crate) mod client;

use std::{cell::Cell, io, net::SocketAddr, rc::Rc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use pleach_linux::{clock, owner::Transport, udp};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time,
};

use self::client::{Client, Origin};
use crate::{
    daemon::{descriptors::Descriptors, hub::Hub},
    handshake::{Protocol, socks5},
    target::{Host, Target},
};

/// Serves the association that the client requested on `control`.
///
/// # Errors
/// A socket could not be created, or a system call on it failed.
pub(crate) async fn associate(
    hub: &Rc<Hub>,
    mut control: TcpStream,
    from: SocketAddr,
) -> io::Result<()> {
    let here = control.local_addr()?;
    let inner = std::net::UdpSocket::bind(SocketAddr::new(here.ip(), 0))?;
    inner.set_nonblocking(true)?;
    udp::set_buffers(&SockRef::from(&inner), BUFFER_LEN);
    // The program that sends the datagrams is the one that requested the association.
    let app = hub.apps.find(Transport::Tcp, from, here).await;
    let association = Association::new(hub, UdpSocket::from_std(inner)?, from, app);
    let inner = Rc::clone(&association.inner);
    control
        .write_all(&socks5::associated(inner.local_addr()?))
        .await?;
    let mut datagram = vec![0; MAX_DATAGRAM];
    let mut ignored = [0; 256];
    let mut sweep = time::interval(FLOW_IDLE / 4);
    // Datagrams whose destination names are being resolved. Other datagrams do not wait for them.
    let mut unresolved = FuturesUnordered::new();
    loop {
        tokio::select! {
            read = control.read(&mut ignored) => match read {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            },
            received = inner.recv_from(&mut datagram) => {
                let (len, sender) = received?;
                if let Some((target, payload)) = association.handle_datagram(&datagram[..len], sender) {
                    if unresolved.len() < MAX_UNRESOLVED {
                        let payload = payload.to_vec();
                        unresolved.push(async move {
                            let answer = hub.resolver.resolve(&target).await;
                            (target, payload, answer)
                        });
                    } else {
                        hub.count_drop("too-many-names");
                    }
                }
            }
            Some((target, payload, answer)) = unresolved.next() => match answer {
                Ok(addresses) => association.flows.send(&target, &addresses, &payload),
                Err(_) => hub.count_drop("name-not-resolved"),
            },
            _ = sweep.tick() => association.flows.forget_idle(clock::now()),
        }
    }
}

struct Association {
    hub: Rc<Hub>,
    inner: Rc<UdpSocket>,
    from: SocketAddr,
    /// Address from which the client sends. `None` before its first datagram.
    client: Rc<Cell<Option<SocketAddr>>>,
    flows: Rc<Client>,
}

impl Association {
    /// Creates the association of the program `app` at `from`, which sends its datagrams to `inner`.
    fn new(hub: &Rc<Hub>, inner: UdpSocket, from: SocketAddr, app: Option<String>) -> Self {
        let inner = Rc::new(inner);
        let client: Rc<Cell<Option<SocketAddr>>> = Rc::default();
        let reply = {
            let (inner, client) = (Rc::clone(&inner), Rc::clone(&client));
            move |source: SocketAddr, payload: &[u8]| {
                let Some(client) = client.get() else {
                    return false;
                };
                let mut answer = Vec::with_capacity(payload.len() + MAX_HEADER);
                socks5::push_datagram_header(&mut answer, source);
                answer.extend_from_slice(payload);
                let sent = SockRef::from(&*inner).send_to(&answer, &client.into());
                sent.is_ok()
            }
        };
        let origin = Origin {
            from,
            app,
            protocol: Protocol::Socks5,
        };
        Self {
            hub: Rc::clone(hub),
            inner,
            from,
            client,
            flows: Client::new(
                hub,
                origin,
                &Descriptors::of_association(hub),
                Rc::new(reply),
            ),
        }
    }

    /// Forwards a datagram of the client to an IP address. An invalid datagram is dropped and counted. If the
    /// destination is a name, returns the destination and the payload.
    fn handle_datagram<'a>(
        &self,
        datagram: &'a [u8],
        sender: SocketAddr,
    ) -> Option<(Target, &'a [u8])> {
        let is_client = sender.ip().to_canonical() == self.from.ip().to_canonical()
            && self.client.get().is_none_or(|client| client == sender);
        let Some((target, start)) = socks5::datagram(datagram).filter(|_| is_client) else {
            self.hub.count_drop("bad-datagram");
            return None;
        };
        self.client.set(Some(sender));
        let payload = &datagram[start..];
        let Host::Ip(ip) = &target.host else {
            return Some((target, payload));
        };
        self.flows.send(&target, &[*ip], payload);
        None
    }
}

/// Maximum number of destinations per client.
pub(crate) const MAX_FLOWS: usize = 64;
/// Maximum number of datagrams per association that wait for name resolution. Few clients send names in datagrams.
const MAX_UNRESOLVED: usize = 16;
/// Duration without data after which a flow is removed: as long as NATs keep a mapping (RFC 4787, REQ-5).
pub(crate) const FLOW_IDLE: Duration = Duration::from_secs(120);
/// Size in bytes of the buffers of sockets for datagrams.
pub(crate) const BUFFER_LEN: usize = 1 << 20;
pub(crate) const MAX_DATAGRAM: usize = 65_535;
/// Maximum length in bytes of the header of a datagram: with an IPv6 address.
const MAX_HEADER: usize = 22;

#[cfg(test)]
mod tests;
