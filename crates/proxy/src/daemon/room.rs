//! What links have room for just now: beside what they carry, for answers that could come over several ([`crate::parts`]).

use std::{net::IpAddr, time::Duration};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

use super::hub::{Hub, Live};
use crate::{
    parts::{Lane, Parts, Plan},
    sched::LinkId,
};

/// What links carried lately, and what was promised of them.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    looked_at: Option<Instant>,
    /// What had come over each link then.
    received: Vec<u64>,
    /// What came over each before that; `None`: it was not looked at for too long.
    rates: Option<Vec<Bitrate>>,
    /// What all connections will probably still bring over each.
    loads: Vec<Bytes>,
    /// Fetches that have just begun, so that nothing is seen of them: until when.
    promised: Vec<Promise>,
}

#[derive(Clone, Copy, Debug)]
struct Promise {
    link: LinkId,
    rate: Bitrate,
    until: Instant,
    /// The number of the connection that began the answer.
    whole: u64,
}

impl Flows {
    /// Notes what has come over each link.
    fn on_look(&mut self, now: Instant, received: Vec<u64>) {
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

    fn is_due(&self, now: Instant) -> bool {
        self.looked_at.is_none_or(|at| now.since(at) >= LOOK)
    }

    /// What comes over `link`, with what is promised of it to other answers than `whole`'s: what that one is to bring is known there.
    fn taken(&self, link: LinkId, whole: u64) -> Option<Bitrate> {
        let seen = self.rates.as_ref()?.get(link.0)?.as_bps();
        let to_others = |promise: &&Promise| promise.link == link && promise.whole != whole;
        let promised = self.promised.iter().filter(to_others);
        let promised: u64 = promised.map(|promise| promise.rate.as_bps()).sum();
        Some(Bitrate::from_bps(seen.saturating_add(promised)))
    }
}

impl Hub {
    /// The links that could bring some of `parts`, which `live` began to bring from one of `addresses`, and what others leave of them.
    pub(crate) fn lanes(
        &self,
        now: Instant,
        live: &Live,
        addresses: &[IpAddr],
        parts: &Parts,
    ) -> Vec<Lane> {
        let Some(id) = live.id else { return Vec::new() };
        let mut placer = self.placer.borrow_mut();
        let mut flows = self.flows.borrow_mut();
        if flows.is_due(now) {
            for live in self.live.borrow().values() {
                if let Some(id) = live.id {
                    placer.glance(now, id, live.moved());
                }
            }
            flows.on_look(now, placer.received());
            let loads = placer.loads(now, Bytes::ZERO);
            flows.loads = loads.iter().map(|(load, _)| Bytes::new(*load)).collect();
            flows.promised.retain(|promise| now < promise.until);
        }
        let links = placer.helpers(now, id, addresses);
        let round_trips = placer.links().iter();
        let nearest = round_trips.filter_map(|link| link.estimator.rtt()).min();
        let warm = self.warm(live.purpose.client.ip(), &live.purpose.target);
        let lane = |link: LinkId| {
            let (_, rate) = placer.rates(now, link);
            let others_bps = flows.taken(link, live.number)?.as_bps();
            let others_bps = others_bps.saturating_sub(parts.rate_on(link).as_bps());
            let round_trip = placer.links().get(link.0)?.estimator.rtt().or(nearest);
            let is_warm = warm.iter().any(|warm| warm.link == link);
            let round_trips = if is_warm { 1 } else { 2 };
            let round_trip = round_trip.unwrap_or(UNKNOWN);
            let start = round_trip * round_trips + MARGIN;
            // What others leave for a moment they will take again while they have enough to do.
            let load = flows.loads.get(link.0).copied().unwrap_or(Bytes::ZERO);
            let load = load.get().saturating_sub(parts.left_on(link).get());
            let is_known = placer.known_download(link).is_some();
            let are_busy = load > rate.bytes_in(start + LOOK).get() || load > 0 && !is_known;
            let free_bps = if are_busy {
                0
            } else {
                rate.as_bps().saturating_sub(others_bps)
            };
            Some(Lane {
                link,
                rate,
                free: Bitrate::from_bps(free_bps),
                start,
                round_trip,
            })
        };
        links.into_iter().filter_map(lane).collect()
    }

    /// Notes that a fetch that is `planned` is about to bring some of what `live` began to bring.
    pub(crate) fn promise(&self, now: Instant, live: &Live, planned: &Plan) {
        let promise = Promise {
            link: planned.link,
            rate: planned.rate,
            until: now + planned.start + LOOK * 2,
            whole: live.number,
        };
        self.flows.borrow_mut().promised.push(promise);
    }
}

/// How often links are looked at while somebody asks.
const LOOK: Duration = Duration::from_millis(50);
/// What was seen so long ago says nothing.
const STALE: Duration = Duration::from_millis(250);
/// Round trip of a link of which none is known, nor of any other.
const UNKNOWN: Duration = Duration::from_millis(100);
/// What a server takes to answer, and we to ask.
const MARGIN: Duration = Duration::from_millis(5);

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
