//! The lanes of an association at the end that sends: which lane an item takes, and what is sent again when a lane dies.
//!
//! An item is *staged* (assigned, waits for its lane), *sent*, and forgotten when the peer counts it among those that came
//! on its lane. Chunks of all connections are assigned in one order (`Source`), when a lane asks for one; everything else is
//! urgent and takes the nearest lane that is free. A lane that has items, sent or staged, and on which TCP makes no progress
//! for `patience` is *suspect*: what it had is sent on others, and it gets nothing new until it moves again. That costs
//! duplicates if it was only slow, which the receiver drops. A lane does not repeat what it has sent itself: TCP brings that.
//!
//! Bounds: [`MAX_LANES`] lanes; of each [`MAX_SENT`] items and [`MAX_SENT_BYTES`] sent and not counted; what is staged lies
//! within the connections' credit.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use pleach_core::{
    ids::PathId,
    time::Instant,
    units::{Bitrate, Bytes},
};

use super::{
    MAX_LANES, MAX_SENT, MAX_SENT_BYTES, Violation,
    frame::{ConnId, LaneId},
    item::{CHUNKS, Item, Key, OPEN},
    rate::{LaneEstimator, LaneSample},
    sched::{LaneView, Scheduler, Striping},
};

/// Where items come from.
pub(super) trait Source {
    /// The next item that is not a chunk.
    fn urgent(&mut self) -> Option<Item>;
    /// How long the next chunk is, in the order in which connections have their turns.
    fn next_len(&mut self) -> Option<u64>;
    /// Takes that chunk; `None`: there is none.
    fn cut(&mut self) -> Option<Item>;
    /// Whether the peer has no room for more of `conn` until something comes.
    fn is_blocked(&self, conn: ConnId) -> bool;
}

/// See the module's head.
#[derive(Debug)]
pub struct Dispatch {
    scheduler: Scheduler,
    lanes: Vec<Lane>,
    /// To be sent on any lane, before anything new.
    again: BTreeMap<Key, Again>,
    /// Bytes sent more than once.
    repeated_bytes: u64,
}

/// An item to be sent again.
#[derive(Debug)]
struct Again {
    item: Item,
    /// The lanes on which it is under way, a bit for each slot.
    under_way: u8,
}

#[derive(Debug)]
struct Lane {
    id: LaneId,
    slot: PathId,
    estimator: LaneEstimator,
    is_free: bool,
    is_suspect: bool,
    staged: VecDeque<Item>,
    staged_bytes: u64,
    /// Not counted by the peer yet; `None`: of no use any more.
    sent: VecDeque<Option<Item>>,
    sent_bytes: u64,
    sent_count: u64,
    progress_at: Instant,
}

/// A lane's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// What it carries.
    pub rate: Bitrate,
    /// Its round trip.
    pub rtt: Duration,
    /// Whether what it has is overdue.
    pub is_suspect: bool,
}

impl Dispatch {
    /// Nothing to send and no lane.
    pub(super) fn new(striping: Striping) -> Self {
        Self {
            scheduler: Scheduler::new(striping),
            lanes: Vec::new(),
            again: BTreeMap::new(),
            repeated_bytes: 0,
        }
    }

    /// Adds a lane; `false` if there are too many, or it is there.
    pub(super) fn add_lane(&mut self, now: Instant, id: LaneId) -> bool {
        let is_there = self.lanes.iter().any(|lane| lane.id == id);
        let is_used = |slot: u8| self.lanes.iter().any(|lane| lane.slot.0 == slot);
        let mut slots = (0_u8..).take(MAX_LANES);
        let Some(slot) = slots.find(|slot| !is_used(*slot)).filter(|_| !is_there) else {
            return false;
        };
        self.lanes.push(Lane {
            id,
            slot: PathId(slot),
            estimator: LaneEstimator::default(),
            is_free: false,
            is_suspect: false,
            staged: VecDeque::new(),
            staged_bytes: 0,
            sent: VecDeque::new(),
            sent_bytes: 0,
            sent_count: 0,
            progress_at: now,
        });
        self.lanes.sort_by_key(|lane| lane.slot);
        true
    }

    /// Removes a lane; what it had goes to the others.
    pub(super) fn remove_lane(&mut self, id: LaneId) {
        if let Some(index) = self.lanes.iter().position(|lane| lane.id == id) {
            let lane = self.lanes.remove(index);
            self.repeat(lane.sent.into_iter().flatten().chain(lane.staged));
        }
    }

