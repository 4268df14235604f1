//! Packet trains: a first guess at what a path carries, before anything was carried.
//!
//! A path that begins to work is sent `TRAINS` trains of `CARS` full datagrams, `EVERY` apart. Their bottleneck
//! spreads each train out; the bytes behind its first datagram, over the time they took to arrive, are what it carries
//! (packet dispersion; Keshav 1991; Dovrolis, Ramanathan and Moore 2001). Cross traffic and jitter make single trains
//! wrong either way, and a guess that is too high costs more than one that is too low: the least counts, and three
//! quarters of it is where the search for the path's rate begins ([`super::rate_control`]).
//!
//! Cost: 42 kB per path and direction when the path comes up, at most once in five minutes.

use core::time::Duration;

use crate::{
    time::Instant,
    units::{Bitrate, Bytes},
};

/// The sending side.
#[derive(Debug, Default)]
pub struct TrainSender {
    /// When the next train is due, and its number.
    due: Option<Instant>,
    number: u8,
    /// Datagrams of it that are sent.
    sent: u8,
    left: u8,
    began_at: Option<Instant>,
    /// Numbers of the trains not answered.
    awaited: [Option<u8>; TRAINS as usize],
    least: Option<Bitrate>,
}

impl TrainSender {
    /// The path works (again).
    pub fn on_up(&mut self, now: Instant) {
        if self.began_at.is_none_or(|at| now.since(at) > AGAIN) {
            self.began_at = Some(now);
            self.due = Some(now);
            self.left = TRAINS;
            self.sent = 0;
            self.least = None;
            let first = self.number;
            for (awaited, after) in self.awaited.iter_mut().zip(0..) {
                *awaited = Some(first.wrapping_add(after));
            }
        }
    }

    /// The path may carry none after all; when it may, it begins anew.
    pub fn cancel(&mut self) {
        self.due = None;
        self.began_at = None;
        self.awaited = [None; TRAINS as usize];
    }

    /// When datagrams are to be sent.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The next datagram to send now: the train's number and the datagram's place in it.
    pub fn next(&mut self, now: Instant) -> Option<(u8, u8)> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let car = (self.number, self.sent);
        self.sent += 1;
        if self.sent == CARS {
            self.sent = 0;
            self.number = self.number.wrapping_add(1);
            self.left -= 1;
            self.due = (self.left > 0).then(|| now + EVERY);
        }
        Some(car)
    }

    /// Takes what the other end says of the train `number`: `bytes` came in `micros` behind its first datagram. The rate
    /// to begin with, once all trains have been answered for.
    pub fn on_result(&mut self, number: u8, bytes: u32, micros: u32) -> Option<Bitrate> {
        let awaited = self
            .awaited
            .iter_mut()
            .find(|awaited| **awaited == Some(number))?;
        *awaited = None;
        let time = Duration::from_micros(micros.into()).max(LEAST_TIME);
        let rate = Bitrate::from_transfer(Bytes::new(bytes.into()), time)?;
        let least = self.least.map_or(rate, |least| least.min(rate));
        self.least = Some(least);
        let is_last = self.awaited.iter().all(Option::is_none);
        is_last.then(|| least.scale(3, 4))
    }
}

/// The receiving side.
#[derive(Debug, Default)]
pub struct TrainReceiver {
    train: Option<Train>,
}

#[derive(Clone, Copy, Debug)]
struct Train {
    number: u8,
    first_at: Instant,
    last_at: Instant,
    /// Behind the first.
    bytes: u32,
    is_complete: bool,
}

impl TrainReceiver {
    /// Takes note of the datagram at place `car` of train `number`, `len` bytes long.
    pub fn on_arrival(&mut self, now: Instant, number: u8, car: u8, len: u32) {
        match &mut self.train {
            Some(train) if train.number == number => {
                train.bytes = train.bytes.saturating_add(len);
                train.last_at = now;
                train.is_complete |= car >= CARS - 1;
            }
            train => {
                *train = Some(Train {
                    number,
                    first_at: now,
                    last_at: now,
                    bytes: 0,
                    is_complete: false,
                });
            }
        }
    }

    /// When the result is to be told.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let train = self.train?;
        Some(if train.is_complete {
            train.last_at
        } else {
            train.last_at + PATIENCE
        })
    }

    /// The result that is due: the train's number, the bytes behind its first datagram, and the microseconds they took.
    pub fn take_result(&mut self, now: Instant) -> Option<(u8, u32, u32)> {
        self.due().filter(|due| *due <= now)?;
        let train = self.train.take()?;
        let micros = train.last_at.since(train.first_at).as_micros();
        let micros = u32::try_from(micros).unwrap_or(u32::MAX);
        (train.bytes > 0).then_some((train.number, train.bytes, micros))
    }
}

/// Trains of one guess.
const TRAINS: u8 = 3;
/// Datagrams of a train.
const CARS: u8 = 12;
const EVERY: Duration = Duration::from_millis(100);
const AGAIN: Duration = Duration::from_secs(300);
/// What a train took at least: clocks, wake-ups and radio lumps are that coarse. So no guess is above 76 Mbit/s.
const LEAST_TIME: Duration = Duration::from_millis(1);
/// How long the rest of a train is waited for.
const PATIENCE: Duration = Duration::from_millis(50);
/// Length of the body of a train's control datagram.
pub const CAR_BYTES: usize = 1_100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_three_trains_is_where_a_search_begins() {
        let (mut sender, mut receiver) = (TrainSender::default(), TrainReceiver::default());
        sender.on_up(Instant::from_millis(1));
        let mut guess = None;
        // A car each 200 µs, 300 µs and 100 µs: 46, 31 and 93 Mbit/s.
        for (train, spacing) in [200, 300, 100].into_iter().enumerate() {
            assert_eq!(guess, None);
            let mut now = Instant::from_millis(1 + 100 * train as u64);
            assert_eq!(sender.due(), Some(now));
            while let Some((number, car)) = sender.next(now) {
                let at = now + Duration::from_micros(spacing * u64::from(car));
                receiver.on_arrival(at, number, car, 1_150);
            }
            now += Duration::from_millis(50);
            let (number, bytes, micros) = receiver.take_result(now).expect("complete");
            assert_eq!(micros, 11 * u32::try_from(spacing).expect("small"));
            guess = sender.on_result(number, bytes, micros);
            assert_eq!(sender.on_result(number, bytes, micros), None, "told twice");
        }
        let guess = guess.expect("three").as_bps();
        assert!((22_000_000..24_000_000).contains(&guess), "{guess}");
        assert_eq!(sender.due(), None);
        sender.on_up(Instant::from_millis(5_000));
        assert_eq!(sender.due(), None, "not so soon");
        sender.on_up(Instant::from_millis(400_000));
        assert!(sender.due().is_some());
    }

    #[test]
    fn a_train_that_lost_its_end_is_told_after_a_while() {
        let mut receiver = TrainReceiver::default();
        for car in 0..5 {
            receiver.on_arrival(
                Instant::from_millis(car),
                0,
                u8::try_from(car).expect("small"),
                1_000,
            );
        }
        assert_eq!(receiver.take_result(Instant::from_millis(50)), None);
        assert_eq!(receiver.due(), Some(Instant::from_millis(54)));
        let result = receiver.take_result(Instant::from_millis(54));
        assert_eq!(result, Some((0, 4_000, 4_000)));
        assert_eq!(receiver.due(), None);
    }
}
