//! A workload of the DBAS paper in namespaces: real connections through the real proxy over emulated links.
//!
//! Each case has a world of its own. All worlds run at the same time, since their links are slow. A world consists of
//! the lab's hosts, with the proxy on the client, and of one more host behind the client. The programs run there, so
//! that the proxy identifies them by port, as the model does. Each connection uses SOCKS5 to reach the server, sends
//! the number of bytes it wants, and is done when they have arrived. A connection that breaks is counted, and is
//! repeated until it succeeds. Cases that stripe have a second proxy on the server's host. Links lose packets towards
//! the client only, as in the model; each has a queue of [`QUEUE`] and a one-way delay of half the RTT. Results are
//! rejected if an emulator was late ([`MOST_LATE_US`]).

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context as _;
use pleach_core::time::Instant;
use pleach_lab::{
    netns::Netns,
    topology::{Reach, Topology},
};
use pleach_linux::clock;
use pleach_proxy::{daemon::report::Learnt, estimate::application::Demand};
use pleach_reproduce::dbas::model::{
    self, App, Arrival, Case, Choice, LinkSettings, Outcome, Workload,
};
use pleach_sim::{
    results::{Lateness, Results, World},
    scenario::Scenario,
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::{
    keys::{SecretKey, encode_public, public_of},
    run_proxy::store::Store,
};

/// Runs all cases of `workload` for each of its seeds. Configurations and logs of the proxies are stored below `work`.
///
/// # Errors
/// If a world cannot be built, or if a proxy does not start.
pub(super) fn play(workload: &Workload, work: &Path) -> anyhow::Result<Results> {
    fs::create_dir_all(work).with_context(|| format!("cannot make {}", work.display()))?;
    let mut outcomes = vec![Vec::new(); workload.case.len()];
    let mut broken = 0;
    let mut late = Lateness {
        limit_p99: Some(MOST_LATE_US),
        ..Lateness::default()
    };
    for seed in workload.seeds() {
        let of_run: Vec<anyhow::Result<Played>> = thread::scope(|scope| {
            let start = |case| scope.spawn(move || play_case(workload, case, seed, work));
            let threads: Vec<_> = workload.case.iter().map(start).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                let panicked = |_| Err(anyhow::anyhow!("a thread of the lab panicked"));
                thread.join().unwrap_or_else(panicked)
            };
            threads.into_iter().map(join).collect()
        });
        for ((outcome, case), outcomes) in of_run.into_iter().zip(&workload.case).zip(&mut outcomes)
        {
            let played = outcome.with_context(|| format!("case `{}`", case.name))?;
            broken += played.broken;
            late.p50 = late.p50.max(played.late_us[0]);
            late.p99 = late.p99.max(played.late_us[1]);
            outcomes.push(played.outcome);
        }
    }
    let mut results = model::results(workload, World::Lab, &outcomes);
    results.duration_s = workload.seconds;
    results.lateness_us = Some(late);
    results.judge_lateness();
    if broken > 0 {
        results.notes = vec![format!("{broken} connections broke and were made again.")];
    }
    Ok(results)
}

/// Result of a case.
struct Played {
    outcome: Outcome,
    /// Number of connections that broke.
    broken: u64,
    /// Lateness of the emulator in microseconds: median and 99th percentile, each the larger value of the two
    /// directions.
    late_us: [f64; 2],
}

/// Tells servers and connections of a world, when dropped, that the case is over.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection and its progress.
#[derive(Debug)]
struct Fetch {
    arrival: Arrival,
    came: AtomicU64,
}

