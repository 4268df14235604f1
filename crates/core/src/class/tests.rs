use core::time::Duration;

use super::*;
use crate::{
    flows::FlowId,
    packet::{PacketView, tests::udp_v4},
    time::Instant,
    units::Bytes,
};

/// Returns a packet from 10.0.0.1 to 10.0.0.2 of `len` bytes with this code point.
fn packet(ports: (u16, u16), dscp: u8, len: usize) -> Vec<u8> {
    let mut bytes = udp_v4([10, 0, 0, 1], [10, 0, 0, 2], ports, len);
    bytes[1] = dscp << 2;
    bytes
}

fn class(name: &str, matches: Match, share_percent: u16) -> Class {
    let service = Service {
        deadline: Some(Duration::from_millis(200)),
        duplicate: Duplicate::Always,
        share_percent,
        ..Service::default()
    };
    Class {
        name: name.to_owned(),
        matches,
        service,
    }
}

/// Whether a packet matches a class with these conditions, when no packet was sent before.
fn fits(matches: Match, bytes: &[u8]) -> bool {
    let mut classifier = Classifier::new(vec![class("it", matches, 0)], false);
    let view = PacketView::parse(bytes).expect("a packet");
    classifier
        .find(Instant::from_millis(1), &view, FlowId::of_hash(5))
        .is_some()
}

#[test]
fn all_that_is_given_has_to_fit() {
    let bytes = packet((40_000, 5_004), 34, 500);
    let net = |text: &str| text.parse().expect("a network");
    let whole = Match {
        app: None,
        dscp: vec![10, 34],
        protocol: Some(17),
        ports: vec![80..=80, 5_000..=5_010],
        from: vec![net("10.0.0.0/30")],
        to: vec![net("fd00::/8"), net("10.0.0.2/32")],
        max_size: Some(500),
        max_rate: Some(Bitrate::from_mbps(1)),
    };
    assert!(fits(whole.clone(), &bytes));
    assert!(fits(Match::default(), &bytes));
    let others = [
        Match {
            dscp: vec![35],
            ..whole.clone()
        },
        Match {
            protocol: Some(6),
            ..whole.clone()
        },
        Match {
            ports: vec![5_005..=5_010],
            ..whole.clone()
        },
        Match {
            from: vec![net("10.0.0.2/32")],
            ..whole.clone()
        },
        Match {
            to: vec![net("10.0.0.1/32")],
            ..whole.clone()
        },
        Match {
            max_size: Some(499),
            ..whole.clone()
        },
        Match {
            max_rate: Some(Bitrate::from_bps(7_999)),
            ..whole
        },
    ];
    for other in others {
        assert!(!fits(other.clone(), &bytes), "{other:?}");
    }
}

#[test]
fn the_first_class_that_fits_is_taken() {
    let ports = |ports| Match {
        ports: vec![ports],
        ..Match::default()
    };
    let classes = vec![class("a", ports(1..=9), 0), class("b", ports(5..=20), 0)];
    let mut classifier = Classifier::new(classes, true);
    let mut find = |port| {
        let bytes = packet((1_000, port), 0, 100);
        let view = PacketView::parse(&bytes).expect("a packet");
        classifier
            .find(Instant::from_millis(1), &view, FlowId::of_hash(port.into()))
            .map(|found| found.id.0)
    };
    assert_eq!([find(7), find(15), find(30)], [Some(0), Some(1), None]);
}

/// Returns for each packet of one flow whether it counts as voice. The flow has `per_second` packets of `len` bytes per
/// second for two seconds.
fn recognised(per_second: u32, len: usize, dscp: u8) -> Vec<bool> {
    let mut classifier = Classifier::new(Vec::new(), true);
    let bytes = packet((1_000, 2_000), dscp, len);
    let view = PacketView::parse(&bytes).expect("a packet");
    let at = |i| Instant::from_millis(1_000) + Duration::from_secs(1) * i / per_second;
    let packets = 0..2 * per_second;
    packets
        .map(|i| classifier.find(at(i), &view, FlowId::of_hash(77)).is_some())
        .collect()
}

#[test]
fn voice_is_known_by_its_code_point_or_by_its_shape() {
    assert!(recognised(50, 200, 46).iter().all(|is_voice| *is_voice));
    let by_shape = recognised(50, 200, 0);
    assert!(
        by_shape[..20].iter().all(|is_voice| !is_voice),
        "not before half a second"
    );
    assert!(by_shape[30..].iter().all(|is_voice| *is_voice));
    for (per_second, len) in [(50, 400), (5, 200), (300, 200)] {
        assert!(
            recognised(per_second, len, 0)
                .iter()
                .all(|is_voice| !is_voice),
            "{per_second} of {len}"
        );
    }
}

#[test]
fn what_needs_its_order_is_no_voice() {
    let mut bytes = packet((1_000, 22), 46, 120);
    bytes[9] = 6;
    let mut classifier = Classifier::new(Vec::new(), true);
    let view = PacketView::parse(&bytes).expect("a packet");
    assert_eq!(
        classifier.find(Instant::from_millis(1), &view, FlowId::of_hash(5)),
        None
    );
}

