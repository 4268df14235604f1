//! Processing of acknowledgements: RTTs, losses, recovery and its undo.
//!
//! The states are those of Linux:
//!
//! - *open*;
//! - *disorder*: data arrived out of order, but no loss is detected yet;
//! - *reducing*: after ECN or a repaired tail loss;
//! - *recovery*: RFC 6675 or RFC 8985 detected a loss, and RFC 9937 sets the window;
//! - *loss*: after a timeout.
//!
//! A reduction is undone when it proves unnecessary in one of three ways. The peer's timestamps show that the
//! original arrived (Eifel, RFC 3522 and 4015). DSACKs account for all retransmissions (RFC 3708). After a timeout,
//! an acknowledgement covers a segment that was never retransmitted (the test of F-RTO, RFC 5682, without its extra
//! new segments).

use core::time::Duration;

use pleach_core::time::Instant;

use super::{AckInfo, DUP_THRESHOLD, MIN_DEVIATION, Prr, Sender, pkts_of, timestamp};
use crate::tcp::{
    congestion::{Ack, Delivery, Episode},
    rack::{Rack, Situation},
    rate::Newest,
    scoreboard::{Scoreboard, Sent},
};

/// Number of segments that the window may exceed the segments in flight after an undo: Linux's `tcp_max_burst`.
const MAX_BURST: u32 = 3;

/// State of congestion control, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Open,
    Disorder,
    Cwr,
    Recovery,
    Loss,
}

impl Phase {
    /// Whether proportional rate reduction sets the window.
    pub(super) const fn is_reducing(self) -> bool {
        matches!(self, Self::Cwr | Self::Recovery)
    }

    const fn episode(self) -> Episode {
        match self {
            Self::Open | Self::Disorder | Self::Cwr => Episode::None,
            Self::Recovery => Episode::Recovery,
            Self::Loss => Episode::Loss,
        }
    }
}

/// State before a reduction, to which an unnecessary reduction is undone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undo {
    /// Position at or above which retransmissions lie.
    marker: u64,
    /// Number of retransmitted segments without a matching DSACK. `None`: no segment was retransmitted yet.
    pub(super) resent_pkts: Option<u32>,
    prior_cwnd: u32,
    /// Threshold before the reduction. `None`: the congestion is certain (ECN).
    prior_ssthresh: Option<u32>,
}

/// Deliveries that one acknowledgement reports.
#[derive(Default)]
struct Sample {
    /// Sending times of the first and last cumulatively acknowledged segments that were never retransmitted.
    acked: Option<(Instant, Instant)>,
    /// Sending times of the first and last selectively acknowledged segments that were never retransmitted.
    sacked: Option<(Instant, Instant)>,
    /// Whether the cumulative acknowledgement covers a retransmitted segment.
    has_resent: bool,
    /// Whether a segment was delivered that was sent before the episode and never retransmitted.
    has_original: bool,
    /// The lowest segment that was delivered after a later segment and was never retransmitted.
    reordered_id: Option<u64>,
    /// The delivered segment that was sent last.
    newest: Option<Newest>,
    bytes: u64,
}

impl Sample {
    fn add(&mut self, id: u64, segment: &Sent, prior_highest: u64, high: u64, is_sack: bool) {
        if !segment.is_sacked {
            self.bytes += segment.end - segment.start;
            self.newest = Some(Newest::of(self.newest, segment));
        }
        if segment.was_resent {
            self.has_resent |= !is_sack;
            return;
        }
        if segment.is_sacked {
            return;
        }
        let times = if is_sack {
            &mut self.sacked
        } else {
            &mut self.acked
        };
        *times = Some(
            times.map_or((segment.sent_at, segment.sent_at), |(first, last)| {
                (first.min(segment.sent_at), last.max(segment.sent_at))
            }),
        );
        self.has_original |= segment.end <= high;
        if id < prior_highest {
            self.reordered_id = Some(self.reordered_id.map_or(id, |lowest| lowest.min(id)));
        }
    }
}

/// Summary of an acknowledgement for the state machine.
#[derive(Clone, Copy, Debug)]
struct Outline {
    now: Instant,
    is_advance: bool,
    has_original: bool,
    has_ece: bool,
    echo: Option<u32>,
    prior_first_id: u64,
}

