//! Measures striping: links of 20 and 10 Mbit/s, 10 and 80 ms one way, with a plain server and another proxy behind
//! both.
//!
//! | measurement | target |
//! | --- | --- |
//! | goodput of a download over both links, for each scheduler | ≥ 0.95 of the sum of both links, each alone |
//! | largest content of the receiver's reorder buffer, for each scheduler | less with `osia` than with `round-robin` |
//! | longest pause after the faster link drops all packets, or goes down | ≤ 1 s |
//! | errors of 2 000 connections of 20 kB a minute over shared lanes, 34 a second | 0 |
//!
//! `./dev bench stripe` reads these environment variables: `SECONDS_EACH=30`, `ROUNDS=3`, `ONLY=osia` (one scheduler),
//! `ONLY=many` (only the many connections), `CONNECTIONS=2000` (number of connections in the minute).

#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/proxy/client.rs"]
mod client;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/proxy/peers.rs"]
mod peers;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/proxy/world.rs"]
mod world;

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use pleach_linux::clock;
use pleach_proxy::stripe::sched::Striping;

use world::{HTTP_PORT, SERVER, World};

const LINKS: &str = r#"
name = "stripe"
duration = "600s"
[[link]]
name = "wifi"
rate = "20Mbit"
delay = "10ms"
queue = "100kB"
[[link]]
name = "lte"
rate = "10Mbit"
delay = "80ms"
queue = "200kB"
[[traffic]]
kind = "ping"
"#;

/// Requested bytes per second: more than the links carry.
const BYTES_A_SECOND: u64 = 4_000_000;

fn main() {
    // `cargo test --benches` only tests whether the bench starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let number = |name: &str, default: u64| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let length = Duration::from_secs(number("SECONDS_EACH", 15));
    for round in 1..=number("ROUNDS", 1) {
        println!("round {round}, {} s each", length.as_secs());
        let alone: Vec<f64> = ["wifi", "lte"].map(|link| alone(link, length)).into();
        println!(
            "  alone  wifi {:5.2}, lte {:5.2} Mbit/s",
            alone[0], alone[1]
        );
        let sum: f64 = alone.iter().sum();
        let only = std::env::var("ONLY").unwrap_or_default();
        for striping in Striping::ALL {
            if !striping.name().contains(&only) {
                continue;
            }
            let found = together(striping, length);
            let quantile = |part: usize| found.held[(found.held.len() - 1) * part / 100] / 1000;
            println!(
                "  {:22} {:5.2} Mbit/s, {:.3} of the sum; held: median {:3} kB, 95 % {:4} kB, at most {:4} kB; {} B sent again",
                striping.name(),
                found.rate_mbps,
                found.rate_mbps / sum,
                quantile(50),
                quantile(95),
                found.most_held / 1000,
                found.repeated_bytes,
            );
        }
        if "many connections".contains(&only) {
            many(number("CONNECTIONS", 2000));
        }
        if !only.is_empty() {
            continue;
        }
        for (what, commands) in [
            (
                "swallows everything",
                [
                    "nft",
                    "add table inet hole; add chain inet hole in { type filter hook input priority 0; }; \
                    add chain inet hole out { type filter hook output priority 0; }; \
                    add rule inet hole in iifname wifi drop; add rule inet hole out oifname wifi drop",
                ],
            ),
            ("goes down", ["ip", "link set dev wifi down"]),
        ] {
            let pause = killed(commands);
            println!(
                "  wifi {what}: longest pause {:.0} ms",
                pause.as_secs_f64() * 1e3
            );
        }
    }
}

/// Returns the goodput of one plain download over `link`.
fn alone(link: &str, length: Duration) -> f64 {
    let (world, _) = World::with_links(LINKS, "").expect("namespaces");
    let rule = format!("[[rule]]\nport = {HTTP_PORT}\nlink = \"{link}\"\nstrict = true\n");
    let _proxy = world.proxy("", &rule);
    let host = world.client();
    let rate = host.run(|| Ok(download(&mut client::tunnel(HTTP_PORT)?, length)));
    rate.expect("a download")
}

/// Result of a striped download.
struct Together {
    rate_mbps: f64,
    /// Bytes in the reorder buffer: samples taken every tenth of a second, sorted; and the maximum.
    held: Vec<u64>,
    most_held: u64,
    repeated_bytes: u64,
}

