//! The handling that each end requires of the receiver of its packets, and the loss reports that some policies need.
//!
//! The section `[scheduler]` of each end controls how that end sends. Each end announces its requirements to the
//! receiver (order of delivery, loss reports) in a [`Reception`], which it repeats until it is acknowledged. By
//! default, each flow is delivered in order, and no loss reports are sent.

use core::time::Duration;

use super::sealer::{MAX_BODY, Sealer};
use crate::{
    ids::{PathId, Seq},
    loss_report::{LossLedger, LossWatch},
    path::{ANNOUNCE_AGAIN, Path, link::Announced},
    sched::LossCounts,
    time::Instant,
    wire::control::{Frame, FrameWriter, LossReport, Order, Reception},
};

/// The agreement of the two ends, for both directions.
#[derive(Debug)]
pub(super) struct Receptions {
    /// Requirements of this end's policy on the other end.
    needed: Reception,
    /// Announcement to the other end, if the policy has requirements.
    announced: Option<Announced>,
    /// Version of the other end's announcement.
    wanted_version: Option<u32>,
    /// Version that is to be acknowledged.
    ack: Option<u32>,
    /// Counts of losses for the other end, if it wants loss reports.
    watch: Option<Box<LossWatch>>,
    /// Record of the other end's loss reports, if this end's policy wants them.
    ledger: Option<Box<LossLedger>>,
}

impl Receptions {
    /// Returns the state for a sender with the requirements `needed`.
    pub(super) fn new(now: Instant, needed: Reception) -> Self {
        let announced = Announced::new(now);
        let ledger = needed
            .report_interval
            .map(|interval| Box::new(LossLedger::new(interval, needed.loss_timeout)));
        Self {
            needed,
            announced: (needed != Reception::default()).then_some(announced),
            wanted_version: None,
            ack: None,
            watch: None,
            ledger,
        }
    }

    /// Repeats the announcement, because the other end may have lost its state.
    pub(super) fn repeat(&mut self, now: Instant) {
        if let Some(announced) = &mut self.announced {
            announced.due = Some(now);
        }
    }

    fn announcement_due(&self) -> Option<Instant> {
        self.announced.and_then(|announced| announced.due)
    }

    fn report_due(&self) -> Option<Instant> {
        self.watch.as_ref().and_then(|watch| watch.due())
    }

    /// Returns the time at which [`Self::send`] next has something to send.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.announcement_due(), self.report_due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Sends the announcements, acknowledgements and loss reports that are due.
    pub(super) fn send(&mut self, sealer: &mut Sealer<'_>) {
        let now = sealer.now;
        let mut body = [0; MAX_BODY];
        let mut writer = FrameWriter::new(&mut body);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let is_announcing = is_due(self.announcement_due());
        let is_reporting = is_due(self.report_due());
        if sealer.out.is_full() || !(is_announcing || is_reporting || self.ack.is_some()) {
            return;
        }
        let Some(best) = sealer.paths.best() else {
            return;
        };
        if let Some(version) = self.ack.take() {
            let _ = writer.push(&Frame::ReceptionAck { version });
        }
        if let Some(announced) = self.announced.as_mut().filter(|_| is_announcing) {
            announced.due = Some(now + ANNOUNCE_AGAIN);
            let _ = writer.push(&Frame::Reception {
                version: announced.version,
                reception: self.needed,
            });
        }
        if let Some(watch) = &mut self.watch {
            watch.take(now, |path, report| {
                let report = *report;
                let _ = writer.push(&Frame::Losses { path, report });
            });
        }
        let len = writer.len();
        if len == 0 {
            return;
        }
        sealer.control(best, &body[..len]);
        if let Some(second) = sealer.paths.second(best) {
            sealer.control(second, &body[..len]);
        }
    }

    /// Handles an announcement of the other end. If it is new, returns the order of delivery and the time after which a
    /// packet is considered lost.
    pub(super) fn on_reception(
        &mut self,
        now: Instant,
        version: u32,
        reception: &Reception,
    ) -> Option<(Order, Duration)> {
        if self.wanted_version.is_some_and(|known| version < known) {
            return None;
        }
        self.ack = Some(version);
        if self.wanted_version.replace(version) == Some(version) {
            return None;
        }
        let timeout = reception.loss_timeout;
        match (reception.report_interval, &mut self.watch) {
            (None, watch) => *watch = None,
            (Some(interval), Some(watch)) => watch.set_times(now, interval, timeout),
            (Some(interval), watch @ None) => {
                *watch = Some(Box::new(LossWatch::new(now, interval, timeout)));
            }
        }
        Some((reception.order, timeout))
    }

    /// Records that the other end has acknowledged the announcement `version`.
    pub(super) fn on_reception_ack(&mut self, version: u32) {
        if let Some(announced) = &mut self.announced
            && announced.version == version
        {
            announced.due = None;
        }
    }

    /// Records a received data datagram of `len` bytes.
    pub(super) fn on_arrival(&mut self, now: Instant, id: PathId, path_seq: Seq, len: usize) {
        if let Some(watch) = &mut self.watch {
            watch.on_arrival(now, id, path_seq, len);
        }
    }

    /// Writes off the packets in flight on a path. They do not count as losses.
    pub(super) fn on_outage(&mut self, path: &Path) {
        if let Some(ledger) = &mut self.ledger {
            let sender = path.sender();
            let next = Seq::of_counter(sender.next_data());
            let outstanding = sender.outstanding_pkts() as u64;
            ledger.on_outage(path.id(), outstanding, next);
        }
    }

    /// Handles a loss report for a path. Returns the losses since the last report; `None` if no reports are wanted.
    pub(super) fn on_losses(&mut self, path: &Path, report: &LossReport) -> Option<LossCounts> {
        let (sent_pkts, sent_bytes) = (path.sender().next_data(), path.sender().sent_bytes());
        self.ledger
            .as_mut()?
            .on_report(path.id(), report, sent_pkts, sent_bytes)
    }
}
