//! The order in which a path's estimators process reports about its sending direction.
//!
//! A report passes through the estimators in this order, because each needs the result of the previous one:
//!
//! 1. datagrams in flight ([`super::sender`]): a report that is old, or that names numbers never sent, is dropped
//!    here. A report on datagrams that a radio delayed while it woke up ([`super::radio`]) ends here;
//! 2. one-way delay and loss totals;
//! 3. the rate controller, which detects congestion and the standing queue, using the delivery rate from before the
//!    report;
//! 4. the delivery rate, whose samples are application-limited unless the controller finds the path saturated;
//! 5. the pacing rate.
//!
//! Every other event changes one estimator and recomputes the pacing rate.

use core::time::Duration;

use super::{
    Path, delay::RelativeDelay, health::State, memory::PathMemory, model::Signals, on_wire,
    rate::Delivered, rtt::INITIAL_RTT, train::Dispersion,
};
use crate::{
    packet::Pool,
    profile::{Mechanism, Pacing},
    role::Role,
    time::Instant,
    units::{Bitrate, Bytes},
    wire::control::PathReport,
};

/// Kind of an answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pong {
    /// The answer to an MTU probe.
    Mtu,
    /// An RTT sample.
    Rtt,
    /// The answer to an unknown probe.
    Unknown,
}

/// Result of a report about the sending direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportOutcome {
    /// The report is newer than all before.
    New {
        /// One more than the highest reported number. Datagrams below it have arrived or are lost; lost datagrams will
        /// be NACKed.
        reported: u64,
    },
    /// The report is old, or names numbers that were never sent. It has changed nothing.
    Old,
}

impl Path {
    /// Processes a report about the sending direction.
    pub fn on_report(
        &mut self,
        now: Instant,
        report: &PathReport,
        pool: &mut Pool,
    ) -> ReportOutcome {
        let oldest = self.sender.oldest_under_way();
        let before = self.sender.reported();
        if !self
            .sender
            .on_reported(report.highest_seq, report.settled_seq, pool)
        {
            return ReportOutcome::Old;
        }
        let reported = self.sender.reported();
        if self.health.radio().is_waking() || before < self.awake_from {
            // The delays contain the time in which the radio woke up. The next report has the same totals and more, so
            // this one may be left out.
            self.on_reported_evidence(now, reported);
            return ReportOutcome::New { reported };
        }
        if let Some((_, sent_at)) = oldest.filter(|(counter, _)| *counter < reported) {
            self.report_age.on_report(now, now.since(sent_at));
        }
        let was_searching = self.control.is_searching();
        let signals = self.measure(now, report);
        if let Some(carried) = self.control.on_report(now, &signals, &mut self.model) {
            self.model.rate.on_overflow(carried);
        }
        let delivered = Delivered {
            bytes: Bytes::new(self.model.on_wire.delivered()),
            packets: report.received_pkts,
            tx_us: report.sent_us,
            rx_us: report.received_us,
        };
        let app_limited = !self.control.is_saturated(&signals, &self.model);
        if let Some(sample) = self.model.rate.on_report(now, delivered, app_limited) {
            self.control
                .on_sample(now, sample, &signals, &mut self.model);
        }
        if was_searching && !self.control.is_searching() {
            self.model
                .loss
                .on_searched(now, self.sender.unreported_pkts());
        }
        self.pace(now);
        self.on_reported_evidence(now, reported);
        ReportOutcome::New { reported }
    }

    /// Records the evidence of a report that raised the highest reported number to `reported` - 1.
    fn on_reported_evidence(&mut self, now: Instant, reported: u64) {
        if self.peer_down.is_none_or(|down| reported > down.next_data) {
            self.on_evidence(now);
        }
    }

    /// Updates delay and loss totals. Returns the signals for the rate controller.
    fn measure(&mut self, now: Instant, report: &PathReport) -> Signals {
        let rtt = self.loaded_rtt().unwrap_or_default();
        let delay = RelativeDelay(report.min_owd_us);
        self.model.delay.on_sample(now, delay);
        let is_limited = self
            .limited_at
            .is_some_and(|at| now.since(at) < rtt + self.feedback_interval() * 2);
        let received_before = self.model.loss.received();
        let received_pkts = report.received_pkts;
        // A receiver that sends NACKs names the lost datagrams; for any other receiver every gap counts as loss.
        if report.settled_seq.is_some() {
            let nacked = self.sender.lost_pkts();
            self.model.loss.on_told(now, nacked, received_pkts);
        } else {
            let sent_pkts = self.sender.sent_for_loss(received_pkts);
            self.model.loss.on_report(now, sent_pkts, received_pkts);
        }
        let headers = on_wire::headers(self.route.as_ref());
        self.model
            .on_wire
            .on_report(report.received_bytes, received_pkts, headers);
        Signals {
            delay,
            rtt,
            received: self.model.loss.received() - received_before,
            lost: self.model.loss.take_lost(),
            floor_ppm: self.model.loss.floor_ppm(),
            is_limited,
            sent_bytes: self.model.on_wire.sent(),
            received_bytes: self.model.on_wire.delivered(),
            pace: self.pacer.rate(),
        }
    }

