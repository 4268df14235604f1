//! Links that fail and return.

use std::{
    io::{Read as _, Write as _},
    time::Duration,
};

use crate::{
    client::{self, Way},
    world::{ECHO_PORT, HTTP_PORT, Proxy, SERVER, World, content},
};

#[test]
fn a_link_that_goes_down_takes_only_its_own_and_is_used_again() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("scheduler = \"round-robin\"", "");
    world
        .client()
        .run(|| {
            let mut streams = [client::tunnel(ECHO_PORT)?, client::tunnel(ECHO_PORT)?];
            for stream in &mut streams {
                stream.write_all(b"a")?;
                stream.read_exact(&mut [0])?;
            }
            let status = proxy.until("one on each", |status| status["connection_count"] == 2);
            let link = |index: usize| status["connections"][index]["link"].clone();
            assert_ne!(link(0), link(1));
            let doomed = usize::from(link(1) == "wifi");

            world.client().ip("link set dev wifi down\n")?;
            let error = streams[doomed]
                .read(&mut [0])
                .expect_err("a reset, not an end");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            let other = &mut streams[1 - doomed];
            other.write_all(b"b")?;
            other.read_exact(&mut [0])?;
            for _ in 0..3 {
                assert_eq!(client::download(Way::Socks5, "5000")?, content(5000));
            }
            let status = proxy.status().expect("it runs");
            let over_wifi = Proxy::received(&status, "wifi");

            world.client().ip(
                "link set dev wifi up\nroute replace default via 10.100.0.1 dev wifi metric 100\n",
            )?;
            proxy.until("it is up again", |status| {
                status["links"][0]["state"] == "up"
            });
            for _ in 0..4 {
                assert_eq!(client::download(Way::Socks5, "5000")?, content(5000));
            }
            let status = proxy.until("it carried some", |status| {
                Proxy::received(status, "wifi") > over_wifi
            });
            assert_eq!(status["links"][1]["state"], "up");
            Ok(())
        })
        .expect("inside");
}

#[test]
fn a_link_that_swallows_everything_costs_a_moment_only() {
    // The first link drops all packets in both directions from the beginning.
    let hole = "[[event]]\nat = \"0s\"\nlink = \"wifi\"\nstate = \"blackhole\"\n";
    let Some((world, events)) = World::with_events(hole) else {
        return;
    };
    assert!(!events.is_empty());
    let proxy = world.proxy("scheduler = \"only-one\"", "");
    world
        .client()
        .run(|| {
            assert_eq!(client::download(Way::Socks5, "5000")?, content(5000));
            let status = proxy.until("the hole is known", |status| {
                status["links"][0]["state"] == "suspect"
            });
            assert_eq!(Proxy::received(&status, "wifi"), 0);
            Ok(())
        })
        .expect("inside");
}

#[test]
fn what_was_asked_before_a_link_died_is_asked_again_over_another() {
    // The server is reached, then the link drops all packets.
    let hole = "[[event]]\nat = \"6s\"\nlink = \"wifi\"\nstate = \"blackhole\"\n";
    let Some((world, _)) = World::with_events(hole) else {
        return;
    };
    let started = pleach_linux::clock::now();
    let proxy = world.proxy("scheduler = \"only-one\"", "");
    world
        .client()
        .run(|| {
            let mut stream = client::tunnel(HTTP_PORT)?;
            let status = proxy.until("it is there", |status| status["connection_count"] == 1);
            assert_eq!(status["connections"][0]["link"], "wifi");
            let hole_at = started + Duration::from_millis(6_500);
            let now = pleach_linux::clock::now();
            std::thread::park_timeout(hole_at.since(now));
            write!(stream, "GET /5000 HTTP/1.1\r\nHost: {SERVER}\r\n\r\n")?;
            client::read_head(&mut stream)?;
            let mut body = Vec::new();
            stream.read_to_end(&mut body)?;
            assert_eq!(body, content(5000));
            proxy.until("it came over the other link", |status| {
                Proxy::received(status, "lte") >= 5000
            });
            Ok(())
        })
        .expect("inside");
}
