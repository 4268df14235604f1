//! What leaves by a link under a kill switch, and who reaches the inner address.

use std::{net::UdpSocket as StdSocket, path::Path};

use pleach_core::packet::Ecn;
use pleach_linux::{
    nft::{BY_LINK, PAST_TUNNEL},
    routes::{Plan, Setup},
    tun::Tun,
    udp::{Transmit, UdpOptions, UdpSocket},
};

use crate::namespace::Namespace;

fn client(host: &Namespace, base: &Path, kill_switch: bool) -> (Setup, Tun) {
    host.run(|| {
        let mut setup = Setup::begin(base, "plLtun").expect("begins");
        let tun = Tun::create("plLtun", 1400).expect("root makes TUNs");
        let networks = |texts: &[&str]| {
            let texts = texts.iter();
            texts.map(|text| text.parse().expect("literal")).collect()
        };
        let plan = Plan {
            addresses: networks(&["10.77.0.2/24", "fd77::2/64"]),
            routes: networks(&["0.0.0.0/0", "::/0"]),
            mtu: 1400,
            kill_switch,
            ..Plan::default()
        };
        setup.apply(&plan).expect("applies");
        setup.hold();
        (setup, tun)
    })
}

/// A host on a LAN with a server that pretends to be the Internet too.
fn host() -> Option<(Namespace, Namespace)> {
    let (host, server) = (Namespace::new()?, Namespace::new()?);
    host.connect("lan", &server, "wan");
    host.ip("address add 192.0.2.1/24 dev lan");
    host.ip("-6 address add fd00:2::1/64 dev lan nodad");
    host.ip("route add default via 192.0.2.2");
    server.ip("address add 192.0.2.2/24 dev wan");
    server.ip("-6 address add fd00:2::2/64 dev wan nodad");
    for address in ["198.51.100.1/32", "2001:db8:5::1/128"] {
        server.ip(&format!("address add {address} dev lo"));
    }
    Some((host, server))
}

fn dropped(host: &Namespace, setup: &Setup, counter: &str) -> u64 {
    let counters = host.run(|| setup.dropped().expect("nft tells"));
    counters[counter]
}

#[test]
fn a_route_that_dhcp_announces_leads_past_the_tunnel_but_not_past_the_kill_switch() {
    let Some((host, server)) = host() else { return };
    let bases = [(); 2].map(|()| tempfile::tempdir().expect("tempdir"));
    // DHCP option 121: more specific than the tunnel's routes, through the LAN's server or on the link itself.
    for route in [
        "198.51.100.0/24 via 192.0.2.2",
        "2001:db8:5::/48 via fd00:2::2",
    ] {
        host.ip(&format!("route add {route} dev lan"));
    }
    let outside = ["198.51.100.1", "2001:db8:5::1"];
    let (setup, tun) = client(&host, bases[0].path(), false);
    for address in outside {
        assert!(host.pings(address, true), "{address} without a kill switch");
    }
    host.run(|| setup.undo().expect("undoes"));
    drop(tun);
    host.until_gone("plLtun");

    let (mut setup, tun) = client(&host, bases[1].path(), true);
    for address in outside {
        let before = dropped(&host, &setup, PAST_TUNNEL);
        assert!(!host.pings(address, false), "{address}");
        assert!(
            dropped(&host, &setup, PAST_TUNNEL) > before,
            "{address} is counted"
        );
    }
    // The LAN is reached, also one that the host comes to later.
    for neighbour in ["192.0.2.2", "fd00:2::2"] {
        assert!(host.pings(neighbour, true), "{neighbour}");
    }
    host.ip("address add 198.51.100.200/24 dev lan");
    assert!(!host.pings("198.51.100.1", false), "not known yet");
    host.run(|| setup.look_around().expect("looks"));
    assert!(
        host.pings("198.51.100.1", true),
        "a network of the host's own"
    );
    host.ip("address del 198.51.100.200/24 dev lan");
    host.run(|| setup.look_around().expect("looks"));
    // The tunnel's own datagrams leave.
    let gateway = server.run(|| StdSocket::bind("198.51.100.1:7700").expect("binds"));
    let patience = std::time::Duration::from_secs(5);
    gateway.set_read_timeout(Some(patience)).expect("sets");
    let own = host.run(|| {
        let mut options = UdpOptions::new("0.0.0.0:0".parse().expect("literal"));
        options.device = Some("lan".into());
        options.fwmark = Some(setup.fwmark());
        UdpSocket::bind(&options).expect("root may bind to devices")
    });
    let transmit = Transmit {
        destination: "198.51.100.1:7700".parse().expect("literal"),
        src_ip: None,
        ecn: Ecn::Capable,
        segment_size: None,
        contents: b"sealed",
    };
    own.send(&transmit).expect("sends");
    let mut buffer = [0; 100];
    let (len, _) = gateway.recv_from(&mut buffer).expect("arrives");
    assert_eq!(&buffer[..len], b"sealed");

    // The process dies: the LAN is reached, nothing else is.
    drop(tun);
    host.until_gone("plLtun");
    host.run(|| drop(setup));
    for address in outside {
        assert!(!host.pings(address, false), "{address} without the daemon");
    }
    for neighbour in ["192.0.2.2", "fd00:2::2"] {
        assert!(
            host.pings(neighbour, true),
            "{neighbour} without the daemon"
        );
    }
    assert!(
        host.run(|| pleach_linux::routes::recover(bases[1].path(), "plLtun"))
            .expect("opens")
    );
    assert!(host.pings("198.51.100.1", true));
}

#[test]
fn containers_reach_the_inner_address_and_neighbours_do_not() {
    let Some((host, neighbour)) = host() else {
        return;
    };
    let Some(container) = Namespace::new() else {
        return;
    };
    let base = tempfile::tempdir().expect("tempdir");
    host.ip("link add br0 type bridge");
    host.ip("address add 172.30.0.1/24 dev br0");
    host.ip("link set br0 up");
    let (mut setup, _tun) = client(&host, base.path(), false);
    // A container that starts later.
    host.connect("port", &container, "eth0");
    host.ip("link set port master br0");
    container.ip("address add 172.30.0.2/24 dev eth0");
    container.ip("route add default via 172.30.0.1");
    neighbour.ip("route add 10.77.0.2/32 via 192.0.2.1");
    host.run(|| setup.look_around().expect("looks"));
    assert!(container.pings("10.77.0.2", true));
    assert_eq!(dropped(&host, &setup, BY_LINK), 0);
    assert!(!neighbour.pings("10.77.0.2", false));
    assert!(dropped(&host, &setup, BY_LINK) > 0);
    host.run(|| setup.undo().expect("undoes"));
}
