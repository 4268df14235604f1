//! The keys of an association: which session opens a datagram, when the next key is due, and when the peer was last
//! heard.

use crate::{
    counters::DropReason,
    session::{
        keys::OpenError,
        rotation::{Change, SessionSet},
    },
    time::Instant,
    wire::{Kind, header::Header},
};

/// The sessions of one association.
#[derive(Debug)]
pub(super) struct Sessions {
    keys: SessionSet,
    /// Time at which a session expires.
    deadline: Option<Instant>,
    last_received_at: Option<Instant>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            keys: SessionSet::new(),
            deadline: None,
            last_received_at: None,
        }
    }
}

impl Sessions {
    /// Returns the sessions with their keys.
    pub(super) const fn keys(&mut self) -> &mut SessionSet {
        &mut self.keys
    }

    /// Whether there is a session.
    pub(super) fn is_any(&self) -> bool {
        self.keys.current().is_some()
    }

    /// Returns the time at which the last authenticated datagram was received.
    pub(super) const fn last_received_at(&self) -> Option<Instant> {
        self.last_received_at
    }

    /// Returns the time at which [`Self::expire`] is due.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Records that a handshake initiated by this end has completed.
    pub(super) const fn on_connected(&mut self, now: Instant) {
        self.last_received_at = Some(now);
        self.on_changed(now);
    }

    /// Records that a session was added or replaced.
    pub(super) const fn on_changed(&mut self, now: Instant) {
        self.deadline = Some(now);
    }

    /// Removes expired sessions.
    pub(super) fn expire(&mut self, now: Instant) {
        self.deadline = self.keys.expire(now);
    }

    /// Decrypts a datagram in place. Returns its sequence number on its path, the end of its body, and what it changed
    /// about the sessions.
    ///
    /// # Errors
    /// The reason why the datagram is dropped.
    pub(super) fn open(
        &mut self,
        now: Instant,
        header: &Header,
        datagram: &mut [u8],
    ) -> Result<(u64, usize, Option<Change>), DropReason> {
        let lane = match header.kind {
            Kind::Control => header.path.control_lane(),
            Kind::Data => header.path,
        };
        let header_len = header.kind.header_len();
        let (aad, body) = datagram.split_at_mut(header_len);
        let (index, path_seq) = (header.receiver_index, header.path_seq);
        let opened = self.keys.open(now, index, lane, path_seq, aad, body);
        let (opened, change) = opened.map_err(|error| match error {
            OpenError::Authentication => DropReason::Forged,
            OpenError::Expired | OpenError::UnknownIndex => DropReason::UnknownSession,
            OpenError::Replayed(_) => DropReason::Replayed,
            OpenError::UnknownPath => DropReason::Malformed,
        })?;
        if change.is_some() {
            self.on_changed(now);
        }
        self.last_received_at = Some(now);
        Ok((opened.counter, header_len + opened.len, change))
    }
}
