//! The link watch reports changes of links.

use std::{thread, time::Duration};

use pleach_linux::{
    clock,
    poll::{Poller, Token},
    watch::{LinkSnapshot, LinkWatch},
};

use crate::namespace::Namespace;

/// Takes snapshots until one fits. Panics with the last snapshot after five seconds.
fn until(
    watch: &LinkWatch,
    what: &str,
    fits: impl Fn(&[LinkSnapshot]) -> bool,
) -> Vec<LinkSnapshot> {
    let poller = Poller::new().expect("epoll");
    poller.add(watch, Token(0)).expect("adds");
    let deadline = clock::now() + Duration::from_secs(5);
    let (mut events, mut last) = (Vec::new(), Vec::new());
    while clock::now() < deadline {
        poller.wait(Some(deadline), &mut events).expect("waits");
        if let Some(links) = watch.take() {
            last = links;
            if fits(&last) {
                return last;
            }
        }
    }
    panic!("never seen: {what}; last: {last:#?}");
}

fn link<'a>(links: &'a [LinkSnapshot], name: &str) -> Option<&'a LinkSnapshot> {
    links.iter().find(|link| link.name == name)
}

#[test]
fn links_come_change_and_go() {
    let (Some(here), Some(there)) = (Namespace::new(), Namespace::new()) else {
        return;
    };
    let watch = here.run(|| LinkWatch::start().expect("netlink works"));
    let see = |name: &'static str, what: &str, fits: fn(&LinkSnapshot) -> bool| {
        let links = until(&watch, what, |links| link(links, name).is_some_and(fits));
        link(&links, name).expect("just seen").clone()
    };
    see("lo", "loopback", |link| link.is_loopback && link.is_up);

    here.connect("plL0", &there, "plL1");
    let first = see("plL0", "carrier", |link| link.is_up && link.has_carrier);
    assert_eq!(first.mtu, 1500);
    assert!(!first.is_tunnel);
    here.ip("tuntap add plLtun mode tun");
    see("plLtun", "TUN", |link| link.is_tunnel);
    here.ip("address add 10.1.0.1/24 dev plL0");
    here.ip("address add fd01::1/64 dev plL0 nodad");
    let link0 = see("plL0", "addresses", |link| link.addresses.len() == 2);
    let expected = ["10.1.0.1/24", "fd01::1/64"].map(|text| text.parse().expect("literal"));
    assert_eq!(link0.addresses, expected);
    assert!(!link0.has_default_v4 && !link0.has_default_v6);

    here.ip("route add default via 10.1.0.2");
    see("plL0", "IPv4 default", |link| link.has_default_v4);
    here.ip("route add default via fd01::2 table 77");
    see("plL0", "IPv6 default", |link| link.has_default_v6);

    there.ip("link set plL1 down");
    see("plL0", "no carrier", |link| !link.has_carrier && link.is_up);
    there.ip("link set plL1 up");
    see("plL0", "carrier again", |link| link.has_carrier);

    here.ip("address del 10.1.0.1/24 dev plL0");
    here.ip("address add 10.1.0.9/24 dev plL0");
    let expected = "10.1.0.9/24".parse().expect("literal");
    until(&watch, "new address", |links| {
        link(links, "plL0")
            .is_some_and(|link| link.addresses.contains(&expected) && !link.has_default_v4)
    });

    here.ip("link set plL0 down");
    here.ip("link set plL0 name plLx mtu 1280");
    let renamed = see("plLx", "rename", |link| !link.is_up && link.mtu == 1280);
    assert_eq!(renamed.ifindex, first.ifindex);

    here.ip("link del plLx");
    until(&watch, "deletion", |links| link(links, "plLx").is_none());
    here.connect("plL0", &there, "plL2");
    let second = see("plL0", "return", |link| link.has_carrier);
    assert_ne!(second.ifindex, first.ifindex);
}

#[test]
fn dropping_a_watch_ends_its_thread() {
    let Some(namespace) = Namespace::new() else {
        return;
    };
    let watch = namespace.run(|| LinkWatch::start().expect("netlink works"));
    // Dropping the watch joins the thread: if the thread does not end, the test hangs.
    thread::spawn(move || drop(watch)).join().expect("ends");
}
