//! Traffic: defaults and ranges.

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};

use crate::{
    pattern::{Curve, Profile, Rates},
    scenario::{
        Direction, Family, LinkSpec, Traffic, TrafficKind, VideoSpec, VideoTransport,
        check::{Problem, problem},
        raw,
    },
};

/// Highest rate, at which the lab can just send.
const MAX_RATE: Bitrate = Bitrate::from_mbps(10_000);
const MIN_RATE: Bitrate = Bitrate::from_bps(1_000);

pub(super) fn traffic(
    raw: &raw::Traffic,
    duration: Duration,
    earlier: &[Traffic],
    links: &[LinkSpec],
) -> Result<Traffic, Problem> {
    let name = raw.name.clone().unwrap_or_else(|| {
        match raw.kind {
            raw::Kind::Ping => "ping",
            raw::Kind::Quic => "quic",
            raw::Kind::Requests => "requests",
            raw::Kind::Tcp => "tcp",
            raw::Kind::Udp => "udp",
            raw::Kind::Video => "video",
            raw::Kind::Voice => "voice",
        }
        .to_owned()
    });
    if name.contains('.') || earlier.iter().any(|other| other.name == name) {
        return Err(problem(
            "name",
            format!("{name:?} is already used or contains a dot"),
            "give each traffic its own name",
        ));
    }
    let start = raw.start.map_or(Duration::ZERO, |span| span.0);
    let stop = raw.stop.map_or(duration, |span| span.0);
    if start >= stop || stop > duration {
        return Err(problem(
            "stop",
            "the traffic has no duration",
            "use start < stop <= duration",
        ));
    }
    if raw.family == Family::V6 && !links.iter().any(|link| link.ipv6) {
        return Err(problem(
            "family",
            "no link has IPv6",
            "set ipv6 = true on a link",
        ));
    }
    only_for(raw)?;
    let link = match &raw.link {
        None => None,
        Some(name) => Some(link_of(name, raw.family, links)?),
    };
    let distance = raw.distance.map_or(Duration::ZERO, |span| span.0);
    if distance > Duration::from_secs(10) {
        return Err(problem("distance", "longer than 10s", "use a shorter time"));
    }
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
        raw::Kind::Quic => TrafficKind::Quic,
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
            let opening = raw.opening.unwrap_or_default();
            TrafficKind::Tcp { cc, flows, opening }
        }
        raw::Kind::Udp => {
            let size = raw.size.unwrap_or(Bytes::new(1200));
            if !(24..=65_000).contains(&size.get()) {
                return Err(problem("size", "out of range", "use 24B to 65000B"));
            }
            TrafficKind::Udp {
                rates: rates(raw, stop - start)?,
                size,
                profile: profile(raw)?,
                jitter: jitter(raw)?,
                deadline: deadline(raw)?,
            }
        }
        raw::Kind::Video => TrafficKind::Video(video(raw)?),
        raw::Kind::Voice => {
            let buffer = raw.buffer.map_or(Duration::from_millis(60), |span| span.0);
            if buffer > Duration::from_secs(1) {
                return Err(problem("buffer", "too long", "use 1s or less"));
            }
            TrafficKind::Voice { buffer }
        }
    };
    Ok(Traffic {
        name,
        kind,
        direction: raw.direction,
        start,
        stop,
        family: raw.family,
        link,
        distance,
    })
}

fn link_of(name: &str, family: Family, links: &[LinkSpec]) -> Result<usize, Problem> {
    let Some(index) = links.iter().position(|link| link.name == name) else {
        let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
        let remedy = format!("the links are: {}", names.join(", "));
        return Err(problem("link", format!("there is no {name:?}"), remedy));
    };
    if family == Family::V6 && !links[index].ipv6 {
        let text = format!("{name:?} has no IPv6");
        return Err(problem("link", text, "set ipv6 = true on it"));
    }
    Ok(index)
}