impl Sender {
    /// Processes an acknowledgement. `false` if the acknowledgement covers data that was never sent.
    pub(in crate::tcp) fn on_ack(&mut self, info: &AckInfo<'_>) -> bool {
        if info.ack > self.nxt {
            return false;
        }
        let now = info.now;
        let prior_una = self.una;
        let prior_delivered = self.board.delivered_pkts;
        let prior_lost = self.board.total_lost_pkts;
        let prior_first_id = self.board.first_id();
        let prior_in_flight = self.board.in_flight_pkts();
        let was_outstanding = self.board.outstanding_pkts() > 0;
        let is_window_update = info.window_end != self.window_end;
        self.window_end = self.window_end.max(info.window_end);
        if let Some((start, end)) = info.dsack {
            self.on_dsack(start, end);
        }
        let sample = self.take_delivered(info);
        let is_advance = self.una > prior_una;
        let is_duplicate = !is_advance
            && info.ack == prior_una
            && !info.has_payload
            && !is_window_update
            && self.board.outstanding_pkts() > 0;
        if !self.has_sack {
            // After a timeout, duplicate acknowledgements are caused by spurious retransmissions.
            let is_counted = is_duplicate && self.phase != Phase::Loss;
            self.count_without_sack(is_advance, is_counted, prior_first_id);
        }
        let newly_delivered = self.board.delivered_pkts - prior_delivered;
        self.controller.on_delivered(now, sample.bytes);
        if is_advance {
            self.consecutive_timeouts = 0;
        }
        self.note_reordering(&sample);
        let rtt = self.take_round_trip(info, &sample, is_advance, newly_delivered);
        if let Some(rack) = &mut self.rack {
            rack.update_window(self.una, self.nxt);
        }
        self.on_loss_probe_acked(info, is_advance, newly_delivered > 0);
        self.react(&Outline {
            now,
            is_advance,
            // Without SACK, retransmissions trigger the acknowledgement of originals received earlier.
            has_original: sample.has_original && (self.has_sack || !sample.has_resent),
            has_ece: info.has_ece,
            echo: info.echo,
            prior_first_id,
        });
        if is_advance {
            self.arm_probe_or_retransmission(now);
        }
        let newly_lost = self.board.total_lost_pkts - prior_lost;
        let delivered = self.board.delivered_pkts;
        let min_rtt = self.rtt.min();
        let rate = self.sampler.on_ack(now, sample.newest, delivered, min_rtt);
        if !self.controller.is_autonomous() {
            self.adjust_window(now, is_advance, newly_delivered, newly_lost > 0);
        } else if was_outstanding {
            let delivery = Delivery {
                now,
                sample: rate,
                newly_delivered_pkts: u32::try_from(newly_delivered).unwrap_or(u32::MAX),
                newly_lost_pkts: u32::try_from(newly_lost).unwrap_or(u32::MAX),
                delivered_pkts: delivered,
                delivered_at: self.sampler.delivered_at(),
                prior_in_flight_pkts: prior_in_flight,
                in_flight_pkts: self.board.in_flight_pkts(),
                rtt,
                smoothed_rtt: self.rtt.smoothed(),
                episode: self.phase.episode(),
                next_departure_at: self.pacer.next_at(now),
            };
            self.controller.on_delivery(&mut self.window, &delivery);
            if self.controller.is_holding_back() {
                self.note_low_flight();
            }
        }
        true
    }

    pub(super) fn on_reorder_timer(&mut self, now: Instant) {
        let prior = self.board.total_lost_pkts;
        self.find_losses(now);
        let newly_lost = self.board.total_lost_pkts - prior;
        if newly_lost > 0 {
            if self.phase != Phase::Recovery {
                self.enter_recovery();
                self.reduce(1, false);
            }
            self.arm_retransmission(now);
        }
    }

    /// Handles the expiration of the retransmission timer: RFC 6298 section 5, RFC 5681 section 3.1.
    pub(super) fn on_retransmission_timeout(&mut self, now: Instant) {
        let is_new = self.phase <= Phase::Disorder
            || self.una >= self.high
            || (self.phase == Phase::Loss && self.consecutive_timeouts == 0);
        self.counters.timeouts += 1;
        self.consecutive_timeouts += 1;
        if self.phase <= Phase::Disorder && self.board.sacked_pkts() >= DUP_THRESHOLD {
            self.reordering = self.reordering.min(DUP_THRESHOLD);
        }
        self.mark_lost_at_timeout(now);
        if is_new {
            self.start_undo(Some(self.current_ssthresh()));
            self.window.ssthresh = self.controller.ssthresh(&self.window);
            self.first_resend_ms = None;
        }
        self.controller
            .on_timeout(now, self.nxt, &mut self.window, self.mss);
        self.window.cwnd = self.board.in_flight_pkts() + 1;
        self.window.credit = 0;
        self.phase = Phase::Loss;
        self.high = self.nxt;
        self.loss_probe = None;
        self.reorder_at = None;
        self.rtt.back_off();
        self.arm_retransmission(now);
    }

