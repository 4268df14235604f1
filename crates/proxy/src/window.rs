//! Receive windows: how many bytes the server of each connection may have in flight to this host.
//!
//! Connections that begin together overfill a modem's queue: each server sends an initial window of ten segments and
//! doubles its window until packets are lost. Often the end of an answer is lost, and is retransmitted only after a
//! timeout. Only the receiver sees all connections, and in TCP it can limit the bytes in flight of each. So while
//! several connections share a link of known rate, the window of each is its share of the rate, multiplied by its RTT
//! plus a margin of at least [`STANDING`]. The link stays full, and its queue short.
//!
//! Shares are max-min fair (Bertsekas and Gallager, *Data Networks*, 6.5.2): capacity that one connection does not
//! use is divided among the others. A connection that receives little at present may still receive about an equal
//! share, so that it can speed up without a new division. All such connections together would overfill the link for
//! the interval between two divisions, so only a part of them is expected to speed up at once.
//!
//! The windows must not keep a link from being full. A rate that is estimated too low would limit the windows and so
//! confirm itself, and the RTTs of radio links are mostly longer than their minimum. Three rules prevent this:
//!
//! - Windows allow more than the rate: half as much again for long RTTs.
//! - While windows are in force, the known rate of the link does not fall ([`crate::estimate::link`]).
//! - Windows are removed for some time if a link receives less than its known rate while they limit a connection
//!   ([`Caution`]).

use core::time::Duration;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

/// A connection that shares a link with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharer {
    /// Recent receive rate.
    pub rate: Bitrate,
    /// Maximum rate that the connection may use at present. `None` if the connection is new or not limited.
    pub part: Option<Bitrate>,
    /// Whether the connection's window may keep the connection from receiving more.
    pub is_held_up: bool,
}

impl Sharer {
    /// Whether the connection uses less than a sixteenth of its share.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.part
            .is_some_and(|part| self.rate.as_bps() < part.as_bps() / IDLE_PART)
    }
}

/// Decides whether the windows of connections over a link may be limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caution {
    /// Number of consecutive calls of [`Self::on_look`] at which the link was not full although a window limited a
    /// connection.
    short_looks: u32,
    /// `off_until`: time until which no window is limited. `off_for`: duration of this pause.
    off_until: Option<Instant>,
    off_for: Duration,
}

impl Caution {
    /// Whether the windows of the link are not limited at present.
    #[must_use]
    pub fn is_off(&self, now: Instant) -> bool {
        self.off_until.is_some_and(|until| now < until)
    }

    /// Evaluates the rates of the connections `sharers` over a link of known `rate`. Returns whether their windows
    /// may be limited.
    pub fn on_look(&mut self, now: Instant, rate: Bitrate, sharers: &[Sharer]) -> bool {
        if self.is_off(now) {
            return false;
        }
        let shown_bps: u64 = sharers.iter().map(|one| one.rate.as_bps()).sum();
        let is_short = shown_bps < rate.scale(FULL_PERCENT, 100).as_bps();
        if !is_short {
            self.short_looks = 0;
        } else if sharers.iter().any(|one| one.is_held_up) {
            self.short_looks += 1;
        }
        let is_wrong = self.short_looks > PATIENT_LOOKS;
        if is_wrong {
            self.short_looks = 0;
            let again = self
                .off_until
                .is_some_and(|until| now.since(until) < self.off_for * 2);
            self.off_for = if again {
                (self.off_for * 2).min(LONGEST_OFF)
            } else {
                FIRST_OFF
            };
            self.off_until = Some(now + self.off_for);
        }
        !is_wrong
    }
}

/// Returns the share of `rate` that each connection may use. O(n log n).
#[must_use]
pub fn parts(rate: Bitrate, sharers: &[Sharer]) -> Vec<Bitrate> {
    let count = u64::try_from(sharers.len()).unwrap_or(u64::MAX);
    // Assume that only a quarter of the idle connections speeds up at a time.
    let idle = sharers.iter().filter(|one| one.is_idle()).count() as u64;
    let equal_bps = rate.as_bps() / (count - idle + idle / IDLE_AT_ONCE + 1);
    let mut order: Vec<usize> = (0..sharers.len()).collect();
    order.sort_unstable_by_key(|&index| taken_bps(&sharers[index]).unwrap_or(u64::MAX));
    let mut left_bps = rate.as_bps();
    let mut parts = vec![Bitrate::ZERO; sharers.len()];
    for (index, count) in order.into_iter().zip((1..=count).rev()) {
        let fair_bps = left_bps / count;
        let taken_bps = taken_bps(&sharers[index]);
        let wish_bps = taken_bps.map(|taken_bps| (taken_bps * WISH_TO_USE).max(equal_bps));
        parts[index] = Bitrate::from_bps(wish_bps.unwrap_or(fair_bps).min(fair_bps));
        left_bps -= taken_bps.unwrap_or(fair_bps).min(fair_bps);
    }
    parts
}

