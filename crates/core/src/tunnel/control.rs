//! What the two ends tell each other: probes, reports, what is missing, ends of bursts, packet trains, link descriptions.
//!
//! Reports travel on the best path back, and every [`SECOND_REPORT`] on the second best too, so that a path that is dead
//! in one direction does not silence what is said of the others.

use core::{cmp::Reverse, time::Duration};

use super::{Shared, Tunnel, path_in};
use crate::{
    counters::DropReason,
    ids::PathId,
    path::{
        Path, Pong, ReportOutcome, rate::DeliveryRate, sender::MAX_OUTSTANDING,
        train::TRAIN_PACKET_BYTES,
    },
    profile::{Mechanism, Pacing},
    role::Role,
    sched::Scheduler,
    time::Instant,
    trace::{Event, RepairCause},
    transmit::TxQueue,
    units::{Bitrate, Bytes},
    wire::control::{
        Frame, FrameWriter, Frames, MAX_RANGES, MissingRanges, MissingWriter, PathReport,
    },
    wire::header::{CONTROL_HEADER_LEN, TAG_LEN},
};

impl Tunnel {
    /// Sends the control datagrams that are due.
    pub(super) fn send_control(&mut self, now: Instant, out: &mut TxQueue) {
        if self.is_closing {
            return self.send_close(now, out);
        }
        for index in 0..PathId::MAX {
            if out.is_full() {
                return;
            }
            if self.paths[index].is_some() {
                self.send_path_control(now, index, out);
                self.probe_mtu(now, index, out);
                self.send_train(now, index, out);
            }
        }
        // More than once if more is missing than fits.
        let mut is_first = true;
        while self.send_reports(now, is_first, out) {
            is_first = false;
        }
        self.send_losses(now, out);
        self.send_templates(now, out);
    }

    /// Answers, probes and descriptions, which travel on the path they concern.
    fn send_path_control(&mut self, now: Instant, index: usize, out: &mut TxQueue) {
        let Some(path) = self.paths[index].as_deref_mut() else {
            return;
        };
        if path.route().is_none() {
            return;
        }
        let id = path.id();
        let mut body = [0; MAX_BODY];
        let mut writer = FrameWriter::new(&mut body);
        path.write_control(now, &mut writer);
        if writer.is_empty() {
            return;
        }
        let len = writer.len();
        self.seal_control(now, id, &body[..len], out);
    }

    /// Sends what is due of a packet train, back to back.
    fn send_train(&mut self, now: Instant, index: usize, out: &mut TxQueue) {
        while self.profile.trains && !out.is_full() {
            let Some(path) = self.paths[index].as_deref_mut() else {
                return;
            };
            let id = path.id();
            let mut body = [0; TRAIN_PACKET_BYTES];
            let mut writer = FrameWriter::new(&mut body);
            if !path.write_train(now, &mut writer) {
                return;
            }
            let len = writer.len();
            self.seal_control(now, id, &body[..len], out);
        }
    }

    /// Sends one datagram of the reports that are due; whether there was any.
    /// `is_first`: of those sent now; it tells what was recovered.
    fn send_reports(&mut self, now: Instant, is_first: bool, out: &mut TxQueue) -> bool {
        if out.is_full() {
            return false;
        }
        let is_due = |path: &Path| path.receiver().report_due().is_some_and(|due| due <= now);
        if !self.paths().any(is_due) {
            return false;
        }
        let Some(best) = self.best_path() else {
            return false;
        };
        let mut body = [0; MAX_BODY];
        let mut writer = FrameWriter::new(&mut body);
        let mut recovered = MissingWriter::default();
        if is_first {
            self.fec_receiving.tell(&mut recovered);
        }
        if let Some(ranges) = recovered.ranges() {
            let _ = writer.push(&Frame::Recovered { ranges });
        }
        for path in self.paths.iter_mut().filter_map(Option::as_deref_mut) {
            if path.receiver().report_due().is_none() || writer.room() < MAX_REPORT {
                continue;
            }
            let mut missing = MissingWriter::default();
            if let Some(report) = path.receiver_mut().take_report(now, &mut missing) {
                let path = path.id();
                // First what is missing: the report says it has been told.
                if let Some(ranges) = missing.ranges() {
                    let _ = writer.push(&Frame::Missing { path, ranges });
                }
                let _ = writer.push(&Frame::Report { path, report });
            }
        }
        let len = writer.len();
        self.seal_control(now, best, &body[..len], out);
        if self.profile.has(Mechanism::SecondReport)
            && self.second_report_at.is_none_or(|at| at <= now)
            && let Some(second) = self.second_path(best)
        {
            let cost = |id| self.path(id).map(|path| path.link().cost);
            let pause = if cost(second) > cost(best) {
                DEAR_REPORT
            } else {
                SECOND_REPORT
            };
            self.second_report_at = Some(now + pause);
            self.seal_control(now, second, &body[..len], out);
        }
        true
    }

