//! Two endpoints over two emulated links on a virtual clock.

use pleach_core::units::{Bitrate, Bytes};

use super::*;
use crate::link::{Corrupt, Link, LinkConfig, earliest, loss::Loss, trace::Rate};

/// Length of the IPv4 and UDP headers in bytes.
const HEADERS: usize = 28;

/// A datagram on a link. Flipping a bit has no effect.
#[derive(Clone)]
struct OnLink(Vec<u8>);

impl Corrupt for OnLink {
    fn flip_bit(&mut self, _bit: u64) {}
}

/// A client that sends to a server. Link `i` carries the packets that end `i` sends.
struct Pair {
    now: Instant,
    ends: [Connection; 2],
    links: [Link<OnLink>; 2],
    data_sent: u64,
    /// Number of later data packets that overtake a given data packet, if any.
    late: fn(u64) -> Option<u64>,
    held: Vec<(u64, Vec<u8>)>,
}

impl Pair {
    fn new(forth: LinkConfig, seed: u64) -> Self {
        let now = Instant::ZERO;
        let back = LinkConfig {
            delay: forth.delay,
            ..LinkConfig::default()
        };
        Self {
            now,
            ends: [
                Connection::connect(now, true, 1_472),
                Connection::listen(false, 1_472),
            ],
            links: [Link::new(forth, seed, now), Link::new(back, seed + 1, now)],
            data_sent: 0,
            late: |_| None,
            held: Vec::new(),
        }
    }

    fn transmit(&mut self, i: usize) {
        while let Some(packet) = self.ends[i].poll_transmit(self.now) {
            let mut bytes = Vec::new();
            packet.write(&mut bytes);
            if let Packet::Data { number, .. } = packet {
                self.data_sent += 1;
                if let Some(later) = (self.late)(number) {
                    self.held.push((number + later, bytes));
                    continue;
                }
                self.put(i, bytes);
                let due = self.held.extract_if(.., |(at, _)| *at <= number);
                let due: Vec<_> = due.collect();
                due.into_iter().for_each(|(_, bytes)| self.put(i, bytes));
            } else {
                self.put(i, bytes);
            }
        }
    }

    fn put(&mut self, i: usize, bytes: Vec<u8>) {
        self.links[i].handle_packet(self.now, bytes.len() + HEADERS, OnLink(bytes));
    }

    fn run_until(&mut self, until: Instant) {
        loop {
            (0..2).for_each(|i| self.transmit(i));
            let ends = self.ends.iter().filter_map(Connection::poll_timeout).min();
            let links = self.links.iter().filter_map(Link::poll_timeout).min();
            let Some(at) = earliest(ends, links).filter(|at| *at <= until) else {
                break;
            };
            self.now = at.max(self.now);
            for i in 0..2 {
                while let Some(OnLink(bytes)) = self.links[i].poll_output(self.now) {
                    self.ends[1 - i].handle_datagram(self.now, &bytes);
                    self.transmit(1 - i);
                }
                self.ends[i].handle_timeout(self.now);
            }
        }
        self.now = until;
    }

