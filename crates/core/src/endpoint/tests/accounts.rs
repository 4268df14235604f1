//! Byte counters and rate caps.

use super::*;
use crate::{
    endpoint::accounts::{Caps, Usage},
    units::Bitrate,
};

const LEN: usize = 1000;

/// Returns a UDP packet of [`LEN`] bytes between the client and the outside.
fn packet(is_up: bool, port: u8) -> PacketBuf {
    let mut bytes = vec![0; LEN];
    bytes[0] = 0x45;
    let total = u16::try_from(LEN).expect("short");
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[8] = 64;
    bytes[9] = 17;
    let (client, outside) = ([10, 0, 0, 1], [192, 0, 2, 9]);
    let (from, to) = if is_up {
        (client, outside)
    } else {
        (outside, client)
    };
    bytes[12..16].copy_from_slice(&from);
    bytes[16..20].copy_from_slice(&to);
    bytes[21] = port;
    let udp = u16::try_from(LEN - 20).expect("short");
    bytes[24..26].copy_from_slice(&udp.to_be_bytes());
    PacketBuf::from(bytes)
}

/// Offers two packets a millisecond in each direction, 16 Mbit/s. Returns the bytes delivered at the gateway and at
/// the client.
fn exchange(pair: &mut Pair, millis: u64) -> [usize; 2] {
    let mut delivered = [0; 2];
    for _ in 0..millis {
        for port in 0..2 {
            pair.client.handle_packet(pair.now, packet(true, port));
            pair.gateway.handle_packet(pair.now, packet(false, port));
        }
        pair.run(Duration::from_millis(1));
        for (endpoint, bytes) in [&mut pair.gateway, &mut pair.client]
            .into_iter()
            .zip(&mut delivered)
        {
            while let Some(packet) = endpoint.poll_deliver() {
                *bytes += packet.len();
                endpoint.pool().recycle(packet);
            }
        }
    }
    delivered
}

fn key() -> [u8; 32] {
    *StaticKeys::from_private([1; 32]).public()
}

fn usage(pair: &Pair) -> Usage {
    pair.gateway.usage_of(&key()).expect("known")
}

fn connected() -> Pair {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(1));
    assert!(pair.client.is_up() && pair.gateway.is_up());
    pair
}

/// Returns the rate of `bytes` in `millis` as a fraction of `cap`.
fn share(bytes: usize, millis: u64, cap: Bitrate) -> f64 {
    bytes as f64 * 8.0 / (millis as f64 / 1e3) / cap.as_bps() as f64
}

#[test]
fn caps_hold_within_two_percent_in_both_directions() {
    let mut pair = connected();
    let (up, down) = (Bitrate::from_mbps(5), Bitrate::from_mbps(8));
    let caps = Caps {
        up: Some(up),
        down: Some(down),
    };
    assert!(pair.gateway.set_caps(pair.now, &key(), caps));
    assert_eq!(pair.gateway.caps(&key()), Some(caps));
    exchange(&mut pair, 1_000);
    let millis = 5_000;
    let [up_bytes, down_bytes] = exchange(&mut pair, millis);
    for (bytes, cap) in [(up_bytes, up), (down_bytes, down)] {
        let share = share(bytes, millis, cap);
        assert!((0.98..=1.02).contains(&share), "{share}");
    }
    // All packets above the caps were dropped by the queues, and counted.
    let drops = pair.gateway.drops();
    let dropped = drops.get(DropReason::Aqm) + drops.get(DropReason::QueueFull);
    assert!(dropped > 5_000, "{dropped}");

    // Without caps all packets pass again.
    assert!(pair.gateway.set_caps(pair.now, &key(), Caps::default()));
    exchange(&mut pair, 1_000);
    let uncapped = exchange(&mut pair, 1_000);
    for bytes in uncapped {
        assert!(bytes > 1_900 * LEN, "{bytes}");
    }
}

#[test]
fn the_counters_are_what_was_carried() {
    let mut pair = connected();
    let before = usage(&pair);
    let [up, down] = exchange(&mut pair, 500);
    let now = usage(&pair);
    assert_eq!(now.up_bytes - before.up_bytes, up as u64);
    assert!(up >= 900 * LEN && down >= 900 * LEN);
    // The last packets may be on their way.
    let counted = now.down_bytes - before.down_bytes;
    assert!(counted >= down as u64 && counted <= (500 * 2 * LEN) as u64);
    pair.run(Duration::from_millis(500));
    let rest: usize = std::iter::from_fn(|| pair.client.poll_deliver())
        .map(|packet| packet.len())
        .sum();
    assert_eq!(
        usage(&pair).down_bytes - before.down_bytes,
        (down + rest) as u64
    );
}

