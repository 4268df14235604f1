//! How the other end is to treat what this one sends, and the reports of losses some policies steer by.
//!
//! `[scheduler]` of each end rules what that end sends. What it needs of the receiver (the order, reports of losses) it
//! says in a [`Reception`], repeated until acknowledged. An end that never asks gets the default: an order for each flow
//! and no reports.

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

/// What the ends have agreed on for either direction.
#[derive(Debug)]
pub(super) struct Receptions {
    /// What our policy needs of the other end.
    needed: Reception,
    /// What the other end was told, if our policy needs anything.
    announced: Option<Announced>,
    /// Version of what the other end wants.
    wanted_version: Option<u32>,
    /// Version to acknowledge.
    ack: Option<u32>,
    /// What the other end wants counted.
    watch: Option<Box<LossWatch>>,
    /// What it has reported.
    ledger: LossLedger,
}

impl Receptions {
    /// What is due for a sender that needs `needed`.
    pub(super) fn new(now: Instant, needed: Reception) -> Self {
        let announced = Announced::new(now);
        let interval = needed.report_interval.unwrap_or_default();
        Self {
            needed,
            announced: (needed != Reception::default()).then_some(announced),
            wanted_version: None,
            ack: None,
            watch: None,
            ledger: LossLedger::new(interval, needed.loss_timeout),
        }
    }

    /// Says it again: the other end may have forgotten.
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

    /// When [`Self::send`] next has something to say.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.announcement_due(), self.report_due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Sends what is due of receptions and reports of losses.
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

    /// The other end said how to treat what it sends; the order, and the time after which a packet is lost, if this is news.
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

    /// The other end knows what our policy needs.
    pub(super) fn on_reception_ack(&mut self, version: u32) {
        if let Some(announced) = &mut self.announced
            && announced.version == version
        {
            announced.due = None;
        }
    }

    /// A data datagram of `len` bytes came.
    pub(super) fn on_arrival(&mut self, now: Instant, id: PathId, path_seq: Seq, len: usize) {
        if let Some(watch) = &mut self.watch {
            watch.on_arrival(now, id, path_seq, len);
        }
    }

    /// What was under way on a path is written off: it is no sign of losses.
    pub(super) fn on_outage(&mut self, path: &Path) {
        let sender = path.sender();
        let next = Seq::of_counter(sender.next_data());
        let outstanding = sender.outstanding_pkts() as u64;
        self.ledger.on_outage(path.id(), outstanding, next);
    }

    /// The other end told what it misses on a path; what that says of the time since its last report.
    pub(super) fn on_losses(&mut self, path: &Path, report: &LossReport) -> Option<LossCounts> {
        let (sent_pkts, sent_bytes) = (path.sender().next_data(), path.sender().sent_bytes());
        self.ledger
            .on_report(path.id(), report, sent_pkts, sent_bytes)
    }
}
