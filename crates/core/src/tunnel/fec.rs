//! Forward erasure correction: what random losses take is computed from what came, a few packets later instead of a round
//! trip.
//!
//! *Out.* Where paths lose, packets are put into an encoder ([`crate::fec`]) by their global number, and after every so
//! many, or behind each frame of video, a repair symbol over the newest of them goes out ([`sending`]). It is a data datagram without a packet: numbered,
//! paced and reported on its path as any, and never sent again. Only to an end that knows it ([`REPAIR_SYMBOLS`]).
//!
//! *In.* From the first repair symbol on, every packet that comes is given to a decoder ([`receiving`]). What it computes
//! goes to the resequencer as if it had come. The sender is told which those were ([`Frame::Recovered`]) besides what its
//! paths lost ([`Frame::Missing`]), which waits until the symbols had their chance: so all losses count, and only what
//! could not be computed is sent again.
//!
//! [`Frame::Recovered`]: crate::wire::control::Frame::Recovered
//! [`Frame::Missing`]: crate::wire::control::Frame::Missing

use core::{net::IpAddr, time::Duration};

use super::{Shared, Tunnel};
use crate::{
    counters::DropReason,
    fec::MAX_SYMBOL_BYTES,
    ids::{PathId, Seq},
    path::{delay::RelativeDelay, sender::Numbered},
    profile::Mechanism,
    sched::PathView,
    time::Instant,
    transmit::TxQueue,
    units::Bytes,
    wire::{
        Kind,
        control::MissingRanges,
        handshake::REPAIR_SYMBOLS,
        header::{DATA_HEADER_LEN, DataHeader, Header, TAG_LEN},
    },
};

mod frames;
mod losses;
mod receiving;
mod sending;

pub(super) use receiving::Receiving;
pub(super) use sending::Sending;

#[cfg(test)]
mod tests;

/// A loss costs no more than this beyond being told at once.
const LONGEST_GRACE: Duration = Duration::from_millis(12);
/// A loss is mostly told after so long.
const TOLD_WITHIN: Duration = Duration::from_millis(5);
/// A loss is told after so long, and its repair has its turn.
const REPORTED_WITHIN: Duration = Duration::from_millis(30);
/// Bytes of a repair symbol that stand in the header, in place of the steps.
pub(super) const IN_HEADER: usize = 4;

impl Tunnel {
    /// Puts a packet that will be sent next, or soon, under the protection of repair symbols, where paths lose. For one that has a deadline
    /// none is sent if it has the time to be sent again, or if others are given up for want of room: a symbol would take from
    /// what is sent for the first time.
    pub(super) fn protect(&mut self, now: Instant, numbered: &Numbered) {
        if self.knows(REPAIR_SYMBOLS) && self.profile.fec {
            let due = numbered.packet.mark().and_then(|mark| mark.due);
            let repaired_at = now + self.least_delay * 4 + REPORTED_WITHIN;
            let has_time = due.is_some_and(|due| repaired_at < due);
            let is_short = due.is_some() && self.lanes.is_short_of_room(now);
            let repaired_after = self.least_delay * 2 + TOLD_WITHIN;
            self.fec_sending
                .set_frames(self.profile.has(Mechanism::FecFrames));
            self.fec_sending
                .push(now, numbered, !has_time && !is_short, repaired_after);
        }
    }

