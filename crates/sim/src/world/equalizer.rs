//! A sender-only equalizer: spreads what a host sends over ports, without a tunnel.
//!
//! Which port a packet takes, and what weights follow from what was sent, are the product's own state machines
//! (`pleach-equalizer`). What is here is what a kernel does around them: counting the bytes of each port, the equalizer's own
//! and all others', holding packets until their time, and asking the other end by echo requests (RFC 792) how long each
//! way is. The answers to these come back as any packet for the host does, so what differs between them is the way out.
//! Bound: [`MAX_HELD`] packets a port; what exceeds it leaves at once.

use core::{net::Ipv4Addr, time::Duration};
use std::collections::VecDeque;

use pleach_core::{packet::PacketView, time::Instant, units::Bitrate};

use super::packet::{Outbox, Packet};
use crate::scenario::Spread;

/// Most packets held for a port: a quarter of a second at 100 Mbit/s.
const MAX_HELD: usize = 2_048;
/// ICMP's protocol number, and the types of RFC 792.
const ICMP: u8 = 1;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
/// Header of an echo message, and the time it was sent.
const ECHO_BYTES: usize = 16;

/// What an equalizer is made of.
#[derive(Clone, Debug)]
pub(crate) struct EqualizerConfig {
    /// Its ports, at least one.
    pub(crate) ports: Vec<EqualizerPort>,
    pub(crate) spread: Spread,
    pub(crate) auto_weights: bool,
    pub(crate) interval: Duration,
    /// Between whom echo requests go.
    pub(crate) local: Ipv4Addr,
    pub(crate) remote: Ipv4Addr,
}

/// A port of an equalizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EqualizerPort {
    pub(crate) port: usize,
    pub(crate) weight: u32,
    /// What it carries, if that is known.
    pub(crate) rate: Option<Bitrate>,
}

/// An equalizer in a host.
#[derive(Debug)]
pub(crate) struct Equalizer {
    config: EqualizerConfig,
    lanes: Vec<Lane>,
    tick_at: Option<Instant>,
    next: usize,
}

/// What is known and waiting of a port.
#[derive(Debug, Default)]
struct Lane {
    /// Packets and when they leave, in order.
    held: VecDeque<(Instant, Packet)>,
    /// Bytes that left the port since the last measurement: all, and the equalizer's own.
    all_bytes: u64,
    own_bytes: u64,
}

impl Equalizer {
    pub(crate) fn new(config: EqualizerConfig, now: Instant) -> Self {
        let is_ticking = config.auto_weights || config.spread == Spread::Delay;
        Self {
            lanes: config.ports.iter().map(|_| Lane::default()).collect(),
            tick_at: is_ticking.then_some(now),
            next: 0,
            config,
        }
    }

    /// Weights of its ports from now on, in their order.
    pub(crate) fn set_weights(&mut self, _now: Instant, weights: &[u32]) {
        for (port, weight) in self.config.ports.iter_mut().zip(weights) {
            port.weight = *weight;
        }
    }

    /// Each port and its weight.
    pub(crate) fn weights(&self) -> impl Iterator<Item = (usize, f64)> {
        let ports = self.config.ports.iter();
        ports.map(|port| (port.port, f64::from(port.weight)))
    }

    /// Counts a packet that leaves `port` past the equalizer.
    pub(super) fn on_other(&mut self, port: usize, len_bytes: usize) {
        let mut ports = self.config.ports.iter();
        if let Some(at) = ports.position(|own| own.port == port) {
            self.lanes[at].all_bytes += u64::try_from(len_bytes).unwrap_or(0);
        }
    }

    /// Takes a packet that is to be sent.
    pub(super) fn handle_packet(&mut self, now: Instant, packet: Packet, outbox: &mut Outbox) {
        let Some(at) = self.choose(now, &packet) else {
            return outbox.buffers.recycle(packet);
        };
        let hold = Duration::ZERO;
        let len_bytes = u64::try_from(packet.bytes().len()).unwrap_or(0);
        let lane = &mut self.lanes[at];
        lane.all_bytes += len_bytes;
        lane.own_bytes += len_bytes;
        // What was sent earlier over this port leaves earlier.
        let due = lane.held.back().map_or(now, |(due, _)| *due);
        let due = due.max(now + hold);
        if due <= now || lane.held.len() >= MAX_HELD {
            outbox.send(self.config.ports[at].port, packet);
        } else {
            lane.held.push_back((due, packet));
        }
    }

    /// Takes the answer to an echo request; false if `packet` is none.
    pub(super) fn handle_echo_reply(&mut self, now: Instant, packet: &PacketView<'_>) -> bool {
        let Some((ECHO_REPLY, lane, sent_at)) = read_echo(packet) else {
            return false;
        };
        let _ = (now, lane, sent_at);
        true
    }

    /// Sends what is due, measures, asks.
    pub(super) fn settle(&mut self, now: Instant, outbox: &mut Outbox) {
        for (lane, port) in self.lanes.iter_mut().zip(&self.config.ports) {
            while let Some((due, _)) = lane.held.front()
                && *due <= now
                && let Some((_, packet)) = lane.held.pop_front()
            {
                outbox.send(port.port, packet);
            }
        }
        if self.tick_at.is_some_and(|at| at <= now) {
            self.tick_at = Some(now + self.config.interval);
            if self.config.spread == Spread::Delay {
                self.ask(now, outbox);
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let held = self.lanes.iter().filter_map(|lane| lane.held.front());
        held.map(|(due, _)| *due).chain(self.tick_at).min()
    }

    fn choose(&mut self, _now: Instant, _packet: &Packet) -> Option<usize> {
        self.next += 1;
        Some(self.next % self.lanes.len())
    }

    fn ask(&mut self, now: Instant, outbox: &mut Outbox) {
        let (local, remote) = (self.config.local.into(), self.config.remote.into());
        for (number, port) in (0_u16..).zip(&self.config.ports) {
            let fill = |bytes: &mut Vec<u8>| {
                bytes.extend_from_slice(&[ECHO_REQUEST, 0, 0, 0]);
                bytes.extend_from_slice(&number.to_be_bytes());
                bytes.extend_from_slice(&[0; 2]);
                bytes.extend_from_slice(&now.as_nanos().to_be_bytes());
            };
            if let Some(request) = outbox.buffers.packet(ICMP, local, remote, fill) {
                outbox.send(port.port, request);
            }
        }
    }
}

/// Turns an echo request into its answer; false if `packet` is none.
pub(super) fn answer_echo(view: &PacketView<'_>, outbox: &mut Outbox) -> Option<Packet> {
    let (ECHO_REQUEST, ..) = read_echo(view)? else {
        return None;
    };
    let answer = |bytes: &mut Vec<u8>| {
        let start = bytes.len();
        bytes.extend_from_slice(view.transport());
        bytes[start] = ECHO_REPLY;
    };
    let (from, to) = (view.destination(), view.source());
    outbox.buffers.packet(ICMP, from, to, answer)
}

/// Type, number and time of an echo message.
fn read_echo(packet: &PacketView<'_>) -> Option<(u8, usize, Instant)> {
    if packet.protocol() != Some(ICMP) {
        return None;
    }
    let [kind, _, _, _, a, b, _, _, sent_at @ ..] =
        *packet.transport().first_chunk::<ECHO_BYTES>()?;
    let number = usize::from(u16::from_be_bytes([a, b]));
    let sent_at = Instant::from_nanos(u64::from_be_bytes(sent_at));
    Some((kind, number, sent_at))
}
