//! Fetches one answer of a server over several links, by byte ranges.
//!
//! The *first* connection carried the request for the whole answer, and its body has begun to arrive there. While
//! links have capacity that the answer could use, *fetches* of later bytes are planned: each is a range request over
//! a link with free capacity ([`Parts::plan`]). When the server begins to send a part, the connection that was to
//! carry these bytes so far stops where the part begins ([`Parts::accept`]). The client receives the bytes in order.
//! Bytes that arrive early are buffered here, at most [`AHEAD`]. Two rules assign bytes to links:
//!
//! 1. Bytes that no connection is to carry (they follow a part in the middle, or their connection broke) go to the
//!    link that can carry them soonest, in chunks of about a second each.
//! 2. When all bytes are assigned, or the buffer is fully assigned, a link without work for this answer takes over
//!    the last bytes of the fetch that would finish last. It takes as many bytes as let both connections finish at
//!    the same time. This is the optimum for two links of known rates (the packet-oriented mode of the DBAS paper,
//!    with ranges instead of packets). A connection that has stalled counts as one that never finishes, so its bytes
//!    are fetched over another link as well.
//!
//! This module has no clock and no sockets: inputs carry `now`.

use core::{cmp::Reverse, ops::Range, time::Duration};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

use crate::sched::LinkId;

/// A link that may carry parts of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The link.
    pub link: LinkId,
    /// Estimated capacity of the link.
    pub rate: Bitrate,
    /// Share of the capacity that other connections leave unused.
    pub free: Bitrate,
    /// Time from sending a request to the first byte of its answer.
    pub start: Duration,
    /// RTT of the link.
    pub round_trip: Duration,
}

/// A fetch that the caller is to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Key that identifies the fetch.
    pub key: u64,
    /// Link that carries the request.
    pub link: LinkId,
    /// Byte range of the whole answer.
    pub range: Range<u64>,
    /// Expected throughput of the fetch.
    pub rate: Bitrate,
    /// Expected time until the first byte arrives.
    pub start: Duration,
}

/// State of one answer that is fetched in parts: see the module's documentation.
#[derive(Debug)]
pub struct Parts {
    len: u64,
    /// Number of bytes passed on to the client.
    delivered: u64,
    first: First,
    /// Parts that are being fetched or are buffered, sorted by their first byte.
    fetches: Vec<Fetch>,
    next_key: u64,
    /// Number of failures since the last fetch that completed or carried at least [`MIN_PART`] bytes.
    failures: u32,
    /// Longest recent time that the server took until it began to send a part. Each new part reduces it by at most
    /// half.
    slowest: Duration,
    /// Links over which a fetch failed, and when it failed.
    doubts: Vec<(LinkId, Instant)>,
    /// Time before which nothing is planned, after a failure.
    rests_until: Option<Instant>,
    /// Whether the server has sent a part.
    has_given: bool,
    /// Whether the server sends no parts.
    is_refused: bool,
}

/// The connection over which the answer began.
#[derive(Debug)]
struct First {
    link: Option<LinkId>,
    /// Position up to which this connection is to carry bytes. Until then, `delivered` counts the bytes it has
    /// carried.
    end: u64,
    meter: Meter,
    /// Time at which the body of the answer began to arrive.
    began_at: Instant,
    /// Time at which this connection last carried bytes.
    moved_at: Instant,
}

/// A part that is being fetched, or that has arrived early.
#[derive(Debug)]
struct Fetch {
    key: u64,
    link: LinkId,
    start: u64,
    end: u64,
    data: Vec<u8>,
    /// Number of bytes that have arrived.
    brought: u64,
    /// Whether the server has begun to send the part.
    is_accepted: bool,
    expected: Bitrate,
    /// Expected time from sending the request over this link to the first byte of the part.
    patience: Duration,
    meter: Meter,
    /// Time at which the server began to send the part; until then, the time at which the part was planned.
    began_at: Instant,
    /// Time at which bytes last arrived.
    moved_at: Instant,
}

