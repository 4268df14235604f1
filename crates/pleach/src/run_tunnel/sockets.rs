//! The daemon's UDP sockets: one for each data thread at a gateway, two for each link at a client.

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

/// A socket, and the batches that it could not send yet.
#[derive(Debug)]
pub(super) struct LinkSocket {
    pub(super) socket: UdpSocket,
    /// The client's link, by path number; 0 at a gateway.
    pub(super) link: u8,
    /// Batches that wait for free space in the socket buffer, oldest first; at most [`MAX_UNSENT`]. While any batch
    /// waits, the link gets no data.
    unsent: Vec<Unsent>,
}

#[derive(Debug)]
struct Unsent {
    route: Route,
    segment_len: usize,
    has_checksums: bool,
    bytes: Vec<u8>,
}

/// Settings that all sockets of a tunnel share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// Firewall mark of all datagrams.
    pub(super) fwmark: u32,
}

/// Result of sending a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The kernel has accepted the batch.
    All,
    /// The socket buffer is full: the rest of the batch is stored until there is space.
    Later,
    /// The kernel refused the batch for a temporary reason, or too many batches wait. The engine will detect the loss.
    Refused,
}

impl LinkSocket {
    /// Opens the gateway's socket.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    pub(super) fn listen(address: SocketAddr, traits: Traits) -> io::Result<Self> {
        Self::bind(&gateway_options(address, traits))
    }

    /// Opens the sockets of a gateway with `count` workers, which share the address. The kernel delivers the datagrams of
    /// a session to the socket of its worker, and all others to the first one.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    pub(super) fn listen_shared(
        address: SocketAddr,
        traits: Traits,
        count: usize,
    ) -> io::Result<Vec<Self>> {
        // Another program of the same user could share the port. A socket that does not share it shows this.
        drop(Self::listen(address, traits)?);
        let options = UdpOptions {
            is_shared: true,
            ..gateway_options(address, traits)
        };
        // The kernel numbers the sockets in the order in which they are bound.
        let sockets: Vec<Self> = (0..count)
            .map(|_| Self::bind(&options))
            .collect::<io::Result<_>>()?;
        if let (Some(first), Ok(count)) = (sockets.first(), u32::try_from(count))
            && let Err(error) = first.socket.steer(count)
        {
            tracing::warn!(
                %error,
                "the kernel does not deliver datagrams by session: most of them change the thread, which takes more processor time"
            );
        }
        Ok(sockets)
    }

    /// Opens a client's socket for one link and address family, bound to `source` if the link's route needs it.
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

    /// Whether a batch waits for free space in the socket buffer.
    pub(super) fn is_full(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends a batch, with or without UDP checksums, and stores the part that the kernel does not accept now.
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

    /// Sends one datagram immediately, or drops it.
    pub(super) fn send_one(&self, to: SocketAddr, datagram: &[u8]) {
        let route = Route {
            link: self.link,
            remote: to,
            local: None,
        };
        // Refusals are logged; no caller depends on the result.
        let _ = self.try_send(&route, datagram.len(), true, datagram);
    }

    /// Sends stored batches. Returns whether none is left.
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

    /// Returns the number of bytes that the kernel has accepted; `Ok(0)` if the socket buffer is full.
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

/// Returns the options of a gateway's socket.
fn gateway_options(address: SocketAddr, traits: Traits) -> UdpOptions {
    UdpOptions {
        dual_stack: address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        fwmark: Some(traits.fwmark),
        ..UdpOptions::new(address)
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Maximum number of waiting batches: more than one round's batches. Beyond it, a socket that stays full loses probes,
/// as intended.
const MAX_UNSENT: usize = 64;
