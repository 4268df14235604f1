//! The sending half of a bundle: cuts the stream into chunks, assigns them to lanes, keeps them until they came, and
//! sends those of a dead lane on others.
//!
//! A chunk is *pending* (cut, not assigned), *staged* (waits for its lane), *sent*, and forgotten when the peer counts it
//! among those that came on its lane, or delivered everything before its end. A lane that has chunks, sent or staged, and on which TCP
//! makes no progress for `patience` is *suspect*: what it had is sent on others, and it gets nothing new until it moves
//! again. That costs duplicates if it was only slow, which the receiver drops. A lane does not repeat what it has sent
//! itself: TCP brings that.
//!
//! Bounds: [`MAX_PENDING`] bytes pending; chunks not delivered lie within the peer's credit, and are at most
//! [`MAX_CHUNKS`]; so are those of a lane that are not counted, of which only the place is kept once they are delivered.

#[cfg(test)]
mod tests;

use core::time::Duration;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use pleach_core::{
    ids::PathId,
    time::Instant,
    units::{Bitrate, Bytes},
};

use super::{
    CHUNK, Chunk, MAX_CHUNKS, MAX_LANES, MAX_PENDING, Violation, WINDOW,
    frame::LaneId,
    rate::{LaneEstimator, LaneSample},
    sched::{LaneView, Scheduler, Striping},
};

/// See the module's head.
#[derive(Debug)]
pub struct Sender {
    scheduler: Scheduler,
    lanes: Vec<Lane>,
    pending: VecDeque<Vec<u8>>,
    pending_bytes: usize,
    /// To be sent on any lane, before anything new.
    again: BTreeMap<u64, Again>,
    /// Ends of the chunks assigned and not delivered.
    ends: VecDeque<u64>,
    /// Where the next chunk to be assigned begins.
    assigned: u64,
    delivered: u64,
    limit: u64,
    /// No more bytes come; whether that was assigned, too.
    is_finished: bool,
    is_end_assigned: bool,
    /// Bytes sent more than once.
    repeated_bytes: u64,
}

/// A chunk to be sent again.
#[derive(Debug)]
struct Again {
    chunk: Chunk,
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
    staged: VecDeque<Chunk>,
    staged_bytes: u64,
    /// Not counted by the peer yet; `None`: delivered, over whatever lane.
    sent: VecDeque<Option<Chunk>>,
    sent_count: u64,
    progress_at: Instant,
    /// When any lane of its link last got on.
    pulse_at: Instant,
}

impl Sender {
    /// Nothing to send and no lane.
    #[must_use]
    pub fn new(striping: Striping) -> Self {
        Self {
            scheduler: Scheduler::new(striping),
            lanes: Vec::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            again: BTreeMap::new(),
            ends: VecDeque::new(),
            assigned: 0,
            delivered: 0,
            limit: WINDOW,
            is_finished: false,
            is_end_assigned: false,
            repeated_bytes: 0,
        }
    }

