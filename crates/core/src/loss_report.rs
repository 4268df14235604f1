//! Reports of losses per path, for policies whose control loop uses losses ("Multipath bonding at Layer 3", ANRW
//! 2016, section 3).
//!
//! The receiver ([`LossWatch`]) checks the sequence numbers of each path. If a number is skipped and its datagram does
//! not arrive within the loss timeout `T_lto`, the datagram counts as lost, even if it arrives later. Every `T_report`
//! the receiver reports totals per path and the number of the interval. So a lost report does no harm, and the sender
//! knows how much time without loss has passed, even if the network delays reports. Reports stop when no data have
//! arrived for [`IDLE`]; the first report after that covers the intervals in between.
//!
//! The length of a lost datagram is unknown. It counts as the mean of the two datagrams around the gap.
//!
//! The sender ([`LossLedger`]) computes the differences between two reports, and adds the number of packets that it
//! sent between them. Packets in flight on a path when it fell silent were retransmitted on another path. Their loss
//! does not show that the path is saturated, so these losses are not counted.
//!
//! Bounds: [`MAX_GAPS`] gaps per path; if there are more, the oldest counts as lost at once.

use core::time::Duration;
use std::collections::VecDeque;

use crate::{
    ids::{PathId, Seq},
    sched::LossCounts,
    time::{Instant, saturating_nanos},
    wire::control::LossReport,
};

/// Maximum number of gaps per path for which the receiver waits.
pub const MAX_GAPS: usize = 1024;
/// Time without data after which reports stop.
pub const IDLE: Duration = Duration::from_secs(30);

/// The receiving side: detects missing datagrams.
#[derive(Debug)]
pub struct LossWatch {
    interval: Duration,
    timeout: Duration,
    /// When the next interval ends.
    due: Instant,
    /// Number of intervals that have ended.
    passed: u32,
    last_arrival_at: Option<Instant>,
    paths: [PathWatch; PathId::MAX],
}

#[derive(Debug, Default)]
struct PathWatch {
    highest: Option<Seq>,
    /// The gaps, oldest first; no gap is empty, and gaps do not overlap.
    gaps: VecDeque<Gap>,
    totals: LossReport,
    /// Length of the last datagram that arrived.
    last_len: u64,
}

/// A run of missing datagrams.
#[derive(Clone, Copy, Debug)]
struct Gap {
    first: Seq,
    count: u32,
    /// Estimated length of each missing datagram.
    len: u64,
    seen_at: Instant,
}

impl LossWatch {
    /// Starts counting. `interval`: time between two reports. `timeout`: time after which a missing datagram is lost.
    #[must_use]
    pub fn new(now: Instant, interval: Duration, timeout: Duration) -> Self {
        Self {
            interval: interval.max(LEAST_INTERVAL),
            timeout,
            due: now + interval.max(LEAST_INTERVAL),
            passed: 0,
            last_arrival_at: None,
            paths: core::array::from_fn(|_| PathWatch::default()),
        }
    }

    /// Continues with other values of interval and timeout.
    pub fn set_times(&mut self, now: Instant, interval: Duration, timeout: Duration) {
        self.interval = interval.max(LEAST_INTERVAL);
        self.timeout = timeout;
        self.due = now + self.interval;
    }

    /// Counts a data datagram of `len` bytes.
    pub fn on_arrival(&mut self, now: Instant, path: PathId, seq: Seq, len: usize) {
        self.last_arrival_at = Some(now);
        if let Some(path) = self.paths.get_mut(path.index()) {
            path.on_arrival(now, seq, len);
        }
    }

    /// When [`Self::take`] is due; `None` while there is nothing to report.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let last = self.last_arrival_at?;
        (self.due.since(last) < IDLE + self.interval).then_some(self.due)
    }

    /// Passes the reports of all paths on which data have arrived to `report`, if the reports are due. The reports then
    /// count as sent.
    pub fn take(&mut self, now: Instant, mut report: impl FnMut(PathId, &LossReport)) {
        if self.due > now {
            return;
        }
        let late = saturating_nanos(now.since(self.due)) / saturating_nanos(self.interval).max(1);
        let late = u32::try_from(late).unwrap_or(u32::MAX - 1);
        self.passed = self.passed.wrapping_add(late.saturating_add(1));
        self.due += self.interval * late + self.interval;
        for (id, path) in (0..).map(PathId).zip(&mut self.paths) {
            if path.highest.is_some() {
                path.expire(now, self.timeout);
                path.totals.interval = self.passed;
                report(id, &path.totals);
            }
        }
    }
}

