//! Scenario files: the links, the events during the run, and the traffic.
//!
//! One TOML file describes a world that the simulator and the lab both run. [`Scenario::parse`] gives a typed,
//! validated value; every error is reported with file, line, key and remedy. Unknown keys are errors.
//! Reading files is the caller's task ([`Files`]), so nothing here does I/O.
//!
//! ```toml
//! name = "pair"
//! seed = 1
//! duration = "20s"
//!
//! [[link]]                       # between client and gateway; keys apply to both directions
//! name = "dsl"                   # also the device's name
//! rate = "64Mbit"                # or trace = FILE (Mahimahi), or csv = FILE with column = NAME (Mbit/s per second)
//! delay = "6.5ms"
//! queue = "130kB"
//! jitter = "1ms"                 # uniform extra delay; reorder = true lets packets overtake
//! loss = 0.01                    # or gilbert = { p = 0.01, r = 0.3, loss_good = 0.0, loss_bad = 1.0 }
//! bit_errors = 1e-7              # and block_errors = { packet = 0.03, block = 0.05, two = 0.1 }: bits of some packets' blocks
//! mtu = "1428B"                  # longest packet that the link carries, headers included; longer packets are dropped
//! weight = 64                    # policy "weighted"
//! cost = 0                       # or "standby", "never"
//! ipv6 = true
//! shared = "cell"                # packets pass [[shared]] after the link's own rate limit
//! [link.up]                      # overrides for client -> gateway; [link.down] likewise
//! rate = "10Mbit"
//!
//! [[shared]]
//! name = "cell"
//! rate = "50Mbit"
//! queue = "200kB"
//!
//! [[event]]                      # changes any keys of a link at a time; direction = "down" or "up", default: both
//! at = "8s"
//! link = "dsl"
//! state = "blackhole"            # or "up", "down"
//! [[event]]
//! at = "9s"
//! daemon = "client"              # or "gateway"
//! action = "restart"             # or "kill"
//!
//! [tunnel]                       # without this table: plain routing
//! policy = "weighted"            # with the keys of the policy, such as adaptive's target_delay, yield, hold, share
//! repair = false                 # part of the profile, on or off: ack_pacing, fec, look_ahead, pacing, repair, search, trains, voice
//! without = ["late-paths"]       # rules of the engine to disable, for experiments
//! outer = "v4"                   # or "v6"
//! mtu = 1400
//! compression = true             # compress inner headers
//! parity = "hamming"             # or "bch": error correction over another path; hosts then accept datagrams with bit errors
//! [[tunnel.class]]               # as [[class]] of the daemons' configuration
//! name = "video"
//! ports = 5004
//! deadline = "200ms"
//!
//! [[equalizer]]                  # instead of [tunnel]: one end spreads its packets; the other needs no pleach
//! end = "client"                 # or "gateway"; an end without one sends over the first link
//! links = ["dsl", "lte"]         # default: all links
//! spread = "packet"              # or "flow", "flowlet", "delay" (by packet, with extra delay on quick links)
//! weights = "fixed"              # the links' `weight`; or "auto": the rate of each link that other traffic leaves free
//! interval = "50ms"              # "auto": time between two measurements; "delay": time between two probes
//! gap = "50ms"                   # "flowlet": a flow may change its link after a pause of this length
//! [[event]]
//! at = "10s"
//! equalizer = "client"           # sets its weights: at least 0 each, and one above 0
//! weights = { dsl = 3, lte = 1 }
//!
//! [tcp]
//! recovery = "rack"              # or "dupack": three duplicate acknowledgements (RFC 6675), as before RACK
//! max_reordering = 300           # highest reordering, in segments, to which a sender adapts; 3: it does not adapt
//!
//! [[traffic]]
//! kind = "tcp"                   # "quic" (one stream; no cc, no flows), "udp", "ping", "requests", "voice", "video"
//! name = "download"
//! direction = "down"
//! cc = "cubic"                   # or "reno", "bbr"; "westwood" where the kernel has it
//! flows = 1
//! opening = "plain"              # or "tls": three messages of a handshake (RFC 8446) before the payload
//! start = "0s"                   # stop = "10s": end; default: the scenario's duration
//! link = "dsl"                   # cross traffic: outside the tunnel, over this link only
//! distance = "25ms"              # extra delay between gateway and this traffic's server, each way
//!
//! [[traffic]]
//! kind = "udp"
//! size = "1200B"                 # UDP payload of a datagram
//! rate = "2Mbit"                 # rate of the payload; or a list, with times since the traffic's start:
//! # rates = [{ at = "0s", rate = "63Mbit" }, { at = "15s", rate = "105Mbit" }]
//! # curve = "exponential"        # rate between these times; or "linear", or "steps" (constant, the default)
//! # step = "200ms"               # interval at which the rate follows the curve; default 100ms
//! profile = "constant"           # or "video", or "frames" with interval = "25ms"; or "on-off", with on = "1s" and off = "500ms"
//! jitter = "1ms"                 # random delay of each datagram at the sender, up to this time, in order; default 0
//! deadline = "200ms"             # a datagram with a longer delay counts as late; default: no deadline
//!
//! [[traffic]]
//! kind = "voice"                 # one direction of a call: G.711, 50 packets per second
//! buffer = "60ms"                # the listener's jitter buffer
//!
//! [[traffic]]
//! kind = "video"                 # in the lab only: a film made by ffmpeg, H.264 in MPEG-TS, 1280x720, 25 frames per second
//! rate = "8Mbit"                 # bit rate of the film
//! transport = "rtp"              # or "srt"
//! deadline = "200ms"             # a datagram with a longer delay counts as lost
//! source = "testsrc2"            # or "mandelbrot": test source of ffmpeg
//!
//! [expect]                       # bounds of a result of a flow, or of a link in direction "down"
//! "download.goodput_mbps" = { min = 100.0 }
//! "download.return_ms" = { max = 300.0 }   # time from its end until links of a higher rank are idle
//! "dsl.fill" = { min = 0.99 }              # utilisation while links of a higher rank carry traffic
//! ```
//!
//! The path of a trace file is relative to the scenario file. `"traces:NAME"` means the file `NAME` in the directory of
//! recorded links that the caller passes.

