//! Processing of an incoming packet, after its datagram was decrypted and recorded on its path.
//!
//! 1. The FEC decoder stores the packet as received ([`super::fec`]).
//! 2. The packet's headers are decompressed ([`super::templates`]), and its source address is checked to belong to the
//!    peer. The path on which the peer wants the packets of the flow is recorded ([`super::answers`]).
//! 3. The resequencer buffers the packet, or delivers it with all packets that waited for it ([`crate::resequencer`]).
//!
//! Packets recovered from repair symbols start at the second step; their path is unknown.

use core::{net::IpAddr, time::Duration};

use super::{
    answers::Answers,
    fec::{IN_HEADER, Receiving},
    lengths::Lengths,
    path_set::PathSet,
    shared::Shared,
    templates::Templates,
    waits::{longest_wait, repair_time},
};
use crate::{
    counters::DropReason,
    flows::FlowTable,
    ids::{PathId, Seq},
    packet::{self, PacketBuf},
    path::delay::RelativeDelay,
    resequencer::{AnyResequencer, Arrival, Verdict, Way},
    time::Instant,
    wire::{
        control::Order,
        header::{DATA_HEADER_LEN, DataHeader, Header},
    },
};

/// The resequencer with its buffered packets, and the packets stored for FEC decoding.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    pub(super) resequencer: AnyResequencer,
    pub(super) fec: Receiving,
    /// Whether the other end retransmits lost packets.
    has_repairs: bool,
    /// Copies that the resequencer has dropped; cleared after each packet.
    dropped: Vec<PacketBuf>,
    /// Number of repair symbols received.
    symbols_in: u64,
    /// Number of lost packets recovered from repair symbols.
    recovered: u64,
}

/// The parts that an incoming packet passes, besides the parts of [`Inbound`].
pub(super) struct Ingress<'a, 's> {
    pub(super) now: Instant,
    pub(super) paths: &'a PathSet,
    pub(super) lengths: &'a Lengths,
    pub(super) templates: &'a mut Templates,
    /// The flows that this end sends.
    pub(super) flows: &'a mut FlowTable,
    pub(super) answers: &'a mut Answers,
    pub(super) shared: &'a mut Shared<'s>,
    /// Whether an inner source address belongs to the peer.
    pub(super) is_source_allowed: &'a dyn Fn(IpAddr) -> bool,
}

/// A decrypted data datagram, without its tag.
pub(super) struct Opened<'a> {
    pub(super) header: &'a Header,
    pub(super) data: &'a DataHeader,
    pub(super) datagram: &'a [u8],
    /// One-way delay of the datagram, up to an unknown constant.
    pub(super) delay: RelativeDelay,
    /// Whether the datagram has the ECN mark CE (congestion experienced).
    pub(super) is_congested: bool,
}

impl Inbound {
    /// Returns the number of repair symbols received, and the number of packets recovered from them.
    pub(super) const fn counts(&self) -> (u64, u64) {
        (self.symbols_in, self.recovered)
    }

    /// Delivers all buffered packets, and frees the memory that a tunnel without packets does not need. The peer does
    /// not pay for the work.
    pub(super) fn release_memory(&mut self, now: Instant, shared: &mut Shared<'_>) {
        self.resequencer.release_memory(now, shared.delivered);
        self.resequencer.take_steps();
        self.fec = Receiving::default();
    }

    /// Handles the packet or the repair symbol of a data datagram, and any packets recovered with it.
    ///
    /// # Errors
    /// The reason why the packet or the symbol is dropped.
    pub(super) fn on_data(
        &mut self,
        opened: &Opened<'_>,
        ingress: &mut Ingress<'_, '_>,
    ) -> Result<(), DropReason> {
        let Opened {
            header,
            data,
            datagram,
            ..
        } = *opened;
        let (now, pool) = (ingress.now, &mut *ingress.shared.pool);
        if datagram.len() > ingress.lengths.longest_in() + DATA_HEADER_LEN {
            return Err(DropReason::TooLong);
        }
        let result = if header.covered > 0 {
            self.resequencer.on_empty(now, header.path, header.path_seq);
            self.symbols_in += 1;
            let symbol = &datagram[DATA_HEADER_LEN - IN_HEADER..];
            self.fec
                .on_symbol(now, header, data.global_seq, symbol, pool)
        } else {
            let source = &datagram[DATA_HEADER_LEN - FLOW_STEP_LEN..];
            self.fec.on_source(now, data.global_seq, source, pool);
            self.accept(opened, ingress)
        };
        self.deliver_recovered(opened.delay, ingress);
        result
    }

    /// Handles the packet in the body of a data datagram.
    fn accept(
        &mut self,
        opened: &Opened<'_>,
        ingress: &mut Ingress<'_, '_>,
    ) -> Result<(), DropReason> {
        let Opened { header, data, .. } = *opened;
        let body = &opened.datagram[DATA_HEADER_LEN..];
        let packet = peers_packet(body, opened.is_congested, ingress)?;
        let wanted = header.is_answer_path.then_some(header.path);
        ingress
            .answers
            .on_packet_in(ingress.now, &packet, wanted, ingress.flows);
        self.has_repairs |= header.is_kept;
        let way = Way {
            path: header.path,
            path_seq: header.path_seq,
            path_previous: previous_on_path(data),
            is_out_of_turn: header.is_out_of_turn,
        };
        let place = (data.global_seq, data.flow_step);
        self.resequence(place, Some(way), opened.delay, packet, ingress)
    }

