//! A sender-side equalizer: spreads a host's packets over ports, without a tunnel.
//!
//! The choice of a packet's port and the computation of weights are the product's own state machines
//! (`pleach-equalizer`). This file does what a kernel does around them: it counts the bytes of each port, separately
//! for the equalizer and other traffic; it delays packets until their time; and it measures the delay to the other end
//! over each link by echo requests (RFC 792). Replies return like any other packet for the host, so differences between
//! RTTs are due to the outgoing links.

use core::{net::Ipv4Addr, time::Duration};

use pleach_core::{packet::PacketView, time::Instant, units::Bytes};
use pleach_equalizer::{
    auto::{AutoSettings, Counters},
    delay_equalizer::DelayEqualizer,
    flowlet,
    hold_queue::HoldQueue,
    splitter::{Charge, Splitter},
    weights::{LinkSettings, Source, WeightControl},
};

use super::packet::{Outbox, Packet};
use crate::scenario::Spread;

/// ICMP's protocol number, and the types of RFC 792.
const ICMP: u8 = 1;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
/// Length in bytes of an echo message: its header, and its time of sending.
const ECHO_BYTES: usize = 16;

/// Configuration of an equalizer.
#[derive(Clone, Debug)]
pub(crate) struct EqualizerConfig {
    /// Ports of the equalizer, at least one.
    pub(crate) ports: Vec<EqualizerPort>,
    pub(crate) spread: Spread,
    pub(crate) auto_weights: bool,
    pub(crate) interval: Duration,
    /// Source and destination addresses of echo requests.
    pub(crate) local: Ipv4Addr,
    pub(crate) remote: Ipv4Addr,
}

/// A port of an equalizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EqualizerPort {
    pub(crate) port: usize,
    pub(crate) link: LinkSettings,
}

/// An equalizer in a host.
#[derive(Debug)]
pub(crate) struct Equalizer {
    config: EqualizerConfig,
    splitter: Splitter,
    control: WeightControl,
    /// Computes the extra delay of packets, if the equalizer delays packets.
    delays: Option<DelayEqualizer>,
    probe_at: Option<Instant>,
    lanes: Vec<Lane>,
}

/// State of one port: its delayed packets and its counters.
#[derive(Debug)]
struct Lane {
    held: HoldQueue<Packet>,
    counters: Counters,
}

impl Lane {
    fn new() -> Self {
        let counters = Counters {
            others: Some(Bytes::ZERO),
            ..Counters::default()
        };
        Self {
            held: HoldQueue::default(),
            counters,
        }
    }
}

impl Equalizer {
    pub(crate) fn new(config: EqualizerConfig, now: Instant) -> Self {
        let source = if config.auto_weights {
            Source::Auto
        } else {
            Source::Fixed
        };
        let settings = AutoSettings {
            interval: config.interval,
            ..AutoSettings::default()
        };
        let links: Vec<LinkSettings> = config.ports.iter().map(|port| port.link).collect();
        let mut control = WeightControl::new(source, settings, &links, false, now);
        (0..links.len()).for_each(|at| control.handle_link(now, at, true));
        let spread = match config.spread {
            Spread::Delay | Spread::Packet => flowlet::Spread::Packet,
            Spread::Flow => flowlet::Spread::Flow,
            Spread::Flowlet { gap } => flowlet::Spread::Flowlet(gap),
        };
        let delays = (config.spread == Spread::Delay).then(DelayEqualizer::default);
        let mut this = Self {
            // There is no segmentation offload here, so each packet has the same price, as in the NATALIE paper
            // (`pleach-equalizer`).
            splitter: Splitter::new(Charge::Packets, spread),
            control,
            probe_at: delays.is_some().then_some(now),
            delays,
            lanes: config.ports.iter().map(|_| Lane::new()).collect(),
            config,
        };
        this.apply();
        this
    }

    /// Sets the weights of the ports, in their order.
    pub(crate) fn set_weights(&mut self, now: Instant, weights: &[u32]) {
        let pairs: Vec<(usize, u32)> = weights.iter().copied().enumerate().collect();
        self.control.handle_weights(now, &pairs);
        self.apply();
    }

