//! One flow with a target RTT: when its ACKs are due, and which data are delivered before them.

use core::time::Duration;
use std::collections::VecDeque;

use super::{
    APART, FADING, FASTER, LATER, LEAST, LONGEST, MOST_AHEAD, MOST_NOTED, MOST_TALK, MOST_TICKS,
    NOTED_EACH, TIMES, YOUNG_ROUNDS, next_group,
};
use crate::{
    packet::{PacketBuf, Pool, Segment, is_before, later},
    time::Instant,
    units::{Bitrate, Bytes},
};

/// A flow in its start-up phase whose data this end sends; `conversation` is its hash.
#[derive(Debug)]
pub(super) struct KeptFlow {
    pub(super) conversation: u64,
    /// Time at which the target RTT will have shrunk to zero.
    pub(super) until: Instant,
    /// Target RTT.
    least: Duration,
    /// First RTT that the sender measured.
    first: Option<Duration>,
    /// End of the flow's first segment and time at which it was sent, until more data are acknowledged.
    opening: Option<(u32, Instant)>,
    /// Ends of sent data and times of sending; at most one entry for each [`NOTED_EACH`].
    sent: VecDeque<(u32, Instant)>,
    /// End of all data sent.
    end: u32,
    /// Latest acknowledged number (`acked`), and time from which the next ACK may be delivered (`free_at`).
    acked: Option<u32>,
    free_at: Instant,
    /// Delayed ACKs in the order of their due times.
    held: VecDeque<Held>,
    /// Number of delayed ACKs, counted from the front, that data from the receiver have overtaken.
    overtaken: usize,
    /// Latest acknowledgement that was delivered to the sender.
    told: Option<Said>,
    /// Latest acknowledgement that the receiver has sent.
    heard: Option<Said>,
    /// Sequence number of the end of the receiver's data that were delivered before ACKs held here, and the timestamp
    /// of these data.
    ahead: Option<(u32, Option<u32>)>,
    /// Number of segments that were delivered before ACKs held here.
    talk: u32,
}

/// The content of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) ack: u32,
    pub(super) window: u16,
}

impl Said {
    /// Returns the acknowledgement in a segment, if the segment has one.
    pub(super) fn of(segment: &Segment) -> Option<Self> {
        let window = segment.window;
        segment.ack.map(|ack| Self { ack, window })
    }
}

#[derive(Debug)]
struct Held {
    due: Instant,
    said: Said,
    packet: PacketBuf,
}

/// When an ACK is to be delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    at: Instant,
    /// Whether immediate delivery would be much too early.
    pub(super) is_early: bool,
}

impl KeptFlow {
    /// Returns a flow whose first segment ended at `end`, with the target RTT `least`.
    pub(super) fn new(
        now: Instant,
        conversation: u64,
        end: u32,
        least: Duration,
        until: Instant,
    ) -> Self {
        Self {
            conversation,
            until,
            least,
            first: None,
            opening: Some((end, now)),
            sent: VecDeque::from([(end, now)]),
            end,
            acked: None,
            free_at: now,
            held: VecDeque::new(),
            overtaken: 0,
            told: None,
            heard: None,
            ahead: None,
            talk: 0,
        }
    }

    /// Whether none of the flow's data have been acknowledged.
    pub(super) fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// Whether `ack` is the first acknowledgement of the flow's data.
    pub(super) fn is_first(&self, ack: u32) -> bool {
        let is_beyond = |(end, _)| is_before(end, ack);
        self.opening.is_some_and(is_beyond) && !is_before(self.end, ack)
    }

    /// Sets the target RTT when the first data are acknowledged, because the sender compares RTTs only from then on.
    /// Returns `false` if the target RTT is too short or cannot be maintained.
    pub(super) fn renew(&mut self, now: Instant, least: Duration) -> bool {
        self.opening = None;
        self.least = least.min(LONGEST);
        if self.until > now + FADING {
            self.until = self.until.max(now + self.least * YOUNG_ROUNDS + FADING);
        }
        self.least >= LEAST && self.may_be_kept()
    }

