//! A status as OpenMetrics.
//!
//! Labels are names from the configuration, never addresses, and bounded in number. The engine limits the links. At
//! most [`MAX_CLIENTS`] clients have labels of their own; all further clients are counted together as `other`. Classes
//! and reasons are fixed words, and there are at most 64 data threads.
//!
//! Limit: of the time for which packets are buffered, the engine computes quantiles and no histogram buckets. The
//! quantiles are exported as gauges.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use crate::{
    control::{
        ClientStatus, GatewayStatus, LinkState, LinkStatus, StatusReport, StoreReport, WorkerStatus,
    },
    rates::links_of,
};

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;
type Counters = Family<Labels, Counter>;

/// Renders `status` as OpenMetrics text.
pub(super) fn render(status: &StatusReport) -> String {
    let mut page = Page(Registry::with_prefix("pleach"));
    daemon(&mut page, status);
    links(&mut page, status);
    clients(&mut page, &status.clients);
    workers(&mut page, status);
    store(&mut page, status.store.as_ref());
    gateways(&mut page, &status.gateways);
    tunnel(&mut page, status);
    proxy(&mut page, status);
    equalizer(&mut page, status);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &page.0);
    text
}

/// The metrics of a page that is being rendered.
struct Page(Registry);

impl Page {
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let family = Gauges::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, family),
            None => self.0.register(name, help, family),
        }
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        let family = Counters::default();
        for (labels, value) in values {
            family
                .get_or_create(&labels)
                .inner()
                .fetch_add(value, Ordering::Relaxed);
        }
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, family),
            None => self.0.register(name, help, family),
        }
    }
}

