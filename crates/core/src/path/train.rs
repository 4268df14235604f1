//! Packet trains: a first estimate of a path's capacity, before the path has carried any traffic.
//!
//! When a path comes up, a train of full datagrams is sent back to back. The bottleneck spreads the train out: the
//! capacity is the bytes after the first datagram, divided by the time in which they arrived (packet dispersion; Keshav
//! 1991; Dovrolis, Ramanathan and Moore 2001). Of a longer train that arrived nearly whole, only the bytes after the
//! first quarter count, for two reasons. First, jitter without reordering delays the first datagram by a random amount,
//! but the last datagrams by the largest amount so far. This stretches the train, so that 20 Mbit/s would be measured
//! as 15. Second, the first quarter uses up the tokens that a token bucket has accumulated.
//!
//! Jitter, bursts of radio schedulers and clock errors distort the time by an amount that does not grow with the train.
//! Therefore a train of four times the length follows (`TRAINS`), until two successive trains agree, or until one train
//! took so long (100 ms, `LONG`) that the errors are negligible. The first train, of a few datagrams, counts only if it
//! arrives steadily. If two trains agree, the estimate is reliable only if the second train took longer than 10 ms
//! (`SHORT`). A shorter time, 2 ms (`SHORT_QUEUE`), is enough for a train that arrives steadily but overflowed a buffer
//! of a few milliseconds, because no train through such a buffer lasts longer. For the use of the estimate see
//! [`super::pipeline`](super).
//!
//! Cost per path and direction when the path comes up, at most once in 15 minutes (`AGAIN`): 14 to 70 kB on a path of a
//! few Mbit/s, up to 1.2 MB on a path that carries this amount in 0.1 s.

use core::time::Duration;

use crate::{
    time::Instant,
    units::{Bitrate, Bytes},
};

/// The sending side of packet trains.
#[derive(Debug, Default)]
pub struct TrainSender {
    began_at: Option<Instant>,
    /// When the next datagram of the current train is due, if any, and how many datagrams of the train were sent.
    due: Option<Instant>,
    sent: u16,
    /// The train's number, and the index of its length in `TRAINS`.
    number: u8,
    stage: usize,
    /// Whether the result of the current train is awaited.
    is_awaited: bool,
    /// Rate measured by the previous train, if that train counts.
    before: Option<Bitrate>,
}

/// One datagram of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainPacket {
    /// The train's number.
    pub train: u8,
    /// Index in the train, from 0.
    pub place: u16,
    /// Number of datagrams in the train.
    pub count: u16,
}

impl TrainPacket {
    fn is_last(&self) -> bool {
        self.place.saturating_add(1) >= self.count
    }

    /// Whether the datagram is after the first quarter of a train. False for the shortest train, which counts as a
    /// whole.
    fn is_behind_head(&self) -> bool {
        self.count > TRAINS[0] && self.place >= self.count / 4
    }
}

/// The measurement of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispersion {
    /// The train's number.
    pub train: u8,
    /// Bytes after the train's first datagram, UDP and IP headers included.
    pub bytes: u32,
    /// Time in which `bytes` arrived, in microseconds; extrapolated from the bytes after the first quarter if only
    /// these count.
    pub time_us: u32,
    /// The longest gap between two datagrams.
    pub longest_gap_us: u32,
}

impl Dispersion {
    /// Whether the longest gap is at most a quarter of the time. If jitter keeps order, a train arrives in a few
    /// bursts and is not steady.
    fn is_steady(&self) -> bool {
        self.longest_gap_us <= self.time_us / 4
    }
}

/// A capacity estimate from trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guess {
    /// The estimated capacity.
    pub rate: Bitrate,
    /// Whether the rate was measured over a sufficiently long time to be reliable.
    pub is_sure: bool,
    /// Whether the rate is not reliable and much of the train was lost. A queue of a few packets lets no more packets
    /// of a long train through than of a short one. The packets that pass it arrive in so short a time that the
    /// measured time may be jitter only.
    pub is_doubtful: bool,
}

impl TrainSender {
    /// Starts trains when the path comes up, at most once in 15 minutes.
    pub fn on_up(&mut self, now: Instant) {
        if self.began_at.is_none_or(|at| now.since(at) > AGAIN) {
            self.began_at = Some(now);
            self.stage = 0;
            self.before = None;
            self.start(now);
        }
    }

    fn start(&mut self, now: Instant) {
        self.due = Some(now);
        self.sent = 0;
        self.number = self.number.wrapping_add(1);
        self.is_awaited = true;
    }