    /// Passes a packet to the resequencer, with its sequence number, its flow step, its path, and the delay of its
    /// datagram.
    fn resequence(
        &mut self,
        (seq, flow_step): (Seq, u16),
        way: Option<Way>,
        delay: RelativeDelay,
        packet: PacketBuf,
        ingress: &mut Ingress<'_, '_>,
    ) -> Result<(), DropReason> {
        let (now, paths) = (ingress.now, ingress.paths);
        let repair = self.has_repairs.then(|| repair_time(now, paths));
        let arrival = Arrival {
            seq,
            flow_step,
            way,
            deadline: now + longest_wait(now, paths, delay),
            repair,
            packet,
        };
        let delivered = &mut *ingress.shared.delivered;
        let verdict = self
            .resequencer
            .on_packet(now, arrival, delivered, &mut self.dropped);
        self.dropped
            .drain(..)
            .for_each(|packet| ingress.shared.pool.recycle(packet));
        match verdict {
            Verdict::Duplicate => Err(DropReason::Duplicate),
            Verdict::Held | Verdict::Late | Verdict::Released => Ok(()),
            Verdict::TooOld => Err(DropReason::TooOld),
        }
    }

    /// Passes recovered packets to the resequencer. `delay` is the delay of the datagram that allowed the recovery.
    fn deliver_recovered(&mut self, delay: RelativeDelay, ingress: &mut Ingress<'_, '_>) {
        while let Some((seq, flow_step, recovered)) = self.fec.pop() {
            self.recovered += 1;
            let whole = peers_packet(recovered.as_slice(), false, ingress);
            ingress.shared.pool.recycle(recovered);
            let result = whole
                .and_then(|packet| self.resequence((seq, flow_step), None, delay, packet, ingress));
            if let Err(reason) = result {
                ingress.shared.drops.add(reason, 1);
            }
        }
    }

    /// Handles a message that the data datagram `last` ends a burst on a path. `last` contains its path sequence number
    /// and its global sequence number.
    pub(super) fn on_tail(
        &mut self,
        now: Instant,
        id: PathId,
        last: (Seq, Seq),
        shared: &mut Shared<'_>,
    ) {
        self.resequencer.on_tail(now, id, last, shared.delivered);
    }

    /// Sets the order of delivery, and how long the resequencer waits for a lost packet.
    pub(super) fn set_order(
        &mut self,
        now: Instant,
        (order, timeout): (Order, Duration),
        shared: &mut Shared<'_>,
    ) {
        self.resequencer
            .set_order(now, order, timeout, shared.delivered);
    }

    /// Resets the state. Returns the packets that the resequencer had buffered.
    pub(super) fn reset(&mut self) -> Vec<PacketBuf> {
        let mut held = Vec::new();
        self.resequencer.reset(&mut held);
        self.has_repairs = false;
        self.fec = Receiving::default();
        held
    }
}

/// Returns the packet in `body` without any bytes after its end, if its source address belongs to the peer. Marks the
/// packet as congested if its datagram met congestion.
fn peers_packet(
    body: &[u8],
    is_congested: bool,
    ingress: &mut Ingress<'_, '_>,
) -> Result<PacketBuf, DropReason> {
    let pool = &mut *ingress.shared.pool;
    let mut packet = ingress.templates.whole_packet(body, pool)?;
    if is_congested {
        packet::mark_congested(packet.as_mut_slice());
    }
    let checked = match packet.parse() {
        Err(_) => Err(DropReason::NotIp),
        Ok(view) if !(ingress.is_source_allowed)(view.source()) => {
            Err(DropReason::SourceNotAllowed)
        }
        Ok(view) if view.bytes().len() > ingress.lengths.longest_in() => Err(DropReason::TooLong),
        Ok(view) => Ok(view.bytes().len()),
    };
    match checked {
        Ok(len) => {
            packet.truncate(len);
            ingress.lengths.fit_answers(&mut packet, ingress.paths);
            Ok(packet)
        }
        Err(reason) => {
            pool.recycle(packet);
            Err(reason)
        }
    }
}

fn previous_on_path(data: &DataHeader) -> Option<Seq> {
    let step = i32::from(data.path_step);
    (step != 0).then(|| Seq(data.global_seq.0.wrapping_sub(step.cast_unsigned())))
}

/// Length in bytes of the flow step, the last field of the header; a repair symbol protects it with the packet.
const FLOW_STEP_LEN: usize = 2;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::{counters::Drops, packet::Pool, session::limiter::Bucket};

    #[test]
    fn the_peer_does_not_pay_for_a_release_of_memory() {
        let (now, mut inbound) = (Instant::from_millis(1), Inbound::default());
        let mut delivered = VecDeque::new();
        for seq in [0, 5_000] {
            let arrival = Arrival {
                seq: Seq(seq),
                flow_step: u16::from(seq > 0),
                way: None,
                deadline: now + Duration::from_secs(1),
                repair: None,
                packet: PacketBuf::from(vec![0; 20]),
            };
            let resequencer = &mut inbound.resequencer;
            resequencer.on_packet(now, arrival, &mut delivered, &mut inbound.dropped);
        }
        assert_eq!((delivered.len(), inbound.resequencer.held_len()), (1, 1));
        inbound.resequencer.take_steps();
        let mut train_starts = Bucket::FULL;
        let mut shared = Shared {
            pool: &mut Pool::new(1, 100),
            delivered: &mut delivered,
            drops: &mut Drops::default(),
            train_starts: &mut train_starts,
        };
        inbound.release_memory(now, &mut shared);
        assert_eq!((delivered.len(), inbound.resequencer.held_len()), (2, 0));
        assert_eq!(inbound.resequencer.take_steps(), 0);
    }
}
