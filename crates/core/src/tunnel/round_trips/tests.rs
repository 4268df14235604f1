use super::*;

pub(in super::super) const CONVERSATION: [u16; 2] = [443, 5_000];

/// Returns an IPv4 segment without options, with `len` bytes of data from `seq` on.
pub(in super::super) fn segment(ports: [u16; 2], seq: u32, ack: u32, len: u16) -> PacketBuf {
    let mut bytes = vec![0; 40 + usize::from(len)];
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&(40 + len).to_be_bytes());
    bytes[9] = 6;
    // Checksum of a header whose other words are zero.
    let checksum = !(0x4500 + (40 + len) + 6);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes[20..22].copy_from_slice(&ports[0].to_be_bytes());
    bytes[22..24].copy_from_slice(&ports[1].to_be_bytes());
    bytes[24..28].copy_from_slice(&seq.to_be_bytes());
    bytes[28..32].copy_from_slice(&ack.to_be_bytes());
    (bytes[32], bytes[33]) = (0x50, 0x10);
    let mut packet = PacketBuf::from(bytes);
    packet.parse().expect("a packet");
    packet
}

fn ack(number: u32) -> PacketBuf {
    let [from, to] = CONVERSATION;
    segment([to, from], 1, number, 0)
}

pub(in super::super) const fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// Returns the state with one flow, which starts at 0 ms with a target RTT of `least_ms`.
pub(in super::super) fn watching(least_ms: u64) -> RoundTrips {
    let mut trips = RoundTrips::new(FlowKey::default());
    let view = ack(0);
    let conversation = FlowKey::default().hash(&view.view().expect("parsed"));
    let least = Duration::from_millis(least_ms);
    trips.watch(ms(0), conversation, 0, least, &mut VecDeque::new());
    trips
}

impl RoundTrips {
    fn sends(&mut self, at: u64, end: u32) {
        self.flows[0].on_sent(ms(at), end);
    }

    /// Delivers packets at the given times in ms. Returns the time at which the host receives each packet, and the
    /// number that the packet acknowledges.
    fn delivers(&mut self, packets: &[(u64, PacketBuf)], rate: Option<u64>) -> Vec<(u64, u32)> {
        let known = Known {
            rate: rate.map(Bitrate::from_mbps),
            least: None,
        };
        let (mut got, mut pool) = (Vec::new(), Pool::new(8, 2048));
        for at in 0..5_000 {
            let mut delivered = VecDeque::new();
            for (_, packet) in packets.iter().filter(|(when, _)| *when == at) {
                let mut copy = PacketBuf::from(packet.as_slice().to_vec());
                copy.parse().expect("a packet");
                self.deliver(ms(at), copy, known, &mut pool, &mut delivered);
            }
            self.on_timeout(ms(at), &mut delivered);
            let segments = delivered
                .iter()
                .filter_map(|packet| packet.view().ok()?.segment());
            got.extend(segments.filter_map(|segment| Some((at, segment.ack?))));
        }
        got
    }
}

/// Returns an ACK that also acknowledges data out of order.
fn selective_ack(number: u32, from: u32, to: u32) -> PacketBuf {
    let [server, client] = CONVERSATION;
    selective_ack_of([client, server], number, from, to)
}

pub(super) fn selective_ack_of(ports: [u16; 2], number: u32, from: u32, to: u32) -> PacketBuf {
    let mut bytes = segment(ports, 1, number, 0).as_slice().to_vec();
    bytes.extend([1, 1, 5, 10]);
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes[3] += 12;
    bytes[32] = 0x80;
    let mut packet = PacketBuf::from(bytes);
    packet.parse().expect("a packet");
    packet
}

#[test]
fn what_tells_of_data_out_of_order_waits_as_well() {
    let mut trips = watching(60);
    trips.sends(9, 1_000);
    trips.sends(30, 2_000);
    trips.sends(31, 3_000);
    let packets = [(40, selective_ack(1_000, 2_000, 3_000))];
    assert_eq!(trips.delivers(&packets, None), [(93, 1_000)]);
}

#[test]
fn what_tells_of_data_never_sent_waits_as_what_it_has_in_order() {
    let mut trips = watching(60);
    trips.sends(9, 1_000);
    trips.sends(30, 2_000);
    let packets = [(40, selective_ack(1_000, 2_000, 3_000))];
    assert_eq!(trips.delivers(&packets, None), [(69, 1_000)]);
}

