//! Unknown clients present an invitation, and known clients are removed.

use super::*;
use crate::endpoint::enrolment::MAX_KEPT;
use crate::session::{
    cookie::CookieCache,
    handshake::{HandshakeError, Initiator},
    invitation::{self, Claim, InvitationKey},
    limiter::Rate,
};

const SECRET: [u8; 32] = [77; 32];

pub(super) fn key() -> InvitationKey {
    InvitationKey::from_secret(&Secret::from(SECRET))
}

pub(super) fn public(key: u8) -> [u8; 32] {
    *StaticKeys::from_private([key; 32]).public()
}

fn claim(client: u8) -> Claim {
    Claim {
        id: invitation::id(&Secret::from(SECRET)),
        proof: key().proof(&public(client), &public(200)),
    }
}

/// Returns an initiation of the client with the private key `client` and the session index `index`, with or without a
/// claim.
pub(super) fn attempt(client: u8, index: u32, claim: Option<&Claim>) -> (Initiator, Vec<u8>) {
    let keys = StaticKeys::from_private([client; 32]);
    let hello = Hello {
        protocol_version: PROTOCOL_VERSION,
        capabilities: 0,
        suites: Suite::offer(Suite::preferred(true)),
        association: 7,
        time: Some(u64::from(index)),
    };
    let mut seed = [client; 32];
    seed[..4].copy_from_slice(&index.to_be_bytes());
    let psk = key().psk();
    let (gateway, psk) = (&public(200), psk.expose());
    match claim {
        Some(claim) => Initiator::with_claim(&keys, gateway, psk, index, hello, claim, seed),
        None => Initiator::new(&keys, gateway, psk, index, hello, seed),
    }
    .expect("valid")
}

/// Sends `datagram`, and repeats it with a cookie if the gateway asks for one. Returns the last answer.
pub(super) fn send(gateway: &mut Endpoint, datagram: &[u8]) -> Option<Vec<u8>> {
    let mut cookies = CookieCache::new(&public(200));
    let mut datagram = datagram.to_vec();
    cookies.stamp(Instant::ZERO, &mut datagram).expect("valid");
    match send_once(gateway, &datagram) {
        Some(reply) if reply[0] == KIND_COOKIE_REPLY => {
            let taken = cookies.handle_reply(Instant::ZERO, &datagram, &reply);
            taken.expect("ours");
            cookies.stamp(Instant::ZERO, &mut datagram).expect("valid");
            send_once(gateway, &datagram)
        }
        other => other,
    }
}

pub(super) fn send_once(gateway: &mut Endpoint, datagram: &[u8]) -> Option<Vec<u8>> {
    gateway.handle_datagram(Instant::ZERO, &from(CLIENT), &mut datagram.to_vec());
    gateway.work_inline(Instant::ZERO);
    answer(gateway)
}

pub(super) fn answer(gateway: &mut Endpoint) -> Option<Vec<u8>> {
    transmit(gateway, Instant::ZERO)
        .pop()
        .map(|(_, datagram)| datagram)
}

fn invited(client: u8) -> PeerConfig {
    PeerConfig {
        preshared_key: key().psk(),
        ..peer("invited", client, "10.0.0.9/32")
    }
}

fn open_gateway() -> Endpoint {
    let mut gateway = Endpoint::new(gateway(1), Seeded::new([2; 32]), Instant::ZERO);
    gateway.set_enrolling(true);
    gateway
}

fn settle(gateway: &mut Endpoint, ticket: u64, client: Option<PeerConfig>) -> Option<Vec<u8>> {
    let settled = gateway.settle_enrolment(Instant::ZERO, ticket, client);
    settled.expect("no clash");
    gateway.work_inline(Instant::ZERO);
    answer(gateway)
}

#[test]
fn an_invited_client_is_answered_when_the_owner_has_agreed_and_not_before() {
    let mut gateway = open_gateway();
    let (mut initiator, datagram) = attempt(9, 1, Some(&claim(9)));
    assert_eq!(send(&mut gateway, &datagram), None);
    let request = gateway.poll_enrolment().expect("asked");
    assert_eq!(
        (request.public_key, request.claim),
        (public(9), Some(claim(9)))
    );
    let claimed = request.claim.expect("a claim");
    assert!(key().fits(&claimed, &request.public_key, &public(200)));

    let response = settle(&mut gateway, request.ticket, Some(invited(9))).expect("answered");
    initiator.read_response(&response).expect("the psk fits");
    let names: Vec<String> = gateway
        .status()
        .map(|(peer, _)| peer.name.clone())
        .collect();
    assert_eq!(names, ["1", "invited"]);

    // The answer may be lost. The client, whose key is now known, is answered again with or without its claim.
    for (index, claim) in [(2, Some(claim(9))), (3, None)] {
        let (mut again, datagram) = attempt(9, index, claim.as_ref());
        let response = send(&mut gateway, &datagram);
        again
            .read_response(&response.expect("answered"))
            .expect("fits");
        assert_eq!(gateway.poll_enrolment(), None);
    }
    assert_eq!(gateway.drops().get(DropReason::EnrolmentRefused), 0);
}