impl Fetch {
    /// Position of the next byte that this fetch will carry.
    fn at(&self) -> u64 {
        self.start + self.data.len() as u64
    }

    /// Returns the measured or else the expected rate. `None` if the server has not begun to send the part, or if
    /// nothing has been measured and nothing was known about the link. An unknown rate does not make the fetch count
    /// as stalled.
    fn rate(&self) -> Option<Bitrate> {
        let expected = Some(self.expected).filter(|rate| *rate > Bitrate::ZERO);
        self.meter.rate.or(expected).filter(|_| self.is_accepted)
    }
}

/// Measures the rate at which a counter rises.
#[derive(Debug)]
struct Meter {
    since: Instant,
    counted: u64,
    rate: Option<Bitrate>,
}

impl Meter {
    fn new(now: Instant, counted: u64) -> Self {
        Self {
            since: now,
            counted,
            rate: None,
        }
    }

    fn on_count(&mut self, now: Instant, count: u64) {
        let time = now.since(self.since);
        if time < METER_WINDOW {
            return;
        }
        let bytes = Bytes::new(count.saturating_sub(self.counted));
        let sample = Bitrate::from_transfer(bytes, time).unwrap_or(Bitrate::ZERO);
        let smoothed = |old: Bitrate| Bitrate::from_bps((old.as_bps() + sample.as_bps()) / 2);
        self.rate = Some(self.rate.map_or(sample, smoothed));
        self.since = now;
        self.counted = count;
    }
}

/// Bytes that one connection is still to carry.
#[derive(Clone, Debug)]
struct Share {
    link: Option<LinkId>,
    left: Range<u64>,
    /// `None` if the connection has not been measured for long enough.
    rate: Option<Bitrate>,
    /// Whether the connection has only just begun, so that its rate is still rising.
    is_young: bool,
}

impl Parts {
    /// Begins an answer of `len` bytes, of which `delivered` bytes were already passed on. The first connection, over
    /// `link`, is to carry the remaining bytes.
    #[must_use]
    pub fn new(now: Instant, link: Option<LinkId>, len: u64, delivered: u64) -> Self {
        Self {
            len,
            delivered,
            first: First {
                link,
                end: len,
                meter: Meter::new(now, delivered),
                began_at: now,
                moved_at: now,
            },
            fetches: Vec::new(),
            next_key: 0,
            failures: 0,
            slowest: Duration::ZERO,
            doubts: Vec::new(),
            rests_until: None,
            has_given: false,
            is_refused: false,
        }
    }

