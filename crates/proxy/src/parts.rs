//! One answer of a server over several links: which connection fetches which of its bytes.
//!
//! The *first* connection is the one over which the whole answer was asked for and has begun to come. While links have room that
//! the answer could use, *fetches* of later bytes are planned: a range request each, over a link that has room ([`Parts::plan`]). When
//! the server begins to send a part, whoever was to bring it before ends there ([`Parts::accept`]). Bytes leave in order; what comes
//! early is kept here, at most [`AHEAD`]. Two rules:
//!
//! 1. What nobody brings (behind a part in the midst, or because a connection broke) is given to the link that has it soonest, in
//!    chunks of about a second each.
//! 2. When all is given out, or as much as may be kept, a link with nothing left to do for this answer takes the last bytes of the fetch that would be done
//!    last, as many as let both be done at the same time: the optimum for two links of known rates (the paper's packet-oriented
//!    mode, by ranges instead of packets). A connection that comes to rest counts as one that is never done, so its bytes are
//!    fetched elsewhere, too.
//!
//! No clock, no sockets: inputs carry `now`.

use core::{cmp::Reverse, ops::Range, time::Duration};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

use crate::sched::LinkId;

/// A link as an answer may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Which.
    pub link: LinkId,
    /// What it carries, as far as that is known.
    pub rate: Bitrate,
    /// What others leave of it.
    pub free: Bitrate,
    /// How long until the first byte of a request comes.
    pub start: Duration,
    /// How long until an answer comes to what is sent there.
    pub round_trip: Duration,
}

/// A fetch to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Names it.
    pub key: u64,
    /// Over which link.
    pub link: LinkId,
    /// Which bytes of the whole.
    pub range: Range<u64>,
    /// What it is to bring.
    pub rate: Bitrate,
    /// How long until its first byte comes.
    pub start: Duration,
}

/// See the module's head.
#[derive(Debug)]
pub struct Parts {
    len: u64,
    /// Passed on to the client.
    delivered: u64,
    first: First,
    /// By where they begin.
    fetches: Vec<Fetch>,
    next_key: u64,
    /// Failures since a fetch last brought all, or much.
    failures: u32,
    /// The longest that the server took until it began to send a part.
    slowest: Duration,
    /// Links over which a fetch failed, and when.
    doubts: Vec<(LinkId, Instant)>,
    /// After a failure nothing is planned until then.
    rests_until: Option<Instant>,
    /// The server has given a part.
    has_given: bool,
    /// The server gives no parts.
    is_refused: bool,
}

/// The connection over which the answer began.
#[derive(Debug)]
struct First {
    link: Option<LinkId>,
    /// Up to where it brings; what it has brought is `delivered` until then.
    end: u64,
    meter: Meter,
    /// When its body began.
    began_at: Instant,
    /// When it last brought something.
    moved_at: Instant,
}

/// A part that is being fetched, or that came early.
#[derive(Debug)]
struct Fetch {
    key: u64,
    link: LinkId,
    start: u64,
    end: u64,
    data: Vec<u8>,
    /// How much has come.
    brought: u64,
    /// The server has begun to send it.
    is_accepted: bool,
    expected: Bitrate,
    /// How long a request was thought to take there.
    patience: Duration,
    meter: Meter,
    /// When the server began to send it; until then, when it was planned.
    began_at: Instant,
    /// When something last came.
    moved_at: Instant,
}

impl Fetch {
    /// The next byte it will bring.
    fn at(&self) -> u64 {
        self.start + self.data.len() as u64
    }

    /// `None`: too young to tell, and nothing was known of its link, which is no reason to take it for resting.
    fn rate(&self) -> Option<Bitrate> {
        let expected = Some(self.expected).filter(|rate| *rate > Bitrate::ZERO);
        self.meter.rate.or(expected).filter(|_| self.is_accepted)
    }
}

/// The rate at which a counter rises.
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

/// Bytes that somebody is to bring.
#[derive(Clone, Debug)]
struct Share {
    link: Option<LinkId>,
    left: Range<u64>,
    /// `None`: too young to tell.
    rate: Option<Bitrate>,
    /// It has not been under way for long: its rate is still rising.
    is_young: bool,
}

