//! `adaptive`: uses every path that helps a flow, and no path that harms it.
//!
//! A packet takes the path on which it is predicted to arrive first, as under `earliest-arrival` (EDPF; Chebrolu and
//! Rao 2006). Paths are paced at their capacity. When more packets wait than the quickest path carries, the next best
//! path takes packets too, and so on, so a large flow gets the sum of the rates. The differences from EDPF:
//!
//! - **Groups.** Paths whose delays differ by more than 110 ms (`GATE`) are not mixed in one flow: the wait for the
//!   slower path at the receiver would cost more than the path brings. By default a flow uses the group of the quickest
//!   path, which is the path with the shortest one-way delay. The paths of this group are the *near* paths. The flow
//!   uses a slower group instead only if the flow is large and one of two conditions holds. Either the slower paths
//!   together carry much more (`WORTH_PERCENT`), or the near paths limit the flow and the slower paths bring more even
//!   after the time it takes to fill them (`LASTS`).
//! - **Crowds.** Several flows share the capacity of the paths, so some use the slower group and some stay on the
//!   near paths (`crowd`).
//! - **Late paths.** A *late* path is later than the quickest path by more than `GATE` and at most 330 ms (`LATEST`).
//!   It helps the near paths without leaving them idle. It takes packets of a large flow only if the backlog of the
//!   quickest path is so long that they would arrive there even later. It does not take the first packet of the backlog
//!   but a later one that will arrive in order ([`Pick::Behind`]). If ACK pacing extends the flow's RTT to that of the
//!   late path, the late path is used like any other (`is_kept`).
//! - **Bursts.** The packets of one burst wait for the quickest path if that path can send all of them before the first
//!   would arrive on another path, and within 50 ms of the beginning of the burst (`BURST`). Where the RTT is long, any
//!   packet of a large flow may wait for a fifth of the RTT (`PATIENCE`).
//! - **Deadlines.** Packets with a deadline are placed by their deadline (`urgent`).
//! - **Repair.** Lost packets are retransmitted ([`Profile::repair`]).

use core::time::Duration;

use burst::{BURST, Burst, MAX_WAIT, patience};
use crowd::{Count, Crowd};
use flow::{Flow, SMALL, flow_of};
use gate::Gate;
use groups::{Eager, alone, large};
use paths::{LATEST, arrival, carried_near, is_late, likely_rate};
use ranking::Ranking;
use wish::Wish;

use super::{PacketInfo, PathView, Pick, Scheduler, line::Line, slot};
use crate::{
    flows::PLACES,
    ids::PathId,
    profile::{Mechanism, Mechanisms, Profile, RttSampling},
    time::Instant,
    trace::{Candidate, IdleReason, Verdict},
    units::Bytes,
};

mod burst;
mod crowd;
mod flow;
mod gate;
mod groups;
mod paths;
mod ranking;
mod round_trip;
mod settings;
mod urgent;
mod wish;

pub use settings::AdaptiveSettings;

/// The default policy. Waits if the only ready paths would harm the flow, or if a better path will be ready soon.
#[derive(Clone, Debug)]
pub struct Adaptive {
    lines: [Line; PathId::MAX],
    /// How much each flow has sent recently, indexed by [`FlowId::index`](crate::flows::FlowId::index).
    flows: Vec<Flow>,
    count: Count,
    burst: Burst,
    mechanisms: Mechanisms,
    /// Whether an observer receives the candidates of each decision.
    is_observed: bool,
    /// The candidates of the last decision.
    candidates: Vec<Candidate>,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self::new()
    }
}

