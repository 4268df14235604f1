//! Simulation of one run.

use core::time::Duration;

use pleach_core::time::Instant;
use pleach_proxy::placer::WINDOW;

use super::{
    Outcome,
    arrivals::{App, arrivals},
    chooser::Chooser,
    link::Link,
    settings::{Case, Workload},
};

#[derive(Debug)]
struct Connection {
    app: App,
    began_s: f64,
    bytes: f64,
    /// Link and number of bytes of each part.
    parts: Vec<(usize, f64)>,
    /// Number of parts that are not done.
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
        let links = case.links(workload.choice);
        let links = links.iter().map(|link| Link::new(link, workload.rtt_ms));
        Self {
            workload,
            chooser: Chooser::new(workload, case),
            links: links.collect(),
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
        // No more connections are placed, so the estimators' windows are not needed any more.
        while let Some(step_s) = self.next_done_s() {
            self.step(step_s);
        }
        self.outcome.done_s = self.now_s;
        self.outcome
    }

    /// Advances the time to `until_s`.
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

    /// Records the bytes that have arrived in order. Chunks are distributed evenly over a connection, so its slowest
    /// part determines how much has arrived in order.
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

fn instant(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}
