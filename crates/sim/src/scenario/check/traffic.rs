//! Traffic: defaults and ranges.

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};

use crate::scenario::{
    Direction, Family, LinkSpec, Profile, Traffic, TrafficKind,
    check::{Problem, problem},
    raw,
};

pub(super) fn traffic(
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
    if raw.family == Family::V6 && !links.iter().any(|link| link.ipv6) {
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
    if raw.kind == Requests && raw.direction == Direction::Up {
        let problem_text = "requests are answered towards the client";
        return Err(problem("direction", problem_text, "remove it"));
    }
    for (key, given, kinds) in rules {
        if given && !kinds.contains(&raw.kind) {
            let remedy = "remove it, or change `kind`";
            return Err(problem(key, "it means nothing for this kind", remedy));
        }
    }
    Ok(())
}
