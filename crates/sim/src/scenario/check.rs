//! Validation of a parsed scenario file: defaults, references, ranges.

mod equalizer;
mod link;
mod traffic;

use core::time::Duration;
use std::collections::BTreeMap;

use pleach_core::{
    profile::{Part, ProfileChange},
    sched::Policy,
    sec::Code,
};

use crate::{
    link::{LinkState, bundle::MAX_LINKS},
    scenario::{
        Action, Baseline, Directions, EqualizerSpec, Event, Files, LinkSpec, MAX_REORDERING,
        Scenario, ScenarioError, SharedSpec, Traffic, TunnelSpec,
        locate::{Section, TOP, line_of},
        raw,
    },
};

/// Key, problem and remedy of an error. The caller knows the section and adds it.
type Problem = (&'static str, String, String);

pub(super) fn scenario(
    raw: raw::Scenario,
    text: &str,
    files: &mut Files<'_>,
) -> Result<Scenario, ScenarioError> {
    let file = files.scenario.display().to_string();
    let located = |section: Section| {
        let file = file.clone();
        move |(key, problem, remedy): Problem| ScenarioError {
            file,
            line: line_of(text, section, key),
            key: key.to_owned(),
            problem,
            remedy,
        }
    };

    top(&raw).map_err(located(TOP))?;
    let mut shared = Vec::new();
    for (index, item) in raw.shared.iter().enumerate() {
        shared.push(link::shared_spec(item, files).map_err(located(Section("shared", index)))?);
    }
    let mut links: Vec<LinkSpec> = Vec::new();
    for (index, item) in raw.link.iter().enumerate() {
        let link = link::link_spec(item, &links, &shared, files)
            .map_err(located(Section("link", index)))?;
        links.push(link);
    }
    let duration = raw.duration.0;
    let mut equalizers = Vec::new();
    for (index, item) in raw.equalizer.iter().enumerate() {
        let equalizer = equalizer::equalizer(item, &equalizers, &links, raw.tunnel.is_some())
            .map_err(located(Section("equalizer", index)))?;
        equalizers.push(equalizer);
    }
    let mut events = Vec::new();
    for (index, item) in raw.event.iter().enumerate() {
        let ends = Ends {
            links: &links,
            shared: &shared,
            equalizers: &equalizers,
            has_tunnel: raw.tunnel.is_some(),
        };
        let event =
            event(item, duration, &ends, files).map_err(located(Section("event", index)))?;
        events.push(event);
    }
    events.sort_by_key(|event| event.at);
    let tunnel = match raw.tunnel {
        Some(table) => Some(tunnel(table, &links).map_err(|(key, problem, remedy)| {
            let line = line_of(text, Section("tunnel", 0), &key);
            let file = file.clone();
            ScenarioError {
                file,
                line,
                key,
                problem,
                remedy,
            }
        })?),
        None => None,
    };
    if tunnel.is_none() && raw.baselines.contains(&Baseline::Single) {
        return Err(located(TOP)(problem(
            "baselines",
            "\"single\" runs the tunnel over one link, but there is no [tunnel]",
            "add [tunnel], or compare with \"raw\"",
        )));
    }
    let mut traffic: Vec<Traffic> = Vec::new();
    for (index, item) in raw.traffic.iter().enumerate() {
        let item = traffic::traffic(item, duration, &traffic, &links)
            .map_err(located(Section("traffic", index)))?;
        traffic.push(item);
    }
    expectations(&raw.expect, &traffic, &links).map_err(located(Section("expect", 0)))?;
    let max_reordering = max_reordering(&raw.tcp).map_err(located(Section("tcp", 0)))?;
    Ok(Scenario {
        name: raw.name,
        description: raw.description,
        seed: raw.seed,
        duration,
        links,
        shared,
        events,
        tunnel,
        equalizers,
        recovery: raw.tcp.recovery,
        max_reordering,
        traffic,
        baselines: raw.baselines,
        repeat: raw.repeat.unwrap_or(1),
        expect: raw.expect,
    })
}

fn problem(key: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Problem {
    (key, problem.into(), remedy.into())
}

fn top(raw: &raw::Scenario) -> Result<(), Problem> {
    if raw.duration.0 < Duration::from_secs(1) || raw.duration.0 > Duration::from_secs(86_400) {
        return Err(problem("duration", "out of range", "use 1s to 24h"));
    }
    if raw.link.is_empty() || raw.link.len() > MAX_LINKS {
        let remedy = format!("write 1 to {MAX_LINKS} [[link]] sections");
        return Err(problem("link", "wrong number of links", remedy));
    }
    if raw
        .repeat
        .is_some_and(|repeat| !(1..=100).contains(&repeat))
    {
        return Err(problem("repeat", "out of range", "use 1 to 100"));
    }
    Ok(())
}

/// Objects to which events can refer.
struct Ends<'a> {
    links: &'a [LinkSpec],
    shared: &'a [SharedSpec],
    equalizers: &'a [EqualizerSpec],
    has_tunnel: bool,
}

fn event(
    raw: &raw::Event,
    duration: Duration,
    ends: &Ends<'_>,
    files: &mut Files<'_>,
) -> Result<Event, Problem> {
    let Ends { links, shared, .. } = *ends;
    let at = raw.at.0;
    if at >= duration {
        return Err(problem(
            "at",
            "after the end",
            "use a time before `duration`",
        ));
    }
    if let Some(action) = equalizer::weights(raw, ends.equalizers, links)? {
        return Ok(Event { at, action });
    }
    let mut change = link::change(&raw.params(), files)?;
    change.state = raw.state.map(LinkState::from);
    let directions = raw.direction.unwrap_or_default();
    if change.state == Some(LinkState::Down) && directions != Directions::Both {
        return Err(problem(
            "direction",
            "\"down\" always applies to both directions",
            "use state = \"blackhole\" for one direction",
        ));
    }
    let action = match (&raw.link, raw.daemon, raw.action) {
        (Some(name), None, None) => {
            if let Some(link) = links.iter().position(|link| link.name == *name) {
                Action::Link {
                    link,
                    directions,
                    change,
                }
            } else if let Some(shared) = shared.iter().position(|shared| shared.name == *name) {
                Action::Shared {
                    shared,
                    directions,
                    change,
                }
            } else {
                let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
                let remedy = format!("the links are: {}", names.join(", "));
                return Err(problem("link", format!("there is no {name:?}"), remedy));
            }
        }
        (None, Some(end), Some(action)) if ends.has_tunnel => Action::Daemon { end, action },
        (None, Some(_), Some(_)) => {
            return Err(problem("daemon", "no daemon runs", "add [tunnel]"));
        }
        (Some(_), _, _) | (None, _, _) => {
            return Err(problem(
                "link",
                "an event must be for a link, a daemon or an equalizer",
                "write `link` with what changes, `daemon` with `action`, or `equalizer` with `weights`",
            ));
        }
    };
    Ok(Event { at, action })
}

/// Whether a key of `[tunnel]` belongs to the daemon's `[scheduler]`: a key of a policy, or of the profile.
fn is_of_scheduler(key: &str) -> bool {
    Policy::<String>::all_keys().contains(&key)
        || Part::from_key(key).is_some()
        || key == ProfileChange::WITHOUT
}

fn tunnel(table: toml::Table, links: &[LinkSpec]) -> Result<TunnelSpec, (String, String, String)> {
    let (policy_keys, own): (toml::Table, toml::Table) =
        table.into_iter().partition(|(key, _)| is_of_scheduler(key));
    let known = [
        "policy",
        "mtu",
        "outer",
        "compression",
        "class",
        "parity",
        "split_tcp",
        "carrier",
    ];
    if let Some(key) = own.keys().find(|key| !known.contains(&key.as_str())) {
        let remedy = format!(
            "expected {}; a key of a policy: {}; or a key of the profile: {}, {}",
            known.join(", "),
            Policy::<String>::all_keys().join(", "),
            Part::KEYS.join(", "),
            ProfileChange::WITHOUT
        );
        return Err((key.clone(), "unknown key".to_owned(), remedy));
    }
    for key in ["link", "fixed", "yield", "hold"] {
        let named = policy_keys.get(key);
        let list = named.and_then(toml::Value::as_array);
        let mut names = named.into_iter().chain(list.into_iter().flatten());
        let is_unknown = |name: &str| links.iter().all(|link| link.name != name);
        if names.any(|name| name.as_str().is_some_and(is_unknown)) {
            let remedy = "use the name of a [[link]]".to_owned();
            return Err((key.to_owned(), "there is no such link".to_owned(), remedy));
        }
    }
    let raw: raw::Tunnel = own.try_into().map_err(|error: toml::de::Error| {
        let message = error.message().to_owned();
        let key = known.iter().find(|key| error.to_string().contains(**key));
        let key = key.map_or("tunnel", |key| *key).to_owned();
        (
            key,
            message,
            "see the key reference at the head of crates/sim/src/scenario.rs".to_owned(),
        )
    })?;
    if raw.mtu.is_some_and(|mtu| !(1280..=1500).contains(&mtu)) {
        let remedy = "use 1280 to 1500, or remove it: the daemon then chooses".to_owned();
        return Err(("mtu".to_owned(), "out of range".to_owned(), remedy));
    }
    Ok(TunnelSpec {
        policy: raw.policy.unwrap_or_else(|| "adaptive".to_owned()),
        policy_keys,
        mtu: raw.mtu,
        outer: raw.outer.unwrap_or_default(),
        compression: raw.compression.unwrap_or(true),
        classes: raw.class,
        split_tcp: raw.split_tcp,
        carrier: raw.carrier.map(|carrier| {
            let mode = match carrier {
                raw::Carrier::Auto => "auto",
                raw::Carrier::Tcp => "tcp",
                raw::Carrier::Udp => "udp",
            };
            mode.to_owned()
        }),
        parity: raw.parity.map(|parity| match parity {
            raw::Parity::Bch => Code::Bch,
            raw::Parity::Hamming => Code::Hamming,
        }),
    })
}

fn max_reordering(raw: &raw::Tcp) -> Result<u32, Problem> {
    match raw.max_reordering.unwrap_or(MAX_REORDERING) {
        segments @ 3..=1000 => Ok(segments),
        _ => Err(problem("max_reordering", "out of range", "use 3 to 1000")),
    }
}

fn expectations(
    expect: &BTreeMap<String, super::Bounds>,
    traffic: &[Traffic],
    links: &[LinkSpec],
) -> Result<(), Problem> {
    for key in expect.keys() {
        let known = key.split_once('.').is_some_and(|(name, _)| {
            traffic.iter().any(|traffic| traffic.name == name)
                || links.iter().any(|link| link.name == name)
        });
        if !known {
            return Err(problem(
                "expect",
                format!("{key:?} names no traffic and no link"),
                "write \"NAME.FIELD\" with the name of a [[traffic]] or [[link]], such as \"download.goodput_mbps\"",
            ));
        }
    }
    Ok(())
}
