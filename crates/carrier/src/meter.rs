//! Whether UDP is throttled: much is lost in both of two windows in a row, although little comes.
//!
//! The loss is counted from the numbers of the datagrams that come, before anything has authenticated them: a forged number can
//! bring about a trial of TCP, no more. The way out is judged by what the engine knows of it.

use std::time::Duration;

use pleach_core::{time::Instant, wire::header::Header};

/// What comes and goes over one link.
#[derive(Clone, Debug)]
pub struct Meter {
    ends_at: Instant,
    /// The first and the highest number of the window.
    numbers: Option<(u32, u32)>,
    datagrams: u32,
    bytes: u64,
    sent_bytes: u64,
    /// Bytes in the latest windows, the newest first, both ways together.
    latest: [u64; 6],
    bad_windows: u32,
}

impl Meter {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            ends_at: now + WINDOW,
            numbers: None,
            datagrams: 0,
            bytes: 0,
            sent_bytes: 0,
            latest: [0; 6],
            bad_windows: 0,
        }
    }

    /// A datagram has come over the link.
    pub fn on_datagram(&mut self, datagram: &[u8]) {
        let Some((header, Some(_))) = Header::parse(datagram) else {
            return;
        };
        let number = header.path_seq.0;
        self.datagrams += 1;
        self.bytes += datagram.len() as u64;
        let (first, highest) = *self.numbers.get_or_insert((number, number));
        let ahead = number.wrapping_sub(highest);
        if ahead < MOST_AHEAD {
            self.numbers = Some((first, number));
        } else if number.wrapping_neg().wrapping_add(highest) > MOST_AHEAD {
            // New keys: the numbers begin anew.
            self.numbers = Some((number, number));
            self.datagrams = 1;
        }
    }

    /// When to look at the window.
    #[must_use]
    pub fn ends_at(&self) -> Instant {
        self.ends_at
    }

    /// Ends the window. `sent_bytes`: data sent over the link so far; `sent_loss_ppm`: how much of it is lost lately. Returns whether UDP
    /// is throttled.
    pub fn end_window(&mut self, now: Instant, sent_bytes: u64, sent_loss_ppm: u32) -> bool {
        let sent = sent_bytes.saturating_sub(self.sent_bytes);
        let expected = self.numbers.map_or(0, |(first, highest)| {
            highest.wrapping_sub(first).wrapping_add(1)
        });
        let is_lossy_in = expected >= LEAST_DATAGRAMS
            && u64::from(self.datagrams) * 1_000_000
                <= u64::from(expected) * u64::from(1_000_000 - LEAST_LOSS_PPM);
        let is_lossy_out = sent >= LEAST_BYTES && sent_loss_ppm >= LEAST_LOSS_PPM;
        let is_bad =
            (is_lossy_in && self.bytes <= MOST_BYTES) || (is_lossy_out && sent <= MOST_BYTES);
        self.bad_windows = if is_bad { self.bad_windows + 1 } else { 0 };
        self.latest.rotate_right(1);
        self.latest[0] = self.bytes + sent;
        self.ends_at = now + WINDOW;
        self.sent_bytes = sent_bytes;
        // The next number is expected whether it comes or not.
        self.numbers = self
            .numbers
            .map(|(_, highest)| (highest.wrapping_add(1), highest));
        (self.datagrams, self.bytes) = (0, 0);
        self.bad_windows >= BAD_WINDOWS
    }

    /// The most that went in one of the latest `windows`, at most 6, in bytes.
    #[must_use]
    pub fn best(&self, windows: usize) -> u64 {
        self.latest.iter().take(windows).copied().max().unwrap_or(0)
    }
}

/// Length of a window.
const WINDOW: Duration = Duration::from_millis(500);
/// Windows in a row that must be bad.
const BAD_WINDOWS: u32 = 2;
/// Datagrams of a window that say something of the loss.
const LEAST_DATAGRAMS: u32 = 30;
/// The same in bytes sent.
const LEAST_BYTES: u64 = 30_000;
/// More than any line in order loses.
const LEAST_LOSS_PPM: u32 = 100_000;
/// What a throttled link carries in a window at most: 3 Mbit/s.
const MOST_BYTES: u64 = 187_500;
/// Numbers that may be lost in a row.
const MOST_AHEAD: u32 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A data datagram of 1000 bytes; its number is at bytes 6 to 9.
    fn datagram(number: u32) -> Vec<u8> {
        let mut datagram = vec![0; 1000];
        // Kind of data datagrams.
        datagram[0] = 4;
        datagram[6..10].copy_from_slice(&number.to_be_bytes());
        datagram
    }

    /// Whether windows in which one of `every` datagrams comes, `count` of them, look throttled.
    fn throttled(every: u32, count: u32, windows: u32) -> bool {
        let mut meter = Meter::new(Instant::ZERO);
        let mut number = u32::MAX - 50;
        let mut found = false;
        for _ in 0..windows {
            for _ in 0..count {
                meter.on_datagram(&datagram(number));
                number = number.wrapping_add(every);
            }
            found = meter.end_window(Instant::ZERO, 0, 0);
        }
        found
    }

    #[test]
    fn loss_at_a_low_rate_for_a_second_is_throttling() {
        assert!(throttled(2, 60, 2));
        assert!(!throttled(2, 60, 1), "a moment");
        assert!(!throttled(1, 60, 3), "no loss");
        assert!(!throttled(2, 400, 3), "not slow");
        assert!(!throttled(2, 5, 3), "hardly any traffic");
        let mut meter = Meter::new(Instant::ZERO);
        let lossy = |meter: &mut Meter, sent| meter.end_window(Instant::ZERO, sent, 200_000);
        assert!(
            !lossy(&mut meter, 50_000) && lossy(&mut meter, 100_000),
            "the way out"
        );
    }

    #[test]
    fn numbers_that_begin_anew_are_no_loss() {
        let mut meter = Meter::new(Instant::ZERO);
        for start in [1_000_000, 0, 1_000_000] {
            (start..start + 40).for_each(|number| meter.on_datagram(&datagram(number)));
            assert!(!meter.end_window(Instant::ZERO, 0, 0));
        }
        assert!(!meter.end_window(Instant::ZERO, 0, 0), "nothing came");
        assert_eq!(meter.best(6), 40_000);
    }
}
