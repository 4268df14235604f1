//! Measures the load time of a page of 60 objects in a real browser without a screen: through the proxy over links of
//! 20 and 10 Mbit/s, and over the better link alone without a proxy.
//!
//! | measurement | target |
//! | --- | --- |
//! | median time until the `load` event, through the proxy, divided by that over the better link alone | ≤ 0.7 |
//! | the same ratio with another proxy on the servers' host (`PEER=osia`) | ≤ 0.6 |
//!
//! The page has 4 style sheets, 16 scripts and 40 pictures, of 2 to 300 kB. It is loaded once from one host, to which a
//! browser sends at most six requests at a time, and once spread over four hosts. Every load starts a new browser with
//! an empty cache. Loads of each kind alternate, so that other work of the machine affects all kinds. The bench fails
//! if an object does not arrive completely.
//!
//! `./dev bench page` reads these environment variables:
//!
//! - `LOADS=9`: number of loads,
//! - `ONLY=socks5`: only this way for the browser to reach the proxy,
//! - `HOSTS=4`: only this number of hosts,
//! - `SCALE=1`: factor of the objects' sizes,
//! - `PEER=osia`: starts another proxy on the servers' host, with this scheduler of shared lanes. The lanes use `CC`
//!   only if that is the machine's default,
//! - `CC=cubic`: congestion control of the servers,
//! - `CHROMIUM=chromium-headless-shell`: the browser,
//! - `KEYS='short_queues = true'`: additional keys of the proxy. After a `|`, keys of a further proxy, whose loads
//!   alternate with the others,
//! - `VERBOSE=1`: prints a line per load,
//! - `TRACE=1`: prints a line per object: times of its request, its beginning and its end, and its link.

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

use core::fmt::Write as _;
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::Stdio,
    sync::Mutex,
    thread,
};

use pleach_core::rng::Rng;
use world::{PROXY, Proxy, World};

const LINKS: &str = r#"
name = "page"
duration = "3600s"
[[link]]
name = "wifi"
rate = "20Mbit"
delay = "10ms"
queue = "100kB"
[[link]]
name = "lte"
rate = "10Mbit"
delay = "20ms"
queue = "100kB"
[[traffic]]
kind = "ping"
"#;

/// Source address of the connection over which each object was last requested.
static PEERS: Mutex<BTreeMap<usize, SocketAddr>> = Mutex::new(BTreeMap::new());

const PORT: u16 = 8080;
const HOSTS: usize = 4;
const SHEETS: usize = 4;
const SCRIPTS: usize = 16;
const OBJECTS: usize = 60;

fn main() {
    // `cargo test --benches` only tests whether the bench starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let variable = |name: &str| std::env::var(name).ok();
    let loads = variable("LOADS").and_then(|text| text.parse().ok());
    let loads = loads.unwrap_or(9);
    let scale = variable("SCALE").and_then(|text| text.parse().ok());
    let sizes = sizes(scale.unwrap_or(1.0));
    let only = variable("ONLY").unwrap_or_default();
    let bytes: usize = sizes.iter().sum();
    println!(
        "{OBJECTS} objects, {:.2} MB; {loads} loads each",
        megabytes(bytes)
    );
    let hosts = variable("HOSTS").and_then(|text| text.parse().ok());
    for hosts in hosts.map_or(vec![1, HOSTS], |hosts| vec![hosts]) {
        for (name, key, way) in [
            ("socks5", "", format!("socks5://{PROXY}")),
            ("http", "", format!("http://{PROXY}")),
            ("transparent", "transparent = true", String::new()),
        ] {
            if name.contains(&only) {
                compare(name, key, &way, hosts, &sizes, loads);
            }
        }
    }
}

