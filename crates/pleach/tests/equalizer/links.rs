//! Links that disappear, return, and carry other traffic.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::world::{FAR_V4, FAR_V6, FIXED, World, both_up};

#[test]
fn a_link_that_vanishes_is_left_out_and_a_new_one_of_its_name_taken_in() {
    let Some(world) = World::new() else { return };
    let equalizer = world.equalizer(FIXED);
    for far in [FAR_V4, FAR_V6] {
        // The link that the routes prefer.
        world.host.ip("link delete l0\n").expect("ip");
        let status = equalizer.until("l0 is gone", |status| status["links"][0]["state"] == "down");
        assert_eq!(status["splitter"]["last_change_why"], "l0 is down");
        world.send(far, 100, |_| 100);
        assert!(equalizer.share("share_packets") < 0.01);
        world.add_link(0);
        equalizer.until("l0 is back", both_up);
        let refilled = crate::world::within(crate::world::PATIENCE, || {
            equalizer.set_weights(&["l0=3", "l1=1"]);
            world.send(far, 100, |_| 100);
            (equalizer.share("share_packets") > 0.7).then_some(())
        });
        assert!(refilled.is_some(), "nothing over l0");
    }
    equalizer.stop();
}

#[test]
fn a_link_without_carrier_is_left_out_until_it_has_one_again() {
    let Some(world) = World::new() else { return };
    for backend in ["bpf", "clsact"] {
        let equalizer = world.equalizer(&format!("{FIXED}backend = \"{backend}\"\n"));
        for (end, device) in [(&world.peer, "r0"), (&world.host, "l0")] {
            end.ip(&format!("link set {device} down\n")).expect("ip");
            equalizer.until("l0 is out", |status| status["links"][0]["state"] == "down");
            world.send(FAR_V4, 100, |_| 100);
            assert!(equalizer.share("share_packets") < 0.01);
            end.ip(&format!("link set {device} up\n")).expect("ip");
            equalizer.until("l0 is back", both_up);
            equalizer.set_weights(&["l0=1", "l1=1"]);
            equalizer.set_weights(&["l0=3", "l1=1"]);
            world.send(FAR_V4, 100, |_| 100);
            assert!(equalizer.share("share_packets") > 0.7);
        }
        equalizer.stop();
    }
}

#[test]
fn automatic_weights_make_room_for_others() {
    let Some(world) = World::new() else { return };
    let equalizer = world.equalizer("interval = \"100ms\"\n");
    let share =
        |status: &serde_json::Value| status["splitter"]["links"]["l0"]["share_wanted"].as_f64();
    equalizer.until("equal at first", |status| share(status) == Some(0.5));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            world.host.run(|| {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                while !done.load(Ordering::Relaxed) {
                    // A next hop is not one of the destinations, so this packet is not spread.
                    let _ = socket.send_to(&[0; 1000], ("10.10.0.2", 9));
                    thread::park_timeout(Duration::from_millis(1));
                }
                Ok(())
            })
        });
        let status = equalizer.until("less on l0", |status| {
            share(status).is_some_and(|share| share < 0.4)
        });
        done.store(true, Ordering::Relaxed);
        let background = &status["splitter"]["links"]["l0"]["background_mbps"];
        assert!(
            background.as_f64().is_some_and(|mbps| mbps > 0.0),
            "{status}"
        );
    });
    equalizer.until("equal again", |status| {
        share(status).is_some_and(|share| share > 0.48)
    });
    equalizer.stop();
}