fn together(striping: Striping, length: Duration) -> Together {
    let (world, _) = World::with_links(LINKS, "").expect("namespaces");
    let (peer, proxy) = peers::pair(&world, striping.name());
    let host = world.client();
    let found = host.run(|| {
        let mut stream = peers::striped(&proxy, HTTP_PORT);
        let number = |proxy: &world::Proxy, name: &str| {
            let status = proxy.status().expect("it runs");
            let value = &status["connections"][0]["striped"][name];
            value.as_u64().expect("striped")
        };
        let is_over = AtomicBool::new(false);
        let (rate_mbps, mut held) = thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut held = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    held.push(number(&proxy, "held_bytes"));
                    thread::park_timeout(Duration::from_millis(100));
                }
                held
            });
            let rate_mbps = download(&mut stream, length);
            is_over.store(true, Ordering::Relaxed);
            (rate_mbps, looking.join().expect("no panic"))
        });
        held.sort_unstable();
        Ok(Together {
            rate_mbps,
            held,
            most_held: number(&proxy, "most_held_bytes"),
            repeated_bytes: number(&peer, "repeated_bytes"),
        })
    });
    found.expect("a download")
}

/// Opens `count` connections within a minute, each for 20 kB, and prints the results.
fn many(count: u64) {
    const SIZE: usize = 20_000;
    let (world, _) = World::with_links(LINKS, "").expect("namespaces");
    let (peer, proxy) = peers::pair(&world, Striping::Osia.name());
    let found = world.client().run(|| {
        // The first connection is plain, and makes the proxy look for a peer.
        drop(peers::striped(&proxy, HTTP_PORT));
        let before = proxy.status().expect("it runs");
        let begin = clock::now();
        let gap = Duration::from_secs(60) / u32::try_from(count.max(1)).expect("fewer");
        let times = thread::scope(|scope| {
            let running = (0..count).map(|number| {
                let at = begin + gap * u32::try_from(number).expect("fewer");
                thread::park_timeout(at.since(clock::now()));
                scope.spawn(|| {
                    let begin = clock::now();
                    let came = client::download(client::Way::Socks5, &SIZE.to_string());
                    let is_whole = came.is_ok_and(|came| came == world::content(SIZE));
                    is_whole.then(|| clock::now().since(begin))
                })
            });
            let running: Vec<_> = running.collect();
            let ended = running.into_iter().map(|one| one.join().ok().flatten());
            ended.collect::<Vec<Option<Duration>>>()
        });
        Ok((times, before))
    });
    let (times, before) = found.expect("inside");
    let mut worked: Vec<Duration> = times.iter().copied().flatten().collect();
    worked.sort_unstable();
    let quantile = |part: usize| worked.get(worked.len().saturating_sub(1) * part / 100);
    let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    let drops = |status: &serde_json::Value| status["drops"].to_string();
    println!(
        "  {} connections of 20 kB in a minute: {} errors; median {:.0} ms, 95 % {:.0} ms; at most {} and {} kB of memory; not served: {} before, {} after, {} at the peer",
        times.len(),
        times.len() - worked.len(),
        ms(quantile(50)),
        ms(quantile(95)),
        proxy.peak_memory_kib(),
        peer.peak_memory_kib(),
        drops(&before),
        drops(&proxy.status().expect("it runs")),
        drops(&peer.status().expect("it runs")),
    );
}

/// Returns the longest pause within five seconds after `command` has run at the client.
fn killed(command: [&str; 2]) -> Duration {
    let (world, _) = World::with_links(LINKS, "").expect("namespaces");
    let (_peer, proxy) = peers::pair(&world, Striping::Osia.name());
    let host = world.client();
    let found = host.run(|| {
        let mut stream = peers::striped(&proxy, HTTP_PORT);
        download(&mut stream, Duration::from_secs(4));
        let [program, arguments] = command;
        let mut command = host.command(program);
        if program == "nft" {
            command.arg(arguments);
        } else {
            command.args(arguments.split(' '));
        }
        assert!(command.status()?.success());
        let begin = clock::now();
        let (mut last, mut longest) = (begin, Duration::ZERO);
        let mut buffer = vec![0; 1 << 16];
        while clock::now().since(begin) < Duration::from_secs(5) {
            let len = stream.read(&mut buffer)?;
            assert!(len > 0, "it ended");
            let now = clock::now();
            longest = longest.max(now.since(last));
            last = now;
        }
        Ok(longest)
    });
    found.expect("a download that goes on")
}

/// Returns the goodput in Mbit/s over the time `length`, from the first byte on.
fn download(stream: &mut TcpStream, length: Duration) -> f64 {
    let size = BYTES_A_SECOND * (length.as_secs() + 10);
    let request = format!("GET /{size} HTTP/1.1\r\nHost: {SERVER}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("asks");
    let mut buffer = vec![0; 1 << 16];
    // The server first generates its data.
    stream.read_exact(&mut buffer[..1]).expect("an answer");
    let begin = clock::now();
    let mut bytes = 0;
    while clock::now().since(begin) < length {
        let len = stream.read(&mut buffer).expect("more comes");
        assert!(len > 0, "it ended");
        bytes += len;
    }
    let bits = f64::from(u32::try_from(bytes * 8 / 1000).expect("a few gigabits"));
    bits / clock::now().since(begin).as_secs_f64() / 1000.0
}
