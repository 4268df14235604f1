//! The control socket, through which `status`, `weights` and any other program talk to a running daemon.
//!
//! It is a UNIX stream socket of mode 0600. Each request and each answer is one line of JSON. Answers are in the order
//! of the requests:
//!
//! | request | answer |
//! | --- | --- |
//! | `{"command":"status"}` | a [`StatusReport`] |
//! | `{"command":"weights","weights":{"dsl":64}}` | `{"ok":true}` |
//! | `{"command":"only","link":"dsl","millis":5000}` | `{"ok":true}`, clients only |
//! | `{"command":"reload"}` | a [`ReloadReport`] |
//! | `{"command":"set","set":{"app":"curl","link":"dsl"}}` | `{"ok":true}`, proxies and clients only |
//! | `{"command":"remove-client","name":"home"}` | `{"ok":true}`, gateways only |
//! | `{"command":"drain","on":true}` | `{"ok":true}`, gateways only |
//! | an unknown or failed request | `{"error":"…"}` |
//!
//! - `only`: for `millis` ms, or until a request with `"link":null`, the other links of the client are standby links.
//! - `reload`: reads the configuration file again.
//! - `set`: changes the `scheduler` of a proxy, or adds a rule: new connections of a proxy, or packets of a client, that
//!   match `app`, `port`, `destination` and (clients only) `protocol` take `link`. With `strict` they take no other
//!   link. Clients drop them if `action` is `block`. The value `auto` of `link` removes the rule.
//! - `remove-client`: succeeds also if no client has this name.
//! - `drain`: until a request with `"on":false` or a restart, the gateway asks its clients to use another gateway.
//!
//! [`server`] passes requests to the data path through a channel. The commands use [`client`].

mod client;
pub(crate) mod server;

use std::{collections::BTreeMap, net::IpAddr, sync::mpsc::SyncSender, time::Duration};

use pleach_core::units::Bytes;
use pleach_proxy::budget::{BudgetReport, Standing};
use serde::{Deserialize, Serialize};

pub(crate) use client::{
    drain, find_socket, only, reload, remove_client, set, set_weights, status,
};

/// A request as it is sent over the socket.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    Drain {
        on: bool,
    },
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

/// A request for the data path. If it is dropped without an answer, the client gets an error.
#[derive(Debug)]
pub(crate) enum ControlRequest {
    /// Asks the clients of a gateway to use another gateway, or no longer.
    Drain(bool, Reply<()>),
    /// Requests the status.
    Status(Reply<StatusReport>),
    /// Uses only this link of the client for this duration. `None`: uses all links again.
    Only(Option<(String, Duration)>, Reply<()>),
    /// Reads the configuration again and applies the changes that need no restart.
    Reload(Reply<ReloadReport>),
    /// Removes the client with this name and its keys.
    RemoveClient(String, Reply<()>),
    /// Changes the scheduler or the rules of a proxy, or the rules of a client.
    Set(BTreeMap<String, String>, Reply<()>),
    /// Sets the weights of links by name, each 1 to 1000. At least one link is named. If a name or weight is invalid,
    /// no weight is changed.
    Weights(BTreeMap<String, u32>, Reply<()>),
}

/// Sender for the answer to a request.
#[derive(Debug)]
pub(crate) struct Reply<T>(SyncSender<Result<T, String>>);

impl<T> Reply<T> {
    /// Sends the answer: the value, or the reason of a failure in one line for the user. Never blocks.
    pub(crate) fn send(self, answer: Result<T, String>) {
        // The client may have given up waiting.
        let _ = self.0.try_send(answer);
    }
}