impl PathWatch {
    fn on_arrival(&mut self, now: Instant, seq: Seq, len: usize) {
        self.totals.received_pkts += 1;
        let len = len as u64;
        self.totals.received_bytes += len;
        let last_len = core::mem::replace(&mut self.last_len, len);
        let Some(highest) = self.highest else {
            self.highest = Some(seq);
            self.totals.highest_seq = seq;
            return;
        };
        if !seq.is_after(highest) {
            return self.fill(seq);
        }
        self.highest = Some(seq);
        self.totals.highest_seq = seq;
        let count = seq.distance_from(highest).unsigned_abs() - 1;
        if count > 0 {
            if self.gaps.len() == MAX_GAPS {
                self.lose_oldest();
            }
            self.gaps.push_back(Gap {
                first: highest.plus(1),
                count,
                len: last_len.midpoint(len),
                seen_at: now,
            });
        }
    }

    /// Removes `seq` from its gap, if that gap is still open.
    fn fill(&mut self, seq: Seq) {
        let after = self.gaps.partition_point(|gap| !gap.first.is_after(seq));
        let Some(at) = after.checked_sub(1) else {
            return;
        };
        let gap = self.gaps[at];
        let before = seq.distance_from(gap.first).unsigned_abs();
        if before >= gap.count {
            return;
        }
        let behind = Gap {
            first: seq.plus(1),
            count: gap.count - before - 1,
            ..gap
        };
        match (before, behind.count) {
            (0, 0) => {
                self.gaps.remove(at);
            }
            (0, _) => self.gaps[at] = behind,
            (_, 0) => self.gaps[at].count = before,
            _ => {
                self.gaps[at].count = before;
                self.gaps.insert(after, behind);
            }
        }
        if self.gaps.len() > MAX_GAPS {
            self.lose_oldest();
        }
    }

    /// Counts datagrams as lost that have been missing for `timeout`.
    fn expire(&mut self, now: Instant, timeout: Duration) {
        while let Some(gap) = self.gaps.front()
            && now.since(gap.seen_at) >= timeout
        {
            self.lose_oldest();
        }
    }

    fn lose_oldest(&mut self) {
        let Some(gap) = self.gaps.pop_front() else {
            return;
        };
        let count = u64::from(gap.count);
        let totals = &mut self.totals;
        totals.lost_pkts = totals.lost_pkts.saturating_add(count);
        let bytes = count.saturating_mul(gap.len);
        totals.lost_bytes = totals.lost_bytes.saturating_add(bytes);
    }
}

/// The sending side: losses since the previous report.
#[derive(Debug)]
pub struct LossLedger {
    paths: [Option<Entry>; PathId::MAX],
    outages: [Option<Outage>; PathId::MAX],
    /// Number of intervals in which losses of an outage may be reported, once the path delivers again.
    outage_intervals: u32,
}

/// The datagrams in flight on a path when it fell silent.
#[derive(Clone, Copy, Debug)]
struct Outage {
    /// Number of datagrams that were in flight and are not reported as lost yet.
    pkts: u64,
    /// The first number sent after the outage.
    next: Seq,
    /// The interval in which `next` or a later number was first reported.
    over_in: Option<u32>,
}

/// The last report, and the totals of packets and bytes sent at that time.
#[derive(Clone, Copy, Debug)]
struct Entry {
    report: LossReport,
    sent: (u64, u64),
}

impl LossLedger {
    /// Creates a ledger without reports. `interval`, `timeout`: the values requested from the other end.
    #[must_use]
    pub fn new(interval: Duration, timeout: Duration) -> Self {
        let intervals = saturating_nanos(timeout) / saturating_nanos(interval).max(1);
        Self {
            paths: [None; PathId::MAX],
            outages: [None; PathId::MAX],
            outage_intervals: u32::try_from(intervals)
                .unwrap_or(u32::MAX)
                .saturating_add(1),
        }
    }

    /// Records that the path fell silent with `pkts` data datagrams in flight; the next datagram will have the number
    /// `next`.
    pub fn on_outage(&mut self, path: PathId, pkts: u64, next: Seq) {
        if let Some(outage) = self.outages.get_mut(path.index()) {
            let before = outage.map_or(0, |outage| outage.pkts);
            *outage = Some(Outage {
                pkts: before + pkts,
                next,
                over_in: None,
            });
        }
    }

