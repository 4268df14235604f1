//! Which lane a chunk takes.
//!
//! Chunks are assigned in the order of the stream, when a lane asks for one. A scheduler may name a lane that is not free:
//! the chunk waits for that lane, and the next is assigned, until the lane that asked has got one. The round robins
//! name free lanes only, so that no lane idles whatever their rates are. One that works in [blocks](Scheduler::takes_blocks)
//! is given several chunks at once, and says in which order each lane sends its own.

mod consn;
mod cwnd_aware;
mod earliest_arrival;
mod osia;
mod round_robin;
mod weighted;

use core::time::Duration;

use pleach_core::{
    ids::PathId,
    sched::consn::BLOCK,
    time::Instant,
    units::{Bitrate, Bytes},
};

/// A lane as a scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Its place among the lanes of the bundle, below [`super::MAX_LANES`].
    pub slot: PathId,
    /// What it carries.
    pub rate: Bitrate,
    /// How long what leaves this end now takes to arrive, queues in the network included.
    pub delay: Duration,
    /// What was assigned to it and waits at this end.
    pub waiting: Bytes,
    /// Whether it would send a chunk at once.
    pub is_free: bool,
}

/// The schedulers by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Striping {
    /// Blocks of chunks whose sequences run towards each other over the lanes.
    Consn,
    /// By chance, in proportion to what the lanes hold.
    CwndAware,
    /// The lane on which the chunk is predicted to arrive first.
    EarliestArrival,
    /// Progressive water-filling.
    Osia,
    /// In turn.
    RoundRobin,
    /// In turn, in proportion to rates.
    WeightedRoundRobin,
}

impl Striping {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Consn,
        Self::CwndAware,
        Self::EarliestArrival,
        Self::Osia,
        Self::RoundRobin,
        Self::WeightedRoundRobin,
    ];

    /// Its name in configuration files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Consn => "consn",
            Self::CwndAware => "cwnd-aware",
            Self::EarliestArrival => "earliest-arrival",
            Self::Osia => "osia",
            Self::RoundRobin => "round-robin",
            Self::WeightedRoundRobin => "weighted-round-robin",
        }
    }

    /// The scheduler called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|found| found.name() == name)
    }
}

/// A scheduler at work.
#[derive(Clone, Debug)]
pub struct Scheduler(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Consn(Box<consn::Consn>),
    CwndAware(cwnd_aware::CwndAware),
    EarliestArrival,
    Osia(Box<osia::Osia>),
    RoundRobin(round_robin::RoundRobin),
    WeightedRoundRobin(weighted::Weighted),
}

impl Scheduler {
    /// A scheduler that has assigned nothing yet.
    #[must_use]
    pub fn new(striping: Striping) -> Self {
        Self(match striping {
            Striping::Consn => Kind::Consn(Box::default()),
            Striping::CwndAware => Kind::CwndAware(cwnd_aware::CwndAware::default()),
            Striping::EarliestArrival => Kind::EarliestArrival,
            Striping::Osia => Kind::Osia(Box::default()),
            Striping::RoundRobin => Kind::RoundRobin(round_robin::RoundRobin::default()),
            Striping::WeightedRoundRobin => Kind::WeightedRoundRobin(weighted::Weighted::default()),
        })
    }

    /// The lane for the next `len` bytes; `None`: none of them, wait.
    ///
    /// `lanes`: those that work, sorted by slot, at most [`super::MAX_LANES`]. O(n), now and then O(n log n).
    pub fn assign(&mut self, now: Instant, len: Bytes, lanes: &[LaneView]) -> Option<PathId> {
        match &mut self.0 {
            Kind::Consn(state) => state.assign(len, lanes),
            Kind::CwndAware(state) => state.assign(len, lanes),
            Kind::EarliestArrival => earliest_arrival::assign(len, lanes),
            Kind::Osia(state) => state.assign(now, len, lanes),
            Kind::RoundRobin(state) => state.assign(lanes),
            Kind::WeightedRoundRobin(state) => state.assign(lanes),
        }
    }

    /// How many chunks it is to be given at once; `None` if one after the other.
    #[must_use]
    pub fn takes_blocks(&self) -> Option<usize> {
        matches!(self.0, Kind::Consn(_)).then_some(BLOCK)
    }

