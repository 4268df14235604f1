//! What links carried lately, and what was promised of them to answers in parts.

use std::time::Duration;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

use crate::sched::LinkId;

/// What links carried lately, and what was promised of them.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    looked_at: Option<Instant>,
    /// What had come over each link then.
    received: Vec<u64>,
    /// What came over each before that; `None`: it was not looked at for too long.
    rates: Option<Vec<Bitrate>>,
    /// What all connections will probably still bring over each.
    pub(super) loads: Vec<Bytes>,
    /// Fetches that have just begun, so that nothing is seen of them: until when.
    pub(super) promised: Vec<Promise>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    pub(super) link: LinkId,
    pub(super) rate: Bitrate,
    pub(super) until: Instant,
    /// The number of the connection that began the answer.
    pub(super) whole: u64,
}

impl Flows {
    /// Notes what has come over each link.
    pub(super) fn on_look(&mut self, now: Instant, received: Vec<u64>) {
        let time = self.looked_at.map(|at| now.since(at));
        let rates = |time: Duration| {
            let rates = received.iter().enumerate().map(|(link, bytes)| {
                let before = self.received.get(link).copied().unwrap_or(*bytes);
                let bytes = Bytes::new(bytes.saturating_sub(before));
                Bitrate::from_transfer(bytes, time).unwrap_or(Bitrate::ZERO)
            });
            rates.collect()
        };
        self.rates = time.filter(|time| *time <= STALE).map(rates);
        self.received = received;
        self.looked_at = Some(now);
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.looked_at.is_none_or(|at| now.since(at) >= LOOK)
    }

    /// What comes over `link`, with what is promised of it to other answers than `whole`'s: what that one is to bring is known there.
    pub(super) fn taken(&self, link: LinkId, whole: u64) -> Option<Bitrate> {
        let seen = self.rates.as_ref()?.get(link.0)?.as_bps();
        let to_others = |promise: &&Promise| promise.link == link && promise.whole != whole;
        let promised = self.promised.iter().filter(to_others);
        let promised: u64 = promised.map(|promise| promise.rate.as_bps()).sum();
        Some(Bitrate::from_bps(seen.saturating_add(promised)))
    }
}

/// How often links are looked at while somebody asks.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// What was seen so long ago says nothing.
const STALE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_promised_to_an_answer_is_not_taken_by_others_for_it() {
        let mut flows = Flows::default();
        let at = Instant::from_millis;
        flows.on_look(at(0), vec![0, 0]);
        flows.on_look(at(50), vec![0, 12_500]);
        let rate = Bitrate::from_mbps(8);
        let link = LinkId(1);
        flows.promised.push(Promise {
            link,
            rate,
            until: at(500),
            whole: 7,
        });
        assert_eq!(flows.taken(link, 7), Some(Bitrate::from_mbps(2)));
        assert_eq!(flows.taken(link, 8), Some(Bitrate::from_mbps(10)));
        assert_eq!(flows.taken(LinkId(0), 8), Some(Bitrate::ZERO));
    }
}
