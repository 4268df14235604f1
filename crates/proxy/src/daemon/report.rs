//! Report of the state of a proxy, as plain data.

use std::{collections::BTreeMap, time::Duration};

use pleach_core::units::Bitrate;
use pleach_linux::clock;

use super::hub::Hub;
pub use super::learnt::Learnt;
pub use crate::budget::BudgetReport;
use crate::{
    estimate::class::Class,
    placer::{Cost, Placer},
    relay::stripe::association::{Association, LaneState},
    sched::LinkId,
    stripe::{frame::ConnId, sched::Striping},
};

/// Present state of a proxy.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the scheduler.
    pub policy: &'static str,
    /// All links, by id.
    pub links: Vec<LinkReport>,
    /// Connections, oldest first, at most [`MAX_SHOWN`].
    pub connections: Vec<ConnectionReport>,
    /// Total number of connections.
    pub connection_count: usize,
    /// Statistics of applications by name, and of ports (`:PORT`) if the name is not known, at most [`MAX_SHOWN`].
    pub applications: BTreeMap<String, ApplicationReport>,
    /// Number of requests and datagrams that were not served, by reason.
    pub drops: BTreeMap<&'static str, u64>,
}

/// State of a link.
#[derive(Clone, Debug)]
pub struct LinkReport {
    /// Name of the link.
    pub name: String,
    /// Name of the network device.
    pub device: String,
    /// Whether it is used.
    pub state: LinkState,
    /// Smoothed RTT to the servers in use.
    pub rtt: Option<Duration>,
    /// Capacity from servers. `None` if it is not known.
    pub download: Option<Bitrate>,
    /// Capacity to servers. `None` if it is not known.
    pub upload: Option<Bitrate>,
    /// Part of [`download`](Self::download) that the present throughput leaves free.
    pub residual: Option<Bitrate>,
    /// Fraction of segments that TCP retransmitted.
    pub loss: f64,
    /// Payload bytes to servers. In cgroup mode, all bytes that the device has sent since the start.
    pub tx_bytes: u64,
    /// Payload bytes from servers. In cgroup mode, all bytes that the device has received since the start.
    pub rx_bytes: u64,
    /// Number of connections on the link.
    pub connections: usize,
    /// Number of sockets that the kernel's hook has bound to the link since the start. `None` without cgroup mode.
    pub bound: Option<u64>,
    /// Weight set by the user, in the configuration or at run time.
    pub weight: Option<u16>,
    /// Budget of the link, if it has one.
    pub budget: Option<BudgetReport>,
}

/// Statistics of an application.
#[derive(Clone, Debug, Default)]
pub struct ApplicationReport {
    /// `real-time` or `bulk`. `None` if the application has no clear class.
    pub class: Option<&'static str>,
    /// Mean number of bytes to servers per connection, smoothed.
    pub demand_up: u64,
    /// Mean number of bytes from servers per connection, smoothed.
    pub demand_down: u64,
    /// Number of connections that have ended.
    pub connections: u64,
    /// Number of bytes of each of the most recent connections, oldest first.
    pub last_bytes: Vec<u64>,
    /// Name of the link that was assigned to the application at run time.
    pub link: Option<String>,
}

/// State of use of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The link reaches no destination at present.
    Down,
    /// The configuration forbids the link.
    Never,
    /// The link is used only if no other link is up.
    Standby,
    /// Connecting over the link failed recently.
    Suspect,
    /// The link is used.
    Up,
}

/// State of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionReport {
    /// Address of the client.
    pub client: String,
    /// Name of the client's program, if known.
    pub app: Option<String>,
    /// Destination of the connection.
    pub target: String,
    /// Protocol with which the client requested the connection.
    pub protocol: &'static str,
    /// Name of the link. `None` if the destination needs no link.
    pub link: Option<String>,
    /// Reason for the choice of the link.
    pub why: String,
    /// Present throughput of both directions together.
    pub rate: Bitrate,
    /// Number of bytes to the server.
    pub tx_bytes: u64,
    /// Number of bytes from the server.
    pub rx_bytes: u64,
    /// Details of a striped connection. `None` if the connection is not striped.
    pub striped: Option<StripedReport>,
}

