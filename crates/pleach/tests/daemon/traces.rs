//! Changes that daemons make to the host. None of them may remain afterwards.

use std::os::unix::net::UnixStream;

use pleach_lab::netns::Netns;

use crate::{
    process::{Client, Daemon, Gateway, TUNNEL, link},
    traffic::{Target, tcp},
    world::{PATIENCE, World, assert_same, picture, ping, run, until},
};

/// Snapshots of client and gateway.
struct Pictures([String; 2]);

impl Pictures {
    fn of(world: &World) -> Self {
        Self([picture(&world.client), picture(&world.gateway)])
    }

    #[track_caller]
    fn assert_back(&self, world: &World) {
        let Self([client, gateway]) = Self::of(world);
        assert_same("client", &self.0[0], &client);
        assert_same("gateway", &self.0[1], &gateway);
    }
}

/// Starts both ends, and waits until their links are up.
#[track_caller]
fn start(world: &World) -> (Daemon, Daemon) {
    let gateway = Gateway::default().start(world);
    gateway.until_up();
    let client = Client::default().start(world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    (client, gateway)
}

fn tx_bytes(host: &Netns, device: &str) -> u64 {
    let table = run(host, "cat", &["/proc/self/net/dev"]);
    let line = table
        .lines()
        .find_map(|line| line.trim().strip_prefix(&format!("{device}:")))
        .expect("the device");
    let field = line.split_whitespace().nth(8).expect("nine fields");
    field.parse().expect("a number")
}

#[test]
fn a_default_route_leads_everything_into_the_tunnel_and_goes_without_a_trace() {
    let Some(world) = World::new() else { return };
    // A strict filter would drop packets that arrive on the second link.
    let strict = [
        ("ipv4/conf/l0/rp_filter", "1"),
        ("ipv4/conf/l1/rp_filter", "1"),
    ];
    world.client.sysctl(&strict).expect("settings");
    let before = Pictures::of(&world);
    let (mut client, mut gateway) = start(&world);

    for address in ["10.99.0.2", "203.0.113.5", "198.51.100.1", "2001:db8::77"] {
        let route = run(&world.client, "ip", &["route", "get", address]);
        assert!(route.contains(TUNNEL), "{route}");
    }
    let Pictures([client_now, gateway_now]) = Pictures::of(&world);
    for (picture, change) in [
        (&client_now, "ipv4/conf/l1/rp_filter:2"),
        (&client_now, TUNNEL),
        (&gateway_now, "ipv4/ip_forward:1"),
        (&gateway_now, "table inet pleach_plD0"),
    ] {
        assert!(picture.contains(change), "{change} is not in the picture");
    }
    let inside = tx_bytes(&world.client, TUNNEL);
    let len = 2 << 20;
    let server = Target::new(&world.server, "10.99.0.2");
    tcp(&world.client, &server, len).expect("a transfer");
    let carried = tx_bytes(&world.client, TUNNEL) - inside;
    // No datagram of the tunnel was sent into the tunnel: it carried the data once, and some acknowledgements.
    assert!(
        carried > len as u64 && carried < 3 * len as u64 / 2,
        "{carried}"
    );
    // The gateway's address is reached over the links only; an inner address is reached as well.
    assert!(ping(&world.client, &["203.0.113.5"], PATIENCE));
    client.until_links_up(&["l0", "l1"]);

    // A program that connects to the control socket and sends nothing delays nobody.
    let _idle = [&client, &gateway].map(|end| UnixStream::connect(&end.control).expect("answers"));
    client.stop();
    gateway.stop();
    before.assert_back(&world);
    assert!(!client.control.exists() && !gateway.control.exists());
}

#[test]
fn a_daemon_whose_device_is_deleted_ends_and_leaves_no_trace() {
    let Some(world) = World::new() else { return };
    let before = Pictures::of(&world);
    let (mut client, mut gateway) = start(&world);
    for (host, daemon) in [(&world.client, &mut client), (&world.gateway, &mut gateway)] {
        let delete = format!("link del {TUNNEL}\n");
        host.ip(&delete).expect("the device is there");
        until("it ends", || daemon.has_ended());
    }
    before.assert_back(&world);
}

#[test]
fn after_a_kill_a_start_works_at_once_and_clears_everything() {
    let Some(world) = World::new() else { return };
    let before = Pictures::of(&world);
    let (mut client, mut gateway) = start(&world);
    let server = Target::new(&world.server, "10.99.0.2");

    client.kill();
    client.start_again();
    client.until_up();
    tcp(&world.client, &server, 100_000).expect("a transfer after the client was killed");

    gateway.kill();
    gateway.start_again();
    until("a transfer after the gateway was killed", || {
        tcp(&world.client, &server, 100_000).is_ok()
    });
    client.stop();
    gateway.stop();
    before.assert_back(&world);

    // Both daemons are killed, and other daemons of the same names clean up.
    let (mut client, mut gateway) = start(&world);
    client.kill();
    gateway.kill();
    let (mut client, mut gateway) = start(&world);
    client.stop();
    gateway.stop();
    before.assert_back(&world);
}

#[test]
fn a_second_daemon_of_one_name_is_refused_and_leaves_the_first_alone() {
    let Some(world) = World::new() else { return };
    let (client, gateway) = start(&world);
    let pictures = Pictures::of(&world);

    let twin = client.start_twin();
    let gateway_twin = gateway.start_twin();

    // The gateway's port is in use as well, which is detected earlier.
    let line = String::from_utf8(gateway_twin.stderr).expect("text");
    assert_eq!(gateway_twin.status.code(), Some(2), "{line}");
    assert!(line.contains("cannot listen on [::]:7700"), "{line}");
    let line = String::from_utf8(twin.stderr).expect("text");
    assert_eq!(twin.status.code(), Some(1), "{line}");
    assert!(
        line.contains(&format!("tunnel {TUNNEL} runs already")),
        "{line}"
    );
    pictures.assert_back(&world);
    client.until_links_up(&["l0", "l1"]);
    let server = Target::new(&world.server, "10.99.0.2");
    tcp(&world.client, &server, 100_000).expect("a transfer");
}

#[test]
fn tunnels_of_two_names_live_side_by_side() {
    let Some(world) = World::new() else { return };
    let before = Pictures::of(&world);
    let first = start(&world);
    let with_first = Pictures::of(&world);
    let gateway = Gateway {
        tunnel: "plD1",
        network: 78,
        port: 7701,
        ..Gateway::default()
    };
    let client = Client {
        tunnel: "plD1",
        network: 78,
        endpoint: "203.0.113.5:7701",
        allowed_ips: "\"10.78.0.0/24\", \"fd78::/64\"",
        ..Client::default()
    };
    let (near, far) = (["10.77.0.1", "fd77::1"], ["10.78.0.1", "fd78::1"]);
    let reach = |addresses: &[&str]| {
        for address in addresses {
            assert!(ping(&world.client, &[address], PATIENCE), "{address}");
        }
    };

    let mut second = (client.start(&world, &world.client), gateway.start(&world));
    second.0.until_links_up(&["l0", "l1"]);
    reach(&[near, far].concat());
    second.0.stop();
    second.1.stop();
    with_first.assert_back(&world);
    reach(&near);

    // In the other order: the first tunnel ends, the second continues.
    let mut second = (client.start(&world, &world.client), gateway.start(&world));
    let (mut first_client, mut first_gateway) = first;
    second.0.until_links_up(&["l0", "l1"]);
    first_client.stop();
    first_gateway.stop();
    reach(&far);
    assert!(link(&second.0.until_up(), "l0").is_some());
    second.0.stop();
    second.1.stop();
    before.assert_back(&world);
}