    /// Notes whether the lane would send an item at once.
    pub fn set_free(&mut self, id: LaneId, is_free: bool) {
        if let Some(lane) = self.lane_mut(id) {
            lane.is_free = is_free;
        }
    }

    /// Notes TCP's account of a lane. Whether it has got on.
    pub fn observe(&mut self, now: Instant, id: LaneId, sample: LaneSample) -> bool {
        let Some(lane) = self.lane_mut(id) else {
            return false;
        };
        let is_progress = lane.estimator.on_sample(sample);
        if is_progress {
            lane.progress_at = now;
            lane.is_suspect = false;
        }
        is_progress
    }

    /// Looks for lanes that make no progress. Call it every few tens of milliseconds, after [`Self::observe`]. Whether
    /// there is something new to send.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let mut found: Vec<Item> = Vec::new();
        for lane in &mut self.lanes {
            if !lane.is_suspect && lane.is_waiting() && lane.is_silent(now) {
                lane.is_suspect = true;
                // They stay on the lane's account: they may come yet.
                found.extend(lane.sent.iter().flatten().cloned());
                found.extend(lane.staged.drain(..));
                lane.staged_bytes = 0;
            }
        }
        let is_news = !found.is_empty();
        if is_news {
            self.repeat(found);
        }
        is_news
    }

    /// A lane that has been suspect for so long that a new one is better, while another works; or, if none does, for longer
    /// than anybody waits.
    #[must_use]
    pub fn hopeless_lane(&self, now: Instant) -> Option<LaneId> {
        let works = self.lanes.iter().any(|lane| !lane.is_suspect);
        let limit = if works { HOPE } else { LAST_HOPE };
        let is_hopeless = |lane: &&Lane| lane.is_suspect && now.since(lane.progress_at) > limit;
        self.lanes.iter().find(is_hopeless).map(|lane| lane.id)
    }

    /// Whether [`Self::handle_timeout`] has anything to look for.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.lanes.iter().any(Lane::is_waiting) || !self.again.is_empty()
    }

    /// Whether an item waits for lane `id`, and the lane may send it.
    #[must_use]
    pub fn has_staged(&self, id: LaneId) -> bool {
        let lane = self.lanes.iter().find(|lane| lane.id == id);
        lane.is_some_and(|lane| !lane.staged.is_empty() && lane.may_send())
    }

    /// State of lane `id`.
    #[must_use]
    pub fn lane_state(&self, id: LaneId) -> Option<LaneState> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        Some(LaneState {
            rate: lane.estimator.rate(),
            rtt: lane.estimator.rtt(),
            is_suspect: lane.is_suspect,
        })
    }

    /// Bytes assigned and not sent, and bytes sent more than once.
    #[must_use]
    pub fn staged_and_repeated(&self) -> (u64, u64) {
        let staged = self.lanes.iter().map(|lane| lane.staged_bytes).sum();
        (staged, self.repeated_bytes)
    }

    /// The next item for lane `id`, which can send. O(lanes) for each chunk that is assigned.
    pub(super) fn poll_item(
        &mut self,
        now: Instant,
        id: LaneId,
        source: &mut impl Source,
    ) -> Option<Item> {
        let index = self.lanes.iter().position(|lane| lane.id == id)?;
        let lane = &mut self.lanes[index];
        lane.is_free = true;
        // What waited for it is with others, and nothing is under way whose arrival would clear it.
        lane.is_suspect &= !lane.sent.is_empty();
        if !lane.may_send() {
            return None;
        }
        let item = self.next_item(now, index, source)?;
        let lane = &mut self.lanes[index];
        if lane.sent.is_empty() {
            lane.progress_at = now;
        }
        lane.sent_bytes += item.data_bytes();
        lane.sent.push_back(Some(item.clone()));
        lane.sent_count += 1;
        Some(item)
    }

    /// Handles the peer's counts of what came.
    ///
    /// # Errors
    /// It counts what was not sent.
    pub(super) fn handle_counts(
        &mut self,
        now: Instant,
        counts: &[(LaneId, u64)],
    ) -> Result<(), Violation> {
        for (id, count) in counts {
            let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == *id) else {
                continue;
            };
            if *count > lane.sent_count {
                return Err(Violation::Acknowledged);
            }
            let before = lane.sent_count - lane.sent.len() as u64;
            for _ in before..*count {
                if let Some(Some(item)) = lane.sent.pop_front() {
                    lane.sent_bytes -= item.data_bytes();
                    self.again.remove(&item.key());
                }
                lane.progress_at = now;
                lane.is_suspect = false;
            }
        }
        Ok(())
    }

    /// Chunks of `conn` before `delivered` need not be sent again.
    pub(super) fn on_delivered(&mut self, conn: ConnId, delivered: u64) {
        let all = (CHUNKS, conn, 0)..(CHUNKS, conn, delivered);
        let known = self.again.range(all).map(|(key, again)| {
            let end = key.2.saturating_add(again.item.cost());
            (*key, end)
        });
        let over = known.filter(|(_, end)| *end <= delivered);
        let over: Vec<Key> = over.map(|(key, _)| key).collect();
        for key in over {
            self.again.remove(&key);
        }
    }

    /// Drops the chunks of `conn`, which is over, and the request for it. O(items).
    pub(super) fn purge(&mut self, conn: ConnId) {
        let is_its = |item: &Item| matches!(item.key().0, CHUNKS | OPEN) && item.conn() == conn;
        self.again.retain(|_, again| !is_its(&again.item));
        for lane in &mut self.lanes {
            lane.staged.retain(|item| !is_its(item));
            lane.staged_bytes = lane.staged.iter().map(Item::data_bytes).sum();
            for sent in &mut lane.sent {
                if let Some(item) = sent.take_if(|item| is_its(item)) {
                    lane.sent_bytes -= item.data_bytes();
                }
            }
        }
    }

    /// Everything kept, in bytes of data, for tests of the bounds.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> u64 {
        let sent = self
            .lanes
            .iter()
            .flat_map(|lane| lane.sent.iter().flatten());
        let staged = self.lanes.iter().flat_map(|lane| &lane.staged);
        let again = self.again.values().map(|again| &again.item);
        let all = sent.chain(staged).chain(again);
        // They share their data.
        let items: BTreeMap<Key, u64> = all.map(|item| (item.key(), item.data_bytes())).collect();
        items.values().sum()
    }

    /// Whether what is noted of items under way is so.
    #[cfg(test)]
    pub(super) fn knows_what_is_under_way(&self) -> bool {
        self.again.iter().all(|(key, again)| {
            let has = |lane: &&Lane| lane.sent.iter().flatten().any(|item| item.key() == *key);
            let on = self.lanes.iter().filter(has);
            on.fold(0, |on, lane| on | lane.bit()) == again.under_way
        })
    }

    fn next_item(&mut self, now: Instant, index: usize, source: &mut impl Source) -> Option<Item> {
        if let Some(item) = self.next_again(index) {
            self.repeated_bytes += item.data_bytes();
            return Some(item);
        }
        if self.is_nearest(index)
            && let Some(item) = source.urgent()
        {
            return Some(item);
        }
        while self.lanes[index].staged.is_empty() {
            let Some(len) = source.next_len() else {
                return self.take_over(source);
            };
            if let Some(most) = self.scheduler.takes_blocks() {
                self.place_block(now, index, most, source);
                continue;
            }
            let views = self.views();
            let slot = self.scheduler.assign(now, Bytes::new(len), &views)?;
            // First: a chunk that was cut must not be dropped.
            let named = self.lanes.iter().position(|lane| lane.slot == slot)?;
            let item = source.cut()?;
            self.lanes[named].stage(now, item);
        }
        self.lanes[index].unstage(0)
    }

    /// Whether no lane that would send at once is nearer.
    fn is_nearest(&self, index: usize) -> bool {
        let rank = |lane: &Lane| (lane.estimator.delay(), lane.slot);
        let own = rank(&self.lanes[index]);
        let is_nearer = |lane: &Lane| lane.is_free && lane.may_send() && rank(lane) < own;
        !self.lanes.iter().any(is_nearer)
    }

    /// Assigns what waits, up to `most` chunks; what finds no lane, to that of `index`.
    fn place_block(&mut self, now: Instant, index: usize, most: usize, source: &mut impl Source) {
        let views = self.views();
        let mut block: Vec<Option<Item>> = Vec::new();
        while block.len() < most && source.next_len().is_some() {
            block.extend(source.cut().map(Some));
        }
        let len = |item: &Option<Item>| item.as_ref().map_or(0, Item::cost);
        let lens: Vec<Bytes> = block.iter().map(|item| Bytes::new(len(item))).collect();
        for (place, slot) in self.scheduler.place(&lens, &views) {
            let lane = self.lanes.iter_mut().find(|lane| lane.slot == slot);
            let item = block.get_mut(place).filter(|_| lane.is_some());
            if let (Some(lane), Some(item)) = (lane, item.and_then(Option::take)) {
                lane.stage(now, item);
            }
        }
        for item in block.into_iter().flatten() {
            self.lanes[index].stage(now, item);
        }
    }

    /// The lanes that work, as a scheduler sees them.
    fn views(&self) -> Vec<LaneView> {
        let lanes = self.lanes.iter().filter(|lane| !lane.is_suspect);
        lanes.map(Lane::view).collect()
    }

    /// The first to be sent again that is not under way on this very lane. A look at each that is.
    fn next_again(&mut self, index: usize) -> Option<Item> {
        let bit = self.lanes[index].bit();
        let mut again = self.again.iter();
        let (key, _) = again.find(|(_, again)| again.under_way & bit == 0)?;
        let key = *key;
        self.again.remove(&key).map(|again| again.item)
    }

    /// What waits for another lane, of a connection that may send nothing new: its receiver has no room until that comes.
    fn take_over(&mut self, source: &impl Source) -> Option<Item> {
        // A lane may send its own from the end.
        let first = |lane: &Lane| {
            let staged = lane.staged.iter().enumerate();
            let stuck = staged.filter(|(_, item)| source.is_blocked(item.conn()));
            stuck.map(|(place, item)| (item.key(), place)).min()
        };
        let lanes = self.lanes.iter_mut();
        let lanes = lanes.filter_map(|lane| Some((first(lane)?, lane)));
        let ((_, place), lane) = lanes.min_by_key(|(first, _)| *first)?;
        lane.unstage(place)
    }

    /// Has `items` sent again. O(items log items); lanes fall silent and go far more seldom than they send.
    fn repeat(&mut self, items: impl IntoIterator<Item = Item>) {
        for item in items {
            let under_way = 0;
            self.again.insert(item.key(), Again { item, under_way });
        }
        for again in self.again.values_mut() {
            again.under_way = 0;
        }
        for lane in &self.lanes {
            for item in lane.sent.iter().flatten() {
                if let Some(again) = self.again.get_mut(&item.key()) {
                    again.under_way |= lane.bit();
                }
            }
        }
    }

    fn lane_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.id == id)
    }
}