impl Adaptive {
    /// Creates a scheduler that assumes no packets in flight on any path.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lines: [const { Line::empty() }; PathId::MAX],
            flows: Vec::new(),
            count: Count::new(),
            burst: Burst::new(),
            mechanisms: Mechanisms::ALL,
            is_observed: false,
            candidates: Vec::new(),
        }
    }

    const fn has(&self, mechanism: Mechanism) -> bool {
        self.mechanisms.has(mechanism)
    }

    /// Whether the flow of a packet is large, counting the packet and the flow's backlog.
    fn is_large(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> bool {
        if self.flows.is_empty() {
            self.flows.resize(PLACES, Flow::default());
        }
        self.count.update(now, &self.flows);
        let mechanisms = self.mechanisms;
        let flow = &mut self.flows[packet.flow.index()];
        let large = |flow: &Flow| {
            let near = carried_near(paths);
            large(paths, crowd(mechanisms, &self.count, flow, near))
        };
        flow.seen_at = now;
        let age = now.since(flow.second);
        if age > Duration::from_secs(1) {
            // A flow that sends steadily and has become large must not alternate between large and small.
            let goes_on = age < Duration::from_secs(2) && flow.bytes > large(flow);
            flow.is_large &= goes_on;
            flow.rate_before = u128::from(flow.bytes.get()) * 8_000 / age.as_millis();
            flow.second = now;
            flow.bytes = Bytes::ZERO;
        }
        let known = flow.bytes + packet.len + packet.own_backlog;
        if !flow.is_large && known > SMALL {
            flow.is_large = known > large(flow);
        }
        self.count.place(flow, flow.is_away && flow.is_large);
        flow.is_large
    }

    /// The extra delay at which the group of a packet's flow begins. A flow that the near paths do not limit does not
    /// leave them for a little more capacity.
    fn group_of(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Duration {
        if !self.has(Mechanism::Groups) {
            return Duration::ZERO;
        }
        let mechanisms = self.mechanisms;
        let flow = flow_of(&mut self.flows, packet);
        let Some(flow) = flow.filter(|flow| flow.is_large) else {
            return Duration::ZERO;
        };
        let near = carried_near(paths);
        let crowd = crowd(mechanisms, &self.count, flow, near);
        let eager = if flow.is_away && flow.rate_before > crowd.near {
            Eager::Gaining
        } else if flow.is_away {
            Eager::ToStay
        } else if flow.is_held_back(now, crowd.near) && self.count.fills(near, crowd) {
            Eager::ToLeave
        } else {
            Eager::No
        };
        let from = groups::group(paths, eager, crowd);
        self.count.place(flow, from > Duration::ZERO);
        from
    }

    /// Lets a late path take a later packet of the flow. `arrival`: when a packet sent now on the late path would
    /// arrive. The packet to take is the one that would arrive over the other paths at that time. `all_come`: when
    /// the flow's whole backlog would have arrived over the other paths.
    fn pick_behind(
        &mut self,
        now: Instant,
        paths: &[PathView],
        packet: &PacketInfo,
        index: usize,
        (arrival, all_come): (Instant, Instant),
    ) -> Pick {
        self.lines[slot(&paths[index])].on_sent(now, packet.len);
        if let Some(flow) = flow_of(&mut self.flows, packet) {
            flow.bytes += packet.len;
        }
        let part = arrival.since(now).as_micros();
        let all = all_come.since(now).as_micros().max(1);
        let ahead = u128::from(packet.own_backlog.get()) * part.min(all) / all;
        let ahead = Bytes::new(u64::try_from(ahead).unwrap_or(u64::MAX));
        Pick::Behind { index, ahead }
    }

    /// When a packet, and all packets that leave the queue up to the last of its flow, would have arrived over
    /// `paths` together.
    fn all_come<'a>(
        &self,
        now: Instant,
        paths: impl Iterator<Item = &'a PathView> + Clone,
        packet: &PacketInfo,
    ) -> Option<Instant> {
        let bps = |path: &PathView| u128::from(likely_rate(path).as_bps());
        let all = paths.clone().map(bps).sum::<u128>().max(1);
        let last = paths.map(|path| {
            let part = u128::from(packet.to_last.get()) * bps(path) / all;
            let part = Bytes::new(u64::try_from(part).unwrap_or(u64::MAX));
            let drained = self.lines[slot(path)].drained_at(now, packet.len + part);
            drained + path.extra_delay
        });
        last.max()
    }

    /// The paths that the flow of a packet may use now, and how long it may wait.
    fn wish(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Wish {
        let is_large = !packet.is_expendable && self.is_large(now, paths, packet);
        let mut gate = Gate::new(paths, Duration::ZERO, is_large, self.mechanisms);
        let least_rtt = gate.round_trip;
        let from = self.group_of(now, paths, packet);
        if from > Duration::ZERO {
            gate = Gate::new(paths, from, is_large, self.mechanisms);
        }
        let (patience, waits) = if is_large {
            let patience = patience(gate.round_trip);
            let burst_end = self.burst.count(now, packet, patience);
            let limit = if self.has(Mechanism::BurstPatience) {
                burst_end
            } else {
                now + MAX_WAIT
            };
            (limit, packet.backlog)
        } else {
            // The burst is complete when its last packet has arrived, whatever other flows have queued behind it.
            (now + BURST, packet.to_last)
        };
        let mut wish = Wish {
            gate,
            patience,
            waits,
            is_any: false,
            kept: packet.round_trip,
            has_more: packet.to_last > Bytes::ZERO,
            least_rtt,
        };
        // Late paths only help other paths and do not replace them.
        wish.is_any = paths
            .iter()
            .any(|path| wish.admits(path) && !is_late(path, wish.gate.from));
        wish
    }

    /// The predicted arrival of the packet on each path that it may take.
    fn rank(
        &mut self,
        now: Instant,
        paths: &[PathView],
        packet: &PacketInfo,
        wish: &Wish,
    ) -> Ranking {
        let mut ranking = Ranking::default();
        for (index, path) in paths.iter().enumerate() {
            if !(wish.admits(path) || (path.usable && !wish.is_any)) {
                if self.is_observed {
                    let verdict = wish.excluded(path);
                    self.note(path, None, verdict);
                }
                continue;
            }
            let line = &self.lines[slot(path)];
            let (arrival, verdict) = if path.ready {
                let arrival = arrival(line, now, path, path.queue_delay, packet.len);
                ranking.on_ready(arrival, index, is_late(path, wish.gate.from));
                let verdict = if wish.only_behind(path) {
                    Verdict::ReadyBehind
                } else {
                    Verdict::Ready
                };
                (arrival, verdict)
            } else {
                let drained = line.drained_at(now, packet.len + wish.waits);
                let arrival = drained + path.extra_delay;
                // While the capacity of the quickest path is unknown, wait longer for it.
                let is_searched = path.is_searching && wish.gate.quickest == Some(path.id);
                let is_near = is_searched || drained <= wish.patience;
                if is_near && !wish.only_behind(path) {
                    ranking.on_awaited(arrival);
                    (arrival, Verdict::Awaited)
                } else {
                    (arrival, Verdict::Busy)
                }
            };
            if self.is_observed {
                self.note(path, Some(arrival), verdict);
            }
        }
        ranking
    }

    /// Records the verdict on a path, for an observer.
    fn note(&mut self, path: &PathView, arrival: Option<Instant>, verdict: Verdict) {
        self.candidates.push(Candidate {
            path: path.id,
            arrival,
            verdict,
        });
    }
}

impl Scheduler for Adaptive {
    fn pick(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        for path in paths {
            self.lines[slot(path)].update(now, path, likely_rate(path));
        }
        self.candidates.clear();
        if let Some(urgency) = packet.urgency
            && self.has(Mechanism::Deadlines)
        {
            return self.pick_urgent(now, paths, packet, urgency);
        }
        let wish = self.wish(now, paths, packet);
        let ranking = self.rank(now, paths, packet, &wish);
        let Some((mut arrival, mut index)) = ranking.ready else {
            return Pick::Wait;
        };
        if wish.only_behind(&paths[index]) {
            let nearer = |path: &&PathView| wish.admits(path) && !is_late(path, wish.gate.from);
            let all_come = self.all_come(now, paths.iter().filter(nearer), packet);
            let all_come = all_come.filter(|all_come| *all_come >= arrival && packet.has_behind);
            if let Some(all_come) = all_come {
                return self.pick_behind(now, paths, packet, index, (arrival, all_come));
            }
            let Some(near) = ranking.ready_near else {
                return Pick::Wait;
            };
            (arrival, index) = near;
        }
        if ranking.awaited.is_some_and(|awaited| awaited < arrival) {
            return Pick::Wait;
        }
        self.lines[slot(&paths[index])].on_sent(now, packet.len);
        if let Some(flow) = flow_of(&mut self.flows, packet) {
            flow.bytes += packet.len;
        }
        Pick::One(index)
    }

    /// Enables everything that an end can do for its traffic.
    fn profile(&self) -> Profile {
        Profile {
            repair: true,
            fec: true,
            search: true,
            trains: true,
            ack_pacing: true,
            voice: true,
            rtt_sampling: Some(RttSampling {
                interval: SAMPLED_EVERY,
                gain_thousandths: None,
            }),
            ..Profile::default()
        }
    }

    fn on_profile(&mut self, profile: &Profile) {
        self.mechanisms = profile.mechanisms;
    }

    fn release_memory(&mut self) {
        self.flows = Vec::new();
    }

    fn observe(&mut self) {
        self.is_observed = true;
    }

    fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    fn exclusion(&self, paths: &[PathView], path: &PathView) -> Option<IdleReason> {
        Gate::new(paths, Duration::ZERO, true, self.mechanisms).exclusion(path)
    }

    fn longest_wait(&self, paths: &[PathView]) -> Duration {
        if !self.has(Mechanism::LatePaths) {
            return Duration::ZERO;
        }
        let leaves = self.has(Mechanism::Groups)
            && groups::group(paths, Eager::ToLeave, alone(paths)) > Duration::ZERO;
        if leaves {
            return Duration::ZERO;
        }
        let gate = Gate::new(paths, Duration::ZERO, true, self.mechanisms);
        // A late path whose capacity is not known yet counts as well, if the rate reached so far, or its remembered
        // rate, makes it worth using. Otherwise a flow that the near paths can carry would never find out the path's
        // capacity.
        let late = paths
            .iter()
            .filter(|path| is_late(path, gate.from) && path.rate.is_some() && gate.admits(path));
        let waits = late.map(|path| path.extra_delay);
        waits.max().unwrap_or_default().min(LATEST)
    }

    fn round_trip(&self, paths: &[PathView]) -> Duration {
        round_trip::to_keep(paths)
    }
}

/// Returns the capacity that `flow` can expect if the near paths carry `near`. If crowds are switched off, `flow`
/// counts as the only flow.
fn crowd(mechanisms: Mechanisms, count: &Count, flow: &Flow, near: u128) -> Crowd {
    if mechanisms.has(Mechanism::Crowds) {
        count.with(flow, near)
    } else {
        Crowd::alone(near)
    }
}

/// Interval between two RTT samples of a busy path: a path that was too late and has become quick again is noticed
/// within this time.
const SAMPLED_EVERY: Duration = Duration::from_millis(250);
#[cfg(test)]
mod tests;
