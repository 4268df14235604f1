//! Traffic between clients and the server whose losses and gaps are counted: TCP connections with checked contents, and
//! datagrams with numbers.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_core::time::Instant;
use pleach_lab::netns::Netns;
use pleach_linux::clock;

use crate::{
    traffic::connect,
    world::{INTERRUPTION, PATIENCE, World, run, within},
};

/// A TCP connection between a client and the server in which each end sends at a steady rate and checks what it receives.
pub(crate) struct Transfer {
    is_over: Arc<AtomicBool>,
    /// Bytes that the client has received, and the longest time between two arrivals.
    received: Arc<AtomicU64>,
    gap: Arc<Mutex<(Duration, Instant)>>,
    threads: Vec<JoinHandle<u64>>,
}

impl Transfer {
    /// Connects a client to the server's address `address`. Each end sends 4 kB every `interval`.
    pub(crate) fn start(world: &World, client: &Netns, address: &str, interval: Duration) -> Self {
        let address = SocketAddr::new(address.parse().expect("literal"), 0);
        let listener = world.server.run(|| Ok(TcpListener::bind(address)?));
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let near = within(INTERRUPTION, || {
            connect(client, address, Duration::from_secs(2)).ok()
        })
        .expect("a connection");
        let (far, _) = listener.accept().expect("connected");
        let mut transfer = Self {
            is_over: Arc::default(),
            received: Arc::default(),
            gap: Arc::new(Mutex::new((Duration::ZERO, clock::now()))),
            threads: Vec::new(),
        };
        for (end, counts) in [(&near, true), (&far, false)] {
            end.set_read_timeout(Some(PATIENCE)).expect("set");
            end.set_write_timeout(Some(PATIENCE)).expect("set");
            let sending = end.try_clone().expect("a descriptor");
            let over = Arc::clone(&transfer.is_over);
            transfer
                .threads
                .push(thread::spawn(move || send(sending, &over, interval)));
            let receiving = end.try_clone().expect("a descriptor");
            let received = if counts {
                Arc::clone(&transfer.received)
            } else {
                Arc::default()
            };
            let gap = if counts {
                Arc::clone(&transfer.gap)
            } else {
                Arc::new(Mutex::new((Duration::ZERO, clock::now())))
            };
            transfer
                .threads
                .push(thread::spawn(move || receive(receiving, &received, &gap)));
        }
        transfer
    }

    /// Waits for the arrival of further data, then returns the longest gap since the last call. `None` if none arrive.
    pub(crate) fn gap(&self) -> Option<Duration> {
        let before = self.received.load(Ordering::Relaxed);
        within(PATIENCE, || {
            let arrived = self.received.load(Ordering::Relaxed) - before;
            (arrived > 4_000).then_some(())
        })?;
        let mut gap = self.gap.lock().ok()?;
        Some(core::mem::take(&mut gap.0))
    }

    /// As [`Self::gap`], where data must arrive.
    #[track_caller]
    pub(crate) fn longest_gap(&self) -> Duration {
        self.gap().expect("data arrive")
    }

    /// Ends the connection. Returns whether both ends have received exactly what the other one has sent.
    pub(crate) fn end(self) -> bool {
        self.is_over.store(true, Ordering::Relaxed);
        let counts = self.threads.into_iter().map(|thread| thread.join().ok());
        let counts: Option<Vec<u64>> = counts.collect();
        counts.is_some_and(|counts| {
            let [near_sent, near_received, far_sent, far_received] = counts[..] else {
                return false;
            };
            near_sent > 0 && near_sent == far_received && far_sent > 0 && far_sent == near_received
        })
    }
}

/// The byte at a position of the data.
const fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn send(mut stream: TcpStream, over: &AtomicBool, interval: Duration) -> u64 {
    let mut sent = 0_u64;
    while !over.load(Ordering::Relaxed) {
        let chunk: Vec<u8> = (sent..sent + 4_000).map(byte_at).collect();
        stream.write_all(&chunk).expect("the connection lasts");
        sent += 4_000;
        thread::park_timeout(interval);
    }
    stream
        .shutdown(Shutdown::Write)
        .expect("the connection lasts");
    sent
}

