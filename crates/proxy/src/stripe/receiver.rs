//! The receiving half of a connection: holds chunks until those before them have come, drops what came before, grants credit.
//!
//! Credit begins at [`FIRST_WINDOW`] and doubles, up to [`WINDOW`], each time the application has taken half of it and leaves
//! less than that behind: only who reads quickly needs more.
//!
//! Bounds: nothing beyond the credit it gave, and no more than [`MAX_CHUNKS`] chunks.

use std::collections::{BTreeMap, VecDeque};

use super::{Chunk, FIRST_WINDOW, MAX_CHUNKS, Violation, WINDOW};

/// See the module's head.
#[derive(Debug)]
pub struct Receiver {
    /// All before it came.
    next: u64,
    /// What came too early, by offset.
    held: BTreeMap<u64, Chunk>,
    held_bytes: u64,
    most_held_bytes: u64,
    /// In order, not delivered yet; the first from `taken` on.
    ready: VecDeque<Chunk>,
    taken: usize,
    delivered: u64,
    /// Where the stream ends, once that is known; as the offset of the end.
    end: Option<u64>,
    duplicate_bytes: u64,
    /// Credit beyond what was delivered, and what was delivered when it last grew.
    window: u64,
    grown_at: u64,
    /// What the other end was told last: delivered, limit; and how many chunks were delivered since.
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
    /// It is not one that an honest sender would send; nothing was changed.
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

    /// The next bytes of the stream; empty if there are none now.
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

    /// Whether all of the stream was delivered, its end with it.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.end.is_some_and(|end| self.delivered > end)
    }

    /// Up to where the stream has come without a gap, for tests.
    #[cfg(test)]
    pub(super) fn came(&self) -> u64 {
        self.next
    }

    /// All before it was delivered.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// How far the other end may send.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.delivered.saturating_add(self.window)
    }

    /// Credit beyond what was delivered.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Doubles the credit if the application takes what comes, and `room` bytes more may be promised. By how much it grew.
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

    /// What to tell the other end, once it is worth that: a quarter of the window more, a quarter of the chunks, or all
    /// was delivered. Delivered, limit.
    pub fn poll_window(&mut self) -> Option<(u64, u64)> {
        self.has_window().then(|| {
            self.told = (self.delivered, self.limit());
            self.untold_chunks = 0;
            self.told
        })
    }

    /// Whether [`Self::poll_window`] has something to tell.
    #[must_use]
    pub fn has_window(&self) -> bool {
        self.limit() - self.told.1 >= self.window / 4
            || self.untold_chunks >= MAX_CHUNKS / 4
            || self.is_done() && self.told.0 < self.delivered
    }

    /// Bytes that wait for earlier ones: now, at most so far; and bytes that came twice.
    #[must_use]
    pub fn held_most_and_duplicate(&self) -> (u64, u64, u64) {
        (self.held_bytes, self.most_held_bytes, self.duplicate_bytes)
    }

    /// Everything kept, in bytes, for tests of the bounds.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> u64 {
        let ready: u64 = self.ready.iter().map(|chunk| chunk.data.len() as u64).sum();
        ready + self.held_bytes
    }

    /// Whether `chunk` is held already; an error if it is another one.
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

    /// The end needs no reader.
    fn skip_end(&mut self) {
        if self.ready.front().is_some_and(Chunk::is_end) {
            self.ready.pop_front();
            self.delivered += 1;
        }
    }
}
