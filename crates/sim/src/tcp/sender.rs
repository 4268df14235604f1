//! The sending half of a connection: decides what to send and when. Loss detection and recovery are in [`recovery`].
//!
//! Positions count the bytes of the stream in 64 bits: 0 is the SYN, 1 is the first byte, and the position after the
//! last byte is the FIN. The window is in segments. It grows only while it limits the sender (Linux's
//! `is_cwnd_limited`; the aim of RFC 7661). After an idle time it is halved for each retransmission timeout that has
//! passed, down to the initial window (RFC 5681 section 4.1).

mod recovery;

use core::{ops::Range, time::Duration};

use pleach_core::time::{Instant, saturating_nanos};

use self::recovery::{Phase, Undo};
use super::{
    Recovery, TcpConfig, TcpStats,
    congestion::{Controller, Window},
    pacer::Pacer,
    prr::Prr,
    rack::Rack,
    rate::RateSampler,
    rtt::{MIN_DEVIATION, RttEstimator},
    scoreboard::Scoreboard,
};

/// Segments of reordering that are tolerated before any reordering was detected (RFC 5681's three duplicates).
const DUP_THRESHOLD: u32 = 3;

/// Linux's smallest timeout: two ticks of a millisecond.
const TICKS: Duration = Duration::from_millis(2);

/// End position of an unlimited stream, which is never reached.
const NEVER: u64 = u64::MAX / 2;

/// Parameters that the peer and the handshake determine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Negotiated {
    /// Largest payload in bytes.
    pub(super) mss: u32,
    pub(super) has_sack: bool,
    /// Position after the last one that the peer accepts.
    pub(super) window_end: u64,
    /// Whether the SYN or SYN-ACK was lost. Then RFC 5681 section 3.1 requires an initial window of one segment.
    pub(super) was_retransmitted: bool,
}

/// Content of an acknowledgement, translated to positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckInfo<'a> {
    pub(super) now: Instant,
    pub(super) ack: u64,
    pub(super) window_end: u64,
    /// SACK blocks in ascending order.
    pub(super) sack: &'a [(u64, u64)],
    pub(super) dsack: Option<(u64, u64)>,
    /// This endpoint's timestamp in milliseconds, as the peer echoes it.
    pub(super) echo: Option<u32>,
    pub(super) has_ece: bool,
    pub(super) has_payload: bool,
}

/// A segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) start: u64,
    /// Position after the payload. A FIN is not counted.
    pub(super) end: u64,
    pub(super) has_fin: bool,
    pub(super) is_resend: bool,
    /// Whether the segment answers ECE.
    pub(super) has_cwr: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimerKind {
    LossProbe,
    Retransmission,
    WindowProbe,
}

/// A tail loss probe in flight (RFC 8985 section 7).
#[derive(Clone, Copy, Debug)]
struct LossProbe {
    high: u64,
    is_resend: bool,
}

/// Use of the window in the current round.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    is_cwnd_limited: bool,
    max_outstanding: u32,
    until: u64,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    retransmits: u64,
    timeouts: u64,
    recoveries: u64,
    undos: u64,
    dsacks: u64,
    loss_probes: u64,
}

/// Sender of one direction.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    board: Scoreboard,
    una: u64,
    nxt: u64,
    stream_end: u64,
    is_closing: bool,
    mss: u32,
    initial_window: u32,
    has_sack: bool,
    is_nagle: bool,
    window_end: u64,
    rtt: RttEstimator,
    /// State of RACK. `None`: losses are detected by counting.
    rack: Option<Rack>,
    /// Whether losses are detected by distance (forward acknowledgement).
    is_forward: bool,
    window: Window,
    controller: Controller,
    sampler: RateSampler,
    pacer: Pacer,
    /// Time at which the pacer permits a segment that could otherwise be sent now.
    departure_at: Option<Instant>,
    prr: Prr,
    phase: Phase,
    /// Position whose acknowledgement ends the current episode.
    high: u64,
    undo: Option<Undo>,
    /// Time of the first retransmission of an episode, in milliseconds of the timestamp clock.
    first_resend_ms: Option<u32>,
    reordering: u32,
    max_reordering: u32,
    timer: Option<(Instant, TimerKind)>,
    reorder_at: Option<Instant>,
    loss_probe: Option<LossProbe>,
    due_probe: Option<TimerKind>,
    usage: Usage,
    last_sent_at: Instant,
    last_small_end: u64,
    is_cwr_due: bool,
    /// Number of timeouts since data was last acknowledged.
    consecutive_timeouts: u32,
    counters: Counters,
}

