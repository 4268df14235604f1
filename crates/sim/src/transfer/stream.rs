//! Both ends of a sequence of packets: the arrived packets, and the sender's interpretation of acknowledgements.

/// A sequence of packets with its own numbering.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Whether each packet has arrived, by number.
    come: Vec<bool>,
    /// Receiver: the first number that has not arrived.
    missing: usize,
    /// Receiver: number of packets that have arrived beyond the first missing packet, and the maximum of this number.
    held: u64,
    held_max: u64,
    /// Sender: the first number that is not known to have arrived, and how often in a row it was reported as missing.
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

    /// Records the arrival of a packet. Returns the first number that is then missing. `None` if the packet arrived
    /// before.
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

    /// Processes an acknowledgement of all packets before `missing` and of a new packet. If `missing` is reported for
    /// the third time in a row, it is returned and considered lost.
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

    /// Returns the highest number of packets that the receiver had to buffer.
    pub(super) const fn held_max(&self) -> u64 {
        self.held_max
    }
}

/// Number of duplicate reports that make an event: RFC 5681, section 3.2.
const EVENT: u32 = 3;
