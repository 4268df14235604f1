//! Loss and delay of each link, measured from TCP connections that stay on one link: those that the equalizer does not
//! spread.
//!
//! A connection belongs to the link whose device has its source address. Servers differ in distance and in the networks
//! before them. So links are compared only by servers to which there are connections on *each* of the links, of which
//! there must be at least two. The delay is the mean of the shortest RTTs over these servers; the loss is the number of
//! retransmitted segments divided by the number of sent segments. Without such servers loss and delay are unknown, and
//! the guideline does not change the weights.
//!
//! Bounds: [`MAX_HOSTS`] servers of all links together, removed [`IMPAIRMENT_MEMORY`] after their last connection;
//! [`MAX_CONNECTIONS`] connections.
//!
//! The NATALIE paper does not say how loss and delay are measured.

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use std::collections::BTreeMap;

use pleach_core::time::Instant;

use crate::{guideline::Impairment, weights::IMPAIRMENT_MEMORY};

/// TCP's counters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Link of the connection.
    pub link: usize,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the server.
    pub remote: SocketAddr,
    /// Shortest RTT. Zero if there is none yet.
    pub min_rtt: Duration,
    /// Number of segments sent so far.
    pub segments: u32,
    /// Number of segments retransmitted so far.
    pub retransmitted: u32,
}

/// Measurements of servers over each link.
#[derive(Clone, Debug, Default)]
pub struct Passive {
    hosts: BTreeMap<(IpAddr, usize), Host>,
    /// Sent and retransmitted segments of each connection at the last examination.
    last: BTreeMap<(SocketAddr, SocketAddr), (u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Host {
    min_rtt: Duration,
    segments: f64,
    retransmitted: f64,
    seen_at: Instant,
}

impl Passive {
    /// Processes the state at `now` of all connections that are not spread.
    pub fn handle_samples(&mut self, now: Instant, samples: &[Sample]) {
        let mut last = BTreeMap::new();
        for sample in samples.iter().take(MAX_CONNECTIONS) {
            let name = (sample.local, sample.remote);
            let counts = (sample.segments, sample.retransmitted);
            last.insert(name, counts);
            let before = self.last.get(&name).copied().unwrap_or(counts);
            self.on_sample(
                now,
                sample,
                counts.0.saturating_sub(before.0),
                counts.1.saturating_sub(before.1),
            );
        }
        self.last = last;
        self.hosts
            .retain(|_, host| now.since(host.seen_at) <= IMPAIRMENT_MEMORY);
    }

    /// Returns loss and delay of links `0..links`. `None` if no comparison is possible.
    #[must_use]
    pub fn impairments(&self, links: usize) -> Vec<Option<Impairment>> {
        let is_shared =
            |host: &IpAddr| self.hosts.range((*host, 0)..=(*host, usize::MAX)).count() == links;
        (0..links)
            .map(|link| {
                let of_link = self
                    .hosts
                    .iter()
                    .filter(|((host, of), _)| *of == link && is_shared(host));
                let hosts: Vec<&Host> = of_link.map(|(_, host)| host).collect();
                let count = u32::try_from(hosts.len())
                    .ok()
                    .filter(|count| *count > 0 && links > 1)?;
                let segments: f64 = hosts.iter().map(|host| host.segments).sum();
                let retransmitted: f64 = hosts.iter().map(|host| host.retransmitted).sum();
                let loss = if segments >= LEAST_SEGMENTS {
                    retransmitted / segments
                } else {
                    0.0
                };
                Some(Impairment {
                    loss: loss.min(1.0),
                    delay: hosts.iter().map(|host| host.min_rtt).sum::<Duration>() / count,
                })
            })
            .collect()
    }

    fn on_sample(&mut self, now: Instant, sample: &Sample, segments: u32, retransmitted: u32) {
        let key = (sample.remote.ip(), sample.link);
        if sample.min_rtt.is_zero()
            || (self.hosts.len() >= MAX_HOSTS && !self.hosts.contains_key(&key))
        {
            return;
        }
        let host = self.hosts.entry(key).or_insert(Host {
            min_rtt: sample.min_rtt,
            segments: 0.0,
            retransmitted: 0.0,
            seen_at: now,
        });
        if host.seen_at < now {
            // This is the first connection of this examination.
            host.min_rtt = sample.min_rtt;
            host.seen_at = now;
        }
        host.min_rtt = host.min_rtt.min(sample.min_rtt);
        host.segments += f64::from(segments);
        host.retransmitted += f64::from(retransmitted);
        if host.segments > LOSS_MEMORY_SEGMENTS {
            host.segments /= 2.0;
            host.retransmitted /= 2.0;
        }
    }
}

/// Highest number of servers, counted once for each link.
pub const MAX_HOSTS: usize = 1024;
/// Highest number of connections examined.
pub const MAX_CONNECTIONS: usize = 4096;
/// Number of segments below which a loss of a percent cannot be measured.
const LEAST_SEGMENTS: f64 = 500.0;
/// Number of segments per server over which loss is averaged, approximately.
const LOSS_MEMORY_SEGMENTS: f64 = 20_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(link: usize, server: u8, rtt_ms: u64, segments: u32, retransmitted: u32) -> Sample {
        let address = |last: u8, port: u16| SocketAddr::from(([10, 0, 0, last], port));
        Sample {
            link,
            local: address(u8::try_from(link).expect("small"), 1000),
            remote: address(100 + server, 80),
            min_rtt: Duration::from_millis(rtt_ms),
            segments,
            retransmitted,
        }
    }

    #[test]
    fn links_are_compared_by_servers_both_reach() {
        let mut passive = Passive::default();
        let at = Instant::from_millis;
        passive.handle_samples(at(0), &[sample(0, 1, 10, 100, 0), sample(1, 2, 90, 100, 0)]);
        assert_eq!(passive.impairments(2), [None, None], "different servers");
        passive.handle_samples(
            at(1000),
            &[sample(0, 1, 10, 100, 0), sample(1, 1, 40, 100, 9)],
        );
        passive.handle_samples(
            at(2000),
            &[sample(0, 1, 10, 1100, 0), sample(1, 1, 40, 1100, 59)],
        );
        let found = passive.impairments(2);
        let (first, second) = (found[0].expect("known"), found[1].expect("known"));
        assert_eq!(
            (first.delay, second.delay),
            (Duration::from_millis(10), Duration::from_millis(40))
        );
        assert_eq!(first.loss, 0.0);
        assert!(
            (second.loss - 0.05).abs() < 1e-9,
            "only what was sent since it is watched"
        );
        passive.handle_samples(at(40_000), &[]);
        assert_eq!(passive.impairments(2), [None, None], "too old");
    }

    #[test]
    fn tables_are_bounded() {
        let mut passive = Passive::default();
        let many: Vec<Sample> = (0..6000_u32)
            .map(|number| Sample {
                remote: SocketAddr::from((number.to_be_bytes(), 80)),
                local: SocketAddr::from((number.to_be_bytes(), 81)),
                ..sample(0, 1, 10, 1, 0)
            })
            .collect();
        passive.handle_samples(Instant::ZERO, &many);
        assert_eq!(
            (passive.hosts.len(), passive.last.len()),
            (MAX_HOSTS, MAX_CONNECTIONS)
        );
    }
}
