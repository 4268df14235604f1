//! `pleach reload` and SIGHUP: a transfer survives the changes that are applied while it runs.

use std::{
    cell::Cell,
    fs,
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Output,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use pleach_lab::netns::Netns;
use pleach_linux::netns::run_in;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    process::{Client, Daemon, Gateway, Keys, link, state},
    traffic::{Target, tcp},
    world::{World, assert_same, picture, until},
};

/// Changes a daemon's file with `edit`, and makes the daemon read it again.
fn reload(daemon: &Daemon, edit: impl Fn(String) -> String) -> Output {
    let text = fs::read_to_string(daemon.file()).expect("readable");
    fs::write(daemon.file(), edit(text)).expect("written");
    daemon.command("reload", &[])
}

#[track_caller]
fn says(output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

/// Sends chunks back and forth over one connection until `is_over`.
fn exchange(
    (client, server): (&Netns, &Netns),
    is_over: &AtomicBool,
    exchanged: &AtomicU64,
) -> io::Result<()> {
    let listener = run_in(&server.path(), || TcpListener::bind("10.99.0.2:0"))??;
    let address = listener.local_addr()?;
    let mirror = thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        let mut chunk = vec![0; 16 << 10];
        loop {
            let len = stream.read(&mut chunk)?;
            if len == 0 {
                return Ok::<(), io::Error>(());
            }
            stream.write_all(&chunk[..len])?;
        }
    });
    let mut stream = run_in(&client.path(), || TcpStream::connect(address))??;
    stream.set_read_timeout(Some(crate::world::PATIENCE))?;
    let mut number = 0_u8;
    while !is_over.load(Ordering::Relaxed) {
        number = number.wrapping_add(1);
        let sent = vec![number; 64 << 10];
        stream.write_all(&sent)?;
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received)?;
        assert_eq!(sent, received);
        exchanged.fetch_add(1, Ordering::Relaxed);
    }
    drop(stream);
    mirror
        .join()
        .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