    /// The path heard from last: better than none while no path is known to work.
    pub(super) fn newest_path(&self) -> Option<PathId> {
        let routed = self.paths().filter(|path| path.route().is_some());
        routed
            .max_by_key(|path| path.receiver().heard_at())
            .map(Path::id)
    }

    fn send_close(&mut self, now: Instant, out: &mut TxQueue) {
        let mut body = [0; 8];
        let mut writer = FrameWriter::new(&mut body);
        let _ = writer.push(&Frame::Close);
        let len = writer.len();
        for index in 0..PathId::MAX {
            if let Some(id) = self.paths[index].as_deref().map(Path::id) {
                self.seal_control(now, id, &body[..len], out);
            }
        }
        self.sessions.clear();
    }

    /// Acts on the frames of an authenticated control datagram that came on `id`.
    pub(super) fn handle_frames(
        &mut self,
        now: Instant,
        id: PathId,
        body: &[u8],
        shared: &mut Shared<'_>,
    ) {
        let mut missing_left = MAX_OUTSTANDING;
        for frame in Frames::new(body) {
            match frame {
                Frame::Ping { token, size } => {
                    if let Some(path) = self.path_mut(id) {
                        path.on_ping(token, size);
                    }
                }
                Frame::Pong { token, .. } => self.on_pong(now, id, token, shared),
                Frame::Report { path, report } => self.on_report(now, path, &report, shared),
                Frame::Link {
                    path,
                    version,
                    info,
                } => {
                    // Links belong to the client: nobody else describes them.
                    if self.role == Role::Gateway
                        && let Some(path) = self.path_mut(path)
                        && path.describe(now, version, &info)
                    {
                        self.resolve_policy();
                        self.adapt_queue(now);
                    }
                }
                Frame::LinkAck { path, version } => {
                    if let Some(path) = self.path_mut(path) {
                        path.on_description_acked(version);
                    }
                }
                Frame::Close => self.is_closed_by_peer = true,
                Frame::Reception { version, reception } => {
                    self.on_reception(now, version, &reception, shared);
                }
                Frame::ReceptionAck { version } => self.on_reception_ack(version),
                Frame::Losses { path, report } => self.on_losses(now, path, &report),
                Frame::Tail {
                    path_seq,
                    global_seq,
                } => {
                    if let Some(path) = self.path_mut(id) {
                        path.on_tail(now, path_seq);
                    }
                    let last = (path_seq, global_seq);
                    let before = shared.delivered.len();
                    self.resequencer.on_tail(now, id, last, shared.delivered);
                    self.keep_round_trips(now, before, shared);
                }
                Frame::TrainPacket(packet) => {
                    if let Some(path) = self.path_mut(id) {
                        let len = Bytes::of_len(body.len() + CONTROL_OVERHEAD);
                        path.on_train_arrival(now, packet, len);
                    }
                }
                Frame::Train(result) => {
                    if let Some(path) = self.path_mut(id) {
                        path.on_train_result(now, &result);
                    }
                }
                Frame::Template {
                    number,
                    travelling,
                    headers,
                } => self.on_template(number, travelling, headers),
                Frame::TemplateAck { number } => self.compressor.on_acknowledged(number),
                Frame::TemplateUnknown { number } => self.compressor.on_unknown(number),
                Frame::Parity {
                    code,
                    path,
                    path_seq,
                    len,
                    parity,
                } => {
                    let of = (path, path_seq);
                    self.sec
                        .on_parity(now, of, (code, len), parity, shared.pool);
                }
                Frame::Recovered { ranges } => self.on_recovered(ranges),
                Frame::Missing { path, ranges } => {
                    self.on_missing(now, path, ranges, &mut missing_left, shared);
                }
            }
        }
    }

