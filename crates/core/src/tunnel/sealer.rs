//! Writes datagrams into a path's batch and encrypts them there.
//!
//! A data datagram has the next sequence number of its path. After sending it, the caller must inform the path
//! ([`Path::on_data_sent`](crate::path::Path::on_data_sent)); only then does the path advance to the next number.

use super::path_set::{PathSet, bit};
use crate::{
    ids::{PathId, Seq},
    path::sender::Numbered,
    session::rotation::SessionSet,
    time::Instant,
    transmit::TxQueue,
    wire::{
        Kind,
        handshake::ANSWER_PATHS,
        header::{DATA_HEADER_LEN, DATA_OVERHEAD, DataHeader, Header, TAG_LEN},
    },
};

/// The keys, the paths, and the batch to which a datagram is written.
#[derive(Debug)]
pub(super) struct Sealer<'a> {
    pub(super) now: Instant,
    pub(super) sessions: &'a mut SessionSet,
    pub(super) paths: &'a mut PathSet,
    pub(super) out: &'a mut TxQueue,
}

/// The flags in the header of a data datagram, which describe its packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    /// Whether the packet is a retransmission, or packets with lower sequence numbers still wait.
    pub(super) is_out_of_turn: bool,
    /// Whether another datagram carries the same packet.
    pub(super) is_copy: bool,
    /// Whether the packet's buffer is retained, so that the packet is retransmitted if it is lost.
    pub(super) is_kept: bool,
    /// The paths on which the answers to the packet are wanted, as a set with bit *i* for path *i*. The header has the
    /// flag if the path of the datagram is one of them and the other end knows the flag.
    pub(super) answer_paths: u16,
}

impl Sealer<'_> {
    /// Whether the other end has a capability.
    pub(super) fn knows(&self, capability: u32) -> bool {
        knows(self.sessions, capability)
    }

    /// Writes, encrypts and queues one control datagram on a path. Returns `false` if the path, its route or the key is
    /// missing, if the batch is full, or if this end may not send so much to the path's address
    /// ([`crate::path::address`]).
    pub(super) fn control(&mut self, id: PathId, body: &[u8]) -> bool {
        self.try_control(id, body).is_some()
    }

    fn try_control(&mut self, id: PathId, body: &[u8]) -> Option<()> {
        let path = self.paths.get_mut(id)?;
        let session = self.sessions.sending(self.now)?;
        let route = path.route()?;
        let header_len = Kind::Control.header_len();
        let len = header_len + body.len() + TAG_LEN;
        if !path.address_mut().try_spend(len) {
            return None;
        }
        let datagram = self.out.reserve(&route, len)?;
        let counter = path.sender_mut().take_control();
        let header = Header {
            kind: Kind::Control,
            ..data_header(self.now, id, session.remote_index(), counter)
        };
        header.emit(None, datagram);
        let (header, rest) = datagram.split_at_mut(header_len);
        let (sealed, tag) = rest.split_at_mut(body.len());
        sealed.copy_from_slice(body);
        tag.copy_from_slice(&session.seal(id.control_lane(), counter, header, sealed));
        Some(())
    }

    /// Writes and encrypts one data datagram. Returns its length; `None` if the path, its validated route or the key is
    /// missing, or if the batch is full. `has_parity` receives the datagram's sequence number and bytes, and returns
    /// whether parity will be sent for it.
    pub(super) fn data(
        &mut self,
        id: PathId,
        numbered: &Numbered,
        flags: Flags,
        has_parity: impl FnOnce(Seq, &[u8]) -> bool,
    ) -> Option<usize> {
        let is_answer_path = flags.answer_paths & bit(id) != 0 && self.knows(ANSWER_PATHS);
        let path = self.paths.get(id)?;
        let session = self.sessions.sending(self.now)?;
        let payload = numbered.packet.as_slice();
        let len = payload.len() + DATA_OVERHEAD;
        let route = path.route().filter(|_| path.address().is_proven())?;
        let datagram = self.out.reserve(&route, len)?;
        let counter = path.sender().next_data();
        let header = Header {
            is_out_of_turn: flags.is_out_of_turn,
            is_copy: flags.is_copy,
            is_kept: flags.is_kept,
            is_answer_path,
            ..data_header(self.now, id, session.remote_index(), counter)
        };
        let data = DataHeader {
            global_seq: numbered.global_seq,
            path_step: path.sender().path_step(numbered.global_seq),
            flow_step: numbered.flow_step,
        };
        header.emit(Some(&data), datagram);
        let path_seq = header.path_seq;
        let (header, body) = datagram.split_at_mut(DATA_HEADER_LEN);
        let (body, tag) = body.split_at_mut(payload.len());
        body.copy_from_slice(payload);
        tag.copy_from_slice(&session.seal(id, counter, header, body));
        if has_parity(path_seq, datagram) {
            self.out.note_parity(&route);
        }
        Some(len)
    }

    /// Returns the header of the next data datagram on a path, with the flags for copies and retained buffers cleared;
    /// `None` if the path, its route or the key is missing.
    pub(super) fn next_header(&mut self, id: PathId) -> Option<Header> {
        let path = self.paths.get(id)?;
        path.route()?;
        let session = self.sessions.sending(self.now)?;
        let counter = path.sender().next_data();
        Some(data_header(self.now, id, session.remote_index(), counter))
    }

    /// Writes and encrypts a repair symbol whose first bytes are in `data`. Returns its length; `None` if the batch is
    /// full.
    pub(super) fn symbol(
        &mut self,
        header: &Header,
        data: &DataHeader,
        symbol: &[u8],
    ) -> Option<usize> {
        let id = header.path;
        let path = self.paths.get(id)?;
        let session = self.sessions.sending(self.now)?;
        let len = DATA_HEADER_LEN + symbol.len() + TAG_LEN;
        let route = path.route().filter(|_| path.address().is_proven())?;
        let datagram = self.out.reserve(&route, len)?;
        header.emit(Some(data), datagram);
        let (header, body) = datagram.split_at_mut(DATA_HEADER_LEN);
        let (body, tag) = body.split_at_mut(symbol.len());
        body.copy_from_slice(symbol);
        let counter = path.sender().next_data();
        tag.copy_from_slice(&session.seal(id, counter, header, body));
        Some(len)
    }
}

/// Returns the header of a data datagram with all flags cleared.
fn data_header(now: Instant, id: PathId, receiver_index: u32, counter: u64) -> Header {
    Header {
        kind: Kind::Data,
        is_out_of_turn: false,
        is_copy: false,
        is_kept: false,
        is_answer_path: false,
        covered: 0,
        path: id,
        receiver_index,
        path_seq: Seq::of_counter(counter),
        sent_us: now.wire_micros(),
    }
}

/// Whether the other end has a capability.
pub(super) fn knows(sessions: &SessionSet, capability: u32) -> bool {
    let session = sessions.current();
    session.is_some_and(|session| session.remote_hello().capabilities & capability != 0)
}

/// Maximum length in bytes of the body of a control datagram, which every path can carry.
pub(super) const MAX_BODY: usize = 1100;
