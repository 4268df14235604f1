//! Path MTU discovery: the longest datagram that a path carries, found with probes (RFC 8899, DPLPMTUD).
//!
//! Links that are tunnels themselves (PPPoE, DS-Lite, mobile networks) carry less than 1500 bytes, and announce this
//! by ICMP messages that firewalls often drop. Longer datagrams are then lost without notice: pings work, downloads
//! hang.
//!
//! *Algorithm.* A path is assumed to carry full datagrams until probes show otherwise. A probe is a ping padded to the
//! length under test, followed by a short ping. The probe has failed if the short ping is answered and the padded ping
//! is not. So a path that is silent or has become slow is not mistaken for a path with a smaller MTU. Between 5 and 10
//! probes in a row must fail. The number depends on the path's loss: unless it reaches 10, ordinary loss is the cause
//! in at most 10 of a million cases (`BY_CHANCE_PPM`). Then a binary search finds the MTU to within 4 bytes (`GRAIN`).
//!
//! The longest length is probed when the path comes up. While long datagrams are sent, the present MTU is probed again
//! every 10 s (`CHECKED_AGAIN`), because routes change, and soon after 64 losses (`SUSPICIOUS`). If that length no
//! longer arrives, the search starts again. A *narrow* path, which does not carry the longest datagrams, is probed for
//! the longest length after 10 s (`RAISED_FIRST`), then at growing intervals up to 10 minutes (`RAISED_AGAIN`), while
//! long datagrams are sent. An idle path is not probed.
//!
//! **Difference** from RFC 8899: the RFC begins with a length that is sure to arrive. pleach begins with the longest
//! length, because most paths carry it; until the search ends, packets that the path loses are retransmitted on other
//! paths. All lengths are UDP payload, in bytes.

use core::time::Duration;

use crate::{time::Instant, units::Bytes};

/// The path MTU of one path, in the sending direction.
#[derive(Clone, Debug)]
pub struct PathMtu {
    /// The longest length known to arrive; `None` if no length is known to be lost.
    limit: Option<usize>,
    /// The result of the last finished search.
    found: Option<usize>,
    phase: Phase,
    probe: Option<Probe>,
    failures: u32,
    /// Earliest time of the next probe.
    next_at: Instant,
    /// When a larger MTU is probed next, and the interval after that probe.
    raise_at: Instant,
    raise_after: Duration,
    /// Number of datagrams lost since the last answer, and when losses last caused a probe.
    lost: u32,
    suspected_at: Instant,
    /// Whether a long datagram was sent since the last result.
    is_used: bool,
    /// See [`Self::take_news`].
    is_news: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The present MTU is verified from time to time.
    Settled,
    /// A larger MTU is probed for.
    Raising,
    /// The MTU is between `limit` and `too_long`.
    Searching { too_long: usize },
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    len: usize,
    sent_at: Instant,
    tokens: Tokens,
    /// When the short ping was answered.
    answered_at: Option<Instant>,
}

/// The tokens of the two pings of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Token of the padded ping.
    pub long: u32,
    /// Token of the short ping that follows the padded one.
    pub short: u32,
}

/// Other measurements of the path that a probe depends on.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// How much later than the answer to the short ping the answer to the padded ping may arrive.
    pub later: Duration,
    /// Loss of the path, in parts per million.
    pub loss_ppm: u32,
}

impl Default for PathMtu {
    fn default() -> Self {
        Self::new()
    }
}

impl PathMtu {
    /// Creates the state of a path that has not been probed.
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

    /// Whether a datagram of `len` bytes is within the longest length known to arrive; always true if no limit is
    /// known.
    #[must_use]
    pub fn admits(&self, len: usize) -> bool {
        self.limit.is_none_or(|limit| len <= limit)
    }

    /// The MTU, if the path is narrow; during a search, the result of the previous one.
    #[must_use]
    pub const fn found(&self) -> Option<usize> {
        self.found
    }

    /// Whether the search for the MTU is in progress.
    #[must_use]
    pub const fn is_searching(&self) -> bool {
        matches!(self.phase, Phase::Searching { .. })
    }

