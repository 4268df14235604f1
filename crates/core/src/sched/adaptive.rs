//! `adaptive`: every path that helps, and none that hurts.
//!
//! A packet takes the path on which it is predicted to arrive first, as under `earliest-arrival` (EDPF; Chebrolu and Rao
//! 2006). Paths are paced at what they carry, so while more waits than the quickest path carries, the next best has its
//! turn, and so on: the sum of all, in the order of arrival. What is different:
//!
//! - **Groups.** Paths whose delays differ by more than `GATE` are not mixed in one flow: waiting for the slower at the
//!   other end would cost more than it brings. A flow keeps to the paths near the quickest one. Only if it is large, and
//!   slower paths together carry much more (`WORTH_PERCENT`), or near ones hold it back and slower ones bring more even after it
//!   has filled them (`LASTS`), it takes those instead.
//! - **Crowds.** Several flows share what paths carry, so some leave and some stay (`crowd`).
//! - **Late paths.** A path later than that by up to `LATEST` does not leave the quickest one idle, for it only takes of a
//!   large flow what would come later still with all that waits for the quickest. The round trip is as long by then. It takes
//!   what will arrive in its turn ([`Pick::Behind`]), not the first. Where round trips are kept as long, the path is like any
//!   other (`is_kept`).
//! - **Reach.** A flow that sends no more for the paths beyond the nearest (`NEAREST`) keeps to those (`reach`).
//! - **Bursts.** What comes in one burst waits for the quickest path where that has sent it all before the first of it
//!   would come on another (`BURST`); where round trips are long, anything does for a part of one (`PATIENCE`).
//! - **Jams.** What stands in a path's queue for longer than that keeps a path out as well, unless all have such a queue.
//! - **Losses** count as delay, for a lost packet holds its flow up for a repair (`penalty`).
//! - **Search.** What a path carries is not known before it was full, and finding out with packets that are waited for
//!   would hold flows up in its queue. So the paths beside the quickest are searched with copies of a large flow's
//!   packets, which the receiver drops, and carry packets of their own up to what they have shown. What a path may spend
//!   on copies is limited (`COPIES`).
//! - **Deadlines.** What has to be in time is placed by that (`urgent`).
//! - **Repair.** Lost packets are sent again ([`super::AnyScheduler::repairs`]).

use core::time::Duration;

use crowd::{Count, Crowd};

use super::{PacketInfo, PathView, Pick, Scheduler, line::Line, slot};
use crate::{
    ids::PathId,
    path::rate_control,
    time::Instant,
    units::{Bitrate, Bytes},
};

mod crowd;
mod reach;
mod settings;
mod urgent;

pub use settings::AdaptiveSettings;

/// The default policy. Waits if only paths that would hurt are ready, or a better one will be soon.
#[derive(Clone, Debug)]
pub struct Adaptive {
    lines: [Line; PathId::MAX],
    copies: [Copies; PathId::MAX],
    /// How much each flow has sent of late; by hash.
    flows: Vec<Flow>,
    /// Bytes that large flows have sent.
    sent: u64,
    count: Count,
    burst: Burst,
}

/// What a path may still carry in copies, and as of when.
#[derive(Clone, Copy, Debug)]
struct Copies {
    left: Bytes,
    since: Instant,
}

/// What large flows send while something waits.
#[derive(Clone, Copy, Debug)]
struct Burst {
    began_at: Instant,
    /// Whether nothing waits behind its newest packet.
    is_last: bool,
}

impl Burst {
    /// Takes note of its next packet. By when an awaited path must have sent all that waits, which may take `patience`
    /// whenever it came.
    fn count(&mut self, now: Instant, packet: &PacketInfo, patience: Duration) -> Instant {
        if self.is_last {
            self.began_at = now;
        }
        self.is_last = packet.backlog == Bytes::ZERO;
        (self.began_at + BURST).max(now + patience)
    }
}

/// A flow's volume within the present second.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    second: Instant,
    bytes: Bytes,
    /// When it last had something to send.
    seen_at: Instant,
    /// Bits per second that it sent in the one before.
    rate_before: u128,
    is_large: bool,
    /// Whether it has left the paths near the quickest one for later ones.
    is_away: bool,
    /// The path of its last packet.
    path: Option<PathId>,
    /// Whether it gains from others than the near paths.
    reach: reach::Reach,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self::new()
    }
}

impl Adaptive {
    /// Begins with all paths empty.
    #[must_use]
    pub const fn new() -> Self {
        const GRANTED: Copies = Copies {
            left: COPIES,
            since: Instant::ZERO,
        };
        Self {
            lines: [const { Line::empty() }; PathId::MAX],
            copies: [GRANTED; PathId::MAX],
            flows: Vec::new(),
            sent: 0,
            count: Count::new(),
            burst: Burst {
                began_at: Instant::ZERO,
                is_last: true,
            },
        }
    }