    fn on_pong(&mut self, now: Instant, id: PathId, token: u32, shared: &mut Shared<'_>) {
        let gain = self
            .profile
            .rtt_sampling
            .and_then(|sampling| sampling.gain_thousandths);
        let Some(path) = self.path_mut(id) else {
            return;
        };
        match path.on_pong(now, token, gain) {
            Pong::Mtu => self.look_for_narrow(now),
            Pong::Rtt { is_back } => {
                if is_back {
                    self.on_path_back(now, id, shared);
                }
                self.view_paths(now);
                self.scheduler.on_paths(&self.views);
            }
            Pong::Unknown => {}
        }
    }

    fn on_report(
        &mut self,
        now: Instant,
        id: PathId,
        report: &PathReport,
        shared: &mut Shared<'_>,
    ) {
        let Some(path) = path_in(&mut self.paths, id) else {
            return;
        };
        let (from, _) = path.control_state();
        let outcome = path.on_report(now, report, shared.pool);
        let Some(ReportOutcome { reported, is_back }) = outcome else {
            return;
        };
        let (to, pace) = path.control_state();
        if to != from {
            self.tracer.tell(now, || Event::RateControl {
                path: id,
                from,
                to,
                pace,
            });
        }
        // Datagrams taken back as silent were not: a lost one will be NACKed.
        self.give_back(id, |counter| counter < reported, shared);
        if is_back {
            self.on_path_back(now, id, shared);
        }
        self.adapt_queue(now);
    }

    /// What a path that varies may have waiting while it is slow. What a flow has under way is what fills the path once it is
    /// fast again, and is regained in seconds only. So a flow that backs off by 30 % is to keep what fills the paths at
    /// the best of the last half minute, in a round trip of `span`.
    fn allowance(&self, span: Duration) -> Bytes {
        let rates = |rate: fn(&DeliveryRate) -> Option<Bitrate>| {
            let usable = self.paths().filter(|path| path.health().is_usable());
            let rates = usable.filter_map(|path| rate(path.rate()));
            rates.fold(0_u64, |sum, rate| sum.saturating_add(rate.as_bps()))
        };
        let before = Bitrate::from_bps(rates(DeliveryRate::peak)).scale(10, 7);
        let now = Bitrate::from_bps(rates(DeliveryRate::smoothed));
        before.saturating_sub(now).bytes_in(span)
    }

