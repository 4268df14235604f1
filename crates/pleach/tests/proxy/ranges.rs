//! One HTTP answer over several links, by byte ranges.

use std::{io::Read as _, io::Write as _, net::TcpStream, time::Duration};

use crate::{
    client::{self, read_head},
    requests::served,
    world::{PARTS_PORT, Proxy, SERVER, World, content},
};

/// Requests `path` over `stream` and returns the body of `len` bytes. Calls `midway` when a quarter has arrived.
fn ask(
    stream: &mut TcpStream,
    path: &str,
    len: usize,
    midway: impl FnOnce(),
) -> std::io::Result<Vec<u8>> {
    write!(
        stream,
        "GET http://{SERVER}:{PARTS_PORT}/{path} HTTP/1.1\r\nIf-None-Match: \"x\"\r\n\r\n"
    )?;
    let head = read_head(stream)?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(
        head.contains(&format!("Content-Length: {len}\r\n")),
        "{head}"
    );
    let mut body = vec![0; len];
    let (first, rest) = body.split_at_mut(len / 4);
    stream.read_exact(first)?;
    midway();
    stream.read_exact(rest)?;
    Ok(body)
}

/// Returns the number of bytes received over each link.
fn received(proxy: &Proxy) -> [u64; 2] {
    let status = proxy.status().expect("it runs");
    ["wifi", "lte"].map(|link| Proxy::received(&status, link))
}

#[test]
fn one_download_takes_both_links() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("", "");
    let before = proxy.descriptors();
    let outcome = world.client().run(|| {
        let mut stream = client::plain()?;
        let len = 6_000_000;
        let began = pleach_linux::clock::now();
        let body = ask(&mut stream, &len.to_string(), len, || {
            proxy.until("parts are fetched", |status| {
                let connections = status["connections"].as_array().expect("a list");
                connections.iter().any(|one| one["why"] == "part")
            });
        })?;
        let took = pleach_linux::clock::now().since(began);
        assert!(body == content(len));
        let by_link = received(&proxy);
        eprintln!("{len} bytes in {took:?}, over wifi and lte {by_link:?}");
        assert!(by_link.iter().all(|bytes| *bytes > 300_000), "{by_link:?}");
        // The client connection serves another request.
        assert!(ask(&mut stream, "30000", 30_000, || {})? == content(30_000));
        Ok(())
    });
    outcome.expect("answers");
    proxy.until_clean(before);
}

#[test]
fn a_download_goes_on_when_its_link_goes_down() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("", "");
    let before = proxy.descriptors();
    let outcome = world.client().run(|| {
        let mut stream = client::plain()?;
        let len = 4_000_000;
        let body = ask(&mut stream, &len.to_string(), len, || {
            world.client().ip("link set dev wifi down\n").expect("down");
        })?;
        assert!(body == content(len));
        Ok(())
    });
    outcome.expect("answers");
    proxy.until_clean(before);
}

#[test]
fn a_download_goes_on_when_its_link_falls_silent() {
    let hole = "[[event]]\nat = \"4s\"\nlink = \"wifi\"\nstate = \"blackhole\"\n";
    let Some((world, events)) = World::with_events(hole) else {
        return;
    };
    assert!(!events.is_empty());
    let _proxy = world.proxy("", "");
    let outcome = world.client().run(|| {
        let mut stream = client::plain()?;
        // The download takes at least six seconds over both links.
        let len = 24_000_000;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let body = ask(&mut stream, &len.to_string(), len, || {})?;
        assert!(body == content(len));
        Ok(())
    });
    outcome.expect("answers");
}

#[test]
fn servers_that_give_other_things_than_parts_do_no_harm() {
    served("", || {
        let mut stream = client::plain()?;
        for kind in ["all", "other", "broken"] {
            let len = 3_000_000;
            let body = ask(&mut stream, &format!("{kind}/{len}"), len, || {})?;
            assert!(body == content(len), "{kind}");
        }
        Ok(())
    });
}

#[test]
fn nothing_is_asked_for_in_parts_where_the_user_does_not_want_it() {
    let Some(world) = World::new() else { return };
    for keys in ["ranges = false", "scheduler = \"round-robin\""] {
        let proxy = world.proxy(keys, "");
        let outcome = world.client().run(|| {
            let mut stream = client::plain()?;
            let len = 3_000_000;
            assert!(ask(&mut stream, &len.to_string(), len, || {})? == content(len));
            Ok(())
        });
        outcome.expect("answers");
        let by_link = received(&proxy);
        assert!(by_link.contains(&0), "{keys}: {by_link:?}");
    }
}