    /// Places the chunks of a block of these lengths: index of each and its lane, in the order a lane is to send its own. Those
    /// that are left out may take any lane.
    pub fn place(&mut self, lens: &[Bytes], lanes: &[LaneView]) -> Vec<(usize, PathId)> {
        match &mut self.0 {
            Kind::Consn(state) => state.place(lens, lanes).collect(),
            Kind::CwndAware(_)
            | Kind::EarliestArrival
            | Kind::Osia(_)
            | Kind::RoundRobin(_)
            | Kind::WeightedRoundRobin(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(slot: u8, mbps: u64, delay_ms: u64) -> LaneView {
        LaneView {
            slot: PathId(slot),
            rate: Bitrate::from_mbps(mbps),
            delay: Duration::from_millis(delay_ms),
            waiting: Bytes::ZERO,
            is_free: true,
        }
    }

    const LEN: Bytes = Bytes::new(8192);

    /// How many of `count` chunks each of two lanes gets, as long as both are free.
    fn shares(striping: Striping, lanes: &[LaneView], count: usize) -> [usize; 2] {
        let mut scheduler = Scheduler::new(striping);
        let mut got = [0; 2];
        for _ in 0..count {
            let slot = scheduler.assign(Instant::ZERO, LEN, lanes).expect("free");
            got[slot.index()] += 1;
        }
        got
    }

    #[test]
    fn every_scheduler_names_a_lane_that_is_there() {
        for striping in Striping::ALL {
            assert_eq!(Striping::named(striping.name()), Some(striping));
            let mut scheduler = Scheduler::new(striping);
            assert_eq!(scheduler.assign(Instant::ZERO, LEN, &[]), None);
            for count in [1, 3, 2, 8, 1] {
                let lanes: Vec<LaneView> = (0..count).map(|slot| lane(slot, 10, 10)).collect();
                let slot = scheduler.assign(Instant::ZERO, LEN, &lanes);
                assert!(slot.expect("free").0 < count, "{striping:?}");
            }
        }
    }

    #[test]
    fn round_robins_leave_no_free_lane_idle() {
        let lanes = [lane(0, 20, 10), lane(1, 10, 80)];
        assert_eq!(shares(Striping::RoundRobin, &lanes, 30), [15, 15]);
        assert_eq!(shares(Striping::WeightedRoundRobin, &lanes, 30), [20, 10]);
        let mut lanes = lanes;
        lanes[0].is_free = false;
        for striping in [Striping::RoundRobin, Striping::WeightedRoundRobin] {
            assert_eq!(shares(striping, &lanes, 3), [0, 3]);
        }
        lanes[1].is_free = false;
        let mut scheduler = Scheduler::new(Striping::RoundRobin);
        assert_eq!(scheduler.assign(Instant::ZERO, LEN, &lanes), None);
    }

    #[test]
    fn lots_fall_by_what_lanes_hold_among_those_that_are_free() {
        let mut lanes = [lane(0, 20, 10), lane(1, 10, 80)];
        // 400 and 1600 kbit in two delays.
        let [quick, slow] = shares(Striping::CwndAware, &lanes, 1_000);
        assert!(
            (140..260).contains(&quick) && quick + slow == 1_000,
            "{quick}"
        );
        lanes[1].is_free = false;
        assert_eq!(shares(Striping::CwndAware, &lanes, 9), [9, 0]);
    }

    #[test]
    fn quick_lanes_are_filled_up_to_the_delay_of_slow_ones() {
        // 20 Mbit/s fill 70 ms with 175 kB.
        for striping in [Striping::Osia, Striping::EarliestArrival] {
            let mut lanes = [lane(0, 20, 10), lane(1, 10, 80)];
            let mut scheduler = Scheduler::new(striping);
            let mut first = Bytes::ZERO;
            while let Some(PathId(0)) = scheduler.assign(Instant::ZERO, LEN, &lanes) {
                lanes[0].waiting += LEN;
                lanes[0].is_free = false;
                first += LEN;
                assert!(first < Bytes::new(1 << 20), "{striping:?}");
            }
            let expected = 150_000..200_000;
            assert!(expected.contains(&first.get()), "{striping:?}: {first}");
        }
    }
}