impl Parts {
    /// An answer of `len` bytes of which `delivered` were passed on; the first connection, over `link`, brings the rest.
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

    /// Whether all was passed on.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.delivered >= self.len
    }

    /// How much was passed on.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Up to where the first connection brings.
    #[must_use]
    pub fn first_end(&self) -> u64 {
        self.first.end
    }

    /// Whether the first connection has brought what it was to.
    #[must_use]
    pub fn is_first_done(&self) -> bool {
        self.delivered >= self.first.end
    }

    /// Whether what is missing can not come any more.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.is_given_up() && self.is_starved()
    }

    /// Whether nothing is asked for any more.
    fn is_given_up(&self) -> bool {
        self.is_refused || self.failures > MAX_FAILURES
    }

    /// `bytes` of the first connection were passed on. Whether a fetch is not wanted any more, since these came first.
    pub fn on_first(&mut self, now: Instant, bytes: u64) -> bool {
        self.first.moved_at = now;
        self.delivered = (self.delivered + bytes).min(self.len);
        let (delivered, before) = (self.delivered, self.fetches.len());
        self.fetches.retain(|fetch| fetch.end > delivered);
        self.fetches.len() < before
    }

    /// Whether something is being fetched.
    #[must_use]
    pub fn is_fetching(&self) -> bool {
        self.fetches.iter().any(|fetch| fetch.at() < fetch.end)
    }

    /// Whether the first connection is silent and nobody else brings what the client is to get next.
    fn is_stuck(&self, now: Instant) -> bool {
        let is_silent = now.since(self.first.moved_at) >= SILENCE;
        !self.is_first_done() && is_silent && !self.is_next_fetched()
    }

    /// Whether nobody brings what the client is to get next.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.is_first_done() && !self.is_done() && !self.is_next_fetched()
    }

    /// Whether a fetch brings what the client is to get next.
    fn is_next_fetched(&self) -> bool {
        let brings = |fetch: &Fetch| fetch.start <= self.delivered && self.delivered < fetch.end;
        self.fetches.iter().any(brings)
    }

    /// Bytes that are kept, or will be, ahead of the client.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        let kept = |fetch: &Fetch| fetch.end.saturating_sub(fetch.start.max(self.delivered));
        self.fetches.iter().map(kept).sum()
    }

    /// The first connection brings no more.
    pub fn end_first(&mut self) {
        self.first.end = self.first.end.min(self.delivered);
    }

    /// The server has begun to send what fetch `key` asked for: who was to bring it before, ends there, but no earlier than at `taken`,
    /// up to where the first connection's bytes are on their way to the client.
    pub fn accept(&mut self, now: Instant, key: u64, taken: u64) {
        self.has_given = true;
        let Some(fetch) = self.fetches.iter_mut().find(|fetch| fetch.key == key) else {
            return;
        };
        let taken = taken.max(self.delivered);
        if fetch.end <= taken && self.first.end > taken {
            // The first connection was quicker.
            fetch.end = fetch.start;
            self.fetches.retain(|fetch| fetch.start < fetch.end);
            return;
        }
        fetch.is_accepted = true;
        // Without what the way there takes.
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

    /// `bytes` came by fetch `key`; whether it is to bring more.
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

    /// Whether fetch `key` is to bring more.
    #[must_use]
    pub fn wants(&self, key: u64) -> bool {
        let mut fetches = self.fetches.iter();
        fetches.any(|fetch| fetch.key == key && fetch.at() < fetch.end)
    }

    /// Fetch `key` brings no more; what it has not brought is nobody's.
    pub fn end_fetch(&mut self, now: Instant, key: u64) {
        if let Some(fetch) = self.fetches.iter_mut().find(|fetch| fetch.key == key)
            && fetch.at() < fetch.end
        {
            fetch.end = fetch.at();
            self.doubts.push((fetch.link, now));
            if fetch.brought >= MIN_PART {
                // Whoever gets on, be it in pieces, gets there.
                self.failures = 0;
            }
            let pause = PAUSE * (1 << self.failures.min(MAX_DOUBLINGS));
            self.rests_until = Some(now + pause);
            self.failures += 1;
        }
        self.fetches.retain(|fetch| fetch.start < fetch.end);
    }

    /// The server has answered a request for a part with something else. If it has given one before, that may be the moment's fault.
    pub fn refuse(&mut self) {
        self.is_refused |= !self.has_given;
    }

    /// The next bytes for the client that have come by fetches, some of them.
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

    /// `bytes` of those were passed on.
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

    /// Looks at rates, and returns the fetches of which nothing has come for too long, which are to be ended.
    pub fn look(&mut self, now: Instant) -> Vec<u64> {
        if !self.is_first_done() {
            self.first.meter.on_count(now, self.delivered);
        }
        for fetch in self.fetches.iter_mut().filter(|fetch| fetch.is_accepted) {
            let came = fetch.at();
            fetch.meter.on_count(now, came);
        }
        // A server may need its time to begin, and will need it again.
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

    /// What this answer takes of `link` now.
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

    /// What this answer has still to bring over `link`.
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

    /// What to fetch beside what is being fetched, over one of `lanes`; it counts as begun. `only_next`: nothing but what the client
    /// waits for.
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
            // Where no more may be kept, all that may be is given out.
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

    /// Who is to bring what, in order, once all that was asked for is accepted.
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
        // A sender whose last packets were lost waits for its timer, 200 ms and more.
        for (share, moved_at) in shares.iter_mut().zip(moved_at) {
            let is_end = share.left.end.saturating_sub(share.left.start) <= SLOW_END;
            // What begins comes in bursts, a round trip apart.
            let lane = lanes.iter().find(|lane| Some(lane.link) == share.link);
            let between = lane.map_or(Duration::ZERO, |lane| lane.round_trip);
            if now.since(moved_at) < REST.max(between + between / 2) {
                // Nothing in a window of the meter is a pause.
                share.rate = share.rate.filter(|rate| *rate > DEAD);
            } else if is_end {
                share.rate = share.rate.map(|_| Bitrate::ZERO);
            }
        }
        // What was asked for later begins within another's, or where that is.
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

    /// The first bytes that nobody brings.
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

    /// How much may be kept from the beginning of `gap` on.
    fn room_for(&self, gap: &Range<u64>) -> u64 {
        (self.delivered + AHEAD).saturating_sub(gap.start)
    }

    /// Whether that is enough for a chunk.
    fn has_room(&self, gap: &Range<u64>) -> bool {
        self.room_for(gap) >= MIN_CHUNK.min(gap.end - gap.start)
    }

    /// Rule 1: a chunk of `gap`, for which there is room.
    fn of_nobodys<'a>(
        &self,
        gap: Range<u64>,
        shares: &[Share],
        lanes: &'a [Lane],
    ) -> Option<(&'a Lane, Range<u64>)> {
        let is_next = gap.start == self.delivered;
        // A link that still has something to do for this answer gets no more yet.
        let is_hungry = |lane: &&Lane| {
            let has_room = lane.free >= lane.rate.scale(1, LEAST_ROOM);
            is_next || has_room && busy(shares, lane) <= lane.start
        };
        let lane = lanes.iter().filter(is_hungry).min_by_key(|lane| {
            // A link that others fill answers, but brings little.
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
        // No small rest.
        let left = gap.end - gap.start;
        let size = if left < size + MIN_PART && left <= room {
            left
        } else {
            size
        };
        Some((lane, gap.start..gap.start + size))
    }

    /// Rule 2: the end of what would be done last, where `shares` are [what they soon will be](soon).
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
            // Bytes that `other` brings in what is left of the time, while `own` brings the rest.
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
            // Nobody brings its beginning either.
            let begin = share.left.start;
            return (taken > 0).then(|| (lane, begin..begin + taken.min(MAX_CHUNK)));
        }
        let taken = taken.min(MAX_CHUNK);
        is_worth_it.then_some((lane, end - taken..end))
    }
}

