//! One connection striped over both links, to another proxy on the server's host.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::{
    client::{self, Way},
    peers::{key_pair, lanes, pair, striped, trust},
    world::{
        ECHO_PORT, HTTP_PORT, MUTE_PORT, PEER_PORT, Proxy, RESET_PORT, SERVER, World, content,
    },
};

fn ask_for(stream: &mut TcpStream, size: usize) -> std::io::Result<()> {
    write!(stream, "GET /{size} HTTP/1.1\r\nHost: {SERVER}\r\n\r\n")?;
    client::read_head(stream).map(drop)
}

#[test]
fn a_file_and_an_echo_go_over_both_links_and_arrive_as_they_were() {
    let Some(world) = World::new() else { return };
    let (peer, proxy) = pair(&world, "osia");
    // Lanes, the connections between the proxies, remain open for the next connection.
    let world_client = world.client();
    let before = world_client.run(|| {
        drop(striped(&proxy, ECHO_PORT));
        proxy.until("it is gone", |status| status["connection_count"] == 0);
        peer.until("it is gone there", |status| status["connection_count"] == 0);
        Ok((peer.descriptors(), proxy.descriptors()))
    });
    let before = before.expect("inside");
    world_client
        .run(|| {
            const SIZE: usize = 4_000_000;
            let mut stream = striped(&proxy, HTTP_PORT);
            ask_for(&mut stream, SIZE)?;
            let mut body = vec![0; SIZE];
            stream.read_exact(&mut body)?;
            assert!(body == content(SIZE), "the file differs");
            assert_eq!(stream.read(&mut [0])?, 0, "its end comes, too");
            drop(stream);
            let status = proxy.until("it has ended", |status| status["connection_count"] == 0);
            for link in ["wifi", "lte"] {
                let received = Proxy::received(&status, link);
                assert!(received > SIZE as u64 / 10, "{link}: {received}");
            }

            // Data in both directions at the same time, each with its own end.
            let sent = content(1_500_000);
            let mut stream = striped(&proxy, ECHO_PORT);
            let mut writer = stream.try_clone()?;
            let bytes = sent.clone();
            let writing = thread::spawn(move || {
                writer.write_all(&bytes)?;
                writer.shutdown(Shutdown::Write)
            });
            let mut back = Vec::new();
            stream.read_to_end(&mut back)?;
            writing.join().expect("no panic")?;
            assert!(back == sent, "{} of {} bytes", back.len(), sent.len());

            // A plain HTTP request is striped as well, and ends with its answer.
            let body = client::download(Way::HttpRequest, "300000")?;
            assert!(body == content(300_000));
            Ok(())
        })
        .expect("inside");
    proxy.until_clean(before.1);
    peer.until_clean(before.0);
    assert_eq!(
        peer.status().expect("it runs")["drops"],
        serde_json::json!({})
    );
}

#[test]
fn a_link_assigned_at_run_time_excludes_striping() {
    let Some(world) = World::new() else { return };
    let (_peer, proxy) = pair(&world, "osia");
    world
        .client()
        .run(|| {
            drop(striped(&proxy, ECHO_PORT));
            proxy.until("it is gone", |status| status["connection_count"] == 0);
            let port = format!("port={ECHO_PORT}");
            proxy.set(&[&port, "link=lte"]).expect("a link");
            let stream = client::tunnel(ECHO_PORT)?;
            let status = proxy.until("it is there", |status| status["connection_count"] == 1);
            let connection = &status["connections"][0];
            assert_eq!(
                (&connection["why"], &connection["link"]),
                (&"assigned".into(), &"lte".into())
            );
            assert!(connection["striped"].is_null(), "{connection}");
            drop(stream);
            proxy.until("it is gone", |status| status["connection_count"] == 0);
            proxy.set(&[&port, "link=auto"]).expect("it was assigned");
            drop(striped(&proxy, ECHO_PORT));
            Ok(())
        })
        .expect("inside");
}

