//! Handshakes over each link without a daemon: they enrol the client, and show over which links the gateway is
//! reachable.
//!
//! Over every link, an initiation is sent to each gateway address to which the link has a route, and a further
//! initiation after each [`INTERVAL`]. Each initiation contains the claim, so the first initiation that arrives enrols
//! the client. A link is live if an answer of the gateway arrived on it. An answer is a response or a cookie reply.
//! Only the owner of the gateway's static key can have made a cookie reply; after a cookie reply, the initiation is
//! repeated with the cookie. The probe ends when all links are live, or [`GRACE`] after the first response, or after
//! [`PATIENCE`].
//!
//! The session of a response is not used: the daemon starts its own session.

use std::{io, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use pleach_core::{
    endpoint::PROTOCOL_VERSION,
    packet::Ecn,
    session::{
        aead::Suite,
        cookie::CookieCache,
        handshake::{HandshakeError, Initiator, StaticKeys},
        invitation::Claim,
        secret::Secret,
    },
    time::Instant,
    wire::handshake::{CAPABILITIES, Hello, KIND_BUSY, KIND_COOKIE_REPLY, KIND_RESPONSE},
};
use pleach_linux::{
    clock,
    poll::{Poller, Token},
    udp::{RecvBatch, Transmit, UdpOptions, UdpSocket},
};

use super::uplinks::Uplink;
use crate::keys::SecretKey;

/// Keys and settings of the handshakes.
pub(crate) struct Parties<'a> {
    /// Static keys of this client.
    pub(crate) keys: &'a StaticKeys,
    /// Static key of the gateway.
    pub(crate) gateway: [u8; 32],
    /// Pre-shared key, for example that of the invitation.
    pub(crate) psk: &'a Secret,
    /// Claim with which a client that is not enrolled proves its invitation.
    pub(crate) claim: Option<Claim>,
    /// Firewall mark of all datagrams.
    pub(crate) fwmark: u32,
    /// Time after which a gateway is considered silent.
    pub(crate) patience: Duration,
}

/// Result of the handshakes.
#[derive(Debug)]
pub(crate) struct Findings {
    /// Whether the gateway knows this client: a response arrived, not only cookie replies.
    pub(crate) is_enrolled: bool,
    /// Result of each link, in the order of the links.
    pub(crate) links: Vec<Finding>,
}

/// Result of one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The gateway answered after this time.
    Live(Duration),
    /// All responses were unusable: a wrong pre-shared key, or another version.
    Refused(HandshakeError),
    /// The gateway did not answer.
    Silent,
    /// The socket could not be opened, or no datagram could be sent, for this reason.
    Unusable(String),
}

/// Performs handshakes over each of `uplinks` with the gateway at `endpoints`.
///
/// # Errors
/// If the kernel provides no random numbers or no epoll instance.
pub(crate) fn run(
    uplinks: &[Uplink],
    endpoints: &[SocketAddr],
    parties: &Parties<'_>,
) -> anyhow::Result<Findings> {
    let poller = Poller::new().context("epoll")?;
    let mut findings = vec![Finding::Silent; uplinks.len()];
    let mut lanes = Vec::new();
    for (number, uplink) in uplinks.iter().enumerate() {
        for endpoint in endpoints {
            match Lane::open(number, uplink, *endpoint, parties) {
                Ok(Some(lane)) => {
                    let token = u64::try_from(lanes.len()).unwrap_or(u64::MAX);
                    poller.add(&lane.socket, Token(token)).context("epoll")?;
                    lanes.push(lane);
                }
                Ok(None) => {}
                Err(error) => findings[number] = Finding::Unusable(crate::config::plain(&error)),
            }
        }
    }
    let mut sequence = Sequence::new()?;
    let mut is_enrolled = false;
    let mut end = clock::now() + parties.patience;
    let (mut events, mut buffers) = (Vec::new(), RecvBatch::default());
    loop {
        let now = clock::now();
        let is_live = |number: usize| matches!(findings[number], Finding::Live(_));
        let all_live = (0..uplinks.len()).all(is_live);
        if now >= end || (is_enrolled && all_live) {
            break;
        }
        for lane in &mut lanes {
            // A live link sends no further initiations once the client is enrolled.
            if now >= lane.next_at && !(is_live(lane.link) && is_enrolled) {
                lane.next_at = now + INTERVAL;
                if let Err(error) = lane.initiate(now, parties, &mut sequence) {
                    tracing::debug!(%error, "sending");
                }
            }
        }
        let next = lanes.iter().map(|lane| lane.next_at).min();
        poller.wait(Some(next.map_or(end, |next| next.min(end))), &mut events)?;
        let now = clock::now();
        for lane in &mut lanes {
            let answer = lane.receive(now, parties.patience, &mut buffers);
            let finding = &mut findings[lane.link];
            if let Some((after, is_response)) = answer {
                match finding {
                    Finding::Silent => *finding = Finding::Live(after),
                    Finding::Refused(_) if is_response => *finding = Finding::Live(after),
                    Finding::Live(_) | Finding::Refused(_) | Finding::Unusable(_) => {}
                }
                if is_response && !is_enrolled {
                    is_enrolled = true;
                    end = end.min(now + GRACE);
                }
                lane.is_answered |= is_response;
            }
            // Report an unusable response rather than a cookie reply that arrived before it, because the response shows
            // the error.
            if let Some(error) = lane.refused.take()
                && !lane.is_answered
                && !matches!(finding, Finding::Unusable(_))
            {
                *finding = Finding::Refused(error);
            }
        }
    }
    Ok(Findings {
        is_enrolled,
        links: findings,
    })
}