/// Result of a reload of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReloadReport {
    /// Changes that were applied, one per element.
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
    /// Name of the tunnel device. For a proxy, the address on which it listens. For an equalizer, its back end.
    #[serde(default)]
    pub(crate) name: String,
    /// Whether packets can be carried: a client has a session, or a gateway listens.
    pub(crate) up: bool,
    /// Links of this end. Empty for a gateway.
    pub(crate) links: Vec<LinkStatus>,
    /// Connections of a proxy, oldest first. At most a few hundred are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) connections: Vec<ConnectionStatus>,
    /// Total number of connections of a proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connection_count: Option<u64>,
    /// Number of programs' sockets that a proxy in cgroup mode has bound to each link, by link name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) bound_sockets: BTreeMap<String, u64>,
    /// Budgets of the links of a proxy or tunnel client, by link name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) budgets: BTreeMap<String, BudgetStatus>,
    /// Unused part of the download rate of a proxy's links in 10^6 bit/s, by link name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) residual_mbps: BTreeMap<String, f64>,
    /// Statistics of a proxy about applications by name, and about ports (`:PORT`) if the name is not known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) applications: BTreeMap<String, ApplicationStatus>,
    /// State of an equalizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) splitter: Option<SplitterStatus>,
    /// Clients of a gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) clients: Vec<ClientStatus>,
    /// Captive portals that keep links of a client from the gateway: the URL of the portal's web page by link name,
    /// empty if it is not known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) portals: BTreeMap<String, String>,
    /// Gateways of a client that has several, in the order of their priority.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gateways: Vec<GatewayStatus>,
    /// Scheduler of the packets that this end sends.
    pub(crate) scheduler: SchedulerStatus,
    /// Reorder buffer of this end. For a gateway, the sum over all clients.
    pub(crate) resequencer: ResequencerStatus,
    /// Packets sent by this end in traffic classes with special treatment, by class. For a gateway, the sum over all
    /// clients.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) classes: BTreeMap<String, ClassStatus>,
    /// Rules of a client in the order of their precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rules: Vec<RuleStatus>,
    /// Datagrams that arrived with bit errors, if parity is in use. For a gateway, the sum over all clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parity: Option<ParityReport>,
    /// Memory of this end that packets of its peers occupy, and requests of peers that exceeded their limits. Absent
    /// except for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bounds: Option<BoundsReport>,
    /// Pauses of the thread that moves packets. Absent except for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data_thread: Option<DataThreadStatus>,
    /// Data threads of a gateway that has several; `data_thread` is then the sum of their pauses, and the longest pause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) workers: Vec<WorkerStatus>,
    /// Numbers of the data threads that have not answered within a second. Their clients are missing in this status, and
    /// their counters are those of their last answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) silent_workers: Vec<u64>,
    /// TCP connections that a client terminates and carries to the gateway. Absent if `split_tcp` is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) split_tcp: Option<SplitTcpStatus>,
    /// Repair of packet losses by this end. For a gateway, the sum over all clients. Absent except for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repair: Option<RepairStatus>,
    /// Clients that use another protocol version than this gateway, with their version. They are not served.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) incompatible: BTreeMap<String, u16>,
    /// Store of clients of a gateway. Absent without a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<StoreReport>,
    /// Place of a gateway among several ones that share a store. Absent without `[fleet]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fleet: Option<FleetReport>,
    /// Whether a gateway asks its clients to use another gateway (`pleach gateway drain`). Absent if it does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) draining: bool,
    /// Number of packets dropped by this end, by reason.
    pub(crate) drops: BTreeMap<String, u64>,
    /// Number of times that the tunnel's nftables table was restored after another program had removed it. Absent
    /// except for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restored_tables: Option<u64>,
}

/// Pauses of the thread that moves packets, since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct DataThreadStatus {
    /// Number of times that the thread worked for more than 20 ms before it looked for new packets.
    pub(crate) pauses: u64,
    /// Longest such time, in milliseconds.
    pub(crate) longest_pause_ms: f64,
    /// Number of lines of the log that were dropped because nobody read the log fast enough.
    pub(crate) log_lines_dropped: u64,
}

/// State of one of several data threads of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct WorkerStatus {
    /// Number of the thread, from 0.
    #[serde(default)]
    pub(crate) number: u64,
    /// Number of clients that the thread serves.
    pub(crate) clients: u64,
    /// Number of these clients to which data can be sent.
    pub(crate) up: u64,
    /// Number of packets and datagrams that have arrived at this thread and that it has passed to another one.
    pub(crate) passed: u64,
    /// Number of packets and datagrams that it has dropped because the mailbox of the other thread was full.
    #[serde(default)]
    pub(crate) refused: u64,
    /// Whether the thread asks clients to use another gateway. Absent if it does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) draining: bool,
}

