use core::time::Duration;

use super::*;
use crate::{
    flows::FlowId,
    packet::{PacketView, tests::udp_v4},
    time::Instant,
    units::Bytes,
};

/// A packet from 10.0.0.1 to 10.0.0.2 of `len` bytes with this code point.
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

/// The place of the class that one packet is of, when nothing was sent before.
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

/// Which of the packets of one flow, this long and so many a second for two seconds, count as voice.
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
        // For half of the time nothing asks for copies: what is saved then is limited as well.
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
    // The class of that place is another now, and its own has another place and service.
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
    // Without it the packet has none, whatever takes the places.
    let without = Classifier::new(vec![of_port("b", 9, 6)], true).succeeding(&changed);
    assert_eq!(
        (share(&without, waiting), share(&without, second)),
        (None, None)
    );
    // Ids wrap around.
    for _ in 0..300 {
        classifier =
            Classifier::new(vec![of_port("video", 5_004, 7)], true).succeeding(&classifier);
        let id = find(&mut classifier);
        assert_eq!(share(&classifier, id), Some(7));
    }
}
