//! A bottleneck: a drop-tail queue in bytes in front of a serialiser.
//!
//! The server works on the virtual clock: a packet starts when the one before it has left or when it arrives, whichever
//! is later, and leaves when [`Server`] says so. The limit counts waiting packets only, so a
//! queue of zero bytes still passes packets that meet an idle server.

use std::collections::VecDeque;

use pleach_core::{time::Instant, units::Bytes};

use crate::link::trace::{Rate, Server};

/// Most packets that wait in one queue, whatever its limit in bytes.
pub const MAX_WAITING: usize = 1 << 17;

/// A packet on its way out of a bottleneck.
#[derive(Clone, Debug)]
pub struct Departed<T> {
    /// When it came.
    pub arrived_at: Instant,
    /// When its last bit left.
    pub at: Instant,
    /// Its length.
    pub len: Bytes,
    /// What it is.
    pub item: T,
}

/// Queue and serialiser. Callers drain [`poll`](Self::poll) at `now` before any other call at `now`.
#[derive(Clone, Debug)]
pub struct Bottleneck<T> {
    epoch: Instant,
    limit: Bytes,
    server: Server,
    serving: Option<Departed<T>>,
    waiting: VecDeque<(Instant, Bytes, T)>,
    waiting_len: Bytes,
}

impl<T> Bottleneck<T> {
    /// An empty queue of `limit`; traces in `rate` start at `epoch`.
    #[must_use]
    pub fn new(rate: Rate, limit: Bytes, epoch: Instant) -> Self {
        Self {
            epoch,
            limit,
            server: Server::new(rate, epoch),
            serving: None,
            waiting: VecDeque::new(),
            waiting_len: Bytes::ZERO,
        }
    }

    /// Queues a packet.
    ///
    /// # Errors
    /// Gives the packet back if the queue is full.
    pub fn push(&mut self, now: Instant, len: Bytes, item: T) -> Result<(), T> {
        if self.serving.is_none() {
            self.serve(now, now, len, item);
            return Ok(());
        }
        if self.waiting_len + len > self.limit || self.waiting.len() >= MAX_WAITING {
            return Err(item);
        }
        self.waiting_len += len;
        self.waiting.push_back((now, len, item));
        Ok(())
    }

    /// The next packet that has left by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Departed<T>> {
        let finish = self.next_departure().filter(|&at| at <= now)?;
        let mut departed = self.serving.take()?;
        departed.at = finish;
        if let Some((arrived_at, len, item)) = self.waiting.pop_front() {
            self.waiting_len = self.waiting_len - len;
            self.serve(finish, arrived_at, len, item);
        }
        Some(departed)
    }

    /// When the packet in service leaves; `None` if there is none or it never does.
    #[must_use]
    pub fn next_departure(&self) -> Option<Instant> {
        self.serving.as_ref().and(self.server.finish())
    }

    /// Sets another rate at `now`. The packet in service keeps the part that was sent if both rates are fluid;
    /// otherwise it starts anew.
    pub fn change(&mut self, now: Instant, rate: Rate, epoch: Instant) {
        self.epoch = epoch;
        let in_service = self.serving.as_ref().map(|packet| packet.len);
        self.server.change(now, rate, epoch, in_service);
    }

    /// Sets another limit; what is queued stays.
    pub fn set_limit(&mut self, limit: Bytes) {
        self.limit = limit;
    }

    /// Drops everything; returns how many packets that were.
    pub fn clear(&mut self) -> usize {
        let dropped = self.waiting.len() + usize::from(self.serving.is_some());
        self.waiting.clear();
        self.waiting_len = Bytes::ZERO;
        self.serving = None;
        dropped
    }

    /// Bytes waiting, the packet in service not counted.
    #[must_use]
    pub fn waiting(&self) -> Bytes {
        self.waiting_len
    }

    /// Bytes the rate in force carries from `from` to `to`; `None` if it has no limit.
    #[must_use]
    pub fn capacity_between(&self, from: Instant, to: Instant) -> Option<Bytes> {
        self.server.capacity_between(from, to)
    }

    /// Whether no packet is here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.serving.is_none()
    }

    /// When the traces started.
    #[must_use]
    pub fn epoch(&self) -> Instant {
        self.epoch
    }

    fn serve(&mut self, start: Instant, arrived_at: Instant, len: Bytes, item: T) {
        self.server.begin(start, len);
        self.serving = Some(Departed {
            arrived_at,
            at: start,
            len,
            item,
        });
    }
}