/// Alternates loads without a proxy and through a proxy of each of the `KEYS`, and prints the results.
fn compare(name: &str, key: &str, way: &str, hosts: usize, sizes: &[usize], loads: usize) {
    let direct = world(sizes);
    let more = std::env::var("KEYS").unwrap_or_default();
    let mut kinds: Vec<Kind> = more
        .split('|')
        .map(|more| Kind::new(key, more.trim(), sizes))
        .collect();
    let mut alone_ms = Vec::new();
    for _ in 0..loads {
        alone_ms.push(load(&direct, "", hosts, sizes));
        for kind in &mut kinds {
            kind.load(way, hosts, sizes);
        }
    }
    let first_ms = alone_ms[0];
    let alone = median(&mut alone_ms);
    for mut kind in kinds {
        let first = kind.times_ms[0] / first_ms;
        let with = median(&mut kind.times_ms);
        let [wifi, lte] = kind.received();
        let total = (wifi + lte).max(1);
        println!(
            "page {name:11} {hosts} host(s): {with:4.0} ms of {alone:4.0} alone: {:.3}; quartiles {:.0} to {:.0} of {:.0} to {:.0}; first load {first:.3}; {} % by wifi{}",
            with / alone,
            quartile(&kind.times_ms, 1),
            quartile(&kind.times_ms, 3),
            quartile(&alone_ms, 1),
            quartile(&alone_ms, 3),
            wifi * 100 / total,
            kind.label(),
        );
    }
}

/// A proxy, and the load times through it.
struct Kind {
    world: World,
    proxy: Proxy,
    /// The proxy on the servers' host.
    _peer: Option<Proxy>,
    keys: String,
    times_ms: Vec<f64>,
}

impl Kind {
    fn new(key: &str, more: &str, sizes: &[usize]) -> Self {
        let world = world(sizes);
        let keys = format!("{key}\n{more}");
        let (peer, proxy) = match std::env::var("PEER") {
            Ok(striping) => {
                let (peer, proxy) = peers::pair_with(&world, &striping, &keys);
                (Some(peer), proxy)
            }
            Err(_) => (None, world.proxy(&keys, "")),
        };
        Self {
            proxy,
            _peer: peer,
            world,
            keys: more.to_owned(),
            times_ms: Vec::new(),
        }
    }

    fn label(&self) -> String {
        if self.keys.is_empty() {
            String::new()
        } else {
            format!("; {}", self.keys)
        }
    }

    fn received(&self) -> [u64; 2] {
        let status = self.proxy.status().expect("it runs");
        ["wifi", "lte"].map(|link| Proxy::received(&status, link))
    }

    fn load(&mut self, way: &str, hosts: usize, sizes: &[usize]) {
        let is_verbose = std::env::var_os("VERBOSE").is_some();
        let before = if is_verbose { self.received() } else { [0, 0] };
        let time_ms = load(&self.world, way, hosts, sizes);
        self.times_ms.push(time_ms);
        if is_verbose {
            let status = self.proxy.status().expect("it runs");
            let now = self.received();
            let rates = status["links"].as_array().expect("links").iter();
            let rates: Vec<String> = rates
                .map(|link| link["capacity_mbps"].to_string())
                .collect();
            println!(
                "  {time_ms:.0} ms, wifi {} kB, lte {} kB; taken for {} Mbit/s{}",
                (now[0] - before[0]) / 1000,
                (now[1] - before[1]) / 1000,
                rates.join(" and "),
                self.label(),
            );
        }
    }
}

/// Makes a world of links, and servers with the page behind them.
fn world(sizes: &[usize]) -> World {
    let (world, _) = World::with_links(LINKS, "").expect("namespaces");
    let server = &world.topology.server;
    let more: String = (1..HOSTS).fold(String::new(), |mut lines, host| {
        let _ = writeln!(lines, "address add {}/24 dev eth0", address(host));
        lines
    });
    server.ip(&more).expect("addresses");
    let listener = server.run(|| Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?));
    let listener = listener.expect("server");
    if let Ok(name) = std::env::var("CC") {
        let socket = socket2::SockRef::from(&listener);
        let set = socket.set_tcp_congestion(name.as_bytes());
        set.unwrap_or_else(|error| panic!("congestion control {name}: {error}"));
    }
    let sizes = sizes.to_vec();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sizes = sizes.clone();
            thread::spawn(move || serve(&stream, &sizes));
        }
    });
    world
}

