//! A bottleneck: a drop-tail queue in bytes in front of a serialiser.
//!
//! The serialiser works on the virtual clock. The transmission of a packet starts when the packet arrives or when the
//! previous packet has left, whichever is later. It ends at the time that [`Server`] computes. The limit counts
//! waiting packets only, so a queue of zero bytes still passes packets that find the serialiser idle.

use std::collections::VecDeque;

use pleach_core::{time::Instant, units::Bytes};

use crate::link::trace::{Rate, Server};

/// Highest number of packets that wait in one queue, regardless of its limit in bytes.
pub const MAX_WAITING: usize = 1 << 17;

/// A packet that leaves a bottleneck.
#[derive(Clone, Debug)]
pub struct Departed<T> {
    /// Time at which the packet arrived.
    pub arrived_at: Instant,
    /// Time at which the last bit of the packet left.
    pub at: Instant,
    /// Length of the packet.
    pub len: Bytes,
    /// The packet itself.
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
    /// Creates an empty queue of `limit`. Traces in `rate` start at `epoch`.
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
    /// Returns the packet if the queue is full.
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

    /// Returns the next packet that has left by `now`.
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

    /// Returns the time at which the packet in service leaves. `None` if no packet is in service, or if the packet in
    /// service never leaves.
    #[must_use]
    pub fn next_departure(&self) -> Option<Instant> {
        self.serving.as_ref().and(self.server.finish())
    }

    /// Changes the rate at `now`. If the old and the new rate are fluid ([`super::trace`]), the transmitted part of
    /// the packet in service counts. Otherwise its transmission restarts.
    pub fn change(&mut self, now: Instant, rate: Rate, epoch: Instant) {
        self.epoch = epoch;
        let in_service = self.serving.as_ref().map(|packet| packet.len);
        self.server.change(now, rate, epoch, in_service);
    }

    /// Changes the limit. Queued packets remain.
    pub fn set_limit(&mut self, limit: Bytes) {
        self.limit = limit;
    }

    /// Drops all packets and returns their number.
    pub fn clear(&mut self) -> usize {
        let dropped = self.waiting.len() + usize::from(self.serving.is_some());
        self.waiting.clear();
        self.waiting_len = Bytes::ZERO;
        self.serving = None;
        dropped
    }

    /// Returns the number of waiting bytes, without the packet in service.
    #[must_use]
    pub fn waiting(&self) -> Bytes {
        self.waiting_len
    }

    /// Returns the number of bytes that the current rate carries from `from` to `to`. `None` if the rate is not
    /// limited.
    #[must_use]
    pub fn capacity_between(&self, from: Instant, to: Instant) -> Option<Bytes> {
        self.server.capacity_between(from, to)
    }

    /// Whether no packet is queued or in service.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.serving.is_none()
    }

    /// Returns the start time of the traces.
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