mod check;
pub(crate) mod locate;
mod raw;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use core::time::Duration;

use pleach_core::{
    sec::Code,
    units::{Bitrate, Bytes},
};

use crate::{
    link::{LinkChange, LinkConfig, bundle::SharedConfig},
    pattern::{Profile, Rates},
};

pub(crate) use raw::{Span, parse_span};

/// Highest number of segments of reordering that TCP learns to tolerate, if the scenario does not set it: the default
/// of Linux's `tcp_max_reordering`, which was a constant of 127 until 2014.
pub const MAX_REORDERING: u32 = 300;

/// A validated scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// Description in one line.
    pub description: Option<String>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Duration of the traffic.
    pub duration: Duration,
    /// The links, at least one. Their names are unique.
    pub links: Vec<LinkSpec>,
    /// Bottlenecks that several links share.
    pub shared: Vec<SharedSpec>,
    /// Events during the run, in order of time.
    pub events: Vec<Event>,
    /// The tunnel. `None`: plain routing.
    pub tunnel: Option<TunnelSpec>,
    /// Senders that spread packets over links without a tunnel: at most one at each end. Empty if there is a tunnel.
    pub equalizers: Vec<EqualizerSpec>,
    /// Loss detection of TCP on all hosts.
    pub recovery: Recovery,
    /// Highest number of segments of reordering that TCP learns to tolerate, from 3 (TCP does not adapt) to 1000.
    pub max_reordering: u32,
    /// The traffic. Names are unique.
    pub traffic: Vec<Traffic>,
    /// Other transports that carry the same traffic, for comparison.
    pub baselines: Vec<Baseline>,
    /// Number of times that the scenario is to run, at least 1.
    pub repeat: u32,
    /// Accepted ranges of the results, by `FLOW.FIELD` or `LINK.FIELD`.
    pub expect: BTreeMap<String, Bounds>,
}

/// One link between client and gateway.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// Name, 1 to 15 characters of `a-z`, `0-9`, `-`. The device has this name too.
    pub name: String,
    /// Parameters of the direction from gateway to client.
    pub down: LinkConfig,
    /// Parameters of the direction from client to gateway.
    pub up: LinkConfig,
    /// Index of the shared bottleneck that follows the link's own bottleneck, if any.
    pub shared: Option<usize>,
    /// Weight for proportional policies, at least 1.
    pub weight: u32,
    /// Cost rank that the user gives the link.
    pub cost: Cost,
    /// Whether the link carries IPv6.
    pub ipv6: bool,
}