/// Returns the receive window for a connection with minimum RTT `base` that may use `part` of its link. `None`: no
/// limit.
#[must_use]
pub fn window(part: Bitrate, base: Duration) -> Option<Bytes> {
    let bytes = part.bytes_in(base + (base / 2).max(STANDING));
    (bytes < UNBOUND).then(|| bytes.max(LEAST))
}

/// Returns the rate of a connection that uses less than half of its share. `None` if it may want its whole share.
fn taken_bps(sharer: &Sharer) -> Option<u64> {
    let taken_bps = sharer.rate.as_bps();
    let part = sharer.part?;
    (taken_bps < part.as_bps() / 2).then_some(taken_bps)
}

/// Minimum amount of data that may wait in the link's queue, as transmission time. It covers variations of the RTT
/// and the interval between two divisions.
pub const STANDING: Duration = Duration::from_millis(30);
/// Minimum window: with fewer than four segments in flight, a loss is not detected by the segments that follow it.
const LEAST: Bytes = Bytes::new(4 * 1460);
/// Window size from which a window is not limited. The kernel begins with a window of this size.
const UNBOUND: Bytes = Bytes::new(64 << 10);
/// Part of the known rate of a link, in percent, from which the link counts as full.
const FULL_PERCENT: u64 = 95;
/// Number of consecutive calls with a link that is not full before the limits are removed. New connections need time
/// to speed up: 20 calls at intervals of 50 ms are one second.
const PATIENT_LOOKS: u32 = 20;
/// Duration for which no window is limited after windows have kept a link from being full. It doubles each time.
const FIRST_OFF: Duration = Duration::from_secs(10);
const LONGEST_OFF: Duration = Duration::from_secs(600);
/// `IDLE_PART`: a connection that uses less than 1/16 of its share is idle. `IDLE_AT_ONCE`: one of four idle
/// connections is expected to speed up at a time.
const IDLE_PART: u64 = 16;
const IDLE_AT_ONCE: u64 = 4;
/// Factor by which a connection that does not use its share may exceed its present rate.
const WISH_TO_USE: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn sharer(mbps: u64, part: Option<u64>) -> Sharer {
        Sharer {
            rate: Bitrate::from_mbps(mbps),
            part: part.map(Bitrate::from_mbps),
            is_held_up: true,
        }
    }

    fn mbps(total: u64, sharers: &[Sharer]) -> Vec<u64> {
        let parts = parts(Bitrate::from_mbps(total), sharers);
        parts.iter().map(|part| part.as_bps() / 1_000_000).collect()
    }

    #[test]
    fn equals_share_alike_and_the_modest_leave_theirs_to_the_rest() {
        assert_eq!(mbps(20, &[sharer(0, None); 4]), [5; 4]);
        assert_eq!(mbps(20, &[]), [0; 0]);
        let sharers = [sharer(1, Some(6)), sharer(6, Some(6)), sharer(1, Some(6))];
        assert_eq!(mbps(21, &sharers), [5, 19, 5]);
        // A connection that uses more than half of its share may want more.
        let both = [sharer(4, Some(6)), sharer(6, Some(6))];
        assert_eq!(mbps(20, &both), [10; 2]);
        let idle = [sharer(0, Some(5)), sharer(9, Some(10)), sharer(4, Some(20))];
        assert_eq!(mbps(21, &idle), [7, 17, 8], "idle, eager, modest");
    }

    #[test]
    fn bounds_come_off_for_longer_and_longer_where_they_keep_a_link_from_being_full() {
        let mut caution = Caution::default();
        let mut now = Instant::ZERO;
        let mut bound_for = |sharers: &[Sharer], looks: usize| {
            let looks = (0..looks).filter(|_| {
                now += Duration::from_millis(50);
                caution.on_look(now, Bitrate::from_mbps(20), sharers)
            });
            looks.count()
        };
        let full = [sharer(10, Some(10)), sharer(9, Some(10))];
        let short = [sharer(7, Some(10)), sharer(7, Some(10))];
        let content = short.map(|one| Sharer {
            is_held_up: false,
            ..one
        });
        assert_eq!(bound_for(&full, 100), 100);
        assert_eq!(bound_for(&content, 100), 100);
        assert_eq!(bound_for(&short, 20), 20, "it begins");
        assert_eq!(bound_for(&full, 1), 1);
        assert_eq!(bound_for(&short, 220), 20, "off for ten seconds");
        assert_eq!(bound_for(&short, 20 + 400), 20, "and for twenty");
        assert_eq!(bound_for(&full, 2), 2);
    }

    #[test]
    fn windows_cover_the_round_trip_and_what_may_stand_in_the_queue() {
        let ms = Duration::from_millis;
        let window = |mbps, base_ms| {
            let bytes = window(Bitrate::from_mbps(mbps), ms(base_ms));
            bytes.map(Bytes::get)
        };
        // 5 Mbit/s for 20 + 30 ms, and for 80 + 40 ms.
        assert_eq!(window(5, 20), Some(31_250));
        assert_eq!(window(2, 80), Some(30_000));
        assert_eq!(window(0, 20), Some(5_840), "enough to notice a loss");
        assert_eq!(window(100, 20), None, "the kernel's own affair");
    }
}