/// `shares` at the rates at which they will be brought: what have just begun will soon bring, in equal parts, what older ones leave of
/// what their link has for the answer.
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

/// At what rate `lane` could bring more of an answer that is given out, and when it begins; `None`: it has enough to do.
fn room(shares: &[Share], lane: &Lane, is_end: bool) -> Option<(Bitrate, Duration)> {
    // What a link that is full seems to have left is what the measure varies by.
    if lane.free < lane.rate.scale(1, LEAST_ROOM) {
        return None;
    }
    let busy = busy(shares, lane);
    if busy <= lane.start {
        return Some((lane.free, lane.start + busy));
    }
    // At the end of an answer a connection whose window is small leaves its own link half empty; earlier, windows grow.
    let own = shares.iter().filter(|share| share.link == Some(lane.link));
    let rates: Option<Vec<u64>> = own.map(|share| Some(share.rate?.as_bps())).collect();
    let used_bps: u64 = rates?.iter().sum();
    let left_bps = lane.free.as_bps().saturating_sub(used_bps);
    let is_half_empty = left_bps * 2 > lane.free.as_bps();
    (is_end && is_half_empty).then_some((Bitrate::from_bps(left_bps), lane.start))
}

/// How long the lane is busy with this answer's bytes that are given out to it.
fn busy(shares: &[Share], lane: &Lane) -> Duration {
    let own = shares
        .iter()
        .filter(|share| share.link == Some(lane.link) && share.rate.is_none_or(|rate| rate > DEAD));
    let bytes: u64 = own
        .map(|share| share.left.end.saturating_sub(share.left.start))
        .sum();
    time(bytes, lane.free)
}

