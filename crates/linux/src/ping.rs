//! Echo requests (RFC 792, RFC 4443) over a device of the caller's choice. Replies may arrive by any device.
//!
//! Raw sockets are used: one for replies of each family, and one for each device and source address of requests. A
//! reply is accepted if it repeats eight random bytes. Needs `CAP_NET_RAW`.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::net::{RecvFlags, recvfrom};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{clock, tun::checksum::Sum};

/// Sends echo requests, and receives replies.
#[derive(Debug)]
pub struct Pinger {
    receivers: Vec<(bool, Socket)>,
    /// Sockets by device and source address.
    senders: BTreeMap<(String, IpAddr), Socket>,
    identifier: [u8; 2],
    secret: [u8; SECRET_LEN],
}

impl Pinger {
    /// Opens the sockets for replies, for each family that this host has.
    ///
    /// # Errors
    /// Returns the kernel's error if this host has neither family.
    pub fn open() -> io::Result<Self> {
        let entropy = clock::entropy()?;
        let open = |is_v6| raw(is_v6).map(|socket| (is_v6, socket));
        let receivers = match (open(false), open(true)) {
            (Err(error), Err(_)) => return Err(error),
            (v4, v6) => v4.into_iter().chain(v6).collect(),
        };
        let mut identifier = [0; 2];
        let mut secret = [0; SECRET_LEN];
        identifier.copy_from_slice(&entropy[..2]);
        secret.copy_from_slice(&entropy[2..2 + SECRET_LEN]);
        Ok(Self {
            receivers,
            senders: BTreeMap::new(),
            identifier,
            secret,
        })
    }

    /// Returns the sockets on which replies arrive.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.receivers.iter().map(|(_, socket)| socket.as_fd())
    }

    /// Sends an echo request to `host` from the address `source` over the device `device`, with the number `number`.
    /// Both addresses are of the same family.
    ///
    /// `mark` is the mark of the packet.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn ask(
        &mut self,
        host: IpAddr,
        source: IpAddr,
        device: &str,
        mark: u32,
        number: u16,
    ) -> io::Result<()> {
        self.ask_with_padding(host, source, device, mark, number, 0)
    }

    /// Sends an echo request that is padded with zeros, so that the IP packet has `len` bytes if this is at least the
    /// minimum length. It is sent unfragmented, unless the kernel knows that the path has a smaller MTU.
    ///
    /// # Errors
    /// Returns the error of the kernel, for example if the packet is too long for the device.
    pub fn ask_with_padding(
        &mut self,
        host: IpAddr,
        source: IpAddr,
        device: &str,
        mark: u32,
        number: u16,
        len: usize,
    ) -> io::Result<()> {
        let key = (device.to_owned(), source);
        if !self.senders.contains_key(&key) {
            if self.senders.len() >= MAX_SENDERS {
                self.senders.clear();
            }
            let socket = raw(source.is_ipv6())?;
            // Replies arrive at this socket too, and are not read.
            socket.set_recv_buffer_size(0)?;
            socket.bind_device(Some(device.as_bytes()))?;
            socket.bind(&SocketAddr::new(source, 0).into())?;
            socket.set_mark(mark)?;
            self.senders.insert(key.clone(), socket);
        }
        let ip_header = if host.is_ipv6() { 40 } else { 20 };
        let message = self.message(host.is_ipv6(), number, len.saturating_sub(ip_header));
        let sent = self.senders[&key].send_to(&message, &SocketAddr::new(host, 0).into());
        if sent.is_err() {
            // The device may have been replaced by another.
            self.senders.remove(&key);
        }
        sent.map(drop)
    }

    /// Returns the next reply: its sender, and the number of the request.
    pub fn answer(&self) -> Option<(IpAddr, u16)> {
        let mut buffer = [0; LONGEST_ANSWER];
        for (is_v6, socket) in &self.receivers {
            // Each error removes one packet, except the error that there is no packet.
            while let Ok((len, _, from)) = recvfrom(socket, &mut buffer, RecvFlags::empty()) {
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                if let (Some(from), Some(number)) = (from, self.read(*is_v6, &buffer[..len])) {
                    return Some((from.ip(), number));
                }
            }
        }
        None
    }

    /// Returns a message of at least `len` bytes.
    fn message(&self, is_v6: bool, number: u16, len: usize) -> Vec<u8> {
        let mut message = vec![if is_v6 { REQUEST_V6 } else { REQUEST_V4 }, 0, 0, 0];
        message.extend_from_slice(&self.identifier);
        message.extend_from_slice(&number.to_be_bytes());
        message.extend_from_slice(&self.secret);
        message.resize(len.max(message.len()), 0);
        if !is_v6 {
            // The kernel computes the checksum of ICMPv6.
            let checksum = Sum::default().add(&message).checksum();
            message[2..4].copy_from_slice(&checksum);
        }
        message
    }

    /// Returns the number of a reply to one of this pinger's requests.
    fn read(&self, is_v6: bool, packet: &[u8]) -> Option<u16> {
        // Sockets of IPv4 also return the IP header.
        let header = if is_v6 {
            0
        } else {
            usize::from(packet.first()? & 15) * 4
        };
        let (head, rest) = packet.get(header..)?.split_first_chunk::<HEADER_LEN>()?;
        let [kind, 0, _, _, a, b, c, d] = *head else {
            return None;
        };
        let expected = if is_v6 { ANSWER_V6 } else { ANSWER_V4 };
        let is_ours =
            kind == expected && [a, b] == self.identifier && rest.starts_with(&self.secret);
        is_ours.then(|| u16::from_be_bytes([c, d]))
    }
}

