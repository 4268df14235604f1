//! Resolves the gateways' host names over each link.
//!
//! The host's resolver may be reachable over one link only, may answer its own customers only, or may lie behind the
//! tunnel, which does not exist yet. So the resolvers in `/etc/resolv.conf`, and those that systemd-resolved uses, are
//! queried over each link that has a route to them. The answers of all resolvers are combined. Resolvers on the
//! loopback device are queried as well, without binding to a link.
//!
//! The daemon resolves the names at the start, and again while it has no session or while one of several gateways does
//! not answer. Earlier addresses remain in use until
//! there is an answer. Bounds: [`MAX_SERVERS`] resolvers, [`MAX_ADDRESSES`] addresses, about [`PATIENCE`] for a query.
//! Limits: no DNSSEC, which is not needed because a wrong address only delays the connection and the gateway must prove
//! its key. No queries over TCP, because the answers are short.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use pleach_core::time::Instant;
use pleach_linux::{
    clock,
    poll::Waker,
    watch::{LinkSnapshot, Targets, Way},
};
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, TYPE, rdata::RData};
use socket2::{Domain, Protocol, Socket, Type};

use super::dns;
use crate::config::HostName;

/// The data path's handle to name resolution.
#[derive(Debug)]
pub(super) struct Names {
    /// Names of each gateway.
    names: Vec<Vec<HostName>>,
    /// Firewall mark that keeps the queries out of the tunnel, whose device is `tunnel`.
    fwmark: u32,
    tunnel: String,
    sender: Sender<Vec<Vec<SocketAddr>>>,
    found: Receiver<Vec<Vec<SocketAddr>>>,
    waker: Waker,
    is_asking: bool,
    next_at: Instant,
}

impl Names {
    /// Makes a handle for the `names` of each gateway; no query is sent yet.
    ///
    /// # Errors
    /// If no eventfd can be created.
    pub(super) fn new(names: Vec<Vec<HostName>>, fwmark: u32, tunnel: &str) -> io::Result<Self> {
        let (sender, found) = mpsc::channel();
        Ok(Self {
            names,
            fwmark,
            tunnel: tunnel.to_owned(),
            sender,
            found,
            waker: Waker::new()?,
            is_asking: false,
            next_at: Instant::ZERO,
        })
    }

    /// Returns the waker, which is readable when addresses have been found.
    pub(super) const fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns when to query again, if there is no session then.
    pub(super) const fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Returns when to query again, if there is a session, but some gateway does not answer then.
    pub(super) fn next_at_rarely(&self) -> Instant {
        self.next_at + RARELY
    }

    /// Starts a look-up of the names, unless one is running.
    pub(super) fn ask(&mut self, now: Instant) {
        self.next_at = now + AGAIN;
        if self.is_asking {
            return;
        }
        let (names, fwmark, tunnel) = (self.names.clone(), self.fwmark, self.tunnel.clone());
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let looking = move || {
            // The receiver may be gone if the daemon is stopping.
            let _ = sender.send(look_up_each(&names, fwmark, &tunnel));
            waker.wake();
        };
        let started = thread::Builder::new()
            .name("names".to_owned())
            .spawn(looking);
        match started {
            Ok(_) => self.is_asking = true,
            Err(error) => tracing::warn!(%error, "names are not looked up"),
        }
    }

    /// Returns the addresses of each gateway that a look-up has found since the last call; `None` if no look-up has
    /// finished.
    pub(super) fn collect(&mut self) -> Option<Vec<Vec<SocketAddr>>> {
        self.waker.clear();
        let found = self.found.try_recv().ok()?;
        self.is_asking = false;
        Some(found)
    }
}

/// Returns the addresses for each list of names. The look-ups run at the same time.
fn look_up_each(names: &[Vec<HostName>], fwmark: u32, tunnel: &str) -> Vec<Vec<SocketAddr>> {
    thread::scope(|scope| {
        let started: Vec<_> = names
            .iter()
            .map(|names| {
                scope.spawn(move || {
                    if names.is_empty() {
                        return Vec::new();
                    }
                    look_up(names, Some(fwmark), tunnel)
                })
            })
            .collect();
        let found = started.into_iter();
        found
            .map(|found| found.join().unwrap_or_default())
            .collect()
    })
}