fn daemon(page: &mut Page, status: &StatusReport) {
    let labels = vec![
        ("mode", status.mode.clone()),
        ("name", status.name.clone()),
        ("policy", status.scheduler.policy.clone()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    page.gauges("daemon", "The daemon; always 1", None, [(labels, 1.0)]);
    page.gauges(
        "up",
        "Whether packets can get through",
        None,
        [(Vec::new(), yes(status.up))],
    );
    let drops = status.drops.iter();
    page.counters(
        "dropped_packets",
        "Packets that this end dropped, by reason",
        None,
        drops.map(|(reason, count)| (vec![("reason", reason.clone())], *count)),
    );
    page.counters(
        "restored_tables",
        "How often an nftables table was set again because another program had removed it",
        None,
        status.restored_tables.map(|count| (Vec::new(), count)),
    );
}

fn links(page: &mut Page, status: &StatusReport) {
    let all: Vec<(Labels, &LinkStatus)> = bounded(status);
    let gauges = |value: &dyn Fn(&LinkStatus) -> Option<f64>| -> Vec<(Labels, f64)> {
        let value = |(labels, link): &(Labels, &LinkStatus)| Some((labels.clone(), value(link)?));
        all.iter().filter_map(value).collect()
    };
    page.gauges(
        "link_up",
        "Whether the link can carry packets",
        None,
        gauges(&|link| {
            Some(yes(
                link.state == LinkState::Up || link.state == LinkState::Standby
            ))
        }),
    );
    let states = all
        .iter()
        .map(|(labels, link)| (with(labels, "state", state(link.state)), 1.0));
    page.gauges(
        "link_state",
        "State of the link; 1 for the current state",
        None,
        states,
    );
    let reasons = all.iter().filter_map(|(labels, link)| {
        Some((with(labels, "reason", link.idle_reason.as_deref()?), 1.0))
    });
    page.gauges(
        "link_idle",
        "Reason why the link carries no packets; 1 for the current reason",
        None,
        reasons,
    );
    page.gauges(
        "link_rtt",
        "Smoothed round-trip time",
        Some(Unit::Seconds),
        gauges(&|link| link.rtt_ms.map(|ms| ms / 1e3)),
    );
    page.gauges(
        "link_queue_delay",
        "Standing queue in the sending direction",
        Some(Unit::Seconds),
        gauges(&|link| link.queue_delay_ms.map(|ms| ms / 1e3)),
    );
    let bits = || Some(Unit::Other("bits_per_second".to_owned()));
    page.gauges(
        "link_capacity",
        "Estimated capacity in the sending direction",
        bits(),
        gauges(&|link| link.capacity_mbps.map(|mbps| mbps * 1e6)),
    );
    page.gauges(
        "link_loss",
        "Recent loss in the sending direction, 0 to 1",
        Some(ratio()),
        gauges(&|link| Some(link.loss)),
    );
    page.gauges(
        "link_weight",
        "The link's weight",
        None,
        gauges(&|link| Some(f64::from(link.weight))),
    );
    let bytes = |value: &dyn Fn(&LinkStatus) -> u64| -> Vec<(Labels, u64)> {
        all.iter()
            .map(|(labels, link)| (labels.clone(), value(link)))
            .collect()
    };
    let sent = bytes(&|link| link.tx_bytes);
    page.counters("link_sent", "Sent over the link", Some(Unit::Bytes), sent);
    let received = bytes(&|link| link.rx_bytes);
    page.counters(
        "link_received",
        "Received over the link",
        Some(Unit::Bytes),
        received,
    );
}

/// Returns this end's links, and the links of the first clients.
fn bounded(status: &StatusReport) -> Vec<(Labels, &LinkStatus)> {
    let own = status.links.len();
    let links = links_of(status).take(own + MAX_CLIENT_LINKS);
    links
        .map(|(client, link)| {
            let mut labels = vec![("link", link.name.clone())];
            if !client.is_empty() {
                labels.insert(0, ("client", client.to_owned()));
            }
            (labels, link)
        })
        .collect()
}

fn clients(page: &mut Page, clients: &[ClientStatus]) {
    let label = |at: usize, client: &ClientStatus| {
        let name = if at < MAX_CLIENTS {
            client.name.as_str()
        } else {
            "other"
        };
        vec![("client", name.to_owned())]
    };
    let named = clients.iter().enumerate().take(MAX_CLIENTS);
    let up = named.map(|(at, client)| (label(at, client), yes(client.up)));
    page.gauges("client_up", "Whether the client is connected", None, up);
    let sums = |value: &dyn Fn(&LinkStatus) -> u64| -> Vec<(Labels, u64)> {
        let all = clients.iter().enumerate();
        all.map(|(at, client)| (label(at, client), client.links.iter().map(value).sum()))
            .collect()
    };
    let sent = sums(&|link| link.tx_bytes);
    page.counters("client_sent", "Sent to the client", Some(Unit::Bytes), sent);
    let received = sums(&|link| link.rx_bytes);
    page.counters(
        "client_received",
        "Received from the client",
        Some(Unit::Bytes),
        received,
    );
    let totals = |value: &dyn Fn(&ClientStatus) -> u64| -> Vec<(Labels, u64)> {
        let all = clients.iter().enumerate();
        all.map(|(at, client)| (label(at, client), value(client)))
            .collect()
    };
    page.counters(
        "client_upload",
        "Inner packets from the client, each counted once",
        Some(Unit::Bytes),
        totals(&|client| client.up_bytes),
    );
    page.counters(
        "client_download",
        "Inner packets to the client, each counted once",
        Some(Unit::Bytes),
        totals(&|client| client.down_bytes),
    );
    let is_up = clients.iter().filter(|client| client.up).count();
    page.gauges(
        "clients",
        "Clients of this gateway",
        None,
        [(Vec::new(), number(clients.len()))],
    );
    page.gauges(
        "clients_connected",
        "Clients that are connected",
        None,
        [(Vec::new(), number(is_up))],
    );
}

fn workers(page: &mut Page, status: &StatusReport) {
    let (answering, silent) = (&status.workers, &status.silent_workers);
    if answering.is_empty() && silent.is_empty() {
        return;
    }
    let label = |number: u64| vec![("worker", number.to_string())];
    let answers = answering.iter().map(|worker| (label(worker.number), 1.0));
    page.gauges(
        "worker_answers",
        "Whether the data thread answers within a second",
        None,
        answers.chain(silent.iter().map(|number| (label(*number), 0.0))),
    );
    let values = |value: fn(&WorkerStatus) -> u64| {
        let value = move |worker: &WorkerStatus| (label(worker.number), value(worker));
        answering.iter().map(value)
    };
    let gauges = |value| values(value).map(|(labels, value)| (labels, number(value)));
    page.gauges(
        "worker_clients",
        "Clients of the data thread",
        None,
        gauges(|worker| worker.clients),
    );
    page.gauges(
        "worker_clients_connected",
        "Clients of the data thread that are connected",
        None,
        gauges(|worker| worker.up),
    );
    page.counters(
        "worker_passed_packets",
        "Packets and datagrams that the data thread has passed to others",
        None,
        values(|worker| worker.passed),
    );
    page.counters(
        "worker_refused_packets",
        "Packets and datagrams that the data thread could not pass to others",
        None,
        values(|worker| worker.refused),
    );
}

fn store(page: &mut Page, store: Option<&StoreReport>) {
    let Some(store) = store else {
        return;
    };
    let one = |value: u64| [(Vec::new(), value)];
    page.gauges(
        "store_readable",
        "Whether the store of clients can be used",
        None,
        [(Vec::new(), yes(store.trouble.is_none()))],
    );
    let refused = store.refused.iter();
    page.counters(
        "store_refused_handshakes",
        "Handshakes of clients that the store does not admit, by reason",
        None,
        refused.map(|(reason, count)| (vec![("reason", reason.clone())], *count)),
    );
    page.counters(
        "store_forgotten_clients",
        "Clients that the gateway has forgotten because they were idle",
        None,
        one(store.forgotten),
    );
    page.counters(
        "store_removed_clients",
        "Clients that were disconnected because the store had removed them",
        None,
        one(store.removed),
    );
}

fn gateways(page: &mut Page, gateways: &[GatewayStatus]) {
    if gateways.is_empty() {
        return;
    }
    let label = |gateway: &GatewayStatus| vec![("gateway", gateway.name.clone())];
    let all = gateways.iter();
    page.gauges(
        "gateway_used",
        "Whether the client uses the gateway",
        None,
        all.clone()
            .map(|gateway| (label(gateway), yes(gateway.used))),
    );
    page.gauges(
        "gateway_answers",
        "Whether the gateway has answered in the last 35 s",
        None,
        all.clone()
            .map(|gateway| (label(gateway), yes(gateway.answers))),
    );
    page.gauges(
        "gateway_rtt",
        "Lowest round-trip time to the gateway over all links in the last 35 s",
        Some(Unit::Seconds),
        all.filter_map(|gateway| Some((label(gateway), gateway.rtt_ms? / 1000.0))),
    );
}

fn tunnel(page: &mut Page, status: &StatusReport) {
    let buffer = &status.resequencer;
    let one = |value| [(Vec::new(), value)];
    page.gauges(
        "resequencer_held_packets",
        "Packets buffered until earlier packets arrive",
        None,
        one(number(buffer.held)),
    );
    page.gauges(
        "resequencer_hold_p95",
        "95th percentile of the time that packets were buffered",
        Some(Unit::Seconds),
        one(buffer.hold_p95_ms / 1e3),
    );
    page.counters(
        "resequencer_released_late_packets",
        "Packets that arrived after they had been counted as lost",
        None,
        [(Vec::new(), buffer.released_late)],
    );
    let repair = status.repair.unwrap_or_default();
    page.gauges(
        "queued_packets",
        "Packets in the queue of the tunnel",
        None,
        one(number(repair.queued)),
    );
    for (name, help, value) in [
        (
            "repair_reinjected_packets",
            "Packets retransmitted on another link",
            repair.reinjected,
        ),
        (
            "repair_symbols_sent",
            "Repair symbols sent",
            repair.symbols_sent,
        ),
        (
            "repair_symbols_received",
            "Repair symbols received",
            repair.symbols_received,
        ),
        (
            "repair_recovered_packets",
            "Lost packets recovered from repair symbols",
            repair.recovered,
        ),
    ] {
        page.counters(name, help, None, [(Vec::new(), value)]);
    }
    let classes = |value: fn(&crate::control::ClassStatus) -> u64| -> Vec<(Labels, u64)> {
        let classes = status.classes.iter().take(MAX_CLASSES);
        classes
            .map(|(name, class)| (vec![("class", name.clone())], value(class)))
            .collect()
    };
    let (packets, bytes, expired) = (
        classes(|class| class.packets),
        classes(|class| class.bytes),
        classes(|class| class.expired),
    );
    page.counters(
        "class_packets",
        "Packets of the class that this end was given to send",
        None,
        packets,
    );
    page.counters(
        "class",
        "Bytes of the class that this end was given to send",
        Some(Unit::Bytes),
        bytes,
    );
    page.counters(
        "class_expired_packets",
        "Packets dropped because they would miss their deadline",
        None,
        expired,
    );
}

fn proxy(page: &mut Page, status: &StatusReport) {
    if let Some(count) = status.connection_count {
        page.gauges(
            "connections",
            "Connections of the proxy",
            None,
            [(Vec::new(), number(count))],
        );
    }
    if status.budgets.is_empty() {
        return;
    }
    let budgets = |value: fn(&crate::control::BudgetStatus) -> u64| -> Vec<(Labels, f64)> {
        let budgets = status.budgets.iter();
        budgets
            .map(|(name, budget)| (vec![("link", name.clone())], number(value(budget))))
            .collect()
    };
    let (whole, used) = (
        budgets(|budget| budget.bytes),
        budgets(|budget| budget.used_bytes),
    );
    page.gauges(
        "budget",
        "Data volume that the link may carry this month",
        Some(Unit::Bytes),
        whole,
    );
    page.gauges(
        "budget_used",
        "Data volume that the link has carried this month",
        Some(Unit::Bytes),
        used,
    );
}

fn equalizer(page: &mut Page, status: &StatusReport) {
    let Some(splitter) = &status.splitter else {
        return;
    };
    let label = |name: &String| vec![("link", name.clone())];
    let wanted = splitter.links.iter();
    let wanted = wanted.map(|(name, link)| (label(name), link.share_wanted));
    page.gauges(
        "share_wanted",
        "Share that the weights assign to the link, 0 to 1",
        Some(ratio()),
        wanted,
    );
    let sent = splitter.links.iter();
    let sent = sent.filter_map(|(name, link)| Some((label(name), link.share_bytes?)));
    page.gauges(
        "share_sent",
        "Share of the bytes sent over the link since the last change of weights, 0 to 1",
        Some(ratio()),
        sent,
    );
}

fn with(labels: &Labels, name: &'static str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.push((name, value.to_owned()));
    labels
}

fn yes(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "gauges are floating-point numbers"
)]
fn number(value: impl TryInto<u64>) -> f64 {
    value.try_into().unwrap_or(u64::MAX) as f64
}

const fn state(state: LinkState) -> &'static str {
    match state {
        LinkState::Down => "down",
        LinkState::Never => "never",
        LinkState::Standby => "standby",
        LinkState::Suspect => "suspect",
        LinkState::Up => "up",
    }
}

/// Returns the unit of fractions from 0 to 1: `ratio`, as OpenMetrics prescribes (section "Units and base units").
fn ratio() -> Unit {
    Unit::Other("ratio".to_owned())
}

/// Content type of OpenMetrics 1.0.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum number of clients with labels of their own. Each client has five series, and a metrics server can scrape
/// 5000 series from one target.
const MAX_CLIENTS: usize = 1000;

/// Maximum number of clients' links with labels of their own. Each link has ten series.
const MAX_CLIENT_LINKS: usize = 1000;

/// Maximum number of classes, more than a configuration may have.
const MAX_CLASSES: usize = 64;
