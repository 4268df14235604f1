//! From what is written to what is meant: defaults, references, ranges.

use core::time::Duration;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use pleach_core::units::{Bitrate, Bytes};

use crate::{
    link::{
        LinkChange, LinkConfig, LinkState,
        bundle::{MAX_LINKS, SharedConfig},
        loss::{Gilbert, Loss},
        trace::{Opportunities, Rate, Steps},
    },
    scenario::{
        Action, Baseline, Cost, Directions, Event, Files, LinkSpec, POLICY_KEYS, Profile, Scenario,
        ScenarioError, SharedSpec, Traffic, TrafficKind, TunnelSpec,
        locate::{Section, TOP, line_of},
        raw,
    },
};

/// What to complain about: key, problem, remedy. The section is known where it is caught.
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
        shared.push(shared_spec(item, files).map_err(located(Section("shared", index)))?);
    }
    let mut links: Vec<LinkSpec> = Vec::new();
    for (index, item) in raw.link.iter().enumerate() {
        let link =
            link_spec(item, &links, &shared, files).map_err(located(Section("link", index)))?;
        links.push(link);
    }
    let duration = raw.duration.0;
    let mut events = Vec::new();
    for (index, item) in raw.event.iter().enumerate() {
        let event = event(item, duration, &links, &shared, raw.tunnel.is_some(), files)
            .map_err(located(Section("event", index)))?;
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
            "\"single\" is the tunnel over one link, and there is no [tunnel]",
            "add [tunnel], or compare with \"raw\"",
        )));
    }
    let mut traffic: Vec<Traffic> = Vec::new();
    for (index, item) in raw.traffic.iter().enumerate() {
        let item = self::traffic(item, duration, &traffic, &links)
            .map_err(located(Section("traffic", index)))?;
        traffic.push(item);
    }
    expectations(&raw.expect, &traffic).map_err(located(Section("expect", 0)))?;
    Ok(Scenario {
        name: raw.name,
        description: raw.description,
        seed: raw.seed,
        duration,
        links,
        shared,
        events,
        tunnel,
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

fn link_spec(
    raw: &raw::Link,
    earlier: &[LinkSpec],
    shared: &[SharedSpec],
    files: &mut Files<'_>,
) -> Result<LinkSpec, Problem> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if !(1..=15).contains(&raw.name.len()) || !raw.name.bytes().all(allowed) || raw.name == "lo" {
        return Err(problem(
            "name",
            "it does not serve as a device name",
            "use 1 to 15 of a-z, 0-9, -",
        ));
    }
    let taken = earlier.iter().any(|link| link.name == raw.name)
        || shared.iter().any(|shared| shared.name == raw.name);
    if taken {
        return Err(problem(
            "name",
            "it is taken",
            "give each link its own name",
        ));
    }
    let shared = match &raw.shared {
        None => None,
        Some(name) => Some(
            shared
                .iter()
                .position(|shared| shared.name == *name)
                .ok_or_else(|| {
                    problem(
                        "shared",
                        format!("there is no [[shared]] called {name:?}"),
                        "add it, or remove the key",
                    )
                })?,
        ),
    };
    if raw.weight == Some(0) {
        return Err(problem("weight", "zero", "use 1 or more"));
    }
    let (down, up) = both(&raw.params(), raw.down.as_ref(), raw.up.as_ref(), files)?;
    Ok(LinkSpec {
        name: raw.name.clone(),
        down,
        up,
        shared,
        weight: raw.weight.unwrap_or(1),
        cost: raw.cost.map_or(Cost::Rank(0), |cost| cost.0),
        ipv6: raw.ipv6.unwrap_or(true),
    })
}

fn shared_spec(raw: &raw::Shared, files: &mut Files<'_>) -> Result<SharedSpec, Problem> {
    let (down, up) = both(&raw.params(), raw.down.as_ref(), raw.up.as_ref(), files)?;
    let rate_and_queue = |config: LinkConfig| SharedConfig {
        rate: config.rate,
        queue: config.queue,
    };
    Ok(SharedSpec {
        name: raw.name.clone(),
        down: rate_and_queue(down),
        up: rate_and_queue(up),
    })
}

/// Down and up of a section with its overrides.
fn both(
    common: &raw::Params,
    down: Option<&raw::Override>,
    up: Option<&raw::Override>,
    files: &mut Files<'_>,
) -> Result<(LinkConfig, LinkConfig), Problem> {
    let mut base = LinkConfig::default();
    change(common, files)?.apply_to(&mut base);
    let mut directed = |side: Option<&raw::Override>| -> Result<LinkConfig, Problem> {
        let mut config = base.clone();
        if let Some(side) = side {
            change(&side.params(), files)?.apply_to(&mut config);
        }
        Ok(config)
    };
    Ok((directed(down)?, directed(up)?))
}

fn change(raw: &raw::Params, files: &mut Files<'_>) -> Result<LinkChange, Problem> {
    let probability = |key, value: f64| {
        if (0.0..=1.0).contains(&value) {
            Ok(value)
        } else {
            let remedy = "it is a probability: use 0.0 to 1.0";
            Err(problem(key, "out of range", remedy))
        }
    };
    let loss = match (raw.loss, raw.gilbert) {
        (None, None) => None,
        (Some(_), Some(_)) => {
            return Err(problem("gilbert", "`loss` stands beside it", "keep one"));
        }
        (Some(0.0), None) => Some(Loss::None),
        (Some(loss), None) => Some(Loss::Bernoulli(probability("loss", loss)?)),
        (None, Some(gilbert)) => Some(Loss::Gilbert(Gilbert {
            p: probability("gilbert", gilbert.p)?,
            r: probability("gilbert", gilbert.r)?,
            loss_good: probability("gilbert", gilbert.loss_good)?,
            loss_bad: probability("gilbert", gilbert.loss_bad)?,
        })),
    };
    let short = |key, span: Option<raw::Span>| match span {
        Some(raw::Span(span)) if span > Duration::from_secs(60) => {
            Err(problem(key, "longer than 60s", "use a shorter time"))
        }
        span => Ok(span.map(|span| span.0)),
    };
    if raw.queue.is_some_and(|queue| queue.get() > 1 << 30) {
        return Err(problem("queue", "above 1GiB", "use a smaller queue"));
    }
    Ok(LinkChange {
        rate: rate(raw, files)?,
        queue: raw.queue,
        delay: short("delay", raw.delay)?,
        jitter: short("jitter", raw.jitter)?,
        reorder: raw.reorder,
        loss,
        bit_errors: raw
            .bit_errors
            .map(|value| probability("bit_errors", value))
            .transpose()?,
        state: None,
    })
}

fn rate(raw: &raw::Params, files: &mut Files<'_>) -> Result<Option<Rate>, Problem> {
    let given = [raw.rate.is_some(), raw.trace.is_some(), raw.csv.is_some()];
    if given.iter().filter(|&&given| given).count() > 1 {
        return Err(problem(
            "rate",
            "more than one of `rate`, `trace`, `csv`",
            "keep one",
        ));
    }
    if raw.column.is_some() != raw.csv.is_some() {
        let remedy = "`csv` names the file and `column` the link's column in it";
        return Err(problem("column", "`csv` and `column` go together", remedy));
    }
    if let Some(rate) = raw.rate {
        return Ok(Some(Rate::Constant(rate)));
    }
    let remedy = "see the formats in the documentation of traces";
    if let Some(name) = &raw.trace {
        let text = read("trace", name, files)?;
        let trace = Opportunities::from_text(&text)
            .map_err(|error| problem("trace", format!("{name}: {error}"), remedy))?;
        return Ok(Some(Rate::Opportunities(Arc::new(trace))));
    }
    if let (Some(name), Some(column)) = (&raw.csv, &raw.column) {
        let text = read("csv", name, files)?;
        let steps = Steps::from_csv(&text, column)
            .map_err(|error| problem("csv", format!("{name}: {error}"), remedy))?;
        return Ok(Some(Rate::Steps(Arc::new(steps))));
    }
    Ok(None)
}

fn read(key: &'static str, name: &str, files: &mut Files<'_>) -> Result<String, Problem> {
    let path: PathBuf = match name.strip_prefix("traces:") {
        None => files.scenario.parent().unwrap_or(Path::new("")).join(name),
        Some(name) => match &files.traces {
            Some(traces) => traces.join(name),
            None => {
                return Err(problem(
                    key,
                    format!("no directory of recorded links is known for \"traces:{name}\""),
                    "set PLEACH_TRACES to it",
                ));
            }
        },
    };
    (files.read)(&path).map_err(|error| {
        problem(
            key,
            format!("cannot read {}: {error}", path.display()),
            "paths are relative to the scenario file; \"traces:NAME\" means NAME in PLEACH_TRACES",
        )
    })
}

fn event(
    raw: &raw::Event,
    duration: Duration,
    links: &[LinkSpec],
    shared: &[SharedSpec],
    has_tunnel: bool,
    files: &mut Files<'_>,
) -> Result<Event, Problem> {
    let at = raw.at.0;
    if at >= duration {
        return Err(problem(
            "at",
            "after the end",
            "use a time before `duration`",
        ));
    }
    let mut change = change(&raw.params(), files)?;
    change.state = raw.state.map(LinkState::from);
    let directions = raw.direction.unwrap_or_default();
    if change.state == Some(LinkState::Down) && directions != Directions::Both {
        return Err(problem(
            "direction",
            "a link is down both ways",
            "use state = \"blackhole\" for one way",
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
        (None, Some(end), Some(action)) if has_tunnel => Action::Daemon { end, action },
        (None, Some(_), Some(_)) => {
            return Err(problem("daemon", "no daemon runs", "add [tunnel]"));
        }
        (Some(_), _, _) | (None, _, _) => {
            return Err(problem(
                "link",
                "an event concerns a link or a daemon",
                "write `link` with what changes, or `daemon` with `action`",
            ));
        }
    };
    Ok(Event { at, action })
}

fn tunnel(table: toml::Table, links: &[LinkSpec]) -> Result<TunnelSpec, (String, String, String)> {
    let (policy_keys, own): (toml::Table, toml::Table) = table
        .into_iter()
        .partition(|(key, _)| POLICY_KEYS.contains(&key.as_str()));
    let known = ["policy", "mtu", "outer"];
    if let Some(key) = own.keys().find(|key| !known.contains(&key.as_str())) {
        let remedy = format!(
            "expected {}, or a policy's: {}",
            known.join(", "),
            POLICY_KEYS.join(", ")
        );
        return Err((key.clone(), "unknown key".to_owned(), remedy));
    }
    for key in ["link", "fixed"] {
        let named = policy_keys.get(key).and_then(toml::Value::as_str);
        if named.is_some_and(|name| links.iter().all(|link| link.name != name)) {
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
            "see the head of this documentation".to_owned(),
        )
    })?;
    if raw.mtu.is_some_and(|mtu| !(1280..=1500).contains(&mtu)) {
        let remedy = "use 1280 to 1500, or leave it to the daemon".to_owned();
        return Err(("mtu".to_owned(), "out of range".to_owned(), remedy));
    }
    Ok(TunnelSpec {
        policy: raw.policy.unwrap_or_else(|| "adaptive".to_owned()),
        policy_keys,
        mtu: raw.mtu,
        outer: raw.outer.unwrap_or_default(),
    })
}

fn traffic(
    raw: &raw::Traffic,
    duration: Duration,
    earlier: &[Traffic],
    links: &[LinkSpec],
) -> Result<Traffic, Problem> {
    let name = raw.name.clone().unwrap_or_else(|| {
        match raw.kind {
            raw::Kind::Ping => "ping",
            raw::Kind::Requests => "requests",
            raw::Kind::Tcp => "tcp",
            raw::Kind::Udp => "udp",
        }
        .to_owned()
    });
    if name.contains('.') || earlier.iter().any(|other| other.name == name) {
        return Err(problem(
            "name",
            format!("{name:?} is taken or contains a dot"),
            "give each traffic its own name",
        ));
    }
    let start = raw.start.map_or(Duration::ZERO, |span| span.0);
    let stop = raw.stop.map_or(duration, |span| span.0);
    if start >= stop || stop > duration {
        return Err(problem(
            "stop",
            "the traffic has no time",
            "use start < stop <= duration",
        ));
    }
    if raw.family == super::Family::V6 && !links.iter().any(|link| link.ipv6) {
        return Err(problem(
            "family",
            "no link has IPv6",
            "set ipv6 = true on one",
        ));
    }
    only_for(raw)?;
    let interval = |default_ms| {
        let interval = raw
            .interval
            .map_or(Duration::from_millis(default_ms), |s| s.0);
        if interval < Duration::from_millis(1) {
            return Err(problem("interval", "too short", "use 1ms or more"));
        }
        Ok(interval)
    };
    let kind = match raw.kind {
        raw::Kind::Ping => TrafficKind::Ping {
            interval: interval(20)?,
        },
        raw::Kind::Requests => TrafficKind::Requests {
            size: raw.size.unwrap_or(Bytes::new(30_000)),
            interval: interval(200)?,
        },
        raw::Kind::Tcp => {
            let flows = raw.flows.unwrap_or(1);
            if !(1..=64).contains(&flows) {
                return Err(problem("flows", "out of range", "use 1 to 64"));
            }
            let cc = raw.cc.clone();
            TrafficKind::Tcp { cc, flows }
        }
        raw::Kind::Udp => {
            let size = raw.size.unwrap_or(Bytes::new(1200));
            if !(24..=65_000).contains(&size.get()) {
                return Err(problem("size", "out of range", "use 24B to 65000B"));
            }
            let rate = raw
                .rate
                .filter(|rate| {
                    (1_000..=Bitrate::from_mbps(10_000).as_bps()).contains(&rate.as_bps())
                })
                .ok_or_else(|| problem("rate", "missing or out of range", "use 1kbit to 10Gbit"))?;
            let profile = raw.profile.unwrap_or(Profile::Constant);
            TrafficKind::Udp {
                rate,
                size,
                profile,
            }
        }
    };
    Ok(Traffic {
        name,
        kind,
        direction: raw.direction,
        start,
        stop,
        family: raw.family,
    })
}

/// Refuses keys that mean nothing for the kind of traffic.
fn only_for(raw: &raw::Traffic) -> Result<(), Problem> {
    use raw::Kind::{Ping, Requests, Tcp, Udp};
    let rules: [(&'static str, bool, &[raw::Kind]); 6] = [
        ("cc", raw.cc.is_some(), &[Tcp]),
        ("flows", raw.flows.is_some(), &[Tcp]),
        ("rate", raw.rate.is_some(), &[Udp]),
        ("size", raw.size.is_some(), &[Udp, Requests]),
        ("profile", raw.profile.is_some(), &[Udp]),
        ("interval", raw.interval.is_some(), &[Ping, Requests]),
    ];
    for (key, given, kinds) in rules {
        if given && !kinds.contains(&raw.kind) {
            let remedy = "remove it, or change `kind`";
            return Err(problem(key, "it means nothing for this kind", remedy));
        }
    }
    Ok(())
}

fn expectations(
    expect: &BTreeMap<String, super::Bounds>,
    traffic: &[Traffic],
) -> Result<(), Problem> {
    for key in expect.keys() {
        let known = key
            .split_once('.')
            .is_some_and(|(name, _)| traffic.iter().any(|traffic| traffic.name == name));
        if !known {
            return Err(problem(
                "expect",
                format!("{key:?} names no traffic"),
                "write \"NAME.FIELD\" with the name of a [[traffic]], such as \"download.goodput_mbps\"",
            ));
        }
    }
    Ok(())
}