#[test]
fn who_does_not_prove_its_address_is_not_looked_up() {
    let mut gateway = open_gateway();
    let (_, datagram) = attempt(9, 1, Some(&claim(9)));
    let reply = send_once(&mut gateway, &datagram).expect("a cookie");
    assert_eq!(reply[0], KIND_COOKIE_REPLY);
    assert_eq!(gateway.poll_enrolment(), None);
    let (_, datagram) = attempt(9, 2, Some(&claim(9)));
    send(&mut gateway, &datagram);
    assert!(gateway.poll_enrolment().is_some());
}

#[test]
fn who_is_refused_gets_no_answer_and_is_counted() {
    let mut gateway = open_gateway();
    let (_, datagram) = attempt(9, 1, Some(&claim(9)));
    send(&mut gateway, &datagram);
    let request = gateway.poll_enrolment().expect("asked");
    assert_eq!(settle(&mut gateway, request.ticket, None), None);
    // A request can be settled only once, and only for a peer with the key of the request.
    assert_eq!(settle(&mut gateway, request.ticket, Some(invited(9))), None);
    assert_eq!(gateway.drops().get(DropReason::EnrolmentRefused), 1);
    assert_eq!(gateway.status().count(), 1);

    // Repeating the datagram is a replay.
    assert_eq!(send(&mut gateway, &datagram), None);
    assert_eq!(gateway.poll_enrolment(), None);
    assert_eq!(gateway.drops().get(DropReason::HandshakeReplayed), 1);
}

#[test]
fn a_gateway_without_invitations_asks_nobody() {
    let mut gateway = Endpoint::new(gateway(1), Seeded::new([2; 32]), Instant::ZERO);
    let (_, datagram) = attempt(9, 1, Some(&claim(9)));
    assert_eq!(send(&mut gateway, &datagram), None);
    assert_eq!(gateway.poll_enrolment(), None);
    assert_eq!(gateway.drops().get(DropReason::HandshakeInvalid), 1);
}

#[test]
fn a_wrong_psk_at_the_gateway_is_seen_by_the_client() {
    let mut gateway = open_gateway();
    let (mut initiator, datagram) = attempt(9, 1, Some(&claim(9)));
    send(&mut gateway, &datagram);
    let request = gateway.poll_enrolment().expect("asked");
    let response = settle(
        &mut gateway,
        request.ticket,
        Some(peer("x", 9, "10.0.0.9/32")),
    );
    let read = initiator.read_response(&response.expect("answered"));
    assert_eq!(read.err(), Some(HandshakeError::Authentication));
}

#[test]
fn a_flood_of_claims_is_kept_within_its_bound() {
    let mut gateway = open_gateway();
    let rate = Rate::new(1000, 1000);
    let limits = Limits {
        all: rate,
        source: rate,
        unproved_reads: rate,
        client: rate,
        not_fresh: rate,
    };
    gateway.set_handshake_limits(limits);
    let mut asked = 0;
    for index in 1..200 {
        let (_, datagram) = attempt(9, index, Some(&claim(9)));
        send(&mut gateway, &datagram);
        asked += usize::from(gateway.poll_enrolment().is_some());
    }
    assert!((1..=MAX_KEPT).contains(&asked), "{asked}");
    assert!(gateway.drops().get(DropReason::HandshakeLimited) > 0);
}

#[test]
fn a_removed_client_is_a_stranger_and_its_place_is_used_again() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(1));
    assert!(pair.client.is_up() && pair.gateway.is_up());
    assert!(!pair.gateway.remove_peer(pair.now, "2"));
    assert!(pair.gateway.remove_peer(pair.now, "1"));
    assert!(!pair.gateway.remove_peer(pair.now, "1"));
    pair.run(Duration::from_secs(10));
    assert!(!pair.client.is_up() && !pair.gateway.is_up());
    assert_eq!(pair.gateway.status().count(), 0);
    let address = "10.0.0.1".parse().expect("literal");
    assert_eq!(pair.gateway.peers.of_address(address), None);

    pair.gateway.set_enrolling(true);
    let now = pair.now;
    let config = PeerConfig {
        name: "again".to_owned(),
        ..peer("1", 1, "10.0.0.1/32")
    };
    pair.gateway.add_peer(config);
    assert_eq!(
        pair.gateway.peers.indices().len(),
        1,
        "the place of the removed one"
    );
    pair.run(Duration::from_secs(5));
    assert!(pair.client.is_up() && pair.gateway.is_up(), "{now:?}");
}