/// A bottleneck that several links share.
#[derive(Clone, Debug)]
pub struct SharedSpec {
    /// Name. No link has this name.
    pub name: String,
    /// Parameters of the direction from gateway to client.
    pub down: SharedConfig,
    /// Parameters of the direction from client to gateway.
    pub up: SharedConfig,
}

/// Cost of a link to the user, which determines how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// A link with a lower rank is filled first.
    Rank(u8),
    /// The link is used only if no other link works.
    Standby,
    /// The link is not used at all.
    Never,
}

/// One direction, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Directions {
    /// Both directions. Variants are in alphabetical order.
    #[default]
    Both,
    /// Server to client.
    Down,
    /// Client to server.
    Up,
}

impl Directions {
    /// Whether the server-to-client direction is included.
    #[must_use]
    pub fn has_down(self) -> bool {
        self != Self::Up
    }

    /// Whether the client-to-server direction is included.
    #[must_use]
    pub fn has_up(self) -> bool {
        self != Self::Down
    }
}

/// An event during the run.
#[derive(Clone, Debug)]
pub struct Event {
    /// Time of the event, since traffic began.
    pub at: Duration,
    /// The event itself.
    pub action: Action,
}

/// Kinds of events.
#[derive(Clone, Debug)]
pub enum Action {
    /// Parameters of a link change.
    Link {
        /// Index of the link.
        link: usize,
        /// The directions that change.
        directions: Directions,
        /// The changed parameters.
        change: LinkChange,
    },
    /// Rate or queue length of a shared bottleneck changes.
    Shared {
        /// Index of the bottleneck.
        shared: usize,
        /// The directions that change.
        directions: Directions,
        /// The changed parameters.
        change: LinkChange,
    },
    /// A daemon is killed or restarted.
    Daemon {
        /// The end at which the daemon runs.
        end: End,
        /// What happens to the daemon.
        action: DaemonAction,
    },
    /// An equalizer gets new weights.
    Weights {
        /// The end at which the equalizer runs.
        end: End,
        /// One weight for each of the equalizer's links, in the order of its list. At least one weight is not zero.
        weights: Vec<u32>,
    },
}

/// An end of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The client, which has the links.
    Client,
    /// The gateway, on the server's side.
    Gateway,
}

/// Event at a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DaemonAction {
    /// The daemon is killed without warning and does not return.
    Kill,
    /// The daemon is killed without warning and started again.
    Restart,
}

/// An IP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

/// The tunnel of a scenario.
#[derive(Clone, Debug)]
pub struct TunnelSpec {
    /// Name of the scheduler policy.
    pub policy: String,
    /// The policy's own keys and the keys of its profile, unchanged from the file. They are passed on to the daemon's
    /// `[scheduler]`.
    pub policy_keys: toml::Table,
    /// MTU of inner packets. `None`: the daemon determines it.
    pub mtu: Option<u16>,
    /// IP version of outer datagrams.
    pub outer: Family,
    /// Whether headers of inner packets are compressed.
    pub compression: bool,
    /// Error-correcting code whose parity is carried over another path. `None`: no parity.
    pub parity: Option<Code>,
    /// When the daemons split TCP connections: `[tunnel] split_tcp` of both daemons. `None`: the daemons' default. In
    /// the lab only.
    pub split_tcp: Option<String>,
    /// Whether the links carry the tunnel's datagrams over UDP or TCP: `[carrier] mode` of the client. If set, the
    /// gateway also listens on TCP port 443. `None`: UDP. In the lab only.
    pub carrier: Option<String>,
    /// Traffic classes, each with its keys unchanged from the file: `[[class]]` of both daemons.
    pub classes: Vec<toml::Table>,
}

/// Settings of an equalizer. The end `end` spreads the packets that it sends over several links, without a tunnel. It
/// spreads its own traffic and the traffic that it forwards to the other end, but not cross traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EqualizerSpec {
    /// The end that spreads.
    pub end: End,
    /// Indices of the equalizer's links, at least one, without duplicates.
    pub links: Vec<usize>,
    /// What is spread (packets or flows), and how.
    pub spread: Spread,
    /// Whether weights follow the capacity that other traffic leaves on the links. Otherwise the links' own weights
    /// apply.
    pub auto_weights: bool,
    /// Time between two measurements or probes.
    pub interval: Duration,
}

