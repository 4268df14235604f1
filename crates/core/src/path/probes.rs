//! Probes in flight, and pings of the peer to answer. Both are bounded; the oldest probe is forgotten first.

use std::collections::VecDeque;

use crate::time::Instant;

/// Probes in flight, and pings to answer, on one path.
#[derive(Debug, Default)]
pub struct Probes {
    next_token: u32,
    /// Tokens of sent probes and their sending times, oldest first; at most [`MAX_PROBES`].
    sent: VecDeque<(u32, Instant)>,
    /// Tokens and sizes of pings to answer; at most [`MAX_OWED`].
    owed: Vec<(u32, u16)>,
}

impl Probes {
    /// Frees the memory of earlier probes.
    pub(super) fn release_memory(&mut self) {
        self.sent.shrink_to_fit();
        self.owed.shrink_to_fit();
    }

    /// Records a probe sent now. Returns its token.
    pub fn start(&mut self, now: Instant) -> u32 {
        let token = self.next_token;
        self.next_token = token.wrapping_add(1);
        if self.sent.len() == MAX_PROBES {
            self.sent.pop_front();
        }
        self.sent.push_back((token, now));
        token
    }

    /// When the probe `token` was sent; `None` if the probe is unknown, or if this probe or a later one was already
    /// answered.
    pub fn finish(&mut self, token: u32) -> Option<Instant> {
        let index = self.sent.iter().position(|(sent, _)| *sent == token)?;
        let (_, sent_at) = self.sent.drain(..=index).next_back()?;
        Some(sent_at)
    }

    /// Queues a ping to answer, unless `MAX_OWED` pings are queued.
    pub fn owe(&mut self, token: u32, size: u16) {
        if self.owed.len() < MAX_OWED {
            self.owed.push((token, size));
        }
    }

    /// Takes one ping to answer.
    pub fn take_owed(&mut self) -> Option<(u32, u16)> {
        self.owed.pop()
    }
}

/// Maximum number of probes in flight. At one probe every 20 ms an answer may take 2.5 s, longer than on any path
/// that is worth using.
const MAX_PROBES: usize = 128;
/// Maximum number of pings to answer: more than a peer sends between two polls.
const MAX_OWED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_takes_seconds_is_recognised_once() {
        let mut probes = Probes::default();
        let at = |probe: u64| Instant::from_millis(probe * 20);
        let tokens: Vec<u32> = (0..120).map(|probe| probes.start(at(probe))).collect();
        assert_eq!(probes.finish(tokens[0]), Some(at(0)));
        assert_eq!(probes.finish(tokens[0]), None);
        assert_eq!(probes.finish(tokens[7]), Some(at(7)));
        assert_eq!(probes.finish(tokens[5]), None, "overtaken");
        assert_eq!(probes.finish(999), None, "never sent");
    }

    #[test]
    fn the_oldest_probe_is_forgotten_when_too_many_are_unanswered() {
        let mut probes = Probes::default();
        let first = probes.start(Instant::ZERO);
        for _ in 0..MAX_PROBES {
            probes.start(Instant::ZERO);
        }
        assert_eq!(probes.finish(first), None);
        assert_eq!(probes.sent.len(), MAX_PROBES);
    }
}
