//! Both ends of a sequence of packets: what has come, and what the sender makes of the acknowledgements.

/// A sequence with numbers of its own.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// By number: whether it has come, and whether the sender knows.
    come: Vec<bool>,
    /// Receiver: the first number that has not come.
    missing: usize,
    /// Receiver: how many have come beyond it, and at most.
    held: u64,
    held_max: u64,
    /// Sender: the first number that is not known to have come, and how often in a row that was said.
    told_missing: usize,
    repeats: u32,
}

impl Stream {
    pub(super) fn new(packets: usize) -> Self {
        Self {
            come: vec![false; packets],
            missing: 0,
            held: 0,
            held_max: 0,
            told_missing: 0,
            repeats: 0,
        }
    }

    /// A packet arrives; the first number that is missing then, `None` if it came before.
    pub(super) fn arrive(&mut self, number: usize) -> Option<usize> {
        if self.come[number] {
            return None;
        }
        self.come[number] = true;
        self.held += 1;
        while self.come.get(self.missing) == Some(&true) {
            self.missing += 1;
            self.held -= 1;
        }
        self.held_max = self.held_max.max(self.held);
        Some(self.missing)
    }

    /// The sender hears that all before `missing` has come, and something new; the number that is taken for lost if this
    /// is the third time in a row.
    pub(super) fn acknowledge(&mut self, missing: usize) -> Option<usize> {
        if missing > self.told_missing {
            self.told_missing = missing;
            self.repeats = 0;
        } else if missing == self.told_missing && missing < self.come.len() {
            self.repeats += 1;
        }
        (missing == self.told_missing && self.repeats == EVENT).then_some(missing)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.missing == self.come.len()
    }

    /// Most packets the receiver had to hold.
    pub(super) const fn held_max(&self) -> u64 {
        self.held_max
    }
}

/// RFC 5681, section 3.2.
const EVENT: u32 = 3;