impl Lane {
    /// Whether it has anything that is to arrive.
    fn is_waiting(&self) -> bool {
        !self.sent.is_empty() || !self.staged.is_empty()
    }

    /// Whether it is to be given anything.
    fn may_send(&self) -> bool {
        !self.is_suspect && self.sent.len() < MAX_SENT && self.sent_bytes < MAX_SENT_BYTES
    }

    /// Whether it has made no progress for so long that its link is taken for dead.
    fn is_silent(&self, now: Instant) -> bool {
        now.since(self.progress_at) > patience(self.estimator.rtt())
    }

    /// Its bit among the lanes' slots.
    fn bit(&self) -> u8 {
        const { assert!(MAX_LANES <= 8) };
        1 << self.slot.0
    }

    /// Takes an item that waits for it, behind the others.
    fn stage(&mut self, now: Instant, item: Item) {
        if !self.is_waiting() {
            self.progress_at = now;
        }
        self.staged_bytes += item.data_bytes();
        self.staged.push_back(item);
    }

    /// Gives the staged item at `place` back.
    fn unstage(&mut self, place: usize) -> Option<Item> {
        let item = self.staged.remove(place)?;
        self.staged_bytes -= item.data_bytes();
        Some(item)
    }

    fn view(&self) -> LaneView {
        LaneView {
            slot: self.slot,
            rate: self.estimator.rate(),
            delay: self.estimator.delay(),
            waiting: self.estimator.unsent() + Bytes::new(self.staged_bytes),
            is_free: self.is_free && self.staged.is_empty(),
        }
    }
}

/// How long a lane may make no progress: TCP's first timeout is 200 ms and a round trip (RFC 6298, Linux's minimum).
fn patience(rtt: Duration) -> Duration {
    (LEAST_PATIENCE + rtt).min(MOST_PATIENCE)
}

const LEAST_PATIENCE: Duration = Duration::from_millis(250);
/// So that even then connections stall for less than a second.
const MOST_PATIENCE: Duration = Duration::from_millis(800);
/// By then TCP waits for several seconds before it sends again (RFC 6298 section 5.5).
const HOPE: Duration = Duration::from_secs(8);
/// Where no other lane works: after eight timeouts.
const LAST_HOPE: Duration = Duration::from_secs(60);
