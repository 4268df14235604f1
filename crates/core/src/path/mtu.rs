//! The longest datagram that a path takes, found with probes (RFC 8899, DPLPMTUD).
//!
//! Lines take less than 1500 bytes where they are tunnels themselves (PPPoE, DS-Lite, mobile networks), and say so by a message
//! that firewalls like to drop. What is too long vanishes: pings work, downloads hang.
//!
//! *Algorithm.* A path is taken to be wide enough until probes show that it is not. A probe is a ping, padded to the length in
//! question, and followed by a short one. It has failed if the short one is answered and the long one is not: so neither a path
//! that is silent nor one that has become slow looks narrow. As many have to fail as make it unlikely (`BY_CHANCE_PPM`) that they were
//! lost as other datagrams are. Then the length is searched by halves, down to `GRAIN`.
//!
//! The longest length is tried when the path begins to work, and again every `CHECKED_AGAIN` while long datagrams are sent,
//! for routes change, and soon after many were lost (`SUSPICIOUS`); what has become too long is searched again. A path that is
//! known to be narrow is asked for more after `RAISED_FIRST` of such use, then ever less often, up to `RAISED_AGAIN`. An idle
//! path costs nothing.
//!
//! **We differ** from RFC 8899: it begins with a length that is sure to pass, we with the one that is wanted, because most paths
//! take it; meanwhile other paths carry what this one loses. Lengths are of the UDP payload, in bytes.

use core::time::Duration;

use crate::{time::Instant, units::Bytes};

/// What is known of the longest datagram of one path, in the sending direction.
#[derive(Clone, Debug)]
pub struct PathMtu {
    /// The longest that is known to arrive, if not all do.
    limit: Option<usize>,
    /// The same as of the last search that ended.
    found: Option<usize>,
    phase: Phase,
    probe: Option<Probe>,
    failures: u32,
    /// Nothing is probed before.
    next_at: Instant,
    raise_at: Instant,
    raise_after: Duration,
    /// Datagrams lost since the last answer, and when they were last a reason to look.
    lost: u32,
    suspected_at: Instant,
    /// Whether anything long was sent since the last verdict.
    is_used: bool,
    /// See [`Self::take_news`].
    is_news: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// What is sent is seen to arrive, now and then.
    Settled,
    /// More may arrive by now.
    Raising,
    /// The limit lies between what arrives and this.
    Searching { too_long: usize },
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    len: usize,
    sent_at: Instant,
    tokens: Tokens,
    /// When the short one was answered.
    answered_at: Option<Instant>,
}

/// What names the two pings of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The padded one.
    pub long: u32,
    /// The one that follows it.
    pub short: u32,
}

/// What else is known of a path that is probed.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// How much later than the answer to the short ping that to the long one may come.
    pub later: Duration,
    /// Share of datagrams that the path loses, in parts per million.
    pub loss_ppm: u32,
}

impl Default for PathMtu {
    fn default() -> Self {
        Self::new()
    }
}