    /// Cancels the trains because the path may not carry any now; a later [`on_up`](Self::on_up) starts again with
    /// the first one.
    pub fn cancel(&mut self) {
        *self = Self {
            number: self.number,
            ..Self::default()
        };
    }

    /// Skips the trains that are due: they start again no earlier than if they had been sent.
    pub fn skip(&mut self) {
        self.due = None;
        self.is_awaited = false;
    }

    /// When the next datagram is due.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the next datagram to send, if one is due now.
    pub fn next(&mut self, now: Instant) -> Option<TrainPacket> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let count = *TRAINS.get(self.stage)?;
        let packet = TrainPacket {
            train: self.number,
            place: self.sent,
            count,
        };
        self.sent += 1;
        if self.sent >= count {
            self.due = None;
        }
        Some(packet)
    }

    /// Processes the measurement of a train by the other end. Returns a capacity estimate. If the estimate is not
    /// reliable, starts a longer train, unless this was the longest.
    pub fn on_result(&mut self, now: Instant, result: &Dispersion) -> Option<Guess> {
        let Dispersion { bytes, time_us, .. } = *result;
        if !self.is_awaited || result.train != self.number || self.due.is_some() {
            return None;
        }
        self.is_awaited = false;
        let time = Duration::from_micros(time_us.into());
        let rate = Bitrate::from_transfer(Bytes::new(bytes.into()), time.max(LEAST_TIME))?;
        let counts = self.stage > 0 || result.is_steady();
        let said = counts.then_some(rate);
        let before = core::mem::replace(&mut self.before, said);
        let is_alike = before
            .zip(said)
            .is_some_and(|(before, said)| before.max(said) < before.min(said).scale(5, 4));
        let whole = TRAINS
            .get(self.stage)
            .map_or(0, |packets| usize::from(*packets))
            * TRAIN_PACKET_BYTES;
        let is_short = usize::try_from(bytes).is_ok_and(|bytes| bytes < whole / 8 * 7);
        let least = if is_short && result.is_steady() {
            SHORT_QUEUE
        } else {
            SHORT
        };
        let is_sure = (counts && time > LONG) || (is_alike && time > least);
        let is_doubtful = is_short && !is_sure;
        if !is_sure && self.stage + 1 < TRAINS.len() {
            self.stage += 1;
            self.start(now);
        }
        Some(Guess {
            rate,
            is_sure,
            is_doubtful,
        })
    }
}

/// The receiving side of packet trains.
#[derive(Debug, Default)]
pub struct TrainReceiver {
    train: Option<Train>,
    /// Number of the last train that was refused, and when its last datagram arrived.
    refused: Option<(u8, Instant)>,
}

#[derive(Clone, Copy, Debug)]
struct Train {
    number: u8,
    count: u16,
    arrived: u16,
    first_at: Instant,
    last_at: Instant,
    /// Bytes after the first datagram.
    bytes: u32,
    longest_gap: Duration,
    /// When the first datagram after the first quarter arrived, and the bytes received by then.
    head: Option<(Instant, u32)>,
    is_complete: bool,
}