#[test]
fn a_link_may_die_and_return_within_a_transfer() {
    let Some(world) = World::new() else { return };
    let (peer, proxy) = pair(&world, "weighted-round-robin");
    let host = world.client();
    host.run(|| {
        const SIZE: usize = 14_000_000;
        let mut stream = striped(&proxy, HTTP_PORT);
        ask_for(&mut stream, SIZE)?;
        let mut body = vec![0; SIZE];
        stream.read_exact(&mut body[..2_000_000])?;
        host.ip("link set dev wifi down\n")?;
        stream.read_exact(&mut body[2_000_000..5_000_000])?;
        let status = proxy.until("one link is left", |status| lanes(status).len() == 1);
        assert_eq!(lanes(&status)[0]["link"], "lte");
        host.ip(
            "link set dev wifi up\nroute replace default via 10.100.0.1 dev wifi metric 100\n",
        )?;
        let status = proxy.until("it is back", |status| lanes(status).len() == 2);
        let wifi = |status: &Value| {
            let lane = lanes(status)
                .into_iter()
                .find(|lane| lane["link"] == "wifi");
            lane.expect("there")["rx_bytes"].as_u64().expect("a number")
        };
        let returned = wifi(&status);
        stream.read_exact(&mut body[5_000_000..9_000_000])?;
        let status = proxy.status().expect("it runs");
        assert!(wifi(&status) > returned + 500_000, "{status}");

        // Now the link drops all packets, without any notification.
        let rules = "add table inet hole
            add chain inet hole in { type filter hook input priority 0; }
            add chain inet hole out { type filter hook output priority 0; }
            add rule inet hole in iifname wifi drop
            add rule inet hole out oifname wifi drop";
        let nft = host.command("nft").arg(rules).status()?;
        assert!(nft.success());
        stream.read_exact(&mut body[9_000_000..])?;
        assert!(body == content(SIZE), "the file differs");
        assert_eq!(stream.read(&mut [0])?, 0);
        Ok(())
    })
    .expect("inside");
    let status = peer.status().expect("it runs");
    assert_eq!(status["drops"], serde_json::json!({}));
}

#[test]
fn who_is_not_known_gets_plain_connections() {
    let Some(world) = World::new() else { return };
    let (ours, theirs, others) = (key_pair(), key_pair(), key_pair());
    // The peer does not know this proxy.
    let peer = world.peer("osia", &trust(&theirs.0, &others.1));
    let before = peer.descriptors();
    let keys = format!("peer_port = {PEER_PORT}");
    let download = |proxy: &Proxy| {
        for _ in 0..3 {
            assert!(client::download(Way::Socks5, "20000")? == content(20_000));
            proxy.until("it is gone", |status| status["connection_count"] == 0);
        }
        Ok(())
    };
    let mut proxy = world.proxy(&keys, &format!("[peer]\n{}", trust(&ours.0, &theirs.1)));
    world.client().run(|| download(&proxy)).expect("downloads");
    let drops = |status: &Value| status["drops"]["bad-peer"].as_u64().unwrap_or(0);
    // The proxy asked the peer, which did not know its key, so the connections remained plain.
    peer.until("it was asked", |status| drops(status) > 0);
    proxy.stop();
    drop(proxy);
    // This proxy does not know the peer.
    let proxy = world.proxy(&keys, &format!("[peer]\n{}", trust(&ours.0, &others.1)));
    world.client().run(|| download(&proxy)).expect("downloads");
    drop(proxy);
    // Another program is on the port. It sends nonsense, sends nothing, or resets the connection.
    for port in [ECHO_PORT, MUTE_PORT, RESET_PORT] {
        let keys = format!("peer_port = {port}");
        let proxy = world.proxy(&keys, &format!("[peer]\n{}", trust(&ours.0, &theirs.1)));
        world.client().run(|| download(&proxy)).expect("downloads");
    }
    peer.until_clean(before);
}

#[test]
fn a_peer_takes_connections_to_its_network_if_both_ends_say_so() {
    const ROUTER: &str = "10.99.0.1";
    let Some(world) = World::new() else { return };
    let listener = world
        .topology
        .gateway
        .run(|| Ok(TcpListener::bind((ROUTER, ECHO_PORT))?))
        .expect("server");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"router");
        }
    });
    let (ours, theirs) = (key_pair(), key_pair());
    let told = format!("endpoint = \"{SERVER}:{PEER_PORT}\"\nnetworks = [\"{ROUTER}/32\"]\n");
    for (allow, is_striped) in [("", false), ("allow = [\"10.99.0.1/32\"]\n", true)] {
        let peer = world.peer("osia", &format!("{allow}{}", trust(&theirs.0, &ours.1)));
        let known = format!("[peer]\n{}{told}", trust(&ours.0, &theirs.1));
        let mut proxy = world.proxy("", &known);
        world
            .client()
            .run(|| {
                let (mut stream, reply) = client::socks5(1, &client::v4(ROUTER), ECHO_PORT)?;
                assert_eq!(reply[1], 0);
                stream.read_exact(&mut [0; 6])?;
                let status = proxy.status().expect("it runs");
                let striped = &status["connections"][0]["striped"];
                assert_eq!(striped.is_object(), is_striped, "{status}");
                Ok(())
            })
            .expect("inside");
        let refused = peer.status().expect("it runs")["drops"]["peer-refused"].is_u64();
        assert_eq!(refused, !is_striped);
        proxy.stop();
    }
}

#[test]
fn a_peer_that_dies_takes_its_connection_and_no_other() {
    let Some(world) = World::new() else { return };
    let (peer, proxy) = pair(&world, "round-robin");
    let before = proxy.descriptors();
    world
        .client()
        .run(|| {
            let mut stream = striped(&proxy, ECHO_PORT);
            stream.write_all(b"hello")?;
            stream.read_exact(&mut [0; 5])?;
            // Dropping the peer kills it with SIGKILL.
            drop(peer);
            let error = stream.read(&mut [0]).expect_err("a reset, and not the end");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            assert!(client::download(Way::Socks5, "20000")? == content(20_000));
            Ok(())
        })
        .expect("inside");
    proxy.until_clean(before);
}