    /// Whether the flow of a packet is large, with it and what waits behind it.
    fn is_large(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> bool {
        if self.flows.is_empty() {
            self.flows.resize(FLOWS, Flow::default());
        }
        self.count.update(now, &self.flows);
        let flow = &mut self.flows[place(packet.flow_hash)];
        let large = |flow: &Flow| large(paths, self.count.with(flow, carried_near(paths)));
        flow.seen_at = now;
        let age = now.since(flow.second);
        if age > PAUSE || flow.second == Instant::ZERO {
            flow.reach = reach::Reach::default();
        }
        if age > Duration::from_secs(1) {
            // One that has become large does not go back and forth for sending steadily.
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

    /// Whether a path brings a large flow more than it costs: its share of what all carry against how much later than
    /// on the quickest its packets come, losses included, and by how much longer its queue is while both are full
    /// (`usual`: the quickest's): of a slow path, some packets are a long time, and what comes too late to be waited for
    /// looks lost.
    fn is_worth(path: &PathView, from: Duration, total: u128, usual: Duration) -> bool {
        let Some(rate) = path.rate else {
            return false;
        };
        let later = path.extra_delay + cost_of_losses(path, from);
        let later = later.saturating_add(full_queue(rate).saturating_sub(usual));
        let later_ms = u64::try_from(later.as_millis()).unwrap_or(u64::MAX);
        let percent = LEAST_SHARE_PERCENT + later_ms / 10;
        u128::from(rate.as_bps()) * 100 >= total * u128::from(percent)
    }

    /// The delay from which on a large flow's paths are chosen: zero, the quickest path's, or where those begin that together
    /// bring much more. Late paths help the near ones: those are left if they add next to nothing to late ones, or if
    /// paths beyond carry more than near and late ones do.
    fn group(paths: &[PathView], eager: Eager, crowd: Crowd) -> Duration {
        let from = Self::better_group(paths, eager, crowd);
        let is_away = matches!(eager, Eager::Gaining | Eager::ToStay);
        // Delays near the limit do not send a flow back and forth.
        let latest = if is_away { LATEST * 9 / 10 } else { LATEST };
        let late = |path: &PathView| path.extra_delay > GATE && path.extra_delay <= latest;
        let late = carried_where(paths, late);
        // Of several flows some leave and some stay.
        if from == Duration::ZERO || late == 0 || !crowd.is_alone {
            return from;
        }
        let carried = carried_where(paths, |path| is_member(path, from));
        let left = carried_where(paths, |path| path.extra_delay < from);
        let most = if is_away {
            MOST_PERCENT * 2
        } else {
            MOST_PERCENT
        };
        let adds_little = from <= latest && left * 100 <= (left + carried) * most;
        let worth = if is_away { 100 } else { WORTH_PERCENT };
        let is_more = carried * 100 > (carried_near(paths) + late) * worth;
        if adds_little || is_more {
            from
        } else {
            Duration::ZERO
        }
    }

    /// The same if late paths did not help those before them. Most packets of a large flow come from there even if it does not leave.
    fn better_group(paths: &[PathView], eager: Eager, crowd: Crowd) -> Duration {
        let carried = |from: Duration| carried_where(paths, |path| is_member(path, from));
        // What is near is left only when it is known to carry too little.
        let is_near = |path: &PathView| path.usable && is_member(path, Duration::ZERO);
        let is_open = paths.iter().any(|path| is_near(path) && path.is_searching);
        if is_open || paths.iter().all(is_near) {
            return Duration::ZERO;
        }
        let near = crowd.near * crowd.later;
        let is_worth = |start: &Duration| {
            let main = paths
                .iter()
                .filter(|path| path.usable && is_member(path, *start));
            let main = main.max_by_key(|path| path.rate);
            // What is being sent already counts for more than what losses should make of it.
            let main = main.filter(|_| eager != Eager::Gaining);
            let later = *start + main.map_or(Duration::ZERO, penalty);
            let percent = WORTH_PERCENT + later.as_millis();
            let by_gain = gain(carried(*start), later) * 100;
            carried(*start) * 100 > near * percent
                || match eager {
                    Eager::No => false,
                    Eager::ToLeave => by_gain > gain(near, Duration::ZERO) * WORTH_PERCENT,
                    Eager::Gaining | Eager::ToStay => by_gain > gain(near, Duration::ZERO) * 100,
                }
        };
        let starts = paths.iter().filter(|path| path.usable);
        let starts = starts.map(|path| path.extra_delay).filter(is_worth);
        let best = starts.max_by_key(|start| (carried(*start), core::cmp::Reverse(*start)));
        best.unwrap_or(Duration::ZERO)
    }

    /// The same for the flow of a packet: one that what is near carries well does not leave for a little more.
    fn group_of(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Duration {
        let flow = flow_of(&mut self.flows, packet);
        let Some(flow) = flow.filter(|flow| flow.is_large) else {
            return Duration::ZERO;
        };
        let near = carried_near(paths);
        let crowd = self.count.with(flow, near);
        let eager = if flow.is_away && flow.rate_before > crowd.near {
            Eager::Gaining
        } else if flow.is_away {
            Eager::ToStay
        } else if flow.is_held_back(now, crowd.near) && self.count.fills(near, crowd) {
            Eager::ToLeave
        } else {
            Eager::No
        };
        let from = Self::group(paths, eager, crowd);
        self.count.place(flow, from > Duration::ZERO);
        from
    }

    /// Whether the round trips of the flow of a packet are made as long as over `path`, a late one.
    fn is_kept(paths: &[PathView], packet: &PacketInfo, path: &PathView) -> bool {
        let least = quickest(paths, Duration::ZERO).and_then(|quickest| quickest.least_rtt);
        // Delays are never the same as when that was decided, and of large flows it is less.
        packet.round_trip >= least.unwrap_or_default() + path.extra_delay / 2
    }

    /// Lets a late path take what comes behind a packet and would come over others as late as on that, at `arrival`, if all
    /// that waits of its flow has come at `all_come`.
    fn pick_behind(
        &mut self,
        now: Instant,
        paths: &[PathView],
        packet: &PacketInfo,
        index: usize,
        (arrival, all_come): (Instant, Instant),
    ) -> Pick {
        self.lines[slot(&paths[index])].on_sent(now, packet.len);
        self.sent += packet.len.get();
        if let Some(flow) = flow_of(&mut self.flows, packet) {
            flow.bytes += packet.len;
            flow.reach.on_sent(packet.len);
        }
        let part = arrival.since(now).as_micros();
        let all = all_come.since(now).as_micros().max(1);
        let ahead = u128::from(packet.own_backlog.get()) * part.min(all) / all;
        let ahead = Bytes::new(u64::try_from(ahead).unwrap_or(u64::MAX));
        Pick::Behind { index, ahead }
    }

    /// When a packet and all that leaves until the last of its flow does would have come over `paths` together.
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
            drained + path.extra_delay + penalty(path)
        });
        last.max()
    }

    /// Whether the flow of a packet, a large one, keeps to the nearest paths.
    fn keeps_to_nearest(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> bool {
        let all_sent = self.sent;
        let Some(flow) = flow_of(&mut self.flows, packet) else {
            return false;
        };
        let usable = || paths.iter().filter(|path| path.usable);
        let nearest = nearest(paths);
        flow.reach.review(now, || reach::Paths {
            near: carried_where(paths, |path| path.extra_delay <= nearest),
            has_later: usable().any(|path| path.extra_delay > nearest),
            longest: usable()
                .filter_map(|path| path.smoothed_rtt)
                .max()
                .unwrap_or_default(),
            all_sent,
        });
        let is_near = flow.reach.is_near();
        self.count.place(flow, flow.is_away && !is_near);
        is_near
    }
}

/// How much a flow minds being where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Eager {
    /// It has left, and sends more than what is near carries.
    Gaining,
    /// It has what it wants.
    No,
    /// What is near holds it back.
    ToLeave,
    /// It has left.
    ToStay,
}

impl Flow {
    /// Whether it has its part in what paths carry.
    fn is_busy(&self) -> bool {
        self.is_large || self.bytes > SMALL || self.rate_before > u128::from(SMALL.get()) * 8
    }

    /// Bits per second that it sends.
    fn rate(&self, now: Instant) -> u128 {
        let span = now.since(self.second);
        if span < LEAST_SPAN * 3 && self.rate_before > 0 {
            return self.rate_before;
        }
        let bits = u128::from(self.bytes.get()) * 8;
        bits * Duration::from_secs(1).as_nanos() / span.max(LEAST_SPAN).as_nanos()
    }