fn rates(raw: &raw::Traffic, length: Duration) -> Result<Rates, Problem> {
    for (key, given) in [("curve", raw.curve.is_some()), ("step", raw.step.is_some())] {
        if given && raw.rates.is_none() {
            let remedy = "write `rates`, or remove it";
            return Err(problem(key, "it has no effect without `rates`", remedy));
        }
    }
    let Some(points) = &raw.rates else {
        return match raw.rate {
            Some(rate) if (MIN_RATE..=MAX_RATE).contains(&rate) => Ok(Rates::constant(rate)),
            _ => Err(problem(
                "rate",
                "missing or out of range",
                "use 1kbit to 10Gbit, or `rates`",
            )),
        };
    };
    if raw.rate.is_some() {
        return Err(problem("rates", "`rate` is also given", "keep one"));
    }
    let curve = raw.curve.unwrap_or_default();
    let step = raw.step.map_or(Duration::from_millis(100), |step| step.0);
    if curve == Curve::Steps && raw.step.is_some() {
        let remedy = "remove it, or set curve = \"linear\" or \"exponential\"";
        return Err(problem("step", "it has no effect with this curve", remedy));
    }
    if step < Duration::from_millis(1) {
        return Err(problem("step", "too short", "use 1ms or more"));
    }
    let ascending = points.windows(2).all(|pair| pair[0].at.0 < pair[1].at.0);
    if points.first().is_none_or(|point| !point.at.0.is_zero()) || !ascending {
        return Err(problem(
            "rates",
            "the times are not in order",
            "begin with at = \"0s\", the start of the traffic, and write the times in ascending order",
        ));
    }
    if points.last().is_some_and(|point| point.at.0 > length) {
        let remedy = "times count from the start of the traffic; use times before its stop";
        return Err(problem("rates", "a time after the end", remedy));
    }
    let low = match curve {
        Curve::Exponential => MIN_RATE,
        Curve::Linear | Curve::Steps => Bitrate::ZERO,
    };
    let in_range = |rate| (low..=MAX_RATE).contains(&rate);
    if !points.iter().all(|point| in_range(point.rate)) {
        let remedy = format!("use {low} to {MAX_RATE} with this curve");
        return Err(problem("rates", "a rate is out of range", remedy));
    }
    if points.iter().all(|point| point.rate < MIN_RATE) {
        return Err(problem("rates", "nothing is sent", "use a higher rate"));
    }
    let points = points.iter().map(|point| (point.at.0, point.rate));
    Ok(Rates::new(points.collect(), curve, step))
}

fn profile(raw: &raw::Traffic) -> Result<Profile, Problem> {
    let is_on_off = raw.profile == Some(raw::Profile::OnOff);
    for (key, span) in [("on", raw.on), ("off", raw.off)] {
        match span {
            Some(_) if !is_on_off => {
                let remedy = "remove it, or set profile = \"on-off\"";
                return Err(problem(key, "it has no effect with this profile", remedy));
            }
            None if is_on_off => {
                let remedy = "\"on-off\" needs `on` and `off`, such as on = \"1s\"";
                return Err(problem(key, "missing", remedy));
            }
            Some(span) if span.0 < Duration::from_millis(1) => {
                return Err(problem(key, "too short", "use 1ms or more"));
            }
            Some(_) | None => {}
        }
    }
    let is_frames = raw.profile == Some(raw::Profile::Frames);
    let interval = match raw.interval {
        None if is_frames => {
            let remedy = "\"frames\" needs `interval`, such as interval = \"25ms\"";
            return Err(problem("interval", "missing", remedy));
        }
        Some(_) if !is_frames => {
            let remedy = "remove it, or set profile = \"frames\"";
            return Err(problem(
                "interval",
                "it has no effect with this profile",
                remedy,
            ));
        }
        Some(span) if !(FRAMES.0..=FRAMES.1).contains(&span.0) => {
            return Err(problem("interval", "out of range", "use 1ms to 10s"));
        }
        interval => interval,
    };
    if let Some(interval) = interval {
        return Ok(Profile::Frames {
            interval: interval.0,
        });
    }
    Ok(match (raw.profile, raw.on, raw.off) {
        (Some(raw::Profile::OnOff), Some(on), Some(off)) => Profile::OnOff {
            on: on.0,
            off: off.0,
        },
        (Some(raw::Profile::Video), _, _) => Profile::Video,
        _ => Profile::Constant,
    })
}

