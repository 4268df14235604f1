//! Cgroup mode: a hook in the kernel binds the sockets of programs to links. This module sets the hook's weights and
//! its *places*, which are networks with a fixed decision.
//!
//! The hook ([`pleach_linux::cgroup_connect`]) does not know programs, names and sites, and does not report single
//! connections. So connections are distributed over the links by weight alone, separately for IPv4 and IPv6:
//!
//! | scheduler | weight |
//! | --- | --- |
//! | `max-throughput` | the free part of the link's rate, plus 1/16 of its rate |
//! | `weighted-round-robin` | the configured weight if all links have one, else the rate |
//! | `round-robin` | 1 |
//! | `only-one` | 1 for the first link, 0 for the others |
//!
//! Only the links of the lowest cost that are up are used, and standby links only if no other link is up. Rules that
//! have only a network as condition, or no condition, become places. All other rules need a proxy. The throughput of a
//! link is read from the counters of its device, in the same windows as those of the proxy's own connections.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    time::Duration,
};

use ipnet::IpNet;
use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};
use pleach_linux::{
    cgroup_connect::{self, CgroupConnect, MAX_PLACES, Verdict},
    procnet,
    watch::LinkSnapshot,
};

use super::{hub::Hub, uplinks::Bound};
use crate::{
    estimate::link::{RateEstimator, Traffic},
    placer::{Cost, Link, Placer, WINDOW},
    rules::{Destination, Rule},
    sched::{LinkId, Policy},
};

/// Connection to the hook in the kernel. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Cgroup(RefCell<State>);

#[derive(Debug)]
struct State {
    hook: CgroupConnect,
    /// State per link, in the order of link ids.
    lines: Vec<Line>,
    /// Addresses of this host.
    own: Vec<IpNet>,
    window_began_at: Option<Instant>,
    windows: u32,
    /// Last error that was logged. An error is not logged twice in a row.
    complaint: String,
}

/// State of a link's device.
#[derive(Debug, Default)]
struct Line {
    /// Index of the device. `None` if the device does not exist.
    ifindex: Option<u32>,
    down: RateEstimator,
    up: RateEstimator,
    /// Values of the device's counters (received, sent) at the end of the last window.
    seen: Option<(u64, u64)>,
    /// Smoothed throughput from servers.
    used: Bitrate,
    bound: Bound,
}

impl Cgroup {
    /// Attaches the hook to the cgroup at `path`, or to the root cgroup.
    ///
    /// # Errors
    /// See [`CgroupConnect::attach`].
    pub(crate) fn start(path: Option<&Path>) -> io::Result<Self> {
        let root = path.map_or_else(cgroup_connect::root, |path| Ok(path.to_owned()))?;
        let hook = CgroupConnect::attach(&root)?;
        tracing::info!(cgroup = %root.display(), "programs' connections are bound to links");
        Ok(Self(RefCell::new(State {
            hook,
            lines: Vec::new(),
            own: Vec::new(),
            window_began_at: None,
            windows: 0,
            complaint: String::new(),
        })))
    }

    /// Applies a new snapshot of the host's devices. Call it after the placer has processed the snapshot: links that
    /// are down get no more connections.
    pub(crate) fn apply(&self, hub: &Hub, snapshot: &[LinkSnapshot]) {
        let mut state = self.0.borrow_mut();
        let names = hub.uplinks.device_names();
        state.lines.resize_with(names.len(), Line::default);
        for (line, name) in state.lines.iter_mut().zip(&names) {
            let found = snapshot.iter().find(|link| link.name == *name);
            let ifindex = found.map(|link| link.ifindex);
            if line.ifindex != ifindex {
                // This is another device, whose counters start at other values.
                line.seen = None;
            }
            line.ifindex = ifindex;
        }
        let own = snapshot.iter().flat_map(|link| &link.addresses);
        state.own = own.map(|net| IpNet::from(net.addr())).collect();
        state.set_places(hub);
        state.set_turns(hub);
    }

