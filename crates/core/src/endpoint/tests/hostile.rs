//! A known but malicious client, which encrypts datagrams that no honest client would send.

use super::*;
use crate::{
    ids::Seq,
    wire::{
        Kind,
        control::{Frame, FrameWriter, LinkInfo, LinkRole, MissingWriter},
        header::{DataHeader, TAG_LEN},
    },
};

/// A client whose keys encrypt any content.
struct Hostile {
    pair: Pair,
    /// Counter of its next datagram on each lane; larger than all counters that the client itself has used.
    counter: u64,
}

impl Hostile {
    fn new() -> Self {
        let mut pair = Pair::new();
        pair.run(Duration::from_secs(1));
        assert!(pair.gateway.is_up());
        Self {
            pair,
            counter: 1 << 20,
        }
    }

    /// Sends a datagram to the gateway.
    fn give(&mut self, kind: Kind, data: Option<DataHeader>, body: &[u8]) {
        self.give_on(PathId(0), false, kind, data, body);
    }

    /// Sends a datagram to the gateway on a path, with or without the flag for the path of the answers.
    fn give_on(
        &mut self,
        path: PathId,
        is_answer_path: bool,
        kind: Kind,
        data: Option<DataHeader>,
        body: &[u8],
    ) {
        let now = self.pair.now;
        let counter = self.counter;
        self.counter += 1;
        let sessions = self.pair.client.peers[0].tunnel.sessions();
        let session = sessions.sending(now).expect("a session");
        let header = Header {
            kind,
            is_out_of_turn: false,
            is_copy: false,
            is_kept: true,
            is_answer_path,
            covered: 0,
            path,
            receiver_index: session.remote_index(),
            path_seq: Seq::of_counter(counter),
            sent_us: now.wire_micros(),
        };
        let header_len = kind.header_len();
        let mut datagram = vec![0; header_len + body.len() + TAG_LEN];
        header.emit(data.as_ref(), &mut datagram);
        let (header, rest) = datagram.split_at_mut(header_len);
        let (sealed, tag) = rest.split_at_mut(body.len());
        sealed.copy_from_slice(body);
        let lane = match kind {
            Kind::Control => path.control_lane(),
            Kind::Data => path,
        };
        tag.copy_from_slice(&session.seal(lane, counter, header, sealed));
        let gateway = &mut self.pair.gateway;
        gateway.handle_datagram(now, &from(CLIENT), &mut datagram);
    }

    /// Sends as many frames returned by `frame` as fit into one datagram.
    fn give_frames(&mut self, mut frame: impl FnMut() -> Frame<'static>) {
        let mut body = [0; 1100];
        let mut writer = FrameWriter::new(&mut body);
        while writer.push(&frame()) {}
        let len = writer.len();
        self.give(Kind::Control, None, &body[..len]);
    }

    fn give_packet(&mut self, global_seq: u32, flow_step: u16, packet: &[u8]) {
        let data = DataHeader {
            global_seq: Seq(global_seq),
            path_step: 0,
            flow_step,
        };
        self.give(Kind::Data, Some(data), packet);
    }

    fn status(&self) -> TunnelStatus {
        let mut peers = self.pair.gateway.status();
        peers.next().expect("a client").1
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.pair.gateway.drops().get(reason)
    }

    /// Passes a packet of a flow to the client to the gateway. Returns the paths on which the gateway sends it.
    fn answer(&mut self, port: u16) -> Vec<PathId> {
        let now = self.pair.now;
        let gateway = &mut self.pair.gateway;
        let buffer = gateway.pool().copy_of(&packet_of(port, true));
        gateway.handle_packet(now, buffer);
        let mut paths = Vec::new();
        for (_, mut datagram) in transmit(gateway, now) {
            let header = Header::parse(&datagram);
            paths.extend(header.and_then(|(header, data)| data.map(|_| header.path)));
            let client = &mut self.pair.client;
            client.handle_datagram(now, &from(GATEWAY), &mut datagram);
        }
        paths
    }

    /// Removes the packets that the gateway has for the host. Returns their number.
    fn delivered(&mut self) -> usize {
        let mut count = 0;
        while let Some(packet) = self.pair.gateway.poll_deliver() {
            self.pair.gateway.pool().recycle(packet);
            count += 1;
        }
        count
    }
}

/// Returns a packet of `len` bytes from the client.
fn packet(len: u16) -> Vec<u8> {
    let mut packet = vec![0; usize::from(len)];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[9] = 17;
    packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
    packet[16..20].copy_from_slice(&[192, 0, 2, 9]);
    packet
}

