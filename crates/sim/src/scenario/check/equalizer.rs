//! Equalizers: their links, the unit of spreading, and their weights over time.

use core::time::Duration;

use pleach_equalizer::MAX_LINKS;

use crate::{
    link::trace::Rate,
    scenario::{
        Action, End, EqualizerSpec, LinkSpec, Spread,
        check::{Problem, problem},
        raw,
    },
};

/// Default interval of `pleach equalize`.
const DEFAULT_INTERVAL: Duration = Duration::from_millis(50);
/// Default gap between flowlets, longer than the difference of most links' delays.
const DEFAULT_GAP: Duration = Duration::from_millis(50);

pub(super) fn equalizer(
    raw: &raw::Equalizer,
    earlier: &[EqualizerSpec],
    links: &[LinkSpec],
    has_tunnel: bool,
) -> Result<EqualizerSpec, Problem> {
    if has_tunnel {
        let text = "[tunnel] is also given";
        return Err(problem("equalizer", text, "keep one"));
    }
    if earlier.iter().any(|other| other.end == raw.end) {
        let remedy = "write at most one [[equalizer]] for each end";
        return Err(problem("end", "this end has another [[equalizer]]", remedy));
    }
    let names = match &raw.links {
        None => (0..links.len()).collect(),
        Some(names) => indices(names, links)?,
    };
    if names.len() > MAX_LINKS {
        let remedy = format!("name at most {MAX_LINKS} in `links`");
        return Err(problem("links", "too many", remedy));
    }
    let is_auto = raw.weights == raw::Weights::Auto;
    let is_flowlet = raw.spread == raw::Spread::Flowlet;
    if raw.interval.is_some() && !is_auto && raw.spread != raw::Spread::Delay {
        let remedy = "remove it, or set weights = \"auto\" or spread = \"delay\"";
        return Err(problem(
            "interval",
            "it has no effect, because nothing is measured",
            remedy,
        ));
    }
    if raw.gap.is_some() && !is_flowlet {
        let remedy = "remove it, or set spread = \"flowlet\"";
        return Err(problem("gap", "it has no effect with this spread", remedy));
    }
    let time = |key, span: Option<raw::Span>, default, from: Duration, to: Duration| {
        let time = span.map_or(default, |span| span.0);
        if (from..=to).contains(&time) {
            Ok(time)
        } else {
            let remedy = format!("use {from:?} to {to:?}");
            Err(problem(key, "out of range", remedy))
        }
    };
    let ms = Duration::from_millis;
    let interval = time(
        "interval",
        raw.interval,
        DEFAULT_INTERVAL,
        ms(10),
        ms(60_000),
    )?;
    let gap = time("gap", raw.gap, DEFAULT_GAP, ms(1), ms(10_000))?;
    let spec = EqualizerSpec {
        end: raw.end,
        links: names,
        spread: match raw.spread {
            raw::Spread::Delay => Spread::Delay,
            raw::Spread::Flow => Spread::Flow,
            raw::Spread::Flowlet => Spread::Flowlet { gap },
            raw::Spread::Packet => Spread::Packet,
        },
        auto_weights: is_auto,
        interval,
    };
    let unknown = spec.links.iter().find(|&&link| {
        let side = match spec.end {
            End::Client => &links[link].up,
            End::Gateway => &links[link].down,
        };
        !matches!(side.rate, Rate::Constant(_))
    });
    if let Some(&link) = unknown.filter(|_| is_auto) {
        return Err(problem(
            "weights",
            format!(
                "{:?} has no rate, which automatic weights need",
                links[link].name
            ),
            "give each of its links a `rate`, or set weights = \"fixed\"",
        ));
    }
    Ok(spec)
}

/// Returns the action of an event with `equalizer`. `None` if the event is of another kind.
pub(super) fn weights(
    raw: &raw::Event,
    equalizers: &[EqualizerSpec],
    links: &[LinkSpec],
) -> Result<Option<Action>, Problem> {
    let (end, weights) = match (raw.equalizer, &raw.weights) {
        (None, None) => return Ok(None),
        (Some(end), Some(weights)) => (end, weights),
        (Some(_), None) | (None, Some(_)) => {
            let remedy = "write both, such as weights = { dsl = 3, lte = 1 }";
            let text = "`equalizer` and `weights` are used only together";
            return Err(problem("weights", text, remedy));
        }
    };
    if raw.link.is_some() || raw.daemon.is_some() || raw.action.is_some() {
        let remedy = "write a separate [[event]] for each";
        return Err(problem(
            "equalizer",
            "the event also has keys for a link or a daemon",
            remedy,
        ));
    }
    let Some(spec) = equalizers.iter().find(|spec| spec.end == end) else {
        return Err(problem(
            "equalizer",
            "this end has no equalizer",
            "add [[equalizer]]",
        ));
    };
    if spec.auto_weights {
        let remedy = "set weights = \"fixed\" in its [[equalizer]]";
        return Err(problem(
            "weights",
            "the equalizer sets its weights itself",
            remedy,
        ));
    }
    let names: Vec<&str> = spec
        .links
        .iter()
        .map(|&at| links[at].name.as_str())
        .collect();
    if let Some(name) = weights.keys().find(|name| !names.contains(&name.as_str())) {
        let remedy = format!("its links are: {}", names.join(", "));
        return Err(problem(
            "weights",
            format!("{name:?} is not one of its links"),
            remedy,
        ));
    }
    let all: Option<Vec<u32>> = names
        .iter()
        .map(|name| weights.get(*name).copied())
        .collect();
    match all {
        Some(all) if all.iter().any(|&weight| weight > 0) => {
            Ok(Some(Action::Weights { end, weights: all }))
        }
        Some(_) => Err(problem(
            "weights",
            "all zero",
            "give one link a weight above zero",
        )),
        None => {
            let remedy = format!("write one for each of: {}", names.join(", "));
            Err(problem("weights", "a link is missing", remedy))
        }
    }
}

fn indices(names: &[String], links: &[LinkSpec]) -> Result<Vec<usize>, Problem> {
    let mut indices = Vec::new();
    for name in names {
        let Some(index) = links.iter().position(|link| link.name == *name) else {
            let known: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
            let remedy = format!("the links are: {}", known.join(", "));
            return Err(problem("links", format!("there is no {name:?}"), remedy));
        };
        if indices.contains(&index) {
            return Err(problem(
                "links",
                format!("{name:?} is given twice"),
                "name it once",
            ));
        }
        indices.push(index);
    }
    if indices.is_empty() {
        return Err(problem(
            "links",
            "none",
            "name at least one link, or remove the key to use all links",
        ));
    }
    Ok(indices)
}
