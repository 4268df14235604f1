//! The handshake: datagrams of strangers, damaged ones of a known client, and both ends of an honest one.
//!
//! The first byte says whether the rest is a datagram as it stands, or a change of a genuine one: its kind, and bytes to exclusive-or
//! into it, with mac1 made right again, so that what lies behind the mac is reached.

use core::time::Duration;
use pleach_core::{
    session::{
        aead::Suite,
        cookie::{CookieCache, CookieJar},
        entropy::Seeded,
        handshake::{EphemeralId, Initiator, NO_PSK, Responder, StaticKeys},
    },
    time::Instant,
    wire::handshake::{
        BusyView, Claim, CookieReplyView, Hello, InitiationView, MAX_LEN, ResponseView,
    },
};

/// `data`: see above.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    if kind & 0x80 == 0 {
        stranger(rest);
    } else {
        altered(kind & 0x7f, rest);
    }
    if let Ok(hello) = Hello::decode(rest) {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let _ = Claim::decode(rest);
    }
}

/// What anybody may send to either end.
fn stranger(datagram: &[u8]) {
    let gateway = StaticKeys::from_private([1; 32]);
    if let Ok(view) = InitiationView::new(datagram) {
        let _ = (EphemeralId::of(&view), view.macs().mac1(), view.header());
    }
    let _ = ResponseView::new(datagram).map(|view| view.noise().len());
    let _ = CookieReplyView::new(datagram).map(|view| view.sealed_cookie());
    let _ = BusyView::new(datagram).map(|view| view.wait_ms());
    assert!(
        Responder::read_initiation(&gateway, datagram).is_err(),
        "a forgery"
    );
    let mut jar = CookieJar::new(Instant::ZERO, gateway.public(), &mut Seeded::new([3; 32]));
    let source = ([192, 0, 2, 1], 7).into();
    assert!(!jar.check_mac2(source, datagram), "a forgery");
    assert!(jar.busy(source, datagram, Duration::from_secs(1)).is_none());
    if let Ok(reply) = jar.reply(source, datagram) {
        assert!(
            reply.len() < datagram.len(),
            "a stranger gets more than it sent"
        );
    }
}

/// A genuine exchange in which one message is altered: it fails, or nothing was altered.
fn altered(which: u8, change: &[u8]) {
    let (client, gateway) = (
        StaticKeys::from_private([2; 32]),
        StaticKeys::from_private([1; 32]),
    );
    let hello = Hello {
        protocol_version: 1,
        capabilities: 0,
        suites: Suite::offer(&[Suite::ChaCha20Poly1305]),
        association: 7,
        time: Some(9),
    };
    let now = Instant::from_millis(1);
    let started = Initiator::new(&client, gateway.public(), &NO_PSK, 5, hello, [4; 32]);
    let (mut initiator, mut initiation) = started.expect("a key");
    let mut cookies = CookieCache::new(gateway.public());
    let mut jar = CookieJar::new(now, gateway.public(), &mut Seeded::new([3; 32]));
    let source = ([192, 0, 2, 1], 7).into();
    cookies.stamp(now, &mut initiation).expect("an initiation");

    let genuine = jar.reply(source, &initiation).expect("an initiation");
    let mut reply = genuine.clone();
    // Reserved bytes are ignored.
    let is_altered = which & 3 == 0
        && alter(&mut reply, change)
        && (reply.len() != genuine.len()
            || reply[..2] != genuine[..2]
            || reply[4..] != genuine[4..]);
    let taken = cookies.handle_reply(now, &initiation, &reply);
    assert_eq!(
        taken.is_ok(),
        !is_altered,
        "an altered cookie reply is taken"
    );

    let is_altered = which & 3 == 1 && alter(&mut initiation, change);
    // With the right mac1, and mac2 if there is a cookie.
    let is_initiation = cookies.stamp(now, &mut initiation).is_ok() && initiation.len() <= MAX_LEN;
    let incoming = Responder::read_initiation(&gateway, &initiation);
    if !is_altered {
        assert!(incoming.is_ok() && is_initiation);
    }
    let Ok(incoming) = incoming else {
        return;
    };
    // The macs were made anew, so changes of these alone do not count.
    assert!(incoming.hello == hello && incoming.remote_static == *client.public());
    let answered = incoming.respond(&NO_PSK, 6, hello, [6; 32]);
    let (_, mut response) = answered.expect("ends that agree");
    assert!(response.len() <= initiation.len(), "amplification");
    let is_altered = which & 3 == 2 && alter(&mut response, change);
    let established = initiator.read_response(&response);
    assert_eq!(
        established.is_ok(),
        !is_altered,
        "an altered response is taken"
    );
}

/// Exclusive-ors `change` into `datagram`, or makes it longer or shorter; whether that changed anything.
fn alter(datagram: &mut Vec<u8>, change: &[u8]) -> bool {
    let before = datagram.clone();
    let Some((how, change)) = change.split_first() else {
        return false;
    };
    match how & 3 {
        0 => datagram.truncate(change.len()),
        1 => datagram.extend_from_slice(&change[..change.len().min(100)]),
        _ => {
            let at = change.first().map_or(0, |at| usize::from(*at));
            let pairs = datagram.iter_mut().skip(at).zip(change.iter().skip(1));
            pairs.for_each(|(byte, change)| *byte ^= change);
        }
    }
    *datagram != before
}
