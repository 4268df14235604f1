//! Traffic programs: threads inside the namespaces that send, receive and measure.
//!
//! Both ends run in one process and read the same clock, so one-way delays are exact. All programs know when the run
//! begins and start and stop by the clock, without messages. Every wait has a deadline. Every record has a bound that
//! follows from the scenario's duration.

mod ping;
pub mod quic;
mod requests;
mod tcp;
mod udp;
mod video;

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use std::{io, path::PathBuf, sync::Arc, thread::JoinHandle};

use anyhow::{Context as _, anyhow};
use pleach_core::{
    rng::Rng,
    time::{Instant, saturating_nanos},
};
use pleach_linux::clock;
use pleach_sim::{
    measure::{Asked, FlowReport},
    pattern::{Pattern, Profile, Rates},
    scenario::{Direction, Traffic, TrafficKind},
    voice,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{media::film::Film, netns::Netns, wait};

/// Time for which receivers wait for packets in flight after the senders stop.
const GRACE: Duration = Duration::from_secs(1);
/// Longest wait in one system call, so that programs check the clock regularly.
const TICK: Duration = Duration::from_millis(100);
/// Time after which a probe counts as lost: longer than the round trip over a geostationary satellite.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Hosts and addresses of a flow.
#[derive(Clone, Debug)]
pub struct Ends {
    /// The host that connects.
    pub client: Netns,
    /// The host that listens.
    pub server: Netns,
    /// The server's address.
    pub server_address: IpAddr,
    /// The client's source address. `None`: the kernel selects it.
    pub bind: Option<IpAddr>,
    /// Whether TCP is Multipath TCP.
    pub mptcp: bool,
    /// The film that a traffic of kind `video` sends.
    pub(crate) film: Option<Arc<Film>>,
    /// Directory into which a traffic may write files.
    pub(crate) dir: PathBuf,
}

/// A running flow.
#[derive(Debug)]
pub struct Flow {
    name: String,
    threads: Vec<JoinHandle<anyhow::Result<FlowReport>>>,
}

/// Time at which a program runs.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    /// Start of the run.
    begin: Instant,
    start: Instant,
    stop: Instant,
}

impl Schedule {
    /// Counts `bytes` that arrive now.
    fn record(&self, report: &mut FlowReport, bytes: usize) {
        if let Some(at) = self.elapsed() {
            report.record(at, bytes);
        }
    }

    /// Returns the time since the run began. `None` before the run.
    fn elapsed(&self) -> Option<Duration> {
        let now = clock::now();
        (now >= self.begin).then(|| now.since(self.begin))
    }
}

/// Starts `traffic`, number `index` of the scenario, in a run that begins at `begin`. Listeners are ready when this
/// returns.
///
/// # Errors
/// Fails if a socket or thread cannot be created, for example for an unknown congestion control.
pub fn start(traffic: &Traffic, index: usize, ends: &Ends, begin: Instant) -> anyhow::Result<Flow> {
    let schedule = Schedule {
        begin,
        start: begin + traffic.start,
        stop: begin + traffic.stop,
    };
    let port = 5_000 + u16::try_from(index).context("too many flows")?;
    let server = SocketAddr::new(ends.server_address, port);
    let threads = match &traffic.kind {
        TrafficKind::Ping { interval } => ping::start(ends, server, schedule, *interval),
        TrafficKind::Quic => quic::start(ends, server, schedule, traffic.direction),
        TrafficKind::Requests { size, interval } => {
            requests::start(ends, server, schedule, size.get(), *interval)
        }
        TrafficKind::Tcp { cc, flows, opening } => {
            let direction = traffic.direction;
            let what = tcp::Transfer {
                cc: cc.as_deref(),
                turns: opening.turns(),
                direction,
            };
            tcp::start(ends, server, schedule, what, *flows)
        }
        TrafficKind::Udp {
            rates,
            size,
            profile,
            jitter,
            deadline,
        } => {
            let rng = Rng::new(u64::from(port));
            let pattern = Pattern::new(rates.clone(), *size, *profile).with_jitter(*jitter, rng);
            udp::start(
                ends,
                server,
                schedule,
                traffic.direction,
                pattern,
                Asked {
                    deadline: *deadline,
                    by_number: false,
                },
            )
        }
        TrafficKind::Video(spec) => video::start(ends, server, schedule, traffic, *spec),
        TrafficKind::Voice { .. } => {
            let rates = Rates::constant(voice::RATE);
            let pattern = Pattern::new(rates, voice::PACKET_BYTES, Profile::Constant);
            udp::start(
                ends,
                server,
                schedule,
                traffic.direction,
                pattern,
                Asked {
                    deadline: None,
                    by_number: true,
                },
            )
        }
    }
    .with_context(|| format!("cannot start traffic `{}`", traffic.name))?;
    Ok(Flow {
        name: traffic.name.clone(),
        threads,
    })
}