/// State of one of a client's gateways.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct GatewayStatus {
    /// Name of the gateway.
    pub(crate) name: String,
    /// Whether the gateway is the one in use.
    pub(crate) used: bool,
    /// Priority of the gateway: the lowest number is used first.
    pub(crate) priority: u8,
    /// Whether the gateway has answered in the last 35 seconds. Questions are sent over UDP, so a gateway that is in
    /// use over TCP only does not answer them.
    pub(crate) answers: bool,
    /// Lowest round-trip time over all links in the last 35 seconds, in milliseconds; `None` without an answer.
    pub(crate) rtt_ms: Option<f64>,
    /// Sentence that says why the gateway is in use or not.
    pub(crate) why: String,
}

/// TCP connections that a client terminates and carries to the gateway (`docs/split-tcp.md`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct SplitTcpStatus {
    /// `on`: new connections are split. `off`: splitting would not help. `waiting`: splitting would help, but the
    /// gateway does not offer it.
    pub(crate) state: String,
    /// Number of present connections.
    pub(crate) connections: u64,
    /// Number of connections carried since the start.
    pub(crate) carried: u64,
    /// Number of connections that were reset because the server was not reached.
    pub(crate) failed: u64,
    /// Number of bytes carried in both directions.
    pub(crate) bytes: u64,
    /// Number of times that the nftables table that redirects connections was restored after another program had
    /// removed it.
    #[serde(default)]
    pub(crate) restored_tables: u64,
    /// Reason for the state `waiting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trouble: Option<String>,
}

/// Memory and work that peers cause, with their limits (`docs/wire.md`, section 9).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct BoundsReport {
    /// Memory that packets of all peers occupy, in bytes.
    pub(crate) kept_bytes: u64,
    /// Limit of this memory for all peers together, in bytes.
    pub(crate) limit_bytes: u64,
    /// Limit of this memory for one peer, in bytes.
    pub(crate) peer_limit_bytes: u64,
    /// Peers that occupy memory or have exceeded a limit, by name.
    pub(crate) peers: BTreeMap<String, PeerBounds>,
}

/// Part of [`BoundsReport`] about one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct PeerBounds {
    /// Memory that packets of the peer occupy, in bytes.
    pub(crate) kept_bytes: u64,
    /// Number of the peer's datagrams and control frames that were ignored because they would have caused too much
    /// work.
    pub(crate) refused: u64,
}

/// State of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct LinkStatus {
    /// Name of the link.
    pub(crate) name: String,
    /// Network device of the link. Empty at a gateway, which does not know the device.
    pub(crate) device: String,
    /// Whether the link carries packets.
    pub(crate) state: LinkState,
    /// Outer address of the other end, `ADDRESS:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// Smoothed round-trip time in milliseconds; `None` before the first sample.
    pub(crate) rtt_ms: Option<f64>,
    /// Standing queue in the sending direction in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue_delay_ms: Option<f64>,
    /// Estimated capacity in the sending direction in 10^6 bit/s; `None` before the first sample.
    pub(crate) capacity_mbps: Option<f64>,
    /// Recent loss in the sending direction as a fraction, 0 to 1.
    pub(crate) loss: f64,
    /// Bytes of data datagrams sent since the association began: UDP payload, without probes and reports.
    pub(crate) tx_bytes: u64,
    /// Bytes of data datagrams received since the association began: UDP payload, without probes and reports.
    pub(crate) rx_bytes: u64,
    /// Weight of the link.
    pub(crate) weight: u32,
    /// Maximum length of an inner packet in the sending direction, in bytes, as far as it is known. Absent except for
    /// tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<usize>,
    /// Transport of the link's datagrams, `udp` or `tcp`. Absent except for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) carrier: Option<String>,
    /// Reason why TCP does not carry the link although UDP does not work: a fixed word and a sentence, separated by a
    /// colon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) carrier_error: Option<String>,
    /// Reason why the link has carried no packet for a second, as a fixed word. `None` if it has carried packets, or if
    /// this is no tunnel.
    #[serde(default)]
    pub(crate) idle_reason: Option<String>,
    /// Sentence that says why the link is used or not. Absent except for tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// Sentence that says how the user can improve the link's state. Absent if there is nothing to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