    /// How many bytes [`Self::write`] takes now.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.is_finished {
            0
        } else {
            MAX_PENDING.saturating_sub(self.pending_bytes)
        }
    }

    /// Takes `bytes`, at most [`Self::room`]; what is beyond that is not taken. Returns how many were.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        let mut left = &bytes[..taken];
        if let Some(last) = self.pending.back_mut() {
            let fits = left.len().min(CHUNK.saturating_sub(last.len()));
            last.extend_from_slice(&left[..fits]);
            left = &left[fits..];
        }
        for piece in left.chunks(CHUNK) {
            self.pending.push_back(piece.to_vec());
        }
        self.pending_bytes += taken;
        taken
    }

    /// No more bytes come.
    pub fn finish(&mut self) {
        self.is_finished = true;
    }

    /// Whether all, and the end, was delivered.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_end_assigned && self.delivered == self.assigned
    }

    /// The peer delivered all before it.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Adds a lane; `false` if there are too many, or it is there.
    pub fn add_lane(&mut self, now: Instant, id: LaneId) -> bool {
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
            sent_count: 0,
            progress_at: now,
            pulse_at: Instant::ZERO,
        });
        self.lanes.sort_by_key(|lane| lane.slot);
        true
    }

    /// Removes a lane; what it had goes to the others.
    pub fn remove_lane(&mut self, id: LaneId) {
        if let Some(index) = self.lanes.iter().position(|lane| lane.id == id) {
            let lane = self.lanes.remove(index);
            self.repeat(lane.sent.into_iter().flatten().chain(lane.staged));
        }
    }

    /// Notes whether the lane would send a chunk at once.
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

    /// Notes when any lane of the same link, of whatever connection, last got on.
    pub fn note_pulse(&mut self, id: LaneId, at: Instant) {
        if let Some(lane) = self.lane_mut(id) {
            lane.pulse_at = lane.pulse_at.max(at);
        }
    }

    /// Looks for lanes that make no progress. Call it every few tens of milliseconds, after [`Self::observe`]. Whether
    /// there is something new to send.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let mut found: Vec<Chunk> = Vec::new();
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

    /// A lane that has been suspect for so long that a new one is better, while another works.
    #[must_use]
    pub fn hopeless_lane(&self, now: Instant) -> Option<LaneId> {
        let works = self.lanes.iter().any(|lane| !lane.is_suspect);
        let hopeless = |lane: &&Lane| lane.is_suspect && lane.is_hopeless(now);
        let found = self.lanes.iter().find(hopeless);
        found.filter(|_| works).map(|lane| lane.id)
    }

    /// Whether [`Self::handle_timeout`] has anything to look for.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.lanes.iter().any(Lane::is_waiting)
    }

    /// Whether a chunk waits for lane `id`.
    #[must_use]
    pub fn has_staged(&self, id: LaneId) -> bool {
        let lane = self.lanes.iter().find(|lane| lane.id == id);
        lane.is_some_and(|lane| !lane.staged.is_empty())
    }

    /// The next chunk for lane `id`, which can send. O(lanes) for each chunk that is assigned.
    pub fn poll_chunk(&mut self, now: Instant, id: LaneId) -> Option<Chunk> {
        let index = self.lanes.iter().position(|lane| lane.id == id)?;
        let lane = &mut self.lanes[index];
        lane.is_free = true;
        // What waited for it is with others, and nothing is under way whose arrival would clear it.
        lane.is_suspect &= !lane.sent.is_empty();
        if lane.is_suspect || lane.sent.len() >= MAX_CHUNKS {
            return None;
        }
        let chunk = self.next_chunk(now, index)?;
        let lane = &mut self.lanes[index];
        if lane.sent.is_empty() {
            lane.progress_at = now;
        }
        lane.sent.push_back(Some(chunk.clone()));
        lane.sent_count += 1;
        Some(chunk)
    }

    /// Handles an acknowledgement.
    ///
    /// # Errors
    /// It acknowledges what was not sent.
    pub fn handle_ack(
        &mut self,
        now: Instant,
        delivered: u64,
        limit: u64,
        counts: &[(LaneId, u64)],
    ) -> Result<(), Violation> {
        if delivered > self.assigned {
            return Err(Violation::Acknowledged);
        }
        for (id, count) in counts {
            let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == *id) else {
                continue;
            };
            if *count > lane.sent_count {
                return Err(Violation::Acknowledged);
            }
            let before = lane.sent_count - lane.sent.len() as u64;
            for _ in before..*count {
                if let Some(Some(chunk)) = lane.sent.pop_front() {
                    self.again.remove(&chunk.offset);
                }
                lane.progress_at = now;
                lane.is_suspect = false;
            }
        }
        // Acknowledgements overtake each other. What is kept here has a bound whatever the peer grants.
        let limit = limit.min(delivered.saturating_add(WINDOW));
        self.limit = self.limit.max(limit);
        if delivered > self.delivered {
            self.delivered = delivered;
            while self.ends.front().is_some_and(|end| *end <= delivered) {
                self.ends.pop_front();
            }
            while let Some(first) = self.again.first_entry()
                && first.get().chunk.end() <= delivered
            {
                first.remove();
            }
            for sent in self.lanes.iter_mut().flat_map(|lane| &mut lane.sent) {
                sent.take_if(|chunk| chunk.end() <= delivered);
            }
        }
        Ok(())
    }

    /// Bytes cut and not sent, and bytes sent more than once.
    #[must_use]
    pub fn waiting_and_repeated(&self) -> (u64, u64) {
        let staged: u64 = self.lanes.iter().map(|lane| lane.staged_bytes).sum();
        (self.pending_bytes as u64 + staged, self.repeated_bytes)
    }

    /// Rate, round trip, whether it is suspect, of lane `id`.
    #[must_use]
    pub fn lane_state(&self, id: LaneId) -> Option<(Bitrate, Duration, bool)> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        Some((lane.estimator.rate(), lane.estimator.rtt(), lane.is_suspect))
    }

    /// Everything kept, in bytes, for tests of the bounds.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> u64 {
        let sent = self
            .lanes
            .iter()
            .flat_map(|lane| lane.sent.iter().flatten());
        let staged = self.lanes.iter().flat_map(|lane| &lane.staged);
        let again = self.again.values().map(|again| &again.chunk);
        let all = sent.chain(staged).chain(again);
        // They share their data.
        let chunks: BTreeMap<u64, u64> = all.map(|c| (c.offset, c.data.len() as u64)).collect();
        self.pending_bytes as u64 + chunks.values().sum::<u64>()
    }

    /// Whether what is noted of chunks under way is so.
    #[cfg(test)]
    pub(super) fn knows_what_is_under_way(&self) -> bool {
        if self.again.is_empty() {
            return true;
        }
        let sent = self.lanes.iter().map(|lane| {
            let sent = lane.sent.iter().flatten().map(|chunk| chunk.offset);
            (lane.bit(), sent.collect())
        });
        let sent: Vec<(u8, std::collections::BTreeSet<u64>)> = sent.collect();
        self.again.iter().all(|(offset, again)| {
            let on = sent.iter().filter(|(_, sent)| sent.contains(offset));
            on.fold(0, |on, (bit, _)| on | bit) == again.under_way
        })
    }

    fn next_chunk(&mut self, now: Instant, index: usize) -> Option<Chunk> {
        if let Some(chunk) = self.next_again(index) {
            self.repeated_bytes += chunk.data.len() as u64;
            return Some(chunk);
        }
        while self.lanes[index].staged.is_empty() {
            let Some(len) = self.next_len() else {
                return self.take_over();
            };
            if let Some(most) = self.scheduler.takes_blocks() {
                self.place_block(now, index, most);
                continue;
            }
            let views = self.views();
            let slot = self.scheduler.assign(now, Bytes::new(len), &views)?;
            // First: a chunk that was cut must not be dropped.
            let named = self.lanes.iter().position(|lane| lane.slot == slot)?;
            let chunk = self.cut();
            self.lanes[named].stage(now, chunk);
        }
        let lane = &mut self.lanes[index];
        let chunk = lane.staged.pop_front()?;
        lane.staged_bytes -= chunk.data.len() as u64;
        Some(chunk)
    }

    /// Assigns what waits, up to `most` chunks; what finds no lane, to that of `index`.
    fn place_block(&mut self, now: Instant, index: usize, most: usize) {
        let views = self.views();
        let mut block: Vec<Option<Chunk>> = Vec::new();
        while block.len() < most && self.next_len().is_some() {
            block.push(Some(self.cut()));
        }
        let len = |chunk: &Option<Chunk>| chunk.as_ref().map_or(0, |c| c.end() - c.offset);
        let lens: Vec<Bytes> = block.iter().map(|chunk| Bytes::new(len(chunk))).collect();
        for (place, slot) in self.scheduler.place(&lens, &views) {
            let lane = self.lanes.iter_mut().find(|lane| lane.slot == slot);
            let chunk = block.get_mut(place).filter(|_| lane.is_some());
            if let (Some(lane), Some(chunk)) = (lane, chunk.and_then(Option::take)) {
                lane.stage(now, chunk);
            }
        }
        for chunk in block.into_iter().flatten() {
            self.lanes[index].stage(now, chunk);
        }
    }

    /// The lanes that work, as a scheduler sees them.
    fn views(&self) -> Vec<LaneView> {
        let lanes = self.lanes.iter().filter(|lane| !lane.is_suspect);
        lanes.map(Lane::view).collect()
    }

    /// The first to be sent again that is not under way on this very lane. A look at each that is.
    fn next_again(&mut self, index: usize) -> Option<Chunk> {
        let bit = self.lanes[index].bit();
        let mut again = self.again.iter();
        let (offset, _) = again.find(|(_, again)| again.under_way & bit == 0)?;
        let offset = *offset;
        self.again.remove(&offset).map(|again| again.chunk)
    }

    /// What waits for another lane, as nothing new may be sent: the receiver has no room until the first of it comes.
    fn take_over(&mut self) -> Option<Chunk> {
        let is_stuck = !self.pending.is_empty() || self.is_finished && !self.is_end_assigned;
        // A lane may send its own from the end.
        let first = |lane: &Lane| {
            let staged = lane.staged.iter().enumerate();
            staged.map(|(place, chunk)| (chunk.offset, place)).min()
        };
        let lanes = self.lanes.iter_mut().filter(|_| is_stuck);
        let lanes = lanes.filter_map(|lane| Some((first(lane)?, lane)));
        let ((_, place), lane) = lanes.min_by_key(|(first, _)| *first)?;
        let chunk = lane.staged.remove(place)?;
        lane.staged_bytes -= chunk.data.len() as u64;
        Some(chunk)
    }

    /// How long the next chunk in the order of the stream is, if it may be sent.
    fn next_len(&self) -> Option<u64> {
        if self.ends.len() >= MAX_CHUNKS {
            return None;
        }
        let len = match self.pending.front() {
            Some(piece) => piece.len() as u64,
            None if self.is_finished && !self.is_end_assigned => 1,
            None => return None,
        };
        (self.assigned.saturating_add(len) <= self.limit).then_some(len)
    }

    /// Takes that chunk.
    fn cut(&mut self) -> Chunk {
        let data = self.pending.pop_front().unwrap_or_default();
        self.pending_bytes -= data.len();
        self.is_end_assigned |= data.is_empty();
        let chunk = Chunk {
            offset: self.assigned,
            data: Arc::new(data),
        };
        self.assigned = chunk.end();
        self.ends.push_back(chunk.end());
        chunk
    }

    /// Has `chunks` sent again. O(chunks log chunks); lanes fall silent and go far more seldom than they send.
    fn repeat(&mut self, chunks: impl IntoIterator<Item = Chunk>) {
        for chunk in chunks {
            if chunk.end() > self.delivered {
                let under_way = 0;
                self.again.insert(chunk.offset, Again { chunk, under_way });
            }
        }
        for again in self.again.values_mut() {
            again.under_way = 0;
        }
        for lane in &self.lanes {
            for chunk in lane.sent.iter().flatten() {
                if let Some(again) = self.again.get_mut(&chunk.offset) {
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

    /// Whether it has made no progress for so long that its link is taken for dead; or, if others get on over that, for longer than
    /// TCP's timeouts take in a queue that is full of others.
    fn is_silent(&self, now: Instant) -> bool {
        let silent = now.since(self.progress_at);
        let patience = patience(self.estimator.rtt());
        let is_link_silent = now.since(self.pulse_at) > patience;
        silent > BUSY_PATIENCE || (silent > patience && is_link_silent)
    }

    /// Whether a new lane is better.
    fn is_hopeless(&self, now: Instant) -> bool {
        let silent = now.since(self.progress_at);
        silent > BUSY_HOPE || (silent > HOPE && now.since(self.pulse_at) > HOPE)
    }

    /// Its bit among the lanes' slots.
    fn bit(&self) -> u8 {
        const { assert!(MAX_LANES <= 8) };
        1 << self.slot.0
    }

    /// Takes a chunk that waits for it, behind the others.
    fn stage(&mut self, now: Instant, chunk: Chunk) {
        if !self.is_waiting() {
            self.progress_at = now;
        }
        self.staged_bytes += chunk.data.len() as u64;
        self.staged.push_back(chunk);
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
/// So that even then the connection stalls for less than a second.
const MOST_PATIENCE: Duration = Duration::from_millis(800);
/// By then TCP waits for several seconds before it sends again.
const HOPE: Duration = Duration::from_secs(8);
/// The same where others get on over the same link: after three timeouts in a row, and eight (RFC 6298 section 5.5).
const BUSY_PATIENCE: Duration = Duration::from_secs(4);
const BUSY_HOPE: Duration = Duration::from_secs(60);
