//! The life of a packet in.
//!
//! 1. [`Tunnel::handle_datagram`] checks the replay window, opens the datagram in place, and only then believes it.
//! 2. The path takes note: the newest authentic datagram's address is where answers go (roaming), arrivals are counted
//!    for the next report.
//! 3. The inner packet's source must belong to the peer.
//! 4. The resequencer holds it or lets it go, with all that waited for it.

use core::{net::IpAddr, time::Duration};

use super::{Shared, Tunnel, fec::IN_HEADER};
use crate::{
    counters::DropReason,
    ids::Seq,
    packet::{self, PacketBuf},
    path::{Path, delay::RelativeDelay, link::Link, receiver::DataArrival},
    resequencer::{Arrival, LONGEST_HOLD, Verdict, Way},
    role::Role,
    session::{keys::OpenError, rotation::Change},
    time::Instant,
    transmit::Route,
    wire::{
        Kind,
        header::{DATA_HEADER_LEN, DataHeader, Header},
    },
};

/// How a datagram came.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// By which socket and from whom.
    pub route: Route,
    /// Whether the network marked it: congestion experienced.
    pub is_congested: bool,
}

impl Tunnel {
    /// Takes a transport datagram for the session `header.receiver_index`, whose fields `header` and `data` repeat.
    ///
    /// `is_source_allowed` tells whether an inner source address belongs to the peer.
    ///
    /// # Errors
    /// Why the datagram, or the packet in it, is dropped; the caller counts it.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        (header, data): (Header, Option<DataHeader>),
        datagram: &mut [u8],
        is_source_allowed: impl Fn(IpAddr) -> bool,
        shared: &mut Shared<'_>,
    ) -> Result<(), DropReason> {
        let id = header.path;
        if self.role == Role::Client && self.path(id).is_none() {
            return Err(DropReason::Malformed);
        }
        let lane = match header.kind {
            Kind::Control => id.control_lane(),
            Kind::Data => id,
        };
        let len = datagram.len();
        self.sec.before_opening(now, datagram);
        let (aad, body) = datagram.split_at_mut(header.kind.header_len());
        let opened =
            self.sessions
                .open(now, header.receiver_index, lane, header.path_seq, aad, body);
        let opened = opened.map_err(|error| match error {
            OpenError::Authentication => DropReason::Forged,
            OpenError::Expired | OpenError::UnknownIndex => DropReason::UnknownSession,
            OpenError::Replayed(_) => DropReason::Replayed,
            OpenError::UnknownPath => DropReason::Malformed,
        });
        // Wrong bits may stand in the number or path as well.
        let may_be_damaged = [
            DropReason::Forged,
            DropReason::Replayed,
            DropReason::Malformed,
        ];
        let reason = opened.as_ref().err().copied();
        if let Some(reason) = reason.filter(|reason| may_be_damaged.contains(reason)) {
            self.sec.on_damaged(now, incoming, reason, shared.pool);
            if self.handle_mended(now, &is_source_allowed, false, shared) {
                return Ok(());
            }
        }
        let (opened, change) = opened?;
        let end = header.kind.header_len() + opened.len;
        if change == Some(Change::Restarted) {
            self.reset(now, shared);
        }
        if change.is_some() {
            self.sessions_deadline = Some(now);
        }
        self.last_received_at = Some(now);
        let grace = self.grace(now, id);
        let (role, profile) = (self.role, self.profile);
        let path = self.paths[id.index()]
            .get_or_insert_with(|| Box::new(Path::new(now, id, Link::named(""), role, profile)));
        let roams_to = (role == Role::Gateway).then_some(incoming.route);
        path.on_authentic(now, header.kind, opened.counter, roams_to);
        let body = &mut body[..opened.len];
        let Some(data) = data else {
            path.on_control(now, header.sent_us);
            self.handle_frames(now, id, body, shared);
            self.handle_mended(now, &is_source_allowed, true, shared);
            return Ok(());
        };
        let arrival = DataArrival {
            path_seq: header.path_seq,
            sent_us: header.sent_us,
            len,
            is_congested: incoming.is_congested,
            is_kept: header.is_kept,
            grace,
        };
        let delay = path.on_data(now, &arrival);
        if let Some(watch) = &mut self.loss_watch {
            watch.on_arrival(now, id, header.path_seq, len);
        }
        let result = if header.covered > 0 {
            let symbol = &datagram[DATA_HEADER_LEN - IN_HEADER..end];
            self.on_symbol(now, (&header, &data), symbol, shared)
        } else {
            let source = &datagram[DATA_HEADER_LEN - FLOW_STEP_LEN..end];
            self.fec_receiving
                .on_source(now, data.global_seq, source, shared.pool);
            self.accept(
                now,
                (&header, &data),
                delay,
                (&datagram[DATA_HEADER_LEN..end], incoming.is_congested),
                &is_source_allowed,
                shared,
            )
        };
        self.deliver_recovered(now, delay, &is_source_allowed, shared);
        result
    }

    /// Takes the packet in the body of a data datagram.
    fn accept(
        &mut self,
        now: Instant,
        (header, data): (&Header, &DataHeader),
        delay: RelativeDelay,
        (body, is_congested): (&[u8], bool),
        is_source_allowed: &impl Fn(IpAddr) -> bool,
        shared: &mut Shared<'_>,
    ) -> Result<(), DropReason> {
        let packet = self.peers_packet(body, is_congested, is_source_allowed, shared)?;
        self.has_repairs |= header.is_kept;
        let way = Way {
            path: header.path,
            path_seq: header.path_seq,
            path_previous: previous_on_path(data),
            is_out_of_turn: header.is_out_of_turn,
        };
        let place = (data.global_seq, data.flow_step);
        self.resequence(now, place, Some(way), delay, packet, shared)
    }

    /// The packet in `body`, whole and nothing but it, if it is the peer's; marked if it met congestion.
    ///
    /// # Errors
    /// Why it is none, or none of the peer's.
    pub(super) fn peers_packet(
        &mut self,
        body: &[u8],
        is_congested: bool,
        is_source_allowed: &impl Fn(IpAddr) -> bool,
        shared: &mut Shared<'_>,
    ) -> Result<PacketBuf, DropReason> {
        let mut packet = self.whole_packet(body, shared.pool)?;
        if is_congested {
            packet::mark_congested(packet.as_mut_slice());
        }
        let checked = match packet.parse() {
            Err(_) => Err(DropReason::NotIp),
            Ok(view) if !is_source_allowed(view.source()) => Err(DropReason::SourceNotAllowed),
            Ok(view) => Ok(view.bytes().len()),
        };
        match checked {
            Ok(len) => {
                packet.truncate(len);
                self.fit_answers(&mut packet);
                Ok(packet)
            }
            Err(reason) => {
                shared.pool.recycle(packet);
                Err(reason)
            }
        }
    }

    /// Hands a packet to the resequencer: its number and flow step, the way it came, and the delay of the datagram that
    /// brought it.
    ///
    /// # Errors
    /// Why it is dropped.
    pub(super) fn resequence(
        &mut self,
        now: Instant,
        (seq, flow_step): (Seq, u16),
        way: Option<Way>,
        delay: RelativeDelay,
        packet: PacketBuf,
        shared: &mut Shared<'_>,
    ) -> Result<(), DropReason> {
        let arrival = Arrival {
            seq,
            flow_step,
            way,
            deadline: now + self.longest_wait(now, delay),
            repair: self.has_repairs.then(|| self.repair_time(now)),
            packet,
        };
        let before = shared.delivered.len();
        let verdict = self
            .resequencer
            .on_packet(now, arrival, shared.delivered, &mut self.dropped);
        self.dropped
            .drain(..)
            .for_each(|packet| shared.pool.recycle(packet));
        self.keep_round_trips(now, before, shared);
        match verdict {
            Verdict::Duplicate => Err(DropReason::Duplicate),
            Verdict::Held | Verdict::Late | Verdict::Released => Ok(()),
            Verdict::TooOld => Err(DropReason::TooOld),
        }
    }
}

