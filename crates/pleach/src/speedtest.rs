//! `pleach speedtest`: what each link carries alone, and all together, in both directions, and how long a round trip takes
//! meanwhile.
//!
//! It runs at the client, through the tunnel, against the gateway's [`responder`]. To measure a link alone the daemon is asked to
//! hold the others back for some seconds (`{"command":"only"}`): they stay as reserve, so a link that dies takes nothing with it, and
//! the daemon itself undoes it in time. Other traffic of the tunnel goes over the one link meanwhile, and shares it.
//!
//! Each figure is of one TCP connection, counted where it arrives, without its first third, in which it gathers speed. A round
//! trip is that of one byte on a connection beside. Bounds: half a minute for up to eight links, shorter for few.

pub(crate) mod protocol;
pub(crate) mod responder;

use std::{
    fmt::Write as _,
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use pleach_core::time::Instant;
use pleach_linux::{
    clock,
    watch::{LinkSnapshot, Targets},
};
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};

use crate::control::{self, LinkState};
use protocol::Kind;

/// Options of `pleach speedtest`.
#[derive(Debug, clap::Args)]
pub(crate) struct Speedtest {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Inner address of the gateway [default: the first of the tunnel's network]
    #[arg(long, value_name = "ADDRESS")]
    to: Option<IpAddr>,
    /// Control socket of the daemon [default: the only one in /run/pleach]
    #[arg(long, value_name = "SOCKET")]
    pub(crate) control: Option<PathBuf>,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Results {
    /// Inner address of the gateway.
    gateway: IpAddr,
    /// Each link alone.
    links: Vec<Figures>,
    /// All together.
    all: Figures,
}

/// Of a link, or of all.
#[derive(Debug, Serialize)]
struct Figures {
    /// Name of the link; `all` of all.
    name: String,
    /// 10^6 bit/s of TCP's payload; `None` if the connection broke.
    down_mbps: Option<f64>,
    up_mbps: Option<f64>,
    /// Median round trip in milliseconds, without load and under it.
    idle_ms: Option<f64>,
    down_loaded_ms: Option<f64>,
    up_loaded_ms: Option<f64>,
}

/// Does it; what to print. `control`: the daemon's.
///
/// # Errors
/// No client runs, or its gateway serves no speed test.
pub(crate) fn run(options: &Speedtest, control: &Path) -> anyhow::Result<String> {
    let status = control::status(control)?;
    if status.mode != "client" {
        bail!("this daemon is no client: run `pleach speedtest` at the client's end of a tunnel");
    }
    if !status.up {
        bail!("the tunnel has no session: `pleach doctor` says why");
    }
    let links: Vec<String> = status
        .links
        .iter()
        .filter(|link| matches!(link.state, LinkState::Up | LinkState::Standby))
        .map(|link| link.name.clone())
        .collect();
    let far = Far::find(&status.name, options.to)?;
    let phases = u32::try_from(links.len()).unwrap_or(u32::MAX).max(1) + 1;
    let slot = (TOTAL / phases / 2)
        .saturating_sub(SETTLING)
        .clamp(SHORTEST, LONGEST);
    let mut figures = Vec::new();
    for name in links.iter().filter(|_| links.len() > 1) {
        let lease = slot * 2 + SETTLING * 3;
        control::only(control, Some(name), lease)?;
        figures.push(far.measure(name, slot));
        control::only(control, None, Duration::ZERO)?;
    }
    let results = Results {
        gateway: far.address.ip(),
        links: figures,
        all: far.measure("all", slot),
    };
    if options.json {
        let text = serde_json::to_string_pretty(&results).context("JSON")?;
        return Ok(text + "\n");
    }
    Ok(table(&results))
}

fn table(results: &Results) -> String {
    let mut text = format!(
        "{:<16} {:>10} {:>10} {:>9} {:>12} {:>12}\n",
        "link", "down Mbps", "up Mbps", "idle ms", "ms at down", "ms at up"
    );
    let shown = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |x| format!("{x:.1}"));
    for line in results.links.iter().chain([&results.all]) {
        let _ = writeln!(
            text,
            "{:<16} {:>10} {:>10} {:>9} {:>12} {:>12}",
            line.name,
            shown(line.down_mbps),
            shown(line.up_mbps),
            shown(line.idle_ms),
            shown(line.down_loaded_ms),
            shown(line.up_loaded_ms)
        );
    }
    text
}

/// The responder, and the way there.
struct Far {
    address: SocketAddr,
    tunnel: String,
}

impl Far {
    fn find(tunnel: &str, named: Option<IpAddr>) -> anyhow::Result<Self> {
        let links = LinkSnapshot::read_all(&Targets::default()).context("devices of this host")?;
        let own = links.into_iter().find(|link| link.name == tunnel);
        let nets = own.map_or_else(Vec::new, |own| own.addresses);
        let candidates = match named {
            Some(address) => vec![address],
            None => nets.iter().filter_map(first_host).collect(),
        };
        for address in &candidates {
            let far = Self {
                address: SocketAddr::new(*address, protocol::PORT),
                tunnel: tunnel.to_owned(),
            };
            match far.open(Kind::Echo, Duration::from_secs(1)) {
                Ok(_) => return Ok(far),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    bail!("the gateway is busy with tests of other clients: try again in a minute")
                }
                Err(error) => tracing::debug!(%address, %error, "no speed test"),
            }
        }
        let tried: Vec<String> = candidates.iter().map(ToString::to_string).collect();
        bail!(
            "the gateway does not answer speed tests at {} port {}: name its inner address with --to, see that its [tunnel] has no speedtest = false, and update it if it is older",
            tried.join(", "),
            protocol::PORT
        )
    }

