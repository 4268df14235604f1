//! Answers the UDP flows of other pleach proxies: sends their datagrams from a socket of this host, one for each flow,
//! and returns the datagrams of the destination. The same destinations are allowed as for connections.
//!
//! A flow ends when the peer ends it, when its link goes down, or after [`FLOW_IDLE`] without datagrams.

use std::{cell::Cell, io, net::SocketAddr, rc::Rc};

use pleach_core::time::Instant;
use pleach_linux::{clock, udp};
use socket2::SockRef;
use tokio::{net::UdpSocket, sync::Notify, task::spawn_local, time};

use super::{admission, connect, hub::Hub, live::Live, settings::StripeSettings};
use crate::{
    relay::{
        stripe::{
            association::Association,
            flow_table::{Asked, FlowEvent},
            flows::Flow,
        },
        udp::{BUFFER_LEN, FLOW_IDLE},
    },
    stripe::frame::Refusal,
};

/// A flow of a peer, at the end that answers.
struct Served {
    hub: Rc<Hub>,
    live: Rc<Live>,
    socket: UdpSocket,
    used_at: Cell<Instant>,
    /// Notified when the peer ends the flow.
    ended: Notify,
}

/// Serves the flow whose datagram `asked` has arrived from peer `who`, which connected from `from`.
pub(super) fn take_on(
    hub: &Rc<Hub>,
    (from, who): (SocketAddr, usize),
    association: &Rc<Association>,
    asked: &Asked,
) {
    let Some(settings) = &hub.settings.stripe else {
        return;
    };
    // An earlier datagram of the flow may have waited as well.
    if association.redeliver(asked) {
        return;
    }
    if let Err(refusal) = open(hub, settings, (from, who), association, asked) {
        hub.count_drop("peer-refused");
        association.close_flow(asked.flow, Some(refusal));
    }
}

fn open(
    hub: &Rc<Hub>,
    settings: &StripeSettings,
    (from, who): (SocketAddr, usize),
    association: &Rc<Association>,
    asked: &Asked,
) -> Result<(), Refusal> {
    let wanted = asked.wanted;
    let ip = wanted
        .ip
        .or(association.local)
        .ok_or(Refusal::Unreachable)?;
    let to = SocketAddr::new(ip.to_canonical(), wanted.port);
    let (places, purpose) = admission::admit(hub, settings, (from, who), to)?;
    let of_peer = {
        let answered = hub.peering.answered.borrow();
        let of_peer = answered.iter().filter(|((peer, _), _)| *peer == who);
        of_peer.map(|(_, other)| other.flow_count()).sum::<usize>()
    };
    if of_peer > MAX_PEER_FLOWS {
        return Err(Refusal::Busy);
    }
    let begun = hub.begin(purpose, &[to.ip()]);
    let (live, links) = begun.map_err(|_| Refusal::Unreachable)?;
    let socket = match socket(hub, &live, to) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::debug!(%to, ?links, "a peer's UDP target is not reached: {error}");
            hub.end(&live, false);
            return Err(Refusal::Unreachable);
        }
    };
    live.is_opening.set(false);
    live.carried.replace(Some((Rc::clone(association), None)));
    let served = Rc::new(Served {
        hub: Rc::clone(hub),
        live,
        socket,
        used_at: Cell::new(clock::now()),
        ended: Notify::new(),
    });
    let handler = {
        let served = Rc::clone(&served);
        move |event: FlowEvent<'_>| served.handle(event)
    };
    let flow = Flow::serve(association, asked.flow, handler);
    served.handle(FlowEvent::Datagram(&asked.data));
    spawn_local(async move {
        served.run(&flow).await;
        drop(flow);
        served.hub.end(&served.live, true);
        tracing::debug!(%to, moved = ?served.live.moved(), "a peer's UDP flow ended");
        drop(places);
    });
    Ok(())
}

/// Returns a socket for datagrams to and from `to` alone.
fn socket(hub: &Hub, live: &Live, to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = connect::outgoing(hub, live.link.get(), to.ip(), socket2::Type::DGRAM)?;
    udp::set_buffers(&socket, BUFFER_LEN);
    socket.connect(&to.into())?;
    UdpSocket::from_std(socket.into())
}

impl Served {
    /// Handles an event of the flow at the peer.
    fn handle(&self, event: FlowEvent<'_>) {
        let FlowEvent::Datagram(data) = event else {
            return self.ended.notify_one();
        };
        self.used_at.set(clock::now());
        // Sends without tokio, because tokio considers a new socket not writable until its first wait.
        let socket = SockRef::from(&self.socket);
        let sent = match socket.send(data) {
            // The error reports the loss of an earlier datagram, and this one was not sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => socket.send(data),
            sent => sent,
        };
        match sent {
            Ok(_) => self.live.up.set(self.live.up.get() + data.len() as u64),
            Err(_) => self.hub.count_drop("datagram-not-sent"),
        }
    }

    /// Returns datagrams of the destination to the peer until the flow ends.
    async fn run(&self, flow: &Flow) {
        let mut sweep = time::interval(FLOW_IDLE / 4);
        loop {
            tokio::select! {
                ready = self.socket.readable() => {
                    if ready.is_err() || self.receive(flow).is_err() {
                        return;
                    }
                }
                () = self.ended.notified() => return,
                () = self.live.stopped() => return,
                _ = sweep.tick() => {
                    if clock::now().since(self.used_at.get()) > FLOW_IDLE {
                        return;
                    }
                }
            }
        }
    }

    /// Passes datagrams that have arrived to the peer.
    fn receive(&self, flow: &Flow) -> io::Result<()> {
        let mut scratch = self.hub.buffers.scratch.borrow_mut();
        for _ in 0..BURST {
            match self.socket.try_recv(&mut scratch) {
                Ok(len) => {
                    self.used_at.set(clock::now());
                    if flow.send(&scratch[..len]) {
                        let down = &self.live.down;
                        down.set(down.get() + len as u64);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // An ICMP error reports the loss of an earlier datagram. Later datagrams may still arrive.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Maximum number of UDP flows of a peer, over all its associations.
const MAX_PEER_FLOWS: usize = 512;
/// Number of datagrams that are read before other tasks run.
const BURST: usize = 32;