    /// Returns each port with its share of the traffic in percent.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (usize, f64)> {
        let ports = self.config.ports.iter().enumerate();
        ports.map(|(at, port)| {
            (
                port.port,
                self.control.view(at).map_or(0.0, |view| view.share * 100.0),
            )
        })
    }

    /// Called when `port` has lost or regained its carrier.
    pub(super) fn handle_carrier(&mut self, now: Instant, port: usize, has_carrier: bool) {
        if let Some(at) = self.lane_of(port) {
            self.control.handle_link(now, at, has_carrier);
            self.apply();
        }
    }

    /// Counts a packet that leaves `port` without the equalizer.
    pub(super) fn on_other(&mut self, port: usize, len_bytes: usize) {
        if let Some(at) = self.lane_of(port) {
            let (counters, len) = (&mut self.lanes[at].counters, Bytes::of_len(len_bytes));
            counters.total += len;
            counters.others = Some(counters.others.unwrap_or_default() + len);
        }
    }

    /// Sends a packet, or returns it if all weights are zero.
    pub(super) fn handle_packet(
        &mut self,
        now: Instant,
        packet: Packet,
        outbox: &mut Outbox,
    ) -> Result<(), Packet> {
        let Some(at) = self.choose(now, packet.bytes()) else {
            return Err(packet);
        };
        let hold = self.delays.as_ref().map_or(Duration::ZERO, |delays| {
            let is_used = |other| self.control.view(other).is_some_and(|view| view.weight > 0);
            delays.hold(now, at, is_used)
        });
        let lane = &mut self.lanes[at];
        let len = Bytes::of_len(packet.bytes().len());
        lane.counters.own += len;
        if let Err(packet) = lane.held.push(now, hold, len, packet) {
            lane.counters.total += len;
            outbox.send(self.config.ports[at].port, packet);
        }
        Ok(())
    }

    /// Processes the reply to an echo request. Returns false if `packet` is not such a reply.
    pub(super) fn handle_echo_reply(&mut self, now: Instant, packet: &PacketView<'_>) -> bool {
        let (Some(delays), Some((ECHO_REPLY, lane, sent_at))) =
            (&mut self.delays, read_echo(packet))
        else {
            return false;
        };
        delays.on_round_trip(now, lane, now.since(sent_at));
        true
    }

    /// Sends packets that are due, measures, and sends echo requests.
    pub(super) fn settle(&mut self, now: Instant, outbox: &mut Outbox) {
        for (lane, port) in self.lanes.iter_mut().zip(&self.config.ports) {
            while let Some(packet) = lane.held.pop(now) {
                lane.counters.total += Bytes::of_len(packet.bytes().len());
                outbox.send(port.port, packet);
            }
        }
        if self.control.poll_timeout() <= now {
            let counters: Vec<Option<Counters>> =
                self.lanes.iter().map(|lane| Some(lane.counters)).collect();
            self.control.handle_counters(now, &counters);
            self.apply();
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = Some(now + self.config.interval);
            self.ask(now, outbox);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let held = self
            .lanes
            .iter()
            .filter_map(|lane| lane.held.poll_timeout());
        let counters = self
            .config
            .auto_weights
            .then(|| self.control.poll_timeout());
        held.chain(self.probe_at).chain(counters).min()
    }

    fn choose(&mut self, now: Instant, packet: &[u8]) -> Option<usize> {
        let flow = PacketView::parse(packet).ok()?.flow_hash(0) & u64::from(u32::MAX);
        let flow = u32::try_from(flow).unwrap_or(0);
        let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        self.splitter.choose(now, flow, len)
    }

    fn lane_of(&self, port: usize) -> Option<usize> {
        self.config.ports.iter().position(|own| own.port == port)
    }

    /// Applies new weights, if there are any.
    fn apply(&mut self) {
        if let Some(change) = self.control.poll_change() {
            self.splitter.set_weights(&change.weights);
        }
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

/// Turns an echo request into its reply. `None` if `view` is not an echo request.
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

/// Returns type, number and time of an echo message.
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
