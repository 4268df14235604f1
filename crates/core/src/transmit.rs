//! Datagrams ready to send, gathered into batches that one system call can send (UDP GSO).
//!
//! A [`TxBatch`] is a run of datagrams of equal length (the last may be shorter) for one [`Route`]. The engine reserves
//! room, writes header and packet, and seals in place: no further copy is made. A [`TxQueue`] holds the batches of one
//! pass of the loop and reuses their memory.

use core::net::{IpAddr, SocketAddr};

/// Where a datagram leaves and where it goes: link, source and destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The client's link, by path number. On a gateway 0, which has one socket for all, or a number of the host's for what does
    /// not come over that socket.
    pub link: u8,
    /// The destination.
    pub remote: SocketAddr,
    /// The source address to send from; `None` lets the kernel choose.
    pub local: Option<IpAddr>,
}

/// Datagrams for one route, to be sent with one call.
#[derive(Debug)]
pub struct TxBatch {
    route: Route,
    bytes: Vec<u8>,
    segment_len: usize,
    segments: usize,
    is_closed: bool,
    has_parity: bool,
}

impl TxBatch {
    /// Where the batch goes.
    #[must_use]
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// All datagrams, concatenated.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Length of every datagram but the last, which may be shorter.
    #[must_use]
    pub fn segment_len(&self) -> usize {
        self.segment_len
    }

    /// Number of datagrams.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Whether the other end may correct some of the datagrams if they arrive with bit errors (`tunnel/sec.rs`).
    #[must_use]
    pub fn has_parity(&self) -> bool {
        self.has_parity
    }

    fn has_room(&self, len: usize) -> bool {
        !self.is_closed
            && len <= self.segment_len
            && self.segments < MAX_SEGMENTS
            && self.bytes.len() + len <= MAX_BATCH_BYTES
    }
}

/// The batches of one pass. Bounded by the number of batches given to [`TxQueue::new`].
#[derive(Debug)]
pub struct TxQueue {
    batches: Vec<TxBatch>,
    /// How many of `batches` are in use; the rest keep their memory.
    used: usize,
    limit: usize,
    /// How many may be in use in this turn.
    turn_end: usize,
}

impl TxQueue {
    /// An empty queue of at most `limit` batches of up to 64 KiB.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            batches: Vec::new(),
            used: 0,
            limit,
            turn_end: limit,
        }
    }

    /// The batches to send, in order.
    #[must_use]
    pub fn batches(&self) -> &[TxBatch] {
        &self.batches[..self.used]
    }

    /// Removes all batches; their memory is kept.
    pub fn clear(&mut self) {
        self.used = 0;
        self.turn_end = self.limit;
    }

    /// Begins the turn of one of `sharers` that have datagrams to send. It may open its share of all batches, at least
    /// `LEAST_SHARE`.
    pub fn begin_turn(&mut self, sharers: usize) {
        let share = (self.limit / sharers.max(1)).max(LEAST_SHARE);
        self.turn_end = (self.used + share).min(self.limit);
    }

    /// Ends the turn. Returns whether there is room for another.
    pub fn end_turn(&mut self) -> bool {
        self.turn_end = self.limit;
        !self.is_full()
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether another datagram might find no room in this turn on some route. If so, send the batches first.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.used >= self.turn_end
    }

    /// Room for one datagram of `len` bytes for `route`, content unspecified; `None` if the queue
    /// [is full](Self::is_full) or `len` exceeds what UDP carries. Datagrams for a route keep their order.
    pub fn reserve(&mut self, route: &Route, len: usize) -> Option<&mut [u8]> {
        if len > MAX_BATCH_BYTES {
            return None;
        }
        let latest = self.batches[..self.used]
            .iter()
            .rposition(|batch| batch.route == *route);
        let index = match latest {
            Some(index) if self.batches[index].has_room(len) => index,
            _ => self.open(route, len)?,
        };
        let batch = &mut self.batches[index];
        let start = batch.bytes.len();
        batch.bytes.resize(start + len, 0);
        batch.segments += 1;
        batch.is_closed = len < batch.segment_len;
        Some(&mut batch.bytes[start..])
    }

    /// Records that the newest datagram for `route` [can be corrected](TxBatch::has_parity).
    pub fn note_parity(&mut self, route: &Route) {
        let mut batches = self.batches[..self.used].iter_mut();
        if let Some(batch) = batches.rfind(|batch| batch.route == *route) {
            batch.has_parity = true;
        }
    }

    fn open(&mut self, route: &Route, segment_len: usize) -> Option<usize> {
        if self.is_full() {
            return None;
        }
        let index = self.used;
        self.used += 1;
        if index == self.batches.len() {
            self.batches.push(TxBatch {
                route: *route,
                bytes: Vec::with_capacity(MAX_BATCH_BYTES),
                segment_len,
                segments: 0,
                is_closed: false,
                has_parity: false,
            });
        }
        let batch = &mut self.batches[index];
        batch.route = *route;
        batch.bytes.clear();
        batch.segment_len = segment_len;
        batch.segments = 0;
        batch.is_closed = false;
        batch.has_parity = false;
        Some(index)
    }
}

/// `UDP_MAX_SEGMENTS` of Linux before 6.9; later kernels take 128.
const MAX_SEGMENTS: usize = 64;
/// Batches that every turn may open, so that a peer's control datagrams leave room for data.
const LEAST_SHARE: usize = 4;
/// 65535 less the IPv4 and UDP headers.
const MAX_BATCH_BYTES: usize = 65_507;

#[cfg(test)]
mod tests {
    use super::*;

    fn route(link: u8) -> Route {
        Route {
            link,
            remote: "192.0.2.1:7700".parse().expect("literal"),
            local: None,
        }
    }

    #[test]
    fn equal_datagrams_share_a_batch_and_a_shorter_one_ends_it() {
        let mut queue = TxQueue::new(8);
        for len in [100, 100, 60, 100, 120] {
            queue.reserve(&route(0), len).expect("room").fill(1);
        }
        let shapes: Vec<_> = queue
            .batches()
            .iter()
            .map(|b| (b.segment_len(), b.segments(), b.bytes().len()))
            .collect();
        assert_eq!(shapes, [(100, 3, 260), (100, 1, 100), (120, 1, 120)]);
    }

    #[test]
    fn routes_do_not_mix_and_limits_hold() {
        let mut queue = TxQueue::new(3);
        queue.reserve(&route(0), 1400).expect("room");
        queue.reserve(&route(1), 1400).expect("room");
        for _ in 0..45 {
            queue.reserve(&route(0), 1400).expect("room");
        }
        assert!(queue.batches()[0].bytes().len() <= MAX_BATCH_BYTES);
        assert_eq!(queue.batches()[0].segments(), 46);
        assert!(queue.reserve(&route(0), 1400).is_some());
        assert!(queue.is_full());
        assert!(queue.reserve(&route(2), 10).is_none());
        assert!(queue.reserve(&route(2), 70_000).is_none());
        queue.clear();
        assert!(queue.is_empty() && queue.reserve(&route(2), 10).is_some());
    }
}