    /// Whether all bytes were passed on.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.delivered >= self.len
    }

    /// Returns the number of bytes that were passed on.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns the position up to which the first connection is to carry bytes.
    #[must_use]
    pub fn first_end(&self) -> u64 {
        self.first.end
    }

    /// Whether the first connection has carried all bytes that it had to carry.
    #[must_use]
    pub fn is_first_done(&self) -> bool {
        self.delivered >= self.first.end
    }

    /// Whether the missing bytes can no longer arrive.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.is_given_up() && self.is_starved()
    }

    /// Whether no more parts are requested.
    fn is_given_up(&self) -> bool {
        self.is_refused || self.failures > MAX_FAILURES
    }

    /// Notes that `bytes` of the first connection were passed on. Returns whether a fetch became superfluous, because
    /// the first connection carried its bytes earlier.
    pub fn on_first(&mut self, now: Instant, bytes: u64) -> bool {
        self.first.moved_at = now;
        self.delivered = (self.delivered + bytes).min(self.len);
        let (delivered, before) = (self.delivered, self.fetches.len());
        self.fetches.retain(|fetch| fetch.end > delivered);
        self.fetches.len() < before
    }

    /// Whether any fetch is still to carry bytes.
    #[must_use]
    pub fn is_fetching(&self) -> bool {
        self.fetches.iter().any(|fetch| fetch.at() < fetch.end)
    }

    /// Whether the first connection is silent and no fetch carries the next bytes for the client.
    fn is_stuck(&self, now: Instant) -> bool {
        let is_silent = now.since(self.first.moved_at) >= SILENCE;
        !self.is_first_done() && is_silent && !self.is_next_fetched()
    }

    /// Whether the first connection is done and no fetch carries the next bytes for the client.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.is_first_done() && !self.is_done() && !self.is_next_fetched()
    }

    /// Whether a fetch has carried or will carry the next bytes for the client.
    fn is_next_fetched(&self) -> bool {
        let brings = |fetch: &Fetch| fetch.start <= self.delivered && self.delivered < fetch.end;
        self.fetches.iter().any(brings)
    }

    /// Returns the number of bytes beyond the client's position that are buffered or are being fetched.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        let kept = |fetch: &Fetch| fetch.end.saturating_sub(fetch.start.max(self.delivered));
        self.fetches.iter().map(kept).sum()
    }

    /// Notes that the first connection carries no more bytes.
    pub fn end_first(&mut self) {
        self.first.end = self.first.end.min(self.delivered);
    }

    /// Notes that the server has begun to send the part that fetch `key` requested. The connection that was to carry
    /// these bytes so far stops where the part begins. The first connection does not stop before position `taken`,
    /// because the bytes up to `taken` are already on their way to the client.
    pub fn accept(&mut self, now: Instant, key: u64, taken: u64) {
        self.has_given = true;
        let Some(fetch) = self.fetches.iter_mut().find(|fetch| fetch.key == key) else {
            return;
        };
        let taken = taken.max(self.delivered);
        if fetch.end <= taken && self.first.end > taken {
            // The first connection has already carried these bytes.
            fetch.end = fetch.start;
            self.fetches.retain(|fetch| fetch.start < fetch.end);
            return;
        }
        fetch.is_accepted = true;
        // Subtract the expected time for the request, so that the server's own delay is left.
        let took = now.since(fetch.began_at).saturating_sub(fetch.patience);
        self.slowest = took.max(self.slowest / 2);
        fetch.moved_at = now;
        fetch.began_at = now;
        fetch.meter = Meter::new(now, fetch.at());
        let start = fetch.start;
        if start < self.first.end {
            self.first.end = start.max(taken);
        }
        for other in self.fetches.iter_mut().filter(|other| other.key < key) {
            if other.start <= start && other.end > start {
                other.end = start.max(other.at());
            }
        }
    }

    /// Notes that `bytes` arrived by fetch `key`. Returns whether this fetch is to carry more.
    pub fn on_bytes(&mut self, now: Instant, key: u64, bytes: &[u8]) -> bool {
        let Some(fetch) = self.fetches.iter_mut().find(|fetch| fetch.key == key) else {
            return false;
        };
        let missing = usize::try_from(fetch.end.saturating_sub(fetch.at())).unwrap_or(usize::MAX);
        fetch
            .data
            .extend_from_slice(&bytes[..bytes.len().min(missing)]);
        fetch.brought += bytes.len().min(missing) as u64;
        fetch.moved_at = now;
        let wants_more = fetch.at() < fetch.end;
        let link = fetch.link;
        self.doubts.retain(|(doubted, _)| *doubted != link);
        if !wants_more {
            self.failures = 0;
        }
        wants_more
    }

    /// Whether fetch `key` is still to carry bytes.
    #[must_use]
    pub fn wants(&self, key: u64) -> bool {
        let mut fetches = self.fetches.iter();
        fetches.any(|fetch| fetch.key == key && fetch.at() < fetch.end)
    }

    /// Notes that fetch `key` carries no more bytes. Its missing bytes become unassigned.
    pub fn end_fetch(&mut self, now: Instant, key: u64) {
        if let Some(fetch) = self.fetches.iter_mut().find(|fetch| fetch.key == key)
            && fetch.at() < fetch.end
        {
            fetch.end = fetch.at();
            self.doubts.push((fetch.link, now));
            if fetch.brought >= MIN_PART {
                // A server that breaks off each part after a useful amount of data still completes the answer.
                self.failures = 0;
            }
            let pause = PAUSE * (1 << self.failures.min(MAX_DOUBLINGS));
            self.rests_until = Some(now + pause);
            self.failures += 1;
        }
        self.fetches.retain(|fetch| fetch.start < fetch.end);
    }

    /// Notes that the server has answered a request for a part with something else. If it has sent a part before, the
    /// refusal may be temporary and is ignored.
    pub fn refuse(&mut self) {
        self.is_refused |= !self.has_given;
    }

    /// Returns the next bytes for the client that fetches have carried, at most 64 KiB.
    #[must_use]
    pub fn next_bytes(&self) -> &[u8] {
        let covers = |fetch: &&Fetch| fetch.start <= self.delivered && self.delivered < fetch.at();
        let Some(fetch) = self.fetches.iter().find(covers) else {
            return &[];
        };
        let at = usize::try_from(self.delivered - fetch.start).unwrap_or(usize::MAX);
        let bytes = fetch.data.get(at..).unwrap_or_default();
        &bytes[..bytes.len().min(PASSED_AT_ONCE)]
    }

    /// Notes that the first `bytes` bytes of [`Self::next_bytes`] were passed on.
    pub fn on_passed(&mut self, bytes: usize) {
        self.delivered = (self.delivered + bytes as u64).min(self.len);
        let delivered = self.delivered;
        self.fetches.retain(|fetch| fetch.end > delivered);
        for fetch in &mut self.fetches {
            let passed = delivered.saturating_sub(fetch.start);
            let passed = usize::try_from(passed).unwrap_or(usize::MAX);
            if passed >= FREED_AT_ONCE && passed <= fetch.data.len() {
                fetch.data.drain(..passed);
                fetch.start = delivered;
            }
        }
    }

    /// Updates the rates, and returns the keys of the fetches that have been silent for too long. The caller is to
    /// end these.
    pub fn look(&mut self, now: Instant) -> Vec<u64> {
        if !self.is_first_done() {
            self.first.meter.on_count(now, self.delivered);
        }
        for fetch in self.fetches.iter_mut().filter(|fetch| fetch.is_accepted) {
            let came = fetch.at();
            fetch.meter.on_count(now, came);
        }
        // A server that was slow to begin a part is likely to be as slow with the next part.
        let begins = FIRST_SILENCE * (1 << self.failures.min(MAX_DOUBLINGS));
        let begins = begins.max((self.slowest * 2).min(LONGEST_REMEMBERED));
        let is_silent = |fetch: &&Fetch| {
            let limit = if fetch.is_accepted {
                SILENCE
            } else {
                begins + fetch.patience * 2
            };
            fetch.at() < fetch.end && now.since(fetch.moved_at) > limit
        };
        let silent = self.fetches.iter().filter(is_silent);
        silent.map(|fetch| fetch.key).collect()
    }

    /// Returns the throughput of this answer over `link`.
    #[must_use]
    pub fn rate_on(&self, link: LinkId) -> Bitrate {
        let first = Some(&self.first)
            .filter(|first| first.link == Some(link) && !self.is_first_done())
            .and_then(|first| first.meter.rate);
        let fetches = self
            .fetches
            .iter()
            .filter(|fetch| fetch.link == link && fetch.at() < fetch.end);
        let rates = fetches.filter_map(|fetch| fetch.meter.rate).chain(first);
        Bitrate::from_bps(rates.map(Bitrate::as_bps).sum())
    }

    /// Returns the number of bytes of this answer that are still to arrive over `link`.
    #[must_use]
    pub fn left_on(&self, link: LinkId) -> Bytes {
        let first = Some(&self.first).filter(|first| first.link == Some(link));
        let first = first.map_or(0, |first| first.end.saturating_sub(self.delivered));
        let fetches = self.fetches.iter().filter(|fetch| fetch.link == link);
        let left = fetches.fold(first, |left, fetch| {
            left.saturating_add(fetch.end.saturating_sub(fetch.at()))
        });
        Bytes::new(left)
    }

    /// Plans one more fetch, over one of `lanes`. The fetch counts as begun. With `only_next`, a fetch is planned
    /// only if the client is waiting for its bytes.
    pub fn plan(&mut self, now: Instant, lanes: &[Lane], only_next: bool) -> Option<Plan> {
        let running = self.fetches.iter().filter(|fetch| fetch.at() < fetch.end);
        let rests = self.rests_until.is_some_and(|until| now < until);
        if self.is_given_up() || rests || running.count() >= MAX_FETCHES {
            return None;
        }
        let is_stuck = self.is_stuck(now);
        if only_next && !self.is_starved() && !is_stuck {
            return None;
        }
        self.doubts.retain(|(_, at)| now.since(*at) < DOUBT);
        let is_trusted =
            |lane: &&Lane| self.doubts.iter().all(|(doubted, _)| *doubted != lane.link);
        let trusted: Vec<Lane> = lanes.iter().filter(is_trusted).copied().collect();
        let all = lanes;
        let lanes = if trusted.is_empty() { all } else { &trusted };
        let shares = self.shares(now, all);
        let (lane, range) = match self.nobodys(&shares) {
            _ if is_stuck => {
                let next = self.delivered..shares.first()?.left.end;
                self.of_nobodys(next, &shares, lanes)?
            }
            Some(gap) if self.has_room(&gap) => self.of_nobodys(gap, &shares, lanes)?,
            // The buffer is fully assigned, or all bytes are.
            _ => self.of_the_last(&soon(&shares, all), lanes)?,
        };
        let lane = *lane;
        let key = self.next_key;
        self.next_key += 1;
        let at = self
            .fetches
            .partition_point(|fetch| fetch.start < range.start);
        let fetch = Fetch {
            key,
            link: lane.link,
            start: range.start,
            end: range.end,
            data: Vec::new(),
            brought: 0,
            is_accepted: false,
            expected: lane.free,
            patience: lane.start,
            meter: Meter::new(now, 0),
            began_at: now,
            moved_at: now,
        };
        self.fetches.insert(at, fetch);
        Some(Plan {
            key,
            link: lane.link,
            range,
            rate: lane.free,
            start: lane.start,
        })
    }

    /// Returns the bytes that each connection is to carry, first for the first connection and then for the fetches,
    /// if the server sends all requested parts.
    fn shares(&self, now: Instant, lanes: &[Lane]) -> Vec<Share> {
        let first = Share {
            link: self.first.link,
            left: self.delivered..self.first.end,
            rate: self.first.meter.rate,
            is_young: now.since(self.first.began_at) < YOUNG,
        };
        let moved_at = core::iter::once(self.first.moved_at);
        let moved_at = moved_at.chain(self.fetches.iter().map(|fetch| fetch.moved_at));
        let fetches = self.fetches.iter().map(|fetch| Share {
            link: Some(fetch.link),
            left: fetch.at().max(self.delivered)..fetch.end,
            rate: fetch.rate(),
            is_young: now.since(fetch.began_at) < YOUNG,
        });
        let mut shares: Vec<Share> = core::iter::once(first).chain(fetches).collect();
        // A sender whose last packets were lost waits for its retransmission timer, 200 ms or more.
        for (share, moved_at) in shares.iter_mut().zip(moved_at) {
            let is_end = share.left.end.saturating_sub(share.left.start) <= SLOW_END;
            // At its start a connection sends in bursts, one RTT apart.
            let lane = lanes.iter().find(|lane| Some(lane.link) == share.link);
            let between = lane.map_or(Duration::ZERO, |lane| lane.round_trip);
            if now.since(moved_at) < REST.max(between + between / 2) {
                // No bytes in one window of the meter is only a pause.
                share.rate = share.rate.filter(|rate| *rate > DEAD);
            } else if is_end {
                share.rate = share.rate.map(|_| Bitrate::ZERO);
            }
        }
        // A fetch that was requested later ends the share of a connection at the fetch's first byte, if this byte
        // lies in the share. If the later fetch already covers the next byte of the share, the share becomes empty.
        let keys = core::iter::once(None).chain(self.fetches.iter().map(|fetch| Some(fetch.key)));
        for (share, key) in shares.iter_mut().zip(keys) {
            let at = share.left.start;
            let later = self.fetches.iter().filter(|fetch| Some(fetch.key) > key);
            let cuts = later.filter_map(|fetch| {
                let covers = fetch.start <= at && at < fetch.end;
                (fetch.start > at || covers).then_some(fetch.start.max(at))
            });
            let cut = cuts.min();
            share.left.end = cut.map_or(share.left.end, |cut| share.left.end.min(cut));
        }
        shares
    }

    /// Returns the first range of bytes that no connection is to carry.
    fn nobodys(&self, shares: &[Share]) -> Option<Range<u64>> {
        let mut covered = self.delivered.max(shares.first()?.left.end);
        for fetch in &self.fetches {
            if fetch.start > covered {
                return Some(covered..fetch.start);
            }
            covered = covered.max(fetch.end);
        }
        (covered < self.len).then_some(covered..self.len)
    }

    /// Returns how many bytes may be buffered from the beginning of `gap` on.
    fn room_for(&self, gap: &Range<u64>) -> u64 {
        (self.delivered + AHEAD).saturating_sub(gap.start)
    }

    /// Whether the free buffer space suffices for a chunk of `gap`.
    fn has_room(&self, gap: &Range<u64>) -> bool {
        self.room_for(gap) >= MIN_CHUNK.min(gap.end - gap.start)
    }

    /// Applies rule 1: chooses a link for a chunk of `gap`. The buffer has free space for the chunk.
    fn of_nobodys<'a>(
        &self,
        gap: Range<u64>,
        shares: &[Share],
        lanes: &'a [Lane],
    ) -> Option<(&'a Lane, Range<u64>)> {
        let is_next = gap.start == self.delivered;
        // A link that still has bytes of this answer to carry gets no more yet.
        let is_hungry = |lane: &&Lane| {
            let has_room = lane.free >= lane.rate.scale(1, LEAST_ROOM);
            is_next || has_room && busy(shares, lane) <= lane.start
        };
        let lane = lanes.iter().filter(is_hungry).min_by_key(|lane| {
            // A link that other connections saturate still answers, but delivers slowly: the time for the chunk
            // counts, too.
            let brings = time(MIN_CHUNK.min(gap.end - gap.start), lane.free);
            let time = lane.start + busy(shares, lane) + brings;
            (time.min(LONGEST), Reverse(lane.free), lane.start)
        })?;
        let room = self.room_for(&gap);
        let size = lane
            .free
            .bytes_in(CHUNK_TIME)
            .get()
            .clamp(MIN_CHUNK, MAX_CHUNK)
            .min(room);
        // Leave no small remainder.
        let left = gap.end - gap.start;
        let size = if left < size + MIN_PART && left <= room {
            left
        } else {
            size
        };
        Some((lane, gap.start..gap.start + size))
    }

    /// Applies rule 2: takes over the end of the share that would finish last. The rates of `shares` are [the
    /// rates expected soon](soon).
    fn of_the_last<'a>(
        &self,
        shares: &[Share],
        lanes: &'a [Lane],
    ) -> Option<(&'a Lane, Range<u64>)> {
        let horizon = self.delivered + AHEAD;
        let time_us = |share: &Share, rate: Bitrate| {
            let left = share.left.end.min(horizon).checked_sub(share.left.start)?;
            Some(u128::from(left) * 8_000_000 / u128::from(rate.as_bps().max(1)))
        };
        let timed = shares.iter().filter_map(|share| {
            let rate = share.rate?;
            Some((time_us(share, rate)?, rate, share))
        });
        let (last_us, own, share) = timed.max_by_key(|(time_us, ..)| *time_us)?;
        let end = share.left.end.min(horizon);
        let all = end - share.left.start;
        let is_end = all <= SLOW_END && end == self.len;
        let taken = |lane: &Lane| {
            let (other, begins) = room(shares, lane, is_end)?;
            let spare_us = last_us.checked_sub(begins.as_micros())?;
            if own == Bitrate::ZERO {
                return Some(all);
            }
            let (own, other) = (u128::from(own.as_bps()), u128::from(other.as_bps()));
            // Bytes that `other` carries in the remaining time, while `own` carries the other bytes.
            let part = u128::from(all) * other * spare_us / last_us.max(1) / (own + other).max(1);
            u64::try_from(part).ok()
        };
        let best = lanes.iter().filter_map(|lane| Some((taken(lane)?, lane)));
        let (taken, lane) = best.max_by_key(|(taken, lane)| {
            let done = lane.start + time(*taken, lane.free);
            (*taken, Reverse(done.min(LONGEST)))
        })?;
        let saved_us = last_us * u128::from(taken) / u128::from(all.max(1));
        let is_worth_it =
            taken >= MIN_PART && saved_us >= MIN_SAVED.as_micros() && saved_us * 8 >= last_us;
        if own == Bitrate::ZERO {
            // A stalled connection does not carry the beginning of its share either.
            let begin = share.left.start;
            return (taken > 0).then(|| (lane, begin..begin + taken.min(MAX_CHUNK)));
        }
        let taken = taken.min(MAX_CHUNK);
        is_worth_it.then_some((lane, end - taken..end))
    }
}