impl LinkStatus {
    /// Returns a link that is down and has no measurements.
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

/// Statistics of a proxy about an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ApplicationStatus {
    /// `real-time` or `bulk`. `None` if the application has no clear class.
    pub(crate) class: Option<String>,
    /// Number of bytes to servers that a connection is expected to move: C_demand of the DBAS paper.
    pub(crate) demand_up_bytes: u64,
    /// Number of bytes from servers that a connection is expected to move.
    pub(crate) demand_down_bytes: u64,
    /// Number of connections that have ended.
    pub(crate) connections: u64,
    /// Number of bytes of each of the most recent connections, both directions together, oldest first.
    pub(crate) last_bytes: Vec<u64>,
    /// Link that was assigned to the application at run time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<String>,
}

/// Use of a link's budget in the present month.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct BudgetStatus {
    /// Number of bytes that the link may carry, both directions together.
    pub(crate) bytes: u64,
    /// Number of bytes that the link has carried.
    pub(crate) used_bytes: u64,
    /// Number of bytes that the link will have carried at the end of the month if it goes on as on average since the
    /// month began. `None` on the first day of the month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) forecast_bytes: Option<u64>,
    /// Beginning of the next month, in seconds since 1970-01-01 UTC.
    #[serde(default)]
    pub(crate) renews_at_s: u64,
    /// `within`: the link has used at most the earned part of its budget. A tenth of the budget is earned at the
    /// beginning of the month, and the rest in proportion to the elapsed time. `ahead`: the link has used more than the
    /// earned part. `spent`: the link has used the whole budget.
    pub(crate) standing: String,
}

impl From<BudgetReport> for BudgetStatus {
    fn from(report: BudgetReport) -> Self {
        let standing = match report.standing {
            Standing::Within => "within",
            Standing::Ahead => "ahead",
            Standing::Spent => "spent",
        };
        Self {
            bytes: report.bytes.get(),
            used_bytes: report.used.get(),
            forecast_bytes: report.forecast.map(Bytes::get),
            renews_at_s: report.renews_at_s,
            standing: standing.to_owned(),
        }
    }
}

/// State of an equalizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct SplitterStatus {
    /// Back end: `bpf`, `clsact` or `nft`.
    pub(crate) backend: String,
    /// Reason for the choice of the back end.
    pub(crate) backend_why: String,
    /// Origin of the weights: `auto`, `fixed`, or `live` if the user set them at run time.
    pub(crate) weights: String,
    /// Reason of the last change of weights.
    pub(crate) last_change_why: Option<String>,
    /// Time since the last change of weights in seconds.
    pub(crate) last_change_seconds: Option<f64>,
    /// State of packets that are delayed on purpose. Only with `spread = "delay"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hold: Option<HoldStatus>,
    /// Shares of the links, by link name.
    pub(crate) links: BTreeMap<String, SplitStatus>,
}

/// State of packets that an equalizer delays so that packets of all links arrive in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct HoldStatus {
    /// Host to which the delay of each link is measured. `None` if no such host is known.
    #[cfg_attr(feature = "dashboard", schema(value_type = Option<String>))]
    pub(crate) probe: Option<IpAddr>,
    /// Whether each flow stays on one link, because the required delays of packets are not known yet.
    pub(crate) keeps_flows: bool,
    /// Number of packets that were sent early because the buffer was full.
    pub(crate) not_held: u64,
    /// Number of packets that arrived faster than they were processed, or that the kernel did not accept after their
    /// delay.
    pub(crate) lost: u64,
}

/// Share of a link in the packets of an equalizer. Shares are fractions, 0 to 1. The shares of packets and bytes are
/// counted since the last change of weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct SplitStatus {
    /// Share of the link in the sum of all weights.
    pub(crate) share_wanted: f64,
    /// Share in the number of packets. `None` if nothing was sent.
    pub(crate) share_packets: Option<f64>,
    /// Share in the number of bytes. `None` if nothing was sent.
    pub(crate) share_bytes: Option<f64>,
    /// Number of packets sent since the start.
    pub(crate) packets: u64,
    /// Rate at which other programs send over the device, in 10^6 bit/s.
    pub(crate) background_mbps: f64,
    /// Part of the link's rate that other programs leave free, in 10^6 bit/s. `None` if the rate is not known.
    pub(crate) available_mbps: Option<f64>,
    /// Delay that is added to the link's packets, in milliseconds. Only with `spread = "delay"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hold_ms: Option<f64>,
    /// Number of delayed bytes of the link at present. Only with `spread = "delay"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held_bytes: Option<u64>,
}