/// A link together with one address of the gateway.
struct Lane {
    link: usize,
    socket: UdpSocket,
    remote: SocketAddr,
    cookies: CookieCache,
    /// Initiations without a response, oldest first, each with its datagram and its sending time.
    attempts: Vec<(Initiator, Vec<u8>, Instant)>,
    /// Error of the last response that was not usable.
    refused: Option<HandshakeError>,
    /// Whether a usable response arrived.
    is_answered: bool,
    next_at: Instant,
}

impl Lane {
    /// Opens a socket from the link to `remote`; `None` if the link has no route to `remote`.
    fn open(
        number: usize,
        uplink: &Uplink,
        remote: SocketAddr,
        parties: &Parties<'_>,
    ) -> io::Result<Option<Self>> {
        let way = uplink
            .link
            .ways
            .iter()
            .find(|way| way.target == remote.ip());
        let Some(way) = way else {
            return Ok(None);
        };
        let any = if remote.is_ipv4() { "0.0.0.0" } else { "::" };
        let any = any.parse().map_err(io::Error::other)?;
        let options = UdpOptions {
            device: Some(uplink.link.name.clone()),
            fwmark: Some(parties.fwmark),
            ..UdpOptions::new(SocketAddr::new(way.source.unwrap_or(any), 0))
        };
        Ok(Some(Self {
            link: number,
            socket: UdpSocket::bind(&options)?,
            remote,
            cookies: CookieCache::new(&parties.gateway),
            attempts: Vec::new(),
            refused: None,
            is_answered: false,
            next_at: Instant::ZERO,
        }))
    }

    fn initiate(
        &mut self,
        now: Instant,
        parties: &Parties<'_>,
        sequence: &mut Sequence,
    ) -> anyhow::Result<()> {
        let (index, hello, seed) = sequence.next()?;
        let (keys, gateway, psk) = (parties.keys, &parties.gateway, parties.psk.expose());
        let (initiator, mut datagram) = match &parties.claim {
            Some(claim) => Initiator::with_claim(keys, gateway, psk, index, hello, claim, seed),
            None => Initiator::new(keys, gateway, psk, index, hello, seed),
        }?;
        self.cookies.stamp(now, &mut datagram)?;
        self.send(&datagram)?;
        if self.attempts.len() == MAX_ATTEMPTS {
            self.attempts.remove(0);
        }
        self.attempts.push((initiator, datagram, now));
        Ok(())
    }

