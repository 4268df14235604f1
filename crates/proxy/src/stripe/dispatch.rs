//! The lanes of an association (TCP connections to one peer, each over one link) at the sending end: which lane an
//! item takes, and which items are retransmitted when a lane dies.
//!
//! An item is *staged* when it is assigned to a lane and waits for the lane. Then it is *sent*. It is forgotten when
//! the peer acknowledges it: the peer reports the number of items that arrived on each lane. Chunks of all
//! connections are assigned in one order (`Source`), when a lane asks for a chunk. All other items are urgent and
//! take the free lane with the shortest delay.
//!
//! A lane is *suspect* if it has items, sent or staged, and TCP makes no progress on it for `patience`. Its items are
//! then sent on other lanes, and it gets no new items until it makes progress. If the lane was only slow, this causes
//! duplicates, which the receiver drops. An item is not repeated on the lane on which it was sent, because TCP
//! retransmits it there.
//!
//! Datagrams ([`super::datagrams`]) are no items: they are neither stored nor retransmitted. A lane is suspect for them
//! as well, if the kernel has data of the lane that the other end does not acknowledge.
//!
//! Bounds: [`MAX_LANES`] lanes; per lane [`MAX_SENT`](super::MAX_SENT) items and
//! [`MAX_SENT_BYTES`](super::MAX_SENT_BYTES) bytes sent and not acknowledged.
//! Staged data are bounded by the connections' credit.

mod lane;

use core::time::Duration;
use std::collections::BTreeMap;

use pleach_core::{
    ids::PathId,
    time::Instant,
    units::{Bitrate, Bytes},
};

use self::lane::Lane;
use super::{
    MAX_LANES, Violation,
    frame::{ConnId, LaneId},
    item::{CHUNKS, Item, Key, OPEN},
    rate::LaneSample,
    sched::{LaneView, Scheduler, Striping},
};

/// Source of items to send.
pub(super) trait Source {
    /// Returns the next item that is not a chunk.
    fn urgent(&mut self) -> Option<Item>;
    /// Returns the length of the next chunk, in the order in which connections send.
    fn next_len(&mut self) -> Option<u64>;
    /// Cuts and returns the next chunk. `None` if there is no chunk.
    fn cut(&mut self) -> Option<Item>;
    /// Whether the peer's window for `conn` is exhausted.
    fn is_blocked(&self, conn: ConnId) -> bool;
}

/// Assigns items to the lanes of an association, and retransmits them.
#[derive(Debug)]
pub struct Dispatch {
    scheduler: Scheduler,
    lanes: Vec<Lane>,
    /// Items to be retransmitted on any lane, before new items.
    again: BTreeMap<Key, Again>,
    /// Number of bytes sent more than once.
    repeated_bytes: u64,
}

/// An item to be retransmitted.
#[derive(Debug)]
struct Again {
    item: Item,
    /// Bit set of the slots of the lanes on which the item is in flight.
    under_way: u8,
}

/// State of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// Estimated rate of the lane.
    pub rate: Bitrate,
    /// RTT of the lane.
    pub rtt: Duration,
    /// Whether the lane has items but makes no progress.
    pub is_suspect: bool,
}

impl Dispatch {
    /// Creates a dispatcher without lanes.
    pub(super) fn new(striping: Striping) -> Self {
        Self {
            scheduler: Scheduler::new(striping),
            lanes: Vec::new(),
            again: BTreeMap::new(),
            repeated_bytes: 0,
        }
    }

    /// Adds a lane. Returns `false` if there are too many lanes or the lane exists already.
    pub(super) fn add_lane(&mut self, now: Instant, id: LaneId) -> bool {
        let is_there = self.lanes.iter().any(|lane| lane.id == id);
        let is_used = |slot: u8| self.lanes.iter().any(|lane| lane.slot.0 == slot);
        let mut slots = (0_u8..).take(MAX_LANES);
        let Some(slot) = slots.find(|slot| !is_used(*slot)).filter(|_| !is_there) else {
            return false;
        };
        self.lanes.push(Lane::new(now, id, PathId(slot)));
        self.lanes.sort_by_key(|lane| lane.slot);
        true
    }

