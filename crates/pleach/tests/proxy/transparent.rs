//! Connections redirected by the kernel: of this host and of hosts behind it, over both families.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use pleach_lab::netns::Netns;

use crate::{
    client,
    world::{HTTP_PORT, PATIENCE, Proxy, SERVER, World, content, within},
};

const SERVER_V6: &str = "fd99::2";

fn tables(host: &Netns) -> String {
    let output = host.command("nft").args(["list", "tables"]).output();
    String::from_utf8_lossy(&output.expect("nft runs").stdout).into_owned()
}

/// Downloads `/size` without a proxy setting.
fn download(server: &str, size: usize) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect((server, HTTP_PORT))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET /{size} HTTP/1.1\r\nHost: x\r\n\r\n")?;
    client::read_head(&mut stream)?;
    let mut body = Vec::new();
    stream.read_to_end(&mut body)?;
    Ok(body)
}

#[test]
fn programs_that_know_no_proxy_use_both_links_and_all_is_undone() {
    let Some(world) = World::new() else { return };
    // A host behind the client, as behind a router.
    let lan = Netns::new("lan").expect("namespace");
    world
        .client()
        .ip(&format!(
            "link add inside type veth peer name eth0 netns {}\n\
             addr add 192.168.7.1/24 dev inside\nlink set dev inside up\n",
            lan.path().display()
        ))
        .expect("wire");
    lan.ip("addr add 192.168.7.2/24 dev eth0\nlink set dev eth0 up\nroute add default via 192.168.7.1\n")
        .expect("addresses");
    world
        .client()
        .sysctl(&[("ipv4/conf/all/forwarding", "1")])
        .expect("forwards");
    assert!(!tables(world.client()).contains("pleach_proxy"));
    // The kernels process IPv6 addresses in the background. A first packet lost for this reason must not count as a
    // fault of a link.
    for link in ["wifi", "lte"] {
        let reached = within(PATIENCE, || {
            let mut ping = world.client().command("ping");
            ping.args(["-c", "1", "-W", "1", "-I", link, SERVER_V6]);
            ping.output()
                .is_ok_and(|output| output.status.success())
                .then_some(())
        });
        reached.expect("IPv6 works");
    }

    let mut proxy = world.proxy(
        // `allow` applies only to clients that connect to the proxy's port.
        "transparent = true\nscheduler = \"round-robin\"\nallow = [\"127.0.0.0/8\"]",
        "",
    );
    let is_there = || {
        tables(world.client())
            .contains("table inet pleach_proxy_1080")
            .then_some(())
    };
    within(PATIENCE, is_there).expect("the table is made");
    let before = proxy.descriptors();
    world
        .client()
        .run(|| {
            for server in [SERVER, SERVER_V6, SERVER, SERVER_V6] {
                assert!(download(server, 100_000)? == content(100_000), "{server}");
            }
            Ok(())
        })
        .expect("downloads of this host");
    lan.run(|| {
        for _ in 0..2 {
            assert!(download(SERVER, 100_000)? == content(100_000));
        }
        Ok(())
    })
    .expect("downloads of a host behind");
    proxy.until_clean(before);
    let status = proxy.until("all of it was relayed", |status| {
        Proxy::received(status, "wifi") + Proxy::received(status, "lte") >= 600_000
    });
    for link in ["wifi", "lte"] {
        assert!(Proxy::received(&status, link) >= 300_000, "{status}");
    }
    proxy.stop();
    assert!(!tables(world.client()).contains("pleach_proxy"));

    // After a crash the next start removes the leftover table, even if the next proxy does not redirect connections.
    let crashed = world.proxy("transparent = true", "");
    within(PATIENCE, is_there).expect("the table is made");
    drop(crashed);
    assert!(
        tables(world.client()).contains("pleach_proxy_1080"),
        "a crash undoes nothing"
    );
    let mut next = world.proxy("", "");
    assert!(!tables(world.client()).contains("pleach_proxy"));
    next.stop();
}
