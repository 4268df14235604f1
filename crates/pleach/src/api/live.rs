//! The values of one second, as the dashboard draws them.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::uplink::Uplink;
use crate::{
    control::{
        ApplicationStatus, BudgetStatus, ClassStatus, ConnectionStatus, GatewayStatus, LinkStatus,
        RepairStatus, ResequencerStatus, RuleStatus, SplitterStatus, StatusReport,
    },
    rates::{Key, Rates},
    reasons,
};

/// A status with rates.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Live {
    /// Time of the sample, in milliseconds since 1970-01-01 UTC.
    pub(super) at_ms: u64,
    /// `client`, `gateway`, `proxy` or `equalize`.
    pub(super) mode: String,
    /// Name of the tunnel; see `StatusReport`.
    pub(super) name: String,
    /// Whether the daemon can carry traffic: a client has a session, a gateway listens.
    pub(super) up: bool,
    /// State of the whole daemon in one sentence.
    pub(super) headline: String,
    /// Name of the policy.
    pub(super) policy: String,
    /// Rate sent over all links, in 10^6 bit/s; `null` in the first sample.
    pub(super) tx_mbps: Option<f64>,
    /// Rate received over all links, in 10^6 bit/s; `null` in the first sample.
    pub(super) rx_mbps: Option<f64>,
    /// This end's links.
    pub(super) links: Vec<LiveLink>,
    /// A gateway's clients, those with the most traffic first, at most 100.
    pub(super) clients: Vec<LiveClient>,
    /// Number of clients.
    pub(super) client_count: usize,
    /// Number of clients that are connected.
    pub(super) clients_up: usize,
    /// The reorder buffer.
    pub(super) resequencer: ResequencerStatus,
    /// Repair of losses; `null` outside of a tunnel.
    pub(super) repair: Option<RepairStatus>,
    /// Number of packets per second that were recovered from repair symbols or retransmitted on another path; `null` in
    /// the first sample and outside of a tunnel.
    pub(super) repaired_per_s: Option<f64>,
    /// Traffic by class.
    pub(super) classes: BTreeMap<String, ClassStatus>,
    /// Rules of a client in the order of their precedence.
    pub(super) rules: Vec<RuleStatus>,
    /// Packets dropped by reason, without reasons that never occurred.
    pub(super) drops: BTreeMap<String, u64>,
    /// A proxy's connections, those with the most traffic first, at most 100.
    pub(super) connections: Vec<ConnectionStatus>,
    /// Number of a proxy's connections.
    pub(super) connection_count: Option<u64>,
    /// Statistics of a proxy's applications by name, or by port (`:PORT`), those with the most connections, at most
    /// 100.
    pub(super) applications: BTreeMap<String, ApplicationStatus>,
    /// Gateways of a client that has several, in the order of their priority.
    pub(super) gateways: Vec<GatewayStatus>,
    /// Budgets of links.
    pub(super) budgets: BTreeMap<String, BudgetStatus>,
    /// State of an equalizer.
    pub(super) splitter: Option<SplitterStatus>,
    /// Rate at which an encoder may send; `null` except at a client.
    pub(super) uplink: Option<Uplink>,
}

/// A link with its rates.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct LiveLink {
    /// All other values of the link.
    #[serde(flatten)]
    pub(super) status: LinkStatus,
    /// Rate sent in the last second, in 10^6 bit/s; `null` in the first sample.
    pub(super) tx_mbps: Option<f64>,
    /// Rate received in the last second, in 10^6 bit/s; `null` in the first sample.
    pub(super) rx_mbps: Option<f64>,
}

/// A gateway's client with its rates.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct LiveClient {
    /// Name of the client.
    pub(super) name: String,
    /// Whether the client has a session with a live link.
    pub(super) up: bool,
    /// Rate sent to the client, in 10^6 bit/s.
    pub(super) tx_mbps: Option<f64>,
    /// Rate received from the client, in 10^6 bit/s.
    pub(super) rx_mbps: Option<f64>,
    /// Links of the client.
    pub(super) links: Vec<LiveLink>,
}

/// The part of a [`Live`] that is stored for some minutes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Point {
    /// Time of the sample, in milliseconds since 1970-01-01 UTC.
    at_ms: u64,
    /// Rate sent over all links, in 10^6 bit/s.
    tx_mbps: Option<f64>,
    /// Rate received over all links, in 10^6 bit/s.
    rx_mbps: Option<f64>,
    /// Number of packets per second that were recovered from repair symbols or retransmitted on another path.
    repaired_per_s: Option<f64>,
    /// This end's links.
    links: Vec<PointLink>,
}