/// Returns the source address that this host would use for packets to `host`.
///
/// # Errors
/// Fails if there is no route.
pub fn source_to(host: IpAddr) -> io::Result<IpAddr> {
    let any = match host {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    // Connecting sends no packet.
    socket.connect((host, DISCARD_PORT))?;
    Ok(socket.local_addr()?.ip())
}

fn raw(is_v6: bool) -> io::Result<Socket> {
    let (domain, protocol) = if is_v6 {
        (Domain::IPV6, Protocol::ICMPV6)
    } else {
        (Domain::IPV4, Protocol::ICMPV4)
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

const REQUEST_V4: u8 = 8;
const ANSWER_V4: u8 = 0;
const REQUEST_V6: u8 = 128;
const ANSWER_V6: u8 = 129;
const HEADER_LEN: usize = 8;
const SECRET_LEN: usize = 8;
/// Number of bytes of a message that are read: the longest IPv4 header, the ICMP header and the pinger's random
/// bytes. They are sufficient to recognise replies to this pinger's requests.
const LONGEST_ANSWER: usize = 60 + HEADER_LEN + SECRET_LEN;
/// Highest number of senders. If more are needed, all are closed and opened again on demand.
const MAX_SENDERS: usize = 64;
const DISCARD_PORT: u16 = 9;

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;
    use crate::requirement;

    #[test]
    fn this_host_answers_by_number_and_forged_answers_do_not_count() {
        let Ok(mut pinger) = Pinger::open() else {
            requirement::skip("no right to open raw sockets");
            return;
        };
        for (number, host) in [(7, "127.0.0.1"), (9, "::1")] {
            let host: IpAddr = host.parse().expect("literal");
            if let Err(error) = pinger.ask(host, host, "lo", 0, number) {
                requirement::skip(format_args!("{host}: {error}"));
                continue;
            }
            let answer = (0..200).find_map(|_| {
                thread::park_timeout(Duration::from_millis(5));
                pinger.answer()
            });
            assert_eq!(answer, Some((host, number)));
        }
        let mut forged = pinger.message(true, 3, 0);
        forged[0] = ANSWER_V6;
        assert_eq!(pinger.read(true, &forged), Some(3));
        forged[HEADER_LEN] ^= 1;
        assert_eq!(pinger.read(true, &forged), None);
    }

    #[test]
    fn the_source_is_that_of_the_route() {
        let host = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(source_to(host).expect("loopback"), host);
    }
}