impl Flow {
    /// Waits for the end of the flow and adds the measurements of its programs.
    ///
    /// # Errors
    /// Fails if a program failed. A transfer that never got a connection is a result, not an error.
    pub fn finish(self) -> anyhow::Result<FlowReport> {
        let mut sum = FlowReport::default();
        for thread in self.threads {
            let report = thread
                .join()
                .map_err(|_| anyhow!("traffic `{}` panicked", self.name))?
                .with_context(|| format!("traffic `{}`", self.name))?;
            sum.add(report);
        }
        Ok(sum)
    }
}

/// Whether a datagram sent from inside `host` to `server` is answered and has the source address `source`. Waits at
/// most [`ANSWER_TIMEOUT`].
pub(crate) fn answers(host: &Netns, server: SocketAddr, source: IpAddr) -> bool {
    host.run(|| {
        let socket = udp_socket(None, server)?;
        let local = socket.local_addr()?.as_socket();
        if local.map(|address| address.ip()) != Some(source) {
            return Ok(false);
        }
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        socket.send(b"probe")?;
        Ok(io::Read::read(&mut &socket, &mut [0; 16])? == 5)
    })
    .unwrap_or(false)
}

/// Returns every datagram at `address` inside `host` to its sender until `stop`.
pub(crate) fn echo(
    host: &Netns,
    address: SocketAddr,
    stop: Instant,
) -> anyhow::Result<JoinHandle<anyhow::Result<FlowReport>>> {
    ping::echo(host, address, stop)
}

/// Creates a TCP or Multipath TCP socket.
fn tcp_socket(address: SocketAddr, mptcp: bool, cc: Option<&str>) -> anyhow::Result<Socket> {
    let protocol = if mptcp {
        Protocol::MPTCP
    } else {
        Protocol::TCP
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))
        .context("cannot make a socket")?;
    if let Some(cc) = cc {
        socket.set_tcp_congestion(cc.as_bytes()).with_context(|| {
            format!("this user cannot use congestion control {cc:?} of the kernel")
        })?;
    }
    Ok(socket)
}

fn listen(
    host: &Netns,
    address: SocketAddr,
    mptcp: bool,
    cc: Option<&str>,
) -> anyhow::Result<Socket> {
    host.run(|| {
        let socket = tcp_socket(address, mptcp, cc)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(128)?;
        // The timeout limits the wait of `accept`.
        socket.set_read_timeout(Some(TICK))?;
        Ok(socket)
    })
}

/// Connects before `deadline`, and retries after a refusal. `None` if no connection is possible.
fn connect(
    host: &Netns,
    address: SocketAddr,
    bind: Option<IpAddr>,
    mptcp: bool,
    cc: Option<&str>,
    deadline: Instant,
) -> anyhow::Result<Option<Socket>> {
    // A socket belongs to the namespace of the thread that creates it.
    host.run(|| {
        loop {
            let socket = tcp_socket(address, mptcp, cc)?;
            if let Some(bind) = bind {
                socket.bind(&SocketAddr::new(bind, 0).into())?;
            }
            let left = deadline.since(clock::now());
            if left.is_zero() {
                return Ok(None);
            }
            if socket.connect_timeout(&address.into(), left).is_ok() {
                return Ok(Some(socket));
            }
            wait::until(clock::now() + TICK);
        }
    })
}

/// Creates a connected UDP socket in the calling thread's namespace.
fn udp_socket(bind: Option<IpAddr>, server: SocketAddr) -> anyhow::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(server),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if let Some(bind) = bind {
        socket.bind(&SocketAddr::new(bind, 0).into())?;
    }
    // Large buffers prevent losses on this machine from being mistaken for losses of a link. Sizes above the system's
    // limit are refused.
    let _ = socket.set_recv_buffer_size(4 << 20);
    let _ = socket.set_send_buffer_size(4 << 20);
    socket.connect(&server.into())?;
    Ok(socket)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Returns the nanoseconds of an instant in the form used in datagrams.
fn stamp(at: Instant) -> [u8; 8] {
    at.as_nanos().to_be_bytes()
}

/// Returns eight bytes of a datagram at `offset` as a number. Zero if the datagram is shorter.
fn number_at(datagram: &[u8], offset: usize) -> u64 {
    datagram
        .get(offset..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn unspecified(address: SocketAddr) -> SocketAddr {
    let any = match address {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    };
    SocketAddr::new(any, address.port())
}

/// Returns `interval * count` without overflow.
fn times(interval: Duration, count: u64) -> Duration {
    Duration::from_nanos(saturating_nanos(interval).saturating_mul(count))
}

/// Whether payload goes from the server to the client.
fn is_down(direction: Direction) -> bool {
    direction == Direction::Down
}
