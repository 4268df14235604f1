use super::*;
use crate::{
    ids::PathId,
    rng::Rng,
    wire::handshake::{KIND_RESPONSE, SuiteBits},
};

pub(crate) const CLIENT_INDEX: u32 = 0x0001_0203;
pub(crate) const GATEWAY_INDEX: u32 = 0x00ff_fffe;

#[test]
fn both_ends_agree() {
    let (client, gateway) = (keys(1), keys(2));
    let (mut initiator, initiation) = initiate(&client, &gateway, NO_PSK, 3);
    let incoming = Responder::read_initiation(&gateway, &initiation).unwrap();
    assert_eq!(&incoming.remote_static, client.public());
    assert_eq!(incoming.remote_index, CLIENT_INDEX);
    assert_eq!(incoming.hello, hello(10));
    let (at_gateway, response) = incoming
        .respond(&NO_PSK, GATEWAY_INDEX, hello(20), [4; 32])
        .unwrap();
    let at_client = initiator.read_response(&response).unwrap();

    assert_eq!(at_client.suite, Suite::Aes256Gcm);
    assert_eq!(at_gateway.suite, Suite::Aes256Gcm);
    assert_eq!(at_client.remote_index, GATEWAY_INDEX);
    assert_eq!(at_gateway.remote_index, CLIENT_INDEX);
    assert_eq!(at_gateway.remote_hello, hello(10));
    let chosen = Hello {
        suites: Suite::Aes256Gcm.bits(),
        ..hello(20)
    };
    assert_eq!(at_client.remote_hello, chosen);
    assert!(carries(&at_client.send, &at_gateway.recv));
    assert!(carries(&at_gateway.send, &at_client.recv));
    assert!(!carries(&at_client.send, &at_client.recv));
    assert!(response.len() <= initiation.len());
}

#[test]
fn suites_are_negotiated() {
    let (client, gateway) = (keys(1), keys(2));
    let slow = Suite::offer(Suite::preferred(false));
    let (mut initiator, initiation) = initiate(&client, &gateway, NO_PSK, 3);
    let answer = |suites| {
        let incoming = Responder::read_initiation(&gateway, &initiation).unwrap();
        let hello = Hello {
            suites,
            ..hello(20)
        };
        incoming.respond(&NO_PSK, GATEWAY_INDEX, hello, [4; 32])
    };
    let none = answer(SuiteBits(0xf0)).map(|_| ());
    assert_eq!(none, Err(HandshakeError::NoCommonSuite));
    let (_, response) = answer(slow).unwrap();
    let at_client = initiator.read_response(&response).unwrap();
    assert_eq!(at_client.suite, Suite::ChaCha20Poly1305);
}

#[test]
fn another_protocol_version_is_refused_at_both_ends() {
    let (client, gateway) = (keys(1), keys(2));
    let other = |association| Hello {
        protocol_version: 2,
        ..hello(association)
    };
    let (mut initiator, initiation) = initiate(&client, &gateway, NO_PSK, 3);
    let answer = |hello| {
        let incoming = Responder::read_initiation(&gateway, &initiation).unwrap();
        incoming.respond(&NO_PSK, GATEWAY_INDEX, hello, [4; 32])
    };
    assert_eq!(
        answer(other(20)).map(|_| ()),
        Err(HandshakeError::Version(1))
    );
    let (_, response) = answer(hello(20)).unwrap();
    initiator.hello = other(10);
    assert_eq!(
        initiator.read_response(&response).map(|_| ()),
        Err(HandshakeError::Version(1))
    );
}

