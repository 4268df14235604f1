//! Recent throughput of links, and the throughput promised to answers that are fetched in parts.

use std::time::Duration;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

use crate::sched::LinkId;

/// Recent throughput of links, and the throughput promised to fetches that have just begun.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    looked_at: Option<Instant>,
    /// Bytes received over each link until `looked_at`.
    received: Vec<u64>,
    /// Throughput of each link between the last two measurements. `None` if the measurements were too far apart.
    rates: Option<Vec<Bitrate>>,
    /// Bytes that all connections together will probably still receive over each link.
    pub(super) loads: Vec<Bytes>,
    /// Fetches that have just begun, so that `rates` does not contain them yet.
    pub(super) promised: Vec<Promise>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    pub(super) link: LinkId,
    pub(super) rate: Bitrate,
    pub(super) until: Instant,
    /// Number of the connection to whose answer the fetch belongs.
    pub(super) whole: u64,
}

impl Flows {
    /// Records the number of bytes received over each link.
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

    /// Returns the throughput of `link` plus the throughput promised on it to answers other than `whole`. The caller
    /// knows what `whole` itself will receive.
    pub(super) fn taken(&self, link: LinkId, whole: u64) -> Option<Bitrate> {
        let seen = self.rates.as_ref()?.get(link.0)?.as_bps();
        let to_others = |promise: &&Promise| promise.link == link && promise.whole != whole;
        let promised = self.promised.iter().filter(to_others);
        let promised: u64 = promised.map(|promise| promise.rate.as_bps()).sum();
        Some(Bitrate::from_bps(seen.saturating_add(promised)))
    }
}

/// Interval of the measurements, while any answer needs them.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// Time after which the last measurement is too old to compute a rate from.
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