/// A link in a [`Point`]; its fields are described in [`LinkStatus`] and [`LiveLink`].
#[derive(Clone, Debug, Serialize, ToSchema)]
struct PointLink {
    name: String,
    tx_mbps: Option<f64>,
    rx_mbps: Option<f64>,
    rtt_ms: Option<f64>,
    queue_delay_ms: Option<f64>,
    capacity_mbps: Option<f64>,
    loss: f64,
}

impl Live {
    /// Combines `status` with `rates`, which are indexed by client and link.
    pub(super) fn new(
        at_ms: u64,
        status: &StatusReport,
        rates: &BTreeMap<Key, Rates>,
        uplink: Option<Uplink>,
    ) -> Self {
        let live = |client: &str, link: &LinkStatus| {
            let rates = rates.get(&(client.to_owned(), link.name.clone()));
            LiveLink {
                status: link.clone(),
                tx_mbps: rates.map(|rates| rates.0),
                rx_mbps: rates.map(|rates| rates.1),
            }
        };
        let links: Vec<LiveLink> = status.links.iter().map(|link| live("", link)).collect();
        let mut clients: Vec<LiveClient> = status
            .clients
            .iter()
            .map(|client| {
                let links = client.links.iter();
                let links: Vec<LiveLink> = links.map(|link| live(&client.name, link)).collect();
                LiveClient {
                    name: client.name.clone(),
                    up: client.up,
                    tx_mbps: sum(&links, |link| link.tx_mbps),
                    rx_mbps: sum(&links, |link| link.rx_mbps),
                    links,
                }
            })
            .collect();
        let all = links
            .iter()
            .chain(clients.iter().flat_map(|client| &client.links));
        let (tx_mbps, rx_mbps) = (
            sum(all.clone(), |link| link.tx_mbps),
            sum(all, |link| link.rx_mbps),
        );
        let moved =
            |client: &LiveClient| client.tx_mbps.unwrap_or(0.0) + client.rx_mbps.unwrap_or(0.0);
        clients.sort_by(|a, b| moved(b).total_cmp(&moved(a)).then(b.up.cmp(&a.up)));
        clients.truncate(MAX_SHOWN);
        let mut connections = status.connections.clone();
        connections.sort_by(|a, b| b.rate_mbps.total_cmp(&a.rate_mbps));
        connections.truncate(MAX_SHOWN);
        let mut applications: Vec<_> = status.applications.iter().collect();
        applications.sort_by_key(|(_, status)| core::cmp::Reverse(status.connections));
        applications.truncate(MAX_SHOWN);
        let drops = status.drops.iter().filter(|(_, count)| **count > 0);
        Self {
            at_ms,
            mode: status.mode.clone(),
            name: status.name.clone(),
            up: status.up,
            headline: reasons::headline(status),
            policy: status.scheduler.policy.clone(),
            tx_mbps,
            rx_mbps,
            links,
            client_count: status.clients.len(),
            clients_up: status.clients.iter().filter(|client| client.up).count(),
            clients,
            resequencer: status.resequencer.clone(),
            repair: status.repair,
            repaired_per_s: None,
            classes: status.classes.clone(),
            rules: status.rules.clone(),
            drops: drops
                .map(|(reason, count)| (reason.clone(), *count))
                .collect(),
            connections,
            connection_count: status.connection_count,
            applications: applications
                .into_iter()
                .map(|(name, status)| (name.clone(), status.clone()))
                .collect(),
            gateways: status.gateways.clone(),
            budgets: status.budgets.clone(),
            splitter: status.splitter.clone(),
            uplink,
        }
    }
}

impl Point {
    pub(super) fn of(live: &Live) -> Self {
        let point = |link: &LiveLink| PointLink {
            name: link.status.name.clone(),
            tx_mbps: link.tx_mbps,
            rx_mbps: link.rx_mbps,
            rtt_ms: link.status.rtt_ms,
            queue_delay_ms: link.status.queue_delay_ms,
            capacity_mbps: link.status.capacity_mbps,
            loss: link.status.loss,
        };
        Self {
            at_ms: live.at_ms,
            tx_mbps: live.tx_mbps,
            rx_mbps: live.rx_mbps,
            repaired_per_s: live.repaired_per_s,
            links: live.links.iter().map(point).collect(),
        }
    }
}

/// Returns the sum of the values that exist; `None` if no link has a value.
fn sum<'a>(
    links: impl IntoIterator<Item = &'a LiveLink>,
    value: impl Fn(&LiveLink) -> Option<f64>,
) -> Option<f64> {
    links
        .into_iter()
        .filter_map(value)
        .reduce(|sum, rate| sum + rate)
}

/// Maximum number of clients, connections and applications shown, as many as fit on a screen. `/v1/status` contains all.
const MAX_SHOWN: usize = 100;