impl Train {
    fn result(&self) -> Option<Dispersion> {
        let mut time_us = micros(self.last_at.since(self.first_at));
        // If a queue overflowed, mostly the head of the train arrived, so the head is not left out.
        let is_whole = self.arrived >= self.count - self.count / 8;
        if let Some((at, head_bytes)) = self.head.filter(|_| is_whole) {
            let rest = self.last_at.since(at);
            let scaled = u64::from(micros(rest)) * u64::from(self.bytes);
            let scaled = scaled.checked_div(u64::from(self.bytes - head_bytes));
            // If the rest arrived in one burst, it was delayed on the way and does not show the capacity.
            if let Some(scaled) = scaled.filter(|_| rest > SHORT) {
                time_us = u32::try_from(scaled).unwrap_or(u32::MAX);
            }
        }
        (self.bytes > 0).then_some(Dispersion {
            train: self.number,
            bytes: self.bytes,
            time_us,
            longest_gap_us: micros(self.longest_gap),
        })
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

impl TrainReceiver {
    /// Records a datagram of a train, `len` bytes long. `may_begin` is called for the first datagram that arrives of a
    /// train, and says whether the train is measured. All datagrams of a refused train are ignored.
    pub fn on_arrival(
        &mut self,
        now: Instant,
        packet: TrainPacket,
        len: u32,
        may_begin: impl FnOnce() -> bool,
    ) {
        // A new link of the client numbers its trains from the beginning.
        let is_refused = |(train, at)| train == packet.train && now.since(at) < SAME_TRAIN;
        if self.refused.is_some_and(is_refused) {
            self.refused = Some((packet.train, now));
            return;
        }
        let known = self.train.filter(|train| train.number == packet.train);
        if known.is_none() && !may_begin() {
            self.refused = Some((packet.train, now));
            return;
        }
        self.refused = None;
        let mut train = known.unwrap_or(Train {
            number: packet.train,
            count: packet.count,
            arrived: 0,
            first_at: now,
            last_at: now,
            bytes: 0,
            longest_gap: Duration::ZERO,
            head: None,
            is_complete: false,
        });
        if train.arrived > 0 {
            train.bytes = train.bytes.saturating_add(len);
            train.longest_gap = train.longest_gap.max(now.since(train.last_at));
            train.last_at = now;
        }
        train.arrived = train.arrived.saturating_add(1);
        if train.head.is_none() && packet.is_behind_head() {
            train.head = Some((now, train.bytes));
        }
        train.is_complete |= packet.is_last();
        self.train = Some(train);
    }

    /// When the measurement of the current train is due.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let train = self.train?;
        Some(if train.is_complete {
            train.last_at
        } else {
            train.last_at + PATIENCE
        })
    }

    /// Takes the measurement of the current train if it is due.
    pub fn take_result(&mut self, now: Instant) -> Option<Dispersion> {
        self.due().filter(|due| *due <= now)?;
        self.train.take()?.result()
    }
}

/// Lengths of the trains in datagrams.
const TRAINS: [u16; 4] = [12, 48, 192, 768];
/// Duration above which a train is reliable by itself.
const LONG: Duration = Duration::from_millis(100);
/// Duration up to which a train is not reliable.
const SHORT: Duration = Duration::from_millis(10);
/// Duration up to which a train is not reliable if it arrived steadily but overflowed a queue too short for longer
/// trains.
const SHORT_QUEUE: Duration = Duration::from_millis(2);
const AGAIN: Duration = Duration::from_secs(900);
/// Minimum duration assumed for a train: the precision of clocks and wake-ups.
const LEAST_TIME: Duration = Duration::from_millis(1);
/// Time after the last datagram of a refused train within which another one with its number belongs to it.
const SAME_TRAIN: Duration = Duration::from_secs(1);
/// Time to wait for the rest of a train.
const PATIENCE: Duration = Duration::from_millis(50);
/// Length of the body of a train's control datagrams, in bytes.
pub const TRAIN_PACKET_BYTES: usize = 1_100;

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(place: u16, count: u16) -> TrainPacket {
        TrainPacket {
            train: 0,
            place,
            count,
        }
    }

    /// Sends the due train over a line of `mbps` Mbit/s. Returns the receiver's answer.
    fn ride(
        sender: &mut TrainSender,
        receiver: &mut TrainReceiver,
        now: Instant,
        mbps: u64,
    ) -> Dispersion {
        let mut at = now;
        while let Some(packet) = sender.next(now) {
            receiver.on_arrival(at, packet, 1_158, || true);
            at += Bytes::new(1_158) / Bitrate::from_mbps(mbps);
        }
        assert_eq!(sender.due(), None);
        receiver.take_result(at).expect("complete")
    }

    #[test]
    fn a_train_that_lost_much_and_took_a_short_time_is_doubtful() {
        // Bytes that arrived after the first of 12 datagrams, and the time in milliseconds in which they arrived.
        for (bytes, millis, is_doubtful) in
            [(12_738, 4, false), (9_264, 4, true), (9_264, 120, false)]
        {
            let mut sender = TrainSender::default();
            let now = Instant::from_millis(1);
            sender.on_up(now);
            let train = sender
                .next(now)
                .map(|packet| packet.train)
                .expect("a packet");
            while sender.next(now).is_some() {}
            let result = Dispersion {
                train,
                bytes,
                time_us: millis * 1_000,
                longest_gap_us: 0,
            };
            let guess = sender.on_result(now, &result);
            assert_eq!(
                guess.map(|guess| guess.is_doubtful),
                Some(is_doubtful),
                "{bytes}, {millis} ms"
            );
        }
    }

