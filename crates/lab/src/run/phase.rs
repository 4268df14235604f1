//! One phase of a run: its world, its traffic and its events.

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;
use pleach_core::time::Instant;
use pleach_linux::clock;
use pleach_sim::{
    addresses::{
        GATEWAY_V4, GATEWAY_V6, INNER_V4, INNER_V6, SERVER_V4, SERVER_V6, link_address, of_family,
    },
    measure::{IDLE_PING, PhaseReport, SAMPLE, SETTLE},
    phases::Setup,
    results::{StatusSample, Transport},
    scenario::{Family, Scenario, Traffic, TrafficKind},
};

use crate::{
    media::film::Film,
    run::{daemon::Daemons, equalizers::Equalizers},
    topology::{Reach, Topology},
    traffic::{self, Ends, Flow},
    wait,
};

/// Longest time for which a tunnel may take to come up.
const TUNNEL_PATIENCE: Duration = Duration::from_secs(15);
/// Time between the last preparation and the start of the run.
const LEAD: Duration = Duration::from_millis(300);
/// Time that external programs get to become ready.
const FFMPEG_LEAD: Duration = Duration::from_secs(2);
/// Interval of status requests to the daemons.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
const PROBE_PORT: u16 = 4_999;

pub(super) struct Phase<'a> {
    pub(super) scenario: &'a Scenario,
    /// For each traffic, its film if it is a video.
    pub(super) films: &'a [Option<Arc<Film>>],
    pub(super) setup: &'a Setup,
    pub(super) binary: &'a std::path::Path,
    pub(super) trace: bool,
    pub(super) dir: PathBuf,
    pub(super) seed: u64,
    pub(super) progress: &'a ProgressBar,
    /// Duration of earlier phases.
    pub(super) elapsed: Duration,
}

