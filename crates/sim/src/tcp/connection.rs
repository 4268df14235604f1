//! One endpoint of a connection: the handshake, sequence numbers on the wire, and the sending and receiving half.

use core::ops::Range;

use pleach_core::time::Instant;

use super::{
    TcpConfig, TcpStats,
    receiver::Receiver,
    rtt::RttEstimator,
    segment::{
        Flags, HEADER_LEN, MAX_SACK_BLOCKS, MAX_WINDOW_SCALE, SackBlocks, Segment, Timestamps,
    },
    sender::{AckInfo, Negotiated, Outgoing, Sender, timestamp},
};

/// Length in bytes of the timestamps option with padding.
const TIMESTAMPS_LEN: usize = 12;

/// Segment size assumed for a peer that does not announce its segment size, RFC 9293 section 3.7.1.
const DEFAULT_MSS: u16 = 536;

/// Smallest and largest segment size: Linux's `TCP_MIN_MSS`, and the payload of the largest IPv4 packet.
const MIN_MSS: usize = 88;
const MAX_MSS: usize = 65_495;

/// Largest window, RFC 7323 section 2.3.
const MAX_WINDOW: u64 = 1 << 30;

/// Number of SYN retransmissions before the connection is given up, Linux's `tcp_syn_retries`.
const SYN_RETRIES: u32 = 6;

/// Number of timeouts in a row before the connection is given up, Linux's `tcp_retries2`.
const MAX_TIMEOUTS: u32 = 15;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The SYN was sent.
    SynSent,
    /// The SYN was answered.
    SynReceived,
    /// The connection is open, or closing in one direction.
    Established,
    /// Both directions are finished. Late segments are still answered.
    Closed,
    /// The connection was reset by the peer, or given up after too many timeouts.
    Aborted,
}

/// Timer of the handshake.
#[derive(Clone, Copy, Debug)]
struct Handshake {
    first_sent_at: Option<Instant>,
    /// Time at which the SYN is sent (again).
    send_at: Instant,
    retries: u32,
}

/// One endpoint of a TCP connection.
///
/// After any `handle_*`, [`write`](Self::write) or [`close`](Self::close), drain
/// [`poll_transmit`](Self::poll_transmit), then wait until [`poll_timeout`](Self::poll_timeout).
#[derive(Clone, Debug)]
pub struct Connection {
    config: TcpConfig,
    state: State,
    local_isn: u32,
    remote_isn: u32,
    handshake: Handshake,
    sender: Sender,
    receiver: Receiver,
    local_scale: u8,
    remote_scale: u8,
    has_sack: bool,
    has_ecn: bool,
    has_timestamps: bool,
    /// The peer's latest timestamp, which is echoed (RFC 7323 `TS.Recent`).
    recent_timestamp: u32,
    /// Whether congestion was signalled and the peer has not yet answered with CWR.
    is_echoing_congestion: bool,
    handshake_retransmits: u64,
    ignored_segments: u64,
}

impl Connection {
    /// Opens a connection. The SYN is due at `now`. `isn` is the initial sequence number.
    #[must_use]
    pub fn connect(now: Instant, config: TcpConfig, isn: u32) -> Self {
        let config = sanitized(config);
        let rtt = RttEstimator::default();
        let negotiated = Negotiated {
            mss: u32::from(DEFAULT_MSS),
            has_sack: false,
            window_end: 0,
            was_retransmitted: false,
        };
        Self {
            state: State::SynSent,
            local_isn: isn,
            remote_isn: 0,
            handshake: Handshake {
                first_sent_at: None,
                send_at: now,
                retries: 0,
            },
            sender: Sender::new(&config, negotiated, rtt),
            receiver: Receiver::new(config.receive_window, config.delayed_ack),
            local_scale: window_scale(config.receive_window),
            remote_scale: 0,
            has_sack: config.sack,
            has_ecn: config.ecn,
            has_timestamps: config.timestamps,
            recent_timestamp: 0,
            is_echoing_congestion: false,
            handshake_retransmits: 0,
            ignored_segments: 0,
            config,
        }
    }

    /// Answers `syn`. The SYN-ACK is due at `now`. A segment without SYN (or with ACK) creates a connection in state
    /// [`State::Aborted`].
    #[must_use]
    pub fn accept(now: Instant, config: TcpConfig, isn: u32, syn: &Segment) -> Self {
        let mut connection = Self::connect(now, config, isn);
        if syn.flags.contains(Flags::SYN) && !syn.flags.contains(Flags::ACK) {
            connection.state = State::SynReceived;
            let has_ecn = syn.flags.contains(Flags::ECE.with(Flags::CWR));
            connection.take_options(syn, has_ecn);
        } else {
            connection.state = State::Aborted;
            connection.ignored_segments = 1;
        }
        connection
    }