    /// Processes the answer to the probe `token`, which the peer sent at `answered_us` by its clock. The probe is a
    /// sample of the RTT and of the one-way delay: a path that carries no data gets no reports, and without probes its
    /// delay would stay what it was when it last carried data. `rtt_gain_thousandths`: the weight of an RTT sample, if
    /// the policy sets one.
    pub fn on_pong(
        &mut self,
        now: Instant,
        token: u32,
        answered_us: u32,
        rtt_gain_thousandths: Option<u16>,
    ) -> Pong {
        if self.mtu.on_pong(now, token) {
            return Pong::Mtu;
        }
        let Some(sent_at) = self.probes.finish(token) else {
            return Pong::Unknown;
        };
        let rtt = now.since(sent_at);
        if let Some(gain) = rtt_gain_thousandths {
            self.rtt.set_gain(gain);
        }
        if self.health.radio().was_awake(now, rtt) {
            self.rtt.on_sample(now, rtt, Duration::ZERO);
            let delay = RelativeDelay::from_stamps(sent_at.wire_micros(), answered_us);
            self.model.delay.on_sample(now, delay);
            self.pace(now);
            let interval = self.feedback_interval();
            self.health
                .on_rtt(self.rtt.smoothed().unwrap_or(rtt), interval);
        }
        if self.peer_down.is_some_and(|down| down.at + rtt > now) {
            return Pong::Rtt;
        }
        if matches!(self.health.state(), State::Down | State::Probing) {
            self.train_sender.on_up(now);
        }
        self.on_evidence(now);
        Pong::Rtt
    }

    /// Processes the measurement of a packet train that this end sent.
    pub fn on_train_result(&mut self, now: Instant, result: &Dispersion) {
        if let Some(guess) = self.train_sender.on_result(now, result) {
            self.model.rate.guess(&guess);
            if guess.is_sure && self.profile.has(Mechanism::SureTrains) {
                self.control.on_known(now, &mut self.model);
            }
            self.pace(now);
        }
    }

    /// Records the evidence that a datagram sent on the path arrived.
    fn on_evidence(&mut self, now: Instant) {
        if self.health.radio().is_waking() {
            self.awake_from = self.sender.next_data();
        }
        self.health
            .on_acked(now, self.sender.in_flight() > Bytes::ZERO);
    }

    /// Whether a smaller MTU was found since the last call. If so, loss and rate are measured again from the start,
    /// because datagrams longer than the MTU had been sent.
    pub fn take_narrowed(&mut self, now: Instant) -> bool {
        let is_narrowed = self.mtu.take_news();
        if is_narrowed {
            self.model.loss.forget(now, self.sender.unreported_pkts());
            self.model.forget_rate();
            self.control.search_again(&mut self.model);
            self.train_sender.on_up(now);
            self.pace(now);
        }
        is_narrowed
    }

    /// Searches the capacity again from the latest delivery rate, because the path has become slow; not while it only
    /// wakes up.
    pub fn collapse(&mut self, now: Instant) {
        if self.health.radio().is_waking() {
            return;
        }
        self.model.rate.on_collapse();
        self.control.search_again(&mut self.model);
        self.pace(now);
    }

    /// Restarts from the remembered estimates of the path's network, unless the present capacity is known and within a
    /// factor of two of the remembered rate.
    pub fn recall(&mut self, now: Instant, memory: &PathMemory) {
        let known = self
            .model
            .rate
            .max()
            .filter(|_| self.model.is_capacity_known(now));
        let is_like = |known: Bitrate| known.max(memory.rate) <= known.min(memory.rate).scale(2, 1);
        let is_needed = memory.rate > Bitrate::ZERO && !known.is_some_and(is_like);
        if is_needed && self.control.recall(memory, &mut self.model) {
            self.remembered_loss_ppm = memory.loss_ppm;
        }
        self.pace(now);
    }