    /// Whether the path is known to be narrow, that is, not to carry the longest datagrams.
    #[must_use]
    pub const fn is_narrow(&self) -> bool {
        self.limit.is_some()
    }

    /// Records a datagram that is sent now.
    pub fn on_sent(&mut self, now: Instant, len: Bytes) {
        if !self.is_used && len > Bytes::of_len(LEAST) {
            self.is_used = true;
            self.next_at = self.next_at.max(now + SOON);
        }
    }

    /// Records a lost datagram. After many losses a probe is due soon.
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

    /// Returns the length of the probe that is due now, if any; then [`on_probe`](Self::on_probe) must follow.
    /// `wanted`: the longest datagram that this end sends.
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

    /// When the next probe is [due](Self::due); `None` if that depends on an answer or on further use.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let has_least = self.limit.is_some_and(|limit| limit <= LEAST);
        if has_least && self.phase == Phase::Settled && self.probe.is_none() {
            // Smaller lengths are not probed, only larger ones.
            let at = self.next_at.max(self.raise_at);
            return self.is_used.then_some(at);
        }
        let is_wanted = self.is_used || self.phase != Phase::Settled;
        (self.probe.is_none() && is_wanted).then_some(self.next_at)
    }

    /// Whether a probe is in flight.
    #[must_use]
    pub const fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Records a probe sent now.
    pub fn on_probe(&mut self, now: Instant, len: usize, tokens: Tokens) {
        self.probe = Some(Probe {
            len,
            sent_at: now,
            tokens,
            answered_at: None,
        });
    }

    /// Processes an answer to the ping `token`. Returns whether it was the padded ping.
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

    /// Whether, since the last call, a probe at the present MTU failed or a search ended.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.is_news)
    }

    /// Ends a probe whose answer is overdue: the probe has failed, or it is given up.
    pub fn on_timeout(&mut self, now: Instant, conditions: &Conditions) {
        let Some(probe) = self.probe else {
            return;
        };
        let Some(deadline) = self.deadline(conditions).filter(|at| *at <= now) else {
            return;
        };
        self.probe = None;
        if probe.answered_at.is_none() {
            // Neither ping was answered: the probe has no result.
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
                // Verify the present MTU at once.
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

    /// Time at which the probe in flight has failed, or is given up.
    #[must_use]
    pub fn deadline(&self, conditions: &Conditions) -> Option<Instant> {
        let probe = self.probe?;
        let given_up = probe.sent_at + GIVEN_UP;
        let late = probe.answered_at.map(|at| at + conditions.later);
        Some(late.map_or(given_up, |late| late.min(given_up)))
    }

    /// Restarts discovery after a change of route.
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

/// Number of probes in a row that must fail.
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

/// Lower bound of the search: handshakes may be this long, and every path must carry it (RFC 8899 section 5.1.2).
pub const LEAST: usize = 1_200;
/// Resolution of the search, in bytes.
const GRAIN: usize = 4;
/// Delay between the event that causes a probe and the probe.
const SOON: Duration = Duration::from_millis(1);
const CHECKED_AGAIN: Duration = Duration::from_secs(10);
/// Number of lost datagrams since the last answer that causes a probe.
const SUSPICIOUS: u32 = 64;
/// Minimum time between two probes caused by loss, for paths that often lose packets.
const SUSPECTED_EACH: Duration = Duration::from_secs(1);
/// First and longest interval of probes for a larger MTU (RFC 8899 section 5.1.1). The first probe is early, because
/// random loss may have caused the result; later probes are less and less frequent.
const RAISED_FIRST: Duration = Duration::from_secs(10);
const RAISED_AGAIN: Duration = Duration::from_secs(600);
/// Time after which a probe without any answer is given up.
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

    /// A path that carries datagrams of up to `width` bytes, has an RTT of 50 ms, and is silent at times.
    struct Line {
        mtu: PathMtu,
        width: usize,
        wanted: usize,
        is_silent: fn(u64) -> bool,
        /// Time and length of each probe.
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
        // The path becomes narrower again.
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