impl Sender {
    /// Begins at position 1, after the handshake. `rtt` contains the RTT sample of the handshake, if there is one.
    pub(super) fn new(config: &TcpConfig, negotiated: Negotiated, rtt: RttEstimator) -> Self {
        let initial_window = if negotiated.was_retransmitted {
            1
        } else {
            config.initial_window.max(1)
        };
        let smoothed_rtt = rtt.smoothed();
        Self {
            board: Scoreboard::default(),
            una: 1,
            nxt: 1,
            stream_end: 1,
            is_closing: false,
            mss: negotiated.mss,
            initial_window: config.initial_window.max(1),
            has_sack: negotiated.has_sack,
            is_nagle: config.nagle,
            window_end: negotiated.window_end,
            rtt,
            rack: (config.recovery == Recovery::Rack && negotiated.has_sack).then(Rack::new),
            is_forward: config.recovery == Recovery::Forward && negotiated.has_sack,
            window: Window::new(initial_window),
            controller: Controller::new(config.cc, initial_window, negotiated.mss, smoothed_rtt),
            sampler: RateSampler::default(),
            pacer: Pacer::default(),
            departure_at: None,
            prr: Prr::default(),
            phase: Phase::Open,
            high: 1,
            undo: None,
            first_resend_ms: None,
            reordering: DUP_THRESHOLD,
            max_reordering: config.max_reordering.max(DUP_THRESHOLD),
            timer: None,
            reorder_at: None,
            loss_probe: None,
            due_probe: None,
            usage: Usage::default(),
            last_sent_at: Instant::ZERO,
            last_small_end: 0,
            is_cwr_due: false,
            consecutive_timeouts: 0,
            counters: Counters::default(),
        }
    }

    /// Adds `bytes` to the stream. `None`: the stream becomes unlimited. Ignored after [`close`](Self::close).
    pub(super) fn write(&mut self, bytes: Option<u64>) {
        if !self.is_closing {
            self.note_app_limit();
            let bytes = bytes.unwrap_or(NEVER);
            self.stream_end = self.stream_end.saturating_add(bytes).min(NEVER);
        }
    }