    /// Reads the counters of the devices and updates the weights. Call it once per window.
    pub(crate) fn handle_window(&self, hub: &Hub, now: Instant) {
        let mut state = self.0.borrow_mut();
        state.count(hub, now);
        state.windows += 1;
        if state.windows.is_multiple_of(PLACES_EVERY) {
            // Routes can change without a change of the devices.
            state.set_places(hub);
        }
        state.set_turns(hub);
        let bound = state.lines.iter().map(|line| line.bound);
        *hub.uplinks.bound.borrow_mut() = bound.collect();
    }
}

impl State {
    fn count(&mut self, hub: &Hub, now: Instant) {
        let length = self
            .window_began_at
            .replace(now)
            .map_or(WINDOW, |began| now.since(began));
        let Ok(bytes) = procnet::device_bytes() else {
            return;
        };
        let names = hub.uplinks.device_names();
        let mut placer = hub.placer.borrow_mut();
        for (index, (line, name)) in self.lines.iter_mut().zip(&names).enumerate() {
            if let Some(ifindex) = line.ifindex {
                line.bound.sockets = self.hook.bound(ifindex);
            }
            let Some(&(received, sent)) = bytes.get(name) else {
                continue;
            };
            let (last_received, last_sent) = line
                .seen
                .replace((received, sent))
                .unwrap_or((received, sent));
            let received = received.saturating_sub(last_received);
            let sent = sent.saturating_sub(last_sent);
            line.bound.rx_bytes += received;
            line.bound.tx_bytes += sent;
            let sample =
                Bitrate::from_transfer(Bytes::new(received), length).unwrap_or(Bitrate::ZERO);
            line.used = Bitrate::from_bps(line.used.as_bps().midpoint(sample.as_bps()));
            let Some(link) = placer.link_mut(LinkId(index)) else {
                continue;
            };
            for (estimator, bytes, shown) in [
                (&mut line.down, received, &mut link.estimator.down),
                (&mut line.up, sent, &mut link.estimator.up),
            ] {
                if let (None, Some((rate, at))) = (estimator.rate(), shown.rate()) {
                    // This estimate was stored by an earlier process.
                    estimator.restore(at, rate);
                }
                let bulk = u32::from(bytes >= BUSY_BYTES);
                let traffic = Traffic {
                    bytes,
                    bulk,
                    has_crowd: false,
                    is_bound: false,
                };
                estimator.on_window(now, traffic, length);
                if let Some((rate, at)) = estimator.rate() {
                    shown.restore(at, rate);
                }
            }
        }
    }

    fn set_turns(&mut self, hub: &Hub) {
        let placer = hub.placer.borrow();
        let now = pleach_linux::clock::now();
        let weighed = |is_v4| {
            let used: Vec<Bitrate> = self.lines.iter().map(|line| line.used).collect();
            let weights = weights(&placer, placer.policy(), now, &used, is_v4);
            let with_index = |(link, weight): (LinkId, u64)| {
                let ifindex = self.lines.get(link.0)?.ifindex?;
                Some((ifindex, weight))
            };
            weights
                .into_iter()
                .filter_map(with_index)
                .collect::<Vec<_>>()
        };
        let (v4, v6) = (weighed(true), weighed(false));
        let result = self.hook.set_turns(&v4, &v6);
        self.complain(result);
    }

    fn set_places(&mut self, hub: &Hub) {
        let routes = procnet::own_routes(MAX_PLACES as usize).unwrap_or_default();
        let leave = always().into_iter().chain(routes).chain(self.own.clone());
        let mut places: BTreeMap<IpNet, Verdict> =
            leave.map(|net| (net.trunc(), Verdict::Leave)).collect();
        let placer = hub.placer.borrow();
        let verdict = |rule: &Rule, is_v4| {
            let leads = |link: &Link| if is_v4 { link.reach.v4 } else { link.reach.v6 };
            let is_up = placer.links().get(rule.link.0).is_some_and(leads);
            let line = self.lines.get(rule.link.0);
            match line.and_then(|line| line.ifindex).filter(|_| is_up) {
                Some(ifindex) => Verdict::Bind(ifindex),
                None if rule.strict => Verdict::Refuse,
                None => Verdict::Spread,
            }
        };
        places.extend(rule_places(placer.rules(), verdict));
        let result = self.hook.set_places(&places);
        self.complain(result);
    }