    /// Whether it sends about its part of what near paths carry.
    fn is_held_back(&self, now: Instant, near: u128) -> bool {
        let span = now.since(self.second).max(LEAST_SPAN);
        let bits = u128::from(self.bytes.get()) * 8;
        bits * Duration::from_secs(1).as_nanos() * 100 >= near * HELD_BACK_PERCENT * span.as_nanos()
    }
}

impl Scheduler for Adaptive {
    fn pick(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        for path in paths {
            self.lines[slot(path)].update(now, path, likely_rate(path));
        }
        if let Some(urgency) = packet.urgency {
            return self.pick_urgent(now, paths, packet, urgency);
        }
        let is_large = !packet.is_expendable && self.is_large(now, paths, packet);
        let last = flow_of(&mut self.flows, packet).and_then(|flow| flow.path);
        let mut gate = Gate::new(paths, Duration::ZERO, is_large);
        let is_admitted = |path: &PathView| gate.admits_nearest(path);
        let stays =
            is_large && self.keeps_to_nearest(now, paths, packet) && paths.iter().any(is_admitted);
        if !stays {
            let from = self.group_of(now, paths, packet);
            if from > Duration::ZERO {
                gate = Gate::new(paths, from, is_large);
            }
        }
        let (patience, waits) = if is_large {
            let patience = patience(gate.round_trip);
            (self.burst.count(now, packet, patience), packet.backlog)
        } else {
            // It is there as soon as its last packet, whatever others have behind that.
            (now + BURST, packet.to_last)
        };
        let quickest = gate.quickest;
        let is_chosen = |path: &PathView| match stays {
            true => gate.admits_nearest(path),
            false => gate.admits(path),
        };
        // Late paths help others, and do not take their place.
        let is_any = paths
            .iter()
            .any(|path| is_chosen(path) && !is_late(path, gate.from));
        // Where round trips are as long, they are like any other.
        let is_wide =
            |path: &PathView| packet.to_last > Bytes::ZERO && Self::is_kept(paths, packet, path);
        let only_behind = |path: &PathView| is_any && is_late(path, gate.from) && !is_wide(path);
        let mut ready: Option<(Instant, usize)> = None;
        let mut ready_near: Option<(Instant, usize)> = None;
        let mut awaited: Option<Instant> = None;
        for (index, path) in paths.iter().enumerate() {
            if !(is_chosen(path) || (path.usable && !is_any)) {
                continue;
            }
            let line = &self.lines[slot(path)];
            if path.ready {
                // What leaves the flow's path has to be sure to be earlier: jitter lets packets overtake each other.
                let is_other = last.is_some_and(|last| last != path.id);
                let margin = if is_other {
                    path.jitter
                } else {
                    Duration::ZERO
                };
                let arrival = arrival(line, now, path, path.queue_delay, packet.len);
                let arrival = arrival + cost_of_losses(path, gate.from) + margin;
                let is_earlier =
                    |best: Option<(Instant, _)>| best.is_none_or(|(best, _)| arrival < best);
                if is_earlier(ready) {
                    ready = Some((arrival, index));
                }
                if is_earlier(ready_near) && !is_late(path, gate.from) {
                    ready_near = Some((arrival, index));
                }
            } else if !only_behind(path) {
                let drained = line.drained_at(now, packet.len + waits);
                // While it is not known what the quickest carries, more is waited for it.
                let is_searched = path.is_searching && quickest == Some(path.id);
                if is_searched || drained <= patience {
                    let cost = cost_of_losses(path, gate.from);
                    let arrival = drained + path.extra_delay + cost;
                    awaited = Some(awaited.map_or(arrival, |earliest| earliest.min(arrival)));
                }
            }
        }
        let Some((mut arrival, mut index)) = ready else {
            return Pick::Wait;
        };
        if only_behind(&paths[index]) {
            let nearer = |path: &&PathView| is_chosen(path) && !is_late(path, gate.from);
            let all_come = self.all_come(now, paths.iter().filter(nearer), packet);
            let all_come = all_come.filter(|all_come| *all_come >= arrival && packet.has_behind);
            if let Some(all_come) = all_come {
                return self.pick_behind(now, paths, packet, index, (arrival, all_come));
            }
            let Some(near) = ready_near else {
                return Pick::Wait;
            };
            (arrival, index) = near;
        }
        if awaited.is_some_and(|awaited| awaited < arrival) {
            return Pick::Wait;
        }
        self.lines[slot(&paths[index])].on_sent(now, packet.len);
        self.sent += if is_large { packet.len.get() } else { 0 };
        if let Some(flow) = flow_of(&mut self.flows, packet) {
            flow.bytes += packet.len;
            flow.path = Some(paths[index].id);
            flow.reach.on_sent(packet.len);
        }
        if !is_large {
            return Pick::One(index);
        }
        let times = if packet.backlog > Bytes::ZERO {
            TIMES
        } else {
            1
        };
        let mut copies = 0;
        for (other, path) in paths.iter().enumerate() {
            let is_searched = path.is_searching && path.ready && quickest != Some(path.id);
            if is_searched
                && other != index
                && other < 16
                && self.copies[slot(path)].may_copy(now, packet.len, times)
            {
                copies |= 1 << other;
            }
        }
        match copies {
            0 => Pick::One(index),
            copies => Pick::Shadowed {
                index,
                copies,
                times,
            },
        }
    }

    fn longest_wait(&self, paths: &[PathView]) -> Duration {
        if Self::group(paths, Eager::ToLeave, alone(paths)) > Duration::ZERO {
            return Duration::ZERO;
        }
        let gate = Gate::new(paths, Duration::ZERO, true);
        // One that is searched as well, if it is worth it by what it has shown or is remembered as: else a flow that what is near
        // carries would never find out.
        let late = paths
            .iter()
            .filter(|path| is_late(path, gate.from) && path.rate.is_some() && gate.admits(path));
        let waits = late.map(|path| path.extra_delay + cost_of_losses(path, gate.from));
        waits.max().unwrap_or_default().min(LATEST)
    }

    fn round_trip(&self, paths: &[PathView]) -> Duration {
        let near = quickest(paths, Duration::ZERO);
        let Some((near, least)) = near.and_then(|near| Some((near, near.least_rtt?))) else {
            return Duration::ZERO;
        };
        let from = Self::better_group(paths, Eager::ToLeave, alone(paths));
        let taken = Self::group(paths, Eager::ToLeave, alone(paths));
        let total = carried_where(paths, |_| true);
        let usual = usual_queue(quickest(paths, from));
        // Acknowledgements take the next path when the queue that they make on the quickest is as late.
        let others = paths
            .iter()
            .filter(|path| path.usable && path.id != near.id);
        let next = others.map(|path| path.extra_delay).min();
        let known = near.rate.filter(|_| !near.is_searching);
        let queue = known.map_or(Duration::ZERO, full_queue);
        let queue = queue.min(next.unwrap_or_default());
        // There on one path, back on the quickest: of the jitter of both, half each.
        let longer = |path: &PathView| {
            let is_thin = known.is_some_and(|near| path.rate > Some(near.scale(ACKED, 1)));
            let queue = if is_thin { queue } else { Duration::ZERO };
            path.extra_delay + (path.rtt_spread + near.rtt_spread) / 2 + queue
        };
        let nearest = nearest(paths);
        let near_rate = carried_where(paths, |path| path.extra_delay <= nearest);
        // A flow that fills the near paths and moves to later ones, or spreads to late ones that carry much more, finds there how long
        // their round trip is: if that is more than it knows, its sender takes it for a full queue, and grows little as soon as it has got there.
        let is_left = Self::better_group(paths, Eager::No, alone(paths)) > Duration::ZERO;
        let is_most = !is_left && near_rate * 100 > total * MOST_PERCENT;
        // What that costs a small flow is little if it is little longer, or if near paths are so slow that they are full.
        let costs_little = |path: &PathView| {
            let later = longer(path);
            let bytes = near_rate * (least + later).as_millis() / 8_000;
            later * LITTLE <= least || bytes <= u128::from(TWO_WINDOWS.get())
        };
        let is_worth = |path: &PathView| {
            let is_one = is_member(path, from) || is_late(path, taken);
            path.usable && is_one && Self::is_worth(path, taken, total, usual)
        };
        // The least delay of one that jitters is seen late.
        let counts = |path: &PathView| {
            !is_most || path.extra_delay <= nearest + path.rtt_spread / 2 || costs_little(path)
        };
        let longest = |counts: &dyn Fn(&PathView) -> bool| {
            let serves = |path: &&PathView| path.id == near.id || is_worth(path) && counts(path);
            let last = paths.iter().filter(serves).map(longer).max();
            least + last.unwrap_or_default()
        };
        // BBR has two windows of its shortest round trip on its way, so with half of what all paths make it finds them.
        let half = longest(&|_| true) / 2;
        longest(&counts).max(half.min(least + least / VERY_LITTLE))
    }
}

/// Which paths a packet may take.
#[derive(Debug)]
struct Gate {
    /// Where the flow's paths begin, beyond the quickest's delay.
    from: Duration,
    is_large: bool,
    /// The delay up to which paths are the nearest.
    nearest: Duration,
    /// The quickest of the flow's, its least round trip, and its queue while it is full.
    quickest: Option<PathId>,
    round_trip: Option<Duration>,
    usual: Duration,
    /// Bits per second of all.
    total: u128,
}

impl Gate {
    fn new(paths: &[PathView], from: Duration, is_large: bool) -> Self {
        let quickest = quickest(paths, from);
        Self {
            from,
            is_large,
            nearest: nearest(paths),
            quickest: quickest.map(|path| path.id),
            round_trip: quickest.and_then(|path| path.least_rtt),
            usual: usual_queue(quickest),
            total: carried_where(paths, |_| true),
        }
    }

