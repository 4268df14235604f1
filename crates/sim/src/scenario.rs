//! Scenario files: links, what happens to them, who talks over them.
//!
//! One TOML file describes a world that the simulator and the lab both run. [`Scenario::parse`] gives a typed,
//! validated value; every mistake is reported with file, line, key and remedy, and unknown keys are mistakes.
//! Reading files is the caller's business ([`Files`]), so nothing here does I/O.
//!
//! ```toml
//! name = "pair"
//! seed = 1
//! duration = "20s"
//!
//! [[link]]                       # client <-> gateway; keys apply to both directions
//! name = "dsl"                   # also the device's name
//! rate = "64Mbit"                # or trace = FILE (Mahimahi), or csv = FILE with column = NAME (Mbit/s per second)
//! delay = "6.5ms"
//! queue = "130kB"
//! jitter = "1ms"                 # uniform extra delay; reorder = true lets packets overtake
//! loss = 0.01                    # or gilbert = { p = 0.01, r = 0.3, loss_good = 0.0, loss_bad = 1.0 }
//! bit_errors = 1e-7              # and block_errors = { packet = 0.03, block = 0.05, two = 0.1 }: bits of some packets' blocks
//! mtu = "1428B"                  # longest packet that passes, headers included; longer ones vanish
//! weight = 64                    # policy "weighted"
//! cost = 0                       # or "standby", "never"
//! ipv6 = true
//! shared = "cell"                # drains through [[shared]] behind its own rate
//! [link.up]                      # overrides for client -> gateway; [link.down] likewise
//! rate = "10Mbit"
//!
//! [[shared]]
//! name = "cell"
//! rate = "50Mbit"
//! queue = "200kB"
//!
//! [[event]]                      # any of a link's keys at a time; direction = "down" | "up" | both
//! at = "8s"
//! link = "dsl"
//! state = "blackhole"            # or "up", "down"
//! [[event]]
//! at = "9s"
//! daemon = "client"              # or "gateway"
//! action = "restart"             # or "kill"
//!
//! [tunnel]                       # none: plain routing
//! policy = "weighted"            # the policy's own keys stand beside it, such as adaptive's target_delay, yield, hold, share
//! repair = false                 # any part of the policy's profile: ack_pacing, fec, look_ahead, pacing, repair, search, trains, voice
//! without = ["late-paths"]       # rules of the engine that are switched off, for experiments
//! outer = "v4"                   # or "v6"
//! mtu = 1400
//! compression = true             # of inner headers
//! parity = "hamming"             # or "bch": error correction over another path; hosts then take damaged datagrams
//! [[tunnel.class]]               # as [[class]] of the daemons' configuration
//! name = "video"
//! ports = 5004
//! deadline = "200ms"
//!
//! [[equalizer]]                  # instead of [tunnel]: one end spreads what it sends, the other notices nothing
//! end = "client"                 # or "gateway"; an end without one sends over the first link
//! links = ["dsl", "lte"]         # all of them if not said
//! spread = "packet"              # or "flow", "flowlet", "delay" (by packet, and the quick links' are held)
//! weights = "fixed"              # the links' `weight`; or "auto": by what others leave of each link's rate
//! interval = "50ms"              # "auto": between two measurements; "delay": between two probes
//! gap = "50ms"                   # "flowlet": a flow may change its link after so long a pause
//! [[event]]
//! at = "10s"
//! equalizer = "client"           # its weights from now on, each at least 0 and one above it
//! weights = { dsl = 3, lte = 1 }
//!
//! [tcp]
//! recovery = "rack"              # or "dupack": three duplicate acknowledgements (RFC 6675), as before RACK
//! max_reordering = 300           # segments of disorder that a sender learns to bear; 3: it learns nothing
//!
//! [[traffic]]
//! kind = "tcp"                   # "quic" (one stream; no cc, no flows), "udp", "ping", "requests", "voice", "video"
//! name = "download"
//! direction = "down"
//! cc = "cubic"                   # or "reno", "bbr"; "westwood" where the kernel has it
//! flows = 1
//! opening = "plain"              # or "tls": three turns of a handshake (RFC 8446) before the payload
//! start = "0s"                   # stop = the scenario's duration
//! link = "dsl"                   # cross traffic: outside the tunnel, over this link only
//! distance = "25ms"              # extra delay between gateway and this traffic's server, each way
//!
//! [[traffic]]
//! kind = "udp"
//! size = "1200B"                 # payload of a datagram
//! rate = "2Mbit"                 # of payload; or, with times since the traffic's start:
//! # rates = [{ at = "0s", rate = "63Mbit" }, { at = "15s", rate = "105Mbit" }]
//! # curve = "exponential"        # between them; or "linear", or "steps" (none of both, the default)
//! # step = "200ms"               # the curve's steps, each with the rate at its begin; 100ms if not said
//! profile = "constant"           # or "video", or "frames" with interval = "25ms"; or "on-off", with on = "1s" and off = "500ms"
//! jitter = "1ms"                 # each datagram leaves up to so much late, in order; 0 if not said
//! deadline = "200ms"             # what comes later than so long after it was sent is of no use; for ever if not said
//!
//! [[traffic]]
//! kind = "voice"                 # one side of a call: G.711, 50 packets a second
//! buffer = "60ms"                # the listener's jitter buffer
//!
//! [[traffic]]
//! kind = "video"                 # in the lab only: a film by ffmpeg, H.264 in MPEG-TS, 1280x720, 25 frames a second
//! rate = "8Mbit"                 # of the film
//! transport = "rtp"              # or "srt"
//! deadline = "200ms"             # what takes longer is of no use
//! source = "testsrc2"            # or "mandelbrot": which of ffmpeg's own pictures
//!
//! [expect]                       # a figure of a flow, or of a link downwards
//! "download.goodput_mbps" = { min = 100.0 }
//! "download.return_ms" = { max = 300.0 }   # after its end, until links of a higher rank are at rest
//! "dsl.fill" = { min = 0.99 }              # how full it is while links of a higher rank carry something
//! ```
//!
//! A trace's path is relative to the scenario file; `"traces:NAME"` means `NAME` in the directory of recorded links
//! that the caller names.