fn play_case(workload: &Workload, case: &Case, seed: u64, work: &Path) -> anyhow::Result<Played> {
    let links = case.links(workload.choice);
    let scenario = Scenario::parse_alone("workload.toml", &scenario(workload, &links))?;
    let world = Topology::build(&scenario, Reach::Links, seed)?;
    let lan = programs_host(&world)?;
    let over = Over(Arc::new(AtomicBool::new(false)));
    let is_over = &over.0;
    world.emulator.begin(clock::now(), &[]);
    for app in [App::Small, App::Large, App::Long] {
        serve(&world.server, app.port(), is_over)?;
    }
    let _proxies = proxies(workload, case, &links, &world, work)?;
    until_served(&lan)?;

    let arrivals = model::arrivals(workload, case, seed);
    let fetches: Vec<Arc<Fetch>> = arrivals
        .into_iter()
        .map(|arrival| {
            let came = AtomicU64::new(0);
            Arc::new(Fetch { arrival, came })
        })
        .collect();
    let begin = clock::now();
    let broken = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    for fetch in &fetches {
        sleep_until(begin + Duration::from_secs_f64(fetch.arrival.at_s));
        let (fetch, broken, is_over) =
            (Arc::clone(fetch), Arc::clone(&broken), Arc::clone(is_over));
        let work = move || fetch.run(&broken, &is_over);
        threads.push(lan.spawn("connection", work)?);
    }
    let early = begin + Duration::from_secs_f64(workload.seconds);
    sleep_until(early);
    let mut outcome = Outcome {
        early_s: workload.seconds,
        ..Outcome::default()
    };
    for fetch in &fetches {
        let came = to_f64(fetch.came.load(Ordering::Relaxed));
        outcome.early_bytes += came;
        if fetch.arrival.app == App::Long {
            outcome.long_bytes += came;
        }
    }
    // A case with connections that never end is over now. In other cases, wait until all connections are done.
    is_over.store(case.long, Ordering::Relaxed);
    for (fetch, thread) in fetches.iter().zip(threads) {
        let ended = thread.join().unwrap_or_else(|_| Ok(None))?;
        let Some(ended) = ended else { continue };
        let done_s = ended.since(begin).as_secs_f64();
        outcome.done_s = outcome.done_s.max(done_s);
        outcome.bytes += fetch.arrival.bytes;
        if fetch.arrival.app != App::Long {
            let took_s = done_s - fetch.arrival.at_s;
            outcome.each.push((fetch.arrival.bytes, took_s));
        }
    }
    let (down, up) = world.emulator.report()?;
    let late_us = [0.5, 0.99].map(|quantile| {
        let directions = [&down, &up].into_iter();
        let late_ns = directions.filter_map(|direction| {
            let all = direction.lateness_ns.as_ref()?;
            Some(to_f64(all.value_at_quantile(quantile)))
        });
        late_ns.fold(0.0, f64::max) / 1e3
    });
    Ok(Played {
        outcome,
        broken: broken.load(Ordering::Relaxed),
        late_us,
    })
}

impl Fetch {
    /// Repeats the connection until all bytes have arrived, and returns that time; `None` if the case ended before.
    ///
    /// # Errors
    /// If no attempt has received any bytes for [`PATIENCE`]: the proxy, or a host behind it, is dead.
    fn run(&self, broken: &AtomicU64, is_over: &AtomicBool) -> anyhow::Result<Option<Instant>> {
        let mut failing_since = None;
        while !is_over.load(Ordering::Relaxed) {
            self.came.store(0, Ordering::Relaxed);
            match self.attempt(is_over) {
                Ok(true) => return Ok(Some(clock::now())),
                Ok(false) => return Ok(None),
                Err(error) => {
                    broken.fetch_add(1, Ordering::Relaxed);
                    let now = clock::now();
                    if self.came.load(Ordering::Relaxed) > 0 {
                        failing_since = None;
                    } else if now.since(*failing_since.get_or_insert(now)) > PATIENCE {
                        // Measured from the first failure, not from the first attempt: one attempt beside a hundred
                        // others can take minutes (RFC 6298 section 5.5).
                        let text = "connections bring nothing any more: the proxy may have died";
                        return Err(error).context(text);
                    }
                    thread::park_timeout(Duration::from_millis(100));
                }
            }
        }
        Ok(None)
    }