#[test]
fn what_was_never_sent_is_not_looked_up_however_often_it_is_told_missing() {
    let mut hostile = Hostile::new();
    let mut missing = MissingWriter::default();
    while missing.push(Seq(1 << 18), 65_535) {}
    let ranges = missing.ranges().expect("some");
    let mut body = [0; 1100];
    let mut writer = FrameWriter::new(&mut body);
    for path in [PathId(0), PathId(7)] {
        assert!(writer.push(&Frame::Missing { path, ranges }));
    }
    let len = writer.len();
    for _ in 0..10_000 {
        hostile.give(Kind::Control, None, &body[..len]);
    }
    assert_eq!(hostile.status().refused, 0, "no step was made");
}

#[test]
fn a_peer_that_skips_numbers_with_every_packet_costs_no_more_than_its_budget() {
    let mut hostile = Hostile::new();
    for number in 1..5_000_u32 {
        hostile.give_packet(number * 65_000, 1, &packet(40));
        hostile.delivered();
    }
    let refused = hostile.dropped(DropReason::OverBudget);
    assert_eq!(hostile.status().refused, refused);
    // Each jump costs more than 65 000 steps, and the budget is five million steps.
    assert!((4_900..5_000).contains(&refused), "{refused}");
    // Its budget is available again later.
    hostile.pair.now += Duration::from_secs(1);
    for more in 0..100 {
        hostile.give_packet(5_000 * 65_000 + more, 1, &packet(40));
    }
    assert_eq!(hostile.dropped(DropReason::OverBudget), refused);
}

#[test]
fn links_described_over_and_over_do_not_bind_the_policy_anew_each_time() {
    let mut hostile = Hostile::new();
    let mut version = 100;
    for _ in 0..100 {
        hostile.give_frames(|| {
            version += 1;
            Frame::Link {
                path: PathId(0),
                version,
                info: LinkInfo {
                    name: "x",
                    cost: 0,
                    role: LinkRole::Active,
                    weight: 1,
                    download: None,
                    mtu: 1400,
                },
            }
        });
    }
    // The budget covers 26 of about 4000 descriptions.
    assert!(hostile.status().refused > u64::from(version - 100) - 140);
    hostile.pair.now += Duration::from_secs(1);
    let before = hostile.status().refused;
    hostile.give_packet(1, 0, &packet(40));
    assert_eq!(hostile.status().refused, before);
}

#[test]
fn a_packet_above_the_length_of_the_tunnel_is_not_delivered() {
    let mut hostile = Hostile::new();
    for (number, len) in [1400, 1500, 1501, 9_000, 60_000].into_iter().enumerate() {
        hostile.give_packet(u32::try_from(number).expect("small"), 0, &packet(len));
    }
    assert_eq!(hostile.delivered(), 2);
    assert_eq!(hostile.dropped(DropReason::TooLong), 3);
}

#[test]
fn a_peer_that_reports_nothing_does_not_make_the_gateway_keep_more_than_its_bound() {
    let mut hostile = Hostile::new();
    for _ in 1..PathId::MAX {
        bring_up_link(&mut hostile.pair.client);
    }
    hostile.pair.run(Duration::from_secs(2));
    assert_eq!(hostile.status().paths.len(), PathId::MAX);
    let now = hostile.pair.now;
    let mut to_client = packet(1000);
    to_client[12..16].copy_from_slice(&[192, 0, 2, 9]);
    to_client[16..20].copy_from_slice(&[10, 0, 0, 1]);
    let mut most = 0;
    for _ in 0..1_000 {
        let gateway = &mut hostile.pair.gateway;
        for _ in 0..64 {
            let buffer = gateway.pool().copy_of(&to_client);
            gateway.handle_packet(now, buffer);
        }
        transmit(gateway, now);
        most = most.max(gateway.kept().bytes());
        assert_eq!(gateway.kept().bytes(), hostile.status().kept_bytes);
    }
    assert!(most > kept::PEER_BYTES * 9 / 10, "{most}");
    assert!(most <= kept::PEER_BYTES, "{most}");
    // The memory of a removed peer is no longer counted.
    assert!(hostile.pair.gateway.remove_peer(now, "1"));
    assert_eq!(hostile.pair.gateway.kept().bytes(), 0);
}

