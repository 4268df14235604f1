//! One run.

use core::time::Duration;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};
use pleach_proxy::placer::WINDOW;

use super::{
    Choice, Reading,
    arrivals::{App, arrivals},
    chooser::Chooser,
    link::{Link, carries_bps},
    settings::{Case, LinkSettings, Workload},
};

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// When the last byte had come.
    pub(super) done_s: f64,
    bytes: f64,
    /// While connections arrived.
    early_s: f64,
    early_bytes: f64,
    long_bytes: f64,
    /// Of each connection but the long one: bytes, and seconds from beginning to end.
    each: Vec<(f64, f64)>,
}

#[derive(Debug)]
struct Connection {
    app: App,
    began_s: f64,
    bytes: f64,
    /// Link and bytes of each part.
    parts: Vec<(usize, f64)>,
    /// Parts that are not done.
    missing: usize,
}

/// Runs `case` once.
pub(super) fn run(workload: &Workload, case: &Case, seed: u64) -> Outcome {
    Run::new(workload, case).play(arrivals(workload, case, seed))
}

struct Run<'a> {
    workload: &'a Workload,
    chooser: Chooser,
    links: Vec<Link>,
    connections: Vec<Connection>,
    now_s: f64,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(workload: &'a Workload, case: &Case) -> Self {
        let link = |link: &LinkSettings| Link::new(link, workload.rtt_ms);
        let links = match workload.choice {
            Choice::Optimal => vec![link(&pooled(case))],
            Choice::OnlyFirst
            | Choice::OnlyLast
            | Choice::RoundRobin
            | Choice::WeightedRoundRobin
            | Choice::MaxThroughput
            | Choice::ChunksRoundRobin
            | Choice::ChunksWeightedRoundRobin => case.link.iter().map(link).collect(),
        };
        Self {
            workload,
            chooser: Chooser::new(workload, case),
            links,
            connections: Vec::new(),
            now_s: 0.0,
            outcome: Outcome::default(),
        }
    }

    fn play(mut self, arrivals: Vec<super::arrivals::Arrival>) -> Outcome {
        let window_s = WINDOW.as_secs_f64();
        let mut next_window_s = window_s;
        for arrival in arrivals {
            while next_window_s <= arrival.at_s {
                self.until(next_window_s);
                self.window();
                next_window_s += window_s;
            }
            self.until(arrival.at_s);
            let number = self.connections.len();
            let at = instant(self.now_s);
            let parts = self.chooser.place(at, number, arrival.app, arrival.bytes);
            self.connections.push(Connection {
                app: arrival.app,
                began_s: self.now_s,
                bytes: arrival.bytes,
                missing: parts.len(),
                parts: parts.clone(),
            });
            self.outcome.bytes += arrival.bytes;
            for (link, bytes) in parts {
                self.links[link].add(number, bytes);
            }
        }
        self.until(self.workload.seconds);
        self.note_early();
        // Nothing is placed any more, so nobody needs windows.
        while let Some(step_s) = self.next_done_s() {
            self.step(step_s);
        }
        self.outcome.done_s = self.now_s;
        self.outcome
    }

    /// Lets time pass until `until_s`.
    fn until(&mut self, until_s: f64) {
        while let Some(step_s) = self.next_done_s() {
            if self.now_s + step_s > until_s {
                break;
            }
            self.step(step_s);
        }
        if until_s > self.now_s {
            self.step(until_s - self.now_s);
        }
        self.now_s = until_s;
    }

    fn next_done_s(&self) -> Option<f64> {
        let next = self.links.iter().filter_map(Link::next_done_s);
        next.min_by(f64::total_cmp)
    }

    fn step(&mut self, seconds: f64) {
        let mut done = Vec::new();
        for link in &mut self.links {
            link.advance(seconds, &mut done);
        }
        self.now_s += seconds;
        for number in done {
            let connection = &mut self.connections[number];
            connection.missing -= 1;
            if connection.missing > 0 {
                continue;
            }
            if connection.app != App::Long {
                let took_s = self.now_s - connection.began_s;
                self.outcome.each.push((connection.bytes, took_s));
            }
            if let Some(placer) = self.chooser.placer() {
                placer.end(instant(self.now_s), number, connection.bytes);
            }
        }
    }

    fn window(&mut self) {
        let at = instant(self.now_s);
        let Some(placer) = self.chooser.placer() else {
            return;
        };
        for (number, left) in self.links.iter().flat_map(Link::left) {
            placer.observe(at, number, self.connections[number].bytes - left);
        }
        placer.window(at);
    }

    /// What has come in order: chunks are dealt out evenly, so the slowest part says how far a connection is.
    fn note_early(&mut self) {
        self.outcome.early_s = self.now_s;
        let mut shares = vec![1.0_f64; self.connections.len()];
        for (link, at) in self.links.iter().zip(0..) {
            for (number, left) in link.left() {
                let parts = self.connections[number].parts.iter();
                let whole: f64 = parts.filter(|part| part.0 == at).map(|part| part.1).sum();
                shares[number] = shares[number].min(1.0 - left / whole);
            }
        }
        for (connection, share) in self.connections.iter().zip(shares) {
            let came = connection.bytes * share;
            self.outcome.early_bytes += came;
            if connection.app == App::Long {
                self.outcome.long_bytes = came;
            }
        }
    }
}

impl Outcome {
    /// Mbit/s as `reading` counts; NaN if there is nothing to count.
    pub(super) fn mbps(&self, reading: Reading) -> f64 {
        let mbps = |bytes: f64, seconds: f64| bytes * 8.0 / 1e6 / seconds;
        match reading {
            Reading::UntilDone => mbps(self.bytes, self.done_s),
            Reading::WhileArriving => mbps(self.early_bytes, self.early_s),
            Reading::PerConnection => {
                let rates = self
                    .each
                    .iter()
                    .map(|(bytes, took_s)| mbps(*bytes, *took_s));
                let rates: Vec<f64> = rates.collect();
                crate::series::mean(&rates).unwrap_or(f64::NAN)
            }
            Reading::LongOne => mbps(self.long_bytes, self.early_s),
        }
    }

    /// The time that `share` of the connections took at most, in milliseconds; NaN if there were none.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "clamped to the list"
    )]
    pub(super) fn time_ms(&self, share: f64) -> f64 {
        let mut times: Vec<f64> = self.each.iter().map(|(_, took_s)| took_s * 1e3).collect();
        times.sort_by(f64::total_cmp);
        let rank = (share * times.len() as f64).ceil() as usize;
        let index = rank.max(1).min(times.len());
        index.checked_sub(1).map_or(f64::NAN, |index| times[index])
    }
}

/// All links of `case` as one that loses nothing more.
fn pooled(case: &Case) -> LinkSettings {
    let bytes = case.link.iter().map(carries_bps).sum::<f64>() / 8.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and far below 2^63"
    )]
    let bytes = Bytes::new(bytes.round() as u64);
    let rate = Bitrate::from_transfer(bytes, Duration::from_secs(1));
    LinkSettings {
        rate: rate.unwrap_or_default(),
        loss: 0.0,
    }
}

fn instant(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}