/// Delivers an ACK of `number` at `at` ms while the paths require a target RTT of `least` ms.
fn deliver(trips: &mut RoundTrips, at: u64, number: u32, least: u64) -> Vec<PacketBuf> {
    let known = Known {
        rate: None,
        least: Some(Duration::from_millis(least)),
    };
    let (mut pool, mut delivered) = (Pool::new(8, 2048), VecDeque::new());
    trips.on_timeout(ms(at), &mut delivered);
    trips.deliver(ms(at), ack(number), known, &mut pool, &mut delivered);
    delivered.into()
}

#[test]
fn the_first_data_acknowledged_decide_how_long_round_trips_are() {
    let mut trips = watching(60);
    assert!(deliver(&mut trips, 20, 0, 80).is_empty());
    trips.sends(70, 1_000);
    assert!(deliver(&mut trips, 71, 2_000, 90).len() == 2, "never sent");
    assert!(trips.is_first(&ack(1_000)));
    assert!(deliver(&mut trips, 90, 1_000, 80).is_empty());
    assert!(!trips.is_first(&ack(1_000)));
    assert_eq!(trips.flows[0].least(ms(90)), Duration::from_millis(80));
    assert!(deliver(&mut trips, 95, 1_000, 90).is_empty());
    assert_eq!(trips.flows[0].least(ms(95)), Duration::from_millis(80));
}

#[test]
fn a_sender_that_measured_a_short_round_trip_is_not_held_up_for_long() {
    for (least, kept) in [(80, Some(80)), (192, Some(84)), (193, None), (9, None)] {
        let mut trips = watching(42);
        assert!(deliver(&mut trips, 1, 0, 42).is_empty());
        let mut delivered = VecDeque::new();
        trips.on_timeout(ms(42), &mut delivered);
        assert_eq!(delivered.len(), 1);
        trips.sends(50, 1_000);
        let goes_on = deliver(&mut trips, 60, 1_000, least).len();
        let kept = kept.map(Duration::from_millis);
        let is = trips.flows.first().map(|flow| flow.least(ms(60)));
        assert_eq!(
            (is, goes_on),
            (kept, usize::from(kept.is_none())),
            "{least}"
        );
    }
}

#[test]
fn an_acknowledgement_waits_until_its_round_trip_is_as_long_as_the_longest() {
    let mut trips = watching(60);
    trips.sends(9, 1_000);
    trips.sends(12, 2_000);
    trips.sends(15, 3_000);
    trips.sends(90, 1_000);
    // The first ACK covers data sent at 9 ms, the second ACK data sent at 12 ms. The third ACK is late and waits only
    // for its group.
    let packets = [(19, ack(1_000)), (25, ack(2_999)), (151, ack(3_000))];
    let got = trips.delivers(&packets, None);
    assert_eq!(got, [(69, 1_000), (72, 2_999), (153, 3_000)]);
}

#[test]
fn sequence_numbers_begin_anew() {
    let mut trips = watching(60);
    trips.sends(1, (1 << 31) - 1);
    trips.sends(2, u32::MAX - 20);
    trips.sends(9, u32::MAX - 10);
    trips.sends(30, 500);
    let got = trips.delivers(&[(20, ack(u32::MAX - 10)), (40, ack(500))], None);
    assert_eq!(got, [(69, u32::MAX - 10), (90, 500)]);
}

#[test]
fn acknowledgements_come_in_groups_and_in_order() {
    let mut trips = watching(60);
    let mut packets = Vec::new();
    for number in 0..40 {
        trips.sends(u64::from(number), 1_000 * (number + 1));
        packets.push((u64::from(number) + 20, ack(1_000 * (number + 1))));
    }
    let got = trips.delivers(&packets, None);
    assert_eq!(got.len(), packets.len());
    assert!(got.iter().map(|(_, ack)| ack).is_sorted());
    for (at, ack) in got {
        let sent = u64::from(ack / 1_000) - 1;
        assert!(
            at.is_multiple_of(3) && (60..63).contains(&(at - sent)),
            "{at} {ack}"
        );
    }
}

#[test]
fn they_come_at_most_twice_as_fast_as_paths_carry() {
    let packets: Vec<_> = (1..=100).map(|number| (20, ack(number * 1_000))).collect();
    for (rate, last) in [(None, 60), (Some(8), 60 + 51), (Some(80), 60 + 6)] {
        let mut trips = watching(60);
        trips.sends(0, 1_000);
        trips.sends(0, 100_000);
        let got = trips.delivers(&packets, rate);
        // After the first ACK, 99 kB are acknowledged at 2 or 20 kB per millisecond.
        assert_eq!((got.len(), got[99].0), (100, last), "{rate:?}");
    }
}

