//! CoDel: controlled delay (RFC 8289).
//!
//! A queue that empties from time to time is useful; a standing queue only adds delay. CoDel measures how long packets
//! have waited when they leave. If the waiting time has stayed above `target` for a whole `interval`, CoDel drops one
//! packet and then further packets, at intervals of interval / sqrt(count), until the waiting time falls below the
//! target. A packet of an ECN-capable sender is marked instead of dropped, as in RFC 8290.
//!
//! The code follows the pseudo-code of RFC 8289 section 5.
//!
//! **Unresponsive senders** are not controlled by these drops. The rate of drops needs minutes to reach some hundred
//! packets per second. If the sender exceeds the capacity by so much, the queue grows until then. Therefore a second
//! rule applies if a queue has stood above the target for `patience`, which is some RTTs in which its sender must have
//! noticed the marks or drops. Every packet that has waited longer than `limit` is then dropped. Of the other packets
//! only one per `patience` is dropped, in case the sender responds after all. BBR keeps one RTT of queue whatever is
//! dropped, and each drop costs in-order receivers another RTT. The queue of such a sender runs empty from time to time
//! and is afterwards used by the same sender. Therefore the sender is considered unresponsive for [`REMEMBERED`] and
//! then tested again. (Cake solves the same problem with a second controller, BLUE, which begins to drop when its
//! buffer overflows.) Marks and drops share one schedule, so if ECN-capable and other packets are mixed, a drop may
//! follow soon after a mark.

use core::time::Duration;

use super::{QueueConfig, Queued};
use crate::{
    packet::{PacketBuf, mark_congested},
    time::Instant,
};

/// The state of CoDel for one queue; names as in RFC 8289 section 5.2.
#[derive(Debug, Default)]
pub(super) struct Codel {
    /// When the waiting time will have been above the target for one interval; zero if the waiting time is not above
    /// the target.
    first_above_time: Instant,
    drop_next: Instant,
    count: u16,
    lastcount: u16,
    dropping: bool,
    /// If `is_standing`: the time since which packets have left without a pause and with waiting times above the
    /// target, in milliseconds modulo 2^32. Only differences of seconds are compared.
    standing_since_ms: u32,
    /// When the last packet left, in milliseconds modulo 2^32.
    last_ms: u32,
    is_standing: bool,
    /// Whether the sender responds to marks and drops.
    hearing: Hearing,
    /// When the sender was last found unresponsive, in milliseconds modulo 2^32.
    deaf_since_ms: u32,
}

/// Whether a sender responds to marks and drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hearing {
    #[default]
    Unknown,
    /// The sender is unresponsive. Valid for [`REMEMBERED`].
    Deaf,
    /// The sender was unresponsive, and has `patience` to show that it responds now or that another sender uses this
    /// queue.
    Tested,
}

/// A packet taken from the queue, and the state of the queue without the packet.
pub(super) struct Head {
    pub(super) queued: Queued,
    pub(super) backlog_bytes: u32,
    /// Whether all waiting bytes are within [`QueueConfig::allowance`].
    pub(super) is_allowed: bool,
}

