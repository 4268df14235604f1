//! The owner is asked about every client whose key is unknown.

use super::{
    enrolment::{answer, attempt, key, public, send, send_once},
    *,
};
use crate::endpoint::enrolment::{Clash, MAX_ASKED};
use crate::session::limiter::Rate;

fn asking_gateway() -> Endpoint {
    let mut gateway = Endpoint::new(gateway(1), Seeded::new([2; 32]), Instant::ZERO);
    gateway.set_asking(true);
    gateway
}

fn stored(client: u8, net: &str) -> PeerConfig {
    PeerConfig {
        preshared_key: key().psk(),
        ..peer("stored", client, net)
    }
}

fn ask(gateway: &mut Endpoint, client: u8, index: u32) -> u64 {
    let (_, datagram) = attempt(client, index, None);
    assert_eq!(send(gateway, &datagram), None);
    let request = gateway.poll_enrolment().expect("asked");
    assert_eq!((request.public_key, request.claim), (public(client), None));
    request.ticket
}

#[test]
fn a_client_of_the_store_is_answered_when_the_store_has_named_it() {
    let mut gateway = asking_gateway();
    let (mut initiator, datagram) = attempt(9, 1, None);
    assert_eq!(send(&mut gateway, &datagram), None);
    assert_eq!(gateway.status().count(), 1, "nothing is allocated yet");
    let ticket = gateway.poll_enrolment().expect("asked").ticket;
    let client = stored(9, "10.0.0.9/32");
    let settled = gateway.settle_enrolment(Instant::ZERO, ticket, Some(client));
    assert_eq!(settled, Ok(()));
    gateway.work_inline(Instant::ZERO);
    let response = answer(&mut gateway).expect("answered");
    initiator.read_response(&response).expect("the psk fits");
    assert_eq!(gateway.status().count(), 2);

    assert!(gateway.remove_client(Instant::ZERO, &public(9)));
    assert!(!gateway.remove_client(Instant::ZERO, &public(9)));
    // A removed client is asked about again.
    ask(&mut gateway, 9, 2);
}

#[test]
fn the_store_is_not_asked_about_a_sender_that_has_not_proved_its_address() {
    let mut gateway = asking_gateway();
    let (_, datagram) = attempt(9, 1, None);
    let reply = send_once(&mut gateway, &datagram).expect("a cookie");
    assert_eq!(reply[0], KIND_COOKIE_REPLY);
    assert_eq!(gateway.poll_enrolment(), None);
}

#[test]
fn a_client_that_the_store_does_not_know_is_refused_and_counted() {
    let mut gateway = asking_gateway();
    let ticket = ask(&mut gateway, 9, 1);
    let settled = gateway.settle_enrolment(Instant::ZERO, ticket, None);
    assert_eq!(settled, Ok(()));
    gateway.work_inline(Instant::ZERO);
    assert_eq!(answer(&mut gateway), None);
    assert_eq!(gateway.drops().get(DropReason::EnrolmentRefused), 1);
    assert_eq!(gateway.status().count(), 1);
}

#[test]
fn no_address_is_assigned_twice() {
    let mut gateway = asking_gateway();
    for (index, net) in (1..).zip(["10.0.0.1/32", "10.0.0.0/24", "0.0.0.0/0"]) {
        let ticket = ask(&mut gateway, 9, index);
        let client = stored(9, net);
        let settled = gateway.settle_enrolment(Instant::ZERO, ticket, Some(client));
        let clash = Clash {
            net: net.parse().expect("net"),
            owner: "1".to_owned(),
        };
        assert_eq!(settled, Err(clash));
        gateway.work_inline(Instant::ZERO);
        assert_eq!(answer(&mut gateway), None);
    }
    assert_eq!(gateway.drops().get(DropReason::EnrolmentRefused), 3);
    let address = "10.0.0.1".parse().expect("literal");
    assert_eq!(gateway.peers.of_address(address), Some(0));
    // After the owner of the address is gone, the client may have it.
    assert!(gateway.remove_peer(Instant::ZERO, "1"));
    let ticket = ask(&mut gateway, 9, 9);
    let client = stored(9, "10.0.0.1/32");
    let settled = gateway.settle_enrolment(Instant::ZERO, ticket, Some(client));
    assert_eq!(settled, Ok(()));
}

#[test]
fn a_flood_of_unknown_keys_is_kept_within_its_bound() {
    let mut gateway = asking_gateway();
    let rate = Rate::new(10_000, 10_000);
    gateway.set_handshake_limits(Limits {
        all: rate,
        source: rate,
        unproved_reads: rate,
        client: rate,
        not_fresh: rate,
    });
    let mut asked = 0;
    for index in 1..200 {
        let (_, datagram) = attempt(9, index, None);
        send(&mut gateway, &datagram);
        asked += usize::from(gateway.poll_enrolment().is_some());
    }
    assert!((17..=MAX_ASKED).contains(&asked), "{asked}");
}