    /// Processes a segment from the peer. `is_congestion_marked`: whether its IP packet carried the CE mark.
    pub fn handle_segment(&mut self, now: Instant, segment: &Segment, is_congestion_marked: bool) {
        let is_taken = match self.state {
            State::Aborted => false,
            State::SynSent => self.handle_syn_ack(now, segment),
            State::SynReceived => self.handle_in_syn_received(now, segment, is_congestion_marked),
            State::Established | State::Closed => {
                self.handle_established(now, segment, is_congestion_marked)
            }
        };
        if !is_taken {
            self.ignored_segments += 1;
        }
    }

    /// Runs the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if matches!(self.state, State::Established | State::Closed) {
            self.sender.handle_timeout(now);
            if self.sender.consecutive_timeouts() > MAX_TIMEOUTS {
                self.state = State::Aborted;
            }
        }
    }

    /// Returns the next segment to send at `now`. Callers repeat the call until the result is `None`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Segment> {
        match self.state {
            State::Aborted => None,
            State::SynSent | State::SynReceived => self.poll_handshake(now),
            State::Established | State::Closed => {
                // SACK blocks do not fit beside a full payload, so they are sent first, in a segment of their own.
                if self.receiver.has_blocks() && self.receiver.is_ack_due(now) {
                    return Some(self.acknowledgement(now));
                }
                if let Some(outgoing) = self.sender.poll_transmit(now) {
                    return Some(self.data(now, outgoing));
                }
                self.receiver
                    .is_ack_due(now)
                    .then(|| self.acknowledgement(now))
            }
        }
    }

    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout) and
    /// [`poll_transmit`](Self::poll_transmit) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Aborted => None,
            State::SynSent | State::SynReceived => Some(self.handshake.send_at),
            State::Established | State::Closed => {
                crate::link::earliest(self.sender.poll_timeout(), self.receiver.poll_timeout())
            }
        }
    }

    /// Adds `bytes` to the data to send. Ignored after [`close`](Self::close).
    pub fn write(&mut self, bytes: u64) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.config.limit = self.config.limit.map(|limit| limit.saturating_add(bytes));
        } else {
            self.sender.write(Some(bytes));
        }
    }

    /// Ends the outgoing stream after the bytes written so far. An unlimited stream ends at the current position.
    pub fn close(&mut self) {
        self.sender.close();
    }

    /// Returns the number of payload bytes received in order.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.receiver.received_bytes()
    }

    /// Returns the number of payload bytes sent and acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.sender.acked_bytes()
    }

    /// Whether the peer's stream has ended and all of it was received.
    #[must_use]
    pub fn is_peer_finished(&self) -> bool {
        self.receiver.is_finished()
    }

    /// Returns the state of the connection.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns state and counters.
    #[must_use]
    pub fn stats(&self) -> TcpStats {
        let mut stats = self.sender.stats();
        stats.received_bytes = self.received();
        stats.retransmits += self.handshake_retransmits;
        stats.ignored_segments = self.ignored_segments;
        stats
    }

    fn handle_syn_ack(&mut self, now: Instant, segment: &Segment) -> bool {
        let is_ours = segment.flags.contains(Flags::ACK)
            && segment.ack == self.local_isn.wrapping_add(1)
            && self.handshake.first_sent_at.is_some();
        if !is_ours {
            return false;
        }
        if segment.flags.contains(Flags::RST) {
            self.state = State::Aborted;
            return true;
        }
        if !segment.flags.contains(Flags::SYN) {
            return false;
        }
        let has_ecn = segment.flags.contains(Flags::ECE) && !segment.flags.contains(Flags::CWR);
        self.take_options(segment, has_ecn);
        self.establish(now, segment, 0);
        self.receiver.ack_now();
        true
    }

    fn handle_in_syn_received(&mut self, now: Instant, segment: &Segment, is_marked: bool) -> bool {
        if segment.flags.contains(Flags::RST) {
            return self.handle_reset(segment);
        }
        if segment.flags.contains(Flags::SYN) {
            // The SYN-ACK of this endpoint was lost.
            let is_same = segment.seq == self.remote_isn;
            if is_same && self.handshake.first_sent_at.is_some() {
                self.handshake.send_at = now;
            }
            return is_same;
        }
        let is_ours = segment.flags.contains(Flags::ACK)
            && expand(1, self.local_isn, segment.ack).is_some_and(|ack| ack == 1);
        if !is_ours {
            return false;
        }
        self.establish(now, segment, self.remote_scale);
        self.handle_established(now, segment, is_marked)
    }

    fn handle_established(&mut self, now: Instant, segment: &Segment, is_marked: bool) -> bool {
        if segment.flags.contains(Flags::RST) {
            return self.handle_reset(segment);
        }
        if segment.flags.contains(Flags::SYN) {
            // The acknowledgement of the SYN-ACK was lost (or the SYN does not belong to this connection): RFC 5961
            // section 4.
            self.receiver.ack_now();
            return segment.seq == self.remote_isn;
        }
        let Some(start) = expand(self.receiver.next(), self.remote_isn, segment.seq) else {
            return false;
        };
        if !segment.flags.contains(Flags::ACK) {
            return false;
        }
        let is_in_window = start <= self.receiver.window_end();
        if is_in_window {
            self.take_timestamp(segment, start);
        }
        let is_ack_good = is_in_window && self.handle_ack(now, segment);
        let len = u64::from(segment.seq_len());
        if len == 0 {
            if start < self.receiver.next() {
                // The segment is a window probe.
                self.receiver.ack_now();
            }
            return is_ack_good;
        }
        if self.has_ecn && segment.flags.contains(Flags::CWR) {
            self.is_echoing_congestion = false;
        }
        if self.has_ecn && is_marked {
            self.is_echoing_congestion = true;
            self.receiver.ack_now();
        }
        let is_data_good = self.receiver.on_data(
            now,
            start..start + len,
            segment.flags.contains(Flags::FIN),
            self.sender.smoothed_rtt(),
            self.sender.rto(),
        );
        self.note_end();
        is_ack_good && is_data_good
    }

    fn handle_ack(&mut self, now: Instant, segment: &Segment) -> bool {
        let una = self.sender.una();
        let Some(ack) = expand(una, self.local_isn, segment.ack) else {
            return false;
        };
        let mut blocks = [(0, 0); MAX_SACK_BLOCKS];
        let mut len = 0;
        let mut dsack = None;
        if self.has_sack {
            let mut wire = segment.sack.iter();
            let nxt = self.sender.nxt();
            let position = |wire| expand(una, self.local_isn, wire);
            let mut first: Option<(u64, u64)> = None;
            let mut is_first = true;
            for (start, end) in &mut wire {
                let (Some(start), Some(end)) = (position(start), position(end)) else {
                    continue;
                };
                if start >= end || end > nxt {
                    continue;
                }
                // RFC 2883: the first block repeats acknowledged data, or lies within the second block.
                if is_first && end <= ack {
                    dsack = Some((start, end));
                } else if start >= ack {
                    if let Some(first) = first.take()
                        && start <= first.0
                        && first.1 <= end
                    {
                        dsack = Some(first);
                    }
                    if is_first {
                        first = Some((start, end));
                    }
                    if let Some(slot) = blocks.get_mut(len) {
                        *slot = (start, end);
                        len += 1;
                    }
                }
                is_first = false;
            }
        }
        let sack = blocks.get_mut(..len).unwrap_or_default();
        sack.sort_unstable();
        let is_taken = self.sender.on_ack(&AckInfo {
            now,
            ack,
            window_end: ack.saturating_add(u64::from(segment.window) << self.remote_scale),
            sack,
            dsack,
            echo: segment
                .timestamps
                .filter(|t| self.has_timestamps && t.echo != 0)
                .map(|t| t.echo),
            has_ece: self.has_ecn && segment.flags.contains(Flags::ECE),
            has_payload: segment.seq_len() > 0,
        });
        self.note_end();
        is_taken
    }

    fn handle_reset(&mut self, segment: &Segment) -> bool {
        // RFC 5961 section 3: only a reset with the exact sequence number is accepted.
        let is_exact = expand(self.receiver.next(), self.remote_isn, segment.seq)
            == Some(self.receiver.next());
        if is_exact {
            self.state = State::Aborted;
        }
        is_exact
    }

    fn note_end(&mut self) {
        if self.sender.is_finished() && self.receiver.is_finished() {
            self.state = State::Closed;
        }
    }

    fn take_timestamp(&mut self, segment: &Segment, start: u64) {
        if let Some(timestamps) = segment.timestamps.filter(|_| self.has_timestamps) {
            let is_newer = timestamps
                .value
                .wrapping_sub(self.recent_timestamp)
                .cast_signed()
                >= 0;
            if is_newer && start <= self.receiver.last_acked() {
                self.recent_timestamp = timestamps.value;
            }
        }
    }

    /// Applies the options of a SYN or SYN-ACK.
    fn take_options(&mut self, syn: &Segment, has_ecn: bool) {
        self.remote_isn = syn.seq;
        self.has_ecn &= has_ecn;
        self.has_sack &= syn.is_sack_permitted;
        self.has_timestamps &= syn.timestamps.is_some();
        if let Some(timestamps) = syn.timestamps {
            self.recent_timestamp = timestamps.value;
        }
        match syn.window_scale {
            Some(scale) => self.remote_scale = scale.min(MAX_WINDOW_SCALE),
            None => self.local_scale = 0,
        }
        let announced = usize::from(syn.mss.unwrap_or(DEFAULT_MSS)).max(MIN_MSS);
        self.config.mss = self.config.mss.min(announced);
    }

    /// Ends the handshake. `segment` completed the handshake, and the window in `segment` is scaled by `scale`.
    fn establish(&mut self, now: Instant, segment: &Segment, scale: u8) {
        let mut rtt = RttEstimator::default();
        if let Some(sent_at) = self.handshake.first_sent_at
            && self.handshake.retries == 0
        {
            let sample = now.since(sent_at);
            rtt.on_min_sample(now, sample);
            rtt.on_sample(sample, 1, 1);
        }
        let options = if self.has_timestamps {
            TIMESTAMPS_LEN
        } else {
            0
        };
        let negotiated = Negotiated {
            mss: u32::try_from(self.config.mss - options).unwrap_or(u32::MAX),
            has_sack: self.has_sack,
            window_end: 1 + (u64::from(segment.window) << scale),
            was_retransmitted: self.handshake.retries > 1,
        };
        let is_closing = self.sender.is_closing();
        self.sender = Sender::new(&self.config, negotiated, rtt);
        self.sender.write(self.config.limit);
        if is_closing {
            self.sender.close();
        }
        self.state = State::Established;
    }

    fn poll_handshake(&mut self, now: Instant) -> Option<Segment> {
        if now < self.handshake.send_at {
            return None;
        }
        if self.handshake.first_sent_at.is_some() {
            if self.handshake.retries >= SYN_RETRIES {
                self.state = State::Aborted;
                return None;
            }
            self.handshake.retries += 1;
            self.handshake_retransmits += 1;
        }
        self.handshake.first_sent_at.get_or_insert(now);
        let timeout = super::rtt::INITIAL_RTO.saturating_mul(1 << self.handshake.retries);
        self.handshake.send_at = now + timeout;
        let is_answer = self.state == State::SynReceived;
        let mut flags = Flags::SYN;
        if is_answer {
            flags = flags.with(Flags::ACK);
        }
        if self.has_ecn {
            flags = flags.with(if is_answer {
                Flags::ECE
            } else {
                Flags::ECE.with(Flags::CWR)
            });
        }
        let has_scale = !is_answer || self.remote_scale > 0 || self.local_scale > 0;
        Some(Segment {
            seq: self.local_isn,
            ack: if is_answer {
                self.remote_isn.wrapping_add(1)
            } else {
                0
            },
            flags,
            window: u16::try_from(self.config.receive_window).unwrap_or(u16::MAX),
            mss: Some(u16::try_from(self.config.mss).unwrap_or(u16::MAX)),
            window_scale: has_scale.then_some(self.local_scale),
            is_sack_permitted: self.has_sack,
            timestamps: self.timestamps(now),
            ..Segment::default()
        })
    }

    fn acknowledgement(&mut self, now: Instant) -> Segment {
        let position = self.sender.nxt();
        self.segment(now, position..position, MAX_SACK_BLOCKS)
    }

    fn data(&mut self, now: Instant, outgoing: Outgoing) -> Segment {
        let len = usize::try_from(outgoing.end - outgoing.start).unwrap_or(usize::MAX);
        // The part of a full segment that the payload leaves free is available for SACK blocks.
        let options = HEADER_LEN
            + if self.has_timestamps {
                TIMESTAMPS_LEN
            } else {
                0
            };
        let free = (HEADER_LEN + self.config.mss).saturating_sub(options + len);
        let room = free.saturating_sub(4) / 8;
        let mut segment = self.segment(now, outgoing.start..outgoing.end, room);
        if outgoing.has_fin {
            segment.flags = segment.flags.with(Flags::FIN);
        }
        if outgoing.has_cwr {
            segment.flags = segment.flags.with(Flags::CWR);
        }
        if segment.payload_len > 0 {
            segment.flags = segment.flags.with(Flags::PSH);
        }
        segment.is_ecn_capable = self.has_ecn && segment.payload_len > 0 && !outgoing.is_resend;
        segment
    }

    /// Creates a segment with all acknowledgement fields and at most `room` SACK blocks.
    fn segment(&mut self, now: Instant, positions: Range<u64>, room: usize) -> Segment {
        let mut flags = Flags::ACK;
        if self.is_echoing_congestion {
            flags = flags.with(Flags::ECE);
        }
        let window = self.config.receive_window >> self.local_scale;
        let mut sack = SackBlocks::default();
        if self.has_sack && room > 0 && self.receiver.has_blocks() {
            let room = room.min(MAX_SACK_BLOCKS - usize::from(self.has_timestamps));
            let remote_isn = self.remote_isn;
            self.receiver.take_blocks(|block| {
                sack.len() < room
                    && sack.push(wire(remote_isn, block.start), wire(remote_isn, block.end))
            });
        }
        let segment = Segment {
            seq: wire(self.local_isn, positions.start),
            ack: wire(self.remote_isn, self.receiver.next()),
            flags,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            timestamps: self.timestamps(now),
            sack,
            payload_len: u32::try_from(positions.end - positions.start).unwrap_or(u32::MAX),
            ..Segment::default()
        };
        self.receiver.on_ack_sent();
        segment
    }

    fn timestamps(&self, now: Instant) -> Option<Timestamps> {
        self.has_timestamps.then(|| Timestamps {
            // Zero is avoided, because as an echo it means that no timestamp was received.
            value: timestamp(now).max(1),
            echo: self.recent_timestamp,
        })
    }
}