    #[test]
    fn a_refused_train_is_not_measured_from_its_middle() {
        let (mut receiver, now) = (TrainReceiver::default(), Instant::from_millis(1));
        let mut asked = 0;
        for place in 0..12 {
            receiver.on_arrival(now, packet(place, 12), 1_158, || {
                asked += 1;
                place > 0
            });
        }
        assert_eq!((asked, receiver.due()), (1, None));
        // A later train with the same number belongs to a new link.
        let mut later = TrainReceiver::default();
        later.on_arrival(now, packet(0, 12), 1_158, || false);
        let new_link = now + Duration::from_secs(3);
        later.on_arrival(new_link, packet(0, 12), 1_158, || true);
        assert!(later.due().is_some());
        // The next train is another question.
        for place in 0..12 {
            let next = TrainPacket {
                train: 1,
                ..packet(place, 12)
            };
            receiver.on_arrival(now, next, 1_158, || {
                asked += 1;
                true
            });
        }
        assert_eq!(asked, 2);
        assert!(receiver.take_result(now).is_some());
    }

    #[test]
    fn a_slow_path_is_known_after_one_train_and_a_fast_one_after_three() {
        for (mbps, trains) in [(1, 1), (10, 2), (100, 3), (200, 4)] {
            let (mut sender, mut receiver) = (TrainSender::default(), TrainReceiver::default());
            let mut now = Instant::from_millis(1);
            sender.on_up(now);
            let mut last = None;
            let mut count = 0;
            while sender.due().is_some() {
                let result = ride(&mut sender, &mut receiver, now, mbps);
                now += Duration::from_millis(100);
                last = sender.on_result(now, &result);
                count += 1;
                assert_eq!(sender.on_result(now, &result), None, "told twice");
            }
            assert_eq!(count, trains, "{mbps} Mbit/s");
            let guess = last.expect("a guess");
            assert!(guess.is_sure);
            let error = guess.rate.as_bps().abs_diff(mbps * 1_000_000);
            assert!(error < mbps * 20_000, "{guess:?} of {mbps} Mbit/s");
            sender.on_up(now + Duration::from_secs(5));
            assert_eq!(sender.due(), None, "not so soon");
            sender.on_up(now + Duration::from_secs(1_000));
            assert!(sender.due().is_some());
        }
    }

    #[test]
    fn a_skipped_train_is_not_due_again_when_the_path_comes_up_again_soon() {
        let mut sender = TrainSender::default();
        let now = Instant::from_millis(1);
        sender.on_up(now);
        sender.skip();
        assert_eq!((sender.due(), sender.next(now)), (None, None));
        sender.on_up(now + Duration::from_secs(5));
        assert_eq!(sender.due(), None);
        sender.on_up(now + Duration::from_secs(1_000));
        assert!(sender.due().is_some());
        // A path that may not carry trains, for example because its link is not described yet, starts them later.
        sender.cancel();
        sender.on_up(now + Duration::from_secs(1_001));
        assert!(sender.due().is_some());
    }

    #[test]
    fn a_first_train_that_came_in_lumps_confirms_nothing() {
        // Durations of the trains, and the longest gap in each of them.
        for (times_ms, gap_ms, is_sure) in [
            ([10, 40].as_slice(), 2, true),
            (&[10, 40], 4, false),
            (&[10, 40, 45], 12, true),
            (&[110], 45, false),
        ] {
            let mut sender = TrainSender::default();
            let now = Instant::from_millis(1);
            sender.on_up(now);
            let mut guess = None;
            for (train, time_ms) in (1..).zip(times_ms) {
                while sender.next(now).is_some() {}
                let result = Dispersion {
                    train,
                    bytes: 1_000 * time_ms.min(&40),
                    time_us: 1_000 * time_ms,
                    longest_gap_us: 1_000 * gap_ms,
                };
                guess = sender.on_result(now, &result);
            }
            let was_sure = guess.map(|guess| guess.is_sure);
            assert_eq!(was_sure, Some(is_sure), "{times_ms:?}, {gap_ms} ms");
        }
    }