    /// Returns the payload bytes received per second from `from_s` to `to_s`.
    fn goodput(&mut self, from_s: u64, to_s: u64) -> f64 {
        self.run_until(Instant::from_millis(from_s * 1_000));
        let before = self.ends[1].received();
        self.run_until(Instant::from_millis(to_s * 1_000));
        (self.ends[1].received() - before) as f64 / (to_s - from_s) as f64
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

/// Returns the payload bytes per second of a link that carries full packets only.
fn capacity(rate_mbps: u64) -> f64 {
    rate_mbps as f64 * 1e6 / 8.0 * 1_417.0 / 1_480.0
}

#[test]
fn fills_a_plain_line() {
    let mut pair = Pair::new(line(20, 20, 100_000), 1);
    let share = pair.goodput(2, 22) / capacity(20);
    let stats = pair.ends[0].stats();
    assert!((0.96..=1.001).contains(&share), "{share} {stats:?}");
    assert!(stats.lost_pkts > 0 && stats.timeouts == 0, "{stats:?}");
}

#[test]
fn the_first_byte_arrives_after_one_and_a_half_round_trips() {
    let mut pair = Pair::new(line(20, 50, 100_000), 1);
    pair.run_until(Instant::from_millis(150));
    assert_eq!(pair.ends[1].received(), 0);
    pair.run_until(Instant::from_millis(160));
    assert!(pair.ends[1].received() > 0);
}

/// Returns the counters after six seconds on a link without loss, on which `N` later packets overtake every 500th
/// packet.
fn with_late_packets<const N: u64>() -> QuicStats {
    // The queue is long enough for the receiver's whole window.
    let mut pair = Pair::new(line(20, 20, 2_000_000), 1);
    pair.late = |number| (number % 500 == 499).then_some(N);
    pair.run_until(Instant::from_millis(6_000));
    pair.ends[0].stats()
}

#[test]
fn two_packets_of_reordering_are_borne_and_four_cost_a_packet_and_window() {
    let borne = with_late_packets::<2>();
    assert_eq!(
        (borne.lost_pkts, borne.congestion_events),
        (0, 0),
        "{borne:?}"
    );
    let four = with_late_packets::<4>();
    // 20 Mbit/s are 10 000 packets in six seconds, of which one in 500 is late. No packet was lost.
    assert!(
        four.lost_pkts >= 10 && four.congestion_events >= 10,
        "{four:?}"
    );
    assert!(four.cwnd_bytes * 2 < borne.cwnd_bytes, "{four:?} {borne:?}");
}

#[test]
fn it_never_learns_to_bear_reordering() {
    let mut pair = Pair::new(line(20, 20, 1_000_000), 1);
    pair.late = |number| (number % 500 == 499).then_some(4);
    pair.run_until(Instant::from_millis(10_000));
    let (early, early_sent) = (pair.ends[0].stats().lost_pkts, pair.data_sent);
    pair.run_until(Instant::from_millis(20_000));
    let late = pair.ends[0].stats().lost_pkts - early;
    let expected = (pair.data_sent - early_sent) / 500;
    assert!(late + 1 >= expected, "{late} of {expected}");
}

#[test]
fn every_byte_arrives_once_under_loss_and_jitter() {
    let link = LinkConfig {
        loss: Loss::Bernoulli(0.02),
        jitter: Duration::from_millis(5),
        reorder: true,
        ..line(20, 20, 100_000)
    };
    let mut pair = Pair::new(link, 7);
    pair.run_until(Instant::from_millis(20_000));
    let stats = pair.ends[0].stats();
    assert!(pair.ends[1].received() > 1_000_000, "{stats:?}");
    assert!(stats.lost_pkts > 0, "{stats:?}");
}

#[test]
fn a_black_hole_is_survived_by_probes() {
    use crate::link::{LinkChange, LinkState};
    let mut pair = Pair::new(line(20, 20, 100_000), 1);
    pair.run_until(Instant::from_millis(3_000));
    for (state, until_ms) in [(LinkState::Blackhole, 5_000), (LinkState::Up, 8_000)] {
        let change = LinkChange {
            state: Some(state),
            ..LinkChange::default()
        };
        let now = pair.now;
        pair.links[0].apply(now, &change);
        pair.run_until(Instant::from_millis(until_ms));
    }
    assert!(pair.ends[0].stats().timeouts >= 2);
    let share = pair.goodput(9, 19) / capacity(20);
    assert!(share > 0.85, "{share} {:?}", pair.ends[0].stats());
}

#[test]
fn a_lost_hello_is_sent_again() {
    let mut pair = Pair::new(line(20, 20, 100_000), 1);
    let change = crate::link::LinkChange {
        state: Some(crate::link::LinkState::Blackhole),
        ..crate::link::LinkChange::default()
    };
    pair.links[0].apply(Instant::ZERO, &change);
    pair.run_until(Instant::from_millis(500));
    let change = crate::link::LinkChange {
        state: Some(crate::link::LinkState::Up),
        ..crate::link::LinkChange::default()
    };
    pair.links[0].apply(pair.now, &change);
    pair.run_until(Instant::from_millis(990));
    assert_eq!(pair.ends[1].received(), 0);
    pair.run_until(Instant::from_millis(1_200));
    assert!(pair.ends[1].received() > 0);
}

#[test]
fn the_search_for_the_datagram_ends_as_quinns() {
    for (limit, found) in [
        (1_472, 1_452),
        (1_452, 1_452),
        (1_372, 1_357),
        (1_200, 1_200),
    ] {
        let payload = found_payload(limit);
        assert!(
            payload <= limit && payload.abs_diff(found) < 20,
            "{limit}: {payload}"
        );
    }
}
