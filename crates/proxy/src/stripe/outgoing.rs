//! The sending direction of a connection: accepts bytes and cuts them into chunks within the peer's credit.
//!
//! Bounds: [`MAX_PENDING`] bytes accepted and not cut, [`MAX_CHUNKS`] chunks not delivered.

use std::{collections::VecDeque, sync::Arc};

use super::{CHUNK, Chunk, FIRST_WINDOW, MAX_CHUNKS, MAX_PENDING, Violation, WINDOW};

/// Sending direction of a connection.
#[derive(Debug)]
pub struct Outgoing {
    pending: VecDeque<Vec<u8>>,
    pending_bytes: usize,
    /// End positions of the chunks that were cut and not delivered.
    ends: VecDeque<u64>,
    /// Position at which the next chunk begins.
    cut_to: u64,
    delivered: u64,
    limit: u64,
    /// `is_finished`: whether the application has ended the stream. `is_end_cut`: whether the end was cut as a chunk.
    is_finished: bool,
    is_end_cut: bool,
}

/// What a connection can send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The peer's credit is exhausted, or too many chunks are undelivered.
    Blocked,
    /// A chunk or the end of the stream, with its length; the end counts as one byte.
    Chunk(u64),
    /// The connection has nothing to send.
    Nothing,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            pending: VecDeque::new(),
            pending_bytes: 0,
            ends: VecDeque::new(),
            cut_to: 0,
            delivered: 0,
            limit: FIRST_WINDOW,
            is_finished: false,
            is_end_cut: false,
        }
    }
}

impl Outgoing {
    /// Returns how many bytes `write` accepts at present, if all connections together may accept `left` more. A
    /// connection without pending bytes may always write a chunk.
    #[must_use]
    pub fn room(&self, left: usize) -> usize {
        if self.is_finished {
            0
        } else if self.pending_bytes == 0 {
            left.clamp(CHUNK, MAX_PENDING)
        } else {
            left.min(MAX_PENDING.saturating_sub(self.pending_bytes))
        }
    }

    /// Accepts `bytes`, at most as many as [`Self::room`] returns.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let mut left = bytes;
        if let Some(last) = self.pending.back_mut() {
            let fits = left.len().min(CHUNK.saturating_sub(last.len()));
            last.extend_from_slice(&left[..fits]);
            left = &left[fits..];
        }
        for piece in left.chunks(CHUNK) {
            self.pending.push_back(piece.to_vec());
        }
        self.pending_bytes += bytes.len();
    }

    /// Ends the stream: no more bytes follow.
    pub(super) fn finish(&mut self) {
        self.is_finished = true;
    }

    /// Whether any chunk was cut.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.cut_to > 0
    }

    /// Whether the whole stream and its end were delivered.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_end_cut && self.delivered == self.cut_to
    }

    /// Returns the position up to which the other end has delivered the stream.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns the number of bytes that were accepted and not cut.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Returns whether a chunk can be sent next, and its length.
    pub(super) fn next(&self) -> Next {
        let len = match self.pending.front() {
            Some(piece) => piece.len() as u64,
            None if self.is_finished && !self.is_end_cut => 1,
            None => return Next::Nothing,
        };
        let fits = self.cut_to.saturating_add(len) <= self.limit;
        if fits && self.ends.len() < MAX_CHUNKS {
            Next::Chunk(len)
        } else {
            Next::Blocked
        }
    }

    /// Cuts the chunk that [`Self::next`] announced.
    pub(super) fn cut(&mut self) -> Chunk {
        let data = self.pending.pop_front().unwrap_or_default();
        self.pending_bytes -= data.len();
        self.is_end_cut |= data.is_empty();
        let chunk = Chunk {
            offset: self.cut_to,
            data: Arc::new(data),
        };
        self.cut_to = chunk.end();
        self.ends.push_back(chunk.end());
        chunk
    }

    /// Handles a window update of the other end.
    ///
    /// # Errors
    /// Fails if the update reports the delivery of bytes that were not sent.
    pub(super) fn handle_window(&mut self, delivered: u64, limit: u64) -> Result<(), Violation> {
        if delivered > self.cut_to {
            return Err(Violation::Acknowledged);
        }
        self.delivered = self.delivered.max(delivered);
        while self.ends.front().is_some_and(|end| *end <= delivered) {
            self.ends.pop_front();
        }
        // The buffers at this end are bounded whatever the other end grants.
        let limit = limit.min(self.delivered.saturating_add(WINDOW));
        self.limit = self.limit.max(limit);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_of_tiny_writes_stops_at_the_bound_of_chunks() {
        let mut out = Outgoing::default();
        let mut cut = 0;
        for _ in 0..MAX_CHUNKS * 2 {
            out.write(b"x");
            if out.next() == Next::Chunk(1) {
                out.cut();
                cut += 1;
            }
        }
        assert_eq!(cut, MAX_CHUNKS);
        let delivered = MAX_CHUNKS as u64;
        assert_eq!(out.handle_window(delivered, u64::MAX), Ok(()));
        assert!(matches!(out.next(), Next::Chunk(_)));
    }

    #[test]
    fn whatever_is_granted_no_more_than_the_largest_window_is_sent() {
        let mut out = Outgoing::default();
        assert_eq!(out.handle_window(0, u64::MAX), Ok(()));
        let mut sent = 0;
        loop {
            let room = out.room(usize::MAX);
            out.write(&vec![7; room]);
            match out.next() {
                Next::Chunk(len) => {
                    out.cut();
                    sent += len;
                }
                Next::Blocked => break,
                Next::Nothing => panic!("there is more"),
            }
        }
        assert_eq!(sent, WINDOW);
        assert_eq!(out.room(usize::MAX), 0);
        assert_eq!(out.pending_bytes(), MAX_PENDING);
        assert_eq!(
            out.handle_window(sent + 1, sent + 1),
            Err(Violation::Acknowledged)
        );
    }
}