impl PathMtu {
    /// Of a path nothing is known of.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limit: None,
            found: None,
            phase: Phase::Settled,
            probe: None,
            failures: 0,
            next_at: Instant::ZERO,
            raise_at: Instant::ZERO,
            raise_after: RAISED_FIRST,
            lost: 0,
            suspected_at: Instant::ZERO,
            is_used: true,
            is_news: false,
        }
    }

    /// Whether a datagram of `len` is known not to be too long.
    #[must_use]
    pub fn admits(&self, len: usize) -> bool {
        self.limit.is_none_or(|limit| len <= limit)
    }

    /// The longest datagram it takes, if it is narrow; while that is searched, as found before.
    #[must_use]
    pub const fn found(&self) -> Option<usize> {
        self.found
    }

    /// Whether its limit is being searched.
    #[must_use]
    pub const fn is_searching(&self) -> bool {
        matches!(self.phase, Phase::Searching { .. })
    }

    /// Whether it is known not to take all that is sent.
    #[must_use]
    pub const fn is_narrow(&self) -> bool {
        self.limit.is_some()
    }

    /// Takes note of a datagram that is sent now.
    pub fn on_sent(&mut self, now: Instant, len: Bytes) {
        if !self.is_used && len > Bytes::of_len(LEAST) {
            self.is_used = true;
            self.next_at = self.next_at.max(now + SOON);
        }
    }

    /// Takes note of a datagram that was lost. After many the path is looked at soon.
    pub fn on_lost(&mut self, now: Instant) {
        self.lost += 1;
        if self.lost >= SUSPICIOUS && self.phase == Phase::Settled {
            self.is_used = true;
            let next_at = (now + SOON).max(self.suspected_at + SUSPECTED_EACH);
            self.next_at = self.next_at.min(next_at);
            self.suspected_at = next_at;
            self.lost = 0;
        }
    }

    /// How long a datagram to probe with now, if any; `wanted`: the longest that this end sends. If so,
    /// [`on_probe`](Self::on_probe) must follow.
    pub fn due(&mut self, now: Instant, wanted: usize) -> Option<usize> {
        if self.next_due()? > now {
            return None;
        }
        let limit = self.limit.map(|limit| limit.min(wanted));
        if self.phase == Phase::Settled && limit.is_some() && self.raise_at <= now {
            self.phase = Phase::Raising;
        }
        let len = match (self.phase, limit) {
            (Phase::Searching { too_long }, Some(arrives)) => usize::midpoint(arrives, too_long),
            (Phase::Settled, Some(limit)) => limit,
            (Phase::Settled | Phase::Raising | Phase::Searching { .. }, _) => wanted,
        };
        (len > LEAST).then_some(len)
    }

    /// When [`due`](Self::due) next has something to say, if not only once an answer or more use has come.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let has_least = self.limit.is_some_and(|limit| limit <= LEAST);
        if has_least && self.phase == Phase::Settled && self.probe.is_none() {
            // Less is not asked for, only more.
            let at = self.next_at.max(self.raise_at);
            return self.is_used.then_some(at);
        }
        let is_wanted = self.is_used || self.phase != Phase::Settled;
        (self.probe.is_none() && is_wanted).then_some(self.next_at)
    }

    /// Whether a probe is under way.
    #[must_use]
    pub const fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Takes note of a probe, sent now.
    pub fn on_probe(&mut self, now: Instant, len: usize, tokens: Tokens) {
        self.probe = Some(Probe {
            len,
            sent_at: now,
            tokens,
            answered_at: None,
        });
    }

    /// Takes note of an answer to the ping `token`; whether it is that to the padded ping.
    pub fn on_pong(&mut self, now: Instant, token: u32) -> bool {
        let Some(probe) = &mut self.probe else {
            return false;
        };
        if probe.tokens.short == token {
            probe.answered_at.get_or_insert(now);
        }
        if probe.tokens.long != token {
            return false;
        }
        let len = probe.len;
        self.probe = None;
        self.failures = 0;
        self.lost = 0;
        match self.phase {
            Phase::Settled => self.settle(now),
            Phase::Raising => {
                (self.limit, self.found) = (None, None);
                self.raise_after = RAISED_FIRST;
                self.settle(now);
            }
            Phase::Searching { too_long } => {
                self.limit = Some(len);
                self.narrow_down(now, len, too_long);
            }
        }
        true
    }

    /// Whether it was found since the last call that longer datagrams were sent than arrive, or how long those are that do.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.is_news)
    }

    /// Lets time pass: a probe whose answer is overdue has failed.
    pub fn on_timeout(&mut self, now: Instant, conditions: &Conditions) {
        let Some(probe) = self.probe else {
            return;
        };
        let Some(deadline) = self.deadline(conditions).filter(|at| *at <= now) else {
            return;
        };
        self.probe = None;
        if probe.answered_at.is_none() {
            // Nothing is known of either.
            self.next_at = deadline;
            return;
        }
        self.failures += 1;
        if self.failures < tries(conditions.loss_ppm) {
            return;
        }
        self.failures = 0;
        match self.phase {
            Phase::Raising => {
                // Whether it still takes what it took is seen at once.
                self.settle_narrow(now);
                (self.next_at, self.is_used) = (now, true);
            }
            Phase::Settled => {
                self.is_news = true;
                self.narrow_down(now, LEAST, probe.len);
            }
            Phase::Searching { .. } => {
                let arrives = self.limit.unwrap_or(LEAST);
                self.narrow_down(now, arrives, probe.len);
            }
        }
    }

    /// When the probe under way has failed, or is given up.
    #[must_use]
    pub fn deadline(&self, conditions: &Conditions) -> Option<Instant> {
        let probe = self.probe?;
        let given_up = probe.sent_at + GIVEN_UP;
        let late = probe.answered_at.map(|at| at + conditions.later);
        Some(late.map_or(given_up, |late| late.min(given_up)))
    }

    /// The path leads elsewhere now.
    pub fn restart(&mut self) {
        *self = Self::new();
    }

    fn search(&mut self, arrives: usize, too_long: usize) {
        self.limit = Some(arrives);
        self.phase = Phase::Searching { too_long };
    }

    fn narrow_down(&mut self, now: Instant, arrives: usize, too_long: usize) {
        self.search(arrives, too_long);
        if too_long <= arrives + GRAIN {
            self.is_news = true;
            self.settle_narrow(now);
        }
    }

    fn settle_narrow(&mut self, now: Instant) {
        self.found = self.limit;
        self.raise_at = now + self.raise_after;
        self.raise_after = (self.raise_after * 2).min(RAISED_AGAIN);
        self.settle(now);
    }

    fn settle(&mut self, now: Instant) {
        self.phase = Phase::Settled;
        self.next_at = now + CHECKED_AGAIN;
        self.is_used = false;
    }
}

