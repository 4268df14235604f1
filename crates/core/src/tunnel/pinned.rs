//! The queues of packets that are restricted to certain paths and have no deadline.
//!
//! *Problem.* A restricted packet waits until one of its paths is ready. In a common queue, it would delay packets that
//! wait for other paths.
//!
//! *Algorithm.* Each class with links has a queue, and so has each path on which the other end wants packets
//! ([`super::answers`]). A queue has its own flow queueing and CoDel ([`crate::queue`]), and its own packet that
//! already has its sequence numbers and waits for a path. [`super::lanes`] serves the queues in turn.
//!
//! A queue is created with its first packet. When the classes change, the queue of a class passes to the present class
//! of the same name, so that flows keep their order, and empty queues are freed. The packets of a class that no longer
//! exists leave its queue without restrictions.
//!
//! *Bounds.* [`MOST`] queues. A packet that needs another queue waits in the tunnel queue instead; this can occur only
//! while queues of removed classes still have packets. The queue of a path has a quarter of the packets of the tunnel
//! queue, because the other end decides how many paths have a queue: all paths together take at most 5 MiB for packet
//! slots and flow tables.

use core::time::Duration;

use crate::{
    class::MAX_CLASSES,
    ids::PathId,
    mark::ClassId,
    path::sender::Numbered,
    queue::{Queue, QueueConfig},
    units::Bytes,
};

/// What restricts the packets of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pin {
    /// The links of a class, by its present id.
    Class(ClassId),
    /// Nothing: the class no longer exists.
    Former,
    /// The path on which the other end wants the packets.
    Path(PathId),
}

/// The queues of restricted packets.
#[derive(Debug)]
pub(super) struct Pinned {
    /// The configuration of new queues.
    config: QueueConfig,
    queues: Vec<PinnedQueue>,
}

#[derive(Debug)]
struct PinnedQueue {
    pin: Pin,
    queue: Queue,
    /// The next packet, if it has its sequence numbers and waits for a path.
    next: Option<Numbered>,
}

impl PinnedQueue {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.next.is_none()
    }
}

impl Pinned {
    /// Returns the state without queues.
    pub(super) const fn new(config: QueueConfig) -> Self {
        Self {
            config,
            queues: Vec::new(),
        }
    }

    /// Returns the number of queues. Their indices are below this number, and change only when a packet is added or the
    /// classes change.
    pub(super) const fn count(&self) -> usize {
        self.queues.len()
    }

    /// Returns the index of the queue for `pin`, if the queue exists.
    pub(super) fn index_of(&self, pin: Pin) -> Option<usize> {
        self.queues.iter().position(|queue| queue.pin == pin)
    }

    /// Returns the queue for `pin`, which is created if it does not exist; `None` if there are too many queues.
    pub(super) fn queue_of(&mut self, pin: Pin) -> Option<&mut Queue> {
        let index = self.index_of(pin).or_else(|| self.add(pin))?;
        Some(self.queue_mut(index))
    }

    fn add(&mut self, pin: Pin) -> Option<usize> {
        self.queues
            .retain(|queue| queue.pin != Pin::Former || !queue.is_empty());
        if self.queues.len() >= MOST {
            return None;
        }
        let max_packets = match pin {
            Pin::Class(_) | Pin::Former => self.config.max_packets,
            Pin::Path(_) => self.config.max_packets / 4,
        };
        let config = QueueConfig {
            max_packets,
            ..self.config
        };
        self.queues.push(PinnedQueue {
            pin,
            queue: Queue::new(config),
            next: None,
        });
        Some(self.queues.len() - 1)
    }

    /// Returns the queue with an index.
    pub(super) fn queue(&self, index: usize) -> &Queue {
        &self.queues[index].queue
    }

    /// Returns the queue with an index, for changes.
    pub(super) fn queue_mut(&mut self, index: usize) -> &mut Queue {
        &mut self.queues[index].queue
    }

    /// Returns all queues, for changes.
    pub(super) fn queues_mut(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.queues.iter_mut().map(|pinned| &mut pinned.queue)
    }

    /// Returns the place of the next packet of a queue.
    pub(super) fn next_mut(&mut self, index: usize) -> &mut Option<Numbered> {
        &mut self.queues[index].next
    }

    /// Returns the places of the next packets of all queues.
    pub(super) fn nexts(&self) -> impl Iterator<Item = &Option<Numbered>> {
        self.queues.iter().map(|pinned| &pinned.next)
    }

    /// Returns the places of the next packets of all queues, for changes.
    pub(super) fn nexts_mut(&mut self) -> impl Iterator<Item = &mut Option<Numbered>> {
        self.queues.iter_mut().map(|pinned| &mut pinned.next)
    }

