//! Links that are dead, appear, disappear and change.

use pleach_core::ids::PathId;
use pleach_lab::netns::Netns;
use serde_json::Value;

use crate::{
    process::{Client, Daemon, Gateway, link, state},
    traffic::{Target, tcp},
    world::{INTERRUPTION, World, run},
};

fn ip(host: &Netns, lines: &str) {
    host.ip(&format!("{lines}\n")).expect("ip");
}

#[test]
fn a_dead_first_link_does_not_keep_the_tunnel_down() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let swallow = "table inet plDrop { chain c { type filter hook input priority 0; iifname g0 udp dport 7700 drop; }; }";
    // A black hole, no carrier, no host at the other end.
    for (program, death) in [
        ("nft", swallow),
        ("ip", "link set dev g0 down"),
        (
            "sh",
            "nft delete table inet plDrop; ip link set dev g0 up; ip addr flush dev g0",
        ),
    ] {
        let arguments = match program {
            "sh" => vec!["-c", death],
            _ => death.split(' ').collect(),
        };
        run(&world.gateway, program, &arguments);
        let mut client = Client::default().start(&world, &world.client);
        client.until_within(INTERRUPTION, "it comes up by the other link", |status| {
            status["up"] == true && state(status, "l1") == "up" && state(status, "l0") != "up"
        });
        let server = Target::new(&world.server, "10.99.0.2");
        tcp(&world.client, &server, 100_000).expect("a transfer");
        client.stop();
    }
}

#[test]
fn links_without_a_default_route_in_the_main_table_are_used() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    // On l0, a host route. On l1, a default route in a table that is used only by a rule for the source address.
    ip(
        &world.client,
        "route del default dev l0\nroute add 203.0.113.5 via 10.1.0.1 dev l0\n\
         route del default dev l1\nroute add default via 10.1.1.1 dev l1 table 100\n\
         rule add from 10.1.1.2 lookup 100 priority 100",
    );
    for links in [&["l0", "l1"][..], &[]] {
        let mut client = Client {
            links,
            policy: "round-robin",
            ..Client::default()
        }
        .start(&world, &world.client);
        client.until_links_up(&["l0", "l1"]);
        for name in ["l0", "l1"] {
            carries(&world, &client, name);
        }
        client.stop();
    }
}

#[test]
fn links_that_go_or_change_carry_traffic_again() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let client = Client {
        // The third link is plugged in later.
        links: &["l0", "l1", "l2"],
        policy: "round-robin",
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    assert_eq!(state(&client.until_up(), "l2"), "down");
    let carries = |name: &str| carries(&world, &client, name);
    let goes = |name: &str| {
        client.until(&format!("{name} goes"), |status| {
            // The other link must not be disturbed.
            assert_ne!(state(status, "l1"), "down", "{status}");
            state(status, name) == "down"
        });
    };
    carries("l0");

    world.plug(&world.client, 2);
    carries("l2");

    ip(&world.client, "link del l0");
    goes("l0");
    world.plug(&world.client, 0);
    carries("l0");

    // A new address, for example by a new lease. The default routes disappear with the old address.
    ip(&world.client, "addr flush dev l0");
    goes("l0");
    world.number(&world.client, 0, 3);
    carries("l0");
    // The new address is added before the old one is removed: the link reaches the gateway all the time, from a new
    // source address.
    let promote = [("ipv4/conf/l0/promote_secondaries", "1")];
    world.client.sysctl(&promote).expect("setting");
    ip(
        &world.client,
        "addr add 10.1.0.4/24 dev l0\naddr del 10.1.0.3/24 dev l0",
    );
    carries("l0");

    ip(&world.gateway, "link set dev g0 down");
    goes("l0");
    ip(&world.gateway, "link set dev g0 up");
    carries("l0");
    carries("l1");
}

#[test]
fn without_configured_links_default_routes_decide() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let client = Client {
        links: &[],
        policy: "round-robin",
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);

    // More often than there are path numbers: each number is reused after its link has disappeared.
    for _ in 0..PathId::MAX {
        world.plug(&world.client, 2);
        client.until_links_up(&["l0", "l1", "l2"]);
        ip(&world.client, "link del l2");
        client.until("l2 is let go", |status| link(status, "l2").is_none());
    }
    world.plug(&world.client, 2);
    client.until_links_up(&["l0", "l1", "l2"]);
    carries(&world, &client, "l2");

    ip(
        &world.client,
        "route del default dev l0\n-6 route del default dev l0",
    );
    client.until("l0 is let go", |status| {
        link(status, "l0").is_none() || state(status, "l0") == "down"
    });
    ip(&world.client, "link del l2");
    client.until("l2 is let go", |status| link(status, "l2").is_none());
    carries(&world, &client, "l1");
    ip(
        &world.client,
        "route add default via 10.1.0.1 dev l0 metric 100\n-6 route add default via fd01:0::1 dev l0 metric 100",
    );
    carries(&world, &client, "l0");
}

/// Waits until `name` is up and carries data in both directions.
#[track_caller]
fn carries(world: &World, client: &Daemon, name: &str) {
    client.until_links_up(&[name]);
    let bytes = |status: &Value| {
        let link = link(status, name).expect("the link");
        ["tx_bytes", "rx_bytes"].map(|key| link[key].as_u64().expect("a number"))
    };
    let [sent, received] = bytes(&client.until_up());
    let server = Target::new(&world.server, "10.99.0.2");
    client.until(&format!("{name} carries data"), |status| {
        tcp(&world.client, &server, 100_000).expect("a transfer");
        link(status, name).is_some() && {
            let [tx, rx] = bytes(status);
            tx > sent + 10_000 && rx > received + 10_000
        }
    });
}
