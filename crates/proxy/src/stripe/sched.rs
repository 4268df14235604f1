//! Choice of the lane (one TCP connection between two proxies over one link) for each chunk of a striped connection.
//!
//! Chunks are assigned in the order of the stream, when a lane is ready to send. A scheduler may name a lane that is
//! not free. Then the chunk waits for that lane, and the next chunks are assigned until the lane that was ready has a
//! chunk. The round robin schedulers name free lanes only, so that no lane idles, whatever the lanes' rates are. A
//! scheduler that works in [blocks](Scheduler::takes_blocks) gets several chunks at once, and decides in which order
//! each lane sends its chunks.

mod consn;
mod cwnd_aware;
mod earliest_arrival;
mod osia;
mod round_robin;
mod weighted;

use core::time::Duration;

pub(super) use weighted::Weighted;

use pleach_core::{
    ids::PathId,
    sched::BLOCK,
    time::Instant,
    units::{Bitrate, Bytes},
};

/// Properties of a lane that a scheduler uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Index of the lane in its bundle, below [`super::MAX_LANES`].
    pub slot: PathId,
    /// Throughput of the lane.
    pub rate: Bitrate,
    /// Delay until data sent now arrives at the other end, including queues in the network.
    pub delay: Duration,
    /// Number of bytes that are assigned to the lane and wait at this end.
    pub waiting: Bytes,
    /// Whether the lane could send a chunk immediately.
    pub is_free: bool,
}

/// Scheduler that the configuration can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Striping {
    /// Assigns blocks of chunks. The fastest lane sends its part of a block in ascending order, every other lane sends
    /// its part in descending order.
    Consn,
    /// Assigns chunks at random, in proportion to the lanes' windows.
    CwndAware,
    /// The lane on which the chunk is predicted to arrive first.
    EarliestArrival,
    /// Progressive water-filling: fills fast lanes until their delay equals the delay of slower ones.
    Osia,
    /// Takes the lanes in turn.
    RoundRobin,
    /// Takes the lanes in turn, in proportion to their rates.
    WeightedRoundRobin,
}

impl Striping {
    /// All schedulers.
    pub const ALL: [Self; 6] = [
        Self::Consn,
        Self::CwndAware,
        Self::EarliestArrival,
        Self::Osia,
        Self::RoundRobin,
        Self::WeightedRoundRobin,
    ];

    /// Returns the scheduler's name in configuration files.
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

    /// Returns the scheduler with the name `name`, if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|found| found.name() == name)
    }
}

/// A scheduler and its state.
#[derive(Clone, Debug)]
pub struct Scheduler(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Consn(Box<consn::Consn>),
    CwndAware(cwnd_aware::CwndAware),
    EarliestArrival,
    Osia(Box<osia::Osia>),
    RoundRobin(round_robin::RoundRobin),
    WeightedRoundRobin(Weighted),
}

impl Scheduler {
    /// Returns a scheduler in its initial state.
    #[must_use]
    pub fn new(striping: Striping) -> Self {
        Self(match striping {
            Striping::Consn => Kind::Consn(Box::default()),
            Striping::CwndAware => Kind::CwndAware(cwnd_aware::CwndAware::default()),
            Striping::EarliestArrival => Kind::EarliestArrival,
            Striping::Osia => Kind::Osia(Box::default()),
            Striping::RoundRobin => Kind::RoundRobin(round_robin::RoundRobin::default()),
            Striping::WeightedRoundRobin => Kind::WeightedRoundRobin(Weighted::default()),
        })
    }

    /// Returns the lane for the next `len` bytes. `None` if the chunk must wait because no lane is suitable.
    ///
    /// `lanes` are the working lanes, sorted by slot, at most [`super::MAX_LANES`]. O(n), occasionally O(n log n).
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

    /// Returns how many chunks the scheduler takes at once. `None` if it takes them one by one.
    #[must_use]
    pub fn takes_blocks(&self) -> Option<usize> {
        matches!(self.0, Kind::Consn(_)).then_some(BLOCK)
    }

    /// Assigns the chunks of a block with the lengths `lens` to lanes. Returns the index and the lane of each chunk, in
    /// the order in which a lane sends its chunks. A chunk that is missing from the result may take any lane.
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
        // The lanes hold 400 and 1600 kbit within twice their delay.
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
        // 20 Mbit/s transfer 175 kB in 70 ms, the difference of the delays.
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