    /// Removes a lane. Its items are sent on the other lanes.
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

    /// Evaluates TCP's statistics of a lane. Returns whether the lane has made progress.
    pub fn observe(&mut self, now: Instant, id: LaneId, sample: LaneSample) -> bool {
        let Some(lane) = self.lane_mut(id) else {
            return false;
        };
        let is_progress = lane.estimator.on_sample(sample);
        if is_progress {
            lane.progress_at = now;
            lane.is_suspect = false;
        }
        lane.carries_datagrams &= lane.estimator.is_outstanding();
        is_progress
    }

    /// Checks for lanes that make no progress. Call it every few tens of milliseconds, after [`Self::observe`].
    /// Returns whether items were queued for retransmission.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let mut found: Vec<Item> = Vec::new();
        for lane in &mut self.lanes {
            if !lane.is_suspect && lane.is_waiting() && lane.is_silent(now) {
                lane.is_suspect = true;
                // The items stay in the lane's list of sent items: they may still arrive.
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

    /// Returns a lane that has been suspect for so long that a new lane should replace it: 8 s while another lane
    /// works, otherwise 60 s.
    #[must_use]
    pub fn hopeless_lane(&self, now: Instant) -> Option<LaneId> {
        let works = self.lanes.iter().any(|lane| !lane.is_suspect);
        let limit = if works { HOPE } else { LAST_HOPE };
        let is_hopeless = |lane: &&Lane| lane.is_suspect && now.since(lane.progress_at) > limit;
        self.lanes.iter().find(is_hopeless).map(|lane| lane.id)
    }

    /// Whether [`Self::handle_timeout`] has anything to check.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.lanes.iter().any(Lane::is_waiting) || !self.again.is_empty()
    }

    /// Whether an item is staged on lane `id` and the lane may send it.
    #[must_use]
    pub fn has_staged(&self, id: LaneId) -> bool {
        let lane = self.lanes.iter().find(|lane| lane.id == id);
        lane.is_some_and(|lane| !lane.staged.is_empty() && lane.may_send())
    }

    /// Returns the state of lane `id`.
    #[must_use]
    pub fn lane_state(&self, id: LaneId) -> Option<LaneState> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        Some(LaneState {
            rate: lane.estimator.rate(),
            rtt: lane.estimator.rtt(),
            is_suspect: lane.is_suspect,
        })
    }

    /// Returns the number of bytes that are assigned to lanes and not sent yet, and the number of bytes sent more
    /// than once.
    #[must_use]
    pub fn staged_and_repeated(&self) -> (u64, u64) {
        let staged = self.lanes.iter().map(|lane| lane.staged_bytes).sum();
        (staged, self.repeated_bytes)
    }

    /// Returns the next item for lane `id`, which can send. O(lanes) for each chunk that is assigned.
    pub(super) fn poll_item(
        &mut self,
        now: Instant,
        id: LaneId,
        source: &mut impl Source,
    ) -> Option<Item> {
        let index = self.lanes.iter().position(|lane| lane.id == id)?;
        self.lanes[index].on_ready();
        if !self.lanes[index].may_send() {
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

    /// Returns the slot of lane `id`, which can send. `None` if the lane is suspect or not there.
    pub(super) fn ready_slot(&mut self, id: LaneId) -> Option<PathId> {
        let lane = self.lane_mut(id)?;
        lane.on_ready();
        (!lane.is_suspect).then_some(lane.slot)
    }

    /// Returns the slot of lane `id`.
    pub(super) fn slot(&self, id: LaneId) -> Option<PathId> {
        let lane = self.lanes.iter().find(|lane| lane.id == id);
        lane.map(|lane| lane.slot)
    }

    /// Returns the lanes that are not suspect, for the assignment of datagrams. A lane is free even if chunks are
    /// staged on it, because datagrams precede chunks.
    pub(super) fn datagram_views(&self) -> impl Iterator<Item = LaneView> {
        let lanes = self.lanes.iter().filter(|lane| !lane.is_suspect);
        lanes.map(|lane| LaneView {
            is_free: lane.is_free,
            ..lane.view()
        })
    }

    /// Notes that a datagram was sent on the lane in `slot`.
    pub(super) fn on_datagram(&mut self, now: Instant, slot: PathId) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.slot == slot) {
            if !lane.is_waiting() {
                lane.progress_at = now;
            }
            lane.carries_datagrams = true;
        }
    }

