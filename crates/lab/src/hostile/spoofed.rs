//! A client with a valid key that forges its source address: what the gateway sends to the owner of that address.
//!
//! The victims' addresses belong to sockets of this program. So the attacker can send from them, and each byte that the
//! gateway sends to a victim is counted. The client never answers what a victim receives.

use core::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use std::io;

use anyhow::{Context as _, ensure};
use arbitrary::Unstructured;
use pleach_core::{
    endpoint::reaching,
    rng::Rng,
    time::Instant,
    wire::control::{Frame, Frames},
};
use pleach_linux::{
    clock,
    udp::{RecvBatch, UdpOptions, UdpSocket},
};

use super::{
    Options, Scene,
    attack::{Attack, Pace, Sent, send},
    frames::{self, packet},
    mixes::{Hostile, Mix},
    peer::{Data, Lane, Peer},
    report::Scenario,
    stage::{Cast, Stage},
};
use crate::{
    crowd::{
        gateway::{Keys, Manner},
        numbering::{INNER_GATEWAY, Outer, inner},
        packets::PORT,
    },
    wait,
};

/// Number of the hostile client; the honest one is 0.
const HOSTILE: u32 = 1;

/// Runs the scenario.
pub(super) fn run(scene: &Scene<'_>, options: &Options) -> anyhow::Result<Scenario> {
    let (keys, other) = (Keys::draw()?, Keys::draw()?);
    let cast = Cast {
        clients: 1,
        links: 1,
        others: &[keys.public, other.public],
        rekey_after: None,
        manner: Manner::Plain,
        binary: scene.binary,
        progress: scene.progress,
    };
    let mut stage = Stage::build(scene.world, &cast)?;
    let mut scenario = Scenario::new("a client that forges its source address");
    // Another client of the attacker keeps the gateway from being idle.
    let mut peer = Peer::new(
        other.pair(),
        stage.gateway_key,
        inner(HOSTILE + 1).octets(),
        INNER_GATEWAY.octets(),
    );
    peer.association = 1;
    let busy = Attack::start(
        &scene.world.crowd,
        address(HOSTILE + 1),
        Pace::Bits(1_000_000),
        Hostile::new(peer, Mix::Missing, 1),
    )?;
    let gateway = stage.gateway_key;
    let [spoofer, again] = [keys.pair(), keys.pair()].map(|pair| {
        let inner = inner(HOSTILE).octets();
        Peer::new(pair, gateway, inner, INNER_GATEWAY.octets())
    });
    let time = options.spoof;
    let work = move || Spoofer::new(gateway, spoofer, again)?.run(time);
    let thread = scene.world.crowd.spawn("spoofer", work)?;
    stage.run("forged sources", time + SLACK)?;
    let Ok(victims) = thread.join() else {
        anyhow::bail!("the thread of the spoofer panicked");
    };
    let (own, victims) = victims?;
    busy.finish()?;
    stage.finish()?;
    scenario.fact("duration", time.as_secs_f64(), "s");
    scenario.fact("victims", victims.len() as f64, "");
    // Without traffic to the client there is none that a victim could get.
    ensure!(
        own.to > OWN_BYTES,
        "the gateway sent only {} bytes to the client's own address",
        own.to
    );
    scenario.fact(
        "bytes to the client's own address",
        own.to as f64 / 1e3,
        "kB",
    );
    let silent = own.silent.as_secs_f64();
    scenario.fact("longest silence at the client's own address", silent, "s");
    let from: u64 = victims.iter().map(|victim| victim.from).sum();
    let to: u64 = victims.iter().map(|victim| victim.to).sum();
    scenario.fact("bytes in the name of victims", from as f64 / 1e3, "kB");
    scenario.fact("bytes to victims", to as f64 / 1e3, "kB");
    let ratios = victims
        .iter()
        .map(|victim| victim.to as f64 / victim.from.max(1) as f64);
    let highest = ratios.fold(0.0, f64::max);
    scenario.limit(
        "most bytes to a victim for each byte in its name",
        highest,
        3.0,
        "",
    );
    Ok(scenario)
}

