//! Sends a numbered packet as a sealed datagram: on one path, as copies on several paths, or protected by a repair
//! symbol.
//!
//! A path retains the buffer of a packet until the other end reports the packet as received or missing
//! ([`crate::path::sender`]). Buffers of copies are not retained, because another copy may arrive.

use core::time::Duration;

use super::{
    fec::{IN_HEADER, REPORTED_WITHIN, TOLD_WITHIN},
    lengths::Lengths,
    placement::Placement,
    repair::Repair,
    round_trips::RoundTrips,
    sealer::{Flags, Sealer},
    sec::Sec,
    shared::Shared,
    templates::Templates,
};
use crate::{
    fec::MAX_SYMBOL_BYTES,
    ids::Seq,
    path::sender::Numbered,
    profile::Profile,
    sched::PathView,
    time::Instant,
    trace::Tracer,
    units::Bytes,
    wire::{
        handshake::REPAIR_SYMBOLS,
        header::{DATA_HEADER_LEN, DataHeader, TAG_LEN},
    },
};

/// The parts that an outgoing packet passes after the queues.
#[derive(Debug)]
pub(super) struct Egress<'a, 's> {
    pub(super) sealer: Sealer<'a>,
    pub(super) lengths: &'a Lengths,
    pub(super) placement: &'a mut Placement,
    pub(super) repair: &'a mut Repair,
    pub(super) round_trips: &'a RoundTrips,
    pub(super) sec: &'a mut Sec,
    pub(super) templates: &'a mut Templates,
    pub(super) tracer: &'a mut Tracer,
    pub(super) shared: &'a mut Shared<'s>,
}

impl Egress<'_, '_> {
    pub(super) const fn now(&self) -> Instant {
        self.sealer.now
    }

    pub(super) const fn profile(&self) -> &Profile {
        self.placement.profile()
    }

    /// Whether the batch is full.
    pub(super) fn is_full(&self) -> bool {
        self.sealer.out.is_full()
    }

    /// Sends a packet on the path of view `index`. The path retains the buffer until the other end reports the packet.
    /// Like the other methods that send a packet, this method sets `is_copy` and `is_kept` of `flags` itself.
    pub(super) fn send_once(&mut self, index: usize, numbered: Numbered, flags: Flags) {
        let flags = Flags {
            is_copy: false,
            is_kept: self.profile().detects_losses() && !numbered.is_expendable,
            ..flags
        };
        let Some(len) = self.seal(index, &numbered, flags) else {
            return self.repair.put_back(numbered);
        };
        let global_seq = numbered.global_seq;
        self.on_sent(index, len, global_seq, Some(numbered));
    }

    /// Sends a copy of a packet on every path whose view index is set in the bit set `set`.
    pub(super) fn send_copies(&mut self, set: u16, numbered: Numbered, flags: Flags) {
        let flags = Flags {
            is_copy: true,
            is_kept: false,
            ..flags
        };
        let mut is_sent = false;
        for index in self.indices(set) {
            if let Some(len) = self.seal(index, &numbered, flags) {
                self.on_sent(index, len, numbered.global_seq, None);
                is_sent = true;
            }
        }
        if is_sent {
            self.shared.pool.recycle(numbered.packet);
        } else {
            self.repair.put_back(numbered);
        }
    }

    /// Sends a copy of a packet that another path carries and may have to retransmit.
    pub(super) fn send_one_copy(&mut self, index: usize, numbered: &Numbered) {
        let flags = Flags {
            is_copy: true,
            ..Flags::default()
        };
        if let Some(len) = self.seal(index, numbered, flags) {
            self.on_sent(index, len, numbered.global_seq, None);
        }
    }

    /// Sends additional copies, which are never retransmitted, on the paths whose view indices are set in the bit set
    /// `set`. Returns the number of copies.
    pub(super) fn send_shadows(&mut self, set: u16, numbered: &Numbered, flags: Flags) -> u32 {
        let flags = Flags {
            is_copy: true,
            // The path does not retain the buffer. The flag lets the other end distinguish lost copies from late ones.
            is_kept: true,
            ..flags
        };
        let mut sent = 0;
        for index in self.indices(set) {
            let Some(len) = self.seal(index, numbered, flags) else {
                break;
            };
            self.on_sent(index, len, numbered.global_seq, None);
            sent += 1;
        }
        sent
    }

    /// Returns the indices of the views in a bit set.
    fn indices(&self, set: u16) -> impl Iterator<Item = usize> + use<> {
        (0..self.placement.views.len()).filter(move |index| set & (1 << index) != 0)
    }