/// Details of a striped connection, or of a UDP flow over the lanes to a peer.
#[derive(Clone, Debug)]
pub struct StripedReport {
    /// Name of the peer.
    pub peer: String,
    /// Scheduler of the data that this end sends.
    pub striping: &'static str,
    /// Lanes to the peer, which all connections of the association share.
    pub lanes: Vec<LaneReport>,
    /// Number of received bytes that wait for missing earlier bytes.
    pub held_bytes: u64,
    /// Maximum of `held_bytes` so far.
    pub most_held_bytes: u64,
    /// Number of bytes that were read from the client or server and are not sent yet.
    pub waiting_bytes: u64,
    /// Number of bytes that all connections over these lanes have sent more than once.
    pub repeated_bytes: u64,
}

/// State of a lane of a striped connection.
#[derive(Clone, Debug)]
pub struct LaneReport {
    /// Name of the lane's link.
    pub link: String,
    /// Whether data on the lane is overdue.
    pub is_suspect: bool,
    /// Throughput from this end to the peer.
    pub rate: Bitrate,
    /// RTT of the lane.
    pub rtt: Duration,
    /// Number of bytes sent on the lane.
    pub tx_bytes: u64,
    /// Number of bytes received on the lane.
    pub rx_bytes: u64,
    /// Number of datagrams of UDP flows sent on the lane.
    pub tx_datagrams: u64,
    /// Number of datagrams of UDP flows received on the lane.
    pub rx_datagrams: u64,
}

pub(super) fn report(hub: &Hub) -> Report {
    let (now, today) = (clock::now(), clock::unix_seconds());
    let placer = hub.placer.borrow();
    let devices = hub.uplinks.devices.borrow();
    let counts = placer.connection_counts();
    let bound = hub.uplinks.bound.borrow();
    let live = hub.table.live.borrow();
    let mut moving = vec![0_u64; placer.links().len()];
    for one in live.values() {
        if let Some(moving) = one.link.get().and_then(|link| moving.get_mut(link.0)) {
            *moving = moving.saturating_add(one.rate.get().as_bps());
        }
    }
    let link = |index: usize, link: &crate::placer::Link| {
        let state = match placer.price(link).cost {
            Cost::Never => LinkState::Never,
            _ if link.reach.is_nothing() => LinkState::Down,
            _ if placer.is_suspect(now, LinkId(index)) => LinkState::Suspect,
            Cost::Standby => LinkState::Standby,
            Cost::Rank(_) | Cost::Thrift => LinkState::Up,
        };
        let rate = |given: Option<Bitrate>, found: Option<(Bitrate, _)>| {
            given.or(found.map(|(rate, _)| rate))
        };
        let bound = bound.get(index);
        LinkReport {
            name: link.settings.name.clone(),
            device: devices
                .get(index)
                .map(|device| device.name.clone())
                .unwrap_or_default(),
            state,
            rtt: link.estimator.rtt(),
            download: rate(link.settings.download, link.estimator.down.rate()),
            upload: rate(link.settings.upload, link.estimator.up.rate()),
            residual: rate(link.settings.download, link.estimator.down.rate()).map(|rate| {
                let used = moving.get(index).copied().unwrap_or(0);
                Bitrate::from_bps(rate.as_bps().saturating_sub(used))
            }),
            loss: link.estimator.loss(),
            tx_bytes: bound.map_or(link.tx_bytes, |bound| bound.tx_bytes),
            rx_bytes: bound.map_or(link.rx_bytes, |bound| bound.rx_bytes),
            connections: counts.get(index).copied().unwrap_or(0),
            bound: bound.map(|bound| bound.sockets),
            weight: link.settings.weight,
            budget: link
                .settings
                .budget
                .map(|budget| link.account.report(&budget, today)),
        }
    };
    let links = placer.links().iter().enumerate();
    let connections = live.values().take(MAX_SHOWN).map(|live| ConnectionReport {
        client: live.purpose.client.to_string(),
        app: live.purpose.app.clone(),
        target: live.purpose.target.to_string(),
        protocol: live.purpose.protocol.name(),
        link: live
            .link
            .get()
            .map(|link| placer.links()[link.0].settings.name.clone()),
        why: match (live.carried.borrow().as_ref(), live.why.get()) {
            (Some((association, Some(_))), _) => association.striping.name().to_owned(),
            (Some((_, None)), _) => Striping::WeightedRoundRobin.name().to_owned(),
            (None, Some(why)) => why.to_string(),
            (None, None) => "local".to_owned(),
        },
        rate: live.rate.get(),
        tx_bytes: live.up.get(),
        rx_bytes: live.down.get(),
        striped: live
            .carried
            .borrow()
            .as_ref()
            .map(|(association, conn)| striped(association, *conn)),
    });
    Report {
        policy: placer.policy().name(),
        links: links.map(|(index, found)| link(index, found)).collect(),
        connections: connections.collect(),
        connection_count: live.len(),
        applications: applications(&placer),
        drops: hub.drops.all(),
    }
}

