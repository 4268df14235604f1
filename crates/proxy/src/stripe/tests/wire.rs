//! Encrypted frames on a lane.

use pleach_core::{
    rng::Rng,
    session::handshake::{NO_PSK, StaticKeys},
};

use crate::stripe::{
    channel::{self, ChannelError},
    frame,
};

#[test]
fn channels_carry_frames_and_notice_every_change() {
    let alice = StaticKeys::from_private([3; 32]);
    let bob = StaticKeys::from_private([4; 32]);
    let greeting = channel::greeting(bob.public(), [9; 16]);
    let known = [[1; 32], *alice.public(), *bob.public()];
    assert_eq!(channel::recognise(&greeting, known.iter()), Ok(Some(2)));
    assert_eq!(channel::recognise(&greeting, known[..2].iter()), Ok(None));
    let mut other = greeting;
    other[0] ^= 1;
    assert_eq!(channel::recognise(&other, known.iter()), Ok(None));
    let mut older = greeting;
    older[7] = 1;
    let recognised = channel::recognise(&older, known.iter());
    assert_eq!(recognised, Err(ChannelError::Version(1)));
    assert_eq!(channel::recognise(&older, known[..2].iter()), Ok(None));

    let (initiator, first) = channel::initiate(&alice, bob.public(), [5; 32]).expect("keys");
    let len = channel::handshake_len([first[0], first[1]]).expect("short");
    assert_eq!(len, first.len() - 2);
    let incoming = channel::read_initiation(&bob, &first[2..]).expect("intact");
    assert_eq!(incoming.remote_static, *alice.public());
    let (mut sealer, _, second) = channel::respond(incoming, [6; 32]).expect("same version");
    let (_, mut opener, serves_flows) =
        channel::read_response(initiator, &second[2..]).expect("intact");
    assert!(serves_flows);

    let mut bytes = Vec::new();
    let frames: Vec<Vec<u8>> = [1, 100, frame::MAX_FRAME, 7]
        .iter()
        .map(|len| vec![u8::try_from(len % 251).expect("small"); *len])
        .collect();
    for frame in &frames {
        sealer.seal(frame, &mut bytes);
    }
    let mut rng = Rng::new(2);
    let mut found = Vec::new();
    let mut left = bytes.as_slice();
    while !left.is_empty() {
        let space = opener.space();
        let len = usize::try_from(1 + rng.below(5000)).expect("small");
        let len = len.min(left.len()).min(space.len());
        space[..len].copy_from_slice(&left[..len]);
        opener.on_filled(len);
        left = &left[len..];
        while let Some(frame) = opener.next_frame().expect("intact") {
            found.push(frame.to_vec());
        }
    }
    assert_eq!(found, frames);

    // Reject garbage, a replay, a truncated record and a record that is too long.
    let mut feed = |bytes: &[u8]| {
        opener.space()[..bytes.len()].copy_from_slice(bytes);
        opener.on_filled(bytes.len());
        let outcome = opener.next_frame().map(|frame| frame.map(<[u8]>::to_vec));
        opener.on_filled(0);
        outcome
    };
    assert_eq!(feed(&bytes[..19]), Err(ChannelError::Seal));
    assert!(channel::handshake_len([0xff, 0xff]).is_err());
    for len in [0, 16, 0xffff_u16] {
        let (initiator, first) = channel::initiate(&alice, bob.public(), [5; 32]).expect("keys");
        let incoming = channel::read_initiation(&bob, &first[2..]).expect("intact");
        let (_, _, second) = channel::respond(incoming, [6; 32]).expect("same version");
        let (_, mut opener, _) = channel::read_response(initiator, &second[2..]).expect("intact");
        opener.space()[..2].copy_from_slice(&len.to_be_bytes());
        opener.on_filled(2);
        assert_eq!(opener.next_frame(), Err(ChannelError::Length(len.into())));
    }
    let mut wrong = first.clone();
    for _ in 0..500 {
        let at = usize::try_from(rng.below(wrong.len() as u64)).expect("small");
        wrong[at] ^= 1 << rng.below(8);
        // No input may cause a panic.
        let _ = channel::read_initiation(&bob, &wrong[2..]);
    }
}

#[test]
fn an_answering_end_without_udp_flows_says_nothing_of_them() {
    let alice = StaticKeys::from_private([3; 32]);
    let bob = StaticKeys::from_private([4; 32]);
    let (initiator, first) = channel::initiate(&alice, bob.public(), [5; 32]).expect("keys");
    let incoming = channel::read_initiation(&bob, &first[2..]).expect("intact");
    // Until the capability existed, ends compared the whole message of an initiation with their own, and answered
    // with the same message.
    assert_eq!(incoming.hello.capabilities, 0);
    let same = incoming.hello;
    let answered = incoming.respond(&NO_PSK, 1, same, [6; 32]);
    let (_, second) = answered.expect("same version");
    let (_, _, serves_flows) = channel::read_response(initiator, &second).expect("intact");
    assert!(!serves_flows);
}