fn video(raw: &raw::Traffic) -> Result<VideoSpec, Problem> {
    let rate = raw.rate.unwrap_or(Bitrate::from_mbps(8));
    if !(Bitrate::from_bps(200_000)..=Bitrate::from_mbps(100)).contains(&rate) {
        return Err(problem("rate", "out of range", "use 200kbit to 100Mbit"));
    }
    let deadline = raw
        .deadline
        .map_or(Duration::from_millis(200), |span| span.0);
    if !(Duration::from_millis(10)..=Duration::from_secs(10)).contains(&deadline) {
        return Err(problem("deadline", "out of range", "use 10ms to 10s"));
    }
    let transport = raw.transport.unwrap_or_default();
    if transport == VideoTransport::Srt && raw.link.is_some() {
        let remedy = "remove `link`, or use transport = \"rtp\"";
        return Err(problem("link", "SRT cannot run outside the tunnel", remedy));
    }
    Ok(VideoSpec {
        rate,
        transport,
        deadline,
        source: raw.source.unwrap_or_default(),
    })
}

fn jitter(raw: &raw::Traffic) -> Result<Duration, Problem> {
    let jitter = raw.jitter.map_or(Duration::ZERO, |span| span.0);
    if jitter > LONGEST_JITTER {
        return Err(problem("jitter", "too long", "use 1s or less"));
    }
    Ok(jitter)
}

fn deadline(raw: &raw::Traffic) -> Result<Option<Duration>, Problem> {
    match raw.deadline {
        Some(span) if !(FRAMES.0..=FRAMES.1).contains(&span.0) => {
            Err(problem("deadline", "out of range", "use 1ms to 10s"))
        }
        deadline => Ok(deadline.map(|span| span.0)),
    }
}

/// Shortest and longest interval between frames, and deadline of datagrams.
const FRAMES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(10));

/// Longest jitter. With a larger jitter, a sender would hardly have a rate.
const LONGEST_JITTER: Duration = Duration::from_secs(1);

/// Rejects keys that have no meaning for the kind of traffic.
fn only_for(raw: &raw::Traffic) -> Result<(), Problem> {
    use raw::Kind::{Ping, Requests, Tcp, Udp, Video, Voice};
    let rules: [(&'static str, bool, &[raw::Kind]); 17] = [
        ("cc", raw.cc.is_some(), &[Tcp]),
        ("flows", raw.flows.is_some(), &[Tcp]),
        ("opening", raw.opening.is_some(), &[Tcp]),
        ("rate", raw.rate.is_some(), &[Udp, Video]),
        ("rates", raw.rates.is_some(), &[Udp]),
        ("curve", raw.curve.is_some(), &[Udp]),
        ("step", raw.step.is_some(), &[Udp]),
        ("on", raw.on.is_some(), &[Udp]),
        ("off", raw.off.is_some(), &[Udp]),
        ("jitter", raw.jitter.is_some(), &[Udp]),
        ("size", raw.size.is_some(), &[Udp, Requests]),
        ("profile", raw.profile.is_some(), &[Udp]),
        ("interval", raw.interval.is_some(), &[Ping, Requests, Udp]),
        ("buffer", raw.buffer.is_some(), &[Voice]),
        ("deadline", raw.deadline.is_some(), &[Udp, Video]),
        ("transport", raw.transport.is_some(), &[Video]),
        ("source", raw.source.is_some(), &[Video]),
    ];
    if raw.kind == Requests && raw.direction == Direction::Up {
        let problem_text = "responses always go to the client";
        return Err(problem("direction", problem_text, "remove it"));
    }
    for (key, given, kinds) in rules {
        if given && !kinds.contains(&raw.kind) {
            let remedy = "remove it, or change `kind`";
            return Err(problem(key, "it has no effect for this kind", remedy));
        }
    }
    Ok(())
}