mod check;
mod locate;
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

/// Segments of disorder that TCP learns to bear if a scenario does not say: Linux's `tcp_max_reordering`, a constant of
/// 127 until 2014.
pub const MAX_REORDERING: u32 = 300;

/// A validated scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// One line on what it is.
    pub description: Option<String>,
    /// Seed of all randomness.
    pub seed: u64,
    /// How long traffic runs.
    pub duration: Duration,
    /// The links, at least one; names differ.
    pub links: Vec<LinkSpec>,
    /// Bottlenecks that links share.
    pub shared: Vec<SharedSpec>,
    /// What happens, in order of time.
    pub events: Vec<Event>,
    /// The tunnel; `None` is plain routing.
    pub tunnel: Option<TunnelSpec>,
    /// Senders that spread packets without a tunnel, at most one an end; none beside a tunnel.
    pub equalizers: Vec<EqualizerSpec>,
    /// How TCP of all hosts finds losses.
    pub recovery: Recovery,
    /// How many segments of disorder TCP learns to bear at most, from 3 (nothing is learnt) to 1000.
    pub max_reordering: u32,
    /// Who talks; names differ.
    pub traffic: Vec<Traffic>,
    /// What else carries the same traffic, for comparison.
    pub baselines: Vec<Baseline>,
    /// How often the scenario is to run, at least once.
    pub repeat: u32,
    /// What the results ought to be, by `FLOW.FIELD` or `LINK.FIELD`.
    pub expect: BTreeMap<String, Bounds>,
}

/// One link between client and gateway.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// Name, 1 to 15 characters of `a-z`, `0-9`, `-`; also the device's.
    pub name: String,
    /// Gateway to client.
    pub down: LinkConfig,
    /// Client to gateway.
    pub up: LinkConfig,
    /// Index of the shared bottleneck behind it.
    pub shared: Option<usize>,
    /// Weight for proportional policies, at least 1.
    pub weight: u32,
    /// The user's rank.
    pub cost: Cost,
    /// Whether it carries IPv6.
    pub ipv6: bool,
}

/// A bottleneck that several links share.
#[derive(Clone, Debug)]
pub struct SharedSpec {
    /// Name; differs from all links'.
    pub name: String,
    /// Gateway to client.
    pub down: SharedConfig,
    /// Client to gateway.
    pub up: SharedConfig,
}

/// What the user pays for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Lower is filled first.
    Rank(u8),
    /// Only when no other link works.
    Standby,
    /// Not at all.
    Never,
}

/// One direction, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Directions {
    /// Server to client, both ways and client to server, in alphabetical order.
    #[default]
    Both,
    /// Server to client.
    Down,
    /// Client to server.
    Up,
}

impl Directions {
    /// Whether this includes server to client.
    #[must_use]
    pub fn has_down(self) -> bool {
        self != Self::Up
    }