fn applications(placer: &Placer) -> BTreeMap<String, ApplicationReport> {
    let mut found: BTreeMap<String, ApplicationReport> = BTreeMap::new();
    for (name, past) in placer.classes.all() {
        let report = found.entry(name.to_owned()).or_default();
        report.class = past.class().map(Class::name);
        report.connections = past.connections;
        report.last_bytes = past.last_bytes.iter().copied().collect();
    }
    for (name, demand) in placer.demands.known() {
        let report = found.entry(name.to_owned()).or_default();
        (report.demand_up, report.demand_down) = (demand.up, demand.down);
    }
    for rule in placer.rules() {
        let Some(app) = &rule.app else { continue };
        let link = placer.assigned_to(app);
        if let Some(link) = link.and_then(|link| placer.links().get(link.0)) {
            let report = found.entry(app.clone()).or_default();
            report.link = Some(link.settings.name.clone());
        }
    }
    while found.len() > MAX_SHOWN {
        found.pop_last();
    }
    found
}

fn striped(association: &Association, conn: Option<ConnId>) -> StripedReport {
    let lane = |lane: LaneState| LaneReport {
        link: lane.name,
        is_suspect: lane.is_suspect,
        rate: lane.rate,
        rtt: lane.rtt,
        tx_bytes: lane.tx_bytes,
        rx_bytes: lane.rx_bytes,
        tx_datagrams: lane.tx_datagrams,
        rx_datagrams: lane.rx_datagrams,
    };
    let lanes = association.lane_states().into_iter().map(lane).collect();
    let mux = association.mux.borrow();
    let found = conn.and_then(|conn| mux.connection(conn));
    let held = found.map(|found| found.receiver.held_most_and_duplicate());
    let (held_bytes, most_held_bytes, _) = held.unwrap_or_default();
    let (_, repeated_bytes) = mux.waiting_and_repeated();
    StripedReport {
        peer: association.peer.clone(),
        striping: match conn {
            Some(_) => association.striping,
            None => Striping::WeightedRoundRobin,
        }
        .name(),
        lanes,
        held_bytes,
        most_held_bytes,
        waiting_bytes: found.map_or(0, |found| found.out.pending_bytes() as u64),
        repeated_bytes,
    }
}

pub(super) fn learnt(hub: &Hub) -> Learnt {
    let placer = hub.placer.borrow();
    let rate = |found: Option<(Bitrate, _)>| found.map_or(Bitrate::ZERO, |(rate, _)| rate);
    let links = placer.links().iter().map(|link| {
        let estimator = &link.estimator;
        (
            link.settings.name.clone(),
            rate(estimator.up.rate()),
            rate(estimator.down.rate()),
        )
    });
    let demands = placer.demands.known();
    let usage = placer.links().iter().flat_map(|link| {
        let months = link.account.months();
        months.map(|(first, bytes)| (link.settings.name.clone(), first, bytes))
    });
    Learnt {
        demands: demands
            .map(|(key, demand)| (key.to_owned(), demand))
            .collect(),
        links: links.collect(),
        usage: usage.collect(),
    }
}

/// Maximum number of connections and applications in a report.
pub const MAX_SHOWN: usize = 500;
