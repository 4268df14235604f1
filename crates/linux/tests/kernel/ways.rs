//! The kernel's look-up finds every route that leads from a device to an address, and no other.

use std::net::IpAddr;

use pleach_linux::watch::{LinkSnapshot, Targets, Way};

use crate::namespace::{Namespace, until};

const V4: &str = "203.0.113.5";
const V6: &str = "2001:db8::5";
const MARK: u32 = 0x706c;

/// Creates a namespace with two devices that have addresses and a carrier, but no route to the targets.
fn world() -> Option<(Namespace, Namespace)> {
    let (here, there) = (Namespace::new()?, Namespace::new()?);
    for number in [0, 1] {
        let device = format!("plL{number}");
        here.connect(&device, &there, &device);
        here.ip(&format!("address add 10.{number}.0.1/24 dev {device}"));
        here.ip(&format!("address add fd0{number}::1/64 dev {device} nodad"));
    }
    until("the devices have a carrier", || {
        links(&here)
            .iter()
            .all(|link| link.has_carrier || link.is_loopback)
    });
    Some((here, there))
}

fn links(here: &Namespace) -> Vec<LinkSnapshot> {
    let targets = Targets {
        addresses: [V4, V6].map(|text| text.parse().expect("literal")).into(),
        fwmark: Some(MARK),
    };
    here.run(|| LinkSnapshot::read_all(&targets).expect("netlink works"))
}

fn ways(here: &Namespace, device: &str) -> Vec<Way> {
    let links = links(here);
    let link = links.into_iter().find(|link| link.name == device);
    link.expect("device").ways
}

fn way(target: &str, source: Option<&str>) -> Way {
    let parse = |text: &str| -> IpAddr { text.parse().expect("literal") };
    Way {
        target: parse(target),
        source: source.map(parse),
    }
}

#[test]
fn a_device_without_a_route_has_no_way() {
    let Some((here, _there)) = world() else {
        return;
    };
    assert_eq!(ways(&here, "plL0"), []);
    // A default route on another device does not count for this device.
    here.ip("route add default via 10.1.0.2");
    here.ip("route add default via fd01::2");
    assert_eq!(ways(&here, "plL0"), []);
    assert_eq!(ways(&here, "plL1"), [way(V4, None), way(V6, None)]);
    here.ip(&format!("route add unreachable {V4}"));
    assert_eq!(ways(&here, "plL1"), [way(V6, None)]);
}

#[test]
fn host_routes_and_neighbours_are_ways() {
    let Some((here, _there)) = world() else {
        return;
    };
    for number in [0, 1] {
        here.ip(&format!(
            "route add {V4} via 10.{number}.0.2 metric {number}"
        ));
        here.ip(&format!(
            "route add {V6} via fd0{number}::2 metric 1{number}"
        ));
    }
    for device in ["plL0", "plL1"] {
        assert_eq!(ways(&here, device), [way(V4, None), way(V6, None)]);
    }
    here.ip(&format!("route del {V4} via 10.0.0.2"));
    here.ip(&format!("route del {V6} via fd00::2"));
    assert_eq!(ways(&here, "plL0"), []);
    here.ip("address add 203.0.113.7/24 dev plL0");
    here.ip("address add 2001:db8::7/64 dev plL0 nodad");
    assert_eq!(ways(&here, "plL0"), [way(V4, None), way(V6, None)]);
}

#[test]
fn default_routes_in_other_tables_are_ways_if_a_rule_leads_there() {
    let Some((here, _there)) = world() else {
        return;
    };
    let add = |version: &str, via: &str| {
        here.ip(&format!("{version} route add default via {via} table 100"));
    };
    add("-4", "10.0.0.2");
    add("-6", "fd00::2");
    assert_eq!(ways(&here, "plL0"), []);
    here.ip("-4 rule add oif plL0 lookup 100 priority 100");
    here.ip("-6 rule add oif plL0 lookup 100 priority 100");
    assert_eq!(ways(&here, "plL0"), [way(V4, None), way(V6, None)]);
    here.ip("-4 rule del priority 100");
    here.ip("-6 rule del priority 100");
    here.ip(&format!("-4 rule add fwmark {MARK} lookup 100"));
    assert_eq!(ways(&here, "plL0"), [way(V4, None)]);
}

#[test]
fn a_rule_for_a_source_asks_the_socket_to_be_bound() {
    let Some((here, _there)) = world() else {
        return;
    };
    here.ip("-4 route add default via 10.0.0.2 table 100");
    here.ip("-6 route add default via fd00::2 table 100");
    here.ip("-4 rule add from 10.0.0.1 lookup 100");
    here.ip("-6 rule add from fd00::1 lookup 100");
    let expected = [way(V4, Some("10.0.0.1")), way(V6, Some("fd00::1"))];
    assert_eq!(ways(&here, "plL0"), expected);
    assert_eq!(ways(&here, "plL1"), []);
}

#[test]
fn the_route_of_a_vrf_is_a_way_of_its_devices() {
    let Some((here, _there)) = world() else {
        return;
    };
    let made = here.try_ip("link add plLv type vrf table 200");
    if !made {
        pleach_linux::requirement::skip_unbuilt("VRF");
        return;
    }
    here.ip("link set plLv up");
    here.ip("link set plL0 master plLv");
    here.ip("route add default via 10.0.0.2 table 200");
    here.ip("-6 address replace fd00::1/64 dev plL0 nodad");
    here.ip("-6 route add default via fd00::2 dev plL0 table 200");
    assert_eq!(ways(&here, "plL0"), [way(V4, None), way(V6, None)]);
    assert_eq!(ways(&here, "plL1"), []);
}