impl Codel {
    /// Takes the next packet with `pop`, and drops or marks packets as CoDel decides. Returns the packet to send, and
    /// whether a packet was marked. Returns `None` if the queue is empty, perhaps because every packet was dropped.
    pub(super) fn dequeue(
        &mut self,
        now: Instant,
        config: &QueueConfig,
        mut pop: impl FnMut() -> Option<Head>,
        mut drop: impl FnMut(PacketBuf),
    ) -> Option<(Queued, bool)> {
        let (mut queued, mut ok_to_drop) = self.take(now, config, &mut pop, &mut drop);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while self.dropping && now >= self.drop_next {
                let marked = mark(queued.as_mut());
                if !self.is_held(marked) {
                    self.count = self.count.saturating_add(1);
                }
                if marked {
                    self.drop_next = self.next(self.drop_next, true, config);
                    return Some((queued?, true));
                }
                drop(queued?.packet);
                (queued, ok_to_drop) = self.take(now, config, &mut pop, &mut drop);
                if self.is_held(false) {
                    // Count from now, so that a pause is followed neither by several drops at once nor by an early
                    // drop.
                    self.drop_next = self.next(now, false, config);
                } else if ok_to_drop {
                    self.drop_next = self.next(self.drop_next, false, config);
                }
                self.dropping = ok_to_drop;
            }
        } else if ok_to_drop {
            let marked = mark(queued.as_mut());
            if self.is_held(marked) && now < self.drop_next {
                return Some((queued?, false));
            }
            if !marked {
                drop(queued?.packet);
                (queued, _) = self.take(now, config, &mut pop, &mut drop);
            }
            self.dropping = true;
            // If CoDel dropped recently, start with the drop rate that controlled the queue then.
            let delta = self.count.saturating_sub(self.lastcount);
            let recent = now.since(self.drop_next) < config.interval * 16;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next = self.next(now, marked, config);
            self.lastcount = self.count;
            return Some((queued?, marked));
        }
        Some((queued?, false))
    }

    /// `dodequeue` of the RFC: returns a packet, and whether the waiting time has been above the target for one
    /// interval.
    fn take(
        &mut self,
        now: Instant,
        config: &QueueConfig,
        pop: &mut impl FnMut() -> Option<Head>,
        drop: &mut impl FnMut(PacketBuf),
    ) -> (Option<Queued>, bool) {
        let is_unheard = self.is_unheard(now, config);
        let (head, sojourn) = loop {
            let Some(head) = pop() else {
                self.first_above_time = Instant::ZERO;
                self.is_standing = false;
                return (None, false);
            };
            let sojourn = now.since(head.queued.enqueued_at);
            if !is_unheard || sojourn <= config.limit || head.backlog_bytes <= MAX_PACKET_BYTES {
                break (head, sojourn);
            }
            drop(head.queued.packet);
        };
        let mut ok_to_drop = false;
        let is_allowed = head.is_allowed && sojourn < config.allowed;
        let is_short =
            sojourn < config.target || is_allowed || head.backlog_bytes <= MAX_PACKET_BYTES;
        self.note(now, !is_short, config);
        if is_short {
            self.first_above_time = Instant::ZERO;
        } else if self.first_above_time == Instant::ZERO {
            self.first_above_time = now + config.interval;
        } else {
            ok_to_drop = now >= self.first_above_time;
        }
        (Some(head.queued), ok_to_drop)
    }

    /// Whether the queue has stood for longer than a responsive sender would allow. After a pause in which no packet
    /// left, the age of waiting packets says nothing about the sender.
    fn is_unheard(&mut self, now: Instant, config: &QueueConfig) -> bool {
        if span(self.last_ms, millis(now)) > config.interval {
            self.is_standing = false;
        }
        self.has_stood(millis(now), config)
    }

    /// Whether the queue is standing and has been for `patience` at `at_ms`.
    fn has_stood(&self, at_ms: u32, config: &QueueConfig) -> bool {
        self.is_standing && span(self.standing_since_ms, at_ms) > config.patience
    }

    /// Records that a packet leaves. `is_late`: its waiting time was above the target.
    fn note(&mut self, now: Instant, is_late: bool, config: &QueueConfig) {
        self.last_ms = millis(now);
        if !self.is_standing {
            self.standing_since_ms = self.last_ms;
        }
        self.is_standing = is_late;
        let deaf_for = span(self.deaf_since_ms, self.last_ms);
        match self.hearing {
            Hearing::Deaf if deaf_for >= REMEMBERED => {
                self.hearing = Hearing::Tested;
                (self.count, self.lastcount) = (1, 1);
                self.drop_next = now + config.interval;
            }
            Hearing::Tested if deaf_for >= REMEMBERED + config.patience => {
                self.hearing = Hearing::Unknown;
            }
            Hearing::Unknown | Hearing::Deaf | Hearing::Tested => {}
        }
        if self.hearing == Hearing::Unknown && self.has_stood(self.last_ms, config) {
            self.hearing = Hearing::Deaf;
            self.deaf_since_ms = self.last_ms;
        }
    }

    /// Whether drops are limited to one per `patience`, because dropping ever faster has no effect on an unresponsive
    /// sender. Marks are not limited, because they cost nothing.
    fn is_held(&self, marked: bool) -> bool {
        !marked && self.hearing == Hearing::Deaf
    }

    /// When the next packet is dropped or marked, if a packet was dropped or marked at `t`.
    fn next(&self, t: Instant, marked: bool, config: &QueueConfig) -> Instant {
        if self.is_held(marked) {
            return t + config.patience.max(config.interval);
        }
        t + config.interval.div_f64(f64::from(self.count.max(1)).sqrt())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
const fn millis(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

const fn span(from_ms: u32, to_ms: u32) -> Duration {
    Duration::from_millis(to_ms.wrapping_sub(from_ms) as u64)
}

fn mark(queued: Option<&mut Queued>) -> bool {
    queued.is_some_and(|queued| mark_congested(queued.packet.as_mut_slice()))
}

/// Time for which a sender is considered unresponsive. The state belongs to the queue: another flow that uses the
/// same queue during this time waits longer.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Length in bytes up to which a queue is not a standing queue: `maxpacket` of the RFC.
const MAX_PACKET_BYTES: u32 = 1514;
