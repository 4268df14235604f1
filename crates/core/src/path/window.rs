//! A windowed minimum in constant memory.
//!
//! The window is divided into three buckets, each of which stores its smallest value; the oldest bucket is dropped as
//! a whole. A value is therefore forgotten between two thirds of the window and one window after it was inserted.
//! Time advances only when a value is inserted: without new values the last minimum stays. For a maximum use
//! [`Reverse`](core::cmp::Reverse).

use core::time::Duration;

use crate::time::Instant;

/// The smallest of the values of the last `window`.
#[derive(Clone, Debug)]
pub(crate) struct WindowedMin<T> {
    bucket: Duration,
    started_at: Instant,
    /// Minima of the buckets, newest first.
    minima: [Option<T>; 3],
}

impl<T: Copy + Ord> WindowedMin<T> {
    /// Creates an empty filter that forgets values after `window`.
    pub(crate) const fn new(window: Duration) -> Self {
        Self {
            bucket: match window.checked_div(3) {
                Some(third) => third,
                None => window,
            },
            started_at: Instant::ZERO,
            minima: [None; 3],
        }
    }

    /// Inserts one value.
    pub(crate) fn insert(&mut self, now: Instant, value: T) {
        if now.since(self.started_at) >= self.bucket * 3 {
            self.minima = [None; 3];
            self.started_at = now;
        }
        while now.since(self.started_at) >= self.bucket {
            self.minima = [None, self.minima[0], self.minima[1]];
            self.started_at += self.bucket;
        }
        self.minima[0] = Some(self.minima[0].map_or(value, |min| min.min(value)));
    }

    /// The smallest value; `None` before the first value.
    pub(crate) fn min(&self) -> Option<T> {
        self.minima.iter().flatten().copied().min()
    }
}

/// Window of the minima of delay and loss: BBR's `MinRTTFilterLen` (draft-ietf-ccwg-bbr section 2.13.1).
pub(crate) const MIN_WINDOW: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const WINDOW: Duration = Duration::from_secs(9);

    #[test]
    fn forgets_after_two_thirds_to_three_thirds_of_the_window() {
        let mut filter = WindowedMin::new(WINDOW);
        let mut rng = Rng::new(11);
        let mut seen: Vec<(Instant, u64)> = Vec::new();
        let mut now = Instant::ZERO;
        for _ in 0..5_000 {
            now += Duration::from_millis(rng.below(200));
            let value = rng.below(1_000_000);
            filter.insert(now, value);
            seen.push((now, value));
            let min_since = |age: Duration| {
                let recent = seen.iter().filter(|(at, _)| now.since(*at) < age);
                recent.map(|(_, value)| *value).min()
            };
            let min = filter.min();
            assert!(min <= min_since(WINDOW * 2 / 3) && min >= min_since(WINDOW));
        }
    }

    #[test]
    fn keeps_the_last_known_minimum_while_nothing_comes() {
        let mut filter = WindowedMin::new(WINDOW);
        assert_eq!(filter.min(), None);
        filter.insert(Instant::from_millis(5), 7);
        assert_eq!(filter.min(), Some(7));
        filter.insert(Instant::from_millis(60_000), 9);
        assert_eq!(filter.min(), Some(9));
    }
}