    /// Receives the bytes once. Returns whether all have arrived; `false` if the case ended before.
    fn attempt(&self, is_over: &AtomicBool) -> std::io::Result<bool> {
        let mut stream = connect(self.arrival.app.port())?;
        let wanted = whole(self.arrival.bytes);
        stream.write_all(&wanted.to_be_bytes())?;
        stream.set_read_timeout(Some(POLL))?;
        let mut buffer = vec![0; 16 << 10];
        let (mut came, mut silent) = (0, 0);
        while came < wanted {
            if is_over.load(Ordering::Relaxed) {
                return Ok(false);
            }
            match stream.read(&mut buffer) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    (came, silent) = (came + len as u64, 0);
                    self.came.store(came, Ordering::Relaxed);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    silent += 1;
                    if silent > MAX_SILENT {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Opens a connection to `port` of the server, through the proxy.
fn connect(port: u16) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect((PROXY, PROXY_PORT))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[5, 1, 0])?;
    stream.read_exact(&mut [0; 2])?;
    let mut request = vec![5, 1, 0, 1];
    request.extend_from_slice(&SERVER.octets());
    request.extend_from_slice(&port.to_be_bytes());
    stream.write_all(&request)?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    if reply[1] != 0 {
        let text = format!("SOCKS5 reply {}", reply[1]);
        return Err(std::io::Error::other(text));
    }
    Ok(stream)
}

/// Waits until the proxy connects to the server.
fn until_served(lan: &Netns) -> anyhow::Result<()> {
    lan.run(|| {
        let deadline = clock::now() + PATIENCE;
        loop {
            // A connection without bytes affects the proxy's estimates least for this application.
            let attempt = connect(App::Long.port()).and_then(|mut stream| {
                stream.write_all(&0_u64.to_be_bytes())?;
                stream.read(&mut [0])
            });
            match attempt {
                Ok(_) => return Ok(()),
                Err(error) if clock::now() >= deadline => {
                    return Err(error).context("the proxy does not get ready");
                }
                Err(_) => thread::park_timeout(Duration::from_millis(50)),
            }
        }
    })
}

/// Serves connections until the case is over: sends each the number of bytes it asks for.
fn serve(host: &Netns, port: u16, is_over: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let listener = host.run(|| Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?))?;
    // The time limit makes `accept` return, so that the loop notices the end.
    set_socket_timeout(&listener, Timeout::Recv, Some(POLL))?;
    let is_over = Arc::clone(is_over);
    thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            if let Ok((stream, _)) = listener.accept() {
                // If the client has closed the connection, the client's end reports it.
                thread::spawn(move || answer(stream).ok());
            }
        }
    });
    Ok(())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    // The stream inherits the listener's time limits. They are too short for a connection through a peer, whose request
    // arrives an RTT later.
    stream.set_read_timeout(Some(PATIENCE * 4))?;
    stream.set_write_timeout(Some(PATIENCE * 4))?;
    let mut wanted = [0; 8];
    stream.read_exact(&mut wanted)?;
    let mut left = u64::from_be_bytes(wanted);
    let block = [0; 16 << 10];
    while left > 0 {
        let len = usize::try_from(left).map_or(block.len(), |left| left.min(block.len()));
        stream.write_all(&block[..len])?;
        left -= len as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)
}

/// Creates the host behind the client.
fn programs_host(world: &Topology) -> anyhow::Result<Netns> {
    let lan = Netns::new("programs")?;
    world.client.ip(&format!(
        "link add lan type veth peer name eth0 netns {}\naddr add {PROXY}/24 dev lan\nlink set dev lan up\n",
        lan.path().display()
    ))?;
    lan.ip(&format!(
        "addr add {PROGRAMS}/24 dev eth0\nlink set dev eth0 up\n"
    ))?;
    Ok(lan)
}

fn scenario(workload: &Workload, links: &[LinkSettings]) -> String {
    let mut text = String::from("name = \"workload\"\nduration = \"3600s\"\n");
    for (number, link) in (1..).zip(links) {
        let _ = write!(
            text,
            "[[link]]\nname = \"if{number}\"\nrate = \"{}bit\"\ndelay = \"{}us\"\nqueue = \"{QUEUE}\"\n[link.down]\nloss = {:?}\n",
            link.rate.as_bps(),
            workload.rtt_ms * 500,
            link.loss
        );
    }
    // A scenario must contain traffic; this traffic is not run.
    text + "[[traffic]]\nkind = \"ping\"\n"
}

/// A proxy process that is killed when dropped.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        // Killing a process that has ended fails.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn proxies(
    workload: &Workload,
    case: &Case,
    links: &[LinkSettings],
    world: &Topology,
    work: &Path,
) -> anyhow::Result<Vec<Proxy>> {
    let (scheduler, striping) = match workload.choice {
        Choice::Optimal | Choice::OnlyFirst | Choice::OnlyLast => ("only-one", None),
        Choice::RoundRobin => ("round-robin", None),
        Choice::WeightedRoundRobin => ("weighted-round-robin", None),
        Choice::MaxThroughput => ("max-throughput", None),
        Choice::ChunksRoundRobin => ("round-robin", Some("round-robin")),
        Choice::ChunksWeightedRoundRobin => ("weighted-round-robin", Some("weighted-round-robin")),
    };
    let path = |name: &str| work.join(format!("{}-{name}", case.name));
    let mut text = format!(
        "mode = \"proxy\"\n[proxy]\nlisten = \"{PROXY}:{PROXY_PORT}\"\nallow = [\"{PROGRAMS}/32\"]\nsticky = \"off\"\n\
         scheduler = \"{scheduler}\"\ncontrol = {:?}\n",
        path("sock")
    );
    if !workload.learns {
        let state = path("state");
        know(workload, case, &state)?;
        let _ = writeln!(text, "state = {state:?}");
    }
    let mut all = Vec::new();
    if let Some(striping) = striping {
        let (ours, theirs) = (keys()?, keys()?);
        let peer = format!(
            "mode = \"proxy\"\n[proxy]\nlisten = \"127.0.0.1:{PROXY_PORT}\"\nstriping = \"{striping}\"\ncontrol = {:?}\n\
             [peer]\nlisten = \"0.0.0.0:{PEER_PORT}\"\n{}",
            path("peer-sock"),
            trust(&theirs.0, &ours.1, "")
        );
        all.push(start(&world.server, &path("peer"), &peer)?);
        let place = format!("endpoint = \"{SERVER}:{PEER_PORT}\"\nnetworks = [\"{SERVER}/32\"]\n");
        let _ = write!(
            text,
            "striping = \"{striping}\"\npeer_port = {PEER_PORT}\n[peer]\n{}",
            trust(&ours.0, &theirs.1, &place)
        );
    }
    let used = if workload.choice == Choice::OnlyLast {
        links.len().saturating_sub(1)
    } else {
        0
    };
    for (number, link) in (1..).zip(links).skip(used) {
        let _ = write!(
            text,
            "[[link]]\nname = \"if{number}\"\ndevice = \"if{number}\"\n"
        );
        if !workload.learns {
            let _ = writeln!(text, "download = \"{}bit\"", link.carries().as_bps());
        }
    }
    all.push(start(&world.client, &path("proxy"), &text)?);
    Ok(all)
}