    /// Returns the threshold to which a reduction is undone: at least three quarters of the window.
    pub(super) fn current_ssthresh(&self) -> u32 {
        if self.phase.is_reducing() {
            self.window.ssthresh
        } else {
            self.window.ssthresh.max(self.window.cwnd / 4 * 3)
        }
    }

    /// Marks segments as lost at a timeout: all that are not selectively acknowledged. With RACK only the first segment
    /// and those that are old enough.
    fn mark_lost_at_timeout(&mut self, now: Instant) {
        let window = self.rack_window();
        let first = self.board.first_id();
        let Self { board, rack, .. } = self;
        board.duplicate_acks = 0;
        board.mark_lost_where(|id, segment| match rack {
            Some(rack) if id != first => rack.age_left(now, segment, window) == Duration::ZERO,
            _ => true,
        });
    }

    fn take_delivered(&mut self, info: &AckInfo<'_>) -> Sample {
        let min_rtt = self.rtt.min().unwrap_or_default();
        let (now, high) = (info.now, self.high);
        let prior_highest = self.board.highest_sacked_id();
        let mut sample = Sample::default();
        let Self { board, rack, .. } = self;
        let advance = |rack: &mut Option<Rack>, segment: &Sent| {
            if let Some(rack) = rack {
                rack.on_delivered(now, segment, min_rtt);
            }
        };
        for &(start, end) in info.sack {
            let highest = Scoreboard::highest_sacked_id(board);
            board.sack(start..end, |id, segment| {
                sample.add(id, segment, highest, high, true);
                advance(rack, segment);
            });
        }
        if info.ack > self.una {
            board.acknowledge(info.ack, |id, segment| {
                sample.add(id, segment, prior_highest, high, false);
                if !segment.is_sacked {
                    advance(rack, segment);
                }
            });
            self.una = info.ack;
        }
        sample
    }

    /// Counts duplicate acknowledgements in place of SACK (RFC 6582). Each duplicate counts as a received segment.
    /// When the cumulative acknowledgement advances, the duplicates that it covers are removed.
    fn count_without_sack(&mut self, is_advance: bool, is_duplicate: bool, prior_first_id: u64) {
        let board = &mut self.board;
        if is_duplicate
            && board.duplicate_acks + board.lost_pkts().max(1) < board.outstanding_pkts()
        {
            board.duplicate_acks += 1;
            board.delivered_pkts += 1;
        } else if is_advance && board.duplicate_acks > 0 {
            let covered = u32::try_from(board.first_id() - prior_first_id).unwrap_or(u32::MAX);
            board.delivered_pkts += u64::from(covered.saturating_sub(board.duplicate_acks).max(1));
            board.duplicate_acks = board
                .duplicate_acks
                .saturating_sub(covered.saturating_sub(1));
        }
    }

    fn on_dsack(&mut self, start: u64, end: u64) {
        self.counters.dsacks += 1;
        if let Some(rack) = &mut self.rack {
            rack.on_dsack();
        }
        let pkts = pkts_of(&(start..end), self.mss);
        if let Some(undo) = self.undo.as_mut().filter(|undo| end > undo.marker) {
            undo.resent_pkts = undo.resent_pkts.map(|resent| resent.saturating_sub(pkts));
        }
    }

    fn note_reordering(&mut self, sample: &Sample) {
        // Old kernels do not detect reordering among cumulatively acknowledged segments.
        if let Some(id) = sample
            .reordered_id
            .filter(|_| !self.is_forward || sample.sacked.is_some())
        {
            let highest = self.board.highest_sacked_id().max(self.board.first_id());
            self.on_reordering(highest.saturating_sub(id));
        }
    }

