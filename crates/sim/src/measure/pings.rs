//! Echo requests and their RTTs.

use core::time::Duration;

use pleach_core::time::Instant;

use super::FlowReport;
use crate::results::{PingPoint, PingSummary, Quantiles};

/// The requests of one ping, by number.
#[derive(Clone, Debug, Default)]
pub struct EchoRequests {
    requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    sent_at: Instant,
    round_trip: Option<Duration>,
}

impl EchoRequests {
    /// Records the next request and returns its number.
    pub fn send(&mut self, now: Instant) -> u64 {
        let number = self.requests.len() as u64;
        self.requests.push(Request {
            sent_at: now,
            round_trip: None,
        });
        number
    }

    /// Records the reply to request `number`. A copy of a reply, or a reply without a request, is ignored.
    pub fn receive(&mut self, now: Instant, number: u64) {
        let index = usize::try_from(number).ok();
        if let Some(request) = index.and_then(|index| self.requests.get_mut(index))
            && request.round_trip.is_none()
        {
            request.round_trip = Some(now.since(request.sent_at));
        }
    }

    /// Returns the measurements. Requests sent before `begin`, the start of the run, are idle pings. Requests sent from
    /// `start` on are loaded pings.
    #[must_use]
    pub fn report(&self, begin: Instant, start: Instant) -> FlowReport {
        let (idle, rest): (Vec<Request>, Vec<Request>) = self
            .requests
            .iter()
            .partition(|request| request.sent_at < begin);
        let loaded: Vec<Request> = rest
            .into_iter()
            .filter(|request| request.sent_at >= start)
            .collect();
        let points = loaded
            .iter()
            .map(|request| PingPoint {
                time_s: request.sent_at.since(begin).as_secs_f64(),
                rtt_ms: request.round_trip.map(millis),
            })
            .collect();
        let summary = summary(&loaded);
        FlowReport {
            delays_ms: loaded
                .iter()
                .filter_map(|request| request.round_trip.map(millis))
                .collect(),
            sent: summary.sent,
            received: summary.sent - summary.lost,
            pings: Some((self::summary(&idle), summary, points)),
            ..FlowReport::default()
        }
    }
}

fn summary(requests: &[Request]) -> PingSummary {
    let mut rtt: Vec<f64> = requests
        .iter()
        .filter_map(|request| request.round_trip.map(millis))
        .collect();
    let lost = requests.len() - rtt.len();
    PingSummary {
        sent: requests.len() as u64,
        lost: lost as u64,
        rtt_ms: Quantiles::of(&mut rtt),
        max_ms: rtt.last().copied(),
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