#[test]
fn same_seeds_give_the_same_bytes() {
    let run = |seed| {
        let (client, gateway) = (keys(1), keys(2));
        let (_, initiation) = initiate(&client, &gateway, NO_PSK, seed);
        let incoming = Responder::read_initiation(&gateway, &initiation).unwrap();
        let (_, response) = incoming
            .respond(&NO_PSK, GATEWAY_INDEX, hello(20), [seed + 1; 32])
            .unwrap();
        (initiation, response)
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn a_wrong_gateway_key_fails_at_the_initiation() {
    let (client, gateway, other) = (keys(1), keys(2), keys(5));
    let (_, mut initiation) = initiate(&client, &other, NO_PSK, 3);
    let read = |datagram: &[u8]| Responder::read_initiation(&gateway, datagram).map(|_| ());
    assert_eq!(read(&initiation), Err(HandshakeError::Mac));
    cookie::set_mac1(gateway.public(), &mut initiation);
    assert_eq!(read(&initiation), Err(HandshakeError::Authentication));
}

#[test]
fn a_wrong_psk_is_seen_by_the_initiator_which_still_takes_the_true_response() {
    let (client, gateway) = (keys(1), keys(2));
    let (mut initiator, initiation) = initiate(&client, &gateway, [7; 32], 3);
    let answer = |psk: [u8; 32]| {
        let incoming = Responder::read_initiation(&gateway, &initiation).unwrap();
        incoming
            .respond(&psk, GATEWAY_INDEX, hello(20), [4; 32])
            .unwrap()
    };
    let (_, wrong) = answer([8; 32]);
    assert_eq!(
        initiator.read_response(&wrong).err(),
        Some(HandshakeError::Authentication)
    );
    let (at_gateway, right) = answer([7; 32]);
    let at_client = initiator.read_response(&right).unwrap();
    assert!(carries(&at_client.send, &at_gateway.recv));
    assert!(initiator.read_response(&right).is_err(), "answered already");
}

#[test]
fn a_zero_public_key_is_refused() {
    let result = Initiator::new(&keys(1), &[0; 32], &NO_PSK, CLIENT_INDEX, hello(1), [3; 32]);
    assert_eq!(result.map(|_| ()), Err(HandshakeError::RemoteKey));
}

#[test]
fn indices_are_checked() {
    for index in [0, 1 << 24, u32::MAX] {
        let result = Initiator::new(
            &keys(1),
            keys(2).public(),
            &NO_PSK,
            index,
            hello(1),
            [3; 32],
        );
        assert_eq!(
            result.map(|_| ()),
            Err(HandshakeError::Malformed(WireError::Index))
        );
    }
}

#[test]
fn every_flipped_bit_of_an_initiation_is_rejected() {
    let (client, gateway) = (keys(1), keys(2));
    let (_, initiation) = initiate(&client, &gateway, NO_PSK, 3);
    // mac2, the last 16 bytes, is checked by the cookie jar instead.
    for bit in 0..(initiation.len() - 16) * 8 {
        let mut flipped = initiation.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(
            Responder::read_initiation(&gateway, &flipped).is_err(),
            "bit {bit}"
        );
        // An attacker who knows the gateway's public key can set a valid mac1.
        cookie::set_mac1(gateway.public(), &mut flipped);
        let in_mac1 = bit / 8 >= initiation.len() - 32;
        let read = Responder::read_initiation(&gateway, &flipped);
        assert_eq!(read.is_ok(), in_mac1, "bit {bit}");
    }
}

#[test]
fn every_flipped_bit_of_a_response_is_rejected() {
    let (client, gateway) = (keys(1), keys(2));
    let (mut initiator, initiation) = initiate(&client, &gateway, NO_PSK, 3);
    let (_, response) = Responder::read_initiation(&gateway, &initiation)
        .unwrap()
        .respond(&NO_PSK, GATEWAY_INDEX, hello(20), [4; 32])
        .unwrap();
    let noise = 12..response.len() - 32;
    for bit in 0..response.len() * 8 {
        let mut flipped = response.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(initiator.read_response(&flipped).is_err(), "bit {bit}");
        if noise.contains(&(bit / 8)) {
            cookie::set_mac1(client.public(), &mut flipped);
            assert_eq!(
                initiator.read_response(&flipped).err(),
                Some(HandshakeError::Authentication),
                "bit {bit}"
            );
        }
    }
    assert!(initiator.read_response(&response).is_ok());
}

#[test]
fn truncated_and_random_datagrams_are_rejected() {
    let (client, gateway) = (keys(1), keys(2));
    let (mut initiator, initiation) = initiate(&client, &gateway, NO_PSK, 3);
    let (_, response) = Responder::read_initiation(&gateway, &initiation)
        .unwrap()
        .respond(&NO_PSK, GATEWAY_INDEX, hello(20), [4; 32])
        .unwrap();
    for len in 0..initiation.len() {
        let mut cut = initiation[..len].to_vec();
        assert!(Responder::read_initiation(&gateway, &cut).is_err());
        cookie::set_mac1(gateway.public(), &mut cut);
        assert!(Responder::read_initiation(&gateway, &cut).is_err());
    }
    for len in 0..response.len() {
        let mut cut = response[..len].to_vec();
        assert!(initiator.read_response(&cut).is_err());
        cookie::set_mac1(client.public(), &mut cut);
        assert!(initiator.read_response(&cut).is_err());
    }
    let mut rng = Rng::new(9);
    for _ in 0..300 {
        let mut bytes = vec![0; usize::try_from(rng.below(400)).unwrap()];
        rng.fill(&mut bytes);
        if bytes.len() > 12 {
            bytes[..12].copy_from_slice(&response[..12]);
            bytes[0] = KIND_RESPONSE;
        }
        cookie::set_mac1(client.public(), &mut bytes);
        assert!(initiator.read_response(&bytes).is_err());
        if let Some(kind) = bytes.first_mut() {
            *kind = wire::KIND_INITIATION;
        }
        cookie::set_mac1(gateway.public(), &mut bytes);
        assert!(Responder::read_initiation(&gateway, &bytes).is_err());
    }
}

#[test]
fn a_replayed_initiation_has_the_same_id_and_a_retry_another() {
    let id = |seed| {
        let (_, initiation) = initiate(&keys(1), &keys(2), NO_PSK, seed);
        EphemeralId::of(&InitiationView::new(&initiation).unwrap())
    };
    assert_eq!(id(3), id(3));
    assert_ne!(id(3), id(4));
}

#[test]
fn debug_shows_no_private_key() {
    let text = format!("{:?}", StaticKeys::from_private([0xab; 32]));
    assert!(text.contains("public") && !text.contains("171, 171"));
}

pub(crate) fn keys(id: u8) -> StaticKeys {
    StaticKeys::from_private([id; 32])
}

pub(crate) fn hello(association: u64) -> Hello {
    Hello {
        protocol_version: 1,
        capabilities: 0,
        suites: Suite::offer(Suite::preferred(true)),
        association,
        time: None,
    }
}

pub(crate) fn initiate(
    client: &StaticKeys,
    gateway: &StaticKeys,
    psk: [u8; 32],
    seed: u8,
) -> (Initiator, Vec<u8>) {
    Initiator::new(
        client,
        gateway.public(),
        &psk,
        CLIENT_INDEX,
        hello(10),
        [seed; 32],
    )
    .unwrap()
}

fn carries(send: &SealingKey, recv: &OpeningKey) -> bool {
    let mut sealed = b"packet".to_vec();
    let tag = send.seal(PathId(1), 2, b"head", &mut sealed);
    sealed.extend_from_slice(&tag);
    recv.open(PathId(1), 2, b"head", &mut sealed) == Ok(6) && sealed.starts_with(b"packet")
}