    /// Sets the pacing rate: at most the user's limit and, unless the profile says [`Pacing::Limits`], at most the rate
    /// controller's rate.
    pub(super) fn pace(&mut self, now: Instant) {
        let pacing = self.profile.path_pacing();
        self.control
            .set_profile(pacing == Pacing::Search, self.profile.mechanisms);
        let limit = match self.role {
            Role::Client => self.link.upload,
            Role::Gateway => self.link.download,
        };
        let rtt = self.rtt.smoothed().unwrap_or(INITIAL_RTT);
        let carried = self.control.pace(now, rtt, &self.model);
        let carried = carried.filter(|_| pacing != Pacing::Limits);
        self.pacer
            .set_rate(now, [limit, carried].into_iter().flatten().min());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{PathId, Seq},
        path::link::Link,
        profile::Profile,
    };

    /// Sends the data datagram `number` at `at_ms`, and processes the report on it. Its one-way delay is half of the time
    /// between them.
    fn report(path: &mut Path, number: u32, at_ms: u64, rtt_ms: u64) {
        let pool = &mut Pool::new(1, 1);
        let sent_at = Instant::from_millis(at_ms);
        path.on_data_sent(sent_at, 100, Seq(number), None, pool);
        path.on_sent(sent_at, Bytes::new(100));
        let received_at = Instant::from_millis(at_ms + rtt_ms / 2);
        let report = PathReport {
            received_pkts: u64::from(number) + 1,
            received_bytes: (u64::from(number) + 1) * 100,
            highest_seq: Seq(number),
            sent_us: sent_at.wire_micros(),
            received_us: received_at.wire_micros(),
            min_owd_us: u32::try_from(rtt_ms * 500).expect("short"),
            ..PathReport::default()
        };
        let now = Instant::from_millis(at_ms + rtt_ms);
        let outcome = path.on_report(now, &report, pool);
        assert!(matches!(outcome, ReportOutcome::New { .. }), "{number}");
    }

    #[test]
    fn reports_on_datagrams_that_woke_up_a_radio_change_no_estimate() {
        let now = Instant::from_millis(1_000);
        let link = Link::named("lte");
        let mut path = Path::new(now, PathId(0), link, Role::Client, Profile::default());
        for number in 0..20 {
            report(&mut path, number, 1_000 + u64::from(number) * 100, 40);
        }
        let known = |path: &Path| {
            let delay = path.delay();
            (
                delay.latest(),
                delay.smoothed(),
                delay.deviation(),
                path.jitter(),
            )
        };
        let before = known(&path);
        assert_eq!(before.3, Duration::ZERO);
        // After a pause of 10 s, the radio needs 900 ms to wake up.
        report(&mut path, 20, 13_000, 900);
        assert_eq!(known(&path), before);
        assert!(path.health().is_usable(), "it is evidence all the same");
        assert!(!path.health().radio().is_waking());
        // Later datagrams count.
        report(&mut path, 21, 14_000, 60);
        assert_ne!(known(&path), before);
        assert_eq!(path.loss().received(), 22, "nothing is forgotten");
    }

    #[test]
    fn probes_show_that_an_unused_path_is_quick_again() {
        let now = Instant::from_millis(1_000);
        let link = Link::named("lte");
        let mut path = Path::new(now, PathId(0), link, Role::Client, Profile::default());
        // While the link stood still, its last datagrams were queued for a second.
        report(&mut path, 0, 1_000, 2_000);
        assert_eq!(path.delay().min(), Some(RelativeDelay(1_000_000)));
        for ms in (12_000..13_000).step_by(250) {
            let sent_at = Instant::from_millis(ms);
            let token = path.probes.start(sent_at);
            let answered_us = (sent_at + Duration::from_millis(30)).wire_micros();
            let now = sent_at + Duration::from_millis(50);
            assert_eq!(path.on_pong(now, token, answered_us, None), Pong::Rtt);
        }
        assert_eq!(path.delay().min(), Some(RelativeDelay(30_000)));
        assert_eq!(path.lateness(), Duration::ZERO);
    }

    #[test]
    fn a_rest_forgets_one_way_delays_because_clocks_drift() {
        let now = Instant::from_millis(1_000);
        let link = Link::named("lte");
        let mut path = Path::new(now, PathId(0), link, Role::Client, Profile::default());
        report(&mut path, 0, 1_000, 40);
        path.set_resting(false);
        assert!(path.delay().min().is_some());
        path.set_resting(true);
        assert_eq!(path.delay().min(), None);
    }
}
