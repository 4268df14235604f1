//! The receiving side of one path: arrivals, and the reports about them.
//!
//! A report is due:
//!
//! - one feedback interval after the first arrival that it would cover;
//! - after [`MAX_UNREPORTED_PKTS`] arrivals, so that the sender can free its buffers early on fast paths;
//! - at once if a datagram is considered lost ([`super::holes`]).

use core::time::Duration;

use super::{
    delay::{OneWayDelay, RelativeDelay},
    holes::Holes,
    radio,
};
use crate::{
    ids::Seq,
    time::{Instant, saturating_nanos},
    wire::control::{MissingWriter, PathReport},
};

/// The receiving side of one path.
#[derive(Debug, Default)]
pub struct Receiver {
    /// One-way delay of arrivals, plus the offset of the two ends' clocks.
    delay: OneWayDelay,
    report: PathReport,
    /// Missing datagrams, if the sender retransmits.
    holes: Holes,
    /// When the highest number arrived.
    highest_at: Option<Instant>,
    /// Minimum delay since the last report.
    min_delay: Option<RelativeDelay>,
    heard_at: Option<Instant>,
    /// Timestamp of the sender from which datagrams did not wait for the radio of the path to wake up ([`radio`]);
    /// `None` once such a datagram has arrived.
    awake_from_us: Option<u32>,
    unreported_pkts: u32,
    report_at: Option<Instant>,
    reported_at: Instant,
}

/// One data datagram that arrived.
#[derive(Clone, Copy, Debug)]
pub struct DataArrival {
    /// The datagram's number on the path.
    pub path_seq: Seq,
    /// The datagram's transmit timestamp.
    pub sent_us: u32,
    /// Length of the UDP payload in bytes.
    pub len: usize,
    /// Whether the datagram carried a congestion mark.
    pub is_congested: bool,
    /// Whether the sender stores the packet for retransmission, so that a NACK is useful
    /// ([`crate::wire::header::Header::is_kept`]).
    pub is_kept: bool,
    /// Time for which NACKs of holes before this datagram are delayed, because repair symbols may fill the holes.
    pub grace: Duration,
}

impl Receiver {
    /// Records one arrival. Returns its one-way delay.
    ///
    /// `interval`: the feedback interval.
    pub fn on_data(
        &mut self,
        now: Instant,
        arrival: &DataArrival,
        interval: Duration,
    ) -> RelativeDelay {
        let delay = RelativeDelay::from_stamps(arrival.sent_us, now.wire_micros());
        self.on_delay(now, arrival.sent_us, delay);
        self.min_delay = Some(match self.min_delay {
            Some(min) if min.micros_from(delay) <= 0 => min,
            _ => delay,
        });
        let report = &mut self.report;
        report.received_pkts = report.received_pkts.wrapping_add(1);
        report.received_bytes = report.received_bytes.wrapping_add(arrival.len as u64);
        report.congested_pkts = report
            .congested_pkts
            .wrapping_add(u32::from(arrival.is_congested));
        if self.highest_at.is_none() || arrival.path_seq.is_after(report.highest_seq) {
            report.highest_seq = arrival.path_seq;
            report.received_us = now.wire_micros();
            report.sent_us = arrival.sent_us;
            self.highest_at = Some(now);
        }
        self.holes.set_grace(arrival.grace);
        self.holes
            .on_arrival(now, arrival.path_seq, arrival.is_kept);
        self.unreported_pkts += 1;
        // If the sender stores packets for retransmission, the packets that it does not store are acknowledgements
        // and copies of packets with a deadline. A report on these is not urgent.
        let is_light = !arrival.is_kept && self.holes.is_active();
        let due = if self.unreported_pkts >= MAX_UNREPORTED_PKTS {
            now
        } else if is_light {
            let interval = (interval * 3).min(LIGHT_INTERVAL).max(interval);
            let apart = if self.unreported_pkts < LIGHT_PKTS {
                LIGHT_APART
            } else {
                Duration::ZERO
            };
            (now + interval).max(self.reported_at + apart)
        } else {
            now + interval
        };
        self.report_at = Some(self.report_at.map_or(due, |at| at.min(due)));
        delay
    }

    /// Processes a tail frame: no data datagram follows `path_seq` for now.
    pub fn on_tail(&mut self, now: Instant, path_seq: Seq) {
        self.holes.on_tail(now, path_seq);
    }