    fn admits(&self, path: &PathView) -> bool {
        let is_alone = self.quickest == Some(path.id) && path.is_searching;
        let is_worth = is_alone
            || !self.is_large
            || Adaptive::is_worth(path, self.from, self.total, self.usual);
        let is_jammed = path.queue_delay > GATE;
        let is_late = self.is_large && is_late(path, self.from);
        path.usable
            && (is_member(path, self.from) || is_late)
            && is_open(path, self.quickest)
            && is_worth
            && !is_jammed
    }

    /// The same of a flow that keeps to the nearest.
    fn admits_nearest(&self, path: &PathView) -> bool {
        path.extra_delay <= self.nearest && self.admits(path)
    }
}

/// From which volume on a flow is large: what waited of it for near paths would come later than on those that bring it much more.
fn large(paths: &[PathView], crowd: Crowd) -> Bytes {
    let from = Adaptive::better_group(paths, Eager::ToLeave, crowd);
    if from == Duration::ZERO {
        return LARGE;
    }
    let bytes = crowd.near * from.as_millis() / 8_000;
    Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX)).clamp(SMALL, LARGEST)
}

/// What is known of the flow of a packet that matters.
fn flow_of<'a>(flows: &'a mut [Flow], packet: &PacketInfo) -> Option<&'a mut Flow> {
    let flow = flows.get_mut(place(packet.flow_hash))?;
    (!packet.is_expendable).then_some(flow)
}

/// The place of a flow in the table.
fn place(flow_hash: u64) -> usize {
    // The remainder is below the number of places.
    usize::try_from(flow_hash % FLOWS as u64).unwrap_or(0)
}

impl Copies {
    fn may_copy(&mut self, now: Instant, len: Bytes, times: u8) -> bool {
        let len = Bytes::new(len.get() * u64::from(times));
        if now.since(self.since) > COPIES_AGAIN {
            self.left = COPIES;
            self.since = now;
        }
        let may = self.left >= len;
        if may {
            self.left = self.left - len;
        }
        may
    }
}

/// Whether a path is of the group that begins at `from` beyond the quickest path's delay.
fn is_member(path: &PathView, from: Duration) -> bool {
    path.extra_delay >= from && path.extra_delay <= from + GATE
}

/// Whether a path is too late to be mixed with the quickest, but not to take what would come even later there; no flow that
/// has left that takes such.
fn is_late(path: &PathView, from: Duration) -> bool {
    from == Duration::ZERO && path.extra_delay > GATE && path.extra_delay <= LATEST
}

/// The path of the least delay, of those that are usable and not before `from`.
fn quickest(paths: &[PathView], from: Duration) -> Option<&PathView> {
    let usable = paths.iter().filter(|path| path.usable);
    let usable = usable.filter(|path| path.extra_delay >= from);
    usable.min_by_key(|path| path.extra_delay)
}

/// The delay up to which paths are about as quick as the quickest.
fn nearest(paths: &[PathView]) -> Duration {
    quickest(paths, Duration::ZERO).map_or(NEAREST, |path| path.extra_delay + NEAREST)
}

/// What the queue of the quickest path is while that is full.
fn usual_queue(quickest: Option<&PathView>) -> Duration {
    let rate = quickest.and_then(|path| path.rate);
    rate.map_or(rate_control::HIGH, full_queue)
}

/// What the queue of a path of `rate` is while that is full: before it is drained.
fn full_queue(rate: Bitrate) -> Duration {
    rate_control::HIGH.max(rate_control::HIGH_BYTES / rate)
}

/// Whether a path may carry packets of its own: what is being searched carries what it has shown, while that makes no queue.
fn is_open(path: &PathView, quickest: Option<PathId>) -> bool {
    // Jitter looks like a queue.
    let short = SHORT_QUEUE.max(path.jitter * 3);
    let is_shown = path.rate.is_some() && path.queue_delay < short;
    !path.is_searching || is_shown || quickest == Some(path.id)
}

/// What the only flow has to reckon with.
fn alone(paths: &[PathView]) -> Crowd {
    Crowd::alone(carried_near(paths))
}

/// Bits per second of the usable paths that `is_counted`, together.
fn carried_where(paths: &[PathView], is_counted: impl Fn(&PathView) -> bool) -> u128 {
    let counted = paths.iter().filter(|path| path.usable && is_counted(path));
    let rates = counted.filter_map(|path| path.rate);
    rates.map(|rate| u128::from(rate.as_bps())).sum()
}

/// The same of those near the quickest.
fn carried_near(paths: &[PathView]) -> u128 {
    carried_where(paths, |path| is_member(path, Duration::ZERO))
}

/// Bits that paths which together carry `rate` bring a flow that takes them now, `later` than the quickest brings its
/// packets, before it ends: it has first to fill them, doubling its window every round trip.
fn gain(rate: u128, later: Duration) -> u128 {
    let longer = 2 * later.as_millis();
    let in_flight = rate * longer / 8000;
    let doublings = (in_flight / u128::from(LARGE.get())).max(1).ilog2();
    let filling = longer * u128::from(1 + doublings);
    rate * LASTS.as_millis().saturating_sub(filling)
}

/// For how long a large flow may wait for the quickest of its paths, of `round_trip`, at any time.
fn patience(round_trip: Option<Duration>) -> Duration {
    let part = round_trip.unwrap_or_default() / PATIENCE;
    part.clamp(MAX_WAIT, BURST)
}

/// What a path is taken to carry: twice what one that is being searched has carried.
fn likely_rate(path: &PathView) -> Bitrate {
    match path.rate {
        Some(rate) if path.is_searching => rate.scale(2, 1),
        Some(rate) => rate,
        None => UNKNOWN_RATE,
    }
}

/// When `len` bytes would arrive that are sent now, beyond the quickest path's delay. `wait`: for what stands before them in the
/// path itself.
fn arrival(line: &Line, now: Instant, path: &PathView, wait: Duration, len: Bytes) -> Instant {
    line.sent_until(now, len).max(now + wait) + path.extra_delay
}

