use super::*;

fn route(port: u16) -> Route {
    Route {
        link: 0,
        remote: ([192, 0, 2, 1], port).into(),
        local: None,
    }
}

/// A path that was proven at port 1 and has moved to port 2, from which `len` bytes were received.
fn moved(len: usize) -> Address {
    let mut address = Address::trusted();
    address.on_move(Instant::ZERO, Some(route(1)), route(2));
    address.on_received(&route(2), len);
    address
}

fn challenge(address: &mut Address, millis: u64) -> Option<[u32; 2]> {
    address.take_challenge(Instant::from_millis(millis), || 0x0000_0007_0000_0009)
}

#[test]
fn no_more_is_sent_to_an_unproven_address_than_three_times_what_came_from_it() {
    for count in [1, 7] {
        let mut address = moved(0);
        for _ in 0..count {
            address.on_received(&route(2), 100);
            address.on_received(&route(1), 10_000);
        }
        let mut sent = 0;
        for len in [1400, 300, 48, 48, 48, 1, 1] {
            while address.try_spend(len) {
                sent += len + 28;
            }
        }
        assert!(sent <= 300 * count && sent > 300 * count - 29, "{sent}");
    }
}

#[test]
fn an_address_is_proven_by_both_halves_of_its_token_in_one_datagram_from_there() {
    let mut address = moved(100);
    let answer = |address: &mut Address, port, tokens: &[u32]| {
        address.on_pongs(&route(port), tokens.iter().copied())
    };
    assert!(!answer(&mut address, 2, &[0, 0]), "before it was asked");
    assert_eq!(challenge(&mut address, 0), Some([7, 9]));
    for (port, tokens) in [
        (2, &[7, 7, 8][..]),
        (2, &[9][..]),
        (2, &[][..]),
        (1, &[7, 9][..]),
        (3, &[7, 9][..]),
    ] {
        assert!(!answer(&mut address, port, tokens), "{port} {tokens:?}");
        assert!(!address.is_proven());
    }
    assert!(answer(&mut address, 2, &[1, 9, 7]));
    assert!(address.is_proven() && address.try_spend(60_000));
    assert_eq!(address.challenge_due(), None);
}

#[test]
fn a_challenge_is_repeated_while_there_is_leave_to_send_it() {
    let mut address = moved(100);
    let mut sent = Vec::new();
    for millis in 0..2_000 {
        if let Some(tokens) = challenge(&mut address, millis) {
            assert_eq!(tokens, [7, 9]);
            assert!(address.try_spend(48));
            sent.push(millis);
        }
    }
    assert_eq!(sent, [0, 50, 100]);
    address.on_received(&route(2), 1000);
    assert!(challenge(&mut address, 2_000).is_some());
    assert_eq!(challenge(&mut address, 2_499), None);
    assert!(challenge(&mut address, 2_500).is_some());
}

#[test]
fn an_address_that_was_left_a_moment_ago_is_still_proven_and_the_other_one_is_still_asked() {
    let mut address = moved(100);
    assert!(challenge(&mut address, 0).is_some());
    address.on_move(Instant::from_millis(5), Some(route(2)), route(1));
    assert!(address.is_proven());
    assert_eq!(address.challenge_due(), None);
    address.on_move(Instant::from_millis(9), Some(route(1)), route(2));
    assert!(!address.is_proven());
    assert!(address.on_pongs(&route(2), [7, 9].into_iter()));
    address.on_move(Instant::from_millis(10), Some(route(2)), route(1));
    assert!(address.is_proven(), "both are now");
    address.on_move(Instant::from_millis(20_000), Some(route(1)), route(2));
    assert!(!address.is_proven(), "too long ago");
}

#[test]
fn an_address_that_was_never_proven_is_not_when_it_comes_back() {
    let mut address = Address::unknown();
    address.on_move(Instant::ZERO, None, route(2));
    address.on_move(Instant::ZERO, Some(route(2)), route(3));
    address.on_move(Instant::ZERO, Some(route(3)), route(2));
    assert!(!address.is_proven());
    assert!(!address.try_spend(1));
}

#[test]
fn a_single_ping_from_a_new_address_is_answered_together_with_the_challenge() {
    // The datagram consists of header, tag and the ping.
    let mut address = moved(30 + 9);
    assert!(challenge(&mut address, 0).is_some());
    let two_pings_and_a_pong = 3 * 9;
    assert!(address.body_room() >= two_pings_and_a_pong);
    assert!(address.try_spend(30 + two_pings_and_a_pong));
    assert_eq!(address.body_room(), 0);
}