    /// Processes a control datagram, whose delay is a sample as well.
    pub fn on_control(&mut self, now: Instant, sent_us: u32) {
        let delay = RelativeDelay::from_stamps(sent_us, now.wire_micros());
        self.on_delay(now, sent_us, delay);
    }

    /// Adds the delay of a datagram that was sent at `sent_us`, unless the radio of the path may have been asleep then.
    ///
    /// The first datagram after a pause waited for the radio as long as its delay exceeds the minimum. The datagrams
    /// that were sent in this time waited too.
    fn on_delay(&mut self, now: Instant, sent_us: u32, delay: RelativeDelay) {
        let pause = self.heard_at.replace(now).map(|at| now.since(at));
        if radio::is_pause(pause) {
            let waited = self.delay.min().map(|min| delay.beyond(min));
            let waited = waited.unwrap_or_default().min(radio::PROMOTION);
            let waited_us = u32::try_from(waited.as_micros()).unwrap_or(u32::MAX);
            self.awake_from_us = Some(sent_us.wrapping_add(waited_us).wrapping_add(1));
        }
        let was_awake = |from: u32| sent_us.wrapping_sub(from).cast_signed() >= 0;
        if self.awake_from_us.is_none_or(was_awake) {
            self.awake_from_us = None;
            self.delay.on_sample(now, delay);
        }
    }

    /// When any datagram last arrived.
    #[must_use]
    pub fn heard_at(&self) -> Option<Instant> {
        self.heard_at
    }

    /// One-way delay of arrivals.
    #[must_use]
    pub fn delay(&self) -> &OneWayDelay {
        &self.delay
    }