/// Returns `config` with all values clamped to their bounds.
fn sanitized(config: TcpConfig) -> TcpConfig {
    let mss = config.mss.clamp(MIN_MSS, MAX_MSS);
    let two_segments = u64::try_from(mss * 2).unwrap_or(MAX_WINDOW);
    TcpConfig {
        mss,
        receive_window: config.receive_window.clamp(two_segments, MAX_WINDOW),
        ..config
    }
}

/// Returns the smallest scale at which `window` fits into 16 bits.
fn window_scale(window: u64) -> u8 {
    (0..MAX_WINDOW_SCALE)
        .find(|scale| window >> scale <= u64::from(u16::MAX))
        .unwrap_or(MAX_WINDOW_SCALE)
}

/// Returns the position nearest to `reference` that has the sequence number `number`. `None` if it is before the
/// stream.
fn expand(reference: u64, isn: u32, number: u32) -> Option<u64> {
    let distance = number.wrapping_sub(wire(isn, reference)).cast_signed();
    reference.checked_add_signed(distance.into())
}

/// Returns the sequence number of `position` on the wire.
fn wire(isn: u32, position: u64) -> u32 {
    let low = u32::try_from(position & u64::from(u32::MAX)).unwrap_or(0);
    isn.wrapping_add(low)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn positions_survive_the_wrap_of_the_wire() {
        let isn = u32::MAX - 5;
        for position in [0, 1, 5, 6, 7, 1 << 31, (1 << 32) + 3, 10 << 32] {
            assert_eq!(
                expand(position + 1_000, isn, wire(isn, position)),
                Some(position)
            );
            assert_eq!(
                expand(position, isn, wire(isn, position + 1_000)),
                Some(position + 1_000)
            );
        }
        assert_eq!(expand(0, isn, wire(isn, 0).wrapping_sub(1)), None);
    }

    #[test]
    fn scale_is_the_smallest_that_fits() {
        assert_eq!(window_scale(65_535), 0);
        assert_eq!(window_scale(65_536), 1);
        assert_eq!(window_scale(6 << 20), 7);
        assert_eq!(window_scale(1 << 30), MAX_WINDOW_SCALE);
    }

    #[test]
    fn an_unanswered_syn_is_sent_seven_times_then_given_up() {
        let mut connection = Connection::connect(Instant::ZERO, TcpConfig::default(), 7);
        let mut sent = 0;
        let mut last = Instant::ZERO;
        while let Some(at) = connection.poll_timeout() {
            last = at;
            while connection.poll_transmit(at).is_some() {
                sent += 1;
            }
        }
        assert_eq!((sent, connection.state()), (7, State::Aborted));
        assert_eq!(last.since(Instant::ZERO), Duration::from_secs(127));
    }
}
