//! Isolation of hosts: inner addresses, forwarding, and traffic while the daemon is not running.
//!
//! To prove that it can fail, each test also shows that the forbidden packets would pass without the rule.

use std::{thread, time::Duration};

use crate::{
    process::{Client, Gateway, TUNNEL, TwoClients},
    world::{PATIENCE, World, assert_same, picture, ping, run, until},
};

/// Time to wait for an answer that must not arrive.
const NO_ANSWER: Duration = Duration::from_millis(1);

fn nft(host: &pleach_lab::netns::Netns, command: &str) {
    run(host, "nft", &[command]);
}

#[test]
fn a_neighbour_on_a_link_gets_no_answer_from_the_inner_address() {
    let Some(world) = World::new() else { return };
    // No gateway is needed: device and address exist as soon as the daemon runs.
    let client = Client::default().start(&world, &world.client);
    until("the client runs", || client.status().is_some());
    world
        .gateway
        .ip("route add 10.77.0.2/32 via 10.1.0.2 dev g0\n\
             -6 route add fd77::2/128 via fd01:0::2 dev g0\n")
        .expect("a neighbour's routes");
    assert!(ping(&world.gateway, &["10.1.0.2"], PATIENCE));
    for inner in ["10.77.0.2", "fd77::2"] {
        assert!(!ping(&world.gateway, &[inner], NO_ANSWER), "{inner}");
    }
    // The host itself reaches the address.
    assert!(ping(&world.client, &["10.77.0.2"], PATIENCE));
    nft(
        &world.client,
        &format!("flush chain inet pleach_{TUNNEL} preraw"),
    );
    for inner in ["10.77.0.2", "fd77::2"] {
        assert!(
            ping(&world.gateway, &[inner], PATIENCE),
            "{inner} without the rule"
        );
    }
}

#[test]
fn a_gateway_forwards_nothing_for_strangers() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let stranger = world.another(2);
    // The server has routes back, so it would answer.
    world
        .server
        .ip("route add 10.1.2.0/24 via 10.99.0.1\n-6 route add fd01:2::/64 via fd99::1\n")
        .expect("routes");
    for server in ["10.99.0.2", "fd99::2"] {
        assert!(!ping(&stranger, &[server], NO_ANSWER), "{server}");
    }
    assert!(
        ping(&world.client, &["10.99.0.2"], PATIENCE),
        "by the tunnel"
    );
    nft(
        &world.gateway,
        &format!("flush chain inet pleach_{TUNNEL} may_forward"),
    );
    for server in ["10.99.0.2", "fd99::2"] {
        assert!(
            ping(&stranger, &[server], PATIENCE),
            "{server} without the rule"
        );
    }
}

#[test]
fn clients_reach_neither_each_other_nor_what_is_for_the_gateways_machine() {
    let Some(world) = World::new() else { return };
    let _hosts = TwoClients::start(&world, true);
    // A cloud's metadata service that the gateway can reach.
    let metadata = "169.254.169.254";
    let address = format!("addr add {metadata}/32 dev lo\n");
    world.server.ip(&address).expect("address");
    let route = format!("route add {metadata}/32 via 10.99.0.2\n");
    world.gateway.ip(&route).expect("route");
    assert!(ping(&world.gateway, &[metadata], PATIENCE));
    assert!(ping(&world.client, &["10.99.0.2"], PATIENCE));
    let denied = [metadata, "10.77.0.3", "fd77::3"];
    for address in denied {
        assert!(!ping(&world.client, &[address], NO_ANSWER), "{address}");
    }
    nft(
        &world.gateway,
        &format!("flush chain inet pleach_{TUNNEL} may_forward"),
    );
    for address in denied {
        assert!(
            ping(&world.client, &[address], PATIENCE),
            "{address} without the rule"
        );
    }
}

#[test]
fn nothing_leaves_past_the_tunnel_while_a_daemon_with_a_kill_switch_is_dead() {
    let Some(world) = World::new() else { return };
    let before = picture(&world.client);
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let mut client = Client {
        kill_switch: true,
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    // Counts packets that leave over a link towards the server.
    let count = "add table inet seen
        add chain inet seen out { type filter hook postrouting priority 0; }
        add rule inet seen out oifname { l0, l1 } ip daddr 10.99.0.2 counter
        add rule inet seen out oifname { l0, l1 } ip6 daddr fd99::2 counter";
    nft(&world.client, count);
    let seen = || {
        let text = run(&world.client, "nft", &["list table inet seen"]);
        text.matches("packets 0 ").count() < 2
    };
    let try_all = || {
        for server in ["10.99.0.2", "fd99::2"] {
            assert!(!ping(&world.client, &[server], NO_ANSWER), "{server}");
            assert!(!seen(), "{server}");
        }
    };
    assert!(ping(&world.client, &["10.99.0.2"], PATIENCE));
    client.kill();
    until("the device goes", || {
        !run(&world.client, "ip", &["link"]).contains(TUNNEL)
    });
    try_all();
    // Neighbours are still reachable.
    assert!(ping(&world.client, &["10.1.0.1"], PATIENCE));

    // Traffic continues while the next process starts, which must block it as well.
    thread::scope(|scope| {
        let mut command = world.client.command("ping");
        command.args(["-i", "0.002", "-c", "1000", "-W", "1", "10.99.0.2"]);
        let traffic = scope.spawn(move || command.output().expect("ping runs"));
        client.start_again();
        client.until_links_up(&["l0", "l1"]);
        traffic.join().expect("ends");
    });
    assert!(!seen());
    assert!(ping(&world.client, &["10.99.0.2"], PATIENCE));
    let file = client.file().to_owned();
    let recover = || {
        let mut command = world.client.command(env!("CARGO_BIN_EXE_pleach"));
        let output = command.arg("recover").arg(&file).output();
        output.expect("starts")
    };
    let refused = String::from_utf8_lossy(&recover().stderr).into_owned();
    assert!(refused.contains("runs"), "{refused}");
    assert!(ping(&world.client, &["10.99.0.2"], PATIENCE));
    client.kill();
    try_all();
    until("the device goes", || {
        !run(&world.client, "ip", &["link"]).contains(TUNNEL)
    });
    assert!(recover().status.success());
    let _ = ping(&world.client, &["10.99.0.2"], NO_ANSWER);
    assert!(seen(), "open again");
    nft(&world.client, "delete table inet seen");
    assert_same("the client's host", &before, &picture(&world.client));
    nft(&world.client, count);

    // A clean stop opens the host, even after a crash.
    client.start_again();
    client.until_links_up(&["l0", "l1"]);
    client.stop();
    let _ = ping(&world.client, &["10.99.0.2"], NO_ANSWER);
    assert!(seen(), "would be seen if it left");
    nft(&world.client, "delete table inet seen");
    until("the device goes", || {
        !run(&world.client, "ip", &["link"]).contains(TUNNEL)
    });
    assert_same("the client's host", &before, &picture(&world.client));
}
