//! Loss of a path.
//!
//! The receiver reports two running totals: the number of packets sent on the path up to the newest one that arrived,
//! which follows from its path sequence number, and the number of packets that arrived. The difference is the number
//! of packets that are lost or late. Loss is measured over windows of at least 600 packets (one standard deviation of
//! 1 % loss over 600 packets is 0.4 %). A packet that counted as lost at the end of a window and arrives later is
//! subtracted from the next window.
//!
//! The estimates are a mean over windows (weight 1/4) and the *loss floor*: the minimum over 10 s of windows of at
//! least one second. The floor is the path's own loss, such as noise on a radio link; a mean would include lasting
//! overload.

use core::time::Duration;

use super::window::{MIN_WINDOW, WindowedMin};
use crate::time::Instant;

/// Loss estimate of one direction of one path, in parts per million.
#[derive(Clone, Debug)]
pub struct Loss {
    sent: u64,
    received: u64,
    window_started_at_sent: u64,
    /// Number of packets sent until the search for the capacity ended. These packets are excluded from the windows.
    searched_until: u64,
    /// Number of losses accounted to windows so far.
    accounted: u64,
    /// Number of losses that [`Self::take_lost`] has returned.
    taken: u64,
    /// Number of losses before the first report of a receiver that sends NACKs; `None` before this report.
    untold: Option<u64>,
    /// When the current window of the loss floor began, and the totals at that time.
    floor_from: (Instant, u64, u64),
    latest_ppm: Option<u32>,
    smoothed_ppm: Option<u32>,
    floor: WindowedMin<u32>,
}

impl Default for Loss {
    fn default() -> Self {
        Self::new()
    }
}

impl Loss {
    /// Creates an estimate without samples.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sent: 0,
            received: 0,
            window_started_at_sent: 0,
            searched_until: 0,
            accounted: 0,
            taken: 0,
            untold: None,
            floor_from: (Instant::ZERO, 0, 0),
            latest_ppm: None,
            smoothed_ppm: None,
            floor: WindowedMin::new(MIN_WINDOW),
        }
    }

    /// Processes one report of the receiver's totals since the session began. `sent`: packets sent up to the newest
    /// one that arrived. `received`: packets that arrived. Reports older than the newest one are ignored.
    ///
    /// Returns the loss of the window, if a window ends with this report.
    pub fn on_report(&mut self, now: Instant, sent: u64, received: u64) -> Option<u32> {
        if sent < self.sent || received < self.received {
            return None;
        }
        self.sent = sent;
        self.received = received;
        if sent <= self.searched_until {
            self.begin_anew(now);
            return None;
        }
        let window = sent - self.window_started_at_sent;
        if window < WINDOW_PACKETS {
            return None;
        }
        let lost = self.lost().saturating_sub(self.accounted);
        self.accounted += lost;
        self.window_started_at_sent = sent;
        let loss = ppm(lost, window);
        self.latest_ppm = Some(loss);
        let smoothed = self.smoothed_ppm.unwrap_or(loss);
        self.smoothed_ppm = Some(smoothed - smoothed / 4 + loss / 4);
        if self.floor_from.0 == Instant::ZERO {
            self.floor_from.0 = now;
        }
        let (since, sent_then, accounted_then) = self.floor_from;
        if now.since(since) >= FLOOR_STEP {
            let lost = self.accounted - accounted_then;
            self.floor.insert(now, ppm(lost, sent - sent_then));
            self.floor_from = (now, sent, self.accounted);
        }
        Some(loss)
    }

    /// Processes one report of a receiver that sends NACKs. `told`: packets NACKed so far. `received`: packets that
    /// arrived so far. Packets lost before the first such report still count as lost.
    pub fn on_told(&mut self, now: Instant, told: u64, received: u64) -> Option<u32> {
        let before = *self
            .untold
            .get_or_insert(self.sent.saturating_sub(self.received));
        let sent = received.saturating_add(told).saturating_add(before);
        self.on_report(now, sent, received)
    }

    /// Number of packets sent up to the newest one that arrived.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of packets that arrived.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Number of packets lost since the last call. On a path that reorders, some packets are always late: if packets
    /// that were returned as lost arrive later, they are subtracted from new losses.
    pub fn take_lost(&mut self) -> u64 {
        let lost = self.lost().saturating_sub(self.taken);
        self.taken += lost;
        lost
    }

    /// Number of packets that have not arrived: lost or late.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// Loss of the last complete window; `None` before the first window has ended.
    #[must_use]
    pub const fn latest_ppm(&self) -> Option<u32> {
        self.latest_ppm
    }

    /// Mean loss over windows, the newest weighing 1/4; `None` before the first window has ended.
    #[must_use]
    pub const fn smoothed_ppm(&self) -> Option<u32> {
        self.smoothed_ppm
    }

    /// Excludes losses so far, and among the next `unreported` packets, from the windows and the loss floor, because
    /// they were caused by the search for the capacity, which ends now.
    pub fn on_searched(&mut self, now: Instant, unreported: u64) {
        self.searched_until = self.sent.saturating_add(unreported);
        self.floor = WindowedMin::new(MIN_WINDOW);
        self.begin_anew(now);
    }

    /// Forgets all losses so far, and excludes the next `unreported` packets, because these losses are not the path's
    /// own.
    pub fn forget(&mut self, now: Instant, unreported: u64) {
        self.on_searched(now, unreported);
        self.taken = self.lost();
        (self.latest_ppm, self.smoothed_ppm) = (None, None);
    }

    fn begin_anew(&mut self, now: Instant) {
        self.accounted = self.lost();
        self.window_started_at_sent = self.sent;
        self.floor_from = (now, self.sent, self.accounted);
    }

    /// The loss floor: the minimum over 10 s of windows of at least one second; `None` before the first such window
    /// has ended.
    #[must_use]
    pub fn floor_ppm(&self) -> Option<u32> {
        self.floor.min()
    }
}

