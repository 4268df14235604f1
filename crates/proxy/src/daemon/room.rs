//! What links have room for just now: beside what they carry, for answers that could come over several ([`crate::parts`]).

use std::{net::IpAddr, time::Duration};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

use super::hub::{Hub, Live};
use crate::{
    parts::{Lane, Parts},
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
    promised: Vec<(LinkId, Bitrate, Instant)>,
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

    /// What comes over `link`, with what is promised of it.
    fn taken(&self, link: LinkId) -> Option<Bitrate> {
        let seen = self.rates.as_ref()?.get(link.0)?.as_bps();
        let promised = self.promised.iter().filter(|(on, ..)| *on == link);
        let promised: u64 = promised.map(|(_, rate, _)| rate.as_bps()).sum();
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
            flows.promised.retain(|(.., until)| now < *until);
        }
        let links = placer.helpers(now, id, addresses);
        let round_trips = placer.links().iter();
        let nearest = round_trips.filter_map(|link| link.estimator.rtt()).min();
        let warm = self.warm(live.purpose.client.ip(), &live.purpose.target);
        let lane = |link: LinkId| {
            let (_, rate) = placer.rates(now, link);
            let others_bps = flows.taken(link)?.as_bps();
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

    /// Notes that `link` is about to bring `rate` more, from `start` on.
    pub(crate) fn promise(&self, now: Instant, link: LinkId, rate: Bitrate, start: Duration) {
        let until = now + start + LOOK * 2;
        self.flows.borrow_mut().promised.push((link, rate, until));
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
