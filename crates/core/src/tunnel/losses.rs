//! How the other end is to treat what this one sends, and the reports of losses some policies steer by.
//!
//! `[scheduler]` of each end rules what that end sends. What it needs of the receiver (the order, reports of losses) it
//! says in a [`Reception`], repeated until acknowledged. An end that never asks gets the default: an order for each flow
//! and no reports.

use super::{Shared, Tunnel};
use crate::{
    ids::PathId,
    loss_report::{LossLedger, LossWatch},
    path::{ANNOUNCE_AGAIN, link::Announced},
    sched::Scheduler,
    time::Instant,
    transmit::TxQueue,
    wire::control::{Frame, FrameWriter, LossReport, Reception},
};

use super::control::MAX_BODY;

/// What the ends have agreed on for either direction.
#[derive(Debug, Default)]
pub(super) struct Receptions {
    /// What the other end was told, if our policy needs anything.
    announced: Option<Announced>,
    /// Version of what the other end wants.
    wanted_version: Option<u32>,
    /// Version to acknowledge.
    ack: Option<u32>,
}

/// An empty ledger for a sender that asked for `reception`.
pub(super) fn ledger(reception: Reception) -> LossLedger {
    let interval = reception.report_interval.unwrap_or_default();
    LossLedger::new(interval, reception.loss_timeout)
}

impl Receptions {
    /// What is due for a sender that needs `reception`.
    pub(super) fn new(now: Instant, reception: Reception) -> Self {
        let announced = Announced::new(now);
        Self {
            announced: (reception != Reception::default()).then_some(announced),
            ..Self::default()
        }
    }

    /// Says it again: the other end may have forgotten.
    pub(super) fn repeat(&mut self, now: Instant) {
        if let Some(announced) = &mut self.announced {
            announced.due = Some(now);
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.announced.and_then(|announced| announced.due)
    }
}

impl Tunnel {
    /// Sends what is due of receptions and reports of losses.
    pub(super) fn send_losses(&mut self, now: Instant, out: &mut TxQueue) {
        let mut body = [0; MAX_BODY];
        let mut writer = FrameWriter::new(&mut body);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let is_announcing = is_due(self.receptions.due());
        let is_reporting = is_due(self.loss_watch.as_ref().and_then(|watch| watch.due()));
        if out.is_full() || !(is_announcing || is_reporting || self.receptions.ack.is_some()) {
            return;
        }
        let Some(best) = self.best_path() else {
            return;
        };
        if let Some(version) = self.receptions.ack.take() {
            let _ = writer.push(&Frame::ReceptionAck { version });
        }
        if let Some(announced) = self.receptions.announced.as_mut().filter(|_| is_announcing) {
            announced.due = Some(now + ANNOUNCE_AGAIN);
            let _ = writer.push(&Frame::Reception {
                version: announced.version,
                reception: self.profile.reception,
            });
        }
        if let Some(watch) = &mut self.loss_watch {
            watch.take(now, |path, report| {
                let report = *report;
                let _ = writer.push(&Frame::Losses { path, report });
            });
        }
        let len = writer.len();
        if len == 0 {
            return;
        }
        self.seal_control(now, best, &body[..len], out);
        if let Some(second) = self.second_path(best) {
            self.seal_control(now, second, &body[..len], out);
        }
    }

    /// When [`Self::send_losses`] next has something to say.
    pub(super) fn losses_due(&self) -> Option<Instant> {
        let reports = self.loss_watch.as_ref().and_then(|watch| watch.due());
        [self.receptions.due(), reports].into_iter().flatten().min()
    }

    /// The other end said how to treat what it sends.
    pub(super) fn on_reception(
        &mut self,
        now: Instant,
        version: u32,
        reception: &Reception,
        shared: &mut Shared<'_>,
    ) {
        if self
            .receptions
            .wanted_version
            .is_some_and(|known| version < known)
        {
            return;
        }
        self.receptions.ack = Some(version);
        if self.receptions.wanted_version.replace(version) == Some(version) {
            return;
        }
        let timeout = reception.loss_timeout;
        let before = shared.delivered.len();
        self.resequencer
            .set_order(now, reception.order, timeout, shared.delivered);
        self.keep_round_trips(now, before, shared);
        match (reception.report_interval, &mut self.loss_watch) {
            (None, watch) => *watch = None,
            (Some(interval), Some(watch)) => watch.set_times(now, interval, timeout),
            (Some(interval), watch @ None) => {
                *watch = Some(Box::new(LossWatch::new(now, interval, timeout)));
            }
        }
    }

    pub(super) fn on_reception_ack(&mut self, version: u32) {
        if let Some(announced) = &mut self.receptions.announced
            && announced.version == version
        {
            announced.due = None;
        }
    }

    /// The other end told what it misses on `id`.
    pub(super) fn on_losses(&mut self, now: Instant, id: PathId, report: &LossReport) {
        let Some(path) = self.path(id) else {
            return;
        };
        let (sent_pkts, sent_bytes) = (path.sender().next_data(), path.sender().sent_bytes());
        let counts = self
            .loss_ledger
            .on_report(id, report, sent_pkts, sent_bytes);
        if let Some(counts) = counts {
            self.scheduler.on_loss_report(now, id, &counts);
        }
    }
}
