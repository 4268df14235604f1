//! Block weighted round robin (Katevenis et al. 1991), counted in packets or, as deficit round robin (Shreedhar and
//! Varghese 1995), in bytes.

use crate::ids::PathId;

/// One line as the round robin sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Index of the line in the tables.
    pub(super) slot: usize,
    /// Weight of the line; a line of weight 0 has no turn.
    pub(super) weight: u32,
    /// Whether a packet may be sent on the line now.
    pub(super) ready: bool,
}

/// The line whose turn it is, and the rest of its turn.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    current: Option<usize>,
    /// Packets or bytes that the current line may still send, and the amount that each other line has overdrawn in
    /// its last turn, as a negative number.
    left: [i64; PathId::MAX],
}

impl Blocks {
    pub(super) const fn new() -> Self {
        Self {
            current: None,
            left: [0; PathId::MAX],
        }
    }

    /// Returns the index in `lines` of the line whose turn it is, and charges the line `cost`. A turn lasts `quantum`
    /// per weight. Lines take turns in the order given; a line that is not ready loses its turn. `None` if no ready
    /// line has weight.
    pub(super) fn next(&mut self, lines: &[Turn], cost: u32, quantum: u32) -> Option<usize> {
        let may_send = |line: &Turn| line.ready && line.weight > 0;
        if !lines.iter().any(may_send) {
            return None;
        }
        let of_slot = |slot: usize| lines.iter().position(|line| line.slot == slot);
        let mut at = self.current.and_then(of_slot);
        // Each turn gives at least one quantum, so a packet is paid for after a bounded number of rounds.
        loop {
            if let Some(line) = at.and_then(|at| lines.get(at)) {
                let full = i64::from(line.weight) * i64::from(quantum);
                let left = &mut self.left[line.slot];
                // A weight that has fallen shortens the turn at once.
                *left = (*left).min(full);
                if may_send(line) && *left > 0 {
                    *left -= i64::from(cost.min(MAX_COST));
                    return at;
                }
            }
            let next = at.map_or(0, |at| at + 1) % lines.len();
            at = Some(next);
            let line = &lines[next];
            self.current = Some(line.slot);
            if may_send(line) {
                let left = &mut self.left[line.slot];
                *left = (*left).min(0) + i64::from(line.weight) * i64::from(quantum.max(1));
            }
        }
    }
}

/// Maximum length of a packet in bytes.
const MAX_COST: u32 = 1 << 16;