/// Loads the page, and returns the milliseconds until the browser reports that everything is loaded.
fn load(world: &World, way: &str, hosts: usize, sizes: &[usize]) -> f64 {
    let profile = tempfile::TempDir::new().expect("temporary directory");
    let program =
        std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium-headless-shell".to_owned());
    let mut browser = world.client().command(&program);
    browser
        .args([
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(if way.is_empty() {
            "--no-proxy-server".to_owned()
        } else {
            format!("--proxy-server={way}")
        })
        .arg("--timeout=60000")
        .arg("--dump-dom")
        .arg(format!("http://{}:{PORT}/page/{hosts}", address(0)))
        .stderr(Stdio::null());
    let output = browser
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text
        .split_once("<title>")
        .and_then(|(_, rest)| rest.split_once("</title>"));
    let found = found.unwrap_or_else(|| panic!("no page: {text:.300}")).0;
    let (found, times) = found.split_once('|').unwrap_or((found, ""));
    if std::env::var_os("TRACE").is_some() {
        trace(times, sizes);
    }
    let numbers: Vec<f64> = found
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let [load_ms, objects, bytes, works] = numbers[..] else {
        panic!("not loaded: {found:.300}");
    };
    let wanted: usize = sizes.iter().sum();
    let is_whole = bytes > megabytes(wanted) * 1e6 - 1.0 && bytes < megabytes(wanted) * 1e6 + 1.0;
    assert!(
        is_whole && [objects, works] == [60.0, 60.0],
        "not all came: {found}"
    );
    load_ms
}

/// Prints the browser's times of each object, in the order of the requests.
fn trace(times: &str, sizes: &[usize]) {
    let peers = PEERS.lock().expect("no thread panics with it");
    for line in times.split('|') {
        let number = line.split(' ').next().and_then(|text| text.parse().ok());
        let number: usize = number.unwrap_or(usize::MAX);
        let size = sizes.get(number).unwrap_or(&0);
        println!("    {line} {size} {:?}", peers.get(&number));
    }
}

/// Notes that object `number` was requested over the connection from `peer`.
fn note(number: usize, peer: SocketAddr) {
    let mut peers = PEERS.lock().expect("no thread panics with it");
    peers.insert(number, peer);
}

/// Answers requests until the browser closes the connection.
fn serve(stream: &TcpStream, sizes: &[usize]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let path = head.split(' ').nth(1).unwrap_or_default();
        let number = |prefix| path.strip_prefix(prefix)?.parse::<usize>().ok();
        let (kind, body) = if let Some(hosts) = number("/page/") {
            ("text/html", page(hosts).into_bytes())
        } else if let Some(number) = number("/") {
            let len = sizes.get(number).copied().unwrap_or(0);
            note(number, stream.peer_addr()?);
            object(number, len)
        } else {
            ("text/plain", Vec::new())
        };
        // Like file servers: objects have entity tags, and ranges can be requested.
        let range = range(&head, body.len());
        let status = match &range {
            Some(range) => format!(
                "206 Partial Content\r\nContent-Range: bytes {}-{}/{}",
                range.start,
                range.end - 1,
                body.len()
            ),
            None => "200 OK".to_owned(),
        };
        let part = &body[range.unwrap_or(0..body.len())];
        let close = head.to_ascii_lowercase().contains("\r\nconnection: close");
        let end = if close { "close" } else { "keep-alive" };
        let mut answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nTiming-Allow-Origin: *\r\n\
             Accept-Ranges: bytes\r\nETag: \"{}\"\r\nCache-Control: no-store\r\nConnection: {end}\r\n\r\n",
            part.len(),
            path.len() + body.len()
        )
        .into_bytes();
        answer.extend_from_slice(part);
        stream.write_all(&answer)?;
        if close {
            return stream.shutdown(std::net::Shutdown::Write);
        }
    }
}

