//! One client of the crowd: the engine of a real client, with its own keys.

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::Context as _;
use pleach_core::{
    endpoint::{Endpoint, EndpointConfig, Event, PeerConfig, Reach, Side},
    path::link::Link,
    queue::QueueConfig,
    sched::SchedulerSettings,
    session::{
        aead::Suite,
        handshake::{NO_PSK, StaticKeys},
        secret::Secret,
    },
    time::Instant,
};
use pleach_linux::{clock, entropy::KernelEntropy};

use super::{
    honest::Honest,
    numbering::{GATEWAY, Outer, PLACES},
    packets,
};

/// UDP port of the gateway.
pub(crate) const PORT: u16 = 7_700;

/// The settings that all clients share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) gateway_key: [u8; 32],
    pub(crate) links: u8,
    /// Age at which keys change, if this is not the engine's.
    pub(crate) rekey_after: Option<Duration>,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Member {
    number: u32,
    private_key: Secret,
    public_key: [u8; 32],
    pub(crate) endpoint: Endpoint,
    /// Number of its moves, modulo [`PLACES`].
    pub(crate) place: u8,
    pub(crate) deadline: Option<Instant>,
    pub(crate) is_touched: bool,
    pub(crate) is_up: bool,
    /// Number of handshakes completed when the crowd last began to gather.
    completed_at_gathering: u64,
    /// Whether the client has connected since then.
    has_gathered: bool,
    /// When the client was last found not to be up.
    down_since: Option<Instant>,
    /// Number of times the client was not up for [`LOST_AFTER`] or longer.
    pub(crate) losses: u32,
    /// Number of handshakes completed by earlier engines of this client.
    completed_before: u64,
    /// Bytes of inner packets that returned.
    pub(crate) received: u64,
    /// Part of a packet that the client may send already, in bytes.
    credit: u64,
    /// Traffic of this client that reacts to losses and measures delays, instead of packets at a constant rate.
    pub(crate) honest: Option<Honest>,
}

impl Member {
    /// Creates a client with fresh keys, which starts to connect at once.
    pub(crate) fn new(now: Instant, number: u32, shared: &Shared) -> anyhow::Result<Self> {
        let private_key = Secret::from(clock::entropy()?);
        let public_key = *StaticKeys::from_private(private_key.clone()).public();
        Ok(Self {
            endpoint: engine(now, private_key.clone(), shared)?,
            number,
            private_key,
            public_key,
            place: 0,
            deadline: None,
            is_touched: false,
            is_up: false,
            completed_at_gathering: 0,
            has_gathered: false,
            down_since: None,
            losses: 0,
            completed_before: 0,
            received: 0,
            credit: 0,
            honest: None,
        })
    }

    /// Returns the client's public key.
    pub(crate) const fn public_key(&self) -> &[u8; 32] {
        &self.public_key
    }

    /// Returns the number of handshakes completed so far.
    pub(crate) fn completed(&self) -> u64 {
        self.completed_before + self.endpoint.handshakes().completed
    }

    /// Begins to wait for the next handshake.
    pub(crate) fn begin_gathering(&mut self) {
        self.completed_at_gathering = self.completed();
        self.has_gathered = false;
    }

    /// Whether the client has connected since the crowd began to gather. Returns true once.
    pub(crate) fn take_gathered(&mut self) -> bool {
        let has_connected = self.is_up && self.completed() > self.completed_at_gathering;
        has_connected && !core::mem::replace(&mut self.has_gathered, true)
    }

    /// Returns the source address on a link.
    pub(crate) fn source(&self, link: u8) -> IpAddr {
        let outer = Outer {
            client: self.number,
            link,
            place: self.place,
        };
        outer.address().into()
    }

    /// Continues at other source addresses without telling the engine, as behind a NAT that forgets its mapping.
    pub(crate) fn roam(&mut self) {
        self.place = (self.place + 1) % PLACES;
    }

    /// Replaces the engine by a new one without a close message, as after a crash and restart of the client.
    pub(crate) fn restart(&mut self, now: Instant, shared: &Shared) -> anyhow::Result<()> {
        self.completed_before = self.completed();
        self.endpoint = engine(now, self.private_key.clone(), shared)?;
        (self.is_up, self.down_since) = (false, None);
        Ok(())
    }

    /// Offers as many packets to the tunnel as `bytes` more bytes allow.
    pub(crate) fn offer(&mut self, now: Instant, bytes: u64) {
        if let Some(honest) = &mut self.honest {
            return honest.offer(now, bytes, self.number, &mut self.endpoint);
        }
        let len = packets::LEN as u64;
        // A client that could not send for a while does not catch up.
        self.credit = (self.credit + bytes).min(bytes.max(len) * 2);
        while self.credit >= len {
            self.credit -= len;
            let mut packet = self.endpoint.pool().take();
            packets::write(&mut packet, self.number);
            self.endpoint.handle_packet(now, packet);
        }
    }

    /// Counts the packets that the engine delivers, and takes note of its events.
    pub(crate) fn collect(&mut self, now: Instant) {
        while let Some(packet) = self.endpoint.poll_deliver() {
            self.received += packet.len() as u64;
            if let Some(honest) = &mut self.honest {
                honest.on_packet(now, packet.as_slice());
            }
            self.endpoint.pool().recycle(packet);
        }
        while let Some(event) = self.endpoint.poll_event() {
            if let Event::Peer { is_up, .. } = event {
                let was_up = core::mem::replace(&mut self.is_up, is_up);
                let since = if is_up { self.down_since.take() } else { None };
                self.losses += u32::from(since.is_some_and(|at| now.since(at) >= LOST_AFTER));
                if was_up && !is_up {
                    self.down_since = Some(now);
                }
            }
        }
    }
}

/// Returns the engine of a client with all links.
fn engine(now: Instant, private_key: Secret, shared: &Shared) -> anyhow::Result<Endpoint> {
    let config = EndpointConfig {
        private_key,
        suites: Suite::preferred(true).to_vec(),
        queue: QueueConfig::default(),
        compression: true,
        classes: Vec::new(),
        parity: None,
        mtu: MTU,
        side: Side::Client {
            gateway: PeerConfig {
                name: "gateway".to_owned(),
                public_key: shared.gateway_key,
                preshared_key: Secret::from(NO_PSK),
                allowed_ips: vec!["0.0.0.0/0".parse().context("constant")?],
                scheduler: SchedulerSettings::default(),
            },
            endpoints: vec![SocketAddr::from((GATEWAY, PORT))],
        },
    };
    let entropy = KernelEntropy::open().context("random numbers of the kernel")?;
    let mut endpoint = Endpoint::new(config, entropy, now);
    endpoint.set_time_of_day(now, clock::unix_nanos());
    if let Some(rekey_after) = shared.rekey_after {
        endpoint.set_rekey_after(rekey_after);
    }
    for link in 0..shared.links {
        let settings = Link::named(&format!("link{link}"));
        let id = endpoint.add_link(now, settings);
        endpoint.handle_link(now, id.context("more links than a tunnel can use")?, V4);
    }
    Ok(endpoint)
}

/// What a link of a client reaches.
pub(crate) const V4: Reach = Reach {
    v4: true,
    v6: false,
};
/// Time without a working path after which an association counts as lost. A machine that stalls for 40 ms makes a path
/// suspect, which is no loss.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// Length in bytes of the longest inner packet.
const MTU: usize = 1_414;
