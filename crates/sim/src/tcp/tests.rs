//! Two connections over two emulated links on a virtual clock.

mod bbr;
mod behaviour;
mod delivery;

use core::time::Duration;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

use super::{Connection, Segment, TcpConfig};
use crate::link::{Corrupt, Link, LinkConfig, earliest, trace::Rate};

/// Length of an IPv4 header in bytes.
const IP_HEADER_LEN: usize = 20;

/// Payload in bytes of a full segment with timestamps.
const PAYLOAD: u64 = 1_448;

/// Length in bytes of the IP packet of a full segment.
const PACKET: u64 = 1_500;

/// A segment on a link. Flipping a bit has no effect.
#[derive(Clone, Copy)]
struct OnLink(Segment);

impl Corrupt for OnLink {
    fn flip_bit(&mut self, _bit: u64) {}
}

/// A client and a server (ends 0 and 1). Link `i` carries the segments that end `i` sends.
struct Pair {
    now: Instant,
    ends: [Option<Connection>; 2],
    server: TcpConfig,
    links: [Link<OnLink>; 2],
    /// Number of segments passed to the links.
    sent: u64,
    /// Number of data segments sent by end 0.
    data_sent: u64,
    /// Hash of all segments sent and their times.
    trace: u64,
    /// Whether a segment of an end is dropped before the link.
    is_swallowed: fn(&Self, usize, &Segment) -> bool,
}

impl Pair {
    fn new(
        client: TcpConfig,
        server: TcpConfig,
        forth: LinkConfig,
        back: LinkConfig,
        seed: u64,
    ) -> Self {
        let now = Instant::ZERO;
        let client = Connection::connect(now, client, u32::MAX - 100_000);
        Self {
            now,
            ends: [Some(client), None],
            server,
            links: [Link::new(forth, seed, now), Link::new(back, seed + 1, now)],
            sent: 0,
            data_sent: 0,
            trace: 0,
            is_swallowed: |_, _, _| false,
        }
    }

    /// Creates a client that sends an unlimited stream to a server, over `link`, and over an unlimited link back.
    fn bulk(config: TcpConfig, link: LinkConfig, seed: u64) -> Self {
        let client = TcpConfig {
            limit: None,
            ..config
        };
        let back = LinkConfig {
            delay: link.delay,
            ..LinkConfig::default()
        };
        Self::new(client, config, link, back, seed)
    }

    fn end(&mut self, i: usize) -> &mut Connection {
        self.ends[i].as_mut().expect("connected")
    }

    fn received(&self) -> u64 {
        self.ends[1].as_ref().map_or(0, Connection::received)
    }

    /// Passes the segments that end `i` has to send to the link of this end.
    fn transmit(&mut self, i: usize) {
        let now = self.now;
        while let Some(segment) = self.ends[i].as_mut().and_then(|end| end.poll_transmit(now)) {
            self.sent += 1;
            self.data_sent += u64::from(i == 0 && segment.payload_len > 0);
            let parts = [
                now.as_nanos(),
                segment.seq.into(),
                segment.ack.into(),
                segment.payload_len.into(),
            ];
            for part in parts {
                self.trace = (self.trace ^ part)
                    .wrapping_mul(0x0000_0100_0000_01b3)
                    .rotate_left(29);
            }
            if !(self.is_swallowed)(self, i, &segment) {
                let len = segment.encoded_len() + IP_HEADER_LEN;
                self.links[i].handle_packet(now, len, OnLink(segment));
            }
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let ends = self
            .ends
            .iter()
            .flatten()
            .filter_map(Connection::poll_timeout)
            .min();
        let links = self.links.iter().filter_map(Link::poll_timeout).min();
        earliest(ends, links)
    }

    /// Advances to the next event. `false` if there is no event until `until`.
    fn step(&mut self, until: Instant) -> bool {
        (0..2).for_each(|i| self.transmit(i));
        let Some(at) = self.next_event().filter(|at| *at <= until) else {
            return false;
        };
        self.now = at.max(self.now);
        let now = self.now;
        for i in 0..2 {
            while let Some(OnLink(segment)) = self.links[i].poll_output(now) {
                let server = self.server;
                match &mut self.ends[1 - i] {
                    Some(end) => end.handle_segment(now, &segment, false),
                    none => *none = Some(Connection::accept(now, server, 77, &segment)),
                }
                self.transmit(1 - i);
            }
            if let Some(end) = &mut self.ends[i]
                && end.poll_timeout().is_some_and(|at| at <= now)
            {
                end.handle_timeout(now);
                self.transmit(i);
            }
        }
        true
    }

    fn run_until(&mut self, until: Instant) {
        while self.step(until) {}
        self.now = until;
    }

    /// Returns the payload bytes per second that the server received from `from` to `to`.
    fn goodput(&mut self, from: Instant, to: Instant) -> f64 {
        self.run_until(from);
        let before = self.received();
        self.run_until(to);
        (self.received() - before) as f64 / to.since(from).as_secs_f64()
    }
}

fn line(rate_mbps: u64, delay_ms: u64, queue_bytes: u64) -> LinkConfig {
    LinkConfig {
        rate: Rate::Constant(Bitrate::from_mbps(rate_mbps)),
        queue: Bytes::new(queue_bytes),
        delay: Duration::from_millis(delay_ms),
        ..LinkConfig::default()
    }
}

fn seconds(s: u64) -> Instant {
    Instant::from_millis(s * 1_000)
}

/// Returns the payload bytes per second of a link that carries full segments only.
fn capacity(rate_mbps: u64) -> f64 {
    rate_mbps as f64 * 1e6 / 8.0 * PAYLOAD as f64 / PACKET as f64
}
