//! One end of a striped connection: joins sender and receiver, and says what each lane sends next.
//!
//! On a lane go, in this order: a reset; word of lanes that died here; an acknowledgement if one is due; a chunk.
//! Acknowledgements go on every lane, each time the whole state, so that it does not matter which of them get there:
//! at most one each `ACK_INTERVAL` on a lane, at once after an eighth of the window or when everything is over.

use core::time::Duration;
use std::sync::Arc;

use pleach_core::time::Instant;

use super::{
    Chunk, Violation, WINDOW,
    frame::{Frame, LaneId},
    receiver::Receiver,
    sched::Striping,
    sender::Sender,
};

/// See the module's head.
#[derive(Debug)]
pub struct Bundle {
    /// What goes out.
    pub sender: Sender,
    /// What came in.
    pub receiver: Receiver,
    lanes: Vec<Lane>,
    is_reset: bool,
    /// Counts changes that an acknowledgement would tell.
    news: u64,
    received_bytes: u64,
}

#[derive(Debug)]
struct Lane {
    id: LaneId,
    told_news: u64,
    told_bytes: u64,
    told_at: Instant,
    told_reset: bool,
    /// Lanes that died here, to be told on this one.
    gone: Vec<LaneId>,
}

/// What a frame means to those around the bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// There may be something to deliver, or to send.
    Progress,
    /// The other end has lost this lane.
    LaneGone(LaneId),
    /// The connection broke at the other end.
    Reset,
}

impl Bundle {
    /// A bundle without lanes.
    #[must_use]
    pub fn new(striping: Striping) -> Self {
        Self {
            sender: Sender::new(striping),
            receiver: Receiver::default(),
            lanes: Vec::new(),
            is_reset: false,
            news: 0,
            received_bytes: 0,
        }
    }

    /// Adds a lane; `false` if there are too many, or it is there.
    pub fn add_lane(&mut self, now: Instant, id: LaneId) -> bool {
        let is_added = self.sender.add_lane(now, id);
        if is_added {
            self.lanes.push(Lane {
                id,
                // Credit may have been told on lanes that are dead.
                told_news: u64::MAX,
                told_bytes: self.received_bytes,
                told_at: Instant::ZERO,
                told_reset: false,
                gone: Vec::new(),
            });
        }
        is_added
    }

    /// Removes a lane that is dead; the other end is told.
    pub fn remove_lane(&mut self, id: LaneId) {
        self.sender.remove_lane(id);
        self.receiver.remove_lane(id);
        let count = self.lanes.len();
        self.lanes.retain(|lane| lane.id != id);
        if self.lanes.len() < count {
            for lane in &mut self.lanes {
                if lane.gone.len() < MAX_TOLD {
                    lane.gone.push(id);
                }
            }
        }
    }

    /// The lanes, in the order they came.
    pub fn lanes(&self) -> impl Iterator<Item = LaneId> {
        self.lanes.iter().map(|lane| lane.id)
    }

    /// The connection broke here.
    pub fn reset(&mut self) {
        self.is_reset = true;
    }

    /// Handles a frame that came on `lane`.
    ///
    /// # Errors
    /// The other end does what it may not; the bundle is of no use any more.
    pub fn handle_frame(
        &mut self,
        now: Instant,
        lane: LaneId,
        frame: Frame<'_>,
    ) -> Result<Event, Violation> {
        if !self.lanes.iter().any(|known| known.id == lane) {
            return Ok(Event::Progress);
        }
        match frame {
            Frame::Ack {
                delivered,
                limit,
                lanes,
            } => self.sender.handle_ack(now, delivered, limit, &lanes)?,
            Frame::Chunk { offset, data } => self.handle_chunk(lane, offset, data.to_vec())?,
            Frame::End { offset } => self.handle_chunk(lane, offset, Vec::new())?,
            Frame::Gone { lane } => return Ok(Event::LaneGone(lane)),
            Frame::Reset => return Ok(Event::Reset),
            Frame::Join { .. } | Frame::Open { .. } | Frame::Opened | Frame::Refused(_) => {
                return Err(Violation::Misplaced);
            }
        }
        Ok(Event::Progress)
    }

    /// Notes that the first `len` bytes of what can be delivered were.
    pub fn consume(&mut self, len: usize) {
        self.receiver.consume(len);
        self.news += 1;
    }

    /// Appends the next frame for `lane`, which can send, to `out`; `false` if there is none now.
    pub fn poll_frame(&mut self, now: Instant, id: LaneId, out: &mut Vec<u8>) -> bool {
        let is_over = self.is_over();
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == id) else {
            return false;
        };
        if self.is_reset {
            if !lane.told_reset {
                lane.told_reset = true;
                Frame::Reset.encode(out);
                return true;
            }
            return false;
        }
        if let Some(lane) = lane.gone.pop() {
            Frame::Gone { lane }.encode(out);
            return true;
        }
        let due_at = lane.due_at(self.news, self.received_bytes, is_over);
        if due_at.is_some_and(|at| at <= now) {
            lane.told_news = self.news;
            lane.told_bytes = self.received_bytes;
            lane.told_at = now;
            let counts = self.receiver.counts();
            Frame::Ack {
                delivered: self.receiver.delivered(),
                limit: self.receiver.limit(),
                lanes: counts.collect(),
            }
            .encode(out);
            return true;
        }
        let Some(chunk) = self.sender.poll_chunk(now, id) else {
            return false;
        };
        let offset = chunk.offset;
        if chunk.is_end() {
            Frame::End { offset }.encode(out);
        } else {
            let data = &chunk.data;
            Frame::Chunk { offset, data }.encode(out);
        }
        true
    }

    /// When `lane` has an acknowledgement to send; `None`: nothing new.
    #[must_use]
    pub fn poll_timeout(&self, id: LaneId) -> Option<Instant> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        lane.due_at(self.news, self.received_bytes, self.is_over())
    }

    /// Whether both directions have ended and were delivered.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.sender.is_done() && self.receiver.is_done()
    }

    /// Whether it broke here.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.is_reset
    }

    /// Whether `lane` has sent all that there is to send on it after the bundle is over or reset.
    #[must_use]
    pub fn is_flushed(&self, id: LaneId) -> bool {
        let lane = self.lanes.iter().find(|lane| lane.id == id);
        lane.is_none_or(|lane| {
            if self.is_reset {
                lane.told_reset
            } else {
                self.is_over() && lane.told_news == self.news
            }
        })
    }

    fn handle_chunk(&mut self, lane: LaneId, offset: u64, data: Vec<u8>) -> Result<(), Violation> {
        self.received_bytes += data.len() as u64;
        let data = Arc::new(data);
        self.receiver.handle_chunk(lane, Chunk { offset, data })?;
        self.news += 1;
        Ok(())
    }
}

impl Lane {
    fn due_at(&self, news: u64, received_bytes: u64, is_over: bool) -> Option<Instant> {
        if self.told_news == news {
            None
        } else if is_over || received_bytes - self.told_bytes >= WINDOW / 8 {
            Some(Instant::ZERO)
        } else {
            Some(self.told_at + ACK_INTERVAL)
        }
    }
}

/// Well below any round trip that striping is for; 40 kbit/s on a lane.
const ACK_INTERVAL: Duration = Duration::from_millis(10);
/// Lanes that died and were not told of.
const MAX_TOLD: usize = 64;
