//! Computes [`Results`] from the measurements of the phases.

mod changes;
mod ranks;

use core::time::Duration;

use hdrhistogram::Histogram as HdrHistogram;

use crate::{
    idle_delay::IdleDelay,
    link::{LinkConfig, LinkState, histogram::Histogram, trace::Rate},
    measure::{BIN, FlowReport, LinkReport, PhaseReport, SAMPLE},
    phases::Setup,
    results::{
        self, Baseline, Direction, Event, EventKind, FlowKind, FlowResult, FlowSeries, Lateness,
        LatenessBin, LinkResult, LinkSeries, LinkSide, Pings, Quantiles, Repeat, Results, Series,
        Transport, VoiceResult, World,
    },
    scenario::{
        Action, DaemonAction, Direction as Way, Directions, End, Event as Planned, Scenario,
        Traffic, TrafficKind,
    },
    voice,
};

/// Time after an event within which a gap in the payload counts as its consequence.
const GAP_WINDOW: Duration = Duration::from_secs(2);
/// Upper ends of the lateness histogram's bins in microseconds.
const LATENESS_BINS_US: [u64; 12] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 100_000, 10_000_000,
];

/// Returns the results of all phases that ran in `world`: the results of the repetition with the median goodput, and
/// the baselines. `repeats` are the reports of all runs of the scenario itself.
///
/// Each entry of `baselines` is a baseline with the report of its phase. Without repeats the results are empty.
#[must_use]
pub fn join(
    scenario: &Scenario,
    world: World,
    mut repeats: Vec<PhaseReport>,
    baselines: &[(Setup, PhaseReport)],
) -> Results {
    let goodputs: Vec<f64> = repeats
        .iter()
        .map(|report| bulk_goodput(scenario, report, false))
        .collect();
    let mut numbers = vec![Repeat::new("goodput_mbps", goodputs.clone())];
    if repeats.len() > 1 {
        numbers.extend(expected_figures(scenario, &repeats));
    }
    let mut order: Vec<usize> = (0..repeats.len()).collect();
    order.sort_by(|&a, &b| goodputs[a].total_cmp(&goodputs[b]));
    let median = order.get(order.len().saturating_sub(1) / 2).copied();
    let late = repeats
        .iter()
        .map(|report| ("a repetition", report))
        .chain(
            baselines
                .iter()
                .map(|(setup, report)| (setup.label.as_str(), report)),
        )
        .find_map(|(label, report)| {
            let p99 = lateness(report)?.p99;
            (p99 > results::LATENESS_LIMIT_US)
                .then(|| format!("the emulator was late during {label}: p99 {p99:.0} µs"))
        });
    let chosen = median.map(|index| repeats.swap_remove(index));
    let mut results = chosen.map_or_else(Results::default, |report| {
        let mut results = phase_results(scenario, &report);
        results.baselines = baselines
            .iter()
            .map(|(setup, other)| baseline(scenario, setup, other, &report))
            .collect();
        results
    });
    results.world = world;
    results.judge_lateness();
    results.refused = results.refused.take().or(late);
    if goodputs.len() > 1 {
        results.repeats = numbers;
    }
    results
}

/// Returns, for each expectation, the figure that it concerns, with the value in each run. A value that was not
/// measured is NaN.
fn expected_figures(scenario: &Scenario, repeats: &[PhaseReport]) -> Vec<Repeat> {
    let runs: Vec<Results> = repeats
        .iter()
        .map(|report| phase_results(scenario, report))
        .collect();
    let figures = scenario.expect.keys().filter_map(|key| {
        let (name, field) = key.split_once('.')?;
        let values = runs.iter().map(|run| figure(run, name, field));
        let values = values.map(|value| value.unwrap_or(f64::NAN)).collect();
        Some(Repeat::new(key, values))
    });
    figures.collect()
}