    /// Bytes of data datagrams received, counted as UDP payload.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.report.received_bytes
    }

    /// When the next report is due; `None` if nothing has arrived since the last report and no NACK is due.
    #[must_use]
    pub fn report_due(&self) -> Option<Instant> {
        [self.report_at, self.holes.due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes the report, and writes the missing ranges to `missing`. Returns `None` if no data have ever arrived. The
    /// caller must send the report.
    pub fn take_report(&mut self, now: Instant, missing: &mut MissingWriter) -> Option<PathReport> {
        let highest_at = self.highest_at?;
        let mut report = self.report;
        let waited = saturating_nanos(now.since(highest_at)) / 1_000;
        self.holes
            .take(now, |first, count| missing.push(first, count));
        report.settled_seq = self.holes.settled(now);
        report.ack_delay_us = u32::try_from(waited).unwrap_or(u32::MAX);
        let RelativeDelay(min_owd_us) = self.min_delay.take().or(self.delay.latest())?;
        report.min_owd_us = min_owd_us;
        self.unreported_pkts = 0;
        self.report_at = None;
        self.reported_at = now;
        Some(report)
    }
}

/// Maximum interval of reports that cover only datagrams that the sender does not store, unless the feedback interval
/// is longer.
const LIGHT_INTERVAL: Duration = Duration::from_millis(40);
/// Minimum time from any report to a report that covers fewer than [`LIGHT_PKTS`] arrivals, none of which the sender
/// stores. Otherwise each acknowledgement would cause a report, whose length is a fifteenth of a full packet: too much
/// on a slow path. The time is shorter than the suspect timeout ([`super::health`]), so the path does not become
/// Suspect unless a report is lost.
const LIGHT_APART: Duration = Duration::from_millis(25);
/// Number of unreported arrivals at which [`LIGHT_APART`] no longer applies.
const LIGHT_PKTS: u32 = 8;
/// Number of arrivals after which a report is due at once.
pub const MAX_UNREPORTED_PKTS: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(10);

    fn arrival(path_seq: u32, sent_us: u32) -> DataArrival {
        DataArrival {
            path_seq: Seq(path_seq),
            sent_us,
            len: 100,
            is_congested: false,
            is_kept: false,
            grace: Duration::ZERO,
        }
    }

    #[test]
    fn reports_are_due_an_interval_after_the_first_arrival() {
        let mut receiver = Receiver::default();
        assert_eq!(receiver.report_due(), None);
        assert_eq!(
            receiver.take_report(Instant::ZERO, &mut MissingWriter::default()),
            None
        );
        receiver.on_data(Instant::from_millis(1), &arrival(0, 900), INTERVAL);
        receiver.on_data(Instant::from_millis(5), &arrival(1, 4_000), INTERVAL);
        assert_eq!(receiver.report_due(), Some(Instant::from_millis(11)));
        let report = receiver
            .take_report(Instant::from_millis(11), &mut MissingWriter::default())
            .expect("arrivals");
        assert_eq!(
            (
                report.received_pkts,
                report.received_bytes,
                report.highest_seq
            ),
            (2, 200, Seq(1))
        );
        assert_eq!(
            (report.sent_us, report.received_us, report.ack_delay_us),
            (4_000, 5_000, 6_000)
        );
        assert_eq!(report.min_owd_us, 100);
        assert_eq!(receiver.report_due(), None);
    }

    #[test]
    fn reports_on_acknowledgements_alone_are_apart() {
        // A data packet that the sender stores: it shows that the sender stores packets for retransmission.
        let data = |path_seq| DataArrival {
            is_kept: true,
            ..arrival(path_seq, 0)
        };
        let ms = Instant::from_millis;
        let interval = Duration::from_millis(5);
        let mut receiver = Receiver::default();
        receiver.on_data(ms(0), &data(0), interval);
        for (at, arrival, due) in [
            (6, arrival(1, 0), 30),
            (35, arrival(2, 0), 55),
            (100, arrival(3, 0), 115),
        ] {
            let reported = receiver.report_due().expect("due");
            assert!(
                receiver
                    .take_report(reported, &mut MissingWriter::default())
                    .is_some()
            );
            receiver.on_data(ms(at), &arrival, interval);
            assert_eq!(receiver.report_due(), Some(ms(due)));
        }
        // A data packet among the acknowledgements makes a report due one feedback interval later.
        receiver.on_data(ms(101), &data(4), interval);
        assert_eq!(receiver.report_due(), Some(ms(106)));
        // Eight acknowledgements cause an earlier report than fewer would.
        assert!(
            receiver
                .take_report(ms(106), &mut MissingWriter::default())
                .is_some()
        );
        for number in 0..LIGHT_PKTS {
            assert_eq!(receiver.report_due(), (number > 0).then_some(ms(131)));
            receiver.on_data(ms(107), &arrival(5 + number, 0), interval);
        }
        assert_eq!(receiver.report_due(), Some(ms(122)));
    }

    #[test]
    fn the_delays_of_datagrams_that_waited_for_a_radio_are_no_samples() {
        let mut receiver = Receiver::default();
        let receive = |receiver: &mut Receiver, sent_ms: u32, at_ms: u64| {
            receiver.on_control(Instant::from_millis(at_ms), sent_ms * 1_000);
        };
        for sent_ms in (1_000..3_000).step_by(100) {
            receive(&mut receiver, sent_ms, u64::from(sent_ms) + 20);
        }
        let high = |receiver: &Receiver| receiver.delay().high().expect("samples").0;
        assert_eq!(high(&receiver), 20_000);
        // After a pause, the radio needs 900 ms. The datagrams that are sent meanwhile arrive together.
        for sent_ms in (13_000..13_900).step_by(100) {
            receive(&mut receiver, sent_ms, 13_920);
            assert_eq!(high(&receiver), 20_000, "{sent_ms}");
        }
        let before = receiver.delay().sampled_at();
        receive(&mut receiver, 13_901, 13_925);
        assert_eq!(receiver.delay().latest(), Some(RelativeDelay(24_000)));
        assert!(receiver.delay().sampled_at() > before);
        // A radio needs no longer than a second, so a clock that was set does not stop the samples.
        receive(&mut receiver, 20_000, 25_000);
        receive(&mut receiver, 21_001, 26_001);
        assert_eq!(receiver.delay().latest(), Some(RelativeDelay(5_000_000)));
    }

    #[test]
    fn many_arrivals_hasten_the_report_and_old_ones_do_not_move_the_highest() {
        let mut receiver = Receiver::default();
        for i in 0..MAX_UNREPORTED_PKTS {
            receiver.on_data(Instant::ZERO, &arrival(1000 - i, 0), INTERVAL);
        }
        assert_eq!(receiver.report_due(), Some(Instant::ZERO));
        assert_eq!(
            receiver
                .take_report(Instant::ZERO, &mut MissingWriter::default())
                .expect("arrivals")
                .highest_seq,
            Seq(1000)
        );
    }
}