/// Stores the demands of connections in the state file at `path`, so that the proxy knows them.
fn know(workload: &Workload, case: &Case, path: &Path) -> anyhow::Result<()> {
    // Remove the file of an earlier measurement.
    let _ = fs::remove_file(path);
    let of = |(app, bytes): (App, u64)| {
        let demand = Demand { up: 0, down: bytes };
        (format!(":{}", app.port()), demand)
    };
    let learnt = Learnt {
        demands: workload.demands(case).map(of).to_vec(),
        ..Learnt::default()
    };
    Ok(Store::open(path)?.save(&learnt)?)
}

/// Returns a private key and its public key.
fn keys() -> anyhow::Result<(String, String)> {
    let private = SecretKey::random()?;
    let public = encode_public(&public_of(&private));
    Ok((private.to_base64().to_string(), public))
}

fn trust(private: &str, public: &str, place: &str) -> String {
    format!(
        "private_key = \"{private}\"\n[[known_peer]]\nname = \"other\"\npublic_key = \"{public}\"\n{place}"
    )
}

/// Starts a proxy on `host` with the configuration `text`. `path` with an extension appended is the path of
/// configuration and log.
fn start(host: &Netns, path: &Path, text: &str) -> anyhow::Result<Proxy> {
    // Names of cases contain dots, so `with_extension` cannot be used.
    let beside = |extension: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(extension);
        PathBuf::from(name)
    };
    let file = beside(".toml");
    let _ = fs::remove_file(&file);
    // The file contains a key.
    let mut private = fs::OpenOptions::new();
    private.write(true).create_new(true).mode(0o600);
    let written = private
        .open(&file)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", file.display()))?;
    let log = fs::File::create(beside(".log"))?;
    let binary =
        std::env::var_os("PLEACH_BIN").map_or_else(std::env::current_exe, |it| Ok(it.into()))?;
    let child = host
        .command(binary)
        .arg("proxy")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("cannot start the proxy")?;
    Ok(Proxy(child))
}

fn sleep_until(at: Instant) {
    loop {
        let now = clock::now();
        if now >= at {
            return;
        }
        thread::park_timeout(at.since(now));
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole, positive and far below 2^63"
)]
fn whole(bytes: f64) -> u64 {
    bytes as u64
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn to_f64(bytes: u64) -> f64 {
    bytes as f64
}

/// Longest acceptable lateness in microseconds: a tenth of the RTT, and less than the transmission time of a packet. A
/// larger lateness would influence the results.
const MOST_LATE_US: f64 = 5_000.0;
/// Queue size of a link: a quarter of a second at 2 Mbit/s, some RTTs. The paper does not give a size.
const QUEUE: &str = "64kB";
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const PROXY: Ipv4Addr = Ipv4Addr::new(10, 55, 0, 1);
const PROXY_PORT: u16 = 1080;
const PROGRAMS: Ipv4Addr = Ipv4Addr::new(10, 55, 0, 2);
const PEER_PORT: u16 = 7701;
/// Longest wait for a start or an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which a connection checks whether the case is over. A connection breaks after [`MAX_SILENT`] such
/// intervals without data: on a crowded link, one of many connections may get no data for a long time.
const POLL: Duration = Duration::from_millis(500);
const MAX_SILENT: u32 = 240;