    /// Whether the target RTT exceeds the first RTT that the sender measured by at most [`LATER`]. Also limits the
    /// target RTT to [`TIMES`] times the first RTT.
    fn may_be_kept(&mut self) -> bool {
        let Some(first) = self.first else {
            return true;
        };
        let may_be = self.least <= first + LATER;
        self.least = self.least.min(first * TIMES);
        may_be
    }

    pub(super) fn on_sent(&mut self, now: Instant, end: u32) {
        if !is_before(self.end, end) {
            return;
        }
        self.end = end;
        let is_due = |(_, at): &(u32, Instant)| now.since(*at) >= NOTED_EACH;
        if self.sent.back().is_none_or(is_due) {
            if self.sent.len() == MOST_NOTED {
                self.sent.pop_front();
            }
            self.sent.push_back((end, now));
        }
    }

    /// Returns the target RTT before it begins to shrink.
    pub(super) const fn kept(&self) -> Duration {
        self.least
    }

    /// Returns the target RTT at `now`.
    pub(super) fn least(&self, now: Instant) -> Duration {
        let left = self.until.since(now).min(FADING).as_millis();
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        self.least * left / u32::try_from(FADING.as_millis()).unwrap_or(u32::MAX)
    }

    /// Returns when an ACK of the data before `ack` is to be delivered if all paths together have `rate`; `None` if
    /// such data were never sent. `acked_to` is the end of all acknowledged data, including data out of order, because
    /// senders also measure the RTT by SACK.
    pub(super) fn due(
        &mut self,
        now: Instant,
        ack: u32,
        acked_to: u32,
        rate: Option<Bitrate>,
    ) -> Option<Due> {
        if is_before(self.end, ack) {
            return None;
        }
        let newest = if is_before(self.end, acked_to) {
            ack
        } else {
            acked_to
        };
        let is_covered = |(end, _): &(u32, Instant)| !is_before(newest, *end);
        while self.sent.get(1).is_some_and(is_covered) {
            self.sent.pop_front();
        }
        let least = self.least(now);
        let newest = self.sent.front().filter(|sent| is_covered(sent));
        let early = newest.map_or(now, |(_, at)| *at + least);
        let due = early.max(self.free_at).max(now).min(now + self.least * 2);
        let acked = self.acked.unwrap_or(ack);
        if !is_before(ack, acked) {
            let bytes = Bytes::new(u64::from(ack.wrapping_sub(acked)));
            self.acked = Some(ack);
            self.free_at = match rate {
                Some(rate) => due + bytes / rate.scale(FASTER, 1),
                None => now,
            };
        }
        let last = self.held.back().map(|last| last.due);
        Some(Due {
            at: next_group(due).max(last.unwrap_or(due)),
            is_early: early > now + APART,
        })
    }

    /// Delays an ACK until it is due.
    pub(super) fn hold(&mut self, due: Due, said: Said, packet: PacketBuf) {
        latest(&mut self.heard, said);
        self.held.push_back(Held {
            due: due.at,
            said,
            packet,
        });
    }

    /// Whether the receiver has already acknowledged more data, so that this packet was overtaken on its path.
    pub(super) fn has_heard_more(&self, said: Said) -> bool {
        self.heard
            .is_some_and(|heard| is_before(said.ack, heard.ack))
    }

    /// Handles the first data of a receiver that sends data before the sender does. These data are delivered at once,
    /// so the sender measures its first RTT without a delay, which limits the target RTT ([`LATER`], [`TIMES`]).
    /// Returns `false` if the packet is not of this kind or the target RTT cannot be maintained.
    pub(super) fn begin(&mut self, now: Instant, said: Said) -> bool {
        let is_opening = self.opening.is_some_and(|(end, _)| end == said.ack);
        if !is_opening || self.told.is_some() {
            return false;
        }
        self.tell(now, said);
        self.may_be_kept()
    }