    /// Processes a report on `path`. `sent_pkts`, `sent_bytes`: totals sent on the path so far. `None` if the report
    /// is not newer than the last one.
    pub fn on_report(
        &mut self,
        path: PathId,
        report: &LossReport,
        sent_pkts: u64,
        sent_bytes: u64,
    ) -> Option<LossCounts> {
        let slot = self.paths.get_mut(path.index())?;
        let sent = (sent_pkts, sent_bytes);
        let (last, before) = match slot {
            Some(entry) => (entry.report, entry.sent),
            None => (
                LossReport {
                    interval: report.interval.wrapping_sub(1),
                    ..LossReport::default()
                },
                (0, 0),
            ),
        };
        let intervals = Seq(report.interval).distance_from(Seq(last.interval));
        let intervals = u32::try_from(intervals).ok().filter(|new| *new > 0)?;
        *slot = Some(Entry {
            report: *report,
            sent,
        });
        let mut counts = LossCounts {
            intervals,
            lost_pkts: report.lost_pkts.saturating_sub(last.lost_pkts),
            lost_bytes: report.lost_bytes.saturating_sub(last.lost_bytes),
            sent_pkts: sent.0.saturating_sub(before.0),
            sent_bytes: sent.1.saturating_sub(before.1),
        };
        self.pass_over_outage(path, report, &mut counts);
        Some(counts)
    }

    /// Subtracts the losses of an outage from `counts`.
    fn pass_over_outage(&mut self, path: PathId, report: &LossReport, counts: &mut LossCounts) {
        let Some(slot) = self.outages.get_mut(path.index()) else {
            return;
        };
        let Some(outage) = slot else {
            return;
        };
        let passed = counts.lost_pkts.min(outage.pkts);
        outage.pkts -= passed;
        if passed > 0 {
            let bytes = u128::from(counts.lost_bytes) * u128::from(passed);
            let bytes = bytes / u128::from(counts.lost_pkts);
            counts.lost_bytes -= u64::try_from(bytes).unwrap_or(u64::MAX);
            counts.lost_pkts -= passed;
        }
        if outage.next.is_after(report.highest_seq) {
            return;
        }
        let over_in = *outage.over_in.get_or_insert(report.interval);
        if outage.pkts == 0 || report.interval.wrapping_sub(over_in) > self.outage_intervals {
            *slot = None;
        }
    }
}