    fn complain(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            let text = error.to_string();
            if text != self.complaint {
                tracing::warn!(error = text, "the connect hook was not brought up to date");
                self.complaint = text;
            }
        }
    }
}

/// Returns the links of one address family that get connections, and their weights.
fn weights(
    placer: &Placer,
    policy: Policy,
    now: Instant,
    used: &[Bitrate],
    is_v4: bool,
) -> Vec<(LinkId, u64)> {
    let leads = |link: &Link| if is_v4 { link.reach.v4 } else { link.reach.v6 };
    let all = placer.links().iter().enumerate();
    let usable: Vec<(LinkId, &Link)> = all
        .filter(|(_, link)| link.settings.cost != Cost::Never && leads(link))
        .map(|(index, link)| (LinkId(index), link))
        .collect();
    let least = usable.iter().map(|(_, link)| placer.price(link)).min();
    let chosen = usable
        .into_iter()
        .filter(|(_, link)| Some(placer.price(link)) == least);
    let chosen: Vec<(LinkId, &Link)> = chosen.collect();
    let by_user = chosen
        .iter()
        .all(|(_, link)| link.settings.weight.is_some());
    let weight = |(index, (id, link)): (usize, &(LinkId, &Link))| {
        // Most connections download, and it cannot be known which connections will upload.
        let rate = placer.rates(now, *id).1.as_bps().max(1);
        let weight = match policy {
            Policy::Makespan | Policy::MaxThroughput => {
                let used = used.get(id.0).map_or(0, |used| used.as_bps());
                (rate.saturating_sub(used) + rate / FULL_SHARE).max(1)
            }
            Policy::WeightedRoundRobin => match link.settings.weight {
                Some(weight) if by_user => weight.into(),
                _ => rate,
            },
            Policy::RoundRobin => 1,
            Policy::OnlyOne => u64::from(index == 0),
        };
        (*id, weight)
    };
    chosen.iter().enumerate().map(weight).collect()
}

/// Returns the places for the rules without programs, ports and domains. The first matching rule wins, as in all modes.
/// Therefore a later rule for a part of an earlier rule's network is left out.
fn rule_places<'a>(
    rules: impl Iterator<Item = &'a Rule>,
    verdict: impl Fn(&Rule, bool) -> Verdict,
) -> BTreeMap<IpNet, Verdict> {
    let mut places: BTreeMap<IpNet, Verdict> = BTreeMap::new();
    for rule in rules.filter(|rule| is_place(rule)) {
        let nets = match &rule.destination {
            Some(Destination::Network(net)) => vec![net.trunc()],
            _ => vec![everywhere_v4(), everywhere_v6()],
        };
        for net in nets {
            if !places.keys().any(|earlier| earlier.contains(&net)) {
                places.insert(net, verdict(rule, net.addr().is_ipv4()));
            }
        }
    }
    places
}

/// Whether the hook can apply `rule`.
#[must_use]
pub fn is_place(rule: &Rule) -> bool {
    let is_net = matches!(rule.destination, None | Some(Destination::Network(_)));
    rule.app.is_none() && rule.ports.is_none() && is_net
}

/// Returns networks that are not reached over a link: this host, link-local addresses and multicast groups.
fn always() -> [IpNet; 9] {
    let v4 = |a, b, len| IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(a, b, 0, 0)), len);
    let v6 =
        |first, len| IpNet::new_assert(IpAddr::V6(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0)), len);
    [
        v4(0, 0, 8),
        v4(127, 0, 8),
        v4(169, 254, 16),
        v4(224, 0, 3),
        v6(0, 128),
        IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        v6(0xfe80, 10),
        v6(0xff00, 8),
        // The hook looks up IPv4-mapped IPv6 addresses as IPv4 addresses.
        IpNet::from(IpAddr::V4(Ipv4Addr::BROADCAST)),
    ]
}

fn everywhere_v4() -> IpNet {
    IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0)
}

fn everywhere_v6() -> IpNet {
    IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0)
}

/// Minimum number of bytes per window (1 Mbit/s) from which the throughput of a device is used as an estimate of the
/// link.
const BUSY_BYTES: u64 = 32 << 10;