fn receive(mut stream: TcpStream, received: &AtomicU64, gap: &Mutex<(Duration, Instant)>) -> u64 {
    let mut buffer = [0; 65_536];
    loop {
        let len = stream.read(&mut buffer).expect("the connection lasts");
        let before = received.load(Ordering::Relaxed);
        if len == 0 {
            return before;
        }
        let is_same = (before..)
            .zip(&buffer[..len])
            .all(|(at, byte)| byte_at(at) == *byte);
        assert!(is_same, "other bytes arrive");
        received.fetch_add(len as u64, Ordering::Relaxed);
        let mut gap = gap.lock().expect("one thread");
        let now = clock::now();
        *gap = (gap.0.max(now.since(gap.1)), now);
    }
}

/// Datagrams with numbers from a client to the server and back, some hundred a second.
pub(crate) struct Stream {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<BTreeSet<u64>>>,
}

impl Stream {
    /// Sends from a client to the server's address `address`, of IPv4.
    pub(crate) fn start(world: &World, client: &Netns, address: &str) -> Self {
        let address: IpAddr = address.parse().expect("literal");
        let far = world.server.run(|| Ok(UdpSocket::bind((address, 0))?));
        let far = far.expect("a free port");
        let near = client.run(|| Ok(UdpSocket::bind("0.0.0.0:0")?));
        let near = near.expect("a free port");
        near.connect(far.local_addr().expect("bound"))
            .expect("a route");
        let patience = Some(Duration::from_millis(200));
        for socket in [&far, &near] {
            socket.set_read_timeout(patience).expect("set");
        }
        let is_over = Arc::<AtomicBool>::default();
        let over = [(); 3].map(|()| Arc::clone(&is_over));
        let [over_send, over_echo, over_receive] = over;
        let sender = near.try_clone().expect("a descriptor");
        let sending = thread::spawn(move || {
            let mut sent = BTreeSet::new();
            while !over_send.load(Ordering::Relaxed) {
                let number = sent.len() as u64;
                if sender.send(&number.to_be_bytes()).is_ok() {
                    sent.insert(number);
                }
                thread::park_timeout(Duration::from_millis(3));
            }
            sent
        });
        let echoing = thread::spawn(move || {
            let mut seen = BTreeSet::new();
            let mut buffer = [0; 8];
            loop {
                match far.recv_from(&mut buffer) {
                    Ok((_, from)) => {
                        seen.insert(u64::from_be_bytes(buffer));
                        let _ = far.send_to(&buffer, from);
                    }
                    Err(_) if over_echo.load(Ordering::Relaxed) => return seen,
                    Err(_) => {}
                }
            }
        });
        let receiving = thread::spawn(move || {
            let mut seen = BTreeSet::new();
            let mut buffer = [0; 8];
            loop {
                match near.recv(&mut buffer) {
                    Ok(_) => {
                        seen.insert(u64::from_be_bytes(buffer));
                    }
                    Err(_) if over_receive.load(Ordering::Relaxed) => return seen,
                    Err(_) => {}
                }
            }
        });
        Self {
            is_over,
            threads: vec![sending, echoing, receiving],
        }
    }

    /// Returns the number of datagrams that were sent, and how many of them were lost on the way there and back.
    pub(crate) fn end(self) -> (usize, usize, usize) {
        self.is_over.store(true, Ordering::Relaxed);
        let numbers = self.threads.into_iter().map(|thread| thread.join());
        let numbers: Vec<BTreeSet<u64>> = numbers.map(|all| all.expect("no panic")).collect();
        let lost_up = numbers[0].difference(&numbers[1]).count();
        let lost_down = numbers[1].difference(&numbers[2]).count();
        (numbers[0].len(), lost_up, lost_down)
    }
}

/// Returns the segments that all TCP connections of a host have sent again.
pub(crate) fn retransmitted(host: &Netns) -> u64 {
    let text = run(host, "ss", &["-tinH"]);
    let numbers = text.split_whitespace().filter_map(|word| {
        let counts = word.strip_prefix("retrans:")?;
        counts.split('/').nth(1)?.parse::<u64>().ok()
    });
    numbers.sum()
}