const LEAST_INTERVAL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;
    const T: Duration = Duration::from_millis(50);
    const PATH: PathId = PathId(2);

    fn watch() -> LossWatch {
        LossWatch::new(Instant::ZERO, T, T)
    }

    fn arrive(watch: &mut LossWatch, at: u64, seqs: impl IntoIterator<Item = u32>) {
        for seq in seqs {
            watch.on_arrival(MS(at), PATH, Seq(seq), 1000);
        }
    }

    fn take(watch: &mut LossWatch, at: u64) -> Option<LossReport> {
        let mut reports = Vec::new();
        watch.take(MS(at), |path, report| reports.push((path, *report)));
        assert!(reports.len() <= 1 && reports.iter().all(|(path, _)| *path == PATH));
        reports.pop().map(|(_, report)| report)
    }

    #[test]
    fn what_is_missing_for_the_timeout_is_lost_and_what_comes_in_time_is_not() {
        let mut watch = watch();
        assert_eq!(watch.due(), None);
        arrive(&mut watch, 0, [10, 11, 15, 16, 20]);
        arrive(&mut watch, 40, [13, 19]);
        assert_eq!(watch.due(), Some(MS(50)));
        let report = take(&mut watch, 49);
        assert_eq!(report, None, "not due");
        let report = take(&mut watch, 50).expect("due");
        // Numbers 12, 14, 17 and 18 are missing.
        assert_eq!((report.interval, report.lost_pkts), (1, 4));
        assert_eq!((report.lost_bytes, report.received_pkts), (4000, 7));
        assert_eq!((report.received_bytes, report.highest_seq), (7000, Seq(20)));
        // A datagram that arrives after its timeout stays lost.
        arrive(&mut watch, 60, [17]);
        let report = take(&mut watch, 100).expect("due");
        assert_eq!((report.interval, report.lost_pkts), (2, 4));
    }

    #[test]
    fn a_gap_younger_than_the_timeout_is_left_to_the_next_report() {
        let mut watch = watch();
        arrive(&mut watch, 0, [0]);
        arrive(&mut watch, 1, [2]);
        assert_eq!(take(&mut watch, 50).expect("due").lost_pkts, 0);
        assert_eq!(take(&mut watch, 100).expect("due").lost_pkts, 1);
    }

    #[test]
    fn numbers_wrap() {
        let mut watch = watch();
        arrive(&mut watch, 0, [u32::MAX - 1, 2, u32::MAX]);
        let report = take(&mut watch, 50).expect("due");
        assert_eq!((report.lost_pkts, report.highest_seq), (2, Seq(2)));
    }

    #[test]
    fn lost_packets_are_as_long_as_the_two_around_them() {
        let mut watch = watch();
        watch.on_arrival(MS(0), PATH, Seq(0), 100);
        watch.on_arrival(MS(0), PATH, Seq(3), 1200);
        watch.on_arrival(MS(0), PATH, Seq(5), 800);
        let report = take(&mut watch, 50).expect("due");
        assert_eq!((report.lost_pkts, report.lost_bytes), (3, 2 * 650 + 1000));
    }

    #[test]
    fn reports_end_when_nothing_comes_and_intervals_go_on() {
        let mut watch = watch();
        arrive(&mut watch, 10, [0]);
        let mut reports = 0;
        let mut last = MS(0);
        while let Some(due) = watch.due() {
            assert!(due > last);
            last = due;
            watch.take(due, |_, _| reports += 1);
        }
        assert!((600..=602).contains(&reports), "{reports}");
        arrive(&mut watch, 100_020, [1]);
        let due = watch.due().expect("again");
        assert!(due < MS(100_020), "overdue");
        let report = take(&mut watch, 100_020).expect("due");
        assert_eq!(report.interval, 2000);
        assert_eq!(watch.due(), Some(MS(100_050)));
    }

    #[test]
    fn gaps_are_bounded() {
        let mut watch = watch();
        let numbers = (0..5000).map(|i| i * 2);
        arrive(&mut watch, 0, numbers);
        assert_eq!(watch.paths[PATH.index()].gaps.len(), MAX_GAPS);
        arrive(&mut watch, 0, [u32::MAX / 2]);
        assert!(take(&mut watch, 50).expect("due").lost_pkts > 1 << 30);
    }

    fn report(interval: u32, lost_pkts: u64) -> LossReport {
        LossReport {
            interval,
            lost_pkts,
            lost_bytes: lost_pkts * 1000,
            ..LossReport::default()
        }
    }

    #[test]
    fn losses_of_an_outage_are_passed_over_and_later_ones_are_not() {
        let mut ledger = LossLedger::new(T, T);
        let lost = |ledger: &mut LossLedger, interval, lost, highest| {
            let report = LossReport {
                highest_seq: Seq(highest),
                ..report(interval, lost)
            };
            let counts = ledger.on_report(PATH, &report, 0, 0).expect("newer");
            assert_eq!(counts.lost_bytes, counts.lost_pkts * 1000);
            counts.lost_pkts
        };
        assert_eq!(lost(&mut ledger, 1, 5, 10), 5);
        ledger.on_outage(PATH, 30, Seq(40));
        assert_eq!(lost(&mut ledger, 2, 5, 10), 0);
        // The path returns: 28 of the 30 datagrams are missing, and two others.
        assert_eq!(lost(&mut ledger, 3, 5, 50), 0);
        assert_eq!(lost(&mut ledger, 4, 33, 60), 0);
        assert_eq!(lost(&mut ledger, 5, 37, 60), 2);
        // After a false alarm, later losses count in full.
        ledger.on_outage(PATH, 30, Seq(70));
        for interval in 6..=8 {
            assert_eq!(lost(&mut ledger, interval, 37, 80), 0);
        }
        assert_eq!(lost(&mut ledger, 9, 37, 80), 0);
        assert_eq!(lost(&mut ledger, 10, 47, 90), 10);
    }

    #[test]
    fn the_ledger_takes_differences_and_ignores_what_is_old() {
        let mut ledger = LossLedger::new(T, T);
        let counts = |intervals, lost_pkts, sent_pkts| {
            Some(LossCounts {
                intervals,
                lost_pkts,
                lost_bytes: lost_pkts * 1000,
                sent_pkts,
                sent_bytes: sent_pkts * 1000,
            })
        };
        let mut take = |interval, lost, sent: u64| {
            ledger.on_report(PATH, &report(interval, lost), sent, sent * 1000)
        };
        assert_eq!(take(7, 3, 100), counts(1, 3, 100));
        assert_eq!(take(7, 3, 120), None, "a copy");
        assert_eq!(take(6, 1, 130), None, "overtaken");
        // Report 8 was lost.
        assert_eq!(take(9, 13, 200), counts(2, 10, 100));
        assert_eq!(take(10, 0, 200), counts(1, 0, 0), "nonsense does no harm");
        assert_eq!(ledger.on_report(PathId(99), &report(1, 1), 1, 1), None);
    }
}