#[test]
fn links_policy_classes_and_clients_change_under_a_transfer() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let (is_over, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let hosts = (&world.client, &world.server);
        let (is_over, exchanged) = (&is_over, &exchanged);
        let transfer = scope.spawn(move || exchange(hosts, is_over, exchanged));
        let carried = Cell::new(0);
        let goes_on = |what: &str| {
            let before = exchanged.load(Ordering::Relaxed);
            until(what, || {
                exchanged.load(Ordering::Relaxed) > before + 3 || transfer.is_finished()
            });
            assert!(!transfer.is_finished(), "{what}: the connection broke");
            // The counter starts with the association, so a new association would have a smaller one.
            let status = client.status().expect("the daemon answers");
            let now = link(&status, "l0").and_then(|link| link["tx_bytes"].as_u64());
            let earlier = carried.replace(now.expect("bytes"));
            assert!(now >= Some(earlier), "{what}: another association");
        };
        goes_on("the transfer begins");

        let l1 = "[[link]]\nname = \"l1\"\ndevice = \"l1\"\n";
        says(
            &reload(&client, |text| text.replace(l1, "")),
            &["link l1 removed"],
        );
        let status = client.until_up();
        assert!(link(&status, "l1").is_none() && state(&status, "l0") == "up");
        goes_on("without l1");

        let dear = format!("{l1}cost = 3\nweight = 7\n");
        says(&reload(&client, |text| text + &dear), &["link l1 added"]);
        client.until_links_up(&["l0", "l1"]);
        goes_on("with l1");
        says(
            &reload(&client, |text| {
                text.replace("cost = 3", "cost = \"standby\"")
            }),
            &["link l1 changed"],
        );
        let status = client.until("l1 is in reserve", |status| {
            state(status, "l1") == "standby"
        });
        assert_eq!(link(&status, "l1").expect("there")["weight"], 7);
        goes_on("with l1 in reserve");
        says(
            &reload(&client, |text| text.replace("cost = \"standby\"\n", "")),
            &["link l1 changed"],
        );
        client.until_links_up(&["l0", "l1"]);

        for policy in ["consn", "osia", "adaptive", "redundant", "earliest-arrival"] {
            let with = |text: String| {
                let lines = text.lines().map(|line| {
                    if line.starts_with("policy = ") {
                        format!("policy = \"{policy}\"\n")
                    } else {
                        format!("{line}\n")
                    }
                });
                lines.collect()
            };
            for daemon in [&client, &gateway] {
                says(&reload(daemon, with), &[policy]);
                let status = daemon.until_up();
                assert_eq!(status["scheduler"]["policy"], policy);
            }
            goes_on(policy);
        }
        let class = "[[class]]\nname = \"all\"\nprotocol = \"tcp\"\ndeadline = \"2s\"\n";
        says(&reload(&client, |text| text + class), &["1 classes"]);
        client.until("the class is in use", |status| {
            status["classes"]["all"]["packets"].as_u64() > Some(0)
        });
        goes_on("with a class");
        says(
            &reload(&client, |text| text.replace(class, "")),
            &["0 classes"],
        );

        // A third client is added at the gateway and removed again.
        let third = Keys::client(3);
        let table = format!(
            "[[client]]\nname = \"c3\"\npublic_key = \"{}\"\nallowed_ips = [\"10.77.0.3/32\", \"fd77::3/128\"]\n",
            third.public
        );
        let before = picture(&world.gateway);
        says(
            &reload(&gateway, |text| text + &table),
            &["client c3 added"],
        );
        let host = world.another(5);
        let other = Client {
            host: 3,
            keys: third,
            links: &["l5"],
            ..Client::default()
        };
        let mut other = other.start(&world, &host);
        other.until_links_up(&["l5"]);
        let server = Target::new(&world.server, "10.99.0.2");
        tcp(&host, &server, 100_000).expect("the new client is served");
        other.stop();
        goes_on("beside another client");
        says(
            &reload(&gateway, |text| text.replace(&table, "")),
            &["client c3 removed"],
        );
        let status = gateway.until_up();
        assert_eq!(
            status["clients"].as_array().map(Vec::len),
            Some(1),
            "{status}"
        );
        let routes = |picture: &str| -> String {
            let ours = picture.lines().filter(|line| line.contains("dev plD0"));
            ours.map(|line| format!("{line}\n")).collect()
        };
        assert_same(
            "routes",
            &routes(&before),
            &routes(&picture(&world.gateway)),
        );
        goes_on("at the end");
        is_over.store(true, Ordering::Relaxed);
        transfer
            .join()
            .expect("no panic")
            .expect("no connection breaks");
    });
}

#[test]
fn what_cannot_be_applied_is_named_and_a_mistake_changes_nothing() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let host = picture(&world.client);
    let good = fs::read_to_string(client.file()).expect("readable");

    says(&reload(&client, |text| text), &["Nothing has changed"]);
    let output = reload(&client, |text| {
        text.replace("device = \"l1\"", "devcie = \"l1\"")
    });
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("devcie") && said.contains("remedy"), "{said}");
    client.until_links_up(&["l0", "l1"]);
    fs::remove_file(client.file()).expect("there");
    assert_eq!(client.command("reload", &[]).status.code(), Some(1));
    client.until_links_up(&["l0", "l1"]);

    fs::write(
        client.file(),
        good.replace("[scheduler]", "mtu = 1300\n[scheduler]")
            .replace("203.0.113.5:7700", "203.0.113.5:7701"),
    )
    .expect("written");
    says(
        &client.command("reload", &[]),
        &[
            "Needs a restart: [tunnel] mtu",
            "Needs a restart: [gateway] endpoints",
        ],
    );
    assert_same("the host", &host, &picture(&world.client));

    // A signal has the same effect, and does not end the daemon.
    fs::write(
        client.file(),
        good.replace("\"earliest-arrival\"", "\"min-rtt\""),
    )
    .expect("written");
    client.signal(Signal::HUP);
    client.until("the policy is another", |status: &Value| {
        status["scheduler"]["policy"] == "min-rtt"
    });
}