    /// Whether no packet waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(PinnedQueue::is_empty)
    }

    /// Returns the number of waiting packets, without the packets that are next in their queues.
    pub(super) fn len(&self) -> usize {
        self.queues.iter().map(|pinned| pinned.queue.len()).sum()
    }

    /// Sets [`QueueConfig::target`] of all present and later queues.
    pub(super) fn set_target(&mut self, target: Duration) {
        self.config.target = target;
        self.queues_mut().for_each(|queue| queue.set_target(target));
    }

    /// Sets [`QueueConfig::ack_room`] of all present and later queues.
    pub(super) fn set_ack_room(&mut self, ack_room: Bytes) {
        self.config.ack_room = ack_room;
        self.queues_mut()
            .for_each(|queue| queue.set_ack_room(ack_room));
    }

    /// Sets [`QueueConfig::allowance`] and [`QueueConfig::allowed`] of all present and later queues.
    pub(super) fn set_allowance(&mut self, allowance: Bytes, allowed: Duration) {
        (self.config.allowance, self.config.allowed) = (allowance, allowed);
        self.queues_mut()
            .for_each(|queue| queue.set_allowance(allowance, allowed));
    }

    /// Sets [`QueueConfig::limit`] and [`QueueConfig::patience`] of all present and later queues.
    pub(super) fn set_limit(&mut self, limit: Duration, patience: Duration) {
        (self.config.limit, self.config.patience) = (limit, patience);
        self.queues_mut()
            .for_each(|queue| queue.set_limit(limit, patience));
    }

    /// Frees empty queues after a change of the classes, and passes the other queues to the present classes. `present`
    /// returns the present id of a class.
    pub(super) fn on_classes(&mut self, present: impl Fn(ClassId) -> Option<ClassId>) {
        self.queues.retain(|queue| !queue.is_empty());
        for queue in &mut self.queues {
            if let Pin::Class(id) = queue.pin {
                queue.pin = present(id).map_or(Pin::Former, Pin::Class);
            }
        }
    }

    /// Frees the memory of all queues, which must be empty.
    pub(super) fn release_memory(&mut self) {
        self.queues = Vec::new();
    }
}

/// Maximum number of queues: one for each class, and one for each path.
pub(super) const MOST: usize = MAX_CLASSES + PathId::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{flows::FlowId, packet::PacketBuf, time::Instant};

    fn pinned() -> Pinned {
        Pinned::new(QueueConfig::default())
    }

    fn enqueue(pinned: &mut Pinned, pin: Pin) -> bool {
        let packet = PacketBuf::from(vec![0; 100]);
        let queue = pinned.queue_of(pin);
        queue.is_some_and(|queue| {
            queue.enqueue(Instant::ZERO, packet, FlowId::of_hash(1), |_, _| {});
            true
        })
    }

    #[test]
    fn queue_of_a_class_passes_to_the_present_class_or_loses_its_restriction() {
        let mut pinned = pinned();
        let class = |id| Pin::Class(ClassId(id));
        for pin in [class(0), class(1), Pin::Path(PathId(2))] {
            assert!(enqueue(&mut pinned, pin));
        }
        pinned.queue_of(class(2)).expect("room");
        pinned.on_classes(|id| (id == ClassId(1)).then_some(ClassId(7)));
        let pins: Vec<Pin> = pinned.queues.iter().map(|queue| queue.pin).collect();
        assert_eq!(pins, [Pin::Former, class(7), Pin::Path(PathId(2))]);
        assert_eq!((pinned.len(), pinned.is_empty()), (3, false));
        // A queue without restriction is freed when it is empty and another queue is needed.
        let former = pinned.queue_mut(0).dequeue(Instant::ZERO, |_, _| {});
        assert!(former.is_some());
        assert!(enqueue(&mut pinned, class(8)));
        let pins: Vec<Pin> = pinned.queues.iter().map(|queue| queue.pin).collect();
        assert_eq!(pins, [class(7), Pin::Path(PathId(2)), class(8)]);
    }

    #[test]
    fn queues_are_bounded() {
        let mut pinned = pinned();
        for id in 0..=u8::MAX {
            let has_queue = enqueue(&mut pinned, Pin::Class(ClassId(id)));
            assert_eq!(has_queue, usize::from(id) < MOST);
        }
        assert_eq!((pinned.count(), pinned.len()), (MOST, MOST));
    }

    #[test]
    fn later_queues_have_the_present_targets() {
        let mut pinned = pinned();
        let ms = Duration::from_millis;
        enqueue(&mut pinned, Pin::Path(PathId(0)));
        pinned.set_target(ms(7));
        pinned.set_limit(ms(70), ms(700));
        pinned.set_ack_room(Bytes::new(77));
        pinned.set_allowance(Bytes::new(777), ms(77));
        enqueue(&mut pinned, Pin::Path(PathId(1)));
        let [first, second] = [0, 1].map(|index| format!("{:?}", pinned.queue(index)));
        let config = |text: &str| text.split("flows").next().map(str::to_owned);
        assert_eq!(config(&first), config(&second));
        for set in ["target: 7ms", "allowed: 77ms", "limit: 70ms"] {
            assert!(first.contains(set), "{first}");
        }
        assert!(first.contains("777"), "{first}");
    }
}