/// Returns the addresses of `names`, sorted; empty if no resolver knows any. `tunnel`: this tunnel's device, over which
/// no query is sent.
pub(crate) fn look_up(names: &[HostName], fwmark: Option<u32>, tunnel: &str) -> Vec<SocketAddr> {
    look_up_over(|_| true, names, fwmark, tunnel)
}

/// Returns the addresses of `names` as [`look_up`] does, but sends queries only over devices for which `wanted` returns
/// true, and to resolvers on this host.
pub(crate) fn look_up_over(
    wanted: impl Fn(&str) -> bool,
    names: &[HostName],
    fwmark: Option<u32>,
    tunnel: &str,
) -> Vec<SocketAddr> {
    let servers = servers();
    let targets = Targets {
        addresses: servers.clone(),
        fwmark,
    };
    let links = LinkSnapshot::read_all(&targets).unwrap_or_default();
    let is_usable = |link: &&LinkSnapshot| {
        link.is_up && link.name != tunnel && !link.is_tunnel && wanted(&link.name)
    };
    let mut ways: Vec<(Option<&str>, Way)> = Vec::new();
    for link in links.iter().filter(is_usable) {
        ways.extend(link.ways.iter().map(|way| (Some(link.name.as_str()), *way)));
    }
    let local = servers.iter().filter(|server| server.is_loopback());
    ways.extend(local.map(|server| {
        let way = Way {
            target: *server,
            source: None,
        };
        (None, way)
    }));
    let mut found: Vec<SocketAddr> = thread::scope(|scope| {
        let asked: Vec<_> = ways
            .iter()
            .map(|(device, way)| scope.spawn(move || ask(names, *device, way, fwmark)))
            .collect();
        asked
            .into_iter()
            .flat_map(|asked| asked.join().unwrap_or_default())
            .collect()
    });
    found.sort_unstable();
    found.dedup();
    found.truncate(MAX_ADDRESSES);
    found
}

/// Returns the resolvers of the host, without those of a tunnel.
fn servers() -> Vec<IpAddr> {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let mut servers = nameservers(&dns::former(&read("/etc/resolv.conf")));
    // The resolvers that systemd-resolved uses, without those of single links.
    servers.extend(nameservers(&read("/run/systemd/resolve/resolv.conf")));
    servers.truncate(MAX_SERVERS);
    servers
}

fn nameservers(text: &str) -> Vec<IpAddr> {
    let addresses = text.lines().filter_map(|line| {
        let address = line.trim().strip_prefix("nameserver")?;
        address.trim().parse().ok()
    });
    addresses.collect()
}

