//! Interpretation of the measurements of a run: the headline figures and the verdict in one sentence.
//!
//! The headline is about the bulk traffic (TCP, QUIC, UDP and video) of the direction that carried more. It is
//! compared with each link alone. If the same traffic was measured over every link, these measurements are used.
//! Otherwise the rate of the link is used (its capacity, or the configured rate), which includes headers and is
//! therefore a few percent higher.

use crate::{
    report::{
        format::{duration, number, ratio, short, words},
        media,
    },
    results::{
        Direction, Event, EventKind, FlowKind, FlowResult, LinkResult, LinkSide, Results, Transport,
    },
};

/// Headline figures. `None` or empty where the results do not contain the figure.
pub(crate) struct Facts<'a> {
    /// Direction of the headline.
    pub(crate) direction: Direction,
    /// Transport that carried the headline's traffic.
    pub(crate) transport: Transport,
    /// Bulk flows of the headline.
    pub(crate) bulk: Vec<&'a FlowResult>,
    /// Sum of the goodputs of the bulk flows, in Mbit/s.
    pub(crate) goodput_mbps: Option<f64>,
    /// Name and Mbit/s of each link alone. Empty if unknown.
    pub(crate) alone: Vec<(&'a str, f64)>,
    /// Whether `alone` was measured with the same traffic. Otherwise it is taken from the links' rates.
    pub(crate) alone_measured: bool,
    /// The failure after which no data arrived for the longest time.
    pub(crate) worst_failure: Option<&'a Event>,
    /// Longest time without data after a failure, in milliseconds.
    pub(crate) stall_ms: Option<f64>,
    /// Medians of the idle and the loaded ping, in milliseconds.
    pub(crate) ping_ms: Option<(f64, f64)>,
    results: &'a Results,
}