/// `part / whole` in parts per million, at most 1 000 000.
fn ppm(part: u64, whole: u64) -> u32 {
    let share = u128::from(part) * 1_000_000 / u128::from(whole.max(1));
    u32::try_from(share.min(1_000_000)).unwrap_or(1_000_000)
}

/// Minimum number of packets in a window.
const WINDOW_PACKETS: u64 = 600;

/// Minimum duration of a window of the loss floor: a minimum over many short windows would be far below the mean.
const FLOOR_STEP: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn random_loss_is_found_by_total_mean_and_floor() {
        let mut loss = Loss::new();
        let mut rng = Rng::new(1);
        let (mut sent, mut received) = (0, 0);
        for report in 0..2_000 {
            for _ in 0..50 {
                sent += 1;
                received += u64::from(!rng.chance(0.02));
            }
            loss.on_report(Instant::from_millis(report * 10), sent, received);
        }
        assert_eq!((loss.sent(), loss.lost()), (sent, sent - received));
        let smoothed = loss.smoothed_ppm().expect("windows");
        assert!((15_000..25_000).contains(&smoothed), "{smoothed}");
        let floor = loss.floor_ppm().expect("windows");
        assert!((5_000..20_000).contains(&floor), "{floor}");
    }

    #[test]
    fn what_was_not_the_paths_fault_is_forgotten_with_what_is_under_way() {
        let mut loss = Loss::new();
        let at = |ms| Instant::from_millis(ms);
        for step in 1..=30 {
            loss.on_report(at(step * 100), step * 700, step * 350);
        }
        assert!(loss.floor_ppm() > Some(490_000));
        loss.forget(at(3_000), 100);
        assert_eq!((loss.floor_ppm(), loss.smoothed_ppm()), (None, None));
        loss.on_report(at(3_100), 21_050, 10_500);
        loss.on_report(at(3_200), 21_100, 10_500);
        for step in 1..=20 {
            let sent = step * 700;
            loss.on_report(at(3_200 + step * 100), 21_100 + sent, 10_500 + sent);
        }
        assert!(loss.floor_ppm() < Some(1_000) && loss.smoothed_ppm() == Some(0));
    }

    #[test]
    fn what_a_search_lost_is_not_what_the_path_loses() {
        let mut loss = Loss::new();
        let at = |ms| Instant::from_millis(ms);
        loss.on_report(at(500), 1_000, 800);
        // The last 300 packets of the search are in flight.
        loss.on_searched(at(500), 300);
        assert_eq!(loss.floor_ppm(), None);
        loss.on_report(at(800), 1_300, 1_000);
        let mut floors = Vec::new();
        for step in 1..=40_u64 {
            loss.on_report(at(800 + step * 100), 1_300 + step * 100, 1_000 + step * 99);
            floors.extend(loss.floor_ppm());
        }
        assert!(
            floors.len() > 10 && floors.iter().all(|floor| *floor == 10_000),
            "{floors:?}"
        );
    }

    #[test]
    fn reordering_at_window_borders_is_no_loss_in_sum() {
        // Of every 600 packets, the last five arrive after the report that ends the window.
        let mut loss = Loss::new();
        let mut windows = Vec::new();
        for window in 1..=20_u64 {
            let now = Instant::from_millis(window * 100);
            windows.extend(loss.on_report(now, window * 600, window * 600 - 5));
            loss.on_report(now, window * 600, window * 600);
        }
        assert_eq!(windows.iter().sum::<u32>(), ppm(5, 600));
        assert_eq!(loss.lost(), 0);
        assert!(loss.floor_ppm() < Some(1_000), "of one window's border");
    }

    #[test]
    fn what_is_always_late_is_taken_for_lost_once_and_what_is_lost_each_time() {
        let mut loss = Loss::new();
        let (mut sent, mut lost, mut taken) = (0, 0, 0);
        for report in 0..100_u64 {
            // At every second report five packets of 40 are late; they arrive before the next report.
            sent += 40;
            lost += u64::from(report >= 50);
            let late = if report % 2 == 0 { 5 } else { 0 };
            loss.on_report(Instant::from_millis(report * 10), sent, sent - lost - late);
            taken += loss.take_lost();
        }
        assert!((50..=55).contains(&taken), "{taken}");
    }

    #[test]
    fn what_was_lost_untold_does_not_hide_what_is_told() {
        let mut loss = Loss::new();
        for report in 1..=100_u64 {
            // Acknowledgements, of which one in a hundred is lost, without NACKs.
            loss.on_report(
                Instant::from_millis(report * 10),
                report * 1_000,
                report * 990,
            );
        }
        assert_eq!(loss.take_lost(), 1_000);
        let mut received = 99_000;
        for told in (0..=1_000).step_by(50) {
            let now = Instant::from_millis(1_000 + received / 100);
            loss.on_told(now, told, received);
            assert_eq!(loss.take_lost(), if told > 0 { 50 } else { 0 }, "{told}");
            received += 950;
        }
        assert_eq!((loss.lost(), loss.latest_ppm()), (2_000, Some(50_000)));
    }

    #[test]
    fn lasting_overload_does_not_become_floor_before_the_window_ends() {
        let mut loss = Loss::new();
        let (mut sent, mut received) = (0, 0);
        for report in 0..100_u64 {
            sent += 1_000;
            received += if report < 30 { 1_000 } else { 900 };
            loss.on_report(Instant::from_millis(report * 100), sent, received);
        }
        assert_eq!(loss.latest_ppm(), Some(100_000));
        assert_eq!(loss.floor_ppm(), Some(0));
        assert!(loss.smoothed_ppm() > Some(99_000));
    }

    #[test]
    fn small_windows_give_no_verdict() {
        let mut loss = Loss::new();
        assert_eq!(loss.on_report(Instant::ZERO, 599, 1), None);
        assert_eq!(loss.latest_ppm(), None);
        assert_eq!(loss.on_report(Instant::ZERO, 600, 540), Some(100_000));
    }

    #[test]
    fn old_and_impossible_totals_do_no_harm() {
        let mut loss = Loss::new();
        loss.on_report(Instant::ZERO, 1_000, 1_000);
        assert_eq!(loss.on_report(Instant::ZERO, 900, 900), None);
        assert_eq!((loss.sent(), loss.lost()), (1_000, 0));
        assert_eq!(loss.on_report(Instant::ZERO, 2_000, u64::MAX), Some(0));
        assert_eq!(loss.lost(), 0);
        let total_loss = loss.on_report(Instant::ZERO, u64::MAX, u64::MAX);
        assert_eq!(total_loss, Some(0));
    }
}