    #[test]
    fn trains_that_overflow_a_short_queue_alike_and_come_in_steadily_tell_the_rate() {
        // Duration of the train of 12 datagrams; bytes, duration and longest gap of the train of 48.
        for (first_us, second, is_sure) in [
            (6_369, (16_212, 8_106, 579), true),
            (6_369, (16_212, 8_106, 4_000), false),
            (3_000, (16_212, 8_106, 579), false),
            (6_369, (3_474, 1_737, 579), false),
        ] {
            let mut sender = TrainSender::default();
            let now = Instant::from_millis(1);
            sender.on_up(now);
            let mut guess = None;
            for (train, (bytes, time_us, longest_gap_us)) in
                (1..).zip([(12_738, first_us, 579), second])
            {
                while sender.next(now).is_some() {}
                let result = Dispersion {
                    train,
                    bytes,
                    time_us,
                    longest_gap_us,
                };
                guess = sender.on_result(now, &result);
            }
            let was_sure = guess.map(|guess| guess.is_sure);
            assert_eq!(was_sure, Some(is_sure), "{first_us} us, {second:?}");
        }
    }

    #[test]
    fn what_took_no_time_is_no_certainty() {
        let mut sender = TrainSender::default();
        sender.on_up(Instant::from_millis(1));
        let mut guess = None;
        for train in 1..=4 {
            while sender.next(Instant::from_millis(1)).is_some() {}
            let result = Dispersion {
                train,
                bytes: 111_000,
                time_us: 888,
                longest_gap_us: 0,
            };
            guess = sender.on_result(Instant::from_millis(1), &result);
        }
        let guess = guess.expect("a guess");
        assert!(!guess.is_sure);
        assert_eq!(
            guess.rate,
            Bitrate::from_mbps(888),
            "over a millisecond at least"
        );
    }

    #[test]
    fn what_jitter_held_back_of_the_head_does_not_count() {
        // 20 Mbit/s, and a delay of 30 ms that every datagram after the head has in full. In the second run, the last
        // datagrams of head and train arrive in swapped order.
        let step = Bytes::new(1_158) / Bitrate::from_mbps(20);
        for is_changed in [false, true] {
            let mut order: Vec<u16> = (0..48).collect();
            if is_changed {
                order.swap(11, 12);
                order.swap(46, 47);
            }
            let mut receiver = TrainReceiver::default();
            for (i, place) in (0_u32..).zip(order) {
                let wait = if i < 6 { i * 5 } else { 30 };
                let at = Instant::from_millis(wait.into()) + step * i;
                receiver.on_arrival(at, packet(place, 48), 1_158, || true);
                if receiver.due() == Some(at) {
                    break;
                }
            }
            let result = receiver.take_result(Instant::from_millis(200));
            let result = result.expect("complete");
            assert_eq!(result.bytes, (47 - u32::from(is_changed)) * 1_158);
            let time = Duration::from_micros(result.time_us.into());
            let rate = Bitrate::from_transfer(Bytes::new(result.bytes.into()), time);
            let error = rate.map(|rate| rate.as_bps().abs_diff(20_000_000));
            assert!(error.is_some_and(|error| error < 200_000), "{result:?}");
        }
    }

    #[test]
    fn what_came_in_one_lump_behind_the_head_tells_no_rate() {
        let mut receiver = TrainReceiver::default();
        for place in 0..48 {
            let at = Instant::from_millis(place.min(12).into());
            receiver.on_arrival(at, packet(place, 48), 1_000, || true);
        }
        let result = receiver.take_result(Instant::from_millis(12));
        assert_eq!(result.map(|result| result.time_us), Some(12_000));
    }

    #[test]
    fn of_a_train_that_overflowed_a_short_queue_the_head_counts() {
        let mut receiver = TrainReceiver::default();
        for place in (0..10).chain([30, 47]) {
            receiver.on_arrival(
                Instant::from_millis(place.into()),
                packet(place, 48),
                1_000,
                || true,
            );
        }
        let result = receiver.take_result(Instant::from_millis(100));
        let expected = Dispersion {
            train: 0,
            bytes: 11_000,
            time_us: 47_000,
            longest_gap_us: 21_000,
        };
        assert_eq!(result, Some(expected));
    }

    #[test]
    fn a_train_that_lost_its_end_is_told_after_a_while() {
        let mut receiver = TrainReceiver::default();
        for place in 0..5 {
            receiver.on_arrival(
                Instant::from_millis(place.into()),
                packet(place, 12),
                1_000,
                || true,
            );
        }
        assert_eq!(receiver.take_result(Instant::from_millis(50)), None);
        assert_eq!(receiver.due(), Some(Instant::from_millis(54)));
        let result = receiver.take_result(Instant::from_millis(54));
        let expected = Dispersion {
            train: 0,
            bytes: 4_000,
            time_us: 4_000,
            longest_gap_us: 1_000,
        };
        assert_eq!(result, Some(expected));
        assert_eq!(receiver.due(), None);
    }
}
