//! The control socket: how `status` and `weights`, or any program, talk to a running daemon.
//!
//! A UNIX stream socket of mode 0600. Each request is one line of JSON, each answer one line of JSON, in order:
//!
//! | request | answer |
//! | --- | --- |
//! | `{"command":"status"}` | a [`StatusReport`] |
//! | `{"command":"weights","weights":{"dsl":64}}` | `{"ok":true}` |
//! | `{"command":"only","link":"dsl","millis":5000}` | `{"ok":true}`: the client's other links are in reserve for so long, or until `"link":null` |
//! | `{"command":"reload"}` | a [`ReloadReport`]: the file of the tunnel was read again |
//! | `{"command":"set","set":{"app":"curl","link":"dsl"}}` | `{"ok":true}`; proxies only: `scheduler`, or `link` (`auto`: no longer) with `app`, `port`, `destination` |
//! | `{"command":"remove-client","name":"home"}` | `{"ok":true}`, also if no client has the name; gateways only |
//! | anything else, or what fails | `{"error":"…"}` |
//!
//! [`server`] hands requests to the data path through a channel; [`client`] is what the commands use.

mod client;
pub(crate) mod server;

use std::{collections::BTreeMap, net::IpAddr, sync::mpsc::SyncSender, time::Duration};

use serde::{Deserialize, Serialize};

pub(crate) use client::{find_socket, only, reload, remove_client, set, set_weights, status};

/// A request as it travels.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    Only {
        link: Option<String>,
        #[serde(default)]
        millis: u64,
    },
    Reload {},
    Set {
        set: BTreeMap<String, String>,
    },
    Status {},
    Weights {
        weights: BTreeMap<String, u32>,
    },
    RemoveClient {
        name: String,
    },
}

/// A request for the data path. Dropping it unanswered tells the client so.
#[derive(Debug)]
pub(crate) enum ControlRequest {
    /// How are things?
    Status(Reply<StatusReport>),
    /// Use this link of the client only, for so long; `None`: all again.
    Only(Option<(String, Duration)>, Reply<()>),
    /// Read the configuration again, and apply what can be.
    Reload(Reply<ReloadReport>),
    /// Drop the client of this name, and its keys.
    RemoveClient(String, Reply<()>),
    /// Change what a proxy does with connections that come.
    Set(BTreeMap<String, String>, Reply<()>),
    /// Give the named links these weights, 1..=1000 each, at least one; all of them or none.
    Weights(BTreeMap<String, u32>, Reply<()>),
}

/// Where the answer to a request goes.
#[derive(Debug)]
pub(crate) struct Reply<T>(SyncSender<Result<T, String>>);

impl<T> Reply<T> {
    /// Answers: the value, or why there is none (one line for the user). Never blocks.
    pub(crate) fn send(self, answer: Result<T, String>) {
        // The client may have given up: nobody is left to tell.
        let _ = self.0.try_send(answer);
    }
}

/// What became of the changes in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReloadReport {
    /// Changes that are in force, one a line.
    pub(crate) applied: Vec<String>,
    /// Keys that have changed and need a restart.
    pub(crate) needs_restart: Vec<String>,
}