/// State of a connection of a proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ConnectionStatus {
    /// Client of the connection, `ADDRESS:PORT`.
    pub(crate) client: String,
    /// Name of the client's program, if known.
    pub(crate) app: Option<String>,
    /// Destination, `HOST:PORT`.
    pub(crate) target: String,
    /// Protocol with which the client requested the connection.
    pub(crate) protocol: String,
    /// Name of the link. `None` if the destination needs no link.
    pub(crate) link: Option<String>,
    /// Reason for the choice of the link.
    pub(crate) why: String,
    /// Present throughput of both directions together in 10^6 bit/s.
    pub(crate) rate_mbps: f64,
    /// Number of bytes to the server.
    pub(crate) tx_bytes: u64,
    /// Number of bytes from the server.
    pub(crate) rx_bytes: u64,
    /// Details of a striped connection. Absent for other connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) striped: Option<StripedStatus>,
}

/// Details of a striped connection, which uses several links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct StripedStatus {
    /// Name of the peer.
    pub(crate) peer: String,
    /// Scheduler of the data that this end sends.
    pub(crate) striping: String,
    /// Links of the connection.
    pub(crate) links: Vec<LaneStatus>,
    /// Number of received bytes that wait in the reorder buffer for missing earlier bytes.
    pub(crate) held_bytes: u64,
    /// Maximum of `held_bytes` so far.
    pub(crate) most_held_bytes: u64,
    /// Number of bytes that were read from the client or server and are not sent yet.
    pub(crate) waiting_bytes: u64,
    /// Number of bytes sent more than once.
    pub(crate) repeated_bytes: u64,
}

/// A link of a striped connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct LaneStatus {
    /// Name of the link at the end that dialled the connections.
    pub(crate) link: String,
    /// State of the link: `up`, or `suspect` if data sent on it is overdue.
    pub(crate) state: LinkState,
    /// RTT in milliseconds; 0 before the first sample.
    pub(crate) rtt_ms: f64,
    /// Throughput from this end to the peer in 10^6 bit/s.
    pub(crate) rate_mbps: f64,
    /// Number of bytes of frames sent on the link.
    pub(crate) tx_bytes: u64,
    /// Number of bytes of frames received on the link.
    pub(crate) rx_bytes: u64,
    /// Number of datagrams of UDP flows sent on the link.
    #[serde(default)]
    pub(crate) tx_datagrams: u64,
    /// Number of datagrams of UDP flows received on the link.
    #[serde(default)]
    pub(crate) rx_datagrams: u64,
}

/// Whether a link carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) enum LinkState {
    /// The link carries no packets: its device is missing, or the other end does not answer.
    Down,
    /// The configuration forbids the link.
    Never,
    /// The link is used only if no other link is up.
    Standby,
    /// Data sent on the link is overdue.
    Suspect,
    /// The link carries packets.
    Up,
}

/// State of a gateway's client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ClientStatus {
    /// Name of the client.
    pub(crate) name: String,
    /// Whether the client has a session with a working link.
    pub(crate) up: bool,
    /// Links of the client as the gateway sees them.
    pub(crate) links: Vec<LinkStatus>,
    /// Bytes of inner packets from the client since the gateway has learned of it.
    #[serde(default)]
    pub(crate) up_bytes: u64,
    /// Bytes of inner packets to the client since the gateway has learned of it. Retransmissions and copies do not count.
    #[serde(default)]
    pub(crate) down_bytes: u64,
    /// Cap of the rate from the client in 10^6 bit/s; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate_up_mbps: Option<f64>,
    /// Cap of the rate to the client in 10^6 bit/s; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate_down_mbps: Option<f64>,
}

