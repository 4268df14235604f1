//! The channel of [`Order`]s from worker 0 to a further worker.
//!
//! An order that is needed is sent in any case ([`Orders::send`]). One that is given again later is sent only while few orders
//! wait ([`Orders::offer`]): so a worker that hangs costs no memory that grows.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc::{self, Receiver, Sender},
};

use pleach_linux::poll::Waker;

use super::Order;

/// Worker 0's end of the channel.
pub(super) struct Orders {
    sender: Sender<Order>,
    waker: Waker,
    waiting: Arc<AtomicUsize>,
}

/// The worker's end of the channel.
pub(super) struct OrderInbox {
    receiver: Receiver<Order>,
    waiting: Arc<AtomicUsize>,
}

/// Returns a channel to a worker that `waker` wakes.
pub(super) fn channel(waker: Waker) -> (Orders, OrderInbox) {
    let (sender, receiver) = mpsc::channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let orders = Orders {
        sender,
        waker,
        waiting: Arc::clone(&waiting),
    };
    (orders, OrderInbox { receiver, waiting })
}

impl Orders {
    /// Gives an order.
    pub(super) fn send(&self, order: Order) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // A worker that has failed has reported it.
        if self.sender.send(order).is_ok() {
            self.waker.wake();
        }
    }

    /// Gives an order if fewer than [`MOST_OFFERED`] orders wait.
    pub(super) fn offer(&self, order: Order) {
        if self.waiting.load(Ordering::Relaxed) < MOST_OFFERED {
            self.send(order);
        }
    }
}

impl OrderInbox {
    /// Returns the next order, if there is one.
    pub(super) fn next(&self) -> Option<Order> {
        let order = self.receiver.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(order)
    }
}

/// Number of waiting orders from which on none is offered.
const MOST_OFFERED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_to_a_worker_that_hangs_is_bounded_and_what_is_needed_arrives() {
        let (orders, inbox) = channel(Waker::new().expect("an eventfd"));
        let taken = || std::iter::from_fn(|| inbox.next()).collect::<Vec<_>>();
        for _ in 0..2 * MOST_OFFERED {
            orders.offer(Order::Remember);
        }
        orders.send(Order::Stop);
        let all = taken();
        assert_eq!(all.len(), MOST_OFFERED + 1);
        assert!(matches!(all.last(), Some(Order::Stop)));
        orders.offer(Order::Remember);
        assert_eq!(taken().len(), 1, "the worker goes on");
    }
}
