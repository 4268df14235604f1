//! Bytes sent and delivered on a path, including the IP and UDP headers of each datagram.
//!
//! Headers take transmission time like payload, and are a quarter of an ACK's length. Without headers, a rate
//! measured with full packets would be a third too high for ACKs, and ACKs paced at it would fill the bottleneck's
//! queue.

use crate::{transmit::Route, units::Bytes, wire::header::DATA_OVERHEAD};

/// Running totals of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnWire {
    sent: u64,
    delivered: u64,
    /// Totals of the newest report: bytes of UDP payload, and datagrams.
    reported: (u64, u64),
}

impl OnWire {
    /// Records a datagram sent, of `len` bytes including its headers.
    pub fn on_sent(&mut self, len: Bytes) {
        self.sent = self.sent.saturating_add(len.get());
    }

    /// Processes the totals of a report: `payload` bytes arrived in `packets` datagrams. `headers`: header length of a
    /// datagram on the present route. Reports older than the newest one are ignored.
    pub fn on_report(&mut self, payload: u64, packets: u64, headers: Bytes) {
        let (payload_before, packets_before) = self.reported;
        if payload < payload_before || packets < packets_before {
            return;
        }
        self.reported = (payload, packets);
        let headers = (packets - packets_before).saturating_mul(headers.get());
        let came = (payload - payload_before).saturating_add(headers);
        self.delivered = self.delivered.saturating_add(came);
    }

    /// Total bytes sent.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Total bytes reported as received.
    #[must_use]
    pub const fn delivered(&self) -> u64 {
        self.delivered
    }
}

/// Length of the IP and UDP headers on `route`, in bytes; of IPv4 while there is no route.
#[must_use]
pub fn headers(route: Option<&Route>) -> Bytes {
    let is_v6 = route.is_some_and(|route| route.remote.ip().to_canonical().is_ipv6());
    if is_v6 { Bytes::new(48) } else { UDP_IPV4 }
}

/// Length of the IP and UDP headers over IPv4, in bytes.
pub const UDP_IPV4: Bytes = Bytes::new(28);

/// Overhead of a datagram in addition to the packet in it, in bytes, over IPv4.
const DATAGRAM: Bytes = Bytes::new(UDP_IPV4.get() + DATA_OVERHEAD as u64);

/// Returns the bytes on the wire of `packets` packets of the host with a total length of `bytes`, each in its own
/// datagram over IPv4.
#[must_use]
pub fn in_datagrams(bytes: Bytes, packets: usize) -> Bytes {
    bytes + Bytes::new(DATAGRAM.get() * packets as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_datagram_counts_with_the_headers_of_its_time() {
        let mut wire = OnWire::default();
        wire.on_report(1_000, 10, Bytes::new(28));
        assert_eq!(wire.delivered(), 1_280);
        wire.on_report(1_500, 15, Bytes::new(48));
        assert_eq!(wire.delivered(), 1_280 + 740, "nothing is counted anew");
        wire.on_report(1_200, 12, Bytes::new(48));
        assert_eq!(wire.delivered(), 2_020, "older");
        wire.on_sent(Bytes::new(128));
        assert_eq!(wire.sent(), 128);
    }

    #[test]
    fn headers_are_those_of_the_far_ends_address() {
        assert_eq!(headers(None), UDP_IPV4);
        for (remote, len) in [
            ("192.0.2.1:7700", 28),
            ("[::ffff:192.0.2.1]:7700", 28),
            ("[2001:db8::1]:7700", 48),
        ] {
            let route = Route {
                link: 0,
                remote: remote.parse().expect("an address"),
                local: None,
            };
            assert_eq!(headers(Some(&route)), Bytes::new(len), "{remote}");
        }
    }
}