    fn on_reordering(&mut self, distance_pkts: u64) {
        let distance = u32::try_from(distance_pkts).unwrap_or(u32::MAX);
        self.reordering = self.reordering.max(distance.min(self.max_reordering));
        if let Some(rack) = &mut self.rack {
            rack.is_reordering_seen = true;
        }
    }

    /// Takes the RTT sample of the newest delivered segment.
    fn take_round_trip(
        &mut self,
        info: &AckInfo<'_>,
        sample: &Sample,
        is_advance: bool,
        newly_delivered: u64,
    ) -> Option<Duration> {
        let now = info.now;
        let clean = sample.acked.filter(|_| !sample.has_resent);
        let newest = sample
            .sacked
            .or(sample.acked)
            .map(|(_, last)| now.since(last));
        let measured = clean.or(sample.sacked).map(|(first, _)| now.since(first));
        let echoed = info.echo.filter(|_| is_advance).map(|echo| {
            let elapsed_ms = timestamp(now).wrapping_sub(echo);
            Duration::from_millis(u64::from(elapsed_ms.max(1)))
        });
        let plausible = echoed.filter(|rtt| *rtt < Duration::from_secs(1 << 20));
        if let Some(rtt) = measured.or(plausible) {
            if let Some(newest) = newest {
                self.rtt.on_min_sample(now, newest);
            }
            self.rtt.on_sample(rtt, self.una, self.nxt);
        }
        if let Some(newest) = newest {
            let ack = self.ack(now, newly_delivered);
            self.controller
                .on_rtt_sample(&mut self.window, &ack, newest);
        }
        newest.or(plausible)
    }

    /// Determines whether the loss probe repaired a loss, RFC 8985 section 7.4.
    fn on_loss_probe_acked(&mut self, info: &AckInfo<'_>, is_advance: bool, is_delivery: bool) {
        let Some(probe) = self.loss_probe.filter(|probe| info.ack >= probe.high) else {
            return;
        };
        if !probe.is_resend || info.dsack.is_some() {
            self.loss_probe = None;
        } else if info.ack > probe.high {
            self.loss_probe = None;
            if self.phase < Phase::Cwr {
                self.start_reduction();
                self.end_reduction();
                self.keep_open();
            }
        } else if !is_advance && !is_delivery {
            self.loss_probe = None;
        }
    }

    fn react(&mut self, outline: &Outline) {
        let Outline {
            now, is_advance, ..
        } = *outline;
        if outline.has_ece
            && let Some(undo) = &mut self.undo
        {
            undo.prior_ssthresh = None;
        }
        if self.una >= self.high {
            match self.phase {
                Phase::Cwr if self.una > self.high => {
                    self.end_reduction();
                    self.phase = Phase::Open;
                }
                Phase::Recovery => {
                    if self.finish_episode(outline) {
                        return;
                    }
                }
                Phase::Open | Phase::Disorder | Phase::Cwr | Phase::Loss => {}
            }
        }
        match self.phase {
            Phase::Recovery => {
                if is_advance && self.try_undo_partly(outline) {
                    return;
                }
                if self.try_undo_by_dsack() {
                    self.try_to_open(outline);
                    return;
                }
                if is_advance && !self.has_sack {
                    self.board.mark_lost(self.board.first_id());
                }
                self.find_losses(now);
            }
            Phase::Loss => {
                let resent = self.board.resent_pkts();
                if self.try_leave_loss(outline) {
                    return;
                }
                self.find_losses(now);
                if self.board.resent_pkts() < resent {
                    self.enter_recovery();
                }
            }
            Phase::Open | Phase::Disorder | Phase::Cwr => {
                if self.phase <= Phase::Disorder {
                    self.try_undo_by_dsack();
                }
                self.find_losses(now);
                if !self.has_sack && self.board.duplicate_acks >= self.reordering {
                    self.board.mark_lost(self.board.first_id());
                }
                if self.board.lost_pkts() > self.board.resent_pkts() {
                    self.enter_recovery();
                } else {
                    self.try_to_open(outline);
                }
            }
        }
    }

    fn find_losses(&mut self, now: Instant) {
        if self.rack.is_none() {
            if self.is_forward {
                self.find_losses_forward();
            } else if self.has_sack {
                self.board.mark_lost_by_count(self.reordering);
            }
            return;
        }
        let window = self.rack_window();
        let Self {
            board,
            rack: Some(rack),
            reorder_at,
            ..
        } = self
        else {
            return;
        };
        *reorder_at = None;
        board.mark_lost_by_age(|segment| match rack.time_left(now, segment, window) {
            Some(Duration::ZERO) => true,
            Some(left) => {
                *reorder_at = Some(now + left);
                false
            }
            None => false,
        });
    }