/// Queries one resolver over one device for all `names`.
fn ask(
    names: &[HostName],
    device: Option<&str>,
    way: &Way,
    fwmark: Option<u32>,
) -> Vec<SocketAddr> {
    let asked = || -> io::Result<Vec<SocketAddr>> {
        let server = SocketAddr::new(way.target, DNS_PORT);
        let socket = Socket::new(
            Domain::for_address(server),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        if let Some(device) = device {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        if let Some(mark) = fwmark {
            socket.set_mark(mark)?;
        }
        if let Some(source) = way.source {
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        // On a connected socket, the kernel accepts datagrams from the resolver only.
        socket.connect(&server.into())?;
        let socket = std::net::UdpSocket::from(socket);
        let entropy = clock::entropy()?;
        let mut found = Vec::new();
        let kinds = [TYPE::A, TYPE::AAAA];
        let questions = names.iter().flat_map(|name| kinds.map(|kind| (name, kind)));
        for ((name, kind), id) in questions.zip(entropy.chunks_exact(2).cycle()) {
            let id = u16::from_be_bytes([id[0], id[1]]);
            let Some(question) = question(&name.name, kind, id) else {
                continue;
            };
            // A resolver that does not answer for one address family may answer for the other.
            match exchange(&socket, &question, id) {
                Ok(addresses) => {
                    let addresses = addresses.into_iter();
                    found.extend(addresses.map(|ip| SocketAddr::new(ip, name.port)));
                }
                Err(error) => {
                    tracing::debug!(device, server = %way.target, name = name.name, %error, "no answer");
                }
            }
        }
        Ok(found)
    };
    asked().unwrap_or_else(|error| {
        tracing::debug!(device, server = %way.target, %error, "no answer to names");
        Vec::new()
    })
}

/// Sends a query up to [`TRIES`] times. Returns the addresses in the answer.
fn exchange(socket: &std::net::UdpSocket, question: &[u8], id: u16) -> io::Result<Vec<IpAddr>> {
    let mut buffer = [0; 1232];
    for _ in 0..TRIES {
        socket.send(question)?;
        let end = clock::now() + PATIENCE / TRIES;
        while clock::now() < end {
            let left = end.since(clock::now()).max(Duration::from_millis(1));
            socket.set_read_timeout(Some(left))?;
            match socket.recv(&mut buffer) {
                Ok(len) => {
                    if let Some(addresses) = answer(&buffer[..len], id) {
                        return Ok(addresses);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Makes a query; `None` if `name` is not a valid name.
fn question(name: &str, kind: TYPE, id: u16) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).ok()?;
    let question = Question::new(name, kind.into(), CLASS::IN.into(), false);
    packet.questions.push(question);
    packet.build_bytes_vec().ok()
}

/// Returns the addresses in an answer to query `id`, which may be none; `None` if the datagram is not such an answer.
/// Names in the answer are ignored: the query had only one name, and aliases lead to its addresses.
fn answer(datagram: &[u8], id: u16) -> Option<Vec<IpAddr>> {
    let packet = Packet::parse(datagram).ok()?;
    if packet.id() != id || !packet.has_flags(PacketFlag::RESPONSE) {
        return None;
    }
    let addresses = packet.answers.iter().filter_map(|record| {
        if let RData::A(a) = &record.rdata {
            Some(IpAddr::from(a.address.to_be_bytes()))
        } else if let RData::AAAA(aaaa) = &record.rdata {
            Some(IpAddr::from(aaaa.address.to_be_bytes()))
        } else {
            None
        }
    });
    let is_usable = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast();
    Some(addresses.filter(is_usable).take(MAX_ADDRESSES).collect())
}

const DNS_PORT: u16 = 53;
/// Maximum number of resolvers: `MAXNS` of resolv.conf(5), from two files.
const MAX_SERVERS: usize = 6;
/// Maximum number of addresses: as many as the configuration may contain.
const MAX_ADDRESSES: usize = 16;
const TRIES: u32 = 3;
/// Time limit for one query to one resolver.
const PATIENCE: Duration = Duration::from_secs(3);
/// Interval between look-ups while there is no session: addresses change, and links appear.
const AGAIN: Duration = Duration::from_secs(5);
/// Further time until the next look-up while there is a session.
const RARELY: Duration = Duration::from_secs(55);

#[cfg(test)]
mod tests {
    use simple_dns::{
        ResourceRecord,
        rdata::{A, AAAA},
    };

    use super::*;

    #[test]
    fn only_an_answer_to_the_question_counts() {
        let asked = question("gw.example.net", TYPE::A, 7).expect("a name");
        assert_eq!(answer(&asked, 7), None, "the question itself");
        let mut reply = Packet::new_reply(7);
        let name = Name::new_unchecked("alias.example.net");
        for data in [
            RData::A(A {
                address: 0xcb00_7105,
            }),
            RData::AAAA(AAAA {
                address: 1 << 125 | 5,
            }),
            RData::A(A { address: 0 }),
        ] {
            reply
                .answers
                .push(ResourceRecord::new(name.clone(), CLASS::IN, 10, data));
        }
        let reply = reply.build_bytes_vec().expect("bytes");
        let expected = ["203.0.113.5", "2000::5"].map(|text| text.parse().expect("literal"));
        assert_eq!(answer(&reply, 7), Some(expected.to_vec()));
        assert_eq!(answer(&reply, 8), None);
        for len in 0..reply.len() {
            let _ = answer(&reply[..len], 7);
        }
        assert_eq!(question(&"x".repeat(300), TYPE::A, 1), None);
    }

    #[test]
    fn resolvers_are_those_of_the_file() {
        let text = "# nameserver 192.0.2.9\nnameserver 192.0.2.1\n nameserver  fd00::1 \noptions edns0\nnameserver x\n";
        let found: Vec<String> = nameservers(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1", "fd00::1"]);
    }
}
