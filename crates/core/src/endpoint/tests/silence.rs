//! When the ends of an association say that the other one is gone.

use super::{reconfiguring::packet, *};

/// Drops all datagrams for the duration `time`. Returns whether the client, and the gateway, have said meanwhile that the
/// other one is up or gone; the last word counts.
fn cut(pair: &mut Pair, time: Duration) -> [Option<bool>; 2] {
    let mut said = [None; 2];
    let end = pair.now + time;
    while pair.now < end {
        pair.now += Duration::from_millis(1);
        let ends = [&mut pair.client, &mut pair.gateway];
        for (endpoint, said) in ends.into_iter().zip(&mut said) {
            endpoint.handle_timeout(pair.now);
            transmit(endpoint, pair.now);
            while let Some(event) = endpoint.poll_event() {
                if let Event::Peer { is_up, .. } = event {
                    *said = Some(is_up);
                }
            }
        }
    }
    said
}

/// Lets both ends send a packet.
fn talk(pair: &mut Pair) {
    let mut answer = packet(1).as_slice().to_vec();
    let (source, destination) = answer[12..20].split_at_mut(4);
    source.swap_with_slice(destination);
    pair.client.handle_packet(pair.now, packet(1));
    pair.gateway
        .handle_packet(pair.now, PacketBuf::from(answer));
}

#[test]
fn a_gateway_does_not_take_a_client_for_gone_that_is_silent_for_a_moment() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(1));
    talk(&mut pair);
    let said = cut(&mut pair, Duration::from_millis(200));
    // The client may want to look for another gateway.
    assert_eq!(said, [Some(false), None]);
    assert!(!pair.gateway.is_up(), "its only path is suspect");
    assert_eq!(pair.gateway.peer_counts(), (1, 1));
    assert!(pair.gateway.status().all(|(_, status)| status.is_up));
    pair.run(Duration::from_secs(1));
    assert!(pair.client.is_up() && pair.gateway.is_up());
    talk(&mut pair);
    let said = cut(&mut pair, Duration::from_secs(2));
    assert_eq!(said, [Some(false), Some(false)]);
    assert_eq!(pair.gateway.peer_counts(), (1, 0));
    pair.run(Duration::from_secs(1));
    assert!(pair.client.is_up() && pair.gateway.is_up());
}