    fn seal(&mut self, index: usize, numbered: &Numbered, flags: Flags) -> Option<usize> {
        let id = self.placement.views[index].id;
        let now = self.now();
        self.sealer.data(id, numbered, flags, |path_seq, datagram| {
            self.sec.on_sealed(now, id, path_seq, datagram)
        })
    }

    /// Records a sent data datagram of `len` bytes. `numbered` is the packet in it if the path is to retain the
    /// packet's buffer.
    fn on_sent(&mut self, index: usize, len: usize, global_seq: Seq, numbered: Option<Numbered>) {
        let now = self.now();
        self.repair.budget.on_sent(now, len);
        let id = self.placement.views[index].id;
        let Some(path) = self.sealer.paths.get_mut(id) else {
            return;
        };
        let is_kept = numbered.is_some();
        let is_expendable = numbered.as_ref().is_some_and(|packet| packet.is_expendable);
        path.on_data_sent(now, len, global_seq, numbered, self.shared.pool);
        let usage = &mut self.sealer.paths.usage;
        if is_kept {
            usage.on_carried(now, id);
        }
        usage.on_datagram(id);
        self.repair.fec.on_sent(id, is_kept && !is_expendable);
        self.repair.fec.rest(now);
        self.charge(index, len);
    }

    /// Charges `len` bytes to the path of view `index`.
    fn charge(&mut self, index: usize, len: usize) {
        let (now, views) = (self.now(), &mut self.placement.views);
        if let Some(path) = self.sealer.paths.get_mut(views[index].id) {
            path.on_sent(now, Bytes::of_len(len));
            views.on_sent(now, index, path);
        }
    }

    /// Adds a packet that is about to be sent to the FEC encoder, which protects packets on lossy paths. A packet with
    /// a deadline is not protected if a retransmission would arrive in time. It is not protected either if packets are
    /// being dropped for lack of capacity (`is_short_of_room`), because a symbol would then displace new packets.
    pub(super) fn protect(&mut self, numbered: &Numbered, is_short_of_room: bool) {
        if !(self.sealer.knows(REPAIR_SYMBOLS) && self.profile().fec) {
            return;
        }
        let now = self.now();
        let least_delay = self.placement.views.least_delay();
        let due = numbered.packet.mark().and_then(|mark| mark.due);
        let repaired_at = now + least_delay * 4 + REPORTED_WITHIN;
        let has_time = due.is_some_and(|due| repaired_at < due);
        let is_short = due.is_some() && is_short_of_room;
        let repaired_after = least_delay * 2 + TOLD_WITHIN;
        let fec = &mut self.repair.fec;
        fec.push(now, numbered, !has_time && !is_short, repaired_after);
    }

    /// Sends a repair symbol if one is due and a path is ready. Returns whether a symbol was sent. `is_idle` says that
    /// no packet waits.
    pub(super) fn send_symbol(&mut self, is_idle: bool) -> bool {
        let is_due = !self.is_full() && self.repair.fec.is_due(self.now(), is_idle);
        is_due && self.try_send_symbol().is_some()
    }

    fn try_send_symbol(&mut self) -> Option<()> {
        let now = self.now();
        let index = self.path_of_symbol()?;
        let id = self.placement.views[index].id;
        let mut header = self.sealer.next_header(id)?;
        // No buffer of the symbol is retained, but the buffers of the packets that it protects are.
        header.is_kept = true;
        let Repair { budget, fec, .. } = &mut *self.repair;
        if !budget.has(DATA_HEADER_LEN - IN_HEADER + MAX_SYMBOL_BYTES + TAG_LEN) {
            return None;
        }
        let mut symbol = [0; MAX_SYMBOL_BYTES];
        let least_delay = self.placement.views.least_delay();
        let made = fec.take(now, least_delay, header.key(), &mut symbol)?;
        let (&[a, b, c, d], rest) = symbol[..made.len].split_first_chunk::<IN_HEADER>()?;
        header.covered = made.count;
        let data = DataHeader {
            global_seq: made.first,
            path_step: i16::from_be_bytes([a, b]),
            flow_step: u16::from_be_bytes([c, d]),
        };
        let len = self.sealer.symbol(&header, &data, rest)?;
        budget.try_spend(len);
        self.repair.symbols_out += 1;
        let path = self.sealer.paths.get_mut(id)?;
        path.sender_mut()
            .on_sent(now, len, None, None, self.shared.pool);
        self.charge(index, len);
        Some(())
    }

    /// Returns the view of the path on which a repair symbol would arrive first, among the ready paths that carry the
    /// protected packets.
    fn path_of_symbol(&self) -> Option<usize> {
        let usage = &self.sealer.paths.usage;
        let views = self.placement.views.iter().enumerate();
        let is_open = |(_, view): &(usize, &PathView)| view.ready && usage.is_carrying(view.id);
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
}