/// Returns `shares` with the rates that are expected soon. Connections of this answer that have just begun will get
/// equal shares of the link's free rate, except for the part that older connections of this answer use.
fn soon(shares: &[Share], lanes: &[Lane]) -> Vec<Share> {
    let will_bring = |share: &&Share| {
        let is_alive = share.rate.is_none_or(|rate| rate > DEAD);
        !share.left.is_empty() && is_alive
    };
    let part = |lane: &Lane| {
        let own = shares.iter().filter(|share| share.link == Some(lane.link));
        let (young, old): (Vec<&Share>, Vec<&Share>) =
            own.filter(will_bring).partition(|share| share.is_young);
        let old_bps: u64 = old.iter().filter_map(|old| Some(old.rate?.as_bps())).sum();
        let left_bps = lane.free.as_bps().saturating_sub(old_bps);
        Bitrate::from_bps(left_bps).scale(1, (young.len() as u64).max(1))
    };
    let at_its_rate = |share: &Share| {
        let lane = lanes.iter().find(|lane| Some(lane.link) == share.link);
        let rises = share.is_young && will_bring(&share);
        let part = lane.filter(|_| rises).map_or(Bitrate::ZERO, part);
        Share {
            rate: share.rate.map(|rate| rate.max(part)),
            ..share.clone()
        }
    };
    shares.iter().map(at_its_rate).collect()
}

