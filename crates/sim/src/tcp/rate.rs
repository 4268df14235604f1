//! Delivery rate: the rate at which the network delivered the segments that an acknowledgement covers.
//!
//! Every segment stores the delivery state at the time it was sent ([`Mark`]). When the segment is delivered, a sample
//! ([`RateSample`]) is the number of segments delivered in between, divided by the longer of two times: the time in
//! which they were sent and the time in which they were acknowledged. So neither a burst of segments nor a burst of
//! acknowledgements is mistaken for bandwidth. A sample that began while the sender was application-limited is only a
//! lower bound of the path's capacity. Source: draft-cheng-iccrg-delivery-rate-estimation-02, as in Linux's
//! `tcp_rate.c`.

use core::time::Duration;

use pleach_core::time::Instant;

use super::scoreboard::Sent;

/// Delivery state at the time a segment is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// Number of segments delivered until then, `P.delivered`.
    delivered_pkts: u64,
    /// Time of the last delivery, `P.delivered_time`.
    delivered_at: Instant,
    /// Sending time of the segment delivered last, `P.first_sent_time`.
    first_sent_at: Instant,
    is_app_limited: bool,
}

/// The latest sent segment that an acknowledgement delivers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    mark: Mark,
    sent_at: Instant,
    end: u64,
}

impl Newest {
    /// Returns whichever of `before` and `segment` was sent later.
    pub(super) fn of(before: Option<Self>, segment: &Sent) -> Self {
        match before {
            Some(before) if (before.sent_at, before.end) >= (segment.sent_at, segment.end) => {
                before
            }
            Some(_) | None => Self {
                mark: segment.mark,
                sent_at: segment.sent_at,
                end: segment.end,
            },
        }
    }
}

/// Number of segments delivered in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RateSample {
    pub(super) delivered_pkts: u64,
    /// Length of the interval, at least the minimum RTT.
    pub(super) interval: Duration,
    /// Total number of delivered segments when the sample began.
    pub(super) prior_delivered_pkts: u64,
    pub(super) is_app_limited: bool,
}

/// Delivery rate sampler of one sender.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateSampler {
    delivered_at: Instant,
    first_sent_at: Instant,
    /// Samples are application-limited until more than this number of segments is delivered.
    app_limited_until: Option<u64>,
}

impl RateSampler {
    /// Returns the mark of a segment sent at `now`. `is_first`: whether no other segment is outstanding.
    pub(super) fn mark(&mut self, now: Instant, is_first: bool, delivered_pkts: u64) -> Mark {
        if is_first {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        Mark {
            delivered_pkts,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            is_app_limited: self.app_limited_until.is_some(),
        }
    }

    /// Marks segments as application-limited until more than `until_pkts` are delivered.
    pub(super) fn on_app_limited(&mut self, until_pkts: u64) {
        self.app_limited_until = Some(until_pkts);
    }

    /// Whether segments sent now are application-limited.
    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }

    /// Returns the time of the last delivery.
    pub(super) fn delivered_at(&self) -> Instant {
        self.delivered_at
    }

    /// Returns the sample of an acknowledgement that raises the total number of delivered segments to `delivered_pkts`.
    /// `None` if it delivers nothing, or if the interval is shorter than the minimum RTT, which happens only after
    /// spurious retransmissions.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        newest: Option<Newest>,
        delivered_pkts: u64,
        min_rtt: Option<Duration>,
    ) -> Option<RateSample> {
        if self
            .app_limited_until
            .is_some_and(|until| delivered_pkts > until)
        {
            self.app_limited_until = None;
        }
        let Newest { mark, sent_at, .. } = newest?;
        self.delivered_at = now;
        self.first_sent_at = sent_at;
        let send_time = sent_at.since(mark.first_sent_at);
        let ack_time = now.since(mark.delivered_at);
        let interval = send_time.max(ack_time);
        (interval >= min_rtt.unwrap_or_default()).then_some(RateSample {
            delivered_pkts: delivered_pkts.saturating_sub(mark.delivered_pkts),
            interval,
            prior_delivered_pkts: mark.delivered_pkts,
            is_app_limited: mark.is_app_limited,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn newest(mark: Mark, sent_at: Instant) -> Option<Newest> {
        Some(Newest {
            mark,
            sent_at,
            end: 1,
        })
    }

    #[test]
    fn a_burst_of_acknowledgements_does_not_pass_for_bandwidth() {
        // One segment is sent each millisecond. All are acknowledged at once after 20 ms.
        let mut sampler = RateSampler::default();
        let at = Instant::from_millis;
        let marks: Vec<Mark> = (0..20).map(|i| sampler.mark(at(i), i == 0, 0)).collect();
        let mut rates = Vec::new();
        for (i, mark) in (0..20).zip(marks) {
            let sample = sampler.on_ack(at(20), newest(mark, at(i)), i + 1, Some(MS));
            let sample = sample.expect("a round trip");
            rates.push(sample.delivered_pkts as f64 / sample.interval.as_secs_f64());
        }
        assert!(rates.iter().all(|rate| *rate <= 1_000.0), "{rates:?}");
    }

    #[test]
    fn the_longer_of_both_times_counts() {
        let mut sampler = RateSampler::default();
        let at = Instant::from_millis;
        let first = sampler.mark(at(0), true, 0);
        let second = sampler.mark(at(30), false, 0);
        sampler.on_ack(at(40), newest(first, at(0)), 1, None);
        let sample = sampler.on_ack(at(41), newest(second, at(30)), 2, None);
        let sample = sample.expect("delivered");
        assert_eq!((sample.delivered_pkts, sample.interval), (2, 41 * MS));
        // An acknowledgement after less than any RTT belongs to the original transmission.
        let third = sampler.mark(at(50), false, 2);
        let sample = sampler.on_ack(at(51), newest(third, at(50)), 3, Some(40 * MS));
        assert_eq!(sample, None);
    }

    #[test]
    fn a_pause_of_the_application_marks_what_follows() {
        let mut sampler = RateSampler::default();
        let at = Instant::from_millis;
        sampler.on_app_limited(1);
        let marked = sampler.mark(at(0), true, 0);
        let sample = sampler.on_ack(at(10), newest(marked, at(0)), 1, None);
        assert!(sample.expect("delivered").is_app_limited);
        let still = sampler.mark(at(10), true, 1);
        let sample = sampler.on_ack(at(20), newest(still, at(10)), 2, None);
        assert!(sample.expect("delivered").is_app_limited);
        let free = sampler.mark(at(20), true, 2);
        let sample = sampler.on_ack(at(30), newest(free, at(20)), 3, None);
        assert!(!sample.expect("delivered").is_app_limited);
    }
}
