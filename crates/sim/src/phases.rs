//! The phases of a run: first the repetitions of the scenario itself, then the same traffic over each baseline.

use crate::{
    results::Transport,
    scenario::{Baseline, LinkSpec, Scenario, Traffic, TrafficKind},
};

/// Properties of a phase.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Name of the phase.
    pub label: String,
    /// Directory below the output directory.
    pub dir: String,
    /// Number of the repetition, from 0.
    pub repeat: u32,
    /// Whether the phase runs the scenario itself and not a baseline.
    pub is_main: bool,
    /// Transport that carries the traffic.
    pub transport: Transport,
    /// Indices of the links in use.
    pub links: Vec<usize>,
    /// Whether the tunnel runs over the links.
    pub with_tunnel: bool,
    /// Whether only the TCP flows of the scenario run.
    pub tcp_only: bool,
}

impl Setup {
    /// Whether the equalizers of `scenario` run in this phase.
    #[must_use]
    pub fn equalizes(&self, scenario: &Scenario) -> bool {
        self.is_main && !scenario.equalizers.is_empty()
    }

    /// Whether `traffic` runs in this phase.
    #[must_use]
    pub fn runs(&self, traffic: &Traffic) -> bool {
        match traffic.link {
            // Cross traffic runs with every transport.
            Some(link) => self.links.contains(&link),
            None => !self.tcp_only || matches!(traffic.kind, TrafficKind::Tcp { .. }),
        }
    }
}

/// Returns the phases of a run, in order.
#[must_use]
pub fn setups(scenario: &Scenario, skip_baselines: bool) -> Vec<Setup> {
    let mut setups = Vec::new();
    let main = match scenario.tunnel {
        Some(_) => Transport::Tunnel,
        None => Transport::Raw,
    };
    for repeat in 0..scenario.repeat {
        setups.push(Setup {
            label: format!("{main} {} of {}", repeat + 1, scenario.repeat),
            dir: format!("run-{}", repeat + 1),
            repeat,
            is_main: true,
            transport: main.clone(),
            links: (0..scenario.links.len()).collect(),
            with_tunnel: scenario.tunnel.is_some(),
            tcp_only: false,
        });
    }
    let baselines = scenario.baselines.iter().filter(|_| !skip_baselines);
    for baseline in baselines {
        let setup = |label: String, dir: String, transport, links| Setup {
            label,
            dir,
            repeat: 0,
            is_main: false,
            transport,
            links,
            with_tunnel: *baseline == Baseline::Single,
            tcp_only: *baseline != Baseline::Single,
        };
        let alone = |kind: &str, words: &str| {
            let one = |(index, link): (usize, &LinkSpec)| {
                let name = &link.name;
                let transport = Transport::Single(name.clone());
                let dir = format!("{kind}-{name}");
                setup(
                    format!("{words} over {name} alone"),
                    dir,
                    transport,
                    vec![index],
                )
            };
            scenario
                .links
                .iter()
                .enumerate()
                .map(one)
                .collect::<Vec<_>>()
        };
        match baseline {
            Baseline::Mptcp => {
                let all = (0..scenario.links.len()).collect();
                let (label, dir) = ("kernel MPTCP".to_owned(), "mptcp".to_owned());
                setups.push(setup(label, dir, Transport::Mptcp, all));
            }
            Baseline::Raw => setups.extend(alone("raw", "plain TCP")),
            Baseline::Single => setups.extend(alone("single", "the tunnel")),
        }
    }
    let has_tcp = scenario
        .traffic
        .iter()
        .any(|traffic| traffic.link.is_none() && matches!(traffic.kind, TrafficKind::Tcp { .. }));
    setups.retain(|setup| has_tcp || !setup.tcp_only);
    setups
}