/// Store of clients of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct StoreReport {
    /// Kind of the store: `http`, `postgres` or `sqlite`.
    pub(crate) source: String,
    /// Reason why the store cannot be used at present. Absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trouble: Option<String>,
    /// Number of clients of the store that the gateway knows now.
    pub(crate) known: u64,
    /// Number of handshakes that were refused, by reason: `bad_row`, `clash`, `unknown` or `unreadable`.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Number of times that a client was forgotten because it was idle.
    pub(crate) forgotten: u64,
    /// Number of times that a client was disconnected because the store had removed it.
    pub(crate) removed: u64,
}

/// A gateway among several ones that share a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct FleetReport {
    /// Name of the gateway.
    pub(crate) name: String,
    /// Number of clients that are connected to this gateway, without those that have changed to another one.
    pub(crate) connected: u64,
    /// Number of these clients that have addresses outside of the gateway's home networks, to which it has set routes.
    pub(crate) away_from_home: u64,
}

/// Counters of the packets that this end has sent in a traffic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ClassStatus {
    /// Number of packets of the class that this end had to send.
    pub(crate) packets: u64,
    /// Number of bytes of these packets.
    pub(crate) bytes: u64,
    /// Number of additional copies of packets.
    pub(crate) copies: u64,
    /// Number of bytes of the copies.
    pub(crate) copied_bytes: u64,
    /// Number of packets dropped because they would have arrived too late.
    pub(crate) expired: u64,
}

/// Rule of a client, with counters of the packets that this end has sent by it. The counters restart when a rule or a
/// class changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct RuleStatus {
    /// Conditions as `pleach set` takes them, such as `app=curl port=443`. Empty if all packets meet them.
    pub(crate) rule: String,
    /// Link that the packets take. `None` if the packets are dropped.
    pub(crate) link: Option<String>,
    /// Whether the packets take no other link while this link carries no packets.
    pub(crate) strict: bool,
    /// Whether the rule was set at run time. It then lasts until a reload or restart.
    pub(crate) live: bool,
    /// Number of packets to which the rule applied.
    pub(crate) packets: u64,
    /// Number of bytes of these packets.
    pub(crate) bytes: u64,
    /// Number of these packets that the rule has dropped.
    pub(crate) dropped: u64,
}

/// Results for datagrams that arrived with bit errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ParityReport {
    /// Number of datagrams that parity repaired. They are not counted in `drops`.
    pub(crate) mended: u64,
    /// Number of arrivals of parity or damaged datagrams for which not all possible repairs were tried, to limit
    /// processor time.
    pub(crate) cut_short: u64,
}

/// Measures against packet losses since the association began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct RepairStatus {
    /// Number of packets that wait in the tunnel's queue at present.
    pub(crate) queued: u64,
    /// Number of packets sent again on another link, because their first link was silent or had become slow.
    pub(crate) reinjected: u64,
    /// Number of repair symbols of forward error correction sent.
    pub(crate) symbols_sent: u64,
    /// Number of repair symbols received.
    pub(crate) symbols_received: u64,
    /// Number of lost packets that were recovered from repair symbols.
    pub(crate) recovered: u64,
}

/// Part of the status about the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct SchedulerStatus {
    /// Name of the scheduling policy.
    pub(crate) policy: String,
}

/// Part of the status about the reorder buffer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "dashboard", derive(utoipa::ToSchema))]
pub(crate) struct ResequencerStatus {
    /// Number of packets in the reorder buffer at present.
    pub(crate) held: u64,
    /// Number of packets, since the association began, that arrived after they had been considered lost. They were
    /// delivered at once.
    pub(crate) released_late: u64,
    /// 95th percentile of the time that packets spent in the reorder buffer, in milliseconds; 0 if no packet was
    /// buffered.
    pub(crate) hold_p95_ms: f64,
}

/// Maximum length of a request line in bytes, newline included.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// Maximum time for which all links but one can be put in reserve.
const MAX_ONLY: Duration = Duration::from_secs(60);

/// Range of a weight.
pub(crate) const WEIGHTS: core::ops::RangeInclusive<u32> = 1..=1000;

#[cfg(test)]
mod tests;
