//! Shares of the links.

use std::{
    io::Write as _,
    net::{TcpStream, UdpSocket},
};

use crate::world::{FAR_V4, FAR_V6, FIXED, PATIENCE, World, packets, within};

/// Tolerated difference of shares: each CPU counts separately, and each count is accurate to a packet or two.
const SLACK: f64 = 0.02;

#[track_caller]
fn assert_near(share: f64, wanted: f64, slack: f64) {
    assert!(
        (share - wanted).abs() < slack,
        "{share} instead of {wanted}"
    );
}

#[test]
fn bytes_are_shared_by_weight_in_both_families_and_anew_after_a_change() {
    let Some(world) = World::new() else { return };
    for backend in ["bpf", "clsact"] {
        let equalizer = world.equalizer(&format!("{FIXED}backend = \"{backend}\"\n"));
        for far in [FAR_V4, FAR_V6] {
            equalizer.set_weights(&["l0=3", "l1=1"]);
            // Every fourth packet is long, so that shares of packets and of bytes differ.
            let len = |number: usize| if number.is_multiple_of(4) { 1400 } else { 10 };
            world.send(far, 1000, len);
            assert_near(equalizer.share("share_bytes"), 0.75, SLACK);
            equalizer.set_weights(&["l0=1", "l1=4"]);
            world.send(far, 1000, len);
            assert_near(equalizer.share("share_bytes"), 0.2, SLACK);
        }
        let status = equalizer.status().expect("it runs");
        let splitter = &status["splitter"];
        assert_eq!(
            (&status["mode"], &splitter["weights"], &splitter["backend"]),
            (&"equalize".into(), &"live".into(), &backend.into())
        );
        equalizer.stop();
    }
}

#[test]
fn packets_are_shared_by_weight_if_asked_and_by_nftables() {
    let Some(world) = World::new() else { return };
    for more in ["interleave = true", "backend = \"nft\""] {
        let equalizer = world.equalizer(&format!("{FIXED}{more}\n"));
        let len = |number: usize| if number.is_multiple_of(4) { 1400 } else { 10 };
        world.send(FAR_V4, 1000, len);
        assert_near(equalizer.share("share_packets"), 0.75, SLACK);
        equalizer.set_weights(&["l0=100", "l1=7"]);
        world.send(FAR_V6, 1070, len);
        assert_near(equalizer.share("share_packets"), 100.0 / 107.0, SLACK);
        equalizer.stop();
    }
}

#[test]
fn a_stream_over_both_links_loses_nothing_while_weights_change() {
    const LEN: usize = 20 << 20;
    let Some(world) = World::new() else { return };
    let equalizer = world.equalizer(FIXED);
    let reader = world.receive_stream();
    let content = |at: usize| u8::try_from(at % 251).expect("small");
    world
        .host
        .run(|| {
            let mut stream = TcpStream::connect((FAR_V4, 7000))?;
            let data: Vec<u8> = (0..LEN).map(content).collect();
            for (turn, part) in data.chunks(LEN / 8).enumerate() {
                let weights = if turn % 2 == 0 {
                    ["l0=1", "l1=4"]
                } else {
                    ["l0=100", "l1=7"]
                };
                equalizer.set_weights(&weights);
                stream.write_all(part)?;
            }
            Ok(())
        })
        .expect("sends");
    let data = reader.join().expect("no panic").expect("reads");
    assert_eq!(data.len(), LEN);
    assert!(
        data.iter()
            .enumerate()
            .all(|(at, byte)| *byte == content(at))
    );
    let status = equalizer.status().expect("it runs");
    let sent = |link: &str| {
        status["splitter"]["links"][link]["packets"]
            .as_u64()
            .expect("number")
    };
    assert!(
        sent("l0") > 100 && sent("l1") > 100,
        "both were used: {status}"
    );
    for (ours, theirs) in [("l0", "r0"), ("l1", "r1")] {
        let arrived = within(PATIENCE, || {
            let (sent, received) = (packets(&world.host, ours).1, packets(&world.peer, theirs).0);
            (sent == received).then_some(())
        });
        assert!(arrived.is_some(), "packets were lost on {ours}");
    }
}

#[test]
fn flows_stay_on_one_link_if_asked() {
    let Some(world) = World::new() else { return };
    let equalizer = world.equalizer(&format!("{FIXED}spread = \"flow\"\n"));
    world.send(FAR_V4, 200, |_| 100);
    let share = equalizer.share("share_packets");
    assert!(
        !(0.01..0.99).contains(&share),
        "one flow, two links: {share}"
    );
    // Each socket has a port of its own.
    world
        .host
        .run(|| {
            for _ in 0..400 {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect((FAR_V4, 9))?;
                for _ in 0..5 {
                    let _ = socket.send(&[0; 100]);
                }
            }
            Ok(())
        })
        .expect("sends");
    let share = equalizer.share("share_packets");
    assert!((0.6..0.9).contains(&share), "many flows: {share}");
    equalizer.stop();
}
