//! Links and shared bottlenecks: parameters, overrides, trace files.

use core::time::Duration;
use std::sync::Arc;

use pleach_core::units::Bytes;

use crate::{
    link::{
        LinkChange, LinkConfig,
        bundle::SharedConfig,
        loss::{BlockErrors, Gilbert, Loss},
        trace::{Opportunities, Rate, Steps},
    },
    scenario::{
        Cost, Files, LinkSpec, SharedSpec,
        check::{Problem, problem},
        raw,
    },
};

pub(super) fn link_spec(
    raw: &raw::Link,
    earlier: &[LinkSpec],
    shared: &[SharedSpec],
    files: &mut Files<'_>,
) -> Result<LinkSpec, Problem> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if !(1..=15).contains(&raw.name.len()) || !raw.name.bytes().all(allowed) || raw.name == "lo" {
        return Err(problem(
            "name",
            "it is not a valid device name",
            "use 1 to 15 of a-z, 0-9, -",
        ));
    }
    let taken = earlier.iter().any(|link| link.name == raw.name)
        || shared.iter().any(|shared| shared.name == raw.name);
    if taken {
        return Err(problem(
            "name",
            "it is already used",
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

pub(super) fn shared_spec(raw: &raw::Shared, files: &mut Files<'_>) -> Result<SharedSpec, Problem> {
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

/// Returns the down and up direction of a section with its overrides.
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

pub(super) fn change(raw: &raw::Params, files: &mut Files<'_>) -> Result<LinkChange, Problem> {
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
            return Err(problem("gilbert", "`loss` is also given", "keep one"));
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
    if raw.mtu.is_some_and(|mtu| mtu < LEAST_MTU) {
        let remedy = "use 1280B or more: IPv6 needs it";
        return Err(problem("mtu", "below 1280B", remedy));
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
        block_errors: match raw.block_errors {
            None => None,
            Some(errors) => Some(BlockErrors {
                packet: probability("block_errors", errors.packet)?,
                block: probability("block_errors", errors.block)?,
                two: probability("block_errors", errors.two)?,
            }),
        },
        mtu: raw.mtu,
        state: None,
    })
}

/// Smallest MTU, RFC 8200 section 5.
const LEAST_MTU: Bytes = Bytes::new(1_280);

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
    let remedy = "the documentation of traces describes the formats";
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
    let Some(path) = files.path_of(name) else {
        return Err(problem(
            key,
            format!("the directory of recorded links is not set, so {name:?} cannot be found"),
            "set PLEACH_TRACES to this directory",
        ));
    };
    (files.read)(&path).map_err(|error| {
        problem(
            key,
            format!("cannot read {}: {error}", path.display()),
            "paths are relative to the scenario file; \"traces:NAME\" means NAME in PLEACH_TRACES",
        )
    })
}
