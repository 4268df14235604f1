//! One phase of a run: its world, its traffic and its events.

use core::time::Duration;

use pleach_core::{class::Class, endpoint::Endpoint, sched::SchedulerSettings, time::Instant};

use super::{
    PhaseOutcome, Program, RunError,
    graph::{Graph, Rules, client_address},
};
use crate::{
    measure::{FlowReport, IDLE_PING, PhaseReport, SAMPLE, SETTLE},
    phases::Setup,
    results::StatusSample,
    scenario::{DaemonAction, End, Family, Scenario, Traffic, TrafficKind, TunnelSpec},
    tcp::CongestionControl,
    traffic::{self, Ends, GRACE},
    world::{Host, Line, NodeId, UPLINK_MTU, World, WorldError},
};

/// Time at which daemons start.
const START: Instant = Instant::from_millis(1_000);
/// Longest time until a tunnel must be up.
const TUNNEL_PATIENCE: Duration = Duration::from_secs(15);
/// Interval of checks whether the tunnel is up.
const TUNNEL_TICK: Duration = Duration::from_millis(10);
/// Time between the last preparation and the start of the run, as in the lab.
const LEAD: Duration = Duration::from_millis(300);
/// Limit of events per second: ten packets a microsecond, more than the links of any scenario can cause.
const EVENTS_PER_SECOND: u64 = 10_000_000;

/// A phase before it runs.
pub(super) struct Phase<'a> {
    scenario: &'a Scenario,
    setup: &'a Setup,
    program: &'a dyn Program,
    /// Scheduler settings of the tunnel, if one runs.
    settings: Option<SchedulerSettings<String>>,
    classes: Vec<Class>,
    seed: u64,
}

impl<'a> Phase<'a> {
    /// Checks the traffic and the settings of `setup`, and creates the phase.
    ///
    /// # Errors
    /// Fails if the scenario requires a feature that the simulator or the program does not have.
    pub(super) fn new(
        scenario: &'a Scenario,
        setup: &'a Setup,
        program: &'a dyn Program,
    ) -> Result<Self, RunError> {
        let tunnel = scenario.tunnel.as_ref().filter(|_| setup.with_tunnel);
        let settings = tunnel
            .map(|tunnel| program.scheduler(&scheduler(tunnel)))
            .transpose()
            .map_err(RunError::Policy)?;
        let classes = tunnel.map(|tunnel| program.classes(&tunnel.classes));
        let classes = classes.transpose().map_err(RunError::Policy)?;
        Ok(Self {
            scenario,
            setup,
            program,
            settings,
            classes: classes.unwrap_or_default(),
            seed: scenario.seed.wrapping_add(u64::from(setup.repeat)),
        })
    }

    /// Checks the traffic of the phase, as far as this does not depend on the MTU of the tunnel.
    ///
    /// # Errors
    /// Fails if the simulator does not model the traffic.
    pub(super) fn check(&self) -> Result<(), RunError> {
        let traffic = self.scenario.traffic.iter();
        for traffic in traffic.filter(|traffic| self.setup.runs(traffic)) {
            check_traffic(traffic, UPLINK_MTU)?;
            if let TrafficKind::Tcp { cc: Some(cc), .. } = &traffic.kind {
                let known = cc.parse::<CongestionControl>();
                known.map_err(|error| RunError::CongestionControl {
                    traffic: traffic.name.clone(),
                    error,
                })?;
            }
        }
        Ok(())
    }

