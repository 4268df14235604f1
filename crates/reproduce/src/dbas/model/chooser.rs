//! Chooses the link of each connection, or of each chunk of a connection, with the proxy's own schedulers.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr};

use pleach_core::{time::Instant, units::Bytes};
use pleach_proxy::{
    estimate::application::Demand,
    placer::{Ask, ConnectionId, LinkSettings as PlacerLink, Placer, PlacerConfig, Reach},
    sched::{LinkId, LinkView, Policy, Scheduler},
    sticky::Stickiness,
    target::{Host, Target},
};
use serde::Deserialize;

use super::{
    arrivals::App,
    settings::{Case, Workload, whole},
};

/// The paper's schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// A single link with the capacity of all links.
    Optimal,
    /// The first link only.
    OnlyFirst,
    /// The last link only.
    OnlyLast,
    /// [`Policy::RoundRobin`] chooses a link for each connection.
    RoundRobin,
    /// [`Policy::WeightedRoundRobin`] chooses a link for each connection.
    WeightedRoundRobin,
    /// [`Policy::MaxThroughput`] chooses a link for each connection.
    MaxThroughput,
    /// [`Policy::RoundRobin`] chooses a link for each chunk.
    ChunksRoundRobin,
    /// [`Policy::WeightedRoundRobin`] chooses a link for each chunk.
    ChunksWeightedRoundRobin,
}

impl Choice {
    /// Returns the name used in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::OnlyFirst => "only-first",
            Self::OnlyLast => "only-last",
            Self::RoundRobin => "round-robin",
            Self::WeightedRoundRobin => "weighted-round-robin",
            Self::MaxThroughput => "max-throughput",
            Self::ChunksRoundRobin => "chunks-round-robin",
            Self::ChunksWeightedRoundRobin => "chunks-weighted-round-robin",
        }
    }
}

/// State of a [`Choice`].
#[derive(Debug)]
pub(super) enum Chooser {
    /// All data take the first link.
    One,
    /// A link is chosen for each connection.
    Connections(Box<Connections>),
    /// A link is chosen for each chunk.
    Chunks(Chunks),
}

impl Chooser {
    pub(super) fn new(workload: &Workload, case: &Case) -> Self {
        let connections = |policy, order: &[usize]| {
            Self::Connections(Box::new(Connections::new(workload, case, policy, order)))
        };
        let all: Vec<usize> = (0..case.link.len()).collect();
        let last = [case.link.len() - 1];
        let chunks = |policy| Self::Chunks(Chunks::new(case, policy));
        match workload.choice {
            Choice::Optimal => Self::One,
            Choice::OnlyFirst => connections(Policy::OnlyOne, &all),
            Choice::OnlyLast => connections(Policy::OnlyOne, &last),
            Choice::RoundRobin => connections(Policy::RoundRobin, &all),
            Choice::WeightedRoundRobin => connections(Policy::WeightedRoundRobin, &all),
            Choice::MaxThroughput => connections(Policy::MaxThroughput, &all),
            Choice::ChunksRoundRobin => chunks(Policy::RoundRobin),
            Choice::ChunksWeightedRoundRobin => chunks(Policy::WeightedRoundRobin),
        }
    }

    /// Places connection `number` of `app` with `bytes` bytes. Returns the index of each link that it uses, with the
    /// number of bytes on this link.
    pub(super) fn place(
        &mut self,
        at: Instant,
        number: usize,
        app: App,
        bytes: f64,
    ) -> Vec<(usize, f64)> {
        match self {
            Self::One => vec![(0, bytes)],
            Self::Connections(connections) => {
                let link = connections.begin(at, number, app);
                vec![(link, bytes)]
            }
            Self::Chunks(chunks) => chunks.split(bytes),
        }
    }

    /// Returns the placer of whole connections, to which the caller reports their progress. `None` for other choices.
    pub(super) fn placer(&mut self) -> Option<&mut Connections> {
        match self {
            Self::Connections(connections) => Some(connections),
            Self::One | Self::Chunks(_) => None,
        }
    }
}

/// The proxy's placer.
#[derive(Debug)]
pub(super) struct Connections {
    placer: Placer,
    /// Index of each link in the model, by the placer's link id.
    links: Vec<usize>,
    /// The placer's id of each connection, by the connection's number.
    ids: Vec<Option<ConnectionId>>,
    small: Target,
    large: Target,
    long: Target,
}