/// Divisor of the rate in a link's weight: a saturated link still has a weight of 1/16 of its rate. So saturated links
/// share connections in proportion to their rates.
const FULL_SHARE: u64 = 16;

/// Number of windows between two updates of the routes: 5 s.
const PLACES_EVERY: u32 = 20;

// The weights must follow the load of the links faster than connections end.
const _: () = assert!(WINDOW.as_millis() <= Duration::from_secs(1).as_millis());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        placer::{LinkSettings, PlacerConfig, Reach},
        sticky::Stickiness,
    };

    fn placer(costs: [Cost; 3]) -> Placer {
        let config = PlacerConfig {
            policy: Policy::MaxThroughput,
            stickiness: Stickiness::Off,
            sticky_time: Duration::from_secs(1),
            rules: Vec::new(),
        };
        let mut placer = Placer::new(config, Instant::ZERO);
        for (cost, mbps) in costs.into_iter().zip([20, 10, 40]) {
            let link = placer.add_link(LinkSettings {
                cost,
                download: Some(Bitrate::from_mbps(mbps)),
                ..LinkSettings::default()
            });
            let reach = Reach {
                v4: true,
                ..Reach::default()
            };
            placer.set_reach(link, reach);
        }
        placer
    }

    #[test]
    fn links_of_least_cost_share_by_what_is_free() {
        let two = placer([Cost::Rank(0), Cost::Rank(0), Cost::Rank(1)]);
        let weights_of = |policy, used: [u64; 3]| {
            let used = used.map(Bitrate::from_mbps);
            let found = weights(&two, policy, Instant::ZERO, &used, true);
            found
                .iter()
                .map(|(link, weight)| (link.0, *weight))
                .collect::<Vec<_>>()
        };
        let free = weights_of(Policy::MaxThroughput, [0, 0, 0]);
        assert_eq!(free, [(0, 21_250_000), (1, 10_625_000)]);
        let one_full = weights_of(Policy::MaxThroughput, [20, 0, 0]);
        assert_eq!(one_full, [(0, 1_250_000), (1, 10_625_000)]);
        let full = weights_of(Policy::MaxThroughput, [30, 10, 0]);
        assert_eq!(full, [(0, 1_250_000), (1, 625_000)]);
        let rates = [(0, 20_000_000), (1, 10_000_000)];
        assert_eq!(weights_of(Policy::WeightedRoundRobin, [20, 0, 0]), rates);
        assert_eq!(weights_of(Policy::OnlyOne, [0; 3]), [(0, 1), (1, 0)]);
        assert_eq!(weights_of(Policy::RoundRobin, [0; 3]), [(0, 1), (1, 1)]);
        assert!(weights(&two, Policy::RoundRobin, Instant::ZERO, &[], false).is_empty());
        let spare = placer([Cost::Never, Cost::Standby, Cost::Standby]);
        let found = weights(&spare, Policy::RoundRobin, Instant::ZERO, &[], true);
        assert_eq!(found, [(LinkId(1), 1), (LinkId(2), 1)]);
    }

    #[test]
    fn the_first_rule_wins_over_longer_prefixes() {
        let rule = |destination: Option<&str>, link| Rule {
            destination: destination.and_then(Destination::parse),
            link: LinkId(link),
            ..Rule::default()
        };
        let by_port = Rule {
            ports: Some(80..=80),
            ..Rule::default()
        };
        let by_name = rule(Some("example.com"), 7);
        assert!(!is_place(&by_port) && !is_place(&by_name));
        let rules = [
            by_port,
            by_name,
            rule(Some("10.0.0.0/8"), 1),
            rule(Some("10.1.0.0/16"), 2),
            rule(None, 3),
            rule(Some("fd00::/8"), 4),
        ];
        let number = |rule: &Rule, _| Verdict::Bind(u32::try_from(rule.link.0).expect("small"));
        let places = rule_places(rules.iter(), number);
        let shown: Vec<String> = places
            .iter()
            .map(|(net, verdict)| format!("{net} {verdict:?}"))
            .collect();
        assert_eq!(
            shown,
            ["0.0.0.0/0 Bind(3)", "10.0.0.0/8 Bind(1)", "::/0 Bind(3)"]
        );
    }
}
