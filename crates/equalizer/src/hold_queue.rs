//! Queue of the delayed packets of one link, in the order of arrival.
//!
//! A packet whose hold time ends before that of its predecessor is sent together with the predecessor, so a link's
//! packets stay in order. Bound: the capacity set by [`HoldQueue::set_room`], at most [`MAX_HELD_BYTES`]. Packets
//! beyond the bound are not delayed.

use core::time::Duration;
use std::collections::VecDeque;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

/// Packets with their sending times.
#[derive(Clone, Debug)]
pub struct HoldQueue<T> {
    held: VecDeque<(Instant, Bytes, T)>,
    bytes: Bytes,
    room: Bytes,
}

impl<T> Default for HoldQueue<T> {
    fn default() -> Self {
        Self {
            held: VecDeque::new(),
            bytes: Bytes::ZERO,
            room: MAX_HELD_BYTES,
        }
    }
}

impl<T> HoldQueue<T> {
    /// Sets the capacity of the queue for a link of `rate` and a hold time of `hold`: twice the bytes that the link
    /// carries in this time, because senders send in bursts, plus some offloaded packets of 64 KiB. If the rate is
    /// unknown, the capacity is [`MAX_HELD_BYTES`].
    pub fn set_room(&mut self, rate: Option<Bitrate>, hold: Duration) {
        self.room = rate.map_or(MAX_HELD_BYTES, |rate| {
            (rate.bytes_in(hold * 2) + BURST).min(MAX_HELD_BYTES)
        });
    }

    /// Queues a packet that arrived at `now` and waits for `hold`.
    ///
    /// # Errors
    /// Returns the packet if the queue has no space for it, or if it need not wait.
    pub fn push(&mut self, now: Instant, hold: Duration, len: Bytes, packet: T) -> Result<(), T> {
        let due = self.held.back().map_or(now, |(due, ..)| *due);
        let due = due.max(now + hold);
        let need_not_wait = self.held.is_empty() && due <= now;
        if need_not_wait || self.bytes + len > self.room {
            return Err(packet);
        }
        self.bytes += len;
        self.held.push_back((due, len, packet));
        Ok(())
    }

    /// Returns the next packet that is due.
    pub fn pop(&mut self, now: Instant) -> Option<T> {
        let (_, len, packet) = self.held.pop_front_if(|(due, ..)| *due <= now)?;
        self.bytes = self.bytes.saturating_sub(len);
        Some(packet)
    }

    /// Returns the time at which [`Self::pop`] returns a packet.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.held.front().map(|(due, ..)| *due)
    }

    /// Returns the number of queued bytes.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }
}

/// Allowance for bursts: sixteen offloaded packets of 64 KiB.
const BURST: Bytes = Bytes::new(1 << 20);
/// Largest capacity of the queue: a quarter of a second at 1 Gbit/s.
pub const MAX_HELD_BYTES: Bytes = Bytes::new(32 << 20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_in_order_at_their_time() {
        let (at, ms) = (Instant::from_millis, Duration::from_millis);
        let mut queue = HoldQueue::default();
        let len = Bytes::new(100);
        assert_eq!(queue.push(at(0), ms(80), len, 'a'), Ok(()));
        // Hold times are shorter now, but the packet must not be sent before the earlier one.
        assert_eq!(queue.push(at(10), ms(20), len, 'b'), Ok(()));
        assert_eq!(queue.push(at(11), ms(0), len, 'c'), Ok(()));
        assert_eq!(
            (queue.poll_timeout(), queue.pop(at(79))),
            (Some(at(80)), None)
        );
        assert_eq!(queue.bytes(), Bytes::new(300));
        let left: Vec<char> = core::iter::from_fn(|| queue.pop(at(80))).collect();
        assert_eq!(left, ['a', 'b', 'c']);
        assert_eq!(
            queue.push(at(81), ms(0), len, 'd'),
            Err('d'),
            "nothing to wait for"
        );
        assert_eq!(queue.bytes(), Bytes::ZERO);
    }

    #[test]
    fn what_exceeds_the_bound_does_not_wait() {
        let mut queue = HoldQueue::default();
        let (now, hold) = (Instant::ZERO, Duration::from_secs(1));
        let half = Bytes::new(MAX_HELD_BYTES.get() / 2);
        assert_eq!(queue.push(now, hold, half, 1), Ok(()));
        assert_eq!(queue.push(now, hold, half, 2), Ok(()));
        assert_eq!(queue.push(now, hold, Bytes::new(1), 3), Err(3));
        assert_eq!(queue.bytes(), MAX_HELD_BYTES);
    }

    #[test]
    fn a_slow_link_has_room_for_twice_what_it_carries() {
        let mut queue = HoldQueue::default();
        let (now, hold) = (Instant::ZERO, Duration::from_millis(80));
        queue.set_room(Some(Bitrate::from_mbps(10)), hold);
        let room = BURST + Bytes::new(200_000);
        assert_eq!(queue.push(now, hold, room, 1), Ok(()));
        assert_eq!(queue.push(now, hold, Bytes::new(1), 2), Err(2));
        queue.set_room(Some(Bitrate::from_mbps(100_000)), hold);
        assert_eq!(queue.push(now, hold, MAX_HELD_BYTES - room, 3), Ok(()));
        assert_eq!(queue.push(now, hold, Bytes::new(1), 4), Err(4));
    }
}
