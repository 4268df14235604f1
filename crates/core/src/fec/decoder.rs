//! The receiver's part: stores recent packets and repair symbols that cannot be used yet.
//!
//! *Algorithm.* Each repair symbol is one linear equation, whose unknowns are the missing packets that it covers.
//! Symbols are stored as received, and their bytes are not processed until an unknown is determined. A symbol *lacks*
//! the missing packets that it covers. When a repair symbol arrives, or a packet that a stored symbol lacks, only the
//! matrix of coefficients is brought to reduced row echelon form ([`System`]). Each row records the symbols of which it
//! is composed. A row with a single unknown is a solution: its packet is one combination of the recorded symbols and of
//! known packets. So bytes are processed once for each recovered packet, late packets need no correction, and a repair
//! symbol whose packets all arrived causes no computation.
//!
//! *Stored symbols.* A symbol may arrive long before packets that it covers, if a slower path carries them. Until they
//! arrive it cannot recover a packet, and is stored ([`Kept::most_missing`]). Symbols that do not fit into the system
//! are stored as well. Symbols that cover the packet or symbol that has just arrived are used first, because only they
//! can recover further packets; then symbols with the nearest numbers.
//!
//! *Dropped symbols.* A symbol is dropped if all its packets are known, if it follows from other symbols, or if its
//! oldest packet is no longer in the history. The oldest stored symbol is dropped when a symbol arrives and the storage
//! is full. Each dropped symbol is counted in [`Stats`], except a stored symbol whose packets all arrived late.
//!
//! *Bounds.* [`HISTORY_PKTS`] packet numbers up to the newest; [`MAX_PENDING`] stored symbols, of which at most
//! [`MAX_EQUATIONS`] are used as equations at once, in at most [`super::MAX_UNKNOWNS`] unknowns. Time for a call:
//!
//! - O([`MAX_PENDING`] log [`MAX_PENDING`] + [`MAX_EQUATIONS`] · [`MAX_WINDOW_PKTS`]) for the choice of symbols;
//! - O([`MAX_EQUATIONS`]³) products for the matrix, and much less while losses are few;
//! - for each recovered packet, a combination of at most [`HISTORY_PKTS`] + [`MAX_EQUATIONS`] symbols.
//!
//! *Contradictions.* Three contradictions are detected: a symbol that does not fit a known packet, a recovered packet
//! with an impossible length or non-zero padding, and an equation whose coefficients follow from other equations but
//! whose bytes do not. The symbols concerned are dropped and counted. Other contradictions are not detected.

use super::{
    HISTORY_PKTS, LENGTH_BYTES, MAX_EQUATIONS, MAX_PACKET_BYTES, MAX_PENDING, MAX_SYMBOL_BYTES,
    MAX_WINDOW_PKTS, Repair,
    gf256::mul,
    symbols::{Symbols, Terms},
};
use crate::ids::Seq;

mod kept;
mod system;

use kept::Kept;
use system::System;

/// [`HISTORY_PKTS`] as a distance of numbers.
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
const HISTORY: u32 = HISTORY_PKTS as u32;
/// Maximum distance from the newest number to the end of a repair symbol.
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
const MAX_AHEAD: u32 = MAX_WINDOW_PKTS as u32;

/// Counters of a [`Decoder`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of packets that arrived and were not known.
    pub sources: u64,
    /// Number of packets that were already known, by arrival or recovery.
    pub sources_duplicate: u64,
    /// Number of packets older than the history.
    pub sources_stale: u64,
    /// Number of packets that are too long.
    pub sources_malformed: u64,
    /// Number of repair symbols that were well-formed and within the history; some are also counted below.
    pub repairs: u64,
    /// Number of useless repair symbols: all their packets were known, or they followed from stored symbols.
    pub repairs_useless: u64,
    /// Number of repair symbols that contradict packets or each other.
    pub repairs_contradictory: u64,
    /// Number of repair symbols that were stored and dropped unused, because a bound was reached or they became too
    /// old.
    pub repairs_given_up: u64,
    /// Number of repair symbols that begin before the history or end too far ahead of it.
    pub repairs_out_of_reach: u64,
    /// Number of repair symbols with an impossible window or length.
    pub repairs_malformed: u64,
    /// Number of packets recovered.
    pub recovered: u64,
}

