//! Connections and datagrams redirected by the kernel: of this host and of hosts behind it, over both families.

use std::{
    io::{Read as _, Write as _},
    net::{TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use pleach_lab::netns::Netns;

use crate::{
    client,
    world::{ECHO_PORT, HTTP_PORT, PATIENCE, Proxy, SERVER, World, content, within},
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

/// Creates a host behind the client, as behind a router.
fn lan(world: &World) -> Netns {
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
    lan
}

/// Waits until IPv6 works on both links. The kernels process IPv6 addresses in the background. A first packet lost for
/// this reason must not count as a fault of a link.
fn until_v6_works(world: &World) {
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
}

#[test]
fn programs_that_know_no_proxy_use_both_links_and_all_is_undone() {
    let Some(world) = World::new() else { return };
    let lan = lan(&world);
    assert!(!tables(world.client()).contains("pleach_proxy"));
    until_v6_works(&world);

    let mut proxy = world.proxy(
        // `allow` applies only to clients that connect to the proxy's port.
        "transparent = true\ntransparent_udp = true\nscheduler = \"round-robin\"\nallow = [\"127.0.0.0/8\"]",
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
    let crashed = world.proxy("transparent = true\ntransparent_udp = true", "");
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

/// Returns the rules and routes that divert datagrams.
fn diversion(host: &Netns) -> String {
    let ip = |arguments: &[&str]| {
        let output = host.command("ip").args(arguments).output();
        String::from_utf8_lossy(&output.expect("ip runs").stdout).into_owned()
    };
    let all = ["-4", "-6"].map(|family| {
        let rules = ip(&[family, "rule", "show"]);
        let routes = ip(&[family, "route", "show", "table", "all"]);
        let routes = routes
            .lines()
            .filter(|line| line.starts_with("local default"));
        let rules = rules.lines().filter(|line| line.starts_with("1:"));
        rules.chain(routes).collect::<Vec<_>>().join("\n")
    });
    all.join("\n")
}

/// Sends `count` datagrams to port 7 of `server`, and asserts that the answers come from there.
fn echo(server: &str, count: u8) -> std::io::Result<()> {
    let any = if server.contains(':') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    for number in 0..count {
        socket.send_to(&[number; 100], (server, ECHO_PORT))?;
        let mut answer = [0; 200];
        let (len, from) = socket.recv_from(&mut answer)?;
        assert_eq!(
            (from.ip().to_string(), from.port()),
            (server.to_owned(), ECHO_PORT)
        );
        assert_eq!(answer[..len], [number; 100]);
    }
    Ok(())
}

#[test]
fn rules_for_programs_apply_to_datagrams_of_this_host_alone() {
    let Some(world) = World::new() else { return };
    let lan = lan(&world);
    let own = std::fs::read_to_string("/proc/self/comm").expect("a name");
    let own = own.trim_end();
    let mut proxy = world.proxy(
        "transparent = true\ntransparent_udp = true\nscheduler = \"only-one\"",
        &format!("[[rule]]\napp = \"{own}\"\nlink = \"lte\"\n"),
    );
    let is_there = || {
        tables(world.client())
            .contains("table inet pleach_proxy_1080")
            .then_some(())
    };
    within(PATIENCE, is_there).expect("the table is made");
    for host in [world.client(), &lan] {
        host.run(|| Ok(echo(SERVER, 3)?)).expect("datagrams");
    }
    let status = proxy.status().expect("it runs");
    let connections = status["connections"].as_array().expect("some").iter();
    let mut flows: Vec<_> = connections
        .map(|flow| (flow["app"].as_str(), flow["link"].as_str()))
        .collect();
    flows.sort_unstable();
    let expected = [(None, Some("wifi")), (Some(own), Some("lte"))];
    assert_eq!(flows, expected, "{status}");
    assert_eq!(status["drops"], serde_json::json!({}));
    proxy.stop();
}

#[test]
fn datagrams_take_a_link_that_tcp_leaves_idle_and_all_is_undone() {
    let Some(world) = World::new() else { return };
    let lan = lan(&world);
    until_v6_works(&world);
    let server = world
        .topology
        .server
        .run(|| Ok(UdpSocket::bind((SERVER_V6, ECHO_PORT))?));
    let server = server.expect("server");
    thread::spawn(move || {
        let mut datagram = [0; 2000];
        while let Ok((len, from)) = server.recv_from(&mut datagram) {
            let _ = server.send_to(&datagram[..len], from);
        }
    });
    let before = diversion(world.client());
    assert!(!before.contains("fwmark"), "{before}");
    let mut proxy = world.proxy("transparent = true\ntransparent_udp = true", "");
    let is_there = || {
        tables(world.client())
            .contains("pleach_proxy_1080")
            .then_some(())
    };
    within(PATIENCE, is_there).expect("the table is made");
    let descriptors = proxy.descriptors();
    world
        .client()
        .run(|| {
            let mut stream = TcpStream::connect((SERVER, HTTP_PORT))?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            const SIZE: usize = 5_000_000;
            write!(stream, "GET /{SIZE} HTTP/1.1\r\nHost: x\r\n\r\n")?;
            client::read_head(&mut stream)?;
            let mut body = vec![0; SIZE];
            stream.read_exact(&mut body[..1_000_000])?;
            // A connected socket accepts answers only from the destination itself.
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect((SERVER, ECHO_PORT))?;
            socket.set_read_timeout(Some(Duration::from_secs(10)))?;
            for number in 0..20 {
                socket.send(&[number; 1000])?;
                let mut answer = [0; 2000];
                let len = socket.recv(&mut answer)?;
                assert_eq!(answer[..len], [number; 1000]);
            }
            let status = proxy.status().expect("it runs");
            let connections = status["connections"].as_array().expect("some");
            let link = |port: u16| {
                let target = format!("{SERVER}:{port}");
                let found = connections.iter().find(|one| one["target"] == target);
                found.unwrap_or_else(|| panic!("{status}"))["link"].clone()
            };
            let (tcp, udp) = (link(HTTP_PORT), link(ECHO_PORT));
            assert!(udp.is_string() && tcp.is_string() && udp != tcp, "{status}");
            proxy.until("its bytes are counted", |status| {
                Proxy::received(status, udp.as_str().expect("a name")) >= 20_000
            });
            stream.read_exact(&mut body[1_000_000..])?;
            assert!(body == content(SIZE));
            Ok(echo(SERVER_V6, 5)?)
        })
        .expect("datagrams of this host");
    lan.run(|| Ok(echo(SERVER, 5)?))
        .expect("datagrams of a host behind");
    let status = proxy.status().expect("it runs");
    assert_eq!(status["drops"], serde_json::json!({}));
    assert!(proxy.descriptors() > descriptors, "the flows have sockets");
    proxy.stop();
    assert!(!tables(world.client()).contains("pleach_proxy"));
    assert_eq!(diversion(world.client()), before);

    // After a crash the next start removes the rules and routes, even if the next proxy does not divert datagrams.
    let crashed = world.proxy("transparent = true\ntransparent_udp = true", "");
    within(PATIENCE, is_there).expect("the table is made");
    drop(crashed);
    let left = diversion(world.client());
    assert_eq!(
        left.matches("fwmark").count(),
        2,
        "a crash undoes nothing: {left}"
    );
    assert_eq!(left.matches("local default").count(), 2, "{left}");
    let mut next = world.proxy("", "");
    assert_eq!(diversion(world.client()), before);
    next.stop();
}
