use std::{net::SocketAddr, sync::Arc};

use ipnet::IpNet;
use pleach_core::session::handshake::StaticKeys;

use super::*;
use crate::{
    daemon::{
        known::{Known, KnownPeer},
        settings::{SaveEnergy, StripeSettings},
        uplinks::Device,
    },
    handshake::Protocol,
    placer::{LinkSettings, PlacerConfig, Reach},
    sched::Policy,
    sticky::Stickiness,
    stripe::sched::Striping,
};

/// Returns a hub without links on a host that has only a loopback network.
pub(crate) fn hub() -> Hub {
    let hub = Hub::new(Settings {
        listen: ([127, 0, 0, 1], 0).into(),
        allow: None,
        max_connections: 8,
        idle: Duration::from_secs(60),
        placer: PlacerConfig {
            policy: Policy::RoundRobin,
            stickiness: Stickiness::Off,
            sticky_time: Duration::from_secs(60),
            rules: Vec::new(),
        },
        links: Vec::new(),
        stripe: None,
        transparent: crate::daemon::settings::Transparency::Off,
        save_energy: SaveEnergy::Never,
        short_queues: true,
        ranges: true,
        probes: Vec::new(),
        state_dir: "/nowhere".into(),
        finder: None,
    });
    hub.uplinks
        .locals
        .borrow_mut()
        .push("127.0.0.0/8".parse().expect("network"));
    hub
}

/// Registers a connection of a local client to port 80 of `server`. Returns the connection and its possible links.
pub(crate) fn begin(hub: &Hub, server: IpAddr) -> (Rc<Live>, Vec<LinkId>) {
    let purpose = Purpose {
        dscp: None,
        client: ([127, 0, 0, 1], 1).into(),
        app: None,
        target: SocketAddr::new(server, 80).into(),
        protocol: Protocol::Socks5,
        warm: Vec::new(),
    };
    hub.begin(purpose, &[server]).expect("a link")
}

/// Returns settings with fixed keys and without known peers.
pub(crate) fn striping() -> StripeSettings {
    StripeSettings {
        keys: Arc::new(StaticKeys::from_private([3; 32])),
        known: Known::new(vec![KnownPeer {
            name: "peer".to_owned(),
            public_key: [4; 32],
            serves: None,
        }]),
        enrolment: None,
        striping: Striping::RoundRobin,
        ask_port: 7701,
        listen: Some(([0, 0, 0, 0], 7701).into()),
        allow: Vec::new(),
        max: 8,
    }
}

/// Adds a link over `device` that leads to all IPv4 addresses.
pub(crate) fn add_link(hub: &Hub, device: &str) -> LinkId {
    let mut placer = hub.placer.borrow_mut();
    let link = placer.add_link(LinkSettings::default());
    let reach = Reach {
        v4: true,
        ..Reach::default()
    };
    placer.set_reach(link, reach);
    hub.uplinks.devices.borrow_mut().push(Device {
        name: device.to_owned(),
        source: Vec::new(),
        addresses: Vec::new(),
        silent_since: None,
    });
    link
}

#[test]
fn a_notification_for_an_earlier_link_is_ignored() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("runtime");
    runtime.block_on(async {
        let hub = hub();
        let (live, _) = begin(&hub, [127, 0, 0, 1].into());
        live.stop(Stop::LinkLost);
        hub.moved(&live, LinkId(1), &[LinkId(0)]);
        let moment = Duration::from_millis(20);
        let stopped = tokio::time::timeout(moment, live.stopped()).await;
        assert!(stopped.is_err(), "that was the old link");
        live.stop(Stop::Idle);
        let stopped = tokio::time::timeout(moment, live.stopped()).await;
        assert!(stopped.is_ok());
    });
}

#[test]
fn who_is_on_a_links_side_is_not_served_unless_the_user_says_so() {
    let hub = Rc::new(hub());
    let mut placer = hub.placer.borrow_mut();
    let link = placer.add_link(LinkSettings::default());
    let net = |text: &str| -> IpNet { text.parse().expect("network") };
    let reach = Reach {
        v4: true,
        v6: false,
        neighbours: vec![net("192.168.1.0/24")],
    };
    placer.set_reach(link, reach);
    drop(placer);
    hub.uplinks.own.borrow_mut().insert([192, 168, 1, 7].into());
    hub.uplinks.locals.borrow_mut().push(net("10.1.0.0/16"));
    for (client, is_served) in [
        ("127.0.0.1", true),
        ("::ffff:127.0.0.1", true),
        ("192.168.1.7", true),
        ("10.1.2.3", true),
        ("192.168.1.9", false),
        ("10.2.0.1", false),
        ("192.0.2.1", false),
    ] {
        let client = client.parse().expect("address");
        assert_eq!(hub.admit(client).is_some(), is_served, "{client}");
    }
}

#[test]
fn own_services_are_for_clients_on_the_host_only() {
    let hub = hub();
    let ip = |text: &str| text.parse::<IpAddr>().expect("address");
    hub.uplinks
        .own
        .borrow_mut()
        .extend(["192.168.1.1", "172.17.0.1", "fd00::1"].map(ip));
    let cases = [
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "192.168.1.1",
        "::ffff:172.17.0.1",
        "fd00::1",
    ];
    for to in cases.map(ip) {
        assert!(!hub.may_reach(ip("192.168.1.9"), to), "{to}");
        assert!(!hub.may_reach(ip("::ffff:192.168.1.9"), to), "{to}");
        for own in ["127.0.0.1", "::ffff:127.0.0.1", "192.168.1.1", "fd00::1"] {
            assert!(hub.may_reach(ip(own), to), "{own} to {to}");
        }
    }
    assert!(hub.may_reach(ip("192.168.1.9"), ip("192.168.1.2")));
    assert!(hub.may_reach(ip("192.168.1.9"), ip("192.0.2.1")));
}

#[test]
fn parts_take_no_more_descriptors_than_there_are_for_them() {
    let hub = hub();
    let link = add_link(&hub, "l0");
    let (live, _) = begin(&hub, [10, 0, 0, 1].into());
    let begin_part = || hub.begin_part(&live, link, Bytes::new(100_000));
    let parts: Vec<_> = (0..3).map(|_| begin_part().expect("placed")).collect();
    assert!(hub.has_room_for_parts());
    let last = begin_part().expect("placed");
    assert!(!hub.has_room_for_parts(), "half of eight");
    hub.end_part(&last);
    assert!(hub.has_room_for_parts());
    for part in parts {
        hub.end_part(&part);
    }
    assert_eq!(hub.table.live.borrow().len(), 1);
}