    /// Handles the peer's acknowledgements: the number of items that arrived on each lane.
    ///
    /// # Errors
    /// Fails if the peer acknowledges items that were not sent.
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

    /// Notes that the bytes of `conn` before position `delivered` need not be retransmitted.
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

    /// Drops the request and the chunks of connection `conn`, which is over. O(items).
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

    /// Returns the number of data bytes that are buffered, for tests of the bounds.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> u64 {
        let sent = self
            .lanes
            .iter()
            .flat_map(|lane| lane.sent.iter().flatten());
        let staged = self.lanes.iter().flat_map(|lane| &lane.staged);
        let again = self.again.values().map(|again| &again.item);
        let all = sent.chain(staged).chain(again);
        // Copies of an item share their data.
        let items: BTreeMap<Key, u64> = all.map(|item| (item.key(), item.data_bytes())).collect();
        items.values().sum()
    }

    /// Whether [`Again::under_way`] is correct for all items.
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
            // Find the lane before cutting the chunk, because a chunk that was cut must not be dropped.
            let named = self.lanes.iter().position(|lane| lane.slot == slot)?;
            let item = source.cut()?;
            self.lanes[named].stage(now, item);
        }
        self.lanes[index].unstage(0)
    }

    /// Whether no other lane that would send at once has a shorter delay.
    fn is_nearest(&self, index: usize) -> bool {
        let rank = |lane: &Lane| (lane.estimator.delay(), lane.slot);
        let own = rank(&self.lanes[index]);
        let is_nearer = |lane: &Lane| lane.is_free && lane.may_send() && rank(lane) < own;
        !self.lanes.iter().any(is_nearer)
    }

    /// Assigns up to `most` waiting chunks as one block. Chunks without an assigned lane take lane `index`.
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

    /// Returns the lanes that are not suspect, as a scheduler sees them.
    fn views(&self) -> Vec<LaneView> {
        let lanes = self.lanes.iter().filter(|lane| !lane.is_suspect);
        lanes.map(Lane::view).collect()
    }

    /// Returns the first item to be retransmitted that is not in flight on lane `index`. Items in flight on this lane
    /// are skipped one by one.
    fn next_again(&mut self, index: usize) -> Option<Item> {
        let bit = self.lanes[index].bit();
        let mut again = self.again.iter();
        let (key, _) = again.find(|(_, again)| again.under_way & bit == 0)?;
        let key = *key;
        self.again.remove(&key).map(|again| again.item)
    }

    /// Removes and returns an item staged on any lane, if the item's connection is blocked by the receive window:
    /// this window opens only when the item arrives.
    fn take_over(&mut self, source: &impl Source) -> Option<Item> {
        // The items are ordered by their keys, so a lane may take one from the end of its own queue.
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

    /// Queues `items` for retransmission. O(items log items); lanes fail far more seldom than they send.
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

/// Maximum time for which a lane may be suspect while another lane works. TCP's retransmission timeout has then grown
/// to several seconds (RFC 6298, section 5.5).
const HOPE: Duration = Duration::from_secs(8);
/// Maximum time for which a lane may be suspect while no other lane works: eight retransmission timeouts.
const LAST_HOPE: Duration = Duration::from_secs(60);
