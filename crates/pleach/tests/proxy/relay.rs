//! The proxy forwards data unchanged.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, UdpSocket},
    thread,
    time::Duration,
};

use crate::{
    client::{self, WAYS, Way},
    world::{ECHO_PORT, Proxy, RESET_PORT, SERVER, World, content},
};

#[test]
fn parallel_downloads_are_whole_and_use_both_links() {
    let Some(world) = World::new() else { return };
    let mut proxy = world.proxy("", "");
    let before = proxy.descriptors();
    const SIZE: usize = 300_000;
    let per_way = 4;
    world
        .client()
        .run(|| {
            thread::scope(|scope| {
                for way in WAYS.iter().cycle().take(WAYS.len() * per_way) {
                    scope.spawn(move || {
                        let body = client::download(*way, &SIZE.to_string());
                        let body = body.unwrap_or_else(|error| panic!("{way:?}: {error}"));
                        assert!(body == content(SIZE), "{way:?}: {} bytes", body.len());
                    });
                }
            });
            Ok(())
        })
        .expect("downloads");
    proxy.until_clean(before);
    let status = proxy.status().expect("it runs");
    let received = ["wifi", "lte"].map(|link| Proxy::received(&status, link));
    let total = (SIZE * per_way * WAYS.len()) as u64;
    assert!(
        received.iter().all(|bytes| *bytes >= SIZE as u64),
        "{received:?}"
    );
    // The sum also contains the heads.
    let sum: u64 = received.iter().sum();
    assert!((total..total + 5_000).contains(&sum), "{received:?}");
    assert_eq!(status["mode"], "proxy");
    assert_eq!(status["drops"], serde_json::json!({}));
    assert!(status["links"][0]["rtt_ms"].as_f64().expect("measured") > 9.0);
    proxy.stop();
}

#[test]
fn status_names_link_program_and_reason_of_each_connection() {
    let Some(world) = World::new() else { return };
    let rule = "[[rule]]\nport = 7\nlink = \"lte\"\n";
    let mut proxy = world.proxy("scheduler = \"round-robin\"", rule);
    world
        .client()
        .run(|| {
            let mut stream = client::tunnel(ECHO_PORT)?;
            stream.write_all(b"hello")?;
            stream.read_exact(&mut [0; 5])?;
            let status = proxy.until("it is shown", |status| status["connection_count"] == 1);
            let connection = &status["connections"][0];
            assert_eq!(connection["link"], "lte");
            assert_eq!(connection["why"], "rule 1");
            assert_eq!(connection["target"], format!("{SERVER}:{ECHO_PORT}"));
            assert_eq!(connection["protocol"], "socks5");
            assert_eq!(
                (&connection["tx_bytes"], &connection["rx_bytes"]),
                (&5.into(), &5.into())
            );
            let own = std::fs::read_to_string("/proc/self/comm")?;
            assert_eq!(connection["app"], own.trim_end());
            assert_eq!(status["scheduler"]["policy"], "round-robin");
            // The proxy ends in time although a client is connected.
            proxy.stop();
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
            Ok(())
        })
        .expect("a connection");
}

#[test]
fn what_was_learnt_survives_a_restart() {
    let Some(world) = World::new() else { return };
    let state = world.dir.path().join("lib/apps.db");
    let more = format!("state = \"{}\"\nscheduler = \"only-one\"", state.display());
    let mut proxy = world.proxy(&more, "");
    assert!(proxy.status().expect("it runs")["links"][0]["capacity_mbps"].is_null());
    world
        .client()
        .run(|| {
            // A second and a half at 20 Mbit/s: several windows of the estimator.
            const SIZE: usize = 3_500_000;
            assert!(client::download(Way::Socks5, &SIZE.to_string())? == content(SIZE));
            Ok(())
        })
        .expect("a download");
    // Once the connection is closed, the estimate no longer changes.
    let status = proxy.until("it is over", |status| status["connection_count"] == 0);
    let capacity = |status: &serde_json::Value| status["links"][0]["capacity_mbps"].as_f64();
    let learnt = capacity(&status).expect("measured");
    proxy.stop();
    let again = world.proxy(&more, "");
    let status = again.status().expect("it runs");
    let kept = capacity(&status).expect("kept");
    assert!(
        learnt > 0.0 && (kept / learnt - 1.0).abs() < 0.001,
        "{learnt} {kept}"
    );
    assert!(
        status["links"][1]["capacity_mbps"].is_null(),
        "nothing was learnt of the other"
    );
}

#[test]
fn uploads_and_half_closes_arrive() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("", "");
    let before = proxy.descriptors();
    world
        .client()
        .run(|| {
            // The end of the client's data reaches the server, whose answer still reaches the client.
            let mut stream = client::tunnel(ECHO_PORT)?;
            let sent = content(400_000);
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
            Ok(())
        })
        .expect("connections");
    proxy.until_clean(before);
}

#[test]
fn a_reset_is_passed_on_as_a_reset() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("", "");
    let before = proxy.descriptors();
    world
        .client()
        .run(|| {
            let mut stream = client::tunnel(RESET_PORT)?;
            stream.write_all(b"x")?;
            let error = stream.read(&mut [0]).expect_err("a reset, and not the end");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            Ok(())
        })
        .expect("a connection");
    proxy.until_clean(before);
}

#[test]
fn datagrams_go_there_and_back() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("", "");
    let before = proxy.descriptors();
    world
        .client()
        .run(|| {
            let (control, reply) = client::socks5(3, &client::v4("0.0.0.0"), 0)?;
            assert_eq!(reply[1], 0);
            let port = u16::from_be_bytes([reply[8], reply[9]]);
            let ip = std::net::Ipv4Addr::new(reply[4], reply[5], reply[6], reply[7]);
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            socket.set_read_timeout(Some(Duration::from_secs(10)))?;
            let address = [client::v4(SERVER).as_slice(), &ECHO_PORT.to_be_bytes()].concat();
            let datagram = [&[0, 0, 0], address.as_slice(), b"hello"].concat();
            // A fragment and a malformed datagram are dropped.
            socket.send_to(&[0, 0, 1, 1, 1], (ip, port))?;
            socket.send_to(b"", (ip, port))?;
            let stranger = UdpSocket::bind("127.0.0.1:0")?;
            for _ in 0..3 {
                socket.send_to(&datagram, (ip, port))?;
                let mut answer = [0; 100];
                let (len, from) = socket.recv_from(&mut answer)?;
                assert_eq!(from, SocketAddr::from((ip, port)));
                assert_eq!(answer[..len], datagram);
                // Other sockets must not use the association.
                stranger.send_to(&datagram, (ip, port))?;
            }
            let status = proxy.until("both kinds of drops are counted", |status| {
                status["drops"]["bad-datagram"] == 5
            });
            assert_eq!(status["connections"][0]["tx_bytes"], 15);
            drop(control);
            Ok(())
        })
        .expect("datagrams");
    proxy.until_clean(before);
}