/// Returns a class of the program `app` with these ports.
fn of_app(app: &str, ports: RangeInclusive<u16>) -> Class {
    let matches = Match {
        app: Some(app.to_owned()),
        ports: vec![ports],
        ..Match::default()
    };
    class(app, matches, 0)
}

/// Returns the index of the class of a packet with the source port `port` from a flow of its own, at `ms`.
fn find_port(classifier: &mut Classifier, ms: u64, port: u16) -> Option<u8> {
    let bytes = packet((port, 443), 0, 100);
    let view = PacketView::parse(&bytes).expect("a packet");
    let flow = FlowId::at(u64::from(port) % 1_000);
    let found = classifier.find(Instant::from_millis(ms), &view, flow);
    found.map(|found| found.id.0)
}

fn questions(classifier: &mut Classifier) -> Vec<FlowQuestion> {
    core::iter::from_fn(|| classifier.poll_question()).collect()
}

#[test]
fn program_of_a_flow_is_asked_once_and_only_if_all_else_fits() {
    let classes = vec![of_app("curl", 1..=9), of_app("wget", 5..=20)];
    let mut classifier = Classifier::new(classes, false);
    for ms in 0..10 {
        assert_eq!(find_port(&mut classifier, ms, 7), None);
        assert_eq!(find_port(&mut classifier, ms, 30), None);
    }
    let asked = questions(&mut classifier);
    let [question] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(question.protocol, 17);
    assert_eq!(question.source.to_string(), "10.0.0.1:7");
    assert_eq!(question.destination.to_string(), "10.0.0.2:443");
    for (answer, class) in [
        (Some("wget"), Some(1)),
        (Some("Curl"), None),
        (None, None),
        (Some("curl"), Some(0)),
    ] {
        classifier.answer(question, answer);
        assert_eq!(find_port(&mut classifier, 10, 7), class, "{answer:?}");
    }
    assert_eq!(find_port(&mut classifier, 11, 15), None, "another flow");
}

#[test]
fn program_is_asked_again_after_a_silence_and_the_answer_is_used_meanwhile() {
    let mut classifier = Classifier::new(vec![of_app("curl", 1..=9)], false);
    find_port(&mut classifier, 0, 7);
    let asked = questions(&mut classifier);
    classifier.answer(&asked[0], Some("curl"));
    for ms in [4_000, 8_000] {
        assert_eq!(find_port(&mut classifier, ms, 7), Some(0));
    }
    assert_eq!(questions(&mut classifier), []);
    assert_eq!(find_port(&mut classifier, 13_001, 7), Some(0));
    assert_eq!(questions(&mut classifier), asked);
    classifier.answer(&asked[0], None);
    assert_eq!(find_port(&mut classifier, 13_002, 7), None);
}

#[test]
fn questions_are_bounded_and_asked_later() {
    let mut classifier = Classifier::new(vec![of_app("curl", 1..=1_000)], false);
    for port in 1..=100 {
        find_port(&mut classifier, 1, port);
    }
    let first = questions(&mut classifier);
    assert_eq!(first.len(), 64);
    for port in 1..=100 {
        find_port(&mut classifier, 2, port);
    }
    let rest = questions(&mut classifier);
    let ports: Vec<u16> = rest.iter().map(|asked| asked.source.port()).collect();
    assert_eq!(ports, (65..=100).collect::<Vec<u16>>());
}

#[test]
fn flow_that_shares_its_place_has_no_known_program() {
    let mut classifier = Classifier::new(vec![of_app("curl", 1..=9)], false);
    let bytes = packet((7, 443), 0, 100);
    let view = PacketView::parse(&bytes).expect("a packet");
    let owner = FlowId::at(5);
    let find = |classifier: &mut Classifier, flow| {
        let found = classifier.find(Instant::from_millis(1), &view, flow);
        found.is_some()
    };
    assert!(!find(&mut classifier, owner));
    let asked = questions(&mut classifier);
    classifier.answer(&asked[0], Some("curl"));
    for _ in 0..10 {
        assert!(!find(&mut classifier, owner.with_hash(99)));
        assert!(find(&mut classifier, owner));
    }
    assert_eq!(questions(&mut classifier), []);
}