/// What an equalizer spreads over links, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Single packets. Packets on links with a shorter delay are delayed so that all links have the same delay.
    Delay,
    /// Whole flows.
    Flow,
    /// Parts of flows that are separated by pauses (flowlets).
    Flowlet {
        /// Shortest pause after which a flow may move to another link.
        gap: Duration,
    },
    /// Single packets.
    Packet,
}

/// One flow, or several flows of the same kind.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Name in the results.
    pub name: String,
    /// Kind of traffic with its parameters.
    pub kind: TrafficKind,
    /// Direction of the payload.
    pub direction: Direction,
    /// Time at which the traffic begins.
    pub start: Duration,
    /// Time at which the traffic ends, after `start`, at most the scenario's duration.
    pub stop: Duration,
    /// IP version of inner packets.
    pub family: Family,
    /// Index of the only link that the traffic uses, outside the tunnel. `None`: the hosts' routes decide.
    pub link: Option<usize>,
    /// Extra delay between the gateway and the traffic's server, each way.
    pub distance: Duration,
}

/// Loss detection of TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recovery {
    /// Duplicate acknowledgements alone (RFC 6675).
    Dupack,
    /// Forward acknowledgement: by the distance to the highest acknowledged segment, as in Linux until 2.6.23.
    Fack,
    /// Duplicate acknowledgements and time (RACK, RFC 8985), as in Linux.
    #[default]
    Rack,
}

/// Direction of the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Server to client.
    #[default]
    Down,
    /// Client to server.
    Up,
}

/// Kinds of traffic.
#[derive(Clone, Debug, PartialEq)]
pub enum TrafficKind {
    /// An echo request every `interval`.
    Ping {
        /// Time between requests.
        interval: Duration,
    },
    /// Bulk transfer of one stream over one QUIC connection.
    Quic,
    /// Short transfers one after the other, each over a new TCP connection.
    Requests {
        /// Bytes of each answer.
        size: Bytes,
        /// Time between the starts of two requests; a request that takes longer delays the next.
        interval: Duration,
    },
    /// Bulk transfer over TCP.
    Tcp {
        /// Congestion control, by the kernel's name. `None`: the kernel's default.
        cc: Option<String>,
        /// Number of parallel connections, 1 to 64.
        flows: u32,
        /// Exchange before the payload.
        opening: Opening,
    },
    /// UDP datagrams.
    Udp {
        /// Payload rate as a function of the time since `start`.
        rates: Rates,
        /// Payload of each datagram, 24 to 65 000 bytes.
        size: Bytes,
        /// Distribution of the datagrams over time.
        profile: Profile,
        /// Upper bound of the random delay with which each datagram is sent, like the lateness of a real sending
        /// program.
        jitter: Duration,
        /// Time after sending within which a datagram is of use. `None`: no limit.
        deadline: Option<Duration>,
    },
    /// A film that ffmpeg encodes and sends in real time.
    Video(VideoSpec),
    /// One side of a call ([`crate::voice`]).
    Voice {
        /// Length of the listener's jitter buffer.
        buffer: Duration,
    },
}

/// Messages that the ends of a connection exchange before one of them sends its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Opening {
    /// No messages.
    #[default]
    Plain,
    /// As many bytes as a TLS 1.3 handshake with a certificate chain (RFC 8446 section 2).
    Tls,
}

impl Opening {
    /// Returns the messages in order, each with its sender and size.
    #[must_use]
    pub const fn turns(self) -> &'static [Turn] {
        const fn turn(is_client: bool, bytes: u16) -> Turn {
            Turn { is_client, bytes }
        }
        match self {
            Self::Plain => &[],
            Self::Tls => &const { [turn(true, 500), turn(false, 4_000), turn(true, 300)] },
        }
    }
}

/// One message of an [`Opening`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether the client sends it.
    pub is_client: bool,
    /// Size of the message in bytes.
    pub bytes: u16,
}

/// Parameters of a film and of its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoSpec {
    /// Bit rate of the film, 200 kbit/s to 100 Mbit/s.
    pub rate: Bitrate,
    /// Transport protocol.
    pub transport: VideoTransport,
    /// Delay beyond which a packet is of no use.
    pub deadline: Duration,
    /// Source of the pictures.
    pub source: VideoSource,
}

/// Transport protocol of a film.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VideoTransport {
    /// RTP (RFC 2250) over UDP. Lost packets are not retransmitted.
    #[default]
    Rtp,
    /// SRT, which retransmits lost packets as long as they can arrive in time.
    Srt,
}

