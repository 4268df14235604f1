//! Policy `awi` in the whole engine: load is shifted according to the losses that the other end reports.

use std::time::Duration;

use pleach_core::{counters::DropReason, tunnel::TunnelStatus, units::Bitrate};

use crate::world::{PathModel, World, connected, number_of};

/// Creates client and gateway over a fixed line of `rate` and a second line with a longer delay and no rate limit.
fn world(rate: Option<Bitrate>, seed: u64) -> World {
    let mut world = World::new(
        1,
        &[PathModel::with_delay(7), PathModel::with_delay(18)],
        "awi",
        seed,
    );
    world.paths[0].rate = rate;
    world.run_for(Duration::from_millis(500));
    assert!(world.hosts.iter().all(|host| host.endpoint.is_up()));
    assert_eq!(weights(&world), [50, 0], "before anything is sent");
    world
}

fn status(world: &World, host: usize) -> TunnelStatus {
    let mut peers = world.hosts[host].endpoint.status();
    peers.next().expect("a peer").1
}

/// Returns the gateway's weights of the two paths.
fn weights(world: &World) -> [u32; 2] {
    let status = status(world, 0);
    [status.paths[0].weight, status.paths[1].weight]
}

/// Sends packets of 1000 bytes of three flows downwards at `mbps` for `time`. Returns the number sent, and the number
/// of all packets lost on the wire.
fn stream(world: &mut World, number: &mut u32, mbps: u64, time: Duration) -> (u64, u64) {
    let (first, lost_before) = (*number, world.lost_data);
    let end = world.now + time;
    while world.now < end {
        world.send(0, 1, *number as u16 % 3, *number, 1000);
        *number += 1;
        world.run_for(Duration::from_nanos(8_000_000 / mbps));
    }
    (u64::from(*number - first), world.lost_data - lost_before)
}

/// Returns the numbers delivered to the client, of all flows, in the order of delivery.
fn delivered(world: &World) -> Vec<u32> {
    let packets = world.hosts[1].delivered.iter();
    packets.map(|(_, packet)| number_of(packet).1).collect()
}

#[test]
fn load_beyond_the_fixed_line_moves_to_the_other_and_comes_back() {
    let mut world = world(Some(Bitrate::from_mbps(8)), 1);
    let mut number = 0;
    let (_, lost) = stream(&mut world, &mut number, 6, Duration::from_secs(2));
    assert_eq!((lost, weights(&world)), (0, [50, 0]));
    let on_mobile = status(&world, 0).paths[1].tx_bytes;
    assert_eq!(on_mobile, 0);

    let (_, first_loss) = stream(&mut world, &mut number, 12, Duration::from_secs(1));
    assert!(first_loss > 10, "{first_loss}");
    stream(&mut world, &mut number, 12, Duration::from_secs(2));
    let (sent, lost) = stream(&mut world, &mut number, 12, Duration::from_secs(4));
    // The fixed line carries 7.7 Mbit/s in packets of 1000 bytes, so the weight is 50 (12 - 7.7) / 7.7 = 28.
    let [fixed, mobile] = weights(&world);
    assert_eq!(fixed, 50);
    assert!((25..=33).contains(&mobile), "{mobile}");
    assert!(lost * 100 < sent, "{lost} of {sent}");

    let (_, lost) = stream(&mut world, &mut number, 4, Duration::from_secs(9));
    assert_eq!(weights(&world), [50, 0]);
    assert!(lost < 10, "{lost}");
    let before = status(&world, 0).paths[1].tx_bytes;
    stream(&mut world, &mut number, 4, Duration::from_secs(1));
    assert_eq!(status(&world, 0).paths[1].tx_bytes, before);

    // Packets were lost on the wire only, and no packet was dropped from a queue.
    world.run_for(Duration::from_millis(200));
    assert_eq!(world.hosts[0].endpoint.drops().get(DropReason::Aqm), 0);
    let numbers = delivered(&world);
    assert!(numbers.is_sorted(), "one order for all flows");
    assert_eq!(numbers.len() as u64, u64::from(number) - world.lost_data);
    let resequencer = status(&world, 1).resequencer;
    assert_eq!(resequencer.lost_expired, world.lost_data);
    assert!(resequencer.released_after_hold > 1000, "{resequencer:?}");
}

#[test]
fn weights_return_while_nothing_is_sent() {
    let mut world = world(Some(Bitrate::from_mbps(8)), 2);
    let mut number = 0;
    stream(&mut world, &mut number, 12, Duration::from_secs(2));
    let [_, mobile] = weights(&world);
    assert!(mobile > 10, "{mobile}");
    world.run_for(Duration::from_secs(15));
    let [_, mobile] = weights(&world);
    assert_eq!(mobile, 0);
}

#[test]
fn when_the_fixed_line_fails_the_other_carries_all_and_it_gets_its_share_back() {
    let mut world = world(None, 3);
    let mut number = 0;
    stream(&mut world, &mut number, 8, Duration::from_secs(1));
    for _ in 0..2 {
        world.set_silent(0, true);
        stream(&mut world, &mut number, 8, Duration::from_secs(3));
        let before = status(&world, 0).paths.clone();
        world.set_silent(0, false);
        stream(&mut world, &mut number, 8, Duration::from_secs(30));
        let after = status(&world, 0).paths;
        let [fixed, mobile] = [0, 1].map(|at| after[at].tx_bytes - before[at].tx_bytes);
        assert!(fixed > 10 * mobile, "{fixed} {mobile}");
    }
    world.run_for(Duration::from_millis(500));
    let numbers = delivered(&world);
    assert!(numbers.is_sorted());
    let too_old = world.hosts[1].drops(DropReason::TooOld);
    assert_eq!(numbers.len() as u64, u64::from(number) - too_old);
    assert!(too_old < 50, "{too_old}");
}

#[test]
fn the_users_own_limit_holds_and_is_no_loss() {
    let mut world = world(None, 4);
    let now = world.now;
    world.hosts[1].endpoint.update_links(now, "link0", |link| {
        link.download = Some(Bitrate::from_mbps(8));
    });
    world.run_for(Duration::from_millis(500));
    let mut number = 0;
    let before = status(&world, 0).paths[0].tx_bytes;
    stream(&mut world, &mut number, 12, Duration::from_secs(4));
    let fixed = status(&world, 0).paths[0].tx_bytes - before;
    // IP and UDP headers count as well: 28 bytes for each payload of 1038.
    let on_wire = fixed * (1_038 + 28) / 1_038;
    assert!((3_900_000..=4_100_000).contains(&on_wire), "{on_wire}");
    assert_eq!(
        weights(&world),
        [50, 0],
        "nothing is lost, so nothing moves"
    );
    world.run_for(Duration::from_millis(500));
    assert_eq!(delivered(&world), (0..number).collect::<Vec<_>>());
}

#[test]
fn packets_sent_before_the_order_is_agreed_on_are_not_lost() {
    for seed in 0..10 {
        let mut world = World::pair("awi", seed);
        world
            .run_until_true(Duration::from_secs(1), connected)
            .expect("connects");
        if seed > 0 {
            // The control message about the order may be lost. Then it is repeated in the middle of the stream.
            world.paths.iter_mut().for_each(|path| path.loss_pct = 60);
            world.run_for(Duration::from_millis(40));
            world.paths.iter_mut().for_each(|path| path.loss_pct = 0);
        }
        let mut number = 0;
        stream(&mut world, &mut number, 8, Duration::from_secs(2));
        world.run_for(Duration::from_millis(500));
        assert_eq!(delivered(&world), (0..number).collect::<Vec<_>>());
    }
}