    /// Whether this includes client to server.
    #[must_use]
    pub fn has_up(self) -> bool {
        self != Self::Down
    }
}

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub struct Event {
    /// When, since traffic began.
    pub at: Duration,
    /// What.
    pub action: Action,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum Action {
    /// Parameters of a link change.
    Link {
        /// Index of the link.
        link: usize,
        /// Which directions.
        directions: Directions,
        /// What changes.
        change: LinkChange,
    },
    /// Rate or queue of a shared bottleneck change.
    Shared {
        /// Index of the bottleneck.
        shared: usize,
        /// Which directions.
        directions: Directions,
        /// What changes.
        change: LinkChange,
    },
    /// Something happens to a daemon.
    Daemon {
        /// Which one.
        end: End,
        /// What.
        action: DaemonAction,
    },
    /// An equalizer gets other weights.
    Weights {
        /// Which one.
        end: End,
        /// One for each of its links, in its order, not all zero.
        weights: Vec<u32>,
    },
}

/// An end of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Where the links are.
    Client,
    /// The server's side.
    Gateway,
}

/// What happens to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DaemonAction {
    /// It is killed without warning and stays away.
    Kill,
    /// It is killed without warning and started again.
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
    /// Scheduler policy.
    pub policy: String,
    /// The policy's own keys and those of its profile, as they stand in the file. They are passed on to the daemon's
    /// `[scheduler]`.
    pub policy_keys: toml::Table,
    /// MTU of inner packets; `None`: the daemon finds it.
    pub mtu: Option<u16>,
    /// What outer datagrams travel in.
    pub outer: Family,
    /// Whether headers of inner packets are compressed.
    pub compression: bool,
    /// By which code parity is made and carried by another path.
    pub parity: Option<Code>,
    /// When daemons split TCP connections: `[tunnel] split_tcp` of both; `None`: as they do by default. In the lab only.
    pub split_tcp: Option<String>,
    /// Classes of traffic, each with its keys as they stand in the file: `[[class]]` of both daemons.
    pub classes: Vec<toml::Table>,
}

/// An end that spreads what it sends over links, without a tunnel: its own traffic and what it forwards to the other
/// end, but not cross traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EqualizerSpec {
    /// Which end.
    pub end: End,
    /// Indices of its links, at least one, each once.
    pub links: Vec<usize>,
    /// What is spread.
    pub spread: Spread,
    /// Whether weights follow what others leave of the links; else they are the links' own.
    pub auto_weights: bool,
    /// Between two measurements or probes.
    pub interval: Duration,
}

/// What an equalizer spreads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Packets; those of quick links are held so that all arrive together.
    Delay,
    /// Whole flows.
    Flow,
    /// Parts of flows between pauses.
    Flowlet {
        /// Shortest pause after which a flow may change its link.
        gap: Duration,
    },
    /// Packets.
    Packet,
}

/// One kind of traffic.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// What it is called in the results.
    pub name: String,
    /// What it does.
    pub kind: TrafficKind,
    /// Which way payload goes.
    pub direction: Direction,
    /// When it begins.
    pub start: Duration,
    /// When it ends, after `start`, at most the scenario's duration.
    pub stop: Duration,
    /// What inner packets travel in.
    pub family: Family,
    /// Index of the only link it takes, outside the tunnel; `None`: as the hosts' routes say.
    pub link: Option<usize>,
    /// Extra delay between the gateway and its server, each way.
    pub distance: Duration,
}

/// How TCP finds losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recovery {
    /// By duplicate acknowledgements alone (RFC 6675).
    Dupack,
    /// By how far above the highest acknowledged segment is, as Linux did until 2.6.23.
    Fack,
    /// By time as well (RACK, RFC 8985), as Linux does.
    #[default]
    Rack,
}

/// Which way payload goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Server to client.
    #[default]
    Down,
    /// Client to server.
    Up,
}

/// What traffic does.
#[derive(Clone, Debug, PartialEq)]
pub enum TrafficKind {
    /// An echo request every `interval`.
    Ping {
        /// Time between requests.
        interval: Duration,
    },
    /// Bulk transfer of one stream over one QUIC connection.
    Quic,
    /// Short transfers one after the other, each on a new TCP connection.
    Requests {
        /// Bytes of each answer.
        size: Bytes,
        /// Time between the starts of two requests; a request that takes longer delays the next.
        interval: Duration,
    },
    /// Bulk transfer.
    Tcp {
        /// Congestion control, as the kernel calls it; `None`: the kernel's default.
        cc: Option<String>,
        /// Number of connections side by side, 1 to 64.
        flows: u32,
        /// What goes before.
        opening: Opening,
    },
    /// Datagrams.
    Udp {
        /// Payload rate over the time since its start.
        rates: Rates,
        /// Payload of each datagram, 24 to 65 000 bytes.
        size: Bytes,
        /// How they are spread over time.
        profile: Profile,
        /// How late each leaves at most, as a sending program does.
        jitter: Duration,
        /// How long after it was sent each is of use; `None`: for ever.
        deadline: Option<Duration>,
    },
    /// A film that ffmpeg makes, sent as it is made.
    Video(VideoSpec),
    /// One side of a call ([`crate::voice`]).
    Voice {
        /// Length of the listener's jitter buffer.
        buffer: Duration,
    },
}