    fn open(&self, kind: Kind, time: Duration) -> io::Result<TcpStream> {
        let domain = Domain::for_address(self.address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.bind_device(Some(self.tunnel.as_bytes()))?;
        socket.connect_timeout(&self.address.into(), PATIENCE)?;
        let mut stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(&protocol::request(kind, time))?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        match answer {
            [protocol::SERVED] => Ok(stream),
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    /// Two measurements of `slot` each.
    fn measure(&self, name: &str, slot: Duration) -> Figures {
        let idle_over = AtomicBool::new(false);
        let idle = thread::scope(|scope| {
            let trips = scope.spawn(|| self.round_trips(&idle_over, SETTLING));
            wait(SETTLING);
            idle_over.store(true, Ordering::Relaxed);
            trips.join().ok().flatten()
        });
        let (down_mbps, down_loaded_ms) = self.under_load(slot, |far| far.down(slot));
        let (up_mbps, up_loaded_ms) = self.under_load(slot, |far| far.up(slot));
        Figures {
            name: name.to_owned(),
            down_mbps,
            up_mbps,
            idle_ms: idle,
            down_loaded_ms,
            up_loaded_ms,
        }
    }

    /// What `load` yields, and the median round trip meanwhile.
    fn under_load(
        &self,
        slot: Duration,
        load: impl Fn(&Self) -> io::Result<f64>,
    ) -> (Option<f64>, Option<f64>) {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let trips = scope.spawn(|| self.round_trips(&is_over, slot));
            let rate = load(self).inspect_err(|error| tracing::debug!(%error, "speed test"));
            is_over.store(true, Ordering::Relaxed);
            (rate.ok(), trips.join().ok().flatten())
        })
    }

    /// Median round trip in milliseconds until `is_over`.
    fn round_trips(&self, is_over: &AtomicBool, time: Duration) -> Option<f64> {
        let mut stream = self.open(Kind::Echo, time + PATIENCE).ok()?;
        let mut trips = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let start = clock::now();
            let mut byte = [0];
            stream.write_all(&byte).ok()?;
            stream.read_exact(&mut byte).ok()?;
            trips.push(clock::now().since(start));
            wait(TRIPS.saturating_sub(clock::now().since(start)));
        }
        trips.sort();
        let median = trips.get(trips.len() / 2)?;
        Some((median.as_secs_f64() * 1e4).round() / 10.0)
    }

    fn down(&self, slot: Duration) -> io::Result<f64> {
        let mut stream = self.open(Kind::Down, slot)?;
        let mut counts = Counts::new(slot);
        let mut chunk = vec![0; 64 << 10];
        let mut count = 0;
        loop {
            let len = stream.read(&mut chunk)?;
            count += len as u64;
            counts.note(count);
            if len == 0 || counts.is_over() {
                return Ok(counts.mbps());
            }
        }
    }