/// Returns the rate at which `lane` could carry more of an answer whose bytes are all assigned, and the time until
/// the first of these bytes arrives. `None` if the link has no free capacity for this answer.
fn room(shares: &[Share], lane: &Lane, is_end: bool) -> Option<(Bitrate, Duration)> {
    // The free capacity measured on a saturated link is only measurement noise.
    if lane.free < lane.rate.scale(1, LEAST_ROOM) {
        return None;
    }
    let busy = busy(shares, lane);
    if busy <= lane.start {
        return Some((lane.free, lane.start + busy));
    }
    // At the end of an answer, a connection with a small window leaves its link half empty, so the link may then use
    // several connections. Earlier in the answer, windows still grow.
    let own = shares.iter().filter(|share| share.link == Some(lane.link));
    let rates: Option<Vec<u64>> = own.map(|share| Some(share.rate?.as_bps())).collect();
    let used_bps: u64 = rates?.iter().sum();
    let left_bps = lane.free.as_bps().saturating_sub(used_bps);
    let is_half_empty = left_bps * 2 > lane.free.as_bps();
    (is_end && is_half_empty).then_some((Bitrate::from_bps(left_bps), lane.start))
}

/// Returns how long `lane` will take for the bytes of this answer that are assigned to it.
fn busy(shares: &[Share], lane: &Lane) -> Duration {
    let own = shares
        .iter()
        .filter(|share| share.link == Some(lane.link) && share.rate.is_none_or(|rate| rate > DEAD));
    let bytes: u64 = own
        .map(|share| share.left.end.saturating_sub(share.left.start))
        .sum();
    time(bytes, lane.free)
}

