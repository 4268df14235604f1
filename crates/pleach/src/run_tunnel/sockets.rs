//! The daemon's UDP sockets: a gateway's one for all, a client's two for each link.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
};

use pleach_core::{
    packet::Ecn,
    transmit::{Route, TxBatch},
};
use pleach_linux::udp::{Transmit, UdpOptions, UdpSocket};

/// One socket, and what it could not send yet.
#[derive(Debug)]
pub(super) struct LinkSocket {
    pub(super) socket: UdpSocket,
    /// The client's link, by path number; 0 at a gateway.
    pub(super) link: u8,
    /// Batches that wait for room, oldest first; at most [`MAX_UNSENT`]. While any waits, the link is given no data.
    unsent: Vec<Unsent>,
}

#[derive(Debug)]
struct Unsent {
    route: Route,
    segment_len: usize,
    has_checksums: bool,
    bytes: Vec<u8>,
}

/// What all sockets of a tunnel have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// Mark of all datagrams.
    pub(super) fwmark: u32,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Given to the kernel.
    All,
    /// The socket is full: kept until it has room.
    Later,
    /// The kernel refused it, for a reason that time may mend; the engine will see the loss.
    Refused,
}

impl LinkSocket {
    /// The gateway's socket.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    pub(super) fn listen(address: SocketAddr, traits: Traits) -> io::Result<Self> {
        Self::bind(&UdpOptions {
            dual_stack: address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            fwmark: Some(traits.fwmark),
            ..UdpOptions::new(address)
        })
    }

    /// A client's socket for one link and address family, bound to `source` if its route asks for one.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    pub(super) fn on_device(
        device: &str,
        link: u8,
        is_v6: bool,
        source: Option<IpAddr>,
        traits: Traits,
    ) -> io::Result<Self> {
        let any: IpAddr = if is_v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let options = UdpOptions {
            device: Some(device.to_owned()),
            fwmark: Some(traits.fwmark),
            ..UdpOptions::new(SocketAddr::new(source.unwrap_or(any), 0))
        };
        Ok(Self {
            link,
            ..Self::bind(&options)?
        })
    }

    fn bind(options: &UdpOptions) -> io::Result<Self> {
        Ok(Self {
            socket: UdpSocket::bind(options)?,
            link: 0,
            unsent: Vec::new(),
        })
    }

    /// Whether something waits for room.
    pub(super) fn is_full(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends a batch, with UDP checksums or without, or keeps what the kernel does not take now.
    pub(super) fn send(&mut self, batch: &TxBatch, has_checksums: bool) -> Sent {
        let (route, segment_len) = (batch.route(), batch.segment_len());
        let sent = if self.unsent.is_empty() {
            self.try_send(route, segment_len, has_checksums, batch.bytes())
        } else {
            Ok(0)
        };
        let sent = match sent {
            Ok(sent) if sent == batch.bytes().len() => return Sent::All,
            Ok(sent) => sent,
            Err(refused) => return refused,
        };
        if self.unsent.len() >= MAX_UNSENT {
            return Sent::Refused;
        }
        self.unsent.push(Unsent {
            route: *route,
            segment_len,
            has_checksums,
            bytes: batch.bytes()[sent..].to_vec(),
        });
        Sent::Later
    }

    /// Sends one datagram now, or not at all.
    pub(super) fn send_one(&self, to: SocketAddr, datagram: &[u8]) {
        let route = Route {
            link: self.link,
            remote: to,
            local: None,
        };
        // Refusals are logged, and nobody depends on it.
        let _ = self.try_send(&route, datagram.len(), true, datagram);
    }

    /// Sends what was kept; whether nothing is left.
    pub(super) fn flush(&mut self) -> bool {
        while let Some(first) = self.unsent.first() {
            let sent = self.try_send(
                &first.route,
                first.segment_len,
                first.has_checksums,
                &first.bytes,
            );
            match sent {
                Ok(sent) if sent == first.bytes.len() => {
                    self.unsent.remove(0);
                }
                Ok(sent) => {
                    self.unsent[0].bytes.drain(..sent);
                    return false;
                }
                Err(_) => {
                    self.unsent.remove(0);
                }
            }
        }
        true
    }

    /// Bytes the kernel took; `Ok(0)` if the socket is full.
    fn try_send(
        &self,
        route: &Route,
        segment_len: usize,
        has_checksums: bool,
        bytes: &[u8],
    ) -> Result<usize, Sent> {
        if let Err(error) = self.socket.set_checksums(has_checksums) {
            tracing::debug!(link = self.link, %error, "UDP checksums stay as they are");
        }
        let transmit = Transmit {
            destination: route.remote,
            src_ip: route.local,
            ecn: Ecn::NotCapable,
            segment_size: Some(segment_len),
            contents: bytes,
        };
        match self.socket.send(&transmit) {
            Ok(sent) => Ok(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => {
                tracing::debug!(link = self.link, to = %route.remote, %error, "datagrams refused");
                Err(Sent::Refused)
            }
        }
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// More than one round's batches; beyond it a socket that stays full loses probes, as it should.
const MAX_UNSENT: usize = 64;
