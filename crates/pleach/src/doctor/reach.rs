//! What comes back over one link: echo requests, short and long, and datagrams to ports of the gateway's host.
//!
//! Bounds: at most [`TRIES`] datagrams a port, and some ten echo requests; about three seconds if nothing is answered.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    thread,
    time::Duration,
};

use pleach_linux::{
    clock,
    ping::Pinger,
    watch::{LinkSnapshot, Way},
};
use socket2::{Domain, Protocol, Socket, Type};

use super::checks::{
    mtu,
    silence::{Answer, Facts, Handshake},
};

/// What was found of a link.
#[derive(Debug)]
pub(crate) struct Found {
    /// Its device.
    pub(crate) device: String,
    /// Answers and silence.
    pub(crate) answers: Facts,
    /// Short and long packets.
    pub(crate) lengths: mtu::Facts,
}

/// Asks over the device of `link`, called `name`, for the gateway at `endpoint`, to which `way` leads. `mark`: of the packets; 0 for none.
pub(crate) fn ask(
    name: &str,
    link: &LinkSnapshot,
    endpoint: SocketAddr,
    way: &Way,
    handshake: Handshake,
    mark: u32,
) -> Found {
    let host = endpoint.ip();
    let mut found = Found {
        device: link.name.clone(),
        answers: Facts {
            link: name.to_owned(),
            endpoint,
            handshake,
            echo: false,
            own_port: Answer::Silence,
            other_port: Answer::Silence,
        },
        lengths: mtu::Facts {
            device: link.mtu,
            ..mtu::Facts::default()
        },
    };
    let addresses = link.addresses.iter().map(ipnet::IpNet::addr);
    let mut same_family = addresses.filter(|address| address.is_ipv4() == host.is_ipv4());
    let source = way.source.or_else(|| same_family.next());
    if let (Some(source), Ok(pinger)) = (source, Pinger::open()) {
        let mut echo = Echo {
            pinger,
            host,
            source,
            device: &link.name,
            mark,
            number: 0,
        };
        found.lengths.short = echo.is_answered(0, TRIES);
        if found.lengths.short {
            found.lengths.full = echo.is_answered(link.mtu, TRIES);
            if !found.lengths.full && echo.is_answered(LEAST, TRIES) {
                let longest = mtu::longest(LEAST, link.mtu, |len| echo.is_answered(len, 1));
                found.lengths.longest = Some(longest);
            }
        }
        found.answers.echo = found.lengths.short;
    }
    if handshake == Handshake::Silent {
        let local = way.source.unwrap_or(any(host));
        let at = |port| datagram(&link.name, local, SocketAddr::new(host, port), mark);
        found.answers.own_port = at(endpoint.port());
        found.answers.other_port = at(unused_port(endpoint.port()));
    }
    found
}

/// Echo requests over a device.
struct Echo<'a> {
    pinger: Pinger,
    host: IpAddr,
    source: IpAddr,
    device: &'a str,
    mark: u32,
    number: u16,
}

impl Echo<'_> {
    /// Whether one of `tries` requests of `len` bytes is answered.
    fn is_answered(&mut self, len: u32, tries: usize) -> bool {
        let len = usize::try_from(len).unwrap_or(0);
        (0..tries).any(|_| {
            self.number += 1;
            let sent = self.pinger.ask_with_padding(
                self.host,
                self.source,
                self.device,
                self.mark,
                self.number,
                len,
            );
            // A device that refuses the length says so; the next try is cut up.
            sent.is_ok() && self.waits()
        })
    }

    fn waits(&self) -> bool {
        let deadline = clock::now() + PATIENCE;
        loop {
            while let Some((_, number)) = self.pinger.answer() {
                if number == self.number {
                    return true;
                }
            }
            if clock::now() >= deadline {
                return false;
            }
            thread::park_timeout(Duration::from_millis(5));
        }
    }
}

/// What becomes of a few datagrams to `to`.
fn datagram(device: &str, local: IpAddr, to: SocketAddr, mark: u32) -> Answer {
    let refused = || -> io::Result<bool> {
        let domain = Domain::for_address(to);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(device.as_bytes()))?;
        if mark != 0 {
            socket.set_mark(mark)?;
        }
        socket.bind(&SocketAddr::new(local, 0).into())?;
        socket.connect(&to.into())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let socket = std::net::UdpSocket::from(socket);
        let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        Ok((0..TRIES).any(|_| {
            let mut buffer = [0; 1];
            // The kernel tells of an answer to an earlier one with the next call.
            socket.send(&[0]).is_err_and(is_refused)
                || socket.recv(&mut buffer).is_err_and(is_refused)
        }))
    };
    match refused() {
        Ok(true) => Answer::Refused,
        Ok(false) | Err(_) => Answer::Silence,
    }
}

fn any(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The first port of traceroute, or the next.
fn unused_port(own: u16) -> u16 {
    if own == TRACEROUTE {
        TRACEROUTE + 1
    } else {
        TRACEROUTE
    }
}

const TRACEROUTE: u16 = 33_434;
/// Of RFC 791: every host takes packets so long.
const LEAST: u32 = 576;
/// One may be lost.
const TRIES: usize = 3;
/// Longer than a round trip by geostationary satellite takes would be better for these; the tries make up for it.
const PATIENCE: Duration = Duration::from_millis(400);