    /// Returns the gateway's response time, and whether the answer was a response; `None` if no answer of the gateway
    /// arrived.
    fn receive(
        &mut self,
        now: Instant,
        patience: Duration,
        buffers: &mut RecvBatch,
    ) -> Option<(Duration, bool)> {
        let mut datagrams: Vec<Vec<u8>> = Vec::new();
        let received = self.socket.recv(buffers, |message| {
            if message.source == self.remote && datagrams.len() < MAX_DATAGRAMS {
                let chunks = message.contents.chunks(message.stride);
                datagrams.extend(chunks.map(<[u8]>::to_vec));
            }
        });
        if let Err(error) = received
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::debug!(%error, "receiving");
        }
        let mut found = None;
        for datagram in datagrams {
            let answer = match datagram.first() {
                Some(&KIND_RESPONSE) => self.on_response(now, &datagram).map(|after| (after, true)),
                Some(&KIND_COOKIE_REPLY) => {
                    self.on_cookie(now, &datagram).map(|after| (after, false))
                }
                Some(&KIND_BUSY) => {
                    let mut attempts = self.attempts.iter();
                    let wait = attempts
                        .find_map(|(_, sent, _)| self.cookies.handle_busy(sent, &datagram).ok());
                    if let Some(wait) = wait {
                        self.next_at = now + wait.min(patience);
                    }
                    None
                }
                _ => None,
            };
            found = match (found, answer) {
                (Some((_, true)), _) => found,
                (_, Some(_)) => answer,
                (_, None) => found,
            };
        }
        found
    }

    fn on_response(&mut self, now: Instant, datagram: &[u8]) -> Option<Duration> {
        let mut attempts = self.attempts.iter_mut();
        let refused = &mut self.refused;
        attempts.find_map(|(initiator, _, sent_at)| {
            match initiator.read_response(datagram) {
                Ok(_) => return Some(now.since(*sent_at)),
                Err(
                    error @ (HandshakeError::Authentication
                    | HandshakeError::NoCommonSuite
                    | HandshakeError::Version(_)),
                ) => *refused = Some(error),
                Err(_) => {}
            }
            None
        })
    }

    /// Sends the initiation to which the cookie reply belongs again, with the cookie.
    fn on_cookie(&mut self, now: Instant, datagram: &[u8]) -> Option<Duration> {
        let cookies = &mut self.cookies;
        let mut attempts = self.attempts.iter();
        let answered =
            attempts.position(|(_, sent, _)| cookies.handle_reply(now, sent, datagram).is_ok())?;
        let (_, sent, sent_at) = &mut self.attempts[answered];
        let after = now.since(*sent_at);
        if cookies.stamp(now, sent).is_ok() {
            let again = sent.clone();
            if let Err(error) = self.send(&again) {
                tracing::debug!(%error, "sending");
            }
        }
        Some(after)
    }

    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        let transmit = Transmit {
            destination: self.remote,
            src_ip: None,
            ecn: Ecn::NotCapable,
            segment_size: None,
            contents: datagram,
        };
        self.socket.send(&transmit).map(drop)
    }
}

/// The fields in which one initiation differs from the next.
struct Sequence {
    association: u64,
    index: u32,
    time: u64,
}

impl Sequence {
    fn new() -> anyhow::Result<Self> {
        let random = random()?;
        let association = random.expose().first_chunk();
        Ok(Self {
            association: association.map_or(0, |bytes| u64::from_be_bytes(*bytes)),
            index: 0,
            time: 0,
        })
    }

    fn next(&mut self) -> anyhow::Result<(u32, Hello, Secret)> {
        self.index += 1;
        self.time = clock::unix_nanos().max(self.time + 1);
        let hello = Hello {
            protocol_version: PROTOCOL_VERSION,
            capabilities: CAPABILITIES,
            suites: Suite::offer(Suite::preferred(false)),
            association: self.association,
            time: Some(self.time),
        };
        Ok((self.index, hello, Secret::from(random()?.expose())))
    }
}

fn random() -> anyhow::Result<SecretKey> {
    SecretKey::random().context("no random numbers from the kernel")
}

/// Interval between initiations: longer than a gateway takes to write to its disk, and longer than the RTT over a
/// satellite.
const INTERVAL: Duration = Duration::from_secs(1);
/// Additional time, after the first response, for slower links.
const GRACE: Duration = Duration::from_millis(2500);
/// Time after which a gateway that is to enrol a client is considered silent.
pub(super) const PATIENCE: Duration = Duration::from_secs(8);
const MAX_ATTEMPTS: usize = 8;
const MAX_DATAGRAMS: usize = 16;
