//! CoDel: controlled delay (RFC 8289).
//!
//! A queue that drains now and then is good; one that never does is delay without use. CoDel looks at how long
//! packets have waited as they leave. When that has stayed above `target` for a whole `interval`, it drops one and
//! then more, at times interval / sqrt(count) apart, until the waiting time falls below the target. Here a packet of
//! an ECN-capable sender is marked instead of dropped and goes on, as in RFC 8290.
//!
//! The code follows the pseudo-code of RFC 8289 section 5.
//!
//! A sender that does not slow down is not controlled that way: drops interval / sqrt(count) apart reach its excess of some
//! hundred packets a second after minutes, and all that time its queue grows. So what has stood above the target for
//! `patience`, some round trips in which its sender must have heard, loses every packet that has waited longer than
//! `limit`, and of others one each `patience` and no more, should its sender listen after all: BBR keeps a round trip waiting
//! whatever is dropped, and each drop costs those who read in order another. Its queue runs empty now and then, and has the
//! same sender afterwards, so that is remembered for [`REMEMBERED`], and then found out anew. (Cake meets the same with a second
//! controller, BLUE, which begins to drop when its buffer overflows.) Marks and drops have one time for the next of either, so where
//! capable packets and others are mixed, a drop may come soon after a mark.

use core::time::Duration;

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
    count: u16,
    lastcount: u16,
    dropping: bool,
    /// Since when packets have left without a pause and all had waited for too long, if `is_standing`, and when the last
    /// left: milliseconds of the clock modulo 2^32, which are compared over seconds.
    standing_since_ms: u32,
    last_ms: u32,
    is_standing: bool,
    /// Whether its sender listens, and when it was last found that it does not.
    hearing: Hearing,
    deaf_since_ms: u32,
}

/// What is known of whether a sender listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hearing {
    #[default]
    Unknown,
    /// It did not, for [`REMEMBERED`].
    Deaf,
    /// It did not, and has the patience to show that it does now, or that another has its place.
    Tested,
}

/// A packet taken from the queue, and what it leaves behind.
pub(super) struct Head {
    pub(super) queued: Queued,
    pub(super) backlog_bytes: u32,
    /// Whether all that waits is within [`QueueConfig::allowance`].
    pub(super) is_allowed: bool,
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
                    // Nor several at once after a pause, nor sooner after one.
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
            // If it dropped a short while ago, the rate that controlled the queue then is the better start.
            let delta = self.count.saturating_sub(self.lastcount);
            let recent = now.since(self.drop_next) < config.interval * 16;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next = self.next(now, marked, config);
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

    /// Whether the queue has stood for longer than a sender that listens would let it. After a pause in which nothing left,
    /// the age of what waits tells nothing of its sender.
    fn is_unheard(&mut self, now: Instant, config: &QueueConfig) -> bool {
        if span(self.last_ms, millis(now)) > config.interval {
            self.is_standing = false;
        }
        self.has_stood(millis(now), config)
    }

    /// Whether it stands at `at_ms`, and did so for all patience.
    fn has_stood(&self, at_ms: u32, config: &QueueConfig) -> bool {
        self.is_standing && span(self.standing_since_ms, at_ms) > config.patience
    }

    /// Takes note that a packet leaves, which had waited for too long if it `is_late`.
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

    /// Whether drops are held at one each patience: they do not come ever faster on what does not heed them. Marks do, for they
    /// cost nothing.
    fn is_held(&self, marked: bool) -> bool {
        !marked && self.hearing == Hearing::Deaf
    }

    /// When the next is dropped or marked, if one was at `t`.
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

/// For how long a sender that did not listen is taken for one that does not. It is the queue that is remembered: another flow that has
/// the same meanwhile waits for longer.
const REMEMBERED: Duration = Duration::from_secs(30);
/// `maxpacket` of the RFC: with no more than this behind it, a packet does not wait in a standing queue.
const MAX_PACKET_BYTES: u32 = 1514;