    /// Sends a FIN after the last byte written. An unlimited stream ends at the current position.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
        if self.stream_end >= NEVER {
            self.stream_end = self.nxt;
        }
    }

    /// Whether [`close`](Self::close) was called.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Whether the FIN was acknowledged.
    pub(super) fn is_finished(&self) -> bool {
        self.is_closing && self.una > self.stream_end
    }

    /// Returns the next position to be sent.
    pub(super) fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Returns the first position that is not acknowledged.
    pub(super) fn una(&self) -> u64 {
        self.una
    }

    /// Returns the number of acknowledged bytes of the stream.
    pub(super) fn acked_bytes(&self) -> u64 {
        self.una.min(self.stream_end) - 1
    }

    pub(super) fn consecutive_timeouts(&self) -> u32 {
        self.consecutive_timeouts
    }

    pub(super) fn smoothed_rtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    pub(super) fn rto(&self) -> Duration {
        self.rtt.rto()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timer = crate::link::earliest(self.timer.map(|(at, _)| at), self.reorder_at);
        crate::link::earliest(timer, self.departure_at)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.reorder_at.is_some_and(|at| at <= now) {
            self.reorder_at = None;
            self.on_reorder_timer(now);
        }
        let Some((_, kind)) = self.timer.filter(|(at, _)| *at <= now) else {
            return;
        };
        self.timer = None;
        match kind {
            TimerKind::Retransmission => {
                if self.board.outstanding_pkts() > 0 {
                    self.on_retransmission_timeout(now);
                }
            }
            TimerKind::LossProbe => {
                if self.loss_probe.is_none() {
                    self.due_probe = Some(kind);
                }
                self.arm_retransmission(now);
            }
            TimerKind::WindowProbe => {
                self.rtt.back_off();
                self.due_probe = Some(kind);
            }
        }
    }

    /// Returns the next segment to send.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if let Some(kind) = self.due_probe.take()
            && let Some(probe) = self.send_probe(now, kind)
        {
            return Some(probe);
        }
        self.departure_at = None;
        if self.board.in_flight_pkts() < self.window.cwnd
            && let Some(id) = self.board.next_lost()
        {
            return if self.is_held(now) {
                None
            } else {
                self.resend(now, id)
            };
        }
        self.restart_after_idle(now);
        let next = self
            .next_new()
            .filter(|_| self.board.in_flight_pkts() < self.window.cwnd);
        if let Some((end, has_fin)) = next {
            if self.is_held(now) {
                return None;
            }
            return Some(self.send_new(now, end, has_fin));
        }
        self.validate_window();
        self.arm_window_probe(now);
        None
    }

    pub(super) fn stats(&self) -> TcpStats {
        TcpStats {
            cwnd_pkts: self.window.cwnd,
            ssthresh_pkts: Some(self.window.ssthresh).filter(|s| *s < u32::MAX),
            in_flight_pkts: self.board.in_flight_pkts(),
            smoothed_rtt: self.rtt.smoothed(),
            min_rtt: self.rtt.min(),
            rto: self.rtt.rto(),
            acked_bytes: self.acked_bytes(),
            delivered_pkts: self.board.delivered_pkts,
            lost_pkts: self.board.total_lost_pkts,
            retransmits: self.counters.retransmits,
            timeouts: self.counters.timeouts,
            recoveries: self.counters.recoveries,
            undos: self.counters.undos,
            dsacks: self.counters.dsacks,
            loss_probes: self.counters.loss_probes,
            reordering_pkts: self.reordering,
            ..TcpStats::default()
        }
    }

    /// Returns the end of the next new segment and whether it carries a FIN, if the peer's window and Nagle's algorithm
    /// permit it.
    fn next_new(&self) -> Option<(u64, bool)> {
        let remaining = self.stream_end.saturating_sub(self.nxt);
        let may_fin = self.is_closing && self.nxt <= self.stream_end;
        if remaining == 0 && !may_fin {
            return None;
        }
        let room = self.window_end.saturating_sub(self.nxt);
        let mss = u64::from(self.mss);
        let len = remaining.min(room).min(mss);
        let is_last = len == remaining;
        if len < mss && !is_last && (len == 0 || self.board.outstanding_pkts() > 0) {
            // Silly window syndrome avoidance, RFC 9293 section 3.8.6.2.1.
            return None;
        }
        if len < mss
            && is_last
            && !self.is_closing
            && self.is_nagle
            && self.last_small_end > self.una
        {
            // Nagle's algorithm as in Linux (Minshall): one small segment at a time.
            return None;
        }
        Some((self.nxt + len, is_last && may_fin))
    }

    fn send_new(&mut self, now: Instant, end: u64, has_fin: bool) -> Outgoing {
        let start = self.nxt;
        self.nxt = end + u64::from(has_fin);
        if end - start < u64::from(self.mss) {
            self.last_small_end = self.nxt;
        }
        let was_idle = self.board.outstanding_pkts() == 0;
        if self.board.in_flight_pkts() == 0 && self.sampler.is_app_limited() {
            self.controller.on_restart(now, &mut self.window);
        }
        let delivered_pkts = self.board.delivered_pkts;
        let mark = self.sampler.mark(now, was_idle, delivered_pkts);
        self.board.push(now, start..self.nxt, has_fin, mark);
        self.on_sent(now, end - start);
        if was_idle || !matches!(self.timer, Some((_, TimerKind::Retransmission))) {
            self.arm_probe_or_retransmission(now);
        }
        Outgoing {
            start,
            end,
            has_fin,
            is_resend: false,
            has_cwr: core::mem::take(&mut self.is_cwr_due),
        }
    }

    fn resend(&mut self, now: Instant, id: u64) -> Option<Outgoing> {
        let mark = self.sampler.mark(now, false, self.board.delivered_pkts);
        let segment = self.board.resend(now, id, mark)?;
        self.counters.retransmits += 1;
        self.first_resend_ms.get_or_insert(timestamp(now));
        if let Some(undo) = &mut self.undo {
            undo.resent_pkts = Some(undo.resent_pkts.unwrap_or(0) + 1);
        }
        if id == self.board.first_id() {
            self.arm_retransmission(now);
        }
        self.on_sent(now, segment.end - segment.start);
        Some(Outgoing {
            start: segment.start,
            end: segment.end - u64::from(segment.has_fin),
            has_fin: segment.has_fin,
            is_resend: true,
            has_cwr: false,
        })
    }

    fn on_sent(&mut self, now: Instant, len_bytes: u64) {
        self.last_sent_at = now;
        if let Some(pacing) = self.controller.pacing() {
            self.pacer.on_sent(now, len_bytes, pacing);
        }
        if self.phase.is_reducing() {
            self.prr.on_sent();
        }
    }

    /// Whether the pacer delays data that could be sent. Then the next event is the time at which the pacer permits
    /// the data.
    fn is_held(&mut self, now: Instant) -> bool {
        let at = self.pacer.next_at(now);
        let is_held = at > now && self.controller.pacing().is_some();
        self.departure_at = is_held.then_some(at);
        is_held
    }

    /// Marks segments as application-limited if the application limits the sender.
    fn note_app_limit(&mut self) {
        let has_less_than_a_segment =
            self.stream_end.saturating_sub(self.nxt) < u64::from(self.mss);
        if has_less_than_a_segment
            && self.board.in_flight_pkts() < self.window.cwnd
            && self.board.lost_pkts() <= self.board.resent_pkts()
        {
            self.note_low_flight();
        }
    }

    /// Marks segments as application-limited, because less data is in flight than the path could carry.
    fn note_low_flight(&mut self) {
        let until = self.board.delivered_pkts + u64::from(self.board.in_flight_pkts());
        self.sampler.on_app_limited(until);
    }

    fn send_probe(&mut self, now: Instant, kind: TimerKind) -> Option<Outgoing> {
        if kind == TimerKind::WindowProbe {
            // A segment with an old position makes the peer report its window.
            let start = self.una.saturating_sub(1);
            return Some(Outgoing {
                start,
                end: start,
                has_fin: false,
                is_resend: true,
                has_cwr: false,
            });
        }
        let last = self.board.last_undelivered_id()?;
        self.counters.loss_probes += 1;
        let outgoing = match self.next_new() {
            Some((end, has_fin)) => self.send_new(now, end, has_fin),
            None => self.resend(now, last)?,
        };
        self.loss_probe = Some(LossProbe {
            high: self.nxt,
            is_resend: outgoing.is_resend,
        });
        self.arm_retransmission(now);
        Some(outgoing)
    }

    fn arm_retransmission(&mut self, now: Instant) {
        self.timer = (self.board.outstanding_pkts() > 0)
            .then(|| (now + self.rtt.rto(), TimerKind::Retransmission));
    }

    /// Schedules a tail loss probe if one may be sent (RFC 8985 section 7.2), never later than the retransmission
    /// timer.
    fn arm_probe_or_retransmission(&mut self, now: Instant) {
        self.arm_retransmission(now);
        let outstanding = self.board.outstanding_pkts();
        if self.rack.is_none() || outstanding == 0 || self.loss_probe.is_some() {
            return;
        }
        let (Phase::Open | Phase::Cwr, Some(smoothed)) = (self.phase, self.rtt.smoothed()) else {
            return;
        };
        let margin = if outstanding == 1 {
            MIN_DEVIATION
        } else {
            TICKS
        };
        let delay = (smoothed * 2 + margin).min(self.rtt.rto());
        self.timer = Some((now + delay, TimerKind::LossProbe));
    }

    fn arm_window_probe(&mut self, now: Instant) {
        let has_data =
            self.nxt < self.stream_end || (self.is_closing && self.nxt == self.stream_end);
        if self.timer.is_none()
            && has_data
            && self.board.outstanding_pkts() == 0
            && self.next_new().is_none()
        {
            self.timer = Some((now + self.rtt.rto(), TimerKind::WindowProbe));
        }
    }

    fn restart_after_idle(&mut self, now: Instant) {
        if self.board.outstanding_pkts() > 0
            || self.nxt == 1
            || self.controller.is_autonomous()
            || self.next_new().is_none()
        {
            return;
        }
        let idle = now.since(self.last_sent_at);
        self.controller.on_idle(now, idle);
        let rto_ns = saturating_nanos(self.rtt.rto()).max(1);
        let timeouts = saturating_nanos(idle) / rto_ns;
        if timeouts > 0 {
            self.window.ssthresh = self.current_ssthresh();
            let floor = self.initial_window.min(self.window.cwnd);
            let shift = u32::try_from(timeouts).unwrap_or(31).min(31);
            self.window.cwnd = (self.window.cwnd >> shift).max(floor);
        }
        self.last_sent_at = now;
    }

    /// Records, when no more data can be sent, whether the congestion window was the limit.
    fn validate_window(&mut self) {
        let outstanding = self.board.outstanding_pkts();
        let is_cwnd_limited = self.board.in_flight_pkts() >= self.window.cwnd;
        if self.una >= self.usage.until
            || is_cwnd_limited
            || (!self.usage.is_cwnd_limited && outstanding > self.usage.max_outstanding)
        {
            self.usage = Usage {
                is_cwnd_limited,
                max_outstanding: outstanding,
                until: self.nxt,
            };
        }
    }

    fn is_cwnd_limited(&self) -> bool {
        self.usage.is_cwnd_limited
            || (self.window.is_slow_start()
                && self.window.cwnd < self.usage.max_outstanding.saturating_mul(2))
    }
}

/// Returns the timestamp clock: milliseconds, wrapping.
pub(super) fn timestamp(now: Instant) -> u32 {
    let millis = now.as_nanos() / 1_000_000;
    u32::try_from(millis & u64::from(u32::MAX)).unwrap_or(0)
}

/// Returns the length of a range of positions in segments of `mss`, rounded up.
fn pkts_of(range: &Range<u64>, mss: u32) -> u32 {
    let pkts = range
        .end
        .saturating_sub(range.start)
        .div_ceil(u64::from(mss.max(1)));
    u32::try_from(pkts).unwrap_or(u32::MAX)
}