/// Returns a packet of a flow with the client's port `port`, from the client or to it.
fn packet_of(port: u16, is_to_client: bool) -> Vec<u8> {
    let mut packet = packet(200);
    packet[20..22].copy_from_slice(&port.to_be_bytes());
    packet[22..24].copy_from_slice(&9_u16.to_be_bytes());
    if is_to_client {
        let (source, destination) = packet[12..20].split_at_mut(4);
        source.swap_with_slice(destination);
        let (source, destination) = packet[20..24].split_at_mut(2);
        source.swap_with_slice(destination);
    }
    packet
}

#[test]
fn flags_of_a_hostile_client_only_choose_the_path_of_packets_to_it() {
    let mut hostile = Hostile::new();
    bring_up_link(&mut hostile.pair.client);
    hostile.pair.run(Duration::from_secs(2));
    let mut rng = Rng::new(1);
    let count = 2_000;
    for number in 0..count {
        let port = 1 + u16::try_from(rng.below(3_000)).expect("a port");
        // Paths 0 and 1 work; the gateway has never heard of path 9.
        let path = [PathId(0), PathId(1), PathId(9)][usize::try_from(rng.below(3)).expect("small")];
        let is_answer_path = rng.below(2) == 0;
        let data = DataHeader {
            global_seq: Seq(number),
            path_step: 0,
            flow_step: 0,
        };
        let body = packet_of(port, false);
        hostile.give_on(path, is_answer_path, Kind::Data, Some(data), &body);
        let now = hostile.pair.now;
        let gateway = &mut hostile.pair.gateway;
        let buffer = gateway.pool().copy_of(&packet_of(port, true));
        gateway.handle_packet(now, buffer);
        hostile.pair.run(Duration::from_millis(1));
    }
    // When these flows have ended, the packets of other flows take the path of the flag if it works.
    hostile.pair.run(Duration::from_secs(6));
    for number in 0..60 {
        let port = 10_000 + u16::try_from(number).expect("small");
        let path = [PathId(0), PathId(1), PathId(9)][usize::from(port % 3)];
        let data = DataHeader {
            global_seq: Seq(count + number),
            path_step: 0,
            flow_step: 0,
        };
        let body = packet_of(port, false);
        hostile.give_on(path, true, Kind::Data, Some(data), &body);
        let paths = hostile.answer(port);
        assert!(!paths.is_empty());
        let is_expected = |used: &PathId| *used == path || path == PathId(9) && used.0 < 2;
        assert!(paths.iter().all(is_expected), "{path:?}: {paths:?}");
        hostile.pair.run(Duration::from_millis(5));
    }
    let count = count + 60;
    hostile.pair.run(Duration::from_secs(1));
    assert_eq!(hostile.delivered(), usize::try_from(count).expect("few"));
    let mut arrived = 0;
    while let Some(packet) = hostile.pair.client.poll_deliver() {
        hostile.pair.client.pool().recycle(packet);
        arrived += 1;
    }
    assert_eq!(arrived, count);
    assert_eq!(hostile.pair.gateway.drops().total(), 0);
}

#[test]
fn flag_of_a_packet_with_a_foreign_source_is_no_wish() {
    let mut hostile = Hostile::new();
    let mut foreign = packet_of(5, false);
    foreign[12..16].copy_from_slice(&[10, 0, 0, 2]);
    let bodies = [foreign, packet_of(5, false)];
    for (number, body) in (0..).zip(bodies) {
        let data = DataHeader {
            global_seq: Seq(number),
            path_step: 0,
            flow_step: 0,
        };
        hostile.give_on(PathId(0), true, Kind::Data, Some(data), &body);
        let tunnel = &hostile.pair.gateway.peers[0].tunnel;
        assert_eq!(tunnel.has_answer_paths(), number == 1);
    }
    assert_eq!(hostile.dropped(DropReason::SourceNotAllowed), 1);
}

#[test]
fn flag_that_was_changed_on_the_way_is_forged() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(1));
    let now = pair.now;
    let buffer = pair.client.pool().copy_of(&packet_of(5, false));
    pair.client.handle_packet(now, buffer);
    let mut changed = 0;
    for (_, mut datagram) in transmit(&mut pair.client, now) {
        if matches!(Header::parse(&datagram), Some((_, Some(_)))) {
            datagram[2] ^= 0x80;
            changed += 1;
        }
        pair.gateway
            .handle_datagram(now, &from(CLIENT), &mut datagram);
    }
    assert!(changed > 0);
    assert_eq!(pair.gateway.drops().get(DropReason::Forged), changed);
    assert!(pair.gateway.poll_deliver().is_none());
}
