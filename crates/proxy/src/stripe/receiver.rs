//! The receiving direction of a connection: buffers chunks until all earlier ones have arrived, drops duplicates,
//! grants credit.
//!
//! The credit begins at [`FIRST_WINDOW`]. It doubles, up to [`WINDOW`], each time the application has read half of
//! the credit and less than half of the credit is unread. So only connections whose application reads quickly get
//! more credit.
//!
//! Bounds: no data beyond the granted credit, and at most [`MAX_CHUNKS`] chunks.

use std::collections::{BTreeMap, VecDeque};

use super::{Chunk, FIRST_WINDOW, MAX_CHUNKS, Violation, WINDOW};

/// Receiving direction of a connection.
#[derive(Debug)]
pub struct Receiver {
    /// Position up to which the stream has arrived without a gap.
    next: u64,
    /// Chunks that arrived early, by position.
    held: BTreeMap<u64, Chunk>,
    held_bytes: u64,
    most_held_bytes: u64,
    /// `ready`: chunks in order that are not delivered yet. `taken`: delivered bytes of the first of them.
    ready: VecDeque<Chunk>,
    taken: usize,
    delivered: u64,
    /// Position of the end of the stream, once it is known.
    end: Option<u64>,
    duplicate_bytes: u64,
    /// `window`: credit beyond the delivered bytes. `grown_at`: delivered bytes when the credit last grew.
    window: u64,
    grown_at: u64,
    /// `told`: delivered bytes and limit in the last window update. `untold_chunks`: chunks delivered since.
    told: (u64, u64),
    untold_chunks: usize,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            next: 0,
            held: BTreeMap::new(),
            held_bytes: 0,
            most_held_bytes: 0,
            ready: VecDeque::new(),
            taken: 0,
            delivered: 0,
            end: None,
            duplicate_bytes: 0,
            window: FIRST_WINDOW,
            grown_at: 0,
            told: (0, FIRST_WINDOW),
            untold_chunks: 0,
        }
    }
}

impl Receiver {
    /// Handles a chunk.
    ///
    /// # Errors
    /// Fails if an honest sender would not send this chunk. The state is then unchanged.
    pub fn handle_chunk(&mut self, chunk: Chunk) -> Result<(), Violation> {
        let (offset, end) = (chunk.offset, chunk.end());
        if end > self.limit() || end <= offset {
            return Err(Violation::Credit);
        }
        let is_known = match &self.end {
            _ if end <= self.next => true,
            _ if offset < self.next => return Err(Violation::Overlap),
            Some(last) if offset > *last || chunk.is_end() != (offset == *last) => {
                return Err(Violation::Overlap);
            }
            _ => self.overlaps(&chunk)?,
        };
        if is_known {
            self.duplicate_bytes += chunk.data.len() as u64;
        } else {
            if self.held.len() + self.ready.len() >= MAX_CHUNKS {
                return Err(Violation::Credit);
            }
            if chunk.is_end() {
                if self
                    .held
                    .last_key_value()
                    .is_some_and(|(last, _)| *last > offset)
                {
                    return Err(Violation::Overlap);
                }
                self.end = Some(offset);
            }
            self.held_bytes += chunk.data.len() as u64;
            self.held.insert(offset, chunk);
            while let Some(first) = self.held.first_entry()
                && *first.key() == self.next
            {
                let chunk = first.remove();
                self.next = chunk.end();
                self.held_bytes -= chunk.data.len() as u64;
                self.ready.push_back(chunk);
            }
            self.most_held_bytes = self.most_held_bytes.max(self.held_bytes);
            self.skip_end();
        }
        Ok(())
    }

    /// Returns the next bytes of the stream; empty if there are none at present.
    #[must_use]
    pub fn peek(&self) -> &[u8] {
        let first = self.ready.front();
        first.map_or(&[], |chunk| &chunk.data[self.taken..])
    }

    /// Notes that the first `len` bytes of [`Self::peek`] were delivered.
    pub fn consume(&mut self, len: usize) {
        if let Some(chunk) = self.ready.front() {
            let len = len.min(chunk.data.len() - self.taken);
            self.taken += len;
            self.delivered += len as u64;
            if self.taken == chunk.data.len() {
                self.ready.pop_front();
                self.taken = 0;
                self.untold_chunks += 1;
            }
        }
        self.skip_end();
    }

    /// Whether the whole stream and its end were delivered.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.end.is_some_and(|end| self.delivered > end)
    }

    /// Returns the position up to which the stream has arrived without a gap, for tests.
    #[cfg(test)]
    pub(super) fn came(&self) -> u64 {
        self.next
    }

    /// Returns the position up to which the stream was delivered.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns the position up to which the other end may send.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.delivered.saturating_add(self.window)
    }

    /// Returns the credit beyond the delivered bytes.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Doubles the credit if the application reads quickly and the credit may grow by `room` bytes. Returns the
    /// growth.
    pub fn grow(&mut self, room: u64) -> u64 {
        let is_quick = self.delivered - self.grown_at >= self.window / 2
            && self.next - self.delivered < self.window / 2;
        if !is_quick || self.window >= WINDOW || self.window > room {
            return 0;
        }
        self.grown_at = self.delivered;
        let before = self.window;
        self.window = (before * 2).min(WINDOW);
        self.window - before
    }

    /// Returns the next window update (delivered bytes and limit) if one is due. It is due when the limit has grown
    /// by a quarter of the window, a quarter of the maximum number of chunks was delivered, or the whole stream was
    /// delivered.
    pub fn poll_window(&mut self) -> Option<(u64, u64)> {
        self.has_window().then(|| {
            self.told = (self.delivered, self.limit());
            self.untold_chunks = 0;
            self.told
        })
    }

    /// Whether a window update is due.
    #[must_use]
    pub fn has_window(&self) -> bool {
        self.limit() - self.told.1 >= self.window / 4
            || self.untold_chunks >= MAX_CHUNKS / 4
            || self.is_done() && self.told.0 < self.delivered
    }

    /// Returns the number of bytes that wait for earlier bytes at present, the maximum of this number so far, and the
    /// number of duplicate bytes.
    #[must_use]
    pub fn held_most_and_duplicate(&self) -> (u64, u64, u64) {
        (self.held_bytes, self.most_held_bytes, self.duplicate_bytes)
    }

    /// Returns the number of buffered bytes, for tests of the bounds.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> u64 {
        let ready: u64 = self.ready.iter().map(|chunk| chunk.data.len() as u64).sum();
        ready + self.held_bytes
    }

    /// Whether `chunk` is buffered already. Fails if it overlaps a different chunk.
    fn overlaps(&self, chunk: &Chunk) -> Result<bool, Violation> {
        let before = self.held.range(..=chunk.offset).next_back();
        if let Some((offset, held)) = before
            && held.end() > chunk.offset
        {
            let is_same = *offset == chunk.offset && held.data.len() == chunk.data.len();
            return if is_same {
                Ok(true)
            } else {
                Err(Violation::Overlap)
            };
        }
        let after = self.held.range(chunk.offset..).next();
        if after.is_some_and(|(offset, _)| *offset < chunk.end()) {
            return Err(Violation::Overlap);
        }
        Ok(false)
    }

    /// Skips the end of the stream, which needs no reader.
    fn skip_end(&mut self) {
        if self.ready.front().is_some_and(Chunk::is_end) {
            self.ready.pop_front();
            self.delivered += 1;
        }
    }
}
