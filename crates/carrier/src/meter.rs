//! Detects throttled UDP: loss is high in two consecutive windows, although the rate is low.
//!
//! Incoming loss is computed from the numbers of received datagrams before they are authenticated: a forged number can
//! at most cause a trial of TCP. Outgoing loss is the engine's estimate.

use std::time::Duration;

use pleach_core::{time::Instant, wire::header::Header};

/// Measures the traffic in both directions of one link.
#[derive(Clone, Debug)]
pub struct Meter {
    ends_at: Instant,
    /// First and highest number in the window.
    numbers: Option<(u32, u32)>,
    datagrams: u32,
    bytes: u64,
    sent_bytes: u64,
    /// Bytes in the latest windows, the newest first, sum of both directions.
    latest: [u64; 6],
    bad_windows: u32,
}

impl Meter {
    /// Creates a meter without traffic.
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

    /// Records a datagram that arrived over the link.
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
            // After a change of keys the numbers restart.
            self.numbers = Some((number, number));
            self.datagrams = 1;
        }
    }

    /// Returns the end of the window.
    #[must_use]
    pub fn ends_at(&self) -> Instant {
        self.ends_at
    }

    /// Ends the window. `sent_bytes` is the data sent over the link so far, `sent_loss_ppm` its recent loss. Returns
    /// whether UDP is throttled.
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
        // The next window expects the next number, whether or not it arrives.
        self.numbers = self
            .numbers
            .map(|(_, highest)| (highest.wrapping_add(1), highest));
        (self.datagrams, self.bytes) = (0, 0);
        self.bad_windows >= BAD_WINDOWS
    }

    /// Returns the highest number of bytes in one of the latest `windows`, at most 6.
    #[must_use]
    pub fn best(&self, windows: usize) -> u64 {
        self.latest.iter().take(windows).copied().max().unwrap_or(0)
    }
}

/// Length of a window.
const WINDOW: Duration = Duration::from_millis(500);
/// Number of consecutive windows with high loss and low rate after which UDP counts as throttled.
const BAD_WINDOWS: u32 = 2;
/// Smallest number of datagrams in a window from which loss is computed.
const LEAST_DATAGRAMS: u32 = 30;
/// Smallest number of sent bytes in a window for which loss is considered.
const LEAST_BYTES: u64 = 30_000;
/// Loss from which a window is bad, above the loss of any intact line.
const LEAST_LOSS_PPM: u32 = 100_000;
/// Highest number of bytes that a throttled link carries in a window: 3 Mbit/s.
const MOST_BYTES: u64 = 187_500;
/// Highest number of consecutive lost datagrams. A larger step, forward or backward, counts as a restart of the numbers.
const MOST_AHEAD: u32 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a data datagram of 1000 bytes. Its number is at bytes 6 to 9.
    fn datagram(number: u32) -> Vec<u8> {
        let mut datagram = vec![0; 1000];
        // Kind of data datagrams.
        datagram[0] = 4;
        datagram[6..10].copy_from_slice(&number.to_be_bytes());
        datagram
    }

    /// Whether windows of `count` datagrams, of which one in `every` arrives, count as throttled.
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