    /// Runs the phase and returns its measurements.
    ///
    /// # Errors
    /// Fails if the tunnel does not come up, or if a guard stops the simulation.
    pub(super) fn run(&self) -> Result<PhaseOutcome, RunError> {
        let scenario = self.scenario;
        let seconds = scenario.duration.as_secs() + 60;
        let mut world = World::new(START, seconds.saturating_mul(EVENTS_PER_SECOND));
        let (scenario, setup) = (self.scenario, self.setup);
        let is_first = setup.is_main && setup.repeat == 0;
        let rules = self.settings.as_ref().map(|scheduler| Rules {
            scheduler,
            classes: &self.classes,
            observers: self.program.observers().filter(|_| is_first),
        });
        let graph = Graph::build(&mut world, scenario, setup, rules, self.seed);
        let mut lead = LEAD;
        if self.settings.is_some() {
            self.wait_for_tunnel(&mut world, &graph)?;
            lead += SETTLE;
        }
        let pings = |traffic: &Traffic| matches!(traffic.kind, TrafficKind::Ping { .. });
        let has_ping = scenario.traffic.iter().any(pings) && !setup.tcp_only;
        if has_ping {
            lead = lead.max(LEAD + IDLE_PING);
        }
        let begin = world.now() + lead;
        for line in [graph.down, graph.up] {
            if let Some(line) = world.line_mut(line) {
                line.begin(begin, &scenario.events);
            }
        }
        let mut flows = self.start_traffic(&mut world, &graph, begin)?;
        let (status, weights) = self.play(&mut world, &graph, begin)?;
        let report = |line| world.line(line).map(Line::report);
        let (down, up) = (report(graph.down), report(graph.up));
        self.run_until(&mut world, begin + scenario.duration + GRACE)?;
        let far = graph.far.iter().map(|(_, host)| *host);
        for host in [graph.client, graph.server].into_iter().chain(far) {
            let apps = world.host_mut(host).map(Host::take_apps);
            for app in apps.unwrap_or_default() {
                let (flow, report) = app.finish();
                flows[flow].get_or_insert_default().add(report);
            }
        }
        Ok(PhaseOutcome {
            report: PhaseReport {
                flows,
                down: down.unwrap_or_default(),
                up: up.unwrap_or_default(),
                status,
                weights,
            },
            trace_hash: world.trace_hash(),
            packet_events: world.packet_events(),
        })
    }

    /// Starts the applications on their hosts. Returns an empty report for each flow that runs.
    fn start_traffic(
        &self,
        world: &mut World,
        graph: &Graph,
        begin: Instant,
    ) -> Result<Vec<Option<FlowReport>>, RunError> {
        let mut flows = Vec::new();
        for (index, traffic) in self.scenario.traffic.iter().enumerate() {
            if !self.setup.runs(traffic) {
                flows.push(None);
                continue;
            }
            let (server, server_address) = graph.server_of(traffic);
            let ends = Ends {
                client: client_address(self.scenario, self.setup, traffic),
                server: server_address,
                mtu: match traffic.link {
                    Some(_) => UPLINK_MTU,
                    None => mtu(world, graph),
                },
                recovery: self.scenario.recovery,
                max_reordering: self.scenario.max_reordering,
            };
            check_traffic(traffic, ends.mtu)?;
            let flow = traffic::start(traffic, index, &ends, self.seed, begin);
            let flow = flow.map_err(|error| RunError::CongestionControl {
                traffic: traffic.name.clone(),
                error,
            })?;
            for (host, apps) in [(graph.client, flow.client), (server, flow.server)] {
                if let Some(host) = world.host_mut(host) {
                    apps.into_iter().for_each(|app| host.add_app(app));
                }
            }
            flows.push(Some(FlowReport::default()));
        }
        Ok(flows)
    }

    fn wait_for_tunnel(&self, world: &mut World, graph: &Graph) -> Result<(), RunError> {
        let deadline = world.now() + TUNNEL_PATIENCE;
        while world.now() < deadline {
            let next = world.now() + TUNNEL_TICK;
            self.run_until(world, next)?;
            let is_up = |host| endpoint(world, host).is_some_and(Endpoint::is_up);
            if is_up(graph.client) && is_up(graph.gateway) {
                return Ok(());
            }
        }
        Err(RunError::TunnelDown {
            seconds: TUNNEL_PATIENCE.as_secs(),
            phase: self.setup.label.clone(),
            seed: self.seed,
        })
    }

    /// Runs the simulation until the end of the traffic. Handles events of the daemons and samples their status and
    /// weights.
    fn play(
        &self,
        world: &mut World,
        graph: &Graph,
        begin: Instant,
    ) -> Result<(Vec<StatusSample>, Vec<Vec<f64>>), RunError> {
        let mut events = self
            .scenario
            .daemon_events()
            .map(|(at, end, action)| (begin + at, end, action))
            .peekable();
        let equalizes = self.setup.equalizes(self.scenario);
        let mut weight_events = self
            .scenario
            .weight_events()
            .filter(|_| equalizes)
            .map(|(at, end, weights)| (begin + at, end, weights))
            .peekable();
        let end = begin + self.scenario.duration;
        let mut status = Vec::new();
        let mut weights = if self.settings.is_some() || equalizes {
            vec![Vec::new(); self.scenario.links.len()]
        } else {
            Vec::new()
        };
        let mut sample_at = begin;
        loop {
            let event_at = events.peek().map_or(end, |event| event.0);
            let weights_at = weight_events.peek().map_or(end, |event| event.0);
            let at = sample_at.min(event_at).min(weights_at).min(end);
            self.run_until(world, at)?;
            if at == end {
                return Ok((status, weights));
            }
            while let Some((_, end, action)) = events.next_if(|event| event.0 <= at) {
                let daemon = world
                    .host_mut(graph.host(end))
                    .and_then(|host| host.daemon_mut());
                if let Some(daemon) = daemon {
                    daemon.kill(at, action == DaemonAction::Restart);
                }
            }
            while let Some((_, end, weights)) = weight_events.next_if(|event| event.0 <= at) {
                let host = world.host_mut(graph.host(end));
                if let Some(equalizer) = host.and_then(Host::equalizer_mut) {
                    equalizer.set_weights(at, weights);
                }
            }
            if at == sample_at {
                sample_at = at + SAMPLE;
                self.sample_status(world, graph, begin, &mut status);
                self.sample_weights(world, graph, &mut weights);
            }
        }
    }