/// What the losses of a path cost, as delay: a loss holds its flow up for a repair, and one in thirty is as good as
/// always.
fn penalty(path: &PathView) -> Duration {
    let repair = path.smoothed_rtt.unwrap_or_default() + REPAIR_TURN;
    repair * path.loss_ppm.min(33_333) / 33_333
}

/// The same of any path for a flow whose paths begin at `from`: what [late](is_late) ones lose is known as soon as it would have
/// come, and sent again over the quickest.
fn cost_of_losses(path: &PathView, from: Duration) -> Duration {
    if !is_late(path, from) {
        return penalty(path);
    }
    let round_trip = path.smoothed_rtt.unwrap_or_default();
    let repair = round_trip.saturating_sub(path.extra_delay * 2) + REPAIR_TURN;
    repair * path.loss_ppm.min(33_333) / 33_333
}

/// What a repair takes beside a round trip.
const REPAIR_TURN: Duration = Duration::from_millis(20);
/// What a path carries before anything is known.
const UNKNOWN_RATE: Bitrate = Bitrate::from_mbps(20);
/// Longest predicted time to get a large flow's backlog through the awaited path, where round trips are short and it comes in no
/// burst: the target of the tunnel queue's CoDel.
const MAX_WAIT: Duration = Duration::from_millis(5);
/// The same of a burst, from its beginning on: half of the interval of that CoDel. It is no standing queue yet, and the head
/// of it on a later path would hold all of it up. The same of a small flow, at any time: the whole of it is a burst.
const BURST: Duration = Duration::from_millis(50);
/// It is this part of the round trip if that is more, and at most as for a burst: what fills a path of a long one comes and
/// goes in bursts, which are not to lend all that follows the delay of a later path.
const PATIENCE: u32 = 5;
/// How much the delays of the paths of one flow may differ.
const GATE: Duration = Duration::from_millis(110);
/// A later one takes what waits longer than that for the quickest, up to here.
const LATEST: Duration = Duration::from_millis(330);
/// A path about as quick as the quickest is at most so much later.
const NEAREST: Duration = Duration::from_millis(10);
/// How much more later paths must carry, in percent and for each millisecond, to take a large flow from quicker ones; or how much
/// more they must bring, in percent, to take one that those hold back.
const WORTH_PERCENT: u128 = 130;
/// A flow that sends less than this part of what near paths carry, in percent, is not held back by them.
const HELD_BACK_PERCENT: u128 = 60;
/// Shortest time over which a flow's rate is taken.
const LEAST_SPAN: Duration = Duration::from_millis(100);
/// How long a large flow is taken to last.
const LASTS: Duration = Duration::from_secs(10);
/// A path carries large flows only if its share of all is more than this, and than a percent for each 10 ms.
const LEAST_SHARE_PERCENT: u64 = 3;
/// A flow is large if it sends more than this in a second, what waits included, where no other paths bring much more ([`large`]).
const LARGE: Bytes = Bytes::new(64_000);
/// What may make a flow large at most: near paths bring that much in less time than others are later.
const LARGEST: Bytes = Bytes::new(160_000);
/// No less makes a flow large.
const SMALL: Bytes = Bytes::new(16_000);
/// A flow begins anew after a pause as long.
const PAUSE: Duration = Duration::from_secs(5);
/// Nearest paths that carry more than this of all, in percent, and that flows do not leave once they fill them, are what matters to
/// a flow that begins: most flows end before they need others. But others that make the round trip longer by this part of it
/// at most cost them little, and so do any if the near ones carry no more in the longer one than a sender's first two windows
/// (RFC 6928: 10 packets, then 20). Flows leave for late paths only what carries no more than this of both; twice that, to stay away.
const MOST_PERCENT: u128 = 15;
const LITTLE: u32 = 4;
/// What it is made longer by at most for the sake of others that cost more.
const VERY_LITTLE: u32 = 8;
/// Acknowledgements of so many times what a path carries fill it, if it carries as much the other way: one for two packets, of
/// a 16th of their length each.
const ACKED: u64 = 32;
const TWO_WINDOWS: Bytes = Bytes::new(45_000);
/// Flows told apart.
const FLOWS: usize = 1024;
/// A queue that a path being searched may have and still carry packets of its own; three times its jitter if that is more.
const SHORT_QUEUE: Duration = Duration::from_millis(3);
/// Most copies of one packet, so that a slow path's packets can show what a fast one carries.
const TIMES: u8 = 16;
/// What a path may carry in copies at most, and how often that is granted.
const COPIES: Bytes = Bytes::new(8_000_000);
const COPIES_AGAIN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::super::tests::{packet, ready_paths};
    use super::*;

    /// Paths of (Mbit/s, milliseconds beyond the quickest).
    pub(super) fn paths_of(lines: &[(u64, u64)]) -> Vec<PathView> {
        let mut paths = ready_paths(lines.len());
        for (path, (mbps, ms)) in paths.iter_mut().zip(lines) {
            path.rate = Some(Bitrate::from_mbps(*mbps));
            path.extra_delay = Duration::from_millis(*ms);
            path.smoothed_rtt = Some(Duration::from_millis(20 + 2 * ms));
        }
        paths
    }

    /// Where `count` packets of a flow with a backlog go, 100 µs apart.
    fn picks(policy: &mut Adaptive, paths: &[PathView], from_ms: u64, count: u32) -> Vec<Pick> {
        let packet = PacketInfo {
            backlog: Bytes::new(100_000),
            ..packet()
        };
        let start = Instant::from_millis(from_ms);
        let picks =
            (0..count).map(|i| policy.pick(start + Duration::from_micros(100) * i, paths, &packet));
        picks.collect()
    }

    fn share(picks: &[Pick], index: usize) -> usize {
        let is_it = |pick: &&Pick| match pick {
            Pick::One(to) | Pick::Shadowed { index: to, .. } => *to == index,
            Pick::Copies(_) | Pick::Behind { .. } | Pick::Wait => false,
        };
        picks.iter().filter(is_it).count() * 100 / picks.len()
    }

    #[test]
    fn like_paths_share_by_what_they_carry() {
        let paths = paths_of(&[(60, 0), (40, 0)]);
        let picks = picks(&mut Adaptive::new(), &paths, 0, 2_000);
        assert!((55..65).contains(&share(&picks, 0)));
    }

    #[test]
    fn a_path_far_behind_carries_none_of_a_flow() {
        let paths = paths_of(&[(60, 0), (60, 400)]);
        let picks = picks(&mut Adaptive::new(), &paths, 0, 12_000);
        assert_eq!(share(&picks, 1), 0);
    }

    #[test]
    fn a_late_path_takes_what_would_come_later_still() {
        // 155 ms are 97 kB of the quickest, which is busy.
        let mut paths = paths_of(&[(5, 0), (6, 155)]);
        paths[0].ready = false;
        let mut is_sent = |backlog: u64, round_trip_ms: u64, loss_ppm: u32| {
            paths[1].loss_ppm = loss_ppm;
            let packet = PacketInfo {
                backlog: Bytes::new(backlog),
                // Large from the first packet on.
                own_backlog: Bytes::new(64_000),
                to_last: Bytes::new(backlog),
                round_trip: Duration::from_millis(round_trip_ms),
                has_behind: true,
                ..packet()
            };
            let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
            matches!(pick, Pick::One(1) | Pick::Behind { index: 1, .. })
        };
        assert!(!is_sent(90_000, 0, 0));
        assert!(is_sent(104_000, 0, 0));
        assert!(is_sent(104_000, 0, 2_000), "sent again over the quickest");
        assert!(!is_sent(104_000, 0, 20_000), "its losses are delay");
        assert!(is_sent(40_000, 155, 0), "its round trips are as long");
        assert!(!is_sent(20_000, 155, 0), "not for a short burst");
        // Neither does a small flow take it, nor one of which nothing waits beside others.
        for own_backlog in [0, 64_000] {
            let packet = PacketInfo {
                backlog: Bytes::new(200_000),
                own_backlog: Bytes::new(own_backlog),
                round_trip: Duration::from_millis(155),
                ..packet()
            };
            let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
            assert_eq!(pick, Pick::Wait, "{own_backlog}");
        }
    }

    #[test]
    fn a_small_flow_waits_for_the_quickest_while_that_brings_all_of_it_sooner() {
        // How much later the other is, and what leaves until the last packet of the flow does: its own and others'.
        for (ms, own_backlog, to_last, waits) in [
            (30, 0, 0, true),
            (30, 36_000, 36_000, true),
            (30, 40_000, 40_000, false),
            (30, 18_000, 36_000, true),
            (30, 5_000, 40_000, false),
            (100, 30_000, 60_000, true),
            (100, 30_000, 64_000, false),
        ] {
            let mut paths = paths_of(&[(10, 0), (11, ms)]);
            paths[0].ready = false;
            let packet = PacketInfo {
                backlog: Bytes::new(500_000),
                own_backlog: Bytes::new(own_backlog),
                to_last: Bytes::new(to_last),
                ..packet()
            };
            let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
            let is_wait = pick == Pick::Wait;
            assert_eq!(is_wait, waits, "{ms} ms, {to_last}: {pick:?}");
        }
    }

    #[test]
    fn near_paths_carry_together_what_waits() {
        // 190 kB are 150 ms of one, and 50 of the three.
        let mut paths = paths_of(&[(10, 0), (10, 0), (10, 0), (10, 140)]);
        for path in &mut paths[..3] {
            path.ready = false;
        }
        let packet = PacketInfo {
            backlog: Bytes::new(190_000),
            own_backlog: Bytes::new(190_000),
            to_last: Bytes::new(190_000),
            has_behind: true,
            ..packet()
        };
        let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
        assert_eq!(pick, Pick::Wait);
        let pick = Adaptive::new().pick(Instant::from_millis(50), &paths[2..], &packet);
        // Not the packet, but what comes 140 ms later.
        let Pick::Behind { index: 1, ahead } = pick else {
            panic!("{pick:?}");
        };
        assert!((170_000..180_000).contains(&ahead.get()), "{ahead:?}");
    }

    #[test]
    fn late_paths_do_not_take_the_place_of_a_jammed_one() {
        let mut paths = paths_of(&[(80, 0), (30, 150)]);
        paths[0].queue_delay = Duration::from_millis(115);
        let picks = picks(&mut Adaptive::new(), &paths, 0, 200);
        assert!(share(&picks, 0) > 60, "{}", share(&picks, 0));
    }

    #[test]
    fn a_jammed_path_that_soon_has_room_is_waited_for_beside_a_late_one() {
        let mut paths = paths_of(&[(80, 0), (30, 150)]);
        paths[0].queue_delay = Duration::from_millis(115);
        paths[0].ready = false;
        let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet());
        assert_eq!(pick, Pick::Wait);
    }

    #[test]
    fn what_waits_for_the_quickest_may_wait_until_a_late_path_is_worth_it() {
        for (lines, ms) in [
            ([(5, 0), (6, 155)], 155),
            // Near enough to be mixed, too late, and too slow for what it adds.
            ([(5, 0), (6, 100)], 0),
            ([(5, 0), (6, 400)], 0),
            ([(50, 0), (6, 155)], 0),
            // Large flows leave for it.
            ([(2, 0), (100, 200)], 0),
        ] {
            let mut paths = paths_of(&lines);
            for is_searching in [false, true] {
                paths[1].is_searching = is_searching;
                let wait = Adaptive::new().longest_wait(&paths);
                assert_eq!(wait, Duration::from_millis(ms), "{lines:?}, {is_searching}");
            }
        }
    }

    #[test]
    fn a_large_flow_goes_where_much_more_is_carried_and_a_small_one_does_not() {
        let paths = paths_of(&[(2, 0), (100, 200)]);
        let mut policy = Adaptive::new();
        let first = picks(&mut policy, &paths, 0, 40);
        assert_eq!(share(&first, 0), 100);
        let rest = picks(&mut policy, &paths, 100, 2_000);
        assert!(share(&rest, 1) > 95);
    }

    #[test]
    fn a_flow_is_large_once_near_paths_would_bring_it_later_than_others() {
        // 25 and 100 kB take the near path as long as the other is later; 160 kB are large in any case.
        for (lines, first) in [
            ([(1, 0), (100, 200)], 20),
            ([(1, 0), (1, 400)], 200),
            ([(4, 0), (1_000, 200)], 80),
            ([(40, 0), (1_000, 200)], 128),
        ] {
            let paths = paths_of(&lines);
            let mut policy = Adaptive::new();
            let mut picks =
                (0..200).map(|_| policy.pick(Instant::from_millis(50), &paths, &packet()));
            let near = picks.position(|pick| !matches!(pick, Pick::One(0)));
            assert_eq!(near.unwrap_or(200), first, "{lines:?}");
        }
    }

    #[test]
    fn what_waits_of_a_flow_makes_it_large_at_once() {
        // A burst that would be large at its end takes the later path from its beginning on, not half of it.
        let paths = paths_of(&[(4, 0), (1_000, 200)]);
        for (waits, near) in [(98_000, true), (99_000, false)] {
            let packet = PacketInfo {
                own_backlog: Bytes::new(waits),
                ..packet()
            };
            let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
            assert_eq!(matches!(pick, Pick::One(0)), near, "{waits}");
        }
    }

    #[test]
    fn what_is_near_is_left_for_a_late_path_only_if_it_adds_next_to_nothing() {
        for (mbps, ms, leaves, stays) in [
            (40, 150, false, false),
            (80, 150, false, true),
            (120, 150, true, true),
            (80, 350, true, true),
        ] {
            let paths = paths_of(&[(20, 0), (mbps, ms)]);
            let goes = |eager| Adaptive::group(&paths, eager, alone(&paths)) > Duration::ZERO;
            assert_eq!(goes(Eager::ToLeave), leaves, "{mbps} Mbit/s, {ms} ms");
            assert_eq!(goes(Eager::ToStay), stays, "{mbps} Mbit/s, {ms} ms");
        }
    }

    #[test]
    fn what_more_paths_bring_counts_against_all_that_would_be_left() {
        let from = |lines: &[(u64, u64)], eager| {
            Adaptive::group(&paths_of(lines), eager, alone(&paths_of(lines))).as_millis()
        };
        for (lines, leaves_to) in [
            ([(20, 0), (10, 250), (100, 350)], 250),
            ([(20, 0), (75, 200), (90, 400)], 0),
            ([(20, 0), (75, 200), (190, 400)], 400),
            ([(3, 0), (30, 100), (30, 120)], 100),
            ([(13, 0), (30, 100), (30, 120)], 0),
        ] {
            assert_eq!(from(&lines, Eager::ToLeave), leaves_to, "{lines:?}");
        }
        // What has left does not come back for a few milliseconds.
        for (ms, stays) in [(310, 310), (290, 0)] {
            let lines = [(50, 0), (90, ms)];
            assert_eq!(from(&lines, Eager::ToLeave), 0);
            assert_eq!(from(&lines, Eager::ToStay), stays);
        }
    }

    #[test]
    fn losses_make_later_paths_worth_less() {
        let mut paths = paths_of(&[(5, 0), (30, 150)]);
        for (loss_ppm, from_ms) in [(0, 150), (33_333, 0)] {
            paths[1].loss_ppm = loss_ppm;
            let from = Duration::from_millis(from_ms);
            assert_eq!(
                Adaptive::group(&paths, Eager::No, alone(&paths)),
                from,
                "{loss_ppm}"
            );
            let stays = Adaptive::group(&paths, Eager::Gaining, alone(&paths));
            assert_eq!(stays, Duration::from_millis(150), "sends more already");
        }
    }

    #[test]
    fn what_a_later_path_brings_counts_from_when_it_is_full() {
        // Two doublings fill the slow one, seven the fast one.
        for (lines, is_taken) in [([(2, 0), (6, 340)], true), ([(50, 0), (100, 340)], false)] {
            let paths = paths_of(&lines);
            let picks = picks(&mut Adaptive::new(), &paths, 0, 2_000);
            assert_eq!(share(&picks, 1) > 90, is_taken, "{lines:?}");
        }
    }

    #[test]
    fn what_waits_counts_once() {
        let mut paths = paths_of(&[(100, 0)]);
        let mut policy = Adaptive::new();
        for ms in 0..100 {
            paths[0].ready = false;
            assert_eq!(
                policy.pick(Instant::from_millis(ms), &paths, &packet()),
                Pick::Wait
            );
        }
        paths[0].ready = true;
        // 64 kB are 51 packets.
        let mut larges = (0..60).map(|_| {
            policy.pick(Instant::from_millis(100), &paths, &packet());
            flow_of(&mut policy.flows, &packet()).is_some_and(|flow| flow.is_large)
        });
        assert_eq!(larges.position(|is_large| is_large), Some(51));
    }

    #[test]
    fn a_burst_waits_for_the_path_that_soon_has_sent_it_and_a_standing_queue_does_not() {
        for (round_trip, expected) in [(20, 42), (25, 42), (50, 100)] {
            assert_eq!(waits_of(round_trip), expected, "{round_trip}");
        }
    }

    /// In how many of 100 ms a burst of 8 ms, which does not grow shorter, waits for a path of a round trip of so many.
    fn waits_of(round_trip: u64) -> u32 {
        let mut paths = paths_of(&[(100, 0), (20, 40)]);
        paths[0].least_rtt = Some(Duration::from_millis(round_trip));
        let mut policy = Adaptive::new();
        picks(&mut policy, &paths, 0, 80);
        policy.pick(Instant::from_millis(50), &paths, &packet());
        let mut waits = 0;
        for ms in 100..200 {
            let packet = PacketInfo {
                backlog: Bytes::new(100_000),
                ..packet()
            };
            let mut pick = |is_ready| {
                paths[0].ready = is_ready;
                policy.pick(Instant::from_millis(ms), &paths, &packet)
            };
            waits += u32::from(pick(false) == Pick::Wait);
            assert_eq!(pick(true), Pick::One(0));
        }
        // All is sent 8 ms later, within 50 of the beginning.
        waits
    }

    #[test]
    fn a_flow_that_near_paths_carry_well_stays_and_one_that_left_returns_for_a_reason() {
        let paths = paths_of(&[(20, 0), (70, 350)]);
        let mut policy = Adaptive::new();
        let mut share_at = |paths: &[PathView], every_us: u64, from_ms: u64| {
            let pick = |i: u64| {
                let now = Instant::from_millis(from_ms)
                    + Duration::from_micros(every_us) * u32::try_from(i).expect("few");
                policy.pick(now, paths, &packet())
            };
            share(&(0..2_000).map(pick).collect::<Vec<_>>(), 1)
        };
        assert_eq!(share_at(&paths, 2_000, 0), 0, "a quarter of what is near");
        assert!(share_at(&paths, 200, 10_000) > 90);
        // Not enough to go there for, but to stay.
        let paths = paths_of(&[(20, 0), (40, 350)]);
        assert!(share_at(&paths, 200, 10_400) > 90);
        let paths = paths_of(&[(20, 0), (10, 500)]);
        assert_eq!(share_at(&paths, 200, 10_800), 0);
        // None leaves what is near for what is merely better and late.
        for late in [28, 10] {
            let paths = paths_of(&[(20, 0), (late, 150)]);
            let picks = picks(&mut Adaptive::new(), &paths, 0, 2_000);
            assert_eq!(share(&picks, 1), 0, "{late}");
        }
    }

    /// Where a flow of 60 Mbit/s goes in the tenth of a second from `from_ms` on.
    fn picks_of_60_mbps(policy: &mut Adaptive, paths: &[PathView], from_ms: u64) -> Vec<Pick> {
        let start = Instant::from_millis(from_ms);
        let pick = |i: u32| policy.pick(start + Duration::from_micros(160) * i, paths, &packet());
        (0..625).map(pick).collect()
    }

    #[test]
    fn a_flow_that_grows_no_more_keeps_to_the_nearest_unless_that_is_jammed() {
        let mut paths = paths_of(&[(100, 0), (100, 30)]);
        let mut policy = Adaptive::new();
        // Much of it goes the later way, because the line of the nearest is taken for busy.
        paths[0].ready = false;
        assert!(share(&picks_of_60_mbps(&mut policy, &paths, 0), 1) > 0);
        paths[0].ready = true;
        for from_ms in (100..3_000).step_by(100) {
            picks_of_60_mbps(&mut policy, &paths, from_ms);
        }
        paths[0].ready = false;
        assert_eq!(share(&picks_of_60_mbps(&mut policy, &paths, 3_000), 1), 0);
        paths[0].queue_delay = Duration::from_millis(150);
        assert_eq!(share(&picks_of_60_mbps(&mut policy, &paths, 3_100), 1), 100);
    }

    #[test]
    fn a_round_trip_is_that_of_later_paths_only_where_those_carry_much() {
        // Of 100 Mbit/s, and the milliseconds later; where it is not all of them, an eighth of the shortest is.
        for (mbps, later, us, jittery_ms) in [
            (600, 30, 50_000, 54),
            (500, 30, 22_500, 28),
            (60, 10, 30_000, 34),
        ] {
            let mut paths = paths_of(&[(100, 0), (mbps, later)]);
            let policy = Adaptive::new();
            assert_eq!(policy.round_trip(&paths), Duration::ZERO, "not known");
            paths[0].least_rtt = Some(Duration::from_millis(20));
            assert_eq!(
                policy.round_trip(&paths),
                Duration::from_micros(us),
                "{mbps}"
            );
            paths[0].rtt_spread = Duration::from_millis(8);
            let jittery = Duration::from_millis(jittery_ms);
            assert_eq!(policy.round_trip(&paths), jittery, "{mbps}");
        }
        let mut paths = paths_of(&[(100, 0), (500, 30)]);
        paths[0].least_rtt = Some(Duration::from_millis(20));
        for (lines, round_trip, us) in [
            // A quarter longer.
            ([(100, 0), (200, 30)], 119, 119_000),
            ([(100, 0), (200, 30)], 120, 150_000),
            // 44 kB in the longer round trip, and 50.
            ([(7, 0), (35, 30)], 20, 50_000),
            ([(8, 0), (40, 30)], 20, 22_500),
            // Half of the longer one.
            ([(100, 0), (200, 15)], 20, 20_000),
            ([(100, 0), (200, 24)], 20, 22_000),
            // What does not help is none.
            ([(100, 0), (2, 30)], 20, 20_000),
            // What carries so much more that a large flow would leave for it as such, and what does not.
            ([(40, 0), (120, 150)], 20, 170_000),
            ([(40, 0), (100, 150)], 20, 22_500),
        ] {
            let mut paths = paths_of(&lines);
            paths[0].least_rtt = Some(Duration::from_millis(round_trip));
            let kept = Adaptive::new().round_trip(&paths);
            assert_eq!(kept, Duration::from_micros(us), "{lines:?}");
        }
        for (spread, us) in [(39, 22_500), (40, 70_000)] {
            paths[1].rtt_spread = Duration::from_millis(spread);
            let policy = Adaptive::new();
            assert_eq!(policy.round_trip(&paths), Duration::from_micros(us));
        }
    }

    #[test]
    fn a_round_trip_has_a_queue_of_acknowledgements_in_it_where_the_path_back_is_thin() {
        // A queue of 6000 bytes takes 48 ms of 1 Mbit/s, and 24 of 2; acknowledgements do not wait longer than others take.
        for (lines, ms) in [
            ([(1, 0), (32, 30)], 50),
            ([(1, 0), (33, 30)], 80),
            ([(1, 0), (33, 60)], 128),
            ([(2, 0), (64, 60)], 80),
            ([(2, 0), (65, 60)], 104),
        ] {
            let mut paths = paths_of(&lines);
            paths[0].least_rtt = Some(Duration::from_millis(20));
            let kept = Adaptive::new().round_trip(&paths);
            assert_eq!(kept, Duration::from_millis(ms), "{lines:?}");
        }
        let mut paths = paths_of(&[(1, 0), (40, 12), (40, 60)]);
        paths[0].least_rtt = Some(Duration::from_millis(20));
        let kept = |paths: &[PathView]| Adaptive::new().round_trip(paths);
        assert_eq!(kept(&paths), Duration::from_millis(92), "back by the next");
        paths[0].is_searching = true;
        assert_eq!(kept(&paths), Duration::from_millis(80), "not known");
    }

    #[test]
    fn a_slow_and_late_path_is_not_worth_it() {
        let paths = paths_of(&[(200, 0), (5, 50)]);
        let picks = picks(&mut Adaptive::new(), &paths, 0, 2_000);
        assert!(share(&picks, 1) < 5);
    }

    #[test]
    fn what_stands_in_a_slow_paths_queue_counts_as_delay() {
        // An eighth of the whole, but four packets take 5 ms of the one and 48 of the other.
        for (fast, is_used) in [(70, true), (7, false)] {
            let paths = paths_of(&[(fast, 0), (fast / 7, 95)]);
            let picks = picks(&mut Adaptive::new(), &paths, 0, 20_000);
            assert_eq!(share(&picks, 1) > 5, is_used, "{fast} Mbit/s");
        }
    }

    #[test]
    fn a_path_in_a_jam_carries_nothing_unless_all_are() {
        let mut paths = paths_of(&[(60, 0), (60, 0)]);
        paths[1].queue_delay = Duration::from_millis(150);
        assert_eq!(share(&picks(&mut Adaptive::new(), &paths, 0, 500), 1), 0);
        paths[0].queue_delay = Duration::from_millis(250);
        assert_eq!(share(&picks(&mut Adaptive::new(), &paths, 0, 500), 1), 100);
    }

    #[test]
    fn a_path_that_loses_is_the_second_choice() {
        let mut paths = paths_of(&[(60, 0), (60, 0)]);
        paths[0].loss_ppm = 30_000;
        let picks = picks(&mut Adaptive::new(), &paths, 0, 100);
        assert!(share(&picks, 1) > 90);
    }

    #[test]
    fn a_path_is_searched_with_copies_and_not_for_ever() {
        let mut paths = paths_of(&[(60, 0), (1, 0)]);
        paths[1].is_searching = true;
        let mut policy = Adaptive::new();
        let picks = picks(&mut policy, &paths, 0, 5_000);
        let copies = |pick: &&Pick| {
            matches!(
                pick,
                Pick::Shadowed {
                    index: 0,
                    copies: 2,
                    ..
                }
            )
        };
        let copied = picks.iter().filter(copies).count();
        assert!((300..500).contains(&copied), "8 MB at 16 copies: {copied}");
        let last = picks.iter().rposition(|pick| copies(&pick));
        assert!(last < Some(2_500), "the budget ends");
    }

    #[test]
    fn a_path_that_is_searched_carries_packets_while_it_has_no_queue_and_jitter_is_none() {
        for (queue_ms, jitter_ms, is_open) in
            [(2, 0, true), (5, 0, false), (5, 2, true), (7, 2, false)]
        {
            let mut paths = paths_of(&[(60, 0), (60, 0)]);
            paths[1].is_searching = true;
            paths[1].queue_delay = Duration::from_millis(queue_ms);
            paths[1].jitter = Duration::from_millis(jitter_ms);
            assert_eq!(super::is_open(&paths[1], Some(paths[0].id)), is_open);
        }
    }

    #[test]
    fn a_policy_never_waits_for_ever() {
        let mut paths = paths_of(&[(1, 0), (1, 300)]);
        paths[0].rate = None;
        paths[0].loss_ppm = 900_000;
        let picks = picks(&mut Adaptive::new(), &paths, 0, 2_000);
        assert!(!picks.contains(&Pick::Wait));
    }

    #[test]
    fn nothing_waits_for_a_late_path_that_cannot_take_it() {
        // A repair of the near one takes 170 ms, so the late one would bring a packet sooner.
        let mut paths = paths_of(&[(20, 0), (20, 120)]);
        paths[0].loss_ppm = 33_333;
        paths[0].smoothed_rtt = Some(Duration::from_millis(150));
        for (has_behind, ready, len, index) in [
            (true, true, 500_000, 1),
            (false, true, 500_000, 0),
            (true, false, 1_000, 0),
        ] {
            paths[1].ready = ready;
            let packet = PacketInfo {
                backlog: Bytes::new(len),
                own_backlog: Bytes::new(500_000),
                to_last: Bytes::new(500_000),
                has_behind,
                ..packet()
            };
            let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
            let is_it = match pick {
                Pick::One(to) | Pick::Shadowed { index: to, .. } => to == 0 && index == 0,
                Pick::Behind { index: to, .. } => to == 1 && index == 1,
                Pick::Copies(_) | Pick::Wait => false,
            };
            assert!(is_it, "{has_behind} {ready}: {pick:?}");
        }
    }
}
