//! Small datagrams from many clients to the server and back, at a low rate, of which every single one is followed.

use std::{
    net::{IpAddr, UdpSocket},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_core::time::Instant;
use pleach_lab::netns::Netns;
use pleach_linux::{
    clock,
    poll::{Poller, Token},
};

use super::stage::SERVER;

/// A datagram of a client.
#[derive(Clone, Copy, Debug)]
struct Echo {
    sent_at: Instant,
    has_arrived: bool,
    returned_at: Option<Instant>,
}

/// The datagrams of each client, by number.
#[derive(Debug, Default)]
struct Journal(Mutex<Vec<Vec<Echo>>>);

impl Journal {
    fn open(&self) -> MutexGuard<'_, Vec<Vec<Echo>>> {
        self.0.lock().expect("no panic")
    }

    /// Changes the record of the datagram with the content `content`.
    fn note(&self, content: &[u8], change: impl FnOnce(&mut Echo)) {
        let number = |at: usize| {
            let bytes = content.get(at..at + 4)?.try_into().ok()?;
            usize::try_from(u32::from_be_bytes(bytes)).ok()
        };
        let (Some(client), Some(number)) = (number(0), number(4)) else {
            return;
        };
        let mut all = self.open();
        let echoes = all.get_mut(client);
        if let Some(echo) = echoes.and_then(|echoes| echoes.get_mut(number)) {
            change(echo);
        }
    }
}

/// What became of the datagrams of some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) sent: usize,
    /// Datagrams that did not arrive at the server.
    pub(super) lost_up: usize,
    /// Datagrams that arrived at the server, but did not return.
    pub(super) lost_down: usize,
}

impl Tally {
    /// Datagrams that did not return.
    pub(super) const fn lost(&self) -> usize {
        self.lost_up + self.lost_down
    }
}

/// The running traffic.
pub(super) struct Echoes {
    journal: Arc<Journal>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Echoes {
    /// Starts the traffic. Each client sends a datagram every `interval`, by IPv4 or IPv6 in turn of three clients.
    pub(super) fn start(server: &Netns, clients: &[&Netns], interval: Duration) -> Self {
        let mut this = Self {
            journal: Arc::default(),
            is_over: Arc::default(),
            threads: Vec::new(),
        };
        *this.journal.open() = vec![Vec::new(); clients.len()];
        let ports: Vec<u16> = SERVER.iter().map(|to| this.answer(server, to)).collect();
        let sockets = clients.iter().enumerate().map(|(number, host)| {
            let family = family(number);
            let to: IpAddr = SERVER[family].parse().expect("literal");
            let any = ["0.0.0.0:0", "[::]:0"][family];
            let socket = host.run(|| Ok(UdpSocket::bind(any)?));
            let socket = socket.expect("a free port");
            socket.connect((to, ports[family])).expect("a route");
            socket.set_nonblocking(true).expect("set");
            socket
        });
        let sockets: Arc<Vec<UdpSocket>> = Arc::new(sockets.collect());
        this.receive(Arc::clone(&sockets));
        this.send(sockets, interval);
        this
    }

    /// Starts a thread that sends datagrams back from an address of the server. Returns its port.
    fn answer(&mut self, server: &Netns, address: &str) -> u16 {
        let address: IpAddr = address.parse().expect("literal");
        let socket = server.run(|| Ok(UdpSocket::bind((address, 0))?));
        let socket = socket.expect("a free port");
        socket.set_read_timeout(Some(PAUSE)).expect("set");
        let port = socket.local_addr().expect("bound").port();
        let (journal, over) = (Arc::clone(&self.journal), Arc::clone(&self.is_over));
        self.threads.push(thread::spawn(move || {
            let mut buffer = [0; LEN];
            while !over.load(Ordering::Relaxed) {
                if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                    journal.note(&buffer[..len], |echo| echo.has_arrived = true);
                    let _ = socket.send_to(&buffer[..len], from);
                }
            }
        }));
        port
    }