impl Tunnel {
    /// How long after a packet's arrival everything sent before it should be here: what the slowest path in use needs
    /// beyond what this packet needed, and a margin (`docs/algorithms.md` section 3.6).
    pub(super) fn longest_wait(&self, now: Instant, own: RelativeDelay) -> Duration {
        let beyond = self
            .paths()
            .filter(|path| {
                path.receiver()
                    .heard_at()
                    .is_some_and(|at| now.since(at) < IN_USE)
            })
            .filter_map(|path| path.receiver().delay().high())
            .map(|high| high.beyond(own))
            .max();
        (beyond.unwrap_or(Duration::ZERO) + MARGIN).min(LONGEST_HOLD)
    }
}

impl Tunnel {
    /// How long a packet that is told missing now may take to come after all.
    pub(super) fn repair_time(&self, now: Instant) -> Duration {
        let paths = self.paths().filter(|path| {
            path.receiver()
                .heard_at()
                .is_some_and(|at| now.since(at) < IN_USE)
        });
        let (mut time, mut grace) = (Duration::ZERO, Duration::ZERO);
        let mut least = Duration::ZERO;
        for path in paths {
            least = least.max(path.rtt().min().unwrap_or_default());
            grace = grace.max(self.grace(now, path.id()));
            let rtt = path.rtt().smoothed().unwrap_or_default();
            let delay = path.receiver().delay();
            let spread = match (delay.high(), delay.min()) {
                (Some(high), Some(min)) => high.beyond(min),
                _ => Duration::ZERO,
            };
            time = time.max(rtt + spread);
        }
        let longest = (least + LONGEST_DELAY).clamp(LONGEST_REPAIR, LONGEST_FAR_REPAIR);
        (time + REPAIR_MARGIN + grace).min(longest)
    }
}

fn previous_on_path(data: &DataHeader) -> Option<Seq> {
    let step = i32::from(data.path_step);
    (step != 0).then(|| Seq(data.global_seq.0.wrapping_sub(step.cast_unsigned())))
}

/// Bytes of the flow step, which ends the header: a symbol covers it with the packet.
const FLOW_STEP_LEN: usize = 2;
/// A path is waited for while anything arrived on it within this time: two probes of an idle path.
const IN_USE: Duration = Duration::from_secs(1);
const MARGIN: Duration = Duration::from_millis(5);
/// A repair that takes longer is not waited for to the end, but where the round trip is long without a queue or jitter: so much
/// longer than that, which a sender's timeout outlasts (200 ms beyond its round trip, from its last acknowledgement).
const LONGEST_REPAIR: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_millis(110);
const LONGEST_FAR_REPAIR: Duration = Duration::from_millis(700);
/// A reporting interval, and the wait for the path's turn.
const REPAIR_MARGIN: Duration = Duration::from_millis(20);
