//! The schedulers that a transfer compares: each assigns packets to lines.

use core::time::Duration;

use pleach_core::{
    ids::PathId,
    rng::Rng,
    sched::{
        AnyScheduler, PacketInfo, PathView, Pick, Policy, Scheduler,
        osia::{self, Faucets, OsiaSettings, Planner},
    },
    time::Instant,
    units::Bytes,
};
use serde::Deserialize;

use super::line::Line;

/// Rule by which packets are assigned to lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The lines in turn.
    RoundRobin,
    /// In proportion to the rates, evenly interleaved.
    Weighted,
    /// At random, in proportion to the windows ("CWND-aware"). If the sender does not react to losses, each window is
    /// the capacity of the line in packets.
    Window,
    /// The file is divided into flows, each with its own packet numbers. All packets of a flow take the same line,
    /// which is chosen by the rates ("flow-level").
    Flow,
    /// Water-filling ([`osia`]); packets are spread evenly over the lines of a chunk ([`Faucets::Smooth`]).
    Osia,
    /// Water-filling in which each packet takes a random line of the chunk ([`Faucets::Random`]), as published.
    OsiaRandom,
    /// The line with the earliest predicted arrival.
    EarliestArrival,
}

impl Order {
    /// Returns the name used in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Weighted => "weighted",
            Self::Window => "window",
            Self::Flow => "flow",
            Self::Osia => "osia",
            Self::OsiaRandom => "osia-random",
            Self::EarliestArrival => "earliest-arrival",
        }
    }

    /// Divides the file into flows. Returns the length of each flow in packets.
    pub(super) fn flows(self, packets: usize, rng: &mut Rng) -> Vec<usize> {
        if self != Self::Flow {
            return vec![packets];
        }
        // Each length is between 0.5 and 1.5 times the mean.
        let marks: Vec<u64> = (0..FLOWS).map(|_| 500 + rng.below(1_000)).collect();
        let total: u64 = marks.iter().sum();
        let (mut mark, mut begun) = (0, 0);
        let mut flows = Vec::new();
        for length in marks {
            mark += length;
            let end = usize::try_from(packets as u64 * mark / total).unwrap_or(packets);
            flows.push(end - begun);
            begun = end;
        }
        flows
    }
}

/// State of a scheduler.
#[derive(Debug)]
pub(super) enum Scheduling {
    /// One of the tunnel's policies; all paths count as ready.
    Policy(Box<AnyScheduler>),
    Planner(Box<Planner>),
    Window,
    /// The index of the line of each flow.
    Flow(Vec<usize>),
}

impl Scheduling {
    pub(super) fn new(order: Order, lines: &[Line], flows: &[usize], packet: Bytes) -> Self {
        let planner = |faucets| {
            Self::Planner(Box::new(Planner::new(OsiaSettings {
                faucets,
                ..OsiaSettings::default()
            })))
        };
        match order {
            Order::RoundRobin => Self::Policy(Box::new(Policy::RoundRobin {}.build())),
            Order::Weighted => Self::Policy(Box::new(Policy::Weighted {}.build())),
            Order::EarliestArrival => Self::Policy(Box::new(Policy::EarliestArrival {}.build())),
            Order::Window => Self::Window,
            Order::Osia => planner(Faucets::Smooth),
            Order::OsiaRandom => planner(Faucets::Random),
            Order::Flow => Self::Flow(place_flows(lines, flows, packet)),
        }
    }

    /// Returns the index of the line for the next packet, which belongs to flow `flow`.
    pub(super) fn next(
        &mut self,
        now: Instant,
        lines: &[Line],
        flow: usize,
        packet: Bytes,
        reacts: bool,
        rng: &mut Rng,
    ) -> usize {
        match self {
            Self::Policy(scheduler) => {
                let info = PacketInfo::of_len(packet);
                match scheduler.pick(now, &views(lines), &info) {
                    Pick::One(index) => index,
                    Pick::Wait | Pick::Copies(_) | Pick::Shadowed { .. } | Pick::Behind { .. } => 0,
                }
            }
            Self::Planner(planner) => {
                let seen = lines.iter().enumerate().map(|(index, line)| osia::Line {
                    id: id(index),
                    rate: line.rate(),
                    delay: line.settings.delay(),
                    waiting: Bytes::new(line.waiting.len() as u64 * packet.get()),
                    is_free: line.next_at <= now && line.has_room(reacts),
                });
                planner.update(now, seen);
                let id = planner.assign(now, packet);
                id.map_or(0, PathId::index)
            }
            Self::Window => {
                let total: f64 = lines.iter().map(Line::window).sum();
                let mut left = rng.uniform() * total;
                let is_it = |line: &Line| {
                    left -= line.window();
                    left < 0.0
                };
                lines.iter().position(is_it).unwrap_or(0)
            }
            Self::Flow(place) => place[flow],
        }
    }
}

impl Scheduling {
    /// Records an event: a third acknowledgement in a row that reports the same packet as missing.
    pub(super) fn on_event(&mut self) {
        if let Self::Planner(planner) = self {
            planner.note_reordering();
        }
    }
}

/// Assigns each flow to the line on which it would be complete first. Returns the line of each flow.
fn place_flows(lines: &[Line], flows: &[usize], packet: Bytes) -> Vec<usize> {
    let mut through: Vec<Duration> = lines.iter().map(|line| line.settings.delay()).collect();
    let place = flows.iter().map(|length| {
        let bytes = Bytes::new(*length as u64 * packet.get());
        let after = |line: usize| through[line] + bytes / lines[line].told_rate;
        let best = (0..lines.len()).min_by_key(|&line| after(line));
        let best = best.unwrap_or(0);
        through[best] = after(best);
        best
    });
    place.collect()
}

fn views(lines: &[Line]) -> Vec<PathView> {
    let views = lines.iter().enumerate().map(|(index, line)| PathView {
        ready: true,
        usable: true,
        weight: u32::try_from(line.rate().as_bps() / 1_000).map_or(u32::MAX, |kbps| kbps.max(1)),
        smoothed_rtt: Some(2 * line.settings.delay()),
        extra_delay: line.settings.delay(),
        rate: Some(line.rate()),
        ..PathView::unmeasured(id(index))
    });
    views.collect()
}

fn id(index: usize) -> PathId {
    PathId(u8::try_from(index).unwrap_or(0))
}

/// Number of flows into which [`Order::Flow`] divides a file.
const FLOWS: usize = 8;
