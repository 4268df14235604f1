//! Lost packets are repaired, most of them from repair symbols.

use std::time::Duration;

use pleach_core::{counters::DropReason, tunnel::TunnelStatus, units::Bitrate};

use crate::world::{PathModel, World, connected};

const PACKETS: u32 = 20_000;
const FLOWS: u16 = 3;

fn status(world: &World, host: usize) -> TunnelStatus {
    let mut peers = world.hosts[host].endpoint.status();
    peers.next().expect("a peer").1
}

/// Creates two paths that lose `loss_pct`, and sends a stream over them to the gateway, with answers.
fn stream(loss_pct: u64, len: usize) -> World {
    let paths = [10, 14].map(|millis| PathModel {
        loss_pct,
        ..PathModel::with_delay(millis)
    });
    stream_over(&paths, len, Duration::from_micros(300))
}

/// Sends the stream over `paths`, one packet every `gap`.
fn stream_over(paths: &[PathModel], len: usize, gap: Duration) -> World {
    let mut world = World::new(1, paths, "adaptive", 7);
    world
        .run_until_true(Duration::from_secs(2), connected)
        .expect("connects");
    world.run_for(Duration::from_millis(500));
    for number in 0..PACKETS {
        // Packets have different lengths, so that the length of a recovered packet is checked.
        let len = len - number as usize % 200;
        world.send(0, 1, number as u16 % FLOWS, number, len);
        if number % 10 == 0 {
            world.send(1, 0, 0, number, 100);
        }
        world.run_for(gap);
    }
    world.run_for(Duration::from_secs(1));
    world
}

/// Asserts that each of `sent` arrived once and in order. Exceptions are packets whose symbols and repair were lost too
/// and that arrived after they had been given up, which is counted.
fn assert_arrived(world: &World, host: usize, flow: u16, sent: Vec<u32>) {
    let mut numbers = world.numbers(host, flow);
    let late = numbers.windows(2).filter(|pair| pair[1] < pair[0]).count();
    let counted = status(world, host).resequencer.released_late;
    assert!(
        late <= 1 && late as u64 <= counted,
        "{late} late, {counted} counted"
    );
    numbers.sort_unstable();
    assert!(numbers == sent, "host {host}, flow {flow}: lost or doubled");
}

#[test]
fn random_losses_are_computed_and_nothing_is_lost_doubled_or_out_of_order() {
    let world = stream(2, 1_400);
    for flow in 0..FLOWS {
        let sent = (0..PACKETS).filter(|number| *number as u16 % FLOWS == flow);
        assert_arrived(&world, 1, flow, sent.collect());
    }
    assert_arrived(&world, 0, 0, (0..PACKETS).step_by(10).collect());
    for (_, packet) in &world.hosts[1].delivered {
        let (_, number) = crate::world::number_of(packet);
        assert_eq!(packet.len(), 1_400 - number as usize % 200);
    }
    let (sender, receiver) = (status(&world, 0), status(&world, 1));
    let lost = u64::from(PACKETS) / 50;
    assert!(receiver.recovered > lost * 3 / 4, "{receiver:?}");
    assert!(sender.symbols[0] > receiver.symbols[1] && receiver.symbols[1] > lost);
    assert!(sender.symbols[0] < u64::from(PACKETS) / 8, "{sender:?}");
    assert_eq!(
        world.hosts[1].endpoint.drops().get(DropReason::Malformed),
        0
    );
}

#[test]
fn a_path_that_loses_nothing_is_soon_charged_nothing() {
    let world = stream(0, 1_400);
    let [sent, _] = status(&world, 0).symbols;
    assert!(sent < u64::from(PACKETS) / 50, "{sent}");
    let [answers, received] = status(&world, 1).symbols;
    assert_eq!(received, sent);
    assert!(answers < u64::from(PACKETS) / 100, "{answers}");
}

#[test]
fn losses_are_computed_where_one_path_is_much_later_as_well() {
    let paths = [10, 70].map(|millis| PathModel {
        loss_pct: 1,
        rate: Some(Bitrate::from_mbps(50)),
        ..PathModel::with_delay(millis)
    });
    // At 80 Mbit/s, about 200 packets are in flight on the later path when the packets of the fast path have arrived.
    let world = stream_over(&paths, 1_400, Duration::from_micros(140));
    let (sender, receiver) = (status(&world, 0), status(&world, 1));
    let lost = u64::from(PACKETS) / 100;
    assert!(receiver.recovered > lost / 2, "{receiver:?}");
    assert!(sender.symbols[0] < u64::from(PACKETS) / 8, "{sender:?}");
}

#[test]
fn what_is_sent_again_over_a_long_round_trip_is_waited_for() {
    let paths = [PathModel {
        loss_pct: 4,
        ..PathModel::with_delay(270)
    }];
    let world = stream_over(&paths, 1_400, Duration::from_millis(4));
    let receiver = status(&world, 1);
    let late = receiver.resequencer.released_late;
    assert!(late <= 2, "{late}: {receiver:?}");
}