/// Returns the time that `bytes` bytes take at `rate`, at most [`LONGEST`].
fn time(bytes: u64, rate: Bitrate) -> Duration {
    let us = u128::from(bytes) * 8_000_000 / u128::from(rate.as_bps().max(1));
    Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX)).min(LONGEST)
}

/// Maximum number of bytes of an answer that are buffered ahead of the client.
pub const AHEAD: u64 = 4 << 20;
/// Number of bytes at the end of an answer for which one link may use several connections.
const SLOW_END: u64 = 512 << 10;
/// A link has no free capacity if other connections leave less than 1/`LEAST_ROOM` of its rate.
const LEAST_ROOM: u64 = 6;
/// Minimum size in bytes of a part that is worth a request of its own.
pub const MIN_PART: u64 = 16 << 10;
const MIN_SAVED: Duration = Duration::from_millis(30);
/// Amount of data per chunk, as the time that the link needs for it. [`MIN_CHUNK`] and [`MAX_CHUNK`] bound the chunk.
const CHUNK_TIME: Duration = Duration::from_secs(1);
const MIN_CHUNK: u64 = 64 << 10;
const MAX_CHUNK: u64 = 2 << 20;
/// Maximum number of concurrent fetches.
const MAX_FETCHES: usize = 6;
/// Number of consecutive failures after which no more parts are fetched.
const MAX_FAILURES: u32 = 12;
/// Pause in planning after a failure. It doubles with each further failure.
const PAUSE: Duration = Duration::from_millis(30);
/// Time without data after which a fetch that the server has begun to send is given up. A fetch that the server has
/// not begun to send is given up after [`FIRST_SILENCE`], which doubles with each failure.
const SILENCE: Duration = Duration::from_secs(2);
const FIRST_SILENCE: Duration = Duration::from_millis(500);
const MAX_DOUBLINGS: u32 = 5;
/// Maximum time that a fetch waits for its part because the server was slow to begin earlier parts.
const LONGEST_REMEMBERED: Duration = Duration::from_secs(4);
/// After a failed fetch, the fetch's link is avoided for this time if another link is available. The time ends early
/// when data arrive over the link.
const DOUBT: Duration = Duration::from_secs(5);
/// Time for which the rate of a new connection is assumed to rise: a few RTTs.
const YOUNG: Duration = Duration::from_millis(250);
/// Time without data after which a connection counts as stalled near the end of an answer.
const REST: Duration = Duration::from_millis(120);
/// Duration over which rates are measured.
const METER_WINDOW: Duration = Duration::from_millis(60);
/// Rate below which a connection counts as stalled.
const DEAD: Bitrate = Bitrate::from_bps(8_000);
const LONGEST: Duration = Duration::from_secs(3600);
/// Number of bytes of a part that are passed on before their memory is freed.
const FREED_AT_ONCE: usize = 256 << 10;
/// Maximum number of bytes that are passed on at once.
const PASSED_AT_ONCE: usize = 64 << 10;

#[cfg(test)]
mod tests;