/// State of a daemon, as `status --json` prints it. Numbers must be finite.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct StatusReport {
    /// `client`, `gateway`, `proxy` or `equalize`.
    pub(crate) mode: String,
    /// Name of the tunnel device; of a proxy, where it listens; of an equalizer, its back end.
    #[serde(default)]
    pub(crate) name: String,
    /// Whether packets can get through: a client has a session, a gateway listens.
    pub(crate) up: bool,
    /// This end's links; of a gateway, none.
    pub(crate) links: Vec<LinkStatus>,
    /// A proxy's connections, oldest first, at most some hundreds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) connections: Vec<ConnectionStatus>,
    /// How many connections a proxy has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connection_count: Option<u64>,
    /// Sockets of programs that a proxy in cgroup mode has bound, by link.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) bound_sockets: BTreeMap<String, u64>,
    /// Budgets of a proxy's links, by link.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) budgets: BTreeMap<String, BudgetStatus>,
    /// What is left of the download rate of a proxy's links beside what connections move now, by link, in 10^6 bit/s.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) residual_mbps: BTreeMap<String, f64>,
    /// What a proxy knows of applications by name, and of ports where no name is known (`:PORT`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) applications: BTreeMap<String, ApplicationStatus>,
    /// An equalizer's part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) splitter: Option<SplitterStatus>,
    /// A gateway's clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) clients: Vec<ClientStatus>,
    /// What rules the packets this end sends.
    pub(crate) scheduler: SchedulerStatus,
    /// The reorder buffer of this end; of a gateway, of all clients together.
    pub(crate) resequencer: ResequencerStatus,
    /// Traffic that is served in its own way, by class, as sent by this end; of a gateway, to all clients together.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) classes: BTreeMap<String, ClassStatus>,
    /// Datagrams that came with wrong bits, if parity is in use; of a gateway, from all clients together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parity: Option<ParityReport>,
    /// What packets under way take of this end's memory, and what peers asked of it beyond their share; none outside of a tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bounds: Option<BoundsReport>,
    /// TCP connections that a client ends and carries to the gateway; none if `split_tcp` is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) split_tcp: Option<SplitTcpStatus>,
    /// Repair of losses by this end; none outside of a tunnel; of a gateway, of all clients together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repair: Option<RepairStatus>,
    /// Clients that speak another version of the protocol than this gateway, with that version; they are not served.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) incompatible: BTreeMap<String, u16>,
    /// Packets dropped by this end, by reason.
    pub(crate) drops: BTreeMap<String, u64>,
    /// Number of times that the tunnel's nftables table was restored after another program had removed it. Absent
    /// except for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restored_tables: Option<u64>,
}

/// TCP connections that a client ends and carries to the gateway (`docs/split-tcp.md`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct SplitTcpStatus {
    /// `on`: new connections are split; `off`: it would not help; `waiting`: it would, but the gateway does not serve.
    pub(crate) state: String,
    /// Connections now.
    pub(crate) connections: u64,
    /// Connections carried since the start.
    pub(crate) carried: u64,
    /// Connections that were reset because the server was not reached.
    pub(crate) failed: u64,
    /// Bytes carried in both directions.
    pub(crate) bytes: u64,
    /// Number of times that the nftables table that redirects connections was restored after another program had
    /// removed it.
    #[serde(default)]
    pub(crate) restored_tables: u64,
    /// Why the state is `waiting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trouble: Option<String>,
}

/// Memory and work that peers take, with their bounds (`docs/wire.md`, section 9).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct BoundsReport {
    /// What packets of all peers take, in bytes.
    pub(crate) kept_bytes: u64,
    /// Most of that.
    pub(crate) limit_bytes: u64,
    /// Most for one peer.
    pub(crate) peer_limit_bytes: u64,
    /// Each peer that takes or has asked for any, by name.
    pub(crate) peers: BTreeMap<String, PeerBounds>,
}

/// One peer's part of [`BoundsReport`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct PeerBounds {
    /// What its packets take, in bytes.
    pub(crate) kept_bytes: u64,
    /// Datagrams and control frames of it that were ignored, because it had made this end work too much.
    pub(crate) refused: u64,
}

/// State of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct LinkStatus {
    /// Its name.
    pub(crate) name: String,
    /// Its network device; empty at a gateway, which does not know it.
    pub(crate) device: String,
    /// Whether it carries packets.
    pub(crate) state: LinkState,
    /// Outer address of the other end, `ADDRESS:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// Smoothed round-trip time in milliseconds; `None` before the first sample.
    pub(crate) rtt_ms: Option<f64>,
    /// Standing queue on the way out in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue_delay_ms: Option<f64>,
    /// Estimated capacity on the way out in 10^6 bit/s; `None` before the first sample.
    pub(crate) capacity_mbps: Option<f64>,
    /// Recent loss on the way out as a fraction, 0 to 1.
    pub(crate) loss: f64,
    /// Bytes of data datagrams sent since the association began: UDP payload, without probes and reports.
    pub(crate) tx_bytes: u64,
    /// Bytes of data datagrams received since then, counted alike.
    pub(crate) rx_bytes: u64,
    /// Its weight.
    pub(crate) weight: u32,
    /// The longest inner packet it takes on the way out, in bytes, as far as is known; none outside of a tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<usize>,
    /// By what its datagrams travel, `udp` or `tcp`; none outside of a tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) carrier: Option<String>,
    /// Why TCP does not carry it although UDP does not get through: a fixed word and a sentence, separated by a colon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) carrier_error: Option<String>,
    /// Why it has carried no packet for a second, as a fixed word; `None` if it has, or outside of a tunnel.
    #[serde(default)]
    pub(crate) idle_reason: Option<String>,
    /// In a sentence, why it is used or not; none outside of a tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// In a sentence, what the user can do about it; none if there is nothing to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