impl<'a> Facts<'a> {
    pub(crate) fn new(results: &'a Results) -> Self {
        // Traffic over one link outside a tunnel is part of the conditions, not a result of the tunnel.
        let has_tunnel = results
            .flows
            .iter()
            .any(|f| f.transport == Transport::Tunnel);
        let is_cross = |f: &&FlowResult| has_tunnel && matches!(f.transport, Transport::Single(_));
        let bulk_of = |direction| -> Vec<&'a FlowResult> {
            let is_bulk = |f: &&FlowResult| is_bulk(f) && f.direction == direction;
            let flows = results.flows.iter().filter(is_bulk);
            flows.filter(|f| !is_cross(f)).collect()
        };
        let (down, up) = (bulk_of(Direction::Down), bulk_of(Direction::Up));
        let rate = |flows: &[&FlowResult]| total_goodput(flows, results.duration_s);
        let (direction, bulk) = if rate(&up) > rate(&down) {
            (Direction::Up, up)
        } else {
            (Direction::Down, down)
        };
        let (alone, alone_measured) = each_alone(results, direction);
        let worst_failure = failures(results)
            .filter(|e| e.gap_ms.is_some_and(f64::is_finite))
            .max_by(|a, b| f64::total_cmp(&a.gap_ms.unwrap_or(0.0), &b.gap_ms.unwrap_or(0.0)));
        let longest_gap = bulk
            .iter()
            .filter_map(|f| finite(f.longest_gap_ms))
            .reduce(f64::max);
        let ping_ms = results
            .pings
            .as_ref()
            .and_then(|p| Some((finite(p.idle.rtt_ms.p50)?, finite(p.loaded.rtt_ms.p50)?)));
        Self {
            direction,
            transport: bulk
                .first()
                .map(|f| f.transport.clone())
                .unwrap_or_default(),
            goodput_mbps: rate(&bulk),
            bulk,
            alone,
            alone_measured,
            worst_failure,
            stall_ms: longest_gap.or(worst_failure.and_then(|e| e.gap_ms)),
            ping_ms,
            results,
        }
    }

    /// Returns the fastest link and its rate alone.
    pub(crate) fn best(&self) -> Option<(&'a str, f64)> {
        let best = self.alone.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        (best.1 > 0.0).then_some(*best)
    }

    /// Returns the sum of the rates of all links alone, in Mbit/s.
    pub(crate) fn sum_mbps(&self) -> Option<f64> {
        let sum: f64 = self.alone.iter().map(|(_, rate)| rate).sum();
        (sum > 0.0).then_some(sum)
    }

    /// Returns the share of `sum_mbps` that the headline reached. `None` if there is a film, because the rate of a
    /// film does not depend on the links.
    pub(crate) fn share_of_sum(&self) -> Option<f64> {
        if self.has_film() {
            return None;
        }
        Some(self.goodput_mbps? / self.sum_mbps()?)
    }

    /// Whether the headline contains a film, whose rate does not depend on the links.
    pub(crate) fn has_film(&self) -> bool {
        self.bulk.iter().any(|flow| flow.kind == FlowKind::Video)
    }

    /// Returns the measurements of `link` in the headline's direction.
    pub(crate) fn side<'l>(&self, link: &'l LinkResult) -> &'l LinkSide {
        match self.direction {
            Direction::Down => &link.down,
            Direction::Up => &link.up,
        }
    }

    /// Returns the verdict in one sentence, or in two if the run was refused.
    pub(crate) fn verdict(&self) -> String {
        let mut clauses = vec![self.headline()];
        clauses.extend(self.other_direction());
        clauses.extend(self.regret());
        clauses.extend(self.failure());
        clauses.extend(media::clauses(self.results));
        clauses.extend(self.ping());
        let sentence = clauses.join("; ") + ".";
        match &self.results.refused {
            Some(reason) => format!("Not valid: {}. {sentence}", reason.trim_end_matches('.')),
            None => sentence,
        }
    }

    fn headline(&self) -> String {
        let Some(goodput) = self.goodput_mbps else {
            return self.without_bulk();
        };
        let over = match &self.transport {
            Transport::Mptcp => " over MPTCP".to_owned(),
            Transport::Raw => " without bonding".to_owned(),
            Transport::Single(link) => format!(" over {link} alone"),
            Transport::Tunnel => String::new(),
        };
        let lines = match self.transport {
            Transport::Mptcp | Transport::Tunnel => self.lines_used(),
            Transport::Raw | Transport::Single(_) => None,
        };
        let what = flows_in_words(&self.bulk);
        let mut text = match lines {
            Some(lines) => format!("{what}{over} used {lines}: {} Mbit/s", short(goodput)),
            None => format!("{what}{over} carried {} Mbit/s", short(goodput)),
        };
        if let (Some(share), true) = (self.share_of_sum(), self.alone.len() > 1) {
            let of = if self.alone_measured {
                "of the sum"
            } else {
                "of the lines' rates together"
            };
            text += &format!(", {} {of}", ratio(share));
        }
        text
    }

    /// Returns a clause with the links that carried at least [`USED_SHARE`] of the bytes.
    fn lines_used(&self) -> Option<String> {
        let bytes = |l: &LinkResult| self.side(l).tx_bytes as f64;
        let total: f64 = self.results.links.iter().map(bytes).sum();
        if total <= 0.0 {
            return None;
        }
        let used: Vec<&str> = self
            .results
            .links
            .iter()
            .filter(|l| bytes(l) >= USED_SHARE * total)
            .map(|l| l.name.as_str())
            .collect();
        Some(match (used.len(), self.results.links.len()) {
            (1, 1) => format!("the line {}", used[0]),
            (2, 2) => "both lines".to_owned(),
            (n, all) if n == all => format!("all {n} lines"),
            (1, _) => format!("only {}", used[0]),
            (n, all) => format!("{} of {all} lines", words(n)),
        })
    }

    fn without_bulk(&self) -> String {
        let typical = |f: &FlowResult| finite(f.delay_ms.p50);
        let timed = self
            .results
            .flows
            .iter()
            .filter(|f| matches!(f.kind, FlowKind::Ping | FlowKind::Requests))
            .find_map(|f| Some((f, typical(f)?)));
        match timed {
            Some((flow, p50)) if flow.kind == FlowKind::Requests => {
                format!("Requests took {} in the median", duration(p50))
            }
            Some((_, p50)) => format!("A ping took {} in the median", duration(p50)),
            None => "The run has no traffic to judge".to_owned(),
        }
    }

    fn other_direction(&self) -> Option<String> {
        let other: Vec<&FlowResult> = self
            .results
            .flows
            .iter()
            .filter(|f| is_bulk(f) && f.direction != self.direction)
            .collect();
        let goodput = total_goodput(&other, self.results.duration_s)?;
        let what = flows_in_words(&other).to_lowercase().replace("udp", "UDP");
        Some(format!(
            "{what} at the same time carried {} Mbit/s",
            short(goodput)
        ))
    }

    /// Returns a clause if a single link alone would have been faster.
    fn regret(&self) -> Option<String> {
        let (name, best) = self.best()?;
        let slower = self.goodput_mbps? < NO_REGRET * best;
        (slower && self.transport == Transport::Tunnel && !self.has_film())
            .then(|| format!("that is less than {name} alone, {} Mbit/s", short(best)))
    }

    fn failure(&self) -> Option<String> {
        if let Some(event) = self.worst_failure {
            let gap = event.gap_ms.unwrap_or(0.0);
            let stop = if gap < 1.0 {
                "data did not stop".to_owned()
            } else {
                format!("data stopped for {}", duration(gap))
            };
            let worst = if failures(self.results).count() > 1 && gap >= 1.0 {
                " at worst"
            } else {
                ""
            };
            return Some(format!("{}, {stop}{worst}", when(event)));
        }
        let event = failures(self.results).next()?;
        let gap = self.stall_ms?;
        Some(format!(
            "{}, data never stopped for more than {}",
            when(event),
            duration(gap)
        ))
    }

    fn ping(&self) -> Option<String> {
        let (idle, loaded) = self.ping_ms?;
        self.goodput_mbps?;
        Some(format!(
            "a ping during the traffic took {} instead of {}",
            duration(loaded),
            duration(idle)
        ))
    }
}