    /// Sends the repair symbol that is due, if a path is ready; whether it did.
    pub(super) fn send_symbol(
        &mut self,
        now: Instant,
        out: &mut TxQueue,
        shared: &mut Shared<'_>,
    ) -> bool {
        if out.is_full() || !self.fec_sending.is_due(now, !self.has_packets()) {
            return false;
        }
        let Some(index) = self.path_of_symbol() else {
            return false;
        };
        let id = self.views[index].id;
        let Some(path) = self.paths[id.index()].as_deref_mut() else {
            return false;
        };
        let (Some(session), Some(route)) = (self.sessions.sending(now), path.route()) else {
            return false;
        };
        let counter = path.sender().next_data();
        let mut header = Header {
            kind: Kind::Data,
            is_out_of_turn: false,
            is_copy: false,
            // It is not, but what it covers is.
            is_kept: true,
            covered: 0,
            path: id,
            receiver_index: session.remote_index(),
            path_seq: Seq::of_counter(counter),
            sent_us: now.wire_micros(),
        };
        if !self.repairs.has(MAX_SYMBOL_BYTES + TAG_LEN) {
            return false;
        }
        let mut symbol = [0; MAX_SYMBOL_BYTES];
        let Some(made) = self
            .fec_sending
            .take(now, self.least_delay, header.key(), &mut symbol)
        else {
            return false;
        };
        let Some((&[a, b, c, d], rest)) = symbol[..made.len].split_first_chunk::<IN_HEADER>()
        else {
            return false;
        };
        let len = DATA_HEADER_LEN + rest.len() + TAG_LEN;
        if !self.repairs.try_spend(len) {
            return false;
        }
        let Some(datagram) = out.reserve(&route, len) else {
            return false;
        };
        header.covered = made.count;
        let data = DataHeader {
            global_seq: made.first,
            path_step: i16::from_be_bytes([a, b]),
            flow_step: u16::from_be_bytes([c, d]),
        };
        header.emit(Some(&data), datagram);
        let (header, body) = datagram.split_at_mut(DATA_HEADER_LEN);
        let (body, tag) = body.split_at_mut(rest.len());
        body.copy_from_slice(rest);
        tag.copy_from_slice(&session.seal(id, counter, header, body));
        self.counts.symbols_out += 1;
        path.sender_mut().on_sent(now, len, None, None, shared.pool);
        self.on_path(now, index, len);
        true
    }

    /// The path that would bring a repair symbol first, of those that carry what it covers and are ready.
    fn path_of_symbol(&self) -> Option<usize> {
        let views = self.views.iter().enumerate();
        let is_open =
            |(_, view): &(usize, &PathView)| view.ready && self.fec_sending.carries(view.id);
        let arrival = |view: &PathView| {
            let time = view
                .rate
                .map_or(Duration::ZERO, |rate| Bytes::new(1500) / rate);
            let wait = view.extra_delay.saturating_add(view.queue_delay);
            wait.saturating_add(time)
        };
        views
            .filter(is_open)
            .min_by_key(|(_, view)| arrival(view))
            .map(|(index, _)| index)
    }

    /// How long what is missing on `id` now is left to repair symbols: until the next has come, and what it covers on
    /// slower paths.
    pub(super) fn grace(&self, now: Instant, id: PathId) -> Duration {
        let is_wanted = self.profile.has(Mechanism::FecGrace);
        let grace = self.fec_receiving.grace(now).filter(|_| is_wanted);
        let Some(time) = grace else {
            return Duration::ZERO;
        };
        let own = self
            .path(id)
            .and_then(|path| path.receiver().delay().smoothed());
        let spread = own.map_or(Duration::ZERO, |own| self.longest_wait(now, own));
        (time + spread).min(LONGEST_GRACE)
    }

    /// The other end has computed these packets.
    pub(super) fn on_recovered(&mut self, ranges: MissingRanges<'_>) {
        for (first, count) in ranges {
            self.fec_sending.on_recovered(first, count);
        }
    }

    /// Takes a repair symbol: the `symbol` behind and in the header.
    pub(super) fn on_symbol(
        &mut self,
        now: Instant,
        (header, data): (&Header, &DataHeader),
        symbol: &[u8],
        shared: &mut Shared<'_>,
    ) -> Result<(), DropReason> {
        self.resequencer.on_empty(now, header.path, header.path_seq);
        self.counts.symbols_in += 1;
        self.fec_receiving
            .on_symbol(now, header, data.global_seq, symbol, shared.pool)
    }

    /// Hands what was recovered to the resequencer. `delay`: of the datagram that made it possible.
    pub(super) fn deliver_recovered(
        &mut self,
        now: Instant,
        delay: RelativeDelay,
        is_source_allowed: &impl Fn(IpAddr) -> bool,
        shared: &mut Shared<'_>,
    ) {
        while let Some((seq, flow_step, recovered)) = self.fec_receiving.pop() {
            self.counts.recovered += 1;
            let whole = self.peers_packet(recovered.as_slice(), false, is_source_allowed, shared);
            shared.pool.recycle(recovered);
            let result = whole.and_then(|packet| {
                self.resequence(now, (seq, flow_step), None, delay, packet, shared)
            });
            if let Err(reason) = result {
                shared.drops.add(reason, 1);
            }
        }
    }

    /// Notes a data datagram on `id`; `is_awaited`: somebody waits for its packet, and no other brings it.
    pub(super) fn note_carried(&mut self, id: PathId, is_awaited: bool) {
        self.fec_sending.on_sent(id, is_awaited);
    }
}