#[test]
fn what_else_comes_waits_for_nothing_and_if_that_is_early_nothing_does_any_more() {
    let [from, to] = CONVERSATION;
    let stranger = || segment([to, from + 1], 1, 77, 0);
    let data = |ack| segment([to, from], 1, ack, 10);
    let mut closing = ack(9_000);
    closing.as_mut_slice()[33] |= 1;
    closing.parse().expect("a packet");
    for (at, last, held_at) in [
        (22, data(9_000), 24),
        (70, data(9_000), 99),
        (70, closing, 72),
    ] {
        let mut trips = watching(60);
        trips.sends(0, 9_000);
        trips.sends(20, 20_000);
        let first = (20, ack(9_000));
        let packets = [first, (21, stranger()), (at, last), (at + 2, ack(20_000))];
        let got = trips.delivers(&packets, None);
        let expected = match held_at {
            24 => [(21, 77), (22, 9_000), (22, 9_000), (24, 20_000)],
            // Data that arrive at least a target RTT after sending do not end the delays.
            99 => [(21, 77), (60, 9_000), (70, 9_000), (81, 20_000)],
            _ => [(21, 77), (60, 9_000), (70, 9_000), (72, 20_000)],
        };
        assert_eq!(got, expected);
    }
}

/// Returns a segment from the receiver, with a timestamp and an unscaled window.
fn said(time: u32, seq: u32, ack: u32, window: u16, len: u16) -> PacketBuf {
    let [from, to] = CONVERSATION;
    let mut bytes = segment([to, from], seq, ack, len).as_slice().to_vec();
    bytes[34..36].copy_from_slice(&window.to_be_bytes());
    let mut option = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 1];
    option[4..8].copy_from_slice(&time.to_be_bytes());
    bytes.splice(40..40, option);
    bytes[2..4].copy_from_slice(&(52 + len).to_be_bytes());
    bytes[32] = 0x80;
    let mut packet = PacketBuf::from(bytes);
    packet.parse().expect("a packet");
    packet
}

/// Delivery time in ms, sequence number, end, acknowledged number, and timestamp of a segment.
type Said = (u64, u32, u32, u32, u32);

impl RoundTrips {
    fn hands_on(&mut self, packets: &[(u64, PacketBuf)]) -> Vec<Said> {
        let (mut got, mut pool) = (Vec::new(), Pool::new(8, 2048));
        for at in 0..500 {
            let mut delivered = VecDeque::new();
            for (_, packet) in packets.iter().filter(|(when, _)| *when == at) {
                let copy = pool.copy_of(packet.as_slice());
                self.deliver(ms(at), copy, Known::default(), &mut pool, &mut delivered);
            }
            self.on_timeout(ms(at), &mut delivered);
            for mut packet in delivered {
                let view = packet.parse().expect("a packet");
                let segment = view.segment().expect("of TCP");
                let time = packet.segment_mut().and_then(|said| said.time());
                let (ack, time) = (segment.ack.expect("says"), time.expect("has"));
                got.push((at, segment.seq, segment.end, ack, time));
            }
        }
        got
    }
}

#[test]
fn what_the_receiver_says_goes_ahead_of_what_it_acknowledges() {
    let mut trips = watching(60);
    for number in 1..=4 {
        trips.sends(30 + 10 * u64::from(number), 1_000 * number);
    }
    let got = trips.hands_on(&[
        (30, said(1, 1, 0, 9, 50)),
        (60, said(2, 51, 1_000, 9, 0)),
        (70, said(3, 51, 2_000, 9, 50)),
        (71, said(4, 101, 2_000, 9, 100)),
        // A retransmission, with a larger window.
        (72, said(5, 51, 2_000, 10, 50)),
        (80, said(6, 201, 3_000, 10, 0)),
        // A keep-alive segment is not changed.
        (115, said(7, 200, 4_000, 10, 0)),
    ]);
    let expected = [
        (30, 1, 51, 0, 1),
        (70, 51, 101, 0, 3),
        (71, 101, 201, 0, 4),
        (72, 51, 101, 0, 5),
        (102, 201, 201, 1_000, 5),
        (111, 201, 201, 2_000, 5),
        (111, 201, 201, 2_000, 5),
        (120, 201, 201, 3_000, 6),
        (132, 200, 200, 4_000, 7),
    ];
    assert_eq!(got, expected);
    assert_eq!(trips.flows.len(), 1, "it is young as before");
}