#[test]
fn the_counters_go_on_in_a_new_association_and_begin_anew_for_a_peer_that_is_added_again() {
    let mut pair = connected();
    exchange(&mut pair, 100);
    let before = usage(&pair);
    pair.gateway.handle_clone(pair.now);
    pair.client.handle_clone(pair.now);
    pair.run(Duration::from_secs(2));
    assert!(pair.gateway.is_up());
    assert!(usage(&pair).up_bytes >= before.up_bytes && before.up_bytes > 0);
    assert!(usage(&pair).down_bytes >= before.down_bytes && before.down_bytes > 0);

    let config = pair.gateway.peers[0].config.clone();
    assert!(pair.gateway.remove_client(pair.now, &key()));
    assert_eq!(pair.gateway.usage_of(&key()), None);
    assert!(pair.gateway.add_client(config));
    assert_eq!(usage(&pair), Usage::default());
}

/// Returns the sum of what the gateway's counters have grown by.
fn taken(pair: &mut Pair) -> Usage {
    let mut sum = Usage::default();
    while let Some((peer, more)) = pair.gateway.poll_usage() {
        assert_eq!(peer.public_key, key());
        assert_ne!(more, Usage::default(), "only a peer that has carried bytes");
        sum.up_bytes += more.up_bytes;
        sum.down_bytes += more.down_bytes;
    }
    sum
}

#[test]
fn each_byte_is_taken_once_also_of_a_peer_that_is_removed() {
    let mut pair = connected();
    assert_eq!(taken(&mut pair), Usage::default());
    exchange(&mut pair, 100);
    let first = taken(&mut pair);
    assert_eq!(first, usage(&pair));
    assert!(first.up_bytes > 0 && first.down_bytes > 0);
    assert_eq!(taken(&mut pair), Usage::default());

    // Packets that a new association sends again count once.
    exchange(&mut pair, 5);
    pair.gateway.handle_clone(pair.now);
    pair.client.handle_clone(pair.now);
    pair.run(Duration::from_secs(2));
    exchange(&mut pair, 100);
    let second = taken(&mut pair);
    assert_eq!(first.up_bytes + second.up_bytes, usage(&pair).up_bytes);
    assert_eq!(
        first.down_bytes + second.down_bytes,
        usage(&pair).down_bytes
    );

    // The place of a removed peer is in the queue and has nothing to count, nor has the peer that takes it.
    exchange(&mut pair, 100);
    let (before, all) = (
        usage(&pair),
        pair.gateway.take_usage_of(&key()).map(|(_, usage)| usage),
    );
    let all = all.expect("bytes");
    assert_eq!(
        all.up_bytes + second.up_bytes + first.up_bytes,
        before.up_bytes
    );
    let config = pair.gateway.peers[0].config.clone();
    assert!(pair.gateway.remove_client(pair.now, &key()));
    assert!(pair.gateway.take_usage_of(&key()).is_none());
    assert!(pair.gateway.add_client(config));
    assert_eq!(taken(&mut pair), Usage::default());
    pair.run(Duration::from_secs(5));
    exchange(&mut pair, 100);
    assert_eq!(taken(&mut pair), usage(&pair));
}

#[test]
fn a_capped_sender_that_stops_is_delivered_to_the_last_packet() {
    let mut pair = connected();
    let caps = Caps {
        up: Some(Bitrate::from_mbps(1)),
        down: Some(Bitrate::from_mbps(1)),
    };
    assert!(pair.gateway.set_caps(pair.now, &key(), caps));
    // Ten packets of each direction take 80 ms at the caps, which is less than the queues drop.
    for _ in 0..10 {
        pair.client.handle_packet(pair.now, packet(true, 0));
        pair.gateway.handle_packet(pair.now, packet(false, 0));
    }
    pair.run(Duration::from_millis(20));
    let up = std::iter::from_fn(|| pair.gateway.poll_deliver()).count();
    assert!((1..10).contains(&up), "{up}");
    pair.run(Duration::from_secs(1));
    let rest = std::iter::from_fn(|| pair.gateway.poll_deliver()).count();
    assert_eq!(up + rest, 10);
    let down = std::iter::from_fn(|| pair.client.poll_deliver()).count();
    assert_eq!(down, 10);
}
