use core::time::Duration;
use std::collections::VecDeque;

use super::{round_trips::tests as trips, *};
use crate::{
    compression,
    counters::Drops,
    packet::Pool,
    sched::{AdaptiveSettings, Policy},
    session::limiter::Bucket,
    wire::control::{FrameWriter, LinkInfo},
};

mod ahead;
mod answer_flag;
mod turns;

/// Returns a client that has neither paths nor keys.
fn adaptive() -> Tunnel {
    let policy = Policy::Adaptive(AdaptiveSettings::default());
    Tunnel::new(
        Role::Client,
        policy.into(),
        QueueConfig::default(),
        FlowKey::default(),
        &Secret::from([0; 32]),
    )
}

#[test]
fn only_a_client_describes_links() {
    let info = LinkInfo {
        name: "theirs",
        cost: 9,
        role: LinkRole::Never,
        weight: 7,
        download: None,
        mtu: 1280,
    };
    let mut body = [0; 100];
    let mut writer = FrameWriter::new(&mut body);
    assert!(writer.push(&Frame::Link {
        path: PathId(0),
        version: 99,
        info,
    }));
    for (role, is_taken) in [(Role::Gateway, true), (Role::Client, false)] {
        let mut tunnel = Tunnel::new(
            role,
            Policy::Weighted {}.into(),
            QueueConfig::default(),
            FlowKey::default(),
            &Secret::from([0; 32]),
        );
        tunnel.add_path(Instant::ZERO, PathId(0), Link::named("ours"));
        let mut train_starts = Bucket::FULL;
        let mut shared = Shared {
            pool: &mut Pool::new(1, 100),
            delivered: &mut VecDeque::new(),
            drops: &mut Drops::default(),
            train_starts: &mut train_starts,
        };
        tunnel.handle_frames(Instant::ZERO, PathId(0), 0, &body, &mut shared);
        let path = tunnel.paths().get(PathId(0)).expect("added");
        assert_eq!(path.link().name == "theirs", is_taken);
        assert_eq!(path.link().role == LinkRole::Never, is_taken);
        assert_eq!(path.announced_version() == 99, is_taken);
        assert_eq!(path.owed_link_ack() == Some(99), is_taken);
    }
}

#[test]
fn what_is_kept_of_a_flow_is_known_of_its_compressed_packets_too() {
    let mut tunnel = adaptive();
    tunnel.round_trips = trips::watching(200);
    let mut train_starts = Bucket::FULL;
    let mut shared = Shared {
        pool: &mut Pool::new(1, 100),
        delivered: &mut VecDeque::new(),
        drops: &mut Drops::default(),
        train_starts: &mut train_starts,
    };
    let mut compressed = Vec::new();
    for i in 0..20 {
        let now = trips::ms(1_000 * u64::from(i));
        tunnel
            .templates
            .acknowledge_all(now, Duration::from_secs(1));
        let packet = trips::segment(trips::CONVERSATION, 1_000 + i, 1, 1_000);
        let flow = tunnel
            .outbound
            .flows
            .on_packet(now, &packet.view().expect("parsed"));
        let lanes = &mut tunnel.outbound.lanes;
        lanes.enqueue(now, packet, flow, Duration::ZERO, &mut shared);
        let mut out = TxQueue::new(1);
        let (outbound, mut egress) = tunnel.egress(now, &mut out, &mut shared);
        let numbered = ahead::next(outbound, &mut egress).expect("it waits");
        assert_eq!(numbered.round_trip, Duration::from_millis(200), "{i}");
        compressed.push(compression::is_compressed(numbered.packet.as_slice()));
    }
    assert_eq!((compressed[0], compressed[19]), (false, true));
}