/// How many probes have to fail in a row.
fn tries(loss_ppm: u32) -> u32 {
    let loss = u64::from(loss_ppm.min(1_000_000));
    let mut chance = 1_000_000;
    let mut tries = 0;
    while tries < LEAST_TRIES || tries < MOST_TRIES && chance > BY_CHANCE_PPM {
        chance = chance * loss / 1_000_000;
        tries += 1;
    }
    tries
}

/// Less is not looked for: handshakes may be as long, and every path is to take it (RFC 8899 section 5.1.2).
pub const LEAST: usize = 1_200;
/// To how many bytes the limit is found.
const GRAIN: usize = 4;
/// A probe does not go with what makes it worth sending.
const SOON: Duration = Duration::from_millis(1);
const CHECKED_AGAIN: Duration = Duration::from_secs(10);
/// So many lost datagrams may all have been too long.
const SUSPICIOUS: u32 = 64;
/// And lines that lose are not to be asked all the time.
const SUSPECTED_EACH: Duration = Duration::from_secs(1);
/// What was found is doubted soon, for chance may have found it, and then less and less (RFC 8899 section 5.1.1).
const RAISED_FIRST: Duration = Duration::from_secs(10);
const RAISED_AGAIN: Duration = Duration::from_secs(600);
/// A probe of which neither ping is answered for so long says nothing.
const GIVEN_UP: Duration = Duration::from_secs(3);
const LEAST_TRIES: u32 = 5;
const MOST_TRIES: u32 = 10;
const BY_CHANCE_PPM: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: usize = 1_452;

    fn conditions(loss_ppm: u32) -> Conditions {
        Conditions {
            later: Duration::from_millis(25),
            loss_ppm,
        }
    }

    /// A path that takes datagrams of `width`, has a round trip of 50 ms, and is silent at times.
    struct Line {
        mtu: PathMtu,
        width: usize,
        wanted: usize,
        is_silent: fn(u64) -> bool,
        /// What was probed, and when.
        probed: Vec<(u64, usize)>,
    }

    impl Line {
        fn of(width: usize) -> Self {
            Self {
                mtu: PathMtu::new(),
                width,
                wanted: WANTED,
                is_silent: |_| false,
                probed: Vec::new(),
            }
        }

        fn sends(&mut self, ms: u64, len: usize) {
            self.mtu
                .on_sent(Instant::from_millis(ms), Bytes::of_len(len));
        }

        fn run(&mut self, ms: core::ops::Range<u64>, loss_ppm: u32) {
            for at in ms {
                let now = Instant::from_millis(at);
                let token = |ms: u64| u32::try_from(ms * 2).expect("few");
                let passed = |ms: &u64| !(self.is_silent)(*ms);
                let answered = at.checked_sub(50).filter(passed);
                if let Some(sent) = answered {
                    let len = self.probed.iter().find(|(at, _)| *at == sent);
                    if len.is_some_and(|(_, len)| *len <= self.width) {
                        assert!(self.mtu.on_pong(now, token(sent)));
                    }
                    assert!(!self.mtu.on_pong(now, token(sent) + 1));
                }
                self.mtu.on_timeout(now, &conditions(loss_ppm));
                let is_due = self.mtu.next_due().is_some_and(|at| at <= now);
                let len = self.mtu.due(now, self.wanted);
                assert_eq!(len.is_some(), is_due, "no timer stands still");
                if let Some(len) = len {
                    let tokens = Tokens {
                        long: token(at),
                        short: token(at) + 1,
                    };
                    self.mtu.on_probe(now, len, tokens);
                    self.probed.push((at, len));
                }
            }
        }
    }

    #[test]
    fn a_path_that_takes_all_is_asked_once_and_then_while_it_is_used() {
        let mut line = Line::of(WANTED);
        line.run(0..60_000, 0);
        assert_eq!(line.probed, [(0, WANTED)]);
        assert_eq!(line.mtu.found(), None);
        line.sends(60_000, LEAST);
        line.run(60_000..61_000, 0);
        line.sends(60_999, LEAST + 1);
        line.run(61_000..70_000, 0);
        assert_eq!(line.probed, [(0, WANTED), (61_000, WANTED)]);
    }

    #[test]
    fn a_narrow_path_is_measured_within_two_seconds_and_by_four_bytes() {
        for width in [1_444, 1_424, 1_380, 1_300, 1_204] {
            let mut line = Line::of(width);
            line.run(0..3_000, 0);
            let found = line.mtu.found().expect("narrow");
            assert!(found <= width && found + GRAIN >= width, "{width}: {found}");
            assert!(line.mtu.admits(found) && !line.mtu.admits(found + 1));
        }
    }

    #[test]
    fn meanwhile_it_gets_only_what_is_sure_to_pass() {
        let mut line = Line::of(1_300);
        line.run(0..5 * 75, 0);
        assert!(line.mtu.admits(WANTED), "four have failed");
        line.run(375..376, 0);
        assert!(!line.mtu.admits(LEAST + 1) && line.mtu.found().is_none());
    }

    #[test]
    fn a_silent_path_is_not_a_narrow_one() {
        let mut line = Line::of(WANTED);
        line.is_silent = |ms| ms < 20_000;
        line.run(0..30_000, 0);
        assert_eq!((line.mtu.found(), line.mtu.admits(WANTED)), (None, true));
        let times: Vec<u64> = line.probed.iter().map(|(at, _)| *at / 1_000).collect();
        assert_eq!(times, [0, 3, 6, 9, 12, 15, 18, 21]);
    }

    #[test]
    fn the_more_a_path_loses_the_more_probes_have_to_fail() {
        for (loss_ppm, expected) in [
            (0, 5),
            (100_000, 5),
            (120_000, 6),
            (200_000, 8),
            (1_000_000, 10),
        ] {
            assert_eq!(tries(loss_ppm), expected, "{loss_ppm}");
        }
    }

    #[test]
    fn a_path_that_becomes_narrow_is_found_out_while_it_is_used() {
        let mut line = Line::of(WANTED);
        line.run(0..5_000, 0);
        line.width = 1_400;
        line.sends(5_000, WANTED);
        line.run(5_000..12_000, 0);
        assert!(line.mtu.found().is_some_and(|found| found <= 1_400));
        // And again.
        line.width = 1_350;
        line.sends(12_000, 1_390);
        line.run(12_000..25_000, 0);
        assert!(line.mtu.found().is_some_and(|found| found <= 1_350));
    }

    #[test]
    fn many_losses_are_a_reason_to_look() {
        let mut line = Line::of(WANTED);
        line.run(0..1_000, 0);
        line.width = 1_400;
        for _ in 0..SUSPICIOUS {
            line.mtu.on_lost(Instant::from_millis(1_000));
        }
        line.run(1_000..4_000, 0);
        assert!(line.mtu.found().is_some_and(|found| found <= 1_400));
    }

    #[test]
    fn what_is_found_is_doubted_ever_less() {
        let mut line = Line::of(1_400);
        let mut raised = Vec::new();
        for second in 0..160 {
            line.sends(second * 1_000, 1_390);
            line.run(second * 1_000..(second + 1) * 1_000, 0);
        }
        for (ms, len) in line.probed.iter().skip(5) {
            let second = ms / 1_000;
            if *len == WANTED && raised.last().is_none_or(|last| last + 1 < second) {
                raised.push(second);
            }
        }
        assert_eq!(raised.len(), 4, "{raised:?}");
        assert!(raised.windows(2).is_sorted_by_key(|pair| pair[1] - pair[0]));
    }

    #[test]
    fn a_path_that_becomes_wide_is_asked_after_a_while() {
        let mut line = Line::of(1_400);
        line.run(0..3_000, 0);
        line.width = WANTED;
        for second in 3..40 {
            line.sends(second * 1_000, 1_390);
            line.run(second * 1_000..(second + 1) * 1_000, 0);
            let is_wide = !line.mtu.is_narrow();
            assert!(second >= 10 || !is_wide, "{second}");
        }
        assert!(!line.mtu.is_narrow());
    }

    #[test]
    fn what_is_due_can_be_done_however_narrow_the_path_is() {
        for (wanted, width) in [
            (WANTED, 1_100),
            (WANTED, 1_200),
            (WANTED, 1_203),
            (LEAST + 1, LEAST),
            (LEAST + 4, LEAST),
            (LEAST + 5, LEAST + 4),
        ] {
            let mut line = Line::of(width);
            line.wanted = wanted;
            for second in 0..40 {
                line.run(second * 1_000..(second + 1) * 1_000, 0);
                line.sends((second + 1) * 1_000, WANTED);
                for _ in 0..SUSPICIOUS {
                    line.mtu.on_lost(Instant::from_millis((second + 1) * 1_000));
                }
            }
            let found = line.mtu.found().unwrap_or(wanted);
            assert!(found <= width.max(LEAST), "{width}: {found}");
            assert!(line.probed.len() < 400, "{}", line.probed.len());
        }
    }

    #[test]
    fn what_was_found_holds_while_less_is_searched() {
        let mut line = Line::of(1_400);
        line.run(0..3_000, 0);
        let found = line.mtu.found();
        line.width = 1_300;
        line.sends(3_000, 1_390);
        let mut ms = 3_000;
        while !line.mtu.is_searching() {
            line.run(ms..ms + 1, 0);
            ms += 1;
        }
        assert_eq!(line.mtu.found(), found);
        assert!(!line.mtu.admits(1_390));
    }

    #[test]
    fn what_is_not_wanted_is_not_looked_for() {
        let mut mtu = PathMtu::new();
        assert_eq!(mtu.due(Instant::ZERO, LEAST), None);
        assert_eq!(mtu.due(Instant::ZERO, LEAST + 1), Some(LEAST + 1));
    }
}