impl LinkStatus {
    /// A link that is down and of which nothing is known.
    #[cfg(test)]
    pub(crate) fn bare(name: &str, device: &str) -> Self {
        Self {
            name: name.to_owned(),
            device: device.to_owned(),
            state: LinkState::Down,
            endpoint: None,
            rtt_ms: None,
            queue_delay_ms: None,
            capacity_mbps: None,
            loss: 0.0,
            tx_bytes: 0,
            rx_bytes: 0,
            weight: 1,
            mtu: None,
            carrier: None,
            carrier_error: None,
            idle_reason: None,
            why: None,
            advice: None,
        }
    }
}

/// What a proxy knows of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ApplicationStatus {
    /// `real-time` or `bulk`; `None` if its connections showed neither.
    pub(crate) class: Option<String>,
    /// Bytes to servers that a connection is expected to move: C_demand of the DBAS paper.
    pub(crate) demand_up_bytes: u64,
    /// Bytes from servers that a connection is expected to move.
    pub(crate) demand_down_bytes: u64,
    /// Connections that have ended.
    pub(crate) connections: u64,
    /// Bytes of the last ones in both directions, oldest first.
    pub(crate) last_bytes: Vec<u64>,
    /// The link that was assigned to it while the proxy runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<String>,
}

/// What a link has carried of its budget in the present month.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct BudgetStatus {
    /// What it may carry, both directions together.
    pub(crate) bytes: u64,
    /// What it has carried.
    pub(crate) used_bytes: u64,
    /// `within` what it has earned of it, `ahead` of that, or `spent`.
    pub(crate) standing: String,
}

/// What an equalizer does with packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct SplitterStatus {
    /// `bpf`, `clsact` or `nft`.
    pub(crate) backend: String,
    /// Why this one.
    pub(crate) backend_why: String,
    /// `auto`, `fixed`, or `live` if they were set by hand.
    pub(crate) weights: String,
    /// Why weights changed last.
    pub(crate) last_change_why: Option<String>,
    /// How many seconds ago.
    pub(crate) last_change_seconds: Option<f64>,
    /// With `spread = "delay"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hold: Option<HoldStatus>,
    /// By name of the link.
    pub(crate) links: BTreeMap<String, SplitStatus>,
}

/// What there is to say of packets that wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct HoldStatus {
    /// Who is asked how long each link's way is; `None`: nobody is known.
    #[cfg_attr(feature = "dashboard", schema(value_type = Option<String>))]
    pub(crate) probe: Option<IpAddr>,
    /// Whether flows keep their link, as long as it is not known how long packets have to wait.
    pub(crate) keeps_flows: bool,
    /// Packets that left early for want of room.
    pub(crate) not_held: u64,
    /// Packets that came faster than they were taken, or that the kernel did not take back.
    pub(crate) lost: u64,
}

/// A link's part in what an equalizer sends. Shares are fractions, 0 to 1; those sent count from the last change of weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct SplitStatus {
    /// Of the weights.
    pub(crate) share_wanted: f64,
    /// Of packets; `None` if nothing was sent.
    pub(crate) share_packets: Option<f64>,
    /// Of bytes; `None` if nothing was sent.
    pub(crate) share_bytes: Option<f64>,
    /// Packets sent since the start.
    pub(crate) packets: u64,
    /// What others send over the device, in 10^6 bit/s.
    pub(crate) background_mbps: f64,
    /// What is left of the link's rate; `None` if that is unknown.
    pub(crate) available_mbps: Option<f64>,
    /// With `spread = "delay"`: how long its packets wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hold_ms: Option<f64>,
    /// The same: how many bytes wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held_bytes: Option<u64>,
}