/// Returns the results of one phase, without baselines and repetitions.
fn phase_results(scenario: &Scenario, report: &PhaseReport) -> Results {
    let transport = match scenario.tunnel {
        Some(_) => Transport::Tunnel,
        None => Transport::Raw,
    };
    let pings = report
        .flows
        .iter()
        .flatten()
        .find_map(|flow| flow.pings.clone());
    let flows = scenario.traffic.iter().zip(&report.flows);
    let flows = flows.filter_map(|(traffic, flow)| Some((traffic, flow.as_ref()?)));
    Results {
        scenario: scenario.name.clone(),
        description: scenario.description.clone(),
        seed: scenario.seed,
        policy: scenario
            .tunnel
            .as_ref()
            .map_or_else(String::new, |tunnel| tunnel.policy.clone()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        duration_s: scenario.duration.as_secs_f64(),
        flows: flows
            .clone()
            .map(|(traffic, flow)| FlowResult {
                start_lost_pkts: changes::lost_at_start(scenario, traffic, report),
                start_line_losses_pkts: changes::line_losses_at_start(scenario, traffic, report),
                return_ms: changes::return_ms(scenario, traffic, report),
                ..flow_result(scenario, traffic, flow, &transport)
            })
            .collect(),
        links: links(scenario, report),
        video: flows
            .clone()
            .filter_map(|(_, flow)| flow.video.clone())
            .collect(),
        voice: flows
            .clone()
            .filter_map(|(traffic, flow)| voice_result(scenario, traffic, flow))
            .collect(),
        events: scenario
            .events
            .iter()
            .map(|event| event_result(scenario, event, report))
            .collect(),
        series: Series {
            interval_ms: millis(SAMPLE),
            links: link_series(scenario, report),
            flows: flows
                .map(|(traffic, flow)| flow_series(scenario, traffic, flow))
                .collect(),
            ping: pings
                .as_ref()
                .map_or_else(Vec::new, |(_, _, points)| points.clone()),
            lateness: lateness_bins(report),
        },
        pings: pings.map(|(idle, loaded, _)| Pings { idle, loaded }),
        lateness_us: lateness(report),
        status: report.status.clone(),
        ..Results::default()
    }
}

/// Returns the baseline `setup`, compared with the main run `main`.
fn baseline(
    scenario: &Scenario,
    setup: &Setup,
    report: &PhaseReport,
    main: &PhaseReport,
) -> Baseline {
    let goodput_mbps = bulk_goodput(scenario, report, setup.tcp_only);
    let ratio = bulk_goodput(scenario, main, setup.tcp_only) / goodput_mbps;
    Baseline {
        label: setup.label.clone(),
        transport: setup.transport.clone(),
        goodput_mbps,
        ratio: ratio.is_finite().then_some(ratio),
        series_mbps: bulk_series(scenario, report, setup.tcp_only),
    }
}

/// Returns the payload of all bulk flows over time, in Mbit/s per [`SAMPLE`].
fn bulk_series(scenario: &Scenario, report: &PhaseReport, tcp_only: bool) -> Vec<f64> {
    let mut sum = FlowReport::default();
    for (traffic, flow) in scenario.traffic.iter().zip(&report.flows) {
        let is_counted = is_bulk(traffic, tcp_only) && !is_cross(scenario, traffic);
        if let Some(flow) = flow.as_ref().filter(|_| is_counted) {
            sum.add(FlowReport {
                bins: flow.bins.clone(),
                ..FlowReport::default()
            });
        }
    }
    rate_series(scenario, &sum.bins)
}

/// Returns the sum of the goodputs of all bulk flows, each over its own duration, in Mbit/s.
fn bulk_goodput(scenario: &Scenario, report: &PhaseReport, tcp_only: bool) -> f64 {
    let flows = scenario.traffic.iter().zip(&report.flows);
    flows
        .filter(|(traffic, _)| is_bulk(traffic, tcp_only) && !is_cross(scenario, traffic))
        .filter_map(|(traffic, flow)| Some(goodput_mbps(traffic, flow.as_ref()?)))
        .sum()
}

/// Returns the lateness of the emulator in both directions together.
fn lateness(report: &PhaseReport) -> Option<Lateness> {
    let all = all_lateness(report)?;
    Some(Lateness {
        p50: micros(all.value_at_quantile(0.50)),
        p99: micros(all.value_at_quantile(0.99)),
        max: Some(micros(all.max())),
        limit_p99: None,
    })
}

/// Returns the expectations of `scenario` that `results` do not meet, one line each.
#[must_use]
pub fn unmet_expectations(scenario: &Scenario, results: &Results) -> Vec<String> {
    let mut unmet = Vec::new();
    for (key, bounds) in &scenario.expect {
        let Some((name, field)) = key.split_once('.') else {
            continue;
        };
        match figure(results, name, field) {
            Some(value) if bounds.accept(value) => {}
            Some(value) => unmet.push(format!(
                "{key} = {value:.3}, expected {} to {}",
                bounds.min.map_or("-".to_owned(), |min| min.to_string()),
                bounds.max.map_or("-".to_owned(), |max| max.to_string()),
            )),
            None => unmet.push(format!("{key} was not measured")),
        }
    }
    unmet
}

/// Returns the figure `field` of the flow or link called `name`.
fn figure(results: &Results, name: &str, field: &str) -> Option<f64> {
    let link = || results.links.iter().find(|link| link.name == name);
    match field {
        "excess" => return link()?.down.excess,
        "fill" => return link()?.down.fill,
        _ => {}
    }
    let flow = results.flows.iter().find(|flow| flow.name == name)?;
    let voice = results.voice.iter().find(|voice| voice.flow == name);
    let video = results.video.iter().find(|video| video.flow == name);
    match field {
        "added_p99_ms" => voice.and_then(|voice| voice.added_ms.p99),
        "delay_p50_ms" => flow.delay_ms.p50,
        "delay_p95_ms" => flow.delay_ms.p95,
        "delay_p99_ms" => flow.delay_ms.p99,
        "frozen_s" => video.map(|video| video.frozen_s),
        "goodput_mbps" => Some(flow.goodput_mbps),
        "longest_gap_ms" => flow.longest_gap_ms,
        "loss" => Some(flow.loss),
        "mos" => voice.map(|voice| voice.mos),
        "return_ms" => flow.return_ms,
        "ssim" => video.and_then(|video| video.ssim),
        "start_line_losses_pkts" => flow.start_line_losses_pkts.map(count),
        "start_lost_pkts" => flow.start_lost_pkts.map(count),
        "reorder_depth_max" => Some(count(flow.reorder_depth_max)),
        "unusable" => flow.unusable,
        _ => None,
    }
}

fn flow_result(
    scenario: &Scenario,
    traffic: &Traffic,
    flow: &FlowReport,
    transport: &Transport,
) -> FlowResult {
    let (kind, cc) = match &traffic.kind {
        TrafficKind::Ping { .. } => (FlowKind::Ping, None),
        TrafficKind::Quic => (FlowKind::Quic, None),
        TrafficKind::Requests { .. } => (FlowKind::Requests, None),
        TrafficKind::Tcp { cc, .. } => (FlowKind::Tcp, cc.clone()),
        TrafficKind::Udp { .. } => (FlowKind::Udp, None),
        TrafficKind::Video(_) => (FlowKind::Video, None),
        TrafficKind::Voice { .. } => (FlowKind::Voice, None),
    };
    let (start, stop) = (traffic.start, traffic.stop);
    let only_link = traffic.link.and_then(|index| scenario.links.get(index));
    let counts = !matches!(kind, FlowKind::Quic | FlowKind::Tcp);
    let gap = is_bulk(traffic, false).then(|| flow.longest_gap(stop, start, stop));
    FlowResult {
        name: traffic.name.clone(),
        kind,
        direction: match traffic.direction {
            Way::Down => Direction::Down,
            Way::Up => Direction::Up,
        },
        transport: only_link.map_or_else(
            || transport.clone(),
            |link| Transport::Single(link.name.clone()),
        ),
        cc,
        start_s: start.as_secs_f64(),
        duration_s: (stop - start).as_secs_f64(),
        goodput_mbps: goodput_mbps(traffic, flow),
        loss: flow.loss(),
        delay_ms: Quantiles::of(&mut flow.delays_ms.clone()),
        sent_pkts: counts.then_some(flow.sent),
        received_pkts: counts.then_some(flow.received),
        in_order_pkts: matches!(kind, FlowKind::Udp | FlowKind::Voice)
            .then_some(flow.received_in_order),
        unusable: deadline(traffic).map(|_| flow.unusable()),
        reorder_depth_max: flow.reorder_depth_max,
        longest_gap_ms: gap.map(millis),
        retransmits: flow.retransmits,
        ..FlowResult::default()
    }
}

fn voice_result(scenario: &Scenario, traffic: &Traffic, flow: &FlowReport) -> Option<VoiceResult> {
    let TrafficKind::Voice { buffer } = traffic.kind else {
        return None;
    };
    let (name, start) = (&traffic.name, traffic.start);
    Some(voice::judge(
        name,
        &flow.by_number,
        flow.sent,
        start,
        buffer,
        &IdleDelay::of(scenario, traffic),
    ))
}

fn links(scenario: &Scenario, report: &PhaseReport) -> Vec<LinkResult> {
    let sides = report.down.links.iter().zip(&report.up.links);
    scenario
        .links
        .iter()
        .zip(sides)
        .enumerate()
        .map(|(index, (link, (down, up)))| {
            let ranked = |side: LinkSide, links: &[LinkReport]| LinkSide {
                fill: ranks::fill(scenario, index, links),
                excess: ranks::excess(scenario, index, links),
                ..side
            };
            let down = ranked(link_side(&link.down, down), &report.down.links);
            let up = ranked(link_side(&link.up, up), &report.up.links);
            LinkResult {
                name: link.name.clone(),
                tx_bytes: down.tx_bytes + up.tx_bytes,
                queue_drops: down.queue_drops + up.queue_drops,
                loss_drops: down.loss_drops + up.loss_drops,
                down,
                up,
            }
        })
        .collect()
}

fn link_side(config: &LinkConfig, report: &LinkReport) -> LinkSide {
    let seconds: f64 = report.samples.iter().map(|_| SAMPLE.as_secs_f64()).sum();
    let capacity: Option<u64> = report
        .samples
        .iter()
        .map(|sample| sample.capacity.map(|bytes| bytes.get()))
        .sum();
    let capacity_mbps = capacity
        .map(|bytes| mbps(bytes, seconds))
        .filter(|rate| rate.is_finite());
    let used: u64 = report.samples.iter().map(|sample| sample.tx_bytes).sum();
    LinkSide {
        tx_bytes: report.stats.tx_bytes,
        queue_drops: report.stats.queue_drops,
        loss_drops: report.stats.loss_drops + report.stats.state_drops,
        rate_mbps: match config.rate {
            Rate::Constant(rate) => Some(rate.as_mbps()),
            Rate::Opportunities(_) | Rate::Steps(_) | Rate::Unlimited => None,
        },
        capacity_mbps,
        utilisation: capacity_mbps
            .filter(|&capacity| capacity > 0.0)
            .map(|capacity| mbps(used, seconds) / capacity),
        queue_delay_ms: quantiles(&report.queue_delay),
        ..LinkSide::default()
    }
}

fn link_series(scenario: &Scenario, report: &PhaseReport) -> Vec<LinkSeries> {
    let sample_s = SAMPLE.as_secs_f64();
    let rate = |link: &LinkReport| {
        let samples = link.samples.iter();
        samples.map(|s| mbps(s.tx_bytes, sample_s)).collect()
    };
    let queue = |link: &LinkReport| {
        let samples = link.samples.iter();
        samples.map(|s| millis(s.longest_wait)).collect()
    };
    let capacity = |link: &LinkReport| {
        let samples = link.samples.iter();
        let capacity = samples.map(|s| Some(mbps(s.capacity?.get(), sample_s)));
        capacity.collect::<Option<Vec<f64>>>().unwrap_or_default()
    };
    let lost = |link: &LinkReport| {
        let samples = link.samples.iter();
        samples.map(|s| count(s.lost_pkts)).collect()
    };
    let sides = report.down.links.iter().zip(&report.up.links);
    scenario
        .links
        .iter()
        .zip(sides)
        .enumerate()
        .map(|(index, (link, (down, up)))| LinkSeries {
            name: link.name.clone(),
            down_mbps: rate(down),
            up_mbps: rate(up),
            queue_down_ms: queue(down),
            queue_up_ms: queue(up),
            capacity_down_mbps: capacity(down),
            capacity_up_mbps: capacity(up),
            lost_down_pkts: lost(down),
            lost_up_pkts: lost(up),
            weight: report.weights.get(index).cloned().unwrap_or_default(),
        })
        .collect()
}

fn flow_series(scenario: &Scenario, traffic: &Traffic, flow: &FlowReport) -> FlowSeries {
    let udp_only = |bins| match traffic.kind {
        TrafficKind::Udp { .. } | TrafficKind::Video(_) | TrafficKind::Voice { .. } => {
            rate_series(scenario, bins)
        }
        TrafficKind::Ping { .. }
        | TrafficKind::Quic
        | TrafficKind::Requests { .. }
        | TrafficKind::Tcp { .. } => Vec::new(),
    };
    FlowSeries {
        name: traffic.name.clone(),
        goodput_mbps: rate_series(scenario, &flow.bins),
        in_order_mbps: udp_only(&flow.in_order_bins),
        sent_mbps: udp_only(&flow.sent_bins),
        in_time_mbps: match deadline(traffic) {
            Some(_) => rate_series(scenario, &flow.in_time_bins),
            None => Vec::new(),
        },
    }
}

fn deadline(traffic: &Traffic) -> Option<Duration> {
    match traffic.kind {
        TrafficKind::Udp { deadline, .. } => deadline,
        TrafficKind::Ping { .. }
        | TrafficKind::Quic
        | TrafficKind::Requests { .. }
        | TrafficKind::Tcp { .. }
        | TrafficKind::Video(_)
        | TrafficKind::Voice { .. } => None,
    }
}

/// Returns the payload `bins` over time, in Mbit/s per [`SAMPLE`] of the run.
fn rate_series(scenario: &Scenario, bins: &[u64]) -> Vec<f64> {
    let mut bins = bins.to_vec();
    bins.resize(bin_index(scenario.duration), 0);
    bins.chunks(bin_index(SAMPLE).max(1))
        .map(|bins| mbps(bins.iter().sum(), SAMPLE.as_secs_f64()))
        .collect()
}

fn event_result(scenario: &Scenario, event: &Planned, report: &PhaseReport) -> Event {
    let one_way = |directions: &Directions| match directions {
        Directions::Both => "",
        Directions::Down => " downwards",
        Directions::Up => " upwards",
    };
    let (link, kind, text) = match &event.action {
        Action::Link {
            link,
            directions,
            change,
        } => {
            let name = scenario.links.get(*link).map(|link| link.name.clone());
            let (kind, word) = match change.state {
                Some(LinkState::Blackhole) => (EventKind::Silent, "silent"),
                Some(LinkState::Down) => (EventKind::Down, "down"),
                Some(LinkState::Up) => (EventKind::Up, "back"),
                None => (EventKind::Change, "changes"),
            };
            let way = one_way(directions);
            let text = format!("{} {word}{way}", name.as_deref().unwrap_or("link"));
            (name, kind, text)
        }
        Action::Shared {
            shared, directions, ..
        } => {
            let name = scenario
                .shared
                .get(*shared)
                .map(|shared| shared.name.as_str());
            let way = one_way(directions);
            let text = format!("{} changes{way}", name.unwrap_or("shared bottleneck"));
            (None, EventKind::Change, text)
        }
        Action::Daemon { end, action } => {
            let end = match end {
                End::Client => "client",
                End::Gateway => "gateway",
            };
            let word = match action {
                DaemonAction::Kill => "killed",
                DaemonAction::Restart => "restarted",
            };
            (None, EventKind::Note, format!("{end} {word}"))
        }
        Action::Weights { end, weights } => {
            let links = scenario
                .equalizer(*end)
                .into_iter()
                .flat_map(|spec| &spec.links);
            let names = links.filter_map(|&link| Some(&scenario.links.get(link)?.name));
            let words = names
                .zip(weights)
                .map(|(name, weight)| format!("{name} {weight}"));
            let words: Vec<String> = words.collect();
            (
                None,
                EventKind::Note,
                format!("weights: {}", words.join(", ")),
            )
        }
    };
    let flows = scenario.traffic.iter().zip(&report.flows);
    let gap = flows
        .filter(|(traffic, _)| is_bulk(traffic, false) && !is_cross(scenario, traffic))
        .filter_map(|(traffic, flow)| {
            let (from, to) = (event.at, event.at + GAP_WINDOW);
            Some(flow.as_ref()?.longest_gap(traffic.stop, from, to))
        })
        .max();
    Event {
        time_s: event.at.as_secs_f64(),
        link,
        kind,
        text,
        gap_ms: gap.map(millis),
    }
}

fn lateness_bins(report: &PhaseReport) -> Vec<LatenessBin> {
    let Some(all) = all_lateness(report) else {
        return Vec::new();
    };
    let mut low_ns = 0;
    LATENESS_BINS_US
        .iter()
        .map(|&up_to_us| {
            let high_ns = up_to_us * 1_000;
            let count = all.count_between(low_ns, high_ns);
            low_ns = high_ns + 1;
            LatenessBin {
                up_to_us: micros(high_ns),
                count,
            }
        })
        .collect()
}

fn all_lateness(report: &PhaseReport) -> Option<HdrHistogram<u64>> {
    let mut all = report.down.lateness_ns.clone()?;
    // Both histograms have the same bounds, so adding cannot fail.
    let _ = all.add(report.up.lateness_ns.as_ref()?);
    Some(all)
}

pub(crate) fn is_bulk(traffic: &Traffic, tcp_only: bool) -> bool {
    match traffic.kind {
        TrafficKind::Tcp { .. } => true,
        TrafficKind::Quic | TrafficKind::Udp { .. } | TrafficKind::Video(_) => !tcp_only,
        TrafficKind::Ping { .. } | TrafficKind::Requests { .. } | TrafficKind::Voice { .. } => {
            false
        }
    }
}

/// Whether `traffic` is cross traffic: it does not use the tunnel, so it says nothing about the tunnel.
fn is_cross(scenario: &Scenario, traffic: &Traffic) -> bool {
    traffic.link.is_some() && scenario.tunnel.is_some()
}

fn goodput_mbps(traffic: &Traffic, flow: &FlowReport) -> f64 {
    mbps(
        flow.total_bytes(),
        (traffic.stop - traffic.start).as_secs_f64(),
    )
}

fn quantiles(histogram: &Histogram) -> Quantiles {
    let quantile = |q| (histogram.count() > 0).then(|| millis(histogram.quantile(q)));
    Quantiles {
        p50: quantile(0.50),
        p95: quantile(0.95),
        p99: quantile(0.99),
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^53")]
fn mbps(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 * 8e-6 / seconds
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn count(pkts: u64) -> f64 {
    pkts as f64
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds are far below 2^53")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 * 1e-3
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn bin_index(at: Duration) -> usize {
    usize::try_from(at.as_nanos() / BIN.as_nanos()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
