//! Free capacity of the links at present, for answers that can be fetched over several links ([`crate::parts`]).

use std::{net::IpAddr, time::Duration};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

use super::{
    flows::{LOOK, Promise},
    hub::Hub,
    live::Live,
};
use crate::{
    parts::{Lane, Parts, Plan},
    sched::LinkId,
};

/// Returns the links that could fetch some of `parts`, each with the capacity that other connections leave. `live` is
/// the connection on which the answer began, and `addresses` are the addresses of its server.
pub(crate) fn lanes(
    hub: &Hub,
    now: Instant,
    live: &Live,
    addresses: &[IpAddr],
    parts: &Parts,
) -> Vec<Lane> {
    let Some(id) = live.id else { return Vec::new() };
    let mut placer = hub.placer.borrow_mut();
    let mut flows = hub.flows.borrow_mut();
    if flows.is_due(now) {
        for live in hub.table.live.borrow().values() {
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
    let warm = hub.warm(live.purpose.client.ip(), &live.purpose.target);
    let lane = |link: LinkId| {
        let (_, rate) = placer.rates(now, link);
        let others_bps = flows.taken(link, live.number)?.as_bps();
        let others_bps = others_bps.saturating_sub(parts.rate_on(link).as_bps());
        let round_trip = placer.links().get(link.0)?.estimator.rtt().or(nearest);
        let is_warm = warm.iter().any(|warm| warm.link == link);
        let round_trips = if is_warm { 1 } else { 2 };
        let round_trip = round_trip.unwrap_or(UNKNOWN);
        let start = round_trip * round_trips + MARGIN;
        // Other connections that leave capacity unused for a moment will use it again if they still have enough data to
        // move.
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

/// Records that the fetch `planned`, which belongs to the answer of `live`, is about to begin.
pub(crate) fn promise(hub: &Hub, now: Instant, live: &Live, planned: &Plan) {
    let promise = Promise {
        link: planned.link,
        rate: planned.rate,
        until: now + planned.start + LOOK * 2,
        whole: live.number,
    };
    hub.flows.borrow_mut().promised.push(promise);
}

/// Assumed RTT of a link if no RTT is known of any link.
const UNKNOWN: Duration = Duration::from_millis(100);
/// Time added to the RTTs for sending the request and for the server's processing.
const MARGIN: Duration = Duration::from_millis(5);