impl Phase<'_> {
    pub(super) fn run(&self) -> anyhow::Result<PhaseReport> {
        let reach = if self.setup.with_tunnel {
            Reach::Tunnel
        } else {
            Reach::Links
        };
        let world = Topology::build(self.scenario, reach, self.seed)?;
        if self.setup.transport == Transport::Mptcp {
            world.enable_mptcp(self.scenario)?;
        }
        let mut lead = LEAD;
        let mut daemons = match self.scenario.tunnel.as_ref() {
            Some(tunnel) if self.setup.with_tunnel => {
                fs::create_dir_all(&self.dir)?;
                let links = self.setup.links.iter();
                let links = links.filter_map(|&index| self.scenario.links.get(index));
                let ends = (tunnel, links.collect());
                let mut daemons = Daemons::start(&world, self.binary, &self.dir, ends, self.trace)?;
                self.wait_for_tunnel(&world, &mut daemons)?;
                lead += SETTLE;
                Some(daemons)
            }
            Some(_) | None => None,
        };
        let equalizers = if self.setup.equalizes(self.scenario) {
            let started = Equalizers::start(&world, self.binary, &self.dir, self.scenario)?;
            lead += SETTLE;
            Some(started)
        } else {
            None
        };

        let flows = self.scenario.traffic.iter();
        let pings = |traffic: &Traffic| matches!(traffic.kind, TrafficKind::Ping { .. });
        let has_ping = flows.clone().any(pings) && !self.setup.tcp_only;
        if has_ping {
            lead = lead.max(LEAD + IDLE_PING);
        }
        if self.films.iter().any(Option::is_some) {
            lead = lead.max(LEAD + FFMPEG_LEAD);
        }
        let begin = clock::now() + lead;
        world.emulator.begin(begin, &self.scenario.events);
        let mut running: Vec<Option<Flow>> = Vec::new();
        for (index, traffic) in flows.enumerate() {
            running.push(if self.setup.runs(traffic) {
                let ends = self.ends(&world, traffic, index);
                Some(traffic::start(traffic, index, &ends, begin)?)
            } else {
                None
            });
        }
        let (status, weights) = self.play(&world, daemons.as_mut(), equalizers.as_ref(), begin)?;
        let (down, up) = world.emulator.report()?;
        let mut flows = Vec::new();
        for flow in running {
            flows.push(flow.map(Flow::finish).transpose()?);
        }
        if let Some(daemons) = daemons {
            daemons.stop()?;
        }
        equalizers.map_or(Ok(()), Equalizers::stop)?;
        Ok(PhaseReport {
            flows,
            down,
            up,
            status,
            weights,
        })
    }

    fn ends(&self, world: &Topology, traffic: &Traffic, index: usize) -> Ends {
        let family = traffic.family;
        let mptcp = self.setup.transport == Transport::Mptcp && traffic.link.is_none();
        let (server, server_address) = if mptcp {
            (&world.gateway, of_family(family, GATEWAY_V4, GATEWAY_V6))
        } else {
            world.server_of(traffic)
        };
        let only_link = match (traffic.link, &self.setup.transport, self.setup.with_tunnel) {
            (Some(link), _, _) => Some(link),
            (None, Transport::Single(_), false) => self.setup.links.first().copied(),
            (None, _, _) => None,
        };
        let is_spread = only_link.is_none() && self.setup.equalizes(self.scenario);
        let spread = is_spread.then(|| of_family(family, INNER_V4, INNER_V6));
        Ends {
            client: world.client.clone(),
            server: server.clone(),
            server_address,
            bind: only_link
                .map(|index| link_address(index, family))
                .or(spread),
            mptcp,
            film: self.films.get(index).cloned().flatten(),
            dir: self.dir.clone(),
        }
    }

    fn wait_for_tunnel(&self, world: &Topology, daemons: &mut Daemons) -> anyhow::Result<()> {
        let deadline = clock::now() + TUNNEL_PATIENCE;
        let mut wanted: Vec<(IpAddr, IpAddr)> = Vec::new();
        for (family, server, inner) in [
            (Family::V4, IpAddr::from(SERVER_V4), IpAddr::from(INNER_V4)),
            (Family::V6, SERVER_V6.into(), INNER_V6.into()),
        ] {
            if self.scenario.traffic.iter().any(|t| t.family == family) {
                wanted.push((server, inner));
            }
        }
        for (server, inner) in wanted {
            let server = SocketAddr::new(server, PROBE_PORT);
            // The thread ends by itself; it only answers.
            let _ = traffic::echo(&world.server, server, deadline)?;
            let mut failed = None;
            let is_up = wait::for_condition(deadline, || {
                failed = daemons.check().err();
                failed.is_some() || traffic::answers(&world.client, server, inner)
            });
            if let Some(error) = failed {
                return Err(error);
            }
            if !is_up {
                let seconds = TUNNEL_PATIENCE.as_secs();
                let dir = self.dir.display();
                bail!(
                    "the tunnel did not answer within {seconds} s; the daemons' logs are in {dir}"
                );
            }
        }
        Ok(())
    }

    /// Runs until the end of the run. Handles events of the daemons, status, weights and progress.
    fn play(
        &self,
        world: &Topology,
        mut daemons: Option<&mut Daemons>,
        equalizers: Option<&Equalizers<'_>>,
        begin: Instant,
    ) -> anyhow::Result<(Vec<StatusSample>, Vec<Vec<f64>>)> {
        let mut status = Vec::new();
        let mut weights = if daemons.is_some() || equalizers.is_some() {
            vec![Vec::new(); self.scenario.links.len()]
        } else {
            Vec::new()
        };
        let mut weight_events = self
            .scenario
            .weight_events()
            .filter(|_| equalizers.is_some())
            .map(|(at, end, weights)| (begin + at, end, weights))
            .peekable();
        let has_daemons = daemons.is_some();
        let mut events = self
            .scenario
            .daemon_events()
            .filter(|_| has_daemons)
            .map(|(at, end, action)| (begin + at, end, action))
            .peekable();
        let end = begin + self.scenario.duration;
        let mut status_at = begin;
        loop {
            let now = clock::now();
            if now >= end {
                return Ok((status, weights));
            }
            let elapsed = self.elapsed + now.since(begin);
            self.progress.set_position(elapsed.as_secs());
            if let Some(daemons) = daemons.as_deref_mut() {
                while let Some((_, end, action)) = events.next_if(|event| event.0 <= now) {
                    daemons
                        .act(world, end, action)
                        .context("a daemon's event")?;
                }
                if now >= status_at {
                    status_at = now + STATUS_INTERVAL;
                    daemons.sample_status(begin, &mut status);
                }
                self.sample_weights(now, begin, &mut weights, || daemons.weights())?;
            }
            if let Some(equalizers) = equalizers {
                while let Some((_, end, new)) = weight_events.next_if(|event| event.0 <= now) {
                    equalizers.set_weights(end, new)?;
                }
                let is_due = now >= status_at;
                if is_due {
                    status_at = now + STATUS_INTERVAL;
                    equalizers.sample_status(begin, &mut status);
                }
                if is_due || equalizers.follow() {
                    self.sample_weights(now, begin, &mut weights, || equalizers.shares())?;
                }
            }
            let tick = clock::now() + Duration::from_millis(25);
            let event = events.peek().map_or(end, |event| event.0);
            let event = weight_events
                .peek()
                .map_or(event, |other| event.min(other.0));
            wait::until(tick.min(event).min(end));
        }
    }
    /// Adds the current weights of the links, from `known`, unless there is already a sample for this time.
    fn sample_weights(
        &self,
        now: Instant,
        begin: Instant,
        weights: &mut [Vec<f64>],
        known: impl FnOnce() -> BTreeMap<String, f64>,
    ) -> anyhow::Result<()> {
        let sample = usize::try_from(now.since(begin).as_nanos() / SAMPLE.as_nanos())?;
        if weights.iter().all(|series| series.len() > sample) {
            return Ok(());
        }
        let known = known();
        for (series, link) in weights.iter_mut().zip(&self.scenario.links) {
            series.resize(sample, f64::NAN);
            series.push(known.get(&link.name).copied().unwrap_or(f64::NAN));
        }
        Ok(())
    }
}