/// How long `bytes` take at `rate`.
fn time(bytes: u64, rate: Bitrate) -> Duration {
    let us = u128::from(bytes) * 8_000_000 / u128::from(rate.as_bps().max(1));
    Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX)).min(LONGEST)
}

/// What is kept of an answer ahead of what was passed on, in bytes, at most.
pub const AHEAD: u64 = 4 << 20;
/// So near its end an answer may come over several connections of one link.
const SLOW_END: u64 = 512 << 10;
/// A link of which others leave less than one of so many parts has no room.
const LEAST_ROOM: u64 = 6;
/// Not worth a request of its own.
pub const MIN_PART: u64 = 16 << 10;
const MIN_SAVED: Duration = Duration::from_millis(30);
/// Chunks are what a link brings in this time, within these bounds.
const CHUNK_TIME: Duration = Duration::from_secs(1);
const MIN_CHUNK: u64 = 64 << 10;
const MAX_CHUNK: u64 = 2 << 20;
/// Fetches at a time.
const MAX_FETCHES: usize = 6;
/// After so many failures in a row nothing is fetched any more.
const MAX_FAILURES: u32 = 12;
/// After a failure nothing is planned for so long, twice as long after each further one.
const PAUSE: Duration = Duration::from_millis(30);
/// A fetch of which nothing comes for so long is given up; one that has not begun after the second of these, twice as long after
/// each failure.
const SILENCE: Duration = Duration::from_secs(2);
const FIRST_SILENCE: Duration = Duration::from_millis(500);
const MAX_DOUBLINGS: u32 = 5;
/// However slow a server was to begin before.
const LONGEST_REMEMBERED: Duration = Duration::from_secs(4);
/// For so long a link over which a fetch failed is not chosen where there is another, unless something comes over it.
const DOUBT: Duration = Duration::from_secs(5);
/// For so long an answer's rate rises: some round trips.
const YOUNG: Duration = Duration::from_millis(250);
/// Near the end of an answer a connection has come to rest after this.
const REST: Duration = Duration::from_millis(120);
/// Rates are measured over this time.
const METER_WINDOW: Duration = Duration::from_millis(60);
/// Who brings less than this has come to rest.
const DEAD: Bitrate = Bitrate::from_bps(8_000);
const LONGEST: Duration = Duration::from_secs(3600);
/// So much of a part is passed on before its memory is free.
const FREED_AT_ONCE: usize = 256 << 10;
/// What is passed on at once.
const PASSED_AT_ONCE: usize = 64 << 10;

#[cfg(test)]
mod tests;