/// Recovers lost packets of one stream.
#[derive(Debug)]
pub struct Decoder {
    /// Table of symbols. Row `id % HISTORY_PKTS` contains packet `id`; the rows after the packets contain the stored
    /// repair symbols.
    symbols: Symbols,
    /// Whether the packet of each row is known; valid for numbers of the history.
    known: [bool; HISTORY_PKTS],
    /// Newest number seen; `None` before the first packet or symbol.
    newest: Option<Seq>,
    kept: Kept,
    system: Box<System>,
    terms: Box<Terms>,
    /// The symbol that is being computed.
    scratch: Box<[u8; MAX_SYMBOL_BYTES]>,
    stats: Stats,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// Returns a decoder without packets.
    #[must_use]
    pub fn new() -> Self {
        Self {
            symbols: Symbols::new(HISTORY_PKTS + MAX_PENDING),
            known: [false; HISTORY_PKTS],
            newest: None,
            kept: Kept::new(HISTORY_PKTS),
            system: Box::new(System::new()),
            terms: Box::new(Terms::new()),
            scratch: Box::new([0; MAX_SYMBOL_BYTES]),
            stats: Stats::default(),
        }
    }

    /// Returns the counters since construction.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns the number of repair symbols stored.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.kept.list().len()
    }

    /// Processes the received packet `id`. Calls `recovered` for each packet that can be recovered now, mostly oldest
    /// first (see *Stored symbols* in the module documentation).
    pub fn on_source(&mut self, id: Seq, bytes: &[u8], recovered: &mut impl FnMut(Seq, &[u8])) {
        if bytes.len() > MAX_PACKET_BYTES {
            self.stats.sources_malformed += 1;
            return;
        }
        self.advance(id);
        if !self.remembers(id) {
            self.stats.sources_stale += 1;
            return;
        }
        if self.known[row_of(id)] {
            self.stats.sources_duplicate += 1;
            return;
        }
        self.stats.sources += 1;
        self.symbols.set_packet(row_of(id), &[], bytes);
        self.known[row_of(id)] = true;
        let is_awaited = self.kept.on_known(id);
        self.kept.drop_if(|_, kept| {
            let covers = kept.repair.covers(id);
            let fits = LENGTH_BYTES + bytes.len() <= kept.repair.len;
            self.stats.repairs_contradictory += u64::from(covers && !fits);
            covers && !fits
        });
        if is_awaited {
            self.solve(id, recovered);
        }
    }

    /// Processes a received repair symbol `bytes`, described by `repair`. Calls `recovered` for each packet that can be
    /// recovered now, mostly oldest first. A recovered packet counts as known.
    pub fn on_repair(
        &mut self,
        repair: Repair,
        bytes: &[u8],
        recovered: &mut impl FnMut(Seq, &[u8]),
    ) {
        if !(1..=MAX_WINDOW_PKTS).contains(&usize::from(repair.count))
            || !(LENGTH_BYTES..=MAX_SYMBOL_BYTES).contains(&repair.len)
            || bytes.len() != repair.len
        {
            self.stats.repairs_malformed += 1;
            return;
        }
        if !self.reaches(&repair) {
            self.stats.repairs_out_of_reach += 1;
            return;
        }
        self.stats.repairs += 1;
        self.advance(repair.last());
        let is_known = |id: &Seq| self.known[row_of(*id)];
        let missing = repair.ids().filter(|id| !is_known(id)).count();
        if missing == 0 {
            self.stats.repairs_useless += 1;
            return;
        }
        let fits = |id: Seq| self.symbols.len(row_of(id)) <= repair.len;
        if !repair.ids().filter(is_known).all(fits) {
            self.stats.repairs_contradictory += 1;
            return;
        }
        if self.kept.is_full() {
            self.stats.repairs_given_up += 1;
            self.kept.drop_if(|i, _| i == 0);
        }
        // The conversion does not fail, because a window has fewer packets than 256.
        let missing = u8::try_from(missing).unwrap_or(u8::MAX);
        if let Some(row) = self.kept.push(repair, missing) {
            self.symbols.set_symbol(row, bytes);
            self.solve(repair.last(), recovered);
        }
    }

    /// Panics if a count of missing packets is wrong, or a stored symbol lacks fewer than two packets.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for kept in self.kept.list() {
            let missing = kept.repair.ids().filter(|id| !self.known[row_of(*id)]);
            assert_eq!(usize::from(kept.missing), missing.count());
            assert!(kept.missing > 1);
        }
    }

    /// Whether the whole window of `repair` is in the history, or would be after the history has advanced by one
    /// window. Only packets advance the history further, because a symbol without any of its packets is of little use.
    fn reaches(&self, repair: &Repair) -> bool {
        let Some(newest) = self.newest else {
            return true;
        };
        // The distances come from the peer, so the sums must not overflow.
        let ahead = i64::from(repair.last().distance_from(newest));
        let behind = -ahead.min(0) + i64::from(repair.count) - 1;
        ahead <= i64::from(MAX_AHEAD) && behind < i64::from(HISTORY)
    }

    /// Whether `id` is in the history, neither older nor newer.
    fn remembers(&self, id: Seq) -> bool {
        self.newest
            .is_some_and(|newest| newest.0.wrapping_sub(id.0) < HISTORY)
    }

    /// Advances the history to `id` if `id` is newer.
    fn advance(&mut self, id: Seq) {
        let newest = *self.newest.get_or_insert(id);
        let Ok(steps) = u32::try_from(id.distance_from(newest)) else {
            return;
        };
        if steps == 0 {
            return;
        }
        // These rows are assigned new numbers; there are at most `HISTORY` rows.
        for i in 0..steps.min(HISTORY) {
            self.known[row_of(id.minus(i))] = false;
        }
        self.newest = Some(id);
        self.kept.drop_if(|_, kept| {
            let old = id.0.wrapping_sub(kept.repair.first.0) >= HISTORY;
            self.stats.repairs_given_up += u64::from(old);
            old
        });
    }

    /// Recovers all packets that the stored symbols determine, packets near `at` first. Drops symbols that are no
    /// longer useful.
    fn solve(&mut self, at: Seq, recovered: &mut impl FnMut(Seq, &[u8])) {
        // The loop ends, because each further round requires that a symbol was dropped or a packet was recovered.
        loop {
            self.drop_satisfied();
            let most = self.kept.most_missing();
            if self.kept.list().iter().all(|kept| kept.missing > most) {
                return;
            }
            let before = self.stats.recovered;
            let is_all = self
                .system
                .set(&self.kept, &self.known, self.newest, most, at);
            self.system.reduce();
            let (redundant, mut contradicting) = self.check_redundant();
            if contradicting == 0 {
                contradicting = self.recover(recovered);
            }
            let mut equations = self.system.symbols().iter().zip(0..).peekable();
            self.kept.drop_if(|i, _| {
                let Some((_, equation)) = equations.next_if(|(symbol, _)| **symbol == i) else {
                    return false;
                };
                let (contradicts, follows) =
                    (bit(contradicting, equation), bit(redundant, equation));
                self.stats.repairs_contradictory += u64::from(contradicts);
                self.stats.repairs_useless += u64::from(follows && !contradicts);
                contradicts || follows
            });
            let is_news = redundant != 0 || self.stats.recovered > before;
            if contradicting == 0 && (is_all || !is_news) {
                break;
            }
        }
        self.drop_satisfied();
    }

    /// Checks each redundant equation. If its bytes agree, its newest symbol is redundant; otherwise all its symbols
    /// are contradictory. Returns the sets of redundant and of contradictory equations.
    fn check_redundant(&mut self) -> (u32, u32) {
        let (mut redundant, mut contradicting) = (0, 0);
        for row in self.system.rank()..self.system.symbols().len() {
            let combination = self.system.combination(row);
            let used = set_of_nonzero(&combination);
            let len = self.evaluate(&combination);
            if self.scratch[..len].iter().any(|byte| *byte != 0) {
                contradicting |= used;
            } else {
                redundant |= 1 << used.ilog2();
            }
        }
        (redundant, contradicting)
    }

    /// Recovers all packets that the system determines. Stops at the first invalid packet and returns the set of
    /// equations from which it was computed; otherwise returns the empty set.
    fn recover(&mut self, recovered: &mut impl FnMut(Seq, &[u8])) -> u32 {
        for row in 0..self.system.rank() {
            let Some(id) = self.system.solution(row) else {
                continue;
            };
            let combination = self.system.combination(row);
            let len = self.evaluate(&combination);
            // Each symbol that covers the packet is at least as long as the packet's own symbol.
            let covering = self.kept.list().iter().filter(|k| k.repair.covers(id));
            let longest = covering.map(|k| k.repair.len).min().unwrap_or(0);
            let Some(packet) = parse(&self.scratch[..len], longest) else {
                return set_of_nonzero(&combination);
            };
            self.symbols.set_packet(row_of(id), &[], packet);
            self.known[row_of(id)] = true;
            self.kept.on_known(id);
            self.stats.recovered += 1;
            recovered(id, packet);
        }
        0
    }

    /// Computes into `scratch` the sum of the system's symbols times the factors of `combination`, minus the known
    /// packets in it. Returns the length of the longest symbol in the sum.
    fn evaluate(&mut self, combination: &[u8; MAX_EQUATIONS]) -> usize {
        let mut factors = [0; HISTORY_PKTS];
        let mut len = 0;
        self.terms.clear();
        for (&symbol, &factor) in self.system.symbols().iter().zip(combination) {
            if factor == 0 {
                continue;
            }
            let kept = &self.kept.list()[symbol];
            len = len.max(kept.repair.len);
            self.terms.push(kept.row, factor);
            for (id, &coefficient) in kept.repair.ids().zip(&kept.coefficients) {
                // The factors of unknown packets cancel, except the factor of the solution.
                if self.known[row_of(id)] {
                    factors[row_of(id)] ^= mul(factor, coefficient);
                }
            }
        }
        for (row, factor) in factors.into_iter().enumerate() {
            if factor != 0 {
                self.terms.push(row, factor);
            }
        }
        self.symbols.combine(&self.terms, &mut self.scratch[..len]);
        len
    }

    /// Drops symbols whose packets are all known.
    fn drop_satisfied(&mut self) {
        self.kept.drop_if(|_, kept| kept.missing == 0);
    }
}

/// Returns the row of a packet.
fn row_of(id: Seq) -> usize {
    id.0 as usize % HISTORY_PKTS
}

/// Returns the packet in a symbol; `None` if the symbol is invalid or has more than `longest` bytes before the padding.
fn parse(symbol: &[u8], longest: usize) -> Option<&[u8]> {
    let (prefix, body) = symbol.split_first_chunk::<LENGTH_BYTES>()?;
    let len = usize::from(u16::from_be_bytes(*prefix));
    let (packet, padding) = body.split_at_checked(len)?;
    (LENGTH_BYTES + len <= longest && padding.iter().all(|byte| *byte == 0)).then_some(packet)
}

fn bit(set: u32, i: usize) -> bool {
    set >> i & 1 == 1
}

/// Returns the set of indices at which `combination` is not zero.
fn set_of_nonzero(combination: &[u8; MAX_EQUATIONS]) -> u32 {
    (0..)
        .zip(combination)
        .fold(0, |set, (i, factor)| set | u32::from(*factor != 0) << i)
}