/// What the ends of a connection say to each other before one of them sends its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Opening {
    /// Nothing.
    #[default]
    Plain,
    /// As many bytes as a handshake of TLS 1.3 with a chain of certificates (RFC 8446 section 2).
    Tls,
}

impl Opening {
    /// Who says how many bytes, in turn.
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

/// What one end says before the other goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether the client says it.
    pub is_client: bool,
    /// How much.
    pub bytes: u16,
}

/// A film and how it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoSpec {
    /// Bits a second of the film, 200 kbit/s to 100 Mbit/s.
    pub rate: Bitrate,
    /// What it travels in.
    pub transport: VideoTransport,
    /// What takes longer is of no use.
    pub deadline: Duration,
    /// What is to be seen.
    pub source: VideoSource,
}

/// What a film travels in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VideoTransport {
    /// RTP (RFC 2250) over UDP: what is lost stays lost.
    #[default]
    Rtp,
    /// SRT, which sends again what is lost as long as it can be in time.
    Srt,
}

/// Which of ffmpeg's sources a film is taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VideoSource {
    /// A dive into the Mandelbrot set.
    Mandelbrot,
    /// A moving test pattern, with a little noise.
    #[default]
    Testsrc2,
}

/// What else carries the same traffic.
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

/// A range; a side that is missing is open.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Lowest accepted value.
    pub min: Option<f64>,
    /// Highest accepted value.
    pub max: Option<f64>,
}

impl Bounds {
    /// Whether `value` is accepted; NaN is not.
    #[must_use]
    pub fn accept(&self, value: f64) -> bool {
        self.min.is_none_or(|min| value >= min)
            && self.max.is_none_or(|max| value <= max)
            && !value.is_nan()
    }
}

/// How a scenario reaches its trace files.
pub struct Files<'a> {
    /// Path of the scenario file, for messages; traces are relative to its directory.
    pub scenario: &'a Path,
    /// Where `"traces:NAME"` is looked up.
    pub traces: Option<PathBuf>,
    /// Reads a text file.
    pub read: &'a mut dyn FnMut(&Path) -> io::Result<String>,
}

/// A mistake in a scenario file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {key}: {problem}; {remedy}")]
pub struct ScenarioError {
    /// The file as the caller named it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// The key, or the section if a key is missing.
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

impl Scenario {
    /// Parses and validates the text of a scenario file.
    ///
    /// # Errors
    /// The first mistake found.
    pub fn parse(text: &str, files: &mut Files<'_>) -> Result<Self, ScenarioError> {
        let raw: raw::Scenario =
            toml::from_str(text).map_err(|error| locate::syntax(text, files.scenario, &error))?;
        check::scenario(raw, text, files)
    }

    /// Parses and validates a text that refers to no files; mistakes are told of `name`.
    ///
    /// # Errors
    /// The first mistake found.
    pub fn parse_alone(name: impl AsRef<Path>, text: &str) -> Result<Self, ScenarioError> {
        let mut files = Files {
            scenario: name.as_ref(),
            traces: None,
            read: &mut |_| Err(io::ErrorKind::NotFound.into()),
        };
        Self::parse(text, &mut files)
    }

    /// What happens to the daemons, in order of time since traffic began.
    pub fn daemon_events(&self) -> impl Iterator<Item = (Duration, End, DaemonAction)> {
        self.events.iter().filter_map(|event| match event.action {
            Action::Daemon { end, action } => Some((event.at, end, action)),
            Action::Link { .. } | Action::Shared { .. } | Action::Weights { .. } => None,
        })
    }

    /// New weights of equalizers, in order of time since traffic began.
    pub fn weight_events(&self) -> impl Iterator<Item = (Duration, End, &[u32])> {
        self.events.iter().filter_map(|event| match &event.action {
            Action::Weights { end, weights } => Some((event.at, *end, weights.as_slice())),
            Action::Daemon { .. } | Action::Link { .. } | Action::Shared { .. } => None,
        })
    }

    /// The equalizer at `end`.
    #[must_use]
    pub fn equalizer(&self, end: End) -> Option<&EqualizerSpec> {
        self.equalizers
            .iter()
            .find(|equalizer| equalizer.end == end)
    }

    /// The link called `name`.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<&LinkSpec> {
        self.links.iter().find(|link| link.name == name)
    }
}

#[cfg(test)]
mod tests;