    /// What the other end misses on a path goes again, before anything new, if it is still kept and worth its cost.
    ///
    /// `left`: how many numbers one datagram may still name.
    fn on_missing(
        &mut self,
        now: Instant,
        id: PathId,
        ranges: MissingRanges<'_>,
        left: &mut usize,
        shared: &mut Shared<'_>,
    ) {
        let Some(path) = path_in(&mut self.paths, id) else {
            return;
        };
        let before = self.reinject.len();
        let round_trip = path.rtt().min().unwrap_or(Duration::MAX);
        let floor_ppm = path.loss_floor_ppm();
        for (first, count) in ranges {
            for offset in 0..u32::from(count) {
                if *left == 0 {
                    break;
                }
                *left -= 1;
                // What nobody waits for is no loss: a copy that searches a path, an acknowledgement, a symbol.
                let lost = path.sender_mut().take_lost(now, id, first.plus(offset));
                let Some((numbered, is_free)) = lost else {
                    continue;
                };
                // A packet with a deadline may be too late when it is sent again, however soon; without repair none is.
                let has_deadline = numbered
                    .packet
                    .mark()
                    .is_some_and(|mark| mark.due.is_some());
                let round_trip = if has_deadline || !self.profile.repair {
                    Duration::MAX
                } else {
                    round_trip
                };
                // A path that was silent tells nothing of what it loses otherwise.
                if !is_free {
                    path.on_nacked(now);
                    self.fec_sending.on_lost(id, round_trip, floor_ppm);
                }
                self.fec_sending.on_repair(now);
                self.fec_sending.on_missing(numbered.global_seq);
                if !self.profile.repair || self.fec_sending.has_recovered(numbered.global_seq) {
                    shared.pool.recycle(numbered.packet);
                } else if is_free || self.repairs.try_spend(numbered.packet.len()) {
                    self.reinject.push_back(numbered);
                } else {
                    shared.drops.add(DropReason::Expired, 1);
                    shared.pool.recycle(numbered.packet);
                }
            }
        }
        let repaired = self.reinject.len() - before;
        self.counts.repaired += repaired as u64;
        self.tell_repair(now, id, RepairCause::Nacked, repaired);
        if repaired > 0 {
            self.sort_reinjected();
        }
    }

    /// A flow that backs off by 30 %, as CUBIC does, keeps the paths full only if 3/7 of a round trip waits here; flow
    /// queueing keeps that from delaying others.
    ///
    /// Where nothing is paced nothing stands here for the paths' sake, and congestion is signalled by their losses.
    pub(super) fn adapt_queue(&mut self, now: Instant) {
        let ack_room = if self.profile.has(Mechanism::AckThinning) {
            self.ack_room()
        } else {
            Bytes::new(u64::MAX)
        };
        self.queue.set_ack_room(ack_room);
        let is_limited = |path: &Path| path.pacer().rate().is_some();
        if self.profile.path_pacing() == Pacing::Limits && !self.paths().any(is_limited) {
            self.lanes.set_target(Duration::MAX);
            return self.queue.set_target(Duration::MAX);
        }
        let usable = || self.paths().filter(|path| path.health().is_usable());
        let is_used = |path: &&Path| self.fec_sending.carries(path.id());
        let longest = usable().filter(is_used).filter_map(Path::loaded_rtt).max();
        // Senders whose round trips are kept long see those.
        let kept = self.round_trips.longest();
        let longest = longest.unwrap_or_default().max(kept);
        let target = longest * 3 / 7;
        // Of packets that are few, one that leaves is much.
        let rates = usable().filter_map(|path| path.rate().max());
        let bps = rates.fold(0_u64, |sum, rate| sum.saturating_add(rate.as_bps()));
        let rate = Bitrate::from_bps(bps);
        let packets = if rate > Bitrate::ZERO {
            (TARGET_BYTES / rate).min(LEAST_TARGET * 4)
        } else {
            Duration::ZERO
        };
        let mut target = (target + packets).clamp(LEAST_TARGET, LARGEST_TARGET);
        // What waits while a path's rate is being found out is no sign of congestion.
        let is_searching = |path: &Path| path.health().is_usable() && path.is_searching();
        if self.profile.has(Mechanism::SearchTarget) && self.paths().any(is_searching) {
            target = (target * 4).min(LARGEST_TARGET);
        }
        self.lanes.set_target(target);
        // Late paths take what waits for so long. Which of them may serve changes from look to look.
        self.late
            .insert(now, Reverse(self.scheduler.longest_wait(&self.views)));
        let late = self.late.min().map_or(Duration::ZERO, |Reverse(late)| late);
        let late = (late * 5 / 4).saturating_sub(self.ahead.waited());
        let queue_target = target.max(late);
        self.queue.set_target(queue_target);
        let allowance = if self.profile.has(Mechanism::Allowance) {
            self.allowance(longest + packets)
        } else {
            Bytes::ZERO
        };
        self.queue.set_allowance(allowance, LONGEST_ALLOWED);
        // BBR keeps up to a round trip waiting, whatever is dropped, and what it overrates the rate by. Who listens has drained
        // the queue after four of them and a little.
        let beyond = (longest * 3 / 2).max(LEAST_LIMIT);
        let patience = if self.profile.has(Mechanism::AgeLimit) {
            longest * 4 + PATIENCE
        } else {
            Duration::MAX
        };
        self.queue.set_limit(queue_target + beyond, patience);
        self.lanes.set_limit(target + beyond, patience);
    }
}