impl Connections {
    fn new(workload: &Workload, case: &Case, policy: Policy, links: &[usize]) -> Self {
        let config = PlacerConfig {
            policy,
            stickiness: Stickiness::Off,
            sticky_time: Duration::ZERO,
            rules: Vec::new(),
        };
        let mut placer = Placer::new(config, Instant::ZERO);
        for &index in links {
            let told = case.link[index].carries();
            let id = placer.add_link(PlacerLink {
                name: format!("if{}", index + 1),
                download: (!workload.learns).then_some(told),
                ..PlacerLink::default()
            });
            placer.set_reach(
                id,
                Reach {
                    v4: true,
                    ..Reach::default()
                },
            );
        }
        if workload.warm {
            for (id, &index) in (0..).map(LinkId).zip(links) {
                if let Some(link) = placer.link_mut(id) {
                    let rate = case.link[index].carries();
                    link.estimator.down.restore(Instant::ZERO, rate);
                }
            }
        }
        if workload.warm || !workload.learns {
            let known = workload.demands(case);
            let of = |(app, bytes): (App, u64)| {
                let demand = Demand { up: 0, down: bytes };
                (name(app).to_owned(), demand)
            };
            placer.demands.restore(Instant::ZERO, known.map(of));
        }
        let target = |app: App| Target {
            host: Host::Ip(SERVER),
            port: app.port(),
        };
        Self {
            placer,
            links: links.to_vec(),
            ids: Vec::new(),
            small: target(App::Small),
            large: target(App::Large),
            long: target(App::Long),
        }
    }

    fn begin(&mut self, at: Instant, number: usize, app: App) -> usize {
        let target = match app {
            App::Small => &self.small,
            App::Large => &self.large,
            App::Long => &self.long,
        };
        let ask = Ask {
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
            dscp: None,
            app: Some(name(app)),
            target,
            addresses: &[SERVER],
            warm: &[],
        };
        // Every link reaches the server, so the placer always finds a link.
        let placement = self.placer.begin(at, ask).ok();
        if self.ids.len() <= number {
            self.ids.resize(number + 1, None);
        }
        let chosen = placement.and_then(|placement| {
            self.ids[number] = Some(placement.id);
            placement.links.first().copied()
        });
        self.links[chosen.unwrap_or_default().0]
    }

    pub(super) fn observe(&mut self, at: Instant, number: usize, moved_bytes: f64) {
        if let Some(id) = self.id(number) {
            self.placer.observe(at, id, moved(moved_bytes), false);
        }
    }

    pub(super) fn window(&mut self, at: Instant) {
        self.placer.handle_window(at);
    }

    pub(super) fn end(&mut self, at: Instant, number: usize, bytes: f64) {
        if let Some(id) = self.id(number) {
            self.placer.observe(at, id, moved(bytes), false);
            self.placer.end(at, id, Some(1));
        }
    }

    fn id(&self, number: usize) -> Option<ConnectionId> {
        self.ids.get(number).copied().flatten()
    }
}

/// The scheduler of chunks. All connections share it: "a pool of packets (chunks)" (IV-C).
#[derive(Debug)]
pub(super) struct Chunks {
    scheduler: Scheduler,
    views: Vec<LinkView>,
}

impl Chunks {
    fn new(case: &Case, policy: Policy) -> Self {
        let views = case.link.iter().enumerate().map(|(index, link)| LinkView {
            id: LinkId(index),
            rate: link.carries(),
            load: Bytes::ZERO,
            sharing: Bytes::ZERO,
            start: Duration::ZERO,
            single: None,
            weight: None,
        });
        Self {
            scheduler: Scheduler::new(policy),
            views: views.collect(),
        }
    }

    fn split(&mut self, bytes: f64) -> Vec<(usize, f64)> {
        let mut parts = vec![0.0; self.views.len()];
        let mut left = bytes;
        while left > 0.0 {
            let chunk = left.min(CHUNK_BYTES);
            let bytes = Bytes::new(whole(chunk));
            let ranked = self.scheduler.rank(&self.views, bytes, bytes);
            if let Some(link) = ranked.first() {
                parts[link.0] += chunk;
            }
            left -= chunk;
        }
        let parts = parts.into_iter().enumerate();
        parts.filter(|(_, bytes)| *bytes > 0.0).collect()
    }
}

const fn name(app: App) -> &'static str {
    match app {
        App::Small => "browser",
        App::Large => "fetch",
        App::Long => "backup",
    }
}

fn moved(bytes: f64) -> Demand {
    Demand {
        up: 0,
        down: whole(bytes),
    }
}

/// Size of a chunk in bytes: the payload of a packet, as in the paper.
const CHUNK_BYTES: f64 = 1_460.0;
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