/// Bytes of an address, with headers of UDP and IPv4.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    from: u64,
    to: u64,
    /// Longest time without a datagram.
    silent: Duration,
}

struct Place {
    socket: UdpSocket,
    books: Books,
    heard_at: Instant,
}

impl Place {
    fn new(address: Ipv4Addr, now: Instant) -> anyhow::Result<Self> {
        let options = UdpOptions::new(SocketAddr::from((address, 0)));
        Ok(Self {
            socket: UdpSocket::bind(&options).context("socket of a victim")?,
            books: Books::default(),
            heard_at: now,
        })
    }

    fn send(&mut self, datagram: &[u8]) {
        let mut sent = Sent::default();
        send(&self.socket, datagram, datagram.len(), &mut sent);
        self.books.from += sent.bytes + HEADERS * sent.datagrams;
    }

    fn receive(
        &mut self,
        now: Instant,
        rx: &mut RecvBatch,
        mut read: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let (books, heard_at) = (&mut self.books, &mut self.heard_at);
        loop {
            let received = self.socket.recv(rx, |message| {
                for datagram in message.contents.chunks(message.stride) {
                    books.to += datagram.len() as u64 + HEADERS;
                    read(datagram);
                }
                *heard_at = now;
            });
            match received {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        books.silent = books.silent.max(now.since(self.heard_at));
        Ok(())
    }
}

/// The client and its victims.
struct Spoofer {
    peer: Peer,
    /// The same client, for handshakes in the name of victims.
    again: Peer,
    gateway: [u8; 32],
    own: Place,
    victims: Vec<Place>,
    rng: Rng,
    rx: RecvBatch,
    turn: u32,
}

impl Spoofer {
    fn new(gateway: [u8; 32], peer: Peer, again: Peer) -> anyhow::Result<Self> {
        let now = clock::now();
        Ok(Self {
            peer,
            again,
            gateway,
            own: Place::new(address(HOSTILE), now)?,
            victims: (0..VICTIMS)
                .map(|number| Place::new(address(FIRST_VICTIM + number), now))
                .collect::<Result<_, _>>()?,
            rng: Rng::new(3),
            rx: RecvBatch::default(),
            turn: 0,
        })
    }

    /// Sends from all addresses for `time`. Returns the books of its own address and of the victims.
    fn run(mut self, time: Duration) -> anyhow::Result<(Books, Vec<Books>)> {
        let end = clock::now() + time;
        let mut next_attempt = clock::now();
        let mut is_up = false;
        loop {
            let now = clock::now();
            if now >= end {
                break;
            }
            let mut answers = Vec::new();
            let peer = &mut self.peer;
            self.own.receive(now, &mut self.rx, |datagram| {
                peer.read(now, datagram, &mut answers);
            })?;
            if self.peer.is_connected() && !is_up {
                is_up = true;
                self.own.heard_at = now;
                answers.extend(self.peer.bring_up(now, PATHS));
            }
            for answer in answers {
                self.own.send(&answer);
            }
            for victim in &mut self.victims {
                victim.receive(now, &mut self.rx, |_| {})?;
            }
            if is_up {
                self.send_own(now);
                self.send_forged(now);
            } else {
                // Before the handshake is complete, silence does not count.
                self.own.books.silent = Duration::ZERO;
                self.own.heard_at = now;
                if now >= next_attempt {
                    next_attempt = now + ATTEMPTS;
                    let seed = clock::entropy()?;
                    let started = self.peer.initiation(now, clock::unix_nanos(), 0, seed);
                    if let Some(datagram) = started {
                        self.own.send(&datagram);
                    }
                }
            }
            wait::until(now + ROUND);
        }
        // Late datagrams count as well.
        wait::until(clock::now() + LATE);
        let now = clock::now();
        for victim in &mut self.victims {
            victim.receive(now, &mut self.rx, |_| {})?;
        }
        let books = self.victims.iter().map(|victim| victim.books).collect();
        Ok((self.own.books, books))
    }

    /// Keeps traffic flowing to the client, which the gateway could send to a victim.
    fn send_own(&mut self, now: Instant) {
        for path in 0..PATHS {
            if let Some(datagram) = self.returning(now, path) {
                self.own.send(&datagram);
            }
        }
        if self.turn.is_multiple_of(10)
            && let Some(report) = self.peer.report(now)
        {
            self.own.send(&report);
        }
    }

    /// Sends a few datagrams in the name of a victim.
    fn send_forged(&mut self, now: Instant) {
        for _ in 0..FORGED {
            self.turn = self.turn.wrapping_add(1);
            let victim = usize::try_from(self.rng.below(VICTIMS.into())).unwrap_or(0);
            let path = u8::try_from(self.rng.below(PATHS.into())).unwrap_or(0);
            let lane = Lane::of(path);
            let datagram = match self.rng.below(6) {
                0 => self
                    .peer
                    .frame(now, lane, &Frame::Ping { token: 9, size: 0 }),
                1 => self.returning(now, path),
                2 => self.peer.report(now),
                3 => self.random(now, lane),
                4 => {
                    let mut nonce = [0; 16];
                    nonce[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
                    Some(reaching::question(&self.gateway, &nonce).to_vec())
                }
                _ => {
                    // The response goes to the victim, so the session in use stays.
                    let seed = clock::entropy().unwrap_or_default();
                    self.again.initiation(now, clock::unix_nanos(), 1, seed)
                }
            };
            if let Some(datagram) = datagram {
                self.victims[victim].send(&datagram);
            }
        }
    }

    fn returning(&mut self, now: Instant, path: u8) -> Option<Vec<u8>> {
        self.peer.global_seq = self.peer.global_seq.wrapping_add(1);
        let data = Data {
            global_seq: self.peer.global_seq,
            flow_step: 1,
            path_step: 0,
            flags: 0,
            is_symbol: false,
            body: packet(1_000, self.peer.inner, self.peer.beyond, PORT),
        };
        self.peer.data(now, Lane::of(path), &data)
    }

    fn random(&mut self, now: Instant, lane: Lane) -> Option<Vec<u8>> {
        let mut bytes = [0; 256];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.rng.next_u64().to_le_bytes());
        }
        let body = frames::body(&mut Unstructured::new(&bytes), &self.peer).ok()?;
        if Frames::new(&body).any(|frame| matches!(frame, Frame::Close)) {
            return None;
        }
        self.peer.control(now, lane, &body)
    }
}

fn address(client: u32) -> Ipv4Addr {
    let outer = Outer {
        client,
        link: 0,
        place: 0,
    };
    outer.address()
}

/// Number of victims. The gateway challenges each address once.
const VICTIMS: u32 = 16;
/// Fewest bytes to the client's own address, without which nothing was measured.
const OWN_BYTES: u64 = 20_000;
/// Number of the first victim's address.
const FIRST_VICTIM: u32 = 50_000;
/// Number of paths of the client.
const PATHS: u8 = 4;
/// Number of datagrams in the name of victims each round.
const FORGED: u32 = 4;
/// Bytes of the headers of IPv4 and UDP.
const HEADERS: u64 = 28;
/// Interval of rounds.
const ROUND: Duration = Duration::from_millis(5);
/// Interval of initiations until the client is connected.
const ATTEMPTS: Duration = Duration::from_millis(500);
/// Duration after the last forged datagram for which the gateway's datagrams count.
const LATE: Duration = Duration::from_secs(2);
/// Duration of the scenario beyond that of the attack.
const SLACK: Duration = Duration::from_secs(3);