    fn up(&self, slot: Duration) -> io::Result<f64> {
        let stream = self.open(Kind::Up, slot + PATIENCE)?;
        let mut counts = Counts::new(slot);
        let end = counts.end;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let zeros = vec![0; 64 << 10];
                while clock::now() < end && !is_over.load(Ordering::Relaxed) {
                    (&stream).write_all(&zeros)?;
                }
                // The gateway tells its last count at the end of the data. Without one, nothing may come after `end`.
                stream.shutdown(std::net::Shutdown::Write)
            });
            let mut word = [0; 8];
            let read = loop {
                match (&stream).read_exact(&mut word) {
                    Ok(()) => counts.note(u64::from_be_bytes(word)),
                    Err(error) => break Err(error),
                }
                if counts.is_over() {
                    break Ok(());
                }
            };
            is_over.store(true, Ordering::Relaxed);
            // What waits in the kernel is of no use, and would disturb what follows.
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = sender.join();
            read
        })?;
        Ok(counts.mbps())
    }
}

/// Bytes that have come, over a measurement.
#[derive(Debug)]
struct Counts {
    start: Instant,
    end: Instant,
    /// When and how many, at the end of the first third.
    first: Option<(Instant, u64)>,
    last: Option<(Instant, u64)>,
}

impl Counts {
    fn new(slot: Duration) -> Self {
        let now = clock::now();
        Self {
            start: now + slot / 3,
            end: now + slot,
            first: None,
            last: None,
        }
    }

    fn note(&mut self, count: u64) {
        self.note_at(clock::now(), count);
    }

    fn note_at(&mut self, now: Instant, count: u64) {
        if self.first.is_none() && now >= self.start {
            self.first = Some((now, count));
        }
        self.last = Some((now, count));
    }

    fn is_over(&self) -> bool {
        self.last.is_some_and(|(at, _)| at >= self.end)
    }

    fn mbps(&self) -> f64 {
        let (Some((from, before)), Some((to, after))) = (self.first, self.last) else {
            return 0.0;
        };
        let seconds = to.since(from).as_secs_f64();
        let bits =
            u32::try_from(after.saturating_sub(before) / 125).map_or(f64::INFINITY, f64::from);
        // Thousands of bits, to two decimals of 10^6.
        if seconds > 0.0 {
            (bits / seconds / 10.0).round() / 100.0
        } else {
            0.0
        }
    }
}

/// By convention a network's first address is the gateway's; of IPv6, where that is the routers' anycast address (RFC 4291
/// section 2.6.1), the one behind it.
fn first_host(net: &IpNet) -> Option<IpAddr> {
    let own = net.addr();
    let first = match net.trunc() {
        IpNet::V4(net) => net.hosts().next().map(IpAddr::V4),
        IpNet::V6(net) => net.hosts().nth(1).map(IpAddr::V6),
    };
    first.filter(|first| *first != own)
}

fn wait(time: Duration) {
    let end = clock::now() + time;
    while clock::now() < end {
        thread::park_timeout(end.since(clock::now()));
    }
}

/// Half a minute, less what connections take to come about.
const TOTAL: Duration = Duration::from_secs(26);
const SHORTEST: Duration = Duration::from_millis(1200);
const LONGEST: Duration = Duration::from_secs(4);
/// Until both ends know that other links are held back, and what lies in queues is gone.
const SETTLING: Duration = Duration::from_millis(500);
/// From the start of one round trip to the next.
const TRIPS: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_third_does_not_count() {
        let mut counts = Counts::new(Duration::from_secs(3));
        let start = counts.start - Duration::from_secs(1);
        let at = |millis| start + Duration::from_millis(millis);
        assert!(counts.mbps() <= 0.0);
        for (millis, count) in [
            (500, 10),
            (1000, 1_000_000),
            (2000, 2_000_000),
            (3000, 3_500_000),
        ] {
            counts.note_at(at(millis), count);
        }
        assert!(counts.is_over());
        assert!((counts.mbps() - 10.0).abs() < 1e-9, "{}", counts.mbps());
    }

    #[test]
    fn an_upload_ends_with_its_time_whatever_the_gateway_has_read_till_then() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let far = Far {
            address: listener.local_addr().expect("its address"),
            tunnel: "lo".to_owned(),
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = responder::serve(&stream);
            }
        });
        // Loopback has no queue that would go on being read after the end.
        for _ in 0..3 {
            let mbps = far.up(Duration::from_millis(250)).expect("a last count");
            assert!(mbps > 0.0);
        }
    }

    #[test]
    fn the_gateway_is_the_first_of_the_network() {
        let first = |net: &str| first_host(&net.parse().expect("net")).map(|ip| ip.to_string());
        assert_eq!(first("10.77.0.2/24").as_deref(), Some("10.77.0.1"));
        assert_eq!(first("fd77::2/64").as_deref(), Some("fd77::1"));
        assert_eq!(first("10.77.0.1/24"), None);
    }
}