    /// Detects losses as Linux did until 2.6.23, by the distance to the highest delivered segment. Segments are lost
    /// if this distance exceeds the tolerated reordering. Once reordering has been detected, only the first
    /// outstanding segment is marked as lost at each call.
    fn find_losses_forward(&mut self) {
        let highest = self.board.highest_sacked_id();
        let first = self.board.first_id();
        let distance = highest.saturating_sub(first);
        if distance <= u64::from(self.reordering) {
            return;
        }
        let has_learnt = self.reordering > DUP_THRESHOLD;
        let lost = if has_learnt {
            1
        } else {
            distance - u64::from(self.reordering)
        };
        self.board.mark_lost_where(|id, segment| {
            id < first + lost && !segment.is_lost && !segment.is_resent
        });
    }

    fn rack_window(&self) -> Duration {
        let situation = Situation {
            min_rtt: self.rtt.min().unwrap_or_default(),
            smoothed_rtt: self.rtt.smoothed().unwrap_or(MIN_DEVIATION),
            is_recovering: self.phase >= Phase::Recovery,
            is_threshold_reached: self.board.sacked_pkts() >= self.reordering,
        };
        self.rack
            .as_ref()
            .map_or(Duration::ZERO, |rack| rack.window(&situation))
    }

    fn try_to_open(&mut self, outline: &Outline) {
        if outline.has_ece && self.phase < Phase::Cwr {
            self.undo = None;
            self.start_reduction();
            self.phase = Phase::Cwr;
            self.is_cwr_due = true;
        }
        if self.phase != Phase::Cwr {
            self.keep_open();
        }
    }

    fn keep_open(&mut self) {
        let is_disordered =
            self.board.sacked_pkts() + self.board.lost_pkts() > 0 || self.board.resent_pkts() > 0;
        let phase = if is_disordered {
            Phase::Disorder
        } else {
            Phase::Open
        };
        if self.phase != phase {
            self.phase = phase;
            self.high = self.nxt;
        }
    }

    fn enter_recovery(&mut self) {
        self.counters.recoveries += 1;
        if !self.phase.is_reducing() {
            self.start_undo(Some(self.current_ssthresh()));
            self.start_reduction();
        } else {
            self.start_undo(None);
            self.high = self.nxt;
        }
        if self.board.resent_pkts() == 0 {
            self.first_resend_ms = None;
        }
        self.phase = Phase::Recovery;
    }

    fn start_undo(&mut self, prior_ssthresh: Option<u32>) {
        self.undo = Some(Undo {
            marker: self.una,
            resent_pkts: Some(self.board.resent_pkts()).filter(|resent| *resent > 0),
            prior_cwnd: self.window.cwnd,
            prior_ssthresh,
        });
    }

    fn start_reduction(&mut self) {
        self.high = self.nxt;
        self.loss_probe = None;
        self.window.credit = 0;
        self.prr = Prr::new(self.window.cwnd);
        self.window.ssthresh = self.controller.ssthresh(&self.window);
    }

    fn end_reduction(&mut self) {
        if self.controller.is_autonomous() {
            return;
        }
        self.window.cwnd = self.window.ssthresh;
        self.controller.on_recovered(&mut self.window, self.mss);
    }

    /// Ends an episode when all of its data is acknowledged. `true`: the episode continues for another acknowledgement
    /// (RFC 6582 without SACK).
    fn finish_episode(&mut self, outline: &Outline) -> bool {
        if self.may_undo(outline) {
            self.undo_reduction(false);
        } else {
            if let Some(rack) = &mut self.rack {
                rack.on_recovery_end();
            }
            if !self.has_sack && self.una == self.high {
                return true;
            }
            self.end_reduction();
        }
        if self.board.resent_pkts() == 0 {
            self.first_resend_ms = None;
        }
        self.board.duplicate_acks = 0;
        self.phase = Phase::Open;
        false
    }