#[test]
fn data_that_an_acknowledgement_overtook_go_ahead_of_it_as_well() {
    let mut trips = watching(60);
    for number in 1..=2 {
        trips.sends(30 + 10 * u64::from(number), 1_000 * number);
    }
    let got = trips.hands_on(&[
        (30, said(1, 1, 0, 9, 50)),
        (70, said(3, 101, 2_000, 9, 0)),
        (71, said(2, 51, 1_000, 9, 50)),
    ]);
    let expected = [
        (30, 1, 51, 0, 1),
        (71, 51, 101, 0, 2),
        (111, 101, 101, 2_000, 3),
    ];
    assert_eq!(got, expected);
}

#[test]
fn a_first_round_trip_that_was_measured_bounds_the_next() {
    // Target RTT, first RTT, and delivery time of the ACK of data sent after the first RTT; `None` if the flow is
    // removed.
    for (least, first, due) in [(60, 20, Some(60)), (60, 36, Some(96)), (300, 20, None)] {
        let mut trips = watching(least);
        let (mut delivered, mut pool) = (VecDeque::new(), Pool::new(8, 2048));
        let opens = said(1, 1, 0, 9, 50);
        trips.deliver(
            ms(first),
            opens,
            Known::default(),
            &mut pool,
            &mut delivered,
        );
        if let Some(flow) = trips.flows.first_mut() {
            flow.on_sent(ms(first), 1_000);
        }
        let acks = said(2, 51, 1_000, 9, 0);
        trips.deliver(ms(50), acks, Known::default(), &mut pool, &mut delivered);
        let held = trips.flows.first().map(KeptFlow::poll_timeout);
        assert_eq!(held, due.map(ms));
        assert_eq!(delivered.len(), if due.is_some() { 1 } else { 2 });
    }
    // The target RTT is limited to twice the first RTT.
    let mut trips = watching(90);
    let (mut delivered, mut pool) = (VecDeque::new(), Pool::new(8, 2048));
    let opens = said(1, 1, 0, 9, 50);
    trips.deliver(ms(20), opens, Known::default(), &mut pool, &mut delivered);
    trips.sends(20, 1_000);
    let acks = said(2, 51, 1_000, 9, 0);
    trips.deliver(ms(42), acks, Known::default(), &mut pool, &mut delivered);
    trips.on_timeout(ms(59), &mut delivered);
    assert_eq!(delivered.len(), 1);
    trips.on_timeout(ms(60), &mut delivered);
    assert_eq!(delivered.len(), 2);
}

#[test]
fn a_conversation_is_left_alone() {
    let mut trips = watching(60);
    trips.sends(40, 1_000);
    let mut packets = vec![(30, said(1, 1, 0, 9, 50))];
    for number in 0..=MOST_TALK {
        let at = 60 + u64::from(number);
        packets.push((at, said(2 + number, 51 + number, 1_000, 9, 1)));
    }
    let got = trips.hands_on(&packets);
    let acks: Vec<_> = got.iter().map(|(_, _, _, ack, _)| *ack).collect();
    let ahead = usize::try_from(MOST_TALK).expect("few");
    assert_eq!(acks[..=ahead], vec![0; ahead + 1]);
    // The delayed ACK is delivered first, then the last segment.
    assert_eq!(acks[ahead + 1..], [1_000, 1_000]);
    assert!(trips.flows.is_empty());
}

#[test]
fn what_had_better_not_be_changed_ends_a_youth() {
    let mut signed = said(3, 20, 1_000, 9, 10).as_slice().to_vec();
    signed[42] = 19;
    let signed = PacketBuf::from(signed);
    let far = said(3, MOST_AHEAD + 21, 1_000, 9, 10);
    let near = said(3, MOST_AHEAD, 1_000, 9, 10);
    for (packet, ends) in [(signed, true), (far, true), (near, false)] {
        let mut trips = watching(60);
        trips.sends(38, 900);
        trips.sends(40, 1_000);
        let (first, second) = (said(1, 1, 0, 9, 9), said(2, 10, 900, 9, 10));
        let packets = [(30, first), (50, second), (55, packet), (56, ack(1_000))];
        let got = trips.delivers(&packets, None);
        let expected = if ends {
            vec![(30, 0), (50, 0), (55, 900), (55, 1_000), (56, 1_000)]
        } else {
            vec![
                (30, 0),
                (50, 0),
                (55, 0),
                (99, 900),
                (102, 1_000),
                (102, 1_000),
            ]
        };
        assert_eq!(got, expected);
    }
}