/// Whether a flow counts for the headline. A call does not, because its rate is too low.
fn is_bulk(flow: &FlowResult) -> bool {
    match flow.kind {
        FlowKind::Quic | FlowKind::Tcp | FlowKind::Udp | FlowKind::Video => true,
        FlowKind::Ping | FlowKind::Requests | FlowKind::Voice => false,
    }
}

/// Share of the bytes below which a link is considered unused: it only carried probes and control messages.
const USED_SHARE: f64 = 0.02;

/// Share of the rate of the fastest link alone that bonding must reach.
pub(crate) const NO_REGRET: f64 = 0.95;

/// Returns the events in which a link fails.
fn failures(results: &Results) -> impl Iterator<Item = &Event> {
    results
        .events
        .iter()
        .filter(|e| matches!(e.kind, EventKind::Down | EventKind::Silent))
}

fn when(event: &Event) -> String {
    let at = number(event.time_s);
    match (&event.link, event.kind) {
        (Some(link), EventKind::Silent) => format!("when {link} went silent at {at} s"),
        (Some(link), _) => format!("when {link} went down at {at} s"),
        (None, _) => format!("after \u{201c}{}\u{201d} at {at} s", event.text),
    }
}

fn flows_in_words(flows: &[&FlowResult]) -> String {
    let all = |kind| flows.iter().all(|f| f.kind == kind);
    let noun = match flows.first().map(|f| f.direction) {
        Some(Direction::Down) if all(FlowKind::Tcp) => "download",
        Some(Direction::Up) if all(FlowKind::Tcp) => "upload",
        Some(Direction::Down) if all(FlowKind::Udp) => "UDP stream down",
        Some(Direction::Up) if all(FlowKind::Udp) => "UDP stream up",
        Some(Direction::Down) if all(FlowKind::Video) => "video down",
        Some(Direction::Up) if all(FlowKind::Video) => "video up",
        Some(Direction::Down) if all(FlowKind::Quic) => "QUIC download",
        Some(Direction::Up) if all(FlowKind::Quic) => "QUIC upload",
        _ => "flow",
    };
    let count = words(flows.len());
    let mut letters = count.chars();
    let capital: String = letters
        .next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .collect();
    let noun = match (flows.len(), noun.split_once(' ')) {
        (1, _) => noun.to_owned(),
        (_, Some(("UDP", rest))) => format!("UDP {}", rest.replace("stream", "streams")),
        _ => format!("{noun}s"),
    };
    format!("{capital}{} {noun}", letters.as_str())
}

/// Returns the payload of `flows` over the time from the first start to the last end, in Mbit/s.
fn total_goodput(flows: &[&FlowResult], run_s: f64) -> Option<f64> {
    let measured: Vec<_> = flows
        .iter()
        .filter(|f| f.goodput_mbps.is_finite())
        .collect();
    let length = |f: &FlowResult| {
        if f.duration_s > 0.0 {
            f.duration_s
        } else {
            run_s
        }
    };
    let begin = measured.iter().map(|f| f.start_s).reduce(f64::min)?;
    let end = measured
        .iter()
        .map(|f| f.start_s + length(f))
        .reduce(f64::max)?;
    let megabits: f64 = measured.iter().map(|f| f.goodput_mbps * length(f)).sum();
    let rate = if end > begin {
        megabits / (end - begin)
    } else {
        measured.iter().map(|f| f.goodput_mbps).sum()
    };
    finite(Some(rate))
}

/// Returns the rate of each link alone in `direction`, and whether it was measured.
fn each_alone(results: &Results, direction: Direction) -> (Vec<(&str, f64)>, bool) {
    let measured: Vec<(&str, f64)> = results
        .baselines
        .iter()
        .filter_map(|b| match &b.transport {
            Transport::Single(link) => Some((link.as_str(), finite(Some(b.goodput_mbps))?)),
            Transport::Mptcp | Transport::Raw | Transport::Tunnel => None,
        })
        .collect();
    let covered = |l: &LinkResult| measured.iter().any(|(name, _)| *name == l.name);
    if !measured.is_empty() && results.links.iter().all(covered) {
        return (measured, true);
    }
    let offered = |l: &'_ LinkResult| {
        let side = match direction {
            Direction::Down => &l.down,
            Direction::Up => &l.up,
        };
        finite(side.capacity_mbps).or(finite(side.rate_mbps))
    };
    let offers: Option<Vec<(&str, f64)>> = results
        .links
        .iter()
        .map(|l| Some((l.name.as_str(), offered(l)?)))
        .collect();
    (offers.unwrap_or_default(), false)
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|v| v.abs() < ABSURD)
}

/// Values above this limit (or NaN) are not valid measurements.
const ABSURD: f64 = 1e12;