#[test]
fn programs_stay_known_while_the_classes_name_them() {
    let mut classifier = Classifier::new(vec![of_app("curl", 1..=9)], false);
    find_port(&mut classifier, 0, 7);
    let asked = questions(&mut classifier);
    classifier.answer(&asked[0], Some("curl"));
    let more = vec![of_app("curl", 100..=100), of_app("curl", 1..=9)];
    let mut changed = Classifier::new(more, false).succeeding(&classifier);
    assert!(find_port(&mut changed, 1, 7).is_some());
    assert_eq!(questions(&mut changed), []);
    // A rule for one program leaves the others known, whatever their order.
    let more = vec![of_app("a", 100..=100), of_app("curl", 1..=9)];
    let mut changed = Classifier::new(more, false).succeeding(&changed);
    assert!(find_port(&mut changed, 1, 7).is_some());
    assert_eq!(questions(&mut changed), []);
    let fewer = vec![of_app("curl", 1..=9)];
    let mut changed = Classifier::new(fewer, false).succeeding(&changed);
    assert!(find_port(&mut changed, 1, 7).is_some());
    assert_eq!(questions(&mut changed), []);
    let other = vec![of_app("wget", 1..=9)];
    let mut changed = Classifier::new(other, false).succeeding(&changed);
    assert_eq!(find_port(&mut changed, 2, 7), None);
    assert_eq!(questions(&mut changed), asked);
    changed.release_memory();
    classifier.release_memory();
    assert_eq!(find_port(&mut classifier, 3, 7), None, "forgotten");
}

#[test]
fn only_tcp_and_udp_have_programs() {
    let mut classifier = Classifier::new(vec![of_app("curl", 1..=9)], false);
    for (protocol, is_asked) in [(6, true), (17, true), (132, false)] {
        let mut bytes = packet((7, 443), 0, 100);
        bytes[9] = protocol;
        let view = PacketView::parse(&bytes).expect("a packet");
        let flow = FlowId::at(u64::from(protocol));
        classifier.find(Instant::from_millis(1), &view, flow);
        let asked = questions(&mut classifier);
        assert_eq!(asked.len(), usize::from(is_asked), "{protocol}");
    }
}

#[test]
fn copies_never_cost_more_than_their_share() {
    let mut classifier = Classifier::new(vec![class("it", Match::default(), 15)], false);
    let mut copied = 0;
    for i in 0..2_000_u64 {
        let len = usize::try_from(40 + i * 7_919 % 1_300).expect("small");
        let bytes = packet((1, 2), 0, len);
        let view = PacketView::parse(&bytes).expect("a packet");
        let found = classifier
            .find(Instant::from_millis(i), &view, FlowId::of_hash(5))
            .expect("all are of it");
        // No copies are sent in the first half of the time. The credit saved in that time must be limited as well.
        if i > 1_000 && classifier.may_copy(found.id, len) {
            classifier.on_copied(found.id, len);
            copied += len as u64;
        }
        let (_, counts) = classifier.counts().next().expect("one class");
        assert!(
            counts.copied_bytes.get() * 100 <= counts.bytes.get() * 15,
            "{counts:?}"
        );
    }
    let (_, counts) = classifier.counts().next().expect("one class");
    assert_eq!(counts.copied_bytes, Bytes::new(copied));
    assert!(copied > 100_000, "{copied}");
}

#[test]
fn a_packet_keeps_its_class_by_name_when_classes_change() {
    let bytes = packet((40_000, 5_004), 34, 500);
    let view = PacketView::parse(&bytes).expect("a packet");
    let of_port = |name: &str, port, share| {
        let matches = Match {
            ports: vec![port..=port],
            ..Match::default()
        };
        class(name, matches, share)
    };
    let find = |classifier: &mut Classifier| {
        let found = classifier.find(Instant::from_millis(1), &view, FlowId::of_hash(5));
        found.expect("its class").id
    };
    let mut classifier =
        Classifier::new(vec![of_port("a", 1, 1), of_port("video", 5_004, 2)], true);
    let waiting = find(&mut classifier);
    // The index of the packet's class now belongs to another class, and its own class has another index and service.
    let others = vec![
        of_port("new", 5_004, 3),
        of_port("a", 1, 4),
        of_port("video", 7, 5),
    ];
    let mut changed = Classifier::new(others, true).succeeding(&classifier);
    let share =
        |classifier: &Classifier, id| classifier.service(id).map(|service| service.share_percent);
    assert_eq!(share(&changed, waiting), Some(5));
    changed.on_expired(waiting);
    let expired: Vec<u64> = changed.counts().map(|(_, counts)| counts.expired).collect();
    assert_eq!(expired, [0, 0, 1, 0]);
    let second = find(&mut changed);
    assert_eq!(share(&changed, second), Some(3));
    // If the packet's class is removed, the packet has no class, whatever class gets its index.
    let without = Classifier::new(vec![of_port("b", 9, 6)], true).succeeding(&changed);
    assert_eq!(
        (share(&without, waiting), share(&without, second)),
        (None, None)
    );
    assert_eq!(without.present(waiting), None);
    let present = changed.present(waiting).expect("its class");
    assert_ne!(present, waiting);
    assert_eq!(changed.present(present), Some(present));
    // Ids wrap around.
    for _ in 0..300 {
        classifier =
            Classifier::new(vec![of_port("video", 5_004, 7)], true).succeeding(&classifier);
        let id = find(&mut classifier);
        assert_eq!(share(&classifier, id), Some(7));
    }
}
