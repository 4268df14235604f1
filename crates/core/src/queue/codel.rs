//! CoDel: controlled delay (RFC 8289).
//!
//! A queue that drains now and then is good; one that never does is delay without use. CoDel looks at how long
//! packets have waited as they leave. When that has stayed above `target` for a whole `interval`, it drops one and
//! then more, at times interval / sqrt(count) apart, until the waiting time falls below the target. Here a packet of
//! an ECN-capable sender is marked instead of dropped and goes on, as in RFC 8290.
//!
//! The code follows the pseudo-code of RFC 8289 section 5.

use super::{QueueConfig, Queued};
use crate::{
    packet::{PacketBuf, mark_congested},
    time::Instant,
};

/// The state of CoDel for one queue; names as in RFC 8289 section 5.2.
#[derive(Debug, Default)]
pub(super) struct Codel {
    /// When the waiting time will have been too long for an interval; zero if it is not too long.
    first_above_time: Instant,
    drop_next: Instant,
    count: u32,
    lastcount: u32,
    dropping: bool,
}

/// A packet taken from the queue, and what it leaves behind.
pub(super) struct Head {
    pub(super) queued: Queued,
    pub(super) backlog_bytes: u32,
}

impl Codel {
    /// Takes the next packet with `pop`, dropping or marking as CoDel wants. Returns the packet to send and how many
    /// (none or one) were marked; `None` if the queue is empty, perhaps because everything in it was dropped.
    pub(super) fn dequeue(
        &mut self,
        now: Instant,
        config: &QueueConfig,
        mut pop: impl FnMut() -> Option<Head>,
        mut drop: impl FnMut(PacketBuf),
    ) -> Option<(Queued, bool)> {
        let (mut queued, mut ok_to_drop) = self.take(now, config, &mut pop);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while self.dropping && now >= self.drop_next {
                self.count = self.count.saturating_add(1);
                if mark(queued.as_mut()) {
                    self.drop_next = self.control_law(self.drop_next, config);
                    return Some((queued?, true));
                }
                drop(queued?.packet);
                (queued, ok_to_drop) = self.take(now, config, &mut pop);
                if ok_to_drop {
                    self.drop_next = self.control_law(self.drop_next, config);
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            let marked = mark(queued.as_mut());
            if !marked {
                drop(queued?.packet);
                (queued, _) = self.take(now, config, &mut pop);
            }
            self.dropping = true;
            // If it dropped a short while ago, the rate that controlled the queue then is the better start.
            let delta = self.count.saturating_sub(self.lastcount);
            let recent = now.since(self.drop_next) < config.interval * 16;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next = self.control_law(now, config);
            self.lastcount = self.count;
            return Some((queued?, marked));
        }
        Some((queued?, false))
    }

    /// `dodequeue` of the RFC: a packet, and whether the waiting time has been too long for an interval.
    fn take(
        &mut self,
        now: Instant,
        config: &QueueConfig,
        pop: &mut impl FnMut() -> Option<Head>,
    ) -> (Option<Queued>, bool) {
        let Some(head) = pop() else {
            self.first_above_time = Instant::ZERO;
            return (None, false);
        };
        let sojourn = now.since(head.queued.enqueued_at);
        let mut ok_to_drop = false;
        if sojourn < config.target || head.backlog_bytes <= MAX_PACKET_BYTES {
            self.first_above_time = Instant::ZERO;
        } else if self.first_above_time == Instant::ZERO {
            self.first_above_time = now + config.interval;
        } else {
            ok_to_drop = now >= self.first_above_time;
        }
        (Some(head.queued), ok_to_drop)
    }

    fn control_law(&self, t: Instant, config: &QueueConfig) -> Instant {
        t + config.interval.div_f64(f64::from(self.count.max(1)).sqrt())
    }
}

fn mark(queued: Option<&mut Queued>) -> bool {
    queued.is_some_and(|queued| mark_congested(queued.packet.as_mut_slice()))
}

/// `maxpacket` of the RFC: with no more than this behind it, a packet does not wait in a standing queue.
const MAX_PACKET_BYTES: u32 = 1514;