/// The ffmpeg source from which the film is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VideoSource {
    /// A zoom into the Mandelbrot set.
    Mandelbrot,
    /// A moving test pattern, with a little noise.
    #[default]
    Testsrc2,
}

/// Another transport that carries the same traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Baseline {
    /// The kernel's Multipath TCP over all links.
    Mptcp,
    /// Plain TCP over each link alone.
    Raw,
    /// The tunnel over each link alone.
    Single,
}

/// A range of accepted values. If a bound is missing, the range is open on that side.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Lowest accepted value.
    pub min: Option<f64>,
    /// Highest accepted value.
    pub max: Option<f64>,
}

impl Bounds {
    /// Whether the range contains `value`. NaN is never accepted.
    #[must_use]
    pub fn accept(&self, value: f64) -> bool {
        self.min.is_none_or(|min| value >= min)
            && self.max.is_none_or(|max| value <= max)
            && !value.is_nan()
    }
}

/// Access of a scenario to its trace files.
pub struct Files<'a> {
    /// Path of the scenario file, for messages. Paths of traces are relative to its directory.
    pub scenario: &'a Path,
    /// Directory in which `"traces:NAME"` is looked up.
    pub traces: Option<PathBuf>,
    /// Reads a text file.
    pub read: &'a mut dyn FnMut(&Path) -> io::Result<String>,
}

impl Files<'_> {
    /// Returns the path of the trace file `name`, as a scenario writes it. `None` if it is `"traces:NAME"` and the
    /// directory of recorded links is not known.
    #[must_use]
    pub fn path_of(&self, name: &str) -> Option<PathBuf> {
        match name.strip_prefix("traces:") {
            None => Some(self.scenario.parent().unwrap_or(Path::new("")).join(name)),
            Some(name) => Some(self.traces.as_ref()?.join(name)),
        }
    }
}

/// An error in a scenario file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {key}: {problem}; {remedy}")]
pub struct ScenarioError {
    /// Name of the file as the caller passed it.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// The key, or the section if a key is missing.
    pub key: String,
    /// Description of the error.
    pub problem: String,
    /// Advice on what to write instead.
    pub remedy: String,
}

impl Scenario {
    /// Parses and validates the text of a scenario file.
    ///
    /// # Errors
    /// Returns the first error found.
    pub fn parse(text: &str, files: &mut Files<'_>) -> Result<Self, ScenarioError> {
        let raw: raw::Scenario =
            toml::from_str(text).map_err(|error| locate::syntax(text, files.scenario, &error))?;
        check::scenario(raw, text, files)
    }

    /// Parses and validates a text that refers to no files. Errors name `name` as the file.
    ///
    /// # Errors
    /// Returns the first error found.
    pub fn parse_alone(name: impl AsRef<Path>, text: &str) -> Result<Self, ScenarioError> {
        let mut files = Files {
            scenario: name.as_ref(),
            traces: None,
            read: &mut |_| Err(io::ErrorKind::NotFound.into()),
        };
        Self::parse(text, &mut files)
    }

    /// Returns the events of the daemons in order of time since traffic began.
    pub fn daemon_events(&self) -> impl Iterator<Item = (Duration, End, DaemonAction)> {
        self.events.iter().filter_map(|event| match event.action {
            Action::Daemon { end, action } => Some((event.at, end, action)),
            Action::Link { .. } | Action::Shared { .. } | Action::Weights { .. } => None,
        })
    }

    /// Returns the new weights of equalizers in order of time since traffic began.
    pub fn weight_events(&self) -> impl Iterator<Item = (Duration, End, &[u32])> {
        self.events.iter().filter_map(|event| match &event.action {
            Action::Weights { end, weights } => Some((event.at, *end, weights.as_slice())),
            Action::Daemon { .. } | Action::Link { .. } | Action::Shared { .. } => None,
        })
    }

    /// Returns the equalizer at `end`.
    #[must_use]
    pub fn equalizer(&self, end: End) -> Option<&EqualizerSpec> {
        self.equalizers
            .iter()
            .find(|equalizer| equalizer.end == end)
    }

    /// Returns the link called `name`.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<&LinkSpec> {
        self.links.iter().find(|link| link.name == name)
    }
}

#[cfg(test)]
mod tests;