    fn try_leave_loss(&mut self, outline: &Outline) -> bool {
        let is_spurious = outline.has_original || (outline.is_advance && self.may_undo(outline));
        if is_spurious && self.undo.is_some() {
            self.undo_reduction(true);
            self.consecutive_timeouts = 0;
            self.phase = Phase::Open;
            self.keep_open();
            return true;
        }
        if self.una >= self.high {
            self.first_resend_ms = None;
            self.phase = Phase::Open;
            self.keep_open();
            return true;
        }
        false
    }

    /// Handles a partial acknowledgement of an original: no segment was lost so far.
    fn try_undo_partly(&mut self, outline: &Outline) -> bool {
        if self.undo.is_none() || !self.is_original_acked(outline.echo) {
            return false;
        }
        let highest = self.board.highest_sacked_id();
        self.on_reordering(highest.saturating_sub(outline.prior_first_id));
        if self.is_forward {
            // Old kernels stay in recovery. They restore the window, without a burst, but not the threshold.
            let prior = self.window.cwnd.max(self.window.ssthresh.saturating_mul(2));
            self.window.cwnd = prior.min(self.board.in_flight_pkts() + MAX_BURST);
            return true;
        }
        if self.board.resent_pkts() == 0 {
            self.first_resend_ms = None;
            self.undo_reduction(true);
            self.phase = Phase::Open;
            self.keep_open();
        }
        true
    }

    fn try_undo_by_dsack(&mut self) -> bool {
        let is_accounted = self.undo.is_some_and(|undo| undo.resent_pkts == Some(0));
        if is_accounted {
            self.undo_reduction(false);
            if let Some(rack) = &mut self.rack {
                rack.on_undo();
            }
            if self.phase == Phase::Recovery {
                self.phase = Phase::Disorder;
            }
        }
        is_accounted
    }

    fn may_undo(&self, outline: &Outline) -> bool {
        self.undo
            .is_some_and(|undo| undo.resent_pkts == Some(0) || self.is_original_acked(outline.echo))
    }

    /// Whether the acknowledged segment was sent before the first retransmission (Eifel test).
    fn is_original_acked(&self, echo: Option<u32>) -> bool {
        let (Some(echo), Some(first)) = (echo, self.first_resend_ms) else {
            return false;
        };
        first.wrapping_sub(echo).cast_signed() > 0
    }

    fn undo_reduction(&mut self, is_nothing_lost: bool) {
        if is_nothing_lost {
            self.board.unmark_lost();
        }
        let Some(undo) = self.undo.take() else {
            return;
        };
        if let Some(prior_ssthresh) = undo.prior_ssthresh {
            self.counters.undos += 1;
            self.controller.on_undo();
            if !self.controller.is_autonomous() {
                self.window.cwnd = self.window.cwnd.max(undo.prior_cwnd);
            }
            if self.is_forward {
                self.window.cwnd = self
                    .window
                    .cwnd
                    .min(self.board.in_flight_pkts() + MAX_BURST);
            }
            self.window.ssthresh = self.window.ssthresh.max(prior_ssthresh);
        }
    }

    fn adjust_window(
        &mut self,
        now: Instant,
        is_advance: bool,
        newly_delivered: u64,
        has_new_loss: bool,
    ) {
        if self.phase.is_reducing() {
            let delivered = u32::try_from(newly_delivered).unwrap_or(u32::MAX);
            self.reduce(delivered, is_advance && !has_new_loss);
            return;
        }
        let is_progress = if self.reordering > DUP_THRESHOLD && !self.is_forward {
            is_advance || newly_delivered > 0
        } else {
            is_advance
        };
        if is_progress && self.is_cwnd_limited() {
            // Old kernels count acknowledgements, not segments.
            let counted = if self.is_forward { 1 } else { newly_delivered };
            let ack = self.ack(now, counted);
            self.controller.on_ack(&mut self.window, &ack);
        }
    }

    fn reduce(&mut self, newly_delivered: u32, is_progress: bool) {
        if self.controller.is_autonomous() {
            return;
        }
        let in_flight = self.board.in_flight_pkts();
        let ssthresh = self.window.ssthresh;
        if let Some(cwnd) = self
            .prr
            .on_ack(newly_delivered, in_flight, ssthresh, is_progress)
        {
            self.window.cwnd = cwnd;
        }
    }

    fn ack(&self, now: Instant, newly_delivered: u64) -> Ack {
        Ack {
            now,
            acked_pkts: u32::try_from(newly_delivered).unwrap_or(u32::MAX),
            una: self.una,
            nxt: self.nxt,
        }
    }
}