/// Returns the byte range that a request asks for, of an object of `len` bytes.
fn range(head: &str, len: usize) -> Option<std::ops::Range<usize>> {
    let text = head.split_once("\r\nRange: bytes=")?.1.lines().next()?;
    let (first, last) = text.split_once('-')?;
    let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < len).then_some(first..last + 1)
}

/// Returns the page, whose objects come from `hosts` hosts in turn. Its title contains the load time, the number of
/// objects and bytes that arrived, and the number of objects that the browser could use.
fn page(hosts: usize) -> String {
    let url = |number: usize| {
        format!(
            "http://{}:{PORT}/{number}",
            address(number % hosts.clamp(1, HOSTS))
        )
    };
    let mut head = String::new();
    let mut body = String::new();
    for number in 0..OBJECTS {
        let url = url(number);
        let _ = if number < SHEETS {
            writeln!(head, "<link rel=stylesheet href={url}>")
        } else if number < SHEETS + SCRIPTS {
            writeln!(body, "<script src={url} async></script>")
        } else {
            writeln!(body, "<img src={url}>")
        };
    }
    format!(
        "<!doctype html><html><head><title>loading</title><link rel=icon href=data:,>\n{head}<script>let ran = 0;\n\
         onload = () => {{\n\
         const now = performance.now(), all = performance.getEntriesByType('resource');\n\
         const bytes = all.reduce((sum, one) => sum + one.decodedBodySize, 0);\n\
         const seen = [...document.images].filter(one => one.naturalWidth > 0).length;\n\
         const works = document.styleSheets.length + ran + seen;\n\
         const times = all.map(one => [one.name.split('/').pop(), one.startTime, one.requestStart, one.responseStart,\n\
         one.responseEnd].map(Math.round).join(' '));\n\
         document.title = [now, all.length, bytes, works].join(' ') + '|' + times.join('|');\n\
         }};</script></head><body>\n{body}</body></html>\n"
    )
}

/// Returns an object of `len` bytes that a browser can use, and its content type.
fn object(number: usize, len: usize) -> (&'static str, Vec<u8>) {
    if number < SHEETS + SCRIPTS {
        let (kind, text) = if number < SHEETS {
            ("text/css", format!(".c{number} {{ color: red }} /*"))
        } else {
            ("text/javascript", "ran += 1; /*".to_owned())
        };
        let mut body = text.into_bytes();
        body.resize(len - 2, b'-');
        body.extend_from_slice(b"*/");
        return (kind, body);
    }
    // A bitmap of 24 bits per pixel, 100 pixels wide; the remaining bytes are not drawn.
    let rows = u32::try_from((len - BITMAP_HEAD) / 300).expect("small");
    let words: [u32; 12] = [40, 100, rows, 1 | 24 << 16, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut body = b"BM".to_vec();
    body.extend_from_slice(&u32::try_from(len).expect("small").to_le_bytes());
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&u32::try_from(BITMAP_HEAD).expect("small").to_le_bytes());
    body.extend(words[..10].iter().flat_map(|word| word.to_le_bytes()));
    body.resize(len, 0x7f);
    ("image/bmp", body)
}

/// Returns the sizes of the objects, the same in every run: between 2 and 300 kB, many small and few large.
fn sizes(scale: f64) -> Vec<usize> {
    let mut rng = Rng::new(60);
    let size = |_| {
        let share = rng.uniform();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "thousands"
        )]
        let bytes = (2_000.0 * 150.0_f64.powf(share) * scale) as usize;
        bytes.max(1_000)
    };
    (0..OBJECTS).map(size).collect()
}

fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, u8::try_from(host + 2).expect("few"))
}

#[expect(clippy::cast_precision_loss, reason = "some megabytes")]
fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    quartile(values, 2)
}

/// Returns a quartile of sorted values.
fn quartile(values: &[f64], number: usize) -> f64 {
    values[(values.len() - 1) * number / 4]
}

/// Length of both headers of a bitmap in bytes.
const BITMAP_HEAD: usize = 54;