impl Tunnel {
    /// How much of a flow may wait with all its acknowledgements: what the quickest path sends in [`ACK_TIME`]; anything, while that
    /// is not known.
    fn ack_room(&self) -> Bytes {
        let usable = self.paths().filter(|path| self.may_carry(path));
        let known = usable.filter_map(|path| Some((path.rtt().min()?, path.rate().max())));
        let quickest = known.min_by_key(|(rtt, _)| *rtt);
        let rate = quickest.and_then(|(_, rate)| rate);
        rate.map_or(Bytes::new(u64::MAX), |rate| rate.bytes_in(ACK_TIME))
    }
}

/// CoDel's own (RFC 8289 section 4.4).
const LEAST_TARGET: Duration = Duration::from_millis(5);
const LARGEST_TARGET: Duration = Duration::from_millis(150);
/// However fast a path was, its slower days end sometime.
const LONGEST_ALLOWED: Duration = Duration::from_millis(600);
/// Two full packets.
const TARGET_BYTES: Bytes = Bytes::new(3_000);
/// More of a flow's acknowledgements need not wait: of so much no sender takes notice.
const ACK_TIME: Duration = Duration::from_micros(500);
/// What a modem's queue adds when it is well set.
const LEAST_LIMIT: Duration = Duration::from_millis(60);
/// What a sender may take beside round trips: its own timers.
const PATIENCE: Duration = Duration::from_millis(500);
/// Longest control body in bytes: fits every path.
pub(super) const MAX_BODY: usize = 1100;
/// What a control datagram is longer than its frames, without UDP and IP.
const CONTROL_OVERHEAD: usize = CONTROL_HEADER_LEN + TAG_LEN;
/// Room a report and what is missing may take, in bytes.
const MAX_REPORT: usize = 60 + 6 * MAX_RANGES;
/// How often reports also travel on the second best path.
const SECOND_REPORT: Duration = Duration::from_millis(50);
/// The same if that path is dearer: as often as it is probed anyway.
const DEAR_REPORT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::{
        counters::Drops,
        packet::Pool,
        path::link::Link,
        queue::QueueConfig,
        sched::Policy,
        wire::control::{LinkInfo, LinkRole},
    };

    #[test]
    fn only_a_client_describes_links() {
        let info = LinkInfo {
            name: "theirs",
            cost: 9,
            role: LinkRole::Never,
            weight: 7,
            download: None,
            mtu: 1280,
        };
        let mut body = [0; 100];
        let mut writer = FrameWriter::new(&mut body);
        assert!(writer.push(&Frame::Link {
            path: PathId(0),
            version: 99,
            info,
        }));
        for (role, is_taken) in [(Role::Gateway, true), (Role::Client, false)] {
            let mut tunnel = Tunnel::new(role, Policy::Weighted {}.into(), QueueConfig::default());
            tunnel.add_path(Instant::ZERO, PathId(0), Link::named("ours"));
            let mut shared = Shared {
                pool: &mut Pool::new(1, 100),
                delivered: &mut VecDeque::new(),
                drops: &mut Drops::default(),
            };
            tunnel.handle_frames(Instant::ZERO, PathId(0), &body, &mut shared);
            let path = tunnel.path(PathId(0)).expect("added");
            assert_eq!(path.link().name == "theirs", is_taken);
            assert_eq!(path.link().role == LinkRole::Never, is_taken);
            assert_eq!(path.announced_version() == 99, is_taken);
            assert_eq!(path.owed_link_ack() == Some(99), is_taken);
        }
    }
}