    fn sample_status(
        &self,
        world: &World,
        graph: &Graph,
        begin: Instant,
        samples: &mut Vec<StatusSample>,
    ) {
        let Some(settings) = &self.settings else {
            return;
        };
        for (node, host, end) in [
            ("client", graph.client, End::Client),
            ("gateway", graph.gateway, End::Gateway),
        ] {
            let Some(endpoint) = endpoint(world, host) else {
                continue;
            };
            let status = self.program.status(end, settings, endpoint);
            if !status.is_null() {
                samples.push(StatusSample {
                    time_s: world.now().since(begin).as_secs_f64(),
                    node: node.to_owned(),
                    status,
                });
            }
        }
    }

    /// Records the weight of every link at the gateway, or its share in percent at the equalizer. If both ends have
    /// an equalizer, the client's counts. NaN for links that are unknown there.
    fn sample_weights(&self, world: &World, graph: &Graph, weights: &mut [Vec<f64>]) {
        let mut hosts = [graph.client, graph.gateway].into_iter();
        let equalizer = hosts.find_map(|host| world.host(host)?.equalizer());
        if let Some(equalizer) = equalizer {
            weights.iter_mut().for_each(|series| series.push(f64::NAN));
            for (link, share) in equalizer.shares() {
                if let Some(last) = weights.get_mut(link).and_then(|series| series.last_mut()) {
                    *last = share;
                }
            }
            return;
        }
        let status = endpoint(world, graph.gateway).and_then(|endpoint| endpoint.status().next());
        let paths = status.map_or_else(Vec::new, |(_, status)| status.paths);
        for (series, link) in weights.iter_mut().zip(&self.scenario.links) {
            let path = paths.iter().find(|path| path.name == link.name);
            series.push(path.map_or(f64::NAN, |path| f64::from(path.weight)));
        }
    }

    fn run_until(&self, world: &mut World, end: Instant) -> Result<(), RunError> {
        world
            .run_until(end)
            .map_err(|error: WorldError| RunError::World {
                phase: self.setup.label.clone(),
                seed: self.seed,
                error,
            })
    }
}

/// Returns the MTU of the tunnel if there is one, otherwise of the links.
fn mtu(world: &World, graph: &Graph) -> u16 {
    let daemon = world.host(graph.client).and_then(Host::daemon);
    daemon.map_or(UPLINK_MTU, |daemon| daemon.config().inner_mtu())
}

fn endpoint(world: &World, host: NodeId) -> Option<&Endpoint> {
    world.host(host)?.daemon()?.endpoint()
}

/// Checks whether the simulator can run `traffic` over paths with this MTU.
///
/// # Errors
/// Fails if a datagram of `traffic` does not fit into a packet, or if only the lab supports the traffic.
fn check_traffic(traffic: &Traffic, mtu: u16) -> Result<(), RunError> {
    if let TrafficKind::Video(_) = traffic.kind {
        return Err(RunError::LabOnly {
            traffic: traffic.name.clone(),
        });
    }
    let TrafficKind::Udp { size, .. } = &traffic.kind else {
        return Ok(());
    };
    let headers = match traffic.family {
        Family::V4 => 28,
        Family::V6 => 48,
    };
    let max_bytes = u64::from(mtu.saturating_sub(headers));
    if size.get() > max_bytes {
        return Err(RunError::TooLong {
            traffic: traffic.name.clone(),
            size_bytes: size.get(),
            max_bytes,
        });
    }
    Ok(())
}

/// Returns the `[scheduler]` section that a configuration file of the tunnel would have.
fn scheduler(tunnel: &TunnelSpec) -> toml::Table {
    let mut table = tunnel.policy_keys.clone();
    table.insert("policy".to_owned(), tunnel.policy.clone().into());
    table
}
