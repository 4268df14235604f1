//! Changes of the configuration during sessions.

use super::*;
use crate::sched::Policy;

/// Returns a UDP packet from the client.
pub(super) fn packet(number: u8) -> PacketBuf {
    let mut bytes = vec![0; 60];
    bytes[0] = 0x45;
    bytes[3] = 60;
    bytes[8] = 64;
    bytes[9] = 17;
    bytes[12..16].copy_from_slice(&[10, 0, 0, 1]);
    bytes[16..20].copy_from_slice(&[192, 0, 2, 9]);
    bytes[25] = 40;
    bytes[59] = number;
    PacketBuf::from(bytes)
}

/// Sends some packets. Returns the number of packets delivered.
pub(super) fn delivered(pair: &mut Pair) -> usize {
    for number in 0..20 {
        pair.client.handle_packet(pair.now, packet(number));
    }
    pair.run(Duration::from_millis(500));
    std::iter::from_fn(|| pair.gateway.poll_deliver()).count()
}

#[test]
fn policies_change_under_a_session_and_lose_no_packet() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(1));
    let association = pair.client.peers[0].association;
    let policies: [fn() -> Policy<String>; 5] = [
        || Policy::RoundRobin {},
        || Policy::Adaptive(Default::default()),
        || Policy::Redundant {},
        || Policy::MinRtt {},
        || Policy::EarliestArrival {},
    ];
    for policy in policies {
        for number in 0..20 {
            pair.client.handle_packet(pair.now, packet(number));
        }
        // Some of the packets are waiting while the policy changes.
        for endpoint in [&mut pair.client, &mut pair.gateway] {
            endpoint.reconfigure(pair.now, &[], |_| policy().into());
            assert_eq!(endpoint.peers[0].config.scheduler, policy().into());
        }
        assert_eq!(delivered(&mut pair), 40, "{:?}", policy());
    }
    assert!(pair.client.is_up() && pair.gateway.is_up());
    assert_eq!(pair.client.peers[0].association, association);
}

#[test]
fn a_gateway_that_moved_is_found_and_a_path_that_stays_is_not_disturbed() {
    let mut config = client(1400);
    if let Side::Client { endpoints, .. } = &mut config.side {
        endpoints.clear();
    }
    let mut pair = Pair::new();
    pair.client = Endpoint::new(config, Seeded::new([1; 32]), Instant::ZERO);
    bring_up_link(&mut pair.client);
    pair.run(Duration::from_secs(1));
    assert!(!pair.client.is_up(), "nobody knows where it is");
    let address = |text: &str| -> SocketAddr { text.parse().expect("address") };
    pair.client.set_endpoints(pair.now, vec![address(GATEWAY)]);
    pair.run(Duration::from_secs(1));
    assert!(pair.client.is_up());
    let remote = |endpoint: &Endpoint| {
        let mut peers = endpoint.status();
        let (_, status) = peers.next().expect("one peer");
        status.paths[0].remote
    };
    let elsewhere = address("192.0.2.77:7700");
    let both = vec![elsewhere, address(GATEWAY)];
    pair.client.set_endpoints(pair.now, both);
    assert_eq!(remote(&pair.client), Some(address(GATEWAY)));
    assert_eq!(delivered(&mut pair), 20);
    pair.client.set_endpoints(pair.now, vec![elsewhere]);
    assert_eq!(remote(&pair.client), Some(elsewhere));
    // The link has no IPv6. It must not continue to use an IPv4 address that no longer belongs to the gateway.
    pair.client
        .set_endpoints(pair.now, vec![address("[2001:db8::77]:7700")]);
    assert_eq!(remote(&pair.client), None);
    pair.client.set_endpoints(pair.now, vec![address(GATEWAY)]);
    assert_eq!(remote(&pair.client), Some(address(GATEWAY)));
}

#[test]
fn a_client_is_added_once_and_to_a_gateway_only() {
    let mut pair = Pair::new();
    pair.gateway = Endpoint::new(gateway(0), Seeded::new([2; 32]), Instant::ZERO);
    pair.run(Duration::from_secs(1));
    assert!(!pair.client.is_up());
    let known = || peer("1", 1, "10.0.0.1/32");
    assert!(pair.gateway.add_client(known()));
    assert!(!pair.gateway.add_client(known()));
    assert!(!pair.client.add_client(peer("2", 2, "10.0.0.2/32")));
    pair.run(Duration::from_secs(8));
    assert!(pair.client.is_up() && pair.gateway.is_up());
    assert_eq!(delivered(&mut pair), 20);
}