    fn receive(&mut self, sockets: Arc<Vec<UdpSocket>>) {
        let (journal, over) = (Arc::clone(&self.journal), Arc::clone(&self.is_over));
        self.threads.push(thread::spawn(move || {
            let poller = Poller::new().expect("a descriptor");
            for (number, socket) in sockets.iter().enumerate() {
                poller
                    .add(socket, Token(number as u64))
                    .expect("a descriptor");
            }
            let (mut events, mut buffer) = (Vec::new(), [0; LEN]);
            while !over.load(Ordering::Relaxed) {
                poller
                    .wait(Some(clock::now() + PAUSE), &mut events)
                    .expect("waits");
                let now = clock::now();
                let ready = events.iter().filter_map(|event| {
                    let number = usize::try_from(event.token.0).ok()?;
                    sockets.get(number)
                });
                for socket in ready {
                    // After an error of the network, such as "no route", the poller reports the socket again.
                    while let Ok(len) = socket.recv(&mut buffer) {
                        journal.note(&buffer[..len], |echo| echo.returned_at = Some(now));
                    }
                }
            }
        }));
    }

    /// Starts the thread that sends: a client after the other, in equal intervals.
    fn send(&mut self, sockets: Arc<Vec<UdpSocket>>, interval: Duration) {
        let (journal, over) = (Arc::clone(&self.journal), Arc::clone(&self.is_over));
        self.threads.push(thread::spawn(move || {
            let count = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
            let step = interval / count.max(1);
            let mut next = clock::now();
            for (client, socket) in sockets.iter().enumerate().cycle() {
                loop {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let left = next.since(clock::now());
                    if left == Duration::ZERO {
                        break;
                    }
                    thread::park_timeout(left);
                }
                let now = clock::now();
                let mut all = journal.open();
                let number = all[client].len();
                all[client].push(Echo {
                    sent_at: now,
                    has_arrived: false,
                    returned_at: None,
                });
                drop(all);
                let mut content = [0; LEN];
                content[..4].copy_from_slice(&u32::try_from(client).unwrap_or(0).to_be_bytes());
                content[4..8].copy_from_slice(&u32::try_from(number).unwrap_or(0).to_be_bytes());
                // The first call may only return the error of an earlier datagram.
                if socket.send(&content).is_err() {
                    let _ = socket.send(&content);
                }
                next = (next + step).max(now);
            }
        }));
    }

    /// Returns how long after `from` each of `clients` has got the first answer to a datagram that it sent after `from`;
    /// `None` for one that has got none.
    pub(super) fn back(&self, clients: &[usize], from: Instant) -> Vec<Option<Duration>> {
        let all = self.journal.open();
        let first = |client: &usize| {
            let echoes = all[*client].iter().rev();
            let later = echoes.take_while(|echo| echo.sent_at > from);
            later
                .filter_map(|echo| echo.returned_at)
                .min()
                .map(|at| at.since(from))
        };
        clients.iter().map(first).collect()
    }

    /// Returns how long after `from` each client sent the datagrams that it lost until `until`.
    pub(super) fn lost(&self, client: usize, from: Instant, until: Instant) -> Vec<Duration> {
        let all = self.journal.open();
        let sent = all[client].iter();
        let sent = sent.filter(|echo| (from..until).contains(&echo.sent_at));
        let lost = sent.filter(|echo| echo.returned_at.is_none());
        lost.map(|echo| echo.sent_at.since(from)).collect()
    }

    /// Returns what became of the datagrams that `clients` sent from `from` to `until`, two seconds of which must be over.
    pub(super) fn tally(&self, clients: &[usize], from: Instant, until: Instant) -> Tally {
        let all = self.journal.open();
        let mut tally = Tally::default();
        for client in clients {
            let echoes = all[*client].iter();
            for echo in echoes.filter(|echo| (from..until).contains(&echo.sent_at)) {
                tally.sent += 1;
                tally.lost_up += usize::from(!echo.has_arrived && echo.returned_at.is_none());
                tally.lost_down += usize::from(echo.has_arrived && echo.returned_at.is_none());
            }
        }
        tally
    }
}

impl Drop for Echoes {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Position in [`SERVER`] of the address that a client uses.
pub(super) const fn family(client: usize) -> usize {
    client / 3 % 2
}

/// Length of a datagram in bytes.
const LEN: usize = 64;
/// Interval at which a thread looks whether it is to end.
const PAUSE: Duration = Duration::from_millis(200);