#[test]
fn what_opens_a_connection_acknowledges_nothing_that_counts() {
    let mut trips = watching(60);
    let [from, to] = CONVERSATION;
    let mut open = segment([to, from], 1, 0, 0);
    open.as_mut_slice()[33] = 2;
    open.parse().expect("a packet");
    trips.sends(0, 1_000_000_000);
    trips.sends(40, 1_000_001_000);
    let packets = [
        (10, open),
        (20, ack(1_000_000_000)),
        (60, ack(1_000_001_000)),
    ];
    let got = trips.delivers(&packets, Some(1));
    assert_eq!(got, [(60, 1_000_000_000), (102, 1_000_001_000)]);
}

#[test]
fn acknowledgements_of_what_was_never_sent_change_nothing() {
    let mut trips = watching(60);
    let packets = [
        (90, ack(1_000)),
        (150, ack((1 << 31) - 1)),
        (190, ack(2_000)),
        (290, ack(3_000)),
    ];
    for number in 0..3 {
        trips.sends(100 * u64::from(number), 1_000 * (number + 1));
    }
    let got = trips.delivers(&packets, Some(50));
    assert_eq!(got[1], (150, (1 << 31) - 1));
    assert_eq!(
        [got[0], got[2], got[3]],
        [(90, 1_000), (192, 2_000), (291, 3_000)]
    );
}

#[test]
fn round_trips_shrink_little_by_little_when_a_youth_ends() {
    let mut trips = watching(60);
    let mut packets = Vec::new();
    for number in 0..120 {
        let at = 2_500 + 15 * u64::from(number);
        trips.sends(at, 1_000 * (number + 1));
        packets.push((at + 5, ack(1_000 * (number + 1))));
    }
    let got = trips.delivers(&packets, None);
    let waits: Vec<_> = got
        .iter()
        .zip(&packets)
        .map(|((at, _), (came, _))| at - came)
        .collect();
    assert!(
        waits[..30].iter().all(|wait| (55..58).contains(wait)),
        "{waits:?}"
    );
    assert!(
        waits[30..].windows(2).all(|two| two[1] <= two[0] + 2),
        "{waits:?}"
    );
    assert!((25..35).contains(&waits[66]), "{waits:?}");
    assert!(waits[105..].iter().all(|wait| *wait == 0), "{waits:?}");
    let mut trips = watching(60);
    trips.fade(ms(100));
    trips.sends(600, 1_000);
    assert_eq!(trips.delivers(&[(605, ack(1_000))], None), [(630, 1_000)]);
    assert!(trips.flows.is_empty());
}

#[test]
fn a_flow_is_young_for_a_while_and_flows_are_few() {
    let mut trips = watching(60);
    assert_eq!(trips.poll_timeout(), Some(ms(4_000)));
    // After an ACK of many bytes, the next ACK is delayed by at most two target RTTs.
    trips.sends(20, 1 << 30);
    trips.sends(21, (1 << 30) + 1);
    let packets = [(20, ack(1)), (20, ack(1 << 30)), (30, ack((1 << 30) + 1))];
    let got = trips.delivers(&packets, Some(1));
    assert_eq!(got[2], (150, (1 << 30) + 1));
    assert_eq!(trips.poll_timeout(), None);
    let mut trips = watching(60);
    trips.sends(0, 1_000);
    let (mut delivered, mut pool) = (VecDeque::new(), Pool::new(8, 2048));
    trips.deliver(
        ms(1),
        ack(1_000),
        Known::default(),
        &mut pool,
        &mut delivered,
    );
    for conversation in 0..64 {
        assert!(delivered.is_empty());
        let (at, least) = (ms(2 + conversation), Duration::from_millis(60));
        trips.watch(at, conversation, 0, least, &mut delivered);
    }
    assert_eq!((trips.flows.len(), delivered.len()), (MOST, 1));
    let mut trips = watching(60);
    trips.sends(0, 1_000);
    for _ in 0..=MOST_HELD {
        assert_eq!(delivered.len(), 1);
        trips.deliver(
            ms(1),
            ack(1_000),
            Known::default(),
            &mut pool,
            &mut delivered,
        );
    }
    assert_eq!(delivered.len(), MOST_HELD + 2, "none is kept beyond that");
    trips.clear(ms(90), &mut delivered);
    trips.watch(ms(90), 1, 0, Duration::from_millis(9), &mut delivered);
    assert!(trips.flows.is_empty(), "too short to matter");
}