    /// Changes data of the receiver so that they can be delivered before the delayed ACKs, and delays the ACK that they
    /// carry. Returns `false`, and changes nothing, if the data should not be delivered first.
    pub(super) fn let_ahead(
        &mut self,
        due: Due,
        segment: &Segment,
        said: Said,
        packet: &mut PacketBuf,
        pool: &mut Pool,
    ) -> bool {
        let (Some(told), Some(changed)) = (self.told, packet.segment_mut()) else {
            return false;
        };
        let (time, has_sack) = (changed.time(), changed.has_sack());
        let (end, stamp) = self.ahead.unwrap_or((segment.seq, time));
        let is_sane = is_near(end, segment.end, MOST_AHEAD)
            && !is_before(said.ack, told.ack)
            && is_none_or_near(stamp, time);
        if self.talk == MOST_TALK || !is_sane {
            return false;
        }
        self.talk += 1;
        let is_news = self.heard.is_none_or(|heard| {
            is_before(heard.ack, said.ack) || (heard.ack == said.ack && heard != said)
        });
        let lone = (is_news || has_sack)
            .then(|| packet.lone_ack(pool))
            .flatten();
        if let Some(mut changed) = packet.segment_mut() {
            changed.lower_ack(told.ack, told.window);
        }
        let stamp = match (stamp, time) {
            (Some(old), Some(new)) => Some(later(old, new)),
            (old, new) => old.or(new),
        };
        self.ahead = Some((later(end, segment.end), stamp));
        if let Some(lone) = lone {
            self.hold(due, said, lone);
        }
        self.overtaken = self.held.len();
        true
    }

    /// Records an acknowledgement that is delivered to the sender.
    pub(super) fn tell(&mut self, now: Instant, said: Said) {
        if let (None, Some((_, at))) = (self.told, self.opening) {
            self.first = Some(now.since(at));
        }
        latest(&mut self.told, said);
        latest(&mut self.heard, said);
    }

    /// Delivers the ACKs that are due.
    pub(super) fn hand_on(&mut self, now: Instant, delivered: &mut VecDeque<PacketBuf>) {
        self.hand_on_due_by(now, now, delivered);
    }

    /// Delivers all delayed ACKs.
    pub(super) fn release(&mut self, now: Instant, delivered: &mut VecDeque<PacketBuf>) {
        self.hand_on_due_by(Instant::from_nanos(u64::MAX), now, delivered);
        self.free_at = self.free_at.min(now);
    }

    fn hand_on_due_by(&mut self, by: Instant, now: Instant, delivered: &mut VecDeque<PacketBuf>) {
        while let Some(mut held) = self.held.pop_front_if(|held| held.due <= by) {
            if self.overtaken > 0 {
                self.overtaken -= 1;
                if let (Some((end, stamp)), Some(mut segment)) =
                    (self.ahead, held.packet.segment_mut())
                {
                    segment.put_behind(end, stamp);
                }
            }
            self.tell(now, held.said);
            delivered.push_back(held.packet);
        }
    }

    /// Returns the number of delayed ACKs.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns the earliest time at which an ACK is due or the start-up phase ends.
    pub(super) fn poll_timeout(&self) -> Instant {
        let first = self.held.front().map(|held| held.due);
        first.map_or(self.until, |due| due.min(self.until))
    }
}

/// Replaces `known` by `said` if `said` acknowledges at least as much.
fn latest(known: &mut Option<Said>, said: Said) {
    if known.is_none_or(|known| !is_before(said.ack, known.ack)) {
        *known = Some(said);
    }
}

/// Whether two numbers are at most `most` apart.
fn is_near(number: u32, other: u32, most: u32) -> bool {
    number.wrapping_sub(other) <= most || other.wrapping_sub(number) <= most
}

/// Whether two timestamps, if present, are close enough to belong to the start-up phase of one flow.
fn is_none_or_near(stamp: Option<u32>, time: Option<u32>) -> bool {
    stamp
        .zip(time)
        .is_none_or(|(stamp, time)| is_near(stamp, time, MOST_TICKS))
}
