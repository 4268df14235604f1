use super::{
    reconfiguring::{delivered, packet},
    *,
};
use crate::transmit::TxQueue;

/// Changes the client of `pair` to the gateway with the private key `key`, and returns the previous gateway after it
/// has received the close messages.
fn change(pair: &mut Pair, key: u8, net: &str) -> Endpoint {
    let other = EndpointConfig {
        private_key: Secret::from([key; 32]),
        ..gateway(1)
    };
    let other = Endpoint::new(other, Seeded::new([key; 32]), pair.now);
    let mut previous = core::mem::replace(&mut pair.gateway, other);
    let mut tx = TxQueue::new(32);
    let address = GATEWAY.parse().expect("address");
    let config = peer("other", key, net);
    pair.client
        .change_gateway(pair.now, config, vec![address], &mut tx);
    for batch in tx.batches() {
        let mut datagram = batch.bytes().to_vec();
        previous.handle_datagram(pair.now, &from(CLIENT), &mut datagram);
    }
    previous
}

#[test]
fn packets_reach_the_next_gateway_and_the_previous_one_knows_that_the_client_is_gone() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(1));
    assert!(pair.client.is_up() && pair.gateway.is_up());
    let previous = change(&mut pair, 201, "0.0.0.0/0");
    assert!(!pair.client.is_up() && !previous.is_up());
    let down = Event::Peer {
        name: "gateway".to_owned(),
        is_up: false,
    };
    assert_eq!(pair.client.poll_event(), Some(down));
    // Packets that arrive before the handshake are sent after it.
    pair.client.handle_packet(pair.now, packet(99));
    pair.run(Duration::from_secs(1));
    assert!(pair.client.is_up() && pair.gateway.is_up());
    assert_eq!(delivered(&mut pair), 21);
    let names: Vec<String> = pair
        .client
        .status()
        .map(|(peer, _)| peer.name.clone())
        .collect();
    assert_eq!(names, ["other"]);
    // The client can return to the first gateway, which is another process by now.
    let _ = change(&mut pair, 200, "0.0.0.0/0");
    pair.run(Duration::from_secs(1));
    assert_eq!(delivered(&mut pair), 20);
}

#[test]
fn the_networks_are_those_of_the_gateway_in_use() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(1));
    let _ = change(&mut pair, 201, "10.0.0.0/8");
    pair.run(Duration::from_secs(1));
    assert!(pair.client.is_up());
    assert_eq!(delivered(&mut pair), 0);
    assert_eq!(pair.client.drops().get(DropReason::NoRoute), 20);
}

#[test]
fn the_scheduler_of_the_client_stays() {
    let mut pair = Pair::new();
    let policy = || crate::sched::Policy::MinRtt {}.into();
    pair.client.reconfigure(pair.now, &[], |_| policy());
    let _ = change(&mut pair, 201, "0.0.0.0/0");
    assert_eq!(pair.client.peers[0].config.scheduler, policy());
}

#[test]
fn answers_to_questions_tell_which_gateway_has_answered() {
    let key = *StaticKeys::from_private([200; 32]).public();
    let other = *StaticKeys::from_private([201; 32]).public();
    let mut gateway = Endpoint::new(gateway(1), Seeded::new([2; 32]), Instant::ZERO);
    let mut asked = crate::endpoint::reaching::question(&key, &[7; 16]);
    gateway.handle_datagram(Instant::ZERO, &from(CLIENT), &mut asked.clone());
    let (_, answer) = transmit(&mut gateway, Instant::ZERO).remove(0);
    let expected = |is_draining| {
        let nonce = [7; 16];
        Some(crate::endpoint::reaching::Answer { nonce, is_draining })
    };
    assert_eq!(
        crate::endpoint::reaching::answered(&answer, &key),
        expected(false)
    );
    gateway.set_draining(true);
    gateway.handle_datagram(Instant::ZERO, &from(CLIENT), &mut asked.clone());
    let (_, draining) = transmit(&mut gateway, Instant::ZERO).remove(0);
    assert_eq!(
        crate::endpoint::reaching::answered(&draining, &key),
        expected(true)
    );
    assert_eq!(crate::endpoint::reaching::answered(&answer, &other), None);
    assert_eq!(
        crate::endpoint::reaching::answered(&asked, &key),
        None,
        "the question itself"
    );
    asked[0] = answer[0];
    assert_eq!(crate::endpoint::reaching::answered(&asked, &key), None);
    assert_eq!(
        crate::endpoint::reaching::answered(&answer[1..], &key),
        None
    );
}
