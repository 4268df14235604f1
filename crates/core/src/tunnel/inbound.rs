//! The life of a packet in, once its datagram is opened and its path has taken note.
//!
//! 1. The decoder of repair symbols remembers it as it came ([`super::fec`]).
//! 2. The packet's headers are made whole ([`super::templates`]), and its source must belong to the peer.
//! 3. The resequencer holds it or lets it go, with all that waited for it ([`crate::resequencer`]).
//!
//! What repair symbols bring back goes the same way from the second step on.

use core::{net::IpAddr, time::Duration};

use super::{
    fec::{IN_HEADER, Receiving},
    lengths::Lengths,
    path_set::PathSet,
    shared::Shared,
    templates::Templates,
    waits::{longest_wait, repair_time},
};
use crate::{
    counters::DropReason,
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

/// What waits for its predecessors, and what is remembered for repair symbols.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    pub(super) resequencer: AnyResequencer,
    pub(super) fec: Receiving,
    /// The other end sends lost packets again.
    has_repairs: bool,
    /// Scratch: copies the resequencer dropped.
    dropped: Vec<PacketBuf>,
    /// Repair symbols received.
    symbols_in: u64,
    /// Lost packets that were computed from repair symbols.
    recovered: u64,
}

/// What a packet passes on its way in, beside the parts of [`Inbound`].
pub(super) struct Ingress<'a, 's> {
    pub(super) now: Instant,
    pub(super) paths: &'a PathSet,
    pub(super) lengths: &'a Lengths,
    pub(super) templates: &'a mut Templates,
    pub(super) shared: &'a mut Shared<'s>,
    /// Whether an inner source address belongs to the peer.
    pub(super) is_source_allowed: &'a dyn Fn(IpAddr) -> bool,
}

/// A data datagram that was opened, without its tag.
pub(super) struct Opened<'a> {
    pub(super) header: &'a Header,
    pub(super) data: &'a DataHeader,
    pub(super) datagram: &'a [u8],
    /// How long it took, beyond an unknown constant.
    pub(super) delay: RelativeDelay,
    /// Whether the network marked it: congestion experienced.
    pub(super) is_congested: bool,
}

impl Inbound {
    /// Repair symbols received, and packets computed from them.
    pub(super) const fn counts(&self) -> (u64, u64) {
        (self.symbols_in, self.recovered)
    }

    /// Takes the packet or the repair symbol of a data datagram, and whatever that brings back.
    ///
    /// # Errors
    /// Why the packet, or the symbol, is dropped.
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

    /// Takes the packet in the body of a data datagram.
    fn accept(
        &mut self,
        opened: &Opened<'_>,
        ingress: &mut Ingress<'_, '_>,
    ) -> Result<(), DropReason> {
        let Opened { header, data, .. } = *opened;
        let body = &opened.datagram[DATA_HEADER_LEN..];
        let packet = peers_packet(body, opened.is_congested, ingress)?;
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

    /// Hands a packet to the resequencer: its number and flow step, the way it came, and the delay of the datagram that
    /// brought it.
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

    /// Hands what was recovered to the resequencer. `delay`: of the datagram that made it possible.
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

    /// The other end will send nothing behind the datagram `last` on a path for a while: its number there and in the association.
    pub(super) fn on_tail(
        &mut self,
        now: Instant,
        id: PathId,
        last: (Seq, Seq),
        shared: &mut Shared<'_>,
    ) {
        self.resequencer.on_tail(now, id, last, shared.delivered);
    }

    /// Changes the order in which packets are let go, and how long a lost one is waited for.
    pub(super) fn set_order(
        &mut self,
        now: Instant,
        (order, timeout): (Order, Duration),
        shared: &mut Shared<'_>,
    ) {
        self.resequencer
            .set_order(now, order, timeout, shared.delivered);
    }

    /// Starts over; the packets that were held come out.
    pub(super) fn reset(&mut self) -> Vec<PacketBuf> {
        let mut held = Vec::new();
        self.resequencer.reset(&mut held);
        self.has_repairs = false;
        self.fec = Receiving::default();
        held
    }
}

/// The packet in `body`, whole and nothing but it, if it is the peer's; marked if it met congestion.
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

/// Bytes of the flow step, which ends the header: a symbol covers it with the packet.
const FLOW_STEP_LEN: usize = 2;