/// State of a proxy's connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ConnectionStatus {
    /// Who asked, `ADDRESS:PORT`.
    pub(crate) client: String,
    /// The program's name, if known.
    pub(crate) app: Option<String>,
    /// Where to, `HOST:PORT`.
    pub(crate) target: String,
    /// How it was asked for.
    pub(crate) protocol: String,
    /// Name of its link; `None`: it needs none.
    pub(crate) link: Option<String>,
    /// Why it is there.
    pub(crate) why: String,
    /// Now, in both directions, in 10^6 bit/s.
    pub(crate) rate_mbps: f64,
    /// Bytes to the server.
    pub(crate) tx_bytes: u64,
    /// Bytes from the server.
    pub(crate) rx_bytes: u64,
    /// If it goes over several links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) striped: Option<StripedStatus>,
}

/// What there is to say of a striped connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct StripedStatus {
    /// Name of the other end.
    pub(crate) peer: String,
    /// Scheduler of what this end sends.
    pub(crate) striping: String,
    /// Its links.
    pub(crate) links: Vec<LaneStatus>,
    /// The reorder buffer: bytes received that wait for earlier ones, now.
    pub(crate) held_bytes: u64,
    /// At most so far.
    pub(crate) most_held_bytes: u64,
    /// Bytes taken and not sent yet.
    pub(crate) waiting_bytes: u64,
    /// Bytes sent more than once.
    pub(crate) repeated_bytes: u64,
}

/// A link of a striped connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct LaneStatus {
    /// Its name, at the end that has it.
    pub(crate) link: String,
    /// `up`, or `suspect`: what was sent on it is overdue.
    pub(crate) state: LinkState,
    /// Round trip in milliseconds; 0 before the first sample.
    pub(crate) rtt_ms: f64,
    /// What it carries from this end, in 10^6 bit/s.
    pub(crate) rate_mbps: f64,
    /// Bytes of frames sent on it.
    pub(crate) tx_bytes: u64,
    /// Bytes of frames received on it.
    pub(crate) rx_bytes: u64,
}

/// Whether a link carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) enum LinkState {
    /// It does not: device gone, or nothing comes back.
    Down,
    /// The user forbids it.
    Never,
    /// It is held back until no other link is up.
    Standby,
    /// Something sent on it is overdue.
    Suspect,
    /// It does.
    Up,
}

/// State of a gateway's client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ClientStatus {
    /// Its name.
    pub(crate) name: String,
    /// Whether it has a session with a live link.
    pub(crate) up: bool,
    /// Its links as the gateway sees them.
    pub(crate) links: Vec<LinkStatus>,
}

/// What an end has sent of a class of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ClassStatus {
    /// Packets that came to this end.
    pub(crate) packets: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Packets sent a second time beside.
    pub(crate) copies: u64,
    /// Their bytes.
    pub(crate) copied_bytes: u64,
    /// Packets dropped because they could not have come in time.
    pub(crate) expired: u64,
}

/// What became of datagrams that came with wrong bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ParityReport {
    /// Mended by parity, and counted under no reason of `drops`.
    pub(crate) mended: u64,
    /// Arrivals of parity, or of what does not open, that were not tried with all there was, to spare the processor.
    pub(crate) cut_short: u64,
}

/// What was done against losses since the association began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct RepairStatus {
    /// Packets that wait in the tunnel's queue now.
    pub(crate) queued: u64,
    /// Packets sent again on another link, because theirs was silent or had become slow.
    pub(crate) reinjected: u64,
    /// Repair symbols of forward error correction sent.
    pub(crate) symbols_sent: u64,
    /// Repair symbols received.
    pub(crate) symbols_received: u64,
    /// Lost packets that were computed from repair symbols.
    pub(crate) recovered: u64,
}

/// The scheduler's part of the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct SchedulerStatus {
    /// The policy's name.
    pub(crate) policy: String,
}

/// The reorder buffer's part of the status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ResequencerStatus {
    /// Packets held now.
    pub(crate) held: u64,
    /// Packets that came after they had been counted lost and were let go at once, since the association began.
    pub(crate) released_late: u64,
    /// 95th percentile of how long packets were held in milliseconds; 0 if none was.
    pub(crate) hold_p95_ms: f64,
}

/// Longest request line in bytes, newline included.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// Longest time that links may be held back for.
const MAX_ONLY: Duration = Duration::from_secs(60);

/// Range of a weight.
pub(crate) const WEIGHTS: core::ops::RangeInclusive<u32> = 1..=1000;

#[cfg(test)]
mod tests;