#[test]
fn a_peer_that_is_restarted_ends_the_connections_that_wait_for_it_and_serves_new_ones() {
    let Some(world) = World::new() else { return };
    let (ours, theirs) = (key_pair(), key_pair());
    let start = || world.peer("osia", &trust(&theirs.0, &ours.1));
    let peer = start();
    let keys = format!("striping = \"osia\"\npeer_port = {PEER_PORT}\n");
    let proxy = world.proxy(&keys, &format!("[peer]\n{}", trust(&ours.0, &theirs.1)));
    world
        .client()
        .run(|| {
            let mut waits = striped(&proxy, ECHO_PORT);
            waits.write_all(b"hello")?;
            waits.read_exact(&mut [0; 5])?;
            // Dropping the peer kills it with SIGKILL. The client sends nothing, so none of its packets is in flight.
            drop(peer);
            let peer = start();
            waits.set_read_timeout(Some(Duration::from_secs(20)))?;
            let error = waits.read(&mut [0]).expect_err("nobody answers");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            drop(waits);
            proxy.until("it is gone", |status| status["connection_count"] == 0);
            let mut stream = striped(&proxy, ECHO_PORT);
            stream.write_all(b"hello")?;
            stream.read_exact(&mut [0; 5])?;
            let drops = &peer.status().expect("it runs")["drops"];
            assert!(drops["unknown-association"].is_u64(), "{drops}");
            Ok(())
        })
        .expect("inside");
}

#[test]
fn garbage_on_the_peer_port_leaves_nothing() {
    let Some(world) = World::new() else { return };
    let (peer, mut proxy) = pair(&world, "earliest-arrival");
    let before = peer.descriptors();
    world
        .client()
        .run(|| {
            let long = vec![0xa5; 100_000];
            let mut waiting = Vec::new();
            for garbage in [
                b"".as_slice(),
                b"\0",
                b"\0\0",
                b"\xff\xff",
                b"GET / HTTP/1.1\r\n\r\n",
                &[b"\x00\x94".as_slice(), &[7; 148]].concat(),
                &long,
            ] {
                let mut stream = TcpStream::connect((SERVER, PEER_PORT))?;
                stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                // The peer may close the connection before it has read everything.
                let _ = stream.write_all(garbage);
                waiting.push(stream);
            }
            for mut stream in waiting {
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                // The answer is at most a greeting; a reset may discard it.
                assert!(answer.len() <= 40, "{answer:?}");
            }
            // The peer still connects to services on its own host.
            let mut stream = striped(&proxy, ECHO_PORT);
            stream.write_all(b"hello")?;
            stream.read_exact(&mut [0; 5])?;
            Ok(())
        })
        .expect("inside");
    // The lanes are closed when the proxy ends.
    proxy.stop();
    peer.until_clean(before);
    let status = peer.status().expect("it runs");
    assert!(status["drops"]["bad-peer"].as_u64() >= Some(4), "{status}");
    assert!(status["drops"]["slow-peer"].as_u64() >= Some(2), "{status}");
}

#[test]
fn many_connections_share_two_lanes_and_one_that_does_not_read_stops_none() {
    let Some(world) = World::new() else { return };
    let (peer, proxy) = pair(&world, "osia");
    world
        .client()
        .run(|| {
            let mut stuck = striped(&proxy, HTTP_PORT);
            // Far more data than the proxies buffer; the client does not read.
            ask_for(&mut stuck, 12_000_000)?;
            let sockets = || -> std::io::Result<usize> {
                let output = world
                    .client()
                    .command("ss")
                    .args(["-tnH", "dport", "="])
                    .arg(format!(":{PEER_PORT}"))
                    .output()?;
                Ok(String::from_utf8_lossy(&output.stdout).lines().count())
            };
            assert_eq!(sockets()?, 2, "a lane on each link");
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for _ in 0..5 {
                            let way = Way::Socks5;
                            let came = world.client().run(|| Ok(client::download(way, "20000")?));
                            assert!(came.expect("it comes") == content(20_000));
                        }
                    });
                }
            });
            assert_eq!(sockets()?, 2, "and nothing else was dialled");
            let status = proxy.status().expect("it runs");
            assert_eq!(status["drops"], serde_json::json!({}));
            // Both proxies buffer at most their windows of 4 MiB.
            for end in [&proxy, &peer] {
                assert!(end.peak_memory_kib() < 120_000, "{}", end.peak_memory_kib());
            }
            let mut some = vec![0; 1_000_000];
            stuck.read_exact(&mut some)?;
            assert!(some == content(12_000_000)[..1_000_000]);
            Ok(())
        })
        .expect("inside");
    assert_eq!(
        peer.status().expect("it runs")["drops"],
        serde_json::json!({})
    );
}
