//! The state of a proxy, as plain data.

use std::{collections::BTreeMap, time::Duration};

use pleach_core::units::{Bitrate, Bytes};
use pleach_linux::clock;

use super::hub::Hub;
pub use super::learnt::Learnt;
use crate::{
    budget::Standing,
    estimate::class::Class,
    placer::{Cost, Placer},
    relay::stripe::association::{Association, LaneState},
    sched::LinkId,
    stripe::frame::ConnId,
};

/// The state now.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the scheduler.
    pub policy: &'static str,
    /// All links, by id.
    pub links: Vec<LinkReport>,
    /// The connections, oldest first, at most [`MAX_SHOWN`].
    pub connections: Vec<ConnectionReport>,
    /// How many there are.
    pub connection_count: usize,
    /// What is known of applications, and of ports where no name is known (`:PORT`), by name, at most [`MAX_SHOWN`].
    pub applications: BTreeMap<String, ApplicationReport>,
    /// What was not served, by reason.
    pub drops: BTreeMap<&'static str, u64>,
}

/// A link.
#[derive(Clone, Debug)]
pub struct LinkReport {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// Whether it is used.
    pub state: LinkState,
    /// Round trip to the servers in use.
    pub rtt: Option<Duration>,
    /// What it carries from servers; `None` if nothing is known.
    pub download: Option<Bitrate>,
    /// What it carries to servers.
    pub upload: Option<Bitrate>,
    /// What is left of [`download`](Self::download) beside what connections move now.
    pub residual: Option<Bitrate>,
    /// Part of the segments that TCP sent again.
    pub loss: f64,
    /// Payload to servers; with the hook, all that its device sent since the start.
    pub tx_bytes: u64,
    /// Payload from servers; with the hook, all that its device received.
    pub rx_bytes: u64,
    /// Connections on it.
    pub connections: usize,
    /// Sockets of programs that the kernel's hook bound to it since the start; `None` without the hook.
    pub bound: Option<u64>,
    /// The user's weight.
    pub weight: Option<u16>,
    /// Its budget, if it has one.
    pub budget: Option<BudgetReport>,
}

/// What is known of an application.
#[derive(Clone, Debug, Default)]
pub struct ApplicationReport {
    /// `real-time` or `bulk`; `None` if its connections showed neither.
    pub class: Option<&'static str>,
    /// Bytes to servers in a connection, smoothed.
    pub demand_up: u64,
    /// Bytes from servers in a connection, smoothed.
    pub demand_down: u64,
    /// Connections that have ended.
    pub connections: u64,
    /// Bytes of the last ones, oldest first.
    pub last_bytes: Vec<u64>,
    /// Name of the link that was assigned to it while the proxy runs.
    pub link: Option<String>,
}

/// A link's budget in the present month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetReport {
    /// What it may carry.
    pub bytes: Bytes,
    /// What it has carried.
    pub used: Bytes,
    /// How it stands.
    pub standing: Standing,
}

/// Whether a link is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It leads nowhere now.
    Down,
    /// The user forbids it.
    Never,
    /// It is held back.
    Standby,
    /// Connecting over it failed lately.
    Suspect,
    /// It is.
    Up,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct ConnectionReport {
    /// Who asked.
    pub client: String,
    /// The program, if known.
    pub app: Option<String>,
    /// Where to.
    pub target: String,
    /// How it was asked for.
    pub protocol: &'static str,
    /// Name of its link; `None`: none was needed.
    pub link: Option<String>,
    /// Why it is there.
    pub why: String,
    /// Now, in both directions.
    pub rate: Bitrate,
    /// Bytes to the server.
    pub tx_bytes: u64,
    /// Bytes from the server.
    pub rx_bytes: u64,
    /// If it goes over several links.
    pub striped: Option<StripedReport>,
}

/// What there is to say of a striped connection.
#[derive(Clone, Debug)]
pub struct StripedReport {
    /// Name of the other end.
    pub peer: String,
    /// Scheduler of what this end sends.
    pub striping: &'static str,
    /// The lanes to that end, which its connections share.
    pub lanes: Vec<LaneReport>,
    /// Bytes received that wait for earlier ones, now and at most so far.
    pub held_bytes: u64,
    /// At most so far.
    pub most_held_bytes: u64,
    /// Bytes taken and not sent yet.
    pub waiting_bytes: u64,
    /// Bytes that all connections over these lanes have sent more than once.
    pub repeated_bytes: u64,
}

/// A lane of a striped connection.
#[derive(Clone, Debug)]
pub struct LaneReport {
    /// Name of its link.
    pub link: String,
    /// Whether what it has is overdue.
    pub is_suspect: bool,
    /// What it carries, from this end.
    pub rate: Bitrate,
    /// Its round trip.
    pub rtt: Duration,
    /// Bytes sent on it.
    pub tx_bytes: u64,
    /// Bytes received on it.
    pub rx_bytes: u64,
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
            budget: link.settings.budget.map(|budget| BudgetReport {
                bytes: budget.bytes,
                used: link.account.used(&budget, today),
                standing: link.standing(),
            }),
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
            (Some((association, _)), _) => association.striping.name().to_owned(),
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

fn striped(association: &Association, conn: ConnId) -> StripedReport {
    let lane = |lane: LaneState| LaneReport {
        link: lane.name,
        is_suspect: lane.is_suspect,
        rate: lane.rate,
        rtt: lane.rtt,
        tx_bytes: lane.tx_bytes,
        rx_bytes: lane.rx_bytes,
    };
    let lanes = association.lane_states().into_iter().map(lane).collect();
    let mux = association.mux.borrow();
    let found = mux.connection(conn);
    let held = found.map(|found| found.receiver.held_most_and_duplicate());
    let (held_bytes, most_held_bytes, _) = held.unwrap_or_default();
    let (_, repeated_bytes) = mux.waiting_and_repeated();
    StripedReport {
        peer: association.peer.clone(),
        striping: association.striping.name(),
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

/// More connections than anybody reads.
pub const MAX_SHOWN: usize = 500;
