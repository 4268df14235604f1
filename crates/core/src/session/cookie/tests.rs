use super::{
    super::handshake::{
        NO_PSK,
        tests::{initiate, keys},
    },
    *,
};

const HERE: &str = "198.51.100.7:7700";

#[test]
fn a_cookie_proves_the_address_it_was_made_for() {
    let (mut jar, mut cache, mut datagram) = world();
    let now = Instant::from_millis(5);
    cache.stamp(now, &mut datagram).unwrap();
    assert!(jar.is_valid_mac1(&datagram));
    assert!(!jar.check_mac2(at(HERE), &datagram));

    let reply = jar.reply(at(HERE), &datagram).unwrap();
    cache.handle_reply(now, &datagram, &reply).unwrap();
    cache.stamp(now, &mut datagram).unwrap();
    assert_eq!(
        cache.handle_reply(now, &datagram, &reply),
        Err(CookieError::Known),
        "a copy is no reason to send once more"
    );
    assert!(jar.is_valid_mac1(&datagram));
    assert!(jar.check_mac2(at(HERE), &datagram));
    assert!(jar.check_mac2(at("[::ffff:198.51.100.7]:7700"), &datagram));
    for elsewhere in [
        "198.51.100.7:7701",
        "198.51.100.8:7700",
        "[2001:db8::7]:7700",
    ] {
        assert!(!jar.check_mac2(at(elsewhere), &datagram));
    }
    for bit in 0..datagram.len() * 8 {
        let mut flipped = datagram.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(!jar.check_mac2(at(HERE), &flipped), "bit {bit}");
    }
}

#[test]
fn cookies_expire() {
    let made_at = Instant::from_millis(119_000);
    for (after_s, good) in [(0, true), (119, true), (120, true), (121, false)] {
        let (mut jar, mut cache, mut datagram) = world();
        cache.stamp(made_at, &mut datagram).unwrap();
        let reply = jar.reply(at(HERE), &datagram).unwrap();
        cache.handle_reply(made_at, &datagram, &reply).unwrap();
        cache.stamp(made_at, &mut datagram).unwrap();
        let later = made_at + Duration::from_secs(after_s);
        jar.refresh(later, &mut entropy(8));
        assert_eq!(jar.check_mac2(at(HERE), &datagram), good, "{after_s}");
    }
}

#[test]
fn a_late_change_of_the_secret_does_not_stretch_a_cookie() {
    let (mut jar, mut cache, mut datagram) = world();
    cache.stamp(Instant::ZERO, &mut datagram).unwrap();
    let reply = jar.reply(at(HERE), &datagram).unwrap();
    cache
        .handle_reply(Instant::ZERO, &datagram, &reply)
        .unwrap();
    cache.stamp(Instant::ZERO, &mut datagram).unwrap();
    let mut good = |ms| {
        jar.refresh(Instant::from_millis(ms), &mut entropy(8));
        jar.check_mac2(at(HERE), &datagram)
    };
    assert!(good(239_000));
    assert!(!good(240_000));
}

#[test]
fn an_initiator_forgets_its_cookie() {
    let (mut jar, mut cache, mut datagram) = world();
    let now = Instant::from_millis(5);
    cache.stamp(now, &mut datagram).unwrap();
    let reply = jar.reply(at(HERE), &datagram).unwrap();
    cache.handle_reply(now, &datagram, &reply).unwrap();
    cache
        .stamp(
            now + COOKIE_LIFETIME - Duration::from_nanos(1),
            &mut datagram,
        )
        .unwrap();
    assert!(!datagram.ends_with(&[0; 16]));
    cache.stamp(now + COOKIE_LIFETIME, &mut datagram).unwrap();
    assert!(datagram.ends_with(&[0; 16]));
}

#[test]
fn only_an_intact_reply_to_its_own_initiation_is_taken() {
    let (mut jar, mut cache, mut datagram) = world();
    let now = Instant::from_millis(5);
    cache.stamp(now, &mut datagram).unwrap();
    let reply = jar.reply(at(HERE), &datagram).unwrap();
    for bit in (0..reply.len() * 8).filter(|bit| !(16..32).contains(bit)) {
        let mut flipped = reply.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let taken = cache.handle_reply(now, &datagram, &flipped);
        assert!(taken.is_err(), "bit {bit}");
    }
    for len in 0..reply.len() {
        let taken = cache.handle_reply(now, &datagram, &reply[..len]);
        assert!(taken.is_err());
    }
    for (seed, index_bit, error) in [
        (4, 0, CookieError::Authentication),
        (3, 1, CookieError::WrongReceiver),
    ] {
        let (_, mut another) = initiate(&keys(1), &keys(2), NO_PSK, seed);
        another[7] ^= index_bit;
        cache.stamp(now, &mut another).unwrap();
        let taken = cache.handle_reply(now, &another, &reply);
        assert_eq!(taken, Err(error));
    }
    assert_eq!(cache.handle_reply(now, &datagram, &reply), Ok(()));
}

#[test]
fn replies_to_each_of_several_initiations_under_way_are_taken() {
    let (mut jar, mut cache, mut first) = world();
    let now = Instant::from_millis(5);
    let (_, mut second) = initiate(&keys(1), &keys(2), NO_PSK, 4);
    cache.stamp(now, &mut first).unwrap();
    cache.stamp(now, &mut second).unwrap();
    let reply = jar.reply(at(HERE), &first).unwrap();
    cache.handle_reply(now, &first, &reply).unwrap();
    cache.stamp(now, &mut first).unwrap();
    cache.stamp(now, &mut second).unwrap();
    let wait = Duration::from_millis(700);
    for sent in [&first, &second] {
        let busy = jar.busy(at(HERE), sent, wait).unwrap();
        assert_eq!(cache.handle_busy(sent, &busy), Ok(wait));
        for bit in 0..busy.len() * 8 {
            let mut flipped = busy.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(cache.handle_busy(sent, &flipped).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn same_seed_gives_the_same_reply() {
    let reply = || {
        let (mut jar, _, datagram) = world();
        jar.reply(at(HERE), &datagram).unwrap()
    };
    assert_eq!(reply(), reply());
}

#[test]
fn other_bytes_are_no_initiation() {
    let (mut jar, mut cache, _) = world();
    let mut bytes = [0; 20];
    assert!(!jar.is_valid_mac1(&bytes));
    assert!(!jar.check_mac2(at(HERE), &bytes));
    assert!(jar.reply(at(HERE), &bytes).is_err());
    assert!(cache.stamp(Instant::ZERO, &mut bytes).is_err());
    assert!(cache.stamp(Instant::ZERO, &mut []).is_err());
}

fn world() -> (CookieJar, CookieCache, Vec<u8>) {
    let gateway = keys(2);
    let (_, datagram) = initiate(&keys(1), &gateway, NO_PSK, 3);
    let jar = CookieJar::new(Instant::ZERO, gateway.public(), &mut entropy(9));
    (jar, CookieCache::new(gateway.public()), datagram)
}

fn entropy(seed: u8) -> entropy::Seeded {
    entropy::Seeded::new([seed; 32])
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}
